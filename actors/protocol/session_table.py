"""The phases of a legacy session, what moves it from one to another, and which of them take requests (2025-11-25
lifecycle); the lives of its streams and its requests.

The machine (`session_machine`) looks its phases up here. Where a stream or a request stands is where it is in the
session's state; their tables say what may become of them, tests hold the machine to that, and the diagrams are drawn
from all of them.
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
