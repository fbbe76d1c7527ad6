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
    READY = "ready"
    """Calls pass."""
    WAITING = "waiting"
    """Lost, with subscriptions that must be restored: a back-off runs."""
    CLOSED = "closed"
    """Gone for good."""


LIVE = (Phase.CONNECTING, Phase.INITIALIZING, Phase.CONFIRMING, Phase.READY)
"""There is a transport, or one is on its way."""

TRANSITIONS: dict[tuple[Phase, str], Phase] = {
    (Phase.IDLE, "call"): Phase.CONNECTING,
    (Phase.WAITING, "call"): Phase.CONNECTING,
    (Phase.WAITING, "back-off over"): Phase.CONNECTING,
    (Phase.CONNECTING, "transport there"): Phase.INITIALIZING,
    (Phase.CONNECTING, "session kept"): Phase.READY,
    (Phase.INITIALIZING, "ended after a probe"): Phase.CONNECTING,
    (Phase.INITIALIZING, "initialize answered"): Phase.CONFIRMING,
    (Phase.CONFIRMING, "initialized accepted"): Phase.READY,
    (Phase.READY, "session forgotten"): Phase.INITIALIZING,
    **{(phase, "lost"): Phase.IDLE for phase in LIVE},
    **{(phase, "lost with subscriptions"): Phase.WAITING for phase in LIVE},
    **{(phase, "shut"): Phase.CLOSED for phase in Phase if phase is not Phase.CLOSED},
}
"""By the phase and the cause. A cause that has no row can't come up in that phase."""
