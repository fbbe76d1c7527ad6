"""How many requests each principal has in flight, over all of its sessions in this process."""

from actors.ports import Principal


class Ledger:
    """A principal with many sessions must not have as many turns. The anonymous principal is everybody: no bound."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts: dict[str, int] = {}

    def allows(self, principal: Principal, requests: int) -> bool:
        """Whether so many more may be taken."""
        return principal.anonymous or self._counts.get(principal.name, 0) + requests <= self._limit

    def add(self, principal: Principal, change: int) -> None:
        """Requests were taken, or have their outcome."""
        if not change or principal.anonymous:
            return
        count = self._counts.get(principal.name, 0) + change
        if count > 0:
            self._counts[principal.name] = count
        else:
            self._counts.pop(principal.name, None)
