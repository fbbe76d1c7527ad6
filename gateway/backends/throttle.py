"""Keeping a talkative peer from filling the log."""

from collections.abc import Callable

import trio


class Throttle:
    """A token bucket: `burst` at once, then `per_second`. Counts what it refuses."""

    __slots__ = ("_burst", "_clock", "_rate", "_refused", "_seen", "_tokens")

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float] = trio.current_time) -> None:
        self._rate = per_second
        self._burst = float(burst)
        self._clock = clock
        self._tokens = float(burst)
        self._seen: float | None = None
        self._refused = 0

    def admit(self) -> int | None:
        """None to stay silent; else how many were refused since the last one that was admitted."""
        now = self._clock()
        if self._seen is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._seen) * self._rate)
        self._seen = now
        if self._tokens < 1:
            self._refused += 1
            return None
        self._tokens -= 1
        refused, self._refused = self._refused, 0
        return refused
