"""Which era a server speaks is found out without executing anything (2026-07-28 versioning, Backward Compatibility)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
import trio

from tests.interaction.backend import Backend, HttpAnswer, Request, text
from tests.interaction.cells import SESSIONS_TO_WITHOUT
from tests.interaction.codes import INTERNAL
from tests.interaction.era_backend import ModernBackend
from tests.interaction.stage import Cell, Route, Stage
from tests.support import modern_rules as rules
from tests.support.schemas import MODERN, NEWEST
from tests.support.wire_client import Message, RpcError

OVER_STREAMS = pytest.mark.cells((Cell(MODERN), Cell(MODERN, "memory", "stdio")))
OVER_HTTP = pytest.mark.cells((Cell(MODERN, "memory", "http"),))
JUMPING = pytest.mark.cells((Cell(MODERN),))
TO_BOTH = pytest.mark.cells(tuple(Cell(MODERN, "memory", kind, "dual") for kind in ("inproc", "stdio", "http")))
DISCOVER = "server/discover"

Answer = Callable[[Request], Awaitable[Mapping[str, Any] | None]]


def refusal(code: int, data: Any = None) -> Answer:
    """An error as the answer to the probe."""

    async def refuse(request: Request) -> Mapping[str, Any]:
        raise RpcError({"code": code, "message": "what is that?", "data": data})

    return refuse


def result(**members: Any) -> Answer:
    async def answer(request: Request) -> Mapping[str, Any]:
        return members

    return answer


async def silence(request: Request) -> None:
    """No answer at all."""


async def exits(request: Request) -> None:
    """The server ends because of it."""
    request.connection.hang_up()
    await trio.sleep_forever()


PROBES: dict[str, Answer] = {
    **{str(code): refusal(code) for code in (-32601, -32602, -32600, -32000, -32603, -32001, 7)},
    "-32022 without a mutual version": refusal(-32022, {"supported": [NEWEST], "requested": MODERN}),
    "a result that names no modern version": result(supportedVersions=[NEWEST], capabilities={}),
    "an empty result": result(),
    "silence": silence,
    "it exits": exits,
}


def executed(backend: Backend) -> list[str]:
    """What was sent to the backend before the era was settled, other than the two first requests of the eras."""
    said = [message.get("method", "") for connection in backend.connections for message in connection.received]
    return said[: said.index("initialize")]


@OVER_STREAMS
@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.requirement("pitfall-15", "pitfall-16", "bridge-probe")
async def test_whatever_else_answers_the_probe_is_a_server_with_sessions(stage: Stage, cell: Cell, probe: str) -> None:
    if (probe == "silence") > cell.jumps or (probe == "it exits") > (cell.transport == "stdio"):
        return  # a silence is waited for by a clock that jumps; only a process exits
    backend = await stage.backend()
    backend.handlers[DISCOVER] = PROBES[probe]
    backend.result("echo", text("yes"))
    client = stage.modern("/mcp/alpha")
    assert (await client.call("echo"))["content"] == text("yes")["content"]
    assert set(executed(backend)) == {DISCOVER}
    assert len(backend.of("tools/call")) == 1
    # The verdict is kept: nobody asks again.
    await stage.modern("/mcp/alpha", affinity="another").call("echo")
    assert len(backend.of(DISCOVER)) == 1


HTTP_PROBES = {
    "400 without a body": HttpAnswer(400),
    "400 with HTML": HttpAnswer(400, b"<html>", "text/html"),
    "404 with HTML": HttpAnswer(404, b"<html>", "text/html"),
    "405": HttpAnswer(405),
    "406": HttpAnswer(406),
    "422": HttpAnswer(422, b"{}"),
    "400 with -32602": HttpAnswer(400, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"no"}}'),
    "400 with -32000": HttpAnswer(400, b'{"jsonrpc":"2.0","error":{"code":-32000,"message":"no session"}}'),
    "404 with -32001": HttpAnswer(404, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"no session"}}'),
}


@OVER_HTTP
@pytest.mark.parametrize("probe", HTTP_PROBES)
@pytest.mark.requirement("pitfall-15", "pitfall-16", "bridge-probe", "pitfall-error-bodies")
async def test_over_http_so_do_refusals_of_every_kind(stage: Stage, probe: str) -> None:
    backend = await stage.backend()
    backend.http_answers[DISCOVER] = [HTTP_PROBES[probe]]
    backend.result("echo", text("yes"))
    assert (await stage.modern("/mcp/alpha").call("echo"))["content"] == text("yes")["content"]
    assert len(backend.of("tools/call")) == 1


NO_VERDICT = {"401": HttpAnswer(401), "403": HttpAnswer(403), "500": HttpAnswer(500), "503": HttpAnswer(503)}


@pytest.mark.cells((Cell(MODERN, "memory", "http", "modern"),))
@pytest.mark.parametrize("status", NO_VERDICT)
@pytest.mark.requirement("pitfall-15", "pitfall-29", "bridge-backend-401", "bridge-backend-5xx")
async def test_what_did_not_reach_the_server_proves_nothing(stage: Stage, status: str) -> None:
    """And a challenge for the gateway is not handed on to its client."""
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    backend.http_answers[DISCOVER] = [NO_VERDICT[status]] * 2
    client = stage.modern("/mcp/alpha")
    call = client.start_call("echo")
    error = await call.error()
    assert (error.code, call.exchange.status) == (INTERNAL, 200)
    assert "www-authenticate" not in call.exchange.headers
    assert not backend.of("initialize"), "no verdict"
    with trio.fail_after(10):
        while True:
            response = await client.start_call("echo").response()
            if "result" in response:
                break
            await trio.sleep(0.2)
    assert not backend.of("initialize")


@pytest.mark.cells((Cell(MODERN, "memory", "inproc", "modern"), Cell(MODERN, "memory", "http", "modern")))
@pytest.mark.parametrize("code", [-32022, -32020, -32021])
@pytest.mark.requirement("pitfall-15", "bridge-probe")
async def test_codes_of_the_modern_era_never_lead_to_initialize(stage: Stage, code: int) -> None:
    backend = await stage.modern_backend()
    backend.result("echo", text("yes"))
    good, tries = backend.handlers[DISCOVER], []

    async def at_first(request: Request) -> Mapping[str, Any] | None:
        tries.append(request)
        if len(tries) == 1:
            data = {"supported": [MODERN], "requested": "x", "requiredCapabilities": {}}
            raise RpcError({"code": code, "message": "not so", "data": data})
        return await good(request)

    backend.handlers[DISCOVER] = at_first
    client = stage.modern("/mcp/alpha")
    with trio.fail_after(60):
        while "result" not in await client.start_call("echo").response():
            await trio.sleep(0.5)
    assert not backend.of("initialize")


@TO_BOTH
@pytest.mark.requirement("pitfall-17", "bridge-dual")
async def test_a_server_of_both_eras_is_spoken_to_in_the_era_of_the_client(stage: Stage, route: Route) -> None:
    backend = await stage.modern_backend()
    backend.result("echo", text("yes"))
    session = await stage.connect(route.path, revision=NEWEST)
    client = stage.modern(route.path)
    for _ in range(2):
        assert await session.call(route.name("echo")) == text("yes")
        assert (await client.call(route.name("echo")))["content"] == text("yes")["content"]
    eras = {connection.era for connection in backend.connections if connection.of("tools/call")}  # type: ignore[attr-defined]
    assert eras == {"legacy", "modern"}
    for connection in backend.connections:
        said = {message.get("method") for message in connection.received}
        assert not {"initialize", DISCOVER} <= said, "one connection keeps to one era"


@pytest.mark.cells(SESSIONS_TO_WITHOUT)
@pytest.mark.parametrize("refused", [{"code": -32022, "message": "no"}, {"code": -32601, "message": "no"}], ids=str)
@pytest.mark.requirement("pitfall-15", "bridge-probe")
async def test_a_server_that_refuses_initialize_is_used_without_sessions(
    stage: Stage, route: Route, refused: Message
) -> None:
    backend = await stage.modern_backend()
    backend.refusal = refused
    backend.result("echo", text("yes"))
    for _ in range(2):
        client = await stage.connect(route.path)
        assert await client.call(route.name("echo")) == text("yes")
    assert len(backend.of("initialize")) == 1, "what was learned is kept"


@JUMPING
@pytest.mark.requirement("pitfall-17", "bridge-probe")
async def test_a_slow_modern_server_ends_up_in_its_own_era(stage: Stage) -> None:
    """The probe was not answered in time; initialize is refused in the words of the modern era."""
    backend = await stage.modern_backend()
    backend.result("echo", text("yes"))
    good, tries = backend.handlers[DISCOVER], []

    async def slow(request: Request) -> Mapping[str, Any] | None:
        tries.append(request)
        if len(tries) == 1:
            await trio.sleep(8)
        return await good(request)

    backend.handlers[DISCOVER] = slow
    client = stage.modern("/mcp/alpha")
    assert (await client.start_call("echo").complete(within=60))["content"] == text("yes")["content"]
    assert len(backend.of("tools/call")) == 1


@pytest.mark.cells((Cell(MODERN, "memory", "inproc", "modern"), Cell(MODERN, "memory", "http", "modern")))
@pytest.mark.requirement("bridge-rolled-back", "pitfall-16")
async def test_a_server_that_was_rolled_back_is_found_out_again_and_nothing_runs_twice(stage: Stage) -> None:
    """The same address, and there is a server with sessions from one moment to the next."""
    backend = await stage.modern_backend()
    backend.result("echo", text("yes"))
    client = stage.modern("/mcp/alpha")
    await client.call("echo")
    roll_back(backend)
    with trio.fail_after(60):
        while "result" not in await client.start_call("echo").response():
            await trio.sleep(0.2)
    assert backend.of("initialize")
    assert (
        len(backend.of("tools/call"))
        - sum(rules.VERSION in m["params"].get("_meta", {}) for m in backend.of("tools/call"))
        == 1
    )


def roll_back(backend: ModernBackend) -> None:
    """From here on it speaks the handshake era alone."""
    backend.sessions, backend.modern = True, False
    backend.handlers[DISCOVER] = refusal(-32601)
    for connection in backend.connections:
        connection.hang_up()


@OVER_HTTP
@pytest.mark.requirement("pitfall-one-origin")
async def test_servers_of_different_eras_on_one_origin_are_used_each_in_its_own(stage: Stage) -> None:
    names = ("old", "new")
    old = await stage.backend("old", era="legacy")
    new = await stage.modern_backend("new")
    await stage.share_origin("old", "new")
    for backend, name in zip((old, new), names, strict=True):
        backend.result("who", text(name))
    client, session = stage.modern(), await stage.connect(revision=NEWEST)
    for name in (*names, *names):
        assert (await client.call(f"{name}__who"))["content"] == text(name)["content"]
        assert await session.call(f"{name}__who") == text(name)
    assert old.of("initialize")
    assert len(old.of(DISCOVER)) <= 1
    assert len(new.of("initialize")) <= 1


@OVER_HTTP
@pytest.mark.requirement("pitfall-error-bodies", "http-error-bodies")
@pytest.mark.parametrize("id", [{}, {"id": None}], ids=str)
async def test_an_error_without_an_id_answers_its_post(stage: Stage, id: Message) -> None:
    backend = await stage.modern_backend(era="modern")
    backend.result("echo", text("yes"))
    client = stage.modern("/mcp/alpha")
    await client.call("echo")
    body = json.dumps({"jsonrpc": "2.0", **id, "error": {"code": 1234, "message": "too much", "data": [1]}})
    backend.http_answers["tools/call"] = [HttpAnswer(400, body.encode())]
    error = await client.start_call("echo").error()
    assert (error.code, error.message, error.data) == (1234, "too much", [1])
    assert (await client.call("echo"))["content"] == text("yes")["content"]
