"""What happens to the calls of a broker (past tense), and what it wants done (imperative).

A *line* is one of the broker's connections to its backend, a *call* the broker's own number of a call; an *owner* names
an exchange with a client, and is opaque here.
"""

from collections.abc import Hashable
from typing import TypeAlias, final

from msgspec import Raw, Struct

from actors.protocol.bridge.input_required import Parked
from actors.protocol.messages import EMPTY, RequestId

Owner: TypeAlias = Hashable

# Events ------------------------------------------------------------------------------------------------------


class Begun(Struct, frozen=True):
    """A call for the backend. `eligible`: the backend may ask back while it runs."""

    call: int
    owner: Owner
    eligible: bool


class Warmed(Struct, frozen=True):
    """A connection is wanted without a call."""


class Asked(Struct, frozen=True):
    """The backend asks in the course of a call; its client can be asked this."""

    call: int
    id: RequestId
    method: str
    params: Raw = EMPTY


class Withdrawn(Struct, frozen=True):
    """The backend no longer wants to know."""

    line: int
    id: RequestId


class GatherOver(Struct, frozen=True):
    """Questions that belong together have come. `room`: one more call may be parked."""

    call: int
    room: bool


class Resumed(Struct, frozen=True):
    """A client has come with answers, by key, to the questions of this round."""

    call: int
    owner: Owner
    round: int
    answers: dict[str, Raw]


class Cancelled(Struct, frozen=True):
    """The exchange that waited for the call is gone."""

    call: int
    reason: str


class Expired(Struct, frozen=True):
    """Nobody came with answers in time."""

    call: int


class Ended(Struct, frozen=True):
    """The outcome of a call: its result, or the JSON-RPC error object."""

    call: int
    ok: bool
    payload: Raw


class Unsent(Struct, frozen=True):
    """The connection could not take it; whoever made the call makes it elsewhere."""

    call: int


class Settled(Struct, frozen=True):
    """The backend listens again, after a call that was given up."""

    call: int


class GraceOver(Struct, frozen=True):
    """It does not."""

    call: int


class WaitOver(Struct, frozen=True):
    """No connection became free in time. `patient`: calls that were parked long enough to give way."""

    call: int
    patient: tuple[int, ...] = ()


class LineLost(Struct, frozen=True):
    """The connection broke, and may come back; every call on it has its outcome already."""

    line: int


class LineGone(Struct, frozen=True):
    """The connection has ended for good; of the calls on it nothing more will be heard."""

    line: int


ParkingEvent: TypeAlias = (
    Begun
    | Warmed
    | Asked
    | Withdrawn
    | GatherOver
    | Resumed
    | Cancelled
    | Expired
    | Ended
    | Unsent
    | Settled
    | GraceOver
    | WaitOver
    | LineLost
    | LineGone
)

# Effects -----------------------------------------------------------------------------------------------------


class Connect(Struct, frozen=True):
    """See to it that this line is there, or is coming."""

    line: int


@final
class Dispatch(Struct, frozen=True):
    """Send the call on this line, which is opened for it if it is not there."""

    call: int
    line: int


class Park(Struct, frozen=True):
    """The questions are the answer to this exchange; `Expired` is due when nobody comes back with answers."""

    owner: Owner
    call: int
    round: int
    questions: tuple[Parked, ...]


class Unpark(Struct, frozen=True):
    """Nobody needs to come back any more; its place is free."""

    call: int


@final
class Outcome(Struct, frozen=True):
    """The answer to this exchange."""

    owner: Owner
    ok: bool
    payload: Raw


class Answer(Struct, frozen=True):
    """The outcome of a question, to the backend, in the client's words. `method` is the question's."""

    line: int
    id: RequestId
    method: str
    ok: bool
    payload: Raw


class Cancel(Struct, frozen=True):
    """The backend is told that nobody waits for this call any more."""

    line: int
    call: int
    reason: str


class StartGather(Struct, frozen=True):
    """`GatherOver` when questions that belong together have had their time."""

    call: int


class StartWait(Struct, frozen=True):
    """`WaitOver` when the call has waited too long for a connection."""

    call: int


@final
class StopWait(Struct, frozen=True):
    """It waits no more."""

    call: int


class StartGrace(Struct, frozen=True):
    """Find out whether the backend listens on this line: `Settled`, or `GraceOver` when it does not in time."""

    call: int
    line: int


class StopGrace(Struct, frozen=True):
    """It is known, or of no interest any more."""

    call: int


class Discard(Struct, frozen=True):
    """Close this line."""

    line: int


@final
class Forget(Struct, frozen=True):
    """The call is over."""

    call: int


class Tally(Struct, frozen=True):
    """Count a thing that was dropped."""

    what: str


SeldomEffect: TypeAlias = (
    Connect | Park | Unpark | Answer | Cancel | StartGather | StartWait | StartGrace | StopGrace | Discard | Tally
)
ParkingEffect: TypeAlias = Dispatch | Outcome | StopWait | Forget | SeldomEffect
"""The first four are what every call comes to."""

Effects: TypeAlias = list[ParkingEffect]
