"""Lowering for the side that is older: what stands for what it lacks (changelogs of the revisions)."""

from __future__ import annotations

import json

import pytest

from tests.interaction.backend import Request, text
from tests.interaction.cells import JUMPING, REVISION_BY_REVISION
from tests.interaction.codes import INVALID_PARAMS, METHOD_NOT_FOUND
from tests.interaction.stage import Cell, Route, Stage
from tests.support.wire_client import Message, RpcError

AUDIO = {"type": "audio", "data": "c291bmQ=", "mimeType": "audio/wav"}
LINK = {"type": "resource_link", "uri": "file:///a", "name": "a file"}


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
    async def ask(request: Request) -> Message:
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
    async def ask(request: Request) -> Message:
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
    asks: dict[str, Message] = {"elicitation/create": url, "sampling/createMessage": sampling}

    @backend.tool("ask")
    async def ask(request: Request) -> Message:
        codes = {}
        for method, params in asks.items():
            try:
                await request.ask(method, params)
            except RpcError as error:
                codes[method] = error.code
        return {**text(""), "_meta": codes}

    capabilities: Message = {"sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}}
    client = await stage.connect(route.path, capabilities=capabilities)
    got = (await client.call(route.name("ask")))["_meta"]
    elicitation = INVALID_PARAMS if cell.revision == "2025-06-18" else METHOD_NOT_FOUND
    assert got == {"elicitation/create": elicitation, "sampling/createMessage": INVALID_PARAMS}


@pytest.mark.cells((Cell("2024-11-05"), Cell("2025-03-26"), Cell("2025-06-18")))
@pytest.mark.requirement("elicitation-complete", "version-lower-side")
async def test_notifications_that_a_revision_lacks_are_left_out(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("tells")
    async def tells(request: Request) -> Message:
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
    async def ask(request: Request) -> Message:
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
async def test_a_backend_older_than_the_completions_capability_is_asked_all_the_same(
    stage: Stage, route: Route
) -> None:
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
    bodies = [str(client.server_info)]
    for method in ("tools/list", "resources/list", "ping"):
        bodies.append(str(await client.request(method)))
    bodies.append(str(await client.call(route.name("echo"))))
    for field in ("resultType", "ttlMs", "cacheScope", "requestState", "subscriptionId"):
        assert field not in " ".join(bodies)
