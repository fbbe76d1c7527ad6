"""HTTP/1.1 on one connection: hypercorn's H11Protocol with the parser replaced.

It stands between hypercorn's connection (RawData, Closed, Updated) and hypercorn's HTTPStream (Request, Body, …, which
speaks ASGI), as H11Protocol does, and differs in this: the parser is llhttp's; a request that is answered is whole, and
what comes behind it waits unparsed and bounded, so that the end of the connection is still seen; head and body leave in
one write; there is no upgrade but to WebSocket (`websocket`); a body that nobody read is dropped.
`handle` never waits but for a `100 Continue`, an error or a bare 202 to be written. A request that came whole goes to
the app by WholeStream, which is shorter than HTTPStream, or is taken at once.
"""

import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Protocol
from urllib.parse import unquote
from wsgiref.handlers import format_date_time

import trio
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.events import Body, EndBody, Request, Response, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from hypercorn.typing import AppWrapper, ConnectionState, HTTPScope, WorkerContext
from hypercorn.utils import suppress_body

from gateway.http.config import EdgeConfig
from gateway.http.request import REFUSED
from gateway.http.requests import AtOnce, Inbox, Requests
from gateway.http.response import refusal
from gateway.http.websocket import WebSocketStream, upgrades
from gateway.wire.http1_server import (
    CONTINUE,
    END,
    LAST_CHUNK,
    Head,
    Headers,
    Malformed,
    RequestDecoder,
    encode_chunk,
    encode_head,
)


class Phase(Enum):
    """What the connection waits for; each has its own deadline."""

    IDLE = "idle"
    """The first byte of a request."""
    HEAD = "head"
    """The rest of a request's head."""
    BODY = "body"
    """The rest of a request's body."""
    WORK = "work"
    """The answer to a request that is whole."""


class Wire(Protocol):
    """What the protocol asks of its connection."""

    async def write(self, data: bytes) -> None:
        """To the peer; a connection that breaks meanwhile ends."""

    def write_now(self, data: bytes) -> memoryview | None:
        """The same without waiting; what is left, which is to be written next."""

    def enter(self, phase: Phase) -> None:
        """The protocol has entered this phase."""

    async def finish(self) -> None:
        """No more responses come."""

    def has_input(self) -> bool:
        """Whether the peer has sent what nobody has read yet."""


_BODILESS = {204, 304}
_DIRECT = {"POST", "GET", "DELETE"}
_EMPTY: Headers = [(b"content-length", b"0")]
TOGETHER = 65536
"""Bytes of a body that are copied to leave in one write with the head; more than that is dearer to copy."""


def _last_words(status: int, reason: str) -> tuple[Headers, bytes]:
    """The headers and the body of an error with which the connection ends."""
    body = refusal(status, reason).body
    length = b"%d" % len(body)
    return [(b"content-type", b"application/json"), (b"content-length", length), (b"connection", b"close")], body


class AppStream(HTTPStream):
    """One request and its answer, with a JSON-RPC error where the app crashed without a word."""

    async def _send_error_response(self, status_code: int) -> None:
        headers, body = _last_words(status_code, "Internal error")
        await self.send(Response(stream_id=self.stream_id, headers=headers, status_code=status_code))
        if not suppress_body(self.scope["method"], status_code):
            await self.send(Body(stream_id=self.stream_id, data=body))
        await self.send(EndBody(stream_id=self.stream_id))
        self.state = ASGIHTTPState.CLOSED


class Http1Protocol(H11Protocol):
    """One connection's protocol. `phase` is what it waits for; `answering` says whether a response has begun."""

    def __init__(
        self,
        app: AppWrapper,
        config: EdgeConfig,
        context: WorkerContext,
        task_group: Requests,
        wire: Wire,
        *,
        ssl: bool,
        client: tuple[str, int] | None,
        server: tuple[str, int] | None,
        refused: Callable[[int, str, bool], object] = lambda status, client, begun: None,
        at_once: AtOnce | None = None,
    ) -> None:
        # The inherited __init__ is not run: all it would add is an h11 connection.
        self.app = app
        self.config = config
        self.context = context
        self.task_group: Requests = task_group
        self.connection_state = ConnectionState({})
        self.ssl = ssl
        self.client = client
        self.server = server
        self.wire = wire
        self._refused = refused
        self._at_once = at_once
        self.stream: AppStream | WholeStream | WebSocketStream | None = None  # type: ignore[assignment]
        self.limits = config.serve
        self.decoder = RequestDecoder(self.limits.request)
        self.phase = Phase.IDLE
        self.answering = False
        self._head: Head | None = None
        self._unread = 0
        self._held = bytearray()
        self._room: trio.Event | None = None
        self._served = 0
        self._reset()

    def _reset(self) -> None:
        """Before each response."""
        self._pending = b""
        self._chunked = False
        self._left: int | None = None
        self._complete = False
        self._close = False
        self.answering = False

    # From the connection.

    async def handle(self, event: Event) -> None:
        if isinstance(event, RawData):
            await self.feed(event.data)
        elif isinstance(event, Closed):
            await self._close_stream()
            self.decoder.close()

    async def feed(self, data: bytes) -> None:
        """What came from the peer."""
        if isinstance(self.stream, WebSocketStream):
            await self.stream.feed(data)
        elif self.phase is Phase.WORK or self._held:  # whatever is there already comes first
            self._held += data
        else:
            self.decoder.feed(data)
            await self._advance()

    def let_go(self) -> None:
        """The connection has ended, if only by cancellation: ends the cycles that this object is part of."""
        if isinstance(self.stream, WebSocketStream):
            self.stream.end()
        self.stream = None
        self.decoder.close()

    async def wait_for_room(self) -> None:
        """Until what the peer sends can be taken."""
        if len(self._held) > self.limits.pipelined:
            self._room = trio.Event()
            await self._room.wait()

    async def refuse(self, status: int, reason: str) -> None:
        """Answers with an error unless an answer has begun, and ends the connection."""
        stream, self.stream = self.stream, None
        begun = isinstance(stream, AppStream)
        if isinstance(stream, AppStream) and not self.answering:
            stream.scope["extensions"][REFUSED] = {"status": status}
        if stream is not None:
            await stream.handle(StreamClosed(STREAM_ID))
        if not self.answering:
            self.answering = True
            self._refused(status, str(self.client[0]) if self.client else "", begun)
            headers, body = _last_words(status, reason)
            await self.wire.write(encode_head(status, [*headers, (b"date", _date())]) + body)
        await self._finish()

    async def _advance(self) -> None:
        """Takes the decoder's events as far as the request that is to be answered next."""
        while self.phase is not Phase.WORK:
            event = self.decoder.next_event()
            if event is None:
                if not self._held:
                    break
                self._take_held()
            elif isinstance(event, Head):
                await self._begin(event)
            elif isinstance(event, bytes):
                self._unread -= len(event)
                if self.stream is not None:
                    await self.stream.handle(Body(STREAM_ID, event))
            elif event is END:
                await self._end()
            elif isinstance(event, Malformed):
                await self.refuse(event.status, event.reason)
                return
        if self.phase is not Phase.WORK:
            self._enter(self._awaited())

    def _take_held(self) -> None:
        """What came meanwhile is parsed when all before it was answered: else its events would have no bound."""
        data = bytes(self._held)
        self._make_room()
        self.decoder.feed(data)

    def _make_room(self) -> None:
        self._held.clear()
        if self._room is not None:
            self._room.set()

    async def _finish(self) -> None:
        """Nothing more is answered; what comes still is read, so that the last answer can be."""
        self._make_room()
        await self.wire.finish()

    def _awaited(self) -> Phase:
        if self.decoder.idle:
            return Phase.IDLE
        return Phase.HEAD if self.decoder.in_head else Phase.BODY

    def _enter(self, phase: Phase) -> None:
        if phase is not self.phase:
            self.phase = phase
            self.wire.enter(phase)

    async def _begin(self, head: Head) -> None:
        self._reset()
        self._head = head
        self._served += 1
        if upgrades(head) and self.decoder.take_rest() == b"":
            self._unread = 0
            self._enter(Phase.WORK)
            if self._held or self.decoder.next_event() is not None or not self.decoder.idle:
                await self.refuse(400, "Nothing may be sent before the handshake is answered")
                return
            self.stream = WebSocketStream(self, head, self.limits.message)
            self.stream.start(self.app, self.task_group)
            return
        if self.limits.whole and head.method in _DIRECT and (body := self.decoder.take_rest()) is not None:
            self._unread = 0
            await self._begin_whole(head, body)
            return
        self._unread = head.length if head.length is not None else self.limits.request.body
        self.stream = AppStream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        await self.stream.handle(
            Request(STREAM_ID, head.headers, head.version, head.method, head.target, self.connection_state)
        )
        if head.expects_continue and not self.decoder.events and self._unread <= self.limits.request.body:
            await self.wire.write(CONTINUE)

    async def _begin_whole(self, head: Head, body: bytes) -> None:
        scope = self._scope(head)
        taken = self._at_once is not None and self.task_group.at_once(self._at_once, scope, body)
        if taken:
            await self._accept()
            return
        self._enter(Phase.WORK)
        if taken is None:
            await self.refuse(500, "Internal error")
            return
        self.stream = WholeStream(self, body)
        self.stream.start(self.app, self.task_group, scope)

    def _scope(self, head: Head) -> HTTPScope:
        path, _, query = head.target.partition(b"?")
        return {
            "type": "http",
            "http_version": head.version,
            "asgi": {"spec_version": "2.1", "version": "3.0"},
            "method": head.method,
            "scheme": "https" if self.ssl else "http",
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": head.headers,
            "client": self.client,
            "server": self.server,
            "state": self.connection_state.copy(),  # type: ignore[typeddict-item]
            "extensions": {},
        }

    async def _accept(self) -> None:
        """Says that a request was taken; no task but the reader's has been there for it."""
        self.begin_response(202, _EMPTY)
        head, self._pending = self._pending, b""
        rest = self.wire.write_now(head)
        if rest or self._close:
            self._enter(Phase.WORK)
        if rest:
            await self.wire.write(bytes(rest))
        if self._close:
            await self._finish()
            return
        self.answering = False
        self.phase = Phase.IDLE
        self.wire.enter(Phase.IDLE)  # also if it was in this phase: the time until the next request begins anew

    async def _end(self) -> None:
        self._unread = 0
        if self.stream is None:  # answered before it was whole
            await self._recycle()
        else:
            self._enter(Phase.WORK)
            await self.stream.handle(EndBody(STREAM_ID))

    def upgraded(self) -> None:
        """The connection is no longer one of requests: nothing is parsed here any more."""
        self.answering = True
        self._head = None
        self.decoder.close()

    # From the app, by way of HTTPStream.

    async def stream_send(self, event: StreamEvent) -> None:
        if isinstance(event, Response):
            self.begin_response(event.status_code, event.headers)
        elif isinstance(event, Body):
            await self.send_body(event.data)
        elif isinstance(event, EndBody):
            await self.send_body(b"", last=True)
        elif isinstance(event, StreamClosed):
            await self.end_request()

    # From the app.

    def begin_response(self, status: int, fields: Headers) -> None:
        """The head; it leaves with what comes next. ValueError for a header that breaks out of its line: then none has
        begun."""
        request = self._head
        assert request is not None
        headers: Headers = []
        close = not request.keep_alive or self._ends_here()
        bodiless = request.method == "HEAD" or status in _BODILESS
        left, chunked = None, False
        for name, value in fields:
            if name == b"content-length":
                left = 0 if bodiless else int(value)
            elif name == b"connection":
                close = True
                continue
            headers.append((name, value))
        headers.append((b"date", _date()))
        if left is None and not bodiless:
            if request.version == "1.1":
                chunked = True
                headers.append((b"transfer-encoding", b"chunked"))
            else:
                close = True
        if close:
            headers.append((b"connection", b"close"))
        elif request.version == "1.0":
            headers.append((b"connection", b"keep-alive"))
        self._pending = encode_head(status, headers)
        # Not before: an answer that was refused leaves nothing to the error that takes its place.
        self._left, self._chunked, self._close = left, chunked, close
        self.answering = True

    def _ends_here(self) -> bool:
        """Whether this is the connection's last response."""
        return (
            self.context.terminated.is_set()
            or self._served >= self.limits.requests_per_connection
            or self._unread > self.limits.discarded
        )

    async def send_body(self, data: bytes, *, last: bool = False) -> None:
        """A piece of the body, perhaps an empty one; with the `last` the response is whole."""
        if self._left is not None:
            self._left -= len(data)
        if self._chunked and data:
            data = encode_chunk(data)
        if last:
            self._complete = not self._left
            if self._chunked:
                data += LAST_CHUNK
        if self._pending:
            head, self._pending = self._pending, b""
            if len(data) > TOGETHER:
                await self.wire.write(head)
            else:
                data = head + data
        if data:
            await self.wire.write(data)

    async def end_request(self) -> None:
        """The app is done with this request."""
        await self._close_stream()
        if self._close or not self._complete or self._left_open():
            await self._finish()
        elif self.phase is Phase.WORK:
            await self._recycle()

    def _left_open(self) -> bool:
        """Whether the stop has come while the peer read a response that did not say `Connection: close` yet. What the
        peer has sent already is answered; later there may be nobody left who could."""
        stops = self.context.terminated.is_set()
        return stops and not self._held and self.decoder.empty and not self.wire.has_input()

    async def _recycle(self) -> None:
        self.answering = False
        self._enter(Phase.IDLE)
        await self._advance()


class WholeStream:
    """One request that came whole in one read, and its answer. As AppStream, but that nothing stands between protocol
    and app: no events, and no queue of pieces of a body."""

    __slots__ = ("_begun", "_inbox", "_protocol", "closed")

    def __init__(self, protocol: Http1Protocol, body: bytes) -> None:
        self._protocol = protocol
        self._inbox = Inbox({"type": "http.request", "body": body, "more_body": False})
        self._begun = False
        self.closed = False

    def start(self, app: AppWrapper, requests: Requests, scope: HTTPScope) -> None:
        """Has the app answer it."""
        requests.run(app, scope, self._inbox, self.send)

    async def handle(self, _closed: StreamEvent) -> None:
        """The protocol has no more to do with it."""
        self.closed = True
        await self._inbox.put({"type": "http.disconnect"})

    async def send(self, message: Mapping[str, Any] | None) -> None:
        """What the app answers; None when it has returned."""
        if self.closed:
            return
        protocol = self._protocol
        if message is None:
            await self._app_returned()
        elif message["type"] == "http.response.start":
            protocol.begin_response(message["status"], message["headers"])
            self._begun = True
        else:
            last = not message["more_body"]
            await protocol.send_body(message["body"], last=last)
            if last:
                await protocol.end_request()

    async def _app_returned(self) -> None:
        """Without having answered to the end."""
        if not self._begun:
            headers, body = _last_words(500, "Internal error")
            self._protocol.begin_response(500, headers)
            await self._protocol.send_body(body, last=True)
        await self._protocol.end_request()


_dated = (0, b"")


def _date() -> bytes:
    """The Date header, made once a second."""
    global _dated
    now = int(time.time())
    if _dated[0] != now:
        _dated = (now, format_date_time(now).encode("ascii"))
    return _dated[1]
