"""A client with a session before a server without: the gateway asks the client, and calls again."""

from __future__ import annotations

import itertools

import pytest
import trio

from tests.interaction.backend import InputNeeded, Request, text
from tests.interaction.cells import SESSIONS_TO_WITHOUT
from tests.interaction.codes import INTERNAL, INVALID_REQUEST
from tests.interaction.eras.held import Held
from tests.interaction.scripts import ASKS, EVERYTHING, FORM, asking
from tests.interaction.stage import Cell, Route, Stage
from tests.support import modern_rules as rules
from tests.support.schemas import MODERN, NEWEST
from tests.support.wire_client import Message, RpcError

pytestmark = pytest.mark.cells(SESSIONS_TO_WITHOUT)
JUMPING = pytest.mark.cells(SESSIONS_TO_WITHOUT[:1])

ANN = {"action": "accept", "content": {"name": "Ann"}}


@pytest.mark.parametrize("method", ASKS)
@pytest.mark.requirement("bridge-loop", "pitfall-22", "pitfall-24")
async def test_questions_come_on_the_stream_of_the_call_and_it_is_made_again_with_the_answers(
    stage: Stage, route: Route, method: str
) -> None:
    backend = await stage.backend()
    params, answer = ASKS[method]

    @backend.tool("interview")
    async def interview(request: Request) -> Message:
        answers = [await request.ask(method, params) for _ in range(2)]
        return {**text("done"), "_meta": {"answers": answers}}

    client = await stage.connect(route.path, capabilities=EVERYTHING)
    call = client.start_call(route.name("interview"))
    for _ in range(2):
        question = await call.message(method)
        if method == "elicitation/create":
            assert question["params"]["message"] == route.label + FORM["message"]
        await client.answer(question, answer)
    assert (await call.result())["_meta"] == {"answers": [answer] * 2}
    sent = backend.of("tools/call")
    assert len({message["id"] for message in sent}) == 3, "every round has an id of its own"
    assert len(backend.of("initialize")) <= 1


@pytest.mark.requirement("bridge-loop")
async def test_questions_of_one_round_are_asked_at_once(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("three")
    async def three(request: Request) -> Message:
        if not request.answers:
            raise InputNeeded({key: {"method": key, "params": params} for key, (params, _) in ASKS.items()})
        return {**text("done"), "_meta": {"answers": request.answers}}

    client = await stage.connect(route.path, capabilities=EVERYTHING)
    call = client.start_call(route.name("three"))
    questions = [await call.next() for _ in ASKS]
    for question in reversed(questions):
        assert question is not None
        await client.answer(question, ASKS[question["method"]][1])
    assert (await call.result())["_meta"]["answers"] == {key: answer for key, (_, answer) in ASKS.items()}


@JUMPING
@pytest.mark.requirement("bridge-loop-waits")
async def test_a_state_without_questions_is_tried_again_after_a_while(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    times: list[float] = []

    @backend.tool("busy")
    async def busy(request: Request) -> Message:
        times.append(trio.current_time())
        if len(times) < 5:
            raise InputNeeded(None)
        return text("done")

    client = await stage.connect(route.path)
    assert (await client.call(route.name("busy")))["content"] == text("done")["content"]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(0.04 <= pause <= 0.5 for pause in pauses), pauses


@JUMPING
@pytest.mark.requirement("bridge-rounds-cap")
async def test_a_server_that_never_has_enough_is_given_up(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("greedy")
    async def greedy(request: Request) -> Message:
        raise InputNeeded({"q": {"method": "roots/list"}})

    client = await stage.connect(route.path, capabilities=EVERYTHING)
    client.answerers["roots/list"] = lambda params: {"roots": []}
    error = await client.start_call(route.name("greedy")).error(within=100)
    assert error.code == INTERNAL
    assert 5 <= len(backend.of("tools/call")) <= 20


# Refusals ----------------------------------------------------------------------------------------------------


@JUMPING
@pytest.mark.parametrize("action", ["decline", "cancel"])
@pytest.mark.requirement("bridge-refusals")
async def test_a_declined_form_passes_as_it_is(stage: Stage, route: Route, action: str) -> None:
    asking(await stage.backend())
    client = await stage.connect(route.path, capabilities=EVERYTHING)
    call = client.start_call(route.name("ask"), method="elicitation/create", params=FORM)
    await client.answer(await call.message("elicitation/create"), {"action": action})
    assert (await call.result())["_meta"]["answer"] == {"action": action}


@JUMPING
@pytest.mark.requirement("bridge-refusals", "pitfall-error-answers")
async def test_an_error_for_a_form_is_a_cancel(stage: Stage, route: Route) -> None:
    asking(await stage.backend())
    client = await stage.connect(route.path, capabilities=EVERYTHING)
    call = client.start_call(route.name("ask"), method="elicitation/create", params=FORM)
    await client.decline(await call.message("elicitation/create"), -1, "no")
    assert (await call.result())["_meta"]["answer"] == {"action": "cancel"}


@pytest.mark.parametrize("method", ["sampling/createMessage", "roots/list"])
@pytest.mark.requirement("bridge-refusals", "bridge-error-answers", "pitfall-error-answers")
async def test_an_error_has_no_place_among_answers_and_ends_the_call(stage: Stage, route: Route, method: str) -> None:
    backend = await stage.backend()
    asking(backend)
    client = await stage.connect(route.path, capabilities=EVERYTHING)
    call = client.start_call(route.name("ask"), method=method, params=ASKS[method][0])
    await client.decline(await call.message(method), -1, "the user said no")
    result = await call.result()
    assert result["isError"] is True
    assert "the user said no" in result["content"][0]["text"]
    assert len(backend.of("tools/call")) == 1, "nothing went to the server"


@JUMPING
@pytest.mark.requirement("bridge-refusals", "bridge-error-answers")
async def test_where_no_tool_is_called_the_error_is_the_clients(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    backend.add("prompts", {"name": "p"})

    @backend.on("prompts/get")
    async def get(request: Request) -> Message:
        await request.ask("roots/list", {})
        return {"messages": []}

    client = await stage.connect(route.path, capabilities=EVERYTHING)
    call = client.start("prompts/get", {"name": route.name("p")})
    await client.decline(await call.message("roots/list"), -5, "the user said no")
    error = await call.error()
    assert (error.code, error.message) == (-5, "the user said no")


@pytest.mark.requirement("bridge-session-ended")
async def test_a_session_that_ends_with_a_question_open_abandons_the_call(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    asking(backend)
    client = await stage.connect(route.path, capabilities=EVERYTHING)
    call = client.start_call(route.name("ask"), method="elicitation/create", params=FORM)
    await call.message("elicitation/create")
    assert await client.end() in (200, 204)
    other = await stage.connect(route.path)
    await other.request("tools/list")
    assert len(backend.of("tools/call")) == 1


@pytest.mark.requirement("bridge-cancel", "pitfall-30")
async def test_a_cancel_with_a_question_open_takes_it_back_and_ends_the_call(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    asking(backend)
    client = await stage.connect(route.path, capabilities=EVERYTHING)
    call = client.start_call(route.name("ask"), method="elicitation/create", params=FORM)
    question = await call.message("elicitation/create")
    await client.accepted(call.cancel())
    withdrawn = await call.message("notifications/cancelled")
    assert withdrawn["params"]["requestId"] == question["id"]
    assert (await call.error()).code == -32800
    await client.accepted(client.post({"jsonrpc": "2.0", "id": question["id"], "result": ANN}))
    assert len(backend.of("tools/call")) == 1


@pytest.mark.requirement("bridge-cancel", "cancel")
async def test_a_cancel_of_a_running_call_reaches_the_server_as_its_transport_says_it(
    stage: Stage, route: Route, cell: Cell
) -> None:
    backend = await stage.backend()
    held = Held(backend)
    client = await stage.connect(route.path)
    call = client.start_call(route.name("held"))
    request = await held.running()
    await client.accepted(call.cancel())
    with trio.fail_after(10):
        await request.cancelled.wait()
    assert (await call.error()).code == -32800
    assert bool(backend.of("notifications/cancelled")) == (cell.transport != "http"), "over HTTP: the connection closes"


@pytest.mark.requirement("pitfall-3", "bridge-legacy-disconnect")
async def test_a_connection_that_breaks_leaves_the_call_alone_and_the_answer_is_kept(
    stage: Stage, route: Route
) -> None:
    backend = await stage.backend()
    held = Held(backend)
    client = await stage.connect(route.path)
    call = client.start_call(route.name("held"), token="t", who="ann")
    request = await held.running()
    request.progress(1)
    await call.message("notifications/progress")
    call.cut()
    await trio.sleep(0.05)
    assert not request.cancelled.is_set()
    held.release(0)
    resumed = await client.resume(call)
    assert (await resumed.result())["content"] == text("ann")["content"]


# What a client can't ------------------------------------------------------------------------------------------


@pytest.mark.requirement("bridge-missing-capability", "pitfall-24")
async def test_what_a_client_lacks_is_not_declared_and_the_refusal_is_in_its_words(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("ask")
    async def ask(request: Request) -> Message:
        declared = request.params["_meta"][rules.CAPABILITIES]
        assert "elicitation" not in declared
        data: Message = {"requiredCapabilities": {"elicitation": {}}}
        raise RpcError({"code": -32021, "message": "elicitation is needed", "data": data})

    client = await stage.connect(route.path, capabilities={"roots": {"listChanged": True}, "sampling": {}})
    error = await client.start_call(route.name("ask")).error()
    assert (error.code, error.data["requiredCapabilities"]) == (INVALID_REQUEST, {"elicitation": {}})
    declared = backend.of("tools/call")[0]["params"]["_meta"][rules.CAPABILITIES]
    assert set(declared) == {"roots", "sampling"}
    assert "listChanged" not in declared["roots"]


@pytest.mark.cells(tuple(Cell(revision, "memory", "inproc", "modern") for revision in ("2024-11-05", "2025-03-26")))
@pytest.mark.requirement("bridge-old-client")
async def test_a_client_of_a_revision_without_elicitation_is_not_said_to_have_it(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("ask")
    async def ask(request: Request) -> Message:
        if "elicitation" not in request.params["_meta"][rules.CAPABILITIES]:
            data: Message = {"requiredCapabilities": {"elicitation": {}}}
            raise RpcError({"code": -32021, "message": "elicitation is needed", "data": data})
        return text("asked")

    client = await stage.connect(route.path, capabilities={"elicitation": {}})
    error = await client.start_call(route.name("ask")).error()
    assert (error.code, error.data["requiredCapabilities"]) == (INVALID_REQUEST, {"elicitation": {}})


# What the session keeps ----------------------------------------------------------------------------------------


@pytest.mark.requirement("bridge-set-level", "log-levels")
async def test_the_level_of_a_session_goes_with_every_request(stage: Stage, route: Route, cell: Cell) -> None:
    backend = await stage.backend()

    @backend.tool("chat")
    async def chat(request: Request) -> Message:
        level = request.params["_meta"].get(rules.LEVEL)
        if level is not None:
            request.log("error", f"wanted: {level}")
        return text("done")

    client = await stage.connect(route.path)
    silent = client.start_call(route.name("chat"))
    await silent.result()
    assert await client.request("logging/setLevel", {"level": "warning"}) == {}
    loud = client.start_call(route.name("chat"))
    await loud.result()
    assert rules.LEVEL not in backend.of("tools/call")[0]["params"]["_meta"]
    level = backend.of("tools/call")[1]["params"]["_meta"].get(rules.LEVEL)
    if cell.transport == "http":
        assert level == "warning"
        assert [m["params"]["data"] for m in loud.messages[:-1]] == ["wanted: warning"]
    else:
        # A log line names no request: on a connection that others share it is asked for only where it is one's own.
        assert level in (None, "warning")
    assert not backend.of("logging/setLevel")


@pytest.mark.requirement("bridge-roots-changed")
async def test_a_change_of_roots_is_no_news_for_such_a_server(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    asking(backend)
    client = await stage.connect(route.path, capabilities=EVERYTHING)
    client.answerers["roots/list"] = lambda params: ASKS["roots/list"][1]
    for _ in range(2):
        call = client.start_call(route.name("ask"), method="roots/list")
        assert (await call.result())["_meta"]["answer"] == ASKS["roots/list"][1]
        await client.notify("notifications/roots/list_changed")
    assert {message["method"] for connection in backend.connections for message in connection.received} <= {
        "initialize",
        "server/discover",
        "tools/list",
        "tools/call",
        "subscriptions/listen",
    }


@pytest.mark.requirement("bridge-envelope", "tokens-not-forwarded", "modern-trace")
async def test_what_a_session_knows_is_said_with_every_request(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    held = Held(backend)
    client = await stage.connect(route.path, capabilities={"elicitation": {}})
    meta = {"progressToken": "mine", "traceparent": "00-1-1-01", "x.example/k": 1}
    params: Message = {"name": route.name("held"), "arguments": {"who": "ann"}, "_meta": meta}
    call = client.start("tools/call", params)
    request = await held.running()
    request.progress(1)
    assert (await call.message("notifications/progress"))["params"]["progressToken"] == "mine"
    held.release(0)
    await call.result()
    seen = request.params["_meta"]
    assert seen[rules.VERSION] == MODERN
    assert seen[rules.CAPABILITIES]["elicitation"] in ({}, {"form": {}})
    assert seen["progressToken"] != "mine"
    assert (seen["traceparent"], seen["x.example/k"]) == ("00-1-1-01", 1)


@JUMPING
@pytest.mark.requirement("pitfall-24", "bridge-not-found", "resource-not-found")
async def test_a_missing_resource_is_said_in_the_words_of_the_era(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    backend.add("resources", {"uri": "test:///r", "name": "r"})
    backend.refuses("resources/read", -32602, "Resource not found", {"uri": "test:///gone"})
    client = await stage.connect(route.path, revision=NEWEST)
    error = await client.refused("resources/read", {"uri": route.uri("test:///gone")})
    assert (error.code, error.data["uri"]) == (-32002, route.uri("test:///gone"))
    backend.refuses("resources/read", -32602, "the URI is malformed")
    assert (await client.refused("resources/read", {"uri": route.uri("test:///gone")})).code == -32602
