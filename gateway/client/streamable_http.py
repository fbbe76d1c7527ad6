"""Streamable HTTP of both eras: a POST for each message, a GET for what belongs to no request, and the same GET for the
rest of an answer whose stream was cut. A POST is made once, whatever becomes of it."""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import trio

from actors.ports import FrameReceived, Headers, RequestFailed, SessionLost
from actors.protocol import codec
from actors.protocol.headers import VERSION_HEADER
from actors.protocol.messages import Error, Notification, Request, RequestId, Result
from actors.protocol.sse import SseDecoder
from actors.protocol.table import Limits
from actors.protocol.versions import Era, era_of
from actors.runtime.boundary import boundary
from gateway.client.errors import ConnectionLostError, RequestFailedError
from gateway.client.inbox import Inbox
from gateway.client.transport import ACCEPT, REFUSAL, Received
from gateway.wire import http_rules
from gateway.wire.errors import SizeError, WireError
from gateway.wire.http1_client import encode_headers
from gateway.wire.http_events import EventTrail, read_events
from gateway.wire.http_rules import PASSING, Answered, Kind, Lost
from gateway.wire.http_session import HttpSession
from gateway.wire.pool import Pool, Response
from gateway.wire.url import parse_url

RESUMES: Final = 6
"""Attempts in a row to go on with a broken stream that bring no event."""
LISTENS: Final = 10
"""The same of the stream of what belongs to no request; with the back-off some minutes."""
LISTEN: Final = 5.0
"""Seconds that a subscription waits for the stream on which its updates come."""
DELETE: Final = 3.0
"""Seconds for ending the session."""

_LOG: Final = logging.getLogger("stagedoor.client")


class HttpTransport:
    """An endpoint at `url` (http, https, or unix:/path). Its tasks live in `nursery`."""

    def __init__(
        self,
        url: str,
        nursery: trio.Nursery,
        *,
        headers: Iterable[tuple[str, str]] = (),
        message_bytes: int = Limits().message_bytes,
    ) -> None:
        """ValueError for a URL or a header that is none."""
        self._url = parse_url(url)
        self._configured = tuple(headers)
        self._session = HttpSession(self._configured)
        self._pool = Pool()
        self._nursery = nursery
        self._limit = message_bytes
        self._inbox = Inbox()
        self._running: dict[RequestId, trio.CancelScope] = {}
        self._trail = EventTrail()
        self._listener: trio.CancelScope | None = None
        self._heard = trio.Event()
        self._closed = False

    def __repr__(self) -> str:
        return f"<HttpTransport {self._url.origin}>"

    @property
    def session_id(self) -> str | None:
        return self._session.id

    @property
    def last_event_id(self) -> str | None:
        return self._trail.last_id

    async def receive(self) -> Received:
        try:
            return await self._inbox.receive()
        except trio.EndOfChannel:
            raise ConnectionLostError("the connection was closed") from None

    async def send(self, message: bytes, headers: Headers = ()) -> None:
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise ConnectionLostError("the connection was closed", executed="no")
        said = codec.decode_message(message)
        modern = dict(headers).get(VERSION_HEADER, "") and era_of(dict(headers)[VERSION_HEADER]) is Era.MODERN
        match said:
            case Request():
                scope = self._running[said.id] = trio.CancelScope()
                self._nursery.start_soon(self._exchange, said, message, headers if modern else None, scope)
            case Notification(method="notifications/cancelled"):
                try:
                    if not modern:
                        await self._deliver(message)
                finally:
                    self._give_up(codec.loads(said.params).get("requestId"))
            case Notification(method="notifications/initialized"):
                self._session.take_version(dict(headers)[VERSION_HEADER])
                await self._deliver(message)
                self._start_listening(EventTrail())
            case _ if not modern:
                status = await self._deliver(message)
                if status >= 400 and isinstance(said, Result):
                    await self._deliver(http_rules.instead(said, status))
            case _:
                pass  # a modern client answers by another request, and tells nothing

    async def close(self) -> None:
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        for scope in (*self._running.values(), *([self._listener] if self._listener else [])):
            scope.cancel()
        try:
            if self._session.id is not None:
                with trio.move_on_after(DELETE):
                    (await self._pool.request("DELETE", self._url, self._session.delete_headers())).close()
        except WireError:
            pass  # it ends by itself, some time
        finally:
            self._pool.close()
            self._inbox.close()

    async def resume_from(self, event_id: str) -> None:
        response = await self._get(EventTrail(event_id))
        if not isinstance(response, Response):
            raise RequestFailedError(
                f"the server did not go on after that event ({response})", reason="not_resumed", executed="no"
            )
        self._nursery.start_soon(partial(self._follow, response, EventTrail(event_id)))

    # A message ------------------------------------------------------------------------------------------------

    async def _exchange(self, asked: Request, frame: bytes, modern: Headers | None, scope: trio.CancelScope) -> None:
        with scope:
            outcome = await boundary(self._ask, asked, frame, modern)
            if outcome.error is not None:
                self._fail(asked.id, outcome.error)
        self._running.pop(asked.id, None)

    async def _ask(self, asked: Request, frame: bytes, modern: Headers | None) -> None:
        if asked.method == "resources/subscribe":
            with trio.move_on_after(LISTEN):
                await self._heard.wait()
        session = self._session
        lines = session.post_headers() + encode_headers(modern or ())
        with await self._pool.request("POST", self._url, lines, frame) as response:
            kind = http_rules.kind_of(response.status, response.header(b"content-type"))
            if modern is None and kind is not Kind.REFUSED and not session.take_id(response.header(b"mcp-session-id")):
                raise RequestFailedError("not a session id", reason="protocol", executed="unknown")
            if kind is Kind.JSON:
                self._take_json(asked.id, await response.read(self._limit), response.status)
            elif kind is Kind.EVENTS:
                await self._take_events(asked.id, response, resumable=modern is None)
            else:
                await self._take_refusal(asked.id, response, session)

    def _take_json(self, id: RequestId, body: bytes, status: int) -> None:
        read = http_rules.read(body)
        if not http_rules.answers(read, id):
            raise RequestFailedError("the server's answer is to another request", reason="protocol", executed="unknown")
        self._answer(id, body, read, status)

    async def _take_refusal(self, id: RequestId, response: Response, session: HttpSession) -> None:
        body = await response.read(REFUSAL)
        verdict = http_rules.judge(response.status, body, has_session=session.id is not None, may_guess=False)
        match verdict:
            case Lost():
                self._forget_session(session)
                self._inbox.put(SessionLost(id))
            case Answered():
                answer = http_rules.as_answer(body, id)
                assert answer is not None
                self._inbox.put(FrameReceived(answer, id, status=response.status))
            case _:
                self._inbox.put(RequestFailed(id, verdict.reason, verdict.message, verdict.executed, response.status))

    async def _take_events(self, id: RequestId, first: Response, *, resumable: bool) -> None:
        trail = EventTrail()
        response: Response | int = first
        while True:
            if isinstance(response, Response):
                done = await self._read_events(response, trail, partial(self._take, id))
                response.close()
                if done:
                    return
            refused_for_good = isinstance(response, int) and not _passes(response)
            if not resumable or trail.last_id is None or trail.failures >= RESUMES or refused_for_good:
                raise RequestFailedError("the stream ended without an answer", reason="no_response", executed="unknown")
            await trio.sleep(trail.wait())
            response = await self._get(trail)

    def _take(self, id: RequestId, frame: bytes) -> bool:
        """Passes an event of the stream of this request on; whether it was the answer."""
        read = http_rules.read(frame)
        answers = http_rules.answers(read, id)
        if answers:
            self._answer(id, frame, read)
        else:
            self._inbox.put(frame)
        return answers

    def _answer(self, id: RequestId, frame: bytes, read: object, status: int | None = None) -> None:
        """Passes on what answers this request."""
        self._inbox.put(FrameReceived(_addressed(frame, read, id), id, status=status))
        if not isinstance(read, Result | Error):  # what of it can't be read answers nobody
            self._inbox.put(RequestFailed(id, "protocol", "the server's answer can't be read", "unknown"))

    async def _deliver(self, message: bytes) -> int:
        """A message that has no answer. The status of HTTP."""
        try:
            with trio.fail_after(ACCEPT):
                response = await self._pool.request("POST", self._url, self._session.post_headers(), message)
                with response:
                    await response.read(REFUSAL)
                return response.status
        except WireError as error:
            raise ConnectionLostError(str(error), executed="unknown" if error.sent else "no") from error
        except trio.TooSlowError as error:
            raise ConnectionLostError("the server did not accept a message in time") from error

    def _give_up(self, id: object) -> None:
        scope = self._running.get(id) if isinstance(id, (int, str)) else None
        if scope is not None:
            scope.cancel()

    def _fail(self, id: RequestId, error: BaseException) -> None:
        match error:
            case RequestFailedError():
                failed = RequestFailed(id, error.reason, str(error), error.executed)
            case SizeError():
                failed = RequestFailed(id, "too_large", str(error), "unknown")
            case WireError():
                reason = "connect" if not error.sent else "broken"
                failed = RequestFailed(id, reason, error.detail, "unknown" if error.sent else "no")
            case _:
                _LOG.error("an exchange crashed", exc_info=error)
                failed = RequestFailed(id, "crashed", "the exchange with the server crashed", "unknown")
        self._inbox.put(failed)

    # The stream of what belongs to no request -----------------------------------------------------------------

    def _start_listening(self, trail: EventTrail) -> None:
        if self._listener is not None:
            self._listener.cancel()
        self._trail, self._heard = trail, trio.Event()
        self._listener = trio.CancelScope()
        self._nursery.start_soon(self._listen, trail, self._heard, self._listener)

    async def _listen(self, trail: EventTrail, heard: trio.Event, scope: trio.CancelScope) -> None:
        session = self._session
        with scope:
            while True:
                response = await self._get(trail)
                heard.set()
                if isinstance(response, Response):
                    if not await self._follow(response, trail):  # to go on would be to meet again what can't be read
                        self._inbox.put(SessionLost(None))
                        return
                elif response == 404 and session.id is not None:
                    self._forget_session(session)
                    self._inbox.put(SessionLost(None))
                    return
                elif response == 400 and trail.last_id is not None:
                    trail.last_id = None  # what came since is no longer kept
                elif not _passes(response):
                    return
                elif trail.failures >= LISTENS:
                    self._inbox.put(SessionLost(None))
                    return
                await trio.sleep(trail.wait())

    async def _follow(self, response: Response, trail: EventTrail) -> bool:
        """Passes on what comes up to the end of the stream; whether all of it could be read."""
        with response:
            outcome = await boundary(self._read_events, response, trail, self._take_unrelated)
        if outcome.error is not None:
            _LOG.warning("a stream was given up: %s", outcome.error)
        return outcome.error is None

    async def _read_events(self, response: Response, trail: EventTrail, take: Callable[[bytes], bool]) -> bool:
        stream = _Patient(response, self._inbox)
        return await read_events(stream, SseDecoder(2 * self._limit), trail, take, lambda: None)

    def _take_unrelated(self, frame: bytes) -> bool:
        self._inbox.put(frame)
        return False

    async def _get(self, trail: EventTrail) -> Response | int:
        """A stream, or the status by which it was refused; 0: nobody was reached."""
        try:
            response = await self._pool.request("GET", self._url, self._session.get_headers(trail.last_id))
        except WireError:
            return 0
        if http_rules.kind_of(response.status, response.header(b"content-type")) is Kind.EVENTS:
            return response
        response.close()
        return response.status

    def _forget_session(self, lost: HttpSession) -> None:
        if self._session is lost:
            self._session = HttpSession(self._configured)
            if self._listener is not None:
                self._listener.cancel()


class _Patient:
    """A stream that is read no further while too much of what came was not received."""

    def __init__(self, response: Response, inbox: Inbox) -> None:
        self._response = response
        self._inbox = inbox

    async def receive_some(self) -> bytes:
        await self._inbox.room()
        return await self._response.receive_some()


def _passes(status: int) -> bool:
    """Whether a later attempt may not meet this refusal."""
    return status == 0 or status in PASSING or status >= 500


def _addressed(frame: bytes, read: object, id: RequestId) -> bytes:
    """An error without an id, which is by a server that could not read ours, with the id of what it answers."""
    return codec.encode(Error(id, read.error)) if isinstance(read, Error) and read.id is None else frame
