"""What upstream connections are told, and what they tell.

An upstream connection is an actor that holds one connection to one backend (`actors.upstreams.legacy`); its callers
are sessions and the catalogue.
"""

from typing import TypeAlias, final

from msgspec import Raw, Struct

from actors.machines.session.events import Place
from actors.machines.upstream.events import AnswerGiven, Continued, Hold, Notified, Released, ServerInfo, Wanted
from actors.machines.upstream.legacy_state import Phase
from actors.machines.upstream.modern_events import Caller
from actors.ports import NO_RIGHTS, Resumable, Rights
from actors.protocol.diagnostics import NO_DIAGNOSTICS, Diagnostics
from actors.protocol.messages import EMPTY, RequestId
from actors.runtime import Ref

# To the upstream connection -------------------------------------------------------------------------------------------


class Join(Struct, frozen=True):
    """The caller wants to hear what belongs to no call: LinkReady follows at once if the connection is up. The
    upstream connection ends when the last one that joined has ended. `changes`: also what a modern backend tells
    only those who asked for it, that its lists have changed."""

    caller: Ref
    changes: bool = True


class Call(Struct, frozen=True):
    """A request; the outcome comes to `caller` as LinkOutcome with the same `call`. `version` as in `Called`. For
    modern backends: `client` is on whose behalf; `mends`: where the backend refuses the headers of a tool
    call, it is made once more with those that the tool wants by now; else the caller sees to that. `rights`: with which
    the client asked for it; none for a call of the gateway's own."""

    caller: Ref
    call: int
    method: str
    params: Raw = EMPTY
    progress: bool = False
    client: Caller | None = None
    mends: bool = True
    version: str = ""
    rights: Rights = NO_RIGHTS


class Cancel(Struct, frozen=True):
    """Nobody waits for it any more."""

    caller: Ref
    call: int
    reason: str


class PeerNotified(Struct, frozen=True):
    """A notification of a modern client, for a server that has none either: as it is. `principal`: of whose
    notifications it is one, while they wait for a connection."""

    method: str
    params: Raw = EMPTY
    principal: str = ""


class Leave(Struct, frozen=True):
    """The caller needs it no more; the last one to leave closes it, gracefully."""

    caller: Ref


class PutDown(Struct, frozen=True):
    """The caller will go on with the backend's session over another upstream connection; one that is shared stays
    with the others."""

    caller: Ref


# From the upstream connection -----------------------------------------------------------------------------------------


class UpstreamReady(Struct, frozen=True):
    """The handshake is over; `again`: after a loss. `kept` is what it takes to go on over another upstream
    connection."""

    upstream: Ref
    backend: str
    server_info: ServerInfo
    again: bool
    kept: Resumable | None = None


class UpstreamDown(Struct, frozen=True):
    """The connection is lost or could not be made; `payload` is the JSON-RPC error object that says so."""

    upstream: Ref
    backend: str
    message: str
    payload: Raw


class UpstreamWrongEra(Struct, frozen=True):
    """This connection speaks the other era only; these calls of the receiver's were not sent. The right upstream
    connection takes them, under the same numbers."""

    upstream: Ref
    backend: str
    calls: tuple[Call, ...]


@final
class UpstreamOutcome(Struct, frozen=True):
    """The outcome of a call: its result, or the JSON-RPC error object. `theirs` as in `Finish`."""

    backend: str
    call: int
    ok: bool
    payload: Raw
    theirs: bool = False


class UpstreamHeld(Struct, frozen=True):
    """This call was not sent, and will not be before it is released."""

    call: int


class UpstreamDue(Struct, frozen=True):
    """This call is held, and could be sent."""

    call: int


class UpstreamAwaited(Struct, frozen=True):
    """Another call waits until this one is over."""

    call: int


class UpstreamRequest(Struct, frozen=True):
    """The backend asks; `call` as far as known. `doubtful`: it may belong to one that is over. `outlasts`: it does not
    end with the call, which may carry it."""

    upstream: Ref
    backend: str
    call: int | None
    id: RequestId
    method: str
    params: Raw
    place: Place | None = None
    doubtful: bool = False
    outlasts: bool = False


class UpstreamWithdrew(Struct, frozen=True):
    """The backend no longer wants that answer. (Ids are those of one connection: `upstream`.)"""

    backend: str
    id: RequestId
    upstream: Ref | None = None


@final
class UpstreamNotification(Struct, frozen=True):
    """The backend notifies; `call` as far as known. `place`: where that call stands after it, or without one the stream
    that belongs to none."""

    upstream: Ref
    backend: str
    call: int | None
    method: str
    params: Raw
    place: Place | None = None


class UpstreamPlaced(Struct, frozen=True):
    """As the `place` of LinkTold, without a word."""

    upstream: Ref
    backend: str
    call: int | None
    place: Place


# To and from the backends actor ------------------------------------------------------------------------------


class RequestPermit(Struct, frozen=True):
    """May this upstream connection connect? `account`: whose account it uses, if it uses one; `principal`: whose it
    is, if it is somebody's alone."""

    upstream: Ref
    backend: str
    account: str = ""
    principal: str = ""


class Granted(Struct, frozen=True):
    """It may. A process place, if it takes one, is its own until `Returned` or its end."""


class Denied(Struct, frozen=True):
    """It may not: the JSON-RPC error object for those who wait."""

    payload: Raw


class Connected(Struct, frozen=True):
    """The handshake worked, or the backend answers again."""

    backend: str
    server_info: ServerInfo | None = None
    account: str = ""


class Failure(Struct, frozen=True):
    """A connection failed, or was lost."""

    backend: str
    reason: str
    message: str
    diagnostics: Diagnostics = NO_DIAGNOSTICS
    ran: bool = False
    """It had been ready before: it could be started."""
    account: str = ""
    """Whose account it was with: what is wrong may be that."""


class UpstreamMoved(Struct, frozen=True):
    """An upstream connection is in another phase."""

    upstream: Ref
    backend: str
    phase: Phase


class Returned(Struct, frozen=True):
    """The upstream connection's transport is gone, and with it its process place."""

    upstream: Ref


class Recount(Struct, frozen=True):
    """The backends actor has begun anew and knows nobody: each upstream connection says how it stands."""


class Spare(Struct, frozen=True):
    """Somebody waits for a place: a connection that nobody uses ends now, and not when it has been unused for long
    enough."""


class Present(Struct, frozen=True):
    """The answer. `holds`: a child process is there, or still ending; `session/server_requests`: a permit was asked
    for and not given."""

    upstream: Ref
    backend: str
    phase: Phase
    holds: bool
    asks: bool
    account: str = ""
    principal: str = ""


ToUpstream: TypeAlias = (
    Join
    | Call
    | Cancel
    | PeerNotified
    | Leave
    | PutDown
    | Granted
    | Denied
    | Recount
    | Spare
    | AnswerGiven
    | Continued
    | Hold
    | Notified
    | Released
    | Wanted
)
"""What others tell a connection, of either era: the last ones are events of its machine as they are, in which a call is
named by its caller and the caller's number of it."""
ToBackends: TypeAlias = RequestPermit | Connected | Failure | UpstreamMoved | Returned | Present
"""What connections tell the backends actor, and whoever finds a server out of order."""
