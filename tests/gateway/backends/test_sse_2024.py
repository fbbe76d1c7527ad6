"""HTTP+SSE of 2024-11-05 against backends on real sockets, good and hostile."""

import json
from functools import partial

import pytest
import trio

from actors.ports import FrameAccepted, FrameReceived, RequestFailed, SpeaksSse, TransportClosed
from actors.protocol.codec import decode_frame
from actors.protocol.table import BackendSpec, HttpTarget, SseTarget
from gateway.backends import sse_2024
from gateway.backends.http_call import HttpLimits
from gateway.backends.http_connector import HttpConnector
from gateway.wire.url import parse_url
from tests.support.patience import PATIENCE

LIMITS = HttpLimits(message_bytes=2000, refusal=0.5, flush=0.2, accept=30)
NOTE = b'{"jsonrpc":"2.0","method":"notifications/x"}'
HEADERS = (("Authorization", "Bearer secret"),)


def call(id: int | str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/call"}).encode()


def done(id: int | str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "result": {}}).encode()


def said(frame: bytes) -> FrameReceived:
    return FrameReceived(frame, read=decode_frame(frame))


class Server:
    """Handles the stream by `opened`, and each POST by `posted`."""

    def __init__(self) -> None:
        self.stream = None
        self.endpoint = "/messages?session=1"
        self.posted = self._accepts
        self.there = trio.Event()
        self.gone = trio.Event()
        self._saying = trio.Lock()

    async def __call__(self, request):
        if request.method != "GET":
            return await self.posted(request)
        self.stream = request
        await request.events()
        if self.endpoint is not None:
            await request.event(self.endpoint.encode(), event="endpoint")
        self.there.set()
        await self.gone.wait()
        return "cut"

    async def _accepts(self, request):
        await request.accepted()

    async def says(self, frame: bytes, **fields) -> None:
        await self.there.wait()
        async with self._saying:
            await self.stream.event(frame, **fields)


@pytest.fixture
def server(backend):
    server = Server()
    backend.handlers = [server]
    return server


@pytest.fixture
async def connect(backend, server, events, log, nursery):
    connectors = []

    def start(*, limits=LIMITS, target=None, modern=False):
        connectors.append(HttpConnector(log, nursery, limits=limits))
        target = target or SseTarget(backend.url, HEADERS)
        transport = connectors[-1].connect(BackendSpec("demo", target), events, modern)
        nursery.start_soon(transport.run)
        return transport

    with trio.fail_after(PATIENCE):
        yield start
    for connector in connectors:
        connector.close()


# As it should be


async def test_messages_are_posted_where_the_stream_says_and_answered_on_the_stream(connect, server, backend, events):
    transport = connect()
    transport.send(call(1), id=1)
    await server.says(done(1))
    assert await events.next() == said(done(1))
    transport.send(NOTE, tag=7)
    assert await events.next() == FrameAccepted(7)
    await server.says(NOTE, id="5")
    assert await events.next() == said(NOTE)
    stream, *posts = backend.requests
    assert (stream.method, stream.target, stream.headers["accept"]) == ("GET", "/mcp", "text/event-stream")
    assert {(post.method, post.target) for post in posts} == {("POST", "/messages?session=1")}
    assert [post.body for post in posts] == [call(1), NOTE]
    for request in backend.requests:
        assert request.headers["authorization"] == "Bearer secret"
        assert "mcp-protocol-version" not in request.headers
        assert "mcp-session-id" not in request.headers
    assert (transport.kind, transport.kept) == ("sse", None)


async def test_nothing_is_posted_before_the_endpoint_is_named(connect, server, backend, events):
    server.endpoint = None
    transport = connect()
    transport.send(call(1), id=1)
    transport.send(NOTE, tag=1)
    await server.there.wait()
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert len(backend.requests) == 1
    await server.stream.event(b"messages/1", event="endpoint")
    await backend.wait_requests(3)
    assert {request.target for request in backend.requests[1:]} == {"/messages/1"}


async def test_an_answer_may_come_before_its_post_is_accepted_or_without(connect, server, backend, events):
    """Some servers handle a message before they accept it."""

    async def answers_first(request):
        await server.says(done(request.id))
        await trio.sleep_forever()

    server.posted = answers_first
    transport = connect(limits=HttpLimits(concurrent=2))
    for id in range(2 + sse_2024.LINGERING + 2):
        transport.send(call(id), id=id)
    for _ in range(2 + sse_2024.LINGERING + 2):
        await events.next(FrameReceived)
    assert not events.of(RequestFailed)


async def test_closing_sends_what_waits_in_order_and_ends_the_stream(connect, server, backend, events):
    transport = connect()
    await server.there.wait()
    transport.send(NOTE)
    transport.send(NOTE)
    transport.close()
    assert await events.next() == TransportClosed("closed", "demo was closed")
    assert [request.body for request in backend.requests[1:]] == [NOTE, NOTE]
    server.gone.set()
    await backend.wait_closed(1)


async def test_a_request_that_is_forgotten_before_it_was_accepted_is_given_up(connect, server, backend, events):
    server.posted = never
    transport = connect(limits=HttpLimits(concurrent=1))
    transport.send(call(1), id=1)
    transport.send(call(2), id=2)
    transport.send(call(3), id=3)
    await backend.wait_requests(2)
    transport.forget(2)
    transport.forget(1)
    await backend.wait_requests(3)
    assert backend.requests[-1].body == call(3)
    assert not events.of(RequestFailed)


# The end


async def test_when_the_stream_is_cut_the_session_is_over(connect, server, backend, events):
    server.posted = never
    transport = connect(limits=HttpLimits(concurrent=1))
    transport.send(call(1), id=1)
    transport.send(call(2), id=2)
    await backend.wait_requests(2)
    server.gone.set()
    await events.next(TransportClosed)
    assert events.all[-1].reason == "connection_lost"
    [failed] = events.of(RequestFailed)
    assert (failed.id, failed.executed) == (2, "no"), "what was sent is told by the end"
    transport.send(call(3), id=3)
    assert events.of(RequestFailed) == [failed], "nothing comes after the end"


@pytest.mark.parametrize(("status", "executed"), [(404, "no"), (410, "unknown")])
async def test_a_session_that_the_server_does_not_know_is_over(connect, server, events, status, executed):
    async def unknown(request):
        await request.answer(status)

    server.posted = unknown
    transport = connect()
    transport.send(call(1), id=1)
    failed = await events.next(RequestFailed)
    assert (failed.id, failed.status, failed.executed) == (1, status, executed)
    assert (await events.next(TransportClosed)).reason == "session_lost"


async def test_a_request_that_is_refused_fails_alone(connect, server, events):
    async def refuses(request):
        if request.id == 1:
            await request.answer(503, b"busy", "text/plain")
        elif request.id == 2:
            await request.error(400, -32050, 2)
        else:
            await request.accepted()
            await server.says(done(request.id))

    server.posted = refuses
    transport = connect()
    transport.send(call(1), id=1)
    failed = await events.next(RequestFailed)
    assert (failed.id, failed.reason, failed.status, failed.executed) == (1, "http_status", 503, "unknown")
    transport.send(call(2), id=2)
    answer = await events.next(FrameReceived)
    assert (answer.related, answer.status, json.loads(answer.frame)["error"]["code"]) == (2, 400, -32050)
    transport.send(call(3), id=3)
    assert await events.next() == said(done(3))


async def test_a_notification_that_is_waited_for_and_refused_ends_the_connection(connect, server, events):
    server.posted = partial(refused, 500)
    connect().send(NOTE, tag=1)
    assert (await events.next(TransportClosed)).reason == "not_accepted"


async def never(request):
    await trio.sleep_forever()


async def refused(status, request):
    await request.answer(status, b"no", "text/plain")


# Who has no such stream, or names no good endpoint


@pytest.mark.parametrize(("status", "executed"), [(401, "no"), (404, "no"), (500, "no")])
async def test_a_stream_that_is_refused_fails_what_waits_for_it(connect, backend, events, status, executed):
    backend.handlers = [partial(refused, status)]
    transport = connect()
    transport.send(call(1), id=1)
    failed = await events.next()
    assert (failed.id, failed.reason, failed.status, failed.executed) == (1, "http_status", status, executed)
    assert str(status) in failed.message
    assert (await events.next()).reason == "http_status"


async def test_a_stream_that_is_none_is_an_error(connect, backend, events):
    backend.handlers = [lambda request: request.answer(200, b"{}")]
    connect().send(call(1), id=1)
    assert "no event stream" in (await events.next(RequestFailed)).message


async def test_a_server_that_is_not_there_is_an_error_without_its_address(connect, events):
    connect(target=SseTarget("http://127.0.0.1:1/sse")).send(call(1), id=1)
    failed = await events.next()
    assert (failed.reason, failed.executed) == ("connection_refused", "no")
    assert "127.0.0.1" not in failed.message
    closed = await events.next()
    assert (closed.reason, "127.0.0.1" in closed.message, "127.0.0.1" in closed.detail) == (
        "connection_refused",
        False,
        True,
    )


@pytest.mark.parametrize(
    "named",
    [
        "http://127.0.0.1:1/messages",
        "https://{host}/messages",
        "//example.com/messages",
        "http://example.com/",
        "http://user@{host}/messages",
        "ftp://{host}/messages",
        "http://[/",
        "file:///etc/passwd",
        "/m?" + "x" * 9000,
    ],
)
async def test_an_endpoint_of_another_origin_gets_nothing(connect, server, backend, events, named):
    """The configured headers are credentials for this one."""
    server.endpoint = None
    connect(limits=HttpLimits()).send(call(1), id=1)
    host = backend.url.split("/")[2]
    await server.says(named.replace("{host}", host).encode(), event="endpoint")
    failed = await events.next()
    assert (failed.reason, failed.executed) == ("protocol", "no")
    assert "endpoint" in failed.message
    assert (await events.next()).reason == "protocol"
    assert len(backend.requests) == 1


@pytest.mark.parametrize("named", ["http://{host}/a?b=c", "/a?b=c", "a?b=c", "./a?b=c", "../a?b=c"])
def test_an_endpoint_may_be_relative_or_absolute(named):
    for base, host in (("http://h:8/sse", "h:8"), ("https://h/x/../sse", "h"), ("unix:/s", "localhost")):
        url = parse_url(base, "/sse")
        scheme = "http" if base.startswith("unix") else url.origin.scheme
        found = sse_2024.endpoint_of(url, named.replace("http://{host}", f"{scheme}://{host}").encode())
        assert found.origin == url.origin
        assert found.target.endswith("/a?b=c")


async def test_the_same_endpoint_may_be_named_twice_and_another_may_not(connect, server, backend, events):
    connect()
    await server.says(server.endpoint.encode(), event="endpoint")
    await server.says(b"/other", event="endpoint")
    closed = await events.next()
    assert (closed.reason, "second endpoint" in closed.message) == ("protocol", True)


async def test_a_message_before_the_endpoint_is_an_error(connect, server, events):
    server.endpoint = None
    connect()
    await server.says(NOTE)
    assert (await events.next()).reason == "protocol"


async def test_an_endpoint_that_is_never_named_is_waited_for_so_long(connect, server, events, monkeypatch):
    monkeypatch.setattr(sse_2024, "ENDPOINT_WITHIN", 0.05)
    server.endpoint = None
    connect().send(call(1), id=1)
    failed = await events.next()
    assert (failed.reason, failed.executed) == ("protocol", "no")
    assert "named no endpoint within" in failed.message


async def test_an_event_over_the_limit_ends_the_session(connect, server, events):
    connect()
    await server.says(b"x" * 3000)
    assert (await events.next()).reason == "too_large"


# Found without having been told


@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize("status", [400, 404, 405])
async def test_a_server_that_refuses_the_first_message_is_asked_for_a_stream(
    connect, server, backend, events, status, modern
):
    server.posted = partial(refused, status)
    transport = connect(target=HttpTarget(backend.url, HEADERS, may_be_sse=True), modern=modern)
    transport.send(call(1), id=1, headers=(("Mcp-Method", "server/discover"),) if modern else ())
    assert await events.next() == SpeaksSse()
    assert [request.method for request in backend.requests] == ["POST", "GET"]
    assert backend.requests[1].headers["authorization"] == "Bearer secret"


async def test_why_there_is_no_stream_is_told_to_operators_alone(connect, backend, events):
    backend.handlers = [lambda request: request.answer(403, b"only at localhost", "text/plain")]
    connect().send(call(1), id=1)
    for event in (await events.next(RequestFailed), await events.next()):
        assert event.message == "demo: the server answered with HTTP 403 Forbidden"
        assert event.detail == f"{event.message}: only at localhost"


@pytest.mark.parametrize(
    ("status", "may_be_sse", "asked"),
    [(401, True, 0), (403, True, 0), (429, True, 0), (500, True, 0), (404, False, 0), (404, True, 1)],
)
async def test_who_is_none_is_told_as_before(connect, backend, events, status, may_be_sse, asked):
    backend.handlers = [partial(refused, status)]
    connect(target=HttpTarget(backend.url, may_be_sse=may_be_sse)).send(call(1), id=1)
    failed = await events.next()
    assert (failed.reason, failed.status) == ("http_status", status)
    assert len(backend.requests) == 1 + asked


async def test_a_refusal_by_one_that_has_read_the_message_is_its_answer(connect, backend, events):
    backend.handlers = [lambda request: request.error(400, -32022, 1)]
    connect(target=HttpTarget(backend.url, may_be_sse=True)).send(call(1), id=1)
    assert (await events.next()).status == 400
    assert len(backend.requests) == 1
