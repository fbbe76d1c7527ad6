"""How much the logs of one session hold, and what goes first when they hold too much: streams that were written whole,
then those that are finished and that nobody came for, the oldest first; never one that is not finished."""

from collections.abc import Mapping
from dataclasses import dataclass

from actors.ports import StreamHead
from actors.protocol.table import Limits

HALF = 0.5
"""Of the caps: above it what may be shed gets no room that something finished takes."""


@dataclass(slots=True)
class _Stream:
    events: int = 0
    bytes: int = 0
    until: float = 0.0
    """When it is forgotten, if it is finished."""
    awaited: float = 0.0
    """Till when its client is expected to come back for the rest, if it is finished."""


class Usage:
    """An estimate kept beside the store, which has the last word: it makes room by the same rule. A stream is finished
    here when its last event is in the log."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._live: dict[str, _Stream] = {}
        # In the order in which they expire.
        self._finished: dict[str, _Stream] = {}
        self._written: dict[str, _Stream] = {}
        self._events = 0
        self._bytes = 0

    def load(self, heads: Mapping[str, StreamHead], now: float) -> None:
        """What an earlier life has left. (Of its bytes nothing is known.)"""
        for name, head in heads.items():
            self._live[name] = _Stream(head.seq)
            self._events += head.seq
            if head.finished:
                self.finish(name, now)
            if head.written:
                self.written(name, now)

    @property
    def pressed(self) -> bool:
        """Half of either cap is used."""
        return self._over(HALF)

    def _over(self, share: float) -> bool:
        limits = self._limits
        return self._events > share * limits.log_events or self._bytes > share * limits.log_bytes

    def add(self, stream: str, size: int) -> None:
        """An event is on its way into the log."""
        self._count(self._live.setdefault(stream, _Stream()), 1, size)

    def take_back(self, stream: str, size: int) -> None:
        """It did not get there."""
        entry = self._live.get(stream)
        if entry is not None:
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
            self._finished[stream] = entry

    def written(self, stream: str, now: float) -> None:
        """A finished one was written whole."""
        entry = self._finished.pop(stream, None)
        if entry is not None:
            entry.until = min(entry.until, now + self._limits.replay_ttl_written)
            self._written[stream] = entry

    def forget(self, stream: str) -> None:
        """It is not in the log, or not any more."""
        for streams in (self._live, self._finished, self._written):
            entry = streams.pop(stream, None)
            if entry is not None:
                self._count(entry, -entry.events, -entry.bytes)

    def spare(self, share: float, now: float) -> list[tuple[str, bool]]:
        """The streams to drop so that no more than this share of the caps is used, and whether each was written whole;
        all that can go if that is not enough. They are forgotten.

        One that was not written whole may hold an answer that its client comes back for: below the caps, where only
        progress and log messages want room, it is kept as long as a written one is."""
        if not self._over(share):
            return []
        self._expire(now)
        dropped = []
        while self._written and self._over(share):
            dropped.append((next(iter(self._written)), True))
            self.forget(dropped[-1][0])
        while self._finished and self._over(share):
            oldest = next(iter(self._finished))
            if share < 1.0 and now < self._finished[oldest].awaited:
                break
            dropped.append((oldest, False))
            self.forget(oldest)
        return dropped

    def _expire(self, now: float) -> None:
        for streams in (self._written, self._finished):
            while streams and streams[oldest := next(iter(streams))].until <= now:
                self.forget(oldest)
