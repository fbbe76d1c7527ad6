"""A server without sessions needs something of a client without: rounds pass through, and belong to their request."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interaction.backend import InputNeeded, Request, text
from tests.interaction.cells import JUMPING, WITHOUT_TO_WITHOUT
from tests.interaction.codes import INVALID_PARAMS
from tests.interaction.scripts import ASKS, EVERYTHING, FORM, SAMPLED, URL, asking
from tests.interaction.stage import Route, Stage
from tests.support import modern_rules as rules
from tests.support.wire_client import Message, RpcError

pytestmark = pytest.mark.cells(WITHOUT_TO_WITHOUT)

FORMS: Message = {"elicitation": {}}
ANN = {"action": "accept", "content": {"name": "Ann"}}
PAGE = {key: value for key, value in URL.items() if key != "elicitationId"}


@pytest.mark.parametrize("method", ASKS)
@pytest.mark.requirement("pitfall-22", "pitfall-23", "bridge-wrap", "bridge-capabilities-passed")
async def test_a_state_comes_back_exactly_and_only_with_its_request(stage: Stage, route: Route, method: str) -> None:
    """The scripted server checks each state that it gets: that it gave it out, and for this very request."""
    backend = await stage.modern_backend()
    params, answer = ASKS[method]

    @backend.tool("interview")
    async def interview(request: Request) -> Message:
        answers = [await request.ask(method, params) for _ in range(2)]
        return {**text("done"), "_meta": {"answers": answers}}

    client = stage.modern(route.path, capabilities=EVERYTHING)
    call = client.start_call(route.name("interview"))
    for number in range(2):
        required, key, asked = await call.question()
        assert asked["method"] == method
        assert required["requestState"] not in backend.states, "what the client holds is sealed"
        call = client.retry(call, required, {key: answer}, id=f"retry {number}")
    assert (await call.complete())["_meta"]["answers"] == [answer] * 2
    sent = backend.of("tools/call")
    assert [message["params"].get("requestState") for message in sent] == [None, *backend.states]
    assert all(message["params"]["_meta"][rules.CAPABILITIES] for message in sent)
    assert len({message["id"] for message in sent}) == 3


@JUMPING
@pytest.mark.requirement("bridge-wrap")
async def test_every_kind_of_round_passes(stage: Stage, route: Route) -> None:
    """Questions without a state, a state without questions, several questions, and a page to be opened."""
    backend = await stage.modern_backend()
    rounds: list[InputNeeded] = [
        InputNeeded({"a": {"method": "elicitation/create", "params": FORM}}, None),
        InputNeeded(None, "wait \u00e4"),
        InputNeeded({"a": {"method": "roots/list"}, "b": {"method": "elicitation/create", "params": PAGE}}),
    ]

    @backend.tool("rounds")
    async def ask(request: Request) -> Message:
        if rounds:
            raise rounds.pop(0)
        return {**text("done"), "_meta": {"answers": request.answers}}

    client = stage.modern(route.path, capabilities=EVERYTHING)
    call = client.start_call(route.name("rounds"))
    first = await call.required()
    assert first["inputRequests"]["a"]["params"] == {**FORM, "message": route.label + FORM["message"]}
    call = client.retry(call, first, {"a": ANN})
    second = await call.required()
    assert "inputRequests" not in second
    call = client.retry(call, second)
    third = await call.required()
    assert third["inputRequests"]["b"]["params"] == {**PAGE, "message": route.label + URL["message"]}
    answers = {"a": {"roots": []}, "b": {"action": "accept"}}
    done = await client.retry(call, third, answers).complete()
    assert done["_meta"]["answers"] == answers


@JUMPING
@pytest.mark.tokens(ann="token-of-ann", bob="token-of-bob")
@pytest.mark.requirement("pitfall-22", "bridge-foreign-state", "bridge-tampering")
async def test_a_state_is_for_its_principal_and_its_request(stage: Stage, route: Route) -> None:
    backend = await stage.modern_backend()
    asking(backend)
    backend.result("other", text("executed"))
    ann, bob = (stage.modern(route.path, token=f"token-of-{name}", capabilities=FORMS) for name in ("ann", "bob"))
    call = ann.start_call(route.name("ask"), method="elicitation/create", params=FORM)
    required, key, _ = await call.question()
    before = len(backend.of("tools/call"))
    assert (await bob.retry(call, required, {key: ANN}).error()).code == INVALID_PARAMS
    state = required["requestState"]
    base: Message = {**{k: v for k, v in call.params.items() if k != "_meta"}, "inputResponses": {key: ANN}}
    for forged in (
        {**base, "requestState": state[:-1]},
        {**base, "requestState": "x" + state},
        {**base, "requestState": next(iter(backend.states))},
        {**base, "requestState": state, "name": route.name("other")},
        {**base, "requestState": state, "arguments": {}},
    ):
        assert (await ann.refused("tools/call", forged)).code == INVALID_PARAMS
    assert len(backend.of("tools/call")) == before
    assert (await ann.retry(call, required, {key: ANN}).complete())["_meta"]["answer"] == ANN


@JUMPING
@pytest.mark.limits(park_ttl=60)
@pytest.mark.requirement("pitfall-22")
async def test_a_state_expires(stage: Stage) -> None:
    backend = await stage.modern_backend()
    asking(backend)
    client = stage.modern(capabilities=FORMS)
    call = client.start_call("alpha__ask", method="elicitation/create", params=FORM)
    required, key, _ = await call.question()
    stage.later += 60 + 61  # and a minute, by which clocks may differ
    assert (await client.retry(call, required, {key: ANN}).error()).code == INVALID_PARAMS
    assert len(backend.of("tools/call")) == 1


@JUMPING
@pytest.mark.requirement("bridge-wrap")
async def test_a_state_outlives_the_process(stage: Stage) -> None:
    """Nothing waits anywhere: the server holds nothing, and the gateway's key stays."""
    backend = await stage.modern_backend()
    asking(backend)
    client = stage.modern(capabilities=FORMS)
    call = client.start_call("alpha__ask", method="elicitation/create", params=FORM)
    required, key, _ = await call.question()
    await stage.restart()
    assert (await client.retry(call, required, {key: ANN}).complete())["_meta"]["answer"] == ANN


@JUMPING
@pytest.mark.parametrize(
    ("declared", "question"),
    [
        ({}, {"method": "elicitation/create", "params": FORM}),
        ({"elicitation": {}}, {"method": "elicitation/create", "params": PAGE}),
        ({"elicitation": {"url": {}}}, {"method": "elicitation/create", "params": FORM}),
        ({"elicitation": {}}, {"method": "roots/list"}),
        ({"roots": {}}, {"method": "sampling/createMessage", "params": ASKS["sampling/createMessage"][0]}),
        (
            {"sampling": {}},
            {
                "method": "sampling/createMessage",
                "params": {
                    **ASKS["sampling/createMessage"][0],
                    "tools": [{"name": "t", "inputSchema": {"type": "object"}}],
                },
            },
        ),
    ],
    ids=str,
)
@pytest.mark.requirement("pitfall-23", "bridge-no-capability")
async def test_behind_an_aggregate_a_client_never_sees_a_question_that_it_did_not_declare(
    stage: Stage, declared: Message, question: Message
) -> None:
    backend = await stage.modern_backend()

    @backend.tool("ask")
    async def ask(request: Request) -> Message:
        raise InputNeeded({"q": question})

    client = stage.modern("/mcp", capabilities=declared)
    if question.get("params") == PAGE:
        result = await client.call("alpha__ask")
        assert result["isError"]
        assert PAGE["url"] in result["content"][0]["text"]
        return
    with pytest.raises(RpcError):
        await client.call("alpha__ask")


@JUMPING
@pytest.mark.parametrize("method", ["tools/list", "completion/complete", "prompts/list"])
@pytest.mark.requirement("pitfall-23", "bridge-input-elsewhere")
async def test_behind_an_aggregate_input_is_required_on_no_other_method(stage: Stage, method: str) -> None:
    backend = await stage.modern_backend(capabilities={"tools": {}, "prompts": {}, "completions": {}})
    backend.trusting = True

    @backend.on(method)
    async def ask(request: Request) -> Message:
        raise InputNeeded({"q": {"method": "elicitation/create", "params": FORM}})

    client = stage.modern("/mcp", capabilities=FORMS)
    ref = {"type": "ref/prompt", "name": "alpha__p"}
    params = {"ref": ref, "argument": {"name": "a", "value": ""}} if method == "completion/complete" else {}
    response = await client.start(method, params).response()
    assert response.get("result", {}).get("resultType") != "input_required"


@JUMPING
@pytest.mark.requirement("pitfall-27", "bridge-not-cached")
async def test_answers_of_a_retry_are_nobody_elses(stage: Stage, route: Route) -> None:
    backend = await stage.modern_backend()
    backend.add("resources", {"uri": "test:///r", "name": "r"})

    @backend.on("resources/read")
    async def read(request: Request) -> Message:
        answer = await request.ask("sampling/createMessage", ASKS["sampling/createMessage"][0])
        found = {"uri": "test:///r", "text": answer["model"]}
        return {"contents": [found], "ttlMs": 60_000, "cacheScope": "public"}

    for model in ("ann", "bob"):
        client = stage.modern(route.path, capabilities=EVERYTHING)
        call = client.start("resources/read", {"uri": route.uri("test:///r")})
        required, key, _ = await call.question()
        done = await client.retry(call, required, {key: {**SAMPLED, "model": model}}).complete()
        assert done["contents"][0]["text"] == model


@JUMPING
@pytest.mark.parametrize("type", ["task", "partial", "", None, 7], ids=str)
@pytest.mark.requirement("modern-result-type")
async def test_a_result_of_an_unknown_type_is_an_error(stage: Stage, route: Route, type: Any) -> None:
    """Without any it is complete: an older server."""
    backend = await stage.modern_backend()
    backend.trusting = True
    backend.result("odd", {**text("odd"), "resultType": type})
    backend.result("even", text("even"))
    client = stage.modern(route.path)
    client.trusting = True
    response = await client.start_call(route.name("odd")).response()
    if isinstance(type, str) and not route.name_prefix:
        assert response["result"]["resultType"] == type, "between the two of them it may mean something"
    else:
        assert response["error"]["code"] == -32603
    client.trusting = False
    assert (await client.call(route.name("even")))["content"] == text("even")["content"]
