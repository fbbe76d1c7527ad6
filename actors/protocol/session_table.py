"""The phases of a legacy session, what moves it from one to another, and which of them take requests (2025-11-25
lifecycle). The machine (`session_machine`) looks its phases up here, and the diagram is drawn from it.
"""

from collections.abc import Callable
from enum import Enum

from actors.protocol import errors


class SessionPhase(Enum):
    """Never backwards."""

    NEW = "new"
    """Nothing but `initialize` was ever seen."""
    INITIALIZING = "initializing"
    """`initialize` was received and has no answer."""
    CONFIRMING = "confirming"
    """`initialize` was answered; `notifications/initialized` has not come."""
    OPERATION = "operation"
    """Everything that version and capabilities permit."""
    DRAINING_INITIALIZING = "draining-initializing"
    """The drain began before `initialize` was answered: a session without an answer to it is none."""
    DRAINING = "draining"
    """No new requests; those in flight go on."""
    CLOSED = "closed"
    """Over."""


TRANSITIONS: dict[tuple[SessionPhase, str], SessionPhase] = {
    (SessionPhase.NEW, "initialize"): SessionPhase.INITIALIZING,
    (SessionPhase.INITIALIZING, "initialize answered"): SessionPhase.CONFIRMING,
    (SessionPhase.CONFIRMING, "notifications/initialized"): SessionPhase.OPERATION,
    (SessionPhase.INITIALIZING, "drain"): SessionPhase.DRAINING_INITIALIZING,
    (SessionPhase.CONFIRMING, "drain"): SessionPhase.DRAINING,
    (SessionPhase.OPERATION, "drain"): SessionPhase.DRAINING,
    (SessionPhase.DRAINING_INITIALIZING, "initialize answered"): SessionPhase.DRAINING,
    **{(phase, "end"): SessionPhase.CLOSED for phase in SessionPhase if phase is not SessionPhase.CLOSED},
}
"""What moves a session on, by the phase and the cause. A cause that has no row changes nothing, or can't come up."""

REFUSALS: dict[tuple[SessionPhase, str], Callable[[], errors.ProtocolError]] = {
    (SessionPhase.NEW, "request"): errors.not_initialized,
    (SessionPhase.INITIALIZING, "request"): errors.not_initialized,
    (SessionPhase.INITIALIZING, "initialize"): errors.already_initialized,
    (SessionPhase.CONFIRMING, "initialize"): errors.already_initialized,
    (SessionPhase.OPERATION, "initialize"): errors.already_initialized,
    (SessionPhase.DRAINING_INITIALIZING, "request"): errors.draining,
    (SessionPhase.DRAINING_INITIALIZING, "initialize"): errors.draining,
    (SessionPhase.DRAINING, "request"): errors.draining,
    (SessionPhase.DRAINING, "initialize"): errors.draining,
}
"""What a phase answers to `initialize`, and to any other request but `ping`, which every phase takes. What is not here
passes."""

UNRECORDED = (
    SessionPhase.NEW,
    SessionPhase.INITIALIZING,
    SessionPhase.CONFIRMING,
    SessionPhase.DRAINING_INITIALIZING,
)
"""The handshake is not over: nothing may be said to the client that it did not ask for, and there is nothing that a
session could be rebuilt from (2025-11-25 lifecycle, "Initialization")."""
