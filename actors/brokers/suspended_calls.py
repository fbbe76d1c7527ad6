"""The calls that wait for answers of modern clients, in this process.

Nobody can tell one that was left for good from one whose user takes their time. So each has its place for a while, and
after that it has it as long as nobody else needs one.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from actors.ports import Principal, Telemetry

PATIENCE = 60.0
"""Seconds for which a call is suspended in any case, from its first question on."""


@dataclass(frozen=True, slots=True)
class _Suspended:
    since: float
    give_way: Callable[[], object]


class SuspendedCalls:
    """By principal, over all its pools. The anonymous principal is one like any other."""

    def __init__(self, limit: int, telemetry: Telemetry) -> None:
        """`limit`: of one principal."""
        self._limit = limit
        self._telemetry = telemetry
        self._suspended: dict[str, dict[Hashable, _Suspended]] = {}

    @property
    def total(self) -> int:
        """Of all principals."""
        return sum(map(len, self._suspended.values()))

    def room(self, principal: Principal, now: float) -> bool:
        """Whether one more may be suspended. If it takes that, the one that is for longest gives way."""
        mine = self._suspended.get(principal.name, {})
        if len(mine) < self._limit:
            return True
        oldest = min(mine, key=lambda key: mine[key].since, default=None)
        if oldest is None or now - mine[oldest].since < PATIENCE:
            return False
        mine[oldest].give_way()
        self.remove(principal, oldest)
        return True

    def add(self, principal: Principal, key: Hashable, since: float, give_way: Callable[[], object]) -> None:
        """A call is suspended, and was for the first time at `since`."""
        self._suspended.setdefault(principal.name, {})[key] = _Suspended(since, give_way)
        self._count()

    def remove(self, principal: Principal, key: Hashable) -> None:
        """It is not, any more."""
        mine = self._suspended.get(principal.name)
        if mine is None or mine.pop(key, None) is None:
            return
        if not mine:
            del self._suspended[principal.name]
        self._count()

    def _count(self) -> None:
        self._telemetry.gauge("stagedoor_parked_calls", float(self.total))


class SuspendedHere:
    """Those of one pool, by its numbers of the calls."""

    def __init__(self, everywhere: SuspendedCalls, principal: Principal) -> None:
        self._everywhere = everywhere
        self._principal = principal
        self._since: dict[int, float] = {}

    def room(self, now: float) -> bool:
        """As in `SuspendedCalls`."""
        return self._everywhere.room(self._principal, now)

    def add(self, call: int, since: float, give_way: Callable[[], object]) -> None:
        """As in `SuspendedCalls`."""
        self._since[call] = since
        self._everywhere.add(self._principal, (self, call), since, give_way)

    def remove(self, call: int) -> None:
        """It is not suspended any more."""
        self._since.pop(call, None)
        self._everywhere.remove(self._principal, (self, call))

    def clear(self) -> None:
        """None is."""
        for call in list(self._since):
            self.remove(call)

    def patient(self, now: float) -> tuple[int, ...]:
        """Those that are suspended long enough to give way, longest first."""
        return tuple(sorted((c for c, s in self._since.items() if now - s >= PATIENCE), key=self._since.__getitem__))
