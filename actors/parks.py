"""How many calls wait for answers of clients without sessions, in this process."""

from collections import Counter

from actors.ports import Principal


class Parks:
    """By principal, over all its brokers. The anonymous principal is one like any other."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """Of all principals."""
        return self._counts.total()

    def room(self, principal: Principal) -> bool:
        """Whether one more may."""
        return self._counts[principal.name] < self._limit

    def add(self, principal: Principal, change: int) -> None:
        """Calls were parked, or are not any more."""
        self._counts[principal.name] += change
        if self._counts[principal.name] <= 0:
            del self._counts[principal.name]
