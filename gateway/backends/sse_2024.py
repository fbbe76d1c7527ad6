"""A backend of HTTP+SSE (2024-11-05, basic/transports): one GET stream brings all that it says, and names the endpoint
to which messages are POSTed. The stream is the session: when it ends, nobody knows of what was sent and not answered.

A POST only says that the message was accepted; the answer comes on the stream. Requests are POSTed as they come,
notifications and responses one after the other. The configured headers are credentials: the endpoint must be of the
origin that they are for, and redirects are not followed.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from actors.ports import (
    NO_RIGHTS,
    FrameReceived,
    Headers,
    Log,
    RequestFailed,
    Rights,
    TransportClosed,
    TransportEvent,
    TransportKind,
)
from actors.protocol.diagnostics import without_addresses
from actors.protocol.messages import Error, RequestId, Result
from actors.protocol.sse import SseDecoder, SseEvent, SseTooLargeError
from actors.protocol.table import SseTarget
from actors.runtime.boundary import Boundary
from gateway.backends.bound import BoundTransport
from gateway.backends.credentials import Credentials
from gateway.backends.http_call import (
    Endpoint,
    HttpExchange,
    HttpLimits,
    HttpPost,
    Over,
    UnauthorizedError,
    reason_of,
    refusal_body,
)
from gateway.backends.outbox import Outbox, Outgoing
from gateway.wire.errors import WireError
from gateway.wire.http_rules import Answered, Failed, Kind, executed_by, judge, kind_of, read, worded
from gateway.wire.http_session import HttpSession
from gateway.wire.lines import FRAMES_PER_TURN
from gateway.wire.pool import Pool, Response
from gateway.wire.sse_2024 import ON_SOCKET, endpoint_of
from gateway.wire.url import parse_url

ENDPOINT_WITHIN: Final = 10.0
"""Seconds in which the stream must name its endpoint."""
LINGERING: Final = 16
"""POSTs that may go on after their request was answered; of further ones the oldest is given up. Most servers accept a
message before they answer it, but there are those that never do."""


class _BrokenRulesError(Exception):
    """The backend's stream is not what it has to be."""


class SseTransport(BoundTransport):
    """See `actors.ports.Transport`."""

    kind: TransportKind = "sse"

    def __init__(
        self,
        name: str,
        target: SseTarget,
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
        self._emit = emit
        url = parse_url(target.url, ON_SOCKET)
        self._end = Endpoint(name, url, calls, streams, limits, self._say, None, credentials, redact)
        """Of the stream."""
        self._posts_to: Endpoint | None = None
        """As soon as it is named."""
        self._session = HttpSession(target.headers)
        self._calls: dict[RequestId, _Call] = {}
        """Those that were not answered, and of which it is not known whether they were accepted."""
        self._lingering: deque[_Call] = deque()
        self._waiting: list[Outgoing] = []
        self._posts = Outbox(limits.waiting, limits.waiting_bytes)
        self._reading = trio.CancelScope()
        self._ended: tuple[str, str, str] | None = None
        self._told = False

    def __repr__(self) -> str:
        state = "ending" if self._ended else "open" if self._posts_to else "not open"
        return f"<SseTransport {self._end.name} {state}, {len(self._calls)} calls, {len(self._waiting)} wait>"

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
        """POSTs the request, or lets it wait for its turn; what does not fit fails, unexecuted."""
        outgoing, limits = Outgoing(frame, id, tag, rights=rights), self._end.limits
        if id is None:
            if not self._posts.put(outgoing) and self._ended is None:
                self._log.warning("backend_message_dropped", backend=self._end.name, why="outbox full")
            return
        size = sum(len(waiting.frame) for waiting in self._waiting) + len(frame) if self._waiting else 0
        if self._ended is not None or len(self._waiting) >= limits.waiting or size > limits.waiting_bytes:
            self._say(RequestFailed(id, "not_sent", f"{self._end.name} takes no more requests", "no"))
        else:
            self._waiting.append(outgoing)
            self._start_waiting()

    def forget(self, id: RequestId) -> None:
        """Its POST is given up, if it was not accepted yet."""
        call = self._calls.pop(id, None)
        if call is not None:
            call.cancel()
            self._start_waiting()
            return
        self._waiting = [waiting for waiting in self._waiting if waiting.id != id or type(waiting.id) is not type(id)]

    def negotiated(self, version: str) -> None:
        """Nothing to do: the revision is not sent on this wire."""

    def listen(self) -> None:
        """Nothing to do: the stream is open."""

    def restart(self) -> None:
        """Nothing to do: a session that is lost is a closed transport."""

    def close(self) -> None:
        """Sends what waits in order, then closes the stream."""
        self._end_with("closed", f"{self._end.name} was closed")

    # The IO

    async def run(self) -> None:
        """Reads the stream until it ends. See the port."""
        try:
            async with trio.open_nursery() as nursery:
                with self._reading:
                    await self._read(nursery)
                self._posts.close()
                nursery.cancel_scope.deadline = trio.current_time() + (
                    self._end.limits.flush if self._posts_to is not None else 0
                )
        finally:
            self._end_with("aborted", f"the connection to {self._end.name} was aborted")
            self._tell_end()

    async def _read(self, nursery: trio.Nursery) -> None:
        """Says why it ended, in one way or the other."""
        name = self._end.name
        try:
            if self._end.credentials is not None:
                await self._end.credentials.prepare()
            with trio.move_on_after(ENDPOINT_WITHIN) as opening:
                response = await self._end.ask("GET", self._session.get_headers(), stream=True)
                with response:
                    if kind_of(response.status, response.header(b"content-type")) is not Kind.EVENTS:
                        await self._refused(response)
                    else:
                        await self._follow(response, nursery, opening)
            if opening.cancelled_caught:
                self._end_with("protocol", f"{name} named no endpoint within {ENDPOINT_WITHIN:g} s")
            self._end_with("connection_lost", f"{name} ended its stream")
        except SseTooLargeError as error:
            self._end_with("too_large", f"{name} sent {error}")
        except _BrokenRulesError as error:
            self._end_with("protocol", f"{name} {error}")
        except UnauthorizedError as error:
            self._fail_waiting(error.reason, f"{name}: {error}")
            self._end_with(error.reason, f"{name}: {error}")
        except WireError as error:
            self._end_with(reason_of(error), f"{name}: {error}", f"{name}: {error.detail}")

    async def _refused(self, response: Response) -> None:
        """There is no such stream: what waits for it fails with the status."""
        status, body = response.status, await refusal_body(response, self._end.limits.refusal)
        verdict = judge(status, body, has_session=False, may_guess=False)
        why = verdict.message if isinstance(verdict, Failed) else f"the server answered with HTTP {worded(status)}"
        if 200 <= status < 300:
            why = "the server answered in no event stream"
        message = f"{self._end.name}: {why}"
        detail = self._end.explained(message, status, body)
        self._fail_waiting("http_status", message, status, detail)
        self._end_with("http_status", message, detail)

    async def _follow(self, response: Response, nursery: trio.Nursery, opening: trio.CancelScope) -> None:
        decoder = SseDecoder(self._end.limits.message_bytes)
        while chunk := await response.receive_some():
            for n, event in enumerate(decoder.feed(chunk), 1):
                if self._take(event):
                    opening.deadline = float("inf")
                    nursery.start_soon(self._post_in_order)
                    self._start_waiting()
                if n % FRAMES_PER_TURN == 0:
                    await trio.lowlevel.checkpoint()

    def _take(self, event: SseEvent) -> bool:
        """Passes a message on; whether the event named the endpoint."""
        if event.event == "endpoint":
            return self._take_endpoint(event.data)
        if event.event != "message" or not event.data:
            return False
        if self._posts_to is None:
            raise _BrokenRulesError("sent a message before it named its endpoint")
        message = read(event.data)
        self._say(FrameReceived(event.data, read=message))
        if isinstance(message, Result | Error) and message.id is not None:
            self._answered(message.id)
        return False

    def _take_endpoint(self, named: bytes) -> bool:
        try:
            url = endpoint_of(self._end.url, named)
        except ValueError as error:
            raise _BrokenRulesError(f"named an endpoint that messages can't go to: {error}") from error
        end = self._end
        if self._posts_to is not None:
            if url != self._posts_to.url:
                raise _BrokenRulesError("named a second endpoint")
            return False
        self._posts_to = Endpoint(
            end.name, url, end.calls, end.streams, end.limits, self._say, None, end.credentials, end.redact
        )
        return True

    # Messages on their way

    def _start_waiting(self) -> None:
        end = self._posts_to
        while end is not None and self._waiting and len(self._calls) < end.limits.concurrent and self._ended is None:
            if not end.when_usable(self._start_waiting, self._waiting[0].rights):
                return
            outgoing = self._waiting.pop(0)
            assert outgoing.id is not None
            call = self._calls[outgoing.id] = _Call(end, outgoing.id, self._session, outgoing, self._over)
            if (error := call.start()) is not None:
                self._calls.pop(outgoing.id, None)
                if not isinstance(error, WireError):
                    self._crashed("call", error)

    def _answered(self, id: RequestId) -> None:
        """On the stream; its POST may have to be heard of yet."""
        call = self._calls.pop(id, None)
        if call is None:
            return
        call.settle()
        self._lingering.append(call)
        if len(self._lingering) > LINGERING:
            self._lingering.popleft().cancel()
        self._start_waiting()

    def _over(self, exchange: HttpExchange, crash: BaseException | None) -> None:
        if crash is not None:
            self._crashed("call", crash)
        assert isinstance(exchange, _Call)
        if exchange in self._lingering:
            self._lingering.remove(exchange)
        if self._calls.get(exchange.id) is exchange:
            del self._calls[exchange.id]
        if exchange.unknown:
            self._end_with("session_lost", f"{self._end.name} does not know our session any more")
        self._start_waiting()

    async def _post_in_order(self) -> None:
        assert self._posts_to is not None
        while batch := await self._posts.take(1):
            for outgoing in batch:
                trouble: str | None = "the exchange crashed"
                post = HttpPost(self._posts_to, self._session, outgoing)
                with Boundary() as inside:
                    trouble = await post.run()
                if inside.exit.error is not None:
                    self._crashed("post", inside.exit.error)
                if trouble is not None:
                    self._log.warning("backend_post_refused", backend=self._end.name, why=trouble)
                    if outgoing.tag is not None:
                        # The owner waits for it, and nothing else could tell it.
                        self._end_with(post.reason, f"{self._end.name}: {without_addresses(trouble)}")

    def _crashed(self, what: str, error: BaseException) -> None:
        """A fault of one exchange: the others go on."""
        self._log.error("backend_exchange_crashed", backend=self._end.name, what=what, exc_info=error)

    # The end

    def _end_with(self, reason: str, message: str, detail: str = "") -> None:
        if self._ended is None:
            self._ended = reason, message, detail
        self._posts.close()
        self._reading.cancel()

    def _say(self, event: TransportEvent) -> None:
        if not self._told:
            self._emit(event)

    def _fail_waiting(self, reason: str, message: str, status: int | None = None, detail: str = "") -> None:
        """What was not sent was not executed."""
        waiting, self._waiting = self._waiting, []
        for outgoing in waiting:
            assert outgoing.id is not None
            self._say(RequestFailed(outgoing.id, reason, message, "no", status, detail))

    def _tell_end(self) -> None:
        assert self._ended is not None
        reason, message, detail = self._ended
        for call in (*self._calls.values(), *self._lingering):
            call.cancel()
        self._calls.clear()
        self._lingering.clear()
        if dropped := self._posts.clear():
            self._log.warning("backend_message_dropped", backend=self._end.name, why=message, messages=len(dropped))
        self._fail_waiting(reason if self._posts_to is None else "not_sent", message, detail=detail)
        self._say(TransportClosed(reason, message, detail))
        self._told = True


class _Call(HttpExchange):
    """The POST of a request. Its outcome comes on the stream, unless it is refused."""

    __slots__ = ("_frame", "_session", "_status", "unknown")

    def __init__(self, end: Endpoint, id: RequestId, session: HttpSession, outgoing: Outgoing, over: Over) -> None:
        super().__init__(end, id, over, outgoing.rights)
        self._session = session
        self._frame = outgoing.frame
        self._status: int | None = None
        self.unknown = False
        """Whether the server has said that there is no such session."""

    def settle(self) -> None:
        """The answer has come: whatever becomes of the POST is of no interest."""
        self._answered = True

    def _send(self) -> None:
        end = self._end
        headers = self._with_credentials(self._session.post_headers())
        end.calls.start("POST", end.url, headers, self._frame, self)

    async def _send_again(self) -> Response:
        end, headers = self._end, self._with_credentials(self._session.post_headers())
        return await end.calls.request("POST", end.url, headers, self._frame)

    async def _work(self, response: Response | None) -> None:
        assert response is not None
        with response:
            body = await refusal_body(response, self._end.limits.refusal)
        status = self._status = response.status
        if 200 <= status < 300:
            self._answered = True
            return
        verdict = judge(status, body, has_session=False, may_guess=False)
        self.unknown = status in (404, 410)
        if isinstance(verdict, Answered) and not self._answered:
            self._take(body)
        elif isinstance(verdict, Failed):
            self._fail(verdict.reason, f"{self._end.name}: {verdict.message}", executed_by(status), status)

    def _take(self, frame: bytes) -> bool:
        self._answered = True
        self._emit(FrameReceived(frame, self.id, status=self._status, read=read(frame)))
        return True
