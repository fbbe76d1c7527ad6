"""The lease machine: how sure a replica can be that the others believe it alive.

A beat renews the lease in the store; its age counts from the sending of the last beat that was acknowledged. A replica
in doubt does nothing for the world; one whose lease has lapsed goes on under another name, and must ask of each session
whether it is still its own. Nothing here decides who owns what: that does the store.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

TTL: Final = 3.0
"""Seconds of a lease."""
EVERY: Final = 0.5
"""Seconds between two beats."""
DOUBT: Final = 2.0
"""Seconds of age from which the others may soon believe this replica dead."""
TICK_WITHIN: Final = 1.5
"""Seconds after which a loop that does not run must look dead."""


class LeasePhase(Enum):
    """How the lease stands."""

    STARTING = "starting"
    """No beat was acknowledged yet."""
    LIVE = "live"
    DOUBTFUL = "doubtful"
    """The others may believe this replica dead, or will soon."""
    LAPSED = "lapsed"
    """They may: the incarnation is over, and the next one has no lease yet."""
    VERIFYING = "verifying"
    """There is a lease under a new name; the sessions of the old one are claimed anew."""
    DRAINING = "draining"
    """In order; the lease is kept until all is done."""
    GONE = "gone"
    """The lease was given up, or lapsed in a drain."""


# What happens (past tense) ----------------------------------------------------------------------------------


class BeatDue(Struct, frozen=True):
    """It is time for a beat. `ticked`: when the loop last ran."""

    now: float
    ticked: float


class Beaten(Struct, frozen=True):
    """The beat that was sent at this time was acknowledged."""

    sent: float
    now: float


class Lapsed(Struct, frozen=True):
    """The store had no lease of this incarnation to renew."""

    now: float


class Looked(Struct, frozen=True):
    """Time has passed, and no word of the store."""

    now: float


class Forgot(Struct, frozen=True):
    """The store is another than it was, and may lack what it had acknowledged: claims, and leases of others."""

    now: float


class Verified(Struct, frozen=True):
    """Every session of the former incarnation was asked for."""


class DrainBegun(Struct, frozen=True):
    """The replica is to end in order."""


class Drained(Struct, frozen=True):
    """It has given up all that it owned."""


LeaseEvent: TypeAlias = BeatDue | Beaten | Lapsed | Looked | Forgot | Verified | DrainBegun | Drained

# What it wants done (imperative) ----------------------------------------------------------------------------


class Beat(Struct, frozen=True):
    """Renew the lease, or take it if this incarnation has none: `Beaten` or `Lapsed` follows, or nothing."""

    take: bool


class Doubt(Struct, frozen=True):
    """From now on nothing is given to a backend."""


class Certain(Struct, frozen=True):
    """The doubt is over, and this is the same incarnation still."""


class Rename(Struct, frozen=True):
    """From now on this replica is a fresh incarnation; its doubt goes on until that has a lease."""


class Verify(Struct, frozen=True):
    """The fresh incarnation has a lease: claim what the former one owned, each before its next message."""


class VerifyAgain(Struct, frozen=True):
    """Claim what this incarnation owns once more, each before its next message."""


class GiveUp(Struct, frozen=True):
    """Delete the lease."""


LeaseEffect: TypeAlias = Beat | Doubt | Certain | Rename | Verify | VerifyAgain | GiveUp
Effects: TypeAlias = list[LeaseEffect]

# The machine ------------------------------------------------------------------------------------------------

TRANSITIONS: Final[dict[tuple[LeasePhase, str], LeasePhase]] = {
    (LeasePhase.STARTING, "beat"): LeasePhase.LIVE,
    (LeasePhase.LIVE, "doubt"): LeasePhase.DOUBTFUL,
    (LeasePhase.VERIFYING, "doubt"): LeasePhase.DOUBTFUL,
    (LeasePhase.DOUBTFUL, "beat"): LeasePhase.LIVE,
    (LeasePhase.LIVE, "lapse"): LeasePhase.LAPSED,
    (LeasePhase.DOUBTFUL, "lapse"): LeasePhase.LAPSED,
    (LeasePhase.VERIFYING, "lapse"): LeasePhase.LAPSED,
    (LeasePhase.LAPSED, "beat"): LeasePhase.VERIFYING,
    (LeasePhase.LIVE, "loss"): LeasePhase.VERIFYING,
    (LeasePhase.VERIFYING, "verified"): LeasePhase.LIVE,
    (LeasePhase.LIVE, "drain"): LeasePhase.DRAINING,
    (LeasePhase.DOUBTFUL, "drain"): LeasePhase.DRAINING,
    (LeasePhase.VERIFYING, "drain"): LeasePhase.DRAINING,
    (LeasePhase.STARTING, "drain"): LeasePhase.GONE,
    (LeasePhase.LAPSED, "drain"): LeasePhase.GONE,
    (LeasePhase.DRAINING, "lapse"): LeasePhase.GONE,
    (LeasePhase.DRAINING, "drained"): LeasePhase.GONE,
}
"""What moves a lease on. Whatever is not here changes no phase."""


class Lease(Struct, frozen=True):
    """The lease of one replica. `acknowledged`: when the last beat that was acknowledged had been sent; `since`: when
    the lease was taken; `doubted`: whether the replica was told to do nothing."""

    phase: LeasePhase = LeasePhase.STARTING
    acknowledged: float = float("-inf")
    since: float = float("inf")
    doubted: bool = True


Step: TypeAlias = tuple[Lease, Effects]


def doubtful(lease: Lease, now: float) -> bool:
    """Whether nothing may be given to a backend. By the clock: a process that was stopped must not rely on what it had
    been told before."""
    return lease.doubted or now - lease.acknowledged > DOUBT


def may_claim(lease: Lease, now: float) -> bool:
    """Whether a session may be claimed from another that looks dead: if this replica's own lease is unbroken for as
    long as one lasts. (When Redis comes back, every replica looks dead to every other.)"""
    return not doubtful(lease, now) and now - lease.since >= TTL


def step(lease: Lease, event: LeaseEvent) -> Step:
    """Total: what the phase does not serve changes nothing."""
    if lease.phase is LeasePhase.GONE:
        return lease, []
    return HANDLERS[type(event)](lease, event)


def _to(lease: Lease, cause: str) -> LeasePhase | None:
    return TRANSITIONS.get((lease.phase, cause))


def _beat_due(lease: Lease, event: BeatDue) -> Step:
    lease, effects = _looked(lease, Looked(event.now))
    if event.now - event.ticked > TICK_WITHIN:
        return lease, effects
    return lease, [*effects, Beat(take=lease.phase in (LeasePhase.STARTING, LeasePhase.LAPSED))]


def _beaten(lease: Lease, event: Beaten) -> Step:
    """One that comes after its own lease is over is no sign of life. Whoever has asked since the last one may have been
    told of a doubt, by the clock: that is over now, too."""
    lease, effects = _looked(lease, Looked(event.now))
    if event.now - event.sent > DOUBT or event.sent < lease.acknowledged:
        return lease, effects
    begun = lease.phase in (LeasePhase.STARTING, LeasePhase.LAPSED)
    if lease.doubted:
        effects.append(Verify() if lease.phase is LeasePhase.LAPSED else Certain())
    phase = _to(lease, "beat") or lease.phase
    return Lease(phase, event.sent, event.sent if begun else lease.since, doubted=False), effects


def _looked(lease: Lease, event: Looked) -> Step:
    if lease.doubted or event.now - lease.acknowledged <= DOUBT:
        return lease, []
    return replace(lease, phase=_to(lease, "doubt") or lease.phase, doubted=True), [Doubt()]


def _lapsed(lease: Lease, event: Lapsed) -> Step:
    phase = _to(lease, "lapse")
    if phase is None:
        return lease, []
    doubt: Effects = [] if lease.doubted else [Doubt()]
    after: Effects = [Rename()] if phase is LeasePhase.LAPSED else []
    return Lease(phase), [*doubt, *after]


def _forgot(lease: Lease, event: Forgot) -> Step:
    """Who looks dead may only have been forgotten, so nobody is claimed from before a lease could have run out."""
    if lease.phase in (LeasePhase.STARTING, LeasePhase.LAPSED):
        return lease, []
    return replace(lease, phase=_to(lease, "loss") or lease.phase, since=event.now), [VerifyAgain()]


def _verified(lease: Lease, event: Verified) -> Step:
    return replace(lease, phase=_to(lease, "verified") or lease.phase), []


def _drain_begun(lease: Lease, event: DrainBegun) -> Step:
    return _end(lease, _to(lease, "drain"))


def _drained(lease: Lease, event: Drained) -> Step:
    return _end(lease, _to(lease, "drained"))


def _end(lease: Lease, phase: LeasePhase | None) -> Step:
    if phase is None:
        return lease, []
    return replace(lease, phase=phase), [GiveUp()] if phase is LeasePhase.GONE else []


HANDLERS: Final[dict[type, Callable[..., Step]]] = {
    BeatDue: _beat_due,
    Beaten: _beaten,
    Lapsed: _lapsed,
    Looked: _looked,
    Forgot: _forgot,
    Verified: _verified,
    DrainBegun: _drain_begun,
    Drained: _drained,
}
