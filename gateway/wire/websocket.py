"""Outgoing WebSocket connections (RFC 6455) with the subprotocol `mcp`: each message is one text message.

trio-websocket does the protocol. Added here: our own dialling (TLS, Unix domain sockets), deadlines for the handshake
and for a peer that does not read or is gone, and a bound on what a peer sends besides messages. Compression is not
offered, so a message is no larger than what was read.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from ssl import SSLContext
from typing import Any, Final, cast

import trio
from trio_websocket import ConnectionClosed, ConnectionRejected, WebSocketConnection, wrap_client_stream

from actors.runtime.boundary import Boundary, boundary
from actors.runtime.exits import Exit
from gateway.wire.errors import ConnectError, DeadlineError, PeerError, SizeError, WireError
from gateway.wire.http1_client import encode_headers
from gateway.wire.pool import Dial, trust_of
from gateway.wire.streams import WireStream, dial, send_steadily
from gateway.wire.url import Url

SUBPROTOCOL: Final = "mcp"
ON_SOCKET: Final = "/ws"
"""Where it is on a Unix domain socket."""
CHUNK: Final = 65536
"""Bytes of one read."""
QUEUED: Final = 4
"""Messages that were read and not taken: the peer waits then."""
BESIDES: Final = 1024 * 1024
"""Bytes between two messages that are none: pings, and heads of fragments."""
UNSUPPORTED, TOO_BIG = 1003, 1009
"""Codes of a close."""


@dataclass(frozen=True, slots=True)
class WebSocketLimits:
    """The bounds of one connection. Times in seconds, sizes in bytes."""

    message_bytes: int = 4 * 1024 * 1024
    """A message of the peer."""
    opening: float = 10.0
    """For the connection, and once more for the handshake."""
    write: float = 30.0
    """For the peer to read a message."""
    ping: float = 25.0
    """Between two pings: a peer that is gone without a word is noticed, and whoever is between keeps the connection."""
    pong: float = 20.0
    """For the answer to one."""
    close: float = 1.0
    """Seconds for the closing handshake."""


class RefusedError(WireError):
    """The peer answered the handshake with an HTTP status."""

    def __init__(self, status: int, origin: str, challenge: str = "") -> None:
        """`challenge`: its `WWW-Authenticate`."""
        super().__init__(f"the server answered with HTTP {status}", sent=False, origin=origin)
        self.status = status
        self.challenge = challenge


class WebSocket:
    """One connection, made by `open_websocket`. One task sends, one receives."""

    def __init__(self, stream: "_Stream", limits: WebSocketLimits) -> None:
        self._stream = stream
        self._limits = limits
        self._connection: WebSocketConnection | None = None
        self._opening = trio.CancelScope()
        self._reader: Exit | None = None
        """How the library's reading ended."""

    async def open(self, nursery: trio.Nursery, url: Url, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """The handshake. Raises RefusedError, ConnectError."""
        self._opening.deadline = trio.current_time() + self._limits.opening
        with self._opening:
            self._connection = await wrap_client_stream(
                cast(trio.Nursery, _Guarded(nursery, self._ended)),
                cast(trio.SocketStream, self._stream),
                url.origin.authority,
                url.target,
                subprotocols=[SUBPROTOCOL],
                extra_headers=list(headers),
                message_queue_size=QUEUED,
                max_message_size=self._limits.message_bytes,
                receive_buffer_size=CHUNK,
            )
        if self._connection is not None:
            return
        origin, error = str(url.origin), self._reader.error if self._reader is not None else None
        if isinstance(error, ConnectionRejected):
            fields = [value.decode("latin-1") for name, value in error.headers or () if name == b"www-authenticate"]
            raise RefusedError(error.status_code, origin, ", ".join(fields))
        why = "no handshake" if self._reader is None else "the peer does not speak WebSocket there"
        raise ConnectError(f"{why} within {self._limits.opening:g} s" if self._reader is None else why, origin)

    async def send(self, message: bytes) -> None:
        """A message in UTF-8. Raises PeerError, DeadlineError."""
        assert self._connection is not None
        with Boundary() as inside:
            await self._connection.send_message(message.decode())
        if inside.exit.error is not None:
            raise self._why()

    async def receive(self) -> bytes:
        """The next message. Raises SizeError, PeerError."""
        assert self._connection is not None
        try:
            message = await self._connection.get_message()
        except ConnectionClosed:
            raise self._why() from None
        self._stream.between = 0
        if isinstance(message, bytes):
            await self.close(UNSUPPORTED)
            raise PeerError("the peer sent a binary message", sent=True)
        frame = message.encode()
        if len(frame) > self._limits.message_bytes:  # the library counts characters
            await self.close(TOO_BIG)
            raise self._too_large()
        return frame

    async def keep_alive(self) -> None:
        """Pings the peer for ever. Raises DeadlineError once it does not answer, PeerError once it is gone."""
        assert self._connection is not None
        while True:
            await trio.sleep(self._limits.ping)
            with trio.move_on_after(self._limits.pong) as waited, Boundary() as inside:
                await self._connection.ping()
            if inside.exit.error is not None:
                raise self._why()
            if waited.cancelled_caught:
                self.abort()
                raise DeadlineError(f"the peer did not answer a ping within {self._limits.pong:g} s", sent=True)

    async def close(self, code: int = 1000) -> None:
        """Ends the connection with the closing handshake, if the peer answers it in time."""
        assert self._connection is not None
        try:
            with trio.move_on_after(self._limits.close), Boundary():
                await self._connection.aclose(code)
        finally:
            self.abort()

    def abort(self) -> None:
        """Cuts the connection without a word."""
        self._stream.close()

    def _ended(self, exit: Exit) -> None:
        self._reader = exit
        self._opening.cancel()
        self.abort()

    def _why(self) -> WireError:
        """Nothing more comes or goes."""
        if self._stream.trouble is not None:
            return self._stream.trouble
        closed = self._connection.closed if self._connection is not None else None
        if closed is not None and closed.code == TOO_BIG:
            return self._too_large()
        return PeerError("the connection was closed" + (f" ({closed.name})" if closed is not None else ""), sent=True)

    def _too_large(self) -> SizeError:
        return SizeError(f"a message of more than {self._limits.message_bytes} bytes", sent=True)


async def open_websocket(
    nursery: trio.Nursery,
    url: Url,
    headers: Iterable[tuple[str, str]] = (),
    *,
    tls: SSLContext | None = None,
    limits: WebSocketLimits | None = None,
    connect: Dial = dial,
) -> WebSocket:
    """Connects and shakes hands; what comes is read in `nursery`. Raises WireError, of which nothing was sent;
    HeaderError (a ValueError) for headers that are none."""
    limits = limits or WebSocketLimits()
    encode_headers(headers := list(headers))
    stream = _Stream(await connect(url.origin, trust_of(url.origin, tls), limits.opening), limits)
    socket, opened = WebSocket(stream, limits), False
    try:
        await socket.open(nursery, url, [(name.encode(), value.strip(" \t").encode()) for name, value in headers])
        opened = True
    finally:
        if not opened:
            socket.abort()
    return socket


class _Guarded:
    """A nursery for the library's task: it raises for a peer that breaks the rules."""

    def __init__(self, nursery: trio.Nursery, on_exit: Callable[[Exit], object]) -> None:
        self._nursery = nursery
        self._on_exit = on_exit

    def start_soon(self, fn: Callable[..., Awaitable[object]], *args: Any) -> None:
        """As of a nursery."""
        self._nursery.start_soon(self._run, fn, *args)

    async def _run(self, fn: Callable[..., Awaitable[object]], *args: Any) -> None:
        await boundary(fn, *args, on_exit=self._on_exit)


class _Stream(trio.abc.Stream):
    """What the library reads and writes. `trouble` is what it is ended for, if not by the peer."""

    def __init__(self, stream: WireStream, limits: WebSocketLimits) -> None:
        self._stream = stream
        self._limits = limits
        self.between = 0
        """Bytes that came since the last whole message."""
        self.trouble: WireError | None = None

    async def send_all(self, data: Any) -> None:
        """One frame, by one task at a time."""
        await trio.lowlevel.checkpoint_if_cancelled()
        sent = self._stream.send_nowait(data)
        if sent == len(data):
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        if await send_steadily(self._stream, memoryview(data)[sent:], self._limits.write):
            return
        self._fail(DeadlineError(f"the peer did not read a message within {self._limits.write:g} s", sent=True))

    async def wait_send_all_might_not_block(self) -> None:
        """It may always."""
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """What is there."""
        data = await self._stream.receive_some(max_bytes or CHUNK)
        self.between += len(data)
        if self.between > self._limits.message_bytes + BESIDES:
            self._fail(SizeError("too much that is no message", sent=True))
        return data

    def _fail(self, trouble: WireError) -> None:
        self.trouble = self.trouble or trouble
        self.close()
        raise trio.BrokenResourceError(str(trouble))

    async def aclose(self) -> None:
        """As `close`."""
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """At once."""
        self._stream.close()
