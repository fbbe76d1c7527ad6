"""The life of an exchange: one request of a client without sessions, and its answer.

The machine (`exchange`) looks each change of phase up here; the diagram is drawn from it.
"""

from enum import Enum


class Phase(Enum):
    """Never backwards."""

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
    (Phase.STREAMING, "outbox full"): Phase.ABANDONED,
}
"""What moves an exchange on. Whatever is not here comes too late, or too early, and changes nothing."""
