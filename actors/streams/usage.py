"""How much the logs of one session hold, and what goes first when they hold too much: streams that were written whole,
then what live streams have written but for their newest part, then those that are finished and that nobody came for,
the oldest first; never what was not written of a live one."""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

from actors.ports import StreamHead
from actors.protocol.table import Limits
from actors.runtime import EMPTY_TABLE, put

HALF = 0.5
"""Of the caps: above it what may be shed gets no room that something else can make."""

TAIL = 0.25
"""Of the caps: the newest part of what a live stream has written stays, for its client may not have received it. With
what is on its way it fits below half."""

Reached: TypeAlias = Callable[[str], int]
"""Up to which number the events of a live stream may go."""


@dataclass(slots=True)
class _Stream:
    events: int = 0
    bytes: int = 0
    until: float = 0.0
    """When it is forgotten, if it is finished."""
    awaited: float = 0.0
    """Till when its client is expected to come back for the rest, if it is finished."""
    floor: int = 0
    sizes: "array[int]" = field(default_factory=lambda: array("I"))
    """Of the events after `floor`, while it is live."""

    def spare(self, reached: int, events: int, size: int) -> int:
        """How many of its events up to `reached` may go, so that about so many or so large ones of them stay."""
        written = min(reached - self.floor, self.events)
        spare = max(0, written - events)
        if written > 1 and self.bytes > size:
            sums = [*accumulate(self.sizes[:written])]
            spare = max(spare, min(bisect_right(sums, sums[-1] - size), written - 1))
        return spare


class Usage:
    """An estimate kept beside the store, which has the last word: it makes room by the same rule. A stream is finished
    here when its last event is in the log."""

    __slots__ = ("_bytes", "_events", "_finished", "_limits", "_live", "_written")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._live: dict[str, _Stream] = EMPTY_TABLE
        # In the order in which they expire.
        self._finished: dict[str, _Stream] = EMPTY_TABLE
        self._written: dict[str, _Stream] = EMPTY_TABLE
        self._events = 0
        self._bytes = 0

    def load(self, heads: Mapping[str, StreamHead], now: float) -> None:
        """What an earlier life has left. (Of its bytes nothing is known.)"""
        for name, head in heads.items():
            held = head.seq - head.floor
            stream = _Stream(held, floor=head.floor, sizes=array("I", bytes(4 * held)))
            self._live = put(self._live, name, stream)
            self._events += held
            if head.finished:
                self.finish(name, now)
            if head.written:
                self.written(name, now)

    def over(self, share: float) -> bool:
        """Whether more than this share of either cap is used."""
        limits = self._limits
        return self._events > share * limits.log_events or self._bytes > share * limits.log_bytes

    def add(self, stream: str, size: int) -> bool:
        """An event is on its way into the log; whether that is more than the caps allow."""
        entry = self._live.get(stream)
        if entry is None:
            entry = _Stream()
            self._live = put(self._live, stream, entry)
        entry.sizes.append(size)
        entry.events += 1
        entry.bytes += size
        self._events += 1
        self._bytes += size
        return self._events > self._limits.log_events or self._bytes > self._limits.log_bytes

    def lose(self, stream: str, seq: int) -> None:
        """The store has lost what it had of a live one up to this event, or most of it."""
        entry = self._live.get(stream)
        if entry is not None and seq > entry.floor:
            gone = seq - entry.floor
            self._count(entry, -min(gone, entry.events), -sum(entry.sizes[:gone]))
            del entry.sizes[:gone]
            entry.floor = seq

    def missed(self, stream: str, seq: int) -> bool:
        """Whether something is missing, as far as can be told, behind this event of a live one."""
        entry = self._live.get(stream)
        return entry is not None and seq <= entry.floor and entry.floor > 0

    def take_back(self, stream: str, size: int) -> None:
        """It did not get there."""
        entry = self._live.get(stream)
        if entry is not None and entry.sizes:
            # What is on its way may be out of order by this, what was written never is.
            entry.sizes.pop()
            self._count(entry, -1, -size)

    def _count(self, entry: _Stream, events: int, size: int) -> None:
        entry.events += events
        entry.bytes += size
        self._events += events
        self._bytes += size

    def finish(self, stream: str, now: float) -> None:
        """It has its last event."""
        entry = self._live.pop(stream, None)
        if entry is not None:
            entry.until = now + self._limits.replay_ttl
            entry.awaited = now + self._limits.replay_ttl_written
            entry.sizes = array("I")
            self._finished = put(self._finished, stream, entry)

    def written(self, stream: str, now: float) -> None:
        """A finished one was written whole."""
        entry = self._finished.pop(stream, None)
        if entry is not None:
            entry.until = min(entry.until, now + self._limits.replay_ttl_written)
            self._written = put(self._written, stream, entry)

    def forget(self, stream: str) -> None:
        """It is not in the log, or not any more."""
        for streams in (self._live, self._finished, self._written):
            entry = streams.pop(stream, None)
            if entry is not None:
                self._count(entry, -entry.events, -entry.bytes)

    def spare(self, share: float, now: float, reached: Reached) -> list[tuple[str, bool | int]]:
        """What is to go so that no more than this share of the caps is used; all that may go if that is not enough.
        Streams to drop, and whether each was written whole; live ones to trim, and the number of the first event that
        stays. They are forgotten.

        A finished one that was not written whole may hold an answer that its client comes back for: below the caps,
        where only progress and log messages want room, it is kept as long as a written one is."""
        if not self.over(share):
            return []
        self._expire(now)
        dropped: list[tuple[str, bool | int]] = []
        while self._written and self.over(share):
            dropped.append((next(iter(self._written)), True))
            self.forget(dropped[-1][0])
        dropped += self.trim(share, reached)
        while self._finished and self.over(share):
            oldest = next(iter(self._finished))
            if share < 1.0 and now < self._finished[oldest].awaited:
                break
            dropped.append((oldest, False))
            self.forget(oldest)
        return dropped

    def trim(self, share: float, reached: Reached) -> list[tuple[str, bool | int]]:
        """The largest live streams are left with a quarter of the caps, and if that is not enough, with less; all of
        them have a quarter in the end."""
        trimmed: dict[str, bool | int] = {}
        tail, least = TAIL, TAIL / max(1, len(self._live))
        while self.over(share):
            events, size = max(1, int(tail * self._limits.log_events)), int(tail * self._limits.log_bytes)
            for name, entry in sorted(self._live.items(), key=lambda item: -item[1].events):
                if not self.over(share):
                    break
                gone = entry.spare(reached(name), events, size)
                if gone:
                    self._count(entry, -gone, -sum(entry.sizes[:gone]))
                    del entry.sizes[:gone]
                    entry.floor += gone
                    trimmed[name] = entry.floor + 1
            if tail <= least:
                break
            tail = max(least, tail / 2)
        return [*trimmed.items()]

    def _expire(self, now: float) -> None:
        for streams in (self._written, self._finished):
            while streams and streams[oldest := next(iter(streams))].until <= now:
                self.forget(oldest)
