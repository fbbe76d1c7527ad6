"""Streamable HTTP: what each request must bring, and the status of each refusal (2025-11-25 transports)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from tests.interaction.backend import Request, text
from tests.interaction.cells import EVERYWHERE, NEWEST_ONLY, REVISION_BY_REVISION, STORES
from tests.interaction.stage import Cell, Route, Stage
from tests.support.wire_client import Exchange, HttpError, WireClient

INVALID_REQUEST = -32600
INVALID_PARAMS = -32602
PARSE_ERROR = -32700
UNSUPPORTED_VERSION = -32022

JUMPING = pytest.mark.cells(NEWEST_ONLY)
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


async def refused(exchange: Exchange, status: int, code: int | None = None, id: Any = None) -> dict[str, Any]:
    """The error in a refusal of this status, which has the id of its request or none at all."""
    assert await exchange.head() == status, await exchange.whole()
    body = await exchange.json()
    assert body["jsonrpc"] == "2.0"
    assert body.get("id", "none") == ("none" if id is None else id), "left out, never null"
    assert body["error"]["message"]
    if code is not None:
        assert body["error"]["code"] == code
    assert "mcp-session-id" not in exchange.headers
    found: dict[str, Any] = body["error"]
    return found


async def works(client: WireClient) -> None:
    """The session goes on."""
    assert await client.request("ping") == {}


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
    "nested deep": (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}}", 0),
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
    await refused(client.post(b'{"jsonrpc":"2.0","id":"seven","method":"ping","params":[]}'), 400, INVALID_PARAMS, "seven")
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
@pytest.mark.requirement("post-202", "stray-response")
async def test_a_response_to_nothing_is_400(stage: Stage) -> None:
    client = await stage.connect()
    for id in (1, "1", "never", "1.1", "1.999"):
        await refused(client.post({"jsonrpc": "2.0", "id": id, "result": {}}), 400, INVALID_REQUEST)
        error = {"code": -1, "message": "no"}
        await refused(client.post({"jsonrpc": "2.0", "id": id, "error": error}), 400, INVALID_REQUEST)
    await works(client)


@pytest.mark.requirement("post-202")
async def test_notifications_and_responses_are_202_with_an_empty_body(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("ask")
    async def ask(request: Request) -> dict:
        return text(str(await request.ask("roots/list")))

    client = await stage.connect(route.path, capabilities={"roots": {}})
    call = client.start_call(route.name("ask"))
    question = await call.message("roots/list")
    await client.answer(question, {"roots": [{"uri": "file:///home"}]})
    await client.notify("notifications/roots/list_changed")
    assert "file:///home" in str(await call.result())


# Sessions ----------------------------------------------------------------------------------------------------


async def each_method(client: WireClient, **headers: str | None) -> list[Exchange]:
    """A POST, a GET and a DELETE with these headers."""
    return [
        client.post(PING, **headers),
        client.http.begin("GET", client.path, client.headers(accept="text/event-stream", **headers)),
        client.http.begin("DELETE", client.path, client.headers(**headers)),
    ]


@pytest.mark.cells(STORES)
@pytest.mark.requirement("session-missing")
async def test_without_a_session_id_every_request_but_initialize_is_400(stage: Stage, route: Route) -> None:
    await stage.backend()
    client = await stage.connect(route.path)
    post, get, delete = await each_method(client, mcp_session_id=None)
    await refused(post, 400, INVALID_REQUEST, 1)
    await refused(get, 400, INVALID_REQUEST)
    await refused(delete, 400, INVALID_REQUEST)
    notification = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    await refused(client.post(notification, mcp_session_id=None), 400, INVALID_REQUEST)
    await works(client)


@pytest.mark.cells(STORES)
@pytest.mark.requirement("session-unknown")
@pytest.mark.parametrize("id", ["unknown", "0" * 32, "x" * 4000, "../..", "a b"])
async def test_an_unknown_session_id_is_404_on_every_method(stage: Stage, route: Route, id: str) -> None:
    await stage.backend()
    client = await stage.connect(route.path)
    post, *others = await each_method(client, mcp_session_id=id)
    await refused(post, 404, INVALID_REQUEST, 1)
    for exchange in others:
        await refused(exchange, 404, INVALID_REQUEST)
    await works(client)


@pytest.mark.requirement("session-delete")
async def test_an_ended_session_is_404_on_every_method(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = await stage.connect(route.path)
    await client.call(route.name("echo"))
    connection = backend.connections[-1]
    assert await client.end() == 200
    await connection.wait_ended()
    for exchange in await each_method(client):
        assert await exchange.head() == 404
    again = await stage.connect(route.path)
    assert again.session != client.session


@JUMPING
@pytest.mark.requirement("session-delete")
async def test_a_delete_ends_calls_and_streams_of_its_session_only(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    started = trio.Event()

    @backend.tool("wait")
    async def wait(request: Request) -> None:
        started.set()
        await trio.sleep_forever()

    other = await stage.connect(route.path)
    kept = await other.listen()
    client = await stage.connect(route.path)
    stream = await client.listen()
    call = client.start_call(route.name("wait"))
    await started.wait()
    assert await client.end() == 200
    assert (await call.error()).data["executed"] == "unknown"
    assert await stream.next() is None
    assert not kept.exchange.ended
    await works(other)


@pytest.mark.cells(STORES)
@pytest.mark.tokens(ann="token-of-ann", bob="token-of-bob")
@pytest.mark.requirement("session-foreign", "session-no-authentication")
async def test_a_foreign_session_looks_like_an_unknown_one(stage: Stage, route: Route) -> None:
    await stage.backend()
    ann = await stage.connect(route.path, token="token-of-ann")
    bob = await stage.connect(route.path, token="token-of-bob")
    unknown = await each_method(bob, mcp_session_id="unknown")
    foreign = await each_method(bob, mcp_session_id=ann.session)
    for theirs, nobodys in zip(foreign, unknown, strict=True):
        assert await theirs.head() == 404
        assert await theirs.whole() == await nobodys.whole()
        assert theirs.headers == nobodys.headers
    await works(ann)
    assert await ann.listen()


@JUMPING
@pytest.mark.tokens(ann="token-of-ann")
@pytest.mark.requirement("token-each-request")
@pytest.mark.parametrize("token", [None, "wrong", "", "token-of-ann2"])
async def test_every_request_of_a_session_must_bring_its_token(stage: Stage, route: Route, token: str | None) -> None:
    await stage.backend()
    client = await stage.connect(route.path, token="token-of-ann")
    value = None if token is None else f"Bearer {token}"
    for exchange in await each_method(client, authorization=value):
        await refused(exchange, 401)
        assert exchange.headers["www-authenticate"].startswith("Bearer")
    await works(client)


@JUMPING
@pytest.mark.requirement("session-endpoint")
async def test_a_session_belongs_to_its_endpoint(stage: Stage) -> None:
    await stage.backend("alpha")
    await stage.backend("beta")
    client = await stage.connect("/mcp/alpha")
    for path in ("/mcp", "/mcp/beta"):
        assert await client.http.begin("POST", path, client.headers(content_type="application/json"), b"{}").head() == 400
        elsewhere = stage.client(path)
        elsewhere.session = client.session
        for exchange in await each_method(elsewhere):
            assert await exchange.head() == 404
    await works(client)


@JUMPING
@pytest.mark.requirement("session-id-random")
async def test_session_ids_are_long_random_and_visible(stage: Stage) -> None:
    ids = [(await stage.connect()).session or "" for _ in range(20)]
    assert len(set(ids)) == 20
    assert all(len(id) >= 32 for id in ids)


@JUMPING
@pytest.mark.limits(sessions=2)
@pytest.mark.requirement("session-room")
async def test_a_session_too_many_is_503_and_there_is_room_again_after_an_end(stage: Stage) -> None:
    first, second = await stage.connect(), await stage.connect()
    late = stage.client()
    exchange = late.start("initialize", late.introduction(), id=9).exchange
    await refused(exchange, 503, id=9)
    assert int(exchange.headers["retry-after"]) > 0
    await first.end()
    assert await late.connect()
    await works(second)


@JUMPING
@pytest.mark.limits(idle_ttl=100, passivate_after=100)
@pytest.mark.requirement("session-idle")
async def test_an_idle_session_ends_and_an_attached_stream_is_activity(stage: Stage) -> None:
    watched, quiet = await stage.connect(), await stage.connect()
    stream = await watched.listen()
    await trio.sleep(150)  # by a clock that jumps
    assert await quiet.post(PING).head() == 404
    await works(watched)
    stream.cut()
    await trio.sleep(150)
    assert await watched.post(PING).head() == 404


@JUMPING
@pytest.mark.limits(idle_ttl=100, passivate_after=10)
@pytest.mark.requirement("session-idle")
async def test_a_session_that_left_memory_is_not_kept_for_ever(stage: Stage) -> None:
    client = await stage.connect()
    await trio.sleep(1000)  # by a clock that jumps
    assert await client.post(PING).head() == 404


@pytest.mark.cells((Cell(), Cell("2025-03-26")))
@pytest.mark.limits(idle_ttl=1000, passivate_after=10)
@pytest.mark.requirement("session-passivated")
async def test_a_session_that_left_memory_is_back_with_its_next_message(stage: Stage) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = await stage.connect()
    assert len(stage.actors.sessions.table) == 1
    await trio.sleep(60)  # by a clock that jumps
    assert len(stage.actors.sessions.table) == 0
    assert await client.call("alpha__echo") == text("yes")
    assert await client.end() == 200


# MCP-Protocol-Version ----------------------------------------------------------------------------------------


@pytest.mark.cells(REVISION_BY_REVISION)
@pytest.mark.requirement("version-header-absent", "version-header-mismatch")
async def test_the_version_header_never_changes_a_session(stage: Stage, route: Route, cell: Cell) -> None:
    backend = await stage.backend()

    @backend.tool("slow")
    async def slow(request: Request) -> dict:
        await trio.sleep(1)
        return text("done")

    client = await stage.connect(route.path)
    for header in (None, "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"):
        call = client.start("tools/call", {"name": route.name("slow")}, mcp_protocol_version=header)
        assert await call.result() == text("done")
        assert call.primed == (cell.revision == "2025-11-25")
    assert stage.telemetry.total("stagedoor_version_mismatches_total") == 3


@JUMPING
@pytest.mark.requirement("version-header-unsupported")
@pytest.mark.parametrize("version", ["1.0", "", "2025-11-24", "2026-07-28", "2025-06-18, 2025-06-18", "x" * 500])
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
@pytest.mark.requirement("modern-refused")
async def test_a_client_of_the_next_era_is_told_which_revisions_there_are(stage: Stage) -> None:
    client = stage.client()
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
    message = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta}}
    error = await refused(client.post(message, mcp_protocol_version="2026-07-28"), 400, UNSUPPORTED_VERSION, 1)
    assert error["data"]["requested"] == "2026-07-28"
    assert "2025-11-25" in error["data"]["supported"]
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
        assert await client.http.begin("POST", path, client.headers(content_type="application/json"), b"{}").head() == 404
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
@pytest.mark.requirement("origin-and-host")
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
async def test_a_foreign_origin_or_host_is_403_on_every_method(stage: Stage, route: Route, headers: dict) -> None:
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


# Bounds ------------------------------------------------------------------------------------------------------


@JUMPING
@pytest.mark.limits(requests_per_session=3)
@pytest.mark.requirement("too-many-requests")
async def test_a_request_too_many_is_429_and_pings_are_always_answered(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    go = trio.Event()

    @backend.tool("wait")
    async def wait(request: Request) -> dict:
        await go.wait()
        return text("done")

    client = await stage.connect(route.path)
    running = [client.start_call(route.name("wait")) for _ in range(3)]
    for call in running:
        await call.opened()
    late = client.start_call(route.name("wait"), id=77)
    await refused(late.exchange, 429, id=77)
    assert int(late.exchange.headers["retry-after"]) > 0
    await works(client)
    other = await stage.connect(route.path)
    unharmed = other.start_call(route.name("wait"))
    go.set()
    for call in [*running, unharmed]:
        assert await call.result() == text("done")
    assert await client.call(route.name("wait")) == text("done")


@JUMPING
@pytest.mark.tokens(ann="token-of-ann", bob="token-of-bob")
@pytest.mark.limits(requests_per_principal=2)
@pytest.mark.requirement("too-many-requests")
async def test_the_requests_of_one_principal_are_bounded_over_its_sessions(stage: Stage) -> None:
    backend = await stage.backend()
    go = trio.Event()

    @backend.tool("wait")
    async def wait(request: Request) -> dict:
        await go.wait()
        return text("done")

    ann, ann_too = [await stage.connect("/mcp/alpha", token="token-of-ann") for _ in range(2)]
    bob = await stage.connect("/mcp/alpha", token="token-of-bob")
    running = [ann.start_call("wait"), ann_too.start_call("wait")]
    for call in running:
        await call.opened()
    await refused(ann.start_call("wait", id=7).exchange, 429, id=7)
    running.append(bob.start_call("wait"))
    await running[-1].opened()
    go.set()
    for call in running:
        assert await call.result() == text("done")
    assert await ann.call("wait") == text("done")


@JUMPING
@pytest.mark.requirement("overload")
async def test_an_overloaded_gateway_takes_no_new_work_and_goes_on_with_what_it_has(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("ask")
    async def ask(request: Request) -> dict:
        return text(str(await request.ask("roots/list")))

    client = await stage.connect(route.path, capabilities={"roots": {}})
    call = client.start_call(route.name("ask"))
    question = await call.message("roots/list")
    stage.overloaded = True
    late, new = client.start_call(route.name("ask"), id=7), stage.client(route.path)
    await refused(late.exchange, 503, id=7)
    assert int(late.exchange.headers["retry-after"]) > 0
    await refused(new.start("initialize", new.introduction(), id=8).exchange, 503, id=8)
    await client.answer(question, {"roots": []})
    assert await call.result() == text("{'roots': []}")
    stage.overloaded = False
    assert await new.connect()
    assert len(backend.of("tools/call")) == 1


@JUMPING
@pytest.mark.requirement("draining")
async def test_while_the_gateway_drains_new_sessions_are_503_and_work_in_hand_is_finished(stage: Stage) -> None:
    backend = await stage.backend()

    @backend.tool("wait")
    async def wait(request: Request) -> dict:
        await trio.sleep(3)
        return text("done")

    client = await stage.connect("/mcp/alpha")
    call = client.start_call("wait")
    await call.opened()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.drain)
        await trio.sleep(0.1)
        late = stage.client()
        exchange = late.start("initialize", late.introduction(), id=1).exchange
        await refused(exchange, 503, id=1)
        assert int(exchange.headers["retry-after"]) > 0
        assert await call.result() == text("done")
    await stage.begin()


@pytest.mark.cells(EVERYWHERE)
@pytest.mark.requirement("http-errors-typed")
async def test_a_refusal_on_the_http_level_leaves_a_running_call_alone(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    go = trio.Event()

    @backend.tool("wait")
    async def wait(request: Request) -> dict:
        await go.wait()
        return text("done")

    client = await stage.connect(route.path)
    call = client.start_call(route.name("wait"))
    for bad in (b"nonsense", b"[]", {"jsonrpc": "2.0", "id": 99, "result": {}}):
        with pytest.raises(HttpError):
            await client.accepted(client.post(bad))
    go.set()
    assert await call.result() == text("done")
