"""What happens to a session: the inputs of `session/machine`, past tense, frozen."""

from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeAlias

from msgspec import Raw, Struct

from actors.protocol.errors import ProtocolError
from actors.protocol.messages import Message, RequestId
from actors.protocol.rights import NO_RIGHTS, Rights

PostId: TypeAlias = int
"""Numbers the POSTs of a session's life in memory; never leaves the process."""

ConnectionId: TypeAlias = int
"""Numbers the connections that carry an SSE stream, likewise."""

CallId: TypeAlias = int
"""Numbers the client's requests of a session's life in memory."""


class Place(Struct, frozen=True):
    """Where the response to a call stands at its backend: the call's id there, and the event id after which its stream
    goes on. (None: it can't be told.)"""

    id: RequestId
    cursor: str | None


NO_TRACES: Final[Mapping[RequestId, str]] = {}


class Posted(Struct, frozen=True):
    """A POST with one message, or with several (a batch). `refused` are answers to members that could not be read.
    `traces`: by what later work can point at the requests that are traced."""

    post: PostId
    messages: tuple[Message, ...]
    batch: bool
    now: float
    refused: tuple[tuple[RequestId | None, Raw], ...] = ()
    rights: Rights = NO_RIGHTS
    traces: Mapping[RequestId, str] = NO_TRACES


class PostBroken(Struct, frozen=True):
    """The connection of a POST that has no answer yet is gone."""

    post: PostId


class Attached(Struct, frozen=True):
    """A GET: for a new stream, or (`stream`) to go on with one after the event (epoch, seq). `sees`: whether whoever
    reads it may have a message that belongs to no request; None: every one."""

    connection: ConnectionId
    stream: str | None = None
    epoch: int = 0
    seq: int = 0
    sees: Callable[[bytes], bool] | None = None


class Detached(Struct, frozen=True):
    """The connection that carried a stream is gone. Events up to the number `written` went out on it; of later ones
    nobody knows."""

    connection: ConnectionId
    stream: str
    written: int = 0


class StreamTurnDue(Struct, frozen=True):
    """The answer of this POST takes long: it becomes a stream."""

    post: PostId


class CallExpired(Struct, frozen=True):
    """The deadline of a call has passed; `backend` is who has not answered it, as far as known."""

    call: CallId
    backend: str | None = None


class ServerRequestExpired(Struct, frozen=True):
    """A server request found no stream in time, or no answer."""

    ask: str


class CallProgressed(Struct, frozen=True):
    """A notification or progress of a backend in the course of a call (`call`), or of none. `place`: where the call
    stands after it. `as_is`: the backend is all that is behind the endpoint, and speaks the client's own revision: what
    it says passes, for the two of them know what they mean."""

    backend: str
    call: CallId | None
    method: str
    params: Raw
    now: float
    place: Place | None = None
    as_is: bool = False


class CallPlaced(Struct, frozen=True):
    """Where a call stands now, though nothing was said."""

    backend: str
    call: CallId
    place: Place


class CallAwaited(Struct, frozen=True):
    """Another call is not sent before this one is over."""

    call: CallId


class CallHeld(Struct, frozen=True):
    """A call has not been sent, and will not be before `CallDue` was answered with `Release`."""

    call: CallId


class CallDue(Struct, frozen=True):
    """A call could be sent now."""

    call: CallId


class CallCleared(Struct, frozen=True):
    """The store has acknowledged that the record no longer says of this call that it was not sent."""

    call: CallId


class CallEnded(Struct, frozen=True):
    """The outcome of a call: `payload` is its result or the JSON-RPC error object. `as_is` as in CallProgressed.
    `refusal`: that error, if it is one with an HTTP status of its own."""

    call: CallId
    ok: bool
    payload: Raw
    as_is: bool = False
    refusal: ProtocolError | None = None


class ServerRequested(Struct, frozen=True):
    """A backend asks the client something. `id` is the backend's own; `place` and `as_is` as in CallProgressed.
    `outlasts`: it does not end with the call, whose stream may carry it."""

    backend: str
    call: CallId | None
    id: RequestId
    method: str
    params: Raw
    place: Place | None = None
    as_is: bool = False
    outlasts: bool = False


class ServerRequestWithdrawn(Struct, frozen=True):
    """A backend no longer wants an answer."""

    backend: str
    id: RequestId


class BackendLost(Struct, frozen=True):
    """An upstream connection is down: its server requests are void. (Outcomes of its calls come one by one.)"""

    backend: str


class StreamFailed(Struct, frozen=True):
    """The store refused to open or to extend a stream."""

    stream: str
    reason: Literal[
        "fenced",
        "gone",
        "ended",
        "exists",
        "finished",
        "too_new",
        "seq",
        "full",
        "away",
        "store_full",
        "dead",
        "inbox_full",
    ]


class DrainStarted(Struct, frozen=True):
    """The process is to end: streams whose client can resume are let go."""


class DrainOverdue(Struct, frozen=True):
    """The drain can't wait any longer: what is in flight gets its error, but for what the next life can continue with
    `lasting` backends, whose sessions the record holds."""

    lasting: frozenset[str] = frozenset()


class MoveAsked(Struct, frozen=True):
    """The session is to go on elsewhere, now: what is in flight gets its error, but for what the next life can continue
    with `lasting` backends. Its connections follow it there."""

    lasting: frozenset[str] = frozenset()


class Ended(Struct, frozen=True):
    """The session ends for good. `reason`: delete, idle, lost, poisoned, shutdown."""

    reason: str


SessionEvent: TypeAlias = (
    Posted
    | PostBroken
    | Attached
    | Detached
    | StreamTurnDue
    | CallExpired
    | ServerRequestExpired
    | CallProgressed
    | CallPlaced
    | CallAwaited
    | CallHeld
    | CallDue
    | CallCleared
    | CallEnded
    | ServerRequested
    | ServerRequestWithdrawn
    | BackendLost
    | StreamFailed
    | DrainStarted
    | DrainOverdue
    | MoveAsked
    | Ended
)
