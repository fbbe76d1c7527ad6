"""Pages that a user has to visit first: an error in 2025-11-25, a question in 2026-07-28 (client/elicitation)."""

from __future__ import annotations

import pytest

from tests.interaction.backend import Backend, InputNeeded, Request, text
from tests.interaction.cells import SESSIONS_TO_WITHOUT, WITHOUT_TO_SESSIONS
from tests.interaction.codes import INTERNAL
from tests.interaction.era_backend import ModernBackend
from tests.interaction.scripts import URL
from tests.interaction.stage import Route, Stage
from tests.support.wire_client import Message, RpcError

TO_SESSIONS = pytest.mark.cells(WITHOUT_TO_SESSIONS[:1])
FROM_SESSIONS = pytest.mark.cells(SESSIONS_TO_WITHOUT[:1])

PAGE = {key: value for key, value in URL.items() if key != "elicitationId"}
PAGES: Message = {"elicitation": {"url": {}}}


# A server with sessions: nothing is pending ------------------------------------------------------------------


def demanding(backend: Backend) -> None:
    """A tool that wants a page to be opened first."""
    state = {"signed in": False}

    @backend.tool("private")
    async def private(request: Request) -> Message:
        if not state["signed in"]:
            state["signed in"] = True
            raise RpcError({"code": -32042, "message": "sign in", "data": {"elicitations": [URL]}})
        return text("secret")


@pytest.mark.cells(WITHOUT_TO_SESSIONS)
@pytest.mark.requirement("bridge-url-required", "pitfall-24")
async def test_a_demand_for_a_page_is_a_question_and_the_retry_a_new_call(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    demanding(backend)
    client = stage.modern(route.path, capabilities={"elicitation": {"url": {}}})
    call = client.start_call(route.name("private"))
    required, key, asked = await call.question()
    assert asked["method"] == "elicitation/create"
    assert asked["params"] == {
        "mode": "url",
        "message": route.label + URL["message"],
        "url": URL["url"],
    }, "there are no elicitation ids in this era"
    done = await client.retry(call, required, {key: {"action": "accept"}}).complete()
    assert done["content"] == text("secret")["content"]
    assert len(backend.of("tools/call")) == 2


@TO_SESSIONS
@pytest.mark.parametrize("action", ["decline", "cancel"])
@pytest.mark.requirement("bridge-url-required")
async def test_who_does_not_open_the_page_gets_an_error_of_the_tool(stage: Stage, action: str) -> None:
    backend = await stage.backend()
    demanding(backend)
    client = stage.modern(capabilities={"elicitation": {"url": {}}})
    call = client.start_call("alpha__private")
    required, key, _ = await call.question()
    done = await client.retry(call, required, {key: {"action": action}}).complete()
    assert done["isError"] is True
    assert len(backend.of("tools/call")) == 1


@TO_SESSIONS
@pytest.mark.parametrize("declared", [{}, {"elicitation": {}}], ids=str)
@pytest.mark.requirement("bridge-url-required", "url-never-lost")
async def test_who_can_open_no_page_is_told_its_address(stage: Stage, declared: Message) -> None:
    backend = await stage.backend()
    demanding(backend)
    result = await stage.modern(capabilities=declared).call("alpha__private")
    assert result["isError"] is True
    assert URL["url"] in result["content"][0]["text"]


# A server without, and a session ------------------------------------------------------------------------------


def gated(backend: ModernBackend, after: int) -> None:
    """A tool that sends its client to a page until it was asked so often."""
    tries = {"count": 0}

    @backend.tool("private")
    async def private(request: Request) -> Message:
        tries["count"] += 1
        if tries["count"] <= after:
            raise InputNeeded({"page": {"method": "elicitation/create", "params": PAGE}})
        return text("secret")


@FROM_SESSIONS
@pytest.mark.requirement("bridge-url-mode")
async def test_a_page_is_shown_once_and_its_completion_told(stage: Stage, route: Route) -> None:
    """The server sends to the same page until the user is done there."""
    backend = await stage.modern_backend()
    gated(backend, after=30)
    client = await stage.connect(route.path, capabilities=PAGES)
    call = client.start_call(route.name("private"))
    question = await call.message("elicitation/create")
    shown = question["params"]
    assert shown == {**PAGE, "message": route.label + PAGE["message"], "elicitationId": shown["elicitationId"]}
    assert len(shown["elicitationId"]) >= 16
    await client.answer(question, {"action": "accept"})
    told = await call.message("notifications/elicitation/complete", within=200)
    assert told["params"]["elicitationId"] == shown["elicitationId"]
    assert (await call.result())["content"] == text("secret")["content"]
    assert len(backend.of("tools/call")) == 31


@FROM_SESSIONS
@pytest.mark.limits(request_deadline=120, request_deadline_cap=240)
@pytest.mark.requirement("bridge-url-mode")
async def test_a_page_that_is_never_done_is_given_up(stage: Stage, route: Route) -> None:
    backend = await stage.modern_backend()
    gated(backend, after=10**9)
    client = await stage.connect(route.path, capabilities=PAGES)
    call = client.start_call(route.name("private"))
    await client.answer(await call.message("elicitation/create"), {"action": "accept"})
    assert (await call.error(within=4000)).code == INTERNAL


@FROM_SESSIONS
@pytest.mark.requirement("bridge-url-mode")
async def test_a_page_that_is_declined_is_said_so(stage: Stage, route: Route) -> None:
    backend = await stage.modern_backend()

    @backend.tool("private")
    async def private(request: Request) -> Message:
        return {**text("done"), "_meta": {"answer": await request.ask("elicitation/create", PAGE)}}

    client = await stage.connect(route.path, capabilities=PAGES)
    call = client.start_call(route.name("private"))
    await client.answer(await call.message("elicitation/create"), {"action": "decline"})
    assert (await call.result())["_meta"]["answer"] == {"action": "decline"}
