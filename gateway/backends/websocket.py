"""A backend behind a WebSocket (subprotocol `mcp`), a transport that no revision of MCP has and several SDKs do: each
message is one text message, and the connection is the session.

As over pipes, nothing says which request a message belongs to, and what was written may have been executed. The
configured headers go with the handshake alone; they are credentials, and redirects are not followed.
"""

from collections.abc import Callable
from ssl import SSLContext

import trio

from actors.ports import (
    FrameAccepted,
    FrameReceived,
    Log,
    TransportEvent,
    TransportKind,
)
from actors.protocol.table import WebSocketTarget
from gateway.backends.bound import DuplexTransport
from gateway.backends.credentials import CHALLENGING, TRIES, Credentials, unbound
from gateway.backends.http_call import HttpLimits, reason_of
from gateway.backends.outbox import Outbox
from gateway.wire.errors import PeerError, SizeError, WireError
from gateway.wire.http_rules import worded
from gateway.wire.http_session import OURS
from gateway.wire.lines import FRAMES_PER_TURN
from gateway.wire.url import parse_url
from gateway.wire.websocket import ON_SOCKET, RefusedError, WebSocket, WebSocketLimits, open_websocket


class WebSocketTransport(DuplexTransport):
    """See `actors.ports.Transport`. `slots` bounds the connections to all servers together."""

    kind: TransportKind = "ws"

    def __init__(
        self,
        name: str,
        target: WebSocketTarget,
        emit: Callable[[TransportEvent], None],
        *,
        slots: trio.CapacityLimiter,
        log: Log,
        limits: HttpLimits,
        tls: SSLContext | None = None,
        socket_limits: WebSocketLimits | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """ValueError for a URL that is none."""
        super().__init__(name, emit, log, Outbox(limits.waiting, limits.waiting_bytes))
        self._url = parse_url(target.url, ON_SOCKET)
        self._headers = [(key, value) for key, value in target.headers if not _is_ours(key.lower())]
        self._credentials = credentials
        self._unbind: Callable[[], object] = unbound
        self._slots = slots
        self._limits = limits
        self._tls = tls
        self._socket_limits = socket_limits or WebSocketLimits(message_bytes=limits.message_bytes)
        self._opening = trio.CancelScope()
        self._open = False
        self._stale = False
        """Whether the account is another one than what was sent is of."""
        self._closing = False

    def __repr__(self) -> str:
        state = "ending" if self._ending.is_set() else "open" if self._open else "not open"
        return f"<WebSocketTransport {self._name} {state}, {len(self._outbox)} to write>"

    # The port's synchronous half

    def close(self) -> None:
        """Lets the outbox be written, then closes the WebSocket."""
        self._closing = True
        self._end_with("closed", f"{self._name} was closed")
        self._opening.cancel()

    # The IO

    async def run(self) -> None:
        """Connects, and converses until the end. See the port."""
        try:
            self._slots.acquire_on_behalf_of_nowait(self)
        except trio.WouldBlock:
            self._end_with("backend_full", f"{self._slots.total_tokens:g} WebSocket connections are open already")
            self._tell_end()
            return
        try:
            async with trio.open_nursery() as nursery:
                socket = await self._connect(nursery)
                if socket is not None:
                    self._open = True
                    if self._stale:
                        self._lost()
                    await self._converse(socket)
                nursery.cancel_scope.cancel()
        finally:
            self._unbind()
            self._slots.release_on_behalf_of(self)
            self._end_with("aborted", f"the connection to {self._name} was aborted")
            self._tell_end()

    async def _connect(self, nursery: trio.Nursery) -> WebSocket | None:
        with self._opening:
            try:
                return await self._opened(nursery)
            except RefusedError as error:
                self._status = error.status
                message = f"{self._name}: the server answered with HTTP {worded(error.status)}"
                self._end_with("http_status", message, f"{self._name}: {error.detail}")
            except WireError as error:
                self._failed(error)
        return None

    async def _opened(self, nursery: trio.Nursery) -> WebSocket | None:
        """The credentials go with the handshake; None: the server takes none of them."""
        credentials = self._credentials
        if credentials is not None:
            self._unbind = credentials.bound(self._lost)
            await credentials.prepare()
        for attempt in range(TRIES):
            self._stale = False
            sent = credentials.lines() if credentials is not None else b""
            headers = [*self._headers, *_headers(sent)]
            try:
                return await open_websocket(nursery, self._url, headers, tls=self._tls, limits=self._socket_limits)
            except RefusedError as error:
                if credentials is None or error.status not in CHALLENGING or attempt == TRIES - 1:
                    raise
                if not credentials.concern(error.status, error.challenge):
                    raise
                self._status = error.status
                refusal = await credentials.refused(error.status, error.challenge, sent)
                if refusal is not None:
                    self._end_with(refusal.reason, f"{self._name}: {refusal.message}")
                    return None
        return None

    def _lost(self) -> None:
        """What the connection was made with is its user's account no more."""
        self._stale = True
        if self._open:
            self._end_with("not_connected", f"{self._name} was left: your account there is another one")

    async def _converse(self, socket: WebSocket) -> None:
        written = trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, socket, written)
                nursery.start_soon(self._read, socket)
                nursery.start_soon(self._keep_alive, socket)
                await self._ending.wait()
                if self._closing:
                    self._outbox.close()
                    with trio.move_on_after(self._limits.flush):
                        await written.wait()
                else:
                    self._tell_end()  # who waits is told at once
                nursery.cancel_scope.cancel()
            await socket.close()
        finally:
            socket.abort()

    async def _write(self, socket: WebSocket, written: trio.Event) -> None:
        try:
            while batch := await self._outbox.take(1):
                for item in batch:
                    await socket.send(item.frame)
                    if item.tag is not None:
                        self._say(FrameAccepted(item.tag))
        except WireError as error:
            self._failed(error)
        written.set()

    async def _read(self, socket: WebSocket) -> None:
        n = 0
        try:
            while True:
                self._say(FrameReceived(await socket.receive()))
                n += 1
                if n % FRAMES_PER_TURN == 0:
                    await trio.lowlevel.checkpoint()
        except WireError as error:
            self._failed(error)

    async def _keep_alive(self, socket: WebSocket) -> None:
        try:
            await socket.keep_alive()
        except WireError as error:
            self._failed(error)

    # The end

    def _failed(self, error: WireError) -> None:
        reason = "too_large" if isinstance(error, SizeError) else reason_of(error)
        if self._open and isinstance(error, PeerError):
            reason = "socket_closed"
        self._end_with(reason, f"{self._name}: {error}", f"{self._name}: {error.detail}" if error.origin else "")

    def _unsent(self, reason: str) -> str:
        return "not_sent" if self._open else reason


def _headers(lines: bytes) -> list[tuple[str, str]]:
    """Header lines as names and values."""
    pairs = (line.partition(b":") for line in lines.split(b"\r\n") if line)
    return [(name.decode("latin-1"), value.strip().decode("latin-1")) for name, _, value in pairs]


def _is_ours(header: str) -> bool:
    """Whether the handshake needs it; configuration does not replace it."""
    return header in OURS or header.startswith("sec-websocket-")
