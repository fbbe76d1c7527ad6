"""The calls that wait for answers of clients without sessions, in this process.

Nobody can tell one that was left for good from one whose user takes their time. So each has its place for a while, and
after that it has it as long as nobody else needs one.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from actors.ports import Principal

PATIENCE = 60.0
"""Seconds for which a call is parked in any case, from its first question on."""


@dataclass(frozen=True, slots=True)
class _Park:
    since: float
    give_way: Callable[[], object]


class Parks:
    """By principal, over all its brokers. The anonymous principal is one like any other."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parked: dict[str, dict[Hashable, _Park]] = {}

    @property
    def total(self) -> int:
        """Of all principals."""
        return sum(map(len, self._parked.values()))

    def room(self, principal: Principal, now: float) -> bool:
        """Whether one more may be parked. If it takes that, the one that is parked longest gives way."""
        mine = self._parked.get(principal.name, {})
        if len(mine) < self._limit:
            return True
        oldest = min(mine, key=lambda key: mine[key].since, default=None)
        if oldest is None or now - mine[oldest].since < PATIENCE:
            return False
        mine[oldest].give_way()
        self.remove(principal, oldest)
        return True

    def add(self, principal: Principal, key: Hashable, since: float, give_way: Callable[[], object]) -> None:
        """A call is parked, and was for the first time at `since`."""
        self._parked.setdefault(principal.name, {})[key] = _Park(since, give_way)

    def remove(self, principal: Principal, key: Hashable) -> None:
        """It is not, any more."""
        mine = self._parked.get(principal.name, {})
        mine.pop(key, None)
        if not mine:
            self._parked.pop(principal.name, None)


class Parked:
    """Those of one broker, by the numbers of its calls."""

    def __init__(self, parks: Parks, principal: Principal) -> None:
        self._parks = parks
        self._principal = principal
        self._since: dict[int, float] = {}

    def room(self, now: float) -> bool:
        """As in `Parks`."""
        return self._parks.room(self._principal, now)

    def add(self, call: int, since: float, give_way: Callable[[], object]) -> None:
        """As in `Parks`."""
        self._since[call] = since
        self._parks.add(self._principal, (self, call), since, give_way)

    def remove(self, call: int) -> None:
        """It is not parked any more."""
        self._since.pop(call, None)
        self._parks.remove(self._principal, (self, call))

    def clear(self) -> None:
        """None is."""
        for call in list(self._since):
            self.remove(call)

    def patient(self, now: float) -> tuple[int, ...]:
        """Those that are parked long enough to give way, longest first."""
        return tuple(sorted((c for c, s in self._since.items() if now - s >= PATIENCE), key=self._since.__getitem__))
