"""What happens to an upstream connection (its events, past tense) and what it wants done (its effects, imperative).

A *upstream connection* is our connection to one backend. Its machine is in `upstream/legacy`.
"""

from collections.abc import Hashable
from typing import Final, Literal, TypeAlias

from msgspec import Raw, Struct

from actors.machines.session.events import Place
from actors.protocol.diagnostics import NO_DIAGNOSTICS, Diagnostics
from actors.protocol.messages import EMPTY, Message, RequestId
from actors.protocol.rights import NO_RIGHTS, Rights
from actors.protocol.transport import EventsMissed, FrameAccepted, Headers, Positioned, SessionLost

CallKey: TypeAlias = Hashable
"""Names a call towards those who asked for it; opaque here."""

UNSENT_MAX: Final = 256
"""Messages that wait for a connection without being a call: answers, cancels, notifications of clients. Of more of them
some are dropped, and counted."""
UNSENT_BYTES: Final = 16 * 1024 * 1024
"""The same, in bytes; one alone may have more."""
REPLACED: Final = "replaced"
"""Why a connection is down that was given up for another one, since whose its requests are can't be told."""


NO_MEMBERS: Final = Raw(b"{}")


class ServerInfo(Struct, frozen=True):
    """What the backend said of itself: `result` is the whole answer to `initialize` or `server/discover`."""

    version: str
    capabilities: Raw
    implementation: Raw
    instructions: str | None
    result: Raw

    @property
    def lasting(self) -> "ServerInfo":
        """What is needed of it past the handshake: the rest may be large."""
        return ServerInfo(self.version, self.capabilities, NO_MEMBERS, None, NO_MEMBERS)


# Events ------------------------------------------------------------------------------------------------------


class Called(Struct, frozen=True):
    """A request for the backend. `progress`: the caller wants its progress. `final`: whether it is made as a task is
    decided. `version`: to a backend that speaks this revision it goes as it is, with members that the revision does not
    have. `rights`: with which it is asked. The rest is the machine's own."""

    call: CallKey
    """None for a request of the upstream connection's own."""
    method: str
    params: Raw = EMPTY
    progress: bool = False
    final: bool = False
    version: str = ""
    retried: bool = False
    """The backend refused it once, for it did not know our session."""
    held: bool = False
    """It is not sent before it is released."""
    due: bool = False
    rights: Rights = NO_RIGHTS
    """That was asked for."""


class Wanted(Struct, frozen=True):
    """Connect, though there is no call yet."""


class Abandoned(Struct, frozen=True):
    """Nobody waits for this call any more; the backend is told so. `asks`: it is known to ask in the course of calls,
    and its client can be asked nowhere else."""

    call: CallKey
    reason: str
    asks: bool = False


class AnswerGiven(Struct, frozen=True):
    """The outcome of a request of the backend. `unheard`: nobody could be asked."""

    id: RequestId
    ok: bool
    payload: Raw
    unheard: bool = False


class Notified(Struct, frozen=True):
    """A notification for the backend. One that the protocol has is for whoever is connected, any other waits for a
    connection."""

    method: str
    params: Raw = EMPTY


class Started(Struct, frozen=True):
    """A transport is there; `related` tells whether it relates messages to requests. `listens`: what
    belongs to no request comes on a stream that must be opened. `fresh`: it goes to another place than that where a
    session was kept. `warm`: its process was started for an earlier connection, and
    has refused to speak that one's era. `starts`: its process has yet to start. `settled`: the other era is known not
    to be spoken there."""

    related: bool
    fresh: bool = False
    warm: bool = False
    starts: bool = False
    settled: bool = False
    listens: bool = False


class ConnectRefused(Struct, frozen=True):
    """No transport could be had; `payload` is the JSON-RPC error object for those who wait."""

    payload: Raw


class Hold(Struct, frozen=True):
    """If this call was not sent yet, it is not to be before it is `Released`; `Held` says so."""

    call: CallKey


class Released(Struct, frozen=True):
    """A call that was held may be sent."""

    call: CallKey


class Continued(Struct, frozen=True):
    """A request that an earlier upstream connection sent under the id of `place`: the rest of its answer is wanted.
    `asked` are server requests that came with it and have no answer yet."""

    call: CallKey
    method: str
    progress: bool
    place: Place
    asked: tuple[RequestId, ...] = ()


class Incoming(Struct, frozen=True):
    """A message of the backend, decoded; `related`, `cursor` and `status` as in `FrameReceived`."""

    message: Message
    related: RequestId | None = None
    cursor: str | None = None
    status: int | None = None


class Listening(Struct, frozen=True):
    """The stream for unrelated messages is open, or the backend offers none; not `heard`: it can't be waited for any
    longer."""

    heard: bool = True


class GraceOver(Struct, frozen=True):
    """The backend did not show in time that it is done with a call that was cancelled."""


class SendFailed(Struct, frozen=True):
    """The request with this upstream id gets no response."""

    id: RequestId
    reason: str
    message: str
    executed: Literal["no", "unknown"]
    diagnostics: Diagnostics = NO_DIAGNOSTICS


class Closed(Struct, frozen=True):
    """The transport has ended, or must; `counts`: as a failure of the backend."""

    reason: str
    message: str
    counts: bool = True
    diagnostics: Diagnostics = NO_DIAGNOSTICS


class ConnectExpired(Struct, frozen=True):
    """The connection was not ready in time."""

    diagnostics: Diagnostics = NO_DIAGNOSTICS


class RetryDue(Struct, frozen=True):
    """The back-off is over."""


class Shut(Struct, frozen=True):
    """The owner wants the upstream connection gone for good."""


class OtherEra(Struct, frozen=True):
    """The backend refused `initialize` as modern servers do."""


class LeftOff(Struct, frozen=True):
    """The owner wants the upstream connection gone, and will go on with the backend's session over another one."""


UpstreamEvent: TypeAlias = (
    Called
    | Wanted
    | Abandoned
    | Hold
    | Released
    | Continued
    | AnswerGiven
    | Notified
    | Started
    | ConnectRefused
    | Incoming
    | Positioned
    | EventsMissed
    | Listening
    | FrameAccepted
    | GraceOver
    | SendFailed
    | SessionLost
    | Closed
    | ConnectExpired
    | RetryDue
    | Shut
    | OtherEra
    | LeftOff
)

# Effects -----------------------------------------------------------------------------------------------------


class Connect(Struct, frozen=True):
    """Get a transport: `Started` or `ConnectRefused` follows."""


class Send(Struct, frozen=True):
    """Put a frame on the transport; `headers` go with it alone, and so do `rights`."""

    frame: bytes
    id: RequestId | None = None
    tag: int | None = None
    headers: Headers = ()
    rights: Rights = NO_RIGHTS


class UseVersion(Struct, frozen=True):
    """The transport speaks this revision from here on."""

    version: str


class Listen(Struct, frozen=True):
    """Open the stream for unrelated messages. In LISTENING, `Listening` follows: from the transport, or in a while."""


class Forget(Struct, frozen=True):
    """The transport may free what it holds for this request."""

    id: RequestId


class Reset(Struct, frozen=True):
    """Drop the backend's session, keep the transport."""


class Hang(Struct, frozen=True):
    """Close the transport."""


class LetGo(Struct, frozen=True):
    """Close the transport, but not the backend's session."""


class HandOver(Struct, frozen=True):
    """Close the transport; its process may serve the next one, to which the other era is spoken."""


class Finish(Struct, frozen=True):
    """The outcome of a call: `payload` is the result, or the JSON-RPC error object. `theirs`: that is what a backend
    without sessions has answered, and no error of ours."""

    call: CallKey
    ok: bool
    payload: Raw
    theirs: bool = False


class Held(Struct, frozen=True):
    """This call was not sent, and will not be before it is released."""

    call: CallKey


class Due(Struct, frozen=True):
    """This call is held, and could be sent: `Released` is waited for."""

    call: CallKey


class Awaited(Struct, frozen=True):
    """Another call waits until this one is over."""

    call: CallKey


class Entrust(Struct, frozen=True):
    """This call may have to be made as a task, which its caller knows nothing of: whoever looks after tasks sends it,
    and sees to its outcome. Nothing was sent."""

    call: CallKey
    params: Raw
    progress: bool
    rights: Rights = NO_RIGHTS


class ServerRequest(Struct, frozen=True):
    """The backend asks something of the client, in the course of `call` if that is known. `doubtful`: it may belong to
    one that is over. `outlasts`: it does not end with the call, which may carry it."""

    call: CallKey | None
    id: RequestId
    method: str
    params: Raw
    place: Place | None = None
    doubtful: bool = False
    outlasts: bool = False


class Withdraw(Struct, frozen=True):
    """The backend no longer wants the answer to this request of its own."""

    id: RequestId


class Notify(Struct, frozen=True):
    """The backend notifies, in the course of `call` if that is known. `place`: where that call stands after it, or
    without one the stream that belongs to none."""

    call: CallKey | None
    method: str
    params: Raw
    place: Place | None = None


class Placed(Struct, frozen=True):
    """Where a call stands, or the stream that belongs to none."""

    call: CallKey | None
    place: Place


class PickUp(Struct, frozen=True):
    """Fetch the rest of an answer."""

    place: Place


class Ready(Struct, frozen=True):
    """The handshake is over. `again`: it is not the first one of this upstream connection."""

    server_info: ServerInfo
    again: bool


class Down(Struct, frozen=True):
    """The connection is lost, or could not be made; calls that waited have got their outcome. `payload` is the JSON-RPC
    error object for those who wait without a call; `counts`: it says something of the backend's health."""

    reason: str
    message: str
    payload: Raw
    counts: bool = True
    diagnostics: Diagnostics = NO_DIAGNOSTICS
    ran: bool = False
    """The connection was ready before: the server could be started."""


class BackOff(Struct, frozen=True):
    """Come back with `RetryDue` after the delay for this attempt."""

    attempt: int


class WrongEra(Struct, frozen=True):
    """The backend may speak the other era; these calls were not sent."""

    calls: tuple[Called, ...]


class StartClock(Struct, frozen=True):
    """`ConnectExpired` is due when the connect deadline passes."""


class StopClock(Struct, frozen=True):
    """The connection is ready or gone."""


class StartGrace(Struct, frozen=True):
    """`GraceOver` after the time that a backend has to be done with a call that was cancelled."""


class Count(Struct, frozen=True):
    """Count a thing that was dropped."""

    what: str


UpstreamEffect: TypeAlias = (
    Connect
    | Send
    | UseVersion
    | Listen
    | Forget
    | Reset
    | Hang
    | LetGo
    | HandOver
    | Finish
    | Held
    | Due
    | Awaited
    | Entrust
    | ServerRequest
    | Withdraw
    | Notify
    | Placed
    | PickUp
    | Ready
    | Down
    | BackOff
    | WrongEra
    | StartClock
    | StopClock
    | StartGrace
    | Count
)

Effects: TypeAlias = list[UpstreamEffect]
