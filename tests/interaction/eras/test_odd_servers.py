"""What servers without sessions say that they should not, or say twice."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.interaction.backend import Request, text
from tests.interaction.cells import SESSIONS_TO_WITHOUT, WITHOUT_TO_WITHOUT
from tests.interaction.eras.held import Held
from tests.interaction.scripts import ASKS, EVERYTHING
from tests.interaction.stage import Cell, Route, Stage
from tests.support import modern_rules as rules
from tests.support.schemas import MODERN

TOOLS = "notifications/tools/list_changed"
TO_CHANNEL = pytest.mark.cells(WITHOUT_TO_WITHOUT[:1])


@pytest.mark.cells((*WITHOUT_TO_WITHOUT, *SESSIONS_TO_WITHOUT))
@pytest.mark.requirement("bridge-odd-servers")
async def test_a_request_of_such_a_server_is_neither_passed_on_nor_answered(
    stage: Stage, route: Route, cell: Cell
) -> None:
    backend = await stage.backend()
    backend.trusting = True

    @backend.tool("asks")
    async def asks(request: Request) -> Any:
        for number, method in enumerate(("ping", *ASKS)):
            question = {"id": f"s{number}", "method": method, "params": ASKS[method][0] if method in ASKS else {}}
            request.connection.say(question, request.id)
        await trio.sleep(0.05)
        return text("done")

    client: Any
    if cell.revision == MODERN:
        client = stage.modern(route.path, capabilities=EVERYTHING)
    else:
        client = await stage.connect(route.path, capabilities=EVERYTHING)
    call = client.start_call(route.name("asks"))
    assert (await call.result())["content"] == text("done")["content"]
    assert len(call.messages) == 1
    assert all("method" in message for connection in backend.connections for message in connection.received)


@TO_CHANNEL
@pytest.mark.requirement("bridge-odd-servers", "pitfall-25")
async def test_a_subscription_that_ends_by_a_result_and_a_cancel_has_ended_once(stage: Stage, route: Route) -> None:
    backend = await stage.modern_backend()
    backend.result("echo", text("yes"))
    listening = await stage.modern(route.path).listen(tools=True)
    first = await backend.listening()
    first.over.set()
    await trio.sleep(0)
    first.request.connection.notify("notifications/cancelled", {"requestId": first.request.id})
    await listening.changed("tools")
    await trio.sleep(60)
    assert len(backend.live) == 1
    assert listening.quiet
    backend.announce(TOOLS)
    await listening.changed("tools")


@TO_CHANNEL
@pytest.mark.requirement("bridge-odd-servers", "pitfall-25", "isolation")
async def test_a_message_of_no_subscription_reaches_nobody(stage: Stage, route: Route) -> None:
    backend = await stage.modern_backend()
    backend.result("echo", text("yes"))
    client = stage.modern(route.path)
    listening = await client.listen(id=1, tools=True)
    connection = (await backend.listening()).request.connection
    for id in (1, "1", "another", None):
        meta = {} if id is None else {"_meta": {rules.SUBSCRIPTION: id}}
        connection.notify(TOOLS, meta)
        connection.notify("notifications/prompts/list_changed", meta)
    for token in (1, "t"):
        connection.notify("notifications/progress", {"progressToken": token, "progress": 1})
    call = client.start_call(route.name("echo"), token="t", level="debug")
    assert (await call.complete())["content"] == text("yes")["content"]
    await trio.sleep(5)
    assert listening.quiet
    assert len(call.messages) == 1


@pytest.mark.cells(WITHOUT_TO_WITHOUT)
@pytest.mark.requirement("bridge-odd-servers", "pitfall-progress")
async def test_what_comes_after_the_answer_comes_too_late(stage: Stage, route: Route) -> None:
    backend = await stage.modern_backend()

    @backend.tool("late")
    async def late(request: Request) -> None:
        request.progress(1)
        backend_result = {"resultType": "complete", **text("first")}
        request.answer(backend_result)
        if request.connection.backend.headers:
            return  # over HTTP the stream ends with the answer
        request.progress(2)
        request.answer({"resultType": "complete", **text("second")})

    client = stage.modern(route.path)
    for number in range(2):
        call = client.start_call(route.name("late"), token=number)
        assert (await call.complete())["content"] == text("first")["content"]
        assert len(call.messages) == 2


@pytest.mark.cells(tuple(Cell(MODERN, "memory", "channel", era) for era in ("modern", "legacy")))
@pytest.mark.requirement("pitfall-16", "pitfall-3", "bridge-disconnect")
async def test_a_call_that_is_given_up_while_the_era_is_found_out_is_never_made(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    held = Held(backend)
    good, asked = backend.handlers.get("server/discover"), trio.Event()

    async def slow(request: Request) -> Any:
        asked.set()
        await trio.sleep(2)
        assert good is not None
        return await good(request)

    if good is not None:
        backend.handlers["server/discover"] = slow
    else:
        first = backend.handlers["initialize"]

        async def slow_start(request: Request) -> Any:
            asked.set()
            await trio.sleep(2)
            return await first(request)

        backend.handlers["initialize"] = slow_start
    call = stage.modern(route.path).start_call(route.name("held"))
    await asked.wait()
    call.cut()
    await trio.sleep(30)
    assert not held.requests


@pytest.mark.cells(tuple(Cell(MODERN, "memory", "channel", era) for era in ("modern", "legacy")))
@pytest.mark.requirement("bridge-listen")
async def test_a_resource_of_no_server_is_not_watched(stage: Stage) -> None:
    backend = await stage.backend()
    backend.add("resources", {"uri": "test:///a", "name": "a"})
    if backend.sessions:
        backend.answers("resources/subscribe", {})
    uris = ("alpha+test:///a", "nobody+test:///a", "test:///a", "", "x" * 100)
    listening = stage.modern().begin_listening(*uris)
    assert (await listening.acknowledged())["resourceSubscriptions"] == ["alpha+test:///a"]
