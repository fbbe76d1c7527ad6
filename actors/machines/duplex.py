"""A client on a duplex connection (stdio, WebSocket, HTTP+SSE): one channel for everything, without HTTP's requests.

It decides what becomes of each message that comes, and of each that is to go out: which are requests, under which ids
they run, what is refused here; which answer a client that has cancelled must not get any more (2025-11-25 utilities,
"Cancellation"; on Streamable HTTP a POST has to end, with -32800), and what the end of a subscription is said by.
"""

from typing import Final, TypeAlias

from msgspec import Raw, Struct, field

from actors.protocol import codec, errors
from actors.protocol.errors import REQUEST_CANCELLED, Malformed, ProtocolError, encode_error_body
from actors.protocol.messages import Error, Notification, Request, RequestId, Result
from actors.protocol.meta import LEVEL_KEY, names_version
from actors.protocol.methods import CANCELLED, LISTEN
from actors.protocol.outcomes import untaken
from actors.protocol.payload import cancelled_id, mentions

EMPTY_RESULT: Final = Raw(b"{}")
LOST: Final = errors.internal("the answer was lost", reason="stream_lost", executed="unknown")
ENDED: Final = errors.internal("the connection ends before the answer", reason="stream_lost", executed="unknown")
"""Of what is under way when the time of a client is over that has said all, or whose token has ended."""


class Exchange(Struct, eq=False):
    """What is under way: one request, or those of a batch. `logs`: a modern request that asked for log messages."""

    ids: tuple[RequestId, ...]
    method: str = ""
    modern: bool = False
    logs: bool = False
    frame: codec.Frame | None = None
    """The message, which is read once."""
    pending: set[RequestId] = field(default_factory=set)
    """Those that have no answer yet."""
    withdrawn: set[RequestId] = field(default_factory=set)
    """Those that the client has cancelled."""
    saying: bool = False
    """A message of it goes out."""

    @property
    def listens(self) -> bool:
        """Whether it ends when somebody ends it, and not by itself."""
        return self.modern and self.method == LISTEN

    def errors_for_pending(self, error: ProtocolError = LOST) -> list[bytes]:
        """What is to be said instead of answers that will not come any more."""
        return [encode_error_body(error, id) for id in self.ids if id in self.pending - self.withdrawn]


class Requested(Struct, frozen=True):
    """Requests, which go on while others come. Those that `open` the session are waited for."""

    exchange: Exchange
    opens: bool = False


class Delivered(Struct, frozen=True):
    """What is delivered before the next message is looked at. `answered`: an error is for whoever sent it."""

    answered: bool = False
    confirms: bool = False
    """It makes the session ready for what the server has to say."""


class Withdrawn(Struct, frozen=True):
    """A modern request was cancelled: it ends, and nothing more is said of it."""

    id: RequestId


class Refused(Struct, frozen=True):
    """It goes nowhere; what is answered is this."""

    answers: tuple[bytes, ...]


Step: TypeAlias = Requested | Delivered | Withdrawn | Refused


class Conversation:
    """Not more than `most` requests are under way at once."""

    def __init__(self, most: int, message_bytes: int) -> None:
        self.session: str | None = None
        self.running: dict[RequestId, Exchange] = {}
        self._most = most
        self._message_bytes = message_bytes

    def take(self, body: bytes) -> Step:
        """What is to be done with a message of the client."""
        try:
            frame = codec.decode_frame(body, self._message_bytes)
        except Malformed:
            return Delivered(answered=True)  # whoever delivers it says what is wrong with it
        if isinstance(frame, Request):
            return self._request(frame, body)
        if isinstance(frame, Notification):
            return self._notification(frame)
        if isinstance(frame, codec.Batch):
            ids = tuple(m.id for m in frame.messages if isinstance(m, Request))
            if ids and self.session is None:
                return refused(errors.not_initialized(), Exchange(ids), body)
            return self._asked(Exchange(ids, frame=frame), body) if ids else Delivered(answered=True)
        return Delivered()

    def _request(self, request: Request, body: bytes) -> Step:
        id, method, modern = request.id, request.method, False
        if method != "initialize":
            modern = names_version(request.params) is not None
            if self.session is None and not modern:
                if method == "ping":
                    return Refused((codec.encode_result(id, EMPTY_RESULT),))
                return refused(errors.not_initialized(), Exchange((id,)), body)
        if method == "ping":
            return Delivered(answered=True)
        logs = modern and mentions(request.params, LEVEL_KEY.encode())
        return self._asked(Exchange((id,), method, modern, logs, request), body, opens=method == "initialize")

    def _asked(self, exchange: Exchange, body: bytes, *, opens: bool = False) -> Step:
        if any(id in self.running for id in exchange.ids):
            return refused(errors.invalid_request("a request with this id is under way"), exchange, body)
        if len(self.running) + len(exchange.ids) > self._most:
            return refused(errors.too_many_requests("on this connection"), exchange, body)
        exchange.pending.update(exchange.ids)
        self.running.update(dict.fromkeys(exchange.ids, exchange))
        return Requested(exchange, opens)

    def _notification(self, notification: Notification) -> Step:
        if notification.method == CANCELLED:
            id = _cancelled(notification.params)
            exchange = None if id is None else self.running.get(id)
            if exchange is not None and id is not None:
                exchange.withdrawn.add(id)
                if exchange.modern:
                    return Withdrawn(id)
        return Delivered(confirms=notification.method == "notifications/initialized")

    def give_up(self) -> list[bytes]:
        """What is said of all that is under way and would end by itself; nothing else goes out of it."""
        exchanges = {id(exchange): exchange for exchange in self.running.values() if not exchange.listens}.values()
        told = [error for exchange in exchanges for error in exchange.errors_for_pending(ENDED)]
        for exchange in exchanges:
            exchange.pending.clear()
        return told

    def over(self, exchange: Exchange) -> None:
        """Nothing of it is under way any more."""
        for id in exchange.ids:
            self.running.pop(id, None)

    @property
    def awaited(self) -> bool:
        """Whether something is under way that ends by itself."""
        return any(not exchange.listens for exchange in self.running.values())

    @property
    def saying(self) -> bool:
        """Whether the last message of something goes out."""
        return any(exchange.saying and not exchange.pending for exchange in self.running.values())

    def outgoing(self, exchange: Exchange, data: bytes) -> tuple[bytes, ...]:
        """What goes out of a message that the door has given for these requests."""
        try:
            message = codec.decode_message(data)
        except Malformed:  # the answers to a batch, all together
            exchange.pending.clear()
            return (one_line(data),)
        if isinstance(message, Result | Error):
            id = message.id
            if id is None:  # it could not be read: the error is about all there is
                exchange.pending.clear()
            else:
                exchange.pending.discard(id)
            if id in exchange.withdrawn and (exchange.modern or _says_cancelled(message)):
                return ()
            if exchange.listens:
                return one_line(data), _ended(exchange.ids[0])
        elif exchange.modern and message.method == "notifications/message" and self._ambiguous():
            return ()
        return (one_line(data),)

    def whole(self, exchange: Exchange, body: bytes) -> tuple[bytes, ...]:
        """The same of an answer that was given at once. To one request it need not be read."""
        if len(exchange.ids) > 1 or exchange.withdrawn or exchange.listens:
            return self.outgoing(exchange, body)
        exchange.pending.clear()
        return (one_line(body),)

    def refusing(self, exchange: Exchange, body: bytes) -> tuple[bytes, ...]:
        """What goes out of the refusal of a POST as a whole: it is the answer to each request that was in it."""
        try:
            message = codec.decode_message(body)
        except Malformed:
            message = None
        if not isinstance(message, Error) or exchange.pending == {message.id}:
            return self.outgoing(exchange, body)
        owing = [id for id in exchange.ids if id in exchange.pending - exchange.withdrawn]
        exchange.pending.clear()
        told = tuple(codec.encode(Error(id, message.error)) for id in owing)
        return (*told, _ended(exchange.ids[0])) if told and exchange.listens else told

    def _ambiguous(self) -> bool:
        """Whether nobody could tell whose a log message is: it names no request."""
        return sum(exchange.logs for exchange in self.running.values()) > 1


def refused(error: ProtocolError, exchange: Exchange, body: bytes) -> Refused:
    """An error of ours to each of the requests in this message, which goes nowhere."""
    if exchange.modern:
        error = untaken(errors.for_modern(error), Raw(body))
    return Refused(tuple(encode_error_body(error, id) for id in exchange.ids))


def one_line(data: bytes) -> bytes:
    """The same message without line breaks: in JSON they are nothing but space between tokens."""
    if b"\n" in data or b"\r" in data:
        return data.replace(b"\r", b" ").replace(b"\n", b" ")
    return data


def _says_cancelled(message: Result | Error) -> bool:
    if not isinstance(message, Error):
        return False
    try:
        return errors.parse_error_member(message.error).code == REQUEST_CANCELLED
    except ValueError:
        return False


def _cancelled(params: Raw) -> RequestId | None:
    try:
        return cancelled_id(params)
    except Malformed:
        return None


def _ended(id: RequestId) -> bytes:
    """On a shared channel the server says so besides the result (2026-07-28 patterns, "Subscriptions")."""
    return codec.encode_cancelled(id)
