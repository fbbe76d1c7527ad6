"""How much the logs of one session hold, and which finished streams go first when they hold too much."""

from dataclasses import dataclass

from actors.protocol.table import Limits


@dataclass(slots=True)
class _Stream:
    events: int = 0
    bytes: int = 0
    finished_at: float | None = None


class Usage:
    """An estimate kept beside the store, which has the last word: it knows what has expired."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._streams: dict[str, _Stream] = {}
        self._events = 0
        self._bytes = 0

    @property
    def pressed(self) -> bool:
        """Half of either cap is used."""
        return 2 * self._events >= self._limits.log_events or 2 * self._bytes >= self._limits.log_bytes

    def add(self, stream: str, size: int, finish: bool, now: float) -> list[str]:
        """Counts an event; the finished streams to drop so that it fits."""
        self._expire(now)
        entry = self._streams.setdefault(stream, _Stream())
        entry.events += 1
        entry.bytes += size
        self._events += 1
        self._bytes += size
        if finish:
            entry.finished_at = now
        dropped = []
        while self._events > self._limits.log_events or self._bytes > self._limits.log_bytes:
            oldest = next((n for n, s in self._streams.items() if s.finished_at is not None and n != stream), None)
            if oldest is None:
                break
            self._forget(oldest)
            dropped.append(oldest)
        return dropped

    def _expire(self, now: float) -> None:
        """Streams are in the order of their opening, which is roughly that of their end."""
        while self._streams:
            name, first = next(iter(self._streams.items()))
            if first.finished_at is None or now - first.finished_at < self._limits.replay_ttl:
                return
            self._forget(name)

    def _forget(self, name: str) -> None:
        entry = self._streams.pop(name)
        self._events -= entry.events
        self._bytes -= entry.bytes
