"""Crashes of the gateway's own actors on the backend side, and how connections end."""

import pytest
import trio

from actors.ports import Principal
from actors.runtime import SHUTDOWN
from actors.runtime.exits import Exit, ExitKind
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend

KINDS = pytest.mark.parametrize("kind", ["stdio", "http", "inproc"])
WORK = {"tools": ("echo", "work"), "held": {"work"}}


async def test_a_crash_in_one_connections_actor_is_an_error_for_its_callers_and_nothing_for_others(autojump_clock):
    alpha, beta = Backend("alpha", **WORK), Backend("beta", **WORK)
    async with open_gateway(alpha, beta) as gateway:
        client = await gateway.connect()
        await client.call("resources/subscribe", {"uri": "alpha+test:///a"})
        own = alpha.upstream
        call = client.begin("tools/call", {"name": "alpha__work"})
        request = await alpha.next()
        spared = client.begin("tools/call", {"name": "beta__work"})
        kept = await beta.next()
        crash_upstream(gateway, "alpha")
        assert (await call.error()).data["executed"] == "unknown"
        kept.text("kept")
        await spared.result()
        events = client.listen()
        assert (await events.next("notifications/resources/updated"))["params"]["uri"] == "alpha+test:///a"
        assert alpha.upstream is not own
        assert own.transport.closed
        assert await client.tool("alpha__echo") == "alpha: echo"
        request.text("nobody hears this")
        gateway.crashes.clear()


async def test_a_crash_while_a_transparent_session_begins_is_an_error(autojump_clock):
    alpha = Backend("alpha", mute={"initialize"})
    async with open_gateway(alpha) as gateway:
        client = gateway.client("alpha")
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        begun = client.begin("initialize", params)
        await alpha.next("initialize")
        crash_upstream(gateway, "alpha")
        assert (await begun.error()).code == -32603
        gateway.crashes.clear()


async def test_a_connection_that_crashes_again_and_again_is_replaced_ever_more_slowly(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        await client.call("resources/subscribe", {"uri": "test:///a"})
        alpha.mute.add("initialize")
        start = trio.current_time()
        for _ in range(5):
            crash_upstream(gateway, "alpha")
            await alpha.connected(len(alpha.upstreams) + 1)
            await gateway.settle()
        assert trio.current_time() - start > 3.5
        gateway.crashes.clear()


def crash_upstream(gateway: Gateway, backend: str) -> None:
    """The session's own upstream connection to this backend, the newest."""
    refs = [ref for ref in gateway.system.registry if ref.name.startswith("LegacyUpstream")]
    ref = [ref for ref in refs if backend in repr(ref.cell.actor)][-1]
    ref.cell.actor.receive = None  # type: ignore[union-attr, method-assign]
    ref.reply("anything")


async def test_a_crash_of_the_actor_that_permits_connections_costs_nobody_a_call(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client, other = await gateway.connect(), await gateway.connect()
        await client.tool("alpha__echo")
        ref = gateway.actors.tree.backends.ref
        assert ref is not None
        ref.cell.actor.receive = None  # type: ignore[union-attr, method-assign]
        ref.reply("anything")
        await gateway.settle()
        assert await client.tool("alpha__echo") == "alpha: echo"
        assert await other.tool("alpha__echo") == "alpha: echo"
        assert gateway.actors.backends.status["alpha"].connections == 3
        gateway.crashes.clear()


# Ends ---------------------------------------------------------------------------------------------------------


@KINDS
async def test_a_link_ends_with_its_session_and_closes_gracefully(autojump_clock, kind):
    alpha = Backend("alpha", kind=kind)
    async with open_gateway(alpha, link_idle=5.0) as gateway:
        before = gateway.left()
        client = await gateway.connect(principal=Principal("ann"))
        await client.tool("alpha__echo")
        own = alpha.upstream
        assert await client.delete() == 200
        await trio.sleep(10)
        assert own.transport.closed
        assert alpha.open == []
        assert gateway.left() == before


async def test_a_call_in_flight_is_cancelled_at_the_backend_when_its_session_ends(autojump_clock):
    alpha = Backend("alpha", **WORK)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        call = client.begin("tools/call", {"name": "alpha__work"})
        request = await alpha.next()
        await client.delete()
        await request.cancelled.wait()
        assert (await call.error()).data["executed"] == "unknown"


async def test_a_drain_closes_every_connection_gracefully(autojump_clock):
    alpha, beta = Backend("alpha", kind="http"), Backend("beta")
    async with open_gateway(alpha, beta) as gateway:
        client = await gateway.connect()
        await client.tool("alpha__echo")
        await client.tool("beta__echo")
        await gateway.system.drain(8)
        for upstream in (*alpha.upstreams, *beta.upstreams):
            assert upstream.transport.ended is not None
            assert upstream.transport.ended.reason == "closed"


@pytest.mark.parametrize(("reason", "status"), [(SHUTDOWN, 200), (Exit(ExitKind.CRASHED, ValueError("of this")), 503)])
async def test_who_comes_for_a_stream_as_the_session_goes_finds_its_next_life(autojump_clock, reason, status):
    """Unless it went because of that: then its client comes again, if it likes."""
    async with open_gateway(Backend("alpha")) as gateway:
        client = await gateway.connect("alpha")
        [session] = gateway.actors.sessions.table.values()
        actor = session.ref.cell.actor
        actor.receive = lambda message: actor.ctx.stop(reason)
        assert await client.listen().head() == status
        gateway.crashes.clear()
