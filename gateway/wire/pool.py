"""Outgoing HTTP/1.1 over connections that are kept alive.

Guarantees:
* A request is sent at most once. It is moved to another connection only when no byte of it was given to the first, and
  to a few at most, besides those that were idle.
* A connection is used again only after a whole response on it that allows this, if nothing came since, and not when the
  peer is about to close it by what it said. Whatever is cancelled, half-read or broken closes its own connection and
  harms no other; the pool stays usable.
* Bounded: connections and waiting requests per origin, the time to wait, to connect, to write; the head of a response.
  The body comes at the caller's pace and is bounded by the caller.

Each connection of requests that nobody waits for in a task of his own (`Pool.start`) has one task, its *worker*, for as
long as it is kept: it waits for the answer, and while there is none to wait for it notices the end of the connection.

Not here: redirects, compression, cookies, HTTP proxies, retries. Their absence is meant.
"""

import math
import ssl
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from types import TracebackType
from typing import Final, Self, TypeAlias

import trio

from actors.runtime.boundary import boundary, thread_boundary
from gateway.wire.errors import DeadlineError, PeerError, SizeError, WireError
from gateway.wire.http1_client import ResponseParser, encode_headers, encode_request, kept_alive
from gateway.wire.origins import OriginPool
from gateway.wire.streams import WireStream, dial, send_steadily
from gateway.wire.url import SECURE, Origin, Url, parse_url
from gateway.wire.watch import Wake, Watch

Dial: TypeAlias = Callable[[Origin, ssl.SSLContext | None, float], Awaitable[WireStream]]
Acquire: TypeAlias = Callable[[], Awaitable["Connection"]]
OnCrash: TypeAlias = Callable[[BaseException], object]

NO_HEADERS: Final[Mapping[bytes, bytes]] = {}
CHUNK, MORE = 65536, 262144
"""Bytes of one read; and of the next one, if that was full."""
CLOSING: Final = 1.0
"""Seconds before the end that is expected of an idle connection, in which nothing is sent on it any more: of a request
that crosses with the end nobody knows whether it was executed."""
UNANNOUNCED: Final = 5.0
"""Seconds after which a peer may close an idle connection without having announced it: uvicorn, under most servers
written in Python, does so after five."""
TRIES: Final = 3
"""Connections that a request is given, one after the other, if they break before a byte of it went out."""


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
    """How long they are kept, of which they are used as long as the peer announced, else for a moment (`UNANNOUNCED`).
    They are closed at the next use of the origin after it, or by `expire`."""
    connect: float = 10.0
    """For name, TCP and TLS together."""
    write: float = 30.0
    """For writing one whole request."""


class Connection:
    """One connection and the parser of its responses."""

    __slots__ = ("_at_most", "_watch", "home", "idle_at_most", "idle_since", "parser", "stream", "worker")

    def __init__(self, stream: WireStream, home: "OriginPool[Connection]", watch: Watch | None = None) -> None:
        self.stream = stream
        self.home = home
        self._watch = watch
        self.parser = ResponseParser()
        self.idle_since = -math.inf
        self.idle_at_most = UNANNOUNCED - CLOSING
        self._at_most = CHUNK
        self.worker: Worker | None = None
        """Who waits for what comes, if that is not the task that sent the request."""

    def give_to(self, worker: "Worker | None") -> None:
        """From here on nobody else reads. A worker that is still busy with an answer finds it out when it has done."""
        before, self.worker = self.worker, worker
        if before is not None and before.exchange is None:
            before.scope.cancel()

    def is_usable(self) -> bool:
        return self.parser.reusable and self.stream.is_quiet()

    def rest(self, wake: Wake) -> bool:
        """See `Response.rest`."""
        assert self._watch is not None
        if self.parser.has_more or not self.stream.is_quiet():
            return False
        self._watch.start(self.stream.fileno(), wake)
        self.parser.headers = NO_HEADERS
        return True

    def close(self) -> None:
        self.give_to(None)
        if self._watch is not None:
            self._watch.stop(self.stream.fileno())
        self.stream.close()
        self.parser.close()

    async def send(self, data: bytes, within: float, sent: int | None = None) -> None:
        """Writes a whole request, of which so many bytes were written if it was begun. Raises WireError, which knows
        whether anything was given to the peer."""
        try:
            if sent is None:
                sent = 0
                sent = self.stream.send_nowait(data)
            if sent == len(data):
                return
            # From here on it is not known how much was taken.
            rest, sent = memoryview(data)[sent:], max(sent, 1)
            if await send_steadily(self.stream, rest, within):
                return
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise PeerError(f"the connection broke while a request was written: {error}", sent=bool(sent)) from error
        raise DeadlineError(f"the peer did not read a request within {within:g} s", sent=True)

    async def wait_readable(self) -> None:
        """Until something comes, or the end."""
        try:
            await self.stream.wait_readable()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise PeerError(f"the connection broke: {error}", sent=True) from error

    async def receive(self, ready: bool = False) -> None:
        """Feeds the parser once; `ready`: without a wait, if there is something."""
        at_most = self._at_most if self.parser.status else CHUNK  # a head is bounded by the bytes of a read
        try:
            data = await self.stream.receive_some(at_most, ready)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise PeerError(f"the connection broke: {error}", sent=True) from error
        self._at_most = CHUNK if len(data) < at_most else MORE
        if data:
            self.parser.feed(data)
        else:
            self.parser.feed_eof()

    async def receive_head(self, ready: bool = False) -> None:
        """Feeds the parser until it has a head; `ready`: the first time without a wait, if there is something."""
        await self.receive(ready)
        while not self.parser.status:
            await self.receive()
        announced = self.parser.headers.get(b"keep-alive")
        if announced is not None and (seconds := kept_alive(announced)) is not None:
            self.idle_at_most = seconds - CLOSING
        if self.parser.headers.get(b"content-encoding", b"identity") != b"identity":
            raise PeerError("the answer is compressed, which was not offered", sent=True)


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

    def rest(self, wake: Wake) -> bool:
        """Whether nothing more has come for now. Then `wake` is called once, when something does or the connection
        ends; until then nobody reads. For those who read without an end, of whom many wait: the headers are forgotten.
        """
        if self._connection is None or not self._connection.rest(wake):
            return False
        self.headers = NO_HEADERS
        return True

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


class Exchange(ABC):
    """A request that was sent by `Pool.start`, and what is done with its answer. In the task of the connection one of
    `answered` and `broke` is called, once; neither if it was cancelled before. `crashed` hears of a raise in them; what
    it raises itself harms nobody else, and the pool's `on_crash` hears of it."""

    __slots__ = ("scope",)

    def __init__(self) -> None:
        self.scope: trio.CancelScope | None = None
        """Round what is being done for it; None before and after."""

    def cancel(self) -> None:
        """Gives it up, and its connection unless the answer has come whole. What runs already goes on to its next
        checkpoint."""
        if self.scope is not None:
            self.scope.cancel()

    @abstractmethod
    async def answered(self, response: Response) -> None:
        """The head of the answer has come: reads the rest, or closes it."""

    @abstractmethod
    def broke(self, error: WireError) -> None:
        """There will be no answer."""

    @abstractmethod
    def crashed(self, error: BaseException) -> None:
        """By a fault of ours nobody knows of an answer."""


class Worker:
    """The task of a connection: waits for the answer to each exchange in turn, and stays while the connection is idle.

    `exchange` is None while there is nothing to wait for. Its first request is `data`, of which `sent` bytes were
    written already, if it was begun; `get` is the connection, or how to come by one. `on_crash` hears of a fault that
    belongs to no exchange.
    """

    __slots__ = ("_data", "_get", "_on_crash", "_sent", "_within", "exchange", "scope")

    def __init__(
        self,
        exchange: Exchange,
        get: Connection | Acquire,
        data: bytes,
        sent: int | None,
        within: float,
        on_crash: OnCrash,
    ) -> None:
        self.scope = trio.CancelScope()
        self.exchange: Exchange | None = None
        self._get: Connection | Acquire | None = get
        self._data = data
        self._sent = sent
        self._within = within
        self._on_crash = on_crash
        self.begin(exchange)

    def begin(self, exchange: Exchange) -> None:
        """The next request has been sent, or is about to be."""
        self.exchange = exchange
        exchange.scope = self.scope

    async def run(self) -> None:
        """Works as long as the connection is its own. Raises nothing but cancellation: others live in this nursery."""
        with self.scope:
            crash = (await boundary(self._run)).error
            if crash is not None and self.exchange is not None:
                crash = thread_boundary(self._done().crashed, crash).error
            if crash is not None:
                self._on_crash(crash)

    async def _run(self) -> None:
        try:
            await self._work()
        except WireError as error:
            if self.exchange is not None:
                self.exchange.broke(error)
                self._done()

    async def _work(self) -> None:
        get, self._get = self._get, None
        assert get is not None
        if isinstance(get, Connection):
            await self._keep(get)
            return
        # What was cancelled before it began is not sent: an idle connection may be had, and written to, at once.
        await trio.lowlevel.checkpoint_if_cancelled()
        for tries in range(TRIES, 0, -1):
            try:
                await self._keep(await get())
            except PeerError as error:
                if error.sent or tries == 1:
                    raise
            else:
                return

    async def _keep(self, connection: Connection) -> None:
        closes = True
        try:
            connection.give_to(self)
            connection.parser.expect()
            await connection.send(self._data, self._within, self._sent)
            self._data = b""  # a request may be large, and the worker lives as long as the connection
            # One that was cancelled when its answer was whole already has no more to lose but its task.
            while connection.worker is self and not self.scope.cancel_called:
                closes = True
                ready = self.exchange is None
                if ready:
                    # Nothing is read before it was asked for: who is to use the connection next must see it.
                    await connection.wait_readable()
                    if self.exchange is None:
                        return  # what comes was not asked for, or is the end
                await connection.receive_head(ready)
                closes = False  # from here on that is for who has the response
                assert self.exchange is not None
                await self.exchange.answered(Response(connection))
                self._done()
        finally:
            if connection.worker is self:
                connection.worker = None
                if closes and self.exchange is None:
                    connection.home.drop(connection)
                elif closes:
                    connection.home.discard(connection)

    def _done(self) -> Exchange:
        exchange, self.exchange = self.exchange, None
        assert exchange is not None
        exchange.scope = None
        return exchange


@cache
def _system_trust() -> ssl.SSLContext:
    """Made at the first need, and once: reading the system's certificates takes some 20 ms."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def trust_of(origin: Origin, tls: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """Whose certificates are trusted there: `tls`, or those of the system; None without TLS."""
    if origin.scheme not in SECURE:
        return None
    return tls or _system_trust()


def _raised(error: BaseException) -> object:
    raise error


class Pool:
    """See the module. `nursery` is where workers live, for `start`, and `on_crash` hears of their faults that belong to
    no exchange; `watch` waits for responses that rest; `tls` replaces the system's authorities, `connect` the way to a
    stream; `has_room` says whether a connection may be taken over from another pool, where `connect` is not asked."""

    def __init__(
        self,
        limits: PoolLimits | None = None,
        *,
        nursery: trio.Nursery | None = None,
        on_crash: OnCrash = _raised,
        watch: Watch | None = None,
        tls: ssl.SSLContext | None = None,
        connect: Dial = dial,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        self._limits = limits or PoolLimits()
        self._nursery = nursery
        self._on_crash = on_crash
        self._watch = watch
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
        home, tries = self._home(url.origin), TRIES
        while True:
            connection = home.take_idle()
            if connection is None:
                tries -= 1
                connection = await home.acquire(partial(self._connect, url.origin, home))
            try:
                return await self._exchange(connection, data, answer_within)
            except PeerError as error:
                if error.sent or not tries:
                    raise

    def start(self, method: str, url: Url, headers: bytes, body: bytes | None, exchange: Exchange) -> None:
        """Sends a request without waiting for anything; the exchange hears of its answer. As in `request`, it is moved
        to another connection only when no byte of it was given to the first."""
        assert self._nursery is not None
        data = encode_request(method.encode(), url.request_line_end, headers, body)
        home, within = self._home(url.origin), self._limits.write
        while (connection := home.take_idle()) is not None:
            try:
                sent = connection.stream.send_nowait(data)
            except trio.BrokenResourceError:
                home.discard(connection)
                continue
            worker = connection.worker
            if worker is not None and worker.exchange is None and sent == len(data):
                connection.parser.expect()
                worker.begin(exchange)
            else:
                connection.give_to(None)
                self._nursery.start_soon(Worker(exchange, connection, data, sent, within, self._on_crash).run)
            return
        connect = partial(home.acquire, partial(self._connect, url.origin, home))
        self._nursery.start_soon(Worker(exchange, connect, data, None, within, self._on_crash).run)

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
        connection.give_to(None)
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
            answered = True
        finally:
            if not answered:
                connection.home.discard(connection)
        return Response(connection)

    async def _connect(self, origin: Origin, home: OriginPool[Connection]) -> Connection:
        stream = await self._dial(origin, trust_of(origin, self._tls), self._limits.connect)
        return Connection(stream, home, self._watch)

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
