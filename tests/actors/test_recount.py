"""A crash of the actor that permits connections: its bounds hold all the same, and nothing is lost with it."""

import pytest
import trio

from actors.upstreams.messages import RequestPermit
from tests.support.door_client import RpcError
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend


async def crash(gateway: Gateway, message: object = "anything") -> None:
    """At this message, which is lost with it."""
    ref = gateway.actors.tree.backends.ref
    assert ref is not None
    ref.cell.actor.receive = None  # type: ignore[union-attr, method-assign]
    ref.reply(message)
    await gateway.settle()
    assert len(gateway.crashes) == 1
    gateway.crashes.clear()


async def test_the_bound_on_processes_holds_over_a_crash(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha, child_processes=2) as gateway:
        first, second, third = [await gateway.connect("alpha") for _ in range(2)] + [gateway.client("alpha")]
        assert len(alpha.open) == 2
        await crash(gateway)
        with pytest.raises(RpcError) as refused:
            await third.initialize()
        assert refused.value.data["reason"] == "backend_full"
        await first.delete()
        await trio.sleep(10)
        fourth = await gateway.connect("alpha")
        assert await second.tool("echo") == await fourth.tool("echo") == "alpha: echo"
        assert len(alpha.open) == 2
        assert gateway.telemetry.gauges["stagedoor_child_processes", ("alpha",)] == 2


async def test_a_process_that_ends_while_nobody_counts_gives_its_place_back(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha, child_processes=1) as gateway:
        client = await gateway.connect("alpha")
        ref = gateway.actors.tree.backends.ref
        assert ref is not None
        ref.cell.actor.receive = None  # type: ignore[union-attr, method-assign]
        alpha.upstream.die()
        await gateway.settle()
        gateway.crashes.clear()
        assert await client.tool("echo") == "alpha: echo"
        await client.delete()
        await trio.sleep(10)
        assert gateway.telemetry.gauges["stagedoor_child_processes", ("alpha",)] == 0
        await gateway.connect("alpha")


async def test_who_waits_for_a_place_goes_on_waiting(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha, child_processes=1) as gateway:
        first = await gateway.connect("alpha")
        second = gateway.client("alpha")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(second.initialize)
            await trio.sleep(1)
            await crash(gateway)
            await first.delete()
        assert await second.tool("echo") == "alpha: echo"


async def test_a_question_that_was_lost_in_the_crash_is_asked_again(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        ref = gateway.actors.tree.backends.ref
        assert ref is not None
        receive = ref.cell.actor.receive

        def crashing(message: object) -> None:
            if isinstance(message, RequestPermit):
                raise ValueError("scripted")
            receive(message)

        ref.cell.actor.receive = crashing  # type: ignore[union-attr, method-assign]
        before = trio.current_time()
        client = await gateway.connect("alpha")
        assert trio.current_time() - before < 1
        assert await client.tool("echo") == "alpha: echo"
        assert len(gateway.crashes) == 1
        gateway.crashes.clear()


async def test_a_breaker_that_is_open_stays_open(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        alpha.down = True
        alpha.upstream.die()
        for _ in range(4):
            with pytest.raises(RpcError):
                await client.tool("echo")
        tried = len(alpha.upstreams)
        await crash(gateway)
        with pytest.raises(RpcError) as failed:
            await client.tool("echo")
        assert failed.value.data["reason"] == "backend_down"
        assert len(alpha.upstreams) == tried


async def test_the_numbers_of_links_are_right_again(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        clients = [await gateway.connect("alpha") for _ in range(3)]
        await crash(gateway)
        assert gateway.telemetry.gauges["stagedoor_backend_links", ("alpha", "ready")] == 3
        for client in clients:
            await client.delete()
        await trio.sleep(10)
        upstreams = {k: n for k, n in gateway.telemetry.gauges.items() if k[0] == "stagedoor_backend_links"}
        assert set(upstreams.values()) == {0}
        assert len(gateway.actors.tree.upstreams) == 0
