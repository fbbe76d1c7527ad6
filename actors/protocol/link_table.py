"""The phases of a link to a session-era backend, and what moves it from one to another.

The machine looks up every change of phase here, the tests walk the table, and the diagram is drawn from it.
"""

from enum import Enum


class Phase(Enum):
    """Where a link is in its life."""

    IDLE = "idle"
    """No transport; the first call brings one."""
    CONNECTING = "connecting"
    """A transport was asked for."""
    INITIALIZING = "initializing"
    """`initialize` is sent."""
    CONFIRMING = "confirming"
    """`notifications/initialized` is sent and not yet accepted."""
    LISTENING = "listening"
    """The stream for what belongs to no request was asked for. A server that asked something before it is there would
    drop its question, and wait for the answer (2025-11-25 transports, "Listening for Messages from the Server")."""
    READY = "ready"
    """Calls pass."""
    WAITING = "waiting"
    """Lost, with subscriptions that must be restored: a back-off runs."""
    CLOSED = "closed"
    """Gone for good."""


LIVE = (Phase.CONNECTING, Phase.INITIALIZING, Phase.CONFIRMING, Phase.LISTENING, Phase.READY)
"""There is a transport, or one is on its way."""

TRANSITIONS: dict[tuple[Phase, str], Phase] = {
    (Phase.IDLE, "call"): Phase.CONNECTING,
    (Phase.WAITING, "call"): Phase.CONNECTING,
    (Phase.WAITING, "back-off over"): Phase.CONNECTING,
    (Phase.CONNECTING, "transport there"): Phase.INITIALIZING,
    (Phase.CONNECTING, "session kept"): Phase.READY,
    (Phase.CONNECTING, "session kept, stream asked for"): Phase.LISTENING,
    (Phase.INITIALIZING, "ended after a probe"): Phase.CONNECTING,
    (Phase.INITIALIZING, "initialize answered"): Phase.CONFIRMING,
    (Phase.CONFIRMING, "initialized accepted"): Phase.READY,
    (Phase.CONFIRMING, "stream asked for"): Phase.LISTENING,
    (Phase.LISTENING, "stream there"): Phase.READY,
    (Phase.LISTENING, "session forgotten"): Phase.INITIALIZING,
    (Phase.READY, "session forgotten"): Phase.INITIALIZING,
    **{(phase, "lost"): Phase.IDLE for phase in LIVE},
    **{(phase, "lost with subscriptions"): Phase.WAITING for phase in LIVE},
    **{(phase, "shut"): Phase.CLOSED for phase in Phase if phase is not Phase.CLOSED},
}
"""By the phase and the cause. A cause that has no row can't come up in that phase."""
