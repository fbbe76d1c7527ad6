"""What goes when the replay logs of a session are full: what was written whole, then what is finished, and only then
what is new and may be missed."""

import trio

from tests.support.door_client import Client
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend

PROGRESS = 10
"""Notifications in the course of each call."""


async def serve(backend: Backend, seconds: float = 0.01) -> None:
    """Each call of the tool says ten times how far it is, and answers."""
    while True:
        request = await backend.next()
        for step in range(PROGRESS):
            request.progress(step + 1)
            await trio.sleep(seconds / PROGRESS)
        request.text("done")


async def told(client: Client) -> int:
    """The notifications that came with one call."""
    call = client.begin("tools/call", {"name": "work"}, progress=1)
    await call.result()
    return sum(m.get("method") == "notifications/progress" for m in call.messages)


def shed(gateway: Gateway) -> int:
    return gateway.telemetry.total("stagedoor_events_shed_total")


async def test_a_session_that_calls_one_after_another_gets_all_its_progress_for_minutes(autojump_clock):
    """Thirty events a second are ten times what a hundred seconds of them have room for."""
    backend = Backend("alpha", tools=("work",), held={"work"})
    async with open_gateway(backend, log_events=400) as gateway:
        gateway.nursery.start_soon(serve, backend)
        client = await gateway.connect("alpha")
        began = trio.current_time()
        while trio.current_time() - began < 180:
            assert await told(client) == PROGRESS, trio.current_time() - began
            await trio.sleep(0.35)
        assert shed(gateway) == 0
        assert gateway.telemetry.total("stagedoor_gaps_total") == 0, "only what had been written whole went"


async def test_what_nobody_came_for_goes_before_live_progress_is_dropped(autojump_clock):
    backend = Backend("alpha", tools=("work",), held={"work"})
    async with open_gateway(backend, log_events=100) as gateway:
        gateway.nursery.start_soon(serve, backend)
        client = await gateway.connect("alpha")
        for _ in range(4):
            call = client.begin("tools/call", {"name": "work"}, progress=1)
            await call.next("notifications/progress")
            call.drop()
            await trio.sleep(1)
        await trio.sleep(60)
        for _ in range(20):
            assert await told(client) == PROGRESS
            await trio.sleep(0.1)
        assert shed(gateway) == 0


async def test_an_answer_that_was_not_written_is_kept_for_a_minute_before_it_makes_room_for_chatter(autojump_clock):
    """One outcome stands above progress: its client is on its way back."""
    backend = Backend("alpha", tools=("work",), held={"work"})
    async with open_gateway(backend, log_events=100) as gateway:
        client = await gateway.connect("alpha")
        call = client.begin("tools/call", {"name": "work"}, progress=1)
        request = await backend.next()
        request.progress(1)
        await call.next("notifications/progress")
        call.drop()
        for step in range(60):
            request.progress(step + 2)
            await trio.sleep(0.01)
        request.text("worked")
        gateway.nursery.start_soon(serve, backend)
        await told(client)
        await trio.sleep(50)
        assert await told(client) < PROGRESS
        rest = client.listen(next(event.id for event in call.events if event.id))
        await rest.end()
        assert rest.messages[-1]["result"]["content"][0]["text"] == "worked"
        await trio.sleep(20)
        assert await told(client) == PROGRESS, "now it makes room"


async def test_what_is_live_fills_half_the_room_then_chatter_is_shed(autojump_clock):
    """Neither can go; the answer comes all the same."""
    backend = Backend("alpha", tools=("work",), held={"work"})
    async with open_gateway(backend, log_events=100) as gateway:
        client = await gateway.connect("alpha")
        call = client.begin("tools/call", {"name": "work"}, progress=1)
        request = await backend.next()
        for step in range(200):
            request.progress(step + 1)
            await trio.sleep(0.01)
        request.text("done")
        await call.result()
        assert 45 <= sum(m.get("method") == "notifications/progress" for m in call.messages) <= 51
        assert shed(gateway) > 100
        gateway.nursery.start_soon(serve, backend)
        assert await told(client) == PROGRESS, "it is finished, and goes"


async def test_a_later_life_makes_room_among_the_streams_of_earlier_ones(autojump_clock):
    backend = Backend("alpha", tools=("work",), held={"work"})
    async with open_gateway(backend, log_events=100) as gateway:
        gateway.nursery.start_soon(serve, backend)
        client = await gateway.connect("alpha")
        for _ in range(4):
            assert await told(client) == PROGRESS
        [session] = gateway.actors.sessions.table.values()
        session.ref.cell.actor.receive = None  # type: ignore[union-attr, method-assign]
        session.ref.cast(None)
        await gateway.settle()
        gateway.crashes.clear()
        for _ in range(20):
            assert await told(client) == PROGRESS
            await trio.sleep(0.1)
        assert shed(gateway) == 0
