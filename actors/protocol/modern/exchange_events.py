"""What happens to an exchange (past tense), and what it wants done (imperative)."""

from typing import TypeAlias, final

from msgspec import Raw, Struct

# Events ------------------------------------------------------------------------------------------------------


class Begun(Struct, frozen=True):
    """The request may go to its backend."""

    now: float


class Told(Struct, frozen=True):
    """A notification of the backend in the course of the request. `as_is`: the backend is all that is behind the
    endpoint, and of this era: what it says passes."""

    method: str
    params: Raw
    now: float
    as_is: bool = False


class Ended(Struct, frozen=True):
    """The outcome: the result, or the JSON-RPC error object. Before `Begun`: the request goes nowhere. `as_is` as in
    Told."""

    ok: bool
    payload: Raw
    as_is: bool = False


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


class Overflowed(Struct, frozen=True):
    """The client does not read what is written to it."""


ExchangeEvent: TypeAlias = Begun | Told | Ended | HeadDue | DeadlineDue | DrainOverdue | Disconnected | Overflowed

CAUSES: dict[type, str] = {
    Begun: "dispatched",
    Told: "notification",
    Ended: "outcome",
    HeadDue: "head timer",
    DeadlineDue: "deadline passed",
    DrainOverdue: "drain overdue",
    Disconnected: "disconnected",
    Overflowed: "outbox full",
}
"""What each event is called in the table."""

# Effects -----------------------------------------------------------------------------------------------------


@final
class Dispatch(Struct, frozen=True):
    """Find out who serves this request and pass it on; `Ended` follows, perhaps at once."""

    method: str
    params: Raw
    progress: bool


class Cancel(Struct, frozen=True):
    """Nobody waits for the outcome any more."""

    reason: str


@final
class Answer(Struct, frozen=True):
    """The whole answer: this status, this JSON body."""

    status: int
    body: bytes


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


class Tally(Struct, frozen=True):
    """Count a thing that was dropped."""

    what: str


ExchangeEffect: TypeAlias = (
    Dispatch
    | Cancel
    | Answer
    | OpenStream
    | Write
    | StartHeadClock
    | StopHeadClock
    | StartDeadline
    | StopDeadline
    | Tally
)
Effects: TypeAlias = list[ExchangeEffect]
