"""Batches, which one revision has and the others refuse (2025-03-26 basic, "Batching")."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from tests.interaction.backend import Request, text
from tests.interaction.cells import JUMPING, REVISION_BY_REVISION
from tests.interaction.codes import CANCELLED, INVALID_REQUEST
from tests.interaction.scripts import Steps, log_of
from tests.interaction.stage import Cell, Route, Stage
from tests.support.wire_client import Call, HttpError, Message, Stream

BATCHING = pytest.mark.cells(
    (Cell("2025-03-26"), Cell("2025-03-26", "redis", "inproc"), Cell("2025-03-26", "memory", "http"))
)
WITHOUT_BATCHES = pytest.mark.cells((Cell("2024-11-05"), Cell("2025-06-18"), Cell("2025-11-25")))

PING = {"jsonrpc": "2.0", "method": "ping"}

# Batches -----------------------------------------------------------------------------------------------------


@BATCHING
@pytest.mark.requirement("batch", "pitfall-14")
async def test_a_batch_of_two_requests_and_a_notification_gets_two_responses(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = await stage.connect(route.path)
    batch = [
        client.request_message("tools/call", {"name": route.name("echo")}, id=1),
        {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"},
        client.request_message("ping", id="1"),
    ]
    stream = Stream(client, client.post(batch), own=False)
    messages = [message async for message in _all(stream)]
    assert len(messages) == 2
    assert {type(message["id"]) for message in messages} == {int, str}
    if not stream.exchange.is_stream:
        assert isinstance(json.loads(stream.exchange.body), list)


async def _all(stream: Stream) -> Any:
    while (message := await stream.next()) is not None:
        yield message


@BATCHING
@pytest.mark.requirement("batch", "pitfall-14")
async def test_even_a_single_request_in_a_batch_is_answered_by_an_array(stage: Stage) -> None:
    client = await stage.connect()
    exchange = client.post([client.request_message("ping", id=1)])
    assert await exchange.json() == [{"jsonrpc": "2.0", "id": 1, "result": {}}]


@pytest.mark.cells((Cell("2025-03-26"),))
@pytest.mark.requirement("batch", "pitfall-14")
async def test_a_batch_that_takes_long_is_a_stream_that_ends_with_its_last_response(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("slow")
    async def slow(request: Request) -> Message:
        await trio.sleep(request.arguments["seconds"])
        request.log("info", request.arguments["seconds"])
        return text("done")

    client = await stage.connect(route.path)
    params = [{"name": route.name("slow"), "arguments": {"seconds": seconds}} for seconds in (3, 1)]
    batch = [client.request_message("tools/call", params[n], id=n) for n in (0, 1)]
    stream = Stream(client, client.post([*batch, client.request_message("ping", id=2)]), own=False)
    messages = [message async for message in _all(stream)]
    assert stream.exchange.is_stream
    assert [message["id"] for message in messages if "id" in message] == [2, 1, 0]


@BATCHING
@pytest.mark.requirement("batch", "post-202", "pitfall-14", "pitfall-12")
async def test_a_batch_of_notifications_or_of_responses_is_202(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("ask")
    async def ask(request: Request) -> Message:
        return text(str(await request.ask("roots/list")))

    client = await stage.connect(route.path, capabilities={"roots": {}})
    await client.accepted(client.post([{"jsonrpc": "2.0", "method": "notifications/initialized"}] * 2))
    call = client.start_call(route.name("ask"))
    question = await call.message("roots/list")
    answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"roots": []}}
    await client.accepted(client.post([answer]))
    assert "roots" in str(await call.result())


BAD_BATCHES: dict[str, Any] = {
    "empty": [],
    "initialize": [{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}],
    "initialize among others": [{**PING, "id": 1}, {"jsonrpc": "2.0", "id": 2, "method": "initialize", "params": {}}],
    "requests and responses": [{**PING, "id": 1}, {"jsonrpc": "2.0", "id": "1.1", "result": {}}],
    "one id twice": [{**PING, "id": 1}, {**PING, "id": 1}],
    "too many": [{**PING, "id": n} for n in range(5000)],
    "response to nothing": [{"jsonrpc": "2.0", "id": "never", "result": {}}],
}


@pytest.mark.cells((Cell("2025-03-26"),))
@pytest.mark.requirement("batch-refused", "pitfall-14")
@pytest.mark.parametrize("name", BAD_BATCHES)
async def test_a_batch_that_may_not_be_is_refused_whole(stage: Stage, name: str) -> None:
    client = await stage.connect()
    exchange = client.post(BAD_BATCHES[name])
    assert await exchange.head() in (400, 429)
    assert (await exchange.json())["error"]["code"] in (INVALID_REQUEST, -32000)
    assert await client.request("ping") == {}


@pytest.mark.cells((Cell("2025-03-26"),))
@pytest.mark.requirement("batch-refused", "pitfall-14")
async def test_members_that_are_no_messages_get_their_errors_and_the_others_their_answers(stage: Stage) -> None:
    client = await stage.connect()
    batch = [7, client.request_message("ping", id=1), {"jsonrpc": "2.0", "id": 5, "method": 3}, {"jsonrpc": "1.0"}]
    client.request_message("ping", id=5)
    answers = await client.post(batch).json()
    assert len(answers) == 4
    assert {"jsonrpc": "2.0", "id": 1, "result": {}} in answers
    errors = [answer for answer in answers if "error" in answer]
    assert all(error["error"]["code"] == INVALID_REQUEST for error in errors)
    assert [error["id"] for error in errors if "id" in error] == [5]


@pytest.mark.cells((Cell("2025-03-26"),))
@pytest.mark.requirement("batch-refused", "pitfall-14")
async def test_a_batch_of_rubbish_alone_is_answered_by_errors(stage: Stage) -> None:
    client = await stage.connect()
    answers = await client.post([1, "x", None]).json()
    assert [answer["error"]["code"] for answer in answers] == [INVALID_REQUEST] * 3


@WITHOUT_BATCHES
@pytest.mark.requirement("batch-other-revisions", "pitfall-14")
async def test_in_any_other_revision_an_array_is_refused(stage: Stage, route: Route) -> None:
    await stage.backend()
    client = await stage.connect(route.path)
    for batch in ([{**PING, "id": 1}], [{"jsonrpc": "2.0", "method": "notifications/initialized"}], []):
        exchange = client.post(batch)
        assert await exchange.head() == 400
        assert (await exchange.json())["error"]["code"] == INVALID_REQUEST
    assert await client.request("ping") == {}


@pytest.mark.cells(REVISION_BY_REVISION)
@pytest.mark.requirement("batch-refused", "pitfall-14")
async def test_before_there_is_a_session_an_array_is_refused(stage: Stage) -> None:
    client = stage.client()
    initialize = client.request_message("initialize", client.introduction(), id=1)
    for batch in ([initialize], [{**PING, "id": 2}]):
        exchange = client.post(batch)
        assert await exchange.head() == 400
        assert (await exchange.json())["error"]["code"] == INVALID_REQUEST


@BATCHING
@pytest.mark.requirement("batch", "resume", "pitfall-14")
async def test_a_batch_that_was_cut_is_resumed_to_its_last_response(stage: Stage) -> None:
    steps = Steps(await stage.backend())
    client = await stage.connect("/mcp/alpha")
    batch = [client.request_message("tools/call", {"name": "steps"}, id=id) for id in (1, 2)]
    call = Call(client, client.post(batch), 1)
    steps.step(1)
    await log_of(call)
    call.cut()
    steps.step(-1, -1)
    resumed = await client.listen(call.last_id)
    assert {message.get("id") async for message in _all(resumed)} == {1, 2}


@pytest.mark.cells((Cell("2025-03-26"),))
@pytest.mark.requirement("batch", "cancelled-post-ends", "pitfall-14", "pitfall-cancelled-post")
async def test_one_request_of_a_batch_can_be_cancelled(stage: Stage) -> None:
    backend = await stage.backend()

    @backend.tool("wait")
    async def wait(request: Request) -> Message:
        await trio.sleep(request.arguments["seconds"])
        return text("done")

    client = await stage.connect("/mcp/alpha")
    batch = [
        client.request_message("tools/call", {"name": "wait", "arguments": {"seconds": seconds}}, id=seconds)
        for seconds in (5, 5000)
    ]
    exchange = client.post(batch)
    stream = Call(client, exchange, 5000)
    await stream.opened()
    await client.accepted(stream.cancel())
    messages = {message["id"]: message async for message in _all(stream)}
    assert messages[5]["result"] == text("done")
    assert messages[5000]["error"]["code"] == CANCELLED


@JUMPING
@pytest.mark.requirement("batch-from-backend")
async def test_a_batch_of_a_backend_is_unpacked(stage: Stage, route: Route) -> None:
    backend = await stage.backend(revision="2025-03-26")

    @backend.tool("batches")
    async def batches(request: Request) -> None:
        log = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "first"}}
        answer = {"jsonrpc": "2.0", "id": request.id, "result": text("second")}
        request.connection.running.pop(request.id)
        request.connection.write(json.dumps([log, answer]).encode(), request.id)

    client = await stage.connect(route.path)
    call = client.start_call(route.name("batches"))
    assert await call.result() == text("second")
    assert [m.get("method") for m in call.messages] == ["notifications/message", None]


@JUMPING
@pytest.mark.requirement("batch-other-revisions", "pitfall-14")
async def test_an_array_harms_no_call_in_flight(stage: Stage) -> None:
    backend = await stage.backend()
    go = trio.Event()

    @backend.tool("wait")
    async def wait(request: Request) -> Message:
        await go.wait()
        return text("done")

    client = await stage.connect("/mcp/alpha")
    call = client.start_call("wait")
    with pytest.raises(HttpError):
        await client.accepted(client.post([{**PING, "id": call.id}]))
    go.set()
    assert await call.result() == text("done")
