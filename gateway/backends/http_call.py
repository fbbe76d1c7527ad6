"""One message to a Streamable HTTP backend, from its POST to its outcome."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import trio

from actors.ports import (
    NO_RIGHTS,
    FrameAccepted,
    FrameReceived,
    Positioned,
    RequestFailed,
    Rights,
    SessionLost,
    SpeaksSse,
    TransportEvent,
)
from actors.protocol.messages import RequestId
from actors.protocol.sse import SseDecoder
from actors.runtime.boundary import Boundary, boundary
from gateway.backends.credentials import CHALLENGING, TRIES, Credentials, Refusal
from gateway.backends.outbox import Outgoing
from gateway.wire.errors import ConnectError, HeaderError, PoolFullError, SizeError, WireError
from gateway.wire.http1_client import encode_headers
from gateway.wire.http_events import EventTrail, read_events
from gateway.wire.http_rules import (
    PASSING,
    Answered,
    Failed,
    Kind,
    Lost,
    answers,
    executed_by,
    judge,
    kind_of,
    read,
    words_of,
)
from gateway.wire.http_session import HttpSession
from gateway.wire.pool import Exchange, Pool, Response
from gateway.wire.url import Url

ERROR_BODY: Final = 1024 * 1024
"""Bytes of a refusal's body that are looked at; a larger one is as good as none."""
TOLD: Final = 200
"""Characters of what a refusal says that operators are told."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The bounds of one connection to an HTTP backend. Times in seconds, sizes in bytes."""

    message_bytes: int = 4 * 1024 * 1024
    """A JSON answer, and the data of one event."""
    concurrent: int = 128
    """Requests under way; further ones wait."""
    shared: int = 1024
    """The same over a transport that all clients share; as many wait."""
    waiting: int = 256
    """Requests that wait, and notifications and responses that do; a further request fails."""
    waiting_bytes: int = 16 * 1024 * 1024
    """The same in bytes."""
    accept: float = 30.0
    """For a notification or a response, until the backend has accepted it."""
    apart: float = 1.0
    """The same over a transport that all clients share, until the next one is sent all the same."""
    refusal: float = 10.0
    """For the body of a refusal."""
    linger: float = 1.0
    """How long a stream may go on after it has brought the answer."""
    resumes: int = 6
    """Attempts in a row to go on with a broken stream that bring no event; with the back-off some 15 s."""
    flush: float = 1.0
    """At close: for what waits to be sent in order."""
    delete: float = 3.0
    """At close: for ending the session."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What all requests of one transport share. GET streams have a pool of their own: they are many and long, and must
    not take the connections that calls need."""

    name: str
    url: Url
    calls: Pool
    streams: Pool
    limits: HttpLimits
    emit: Callable[[TransportEvent], None]
    sse_headers: bytes | None = None
    """Of a GET that shows whether the server has HTTP+SSE there; None: it is not asked."""
    credentials: Credentials | None = None
    """What goes with each request besides the configured headers."""
    redact: Callable[[str], str] = str
    """Takes credentials out of what the server says to people."""

    def explained(self, refused: str, status: int, body: bytes) -> str:
        """For operators: how a request was refused, with what the server says of it; "" if it says nothing. (Many a
        server knows one name of its host alone, or wants another header, and says so.)"""
        words = self.redact(words_of(status, body))[:TOLD]  # cut afterwards: half a credential is not recognized
        return f"{refused}: {words}" if words else ""

    def usable(self, rights: Rights) -> bool:
        """Whether a request with these rights may be sent."""
        return self.credentials is None or self.credentials.usable(rights)

    def when_usable(self, again: Callable[[], object], rights: Rights) -> bool:
        """The same; if not, `again` is called when it may."""
        return self.credentials is None or self.credentials.when_usable(again, rights)

    def authorized(self, headers: bytes) -> bytes:
        """With our credentials."""
        return headers if self.credentials is None else headers + self.credentials.lines()

    async def ask(self, method: str, headers: bytes, body: bytes = b"", *, stream: bool = False) -> Response:
        """Makes a request that nobody else sees to; where its credentials are refused, with others. Raises
        WireError."""
        pool = self.streams if stream else self.calls
        for _ in range(TRIES):
            sent = self.credentials.lines() if self.credentials is not None else b""
            response = await pool.request(method, self.url, headers + sent, body)
            if self.credentials is None or not self.challenges(response):
                return response
            challenge = await challenge_of(response, self.limits.refusal)
            refusal = await self.credentials.refused(response.status, challenge, sent)
            if refusal is not None:
                raise UnauthorizedError(refusal)
        return response

    def challenges(self, response: Response) -> bool:
        """Whether it is the credentials that are refused."""
        if self.credentials is None or response.status not in CHALLENGING:
            return False
        return self.credentials.concern(response.status, response.header(b"www-authenticate").decode("latin-1"))

    async def speaks_sse(self, status: int, *, read: bool) -> bool:
        """Asked when the first request was refused; `read`: with an error of JSON-RPC."""
        if self.sse_headers is None:
            return False
        from gateway.wire.sse_2024 import may_be_sse, speaks_sse  # which few need

        return may_be_sse(status, read=read) and await speaks_sse(self.streams, self.url, self.sse_headers)


class UnauthorizedError(WireError):
    """The server takes none of our credentials."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message, sent=False)
        self.reason = refusal.reason


class HttpExchange(Exchange):
    """One request on its way, of either era. It has one outcome, unless it was cancelled: a frame that holds it,
    SessionLost with its id, or RequestFailed. `over` is called after it, with what the exchange crashed of, if it did;
    not for one that was cancelled or could not be started."""

    __slots__ = ("_answered", "_cancelled", "_end", "_over", "_rights", "_sent", "id")

    def __init__(self, end: Endpoint, id: RequestId, over: "Over", rights: Rights = NO_RIGHTS) -> None:
        super().__init__()
        self._rights = rights
        self._end = end
        self._over = over
        self.id = id
        self._answered = False
        self._cancelled = False
        self._sent = b""
        """The credentials that went with it."""

    def start(self) -> BaseException | None:
        """Sends it. What kept it from being sent, if anything did: then it has had its outcome."""
        with Boundary() as inside:
            self._send()
        error = inside.exit.error
        if isinstance(error, WireError):
            self._fail_by(error)
        elif error is not None:
            self._fail_by_crash()
        return error

    def cancel(self) -> None:
        """Gives it up: nothing more is said of it."""
        self._cancelled = True
        super().cancel()

    async def answered(self, response: Response | None) -> None:
        try:
            if response is not None and self._end.credentials is not None:
                response = await self._authorized(response)
                if response is None:
                    return
            await self._work(response)
        except SizeError as error:
            self._fail("too_large", f"{self._end.name} sent {error}", "unknown")
        if not self._answered:
            self._fail("no_response", f"{self._end.name} ended its answer without a response", "unknown")
        self._over(self, None)

    def broke(self, error: WireError) -> None:
        self._fail_by(error)
        self._over(self, None)

    def crashed(self, error: BaseException) -> None:
        self._answered = False  # twice told is better than never
        try:
            self._fail_by_crash()
        finally:
            self._over(self, error)

    async def _authorized(self, response: Response) -> Response | None:
        """The answer that counts: where credentials were refused and there are others, the one to the same request with
        these. None: it has had its outcome."""
        end, tries = self._end, 1
        while end.credentials is not None and tries < TRIES and end.challenges(response):
            challenge = await challenge_of(response, end.limits.refusal)
            refusal = await end.credentials.refused(response.status, challenge, self._sent, self._rights)
            if refusal is not None:
                self._fail(refusal.reason, f"{end.name}: {refusal.message}", "no", response.status)
                self._over(self, None)
                return None
            try:
                response = await self._send_again()
            except WireError as error:
                self.broke(error)
                return None
            tries += 1
        return response

    def _with_credentials(self, headers: bytes) -> bytes:
        credentials = self._end.credentials
        if credentials is None:
            return headers
        self._sent = credentials.lines(self._rights)
        return headers + self._sent

    @abstractmethod
    async def _send_again(self) -> Response:
        """Makes the request once more, with the credentials that there are now."""

    @abstractmethod
    def _send(self) -> None:
        """Makes the request."""

    @abstractmethod
    async def _work(self, response: Response | None) -> None:
        """Takes the answer; None where its rest is to be fetched."""

    async def _take_body(self, response: Response) -> None:
        try:
            body = await response.read(self._end.limits.message_bytes)
        except SizeError:
            raise
        except WireError as error:
            self._fail_by(error)
            return
        if body:
            self._take(body)

    @abstractmethod
    def _take(self, frame: bytes) -> bool:
        """Passes on what the server said; whether that was the outcome."""

    def _emit(self, event: TransportEvent) -> None:
        if not self._cancelled:
            self._end.emit(event)

    def _fail_by(self, error: WireError) -> None:
        """Its address is for operators only."""
        name = self._end.name
        detail = f"{name}: {error.detail}" if error.origin else ""
        self._fail(reason_of(error), f"{name}: {error}", "unknown" if error.sent else "no", detail=detail)

    def _fail_by_crash(self) -> None:
        self._fail("crashed", f"the exchange with {self._end.name} crashed", "unknown")

    def _fail(
        self,
        reason: str,
        message: str,
        executed: Literal["no", "unknown"],
        status: int | None = None,
        detail: str = "",
    ) -> None:
        if not self._answered:
            self._answered = True
            self._emit(RequestFailed(self.id, reason, message, executed, status, detail))


Over: TypeAlias = Callable[[HttpExchange, BaseException | None], object]


class HttpCall(HttpExchange):
    """A request to a server with sessions. Its POST is made once, perhaps by an earlier transport; what is repeated is
    the GET for the rest of its answer (2025-11-25, transports, "Resumability")."""

    __slots__ = ("_outgoing", "_session", "_trail")

    def __init__(
        self,
        end: Endpoint,
        session: HttpSession,
        outgoing: Outgoing,
        over: "Over",
    ) -> None:
        assert outgoing.id is not None
        super().__init__(end, outgoing.id, over, outgoing.rights)
        self._session = session
        self._outgoing = outgoing
        self._trail = EventTrail(outgoing.after)

    async def pick_up(self) -> None:
        """Goes on with a call that was made before, in a task of its own."""
        with trio.CancelScope() as self.scope:
            if not self._cancelled:
                outcome = await boundary(self.answered, None)
                if outcome.error is not None:
                    self.crashed(outcome.error)

    def _send(self) -> None:
        end = self._end
        end.calls.start("POST", end.url, self._headers(), self._outgoing.frame, self)

    async def _send_again(self) -> Response:
        return await self._end.calls.request("POST", self._end.url, self._headers(), self._outgoing.frame)

    def _headers(self) -> bytes:
        headers = self._with_credentials(self._session.post_headers())
        return headers + encode_headers(self._outgoing.headers) if self._outgoing.headers else headers

    async def _work(self, response: Response | None) -> None:
        if response is None:
            await self._resume()
        else:
            await self._take_response(response)
        while not self._answered and self._may_resume():
            await trio.sleep(self._trail.wait())
            await self._resume()

    def _may_resume(self) -> bool:
        return self._trail.last_id is not None and self._trail.failures < self._end.limits.resumes

    async def _take_response(self, response: Response) -> None:
        with response:
            kind = kind_of(response.status, response.header(b"content-type"))
            if kind is Kind.REFUSED:
                await self._refused(response)
            elif not self._begin(response):
                return
            elif kind is Kind.EVENTS:
                await self._follow(response)
            else:
                await self._take_body(response)

    def _begin(self, response: Response) -> bool:
        """The head of an answer has come."""
        session = self._session
        if session.id is not None:
            session.worked = True
            session.guessed_lost = False
        if not session.take_id(response.header(b"mcp-session-id")):
            self._fail("protocol", f"{self._end.name} sent a session id that cannot be sent back", "unknown")
            return False
        if self._outgoing.tag is not None:
            self._emit(FrameAccepted(self._outgoing.tag))
        return True

    async def _follow(self, response: Response) -> None:
        decoder = SseDecoder(self._end.limits.message_bytes)
        if await read_events(response, decoder, self._trail, self._take, self._moved) and not response.whole:
            # The end of the stream follows at once, as a rule, and then the connection can be used again.
            with trio.move_on_after(self._end.limits.linger):
                await read_events(response, decoder, self._trail, self._take_late, self._moved)

    def _take(self, frame: bytes) -> bool:
        message = read(frame)
        outcome = answers(message, self.id)
        # First, because the receiver may cancel this call.
        self._answered = self._answered or outcome
        self._emit(FrameReceived(frame, self.id, self._trail.last_id, read=message))
        return outcome

    def _moved(self) -> None:
        if not self._answered:
            self._emit(Positioned(self.id, self._trail.last_id))

    def _take_late(self, frame: bytes) -> bool:
        self._take(frame)
        return False

    async def _refused(self, response: Response) -> None:
        session = self._session
        accepted = 200 <= response.status < 300
        body = b"" if accepted else await refusal_body(response, self._end.limits.refusal)
        may_guess = session.worked and not session.guessed_lost
        verdict = judge(response.status, body, has_session=session.id is not None, may_guess=may_guess)
        answered = isinstance(verdict, Answered)
        if session.version is None and await self._end.speaks_sse(response.status, read=answered):
            self._answered = True
            self._emit(SpeaksSse())
        elif isinstance(verdict, Lost):
            session.guessed_lost = session.guessed_lost or verdict.guessed
            self._answered = True
            self._emit(SessionLost(self.id))
        elif isinstance(verdict, Failed):
            message = f"{self._end.name}: {verdict.message}"
            self._fail(
                verdict.reason,
                message,
                verdict.executed,
                response.status,
                self._end.explained(message, response.status, body),
            )
        else:
            self._answered = True
            self._emit(FrameReceived(body, self.id, status=response.status))

    async def _resume(self) -> None:
        end, session = self._end, self._session
        try:
            response = await end.ask("GET", session.get_headers(self._trail.last_id), stream=True)
        except WireError:
            return
        with response:
            status = response.status
            if kind_of(status, response.header(b"content-type")) is Kind.EVENTS:
                await self._follow(response)
            elif status not in PASSING and status < 500:
                message = f"{end.name} refused to go on with a broken stream (HTTP {status})"
                self._fail("not_resumable", message, "unknown", status)
                if status == 404 and session.id is not None:
                    self._emit(SessionLost(None))


class HttpPost:
    """A notification or a response on its way: it gets no answer, only accepted."""

    __slots__ = ("_end", "_outgoing", "_session", "reason")

    def __init__(self, end: Endpoint, session: HttpSession, outgoing: Outgoing) -> None:
        self.reason = "not_accepted"
        self._end = end
        self._session = session
        self._outgoing = outgoing

    async def run(self) -> str | None:
        """None if it was accepted; else what went wrong. That the session is lost, its owner learns by an event."""
        end, session = self._end, self._session
        with trio.move_on_after(end.limits.accept):
            try:
                response = await end.ask("POST", session.post_headers(), self._outgoing.frame)
            except UnauthorizedError as error:
                self.reason = error.reason
                return error.detail
            except WireError as error:
                return error.detail
            with response:
                body = await refusal_body(response, end.limits.refusal)
                return self._settle(response.status, body)
        return f"not accepted within {end.limits.accept:g} s"

    def _settle(self, status: int, body: bytes) -> str | None:
        session = self._session
        if 200 <= status < 300:
            session.worked = session.id is not None
            if self._outgoing.tag is not None:
                self._end.emit(FrameAccepted(self._outgoing.tag))
            return None
        may_guess = session.worked and not session.guessed_lost
        verdict = judge(status, body, has_session=session.id is not None, may_guess=may_guess)
        if isinstance(verdict, Lost):
            session.guessed_lost = session.guessed_lost or verdict.guessed
            self._end.emit(SessionLost(None))
            return None if self._outgoing.tag is not None else f"HTTP {status}, the session is lost"
        return f"HTTP {status}, {executed_by(status)}"


async def challenge_of(response: Response, within: float) -> str:
    """What a refusal demands; its body is read, so that the connection can be used again."""
    challenge = response.header(b"www-authenticate").decode("latin-1")
    with response:
        await refusal_body(response, within)
    return challenge


async def refusal_body(response: Response, within: float) -> bytes:
    """What a refusal says, if that comes within so many seconds; once it is read the connection can be used again."""
    try:
        with trio.move_on_after(within):
            return await response.read(ERROR_BODY)
    except WireError:
        pass
    return b""


def reason_of(error: WireError) -> str:
    """The reason that a request fails with which could not be sent, or got no answer."""
    if isinstance(error, UnauthorizedError):
        return error.reason
    if isinstance(error, ConnectError):
        return "connection_refused"
    if isinstance(error, HeaderError):
        return "not_sent"
    return "backend_full" if isinstance(error, PoolFullError) else "connection_lost"
