"""Connections of a client without sessions to a server with them: where nothing tells calls apart there is one at a
time; and what becomes of the others while one waits for its client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import trio

from tests.interaction.backend import Backend, HttpAnswer, Request, text
from tests.interaction.cells import WITHOUT_TO_SESSIONS
from tests.interaction.codes import INTERNAL, INVALID_PARAMS
from tests.interaction.scripts import FORM, asking
from tests.interaction.stage import Cell, Route, Stage
from tests.support.modern_wire import ModernCall, ModernWire
from tests.support.schemas import MODERN, REVISIONS
from tests.support.wire_client import Message

JUMPING = pytest.mark.cells(WITHOUT_TO_SESSIONS[:1])
FORMS: Message = {"elicitation": {}}
ANN = {"action": "accept", "content": {"name": "Ann"}}


async def suspended(client: ModernWire, name: str = "alpha__ask", **more: Any) -> Callable[[], ModernCall]:
    """A call that waits for its client; how to answer it."""
    call = client.start_call(name, method="elicitation/create", params=FORM, **more)
    required, key, _ = await call.question()
    return lambda: client.retry(call, required, {key: ANN})


@pytest.mark.cells(WITHOUT_TO_SESSIONS)
@pytest.mark.requirement("bridge-overflow")
async def test_while_a_call_is_parked_others_go_on(stage: Stage, route: Route, cell: Cell) -> None:
    backend = await stage.backend()
    asking(backend)
    backend.result("echo", text("yes"))
    client = stage.modern(route.path, capabilities=FORMS)
    answers = [await suspended(client, route.name("ask"), n=n) for n in range(2)]
    assert (await client.call(route.name("echo")))["content"] == text("yes")["content"]
    for answer in reversed(answers):
        assert (await answer().complete())["_meta"]["answer"] == ANN
    used = [connection for connection in backend.connections if connection.of("tools/call")]
    assert (len(used) == 1) == (cell.transport == "http"), "over HTTP a message says which request it belongs to"


def patient(backend: Backend) -> None:
    """A tool that waits for its answer as long as it takes."""

    @backend.tool("ask")
    async def ask(request: Request) -> Message:
        wait = request.connection.begin_ask("elicitation/create", FORM, request.id)[1]
        return {**text("answer"), "_meta": {"answer": await wait(within=1000)}}


@JUMPING
@pytest.mark.limits(overflow_connections=0)
@pytest.mark.requirement("bridge-overflow")
async def test_when_all_connections_wait_for_clients_a_further_call_is_told_so(stage: Stage) -> None:
    backend = await stage.backend()
    patient(backend)
    client = stage.modern(capabilities=FORMS)
    answer = await suspended(client)
    error = await client.start_call("alpha__ask").error(within=100)
    assert (error.code, error.data["executed"], error.data["reason"]) == (INTERNAL, "no", "busy")
    assert len(backend.of("tools/call")) == 1
    assert (await answer().complete())["_meta"]["answer"] == ANN


@JUMPING
@pytest.mark.limits(overflow_connections=0)
@pytest.mark.requirement("bridge-overflow", "bridge-abandoned")
async def test_what_is_parked_for_long_gives_way(stage: Stage) -> None:
    backend = await stage.backend()
    patient(backend)
    client = stage.modern(capabilities=FORMS)
    answer = await suspended(client)
    await trio.sleep(100)
    call = client.start_call("alpha__ask")
    required = await call.required(within=100)
    (key,) = required["inputRequests"]
    assert (await answer().error()).code == INVALID_PARAMS
    assert (await client.retry(call, required, {key: ANN}).complete())["_meta"]["answer"] == ANN
    assert len(backend.of("tools/call")) == 2


@JUMPING
@pytest.mark.limits(overflow_connections=0)
@pytest.mark.requirement("bridge-overflow")
async def test_a_call_that_waits_for_its_turn_gets_it(stage: Stage) -> None:
    backend = await stage.backend()
    asking(backend)
    client = stage.modern(capabilities=FORMS)
    answer = await suspended(client)
    second = client.start_call("alpha__ask", method="elicitation/create", params=FORM)
    await trio.sleep(5)
    assert len(backend.of("tools/call")) == 1
    assert (await answer().complete())["_meta"]["answer"] == ANN
    required, key, _ = await second.question()
    assert (await client.retry(second, required, {key: ANN}).complete())["_meta"]["answer"] == ANN


@JUMPING
@pytest.mark.limits(park_ttl=30, overflow_connections=0)
@pytest.mark.requirement("bridge-stuck", "bridge-abandoned")
async def test_a_server_that_does_not_settle_after_a_cancel_is_left(stage: Stage) -> None:
    """It works on and answers no ping: its connection would be blocked for ever."""
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    stuck: list[Request] = []

    @backend.tool("stuck")
    async def ask(request: Request) -> None:
        stuck.append(request)
        request.connection.begin_ask("elicitation/create", FORM, request.id)
        with trio.CancelScope(shield=True):
            await request.connection.ended.wait()

    @backend.on("ping")
    async def ping(request: Request) -> Mapping[str, Any] | None:
        return None if stuck and request.connection is stuck[0].connection else {}

    client = stage.modern(capabilities=FORMS)
    call = client.start_call("alpha__stuck")
    await call.question()
    await trio.sleep(60)
    assert stuck[0].connection.ended.is_set()
    assert (await client.call("alpha__echo"))["content"] == text("yes")["content"]


@pytest.mark.cells([cell for cell in WITHOUT_TO_SESSIONS if cell.transport == "http"])
@pytest.mark.requirement("bridge-session-lost", "bridge-parked-lost")
async def test_what_was_parked_in_a_session_that_the_server_forgot_is_gone(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    asking(backend)
    backend.result("echo", text("yes"))
    client = stage.modern(route.path, capabilities=FORMS)
    answer = await suspended(client, route.name("ask"))
    backend.http_answers["tools/call"] = [HttpAnswer(404, lost=True)]
    assert (await client.call(route.name("echo")))["content"] == text("yes")["content"]
    error = await answer().error()
    assert error.code in (INVALID_PARAMS, INTERNAL)
    assert len([m for m in backend.of("tools/call") if m["params"]["name"] == "ask"]) == 1


@pytest.mark.cells((Cell(MODERN, "memory", "channel"),))
@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.requirement("bridge-old-server", "version-lower-side")
async def test_servers_of_every_revision_are_spoken_to_in_their_words(
    stage: Stage, route: Route, revision: str
) -> None:
    """Each message upstream is held against that revision."""
    backend = await older(stage, revision)
    client = stage.modern(route.path, capabilities={**FORMS, "sampling": {"tools": {}}, "roots": {}})
    call = client.start_call(route.name("ask"), token="t")
    required, key, asked = await call.question()
    assert asked["method"] == "sampling/createMessage"
    block = {"type": "text", "text": "said"}
    sampled = {"role": "assistant", "content": [block], "model": "m"}
    done = await client.retry(call, required, {key: sampled}).complete()
    expected = sampled if revision == "2025-11-25" else {**sampled, "content": block}
    assert done["_meta"]["answer"] == expected
    params: Message = {"ref": {"type": "ref/prompt", "name": route.name("p")}, "argument": {"name": "a", "value": ""}}
    params["context"] = {"arguments": {"b": "c"}}
    if revision >= "2025-03-26":  # before, there is no word for having completion
        await client.request("completion/complete", params)
        assert ("context" in backend.of("completion/complete")[0]["params"]) == (revision >= "2025-06-18")
    declared = next(c for c in backend.connections if c.of("tools/call")).client["capabilities"]
    assert "roots" in declared
    assert "listChanged" not in declared["roots"]


async def older(stage: Stage, revision: str) -> Backend:
    """A server of this revision."""
    backend = await stage.backend(era="legacy", revision=revision)
    backend.add("prompts", {"name": "p"})
    backend.answers("completion/complete", {"completion": {"values": []}})

    @backend.tool("ask")
    async def ask(request: Request) -> Message:
        message = {"role": "user", "content": {"type": "text", "text": "say"}}
        answer = await request.ask("sampling/createMessage", {"messages": [message], "maxTokens": 1})
        return {**text("done"), "_meta": {"answer": answer}}

    return backend


@JUMPING
@pytest.mark.requirement("bridge-canonical-list")
async def test_a_list_that_differs_by_connection_is_one_for_a_client(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    asking(backend)

    @backend.on("tools/list")
    async def listed(request: Request) -> Message:
        number = backend.connections.index(request.connection)
        return {"tools": [{"name": "ask", "title": str(number), "inputSchema": {"type": "object"}}]}

    client = stage.modern(route.path, capabilities=FORMS)
    titles = set()
    for n in range(3):
        titles.add((await client.request("tools/list"))["tools"][0]["title"])
        await suspended(client, route.name("ask"), n=n)
    assert len(titles) == 1
