"""What is open in this process over all sessions: requests by principal, streams by kind."""

from collections import Counter

from actors.ports import Principal


class Ledger:
    """A principal with many sessions must not have as many turns. The anonymous principal is everybody: no bound."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts: dict[str, int] = {}
        self.total = 0
        """Requests in flight."""
        self.streams: Counter[str] = Counter()
        """Connections that carry a stream: `post`, `get` or `listen`."""
        self.listening: Counter[str] = Counter()
        """Subscriptions without a session, by principal, those that are not acknowledged yet included."""
        self.exchanges = 0
        """Requests without a session that are in flight; they are among `total`."""

    def allows(self, principal: Principal, requests: int) -> bool:
        """Whether so many more may be taken."""
        return principal.anonymous or self._counts.get(principal.name, 0) + requests <= self._limit

    def may_listen(self, principal: Principal) -> bool:
        """Whether one more subscription may be taken: as many as requests."""
        return principal.anonymous or self.listening[principal.name] < self._limit

    def listens(self, principal: Principal, change: int) -> None:
        """Subscriptions were taken, or have ended."""
        self.listening[principal.name] += change
        if not self.listening[principal.name]:
            del self.listening[principal.name]

    def takes(self, principal: Principal) -> bool:
        """Takes one request without a session, if this principal may have one more."""
        if not principal.anonymous and self._counts.get(principal.name, 0) >= self._limit:
            return False
        self.exchanges += 1
        self.add(principal, 1)
        return True

    def gives_back(self, principal: Principal, requests: int = 1) -> None:
        """So many requests without a session have their outcome."""
        self.exchanges -= requests
        self.add(principal, -requests)

    def add(self, principal: Principal, change: int) -> None:
        """Requests were taken, or have their outcome."""
        self.total += change
        if not change or principal.anonymous:
            return
        count = self._counts.get(principal.name, 0) + change
        if count > 0:
            self._counts[principal.name] = count
        else:
            self._counts.pop(principal.name, None)
