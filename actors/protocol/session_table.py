"""The phases of a session-era session and what each lets through (2025-11-25 lifecycle); the lives of its streams and
its requests.

The machine asks the tables of the session. Where a stream or a request stands is where it is in the session's state;
their tables say what may become of them, tests hold the machine to that, and the diagrams are drawn from all of them.
"""

from enum import Enum

from actors.protocol import events as ev


class Phase(Enum):
    """Never backwards."""

    NEW = "new"
    """Nothing but `initialize` was ever seen."""
    INITIALIZING = "initializing"
    """`initialize` was received; `notifications/initialized` was not."""
    OPERATION = "operation"
    """Everything that version and capabilities permit."""
    DRAINING = "draining"
    """No new requests; those in flight go on."""
    CLOSED = "closed"
    """Over."""


TRANSITIONS: dict[tuple[Phase, str], Phase] = {
    (Phase.NEW, "initialize"): Phase.INITIALIZING,
    (Phase.INITIALIZING, "notifications/initialized"): Phase.OPERATION,
    (Phase.INITIALIZING, "drain"): Phase.DRAINING,
    (Phase.OPERATION, "drain"): Phase.DRAINING,
    (Phase.NEW, "end"): Phase.CLOSED,
    (Phase.INITIALIZING, "end"): Phase.CLOSED,
    (Phase.OPERATION, "end"): Phase.CLOSED,
    (Phase.DRAINING, "end"): Phase.CLOSED,
}
"""What moves a session on: a method of the client, the drain, the end."""

_ALL = frozenset(ev.SessionEvent.__args__)

SERVED: dict[Phase, frozenset[type]] = {
    Phase.NEW: frozenset({ev.Posted, ev.Ended}),
    Phase.INITIALIZING: _ALL - {ev.DrainOverdue},
    Phase.OPERATION: _ALL - {ev.DrainOverdue},
    Phase.DRAINING: _ALL - {ev.DrainStarted},
    Phase.CLOSED: frozenset(),
}
"""Which events a phase takes. Any other is refused and leaves the state untouched."""


class StreamPhase(Enum):
    """Where an SSE stream is in its life; a message goes on exactly one stream."""

    ATTACHED = "attached"
    """A connection carries it."""
    DETACHED = "detached"
    """It waits for its client; what is said on it goes into the log."""
    FINISHED = "finished"
    """Nothing follows; its log is kept for a while."""
    LOST = "lost"
    """Its log is gone, and so is whatever would have followed."""


STREAM_TRANSITIONS: dict[tuple[StreamPhase, str], StreamPhase] = {
    (StreamPhase.ATTACHED, "connection lost"): StreamPhase.DETACHED,
    (StreamPhase.ATTACHED, "let go by the drain"): StreamPhase.DETACHED,
    (StreamPhase.ATTACHED, "resumed elsewhere"): StreamPhase.ATTACHED,
    (StreamPhase.DETACHED, "resumed"): StreamPhase.ATTACHED,
    (StreamPhase.ATTACHED, "last response"): StreamPhase.FINISHED,
    (StreamPhase.DETACHED, "last response"): StreamPhase.FINISHED,
    (StreamPhase.DETACHED, "its place is needed"): StreamPhase.FINISHED,
    (StreamPhase.ATTACHED, "session ended"): StreamPhase.FINISHED,
    (StreamPhase.DETACHED, "session ended"): StreamPhase.FINISHED,
    (StreamPhase.ATTACHED, "log lost"): StreamPhase.LOST,
    (StreamPhase.DETACHED, "log lost"): StreamPhase.LOST,
}


class RequestPhase(Enum):
    """Where a request is, in either direction: it has exactly one outcome; what comes after it is dropped and
    counted."""

    PENDING = "pending"
    ANSWERED = "answered"
    CANCELLED = "cancelled"
    FAILED = "failed"


REQUEST_TRANSITIONS: dict[tuple[RequestPhase, str], RequestPhase] = {
    (RequestPhase.PENDING, "result or error"): RequestPhase.ANSWERED,
    (RequestPhase.PENDING, "notifications/cancelled"): RequestPhase.CANCELLED,
    (RequestPhase.PENDING, "deadline passed"): RequestPhase.FAILED,
    (RequestPhase.PENDING, "backend lost"): RequestPhase.FAILED,
    (RequestPhase.PENDING, "drain overdue"): RequestPhase.FAILED,
    (RequestPhase.PENDING, "session ended"): RequestPhase.FAILED,
}
