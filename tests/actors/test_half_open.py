"""A server that was down is tried by one connection, and whoever comes meanwhile is refused. A trial that shows
nothing, since it was made in the wrong era or given up, keeps nobody away any longer."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from actors.machines.upstream.breaker import FIRST_DELAY, THRESHOLD
from actors.protocol.table import Limits
from gateway.store.memory import MemoryStore
from tests.support.door_client import RpcError
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend, Request
from tests.support.modern_backend import ModernBackend
from tests.support.modern_client import ModernClient


async def down(gateway: Gateway, alpha: Backend, call: Any) -> None:
    """Until nobody tries it any more."""
    alpha.down = True
    for _ in range(THRESHOLD):
        with pytest.raises(RpcError):
            await call()
    assert gateway.actors.backends.status["alpha"].state == "down"


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_a_server_with_sessions_that_is_back_serves_a_client_without(
    autojump_clock: MockClock, kind: Any
) -> None:
    alpha = Backend("alpha", kind=kind)
    async with open_gateway(alpha) as gateway:
        client = ModernClient(gateway.actors.door, gateway.nursery, "alpha")
        await down(gateway, alpha, lambda: client.call("tools/call", {"name": "echo"}))
        alpha.down = False
        await trio.sleep(FIRST_DELAY)
        result = await client.call("tools/call", {"name": "echo"})
        assert result["content"][0]["text"] == "alpha: echo"


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_a_server_without_sessions_that_is_back_serves_a_client_with_one(
    autojump_clock: MockClock, kind: Any
) -> None:
    alpha, beta = ModernBackend("alpha", kind=kind), Backend("beta")
    async with open_gateway(alpha, beta) as gateway:
        client = await gateway.connect()
        await down(gateway, alpha, lambda: client.tool("alpha__echo"))
        alpha.down = False
        await trio.sleep(FIRST_DELAY)
        assert await client.tool("alpha__echo") == "alpha: echo"


async def test_a_process_that_ends_with_the_probe_is_followed_by_another(autojump_clock: MockClock) -> None:
    class Touchy(Backend):
        """Its process lives as long as nothing but `initialize` was asked first."""

        def came(self, request: Request) -> None:
            if request.method == "initialize" and request.upstream.transport.warm:
                request.upstream.die()
            else:
                super().came(request)

    alpha = Touchy("alpha")
    async with open_gateway(alpha) as gateway:
        client = ModernClient(gateway.actors.door, gateway.nursery, "alpha")
        await down(gateway, alpha, lambda: client.call("tools/call", {"name": "echo"}))
        alpha.down = False
        await trio.sleep(FIRST_DELAY)
        result = await client.call("tools/call", {"name": "echo"})
        assert result["content"][0]["text"] == "alpha: echo"


async def test_a_trial_that_was_given_up_keeps_nobody_away(autojump_clock: MockClock) -> None:
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        first, second = await gateway.connect("alpha"), await gateway.connect("alpha")
        for upstream in alpha.open:
            upstream.die()
        await down(gateway, alpha, lambda: first.tool("echo"))
        alpha.down, alpha.mute = False, {"initialize"}
        await trio.sleep(FIRST_DELAY)
        first.begin("tools/call", {"name": "echo"})
        await gateway.settle()
        with pytest.raises(RpcError):
            await second.tool("echo")
        alpha.mute = set()
        await first.delete()
        await gateway.settle()
        assert await second.tool("echo") == "alpha: echo"


async def test_a_connection_that_goes_on_in_silence_keeps_nobody_away(autojump_clock: MockClock) -> None:
    alpha, store = Backend("alpha", kind="http"), MemoryStore(Limits(), trio.current_time)
    async with open_gateway(alpha, store=store) as gateway:
        before = await gateway.connect("alpha")
        await before.call("resources/subscribe", {"uri": "test:///a"})
    async with open_gateway(alpha, store=store) as gateway:
        other = await gateway.connect("alpha")
        alpha.upstream.die()
        await down(gateway, alpha, lambda: other.tool("echo"))
        alpha.down = False
        await trio.sleep(FIRST_DELAY)
        again = gateway.client("alpha")
        again.session, again.version = before.session, before.version
        again.listen()
        await trio.sleep(1)
        assert alpha.upstream.transport.resumed is not None
        assert await other.tool("echo") == "alpha: echo"
