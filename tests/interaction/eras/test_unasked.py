"""What a server with sessions asks where nobody can be asked, and whom it meets (SEP-2260)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.interaction.backend import Backend, Request, text
from tests.interaction.cells import WITHOUT_TO_SESSIONS
from tests.interaction.scripts import ASKS, EVERYTHING, FORM
from tests.interaction.stage import Route, Stage
from tests.support.wire_client import Message, RpcError


@pytest.mark.cells(WITHOUT_TO_SESSIONS)
@pytest.mark.parametrize("method", ASKS)
@pytest.mark.requirement("pitfall-30", "bridge-unasked", "bridge-input-elsewhere")
async def test_a_question_without_a_call_is_answered_with_an_error_at_once(
    stage: Stage, route: Route, method: str
) -> None:
    backend = await stage.backend()
    backend.add("prompts", {"name": "p"})
    answers: list[Any] = []

    async def ask(connection: Any, related: Any = None) -> None:
        with trio.fail_after(8):
            try:
                answers.append(await connection.ask(method, ASKS[method][0], related))
            except RpcError as error:
                answers.append(error.code)

    backend.result("echo", text("yes"))
    backend.capabilities = {"tools": {"listChanged": True}, "completions": {}, "prompts": {}}

    @backend.on("completion/complete")
    async def complete(request: Request) -> Message:
        await ask(request.connection, request.id)
        return {"completion": {"values": []}}

    client = stage.modern(route.path, capabilities=EVERYTHING)
    await client.listen(tools=True)
    await client.call(route.name("echo"))
    params = {"ref": {"type": "ref/prompt", "name": route.name("p")}, "argument": {"name": "a", "value": ""}}
    await client.request("completion/complete", params)
    await ask(_used(backend))
    good = ({"action": "cancel"},) if method == "elicitation/create" else ()
    assert len(answers) == 2
    for answer in answers:
        assert answer in (*good, -32601, -32602, -1), answers


def _used(backend: Backend) -> Any:
    return next(connection for connection in backend.connections if connection.of("tools/call"))


@pytest.mark.cells(WITHOUT_TO_SESSIONS)
@pytest.mark.tokens(ann="token-of-ann", bob="token-of-bob")
@pytest.mark.requirement("pitfall-30", "bridge-foreign-state")
async def test_a_question_is_seen_by_whoever_called(stage: Stage, route: Route) -> None:
    """Two principals, the same server, at the same time, the same ids."""
    backend = await stage.backend()

    @backend.tool("ask")
    async def ask(request: Request) -> Message:
        form = {**FORM, "message": request.arguments["who"]}
        return {**text("done"), "_meta": {"answer": await request.ask("elicitation/create", form)}}

    calls = {}
    for name in ("ann", "bob"):
        client = stage.modern(route.path, token=f"token-of-{name}", capabilities={"elicitation": {}})
        calls[name] = client.start_call(route.name("ask"), id=1, who=name)
    for name, call in calls.items():
        required, key, asked = await call.question()
        assert asked["params"]["message"] == route.label + name
        answer = {"action": "accept", "content": {"name": name}}
        done = await call.client.retry(call, required, {key: answer}, id=2).complete()
        assert done["_meta"]["answer"] == answer


@pytest.mark.cells(WITHOUT_TO_SESSIONS[:1])
@pytest.mark.requirement("pitfall-30", "bridge-undeclared")
async def test_what_the_client_did_not_declare_is_refused_to_the_server(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    codes: list[Any] = []

    @backend.tool("ask")
    async def ask(request: Request) -> Message:
        for method, (params, _) in ASKS.items():
            try:
                codes.append(await request.ask(method, params))
            except RpcError as error:
                codes.append(error.code)
        return text("done")

    client = stage.modern(route.path)
    assert (await client.call(route.name("ask")))["content"] == text("done")["content"]
    assert all(code in (-32601, -32602, -1, {"action": "cancel"}) for code in codes), codes
    assert backend.connections[-1].client["capabilities"] == {}


@pytest.mark.cells(WITHOUT_TO_SESSIONS[:1])
@pytest.mark.requirement("bridge-sticky")
async def test_requests_that_belong_together_meet_the_same_state(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("count")
    async def count(request: Request) -> Message:
        calls = request.connection.of("tools/call")
        return text(str(len(calls)))

    one, same, other = (stage.modern(route.path, affinity=value) for value in ("a", "a", "b"))
    seen = [(await client.call(route.name("count")))["content"][0]["text"] for client in (one, same, other, one)]
    assert seen == ["1", "2", "1", "3"]


@pytest.mark.cells(WITHOUT_TO_SESSIONS[:1])
@pytest.mark.requirement("bridge-elicitation-complete")
async def test_the_completion_of_an_elicitation_is_no_news_for_a_client_without_sessions(
    stage: Stage, route: Route
) -> None:
    backend = await stage.backend()

    @backend.tool("ask")
    async def ask(request: Request) -> Message:
        url = {"mode": "url", "message": "m", "url": "https://example.com/", "elicitationId": "e"}
        answer = await request.ask("elicitation/create", url)
        request.notify("notifications/elicitation/complete", {"elicitationId": "e"})
        return {**text("done"), "_meta": {"answer": answer}}

    client = stage.modern(route.path, capabilities={"elicitation": {"url": {}}})
    call = client.start_call(route.name("ask"))
    required, key, asked = await call.question()
    assert "elicitationId" not in asked["params"]
    retry = client.retry(call, required, {key: {"action": "accept"}})
    assert (await retry.complete())["_meta"]["answer"] == {"action": "accept"}
    assert len(retry.messages) == 1
