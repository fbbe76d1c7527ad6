"""Lists of an aggregate change when a definition does, and only then is a client told that they have."""

import json
import random
from typing import Any

import pytest
import trio

from tests.actors.test_cold_start import Disk
from tests.actors.test_lazy_lists import crash_catalogue
from tests.support.door_client import Client, Pending
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend, tool

LISTS = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")
KINDS = ("tools", "prompts", "resources")


def changed(kind: str) -> str:
    return f"notifications/{kind}/list_changed"


async def listed(client: Client) -> list[str]:
    """Every list as its bytes would be."""
    return [json.dumps(await client.call(method)) for method in LISTS]


def said(gateway: Gateway, outcome: str) -> int:
    counts = gateway.telemetry.counts
    return sum(n for (name, labels), n in counts.items() if name == CHANGED and labels[1] == outcome)


CHANGED = "stagedoor_list_changed_total"


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_a_server_that_comes_and_goes_changes_no_list_and_announces_nothing(
    autojump_clock: Any, kind: Any, own: bool
) -> None:
    alpha, beta = Backend("alpha", kind=kind), Backend("beta")
    async with open_gateway(alpha, beta) as gateway:
        client = await gateway.connect()
        events = client.listen()
        if own:
            await client.tool("alpha__echo")
        before = await listed(client)
        for _ in range(5):
            alpha.down = True
            for upstream in alpha.open:
                upstream.die()
            await trio.sleep(2)
            assert await listed(client) == before
            alpha.down = False
            await trio.sleep(60)
            assert await listed(client) == before
            if own:
                assert await client.tool("alpha__echo") == "alpha: echo"
        await trio.sleep(60)
        assert [m["method"] for m in events.messages] == []
        assert said(gateway, "sent") == 0


@pytest.mark.parametrize("own", [False, True])
async def test_a_server_that_says_it_has_changed_and_has_not_is_looked_at_and_nobody_told(
    autojump_clock: Any, own: bool
) -> None:
    alpha = Backend("alpha", tools=("a", "b", "c", "d"))
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        events = client.listen()
        if own:
            await client.tool("alpha__a")
        before = await listed(client)
        for seed in range(5):
            random.Random(seed).shuffle(alpha.lists["tools/list"])
            alpha.lists["tools/list"][0] = dict(reversed(alpha.lists["tools/list"][0].items()))
            for kind in KINDS:
                alpha.upstream.notify(changed(kind))
            await trio.sleep(40)
        assert events.messages == []
        assert await listed(client) == before
        assert (said(gateway, "sent"), said(gateway, "spared") >= 5) == (0, True)


@pytest.mark.parametrize("own", [False, True])
async def test_a_definition_that_is_another_one_is_announced_once_and_moves_nothing_else(
    autojump_clock: Any, own: bool
) -> None:
    alpha, beta = Backend("alpha", tools=("a", "b")), Backend("beta")
    async with open_gateway(alpha, beta) as gateway:
        client = await gateway.connect()
        events = client.listen()
        if own:
            await client.tool("alpha__a")
        await listed(client)
        alpha.lists["tools/list"] = [tool("c"), tool("b", title="B"), tool("a")]
        for _ in range(3):
            for kind in KINDS:
                alpha.upstream.notify(changed(kind))
        await trio.sleep(10)
        assert [m["method"] for m in events.messages] == [changed("tools")]
        assert await client.names() == ["alpha__a", "alpha__b", "alpha__c", "beta__echo"]
        assert said(gateway, "sent") == 1


async def test_what_a_filter_hides_may_change_unheard(autojump_clock: Any) -> None:
    alpha = Backend("alpha", tools=("get", "set"), enabled_tools=("get",))
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        events = client.listen()
        assert await client.names() == ["alpha__get"]
        alpha.lists["tools/list"][1] = tool("set", title="other")
        alpha.upstream.notify(changed("tools"))
        await trio.sleep(10)
        assert events.messages == []


async def test_changes_of_several_servers_in_one_moment_are_one_notification(autojump_clock: Any) -> None:
    backends = [Backend(name) for name in ("alpha", "beta", "gamma")]
    async with open_gateway(*backends) as gateway:
        client = await gateway.connect()
        events = client.listen()
        await client.names()
        for backend in backends:
            backend.lists["tools/list"].append(tool("new"))
            backend.upstream.notify(changed("tools"))
        await trio.sleep(10)
        assert [m["method"] for m in events.messages] == [changed("tools")]


async def test_a_server_that_never_stops_saying_so_is_asked_less_and_less(autojump_clock: Any) -> None:
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        await client.names()
        for _ in range(600):
            alpha.upstream.notify(changed("tools"))
            await trio.sleep(0.1)
        assert len(alpha.asked_for("tools/list")) < 15
        alpha.lists["tools/list"].append(tool("new"))
        assert await client.names() == ["alpha__echo", "alpha__new"]  # who asks for it waits for no clock


async def test_a_session_that_comes_back_knows_which_lists_its_client_has(autojump_clock: Any) -> None:
    alpha = Backend("alpha")
    async with open_gateway(alpha, idle_ttl=86_400.0) as gateway:
        client = await gateway.connect()
        await listed(client)
        for renamed in (False, True):
            await trio.sleep(400)
            assert gateway.left()["sessions"] == 0
            if renamed:
                alpha.lists["tools/list"] = [tool("other")]
            gateway.change()  # a table with another name: the session is told, if it makes a difference
            events = client.listen()
            await trio.sleep(20)
            expected = [changed("tools")] if renamed else []
            assert [m["method"] for m in events.messages] == expected
            events.drop()


async def test_one_clients_look_at_a_list_does_not_keep_its_change_from_another(
    autojump_clock: Any,
) -> None:
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        clients = [await gateway.connect() for _ in range(2)]
        streams: list[Pending] = [client.listen() for client in clients]
        for client in clients:
            await client.names()
        alpha.lists["tools/list"].append(tool("new"))
        alpha.upstream.notify(changed("tools"))
        assert await clients[0].names() == ["alpha__echo", "alpha__new"]
        await trio.sleep(10)
        assert [[m["method"] for m in events.messages] for events in streams] == [[], [changed("tools")]]


@pytest.mark.parametrize("own", [False, True])
async def test_a_list_whose_request_was_cancelled_is_announced_for_its_client_does_not_have_it(
    autojump_clock: Any, own: bool
) -> None:
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        events = client.listen()
        if own:
            await client.tool("alpha__echo")
        assert await client.names() == ["alpha__echo"]
        await trio.sleep(1)
        asked = len(alpha.asked_for("tools/list"))
        alpha.lists["tools/list"].append(tool("new"))
        alpha.mute.add("tools/list")
        alpha.upstream.notify(changed("tools"))
        await gateway.settle()
        pending = client.begin("tools/list")
        await gateway.settle()
        (request,) = alpha.asked_for("tools/list")[asked:]
        await client.cancel(pending)
        await gateway.settle()
        alpha.mute.clear()
        alpha.list(request)
        await trio.sleep(10)
        assert [m["method"] for m in events.messages] == [changed("tools")]


async def test_a_look_that_finds_nothing_new_is_one_look_also_where_the_server_need_not_be_asked(
    autojump_clock: Any,
) -> None:
    alpha = Backend("alpha", capabilities={"tools": {"listChanged": True}})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        await client.tool("alpha__echo")
        await client.call("prompts/list")
        await trio.sleep(5)
        alpha.upstream.notify(changed("prompts"))
        await trio.sleep(5)
        assert (said(gateway, "sent"), said(gateway, "spared")) == (0, 1)


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_a_session_that_was_quiet_for_long_is_given_its_lists_in_the_same_order(
    autojump_clock: Any, kind: Any
) -> None:
    alpha = Backend("alpha", tools=("a", "b", "c", "d"), kind=kind)
    async with open_gateway(alpha, lists=Disk(), idle_ttl=86_400.0) as gateway:
        client = await gateway.connect()
        await client.tool("alpha__a")
        before = await listed(client)
        for seed in range(4):
            random.Random(seed).shuffle(alpha.lists["tools/list"])
            await trio.sleep(400)
            events = client.listen()
            assert await listed(client) == before
            await client.tool("alpha__a")
            await trio.sleep(5)
            assert await listed(client) == before
            assert events.messages == []
            events.drop()


async def test_over_a_connection_of_its_own_a_session_is_given_things_in_the_order_that_others_know(
    autojump_clock: Any,
) -> None:
    alpha = Backend("alpha", tools=("a", "b", "c", "d"))
    async with open_gateway(alpha, lists=Disk()) as gateway:
        before = await (await gateway.connect()).names()
        alpha.lists["tools/list"].reverse()
        client = await gateway.connect()
        await client.call("prompts/get", {"name": "alpha__hello"})
        assert await client.names() == before


async def test_long_lists_that_are_others_each_time_do_not_fill_the_memory(
    autojump_clock: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("actors.endpoints.host.MEMO_BYTES", 1_000_000)
    alpha = Backend("alpha", tools=("a",))
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        for n in range(30):
            alpha.lists["tools/list"] = [tool("a", description="x" * 100_000 + str(n))]
            alpha.upstream.notify(changed("tools")) if alpha.upstreams else None
            await gateway.settle()
            (item,) = (await client.call("tools/list"))["tools"]
            assert item["description"].endswith(f"x{n}")
        values = gateway.actors.tree.memo.values.values()
        assert sum(len(item) for value in values if isinstance(value, list) for item in value) < 1_100_000


@pytest.mark.parametrize("meanwhile", [False, True])
async def test_a_session_that_was_not_in_memory_is_told_of_what_changed_meanwhile_and_of_what_changes_later(
    autojump_clock: Any, meanwhile: bool
) -> None:
    alpha = Backend("alpha")
    async with open_gateway(alpha, idle_ttl=86_400.0) as gateway:
        client = await gateway.connect()
        await client.names()
        await trio.sleep(100)
        assert gateway.left()["sessions"] == 0
        if meanwhile:
            alpha.lists["tools/list"].append(tool("new"))
            alpha.upstream.notify(changed("tools"))
        events = client.listen()
        await trio.sleep(20)
        assert [m["method"] for m in events.messages] == [changed("tools")] * meanwhile
        alpha.lists["tools/list"].append(tool("newer"))
        alpha.upstream.notify(changed("tools"))
        await trio.sleep(20)
        assert [m["method"] for m in events.messages] == [changed("tools")] * (1 + meanwhile)


async def test_a_session_that_comes_back_is_not_told_of_a_change_while_a_server_is_still_starting(
    autojump_clock: Any,
) -> None:
    alpha, beta = Backend("alpha"), Backend("beta")
    async with open_gateway(alpha, beta, idle_ttl=86_400.0) as gateway:
        client = await gateway.connect()
        await client.names()
        await trio.sleep(400)
        await crash_catalogue(gateway)
        alpha.mute.add("initialize")
        events = client.listen()
        request = await alpha.next("initialize")
        request = await alpha.next("initialize")
        await trio.sleep(15)
        assert events.messages == []
        alpha.answer(request)
        await trio.sleep(15)
        assert events.messages == []
