"""HTTP/1.1 over trio and httptools with nothing round it: what floor, backend and load generator share.

Plain connections, keep-alive, chunked or sized bodies. No limits, no deadlines, no TLS: both ends are ours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import httptools
import trio

READ = 65536
Headers = Mapping[bytes, bytes]
"""Header fields by lower-case name."""


@dataclass
class Request:
    """A request with its whole body."""

    method: bytes = b""
    target: bytes = b""
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""


class ServerConnection:
    """The server's side of one connection: requests come out whole and in order; answers are written by hand."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._parser = httptools.HttpRequestParser(self)
        self._ready: deque[Request] = deque()
        self._request = Request()

    def on_message_begin(self) -> None:
        self._request = Request()

    def on_url(self, url: bytes) -> None:
        self._request.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._request.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._request.body += body

    def on_message_complete(self) -> None:
        self._request.method = self._parser.get_method()
        self._ready.append(self._request)

    async def next_request(self) -> Request | None:
        """The next request; None when the client has closed."""
        while not self._ready:
            data = await self.stream.receive_some(READ)
            if not data:
                return None
            self._parser.feed_data(data)
        return self._ready.popleft()

    async def answer(self, status: bytes, body: bytes = b"", extra: bytes = b"") -> None:
        """Writes a whole answer. `extra` is header lines, each with its line end."""
        head = b"HTTP/1.1 %b\r\n%bcontent-length: %d\r\n\r\n" % (status, extra, len(body))
        await self.stream.send_all(head + body)

    async def start_events(self, extra: bytes = b"") -> None:
        """Begins a chunked SSE answer."""
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n%btransfer-encoding: chunked\r\n\r\n" % extra
        await self.stream.send_all(head)

    async def piece(self, data: bytes) -> None:
        """Writes one chunk; an empty one ends the body."""
        await self.stream.send_all(b"%x\r\n%b\r\n" % (len(data), data))

    async def wait_closed(self) -> None:
        """Returns when the client has gone away."""
        while await self.stream.receive_some(READ):
            pass


class ClientConnection:
    """The client's side of one connection: one request at a time."""

    def __init__(self, stream: trio.SocketStream, host: bytes) -> None:
        self.host = host
        """Whom it leads to."""
        self._stream = stream
        self._pieces: deque[bytes] = deque()
        self._reset()

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._pieces.clear()
        self._head = self._complete = False
        self.status = 0
        self.headers: dict[bytes, bytes] = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._head = True

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self._complete = True

    async def _feed(self) -> None:
        data = await self._stream.receive_some(READ)
        if not data:
            raise trio.BrokenResourceError("the server closed the connection")
        self._parser.feed_data(data)

    async def request(self, method: bytes, target: bytes, headers: bytes, body: bytes = b"") -> int:
        """Sends a request and returns the status once the answer's head is there. `headers` are whole lines."""
        self._reset()
        head = b"%b %b HTTP/1.1\r\nhost: %b\r\n%bcontent-length: %d\r\n\r\n" % (
            method,
            target,
            self.host,
            headers,
            len(body),
        )
        await self._stream.send_all(head + body)
        while not self._head:
            await self._feed()
        return self.status

    async def piece(self) -> bytes:
        """The next part of the body as it comes; empty at its end."""
        while not self._pieces:
            if self._complete:
                return b""
            await self._feed()
        return self._pieces.popleft()

    async def body(self) -> bytes:
        """The rest of the body."""
        while not self._complete:
            await self._feed()
        if len(self._pieces) == 1:
            return self._pieces.popleft()
        whole = b"".join(self._pieces)
        self._pieces.clear()
        return whole

    def fileno(self) -> int:
        """The descriptor of its socket."""
        return self._stream.socket.fileno()

    def close(self) -> None:
        """Closes at once, whatever is under way."""
        self._stream.socket.close()


@dataclass(frozen=True)
class Address:
    """Where a server listens, and the path of its endpoint."""

    port: int
    path: bytes = b"/mcp"

    @property
    def url(self) -> str:
        """For clients that take one."""
        return f"http://127.0.0.1:{self.port}{self.path.decode()}"

    async def connect(self, receive_buffer: int | None = None) -> ClientConnection:
        """Opens a connection, with a receive buffer of so many bytes or the system's own."""
        sock = trio.socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, receive_buffer)
        try:
            await sock.connect(("127.0.0.1", self.port))
        except BaseException:
            sock.close()
            raise
        return ClientConnection(trio.SocketStream(sock), b"127.0.0.1:%d" % self.port)


class Pool:
    """Connections kept open to one address; the last one used is used first."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[ClientConnection] = []

    async def take(self) -> ClientConnection:
        """An idle connection, or a fresh one."""
        return self._idle.pop() if self._idle else await self._address.connect()

    def put(self, connection: ClientConnection) -> None:
        """Gives back a connection whose answer has been read."""
        self._idle.append(connection)


Handler = Callable[[ServerConnection], Awaitable[None]]


async def _connection(handler: Handler, stream: trio.SocketStream) -> None:
    try:
        await handler(ServerConnection(stream))
    except (OSError, trio.BrokenResourceError, httptools.HttpParserError):
        pass  # the client broke off, as load generators do
    finally:
        stream.socket.close()


async def serve(port: int, handler: Handler) -> None:
    """Serves 127.0.0.1:port for ever."""
    listeners = await trio.open_tcp_listeners(port, host="127.0.0.1", backlog=4096)
    await trio.serve_listeners(partial(_connection, handler), listeners)
