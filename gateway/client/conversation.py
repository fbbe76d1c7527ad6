"""A client's half of the protocol, without IO: what is written for a request, and what a frame means.

Ids are numbers that never come again in a conversation; a request that asks for progress has its id for a token. What
differs between the eras is a *dialect*: what is added to the params of a request, and what HTTP repeats of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from msgspec import Raw, Struct

from actors.ports import Headers
from actors.protocol import codec, headers, meta
from actors.protocol.errors import METHOD_NOT_FOUND, ProtocolError
from actors.protocol.headers import Mirrored
from actors.protocol.messages import EMPTY, Error, Message, Notification, Request, RequestId, Result
from actors.protocol.methods import CANCELLED
from actors.protocol.payload import dumps, loads
from actors.protocol.versions import MODERN


class Outgoing(Struct, frozen=True):
    """A message to send; `id` of a request."""

    frame: bytes
    headers: Headers = ()
    id: int = 0


class Answered(Struct, frozen=True):
    """A request has its result."""

    id: int
    result: Raw


class Refused(Struct, frozen=True):
    """A request has an error for an answer."""

    id: int
    error: Raw


class Progressed(Struct, frozen=True):
    """A request has come so far."""

    id: int
    params: Mapping[str, Any]


class Requested(Struct, frozen=True):
    """The server asks for something."""

    id: RequestId
    method: str
    params: Any


class Withdrawn(Struct, frozen=True):
    """The server does not wait for what it asked for any more."""

    id: RequestId


class Notified(Struct, frozen=True):
    """Any other notification."""

    method: str
    params: Mapping[str, Any]


class Say(Struct, frozen=True):
    """This is to be sent."""

    outgoing: Outgoing


Event: TypeAlias = Answered | Refused | Progressed | Requested | Withdrawn | Notified | Say


class Dialect(Protocol):
    """How an era is written."""

    @property
    def version(self) -> str:
        """The revision that is spoken."""

    @property
    def asks(self) -> bool:
        """Whether servers send requests."""

    def envelope(self) -> dict[str, Any]:
        """What `_meta` of each request says."""

    def headers(self, method: str, params: Raw, mirrored: Sequence[Mirrored]) -> Headers:
        """What HTTP says of a message."""


@dataclass(slots=True)
class Handshake:
    """The era of `initialize`; before its answer there is no version to name."""

    version: str = ""
    asks: bool = True

    def envelope(self) -> dict[str, Any]:
        return {}

    def headers(self, method: str, params: Raw, mirrored: Sequence[Mirrored]) -> Headers:
        return ((headers.VERSION_HEADER, self.version),) if self.version else ()


@dataclass(slots=True)
class Stateless:
    """The era in which each request says all of itself. `level`: of the log messages that are wanted."""

    capabilities: Mapping[str, Any]
    info: Mapping[str, Any]
    version: str = MODERN
    level: str | None = None
    asks: bool = False

    def envelope(self) -> dict[str, Any]:
        said: dict[str, Any] = {
            meta.VERSION_KEY: self.version,
            meta.CAPABILITIES_KEY: self.capabilities,
            meta.INFO_KEY: self.info,
        }
        return said | ({} if self.level is None else {meta.LEVEL_KEY: self.level})

    def headers(self, method: str, params: Raw, mirrored: Sequence[Mirrored]) -> Headers:
        return headers.outbound(method, params, mirrored, self.version)


@dataclass(slots=True)
class Conversation:
    """What is under way between a client and a server."""

    dialect: Dialect = field(default_factory=Handshake)
    _last: int = 0
    _open: set[int] = field(default_factory=set)

    def ask(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        progress: bool = False,
        mirrored: Sequence[Mirrored] = (),
    ) -> Outgoing:
        """A request to the server, with its id."""
        self._last += 1
        id = self._last
        self._open.add(id)
        said = {} if params is None else dict(params)
        added = self.dialect.envelope() | ({"progressToken": id} if progress else {})
        if added:
            said["_meta"] = dict(said.get("_meta") or {}) | added
        raw = dumps(said)
        return Outgoing(codec.encode_request(id, method, raw), self.dialect.headers(method, raw, mirrored), id)

    def tell(self, method: str, params: Mapping[str, Any] | None = None) -> Outgoing:
        """A notification to the server."""
        raw = EMPTY if params is None else dumps(params)
        return Outgoing(codec.encode_notification(method, raw), self.dialect.headers(method, raw, ()))

    def forget(self, id: int) -> bool:
        """Nobody waits for this request any more; whether it was still open."""
        was_open = id in self._open
        self._open.discard(id)
        return was_open

    def withdraw(self, id: int) -> Outgoing:
        """Tells the server that nobody waits for this request any more."""
        return self.tell(CANCELLED, {"requestId": id, "reason": "nobody waits for the answer any more"})

    def answer(self, id: RequestId, result: Mapping[str, Any]) -> Outgoing:
        """The result of what the server asked for."""
        return Outgoing(codec.encode_result(id, dumps(result)), self.dialect.headers("", EMPTY, ()))

    def refuse(self, id: RequestId, error: Mapping[str, Any]) -> Outgoing:
        """An error for what the server asked for."""
        return Outgoing(codec.encode(Error(id, dumps(error))), self.dialect.headers("", EMPTY, ()))

    def read(self, frame: bytes) -> list[Event]:
        """What a frame says. What can't be read, answers to nobody and requests out of place say nothing."""
        try:
            message = codec.decode_frame(frame)
        except codec.Malformed as malformed:
            return self._unread(malformed)
        messages = message.messages if isinstance(message, codec.Batch) else (message,)
        events: list[Event] = []
        for one in messages:
            events += self._unread(one) if isinstance(one, codec.Malformed) else self._read(one)
        return events

    def _unread(self, malformed: codec.Malformed) -> list[Event]:
        id = malformed.outcome_of
        if isinstance(id, int) and id in self._open:
            return [Refused(id, dumps({"code": malformed.error.code, "message": f"no answer: {malformed}"}))]
        if malformed.asks and malformed.id is not None and self.dialect.asks:
            return [Say(self.refuse(malformed.id, of_error(malformed.error)))]
        return []

    def _read(self, message: Message) -> list[Event]:
        match message:
            case Result(id=int(id), result=result) if self.forget(id):
                return [Answered(id, result)]
            case Error(id=int(id), error=error) if self.forget(id):
                return [Refused(id, error)]
            case Request() if self.dialect.asks:
                return [self._asked(message)]
            case Notification():
                return self._told(message)
            case _:
                return []

    def _asked(self, request: Request) -> Event:
        if request.method == "ping":
            return Say(self.answer(request.id, {}))
        return Requested(request.id, request.method, _plain(request.params))

    def _told(self, notification: Notification) -> list[Event]:
        params = _plain(notification.params)
        if notification.method == "notifications/progress":
            token = params.get("progressToken")
            return [Progressed(token, params)] if type(token) is int and token in self._open else []
        if notification.method == CANCELLED and type(params.get("requestId")) in (int, str):
            return [Withdrawn(params["requestId"])]
        return [Notified(notification.method, params)]


def unknown(method: str) -> dict[str, Any]:
    """The refusal of a request that this client has no handler for."""
    return {"code": METHOD_NOT_FOUND, "message": f"Method not found: {method}"}


def of_error(error: ProtocolError) -> dict[str, Any]:
    """An error of ours in wire form."""
    return {"code": error.code, "message": error.message}


def _plain(params: Raw) -> dict[str, Any]:
    try:
        return dict(loads(params)) if params else {}
    except (codec.Malformed, ValueError):
        return {}
