"""The modern request machine: one request of a modern client, from its acceptance to its one answer.

A value for each modern request, which knows of no other: ids are the client's own and name nothing here (two
clients may both use `1` at once; 2026-07-28, basic, "Requests"). The response head waits for the first thing to
say, so that an error that is the whole answer has its HTTP status, and a result that comes first is plain JSON.
"""

from collections.abc import Callable
from enum import Enum
from typing import TypeAlias, final

from msgspec import Raw, Struct
from msgspec.structs import replace

from actors.protocol import codec, errors, outcomes, payload
from actors.protocol.capabilities import LEVELS, ClientBits, level_of
from actors.protocol.messages import EMPTY, Error, RequestId

# What happens to it (past tense) ----------------------------------------------------------------------------


class Begun(Struct, frozen=True):
    """The request may go to its backend."""

    now: float


class Notified(Struct, frozen=True):
    """A notification of the backend in the course of the request. `as_is`: the backend is all that is behind the
    endpoint, and of this era: what it says passes."""

    method: str
    params: Raw
    now: float
    as_is: bool = False


class Ended(Struct, frozen=True):
    """The outcome: the result, or the JSON-RPC error object. Before `Begun`: the request goes nowhere. `as_is` as in
    Notified. `refusal`: that error, if it is one with an HTTP status of its own."""

    ok: bool
    payload: Raw
    as_is: bool = False
    refusal: errors.ProtocolError | None = None


class HeadDue(Struct, frozen=True):
    """The response head can't wait any longer: proxies and clients give up on silence."""


class DeadlineDue(Struct, frozen=True):
    """The backend takes too long; its name, as far as known."""

    backend: str | None = None


class DrainOverdue(Struct, frozen=True):
    """The drain can't wait any longer."""


class Disconnected(Struct, frozen=True):
    """The client has closed its connection. In this era that is the cancellation (2026-07-28, streamable-http,
    "Cancellation")."""


ModernRequestEvent: TypeAlias = Begun | Notified | Ended | HeadDue | DeadlineDue | DrainOverdue | Disconnected

CAUSES: dict[type, str] = {
    Begun: "dispatched",
    Notified: "notification",
    Ended: "outcome",
    HeadDue: "head timer",
    DeadlineDue: "deadline passed",
    DrainOverdue: "drain overdue",
    Disconnected: "disconnected",
}
"""What each event is called in the table."""

# What it wants done (imperative) --------------------------------------------------------------------------


@final
class Dispatch(Struct, frozen=True):
    """Find out who serves this request and pass it on; `Ended` follows, perhaps at once."""

    method: str
    params: Raw
    progress: bool


class Cancel(Struct, frozen=True):
    """Nobody waits for the outcome any more. `error`: what its client gets; None: it is gone."""

    reason: str
    error: errors.ProtocolError | None = None


@final
class Answer(Struct, frozen=True):
    """The whole answer: this status, this JSON body."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class OpenStream(Struct, frozen=True):
    """The answer is a stream: send its head."""


@final
class Write(Struct, frozen=True):
    """A message on the stream; `last`: the stream ends after it."""

    frame: bytes
    last: bool = False


@final
class StartHeadClock(Struct, frozen=True):
    """`HeadDue` when the head has waited long enough."""


@final
class StopHeadClock(Struct, frozen=True):
    """The head is out, or will not be needed."""


@final
class StartDeadline(Struct, frozen=True):
    """`DeadlineDue` when the deadline, counted from `since`, passes (never later than the cap after `accepted`)."""

    since: float
    accepted: float


@final
class StopDeadline(Struct, frozen=True):
    """There is an outcome."""


class Count(Struct, frozen=True):
    """Count a thing that was dropped."""

    what: str


ModernRequestEffect: TypeAlias = (
    Dispatch
    | Cancel
    | Answer
    | OpenStream
    | Write
    | StartHeadClock
    | StopHeadClock
    | StartDeadline
    | StopDeadline
    | Count
)
Effects: TypeAlias = list[ModernRequestEffect]

# The machine ------------------------------------------------------------------------------------------------


class Phase(Enum):
    """How far one request is; never backwards."""

    RECEIVED = "received"
    """It has passed the ladder; nothing was asked of a backend."""
    DISPATCHED = "dispatched"
    """A backend has it, and the response head is not out: an error can still have its status."""
    STREAMING = "streaming"
    """The head is out: 200, and events follow."""
    DONE = "done"
    """It was answered."""
    ABANDONED = "abandoned"
    """Its client is gone, and its backend was told so."""


TRANSITIONS: dict[tuple[Phase, str], Phase] = {
    (Phase.RECEIVED, "dispatched"): Phase.DISPATCHED,
    (Phase.RECEIVED, "outcome"): Phase.DONE,
    (Phase.RECEIVED, "disconnected"): Phase.ABANDONED,
    (Phase.DISPATCHED, "notification"): Phase.STREAMING,
    (Phase.DISPATCHED, "head timer"): Phase.STREAMING,
    (Phase.STREAMING, "notification"): Phase.STREAMING,
    (Phase.DISPATCHED, "outcome"): Phase.DONE,
    (Phase.STREAMING, "outcome"): Phase.DONE,
    (Phase.DISPATCHED, "deadline passed"): Phase.DONE,
    (Phase.STREAMING, "deadline passed"): Phase.DONE,
    (Phase.DISPATCHED, "drain overdue"): Phase.DONE,
    (Phase.STREAMING, "drain overdue"): Phase.DONE,
    (Phase.DISPATCHED, "disconnected"): Phase.ABANDONED,
    (Phase.STREAMING, "disconnected"): Phase.ABANDONED,
}
"""What moves a modern request on. Whatever is not here comes too late, or too early, and changes nothing."""


HEAD_WAITS = 15.0
"""Seconds that a response head waits for something to say (the official SDKs' own time)."""


class ModernRequest(Struct, frozen=True):
    """One modern request. `bits`, `level` and `token` are this request's alone (2026-07-28, basic,
    "Statelessness"). `server` is who answers; EMPTY: whoever the result names."""

    id: RequestId
    method: str
    params: Raw
    bits: ClientBits = frozenset()
    level: str | None = None
    token: RequestId | None = None
    server: Raw = EMPTY
    phase: Phase = Phase.RECEIVED
    accepted: float = 0.0
    progress: float | None = None


Step = tuple[ModernRequest, Effects]


def step(request: ModernRequest, event: ModernRequestEvent) -> Step:
    """Total: an event that the phase does not serve is counted, and the modern request is the very same object as
    before."""
    cause = CAUSES[type(event)]
    to = TRANSITIONS.get((request.phase, cause))
    if to is None:
        return request, [Count(f"late_{cause.replace(' ', '_')}")]
    return HANDLERS[type(event)](request, event, to)


def _begun(request: ModernRequest, event: Begun, to: Phase) -> Step:
    """The dispatch comes last: the outcome may be there before it returns."""
    return replace(request, phase=to, accepted=event.now), [
        StartHeadClock(),
        StartDeadline(event.now, event.now),
        Dispatch(request.method, request.params, request.token is not None),
    ]


# What is said before the outcome -----------------------------------------------------------------------------


def _notified(request: ModernRequest, event: Notified, to: Phase) -> Step:
    """Progress and log messages are all that belongs on the stream of a request, as far as is known here."""
    if event.method == "notifications/progress":
        return _progressed(request, event, to)
    if event.method != "notifications/message" and not event.as_is:
        return request, [Count("notification_of_no_request")]
    log = event.method == "notifications/message"
    why = _unheard(request.level, event.params) if log else None
    if why is not None and not (event.as_is and request.level is None):
        return request, [Count(why)]
    return _say(request, to, event.method, event.params)


def _unheard(wanted: str | None, params: Raw) -> str | None:
    """Why a log message is not for this request: it asked for none (MUST NOT be sent), or for graver ones."""
    said = level_of(params)
    if wanted is None:
        return "log_unwanted"
    if wanted not in LEVELS:
        return None  # the one server that got it knows what it means
    return None if said in LEVELS and LEVELS.index(said) >= LEVELS.index(wanted) else "log_below_level"


def _progressed(request: ModernRequest, event: Notified, to: Phase) -> Step:
    """Under the client's own token; strictly increasing, unless its client would get it from the backend as it is. It
    restarts the deadline."""
    if request.token is None:
        return request, [Count("progress_unwanted")]
    try:
        value = None if event.as_is else payload.progress_value(event.params)
        own = payload.replace_members(event.params, {"progressToken": payload.dumps(request.token)})
    except errors.Malformed:
        return request, [Count("bad_progress")]
    if request.progress is not None and value is not None and value <= request.progress:
        return request, [Count("progress_not_increasing")]
    request, effects = _say(replace(request, progress=value), to, event.method, own)
    return request, [StartDeadline(event.now, request.accepted), *effects]


def _say(request: ModernRequest, to: Phase, method: str, params: Raw) -> Step:
    head: Effects = [StopHeadClock(), OpenStream()] if request.phase is not to else []
    return replace(request, phase=to), [*head, Write(codec.encode_notification(method, params))]


def _head_due(request: ModernRequest, event: HeadDue, to: Phase) -> Step:
    return replace(request, phase=to), [OpenStream()]


# The end -----------------------------------------------------------------------------------------------------


def _ended(request: ModernRequest, event: Ended, to: Phase) -> Step:
    ok, body = event.ok, event.payload
    if ok:
        ok, body = outcomes.result(request.method, body, request.bits, request.server, as_is=event.as_is)
    return _answer(request, ok, body, to, event.refusal)


def _answer(
    request: ModernRequest, ok: bool, body: Raw, to: Phase, refusal: errors.ProtocolError | None = None
) -> Step:
    """The one answer: JSON with its status while the head waits, else the last event."""
    frame = codec.encode_result(request.id, body) if ok else codec.encode(Error(request.id, body))
    if request.phase is Phase.STREAMING:
        return replace(request, phase=to), [StopDeadline(), Write(frame, last=True)]
    if refusal is not None:
        answer = Answer(refusal.status, frame, refusal.headers)
    else:
        answer = Answer(200 if ok else errors.modern_status(outcomes.code_of(body)), frame)
    return replace(request, phase=to), [*_clocks(request), answer]


def _clocks(request: ModernRequest) -> Effects:
    """What runs in this phase."""
    head: Effects = [StopHeadClock()] if request.phase is Phase.DISPATCHED else []
    return [*head, StopDeadline()] if request.phase is not Phase.RECEIVED else []


def _overdue(request: ModernRequest, event: DeadlineDue, to: Phase) -> Step:
    return _give_up(request, errors.unanswered(event.backend), "deadline exceeded", to)


def _drained(request: ModernRequest, event: DrainOverdue, to: Phase) -> Step:
    error = errors.internal("the gateway is shutting down", reason="draining", executed="unknown")
    return _give_up(request, error, "shutting down", to)


def _give_up(request: ModernRequest, error: errors.ProtocolError, reason: str, to: Phase) -> Step:
    request, effects = _answer(request, False, error.raw, to)
    return request, [Cancel(reason, error), *effects]


def _abandoned(request: ModernRequest, event: Disconnected, to: Phase) -> Step:
    """A broken stream loses the request, also one that would have been answered with JSON."""
    cancel: Effects = [] if request.phase is Phase.RECEIVED else [Cancel("the client has disconnected")]
    return replace(request, phase=to), [*_clocks(request), *cancel]


HANDLERS: dict[type, Callable[..., Step]] = {
    Begun: _begun,
    Notified: _notified,
    Ended: _ended,
    HeadDue: _head_due,
    DeadlineDue: _overdue,
    DrainOverdue: _drained,
    Disconnected: _abandoned,
}
