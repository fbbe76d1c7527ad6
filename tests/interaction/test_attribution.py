"""Questions of backends find the session whose call raised them, and end with that call (SEP-2260)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from tests.interaction.backend import Request, text
from tests.interaction.cells import JUMPING
from tests.interaction.codes import CANCELLED, INTERNAL
from tests.interaction.scripts import ASKS, EVERYTHING, FORM, MESSAGE, SAMPLED, asking
from tests.interaction.stage import Cell, Route, Stage
from tests.support.schemas import NEWEST
from tests.support.wire_client import Call, Message, RpcError

# Exactly the session whose call raised them ------------------------------------------------------------------


@pytest.mark.requirement("attribution", "isolation", "pitfall-30")
async def test_questions_reach_exactly_the_session_whose_call_raised_them(stage: Stage, route: Route) -> None:
    """Two sessions, the same ids, the same backend, at the same time; the answers come in the other order."""
    asking(await stage.backend())
    clients = {name: await stage.connect(route.path, capabilities=EVERYTHING) for name in ("ann", "bob")}
    params = {
        name: {"messages": [{**MESSAGE, "content": {"type": "text", "text": name}}], "maxTokens": 1} for name in clients
    }
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
@pytest.mark.requirement("attribution", "pitfall-30")
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
@pytest.mark.requirement("attribution", "server-request-on-call-stream", "pitfall-30")
async def test_over_http_the_questions_of_parallel_calls_come_each_on_its_own_stream(
    stage: Stage, route: Route
) -> None:
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


@pytest.mark.cells((Cell(NEWEST, "memory", "channel"), Cell(NEWEST, "memory", "stdio"), Cell(NEWEST, "redis", "stdio")))
@pytest.mark.requirement("attribution", "lease", "pitfall-30")
async def test_where_nothing_relates_messages_calls_of_a_client_that_can_be_asked_go_one_at_a_time(
    stage: Stage, route: Route
) -> None:
    backend = await stage.backend()
    running: list[int] = []

    @backend.tool("ask")
    async def ask(request: Request) -> Message:
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
@pytest.mark.requirement("withdraw", "pitfall-30")
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
@pytest.mark.requirement("withdraw", "pitfall-30")
async def test_a_question_that_the_backend_takes_back_is_taken_back_from_the_client(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("ask")
    async def ask(request: Request) -> Message:
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
@pytest.mark.requirement("withdraw", "deadline", "pitfall-30")
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
@pytest.mark.requirement("withdraw", "pitfall-30")
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


@pytest.mark.cells((Cell(NEWEST, "memory", "channel"), Cell(NEWEST, "memory", "stdio"), Cell(NEWEST, "redis", "stdio")))
@pytest.mark.requirement("attribution", "roots", "roots-changed")
@pytest.mark.parametrize("listens", [True, False], ids=["with a GET stream", "without one"])
async def test_roots_that_are_asked_for_while_a_call_runs_are_not_lost_with_its_end(
    stage: Stage, route: Route, listens: bool
) -> None:
    backend = await stage.backend()
    outcomes: list[Any] = []
    answered = trio.Event()

    async def changed(connection: Any) -> None:
        outcomes.append(await connection.ask("roots/list"))
        answered.set()

    @backend.tool("quick")
    async def quick(request: Request) -> Message:
        stage.nursery.start_soon(changed, request.connection)
        await trio.sleep(0.1)
        return text("done")

    client = await stage.connect(route.path, capabilities=EVERYTHING)
    if listens:
        await client.listen()
    call = client.start_call(route.name("quick"))
    question = await call.message("roots/list")
    assert await call.result() == text("done")
    assert [m.get("method") for m in call.messages] == ["roots/list", None]
    roots = {"roots": [{"uri": "file:///new"}]}
    await client.answer(question, roots)
    with trio.fail_after(10):
        await answered.wait()
    assert outcomes == [roots]


async def _note(wait: Callable[[], Awaitable[Any]], outcomes: list[Any]) -> None:
    try:
        outcomes.append(await wait())
    except RpcError as error:
        outcomes.append(error.code)


@pytest.mark.requirement("server-request-session-ended")
async def test_when_the_client_ends_its_session_the_backend_gets_an_answer_or_the_end(
    stage: Stage, route: Route
) -> None:
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
async def test_an_answer_of_a_wrong_shape_is_the_backends_to_judge(stage: Stage, route: Route, answer: Message) -> None:
    asking(await stage.backend())
    stage.backends["alpha"].trusting = True
    client = await stage.connect(route.path, capabilities=EVERYTHING)
    call = client.start_call(route.name("ask"), method="elicitation/create", params=FORM)
    await client.answer(await call.message("elicitation/create"), answer)
    assert (await call.result())["_meta"] == {"answer": answer}


@JUMPING
@pytest.mark.requirement("server-request-outside-call", "disconnect-no-cancel", "pitfall-30", "pitfall-3")
async def test_a_question_of_a_call_whose_connection_is_gone_comes_on_the_get_stream(
    stage: Stage, route: Route
) -> None:
    backend = await stage.backend()
    go, answered = trio.Event(), trio.Event()

    @backend.tool("ask")
    async def ask(request: Request) -> Message:
        await go.wait()
        assert await request.ask("roots/list") == {"roots": []}
        answered.set()
        return text("nobody hears it")

    client = await stage.connect(route.path, capabilities=EVERYTHING)
    await client.request("tools/list")
    listening = await client.listen()
    call = client.start_call(route.name("ask"))
    await trio.sleep(0.1)
    call.cut()
    await trio.sleep(0.1)
    go.set()
    await client.answer(await listening.message("roots/list"), {"roots": []})
    with trio.fail_after(10):
        await answered.wait()
