"""The phases of a session-era session and what each lets through (2025-11-25 lifecycle).

The tables are the truth: the machine asks them, the tests walk them, the diagrams are drawn from them.
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

SERVED: dict[Phase, frozenset[type]] = {
    Phase.NEW: frozenset({ev.Posted, ev.Ended}),
    Phase.INITIALIZING: frozenset(ev.SessionEvent.__args__),
    Phase.OPERATION: frozenset(ev.SessionEvent.__args__),
    Phase.DRAINING: frozenset(ev.SessionEvent.__args__) - {ev.DrainStarted},
    Phase.CLOSED: frozenset(),
}
"""Which events a phase takes. Any other is refused and leaves the state untouched."""


class StreamPhase(Enum):
    """Where an SSE stream is in its life; a message goes on exactly one stream."""

    ATTACHED = "attached"
    DETACHED = "detached"
    FINISHED = "finished"


STREAM_TRANSITIONS: dict[tuple[StreamPhase, str], StreamPhase] = {
    (StreamPhase.ATTACHED, "connection lost"): StreamPhase.DETACHED,
    (StreamPhase.ATTACHED, "resumed elsewhere"): StreamPhase.ATTACHED,
    (StreamPhase.DETACHED, "resumed"): StreamPhase.ATTACHED,
    (StreamPhase.ATTACHED, "last response"): StreamPhase.FINISHED,
    (StreamPhase.DETACHED, "last response"): StreamPhase.FINISHED,
}

REQUEST_TRANSITIONS: dict[tuple[str, str], str] = {
    ("pending", "result or error"): "answered",
    ("pending", "notifications/cancelled"): "cancelled",
    ("pending", "deadline, or the backend is lost"): "failed",
}
"""A request has exactly one outcome, in both directions; what comes after it is dropped and counted."""
