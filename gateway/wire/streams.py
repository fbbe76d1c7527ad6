"""Outgoing byte streams: TCP, and TLS over it.

Both offer what a request needs and no more, without checkpoints that it does not need: a request that fits into the
socket's buffer is written with one system call and no deadline, for nothing can stall there. Closing is synchronous.
"""

import socket
import ssl
from typing import Final, Protocol

import trio

from gateway.wire.errors import ConnectError
from gateway.wire.url import Origin

KEEP_ALIVE: Final = (
    ("SO_KEEPALIVE", socket.SOL_SOCKET, 1),
    ("TCP_KEEPIDLE", socket.IPPROTO_TCP, 60),
    ("TCP_KEEPALIVE", socket.IPPROTO_TCP, 60),  # macOS's word for it
    ("TCP_KEEPINTVL", socket.IPPROTO_TCP, 15),
    ("TCP_KEEPCNT", socket.IPPROTO_TCP, 4),
)
"""An event stream may be silent for hours; a peer that vanished without a word is noticed within two minutes."""


class WireStream(Protocol):
    """One connection. Errors of the operating system and of TLS arrive as trio.BrokenResourceError."""

    def send_nowait(self, data: bytes) -> int:
        """How many bytes could be given to the peer without waiting."""

    async def send_all(self, data: memoryview) -> None: ...

    async def receive_some(self, at_most: int) -> bytes:
        """b"" at the end."""

    def is_quiet(self) -> bool:
        """Whether an idle connection is as it was: not closed by the peer, and nothing has come unasked."""

    def close(self) -> None: ...


class TcpStream:
    """A connected non-blocking socket."""

    __slots__ = ("_sock",)

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def send_nowait(self, data: bytes | memoryview) -> int:
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError(error.strerror) from error

    async def send_all(self, data: memoryview) -> None:
        while data:
            await trio.lowlevel.wait_writable(self._sock)
            data = data[self.send_nowait(data) :]

    async def receive_some(self, at_most: int) -> bytes:
        while True:
            await trio.lowlevel.wait_readable(self._sock)
            try:
                return self._sock.recv(at_most)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError(error.strerror) from error

    def is_quiet(self) -> bool:
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        if self._sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()


class TlsStream:
    """TLS. It is closed without the farewell of TLS, as HTTP allows: a response says itself whether it is whole."""

    __slots__ = ("_socket", "_tls")

    def __init__(self, tls: "trio.SSLStream[trio.SocketStream]") -> None:
        self._tls = tls
        self._socket = tls.transport_stream.socket

    def send_nowait(self, data: bytes) -> int:
        return 0

    async def send_all(self, data: memoryview) -> None:
        await self._tls.send_all(bytes(data))

    async def receive_some(self, at_most: int) -> bytes:
        return bytes(await self._tls.receive_some(at_most))

    def is_quiet(self) -> bool:
        return not self._socket.is_readable()

    def close(self) -> None:
        self._socket.close()


async def dial(origin: Origin, tls: ssl.SSLContext | None, within: float) -> WireStream:
    """Connects, `tls` for https, in at most `within` seconds. Raises ConnectError."""
    with trio.move_on_after(within):
        try:
            stream = await trio.open_tcp_stream(origin.host, origin.port)
        except OSError as error:
            raise ConnectError(f"{origin}: {_why(error)}") from error
        for name, level, value in KEEP_ALIVE:
            if hasattr(socket, name):
                stream.setsockopt(level, getattr(socket, name), value)
        if tls is None:
            return TcpStream(_own(stream))
        return await _handshake(stream, origin, tls)
    raise ConnectError(f"{origin}: no connection within {within:g} s")


def _own(stream: trio.SocketStream) -> socket.socket:
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    return sock


async def _handshake(stream: trio.SocketStream, origin: Origin, tls: ssl.SSLContext) -> TlsStream:
    secure = trio.SSLStream(stream, tls, server_hostname=origin.host, https_compatible=True)
    done = False
    try:
        await secure.do_handshake()
        done = True
    except trio.BrokenResourceError as error:
        raise ConnectError(f"{origin}: TLS: {error.__cause__ or 'the peer closed the connection'}") from error
    finally:
        if not done:
            stream.socket.close()
    return TlsStream(secure)


def _why(error: OSError) -> str:
    # trio gathers the failures of all addresses of a host into one group.
    causes = error.__cause__.exceptions if isinstance(error.__cause__, BaseExceptionGroup) else (error,)
    return "; ".join(dict.fromkeys(getattr(cause, "strerror", None) or str(cause) for cause in causes))
