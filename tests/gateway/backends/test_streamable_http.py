"""The Streamable HTTP transport against backends on real sockets, good and hostile."""

import json
from dataclasses import replace

import pytest
import trio
import trio.testing

from actors.ports import (
    EventsMissed,
    FrameAccepted,
    FrameReceived,
    Listening,
    Positioned,
    RequestFailed,
    Resumable,
    SessionLost,
    TransportClosed,
)
from actors.protocol.codec import decode_frame
from actors.protocol.table import BackendSpec, HttpTarget
from gateway.backends import http_listener
from gateway.backends.http_call import HttpLimits
from gateway.backends.http_connector import HttpConnector
from gateway.wire.lines import FRAMES_PER_TURN
from tests.support.patience import PATIENCE

LIMITS = HttpLimits(message_bytes=2000, refusal=0.5, linger=0.2, flush=0.2, delete=0.2, accept=30)
PING = b'{"jsonrpc":"2.0","method":"notifications/x"}'


def call(id: int | str, method: str = "tools/call") -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method}).encode()


def received(frame: bytes, related: int | str | None = None, cursor: str | None = None) -> FrameReceived:
    """What comes up: of an answer it is known what it says."""
    return FrameReceived(frame, related, cursor, read=decode_frame(frame) if related is not None else None)


def done(id: int | str, result: object = None) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "result": result or {}}).encode()


@pytest.fixture
async def connect(backend, events, log, nursery):
    connectors = []

    def quietly(event):
        if not isinstance(event, Listening):
            events(event)

    def start(
        *,
        limits=LIMITS,
        url=None,
        headers=(),
        run=True,
        handler=None,
        session=None,
        emit=quietly,
        modern=False,
        redact=str,
    ):
        """`session`: as if the handshake were over, with this id. That it listens is told if `emit` is given."""
        connectors.append(HttpConnector(log, nursery, limits=limits, redact=redact))
        spec = BackendSpec("demo", HttpTarget(url or backend.url, headers))
        transport = connectors[-1].connect(spec, emit, modern)
        if handler is not None:
            backend.handlers = [handler]
        if session is not None:
            transport.resume(Resumable(session, "2025-11-25", None))
        if run:
            nursery.start_soon(transport.run)
        return transport

    with trio.fail_after(PATIENCE):
        yield start
    for connector in connectors:
        connector.close()


# The handshake, headers


async def test_session_id_and_version_go_with_every_message_after_the_handshake(connect, backend, events):
    async def handle(request):
        if request.method == "DELETE":
            await request.answer(200)
        elif request.method == "GET":
            await request.answer(405)
        elif request.id is None:
            await request.accepted()
        elif request.message["method"] == "initialize":
            await request.result({}, Mcp_Session_Id="s-1")
        else:
            await request.result({}, Mcp_Session_Id="other")

    headers = (("Authorization", "Bearer t"), ("Accept", "text/html"), ("mcp-session-id", "forged"), ("Host", "x"))
    transport = connect(handler=handle, headers=headers)
    transport.send(call(1, "initialize"), id=1)
    await events.next(FrameReceived)
    transport.negotiated("2025-11-25")
    transport.send(PING, tag=5)
    assert await events.next() == FrameAccepted(5)
    transport.listen()
    transport.send(call(2), id=2)
    await events.next(FrameReceived)
    transport.send(call(3), id=3)
    await events.next(FrameReceived)
    await backend.wait_requests(5)
    transport.close()
    assert await events.next() == TransportClosed("closed", "demo was closed")
    first, *rest = backend.requests
    assert {request.method for request in rest} == {"POST", "GET", "DELETE"}
    assert first.headers["accept"] == "application/json, text/event-stream"
    assert first.headers["content-type"] == "application/json"
    assert "mcp-session-id" not in first.headers
    assert "mcp-protocol-version" not in first.headers
    for request in rest:
        assert request.headers["mcp-session-id"] == "s-1"
        assert request.headers["mcp-protocol-version"] == "2025-11-25"
    for request in backend.requests:
        assert request.headers["authorization"] == "Bearer t"
        assert request.headers["host"].startswith("127.0.0.1:")
        assert "accept-encoding" not in request.headers
        assert request.headers["accept"] == {
            "POST": "application/json, text/event-stream",
            "GET": "text/event-stream",
        }.get(request.method, "*/*")


async def test_a_server_without_sessions_is_used_without_session_id(connect, backend, events):
    transport = connect(handler=lambda request: request.result({}))
    for id in (1, 2):
        transport.send(call(id), id=id)
        await events.next(FrameReceived)
        transport.negotiated("2025-11-25")
    assert all("mcp-session-id" not in request.headers for request in backend.requests)
    transport.close()
    await events.next(TransportClosed)
    assert [request.method for request in backend.requests] == ["POST", "POST"]


async def test_a_session_id_that_cannot_be_sent_back_fails_the_request(connect, backend, events):
    connect(handler=lambda request: request.result({}, Mcp_Session_Id="a b")).send(call(1), id=1)
    assert (await events.next()).reason == "protocol"


@pytest.mark.parametrize(
    ("url", "headers"),
    [("htp://x", ()), ("http://u:secret@x/", ()), ("http://x/", (("Authorization", "secret\r\nX: 1"),))],
)
async def test_a_configuration_that_cannot_work_closes_the_transport_and_shows_no_secret(connect, events, url, headers):
    transport = connect(url=url, headers=headers)
    transport.send(call(1), id=1)
    failed, closed = await events.next(), await events.next()
    assert (failed.executed, closed.reason) == ("no", "config")
    assert "secret" not in repr(events.all)


# Outcomes of a request


async def test_a_json_answer_is_one_frame_related_to_its_request(connect, backend, events):
    connect(handler=lambda request: request.result({"a": 1})).send(call("x"), id="x")
    assert await events.next() == received(done("x", {"a": 1}), "x")
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert len(events.all) == 1


async def test_each_event_is_a_frame_and_the_stream_ends_with_the_response(connect, backend, events):
    async def handle(request):
        await request.events()
        await request.event(id="p-1", data=b"")
        await request.event(PING, id="p-2")
        await request.raw(b"5\r\n: hi\n\r\n")
        await request.event(b"{}", event="other")
        await request.event(done(request.id))
        await request.end()

    transport = connect(handler=handle)
    for id in (1, 2):
        transport.send(call(id), id=id)
        assert await events.next() == Positioned(id, "p-1")
        assert await events.next() == received(PING, id, "p-2")
        assert await events.next() == received(done(id), id, "p-2")
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert backend.connections == 1


async def test_events_may_come_byte_by_byte(connect, backend, events):
    text = b"retry: 5\r\n\r\ndata: " + PING + b"\r\rid: 7\ndata: " + done(1)[:18] + b"\ndata: " + done(1)[18:] + b"\n\n"

    async def handle(request):
        await request.events()
        for byte in text:
            await request.raw(b"1\r\n%c\r\n" % byte)
        await request.end()

    connect(handler=handle).send(call(1), id=1)
    assert await events.next() == received(PING, 1)
    assert json.loads((await events.next()).frame) == json.loads(done(1))


async def test_a_flood_of_events_lets_every_other_task_have_its_turn(connect, backend, events):
    async def handle(request):
        await request.answer(200, b"data: {}\n\n" * 5000, "text/event-stream")

    connect(handler=handle).send(call(1), id=1)
    assert await events.longest_run(5000) <= 2 * FRAMES_PER_TURN  # the order within a turn varies


async def test_a_stream_that_goes_on_after_the_response_is_cut_after_a_moment(connect, backend, events):
    async def handle(request):
        await request.events()
        await request.event(done(request.id))
        await request.event(PING)
        assert await request.stream.receive_some() == b""
        return "cut"

    connect(handler=handle).send(call(1), id=1)
    assert await events.next() == received(done(1), 1)
    assert await events.next() == received(PING, 1)
    await backend.wait_closed()
    assert [type(event) for event in events.all] == [FrameReceived, FrameReceived]


async def test_a_second_answer_goes_up_as_well_and_harms_nothing(connect, backend, events):
    async def handle(request):
        await request.events()
        await request.event(done(request.id))
        await request.event(done(request.id))
        await request.end()

    connect(handler=handle).send(call(1), id=1)
    assert [await events.next(), await events.next()] == [received(done(1), 1)] * 2


@pytest.mark.parametrize(
    ("status", "body", "kind", "reason", "executed"),
    [
        (202, b"", "application/json", "protocol", "unknown"),
        (200, b"<html>", "text/html", "protocol", "unknown"),
        (200, b"", "application/json", "no_response", "unknown"),
        (204, b"", "application/json", "no_response", "unknown"),
        (200, b"x" * 3000, "application/json", "too_large", "unknown"),
        (401, b"", "text/plain", "http_status", "no"),
        (403, b"go away", "text/plain", "http_status", "unknown"),
        (404, b"", "text/plain", "http_status", "no"),
        (307, b"", "text/plain", "http_status", "no"),
        (400, b'{"error":"nope"}', "application/json", "http_status", "unknown"),
        (500, b"x" * 2_000_000, "text/plain", "http_status", "unknown"),
        (503, b'{"jsonrpc":"2.0","id":1,"result":{}}', "application/json", "http_status", "unknown"),
    ],
)
async def test_an_answer_that_is_none_fails_the_request(connect, backend, events, status, body, kind, reason, executed):
    connect(handler=lambda request: request.answer(status, body, kind)).send(call(1), id=1)
    failed = await events.next(RequestFailed)
    assert (failed.id, failed.reason, failed.executed) == (1, reason, executed)
    assert failed.status == (status if reason == "http_status" or status == 202 or kind == "text/html" else None)


@pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])
@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (403, b"Access is only allowed at localhost:3103\n", ": Access is only allowed at localhost:3103"),
        (400, b'{"error": "No key:\n  X-Api-Key"}', ': {"error": "No key: X-Api-Key"}'),
        (500, b"x" * 5000, ": " + "x" * 200),
        (403, b"not \x1b[31m\xff hush-hush", ": not [31m\ufffd [hidden]"),
        (403, b"x" * 195 + b" hush-hush", ": " + "x" * 195 + " [hid"),
        (403, b"<html>Forbidden</html>", None),
        (404, b" \n", None),
        (401, b"the token is not good", None),
        (503, b'{"jsonrpc":"2.0","id":1,"result":{}}', None),
    ],
)
async def test_what_a_refusal_says_is_told_to_operators_alone(connect, backend, events, modern, status, body, said):
    def hush(text):
        return text.replace("hush-hush", "[hidden]")

    transport = connect(handler=lambda request: request.answer(status, body, "text/plain"), modern=modern, redact=hush)
    transport.send(call(1), id=1, headers=(("Mcp-Method", "tools/list"),) if modern else ())
    failed = await events.next(RequestFailed)
    assert failed.detail == ("" if said is None else failed.message + said)
    assert (said or "x" * 200) not in failed.message


@pytest.mark.parametrize("status", [400, 403, 404, 422, 500, 503])
@pytest.mark.parametrize("id", [None, 1, "server-error"])
async def test_a_refusal_with_a_json_rpc_error_is_the_answer(connect, backend, events, status, id):
    connect(handler=lambda request: request.error(status, -32602, id)).send(call(1), id=1)
    received = await events.next()
    assert (received.related, json.loads(received.frame)["error"]["code"]) == (1, -32602)


async def test_a_challenge_is_never_passed_on(connect, backend, events, log):
    async def handle(request):
        body = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"token t0ken"}}'
        await request.answer(401, body, WWW_Authenticate='Bearer resource_metadata="https://x"')

    connect(handler=handle, headers=(("Authorization", "Bearer t0ken"),)).send(call(1), id=1)
    failed = await events.next()
    assert (failed.reason, failed.status, failed.executed) == ("http_status", 401, "no")
    assert "t0ken" not in repr(events.all) + repr(log.lines)
    assert "resource_metadata" not in repr(events.all) + repr(log.lines)


async def test_a_refused_connection_fails_only_its_request(connect, backend, events):
    with trio.socket.socket() as unused:
        await unused.bind(("127.0.0.1", 0))
        transport = connect(url=f"http://127.0.0.1:{unused.getsockname()[1]}/")
        for id in (1, 2):
            transport.send(call(id), id=id)
            failed = await events.next()
            assert (failed.id, failed.reason, failed.executed) == (id, "connection_refused", "no")
    assert events.of(TransportClosed) == []


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["nothing", "not http", "half a body", "half an event", "broken chunk"],
)
async def test_a_connection_that_breaks_fails_the_request_as_perhaps_executed(connect, backend, events, answer):
    async def handle(request):
        await request.raw(answer)
        return "cut"

    backend.handlers = [handle]
    connect().send(call(1), id=1)
    failed = await events.next()
    assert (failed.id, failed.executed) == (1, "unknown")
    await trio.testing.wait_all_tasks_blocked(0.02)
    assert len(backend.requests) == 1


async def test_an_event_over_the_limit_fails_its_request_and_no_other(connect, backend, events):
    async def handle(request):
        if request.id == 2:
            await request.result({})
            return
        await request.events()
        await request.raw(b"fffff\r\nid: 1\ndata: " + b"x" * 5000)

    transport = connect(handler=handle)
    transport.send(call(1), id=1)
    assert (await events.next()).reason == "too_large"
    transport.send(call(2), id=2)
    assert await events.next() == received(done(2), 2)


async def test_a_stream_that_ends_without_response_and_without_event_id_fails_the_request(connect, backend, events):
    async def handle(request):
        await request.events()
        await request.event(PING)
        await request.end()

    connect(handler=handle).send(call(1), id=1)
    assert await events.next() == received(PING, 1)
    failed = await events.next()
    assert (failed.reason, failed.executed) == ("no_response", "unknown")


# Broken streams


async def test_a_stream_broken_after_an_event_id_is_resumed_by_get_until_the_response(connect, backend, events):
    async def begin(request):
        await request.events()
        await request.event(id="a-1", data=b"", retry=10)
        return "cut"

    async def go_on(request):
        await request.events()
        await request.event(PING, id="a-2")
        return "cut"

    async def busy(request):
        await request.answer(503)

    async def finish(request):
        await request.events()
        await request.event(done(1))
        await request.end()

    transport = connect(session="s", run=False)
    backend.handlers = [begin, go_on, busy, finish]
    transport.send(call(1), id=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.run)
        assert await events.next() == Positioned(1, "a-1")
        assert await events.next() == received(PING, 1, "a-2")
        assert await events.next() == received(done(1), 1, "a-2")
        transport.close()
    post, *gets = backend.requests
    assert post.method == "POST"
    assert [get.headers.get("last-event-id") for get in gets[:3]] == ["a-1", "a-2", "a-2"]
    assert {get.headers["mcp-session-id"] for get in gets} == {"s"}
    assert len(events.all) == 4


async def test_the_time_that_the_server_asks_for_is_waited(connect, backend, events):
    async def begin(request):
        await request.events()
        await request.event(id="1", retry=400)
        await request.end()

    async def finish(request):
        await request.events()
        await request.event(done(1))
        await request.end()

    transport = connect(run=False)
    backend.handlers = [begin, finish]
    transport.send(call(1), id=1)
    async with trio.open_nursery() as nursery:
        began = trio.current_time()
        nursery.start_soon(transport.run)
        await events.next(FrameReceived)
        assert trio.current_time() - began >= 0.4
        nursery.cancel_scope.cancel()


async def test_attempts_to_resume_are_bounded(connect, backend, events):
    async def handle(request):
        if request.method == "POST":
            await request.events()
            await request.event(id="1", retry=1)
        return "cut"

    transport = connect(handler=handle, limits=replace(LIMITS, resumes=2))
    transport.send(call(1), id=1)
    failed = await events.next(RequestFailed)
    assert (failed.reason, failed.executed) == ("no_response", "unknown")
    assert [request.method for request in backend.requests] == ["POST", "GET", "GET"]


@pytest.mark.parametrize("status", [400, 404, 405])
async def test_a_refused_resume_fails_the_request_and_a_404_tells_of_the_lost_session(connect, backend, events, status):
    async def handle(request):
        if request.method == "GET":
            await request.answer(status)
            return None
        await request.events()
        await request.event(id="1", retry=1)
        return "cut"

    connect(handler=handle, session="s").send(call(1), id=1)
    failed = await events.next(RequestFailed)
    assert (failed.reason, failed.executed, failed.status) == ("not_resumable", "unknown", status)
    if status == 404:
        assert await events.next() == SessionLost(None)


async def test_a_fault_in_one_exchange_ends_neither_the_others_nor_the_stream(connect, backend, events, log):
    """Of a call, of a notification, and on the GET stream."""
    going, opened = trio.Event(), []

    async def handle(request):
        if request.method == "GET":
            opened.append(request.headers.get("last-event-id"))
            await request.events()
            await request.event(PING if len(opened) == 1 else done("later"), id=f"e-{len(opened)}")
            await trio.sleep_forever()
        elif request.method == "DELETE" or request.id is None:
            await request.accepted()
        else:
            if request.id == 1:
                await going.wait()
            await request.result({})

    def clumsy(event):
        bad = received(PING, None, "e-1"), received(done(2), 2), FrameAccepted(7)
        if event in bad:
            raise RuntimeError("a bug")
        events(event)

    transport = connect(handler=handle, emit=clumsy, session="s")
    transport.send(call(1), id=1)
    await backend.wait_requests()
    transport.send(call(2), id=2)
    failed = await events.next()
    assert (type(failed), failed.id, failed.executed) == (RequestFailed, 2, "unknown")
    transport.listen()
    await events.next(EventsMissed)
    assert (await events.next(FrameReceived)).frame == done("later")
    assert opened == [None, None]
    going.set()
    assert await events.next(FrameReceived) == received(done(1), 1)
    assert [line["what"] for line in log.of("backend_exchange_crashed")] == ["call", "stream"]
    transport.send(PING, tag=7)
    assert (await events.next(TransportClosed)).reason == "not_accepted"


@pytest.mark.parametrize("id", ["\x01evil", "evil\x7f", " edge", "edge ", "\tedge", "x" * 1025])
async def test_an_event_id_that_no_header_can_carry_is_not_used(connect, backend, events, id):
    async def handle(request):
        await request.events()
        await request.event(id=id)
        return "cut"

    connect(handler=handle).send(call(1), id=1)
    assert (await events.next(RequestFailed)).reason == "no_response"
    assert events.of(Positioned) == [Positioned(1, None)]


# Lost sessions


@pytest.mark.parametrize("body", [b"", b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"x"}}'])
async def test_a_404_with_a_session_id_is_a_lost_session_whatever_the_body(connect, backend, events, body):
    connect(handler=lambda request: request.answer(404, body), session="s").send(call(1), id=1)
    assert await events.next() == SessionLost(1)


async def test_a_notification_finds_out_too(connect, backend, events):
    connect(handler=lambda request: request.answer(404), session="s").send(PING)
    assert await events.next() == SessionLost(None)


async def test_a_400_of_a_session_that_worked_is_taken_for_its_loss_once(connect, backend, events):
    transport = connect(handler=lambda request: request.error(400, -32000), session="s")
    transport.send(call(1), id=1)
    assert await events.next() == SessionLost(1)
    transport.restart()
    transport.resume(Resumable("s2", "2025-11-25", None))
    transport.send(call(2), id=2)
    assert json.loads((await events.next()).frame)["error"]["code"] == -32000
    backend.handlers = [lambda request: request.result({})]
    transport.send(call(3), id=3)
    await events.next(FrameReceived)
    backend.handlers = [lambda request: request.answer(400, b"Bad Request", "text/plain")]
    transport.send(call(4), id=4)
    assert await events.next() == SessionLost(4)


async def test_a_400_with_another_error_or_before_the_session_worked_is_the_answer(connect, backend, events):
    transport = connect(handler=lambda request: request.error(400, -32602), session="s")
    transport.send(call(1), id=1)
    assert json.loads((await events.next()).frame)["error"]["code"] == -32602
    begun = connect(handler=lambda request: request.result({}, **{"Mcp-Session-Id": "s2"}))
    begun.send(call(1, "initialize"), id=1)
    await events.next(FrameReceived)
    begun.negotiated("2025-11-25")
    backend.handlers = [lambda request: request.error(400, -32000)]
    begun.send(call(2), id=2)
    assert json.loads((await events.next()).frame)["error"]["code"] == -32000
    assert backend.requests[-1].headers["mcp-session-id"] == "s2"


async def test_a_restart_drops_the_old_session_and_all_that_belongs_to_it(connect, backend, events):
    async def handle(request):
        if request.method == "GET":
            await request.events()
            await trio.sleep_forever()
        if request.message["method"] == "hang":
            await trio.sleep_forever()
        await request.result({}, Mcp_Session_Id="s2")

    transport = connect(handler=handle, session="s1", limits=replace(LIMITS, concurrent=1))
    transport.listen()
    transport.send(call(1, "hang"), id=1)
    transport.send(call(2), id=2)
    await backend.wait_requests(2)
    transport.restart()
    transport.send(call(3, "initialize"), id=3)
    assert await events.next() == received(done(3), 3)
    transport.negotiated("2025-06-18")
    transport.send(call(4), id=4)
    assert await events.next() == received(done(4), 4)
    assert "mcp-session-id" not in backend.requests[2].headers
    assert backend.requests[3].headers["mcp-session-id"] == "s2"
    assert len(events.all) == 2


async def test_notifications_that_a_restart_drops_are_logged(connect, backend, events, log):
    transport = connect(handler=lambda request: trio.sleep_forever(), session="s1")
    for _ in range(3):
        transport.send(PING)
    await backend.wait_requests(1)
    transport.restart()
    [line] = log.of("backend_message_dropped")
    assert line == {"backend": "demo", "why": "the session was reset", "messages": 2}


# Order, bounds, the end


async def test_notifications_and_responses_are_posted_in_order_one_after_the_other(connect, backend, events):
    seen = []

    async def handle(request):
        seen.append(request.message["n"])
        await trio.sleep(0.02 if request.message["n"] == 0 else 0)
        await request.accepted()

    transport = connect(handler=handle)
    for n in range(5):
        transport.send(json.dumps({"jsonrpc": "2.0", "method": "x", "n": n}).encode(), tag=n)
    assert [(await events.next()).tag for _ in range(5)] == [0, 1, 2, 3, 4]
    assert seen == [0, 1, 2, 3, 4]


async def test_a_refused_notification_is_logged_and_the_next_goes_out(connect, backend, events, log):
    transport = connect()
    backend.handlers = [lambda request: request.answer(400), lambda request: request.accepted()]
    transport.send(PING)
    transport.send(PING, tag=1)
    assert await events.next() == FrameAccepted(1)
    assert log.of("backend_post_refused") == [{"backend": "demo", "why": "HTTP 400, unknown"}]


async def test_a_refusal_that_the_owner_waits_for_ends_the_transport(connect, backend, events):
    connect(handler=lambda request: request.answer(400)).send(PING, tag=1)
    assert (await events.next()).reason == "not_accepted"


async def test_a_notification_that_is_never_accepted_holds_the_others_up_for_a_bounded_time(connect, backend, events):
    async def stall(request):
        await trio.sleep_forever()

    transport = connect(limits=replace(LIMITS, accept=0.1))
    backend.handlers = [stall, lambda request: request.accepted()]
    transport.send(PING)
    transport.send(PING, tag=1)
    assert await events.next() == FrameAccepted(1)


async def test_requests_beyond_the_bound_wait_and_beyond_that_fail_unexecuted(connect, backend, events):
    go = trio.Event()

    async def handle(request):
        await go.wait()
        await request.result({})

    transport = connect(handler=handle, limits=replace(LIMITS, concurrent=2, waiting=2))
    await trio.testing.wait_all_tasks_blocked(0.01)
    for id in range(6):
        transport.send(call(id), id=id)
    assert [(event.id, event.executed) for event in events.of(RequestFailed)] == [(4, "no"), (5, "no")]
    transport.forget(3)
    go.set()
    assert sorted([(await events.next(FrameReceived)).related for _ in range(3)]) == [0, 1, 2]
    await trio.testing.wait_all_tasks_blocked(0.02)
    assert len(backend.requests) == 3


async def test_a_forgotten_request_frees_its_place_and_is_never_heard_of(connect, backend, events):
    async def handle(request):
        if request.id == 1:
            await trio.sleep_forever()
        await request.result({})

    transport = connect(handler=handle, limits=replace(LIMITS, concurrent=1))
    transport.send(call(1), id=1)
    await backend.wait_requests()
    transport.send(call(2), id=2)
    transport.forget(1)
    transport.forget(99)
    assert await events.next() == received(done(2), 2)
    assert len(events.all) == 1


async def test_a_request_forgotten_before_there_is_a_connection_is_not_sent(connect, backend, events):
    transport = connect(handler=lambda request: request.result({}))
    await trio.testing.wait_all_tasks_blocked()
    transport.send(call(1), id=1)
    transport.forget(1)
    transport.send(call(2), id=2)
    assert await events.next() == received(done(2), 2)
    assert [request.id for request in backend.requests] == [2]


async def test_a_request_that_was_sent_at_once_and_forgotten_is_never_heard_of(connect, backend, events):
    transport = connect(handler=lambda request: request.result({}))
    transport.send(call(1), id=1)
    await events.next(FrameReceived)
    transport.send(call(2), id=2)
    transport.forget(2)
    transport.send(call(3), id=3)
    assert await events.next() == received(done(3), 3)
    assert len(events.all) == 2
    assert backend.connections == 2  # what answers the second is on a connection that nobody uses again


async def test_a_cancelled_run_says_closed_and_leaves_no_connection(connect, backend, events):
    async def handle(request):
        await request.stream.receive_some()  # until the connection is closed

    transport = connect(handler=handle, run=False, limits=replace(LIMITS, concurrent=1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.run)
        transport.send(call(1), id=1)
        transport.send(call(2), id=2)
        await backend.wait_requests()
        nursery.cancel_scope.cancel()
    assert [type(event) for event in events.all] == [RequestFailed, TransportClosed]
    assert (events.all[0].id, events.all[0].executed) == (2, "no")
    await backend.wait_closed()
    assert (backend.connections, backend.closed) == (1, 1)


async def test_close_sends_what_waits_and_gives_up_on_a_backend_that_stalls(connect, backend, events):
    async def handle(request):
        if request.method == "DELETE":
            await trio.sleep_forever()
        await request.accepted()

    transport = connect(handler=handle, session="s")
    await trio.testing.wait_all_tasks_blocked(0.01)
    transport.send(PING)
    transport.close()
    transport.close()
    transport.send(call(1), id=1)
    assert [type(await events.next()) for _ in range(2)] == [RequestFailed, TransportClosed]
    assert [request.method for request in backend.requests] == ["POST", "DELETE"]


# The GET stream


@pytest.fixture
def quickly_quiet(monkeypatch):
    monkeypatch.setattr(http_listener, "QUIET", 0.01)


async def at_rest(task: trio.lowlevel.Task) -> None:
    """Until a connection has no task but its own."""
    await trio.testing.wait_all_tasks_blocked()
    while task.child_nurseries:
        await trio.sleep(0.001)


async def test_the_get_stream_brings_unrelated_frames_and_comes_back_with_its_last_event_id(connect, backend, events):
    async def first(request):
        await request.events()
        await request.event(PING, id="g-1", retry=1)
        return "cut"

    async def second(request):
        await request.events()
        await request.event(PING)
        await trio.sleep_forever()

    transport = connect(session="s")
    await trio.testing.wait_all_tasks_blocked(0.01)
    backend.handlers = [first, second]
    transport.listen()
    transport.listen()
    assert [await events.next(), await events.next()] == [received(PING, None, "g-1")] * 2
    assert [request.headers.get("last-event-id") for request in backend.requests] == [None, "g-1"]


async def test_a_get_stream_on_which_nothing_is_said_has_no_task(connect, backend, events, quickly_quiet):
    said = [trio.Event() for _ in range(3)]

    async def handle(request):
        await request.events()
        for event in said:
            await event.wait()
            await request.event(PING, id="g")
        await request.stream.receive_some()  # until the connection is closed
        return "cut"

    transport = connect(handler=handle, session="s", run=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.run)
        [task] = nursery.child_tasks
        transport.listen()
        await backend.wait_requests()
        for event in said:
            await at_rest(task)
            event.set()
            assert await events.next() == received(PING, None, "g")
        await at_rest(task)
        nursery.cancel_scope.cancel()
    await backend.wait_closed()


@pytest.mark.parametrize("rests", [True, False])
@pytest.mark.parametrize("end", ["close", "restart"])
async def test_a_get_stream_is_given_up_with_its_session(connect, backend, events, nursery, quickly_quiet, end, rests):
    async def handle(request):
        if request.method == "GET":
            await request.events()
            await request.stream.receive_some()  # until the connection is closed
            return "cut"
        return await request.accepted()

    transport = connect(handler=handle, session="s", emit=events, run=False)
    nursery.start_soon(transport.run)
    [task] = [task for task in nursery.child_tasks if task.name.endswith("StreamableHttpTransport.run")]
    transport.listen()
    assert await events.next() == Listening()
    if rests:
        await at_rest(task)
    getattr(transport, end)()
    await backend.wait_closed()
    if end == "restart":
        transport.listen()
        assert await events.next() == Listening()
        transport.close()
    assert isinstance(await events.next(), TransportClosed)


async def test_a_flood_on_the_get_stream_lets_every_other_task_have_its_turn(connect, backend, events, quickly_quiet):
    async def handle(request):
        await request.events()
        await trio.sleep(0.1)  # the stream rests meanwhile
        flood = 2000 * (b"data: " + PING + b"\n\n")
        await request.raw(b"%x\r\n%b\r\n" % (len(flood), flood))
        await trio.sleep_forever()

    connect(handler=handle, session="s").listen()
    assert await events.longest_run(2000) <= 2 * FRAMES_PER_TURN


async def test_a_stream_that_rests_is_woken_by_comments_and_goes_on_to_rest(connect, backend, events, quickly_quiet):
    said = trio.Event()

    async def handle(request):
        await request.events()
        for _ in range(3):
            await trio.sleep(0.05)
            await request.raw(b"5\r\n: k\n\n\r\n")
        said.set()
        await request.stream.receive_some()  # until the connection is closed
        return "cut"

    transport = connect(handler=handle, session="s", run=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.run)
        [task] = nursery.child_tasks
        transport.listen()
        await said.wait()
        await at_rest(task)
        assert not events.all
        nursery.cancel_scope.cancel()


async def test_a_fault_of_ours_as_a_stream_wakes_up_is_told_and_the_stream_comes_back(
    connect, backend, events, log, nursery, quickly_quiet, monkeypatch
):
    said = trio.Event()

    async def handle(request):
        if request.method != "GET":
            return await request.accepted()
        await request.events()
        await said.wait()
        await request.event(PING, id="g")
        await request.stream.receive_some()  # until the connection is closed
        return "cut"

    transport = connect(handler=handle, session="s", emit=events, run=False)
    nursery.start_soon(transport.run)
    [task] = [task for task in nursery.child_tasks if task.name.endswith("StreamableHttpTransport.run")]
    transport.listen()
    assert await events.next() == Listening()
    await at_rest(task)

    take_events = http_listener.take_events

    async def broken(*_):
        monkeypatch.setattr(http_listener, "take_events", take_events)
        raise RuntimeError("broken")

    monkeypatch.setattr(http_listener, "take_events", broken)
    said.set()
    assert await events.next() == EventsMissed()
    assert [line["what"] for line in log.of("backend_exchange_crashed")] == ["stream"]
    assert await events.next() == received(PING, None, "g")
    transport.close()
    assert isinstance(await events.next(), TransportClosed)


async def test_that_it_listens_is_said_when_the_head_of_the_stream_has_come(connect, backend, events):
    head = trio.Event()

    async def late(request):
        await head.wait()
        await request.events()
        await trio.sleep_forever()

    transport = connect(emit=events)
    await trio.testing.wait_all_tasks_blocked(0.01)
    backend.handlers = [late]
    transport.listen()
    await backend.wait_requests()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert events.all == []
    head.set()
    assert await events.next() == Listening()


@pytest.mark.parametrize("status", [405, 404, 401, 429, 500, 501])
async def test_that_there_is_nothing_to_listen_to_is_said_at_once(connect, backend, events, status):
    transport = connect(handler=lambda request: request.answer(status), emit=events)
    await trio.testing.wait_all_tasks_blocked(0.01)
    transport.listen()
    assert await events.next() == Listening()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert events.all == [Listening()]


@pytest.mark.parametrize("fails", ["cut", 503], ids=["cut", "503"])
async def test_a_stream_that_is_there_at_a_later_attempt_may_have_missed_something(connect, backend, events, fails):
    async def first(request):
        return await request.answer(fails) if isinstance(fails, int) else fails

    async def there(request):
        await request.events()
        await request.event(PING, retry=1)
        return "cut"

    async def again(request):
        await request.events()
        await trio.sleep_forever()

    transport = connect(session="s", emit=events)
    await trio.testing.wait_all_tasks_blocked(0.01)
    backend.handlers = [first, there, again]
    transport.listen()
    assert [await events.next() for _ in range(3)] == [Listening(), EventsMissed(), received(PING)]
    await backend.wait_requests(3)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert events.all.count(EventsMissed()) == 1


async def test_it_is_said_again_of_the_stream_of_a_new_session(connect, backend, events):
    transport = connect(handler=lambda request: request.answer(405), emit=events)
    await trio.testing.wait_all_tasks_blocked(0.01)
    transport.listen()
    assert await events.next() == Listening()
    transport.restart()
    transport.listen()
    assert await events.next() == Listening()


async def called_after_a_handshake(connect, events, streamed):
    """A handshake, a GET stream that is `streamed`, and then a call."""

    async def handle(request):
        if request.method == "GET":
            await streamed(request)
        elif request.id is None:
            await request.accepted()
        else:
            await request.result({})

    transport = connect(handler=handle, emit=events)
    transport.send(call(1, "initialize"), id=1)
    await events.next(FrameReceived)
    transport.negotiated("2025-11-25")
    transport.send(PING, tag=5)
    await events.next(FrameAccepted)
    transport.listen()
    await events.next(Listening)
    transport.send(call(2), id=2)
    await events.next(FrameReceived)


async def test_the_stream_goes_over_the_connection_of_the_handshake(connect, backend, events):
    async def streamed(request):
        await request.events()
        await trio.sleep_forever()

    await called_after_a_handshake(connect, events, streamed)
    first, accepted, stream, other = (request.stream for request in backend.requests)
    assert first is accepted is stream
    assert other is not stream


@pytest.mark.parametrize("body", [b"", b"no such method"])
@pytest.mark.parametrize("status", [405, 404, 401, 501])
async def test_a_connection_over_which_no_stream_was_to_be_had_serves_calls(connect, backend, events, status, body):
    await called_after_a_handshake(connect, events, lambda request: request.answer(status, body))
    assert (len(backend.requests), backend.connections) == (4, 1)


@pytest.mark.parametrize("status", [405, 404, 401, 501])
async def test_a_backend_without_get_stream_is_asked_once(connect, backend, events, status):
    transport = connect(handler=lambda request: request.answer(status))
    await trio.testing.wait_all_tasks_blocked(0.01)
    transport.listen()
    await backend.wait_requests()
    await trio.sleep(0.3)
    assert len(backend.requests) == 1
    assert events.all == []


async def test_a_404_on_the_get_stream_is_a_lost_session(connect, backend, events):
    transport = connect(handler=lambda request: request.answer(404), session="s")
    await trio.testing.wait_all_tasks_blocked(0.01)
    transport.listen()
    assert await events.next() == SessionLost(None)


async def test_a_get_stream_whose_last_event_is_unknown_starts_afresh(connect, backend, events):
    async def first(request):
        await request.events()
        await request.event(id="old", retry=1)
        return "cut"

    async def third(request):
        await request.events()
        await request.event(PING)
        await trio.sleep_forever()

    transport = connect()
    await trio.testing.wait_all_tasks_blocked(0.01)
    backend.handlers = [first, lambda request: request.answer(400), third]
    transport.listen()
    assert [await events.next() for _ in range(3)] == [Positioned(None, "old"), EventsMissed(), received(PING)]
    assert [request.headers.get("last-event-id") for request in backend.requests] == [None, "old", None]


async def test_an_endless_event_on_the_get_stream_does_not_end_the_transport(connect, backend, events, log):
    async def first(request):
        await request.events()
        await request.raw(b"fffff\r\ndata: " + b"x" * 5000)

    async def second(request):
        await request.events()
        await request.event(PING)
        await trio.sleep_forever()

    transport = connect()
    await trio.testing.wait_all_tasks_blocked(0.01)
    backend.handlers = [first, second]
    transport.listen()
    assert [await events.next(), await events.next()] == [EventsMissed(), received(PING)]
    assert len(log.of("backend_stream_failed")) == 1


# A session that goes on over another transport


async def test_a_session_goes_on_over_another_transport_without_a_handshake(connect, backend, events):
    async def handle(request):
        await (request.result({}) if request.body else request.accepted())

    transport = connect(handler=handle, run=False)
    transport.resume(Resumable("s", "2025-11-25", "g-7"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.run)
        transport.send(call(1), id=1)
        await events.next(FrameReceived)
        transport.close()
    post, delete = backend.requests
    assert (post.headers["mcp-session-id"], post.headers["mcp-protocol-version"]) == ("s", "2025-11-25")
    assert (delete.method, delete.headers["mcp-session-id"]) == ("DELETE", "s")
    assert transport.kept == Resumable("s", "2025-11-25", "g-7")
    assert "'s'" not in repr(transport.kept)


async def test_a_session_that_is_let_go_is_not_ended(connect, backend, events):
    transport = connect(handler=lambda request: request.result({}, mcp_session_id="s"), run=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.run)
        assert transport.kept is None
        transport.send(call(1), id=1)
        await events.next(FrameReceived)
        transport.negotiated("2025-11-25")
        transport.let_go()
    assert [request.method for request in backend.requests] == ["POST"]
    assert transport.kept == Resumable("s", "2025-11-25")
    assert events.all[-1] == TransportClosed("closed", "demo was closed")


async def test_the_get_stream_of_a_session_that_goes_on_begins_after_its_last_event(connect, backend, events):
    async def stream(request):
        await request.events()
        await request.event(PING, id="g-8")
        await trio.sleep_forever()

    transport = connect(handler=stream, run=False)
    transport.resume(Resumable("s", "2025-11-25", "g-7"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.run)
        transport.listen()
        assert await events.next() == received(PING, None, "g-8")
        nursery.cancel_scope.cancel()
    assert [request.headers["last-event-id"] for request in backend.requests] == ["g-7"]
    assert transport.kept == Resumable("s", "2025-11-25", "g-8")


async def test_the_rest_of_an_answer_is_fetched_without_sending_the_request_again(connect, backend, events):
    async def stream(request):
        await request.events()
        await request.event(PING, id="a-2")
        await request.event(done(1), id="a-3")
        await request.end()

    transport = connect(handler=stream, run=False)
    transport.resume(Resumable("s", "2025-11-25"))
    transport.pick_up(1, "a-1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.run)
        assert await events.next() == received(PING, 1, "a-2")
        assert await events.next() == received(done(1), 1, "a-3")
        nursery.cancel_scope.cancel()
    [get] = backend.requests
    assert (get.method, get.headers["last-event-id"], get.headers["mcp-session-id"]) == ("GET", "a-1", "s")


async def test_an_answer_that_is_never_fetched_may_have_been_executed(connect, events):
    transport = connect(run=False)
    transport.pick_up(1, "a-1")
    transport.close()
    await transport.run()
    failed = events.of(RequestFailed)
    assert [(f.id, f.executed) for f in failed] == [(1, "unknown")]


# Each request has one outcome


def outcomes(events):
    return [(failed.id, failed.reason, failed.executed) for failed in events.of(RequestFailed)]


async def test_what_cannot_be_started_by_a_fault_of_ours_has_its_outcome_too(backend, events, log, nursery):
    async with trio.open_nursery() as closed:
        pass
    connector = HttpConnector(log, closed, limits=replace(LIMITS, concurrent=2))
    transport = connector.connect(BackendSpec("demo", HttpTarget(backend.url, ())), events)
    for id in (1, 2, 3):
        transport.send(call(id), id=id)
    nursery.start_soon(transport.run)
    await trio.testing.wait_all_tasks_blocked()
    transport.send(call(4), id=4)
    assert outcomes(events) == [(id, "crashed", "unknown") for id in (1, 2, 3, 4)]
    assert len(log.of("backend_exchange_crashed")) == 4


async def test_any_number_of_requests_that_wait_may_fail_one_after_the_other(connect, events, nursery):
    transport = connect(run=False, limits=replace(LIMITS, waiting=3000, concurrent=1))
    for n in range(2000):
        transport.send(call(n), id=n)
    transport.negotiated("no\nversion")
    nursery.start_soon(transport.run)
    await trio.testing.wait_all_tasks_blocked()
    assert outcomes(events) == [(n, "not_sent", "no") for n in range(2000)]


async def test_a_fault_in_going_on_with_a_call_harms_no_other(connect, backend, events, log):
    async def handle(request):
        if request.method == "GET":
            await request.answer(404)
        else:
            await request.result({})

    def clumsy(event):
        if isinstance(event, RequestFailed):
            raise RuntimeError("a bug")
        events(event)

    transport = connect(handler=handle, session="s", emit=clumsy)
    transport.pick_up(1, "e-1")
    while not log.of("backend_exchange_crashed"):
        await trio.sleep(0.001)
    transport.send(call(2), id=2)
    assert (await events.next(FrameReceived)).related == 2


async def test_an_answer_for_what_was_not_asked_is_no_answer(connect, events):
    connect(handler=lambda request: request.answer(200, done(2))).send(call(1), id=1)
    assert (await events.next(FrameReceived)).related == 1
    assert (await events.next()).reason == "no_response"
