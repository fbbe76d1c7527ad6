"""Servers that hang: what is known of them counts, and they are waited for again once they answer, or are others."""

from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from actors.endpoints.slow import SLOW_FOR, SlowServers
from actors.ports import Principal
from actors.protocol.table import HttpTarget
from tests.support.door_client import RpcError
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend, Request
from tests.support.modern_backend import ModernBackend
from tests.support.modern_client import ModernClient

HANGS = {"initialize", "server/discover"}
BOTH = ["alpha__echo", "beta__echo"]


def answer_later(backend: Backend, nursery: trio.Nursery) -> None:
    """Lists of this server come half a second after they were asked for."""

    async def answer(request: Request) -> None:
        await trio.sleep(0.5)
        request.result({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]})

    async def serve() -> None:
        while True:
            nursery.start_soon(answer, await backend.next("tools/list"))

    backend.mute |= {"tools/list"}
    nursery.start_soon(serve)


async def listed(gateway: Gateway, **capabilities: object) -> list[str]:
    """By another kind of modern client."""
    client = ModernClient(gateway.actors.door, gateway.nursery, capabilities=capabilities)
    return [tool["name"] for tool in (await client.call("tools/list"))["tools"]]


async def test_a_bare_name_is_found_at_once_on_the_last_list_of_a_server_that_hangs(autojump_clock: MockClock) -> None:
    alpha = Backend("alpha", kind="http")
    async with open_gateway(alpha, Backend("beta", tools=("other",))) as gateway:
        client = await gateway.connect()
        await client.names()
        alpha.mute |= {"tools/list"}
        alpha.upstream.notify("notifications/tools/list_changed")
        await trio.sleep(1)
        with pytest.raises(RpcError, match="Unknown tool"):
            await client.tool("nobodys")
        other, began = await gateway.connect(), trio.current_time()
        assert await other.tool("echo") == "alpha: echo"
        assert round(trio.current_time() - began) == 0


async def test_who_acknowledges_a_subscription_again_is_waited_for_by_the_next(autojump_clock: MockClock) -> None:
    alpha = ModernBackend("alpha", kind="http", mute={"subscriptions/listen"})
    async with open_gateway(alpha) as gateway:
        client, took = ModernClient(gateway.actors.door, gateway.nursery), []
        for uris in ((), (), ("alpha+file:///x",), ()):
            if uris:
                alpha.mute.clear()
            began = trio.current_time()
            pending = client.listen(*uris, tools=True)
            await pending.next("notifications/subscriptions/acknowledged")
            took.append(round(trio.current_time() - began))
            pending.drop()
            await trio.sleep(1)
            alpha.mute |= {"subscriptions/listen"}
        assert took == [10, 0, 0, 10]


async def test_a_server_is_waited_for_by_all_once_it_answers_one(autojump_clock: MockClock) -> None:
    alpha = ModernBackend("alpha", kind="http", mute=set(HANGS))
    async with open_gateway(alpha, Backend("beta")) as gateway, trio.open_nursery() as nursery:
        assert await listed(gateway) == ["beta__echo"]
        answer_later(alpha, nursery)
        alpha.mute -= HANGS
        for request in [r for r in alpha.requests if r.method in HANGS]:
            alpha.answer(request)
        await trio.sleep(10)
        assert await listed(gateway) == BOTH
        assert await listed(gateway, sampling={}) == BOTH
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("first", "expected"), [({}, [3, 0, 0, 0, 3]), ({"sampling": {}}, [3, 0, 0, 3, 0])])
async def test_a_server_that_was_started_ahead_and_hangs_is_waited_for_once(
    autojump_clock: MockClock, first: dict[str, object], expected: list[int]
) -> None:
    """Clients that can be asked nothing, whosever they are, have its lists over another connection than others."""
    async with open_gateway(Backend("alpha", kind="http", mute=set(HANGS)), Backend("beta"), prestart=True) as gateway:
        took, ann, bob = [], Principal("ann"), Principal("bob")
        for who, capabilities in ((ann, first), (ann, {"sampling": {}}), (ann, {}), (bob, {}), (bob, {"roots": {}})):
            client, began = await gateway.connect(capabilities=capabilities, principal=who), trio.current_time()
            assert await client.names() == ["beta__echo"]
            took.append(round(trio.current_time() - began))
        assert took == expected


async def test_another_server_of_the_same_name_is_waited_for(autojump_clock: MockClock) -> None:
    alpha = Backend("alpha", kind="http", mute=set(HANGS))
    async with open_gateway(alpha, Backend("beta")) as gateway:
        client = await gateway.connect()
        assert await client.names() == ["beta__echo"]
        await client.delete()
        alpha.mute.clear()
        backends = dict(gateway.services.table.value.backends)
        backends["alpha"] = replace(backends["alpha"], target=HttpTarget("http://other.test/mcp"))
        gateway.change(backends=backends)
        client = await gateway.connect()
        assert await client.names() == BOTH


def test_who_was_slow_is_forgotten_in_time() -> None:
    slow = SlowServers()
    for number in range(1000):
        slow.late(("ann", f"server-{number}"), 3, number / 100)
    assert not slow.worth(("ann", "server-0"), 3, 10)
    slow.late(("ann", "server-0"), 10, 10)
    assert slow.worth(("ann", "server-1"), 3, SLOW_FOR + 1)
    assert not slow.nobody(SLOW_FOR + 9.995)
    assert not slow.worth(("ann", "server-0"), 3, SLOW_FOR + 9.995)
    assert slow.nobody(SLOW_FOR + 10)
    assert repr(slow) == "<SlowServers: 0>"
