"""A backend behind a Streamable HTTP endpoint without sessions (2026-07-28, transports/streamable-http).

Each request is a POST of its own with headers of its own, and has its answer there: as JSON, or as a stream of events
that ends with it. To give a request up is to close its connection, and that is how a cancel is said. A broken stream is
not gone on with: the revision has no means for it. A JSON-RPC error is an answer whatever HTTP status it has; redirects
are not followed. The configured headers are credentials and are not logged.

What clients notify are POSTs too, in order as far as the backend accepts them in time; whether it does is nobody's to
know.
"""

from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import trio
from msgspec import Struct

from actors.ports import (
    NO_RIGHTS,
    FrameReceived,
    Headers,
    Log,
    RequestFailed,
    Rights,
    SpeaksSse,
    TransportClosed,
    TransportEvent,
    TransportKind,
)
from actors.protocol.messages import RequestId
from actors.protocol.sse import SseDecoder
from actors.protocol.table import HttpTarget
from actors.runtime.boundary import Boundary
from gateway.backends.bound import BoundTransport
from gateway.backends.credentials import Credentials
from gateway.backends.http_call import Endpoint, HttpExchange, HttpLimits, Over, refusal_body
from gateway.backends.outbox import Outbox
from gateway.backends.outbox import Outgoing as Notice
from gateway.wire.errors import WireError
from gateway.wire.http1_client import encode_headers
from gateway.wire.http_events import EventTrail, read_events
from gateway.wire.http_rules import OURS_ONLY, Kind, answers, error_code, executed_by, kind_of, read, worded
from gateway.wire.http_session import MESSAGE, HttpSession, configured_headers
from gateway.wire.pool import Pool, Response
from gateway.wire.url import parse_url

PROBE: Final = ("Mcp-Method", "server/discover")
"""Marks the first request, by whose refusal servers with another transport are known."""
LISTEN: Final = ("Mcp-Method", "subscriptions/listen")
"""Marks the requests that stay open: they have connections of their own, and take no place from the others."""


class Outgoing(Struct, frozen=True):
    """A request on its way."""

    id: RequestId
    frame: bytes
    headers: Headers
    rights: Rights

    @property
    def listens(self) -> bool:
        """Whether its answer takes for ever."""
        return LISTEN in self.headers


class ModernHttpTransport(BoundTransport):
    """See `actors.ports.Transport`. There is no connection to speak of: it ends when it is closed."""

    kind: TransportKind = "http"

    def __init__(
        self,
        name: str,
        target: HttpTarget,
        emit: Callable[[TransportEvent], None],
        *,
        calls: Pool,
        streams: Pool,
        log: Log,
        limits: HttpLimits,
        credentials: Credentials | None = None,
        redact: Callable[[str], str] = str,
    ) -> None:
        """ValueError for a URL or headers that are none. `redact`: as in `Endpoint`."""
        self._log = log
        sse = HttpSession(target.headers).get_headers() if target.may_be_sse else None
        self._end = Endpoint(name, parse_url(target.url), calls, streams, limits, emit, sse, credentials, redact)
        self._own = _own(target.headers)
        """Headers that every request has."""
        self._nursery: trio.Nursery | None = None
        self._running: dict[RequestId, _Exchange] = {}
        self._listening: dict[RequestId, _Exchange] = {}
        self._waiting: deque[Outgoing] = deque()
        self._notices = Outbox(limits.waiting, limits.waiting_bytes)
        self._ending = trio.Event()
        self._told = False

    def __repr__(self) -> str:
        return (
            f"<ModernHttpTransport {self._end.name}: {len(self._running)} requests, {len(self._listening)} listens, "
            f"{len(self._waiting)} wait>"
        )

    # The port's synchronous half

    def send(
        self,
        frame: bytes,
        *,
        id: RequestId | None = None,
        tag: int | None = None,
        headers: Headers = (),
        rights: Rights = NO_RIGHTS,
    ) -> None:
        """Starts the request, or lets it wait for its turn; what does not fit fails, unexecuted. A notification that
        does not fit is dropped."""
        if id is None:
            if not self._notices.put(Notice(frame, headers=headers)) and not self._ending.is_set():
                self._log.warning("backend_message_dropped", backend=self._end.name, why="outbox full")
            return
        if self._told:
            return
        outgoing, limits = Outgoing(id, frame, headers, rights), self._end.limits
        if self._ending.is_set() or len(self._waiting) >= limits.shared or self._waits(frame) > limits.waiting_bytes:
            self._end.emit(RequestFailed(id, "not_sent", f"{self._end.name} takes no more requests", "no"))
        elif self._nursery is None or not self._has_room(outgoing) or not self._end.usable(rights):
            self._waiting.append(outgoing)
            self._start_waiting()
        else:
            self._start(outgoing)

    def _waits(self, more: bytes) -> int:
        """Bytes that would wait with these."""
        return sum(len(outgoing.frame) for outgoing in self._waiting) + len(more) if self._waiting else 0

    def forget(self, id: RequestId) -> None:
        """Gives the request up by closing its connection."""
        exchange = self._running.pop(id, None) or self._listening.pop(id, None)
        if exchange is not None:
            exchange.cancel()
            self._start_waiting()
            return
        self._waiting = deque(outgoing for outgoing in self._waiting if outgoing.id != id)

    def negotiated(self, version: str) -> None:
        """Nothing to do: each request names its revision."""

    def listen(self) -> None:
        """Nothing to do: to listen is a request."""

    def restart(self) -> None:
        """Nothing to do: there is no session."""

    def close(self) -> None:
        """Gives up what is under way, but for what was notified: that has a moment."""
        self._notices.close()
        self._ending.set()

    # The IO

    async def run(self) -> None:
        """Works until it is closed. See the port."""
        closed = False
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._start_waiting()
                notified = trio.Event()
                nursery.start_soon(self._notify_in_order, nursery, notified)
                await self._ending.wait()
                closed = True
                with trio.move_on_after(self._end.limits.flush):
                    await notified.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._nursery = None
            self._ending.set()
            for exchange in (*self._running.values(), *self._listening.values()):
                exchange.cancel()
            self._notices.clear()
            for outgoing in self._waiting:
                self._end.emit(RequestFailed(outgoing.id, "not_sent", f"{self._end.name} was closed", "no"))
            self._waiting.clear()
            reason = ("closed", "was closed") if closed else ("aborted", "was aborted")
            self._end.emit(TransportClosed(reason[0], f"the connection to {self._end.name} {reason[1]}"))
            self._told = True

    def _has_room(self, outgoing: Outgoing) -> bool:
        return outgoing.listens or len(self._running) < self._end.limits.shared

    def _start(self, outgoing: Outgoing) -> None:
        going = self._listening if outgoing.listens else self._running
        exchange = going[outgoing.id] = _Exchange(self._end, self._own, outgoing, self._over)
        if (error := exchange.start()) is not None:
            going.pop(outgoing.id, None)
            self._unsent(error)

    def _unsent(self, error: BaseException) -> None:
        if not isinstance(error, WireError):
            self._log.error("backend_exchange_crashed", backend=self._end.name, exc_info=error)

    def _start_waiting(self) -> None:
        while self._nursery is not None and self._waiting and self._has_room(self._waiting[0]):
            if self._ending.is_set() or not self._end.when_usable(self._start_waiting, self._waiting[0].rights):
                return
            self._start(self._waiting.popleft())

    def _over(self, exchange: HttpExchange, crash: BaseException | None) -> None:
        if crash is not None:
            self._log.error("backend_exchange_crashed", backend=self._end.name, exc_info=crash)
        for running in (self._running, self._listening):
            if running.get(exchange.id) is exchange:
                del running[exchange.id]
        self._start_waiting()

    # Notifications

    async def _notify_in_order(self, nursery: trio.Nursery, over: trio.Event) -> None:
        """One after the other, unless the backend takes long over one: it may be another client's."""
        while batch := await self._notices.take(1):
            for notice in batch:
                accepted = trio.Event()
                nursery.start_soon(self._notify, notice, accepted)
                with trio.move_on_after(self._end.limits.apart):
                    await accepted.wait()
        over.set()

    async def _notify(self, notice: Notice, accepted: trio.Event) -> None:
        trouble = "the exchange crashed"
        with Boundary() as inside:
            trouble = await self._post(notice)
        if inside.exit.error is not None:
            self._log.error("backend_exchange_crashed", backend=self._end.name, exc_info=inside.exit.error)
        if trouble:
            self._log.warning("backend_post_refused", backend=self._end.name, why=trouble)
        accepted.set()

    async def _post(self, notice: Notice) -> str:
        """What kept the backend from accepting it, if anything did."""
        end = self._end
        with trio.move_on_after(end.limits.accept):
            try:
                response = await end.ask("POST", self._own + _lines(notice.headers), notice.frame)
            except WireError as error:
                return error.detail
            with response:
                await refusal_body(response, end.limits.refusal)
                return "" if 200 <= response.status < 300 else f"HTTP {response.status}"
        return f"not accepted within {end.limits.accept:g} s"


def _own(configured: Headers) -> bytes:
    fixed = [("Accept", MESSAGE), ("Content-Type", "application/json")]
    kept = [(name, value) for name, value in configured if not name.lower().startswith("mcp-")]
    return encode_headers(fixed) + configured_headers(kept)


USUAL = 3
KNOWN = 512
KNOWN_CHARACTERS = 256
"""Headers for routing alone, which many requests have in common; how many of these are remembered, and how long."""


def _lines(headers: Headers) -> bytes:
    usual = len(headers) <= USUAL and sum(len(value) for _, value in headers) <= KNOWN_CHARACTERS
    return _usual(headers) if usual else encode_headers(headers)


_usual = lru_cache(KNOWN)(encode_headers)


class _Exchange(HttpExchange):
    """One request and its answer."""

    __slots__ = ("_outgoing", "_own")

    def __init__(
        self,
        end: Endpoint,
        own: bytes,
        outgoing: Outgoing,
        over: Over,
    ) -> None:
        super().__init__(end, outgoing.id, over, outgoing.rights)
        self._own = own
        self._outgoing = outgoing

    def _send(self) -> None:
        headers = self._with_credentials(self._own + _lines(self._outgoing.headers))
        self._pool.start("POST", self._end.url, headers, self._outgoing.frame, self)

    async def _send_again(self) -> Response:
        headers = self._with_credentials(self._own + _lines(self._outgoing.headers))
        return await self._pool.request("POST", self._end.url, headers, self._outgoing.frame)

    @property
    def _pool(self) -> Pool:
        return self._end.streams if self._outgoing.listens else self._end.calls

    async def _work(self, response: Response | None) -> None:
        assert response is not None
        with response:
            match kind_of(response.status, response.header(b"content-type")):
                case Kind.EVENTS:
                    await self._follow(response)
                case Kind.JSON:
                    await self._take_body(response)
                case Kind.REFUSED:
                    await self._refused(response)

    async def _follow(self, response: Response) -> None:
        decoder = SseDecoder(self._end.limits.message_bytes)
        if await read_events(response, decoder, EventTrail(), self._take, lambda: None) and not response.whole:
            # The end of the stream follows at once, as a rule, and then the connection can be used again.
            with trio.move_on_after(self._end.limits.linger):
                await read_events(response, decoder, EventTrail(), self._take_late, lambda: None)

    def _take(self, frame: bytes) -> bool:
        if self._answered:
            return True
        message = read(frame)
        answered = self._answered = answers(message, self.id)  # first, because the receiver may cancel this
        self._emit(FrameReceived(frame, self.id, read=message))
        return answered

    def _take_late(self, frame: bytes) -> bool:
        return False

    async def _refused(self, response: Response) -> None:
        status, name = response.status, self._end.name
        if 200 <= status < 300:
            self._fail("protocol", f"{name} answered in no known media type (HTTP {status})", "unknown", status)
            return
        body = await refusal_body(response, self._end.limits.refusal)
        code = error_code(body)
        if PROBE in self._outgoing.headers and await self._end.speaks_sse(status, read=code is not None):
            self._emit(SpeaksSse())
        if status not in OURS_ONLY and code is not None:
            self._answered = True
            self._emit(FrameReceived(body, self.id, status=status))
        else:
            message = f"{name} answered with HTTP {worded(status)}"
            self._fail("http_status", message, executed_by(status), status, self._end.explained(message, status, body))
