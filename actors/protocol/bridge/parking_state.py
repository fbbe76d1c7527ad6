"""The state of a broker's calls and of its connections: frozen values, changed only by `parking` and its parts."""

from msgspec import Raw, Struct, field
from msgspec.structs import replace

from actors.protocol.bridge.parking_events import Effects, Owner
from actors.protocol.bridge.parking_table import TRANSITIONS, Phase
from actors.protocol.messages import RequestId
from actors.protocol.persistent import PersistentMap

__all__ = ["Calls", "Held", "Phase", "Question", "Rules", "Step", "moved", "put"]


class Rules(Struct, frozen=True):
    """`leased`: on this transport a question can be told to belong to a call only if no other could have raised it, so
    eligible calls take turns on each line. `lines`: how many there may be. `waiting`: calls that may wait.
    `server` is the name of the backend."""

    leased: bool
    lines: int = 1
    waiting: int = 256
    server: str | None = None


class Question(Struct, frozen=True):
    """A question that has no answer. `id` is the backend's; `shown`: the client was asked."""

    id: RequestId
    method: str
    params: Raw
    shown: bool = False


class Held(Struct, frozen=True):
    """One call. `owner` is the exchange that waits for it, None while none does; `open` are its questions by key;
    `round` counts how often it was parked."""

    eligible: bool
    owner: Owner | None
    line: int = 0
    phase: Phase = Phase.WAITING
    round: int = 0
    keys: int = 0
    open: dict[str, Question] = {}
    kept: tuple[bool, Raw] | None = None


class Calls(Struct, frozen=True):
    """All of one broker. `lines`: by number, the call that has the lease; `waiting`: calls that wait for one, in
    order."""

    rules: Rules
    held: PersistentMap[int, Held] = field(default_factory=PersistentMap)
    lines: dict[int, int | None] = {}
    waiting: tuple[int, ...] = ()
    opened: int = 0
    """Lines so far: a number is given once."""


Step = tuple[Calls, Effects]


def moved(held: Held, cause: str) -> Held:
    """The call in the phase that this cause brings it to. KeyError for what can't come up in its phase."""
    return replace(held, phase=TRANSITIONS[held.phase, cause])


def put(calls: Calls, call: int, held: Held) -> Calls:
    """The calls with this one as it is; without it, if it is over."""
    if held.phase is not Phase.OVER:
        return replace(calls, held=calls.held.having(call, held))
    return replace(calls, held=calls.held.without(call))
