"""The circuit breaker of a backend, as values: how often it failed, and when it may be tried again.

CLOSED lets every attempt through. After a few failures in a row it is OPEN: attempts fail at once until the delay has
passed; then one attempt goes through (HALF_OPEN), and its outcome closes the breaker or opens it for longer.
"""

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
    """One breaker. `until`: when an open one lets an attempt through, on the caller's clock."""

    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    until: float = 0.0


def delay(failures: int, jitter: float) -> float:
    """Seconds before the next attempt after so many failures; `jitter` in [0, 1) spreads those who wait."""
    exponential = FIRST_DELAY * 2.0 ** min(max(0, failures - 1), 16)
    return float(min(LONGEST_DELAY, exponential) * (0.5 + jitter / 2))


def attempt(breaker: Breaker, now: float) -> tuple[Breaker, bool]:
    """Whether an attempt may be made now."""
    if breaker.state is BreakerState.CLOSED:
        return breaker, True
    if breaker.state is BreakerState.OPEN and now >= breaker.until:
        # If the outcome of this attempt never comes, another may be made after the longest delay.
        return replace(breaker, state=BreakerState.HALF_OPEN, until=now + LONGEST_DELAY), True
    if breaker.state is BreakerState.HALF_OPEN and now >= breaker.until:
        return replace(breaker, until=now + LONGEST_DELAY), True
    return breaker, False


def undecided(breaker: Breaker, now: float) -> Breaker:
    """The one attempt ended, and it is not known how the backend is: another may be made at once."""
    return replace(breaker, until=now) if breaker.state is BreakerState.HALF_OPEN else breaker


def succeeded(breaker: Breaker) -> Breaker:
    """An attempt worked."""
    return Breaker() if breaker.failures or breaker.state is not BreakerState.CLOSED else breaker


def failed(breaker: Breaker, now: float, jitter: float) -> Breaker:
    """An attempt did not."""
    if breaker.state is BreakerState.OPEN and now < breaker.until:
        # News of the same outage, from attempts begun before it opened: many links lost at once are one failure.
        return breaker
    failures = breaker.failures + 1
    if failures < THRESHOLD:
        return replace(breaker, failures=failures)
    return Breaker(BreakerState.OPEN, failures, now + delay(failures - THRESHOLD + 1, jitter))
