"""A backend behind a Streamable HTTP endpoint (2025-11-25, basic/transports).

Each request is a POST and has its outcome from `http_call`. Notifications and responses are
POSTed one after the other, in the order in which they were sent. The GET stream, once asked for, is kept open over
breaks. The transport outlives every connection: it ends when it is closed, when the owner cancels it, or when a message
whose acceptance the owner waits for is refused. Nothing of a client's headers ever comes here; the configured ones are
credentials and are not logged.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Literal

import trio

from actors.ports import (
    EventsMissed,
    FrameReceived,
    Headers,
    Listening,
    Log,
    Positioned,
    RequestFailed,
    Resumable,
    SessionLost,
    TransportClosed,
    TransportEvent,
)
from actors.protocol.diagnostics import without_addresses
from actors.protocol.messages import RequestId
from actors.protocol.sse import SseDecoder
from actors.protocol.table import HttpTarget
from actors.runtime.boundary import Boundary, boundary
from gateway.backends.http_call import Endpoint, HttpCall, HttpExchange, HttpLimits, HttpPost
from gateway.backends.http_events import EventTrail, read_events
from gateway.backends.http_rules import PASSING, Kind, kind_of
from gateway.backends.http_session import HttpSession
from gateway.backends.outbox import Outbox, Outgoing
from gateway.wire.errors import SizeError, WireError
from gateway.wire.pool import Pool, Response
from gateway.wire.url import parse_url


class StreamableHttpTransport:
    """See `actors.ports.Transport`."""

    __slots__ = (
        "_calls",
        "_end",
        "_ended",
        "_ending",
        "_heard",
        "_listener",
        "_log",
        "_nursery",
        "_opened",
        "_posted",
        "_posting",
        "_posts",
        "_session",
        "_stays",
        "_target",
        "_told",
        "_trail",
        "_waiter",
        "_waiting",
    )

    kind: Literal["stdio", "http", "inproc"] = "http"
    warm = False
    """There is no process."""

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
    ) -> None:
        """ValueError for a URL or headers that are none."""
        self._target = target
        self._log = log
        self._end = Endpoint(name, parse_url(target.url), calls, streams, limits, emit)
        self._session = HttpSession(target.headers)
        self._nursery: trio.Nursery | None = None
        self._calls: dict[RequestId, HttpCall] = {}
        self._waiting: list[Outgoing] = []
        self._posts = Outbox(limits.waiting, limits.waiting_bytes)
        self._posted: trio.Event | None = None
        """There while what waits in order is being sent; set when all of it is."""
        self._listener: trio.CancelScope | None = None
        self._heard = False
        """Whether it was said that the GET stream is open, or is not to be had."""
        self._opened = False
        """Whether it was ever open in this session."""
        self._trail = EventTrail()
        self._stays = False
        self._posting: trio.CancelScope | None = None
        self._ended: tuple[str, str] | None = None
        self._told = False
        self._ending = False
        self._waiter: trio.lowlevel.Task | None = None
        """The task of `run`, while it has nothing to listen to."""

    def __repr__(self) -> str:
        session = "session" if self._session.id else "no session"
        return (
            f"<StreamableHttpTransport {self._end.name} {session}, {len(self._calls)} calls, {len(self._waiting)} wait>"
        )

    # The port's synchronous half

    @property
    def stderr(self) -> tuple[str, ...]:
        """None: it is no process of ours."""
        return ()

    @property
    def kept(self) -> Resumable | None:
        """The session, once its revision is settled."""
        session = self._session
        return Resumable(session.id, session.version, self._trail.last_id) if session.version is not None else None

    def resume(self, kept: Resumable) -> None:
        """Takes the place of the handshake."""
        self._session.take_over(kept.session, kept.version)
        self._trail.last_id = kept.cursor

    def send(self, frame: bytes, *, id: RequestId | None = None, tag: int | None = None, headers: Headers = ()) -> None:
        """Starts the request, or lets it wait for its turn; what does not fit fails, unexecuted."""
        if id is not None:
            self._request(id, Outgoing(frame, id, tag))
        elif self._posts.put(Outgoing(frame, id, tag)):
            self._start_posting()
        elif not self._ending:
            self._log.warning("backend_message_dropped", backend=self._end.name, why="outbox full")

    def pick_up(self, id: RequestId, cursor: str) -> None:
        """Fetches the rest of an answer."""
        self._request(id, Outgoing(b"", id, after=cursor))

    def _request(self, id: RequestId, outgoing: Outgoing) -> None:
        if self._told:
            return
        if self._ending or len(self._waiting) >= self._end.limits.waiting:
            executed: Literal["no", "unknown"] = "no" if outgoing.after is None else "unknown"
            self._end.emit(RequestFailed(id, "not_sent", f"{self._end.name} takes no more requests", executed))
        elif self._nursery is None or len(self._calls) >= self._end.limits.concurrent:
            self._waiting.append(outgoing)
        else:
            self._start(self._nursery, outgoing)

    def negotiated(self, version: str) -> None:
        """From the next message on the revision is named."""
        self._session.take_version(version)

    def listen(self) -> None:
        """Keeps a GET stream open from now on, if the backend offers one."""
        if self._listener is None:
            self._listener = trio.CancelScope()
            self._wake()

    def forget(self, id: RequestId) -> None:
        """Gives the request up, its connection included if its answer has not come whole."""
        call = self._calls.pop(id, None)
        if call is not None:
            call.cancel()
            self._start_waiting()
            return
        for outgoing in self._waiting:
            if outgoing.id == id and type(outgoing.id) is type(id):
                self._waiting.remove(outgoing)
                return

    def restart(self) -> None:
        """Begins a fresh session. Requests of the old one are dropped without a word: its owner has ended them."""
        self._cancel_calls()
        self._waiting.clear()
        self._lost(self._posts.drop(), "the session was reset")
        if self._posting is not None:
            self._posting.cancel()
        if self._listener is not None:
            self._listener.cancel()
            self._listener = None
        self._heard = self._opened = False
        self._trail = EventTrail()
        self._session = HttpSession(self._target.headers, guessed_lost=self._session.guessed_lost)

    def _lost(self, posts: list[Outgoing], why: str) -> None:
        """Notifications and answers that were not sent: nobody waits for them, and nothing else would tell."""
        if posts:
            self._log.warning("backend_message_dropped", backend=self._end.name, why=why, messages=len(posts))

    def _cancel_calls(self) -> None:
        for call in self._calls.values():
            call.cancel()
        self._calls.clear()

    def close(self) -> None:
        """Sends what waits in order, then DELETEs the session."""
        self._end_with("closed", f"{self._end.name} was closed")

    def let_go(self) -> None:
        """Sends what waits in order; the session stays."""
        self._stays = True
        self.close()

    def hand_over(self) -> None:
        """There is no process."""
        self.close()

    # The IO

    async def run(self) -> None:
        """Works until the end. See the port."""
        end = ("aborted", f"the connection to {self._end.name} was aborted")
        try:
            await self._work()
            await self._delete()
            end = self._ended or end
        finally:
            self._nursery = None
            self._ending = True
            self._cancel_calls()
            self._lost(self._posts.clear(), end[1])
            while self._waiting:
                outgoing = self._waiting.pop(0)
                assert outgoing.id is not None
                executed: Literal["no", "unknown"] = "no" if outgoing.after is None else "unknown"
                self._end.emit(RequestFailed(outgoing.id, "not_sent", f"{self._end.name}: {end[1]}", executed))
            self._end.emit(TransportClosed(*end))
            self._told = True

    async def _work(self) -> None:
        # One task for each connection: idle ones are many. Whatever else there is to do has a task while it is done.
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._start_posting()
            self._start_waiting()
            while not self._ending:
                if self._listener is None:
                    await self._changed()
                else:
                    with self._listener:
                        await self._listen(self._session, self._trail)
                        await self._changed()
            self._posts.close()
            if self._posted is not None:
                with trio.move_on_after(self._end.limits.flush):
                    await self._posted.wait()
            self._cancel_calls()
            nursery.cancel_scope.cancel()
        self._nursery = None

    async def _changed(self) -> None:
        """Waits for `listen`, or the end."""
        self._waiter = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._wait_no_more)

    def _wait_no_more(self, _: object) -> trio.lowlevel.Abort:
        self._waiter = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _wake(self) -> None:
        task, self._waiter = self._waiter, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def _start(self, nursery: trio.Nursery, outgoing: Outgoing) -> None:
        assert outgoing.id is not None
        call = self._calls[outgoing.id] = HttpCall(self._end, self._session, outgoing, self._call_over)
        if outgoing.after is not None:
            nursery.start_soon(self._pick_up, call)
        elif (error := call.start()) is not None:
            self._calls.pop(outgoing.id, None)
            if not isinstance(error, WireError):
                self._crashed("call", error)

    async def _pick_up(self, call: HttpCall) -> None:
        if (crash := (await boundary(call.pick_up)).error) is not None:
            self._crashed("call", crash)

    def _start_waiting(self) -> None:
        if self._nursery is None or self._ending:
            return
        while self._waiting and len(self._calls) < self._end.limits.concurrent:
            self._start(self._nursery, self._waiting.pop(0))

    def _call_over(self, call: HttpExchange, crash: BaseException | None) -> None:
        if crash is not None:
            self._crashed("call", crash)
        if self._calls.get(call.id) is call:
            del self._calls[call.id]
            self._start_waiting()

    def _start_posting(self) -> None:
        if self._nursery is not None and self._posted is None and self._posts:
            self._posted = trio.Event()
            self._nursery.start_soon(self._post_in_order, self._posted)

    async def _post_in_order(self, posted: trio.Event) -> None:
        while self._posts:
            for outgoing in await self._posts.take(1):
                with trio.CancelScope() as self._posting:
                    trouble = await self._post(outgoing)
                    if trouble is not None:
                        self._log.warning("backend_post_refused", backend=self._end.name, why=trouble)
                        if outgoing.tag is not None:
                            # The owner waits for it, and nothing else could tell it.
                            self._end_with("not_accepted", f"{self._end.name}: {without_addresses(trouble)}")
        self._posted = self._posting = None
        posted.set()

    async def _post(self, outgoing: Outgoing) -> str | None:
        """What kept the backend from accepting a notification or a response, if anything did."""
        with Boundary() as inside:
            return await HttpPost(self._end, self._session, outgoing).run()
        if inside.exit.error is not None:
            self._crashed("post", inside.exit.error)
        return "the exchange crashed"

    def _crashed(self, what: str, error: BaseException) -> None:
        """A fault of one exchange: the others go on."""
        self._log.error("backend_exchange_crashed", backend=self._end.name, what=what, exc_info=error)

    def _end_with(self, reason: str, message: str) -> None:
        if self._ended is None:
            self._ended = (reason, message)
        self._ending = True
        if self._listener is not None:
            self._listener.cancel()
        self._wake()

    async def _delete(self) -> None:
        """Tells the backend that the session is over. It may not care (405), and nobody waits for its answer."""
        if self._session.id is None or self._stays:
            return
        with trio.move_on_after(self._end.limits.delete), suppress(WireError):
            response = await self._end.calls.request("DELETE", self._end.url, self._session.delete_headers())
            response.close()

    # The GET stream

    async def _listen(self, session: HttpSession, trail: EventTrail) -> None:
        while True:
            again = True
            with Boundary() as inside:
                again = await self._listen_once(session, trail)
            if inside.exit.error is not None:
                self._crashed("stream", inside.exit.error)
                self._miss(trail)
            if not again:
                return
            await trio.sleep(trail.wait())

    async def _listen_once(self, session: HttpSession, trail: EventTrail) -> bool:
        """Whether to try again, after a while."""
        # The connection of the handshake is there already, and calls wait for this stream.
        self._end.streams.take_idle_of(self._end.calls, self._end.url)
        try:
            response = await self._end.streams.request("GET", self._end.url, session.get_headers(trail.last_id))
        except WireError as error:
            self._log.debug("backend_stream_failed", backend=self._end.name, why=error.detail)
            self._hears(session)
            return True
        with response:
            if kind_of(response.status, response.header(b"content-type")) is Kind.EVENTS:
                if self._heard and not self._opened and trail.last_id is None:
                    self._miss(trail)  # calls did not wait for it to be there after all
                self._opened = True
                self._hears(session)
                await self._take_events(response, trail)
                return True
            again = self._no_stream(response.status, session, trail)
        self._end.calls.take_idle_of(self._end.streams, self._end.url)  # calls have use for it
        return again

    def _hears(self, session: HttpSession) -> None:
        if session is self._session and not self._heard:
            self._heard = True
            self._end.emit(Listening())

    async def _take_events(self, response: Response, trail: EventTrail) -> None:
        decoder = SseDecoder(self._end.limits.message_bytes)

        def take(frame: bytes) -> bool:
            self._end.emit(FrameReceived(frame, None, trail.last_id))
            return False

        try:
            await read_events(response, decoder, trail, take, lambda: self._end.emit(Positioned(None, trail.last_id)))
        except SizeError as error:
            # To go on after it would be to meet it again.
            self._miss(trail)
            self._log.warning("backend_stream_failed", backend=self._end.name, why=str(error))

    def _miss(self, trail: EventTrail) -> None:
        """What comes from now on is heard again; of what came meanwhile nobody knows."""
        trail.last_id = None
        self._end.emit(EventsMissed())

    def _no_stream(self, status: int, session: HttpSession, trail: EventTrail) -> bool:
        if status == 404 and session.id is not None:
            self._end.emit(SessionLost(None))
            return False
        if trail.last_id is not None and 400 <= status < 500 and status not in PASSING:
            self._miss(trail)  # it no longer has that event
            return True  # what is said from here on comes on the next one
        self._hears(session)
        again = status in PASSING or (status >= 500 and status != 501)
        level = self._log.debug if again or status == 405 else self._log.warning
        level("backend_stream_refused", backend=self._end.name, status=status, again=again)
        return again
