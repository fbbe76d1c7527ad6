"""What changes between revisions: batches, and lowering for the older side (sessions §12, bridging §7)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from tests.interaction.backend import Request, text
from tests.interaction.cells import NEWEST_ONLY, REVISION_BY_REVISION
from tests.interaction.stage import Cell, Route, Stage
from tests.support.schemas import NEWEST
from tests.support.wire_client import Call, HttpError, RpcError, Stream

INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
CANCELLED = -32800

JUMPING = pytest.mark.cells(NEWEST_ONLY)
BATCHING = pytest.mark.cells(
    (Cell("2025-03-26"), Cell("2025-03-26", "redis", "inproc"), Cell("2025-03-26", "memory", "http"))
)
WITHOUT_BATCHES = pytest.mark.cells((Cell("2024-11-05"), Cell("2025-06-18"), Cell("2025-11-25")))

PING = {"jsonrpc": "2.0", "method": "ping"}

AUDIO = {"type": "audio", "data": "c291bmQ=", "mimeType": "audio/wav"}
LINK = {"type": "resource_link", "uri": "file:///a", "name": "a file"}


# Batches -----------------------------------------------------------------------------------------------------


@BATCHING
@pytest.mark.requirement("batch")
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
@pytest.mark.requirement("batch")
async def test_even_a_single_request_in_a_batch_is_answered_by_an_array(stage: Stage) -> None:
    client = await stage.connect()
    exchange = client.post([client.request_message("ping", id=1)])
    assert await exchange.json() == [{"jsonrpc": "2.0", "id": 1, "result": {}}]


@pytest.mark.cells((Cell("2025-03-26"),))
@pytest.mark.requirement("batch")
async def test_a_batch_that_takes_long_is_a_stream_that_ends_with_its_last_response(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("slow")
    async def slow(request: Request) -> dict:
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
@pytest.mark.requirement("batch", "post-202")
async def test_a_batch_of_notifications_or_of_responses_is_202(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("ask")
    async def ask(request: Request) -> dict:
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
@pytest.mark.requirement("batch-refused")
@pytest.mark.parametrize("name", BAD_BATCHES)
async def test_a_batch_that_may_not_be_is_refused_whole(stage: Stage, name: str) -> None:
    client = await stage.connect()
    exchange = client.post(BAD_BATCHES[name])
    assert await exchange.head() in (400, 429)
    assert (await exchange.json())["error"]["code"] in (INVALID_REQUEST, -32000)
    assert await client.request("ping") == {}


@pytest.mark.cells((Cell("2025-03-26"),))
@pytest.mark.requirement("batch-refused")
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
@pytest.mark.requirement("batch-refused")
async def test_a_batch_of_rubbish_alone_is_answered_by_errors(stage: Stage) -> None:
    client = await stage.connect()
    answers = await client.post([1, "x", None]).json()
    assert [answer["error"]["code"] for answer in answers] == [INVALID_REQUEST] * 3


@WITHOUT_BATCHES
@pytest.mark.requirement("batch-other-revisions")
async def test_in_any_other_revision_an_array_is_refused(stage: Stage, route: Route) -> None:
    await stage.backend()
    client = await stage.connect(route.path)
    for batch in ([{**PING, "id": 1}], [{"jsonrpc": "2.0", "method": "notifications/initialized"}], []):
        exchange = client.post(batch)
        assert await exchange.head() == 400
        assert (await exchange.json())["error"]["code"] == INVALID_REQUEST
    assert await client.request("ping") == {}


@pytest.mark.cells(REVISION_BY_REVISION)
@pytest.mark.requirement("batch-refused")
async def test_before_there_is_a_session_an_array_is_refused(stage: Stage) -> None:
    client = stage.client()
    initialize = client.request_message("initialize", client.introduction(), id=1)
    for batch in ([initialize], [{**PING, "id": 2}]):
        exchange = client.post(batch)
        assert await exchange.head() == 400
        assert (await exchange.json())["error"]["code"] == INVALID_REQUEST


@pytest.mark.cells((Cell("2025-03-26"),))
@pytest.mark.requirement("batch", "cancelled-post-ends")
async def test_one_request_of_a_batch_can_be_cancelled(stage: Stage) -> None:
    backend = await stage.backend()

    @backend.tool("wait")
    async def wait(request: Request) -> dict:
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


# Lowering for older clients ----------------------------------------------------------------------------------
# Every message is validated against the client's revision on its way in; here is what stands for what.


@pytest.mark.cells(REVISION_BY_REVISION)
@pytest.mark.requirement("lowering-results")
async def test_content_that_a_client_can_not_read_is_said_otherwise(stage: Stage, route: Route, cell: Cell) -> None:
    backend = await stage.backend()
    result = {"content": [AUDIO, LINK], "structuredContent": {"n": 1}, "_meta": {"k": 1}}
    backend.result("rich", result, outputSchema={"type": "object"})
    client = await stage.connect(route.path)
    tools = (await client.request("tools/list"))["tools"]
    got = await client.call(route.name("rich"))
    uri = route.uri("file:///a")
    if cell.revision >= "2025-06-18":
        assert got == {**result, "content": [AUDIO, {**LINK, "uri": uri}]}
        assert "outputSchema" in tools[0]
        return
    assert "structuredContent" not in got
    assert "outputSchema" not in tools[0]
    assert got["_meta"] == {"k": 1}
    texts = [block["text"] for block in got["content"] if block["type"] == "text"]
    assert any(uri in line and "a file" in line for line in texts)
    assert (AUDIO in got["content"]) == (cell.revision == "2025-03-26")


@pytest.mark.cells((Cell("2024-11-05"), Cell("2025-03-26")))
@pytest.mark.requirement("lowering-results")
async def test_a_result_with_structured_content_alone_becomes_text(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    backend.result("data", {"content": [], "structuredContent": {"n": [1, 2.50]}})
    client = await stage.connect(route.path)
    got = await client.call(route.name("data"))
    assert [json.loads(block["text"]) for block in got["content"]] == [{"n": [1, 2.5]}]


@pytest.mark.cells((Cell("2024-11-05"), Cell("2025-03-26")))
@pytest.mark.requirement("lowering-results")
async def test_prompts_are_said_in_what_the_client_can_read(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    backend.add("prompts", {"name": "p"})
    messages = [{"role": "user", "content": AUDIO}, {"role": "assistant", "content": LINK}]
    backend.answers("prompts/get", {"messages": messages})
    client = await stage.connect(route.path)
    got = await client.request("prompts/get", {"name": route.name("p")})
    kinds = [message["content"]["type"] for message in got["messages"]]
    assert kinds == (["text", "text"] if client.revision == "2024-11-05" else ["audio", "text"])


@pytest.mark.cells((Cell("2024-11-05"), Cell("2025-03-26"), Cell("2025-06-18")))
@pytest.mark.requirement("lowering-requests")
async def test_sampling_is_asked_in_the_words_of_an_older_client(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("ask")
    async def ask(request: Request) -> dict:
        blocks = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
        params = {"messages": [{"role": "user", "content": blocks}], "maxTokens": 5, "task": {"ttl": 1}}
        return {**text(""), "_meta": {"answer": await request.ask("sampling/createMessage", params)}}

    client = await stage.connect(route.path, capabilities={"sampling": {}})
    call = client.start_call(route.name("ask"))
    question = await call.message("sampling/createMessage")
    assert "task" not in question["params"]
    assert [m["content"]["text"] for m in question["params"]["messages"]] == ["one", "two"]
    answer = {"role": "assistant", "content": {"type": "text", "text": "said"}, "model": "m"}
    await client.answer(question, answer)
    assert (await call.result())["_meta"]["answer"] == answer


@pytest.mark.cells((Cell("2025-06-18"),))
@pytest.mark.requirement("lowering-requests")
async def test_forms_are_asked_in_the_words_of_an_older_client(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    titled = {"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]}
    several = {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}

    @backend.tool("ask")
    async def ask(request: Request) -> dict:
        schema = {"type": "object", "properties": request.arguments["fields"]}
        params = {"mode": "form", "message": "which?", "requestedSchema": schema}
        return {**text(""), "_meta": {"answer": await request.ask("elicitation/create", params)}}

    client = await stage.connect(route.path, capabilities={"elicitation": {}})
    call = client.start_call(route.name("ask"), fields={"colour": titled})
    question = await call.message("elicitation/create")
    assert "mode" not in question["params"]
    colour = question["params"]["requestedSchema"]["properties"]["colour"]
    assert (colour["enum"], colour["enumNames"]) == (["r", "g"], ["Red", "Green"])
    await client.answer(question, {"action": "accept", "content": {"colour": "g"}})
    assert (await call.result())["_meta"]["answer"]["content"] == {"colour": "g"}
    unbridgeable = await client.call(route.name("ask"), fields={"letters": several})
    assert unbridgeable["_meta"]["answer"] == {"action": "cancel"}


@pytest.mark.cells((Cell("2024-11-05"), Cell("2025-03-26"), Cell("2025-06-18")))
@pytest.mark.requirement("lowering-requests")
async def test_what_an_older_client_can_not_be_asked_is_refused_here(stage: Stage, route: Route, cell: Cell) -> None:
    backend = await stage.backend()
    url = {"mode": "url", "message": "m", "url": "https://example.com/", "elicitationId": "e"}
    sampling = {"messages": [], "maxTokens": 1, "tools": [{"name": "t", "inputSchema": {"type": "object"}}]}
    asks = {"elicitation/create": url, "sampling/createMessage": sampling}

    @backend.tool("ask")
    async def ask(request: Request) -> dict:
        codes = {}
        for method, params in asks.items():
            try:
                await request.ask(method, params)
            except RpcError as error:
                codes[method] = error.code
        return {**text(""), "_meta": codes}

    capabilities = {"sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}}
    client = await stage.connect(route.path, capabilities=capabilities)
    got = (await client.call(route.name("ask")))["_meta"]
    elicitation = INVALID_PARAMS if cell.revision == "2025-06-18" else METHOD_NOT_FOUND
    assert got == {"elicitation/create": elicitation, "sampling/createMessage": INVALID_PARAMS}


@pytest.mark.cells((Cell("2024-11-05"), Cell("2025-03-26"), Cell("2025-06-18")))
@pytest.mark.requirement("elicitation-complete", "version-lower-side")
async def test_notifications_that_a_revision_lacks_are_left_out(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("tells")
    async def tells(request: Request) -> dict:
        request.notify("notifications/elicitation/complete", {"elicitationId": "e"})
        return text("done")

    client = await stage.connect(route.path)
    stream = await client.listen()
    call = client.start_call(route.name("tells"))
    assert await call.result() == text("done")
    assert len(call.messages) == 1
    assert [event for event in stream.exchange.unread if event.data] == []


# Lowering for older backends ---------------------------------------------------------------------------------


@JUMPING
@pytest.mark.requirement("lowering-upstream")
@pytest.mark.parametrize("theirs", ["2024-11-05", "2025-03-26", "2025-06-18"])
async def test_the_context_of_a_completion_is_left_out_for_a_backend_that_has_none(
    stage: Stage, route: Route, theirs: str
) -> None:
    backend = await stage.backend(revision=theirs)
    backend.add("prompts", {"name": "p"})
    backend.answers("completion/complete", {"completion": {"values": []}})
    client = await stage.connect(route.path)
    ref = {"type": "ref/prompt", "name": route.name("p")}
    params = {"ref": ref, "argument": {"name": "a", "value": "b"}, "context": {"arguments": {"x": "y"}}}
    await client.request("completion/complete", params)
    assert ("context" in backend.of("completion/complete")[0]["params"]) == (theirs >= "2025-06-18")


@JUMPING
@pytest.mark.requirement("lowering-upstream")
async def test_a_models_answer_of_several_texts_is_one_for_a_backend_that_knows_one_block(
    stage: Stage, route: Route
) -> None:
    backend = await stage.backend(revision="2025-06-18")

    @backend.tool("ask")
    async def ask(request: Request) -> dict:
        params = {"messages": [{"role": "user", "content": {"type": "text", "text": "q"}}], "maxTokens": 5}
        return {**text(""), "_meta": {"answer": await request.ask("sampling/createMessage", params)}}

    client = await stage.connect(route.path, capabilities={"sampling": {}})
    call = client.start_call(route.name("ask"))
    question = await call.message("sampling/createMessage")
    blocks = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    await client.answer(question, {"role": "assistant", "content": blocks, "model": "m"})
    got = (await call.result())["_meta"]["answer"]
    assert got["content"] == {"type": "text", "text": "one\ntwo"}


@JUMPING
@pytest.mark.requirement("lowering-upstream")
async def test_a_backend_older_than_the_completions_capability_is_asked_all_the_same(stage: Stage, route: Route) -> None:
    backend = await stage.backend(revision="2024-11-05", capabilities={"prompts": {}})
    backend.add("prompts", {"name": "p"})
    backend.answers("completion/complete", {"completion": {"values": ["x"]}})
    client = await stage.connect(route.path)
    params = {"ref": {"type": "ref/prompt", "name": route.name("p")}, "argument": {"name": "a", "value": "b"}}
    assert await client.request("completion/complete", params) == {"completion": {"values": ["x"]}}


@JUMPING
@pytest.mark.requirement("no-modern-fields")
async def test_nothing_of_the_next_era_is_made_up(stage: Stage, route: Route) -> None:
    backend = library = await stage.backend()
    backend.result("echo", text("yes"))
    library.add("resources", {"uri": "file:///a", "name": "a"})
    client = await stage.connect(route.path)
    bodies = [str(client.hello)]
    for method in ("tools/list", "resources/list", "ping"):
        bodies.append(str(await client.request(method)))
    bodies.append(str(await client.call(route.name("echo"))))
    for field in ("resultType", "ttlMs", "cacheScope", "requestState", "subscriptionId"):
        assert field not in " ".join(bodies)


@pytest.mark.cells((Cell(NEWEST),))
@pytest.mark.requirement("batch-other-revisions")
async def test_an_array_harms_no_call_in_flight(stage: Stage) -> None:
    backend = await stage.backend()
    go = trio.Event()

    @backend.tool("wait")
    async def wait(request: Request) -> dict:
        await go.wait()
        return text("done")

    client = await stage.connect("/mcp/alpha")
    call = client.start_call("wait")
    with pytest.raises(HttpError):
        await client.accepted(client.post([{**PING, "id": call.id}]))
    go.set()
    assert await call.result() == text("done")
