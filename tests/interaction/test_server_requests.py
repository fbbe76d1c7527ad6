"""What backends ask of the client: sampling, elicitation, roots (2025-11-25 client/*; SEP-2260)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from tests.interaction.backend import Backend, Request, text
from tests.interaction.cells import NEWEST_ONLY
from tests.interaction.stage import Cell, Route, Stage
from tests.support.schemas import NEWEST
from tests.support.wire_client import Call, RpcError, WireClient

METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL = -32603
CANCELLED = -32800
URL_REQUIRED = -32042

JUMPING = pytest.mark.cells(NEWEST_ONLY)
RELATING = pytest.mark.cells((Cell(NEWEST, "memory", "http"), Cell(NEWEST, "redis", "http")))

EVERYTHING: dict[str, Any] = {
    "roots": {"listChanged": True},
    "sampling": {"tools": {}, "context": {}},
    "elicitation": {"form": {}, "url": {}},
}

MESSAGE = {"role": "user", "content": {"type": "text", "text": "say"}}
SAMPLED = {"role": "assistant", "content": {"type": "text", "text": "said"}, "model": "m", "stopReason": "endTurn"}
FORM = {
    "message": "who are you?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}
URL = {"mode": "url", "message": "please sign in", "url": "https://example.com/login?x=1", "elicitationId": "e-1"}

ASKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sampling/createMessage": ({"messages": [MESSAGE], "maxTokens": 10}, SAMPLED),
    "elicitation/create": (FORM, {"action": "accept", "content": {"name": "Ann"}}),
    "roots/list": ({}, {"roots": [{"uri": "file:///home/ann", "name": "home"}]}),
}


def asking(backend: Backend, name: str = "ask") -> None:
    """A tool that asks the client what it is told to, and answers with what it got."""

    @backend.tool(name)
    async def ask(request: Request) -> dict:
        method, params = request.arguments["method"], request.arguments.get("params")
        try:
            answer = await request.ask(method, params)
        except RpcError as error:
            return {**text("error"), "_meta": {"code": error.code, "message": error.message}}
        return {**text("answer"), "_meta": {"answer": answer}}


async def asked(client: WireClient, route: Route, method: str, params: Any = None) -> dict[str, Any]:
    """What the backend got when it asked this in the course of a call."""
    given = {} if params is None else {"params": params}
    result = await client.call(route.name("ask"), method=method, **given)
    found: dict[str, Any] = result["_meta"]
    return found


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
    result = {
        "type": "tool_result",
        "toolUseId": "u1",
        "content": [{"type": "text", "text": "sun"}, {"type": "resource_link", "uri": "file:///w", "name": "w"}],
        "structuredContent": {"sun": True},
    }
    params = {
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
    link = {"type": "resource_link", "uri": route.uri("file:///w"), "name": "w"}
    exposed = {**result, "content": [result["content"][0], link]}  # type: ignore[index]
    assert question["params"] == {**params, "messages": [*params["messages"][:2], {"role": "user", "content": [exposed]}]}
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
async def test_what_the_client_did_not_declare_is_refused_here(
    stage: Stage, route: Route, declared: dict, method: str, params: dict, code: int
) -> None:
    asking(await stage.backend())
    client = await stage.connect(route.path, capabilities=declared)
    call = client.start_call(route.name("ask"), method=method, params=params)
    assert (await call.result())["_meta"]["code"] == code
    assert len(call.messages) == 1


@pytest.mark.requirement("capabilities-declared-upstream")
async def test_a_backend_is_told_what_the_client_declared(stage: Stage, route: Route, cell: Cell) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = await stage.connect(route.path, capabilities={"roots": {"listChanged": True}, "sampling": {}, "elicitation": {}})
    await client.call(route.name("echo"))
    told = backend.connections[-1].client["capabilities"]
    assert told["roots"] == {"listChanged": True}
    assert told["sampling"] == {}
    if cell.revision >= "2025-06-18":
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
@pytest.mark.requirement("roots", "server-request-outside-call")
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
@pytest.mark.requirement("server-request-outside-call")
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
@pytest.mark.requirement("server-request-outside-call")
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
    error = await client.start_call(route.name("needs")).error()
    assert error.message == "sign in first"
    if capable and client.revision == "2025-11-25":
        assert error.code == URL_REQUIRED
        assert error.data == data
    else:
        assert error.code == INTERNAL
        assert "elicitations" not in str(error.data)


# Exactly the session whose call raised them ------------------------------------------------------------------


@pytest.mark.requirement("attribution", "isolation")
async def test_questions_reach_exactly_the_session_whose_call_raised_them(stage: Stage, route: Route) -> None:
    """Two sessions, the same ids, the same backend, at the same time; the answers come in the other order."""
    asking(await stage.backend())
    clients = {name: await stage.connect(route.path, capabilities=EVERYTHING) for name in ("ann", "bob")}
    params = {name: {"messages": [{**MESSAGE, "content": {"type": "text", "text": name}}], "maxTokens": 1} for name in clients}
    calls = {
        name: client.start_call(route.name("ask"), id=1, method="sampling/createMessage", params=params[name])
        for name, client in clients.items()
    }
    questions = {name: await call.message("sampling/createMessage") for name, call in calls.items()}
    for name, question in questions.items():
        assert question["params"]["messages"][0]["content"]["text"] == name
    for name in ("bob", "ann"):
        await clients[name].answer(questions[name], {**SAMPLED, "model": f"model of {name}"})
    for name, call in calls.items():
        assert (await call.result())["_meta"]["answer"]["model"] == f"model of {name}"


@JUMPING
@pytest.mark.tokens(ann="token-of-ann", bob="token-of-bob")
@pytest.mark.requirement("attribution")
async def test_nobody_can_answer_for_another_session(stage: Stage, route: Route) -> None:
    asking(await stage.backend())
    ann = await stage.connect(route.path, capabilities=EVERYTHING, token="token-of-ann")
    bob = await stage.connect(route.path, capabilities=EVERYTHING, token="token-of-bob")
    call = ann.start_call(route.name("ask"), method="sampling/createMessage", params=ASKS["sampling/createMessage"][0])
    question = await call.message("sampling/createMessage")
    forged = bob.post({"jsonrpc": "2.0", "id": question["id"], "result": {**SAMPLED, "model": "forged"}})
    await forged.head()
    await ann.answer(question, SAMPLED)
    assert (await call.result())["_meta"]["answer"]["model"] == "m"


@pytest.mark.cells((Cell(NEWEST, "memory", "http"), Cell(NEWEST, "redis", "http")))
@pytest.mark.requirement("attribution", "server-request-on-call-stream")
async def test_over_http_the_questions_of_parallel_calls_come_each_on_its_own_stream(stage: Stage, route: Route) -> None:
    asking(await stage.backend())
    client = await stage.connect(route.path, capabilities=EVERYTHING)
    calls = [
        client.start_call(
            route.name("ask"),
            method="sampling/createMessage",
            params={"messages": [{**MESSAGE, "content": {"type": "text", "text": str(n)}}], "maxTokens": 1},
        )
        for n in range(4)
    ]
    questions = [await call.message("sampling/createMessage") for call in calls]
    assert [q["params"]["messages"][0]["content"]["text"] for q in questions] == ["0", "1", "2", "3"]
    for n in (2, 0, 3, 1):
        await client.answer(questions[n], {**SAMPLED, "model": str(n)})
    for n, call in enumerate(calls):
        assert (await call.result())["_meta"]["answer"]["model"] == str(n)


@pytest.mark.cells((Cell(), Cell(NEWEST, "memory", "stdio"), Cell(NEWEST, "redis", "stdio")))
@pytest.mark.requirement("attribution", "lease")
async def test_where_nothing_relates_messages_calls_of_a_client_that_can_be_asked_go_one_at_a_time(
    stage: Stage, route: Route
) -> None:
    backend = await stage.backend()
    running: list[int] = []

    @backend.tool("ask")
    async def ask(request: Request) -> dict:
        running.append(request.arguments["n"])
        assert len(running) == 1
        await request.connection.ask("roots/list")
        running.clear()
        return text(str(request.arguments["n"]))

    client = await stage.connect(route.path, capabilities=EVERYTHING)
    client.answerers["roots/list"] = lambda params: {"roots": []}
    calls = [client.start_call(route.name("ask"), n=n) for n in range(4)]
    async with trio.open_nursery() as nursery:
        for n, call in enumerate(calls):
            nursery.start_soon(_answers, call, text(str(n)))


async def _answers(call: Call, wanted: dict[str, Any]) -> None:
    assert await call.result() == wanted
    assert [m.get("method") for m in call.messages] == ["roots/list", None]


# Withdrawal --------------------------------------------------------------------------------------------------


@JUMPING
@pytest.mark.requirement("withdraw")
async def test_a_cancelled_call_takes_its_open_question_back(stage: Stage, route: Route) -> None:
    asking(await stage.backend())
    client = await stage.connect(route.path, capabilities=EVERYTHING)
    call = client.start_call(route.name("ask"), method="elicitation/create", params=FORM)
    question = await call.message("elicitation/create")
    await client.accepted(call.cancel())
    withdrawn = await call.message("notifications/cancelled")
    assert withdrawn["params"]["requestId"] == question["id"]
    assert (await call.error()).code == CANCELLED
    await client.answer(question, {"action": "decline"})  # crossing: accepted and dropped


@JUMPING
@pytest.mark.requirement("withdraw")
async def test_a_question_that_the_backend_takes_back_is_taken_back_from_the_client(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("ask")
    async def ask(request: Request) -> dict:
        id, _ = request.connection.begin_ask("elicitation/create", FORM, related=request.id)
        await trio.sleep(1)
        request.notify("notifications/cancelled", {"requestId": id, "reason": "never mind"})
        await trio.sleep(1)
        return text("done")

    client = await stage.connect(route.path, capabilities=EVERYTHING)
    call = client.start_call(route.name("ask"))
    question = await call.message("elicitation/create")
    withdrawn = await call.message("notifications/cancelled")
    assert withdrawn["params"]["requestId"] == question["id"]
    await client.answer(question, {"action": "decline"})  # crossing: accepted and dropped
    assert await call.result() == text("done")


@JUMPING
@pytest.mark.limits(request_deadline=5)
@pytest.mark.requirement("withdraw", "deadline")
async def test_a_timed_out_call_takes_its_open_question_back(stage: Stage, route: Route) -> None:
    asking(await stage.backend())
    client = await stage.connect(route.path, capabilities=EVERYTHING)
    call = client.start_call(route.name("ask"), method="elicitation/create", params=FORM)
    question = await call.message("elicitation/create")
    withdrawn = await call.message("notifications/cancelled")
    assert withdrawn["params"]["requestId"] == question["id"]
    assert (await call.error()).code == INTERNAL
    assert await client.request("ping") == {}


@JUMPING
@pytest.mark.requirement("withdraw")
async def test_an_answered_call_leaves_no_question_behind(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    outcomes: list[Any] = []

    @backend.tool("impatient")
    async def impatient(request: Request) -> None:
        _, wait = request.connection.begin_ask("roots/list", {}, related=request.id)
        stage.nursery.start_soon(_note, wait, outcomes)
        await trio.sleep(1)
        request.connection.running.pop(request.id)
        request.answer(text("did not wait"))

    client = await stage.connect(route.path, capabilities=EVERYTHING)
    call = client.start_call(route.name("impatient"))
    question = await call.message("roots/list")
    assert (await call.message("notifications/cancelled"))["params"]["requestId"] == question["id"]
    assert await call.result() == text("did not wait")
    await trio.sleep(1)
    assert outcomes == [INTERNAL]


async def _note(wait: Callable[[], Awaitable[Any]], outcomes: list[Any]) -> None:
    try:
        outcomes.append(await wait())
    except RpcError as error:
        outcomes.append(error.code)


@pytest.mark.requirement("server-request-session-ended")
async def test_when_the_client_ends_its_session_the_backend_gets_an_answer_or_the_end(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    outcomes: list[Any] = []

    @backend.tool("ask")
    async def ask(request: Request) -> None:
        _, wait = request.connection.begin_ask("roots/list", {}, related=request.id)
        stage.nursery.start_soon(_note, wait, outcomes)
        await trio.sleep_forever()

    client = await stage.connect(route.path, capabilities=EVERYTHING)
    call = client.start_call(route.name("ask"))
    await call.message("roots/list")
    connection = backend.connections[-1]
    assert await client.end() == 200
    await connection.wait_ended()


# A question survives its connection --------------------------------------------------------------------------


@pytest.mark.cells((Cell(), Cell("2025-06-18"), Cell(NEWEST, "redis", "http")))
@pytest.mark.requirement("resume", "server-request-on-call-stream")
async def test_a_question_can_be_answered_after_a_resume(stage: Stage, route: Route) -> None:
    asking(await stage.backend())
    client = await stage.connect(route.path, capabilities=EVERYTHING)
    call = client.start_call(route.name("ask"), method="elicitation/create", params=FORM)
    question = await call.message("elicitation/create")
    call.cut()
    await client.answer(question, {"action": "decline"})
    resumed = await client.resume(call)
    assert (await resumed.result())["_meta"] == {"answer": {"action": "decline"}}


@JUMPING
@pytest.mark.requirement("client-nonsense")
@pytest.mark.parametrize("answer", [{}, {"action": 7}, {"action": "accept", "content": [1]}, {"x": None}], ids=str)
async def test_an_answer_of_a_wrong_shape_is_the_backends_to_judge(stage: Stage, route: Route, answer: dict) -> None:
    asking(await stage.backend())
    stage.backends["alpha"].trusting = True
    client = await stage.connect(route.path, capabilities=EVERYTHING)
    call = client.start_call(route.name("ask"), method="elicitation/create", params=FORM)
    await client.answer(await call.message("elicitation/create"), answer)
    assert (await call.result())["_meta"] == {"answer": answer}
