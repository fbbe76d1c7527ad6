"""The circuit breaker of a backend, as values: how often it failed, and when it may be tried again.

CLOSED lets every attempt through. After a few failures in a row it is OPEN: attempts fail at once until the delay has
passed; then one attempt goes through (HALF_OPEN), and its outcome closes the breaker or opens it for longer.
"""

from collections.abc import Hashable
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

THRESHOLD = 3
"""Failures in a row that open it: one is an accident, two may be a restart."""
FIRST_DELAY = 0.5
"""Seconds; doubles with every failure from there on."""
LONGEST_DELAY = 30.0
"""Seconds; a backend that comes back is noticed within this time."""


class BreakerState(Enum):
    """How the breaker stands."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker(Struct, frozen=True):
    """One breaker. `until`: when an open one lets an attempt through, on the caller's clock. `trial`: whose the one
    attempt is while it is half open."""

    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    until: float = 0.0
    trial: Hashable = None


def delay(failures: int, jitter: float) -> float:
    """Seconds before the next attempt after so many failures; `jitter` in [0, 1) spreads those who wait."""
    exponential = FIRST_DELAY * 2.0 ** min(max(0, failures - 1), 16)
    return float(min(LONGEST_DELAY, exponential) * (0.5 + jitter / 2))


def attempt(breaker: Breaker, now: float, who: Hashable) -> tuple[Breaker, bool]:
    """Whether `who` may make an attempt now."""
    if breaker.state is BreakerState.CLOSED:
        return breaker, True
    if now >= breaker.until:
        # If the outcome of this attempt never comes, another may be made after the longest delay.
        return Breaker(BreakerState.HALF_OPEN, breaker.failures, now + LONGEST_DELAY, who), True
    return breaker, breaker.trial == who


def undecided(breaker: Breaker, now: float, who: Hashable) -> Breaker:
    """An attempt ended, and it is not known how the backend is: if it was the one, another may be made at once."""
    return replace(breaker, until=now, trial=None) if breaker.trial == who else breaker


def succeeded(breaker: Breaker) -> Breaker:
    """The state after an attempt that worked."""
    return Breaker() if breaker.failures or breaker.state is not BreakerState.CLOSED else breaker


def failed(breaker: Breaker, now: float, jitter: float) -> Breaker:
    """The state after an attempt that did not work."""
    if breaker.state is BreakerState.OPEN and now < breaker.until:
        # News of the same outage, from attempts begun before it opened: many upstream connections lost at once are
        # one failure.
        return breaker
    failures = breaker.failures + 1
    if failures < THRESHOLD:
        return replace(breaker, failures=failures)
    return Breaker(BreakerState.OPEN, failures, now + delay(failures - THRESHOLD + 1, jitter))
