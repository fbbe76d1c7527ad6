"""Lists of an aggregate for clients without sessions: there at once, the same to the byte, and news only if it is."""

import json
import random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from actors.ports import Principal
from tests.actors.test_cold_start import Disk
from tests.support.door_client import Client, Pending
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend, tool
from tests.support.modern_backend import ModernBackend
from tests.support.modern_client import ModernClient

LISTS = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")
CHANGED = "notifications/tools/list_changed"
PAIRS = [(c, s) for c in ("modern", "legacy") for s in ("modern", "legacy")]


def server(era: str, name: str = "alpha", **more: Any) -> Backend:
    return (ModernBackend if era == "modern" else Backend)(name, **more)


async def connect(at: Gateway, era: str) -> ModernClient | Client:
    """A client of this era; the one with sessions has shaken hands."""
    if era == "legacy":
        return await at.connect()
    return ModernClient(at.actors.door, at.nursery)


async def listen(client: ModernClient | Client) -> Pending:
    if isinstance(client, Client):
        return client.listen()
    pending = client.listen(tools=True, prompts=True, resources=True)
    await pending.next("notifications/subscriptions/acknowledged")
    return pending


def said(pending: Pending) -> list[str]:
    """What was said but for acknowledgements."""
    return [m["method"] for m in pending.messages if not m["method"].endswith("acknowledged")]


async def listed(client: ModernClient | Client) -> list[str]:
    """Every list, without the hint how long it is good."""
    results = [await client.call(method) for method in LISTS]
    return [json.dumps({k: v for k, v in result.items() if k != "ttlMs"}) for result in results]


def slow(backend: Backend) -> Backend:
    """Nothing that it is asked at first is ever answered."""
    backend.mute |= {"initialize", "server/discover"}
    return backend


@pytest.mark.parametrize(("client", "speaks"), PAIRS)
@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_after_a_restart_the_last_lists_are_there_at_once(
    autojump_clock: MockClock, client: str, speaks: str, kind: Any
) -> None:
    disk = Disk()
    async with open_gateway(server(speaks, kind=kind, tools=("a", "b")), lists=disk, prestart=True) as at:
        first = await connect(at, client)
        await listed(first)
        await trio.sleep(5)
        before = await listed(first)
    assert "alpha__a" in before[0]
    async with open_gateway(slow(server(speaks, kind=kind)), lists=disk, prestart=True) as at:
        began = trio.current_time()
        assert await listed(await connect(at, client)) == before
        assert trio.current_time() - began < 0.1


@pytest.mark.parametrize("speaks", ["modern", "legacy"])
async def test_what_a_server_lists_now_is_announced_when_it_is_there(autojump_clock: MockClock, speaks: str) -> None:
    disk = Disk()
    async with open_gateway(server(speaks, tools=("old",)), lists=disk) as at:
        await listed(await connect(at, "modern"))
        await trio.sleep(5)
    async with open_gateway(server(speaks, tools=("old", "new")), lists=disk) as at:
        client = await connect(at, "modern")
        tools = (await client.call("tools/list"))["tools"]
        assert [t["name"] for t in tools] in (["alpha__old"], ["alpha__old", "alpha__new"])
        await listen(client)
        await trio.sleep(5)
        tools = (await client.call("tools/list"))["tools"]
        assert [t["name"] for t in tools] == ["alpha__old", "alpha__new"]


@pytest.mark.parametrize(("client", "speaks"), PAIRS)
async def test_the_first_lists_ever_are_there_within_three_seconds_all_together(
    autojump_clock: MockClock, client: str, speaks: str
) -> None:
    async with open_gateway(Backend("quick"), slow(server(speaks, "slow"))) as at:
        began = trio.current_time()
        one = await connect(at, client)
        for method in LISTS:
            result = await one.call(method)
            assert result["_meta"]["stagedoor/missing"] == {"slow": "pending"}
        assert trio.current_time() - began <= 3.01
        tools = (await one.call("tools/list"))["tools"]
        assert [t["name"] for t in tools] == ["quick__echo"]


@pytest.mark.parametrize(("client", "speaks"), PAIRS)
@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_a_server_that_comes_and_goes_changes_no_list_and_announces_nothing(
    autojump_clock: MockClock, client: str, speaks: str, kind: Any
) -> None:
    alpha, beta = server(speaks, kind=kind), Backend("beta")
    async with open_gateway(alpha, beta) as at:
        one = await connect(at, client)
        await listed(one)
        events = await listen(one)
        await trio.sleep(5)
        before = await listed(one)
        for _ in range(4):
            alpha.down = True
            for upstream in alpha.open:
                upstream.die()
            await trio.sleep(2)
            assert await listed(one) == before
            alpha.down = False
            await trio.sleep(60)
            assert await listed(one) == before
        await trio.sleep(60)
        assert said(events) == []


@pytest.mark.parametrize(("client", "speaks"), PAIRS)
async def test_the_same_definitions_in_another_order_are_no_news(
    autojump_clock: MockClock, client: str, speaks: str
) -> None:
    alpha = server(speaks, tools=("a", "b", "c", "d"))
    async with open_gateway(alpha) as at:
        one = await connect(at, client)
        await listed(one)
        events = await listen(one)
        await trio.sleep(5)
        before = await listed(one)
        for seed in range(4):
            random.Random(seed).shuffle(alpha.lists["tools/list"])
            announce(alpha)
            await trio.sleep(40)
        assert (said(events), await listed(one)) == ([], before)
        alpha.lists["tools/list"].insert(0, tool("e"))
        announce(alpha)
        await trio.sleep(40)
        assert said(events) == [CHANGED]
        tools = (await one.call("tools/list"))["tools"]
        assert [t["name"] for t in tools] == [f"alpha__{name}" for name in "abcde"]


def announce(backend: Backend) -> None:
    """The server says that its tools have changed, on whatever is there."""
    if isinstance(backend, ModernBackend):
        backend.change(CHANGED)
        return
    for upstream in backend.open:
        upstream.notify(CHANGED)


async def test_what_one_client_looks_at_is_still_news_for_another_that_listens(autojump_clock: MockClock) -> None:
    alpha = ModernBackend("alpha")
    async with open_gateway(alpha) as at:
        one, two = [await connect(at, "modern") for _ in range(2)]
        await listed(one)
        events = await listen(one)
        await trio.sleep(1)
        alpha.lists["tools/list"].append(tool("new"))
        assert "alpha__new" in (await listed(two))[0]  # nobody has announced it yet
        await trio.sleep(5)
        assert said(events) == [CHANGED]


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_server_that_hangs_is_waited_for_once(era: str, autojump_clock: MockClock) -> None:
    hung, beta = server(era, "hung", kind="http", mute={"initialize", "server/discover"}), Backend("beta")
    async with open_gateway(hung, beta) as gateway:
        took: dict[str, list[int]] = {"list": [], "call": [], "listen": []}
        for capabilities in ({}, {"sampling": {}}, {"roots": {}}):
            client = ModernClient(gateway.actors.door, gateway.nursery, capabilities=capabilities)
            for what, seconds in took.items():
                began = trio.current_time()
                if what == "list":
                    tools = (await client.call("tools/list"))["tools"]
                    assert [tool["name"] for tool in tools] == ["beta__echo"]
                elif what == "call":
                    assert (await client.begin("tools/call", {"name": "nobodys"}).error()).code == -32602
                else:
                    (await listen(client)).drop()
                seconds.append(round(trio.current_time() - began))
        assert took == {"list": [3, 0, 0], "call": [10, 0, 0], "listen": [0, 0, 0]}


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("data", [None, {"uri": "file:///x"}])
async def test_an_error_names_a_resource_in_the_words_of_the_client(
    era: str, data: Any, autojump_clock: MockClock
) -> None:
    backend = server(era, kind="http", mute={"resources/read", "tools/call"})
    async with open_gateway(backend, Backend("beta")) as gateway:
        client = ModernClient(gateway.actors.door, gateway.nursery)
        await client.call("tools/list")
        read = client.begin("resources/read", {"uri": "alpha+file:///x"})
        (await backend.next("resources/read")).error(-32002, "gone", data)
        error = await read.error()
        assert (error.code, error.data) == (-32602, {"uri": "alpha+file:///x"})
        call = client.begin("tools/call", {"name": "alpha__echo"})
        (await backend.next("tools/call")).error(-32002, "gone", data)
        named = {"data": {"uri": "alpha+file:///x"}} if data else {}
        assert (await call.error()).data == {"code": -32002, **named}


async def test_a_server_that_hangs_for_one_user_is_waited_for_by_another(autojump_clock: MockClock) -> None:
    hung = server("modern", "hung", kind="http", mute={"tools/list"})  # over one connection for all
    async with open_gateway(hung, Backend("beta")) as gateway:
        took = []
        for name in ("ann", "ann", "bob"):
            client = ModernClient(gateway.actors.door, gateway.nursery, principal=Principal(name))
            await client.call("resources/read", {"uri": "hung+file:///x"})  # it is connected
            began = trio.current_time()
            await client.call("tools/list")
            took.append(round(trio.current_time() - began))
        assert took == [3, 0, 3]


async def test_a_server_that_acknowledges_nothing_is_waited_for_by_one_subscription_and_by_lists(
    autojump_clock: MockClock,
) -> None:
    slow = server("modern", "slow", kind="http", mute={"subscriptions/listen"})
    async with open_gateway(slow) as gateway:
        client = ModernClient(gateway.actors.door, gateway.nursery)
        took = []
        for uris in ((), (), ("slow+file:///x",)):
            began = trio.current_time()
            heard = client.listen(*uris, tools=True)
            await heard.next("notifications/subscriptions/acknowledged")
            took.append(round(trio.current_time() - began))
            heard.drop()
        assert took == [10, 0, 10]
        found = (await client.call("prompts/list"))["prompts"]
        assert [prompt["name"] for prompt in found] == ["slow__hello"]
