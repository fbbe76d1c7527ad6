"""Event streams: the answer's form, priming, GET streams (2025-11-25 transports)."""

from __future__ import annotations

import pytest
import trio

from tests.interaction.backend import text
from tests.interaction.cells import JUMPING, REVISION_BY_REVISION
from tests.interaction.scripts import Steps, connection_of
from tests.interaction.stage import Cell, Route, Stage
from tests.support.wire_client import HttpError

DURABLE = pytest.mark.cells(
    (Cell(), Cell("2025-03-26"), Cell("2025-11-25", "redis"), Cell("2025-11-25", "redis", "http"))
)


# The form of an answer ---------------------------------------------------------------------------------------


@pytest.mark.by_http
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


@pytest.mark.by_http
@pytest.mark.requirement("answer-stream", "priming", "pitfall-10")
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
@pytest.mark.requirement("priming", "no-early-close", "pitfall-10")
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


@pytest.mark.by_http
@pytest.mark.requirement("get-unrelated", "one-stream-each", "pitfall-7")
async def test_what_belongs_to_no_request_goes_on_the_newest_get_stream_once(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    client = await stage.connect(route.path)
    connection = await connection_of(client, backend)
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
    backend = await stage.backend()
    client = await stage.connect(route.path)
    connection = await connection_of(client, backend)
    backend.result("new", text("new"))
    for n in range(3):
        connection.notify("notifications/message", {"level": "error", "data": n})
        connection.notify("notifications/tools/list_changed")
    await trio.sleep(1)
    stream = await client.listen()
    heard = [await stream.next() for _ in range(4)]
    assert [m["params"]["data"] for m in heard if m and m["method"] == "notifications/message"] == [0, 1, 2]
    assert sum(m is not None and m["method"].endswith("list_changed") for m in heard) == 1, "they coalesce"


@JUMPING
@pytest.mark.limits(box_events=5)
@pytest.mark.requirement("get-unrelated")
async def test_the_box_of_waiting_messages_is_bounded(stage: Stage) -> None:
    backend = await stage.backend()
    client = await stage.connect("/mcp/alpha")
    connection = await connection_of(client, backend)
    for n in range(50):
        connection.notify("notifications/message", {"level": "error", "data": n})
    await trio.sleep(1)
    stream = await client.listen()
    await trio.sleep(1)
    assert len([event for event in stream.exchange.unread if event.data]) == 5


@JUMPING
@pytest.mark.requirement("get-unrelated")
async def test_when_the_newest_stream_is_gone_the_one_before_it_takes_over(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    client = await stage.connect(route.path)
    connection = await connection_of(client, backend)
    older, newer = await client.listen(), await client.listen()
    newer.cut()
    await trio.sleep(0.1)
    connection.notify("notifications/message", {"level": "error", "data": "still here"})
    assert (await older.message("notifications/message"))["params"]["data"] == "still here"


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


@pytest.mark.by_http
@pytest.mark.requirement("get-no-response", "pitfall-9")
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
