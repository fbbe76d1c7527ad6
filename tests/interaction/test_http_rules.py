"""Streamable HTTP: what each request must bring, and the status of each refusal (2025-11-25 transports)."""

from __future__ import annotations

import json

import pytest
import trio

from tests.interaction.backend import Request, text
from tests.interaction.cells import JUMPING, REVISION_BY_REVISION
from tests.interaction.codes import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, UNSUPPORTED_VERSION
from tests.interaction.exchanges import PING, each_method, refused, works
from tests.interaction.stage import Cell, Route, Stage
from tests.support.wire_client import Message

# POST --------------------------------------------------------------------------------------------------------


@JUMPING
@pytest.mark.requirement("post-accept")
@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("application/json, text/event-stream", 200),
        ("text/event-stream;q=0.5,application/json", 200),
        ("*/*", 200),
        ("application/*, text/*", 200),
        ("application/json", 406),
        ("text/event-stream", 406),
        ("text/html", 406),
        ("application/json, text/event-stream;q=0", 406),
        ("", 406),
        (None, 406),
    ],
)
async def test_a_post_must_accept_both_kinds_of_answer(stage: Stage, accept: str | None, status: int) -> None:
    client = await stage.connect()
    exchange = client.post(client.request_message("ping", id=1), accept=accept)
    if status == 406:
        await refused(exchange, 406)
    assert await exchange.head() == status
    await works(client)


@JUMPING
@pytest.mark.requirement("post-content-type")
@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("application/json; charset=latin-1", 415),
        ("text/plain", 415),
        ("application/json-rpc", 415),
        ("multipart/form-data", 415),
        ("", 415),
        (None, 415),
    ],
)
async def test_a_post_must_be_json(stage: Stage, kind: str | None, status: int) -> None:
    client = await stage.connect()
    exchange = client.post(client.request_message("ping", id=1), content_type=kind)
    if status == 415:
        await refused(exchange, 415)
    assert await exchange.head() == status
    await works(client)


BAD_BODIES: dict[str, tuple[bytes, int]] = {
    "nothing": (b"", PARSE_ERROR),
    "no json": (b"hello", PARSE_ERROR),
    "half": (b'{"jsonrpc":"2.0","id":1,"method":"pi', PARSE_ERROR),
    "two": (b"{}{}", PARSE_ERROR),
    "bad utf-8": (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"\xff"}}', PARSE_ERROR),
    "utf-16": (json.dumps(PING).encode("utf-16"), PARSE_ERROR),
    "nan": (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":NaN}}', PARSE_ERROR),
    "number": (b"7", INVALID_REQUEST),
    "text": (b'"ping"', INVALID_REQUEST),
    "null": (b"null", INVALID_REQUEST),
    "empty object": (b"{}", INVALID_REQUEST),
    "no version": (b'{"id":1,"method":"ping"}', INVALID_REQUEST),
    "other version": (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', INVALID_REQUEST),
    "null id": (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', INVALID_REQUEST),
    "bool id": (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', INVALID_REQUEST),
    "float id": (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', INVALID_REQUEST),
    "object id": (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', INVALID_REQUEST),
    "array id": (b'{"jsonrpc":"2.0","id":[1],"method":"ping"}', INVALID_REQUEST),
    "method is a number": (b'{"jsonrpc":"2.0","id":1,"method":7}', INVALID_REQUEST),
    "method is null": (b'{"jsonrpc":"2.0","id":1,"method":null}', INVALID_REQUEST),
    "params is a number": (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":7}', INVALID_REQUEST),
    "params is an array": (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}', INVALID_PARAMS),
    "result and error": (b'{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}', INVALID_REQUEST),
    "result without id": (b'{"jsonrpc":"2.0","result":{}}', INVALID_REQUEST),
    "error is text": (b'{"jsonrpc":"2.0","id":"1.1","error":"no"}', INVALID_REQUEST),
    "nested deep": (
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}}",
        0,
    ),
}


@JUMPING
@pytest.mark.requirement("bad-body")
@pytest.mark.parametrize("name", BAD_BODIES)
async def test_a_body_that_is_no_message_is_400_and_harms_nothing(stage: Stage, route: Route, name: str) -> None:
    await stage.backend()
    client = await stage.connect(route.path)
    body, code = BAD_BODIES[name]
    exchange = client.post(body)
    assert await exchange.head() == 400
    error = (await exchange.json())["error"]
    assert error["code"] == (code or error["code"])
    await works(client)


@JUMPING
@pytest.mark.requirement("bad-body")
async def test_the_id_of_a_malformed_request_is_echoed_where_it_can_be_read(stage: Stage) -> None:
    client = await stage.connect()
    await refused(
        client.post(b'{"jsonrpc":"2.0","id":"seven","method":"ping","params":[]}'), 400, INVALID_PARAMS, "seven"
    )
    await refused(client.post(b'{"jsonrpc":"2.0","id":null,"method":"ping"}'), 400, INVALID_REQUEST)


@JUMPING
@pytest.mark.requirement("body-too-large")
@pytest.mark.limits(message_bytes=1000)
async def test_a_body_over_the_limit_is_413_declared_or_not(stage: Stage) -> None:
    client = await stage.connect()
    big = json.dumps({**PING, "params": {"x": "y" * 1000}}).encode()
    await refused(client.post(big), 413)
    await refused(client.post(big, content_length="10"), 413)
    await works(client)


@pytest.mark.cells(REVISION_BY_REVISION)
@pytest.mark.requirement("post-202", "stray-response", "pitfall-12")
async def test_a_response_to_nothing_is_400(stage: Stage) -> None:
    client = await stage.connect()
    for id in (1, "1", "never", "1.1", "1.999"):
        await refused(client.post({"jsonrpc": "2.0", "id": id, "result": {}}), 400, INVALID_REQUEST)
        error = {"code": -1, "message": "no"}
        await refused(client.post({"jsonrpc": "2.0", "id": id, "error": error}), 400, INVALID_REQUEST)
    await works(client)


@pytest.mark.requirement("post-202", "pitfall-12")
async def test_notifications_and_responses_are_202_with_an_empty_body(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("ask")
    async def ask(request: Request) -> Message:
        return text(str(await request.ask("roots/list")))

    client = await stage.connect(route.path, capabilities={"roots": {}})
    call = client.start_call(route.name("ask"))
    question = await call.message("roots/list")
    await client.answer(question, {"roots": [{"uri": "file:///home"}]})
    await client.notify("notifications/roots/list_changed")
    assert "file:///home" in str(await call.result())


# MCP-Protocol-Version ----------------------------------------------------------------------------------------


@pytest.mark.cells(REVISION_BY_REVISION)
@pytest.mark.requirement("version-header-absent", "version-header-mismatch", "pitfall-version-header")
async def test_the_version_header_never_changes_a_session(stage: Stage, route: Route, cell: Cell) -> None:
    backend = await stage.backend()

    @backend.tool("slow")
    async def slow(request: Request) -> Message:
        await trio.sleep(1)
        return text("done")

    client = await stage.connect(route.path)
    for header in (None, "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"):
        call = client.start("tools/call", {"name": route.name("slow")}, mcp_protocol_version=header)
        assert await call.result() == text("done")
        assert call.primed == (cell.revision == "2025-11-25")
    assert stage.telemetry.total("stagedoor_version_mismatches_total") == 3


@JUMPING
@pytest.mark.requirement("version-header-unsupported", "pitfall-version-header")
@pytest.mark.parametrize("version", ["1.0", "", "2025-11-24", "2025-06-18, 2025-06-18", "x" * 500])
async def test_an_unsupported_version_header_is_400_on_every_method(stage: Stage, route: Route, version: str) -> None:
    await stage.backend()
    client = await stage.connect(route.path)
    post, *others = await each_method(client, mcp_protocol_version=version)
    error = await refused(post, 400, id=1)
    assert error["data"]["supported"]
    for exchange in others:
        await refused(exchange, 400, INVALID_REQUEST)
    await works(client)


@JUMPING
@pytest.mark.requirement("modern-refused", "pitfall-2")
async def test_a_get_or_delete_under_a_header_of_the_next_era_is_405_and_leaves_the_session_alone(
    stage: Stage, route: Route
) -> None:
    await stage.backend()
    client = await stage.connect(route.path)
    _, *others = await each_method(client, mcp_protocol_version="2026-07-28")
    for exchange in others:
        await refused(exchange, 405, INVALID_REQUEST)
        assert exchange.headers["allow"] == "POST"
    await works(client)


@JUMPING
@pytest.mark.requirement("modern-refused", "pitfall-2")
async def test_a_client_of_a_revision_to_come_is_told_which_there_are(stage: Stage) -> None:
    client = stage.client()
    prefix, later = "io.modelcontextprotocol/", "2099-12-31"
    meta = {f"{prefix}protocolVersion": later, f"{prefix}clientCapabilities": {}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta}}
    headers = {"mcp_protocol_version": later, "mcp_method": "server/discover"}
    error = await refused(client.post(message, **headers), 400, UNSUPPORTED_VERSION, 1)
    assert error["data"]["requested"] == later
    assert error["data"]["supported"][:2] == ["2026-07-28", "2025-11-25"]
    assert await client.connect()


# Methods and paths -------------------------------------------------------------------------------------------


@JUMPING
@pytest.mark.requirement("methods-and-paths")
async def test_other_methods_are_405_and_other_paths_404(stage: Stage) -> None:
    await stage.backend()
    client = await stage.connect()
    for method in ("PUT", "PATCH", "TRACE"):
        exchange = client.http.begin(method, "/mcp", client.headers())
        await refused(exchange, 405)
        assert {"GET", "POST", "DELETE"} <= set(exchange.headers["allow"].split(", "))
    for path in ("/", "/mcp2", "/mcp/unknown", "/mcp/alpha/more", "/metrics", "/sse"):
        assert (
            await client.http.begin("POST", path, client.headers(content_type="application/json"), b"{}").head() == 404
        )
    await works(client)


@JUMPING
@pytest.mark.requirement("get-accept")
@pytest.mark.parametrize("accept", ["application/json", "", None, "text/html"])
async def test_a_get_must_accept_event_streams(stage: Stage, accept: str | None) -> None:
    client = await stage.connect()
    await refused(client.http.begin("GET", "/mcp", client.headers(accept=accept)), 406)
    await works(client)


@JUMPING
@pytest.mark.tokens(ann="token-of-ann")
@pytest.mark.requirement("origin-and-host", "pitfall-13")
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost.evil.example"},
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:8080"},
    ],
    ids=str,
)
async def test_a_foreign_origin_or_host_is_403_on_every_method(stage: Stage, route: Route, headers: Message) -> None:
    await stage.backend()
    client = await stage.connect(route.path, token="token-of-ann")
    for exchange in await each_method(client, **headers):
        await refused(exchange, 403)
    initialize = client.request_message("initialize", client.introduction())
    await refused(client.post(initialize, mcp_session_id=None, **headers), 403)
    for origin in ("http://localhost:3000", "http://127.0.0.1:8080", "http://[::1]:1"):
        exchange = client.post(client.request_message("ping"), origin=origin)
        assert await exchange.head() == 200
        assert "mcp-session-id" in exchange.headers["access-control-expose-headers"].lower()
    await works(client)
