"""What goes when the replay logs of a session are full: what was written whole, then what is finished, and only then
what is new and may be missed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from actors.ports import ANONYMOUS, Failed, Get, Refused, Streaming
from actors.protocol.table import Limits
from gateway.store.memory import MemoryStore
from tests.support.door_client import Client, Pending, parse_events
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend, Request

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
    return len(call.seen("notifications/progress"))


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


async def test_what_is_live_and_not_written_fills_half_the_room_then_chatter_is_shed(autojump_clock):
    """It can't go; the answer comes all the same."""
    backend = Backend("alpha", tools=("work",), held={"work"})
    async with open_gateway(backend, log_events=100) as gateway:
        client = await gateway.connect("alpha")
        call = client.begin("tools/call", {"name": "work"}, progress=1)
        request = await backend.next()
        request.progress(1)
        await call.next("notifications/progress")
        call.drop()
        await gateway.settle()
        for step in range(1, 200):
            request.progress(step + 1)
            await trio.sleep(0.01)
        request.text("done")
        await gateway.settle()
        rest = client.listen(call.events[-1].id)
        await rest.end()
        assert 45 <= len(rest.seen("notifications/progress")) <= 51
        assert rest.messages[-1]["id"] == call.id
        assert shed(gateway) > 100
        gateway.nursery.start_soon(serve, backend)
        await trio.sleep(61)
        assert await told(client) == PROGRESS, "it is finished, and goes"


async def long_call(client: Client, backend: Backend, steps: int) -> tuple[Pending, Request]:
    """A call that has said so many times how far it is."""
    call = client.begin("tools/call", {"name": "work"}, progress=1)
    request = await backend.next()
    for step in range(steps):
        request.progress(step + 1)
        await trio.sleep(0.01)
    return call, request


def steps(pending: Pending) -> list[int]:
    return [m["params"]["progress"] for m in pending.seen("notifications/progress")]


async def test_a_long_call_that_is_read_gets_all_its_progress(autojump_clock):
    backend = Backend("alpha", tools=("work",), held={"work"})
    async with open_gateway(backend, log_events=1_000) as gateway:
        client = await gateway.connect("alpha")
        call, request = await long_call(client, backend, 4_000)
        request.text("done")
        assert (await call.result()).get("_meta") is None
        assert steps(call) == [*range(1, 4_001)]
        assert shed(gateway) == 0


@pytest.mark.parametrize("live", [True, False], ids=["live", "from the log"])
@pytest.mark.parametrize("outcome", ["result", "error"])
async def test_the_answer_of_a_long_call_says_what_a_late_resume_has_missed(autojump_clock, live, outcome):
    backend = Backend("alpha", tools=("work",), held={"work"})
    async with open_gateway(backend, log_events=1_000) as gateway:
        client = await gateway.connect("alpha")
        call, request = await long_call(client, backend, 1_500)
        call.drop()
        await gateway.settle()

        def answer() -> None:
            if outcome == "result":
                request.result({"content": [], "_meta": {"mine": 1}})
            else:
                request.error(-32000, "no", {"mine": 1})

        async def resumed(index: int) -> Pending:
            again = client.listen(call.events[index].id)
            assert await again.head() == 200
            await gateway.settle()
            return again

        if not live:
            answer()
            await gateway.settle()
        late = await resumed(2)
        if live:
            answer()
            await gateway.settle()
        *_, response = late.messages
        told = response["result"]["_meta"] if outcome == "result" else response["error"]["data"]
        first, *_ = seen = steps(late)
        assert first <= 1_500 - 200
        assert seen == [*range(first, 1_501)]
        gap = {"after": 3, "resumed": first + 1, "reason": "trimmed"}
        assert told == {"mine": 1, "stagedoor/gap" if outcome == "result" else "gap": gap}
        assert gateway.telemetry.total("stagedoor_gaps_total", "trimmed") == 1
        soon = await resumed(-200)
        assert steps(soon) == [*range(1_302, 1_501)]
        assert soon.messages[-1]["id"] == call.id
        assert "gap" not in str(soon.messages[-1])


async def test_a_question_and_an_answer_on_the_stream_of_a_post_stay_until_they_are_not_needed(autojump_clock):
    """A client that comes back late may have got neither, and nothing else would bring them."""
    backend = Backend("alpha", tools=("work",), held={"work"})
    async with open_gateway(backend, log_events=1_000) as gateway:
        client = await gateway.connect("alpha", capabilities={"sampling": {}})
        call = client.begin("tools/call", {"name": "work"}, progress=1)
        request = await backend.next()
        question = request.ask("sampling/createMessage", {"messages": [], "maxTokens": 1})
        asked = await call.next("sampling/createMessage")
        for step in range(800):
            request.progress(step + 1)
            await trio.sleep(0.01)
        assert shed(gateway) > 0
        call.drop()
        await gateway.settle()
        again = client.listen(call.events[0].id)
        await again.next("sampling/createMessage")
        await client.respond(asked, {"role": "assistant", "content": {"type": "text", "text": ""}, "model": "m"})
        await question.outcome()
        await gateway.settle()
        before = shed(gateway)
        for step in range(800, 2_400):
            request.progress(step + 1)
            await trio.sleep(0.01)
        await gateway.settle()
        assert shed(gateway) == before
        request.text("done")
        await gateway.settle()
        assert again.messages[-1]["id"] == call.id


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


def numbers(pending: Pending) -> list[int]:
    """What was logged there, in order."""
    return [m["params"]["data"] for m in pending.seen("notifications/message")]


async def talk(backend: Backend, begin: int, end: int) -> None:
    """Logs so many numbers, sixty a second."""
    for number in range(begin, end):
        backend.upstream.notify("notifications/message", {"level": "info", "data": number})
        await trio.sleep(1 / 60)


async def test_a_get_stream_that_is_read_gets_all_its_logs_and_calls_their_progress_for_good(autojump_clock):
    backend = Backend("alpha", tools=("work",), held={"work"})
    async with open_gateway(backend) as gateway:
        gateway.nursery.start_soon(serve, backend)
        client = await gateway.connect("alpha")
        events = client.listen()
        await gateway.settle()
        calls = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(talk, backend, 0, 10_000)
            for _ in range(150):
                calls.append(client.begin("tools/call", {"name": "work"}, progress=1))
                await calls[-1].result()
                assert len(calls[-1].seen("notifications/progress")) == PROGRESS
                await trio.sleep(1)
        await gateway.settle()
        said_with_calls = [number for call in calls for number in numbers(call)]
        assert sorted(numbers(events) + said_with_calls) == [*range(10_000)]
        assert shed(gateway) == 0
        assert gateway.telemetry.total("stagedoor_gaps_total") == 0


@asynccontextmanager
async def read_long(gateway: Gateway, backend: Backend, count: int) -> AsyncIterator[tuple[Client, Pending]]:
    """A GET stream that was read for so many logs, until its connection broke."""
    client = await gateway.connect("alpha")
    events = client.listen()
    await gateway.settle()
    await talk(backend, 0, count)
    await gateway.settle()
    events.drop()
    await gateway.settle()
    yield client, events


async def test_after_a_long_time_the_newest_events_can_still_be_resumed_without_a_hole(autojump_clock):
    backend = Backend("alpha")
    async with (
        open_gateway(backend, log_events=1_000) as gateway,
        read_long(gateway, backend, 1_500) as (client, events),
    ):
        for back in (1, 100, 240):
            again = client.listen(events.events[-1 - back].id)
            assert await again.head() == 200
            await gateway.settle()
            assert numbers(again) == [*range(1_500 - back, 1_500)]
            again.drop()
            await gateway.settle()


ALL_CHANGED = {
    "notifications/tools/list_changed",
    "notifications/resources/list_changed",
    "notifications/prompts/list_changed",
    "notifications/resources/updated",
}


def changed(pending: Pending) -> set[str]:
    """What was said to have changed."""
    return {m["method"] for m in pending.messages} & ALL_CHANGED


async def test_a_resume_from_before_what_was_trimmed_is_told_what_may_have_changed(autojump_clock):
    """The stream goes on behind the hole, from every cursor that ever was one of its events."""
    backend = Backend("alpha")
    async with (
        open_gateway(backend, log_events=1_000) as gateway,
        read_long(gateway, backend, 1_500) as (client, events),
    ):
        await client.call("resources/subscribe", {"uri": "test:///a"})
        cursors = [event.id for event in events.events if event.id]
        for times, cursor in enumerate([cursors[0], cursors[1], cursors[400], cursors[900]], 1):
            again = client.listen(cursor)
            assert await again.head() == 200
            await gateway.settle()
            seen = numbers(again)
            assert seen == [*range(1_500 - len(seen), 1_500)]
            assert changed(again) == ALL_CHANGED
            assert {m["params"]["uri"] for m in again.seen("notifications/resources/updated")} == {"test:///a"}
            assert gateway.telemetry.total("stagedoor_gaps_total", "trimmed") == times
            again.drop()
            await gateway.settle()


async def test_a_resume_without_a_hole_is_told_of_no_changes(autojump_clock):
    backend = Backend("alpha")
    async with (
        open_gateway(backend, log_events=1_000) as gateway,
        read_long(gateway, backend, 1_500) as (client, events),
    ):
        again = client.listen(events.events[-240].id)
        await gateway.settle()
        assert not changed(again)
        assert gateway.telemetry.total("stagedoor_gaps_total") == 0


async def test_a_stream_that_was_resumed_too_late_gets_all_that_follows(autojump_clock):
    backend = Backend("alpha")
    async with (
        open_gateway(backend, log_events=1_000) as gateway,
        read_long(gateway, backend, 1_000) as (client, events),
    ):
        again = client.listen(events.events[5].id)
        await gateway.settle()
        await talk(backend, 1_000, 4_000)
        await gateway.settle()
        seen = numbers(again)
        assert seen == [*range(4_000 - len(seen), 4_000)]
        assert len(seen) >= 3_000 + 240
        assert shed(gateway) == 0


async def test_what_a_client_that_begins_anew_has_left_behind_makes_room(autojump_clock):
    backend = Backend("alpha")
    async with (
        open_gateway(backend, log_events=1_000) as gateway,
        read_long(gateway, backend, 1_000) as (client, _),
    ):
        fresh = client.listen()
        await gateway.settle()
        await talk(backend, 1_000, 4_000)
        await gateway.settle()
        assert numbers(fresh) == [*range(1_000, 4_000)]
        assert shed(gateway) == 0


async def test_who_comes_back_for_what_was_trimmed_of_a_stream_that_is_over_gets_another_one(autojump_clock):
    """Unless four are read, on which its client hears of everything."""
    backend = Backend("alpha")
    async with (
        open_gateway(backend, log_events=1_000) as gateway,
        read_long(gateway, backend, 600) as (client, events),
    ):
        fresh = [client.listen() for _ in range(4)]
        await gateway.settle()
        assert [await one.head() for one in fresh] == [200] * 4
        again = client.listen(events.events[5].id)
        assert await again.head() == 400
        assert "no longer kept" in again.messages[0]["error"]["message"]
        fresh[0].drop()
        await gateway.settle()
        another = client.listen(events.events[5].id)
        assert await another.head() == 200
        await trio.sleep(1)
        assert sorted(m["method"] for m in another.messages) == [
            "notifications/prompts/list_changed",
            "notifications/resources/list_changed",
            "notifications/tools/list_changed",
        ]
        assert gateway.telemetry.total("stagedoor_gaps_total", "lost") == 1


async def test_what_was_not_written_is_never_trimmed(autojump_clock):
    """The reader takes nothing; what is live fills half the room, and chatter is shed."""
    backend = Backend("alpha")
    async with open_gateway(backend, log_events=400, outbox_events=10_000) as gateway:
        client = await gateway.connect("alpha")
        headers = {"mcp-session-id": client.session or "", "mcp-protocol-version": client.version}
        reply = await gateway.actors.door.get(Get(client.endpoint, ANONYMOUS, headers))
        assert isinstance(reply, Streaming)
        await reply.source.receive()
        await talk(backend, 0, 1_000)
        await gateway.settle()
        assert shed(gateway) > 700
        chunk = await reply.source.receive()
        reply.source.close()
        kept = [e.message["params"]["data"] for e in parse_events(chunk or b"") if e.message is not None]
        assert kept == [*range(len(kept))]
        assert 195 <= len(kept) <= 200


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25"])
async def test_a_stream_that_was_opened_and_nobody_heard_of_it_is_not_left_behind(autojump_clock, revision):
    """Its request was answered past the log, and nobody ever comes for it."""
    alpha = Backend("alpha", kind="http", tools=("slow",), held={"slow"})
    store = MemoryStore(Limits(), trio.current_time)
    async with open_gateway(alpha, store=store) as gateway:
        client = await gateway.connect("alpha", version=revision)
        store_open = store.open

        def unheard(*args: Any) -> None:
            store_open(*args[:-1], lambda _: args[-1](Failed(Refused.AWAY)))

        store.open = unheard  # type: ignore[method-assign]
        call = client.begin("tools/call", {"name": "slow"}, progress="mine")
        request = await alpha.next()
        request.progress(1)
        request.text("done")
        assert (await call.result())["content"][0]["text"] == "done"
        await gateway.settle()
        [record] = store.records().values()
        assert not record.requests
        assert all(head.finished for head in record.streams.values())
        await trio.sleep(Limits().replay_ttl + 1)
        [record] = store.records().values()
        assert not record.streams
