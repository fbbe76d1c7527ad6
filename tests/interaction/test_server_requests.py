"""What backends ask of the client: sampling, elicitation, roots (2025-11-25 client/*; SEP-2260)."""

from __future__ import annotations

import pytest
import trio

from tests.interaction.backend import text
from tests.interaction.cells import JUMPING
from tests.interaction.codes import INTERNAL, INVALID_PARAMS, METHOD_NOT_FOUND, URL_REQUIRED
from tests.interaction.scripts import ASKS, EVERYTHING, FORM, MESSAGE, SAMPLED, URL, asking
from tests.interaction.stage import Cell, Route, Stage
from tests.support.schemas import NEWEST
from tests.support.wire_client import Message, RpcError

# Every kind, there and back ----------------------------------------------------------------------------------


@pytest.mark.requirement("sampling", "roots", "server-request-on-call-stream")
@pytest.mark.parametrize("method", ["sampling/createMessage", "roots/list"])
async def test_a_question_comes_on_the_stream_of_its_call_and_the_answer_gets_back(
    stage: Stage, route: Route, method: str
) -> None:
    asking(await stage.backend())
    client = await stage.connect(route.path, capabilities=EVERYTHING)
    listening = await client.listen()
    params, answer = ASKS[method]
    call = client.start_call(route.name("ask"), method=method, params=params)
    question = await call.message(method)
    assert question.get("params", {}) == params
    await client.answer(question, answer)
    assert (await call.result())["_meta"] == {"answer": answer}
    assert [event for event in listening.exchange.unread if event.data] == []


@pytest.mark.since("2025-06-18")
@pytest.mark.requirement("elicitation-form", "elicitation-label")
async def test_an_elicitation_says_who_asks_and_the_answer_gets_back(stage: Stage, route: Route) -> None:
    asking(await stage.backend())
    client = await stage.connect(route.path, capabilities={"elicitation": {}})
    for answer in (
        {"action": "accept", "content": {"name": "\u00c4nn", "age": 7, "on": True}},
        {"action": "decline"},
        {"action": "cancel"},
    ):
        call = client.start_call(route.name("ask"), method="elicitation/create", params=FORM)
        question = await call.message("elicitation/create")
        assert question["params"] == {**FORM, "message": route.label + "who are you?"}
        await client.answer(question, answer)
        assert (await call.result())["_meta"] == {"answer": answer}


@JUMPING
@pytest.mark.requirement("sampling-tools")
async def test_sampling_with_tools_passes_both_ways(stage: Stage, route: Route) -> None:
    asking(await stage.backend())
    client = await stage.connect(route.path, capabilities=EVERYTHING)
    use = {"type": "tool_use", "id": "u1", "name": "weather", "input": {"city": "Ulm"}}
    result: Message = {
        "type": "tool_result",
        "toolUseId": "u1",
        "content": [{"type": "text", "text": "sun"}, {"type": "resource_link", "uri": "file:///w", "name": "w"}],
        "structuredContent": {"sun": True},
    }
    params: Message = {
        "messages": [MESSAGE, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}],
        "maxTokens": 10,
        "tools": [{"name": "weather", "inputSchema": {"type": "object"}}],
        "toolChoice": {"mode": "auto"},
        "includeContext": "thisServer",
        "modelPreferences": {"hints": [{"name": "x"}], "costPriority": 0.1},
        "metadata": {"any": [1]},
    }
    call = client.start_call(route.name("ask"), method="sampling/createMessage", params=params)
    question = await call.message("sampling/createMessage")
    upstream = {"type": "resource_link", "uri": route.uri("file:///w"), "name": "w"}
    exposed = {**result, "content": [result["content"][0], upstream]}
    assert question["params"] == {
        **params,
        "messages": [*params["messages"][:2], {"role": "user", "content": [exposed]}],
    }
    answer = {"role": "assistant", "content": [use], "model": "m", "stopReason": "toolUse"}
    await client.answer(question, answer)
    assert (await call.result())["_meta"] == {"answer": answer}


@JUMPING
@pytest.mark.requirement("client-errors-pass")
@pytest.mark.parametrize("method", ASKS)
async def test_an_error_of_the_client_reaches_the_backend(stage: Stage, route: Route, method: str) -> None:
    asking(await stage.backend())
    client = await stage.connect(route.path, capabilities=EVERYTHING)
    call = client.start_call(route.name("ask"), method=method, params=ASKS[method][0])
    question = await call.message(method)
    await client.decline(question, -1, "the user said no")
    assert (await call.result())["_meta"] == {"code": -1, "message": "the user said no"}


@JUMPING
@pytest.mark.requirement("capability-absent-client")
@pytest.mark.parametrize(
    ("declared", "method", "params", "code"),
    [
        ({}, "sampling/createMessage", ASKS["sampling/createMessage"][0], METHOD_NOT_FOUND),
        ({}, "elicitation/create", FORM, METHOD_NOT_FOUND),
        ({}, "roots/list", {}, METHOD_NOT_FOUND),
        ({"elicitation": {}}, "elicitation/create", URL, INVALID_PARAMS),
        ({"elicitation": {"url": {}}}, "elicitation/create", FORM, INVALID_PARAMS),
        (
            {"sampling": {}},
            "sampling/createMessage",
            {**ASKS["sampling/createMessage"][0], "tools": [{"name": "t", "inputSchema": {"type": "object"}}]},
            INVALID_PARAMS,
        ),
        (
            {"sampling": {}},
            "sampling/createMessage",
            {**ASKS["sampling/createMessage"][0], "toolChoice": {"mode": "none"}},
            INVALID_PARAMS,
        ),
        (EVERYTHING, "no/such", {}, METHOD_NOT_FOUND),
    ],
    ids=str,
)
async def test_what_the_client_did_not_declare_is_refused_on_an_aggregate(
    stage: Stage, declared: Message, method: str, params: Message, code: int
) -> None:
    asking(await stage.backend())
    client = await stage.connect("/mcp", capabilities=declared)
    call = client.start_call("alpha__ask", method=method, params=params)
    assert (await call.result())["_meta"]["code"] == code
    assert len(call.messages) == 1


@pytest.mark.requirement("capabilities-declared-upstream")
async def test_a_backend_is_told_what_the_client_declared(stage: Stage, route: Route, cell: Cell) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = await stage.connect(
        route.path, capabilities={"roots": {"listChanged": True}, "sampling": {}, "elicitation": {}}
    )
    await client.call(route.name("echo"))
    told = backend.connections[-1].client["capabilities"]
    assert told["roots"] == {"listChanged": True}
    assert told["sampling"] == {}
    if not route.name_prefix and cell.revision == NEWEST:
        assert told["elicitation"] == {}, "word by word"
    elif cell.revision >= "2025-06-18":
        assert set(told["elicitation"]) <= {"form"}
    else:
        assert "elicitation" not in told, "the client's revision has none"


@JUMPING
@pytest.mark.requirement("client-progress")
async def test_progress_of_the_client_reaches_the_backend_under_its_own_token(stage: Stage, route: Route) -> None:
    asking(await stage.backend())
    client = await stage.connect(route.path, capabilities=EVERYTHING)
    params = {**ASKS["sampling/createMessage"][0], "_meta": {"progressToken": "theirs"}}
    call = client.start_call(route.name("ask"), method="sampling/createMessage", params=params)
    question = await call.message("sampling/createMessage")
    token = question["params"]["_meta"]["progressToken"]
    assert token != "theirs"
    await client.notify("notifications/progress", {"progressToken": token, "progress": 0.5})
    connection = stage.backends["alpha"].connections[-1]
    told = await connection.wait_for("notifications/progress")
    assert told["params"] == {"progressToken": "theirs", "progress": 0.5}
    await client.answer(question, SAMPLED)
    await call.result()
    await client.notify("notifications/progress", {"progressToken": token, "progress": 0.9})
    await client.request("ping")
    await trio.sleep(1)
    assert len(connection.of("notifications/progress")) == 1


# Roots -------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("roots-changed")
async def test_a_change_of_roots_reaches_the_backends_of_that_session(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = await stage.connect(route.path, capabilities={"roots": {"listChanged": True}})
    await client.call(route.name("echo"))
    mine = backend.connections[-1]
    other = await stage.connect(route.path, capabilities={"roots": {"listChanged": True}})
    await other.call(route.name("echo"))
    await client.notify("notifications/roots/list_changed")
    await mine.wait_for("notifications/roots/list_changed")
    assert sum(len(c.of("notifications/roots/list_changed")) for c in backend.connections) == 1


@JUMPING
@pytest.mark.requirement("roots", "server-request-outside-call", "pitfall-30")
async def test_roots_asked_right_after_the_handshake_come_on_the_get_stream(stage: Stage) -> None:
    backend = await stage.backend()
    client = await stage.connect("/mcp/alpha", capabilities={"roots": {}})
    stream = await client.listen()
    connection = await backend.connection()
    _, wait = connection.begin_ask("roots/list")
    question = await stream.message("roots/list")
    await client.answer(question, ASKS["roots/list"][1])
    assert await wait() == ASKS["roots/list"][1]


@JUMPING
@pytest.mark.limits(server_request_wait=5)
@pytest.mark.requirement("server-request-outside-call", "pitfall-30")
async def test_a_question_that_no_stream_can_carry_fails_in_bounded_time(stage: Stage) -> None:
    backend = await stage.backend()
    await stage.connect("/mcp/alpha", capabilities={"roots": {}})
    connection = await backend.connection()
    began = trio.current_time()
    with pytest.raises(RpcError) as refused:
        await connection.ask("roots/list")
    assert refused.value.code == INTERNAL
    assert trio.current_time() - began == pytest.approx(5, abs=0.5)


@JUMPING
@pytest.mark.limits(server_request_wait=5)
@pytest.mark.requirement("server-request-outside-call", "pitfall-30")
async def test_a_question_waits_a_while_for_a_stream(stage: Stage) -> None:
    backend = await stage.backend()
    client = await stage.connect("/mcp/alpha", capabilities={"roots": {}})
    connection = await backend.connection()
    _, wait = connection.begin_ask("roots/list")
    await trio.sleep(3)
    stream = await client.listen()
    await client.answer(await stream.message("roots/list"), ASKS["roots/list"][1])
    assert await wait() == ASKS["roots/list"][1]


# URL mode ----------------------------------------------------------------------------------------------------


@JUMPING
@pytest.mark.requirement("elicitation-url", "elicitation-complete")
async def test_url_mode_and_its_completion_pass(stage: Stage, route: Route) -> None:
    asking(await stage.backend())
    client = await stage.connect(route.path, capabilities=EVERYTHING)
    other = await stage.connect(route.path, capabilities=EVERYTHING)
    stream, others = await client.listen(), await other.listen()
    call = client.start_call(route.name("ask"), method="elicitation/create", params=URL)
    question = await call.message("elicitation/create")
    assert question["params"] == {**URL, "message": route.label + "please sign in"}
    await client.answer(question, {"action": "accept"})
    assert (await call.result())["_meta"] == {"answer": {"action": "accept"}}
    [connection] = [c for c in stage.backends["alpha"].connections if c.of("tools/call")]
    connection.notify("notifications/elicitation/complete", {"elicitationId": "e-1"})
    complete = await stream.message("notifications/elicitation/complete")
    assert complete["params"] == {"elicitationId": "e-1"}
    assert [event for event in others.exchange.unread if event.data] == []


@pytest.mark.cells((Cell(), Cell("2025-06-18"), Cell("2024-11-05"), Cell(NEWEST, "redis", "http")))
@pytest.mark.requirement("url-required")
@pytest.mark.parametrize("capable", [True, False])
async def test_a_demand_for_a_url_reaches_those_who_can_open_one(stage: Stage, route: Route, capable: bool) -> None:
    backend = await stage.backend()
    backend.result("needs", text("yes"))
    data = {"elicitations": [URL]}
    backend.refuses("tools/call", URL_REQUIRED, "sign in first", data)
    client = await stage.connect(route.path, capabilities=EVERYTHING if capable else {"elicitation": {}})
    as_is = client.revision == "2025-11-25" and (capable or not route.name_prefix)
    call = client.start_call(route.name("needs"))
    if as_is:
        error = await call.error()
        assert error.message == "sign in first"
        assert error.code == URL_REQUIRED
        assert error.data == data
    else:
        result = await call.result()
        assert result["isError"]
        [block] = result["content"]
        assert block["text"] == f"sign in first\n\n{URL['message']}\n{URL['url']}"
