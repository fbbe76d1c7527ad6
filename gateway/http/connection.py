"""One connection: hypercorn's TCPServer with its life rewritten.

Two tasks: the connection's own reads, and notices the end; a second runs the app (`requests`). The app is cancelled
when the connection ends, and that is how it learns of it. Every wait has a deadline, without a timer of its own: the
reader's one cancel scope is moved forward only when it fires, since the deadlines of a busy connection are nearly
always replaced before. A write that fails, is cancelled, or takes too long ends the connection.
"""

from math import inf
from typing import Protocol, TypeAlias, cast

import trio
from hypercorn.events import Closed, Event, RawData
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState
from hypercorn.utils import parse_socket_addr

from actors.runtime.exits import Exit
from gateway.http.config import EdgeConfig
from gateway.http.http1 import Entered, Http1Protocol, Phase
from gateway.http.requests import Requests

_LINGERED = 1024 * 1024
"""Bytes read and dropped after a last response."""

TlsStream: TypeAlias = trio.SSLStream[trio.SocketStream]
Stream: TypeAlias = trio.SocketStream | TlsStream


class Watcher(Protocol):
    """Who counts the work of connections and records their faults."""

    def on_work(self, change: int) -> None:
        """+1 when a request is whole, -1 when it has been answered or its connection has ended."""

    def on_crash(self, exit: Exit) -> None:
        """The app crashed while it answered; the client got a 500 or a cut answer."""


class Connection(TCPServer):
    """One connection from accept to close; `run` raises nothing but cancellation and bugs."""

    def __init__(
        self, app: AppWrapper, config: EdgeConfig, context: WorkerContext, stream: Stream, *, watcher: Watcher
    ) -> None:
        # hypercorn's annotation names one of the two kinds of stream that it takes.
        super().__init__(app, config, context, ConnectionState({}), cast(TlsStream, stream))
        self.limits = config.serve
        self._edge = config
        self._tls: TlsStream | None = None if isinstance(stream, trio.SocketStream) else stream
        self._tcp: trio.SocketStream = stream if isinstance(stream, trio.SocketStream) else stream.transport_stream
        self._http: Http1Protocol | None = None
        self._watcher = watcher
        self._working = False
        self._finished: trio.Event | None = None
        self._scope = trio.CancelScope()
        self._patience = trio.CancelScope()
        self._deadline = inf
        self._lingering = False
        self._dropped = 0
        self._torn = False

    def close_if_idle(self) -> None:
        """Ends the connection unless a request is being read or answered."""
        if not self._working and (self._http is None or self._http.phase is Phase.IDLE):
            self._scope.cancel()

    async def run(self) -> None:
        try:
            with self._scope:
                if await self._handshake():
                    await self._serve()
        except OSError:
            return  # the peer was gone before we had asked for its address
        finally:
            self._set_working(False)
            await self._close()

    async def _handshake(self) -> bool:
        if self._tls is None:
            return True
        with trio.move_on_after(self.limits.handshake):
            try:
                await self._tls.do_handshake()
            except trio.BrokenResourceError:
                return False
            return True
        return False

    async def _serve(self) -> None:
        socket = self._tcp.socket
        async with trio.open_nursery() as nursery:
            http = self._http = Http1Protocol(
                self.app,
                self._edge,
                self.context,
                Requests(nursery, self._watcher.on_crash),
                ssl=self._tls is not None,
                client=parse_socket_addr(socket.family, socket.getpeername()),
                server=parse_socket_addr(socket.family, socket.getsockname()),
                send=self.protocol_send,
            )
            self._wait_at_most(self.limits.keep_alive)
            await self._read(http)
            await http.handle(Closed())
            nursery.cancel_scope.cancel()

    # Reading.

    async def _read(self, http: Http1Protocol) -> None:
        """Until the connection has ended, from either side."""
        while (data := await self._receive(http)) is not None:
            if self._lingering:
                self._dropped += len(data)
                if not data or self._dropped > _LINGERED:
                    return
            elif data:
                await http.handle(RawData(data))
            else:
                await self._half_closed(http)
                return

    async def _receive(self, http: Http1Protocol) -> bytes | None:
        """The next bytes; b"" at the peer's end; None when the connection broke, or nothing more is waited for."""
        while True:
            with trio.CancelScope(deadline=self._deadline) as self._patience:
                try:
                    await http.wait_for_room()
                    return bytes(await self.stream.receive_some(MAX_RECV))
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return None
            if trio.current_time() >= self._deadline:
                if not self._lingering and http.phase in {Phase.HEAD, Phase.BODY}:
                    await http.refuse(408)
                    continue
                return None

    async def _half_closed(self, http: Http1Protocol) -> None:
        """The peer sends no more. Mostly it is gone; if it only closed its side, it gets what is ready soon."""
        if self._working:
            self._finished = trio.Event()
            with trio.move_on_after(self.limits.half_close):
                await self._finished.wait()
        elif http.phase in {Phase.HEAD, Phase.BODY}:
            await http.refuse(400)

    def _wait_at_most(self, seconds: float) -> None:
        self._deadline = trio.current_time() + seconds
        if self._deadline < self._patience.deadline:  # noqa: PLR1730 — setting it costs more than asking
            self._patience.deadline = self._deadline

    # From the protocol.

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, RawData):
            await self._write(event.data)
        elif isinstance(event, Entered):
            self._enter(event.phase)
        elif isinstance(event, Closed):
            await self._finish()

    def _enter(self, phase: Phase) -> None:
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

    async def _write(self, data: bytes) -> None:
        # Stays set when the write does not return, by whatever way: then part of the data may be out.
        torn, self._torn = self._torn, True
        if not torn:
            with trio.move_on_after(self.limits.write):
                try:
                    await self.stream.send_all(data)
                    self._torn = False
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass
        if self._torn:
            self._scope.cancel()

    async def _finish(self) -> None:
        """No more responses: end our side, and read on for a while so that the peer gets to read the last one."""
        if self._lingering:
            return
        self._lingering = True
        self._dropped = 0
        self._set_working(False)
        try:
            await self._tcp.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
            self._scope.cancel()
        self._wait_at_most(self.limits.linger)

    async def _close(self) -> None:
        if self._tls is None:
            self._tcp.socket.close()
            return
        with trio.move_on_after(1, shield=True):  # close_notify is a write
            await self._tls.aclose()
