"""The phases of a link to a backend without sessions, and what moves it from one to another."""

from enum import Enum

from actors.protocol import link_table as sessions


class Phase(Enum):
    """Where a link is in its life."""

    IDLE = "idle"
    """No transport; the first call brings one."""
    CONNECTING = "connecting"
    """A transport was asked for."""
    PROBING = "probing"
    """`server/discover` is sent: what speaks there?"""
    READY = "ready"
    """Calls pass."""
    WAITING = "waiting"
    """Lost, with subscriptions that must be restored: a back-off runs."""
    UNFIT = "unfit"
    """The backend speaks the other era."""
    CLOSED = "closed"
    """Gone for good."""


LIVE = (Phase.CONNECTING, Phase.PROBING, Phase.READY)
"""There is a transport, or one is on its way."""

TRANSITIONS: dict[tuple[Phase, str], Phase] = {
    (Phase.IDLE, "call"): Phase.CONNECTING,
    (Phase.WAITING, "call"): Phase.CONNECTING,
    (Phase.WAITING, "back-off over"): Phase.CONNECTING,
    (Phase.CONNECTING, "transport there"): Phase.PROBING,
    (Phase.PROBING, "ended after initialize"): Phase.CONNECTING,
    (Phase.PROBING, "discovered"): Phase.READY,
    (Phase.PROBING, "other era"): Phase.UNFIT,
    (Phase.READY, "doubted"): Phase.PROBING,
    (Phase.UNFIT, "reconsidered"): Phase.IDLE,
    **{(phase, "lost"): Phase.IDLE for phase in LIVE},
    **{(phase, "lost with subscriptions"): Phase.WAITING for phase in LIVE},
    **{(phase, "shut"): Phase.CLOSED for phase in Phase if phase is not Phase.CLOSED},
}
"""By the phase and the cause. A cause that has no row can't come up in that phase."""

SHOWN: dict[Phase, sessions.Phase] = {
    Phase.IDLE: sessions.Phase.IDLE,
    Phase.CONNECTING: sessions.Phase.CONNECTING,
    Phase.PROBING: sessions.Phase.INITIALIZING,
    Phase.READY: sessions.Phase.READY,
    Phase.WAITING: sessions.Phase.WAITING,
    Phase.UNFIT: sessions.Phase.IDLE,
    Phase.CLOSED: sessions.Phase.CLOSED,
}
"""What people are told of it, who know the phases of links with sessions."""
