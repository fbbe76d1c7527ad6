"""The life of a call that a broker made for a client without sessions, at a backend that has them.

What the client sees as several exchanges is one call for the backend: it is asked once, and its questions are parked
with it while the client looks for answers.
"""

from enum import Enum


class Phase(Enum):
    """Where a call is."""

    WAITING = "waiting"
    """Every connection that may take it is taken; nothing was sent."""
    RUNNING = "running"
    """It is the backend's turn."""
    GATHERING = "gathering"
    """The backend has asked; more questions may come at once."""
    PARKED = "parked"
    """The questions are with the client, and no exchange is open: the backend waits."""
    KEPT = "kept"
    """It ended while it was parked: the outcome is for whoever comes with the answers."""
    SETTLING = "settling"
    """Given up and cancelled; its connection takes no other call until the backend shows that it listens."""
    OVER = "over"
    """Nothing is left of it."""


TRANSITIONS: dict[tuple[Phase, str], Phase] = {
    (Phase.WAITING, "connection free"): Phase.RUNNING,
    (Phase.WAITING, "cancelled"): Phase.OVER,
    (Phase.WAITING, "waited too long"): Phase.OVER,
    (Phase.RUNNING, "asked"): Phase.GATHERING,
    (Phase.RUNNING, "cancelled"): Phase.SETTLING,
    (Phase.RUNNING, "ended"): Phase.OVER,
    (Phase.RUNNING, "not sent"): Phase.OVER,
    (Phase.RUNNING, "connection gone"): Phase.OVER,
    (Phase.GATHERING, "asked"): Phase.GATHERING,
    (Phase.GATHERING, "withdrawn"): Phase.GATHERING,
    (Phase.GATHERING, "all withdrawn"): Phase.RUNNING,
    (Phase.GATHERING, "siblings' time over"): Phase.PARKED,
    (Phase.GATHERING, "no room"): Phase.SETTLING,
    (Phase.GATHERING, "cancelled"): Phase.SETTLING,
    (Phase.GATHERING, "ended"): Phase.OVER,
    (Phase.GATHERING, "connection gone"): Phase.OVER,
    (Phase.PARKED, "asked"): Phase.PARKED,
    (Phase.PARKED, "withdrawn"): Phase.PARKED,
    (Phase.PARKED, "answered"): Phase.RUNNING,
    (Phase.PARKED, "answered in part"): Phase.GATHERING,
    (Phase.PARKED, "ended"): Phase.KEPT,
    (Phase.PARKED, "expired"): Phase.SETTLING,
    (Phase.PARKED, "connection gone"): Phase.OVER,
    (Phase.KEPT, "answered"): Phase.OVER,
    (Phase.KEPT, "expired"): Phase.OVER,
    (Phase.KEPT, "connection gone"): Phase.OVER,
    (Phase.SETTLING, "ended"): Phase.OVER,
    (Phase.SETTLING, "settled"): Phase.OVER,
    (Phase.SETTLING, "grace over"): Phase.OVER,
    (Phase.SETTLING, "connection gone"): Phase.OVER,
}
"""By the phase and the cause. Whatever is not here changes nothing."""
