"""Streams that were cut and are resumed (2025-11-25 transports, "Resumability and Redelivery")."""

from __future__ import annotations

import pytest
import trio

from tests.interaction.backend import Request, text
from tests.interaction.cells import EVERYWHERE, JUMPING, STORES
from tests.interaction.codes import INVALID_REQUEST
from tests.interaction.scripts import Steps, connection_of, log_of
from tests.interaction.stage import Cell, Route, Stage
from tests.support.wire_client import HttpError, Message

DURABLE = pytest.mark.cells(
    (Cell(), Cell("2025-03-26"), Cell("2025-11-25", "redis"), Cell("2025-11-25", "redis", "http"))
)


# Resumption --------------------------------------------------------------------------------------------------


@DURABLE
@pytest.mark.requirement("resume", "disconnect-no-cancel", "pitfall-3")
async def test_a_call_whose_connection_broke_goes_on_and_is_resumed(stage: Stage, route: Route) -> None:
    steps = Steps(await stage.backend())
    client = await stage.connect(route.path)
    call = client.start_call(route.name("steps"))
    steps.step(1)
    assert await log_of(call) == "step 1"
    call.cut()
    steps.step(2, 3, -1)
    resumed = await client.resume(call)
    assert await log_of(resumed) == "step 2"
    assert await log_of(resumed) == "step 3"
    assert await resumed.result() == text("done")
    assert not steps.running[0].cancelled.is_set()
    assert len(steps.running) == 1


@DURABLE
@pytest.mark.requirement("resume")
async def test_a_live_stream_can_be_resumed_from_any_of_its_events(stage: Stage, route: Route) -> None:
    steps = Steps(await stage.backend())
    client = await stage.connect(route.path)
    call = client.start_call(route.name("steps"))
    steps.step(1, 2, 3)
    for n in (1, 2, 3):
        assert await log_of(call) == f"step {n}"
    places = [event.id for event in call.events if event.id]
    for n, place in enumerate(places):
        resumed = await client.resume(call, place)
        seen = [await log_of(resumed) for _ in places[n + 1 :]]
        assert seen == ["step 1", "step 2", "step 3"][len([1, 2, 3]) - len(seen) :]
        resumed.cut()
    steps.step(-1)
    assert await (await client.resume(call, places[0])).result() == text("done")


@DURABLE
@pytest.mark.requirement("resume", "replay-after-finish")
async def test_a_finished_stream_can_be_read_again(stage: Stage, route: Route) -> None:
    steps = Steps(await stage.backend())
    client = await stage.connect(route.path)
    call = client.start_call(route.name("steps"))
    steps.step(1, -1)
    await call.result()
    again = await client.resume(call, call.events[0].id)
    assert await again.result() == text("done")
    assert again.events == call.events[1:]
    assert await again.next() is None


@DURABLE
@pytest.mark.requirement("superseded")
async def test_a_newer_connection_of_a_stream_closes_the_older_one(stage: Stage, route: Route) -> None:
    steps = Steps(await stage.backend())
    client = await stage.connect(route.path)
    call = client.start_call(route.name("steps"))
    steps.step(1)
    await log_of(call)
    newer = await client.resume(call)
    assert await call.next() is None
    steps.step(2, -1)
    assert await log_of(newer) == "step 2"
    assert await newer.result() == text("done")


@DURABLE
@pytest.mark.requirement("resume-own-stream", "event-ids-unique", "pitfall-8")
async def test_a_resume_yields_the_events_of_its_stream_alone(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    steps = {name: Steps(backend, name) for name in ("one", "two")}
    client = await stage.connect(route.path)
    calls = {name: client.start_call(route.name(name)) for name in steps}
    listening = await client.listen()
    for name, call in calls.items():
        steps[name].step(1)
        await log_of(call)
        call.cut()
    for script in steps.values():
        script.step(2, 3, -1)
    for call in calls.values():
        resumed = await client.resume(call)
        assert [await log_of(resumed) for _ in range(2)] == ["step 2", "step 3"]
        assert await resumed.result() == text("done")
    assert [event for event in listening.exchange.unread if event.data] == []


@DURABLE
@pytest.mark.requirement("resume")
async def test_a_get_stream_is_resumed_with_what_came_meanwhile(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    client = await stage.connect(route.path)
    connection = await connection_of(client, backend)
    stream = await client.listen()
    connection.notify("notifications/message", {"level": "error", "data": 1})
    await stream.message("notifications/message")
    stream.cut()
    for n in (2, 3):
        connection.notify("notifications/message", {"level": "error", "data": n})
    resumed = await client.listen(after=stream.last_id)
    for n in (2, 3):
        assert (await resumed.message("notifications/message"))["params"]["data"] == n
    connection.notify("notifications/message", {"level": "error", "data": 4})
    assert (await resumed.message("notifications/message"))["params"]["data"] == 4


@pytest.mark.cells(STORES)
@pytest.mark.requirement("resume-refused")
@pytest.mark.parametrize(
    "id", ["", "x", "p1", "p1:1", "p1:1-", "p1:x-1", "z1:1-1", "p999:1-1", "g999:1-1", "p1:1-999999", "0", "9" * 400]
)
async def test_a_malformed_or_unknown_event_id_is_400_and_no_event(stage: Stage, route: Route, id: str) -> None:
    steps = Steps(await stage.backend())
    client = await stage.connect(route.path)
    call = client.start_call(route.name("steps"))
    steps.step(1, -1)
    await call.result()
    with pytest.raises(HttpError) as refused:
        await client.listen(after=id)
    assert refused.value.status == 400
    assert refused.value.error["code"] == INVALID_REQUEST


@pytest.mark.cells(STORES)
@pytest.mark.requirement("resume-refused", "resume-foreign", "pitfall-8")
async def test_an_event_id_of_another_session_yields_nothing_of_it(stage: Stage, route: Route) -> None:
    steps = Steps(await stage.backend())
    owner, thief = await stage.connect(route.path), await stage.connect(route.path)
    call = owner.start_call(route.name("steps"))
    steps.step(1, 2, -1)
    await call.result()
    for event in call.events:
        with pytest.raises(HttpError) as refused:
            await thief.listen(after=event.id)
        assert refused.value.status == 400


@JUMPING
@pytest.mark.limits(replay_ttl=50, replay_ttl_written=20, idle_ttl=10_000, passivate_after=9_000)
@pytest.mark.requirement("resume-gap")
async def test_a_resume_past_what_is_kept_is_an_explicit_gap(stage: Stage) -> None:
    steps = Steps(await stage.backend())
    client = await stage.connect("/mcp/alpha")
    call = client.start_call("steps")
    steps.step(1, -1)
    await call.result()
    await trio.sleep(100)  # by a clock that jumps
    with pytest.raises(HttpError) as refused:
        await client.resume(call, call.events[0].id)
    assert refused.value.status == 400
    assert refused.value.error["data"]["reason"]


@JUMPING
@pytest.mark.limits(replay_ttl=50, idle_ttl=10_000, passivate_after=9_000, request_deadline=5000, log_events=10_000)
@pytest.mark.requirement("resume")
async def test_an_unfinished_stream_is_kept_as_long_as_its_session(stage: Stage) -> None:
    steps = Steps(await stage.backend())
    client = await stage.connect("/mcp/alpha")
    call = client.start_call("steps")
    steps.step(1)
    await log_of(call)
    call.cut()
    await trio.sleep(200)  # by a clock that jumps
    steps.step(2, -1)
    resumed = await client.resume(call)
    assert await log_of(resumed) == "step 2"
    assert await resumed.result() == text("done")


@JUMPING
@pytest.mark.requirement("disconnect-no-cancel", "pitfall-3")
async def test_a_connection_that_breaks_before_an_event_id_loses_the_answer_and_nothing_else(
    stage: Stage, route: Route
) -> None:
    backend = await stage.backend()
    go, finished = trio.Event(), trio.Event()

    @backend.tool("wait")
    async def wait(request: Request) -> Message:
        await go.wait()
        finished.set()
        return text("done")

    client = await stage.connect(route.path)
    await client.request("tools/list")
    call = client.start_call(route.name("wait"), id=5)
    connection = await backend.connection(1 if not route.name_prefix else 2)
    await connection.wait_for("tools/call")
    assert not call.exchange.status
    call.cut()
    go.set()
    await finished.wait()
    assert not connection.of("notifications/cancelled")
    assert await client.request("ping") == {}
    assert await client.start_call(route.name("wait"), id=5).result() == text("done"), "the id is free again"
    assert stage.telemetry.total("stagedoor_messages_dropped_total", "answer_without_connection") == 1


# A client that does not read ---------------------------------------------------------------------------------


@pytest.mark.cells(EVERYWHERE)
@pytest.mark.requirement("slow-consumer")
async def test_many_messages_reach_a_client_in_order(stage: Stage, route: Route) -> None:
    steps = Steps(await stage.backend())
    client = await stage.connect(route.path)
    call = client.start_call(route.name("steps"))
    for n in range(60):
        steps.step(n)
    steps.step(-1)
    assert await call.result() == text("done")
    heard = [m["params"]["data"] for m in call.messages[:-1]]
    assert heard == [f"step {n}" for n in range(60)]
