"""What a session wants done: the outputs of `session/machine`, imperative, frozen. The session's actor runs them."""

from typing import TypeAlias, final

from msgspec import Raw, Struct

from actors.machines.session.events import CallId, ConnectionId, Place, PostId
from actors.protocol import tasks
from actors.protocol.errors import ProtocolError
from actors.protocol.messages import EMPTY, RequestId
from actors.protocol.rights import NO_RIGHTS, Rights


class Accept(Struct, frozen=True):
    """202, no body."""

    post: PostId


@final
class AnswerPost(Struct, frozen=True):
    """200 with this JSON body."""

    post: PostId
    body: bytes


class RefusePost(Struct, frozen=True):
    """Refuse the POST as a whole: status by the error, nothing of it was executed."""

    post: PostId
    error: ProtocolError
    id: RequestId | None = None


class OpenStream(Struct, frozen=True):
    """Open a stream in the log, then give it to the waiting POST or GET. `first` is event 1 (b"": priming).
    `requests` are recorded from here on, by their key. `calls` may not have been sent yet: whoever runs them is to hold
    those that were not."""

    stream: str
    post: PostId | None
    connection: ConnectionId | None
    requests: dict[str, bytes]
    first: bytes | None
    calls: tuple[CallId, ...] = ()


@final
class Append(Struct, frozen=True):
    """Append an event to the log and pass it to the attached connection; `finish` ends the stream after it (or, with no
    data, at once). The other members change the record in the same step; None deletes. (With neither data nor finish
    only the record changes.) `clears`: `CallCleared` for this call follows when the store has acknowledged it;
    `accepts`: then this POST is accepted."""

    stream: str
    seq: int
    data: bytes | None
    finish: bool = False
    requests: dict[str, bytes | None] = {}
    asked: dict[str, bytes | None] = {}
    clears: CallId | None = None
    accepts: PostId | None = None


class Follow(Struct, frozen=True):
    """Answer a GET with what follows (epoch, seq) on the stream: from the log up to `head`, and live from there on if
    the stream is `live`. Number 0 is the place before its first event, and the epoch then that of its opening."""

    connection: ConnectionId
    stream: str
    epoch: int
    seq: int
    head: int
    live: bool


class RefuseGet(Struct, frozen=True):
    """Refuse a GET."""

    connection: ConnectionId
    error: ProtocolError


class CloseConnection(Struct, frozen=True):
    """Close the connection of a stream. `retry`: tell the client when to come back, in ms."""

    connection: ConnectionId
    reason: str
    retry: int | None = None


@final
class Dispatch(Struct, frozen=True):
    """Find out who serves this request and pass it on; `CallEnded` follows. `rights`: with which it is asked. Of
    limits: whether what they want was `paid`, or what names an earlier payment that is good `once`. `as_task`: it is to
    become a task of 2025-11-25."""

    call: CallId
    method: str
    params: Raw
    progress: bool
    rights: Rights = NO_RIGHTS
    paid: bool = False
    once: str = ""
    as_task: bool = False

    @property
    def for_model(self) -> bool:
        """As in `tasks.for_model`."""
        return tasks.for_model(self.method, as_task=self.as_task)


class Continue(Struct, frozen=True):
    """Have the rest of an answer brought that was asked for in an earlier life; `CallEnded` follows. `asked` are
    the backend's server requests in the course of it that the client has yet to answer: their ids and methods."""

    call: CallId
    backend: str
    method: str
    progress: bool
    place: Place
    asked: tuple[tuple[RequestId, str], ...] = ()


class CancelCall(Struct, frozen=True):
    """Nobody waits for this call any more. `error`: what its client gets."""

    call: CallId
    reason: str
    error: ProtocolError


class UseLevel(Struct, frozen=True):
    """The client's log level is in force from here on."""

    level: str


class Broadcast(Struct, frozen=True):
    """A notification of the client for all its backends."""

    method: str
    params: Raw = EMPTY


class NotifyBackend(Struct, frozen=True):
    """A notification of the client for one backend."""

    backend: str
    method: str
    params: Raw


class AnswerBackend(Struct, frozen=True):
    """The outcome of a backend's request; `id` is the backend's own. `method`: of that request, where it had reached
    the client. `unheard`: there was no stream to carry it."""

    backend: str
    id: RequestId
    ok: bool
    payload: Raw
    method: str = ""
    unheard: bool = False


class Release(Struct, frozen=True):
    """This call may be sent: the record does not say that it was not."""

    call: CallId


@final
class StartTurnClock(Struct, frozen=True):
    """`StreamTurnDue` for this POST after the limit."""

    post: PostId


@final
class StopTurnClock(Struct, frozen=True):
    """It has its answer."""

    post: PostId


@final
class StartDeadline(Struct, frozen=True):
    """`CallExpired` when the call's deadline, counted from `since`, passes (never later than the cap after
    `accepted`)."""

    call: CallId
    since: float
    accepted: float


class StopDeadline(Struct, frozen=True):
    """The call has its outcome."""

    call: CallId


class StartServerRequestClock(Struct, frozen=True):
    """`ServerRequestExpired` after the wait for a stream (`stream`: False), or after the deadline for an answer."""

    ask: str
    stream: bool


class StopServerRequestClock(Struct, frozen=True):
    """It was answered or withdrawn."""

    ask: str


class Save(Struct, frozen=True):
    """Fields of the record have changed; None deletes."""

    fields: dict[str, bytes | None]


class End(Struct, frozen=True):
    """Close every upstream connection, end the record, end the actor."""

    reason: str


class Count(Struct, frozen=True):
    """Count a thing that was dropped or refused."""

    what: str


CallEffect: TypeAlias = StartTurnClock | Dispatch | StopTurnClock | AnswerPost | Append | StartDeadline
"""What calls come to."""

SeldomEffect: TypeAlias = (
    Accept
    | RefusePost
    | OpenStream
    | Follow
    | RefuseGet
    | CloseConnection
    | StopDeadline
    | Continue
    | CancelCall
    | UseLevel
    | Broadcast
    | NotifyBackend
    | AnswerBackend
    | Release
    | StartServerRequestClock
    | StopServerRequestClock
    | Save
    | End
    | Count
)

SessionEffect: TypeAlias = CallEffect | SeldomEffect

Effects: TypeAlias = list[SessionEffect]
