"""Of which era a message is, and what is refused before anything is done (2026-07-28 streamable-http)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.interaction.backend import Backend, text
from tests.interaction.cells import JUMPING, WITHOUT_TO_ANY, WITHOUT_TO_SESSIONS
from tests.interaction.codes import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
)
from tests.interaction.scripts import FORM, asking
from tests.interaction.stage import Era, Route, Stage
from tests.support import modern_rules as rules
from tests.support.modern_wire import ModernWire
from tests.support.schemas import MODERN, NEWEST
from tests.support.wire_client import Message, RpcError

FUTURE = "2031-01-01"


async def served(stage: Stage, era: Era = "modern") -> Backend:
    """A backend that has been used once, by a client of either era."""
    backend = await stage.backend(era=era)
    backend.result("echo", text("yes"))
    await stage.modern().request("tools/list")
    return backend


def called(client: ModernWire, **meta: Any) -> Message:
    """A call of the tool; `meta` replaces keys of its envelope, None takes one away."""
    message = client.request_message("tools/call", {"name": "alpha__echo", "arguments": {}})
    envelope: Message = message["params"]["_meta"]
    for key, value in meta.items():
        if value is None:
            del envelope[rules.PREFIX + key]
        else:
            envelope[rules.PREFIX + key] = value
    return message


async def refused(client: ModernWire, message: Any, status: int, code: int, **headers: str | None) -> RpcError:
    """The refusal of a message, and that the client goes on."""
    exchange = client.post(message, **headers)
    assert await exchange.head() == status, await exchange.whole()
    body = await exchange.json()
    assert body["error"]["code"] == code, body
    assert "mcp-session-id" not in exchange.headers
    rules.check_error(body["error"], status=status)
    return RpcError(body["error"])


@pytest.mark.requirement("pitfall-1", "version-fallback")
@pytest.mark.cells(WITHOUT_TO_ANY)
async def test_initialize_is_always_of_the_handshake_era(stage: Stage, route: Route) -> None:
    """Whatever it asks for, and even if it looks like a request of the other era."""
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    session = stage.client(route.path, revision=NEWEST)
    envelope = {rules.VERSION: MODERN, rules.CAPABILITIES: {}}
    server_info = await session.initialize(protocolVersion=MODERN, _meta=envelope)
    assert server_info["protocolVersion"] == NEWEST
    await session.notify("notifications/initialized")
    assert await session.call(route.name("echo")) == text("yes")


@JUMPING
@pytest.mark.requirement("pitfall-2")
async def test_a_message_says_by_itself_of_which_era_it_is(stage: Stage) -> None:
    backend = await served(stage)
    before = len(backend.of("tools/call"))
    client = stage.modern()
    # A modern body without the header; a modern header without the body; a version that nobody has, in both.
    await refused(client, called(client), 400, HEADER_MISMATCH, mcp_protocol_version=None)
    bare = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "alpha__echo"}}
    await refused(client, bare, 400, INVALID_PARAMS, mcp_protocol_version=MODERN)
    error = await refused(client, called(client, protocolVersion=FUTURE), 400, UNSUPPORTED_VERSION)
    assert error.data["requested"] == FUTURE
    assert error.data["supported"] == ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]
    # Headers of the other era over a modern body.
    await refused(client, called(client), 400, HEADER_MISMATCH, mcp_protocol_version=NEWEST)
    assert len(backend.of("tools/call")) == before
    # Without a header `initialize` opens a session, which its requests find again.
    session = await stage.connect()
    assert await session.call("alpha__echo") == text("yes")


@JUMPING
@pytest.mark.requirement("pitfall-2", "pitfall-12", "pitfall-posted-cancel", "bridge-posted-cancel")
@pytest.mark.parametrize("method", ["notifications/cancelled", "notifications/initialized", "notifications/no/such"])
async def test_a_posted_notification_is_accepted_and_dropped(stage: Stage, method: str) -> None:
    """Ids are not unique to a caller: honouring a cancel would let one client cancel another's work."""
    backend = await stage.backend(era="modern")
    running = []

    @backend.tool("slow")
    async def slow(request: Any) -> Message:
        running.append(request)
        request.progress(1)
        await backend.changed.park()
        return text("done")

    client, other = stage.modern(), stage.modern()
    call = client.start_call("alpha__slow", id=7, token="t")
    await call.message("notifications/progress")
    for one in (client, other):
        said = {"jsonrpc": "2.0", "method": method, "params": {"requestId": 7}}
        exchange = one.post(said, mcp_protocol_version=MODERN)
        assert (await exchange.head(), await exchange.whole()) == (202, b"")
    assert not running[0].cancelled.is_set()
    backend.changed.unpark_all()
    assert (await call.complete())["content"] == text("done")["content"]


@JUMPING
@pytest.mark.requirement("pitfall-14", "pitfall-2")
async def test_arrays_and_responses_are_refused(stage: Stage) -> None:
    client = stage.modern()
    await served(stage)
    for body in ([called(client)], [], {"jsonrpc": "2.0", "id": 1, "result": {}}):
        await refused(client, body, 400, INVALID_REQUEST, mcp_protocol_version=MODERN, mcp_method="tools/call")
    await refused(client, b"{", 400, -32700, mcp_protocol_version=MODERN)


@JUMPING
@pytest.mark.requirement("pitfall-2", "modern-envelope")
@pytest.mark.parametrize(
    "meta",
    [
        {"clientCapabilities": None},
        {"clientCapabilities": []},
        {"protocolVersion": 7},
        {"logLevel": "loud"},
    ],
    ids=str,
)
async def test_an_envelope_that_lacks_something_is_invalid_params(stage: Stage, meta: Mapping[str, Any]) -> None:
    backend = await served(stage)
    client = stage.modern()
    message = called(client, **meta)
    await refused(client, message, 400, INVALID_PARAMS, mcp_protocol_version=MODERN)
    assert not backend.of("tools/call")
    assert (await client.call("alpha__echo"))["resultType"] == "complete"


@JUMPING
@pytest.mark.requirement("modern-envelope")
async def test_a_client_need_not_say_who_it_is(stage: Stage) -> None:
    await served(stage)
    client = stage.modern()
    message = called(client, clientInfo=None)
    assert (await client.send(message).complete())["content"] == text("yes")["content"]


@pytest.mark.cells(WITHOUT_TO_ANY)
@pytest.mark.requirement("pitfall-4", "bridge-no-capability", "bridge-unknown-method")
async def test_what_is_refused_has_its_status_though_the_client_accepts_a_stream(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    backend.extensions |= {"no/such"}  # one server is asked
    asking(backend)
    client = stage.modern(route.path)
    for method in ("no/such", "ping", "resources/subscribe", "logging/setLevel", "tasks/list"):
        refused = client.send(client.request_message(method))
        assert (await refused.error()).code == METHOD_NOT_FOUND
        assert stage.cell.by == "channel" or refused.exchange.status == 404
    assert (await client.refused("tools/call", {"name": "none"})).code == INVALID_PARAMS
    if not backend.sessions:
        call = client.start_call(route.name("ask"), method="elicitation/create", params=FORM)
        backend.handlers["tools/call"] = lacks_capability
        error = await call.error()
        assert error.code == MISSING_CAPABILITY
        assert stage.cell.by == "channel" or call.exchange.status == 400
        assert error.data["requiredCapabilities"] == {"elicitation": {}}


async def lacks_capability(request: Any) -> Message:
    """A server's refusal of a client that can't be asked."""
    data: Message = {"requiredCapabilities": {"elicitation": {}}}
    raise RpcError({"code": MISSING_CAPABILITY, "message": "elicitation is needed", "data": data})


@JUMPING
@pytest.mark.requirement("modern-post-only", "bridge-resumption")
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_there_is_nothing_to_get_or_to_delete(stage: Stage, method: str) -> None:
    client = stage.modern()
    for extra in ({}, {"mcp-session-id": "x"}, {"last-event-id": "y"}):
        headers = {"accept": "text/event-stream", "mcp-protocol-version": MODERN, **extra}
        exchange = client.http.begin(method, "/mcp", list(headers.items()))
        assert await exchange.head() == 405
        assert exchange.headers["allow"] == "POST"


@pytest.mark.cells(WITHOUT_TO_SESSIONS[:1])
@pytest.mark.requirement("bridge-resumption")
async def test_a_session_id_and_an_event_id_mean_nothing(stage: Stage) -> None:
    backend = await served(stage, "legacy")
    session = await stage.connect(revision=NEWEST)
    client = stage.modern()
    message = called(client)
    call = client.send(message, mcp_session_id=session.session, last_event_id="1")
    assert (await call.complete())["content"] == text("yes")["content"]
    assert all(not headers.get("mcp-session-id") for headers in backend.headers)


@JUMPING
@pytest.mark.requirement("pitfall-13")
async def test_a_foreign_origin_is_refused(stage: Stage) -> None:
    backend = await served(stage)
    client = stage.modern()
    exchange = client.post(called(client), origin="https://evil.example")
    assert await exchange.head() == 403
    assert not backend.of("tools/call")


@JUMPING
@pytest.mark.tokens(ann="token-of-ann")
@pytest.mark.requirement("pitfall-29", "token-each-request")
async def test_every_request_brings_its_token(stage: Stage) -> None:
    backend = await stage.backend(era="modern")
    backend.result("echo", text("yes"))
    ann = stage.modern(token="token-of-ann")
    assert (await ann.call("alpha__echo"))["content"] == text("yes")["content"]
    for token in (None, "token-of-bob"):
        stranger = stage.modern(token=token)
        exchange = stranger.post(called(stranger))
        assert await exchange.head() == 401
        assert exchange.headers["www-authenticate"].startswith("Bearer")
    assert len(backend.of("tools/call")) == 1
    # No backend has seen the token: the stage looks at the end of every test.
