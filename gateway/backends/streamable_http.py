"""A backend behind a Streamable HTTP endpoint (2025-11-25, basic/transports).

Each request is a POST and has its outcome from `http_call`. Notifications and responses are
POSTed one after the other, in the order in which they were sent. The GET stream, once asked for, is kept open over
breaks. The transport outlives every connection: it ends when it is closed, when the owner cancels it, or when a message
whose acceptance the owner waits for is refused. Nothing of a client's headers ever comes here; the configured ones are
credentials and are not logged.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal, TypeVarTuple

import trio

from actors.ports import (
    NO_RIGHTS,
    Headers,
    Log,
    RequestFailed,
    Resumable,
    Rights,
    TransportClosed,
    TransportEvent,
    TransportKind,
)
from actors.protocol.diagnostics import without_addresses
from actors.protocol.messages import RequestId
from actors.protocol.table import HttpTarget
from actors.runtime.boundary import Boundary, boundary
from gateway.backends.credentials import Credentials
from gateway.backends.http_call import Endpoint, HttpCall, HttpExchange, HttpLimits, HttpPost
from gateway.backends.http_listener import Listener
from gateway.backends.outbox import Outbox, Outgoing
from gateway.wire.errors import WireError
from gateway.wire.http_events import EventTrail
from gateway.wire.http_session import HttpSession
from gateway.wire.pool import Pool
from gateway.wire.url import parse_url

Ts = TypeVarTuple("Ts")


class StreamableHttpTransport:
    """See `actors.ports.Transport`."""

    __slots__ = (
        "_calls",
        "_end",
        "_ended",
        "_ending",
        "_listener",
        "_log",
        "_nursery",
        "_post_scope",
        "_posting",
        "_posts",
        "_running",
        "_session",
        "_stays",
        "_target",
        "_tasks",
        "_told",
        "_trail",
        "_waiter",
        "_waiting",
    )

    kind: TransportKind = "http"
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
        credentials: Credentials | None = None,
        redact: Callable[[str], str] = str,
    ) -> None:
        """ValueError for a URL or headers that are none. `redact`: as in `Endpoint`."""
        self._target = target
        self._log = log
        self._session = HttpSession(target.headers)
        sse = self._session.get_headers() if target.may_be_sse else None
        self._end = Endpoint(name, parse_url(target.url), calls, streams, limits, emit, sse, credentials, redact)
        self._nursery: trio.Nursery | None = None
        """Of tasks besides that of `run`, while there are any."""
        self._tasks = 0
        self._calls: dict[RequestId, HttpCall] = {}
        self._waiting: list[Outgoing] = []
        self._posts = Outbox(limits.waiting, limits.waiting_bytes)
        self._posting = False
        """Whether what waits in order is being sent."""
        self._post_scope: trio.CancelScope | None = None
        """Of the one that is."""
        self._listener: Listener | None = None
        self._trail = EventTrail()
        self._stays = False
        self._ended: tuple[str, str] | None = None
        self._told = False
        self._ending = False
        self._running = False
        """Whether requests are sent: from the start of `run` until it is to end."""
        self._waiter: trio.lowlevel.Task | None = None
        """The task of `run`, while there is nothing to do."""

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

    def send(
        self,
        frame: bytes,
        *,
        id: RequestId | None = None,
        tag: int | None = None,
        headers: Headers = (),
        rights: Rights = NO_RIGHTS,
    ) -> None:
        """Starts the request, or lets it wait for its turn; what does not fit fails, unexecuted."""
        if id is not None:
            self._request(id, Outgoing(frame, id, tag, headers=headers, rights=rights))
        elif self._posts.put(Outgoing(frame, id, tag)):
            self._begin()
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
        else:
            self._waiting.append(outgoing)
            self._start_waiting()

    def negotiated(self, version: str) -> None:
        """From the next message on the revision is named."""
        self._session.take_version(version)

    def listen(self) -> None:
        """Keeps a GET stream open from now on, if the backend offers one."""
        if self._listener is None and not self._ending:
            self._listener = Listener(self._end, self._session, self._trail, self._log, self._begin)
            self._begin()

    def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.stop()

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
        if self._post_scope is not None:
            self._post_scope.cancel()
        self._stop_listening()
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

    def belongs_to(self, principal: str) -> None:
        """The server is not told."""

    def hand_over(self) -> None:
        """There is no process."""
        self.close()

    # The IO

    async def run(self) -> None:
        """Works until the end. See the port."""
        end = ("aborted", f"the connection to {self._end.name} was aborted")
        try:
            self._running = not self._ending
            self._start_waiting()
            # One task for each connection, and no more while nothing goes on: idle ones are many.
            while not self._ending:
                if self._has_work:
                    await self._work()
                else:
                    self._waiter = trio.lowlevel.current_task()
                    await trio.lowlevel.wait_task_rescheduled(self._wait_no_more)
            if self._posts:
                await self._work()
            self._cancel_calls()
            await self._delete()
            end = self._ended or end
        finally:
            self._ending, self._running = True, False
            self._stop_listening()
            self._cancel_calls()
            self._lost(self._posts.clear(), end[1])
            while self._waiting:
                outgoing = self._waiting.pop(0)
                assert outgoing.id is not None
                executed: Literal["no", "unknown"] = "no" if outgoing.after is None else "unknown"
                self._end.emit(RequestFailed(outgoing.id, "not_sent", f"{self._end.name}: {end[1]}", executed))
            self._end.emit(TransportClosed(*end))
            self._told = True

    @property
    def _has_work(self) -> bool:
        """Whether there is something to do that needs a task of its own."""
        listener = self._listener
        waiting = self._waiting and self._has_room and self._end.usable(self._waiting[0].rights)
        return bool(self._posts or (listener is not None and listener.due) or waiting)

    async def _work(self) -> None:
        """Does what there is to do, and what is added to it meanwhile."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._begin()
            if not self._tasks:
                self._nursery = None
            if self._ending:
                self._finish(nursery)
        if nursery.cancel_scope.cancelled_caught:
            self._lost(self._posts.clear(), f"{self._end.name} did not take it in time")

    def _begin(self) -> None:
        """Starts what is due; where there is no nursery for it, `run` opens one."""
        if self._nursery is None:
            self._wake()
            return
        if self._posts and not self._posting:
            self._posting = True
            self._start_task(self._nursery, self._post_in_order)
        if self._listener is not None and self._listener.due:
            self._listener.due = False
            self._start_task(self._nursery, self._listener.run)
        self._start_waiting()

    def _finish(self, nursery: trio.Nursery) -> None:
        """What waits in order is still sent; the rest ends."""
        nursery.cancel_scope.deadline = trio.current_time() + (self._end.limits.flush if self._posting else 0)

    def _start_task(self, nursery: trio.Nursery, fn: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        self._tasks += 1
        nursery.start_soon(self._run_task, fn, *args)

    async def _run_task(self, fn: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        try:
            await fn(*args)
        finally:
            self._tasks -= 1
            if not self._tasks:
                self._nursery = None  # which takes nobody in any more

    def _wait_no_more(self, _: object) -> trio.lowlevel.Abort:
        self._waiter = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _wake(self) -> None:
        task, self._waiter = self._waiter, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    @property
    def _has_room(self) -> bool:
        return len(self._calls) < self._end.limits.concurrent

    def _start_waiting(self) -> None:
        while self._waiting and self._has_room and self._running:
            nursery, outgoing = self._nursery, self._waiting[0]
            if not self._end.when_usable(self._start_waiting, outgoing.rights):
                return
            if outgoing.after is not None and nursery is None:
                self._wake()
                return
            del self._waiting[0]
            assert outgoing.id is not None
            call = self._calls[outgoing.id] = HttpCall(self._end, self._session, outgoing, self._call_over)
            if outgoing.after is not None and nursery is not None:
                self._start_task(nursery, self._pick_up, call)
            elif (error := call.start()) is not None:
                self._calls.pop(outgoing.id, None)
                if not isinstance(error, WireError):
                    self._crashed("call", error)

    async def _pick_up(self, call: HttpCall) -> None:
        if (crash := (await boundary(call.pick_up)).error) is not None:
            self._crashed("call", crash)

    def _call_over(self, call: HttpExchange, crash: BaseException | None) -> None:
        if crash is not None:
            self._crashed("call", crash)
        if self._calls.get(call.id) is call:
            del self._calls[call.id]
            self._start_waiting()

    async def _post_in_order(self) -> None:
        while self._posts:
            for outgoing in await self._posts.take(1):
                with trio.CancelScope() as self._post_scope:
                    trouble, reason = await self._post(outgoing)
                    if trouble is not None:
                        self._log.warning("backend_post_refused", backend=self._end.name, why=trouble)
                        if outgoing.tag is not None:
                            # The owner waits for it, and nothing else could tell it.
                            self._end_with(reason, f"{self._end.name}: {without_addresses(trouble)}")
        self._posting = False
        self._post_scope = None
        if self._ending and self._nursery is not None:
            self._finish(self._nursery)

    async def _post(self, outgoing: Outgoing) -> tuple[str | None, str]:
        """What kept the backend from accepting a notification or a response, if anything did; and why."""
        post = HttpPost(self._end, self._session, outgoing)
        with Boundary() as inside:
            return await post.run(), post.reason
        if inside.exit.error is not None:
            self._crashed("post", inside.exit.error)
        return "the exchange crashed", post.reason

    def _crashed(self, what: str, error: BaseException) -> None:
        """A fault of one exchange: the others go on."""
        self._log.error("backend_exchange_crashed", backend=self._end.name, what=what, exc_info=error)

    def _end_with(self, reason: str, message: str) -> None:
        if self._ended is None:
            self._ended = (reason, message)
        self._ending, self._running = True, False
        self._posts.close()
        self._stop_listening()
        if self._nursery is not None:
            self._finish(self._nursery)
        self._wake()

    async def _delete(self) -> None:
        """Tells the backend that the session is over. It may not care (405), and nobody waits for its answer."""
        if self._session.id is None or self._stays:
            return
        with trio.move_on_after(self._end.limits.delete), suppress(WireError):
            if self._end.credentials is not None:
                await self._end.credentials.prepare()
            headers = self._end.authorized(self._session.delete_headers())
            response = await self._end.calls.request("DELETE", self._end.url, headers)
            response.close()
