"""Outgoing HTTP/1.1 over connections that are kept alive.

Guarantees:
* A request is sent at most once. It is moved to another connection only when no byte of it was given to the first.
* A connection is used again only after a whole response on it that allows this, and if nothing came since. Whatever is
  cancelled, half-read or broken closes its own connection and harms no other; the pool stays usable.
* Bounded: connections and waiting requests per origin, the time to wait, to connect, to write; the head of a response.
  The body comes at the caller's pace and is bounded by the caller.

Not here: redirects, compression, cookies, HTTP proxies, retries. Their absence is meant.
"""

import math
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import Final, Self, TypeAlias

import trio

from gateway.wire.errors import DeadlineError, PeerError, SizeError, WireError
from gateway.wire.http1_client import ResponseParser, encode_headers, encode_request
from gateway.wire.origins import OriginPool
from gateway.wire.streams import WireStream, dial
from gateway.wire.url import Origin, Url, parse_url

Dial: TypeAlias = Callable[[Origin, ssl.SSLContext | None, float], Awaitable[WireStream]]

CHUNK: Final = 65536
"""Bytes of one read."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """The bounds of a pool. Times in seconds."""

    connections: int = 1024
    """Open connections to one origin."""
    waiting: int = 1024
    """Requests that wait for a connection to one origin; a further one fails at once."""
    wait: float = 10.0
    """How long they wait."""
    idle: int = 128
    """Idle connections to one origin that are kept."""
    idle_time: float = 30.0
    """How long they are kept; they are closed at the next use of the origin after it, or by `expire`."""
    connect: float = 10.0
    """For name, TCP and TLS together."""
    write: float = 30.0
    """For writing one whole request."""


class Connection:
    """One connection and the parser of its responses."""

    __slots__ = ("home", "idle_since", "parser", "stream")

    def __init__(self, stream: WireStream, home: "OriginPool[Connection]") -> None:
        self.stream = stream
        self.home = home
        self.parser = ResponseParser()
        self.idle_since = -math.inf

    def is_usable(self) -> bool:
        return self.parser.reusable and self.stream.is_quiet()

    def close(self) -> None:
        self.stream.close()
        self.parser.close()

    async def send(self, data: bytes, within: float) -> None:
        """Writes a whole request. Raises WireError, which knows whether anything was given to the peer."""
        sent = 0
        try:
            sent = self.stream.send_nowait(data)
            if sent == len(data):
                return
            with trio.move_on_after(within):
                # From here on it is not known how much was taken.
                rest, sent = memoryview(data)[sent:], max(sent, 1)
                await self.stream.send_all(rest)
                return
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise PeerError(f"the connection broke while a request was written: {error}", sent=sent > 0) from error
        raise DeadlineError(f"the peer did not read a request within {within:g} s", sent=True)

    async def receive(self) -> None:
        """Feeds the parser once."""
        try:
            data = await self.stream.receive_some(CHUNK)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise PeerError(f"the connection broke: {error}", sent=True) from error
        if data:
            self.parser.feed(data)
        else:
            self.parser.feed_eof()

    async def receive_head(self) -> None:
        """Feeds the parser until it has a head."""
        await self.receive()
        while not self.parser.status:
            await self.receive()


class Response:
    """A response whose head has come. Read it to its end, or close it; a `with` block does the latter."""

    __slots__ = ("_connection", "_left", "headers", "status")

    def __init__(self, connection: Connection) -> None:
        self.status = connection.parser.status
        self.headers = connection.parser.headers
        self._connection: Connection | None = connection
        self._left = b""
        if connection.parser.complete:
            self._left = connection.parser.take_body()
            self._let_go()

    def __repr__(self) -> str:
        return f"<Response {self.status}{'' if self._connection else ' whole'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def whole(self) -> bool:
        """Whether all of it has come, so that reading the rest does not wait."""
        return self._connection is None

    def header(self, name: bytes) -> bytes:
        """By its lower-case name; empty if it is not there."""
        return self.headers.get(name, b"")

    async def receive_some(self) -> bytes:
        """The next piece of the body, b"" at its end. Raises PeerError. A cancelled call loses nothing."""
        connection = self._connection
        if connection is None:
            left, self._left = self._left, b""
            return left
        parser = connection.parser
        data = parser.take_body()
        while not data and not parser.complete:
            try:
                await connection.receive()
            except WireError:
                self.close()
                raise
            data = parser.take_body()
        if parser.complete:
            self._let_go()
        return data

    async def read(self, limit: int) -> bytes:
        """The rest of the body, of at most `limit` bytes. Raises SizeError, PeerError."""
        pieces: list[bytes] = []
        size = 0
        while piece := await self.receive_some():
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                self.close()
                raise SizeError(f"an answer of more than {limit} bytes", sent=True)
        return b"".join(pieces)

    def close(self) -> None:
        """Gives up what was not read, and the connection with it. May be called twice."""
        connection, self._connection = self._connection, None
        self._left = b""
        if connection is not None:
            connection.home.discard(connection)

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if connection.parser.reusable:
            connection.home.release(connection)
        else:
            connection.home.discard(connection)


@cache
def _system_trust() -> ssl.SSLContext:
    """Made at the first need, and once: reading the system's certificates takes some 20 ms."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class Pool:
    """See the module. `tls` replaces the system's certificate authorities, `connect` the way to a stream; `has_room`
    says whether a connection may be taken over from another pool, where `connect` is not asked."""

    def __init__(
        self,
        limits: PoolLimits | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        connect: Dial = dial,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        self._limits = limits or PoolLimits()
        self._tls = tls
        self._dial = connect
        self._has_room = has_room
        self._origins: dict[Origin, OriginPool[Connection]] = {}

    def __repr__(self) -> str:
        return f"<Pool {' '.join(f'{origin}: {pool!r}' for origin, pool in self._origins.items()) or 'unused'}>"

    async def request(
        self,
        method: str,
        url: Url | str,
        headers: bytes | Iterable[tuple[str, str]] = b"",
        body: bytes | None = None,
        *,
        answer_within: float = math.inf,
    ) -> Response:
        """Sends a request and waits for the head of its response, at most `answer_within` seconds.

        `headers` may be what `encode_headers` made. Raises WireError; ValueError for a URL or header that is none.
        """
        url = parse_url(url) if isinstance(url, str) else url
        headers = headers if isinstance(headers, bytes) else encode_headers(headers)
        # What was cancelled before it began is not sent: the fast path below has no other checkpoint before that.
        await trio.lowlevel.checkpoint_if_cancelled()
        data = encode_request(method.encode(), url.request_line_end, headers, body)
        home = self._home(url.origin)
        while (connection := home.take_idle()) is not None:
            try:
                return await self._exchange(connection, data, answer_within)
            except PeerError as error:
                if error.sent:
                    raise
        connection = await home.acquire(lambda: self._connect(url.origin, home))
        return await self._exchange(connection, data, answer_within)

    @property
    def open(self) -> int:
        """Connections that are open, or about to be."""
        return sum(home.open for home in self._origins.values())

    def drop_idle(self) -> None:
        """Closes what is idle; more may be opened."""
        for home in self._origins.values():
            home.drop_idle()

    def take_idle_of(self, other: "Pool", url: Url) -> None:
        """Takes over a connection to this origin that another pool keeps idle, if there is one and room for it."""
        home = self._home(url.origin)
        if home.idle or not home.has_room or not self._has_room():
            return
        connection = other._home(url.origin).part_with_idle()
        if connection is not None:
            connection.home = home
            home.take_in(connection)

    def expire(self) -> None:
        """Closes what has been idle for too long."""
        for home in self._origins.values():
            home.expire(trio.current_time())

    def close(self) -> None:
        """Closes what is idle at once, and the rest as it comes free."""
        for home in self._origins.values():
            home.close()

    async def _exchange(self, connection: Connection, data: bytes, within: float) -> Response:
        parser = connection.parser
        answered = False
        try:
            parser.expect()
            await connection.send(data, self._limits.write)
            if within == math.inf:
                await connection.receive_head()
            else:
                with trio.move_on_after(within):
                    await connection.receive_head()
                if not parser.status:
                    raise DeadlineError(f"no answer within {within:g} s", sent=True)
            if parser.headers.get(b"content-encoding", b"identity") != b"identity":
                raise PeerError("the answer is compressed, which was not offered", sent=True)
            answered = True
        finally:
            if not answered:
                connection.home.discard(connection)
        return Response(connection)

    async def _connect(self, origin: Origin, home: OriginPool[Connection]) -> Connection:
        return Connection(await self._dial(origin, self._context(origin), self._limits.connect), home)

    def _context(self, origin: Origin) -> ssl.SSLContext | None:
        if origin.scheme != "https":
            return None
        return self._tls or _system_trust()

    def _home(self, origin: Origin) -> OriginPool[Connection]:
        home = self._origins.get(origin)
        if home is None:
            limits = self._limits
            home = self._origins[origin] = OriginPool(
                connections=limits.connections,
                waiting=limits.waiting,
                wait=limits.wait,
                idle=limits.idle,
                idle_time=limits.idle_time,
            )
        return home
