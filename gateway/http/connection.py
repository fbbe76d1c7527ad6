"""One connection: hypercorn's TCPServer with its life rewritten.

Two tasks: the connection's own reads, and notices the end; a second runs the app (`requests`). The app is cancelled
when the connection ends, and that is how it learns of it. Every wait has a deadline, without a timer of its own: the
reader's one cancel scope is moved forward only when it fires, since the deadlines of a busy connection are nearly
always replaced before. A write that fails, is cancelled, or takes too long ends the connection.
"""

import os
import select
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Protocol, TypeAlias

import trio
from hypercorn.events import Closed
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper
from hypercorn.utils import parse_socket_addr

from actors.runtime.exits import Exit
from gateway.http.config import EdgeConfig
from gateway.http.http1 import Http1Protocol, Phase
from gateway.http.requests import AtOnce, Requests
from gateway.wire.streams import send_steadily

_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"

_CLOSING = 1.0
"""Seconds for closing, which under TLS is a write."""

TlsStream: TypeAlias = trio.SSLStream[trio.SocketStream]
Stream: TypeAlias = trio.SocketStream | TlsStream


class Watcher(Protocol):
    """Who counts the work of connections and records their faults."""

    def on_work(self, change: int) -> None:
        """+1 when a request is whole, -1 when it has been answered or its connection has ended."""

    def on_stalled(self) -> None:
        """A client was cut that took nothing for the time of one write."""

    @property
    def on_refused(self) -> Callable[[int, str, bool], object]:
        """Called with the status and the client's address for an answer to what never became a whole request, and
        whether the app knew of it."""

    def on_crash(self, exit: Exit) -> None:
        """The app crashed while it answered; the client got a 500 or a cut answer."""


class Connection(TCPServer):
    """One connection from accept to close; `run` raises nothing but cancellation and bugs."""

    def __init__(
        self,
        app: AppWrapper,
        config: EdgeConfig,
        context: WorkerContext,
        stream: Stream,
        *,
        watcher: Watcher,
        at_once: AtOnce | None = None,
    ) -> None:
        # The inherited __init__ is not run: it would add a lock and a timer task, which are not used here.
        self.app = app
        self.context = context
        self.limits = config.serve
        self._edge = config
        self._stream = stream
        self._tls: TlsStream | None = None if isinstance(stream, trio.SocketStream) else stream
        self._tcp: trio.SocketStream = stream if isinstance(stream, trio.SocketStream) else stream.transport_stream
        self._http: Http1Protocol | None = None
        self._watcher = watcher
        self._at_once = at_once
        self._working = False
        self._finished: trio.Event | None = None
        self._scope = trio.CancelScope()
        self._patience = trio.CancelScope()
        self._deadline = inf
        self._lingering = False
        self._dropped = 0
        self._torn = False

    def close_if_idle(self) -> None:
        """Ends the connection unless there is a request whose head has come, or one that nobody has read yet, or a last
        response to be read."""
        if (self._http is None or self._http.phase in {Phase.IDLE, Phase.HEAD}) and not self.has_input():
            self._say_closed()
            self._scope.cancel()

    def _say_closed(self) -> None:
        """Seen by the client before this task has its next turn: it sends nothing more that would be lost."""
        if self._tls is None:
            with suppress(OSError):
                self._tcp.socket.shutdown(trio.socket.SHUT_WR)

    def has_input(self) -> bool:
        """As in `Wire`."""
        place = self._tcp.socket.fileno()
        look = select.poll()
        if place >= 0:  # else it is closed
            look.register(place, select.POLLIN)
        return bool(look.poll(0))

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                self._live_in(nursery.cancel_scope)
                if not await self._lived(nursery):
                    self._scope.cancel()
        finally:
            self._set_working(False)
            if self._http is not None:
                self._http.let_go()
            self._http = None  # which points back here: without the cycle, memory is free at once
            if self._tls is None:
                self._tcp.socket.close()
            else:
                with trio.move_on_after(_CLOSING, shield=True):
                    await self._tls.aclose()

    async def _lived(self, nursery: trio.Nursery) -> bool:
        """From the handshake to the end; whether nothing is left that has to be cancelled."""
        if not await self._handshake() or (http := self._made(nursery)) is None:
            return True
        self._wait_at_most(self.limits.keep_alive)
        await self._read(http)
        await http.handle(Closed())
        return http.task_group.end()

    def _live_in(self, scope: trio.CancelScope) -> None:
        if self._scope.cancel_called:
            scope.cancel()
        self._scope = scope

    async def turn_away(self) -> None:
        """Instead of `run`, when there are too many: says so if that can be said at once."""
        try:
            with self._scope:
                self._watcher.on_refused(503, "", False)
                await self.write(_BUSY if self._tls is None else b"")
        finally:
            with trio.move_on_after(_CLOSING, shield=True):
                await self._stream.aclose()

    async def _handshake(self) -> bool:
        if self._tls is None:
            return True
        try:
            with trio.move_on_after(self.limits.handshake):
                await self._tls.do_handshake()
                return True
        except trio.BrokenResourceError:
            pass
        return False

    def _made(self, nursery: trio.Nursery) -> Http1Protocol | None:
        socket = self._tcp.socket
        try:
            client = parse_socket_addr(socket.family, socket.getpeername())
            server = parse_socket_addr(socket.family, socket.getsockname())
        except OSError:
            return None  # the peer was gone before we had asked for its address
        self._http = Http1Protocol(
            self.app,
            self._edge,
            self.context,
            Requests(nursery, self._watcher.on_crash),
            self,
            refused=self._watcher.on_refused,
            at_once=self._at_once,
            ssl=self._tls is not None,
            client=client,
            server=server,
        )
        return self._http

    # Reading.

    async def _read(self, http: Http1Protocol) -> None:
        """Until the connection has ended, from either side."""
        while True:
            with trio.CancelScope(deadline=self._deadline) as self._patience:
                await self._read_on(http)
                return
            if self._torn:
                return
            if trio.current_time() < self._deadline:
                continue
            if self._lingering:
                return
            if http.phase in {Phase.HEAD, Phase.BODY}:
                await http.refuse(408, "The request took too long to arrive")
            elif self.has_input():  # it came just now
                self._wait_at_most(self.limits.head)
            else:
                self._say_closed()
                return

    async def _read_on(self, http: Http1Protocol) -> None:
        while True:
            await http.wait_for_room()
            try:
                data = await self._receive()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            if self._lingering:
                self._dropped += len(data)
                if not data or self._dropped > self.limits.lingered:
                    return
            elif data:
                await http.feed(data)
            else:
                await self._half_closed(http)
                return

    async def _receive(self) -> bytes:
        """What has come from the peer; b"" at its end."""
        if self._tls is not None:
            return bytes(await self._tls.receive_some(MAX_RECV))
        fd = self._tcp.socket.fileno()
        while True:
            # Waits before it reads: who has sent a request mostly sends nothing more before its answer.
            await trio.lowlevel.wait_readable(fd)
            try:
                return os.read(fd, MAX_RECV)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError(error.strerror) from error

    async def _half_closed(self, http: Http1Protocol) -> None:
        """The peer sends no more. Mostly it is gone; if it only closed its side, it gets what is ready soon."""
        if self._working:
            with trio.move_on_after(self.limits.half_close):
                await self._wait_quiet()
        elif http.phase in {Phase.HEAD, Phase.BODY}:
            await http.refuse(400, "The request ended too early")

    async def _wait_quiet(self) -> None:
        while self._working:
            self._finished = trio.Event()
            await self._finished.wait()

    def _wait_at_most(self, seconds: float) -> None:
        self._deadline = trio.current_time() + seconds
        if self._deadline < self._patience.deadline:  # noqa: PLR1730 — setting it costs more than asking
            self._patience.deadline = self._deadline

    # From the protocol.

    def enter(self, phase: Phase) -> None:
        self._set_working(phase is Phase.WORK)
        if phase is Phase.WORK:
            self._deadline = inf
        elif phase is Phase.IDLE:
            self._wait_at_most(self.limits.keep_alive)
        elif phase is Phase.HEAD:
            self._wait_at_most(self.limits.head)
        else:
            self._wait_at_most(self.limits.body)

    def _set_working(self, working: bool) -> None:
        if working is not self._working:
            self._working = working
            self._watcher.on_work(1 if working else -1)
            if self._finished is not None:
                self._finished.set()

    # Writing and ending.

    async def write(self, data: bytes) -> None:
        if rest := self.write_now(data):
            await self._write_slowly(rest)
        if self._torn:
            self._scope.cancel()

    def write_now(self, data: bytes) -> memoryview | None:
        """What of it has to wait for the peer to read."""
        if self._torn:
            return None
        try:
            sent = os.write(self._tcp.socket.fileno(), data) if self._tls is None else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self._scope.cancel()
            return None
        return memoryview(data)[sent:] if sent < len(data) else None

    async def _write_slowly(self, data: memoryview) -> None:
        # Stays set when the write does not return, by whatever way: then part of the data may be out.
        self._torn = True
        self._patience.deadline = inf  # it may be the reader that writes: this has a deadline of its own
        try:
            self._torn = not await send_steadily(self._stream, data, self.limits.write)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        self._patience.deadline = self._deadline
        if self._torn:
            self._watcher.on_stalled()

    async def finish(self) -> None:
        """No more responses: end our side, and read on for a while so that the peer gets to read the last one.

        (Closing a socket with unread input resets the connection, and the peer may lose what it had not read.)
        """
        if self._lingering or self._http is None:
            return
        self._lingering = True
        self._set_working(False)
        if self._tls is None:
            try:
                await self._tcp.send_eof()
            except (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
                self._scope.cancel()
        elif self._http.phase is Phase.WORK:
            # TLS ends both ways at once; with the request whole there is nothing more to read.
            self._scope.cancel()
        self._wait_at_most(self.limits.linger)
