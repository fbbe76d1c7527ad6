"""Outgoing byte streams: TCP, TLS over it, and Unix domain sockets.

Both offer what a request needs and no more, without checkpoints that it does not need: a request that fits into the
socket's buffer is written with one system call and no deadline, for nothing can stall there. Closing is synchronous.
"""

import errno
import os
import socket
import ssl
from contextlib import suppress
from functools import lru_cache
from typing import Final, Protocol

import trio

from gateway.wire.errors import ConnectError
from gateway.wire.url import SOCKET, Origin

KEEP_ALIVE: Final = (
    ("SO_KEEPALIVE", socket.SOL_SOCKET, 1),
    ("TCP_KEEPIDLE", socket.IPPROTO_TCP, 60),
    ("TCP_KEEPALIVE", socket.IPPROTO_TCP, 60),  # macOS's word for it
    ("TCP_KEEPINTVL", socket.IPPROTO_TCP, 15),
    ("TCP_KEEPCNT", socket.IPPROTO_TCP, 4),
)
"""An event stream may be silent for hours; a peer that vanished without a word is noticed within two minutes."""
OPTIONS: Final = tuple(
    (level, getattr(socket, name), value) for name, level, value in KEEP_ALIVE if hasattr(socket, name)
)
"""Those that this system has."""

SOCKET_AGAIN: Final = 0.02
"""Seconds after which a Unix domain socket is tried again whose server has not accepted earlier ones yet."""
RECORDS: Final = 65536
"""Bytes that TLS is given at a time, to encrypt or to decrypt."""

PIECE: Final = 65536
"""Bytes that a peer has to take in the time of one write: who reads slowly is waited for, who takes nothing is not."""


class WireStream(Protocol):
    """One connection. Errors of the operating system and of TLS arrive as trio.BrokenResourceError."""

    def send_nowait(self, data: bytes) -> int:
        """How many bytes could be given to the peer without waiting; `send_all` takes the rest."""

    async def send_all(self, data: memoryview) -> None: ...

    async def receive_some(self, at_most: int, ready: bool = False) -> bytes:
        """b"" at the end. As soon as a call is cancelled another may follow, even if its task has not run since.
        `ready`: `wait_readable` has just returned, so that it is not waited for once more."""

    async def wait_readable(self) -> None:
        """Until there is something to receive, or the end; nothing is taken, so that `is_quiet` still sees it."""

    def fileno(self) -> int:
        """Of its socket, which becomes readable when a quiet connection is quiet no more; -1 once it is closed."""

    def is_quiet(self) -> bool:
        """Whether an idle connection is as it was: not closed by the peer, and nothing has come unasked."""

    def close(self) -> None: ...


class Taker(Protocol):
    """Whom bytes are given to."""

    async def send_all(self, data: memoryview) -> None: ...


async def send_steadily(stream: Taker, data: memoryview, within: float) -> bool:
    """Gives all of it to a peer that takes each piece within so many seconds; False: it has not, and part of the data
    may be out."""
    with trio.CancelScope() as patience:
        for start in range(0, len(data), PIECE):
            patience.deadline = trio.current_time() + within
            await stream.send_all(data[start : start + PIECE])
        return True
    return False


class TcpStream:
    """A connected non-blocking socket, perhaps a Unix domain socket."""

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
            await self.wait_writable()
            data = data[self.send_nowait(data) :]

    async def wait_writable(self) -> None:
        await trio.lowlevel.wait_writable(self._sock)

    async def receive_some(self, at_most: int, ready: bool = False) -> bytes:
        while True:
            if not ready:
                await trio.lowlevel.wait_readable(self._sock)
            ready = False
            try:
                return self._sock.recv(at_most)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError(error.strerror) from error

    async def wait_readable(self) -> None:
        try:
            await trio.lowlevel.wait_readable(self._sock)
        except OSError as error:
            raise trio.BrokenResourceError(error.strerror) from error

    def fileno(self) -> int:
        return self._sock.fileno()

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
    """TLS over a connected socket; what was received and not yet read is at hand, so that `is_quiet` can tell.

    It is closed without the close alert of TLS, as HTTP allows: a response says itself whether it is whole.
    """

    __slots__ = ("_begun", "_incoming", "_outgoing", "_tcp", "_tls", "_unsent")

    def __init__(self, tcp: TcpStream, context: ssl.SSLContext, host: str) -> None:
        self._tcp = tcp
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._unsent = b""
        """What was encrypted and is not sent. It goes before all else, whoever was cancelled while he sent it: half a
        record would spoil what follows."""
        self._begun = False
        """Whether that is the rest of what `send_nowait` was given, so that `send_all` has no more to do."""

    async def handshake(self) -> None:
        """Raises ssl.SSLError, and what the socket raises."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            else:
                await self._flush()
                return

    def send_nowait(self, data: bytes) -> int:
        if len(data) > RECORDS:
            return 0
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._tls.write(rest) :]
        except ssl.SSLError as error:
            raise trio.BrokenResourceError(error.reason) from error
        self._send_nowait()
        self._begun = bool(self._unsent)
        return 0 if self._begun else len(data)

    async def send_all(self, data: memoryview) -> None:
        if self._begun:
            self._begun = False
            await self._flush()
            return
        try:
            while data:
                data = data[self._tls.write(data[:RECORDS]) :]
                await self._flush()
        except ssl.SSLError as error:
            raise trio.BrokenResourceError(error.reason) from error

    async def receive_some(self, at_most: int, ready: bool = False) -> bytes:
        while True:
            try:
                return self._tls.read(at_most)
            except ssl.SSLWantReadError:
                await self._flush()  # it may have been asked for something, such as other keys
                await self._fill(ready)
                ready = False
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""
            except ssl.SSLError as error:
                raise trio.BrokenResourceError(error.reason) from error

    async def _flush(self) -> None:
        while self._unsent or self._outgoing.pending:
            await self._tcp.wait_writable()
            self._send_nowait()

    def _send_nowait(self) -> None:
        data = self._unsent + self._outgoing.read()
        self._unsent = data[self._tcp.send_nowait(data) :]

    async def _fill(self, ready: bool = False) -> None:
        if data := await self._tcp.receive_some(RECORDS, ready):
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    async def wait_readable(self) -> None:
        # Of the socket: the pieces of a record that were decrypted here would be seen by nobody until it is whole.
        await self._tcp.wait_readable()

    def fileno(self) -> int:
        return self._tcp.fileno()

    def is_quiet(self) -> bool:
        return not self._incoming.pending and not self._tls.pending() and self._tcp.is_quiet()

    def close(self) -> None:
        self._tcp.close()


async def dial(origin: Origin, tls: ssl.SSLContext | None, within: float) -> WireStream:
    """Connects, `tls` for https, in at most `within` seconds. Raises ConnectError."""
    with trio.move_on_after(within):
        try:
            if origin.scheme == SOCKET:
                return TcpStream(await _socket(origin.host))
            sock = await _connected(origin)
        except OSError as error:
            raise ConnectError(_why(error), str(origin)) from error
        for option in OPTIONS:
            sock.setsockopt(*option)
        tcp = TcpStream(sock)
        return tcp if tls is None else await _secured(tcp, origin, tls)
    raise ConnectError(f"no connection within {within:g} s", str(origin))


async def _socket(path: str) -> socket.socket:
    """Connected to the Unix domain socket there. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX)
    done = False
    try:
        sock.setblocking(False)
        while not done:
            await trio.lowlevel.checkpoint()
            try:
                sock.connect(path)
                done = True
            except BlockingIOError:  # too many wait to be accepted, and nothing tells when no longer
                await trio.sleep(SOCKET_AGAIN)
    finally:
        if not done:
            sock.close()
    return sock


async def _connected(origin: Origin) -> socket.socket:
    """To an address at once; to a name by way of all its addresses, the next one begun when one is slow."""
    family = _family(origin.host)
    if family is None:
        return _own(await trio.open_tcp_stream(origin.host, origin.port))
    sock = socket.socket(family)
    done = False
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if (error := sock.connect_ex((origin.host, origin.port))) == errno.EINPROGRESS:
            await trio.lowlevel.wait_writable(sock)
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        done = True
    finally:
        if not done:
            sock.close()
    return sock


@lru_cache(maxsize=1024)
def _family(host: str) -> socket.AddressFamily | None:
    """Of an address, without its brackets; None for a name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            socket.inet_pton(family, host)
            return family
    return None


def _own(stream: trio.SocketStream) -> socket.socket:
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    return sock


async def _secured(tcp: TcpStream, origin: Origin, tls: ssl.SSLContext) -> TlsStream:
    done = False
    try:
        secure = TlsStream(tcp, tls, origin.host)
        await secure.handshake()
        done = True
    except (trio.BrokenResourceError, ssl.SSLError, ValueError) as error:  # ValueError: no host for a certificate
        raise ConnectError(f"TLS: {_why_tls(error)}", str(origin)) from error
    finally:
        if not done:
            tcp.close()
    return secure


def _why(error: OSError) -> str:
    # trio gathers the failures of all addresses of a host into one group.
    causes = (
        error.__cause__.exceptions if isinstance(error.__cause__, BaseExceptionGroup) else (error.__cause__ or error,)
    )
    return "; ".join(dict.fromkeys(_word(cause) for cause in causes))


def _word(error: BaseException) -> str:
    """What the operating system calls it: the texts of others name addresses."""
    if isinstance(error, socket.gaierror):
        return "the host name is not known" if error.errno in _NO_NAME else "the host name can't be looked up"
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number is not None else "no connection"


_NO_NAME: Final = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))


def _why_tls(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        # The rest of it names the host.
        return f"the certificate can't be trusted ({error.verify_message.partition(',')[0]})"
    if isinstance(error, ssl.SSLError) and error.reason and not isinstance(error, ssl.SSLEOFError):
        return error.reason.replace("_", " ").lower()
    return "the peer closed the connection"
