"""The life of a subscription: one `subscriptions/listen` of a client (2026-07-28, patterns/subscriptions)."""

from enum import Enum


class Phase(Enum):
    """Never backwards."""

    RECEIVED = "received"
    """It has passed the ladder; nobody was asked for anything."""
    OPENING = "opening"
    """The backends are asked what of it they can honour; the response head is not out."""
    ACTIVE = "active"
    """Acknowledged."""
    DONE = "done"
    """It was ended, and told so."""
    ABANDONED = "abandoned"
    """Its client is gone."""


TRANSITIONS: dict[tuple[Phase, str], Phase] = {
    (Phase.RECEIVED, "opened"): Phase.OPENING,
    (Phase.RECEIVED, "refused"): Phase.DONE,
    (Phase.RECEIVED, "disconnected"): Phase.ABANDONED,
    (Phase.OPENING, "changed"): Phase.OPENING,
    (Phase.OPENING, "honoured"): Phase.ACTIVE,
    (Phase.OPENING, "refused"): Phase.DONE,
    (Phase.OPENING, "ended"): Phase.DONE,
    (Phase.OPENING, "disconnected"): Phase.ABANDONED,
    (Phase.ACTIVE, "changed"): Phase.ACTIVE,
    (Phase.ACTIVE, "flush due"): Phase.ACTIVE,
    (Phase.ACTIVE, "ended"): Phase.DONE,
    (Phase.ACTIVE, "outbox full"): Phase.DONE,
    (Phase.ACTIVE, "disconnected"): Phase.ABANDONED,
}
"""What moves a subscription on. Whatever is not here changes nothing."""
