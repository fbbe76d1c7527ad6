"""Lifecycle and the JSON-RPC envelope (2025-11-25 lifecycle; basic)."""

from __future__ import annotations

import pytest
import trio

from tests.interaction.backend import Request, text
from tests.interaction.cells import JUMPING, REVISION_BY_REVISION, TRANSPORTS
from tests.interaction.codes import INTERNAL, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND
from tests.interaction.stage import Cell, Route, Stage
from tests.support.schemas import NEWEST, REVISIONS
from tests.support.wire_client import HttpError, Message, RpcError

# Initialization ---------------------------------------------------------------------------------------------


@pytest.mark.requirement("version-echoed", "session-id-on-initialize")
async def test_a_supported_revision_is_echoed(stage: Stage, route: Route, cell: Cell) -> None:
    await stage.backend()
    client = stage.client(route.path)
    server_info = await client.initialize()
    assert server_info["protocolVersion"] == cell.revision


@JUMPING
@pytest.mark.requirement("version-fallback", "pitfall-1")
@pytest.mark.parametrize("asked", ["2026-07-28", "1999-01-01", "", "latest", "2025-11-25 "])
async def test_any_other_revision_is_answered_with_the_newest_handshake_one(
    stage: Stage, route: Route, asked: str
) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = stage.client(route.path)
    server_info = await client.initialize(protocolVersion=asked)
    assert server_info["protocolVersion"] == NEWEST
    await client.notify("notifications/initialized")
    assert await client.call(route.name("echo")) == text("yes")


@JUMPING
@pytest.mark.requirement("version-lower-side")
@pytest.mark.parametrize("theirs", REVISIONS)
@pytest.mark.parametrize("ours", REVISIONS)
async def test_each_side_negotiates_alone(stage: Stage, route: Route, ours: str, theirs: str) -> None:
    backend = await stage.backend(revision=theirs)
    backend.result("echo", text("yes"))
    client = await stage.connect(route.path, revision=ours)
    assert client.server_info["protocolVersion"] == ours
    assert await client.call(route.name("echo")) == text("yes")
    assert backend.of("initialize")[0]["params"]["protocolVersion"] == NEWEST


@JUMPING
@pytest.mark.requirement("backend-unknown-version")
async def test_a_backend_of_an_unknown_revision_is_an_error_to_its_callers(stage: Stage) -> None:
    backend = await stage.backend()
    backend.answers("initialize", {"protocolVersion": "1.0", "capabilities": {}, "serverInfo": backend.info})
    client = stage.client("/mcp/alpha")
    with pytest.raises(RpcError, match="revision"):
        await client.initialize()


@pytest.mark.cells(TRANSPORTS)
@pytest.mark.requirement("initialized-before-requests", "ids-fresh-upstream", "pitfall-6")
async def test_a_backend_sees_the_handshake_before_any_request(stage: Stage, route: Route) -> None:
    """The connection's own checks assert the order, and that no id comes twice."""
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = await stage.connect(route.path)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(client.call, route.name("echo"))
    for connection in backend.connections:
        methods = [message.get("method") for message in connection.received]
        assert methods[:2] == ["initialize", "notifications/initialized"]


@JUMPING
@pytest.mark.requirement("dead-backend-at-initialize")
async def test_a_dead_backend_does_not_fail_the_handshake_of_an_aggregate(stage: Stage) -> None:
    good = await stage.backend("good")
    good.result("echo", text("yes"))
    bad = await stage.backend("bad")
    bad.refuses("initialize", INTERNAL, "broken")
    client = await stage.connect()
    assert await client.call("good__echo") == text("yes")


@JUMPING
@pytest.mark.requirement("dead-backend-at-initialize")
async def test_alone_a_backend_that_refuses_the_handshake_is_an_error_and_no_session(stage: Stage) -> None:
    bad = await stage.backend("bad")
    bad.refuses("initialize", INTERNAL, "broken")
    client = stage.client("/mcp/bad")
    call = client.start("initialize", client.introduction())
    error = await call.error()
    assert error.code == INTERNAL
    assert "broken" in error.message
    assert "mcp-session-id" not in call.exchange.headers


@pytest.mark.requirement("requests-before-initialized")
async def test_requests_before_the_initialized_notification_are_served(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = stage.client(route.path)
    await client.initialize()
    assert await client.request("ping") == {}
    assert await client.call(route.name("echo")) == text("yes")
    await client.notify("notifications/initialized")
    assert await client.call(route.name("echo")) == text("yes")


@pytest.mark.by_http
@pytest.mark.requirement("second-initialize")
async def test_a_second_initialize_is_refused_and_the_session_goes_on(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = await stage.connect(route.path)
    session = client.session
    with pytest.raises(HttpError) as refused:
        await client.start("initialize", client.introduction()).result()
    assert refused.value.status == 400
    assert refused.value.error["code"] == INVALID_REQUEST
    assert client.session == session
    assert await client.call(route.name("echo")) == text("yes")


@JUMPING
@pytest.mark.requirement("initialize-not-cancellable")
async def test_initialize_can_not_be_cancelled(stage: Stage) -> None:
    """Without the session id, which comes with its answer, nobody can even name it."""
    backend = await stage.backend()
    go = trio.Event()

    @backend.on("initialize")
    async def slow(request: Request) -> Message:
        await go.wait()
        return await backend.initialize(request)

    client = stage.client("/mcp/alpha")
    call = client.start("initialize", client.introduction(), id=5)
    connection = await backend.connection()
    await connection.wait_for("initialize")
    cancel = call.cancel()
    assert await cancel.head() == 400
    go.set()
    assert (await call.result())["serverInfo"] == backend.info
    assert not connection.of("notifications/cancelled")


@JUMPING
@pytest.mark.requirement("malformed-initialize")
@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        {"protocolVersion": 7, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
        {"capabilities": {}},
    ],
    ids=["no params", "empty", "number", "no version"],
)
async def test_a_malformed_initialize_is_an_error_and_no_session(stage: Stage, params: Message | None) -> None:
    await stage.backend()
    client = stage.client()
    call = client.start("initialize", params)
    error = await call.error()
    assert error.code == INVALID_PARAMS
    assert "mcp-session-id" not in call.exchange.headers
    assert await client.connect()


@JUMPING
@pytest.mark.requirement("backend-requests-before-ready")
async def test_a_backend_that_asks_during_the_handshake_is_answered_at_once(stage: Stage) -> None:
    backend = await stage.backend()
    seen: list[object] = []

    @backend.on("initialize")
    async def asks_first(request: Request) -> Message:
        seen.append(await request.ask("ping"))
        try:
            await request.ask("roots/list")
        except RpcError as error:
            seen.append(error.code)
        return await backend.initialize(request)

    await stage.connect("/mcp/alpha", capabilities={"roots": {}})
    assert seen == [{}, INVALID_REQUEST]


# Capabilities -----------------------------------------------------------------------------------------------


@JUMPING
@pytest.mark.requirement("capabilities-open")
async def test_unknown_capabilities_of_a_client_are_no_reason_to_fail(stage: Stage, route: Route) -> None:
    await stage.backend()
    strange = {"experimental": {"x/y": {}}, "future": [1, 2], "roots": {"listChanged": True, "more": None}}
    client = stage.client(route.path, capabilities=strange)
    assert await client.connect()


@JUMPING
@pytest.mark.requirement("extensions-survive", "pitfall-extensions")
async def test_extensions_of_a_client_reach_the_backend_with_their_settings(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    extensions = {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}
    client = await stage.connect(route.path, capabilities={"extensions": extensions})
    await client.call(route.name("echo"))
    assert backend.connections[-1].client["capabilities"]["extensions"] == extensions


@JUMPING
@pytest.mark.requirement("transparent-hello")
async def test_alone_a_backend_introduces_itself(stage: Stage) -> None:
    declared = {"tools": {}, "experimental": {"x/y": {"deep": [1]}}, "extensions": {"com.example/z": {"a": 1}}}
    backend = await stage.backend(capabilities=declared, instructions="read this")
    backend.info |= {"title": "The Alpha", "websiteUrl": "https://example.com/", "x-unknown": {"kept": True}}
    client = await stage.connect("/mcp/alpha")
    assert client.server_info["capabilities"] == declared
    assert client.server_info["serverInfo"] == backend.info
    assert client.server_info["instructions"] == "read this"


@JUMPING
@pytest.mark.requirement("tasks-not-declared")
async def test_tasks_are_declared_in_both_directions_where_both_ends_have_them(stage: Stage, route: Route) -> None:
    tasks: Message = {"requests": {"tools": {"call": {}}}}
    backend = await stage.backend(capabilities={"tools": {}, "tasks": tasks})
    task = {"taskId": "t", "status": "working", "createdAt": "x", "lastUpdatedAt": "x", "ttl": 1000}
    backend.result("echo", {"task": task})
    await (await stage.connect()).request("tools/list")
    runs: Message = {"requests": {"sampling": {"createMessage": {}}}}
    client = await stage.connect(route.path, capabilities={"sampling": {}, "tasks": runs})
    result = await client.request("tools/call", {"name": route.name("echo"), "task": {"ttl": 1000}})
    assert result["task"]["status"] == "working"
    assert backend.connections[-1].client["capabilities"]["tasks"] == runs
    assert backend.of("tools/call")[0]["params"]["task"] == {"ttl": 1000}
    assert (await client.refused("tasks/get", {"taskId": "another"})).code == INVALID_PARAMS
    assert (await client.refused("tasks/list")).code == METHOD_NOT_FOUND


@JUMPING
@pytest.mark.requirement("capability-absent")
async def test_a_method_of_a_feature_that_no_backend_has_is_not_found(stage: Stage) -> None:
    backend = await stage.backend(capabilities={"tools": {}})
    backend.result("echo", text("yes"))
    warm = await stage.connect()
    await warm.request("tools/list")
    client = await stage.connect()
    assert set(client.server_info["capabilities"]) == {"tools"}
    for method, params in {
        "prompts/list": {},
        "resources/list": {},
        "resources/subscribe": {"uri": "x:/"},
        "logging/setLevel": {"level": "info"},
    }.items():
        assert (await client.refused(method, params)).code == METHOD_NOT_FOUND


# The envelope -----------------------------------------------------------------------------------------------


@pytest.mark.cells(REVISION_BY_REVISION)
@pytest.mark.requirement("ids-typed", "pitfall-5")
async def test_a_number_and_the_same_digits_are_different_ids(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    go = {"number": trio.Event(), "digits": trio.Event()}

    @backend.tool("wait")
    async def wait(request: Request) -> Message:
        await go[request.arguments["which"]].wait()
        return text(request.arguments["which"])

    client = await stage.connect(route.path)
    number = client.start_call(route.name("wait"), id=1, which="number")
    digits = client.start_call(route.name("wait"), id="1", which="digits")
    go["digits"].set()
    assert await digits.result() == text("digits")
    go["number"].set()
    assert await number.result() == text("number")


@JUMPING
@pytest.mark.requirement("ids-typed", "pitfall-5")
@pytest.mark.parametrize("id", [0, -1, 2**53, "", "a b", "\u00e4\u2028", "x" * 500])
async def test_ids_are_echoed_as_they_came(stage: Stage, route: Route, id: int | str) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = await stage.connect(route.path)
    assert await client.start_call(route.name("echo"), id=id).result() == text("yes")


@pytest.mark.requirement("ids-fresh-upstream", "ids-not-forwarded", "pitfall-6")
async def test_the_same_id_of_two_clients_is_never_the_same_upstream(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("who")
    async def who(request: Request) -> Message:
        return text(request.arguments["name"])

    clients = [await stage.connect(route.path) for _ in range(3)]
    for _ in range(2):  # an id may be used again once it is answered, and still not upstream
        calls = [client.start_call(route.name("who"), id=7, name=str(n)) for n, client in enumerate(clients)]
        for n, call in enumerate(calls):
            assert await call.result() == text(str(n))


@pytest.mark.by_http
@pytest.mark.requirement("id-in-flight")
async def test_an_id_that_is_in_flight_is_refused_and_the_first_request_unharmed(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    go = trio.Event()

    @backend.tool("wait")
    async def wait(request: Request) -> Message:
        await go.wait()
        return text("first")

    client = await stage.connect(route.path)
    first = client.start_call(route.name("wait"), id=3)
    connection = await backend.connection(1)
    if route.name_prefix:
        await first.exchange.head()  # past the look-up of the name
    else:
        await connection.wait_for("tools/call")
    with pytest.raises(HttpError) as refused:
        await client.start_call(route.name("wait"), id=3).result()
    assert refused.value.status == 400
    assert refused.value.error["code"] == INVALID_REQUEST
    go.set()
    assert await first.result() == text("first")


@JUMPING
@pytest.mark.requirement("notifications-not-answered")
@pytest.mark.parametrize("method", ["notifications/unknown", "notifications/initialized", "tools/call", "x"])
async def test_a_notification_is_accepted_and_never_answered(stage: Stage, route: Route, method: str) -> None:
    backend = await stage.backend()
    backend.extensions |= {"notifications/unknown", "x"}
    client = await stage.connect(route.path)
    await client.notify(method, {"anything": 1})
    assert await client.request("ping") == {}


@JUMPING
@pytest.mark.requirement("unknown-method")
@pytest.mark.parametrize("method", ["no/such", "initialize2", "notifications/initialized", "tools/list/", ""])
async def test_an_unknown_method_is_not_found(stage: Stage, method: str) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = await stage.connect()
    assert (await client.refused(method, {"x": 1})).code == METHOD_NOT_FOUND
    assert await client.call("alpha__echo") == text("yes")


@JUMPING
@pytest.mark.requirement("unknown-method")
async def test_alone_a_backend_gets_what_only_it_knows(stage: Stage) -> None:
    backend = await stage.backend()
    backend.extensions |= {"com.example/ask", "notifications/com.example/tell"}
    backend.answers("com.example/ask", {"answer": 42})
    client = await stage.connect("/mcp/alpha")
    client.trusting = True
    assert await client.request("com.example/ask", {"x": [1]}) == {"answer": 42}
    await client.notify("notifications/com.example/tell", {"y": 2})
    connection = await backend.connection()
    told = await connection.wait_for("notifications/com.example/tell")
    assert told["params"] == {"y": 2}
