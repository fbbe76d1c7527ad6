"""Event streams: the answer's form, priming, GET streams, resumption (2025-11-25 transports)."""

from __future__ import annotations

import pytest
import trio

from tests.interaction.backend import Backend, Request, text
from tests.interaction.cells import EVERYWHERE, NEWEST_ONLY, REVISION_BY_REVISION, STORES
from tests.interaction.stage import Cell, Route, Stage
from tests.support.wire_client import Call, HttpError, WireClient

INVALID_REQUEST = -32600

JUMPING = pytest.mark.cells(NEWEST_ONLY)
DURABLE = pytest.mark.cells((Cell(), Cell("2025-03-26"), Cell("2025-11-25", "redis"), Cell("2025-11-25", "redis", "http")))


class Steps:
    """A tool that says one log line a step, and answers after the last one."""

    def __init__(self, backend: Backend, name: str = "steps") -> None:
        self._go, self._gone = trio.open_memory_channel[int](100)
        self.running: list[Request] = []

        @backend.tool(name)
        async def steps(request: Request) -> dict:
            self.running.append(request)
            while (step := await self._gone.receive()) >= 0:
                request.log("info", f"step {step}")
            return text("done")

    def step(self, *steps: int) -> None:
        """Further steps; a negative one answers."""
        for step in steps:
            self._go.send_nowait(step)


async def log_of(call: Call) -> str:
    """The next message, a log line."""
    message = await call.message("notifications/message")
    data: str = message["params"]["data"]
    return data


# The form of an answer ---------------------------------------------------------------------------------------


@pytest.mark.requirement("answer-json")
async def test_an_answer_that_comes_first_is_plain_json(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = await stage.connect(route.path)
    await client.request("tools/list")  # the connection to the backend is made
    call = client.start_call(route.name("echo"))
    assert await call.result() == text("yes")
    if stage.cell.jumps:
        assert call.exchange.headers["content-type"] == "application/json"


@pytest.mark.requirement("answer-stream", "priming")
async def test_a_message_before_the_answer_makes_it_a_stream(stage: Stage, route: Route, cell: Cell) -> None:
    steps = Steps(await stage.backend())
    client = await stage.connect(route.path)
    call = client.start_call(route.name("steps"))
    steps.step(1, 2, -1)
    assert await call.result() == text("done")
    assert [m.get("params", {}).get("data") for m in call.messages] == ["step 1", "step 2", None]
    assert call.exchange.is_stream
    assert await call.next() is None, "the stream ends with the response"
    assert call.primed == (cell.revision == "2025-11-25")
    assert all(event.id for event in call.events)


@JUMPING
@pytest.mark.requirement("answer-stream")
async def test_a_long_call_becomes_a_stream_by_itself(stage: Stage, route: Route) -> None:
    steps = Steps(await stage.backend())
    client = await stage.connect(route.path)
    began = trio.current_time()
    call = client.start_call(route.name("steps"))
    await call.primer()
    assert trio.current_time() - began == pytest.approx(stage.limits.stream_after, abs=0.05)
    steps.step(-1)
    assert await call.result() == text("done")


@pytest.mark.cells(REVISION_BY_REVISION)
@pytest.mark.requirement("priming", "no-early-close")
async def test_only_the_newest_clients_are_primed(stage: Stage, route: Route, cell: Cell) -> None:
    steps = Steps(await stage.backend())
    client = await stage.connect(route.path)
    call = client.start_call(route.name("steps"))
    stream = await client.listen()
    with trio.move_on_after(100):
        assert await call.next(1000) is None, "never closed before the response"
    steps.step(-1)
    assert await call.result() == text("done")
    assert call.primed == (cell.revision == "2025-11-25")
    with trio.move_on_after(1):
        await stream.next(1000)
    assert stream.primed == (cell.revision == "2025-11-25")


@JUMPING
@pytest.mark.limits(keep_alive=25)
@pytest.mark.requirement("keep-alive")
async def test_a_silent_stream_is_kept_alive_by_comments(stage: Stage) -> None:
    client = await stage.connect()
    stream = await client.listen()
    await trio.sleep(101)  # by a clock that jumps
    assert [event for event in stream.exchange.unread if event.data] == []
    assert stream.exchange.parser.comments >= 4


@JUMPING
@pytest.mark.requirement("stream-headers")
async def test_streams_are_never_cached_or_buffered_on_the_way(stage: Stage) -> None:
    client = await stage.connect()
    stream = await client.listen()
    assert "no-cache" in stream.exchange.headers["cache-control"]
    assert stream.exchange.headers["x-accel-buffering"] == "no"


# GET streams -------------------------------------------------------------------------------------------------


async def said(stage: Stage, client: WireClient) -> Backend:
    """A backend with a link of this client's, over which it can say things unasked."""
    backend = stage.backends["alpha"]
    backend.result("touch", text("ok"))
    await client.call("touch" if client.path.endswith("alpha") else "alpha__touch")
    return backend


@pytest.mark.requirement("get-unrelated", "one-stream-each")
async def test_what_belongs_to_no_request_goes_on_the_newest_get_stream_once(stage: Stage, route: Route) -> None:
    await stage.backend()
    client = await stage.connect(route.path)
    connection = (await said(stage, client)).connections[-1]
    older, newer = await client.listen(), await client.listen()
    other = await stage.connect(route.path)
    others = await other.listen()
    connection.notify("notifications/message", {"level": "error", "data": "to whom it may concern"})
    message = await newer.message("notifications/message")
    assert message["params"]["data"] == "to whom it may concern"
    for stream in (older, newer, others):
        assert [event for event in stream.exchange.unread if event.data] == []


@JUMPING
@pytest.mark.requirement("get-unrelated")
async def test_what_is_said_with_no_stream_open_waits_for_the_next_one(stage: Stage, route: Route) -> None:
    await stage.backend()
    client = await stage.connect(route.path)
    backend = await said(stage, client)
    for n in range(3):
        backend.connections[-1].notify("notifications/message", {"level": "error", "data": n})
        backend.connections[-1].notify("notifications/tools/list_changed")
    await trio.sleep(1)
    stream = await client.listen()
    heard = [await stream.next() for _ in range(4)]
    assert [m["params"]["data"] for m in heard if m and m["method"] == "notifications/message"] == [0, 1, 2]
    assert sum(m is not None and m["method"].endswith("list_changed") for m in heard) == 1, "they coalesce"


@JUMPING
@pytest.mark.limits(box_events=5)
@pytest.mark.requirement("get-unrelated")
async def test_the_box_of_waiting_messages_is_bounded(stage: Stage) -> None:
    await stage.backend()
    client = await stage.connect("/mcp/alpha")
    backend = await said(stage, client)
    for n in range(50):
        backend.connections[-1].notify("notifications/message", {"level": "error", "data": n})
    await trio.sleep(1)
    stream = await client.listen()
    await trio.sleep(1)
    assert len([event for event in stream.exchange.unread if event.data]) == 5


@JUMPING
@pytest.mark.limits(get_streams_per_session=2)
@pytest.mark.requirement("get-too-many")
async def test_a_get_stream_too_many_is_409(stage: Stage) -> None:
    client = await stage.connect()
    first, _ = await client.listen(), await client.listen()
    with pytest.raises(HttpError) as refused:
        await client.listen()
    assert refused.value.status == 409
    first.cut()
    await trio.sleep(0.1)
    assert await client.listen()


@pytest.mark.requirement("get-no-response")
async def test_a_response_never_comes_on_a_get_stream(stage: Stage, route: Route) -> None:
    """A stream of its own refuses responses by itself."""
    steps = Steps(await stage.backend())
    client = await stage.connect(route.path)
    stream = await client.listen()
    call = client.start_call(route.name("steps"))
    await call.exchange.head()
    call.cut()
    steps.step(1, -1)
    other = client.start_call(route.name("steps"))
    steps.step(2, -1)
    assert await other.result() == text("done")
    assert all("method" in event.message for event in stream.exchange.unread if event.data)


# Resumption --------------------------------------------------------------------------------------------------


@DURABLE
@pytest.mark.requirement("resume", "disconnect-no-cancel")
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
@pytest.mark.requirement("resume-own-stream", "event-ids-unique")
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
    for name in steps:
        steps[name].step(2, 3, -1)
    for call in calls.values():
        resumed = await client.resume(call)
        assert [await log_of(resumed) for _ in range(2)] == ["step 2", "step 3"]
        assert await resumed.result() == text("done")
    assert [event for event in listening.exchange.unread if event.data] == []


@DURABLE
@pytest.mark.requirement("resume")
async def test_a_get_stream_is_resumed_with_what_came_meanwhile(stage: Stage, route: Route) -> None:
    await stage.backend()
    client = await stage.connect(route.path)
    connection = (await said(stage, client)).connections[-1]
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
@pytest.mark.parametrize("id", ["", "x", "p1", "p1:1", "p1:1-", "p1:x-1", "z1:1-1", "p999:1-1", "g999:1-1", "p1:1-999999", "0", "9" * 400])
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
@pytest.mark.requirement("resume-refused", "resume-foreign")
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
@pytest.mark.requirement("disconnect-no-cancel")
async def test_a_connection_that_breaks_before_an_event_id_loses_the_answer_and_nothing_else(
    stage: Stage, route: Route
) -> None:
    backend = await stage.backend()
    go, finished = trio.Event(), trio.Event()

    @backend.tool("wait")
    async def wait(request: Request) -> dict:
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
