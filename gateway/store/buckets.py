"""`Buckets` in memory: they end with the process."""

import math
from collections.abc import Callable, Sequence
from typing import Final

from actors.ports import Done
from actors.protocol.limiting import ALL_GAVE, MONDAY, SECOND, WEEK, Bucket, Taken

MOST: Final = 100_000
"""Buckets and payments kept; what would be forgotten first gives way, which is what the least was taken from."""
ROOM: Final = MOST // 10


class MemoryBuckets:
    """See `Buckets`. `now` is the wall clock, which quotas go by."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._rates: dict[str, int] = {}
        """When all that was taken is back (the theoretical arrival time of the next one)."""
        self._counts: dict[str, tuple[int, int]] = {}
        """When the window ends, and what was taken in it."""
        self._paid: dict[str, int] = {}
        """Until when it is known that somebody has brought it."""

    @property
    def total(self) -> int:
        """How many buckets and payments it remembers."""
        return len(self._rates) + len(self._counts) + len(self._paid)

    def take(self, buckets: Sequence[Bucket], cost: int, once: str, seconds: float, done: Done) -> Taken | None:
        """As in `Buckets`."""
        now = round(self._now() * SECOND)
        if once and self._paid.get(once, 0) <= now:
            self._paid[once] = now + round(seconds * SECOND)
            self._bound(now)
            return Taken(free=True)
        if len(buckets) == 1 and not buckets[0].quota:  # nearly always
            then, wait = self._rate(buckets[0], cost, now)
            if wait > 0:
                return Taken(0, wait / SECOND)
            self._rates[buckets[0].key] = then
        elif (refused := self._take(buckets, cost, now)) is not None:
            return refused
        if len(self._rates) + len(self._counts) + len(self._paid) > MOST:
            self._bound(now)
        return ALL_GAVE

    def _take(self, buckets: Sequence[Bucket], cost: int, now: int) -> Taken | None:
        """From all of them; None: they gave it."""
        rates: dict[str, int] = {}
        counts: dict[str, tuple[int, int]] = {}
        longest, place = 0.0, 0
        for at, bucket in enumerate(buckets):
            if bucket.quota:
                end, taken = self._window(bucket, now)
                wait = 0.0 if taken + cost <= bucket.most else math.inf if cost > bucket.most else end - now
                counts[bucket.key] = end, taken + cost
            else:
                rates[bucket.key], wait = self._rate(bucket, cost, now)
            if wait > longest:
                longest, place = wait, at
        if longest > 0:
            return Taken(place, longest / SECOND)
        self._rates.update(rates)
        self._counts.update(counts)
        return None

    def _rate(self, bucket: Bucket, cost: int, now: int) -> tuple[int, float]:
        """When all is back once this is taken too, and how long that has to wait."""
        # When all is back. Not later than it can be: the bucket may have been larger, or the clock ahead.
        full = now + bucket.most * bucket.micros
        back = self._rates.get(bucket.key, 0)
        if back < now:
            back = now
        elif back > full:
            back = self._rates[bucket.key] = full
        then = back + cost * bucket.micros
        return then, math.inf if cost > bucket.most else then - full

    def _window(self, bucket: Bucket, now: int) -> tuple[int, int]:
        first = MONDAY if bucket.micros == WEEK else 0
        end = now - (now - first) % bucket.micros + bucket.micros
        known, taken = self._counts.get(bucket.key, (0, 0))
        return end, taken if known >= end else 0

    def _bound(self, now: int) -> None:
        """Makes room for a while, so that not each call looks for it: where there is most, of what says least."""
        if self.total <= MOST:
            return
        self._forget(now)
        if self.total <= MOST - ROOM:
            return
        if len(self._counts) >= max(len(self._rates), len(self._paid)):
            for key in sorted(self._counts, key=lambda key: self._counts[key][1])[:ROOM]:
                del self._counts[key]
        else:
            table = max(self._rates, self._paid, key=len)
            for key in sorted(table, key=table.__getitem__)[:ROOM]:
                del table[key]

    def sweep(self) -> None:
        """Forgets what makes no difference any more."""
        self._forget(round(self._now() * SECOND))

    def _forget(self, now: int) -> None:
        for table in (self._rates, self._paid):
            for key in [key for key, end in table.items() if end <= now]:
                del table[key]
        for key in [key for key, (end, _) in self._counts.items() if end <= now]:
            del self._counts[key]
