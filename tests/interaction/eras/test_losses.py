"""What becomes of requests when something breaks behind the gateway, between the eras."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.interaction.backend import Backend, HttpAnswer, Request, text
from tests.interaction.cells import SESSIONS_TO_WITHOUT, WITHOUT_TO_ANY, WITHOUT_TO_SESSIONS
from tests.interaction.codes import INTERNAL
from tests.interaction.eras.held import Held
from tests.interaction.stage import Cell, Route, Stage
from tests.support.schemas import MODERN
from tests.support.wire_client import Message

MODERN_HTTP = (Cell(MODERN, "memory", "http", "modern"), SESSIONS_TO_WITHOUT[2])
LEGACY_HTTP = (Cell(MODERN, "memory", "http", "legacy"),)


async def any_client(stage: Stage, cell: Cell, route: Route) -> Any:
    """A client of the cell's era, which knows what to call."""
    return stage.modern(route.path) if cell.revision == MODERN else await stage.connect(route.path)


@pytest.mark.cells((*WITHOUT_TO_ANY, *SESSIONS_TO_WITHOUT))
@pytest.mark.requirement("bridge-backend-exit", "backend-exit", "backend-returns")
async def test_a_backend_that_ends_in_a_call_is_an_error_at_once_and_comes_back(
    stage: Stage, route: Route, cell: Cell
) -> None:
    backend = await stage.backend()
    held = Held(backend)
    client = await any_client(stage, cell, route)
    call = client.start_call(route.name("held"))
    (await held.running()).connection.hang_up()
    error = await call.error()
    assert (error.code, error.data["executed"]) == (INTERNAL, "unknown")
    held.release(1)
    with trio.fail_after(60):
        while True:
            again = await client.start_call(route.name("held"), who="again").response()
            if "result" in again:
                break
            assert again["error"]["data"]["executed"] == "no"
            await trio.sleep(0.2)
    assert len(held.requests) == 2, "nothing was executed twice"


@pytest.mark.cells(MODERN_HTTP)
@pytest.mark.requirement("bridge-broken-stream", "pitfall-16")
async def test_a_broken_answer_of_a_tool_is_an_error_and_of_a_read_is_asked_for_once_more(
    stage: Stage, route: Route, cell: Cell
) -> None:
    backend = await stage.modern_backend()
    backend.add("resources", {"uri": "test:///r", "name": "r"})
    broken: list[str] = []

    async def breaks(request: Request) -> Message | None:
        broken.append(request.method)
        if len(broken) % 2:
            request.notify("notifications/progress", {"progressToken": request.token or 1, "progress": 1})
            await trio.sleep(0.05)
            await stage.break_connections(backend)
            return None
        return {"contents": [{"uri": "test:///r", "text": "found"}]}

    backend.trusting = True
    backend.tool("tool")(breaks)
    client = await any_client(stage, cell, route)
    await client.request("tools/list")
    error = await client.start_call(route.name("tool")).error()
    assert (error.code, error.data["executed"]) == (INTERNAL, "unknown")
    assert broken == ["tools/call"]
    broken.clear()
    backend.on("resources/read")(breaks)
    assert (await client.request("resources/read", {"uri": route.uri("test:///r")}))["contents"][0]["text"] == "found"
    assert broken == ["resources/read"] * 2


FORGOTTEN = {
    "404": HttpAnswer(404, lost=True),
    "400 with -32000": HttpAnswer(400, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"?"}}', lost=True),
    "400 without a body": HttpAnswer(400, lost=True),
}


@pytest.mark.cells(LEGACY_HTTP)
@pytest.mark.parametrize("forgotten", FORGOTTEN)
@pytest.mark.requirement("bridge-session-lost", "pitfall-11", "pitfall-26")
async def test_a_session_that_the_backend_forgot_is_begun_anew_and_the_refused_request_made_once_more(
    stage: Stage, route: Route, forgotten: str
) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    backend.add("resources", {"uri": "test:///r", "name": "r"})
    backend.answers("resources/subscribe", {})
    client = stage.modern(route.path)
    await client.call(route.name("echo"))
    listening = await client.listen(route.uri("test:///r"), tools=True)
    backend.http_answers["tools/call"] = [FORGOTTEN[forgotten]]
    assert (await client.call(route.name("echo")))["content"] == text("yes")["content"]
    assert len(backend.of("tools/call")) == 2
    seen: set[str] = set()
    with trio.fail_after(10):
        while not {"notifications/tools/list_changed", "notifications/resources/updated"} <= seen:
            message = await listening.next()
            assert message is not None
            seen.add(message["method"])
    assert len(backend.of("resources/subscribe")) >= 2


@pytest.mark.cells((*MODERN_HTTP, *LEGACY_HTTP))
@pytest.mark.parametrize("status", [401, 403, 500, 502, 503])
@pytest.mark.requirement("bridge-backend-401", "bridge-backend-5xx", "pitfall-29")
async def test_a_refusal_of_the_backends_host_is_an_error_of_the_server_and_never_a_challenge(
    stage: Stage, route: Route, cell: Cell, status: int
) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = await any_client(stage, cell, route)
    await client.call(route.name("echo"))
    backend.http_answers["tools/call"] = [HttpAnswer(status, b"no", "text/plain")]
    call = client.start_call(route.name("echo"))
    error = await call.error()
    assert (error.code, call.exchange.status) == (INTERNAL, 200)
    assert "www-authenticate" not in call.exchange.headers
    probes = len(backend.of("server/discover")) + len(backend.of("initialize"))
    assert (await client.call(route.name("echo")))["content"] == text("yes")["content"]
    assert len(backend.of("server/discover")) + len(backend.of("initialize")) == probes, "no era is asked for again"


@pytest.mark.cells(MODERN_HTTP)
@pytest.mark.requirement("bridge-renegotiated")
async def test_a_refused_version_is_a_matter_between_gateway_and_server(stage: Stage, route: Route, cell: Cell) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = await any_client(stage, cell, route)
    await client.call(route.name("echo"))
    data = b'{"supported":["2026-07-28"],"requested":"2026-07-28"}'
    refusal = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32022,"message":"no","data":%b}}' % data
    backend.http_answers["tools/call"] = [HttpAnswer(400, refusal)]
    assert (await client.call(route.name("echo")))["content"] == text("yes")["content"]
    backend.http_answers["tools/call"] = [HttpAnswer(400, refusal)] * 2
    assert (await client.start_call(route.name("echo")).error()).code == INTERNAL
    assert not stage.crashes


NONSENSE = (b"nonsense", b"[]", b'{"jsonrpc":"2.0"}', b'{"jsonrpc":"2.0","method":7}', b"\xff\xfe")


@pytest.mark.cells(tuple(cell for cell in (*WITHOUT_TO_ANY, *SESSIONS_TO_WITHOUT) if cell.era != "dual"))
@pytest.mark.requirement("bridge-nonsense", "backend-nonsense", "pitfall-garbage")
async def test_nonsense_of_a_backend_harms_no_other_call(stage: Stage, route: Route, cell: Cell) -> None:
    backend = await stage.backend()
    held = Held(backend)

    @backend.tool("nonsense")
    async def nonsense(request: Request) -> None:
        for frame in NONSENSE:
            request.connection.write(frame, request.id)
        request.connection.write(b'{"jsonrpc":"2.0","id":%b,"result":7}' % _quoted(request), request.id)

    client = await any_client(stage, cell, route)
    call = client.start_call(route.name("held"), who="ann")
    await held.running()
    await client.start_call(route.name("nonsense")).error()
    held.release(0)
    assert (await call.result())["content"] == text("ann")["content"]


def _quoted(request: Request) -> bytes:
    return (f'"{request.id}"' if isinstance(request.id, str) else str(request.id)).encode()


@pytest.mark.cells((WITHOUT_TO_ANY[0], WITHOUT_TO_SESSIONS[0], SESSIONS_TO_WITHOUT[0]))
@pytest.mark.requirement("bridge-list-partial", "list-partial", "last-known-list")
async def test_one_backend_that_is_away_empties_no_list_and_all_of_them_are_an_error(stage: Stage, cell: Cell) -> None:
    dead: list[Backend] = []
    for name in ("dead", "gone"):
        backend = await stage.backend(name)
        dead.append(backend)
        for method in ("initialize", "server/discover"):
            backend.refuses(method, -32603, "out of order")
    client: Any = stage.modern() if cell.revision == MODERN else await stage.connect()
    error = await client.start("tools/list").error(within=100)
    assert error.code == INTERNAL
    alive = await stage.backend("alive")
    alive.result("echo", text("yes"))
    client = stage.modern() if cell.revision == MODERN else await stage.connect()
    listed = await client.start("tools/list").result(within=100)
    assert [tool["name"] for tool in listed["tools"]] == ["alive__echo"]
    assert cell.revision != MODERN or listed["ttlMs"] == 0
