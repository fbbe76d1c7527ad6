"""Sessions over HTTP: who may use which, and when they end (2025-11-25 transports, "Session Management")."""

from __future__ import annotations

import pytest
import trio

from tests.interaction.backend import Request, text
from tests.interaction.cells import JUMPING, STORES
from tests.interaction.codes import INVALID_REQUEST
from tests.interaction.exchanges import PING, each_method, refused, works
from tests.interaction.stage import Cell, Route, Stage

# Sessions ----------------------------------------------------------------------------------------------------


@pytest.mark.cells(STORES)
@pytest.mark.requirement("session-missing", "pitfall-11")
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
@pytest.mark.requirement("session-unknown", "pitfall-11")
@pytest.mark.parametrize("id", ["unknown", "0" * 32, "x" * 4000, "../..", "a b"])
async def test_an_unknown_session_id_is_404_on_every_method(stage: Stage, route: Route, id: str) -> None:
    await stage.backend()
    client = await stage.connect(route.path)
    post, *others = await each_method(client, mcp_session_id=id)
    await refused(post, 404, INVALID_REQUEST, 1)
    for exchange in others:
        await refused(exchange, 404, INVALID_REQUEST)
    await works(client)


@JUMPING
@pytest.mark.requirement("session-unknown", "pitfall-11")
async def test_even_initialize_is_404_with_an_unknown_session_id(stage: Stage) -> None:
    """The client then initializes anew, without it."""
    client = stage.client()
    client.session = "unknown"
    await refused(client.start("initialize", client.introduction(), id=1).exchange, 404, INVALID_REQUEST, 1)
    client.session = None
    assert await client.connect()


@pytest.mark.by_http
@pytest.mark.requirement("session-delete", "pitfall-11")
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
@pytest.mark.requirement("session-delete", "pitfall-11")
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
@pytest.mark.requirement("session-foreign", "session-no-authentication", "pitfall-11")
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
@pytest.mark.requirement("token-each-request", "pitfall-29")
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
        assert (
            await client.http.begin("POST", path, client.headers(content_type="application/json"), b"{}").head() == 400
        )
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
