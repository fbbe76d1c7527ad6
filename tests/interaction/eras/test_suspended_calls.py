"""A server with sessions asks in the midst of a call, and its client has none: the call waits, and is resumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import trio

from tests.interaction.backend import Request, text
from tests.interaction.cells import JUMPING, WITHOUT_TO_SESSIONS
from tests.interaction.codes import INTERNAL, INVALID_PARAMS
from tests.interaction.scripts import ASKS, EVERYTHING, FORM, asking
from tests.interaction.stage import Route, Stage
from tests.support.modern_wire import ModernCall, ModernWire
from tests.support.wire_client import Message, RpcError

pytestmark = pytest.mark.cells(WITHOUT_TO_SESSIONS)

FORMS: Message = {"elicitation": {}}
ANN = {"action": "accept", "content": {"name": "Ann"}}


def question(client: ModernWire, route: Route, method: str = "elicitation/create", params: Any = FORM) -> ModernCall:
    """A call in whose midst something is asked."""
    return client.start_call(route.name("ask"), method=method, params=params)


@pytest.mark.parametrize("method", ASKS)
@pytest.mark.requirement("pitfall-21", "bridge-park", "bridge-roots", "bridge-sampling")
async def test_a_call_is_executed_once_however_often_it_asks(stage: Stage, route: Route, method: str) -> None:
    backend = await stage.backend()
    params, answer = ASKS[method]

    @backend.tool("interview")
    async def interview(request: Request) -> Message:
        answers = [await request.ask(method, params) for _ in range(3)]
        return {**text("done"), "_meta": {"answers": answers}}

    client = stage.modern(route.path, capabilities=EVERYTHING)
    call = client.start_call(route.name("interview"))
    keys, states = set(), set()
    for _ in range(3):
        required, key, asked = await call.question()
        assert asked["method"] == method
        if method == "elicitation/create":
            assert asked["params"]["message"] == route.label + FORM["message"]
        keys.add(key)
        states.add(required["requestState"])
        call = client.retry(call, required, {key: answer}, id=f"retry {len(keys)}")
    result = await call.complete()
    assert result["_meta"]["answers"] == [answer] * 3
    assert (len(keys), len(states)) == (3, 3)
    assert len(backend.of("tools/call")) == 1


@pytest.mark.requirement("pitfall-21", "bridge-park-other-methods")
@pytest.mark.parametrize(
    ("method", "params", "found"),
    [
        ("prompts/get", {"name": "p"}, {"messages": []}),
        ("resources/read", {"uri": "test:///r"}, {"contents": [{"uri": "test:///r", "text": "found"}]}),
    ],
)
async def test_prompts_and_reads_are_parked_too(
    stage: Stage, route: Route, method: str, params: Message, found: Message
) -> None:
    backend = await stage.backend()
    backend.add("prompts", {"name": "p"})
    backend.add("resources", {"uri": "test:///r", "name": "r"})

    @backend.on(method)
    async def ask(request: Request) -> Message:
        assert await request.ask("elicitation/create", FORM) == ANN
        return found

    client = stage.modern(route.path, capabilities=FORMS)
    known = {"name": route.name("p")} if method == "prompts/get" else {"uri": route.uri("test:///r")}
    call = client.start(method, known)
    required, key, _ = await call.question()
    result = await client.retry(call, required, {key: ANN}).complete()
    if method == "resources/read":
        assert result["contents"][0]["text"] == "found"
        assert (result["ttlMs"], result["cacheScope"]) == (0, "private"), "answers of a user are nobody else's"
    assert len(backend.of(method)) == 1


@pytest.mark.requirement("bridge-partial")
async def test_questions_of_one_moment_come_together_and_can_be_answered_one_by_one(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    got: dict[str, Message] = {}

    @backend.tool("two")
    async def two(request: Request) -> Message:
        async def ask(name: str) -> None:
            got[name] = await request.ask("elicitation/create", {**FORM, "message": name})

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "first")
            nursery.start_soon(ask, "second")
        return text("done")

    client = stage.modern(route.path, capabilities=FORMS)
    call = client.start_call(route.name("two"))
    required = await call.required()
    by_message = {asked["params"]["message"].removeprefix(route.label): key for key, asked in questions(required)}
    assert set(by_message) == {"first", "second"}
    first, second = by_message["first"], by_message["second"]
    again = client.retry(call, required, {first: ANN, "no such key": ANN})
    less = await again.required()
    assert dict(questions(less)) == {second: required["inputRequests"][second]}
    done = await client.retry(call, less, {second: {"action": "decline"}}).complete()
    assert done["content"] == text("done")["content"]
    assert got == {"first": ANN, "second": {"action": "decline"}}
    assert len(backend.of("tools/call")) == 1


def questions(required: Mapping[str, Any]) -> Any:
    return required["inputRequests"].items()


@JUMPING
@pytest.mark.requirement("bridge-malformed-answer")
@pytest.mark.parametrize("answer", [{}, {"action": "maybe"}, {"action": 7}, 7, None, []], ids=str)
async def test_an_answer_that_is_none_is_refused_and_the_call_waits_on(stage: Stage, answer: Any) -> None:
    backend = await stage.backend()
    asking(backend)
    client = stage.modern(capabilities=FORMS)
    call = client.start_call("alpha__ask", method="elicitation/create", params=FORM)
    required, key, _ = await call.question()
    message = client.request_message("tools/call", {**retried(call, required), "inputResponses": {key: answer}})
    assert (await client.send(message).error()).code == INVALID_PARAMS
    done = await client.retry(call, required, {key: ANN}).complete()
    assert done["_meta"]["answer"] == ANN
    assert len(backend.of("tools/call")) == 1


def retried(call: ModernCall, required: Mapping[str, Any]) -> Message:
    """The params of a retry without answers."""
    params = {key: value for key, value in call.params.items() if key != "_meta"}
    return {**params, "requestState": required["requestState"]}


def _flipped(state: str) -> str:
    middle = len(state) // 2
    return state[:middle] + ("A" if state[middle] != "A" else "B") + state[middle + 1 :]


FORGERIES: dict[str, Callable[[Message], Message]] = {
    "a bit is flipped": lambda params: {**params, "requestState": _flipped(params["requestState"])},
    "something was added": lambda params: {**params, "requestState": params["requestState"] + "A"},
    "it is shorter": lambda params: {**params, "requestState": params["requestState"][:-4]},
    "it is empty": lambda params: {**params, "requestState": ""},
    "it is made up": lambda params: {**params, "requestState": "bWFkZSB1cA"},
    "other arguments": lambda params: {**params, "arguments": {**params["arguments"], "more": 1}},
    "no arguments": lambda params: {k: v for k, v in params.items() if k != "arguments"},
    "another tool": lambda params: {**params, "name": "alpha__other"},
}


@JUMPING
@pytest.mark.requirement("pitfall-22", "bridge-tampering")
@pytest.mark.parametrize("forgery", FORGERIES)
async def test_what_comes_back_must_be_what_was_given_for_this_very_request(stage: Stage, forgery: str) -> None:
    backend = await stage.backend()
    asking(backend)
    backend.result("other", text("executed"))
    client = stage.modern(capabilities=FORMS)
    call = client.start_call("alpha__ask", method="elicitation/create", params=FORM)
    required, key, _ = await call.question()
    params = {**retried(call, required), "inputResponses": {key: ANN}}
    error = await client.refused("tools/call", FORGERIES[forgery](params))
    assert error.code == INVALID_PARAMS
    assert len(backend.of("tools/call")) == 1, "nothing was executed"
    # Whoever has the right one is unharmed.
    assert (await client.retry(call, required, {key: ANN}).complete())["_meta"]["answer"] == ANN


@JUMPING
@pytest.mark.tokens(ann="token-of-ann", bob="token-of-bob")
@pytest.mark.requirement("pitfall-22", "pitfall-30", "bridge-foreign-state")
async def test_what_was_given_to_one_principal_is_nothing_to_another(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    asking(backend)
    ann = stage.modern(route.path, token="token-of-ann", capabilities=FORMS)
    bob = stage.modern(route.path, token="token-of-bob", capabilities=FORMS)
    call = question(ann, route)
    required, key, _ = await call.question()
    assert (await bob.retry(call, required, {key: ANN}).error()).code == INVALID_PARAMS
    assert len(backend.of("tools/call")) == 1
    assert (await ann.retry(call, required, {key: ANN}).complete())["_meta"]["answer"] == ANN


@pytest.mark.requirement("pitfall-22", "bridge-replay")
async def test_a_round_can_be_answered_once(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("twice")
    async def twice(request: Request) -> Message:
        first = await request.ask("elicitation/create", FORM)
        second = await request.ask("elicitation/create", FORM)
        return {**text("done"), "_meta": {"answers": [first, second]}}

    client = stage.modern(route.path, capabilities=FORMS)
    call = client.start_call(route.name("twice"))
    required, key, _ = await call.question()
    again = client.retry(call, required, {key: ANN})
    further, other, _ = await again.question()
    for _ in range(2):
        replayed = client.retry(call, required, {key: {"action": "cancel"}})
        assert (await replayed.error()).code == INVALID_PARAMS
    done = await client.retry(call, further, {other: {"action": "decline"}}).complete()
    assert done["_meta"]["answers"] == [ANN, {"action": "decline"}]
    late = client.retry(call, further, {other: ANN})
    assert (await late.error()).code == INVALID_PARAMS
    assert len(backend.of("tools/call")) == 1


@JUMPING
@pytest.mark.requirement("pitfall-22", "bridge-replay")
async def test_of_two_retries_at_once_one_is_the_call(stage: Stage) -> None:
    backend = await stage.backend()
    asking(backend)
    client = stage.modern(capabilities=FORMS)
    call = client.start_call("alpha__ask", method="elicitation/create", params=FORM)
    required, key, _ = await call.question()
    retries = [client.retry(call, required, {key: ANN}) for _ in range(2)]
    responses = [await retry.response() for retry in retries]
    assert sorted("error" in response for response in responses) == [False, True]
    assert [r["error"]["code"] for r in responses if "error" in r] == [INVALID_PARAMS]


@JUMPING
@pytest.mark.limits(park_ttl=60)
@pytest.mark.parametrize("method", ASKS)
@pytest.mark.requirement("pitfall-22", "pitfall-30", "bridge-abandoned")
async def test_what_nobody_comes_back_for_ends(stage: Stage, method: str) -> None:
    """The backend gets an answer to its question and a cancel of the call; a retry after that executes nothing."""
    backend = await stage.backend()
    answers: list[Any] = []
    asked: list[Request] = []

    @backend.tool("ask")
    async def ask(request: Request) -> Message:
        asked.append(request)
        wait = request.connection.begin_ask(method, ASKS[method][0], request.id)[1]
        stage.nursery.start_soon(_outcome, wait, answers)
        await trio.sleep_forever()
        raise AssertionError

    client = stage.modern(capabilities=EVERYTHING)
    call = client.start_call("alpha__ask")
    required, key, _ = await call.question()
    await trio.sleep(40)
    assert not answers
    assert not asked[0].cancelled.is_set()
    await trio.sleep(40)
    assert asked[0].cancelled.is_set()
    (answer,) = answers
    if method == "elicitation/create":
        assert answer == {"action": "cancel"}
    else:
        assert answer.code in (-1, -32603)
    late = client.retry(call, required, {key: ASKS[method][1]})
    assert (await late.error()).code == INVALID_PARAMS
    assert len(backend.of("tools/call")) == 1


async def _outcome(wait: Any, answers: list[Any]) -> None:
    try:
        answers.append(await wait(within=1000))
    except RpcError as error:
        answers.append(error)


@JUMPING
@pytest.mark.limits(park_ttl=60)
@pytest.mark.requirement("bridge-abandoned")
async def test_what_the_backend_says_meanwhile_does_not_keep_a_call_for_ever(stage: Stage) -> None:
    backend = await stage.backend()
    asked: list[Request] = []

    @backend.tool("busy")
    async def busy(request: Request) -> Message:
        asked.append(request)
        request.connection.begin_ask("elicitation/create", FORM, request.id)
        for step in range(100):
            await trio.sleep(5)
            request.progress(step)
        return text("late")

    client = stage.modern(capabilities=FORMS)
    call = client.start_call("alpha__busy", token="t")
    await call.question()
    await trio.sleep(90)
    assert asked[0].cancelled.is_set()
    assert [m["method"] for m in call.messages if "method" in m] == []


@pytest.mark.requirement("bridge-parked-disconnect", "pitfall-3")
async def test_a_retry_whose_connection_breaks_is_cancelled_like_any_other(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    asked: list[Request] = []
    resumed = trio.Event()

    @backend.tool("ask")
    async def ask(request: Request) -> Message:
        asked.append(request)
        await request.ask("elicitation/create", FORM)
        resumed.set()
        await trio.sleep_forever()
        raise AssertionError

    client = stage.modern(route.path, capabilities=FORMS)
    call = client.start_call(route.name("ask"))
    required, key, _ = await call.question()
    call.cut()
    retry = client.retry(call, required, {key: ANN})
    with trio.fail_after(10):
        await resumed.wait()
        assert not asked[0].cancelled.is_set(), "between rounds nothing is in flight that could be cancelled"
        retry.cut()
        await asked[0].cancelled.wait()
    assert (await client.retry(call, required, {key: ANN}).error()).code == INVALID_PARAMS
    assert len(backend.of("tools/call")) == 1


@pytest.mark.requirement("pitfall-21", "bridge-rebound")
async def test_progress_and_logs_after_a_round_are_those_that_the_retry_asked_for(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("ask")
    async def ask(request: Request) -> Message:
        request.progress(1)
        await request.ask("elicitation/create", FORM)
        request.progress(2)
        request.log("error", "after")
        return text("done")

    client = stage.modern(route.path, capabilities=FORMS)
    call = client.start_call(route.name("ask"), token="first")
    required, key, _ = await call.question()
    assert [seen["progress"] for seen in call.seen("notifications/progress")] == [1]
    retry = client.retry(call, required, {key: ANN}, progress="second", level="error")
    await retry.complete()
    assert [seen["progress"] for seen in retry.seen("notifications/progress")] == [2]
    assert [seen["data"] for seen in retry.seen("notifications/message")] == ["after"]


@JUMPING
@pytest.mark.parametrize("how", ["restart", "crash"])
@pytest.mark.requirement("pitfall-22", "bridge-restart")
async def test_what_was_parked_does_not_outlive_the_process_and_is_not_run_again(stage: Stage, how: str) -> None:
    backend = await stage.backend()
    asking(backend)
    client = stage.modern(capabilities=FORMS)
    call = client.start_call("alpha__ask", method="elicitation/create", params=FORM)
    required, key, _ = await call.question()
    await (stage.restart() if how == "restart" else stage.crash())
    assert (await client.retry(call, required, {key: ANN}).error()).code == INVALID_PARAMS
    assert len(backend.of("tools/call")) == 1


@JUMPING
@pytest.mark.requirement("bridge-parked-lost")
async def test_what_was_parked_ends_with_its_backend(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    asking(backend)
    client = stage.modern(route.path, capabilities=FORMS)
    call = question(client, route)
    required, key, _ = await call.question()
    (asked,) = [connection for connection in backend.connections if connection.of("tools/call")]
    asked.hang_up()
    await trio.sleep(5)
    assert (await client.retry(call, required, {key: ANN}).error()).code == INVALID_PARAMS
    assert len(backend.of("tools/call")) == 1
    call = question(client, route)
    required, key, _ = await call.question()
    assert (await client.retry(call, required, {key: ANN}).complete())["_meta"]["answer"] == ANN


@JUMPING
@pytest.mark.limits(parked_per_principal=2, overflow_connections=8)
@pytest.mark.requirement("bridge-parked-room")
async def test_a_parked_call_too_many_is_refused(stage: Stage) -> None:
    backend = await stage.backend()
    asking(backend)
    client = stage.modern(capabilities=FORMS)
    for n in range(2):
        await client.start_call("alpha__ask", method="elicitation/create", params=FORM, n=n).question()
    error = await client.start_call("alpha__ask", method="elicitation/create", params=FORM, n=3).error()
    assert error.code == INTERNAL
