"""HTTP/1.1 on one connection: hypercorn's H11Protocol with the parser replaced.

It stands between hypercorn's connection (RawData, Closed, Updated) and hypercorn's HTTPStream (Request, Body, …, which
speaks ASGI), as H11Protocol does, and differs in this: the parser is llhttp's; a request that is answered is whole, and
what comes behind it waits unparsed and bounded, so that the end of the connection is still seen; head and body leave in
one write; there is no upgrade, neither to HTTP/2 nor to anything else; a body that nobody read is dropped.
`handle` never waits but for a `100 Continue` or an error to be written.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from wsgiref.handlers import format_date_time

import trio
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.events import Body, EndBody, Request, Response, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.typing import AppWrapper, ConnectionState, TaskGroup, WorkerContext

from gateway.http.app_stream import AppStream
from gateway.http.config import EdgeConfig
from gateway.http.response import refusal
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


@dataclass(frozen=True, slots=True)
class Entered(Event):
    """The protocol has entered this phase."""

    phase: Phase


ENTERED = {phase: Entered(phase) for phase in Phase}

_BODILESS = {204, 304}


class Http1Protocol(H11Protocol):
    """One connection's protocol. `phase` is what it waits for; `answering` says whether a response has begun."""

    def __init__(
        self,
        app: AppWrapper,
        config: EdgeConfig,
        context: WorkerContext,
        task_group: TaskGroup,
        *,
        ssl: bool,
        client: tuple[str, int] | None,
        server: tuple[str, int] | None,
        send: Callable[[Event], Awaitable[None]],
    ) -> None:
        # The inherited __init__ is not run: all it would add is an h11 connection.
        self.app = app
        self.config = config
        self.context = context
        self.task_group = task_group
        self.connection_state = ConnectionState({})
        self.ssl = ssl
        self.client = client
        self.server = server
        self.send = send
        self.stream: AppStream | None = None
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
        self._owed: int | None = None
        self._complete = False
        self._close = False
        self.answering = False

    # From the connection.

    async def handle(self, event: Event) -> None:
        if isinstance(event, RawData):
            if self.phase is Phase.WORK:
                self._held += event.data
            else:
                self.decoder.feed(event.data)
                await self._advance()
        elif isinstance(event, Closed):
            await self._close_stream()
            self.decoder.close()

    def let_go(self) -> None:
        """The connection has ended, if only by cancellation: ends the cycles that this object is part of."""
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
        if stream is not None:
            await stream.handle(StreamClosed(STREAM_ID))
        if not self.answering:
            self.answering = True
            body = refusal(status, reason).body
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                (b"date", _date()),
                (b"connection", b"close"),
            ]
            await self.send(RawData(encode_head(status, headers) + body))
        await self.send(Closed())

    async def _advance(self) -> None:
        """Takes the decoder's events as far as the request that is to be answered next."""
        while self.phase is not Phase.WORK and (event := self.decoder.next_event()) is not None:
            if isinstance(event, Head):
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
            await self._enter(self._awaited())

    def _awaited(self) -> Phase:
        if self.decoder.idle:
            return Phase.IDLE
        return Phase.HEAD if self.decoder.in_head else Phase.BODY

    async def _enter(self, phase: Phase) -> None:
        if phase is not self.phase:
            self.phase = phase
            await self.send(ENTERED[phase])

    async def _begin(self, head: Head) -> None:
        self._reset()
        self._head = head
        self._served += 1
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
            await self.send(RawData(CONTINUE))

    async def _end(self) -> None:
        self._unread = 0
        if self.stream is None:  # answered before it was whole
            await self._recycle()
        else:
            await self._enter(Phase.WORK)
            await self.stream.handle(EndBody(STREAM_ID))

    # From the app, by way of HTTPStream.

    async def stream_send(self, event: StreamEvent) -> None:
        if isinstance(event, Response):
            self._pending = self._encode_head(event)
        elif isinstance(event, Body):
            await self._send_body(event.data)
        elif isinstance(event, EndBody):
            await self._send_end()
        elif isinstance(event, StreamClosed):
            await self._finish()

    def _encode_head(self, response: Response) -> bytes:
        request = self._head
        assert request is not None
        headers: Headers = []
        close = not request.keep_alive or self._ends_here()
        bodiless = request.method == "HEAD" or response.status_code in _BODILESS
        for name, value in response.headers:
            if name == b"content-length":
                self._owed = 0 if bodiless else int(value)
            elif name == b"connection":
                close = True
                continue
            headers.append((name, value))
        headers.append((b"date", _date()))
        if self._owed is None and not bodiless:
            if request.version == "1.1":
                self._chunked = True
                headers.append((b"transfer-encoding", b"chunked"))
            else:
                close = True
        if close:
            headers.append((b"connection", b"close"))
        elif request.version == "1.0":
            headers.append((b"connection", b"keep-alive"))
        self._close = close
        self.answering = True
        return encode_head(response.status_code, headers)

    def _ends_here(self) -> bool:
        """Whether this is the connection's last response."""
        return (
            self.context.terminated.is_set()
            or self._served >= self.limits.requests_per_connection
            or self._unread > self.limits.discarded
        )

    async def _send_body(self, data: bytes) -> None:
        if self._owed is not None:
            self._owed -= len(data)
        if self._chunked:
            data = encode_chunk(data)
        pending, self._pending = self._pending, b""
        await self.send(RawData(pending + data))

    async def _send_end(self) -> None:
        last = self._pending + LAST_CHUNK if self._chunked else self._pending
        self._pending = b""
        if last:
            await self.send(RawData(last))
        self._complete = not self._owed

    async def _finish(self) -> None:
        """The app is done with this request."""
        await self._close_stream()
        if self._close or not self._complete:
            await self.send(Closed())
        elif self.phase is Phase.WORK:
            await self._recycle()

    async def _recycle(self) -> None:
        self.answering = False
        await self._enter(Phase.IDLE)
        if self._held:
            data = bytes(self._held)
            self._held.clear()
            self.decoder.feed(data)
        await self._advance()
        if self._room is not None:
            self._room.set()


_dated = (0, b"")


def _date() -> bytes:
    """The Date header, made once a second."""
    global _dated
    now = int(time.time())
    if _dated[0] != now:
        _dated = (now, format_date_time(now).encode("ascii"))
    return _dated[1]
