"""What the backends of an aggregate list, as clients without sessions see it.

A backend without sessions is asked over the connection that everybody shares, which keeps what may be kept; one with
sessions through the catalogue. A merged list is fresh as long as each of its parts.
"""

from typing import TYPE_CHECKING

from msgspec import Raw

from actors.link_messages import LinkOutcome
from actors.listing import Listing
from actors.memo import Memo
from actors.protocol import payload as json
from actors.protocol.errors import Malformed
from actors.protocol.link_events import Hello
from actors.protocol.modern.outcomes import ttl

if TYPE_CHECKING:
    from actors.modern_fronts import ModernAggregate


class ModernListing(Listing):
    """The lists of one actor of exchanges."""

    def __init__(self, front: "ModernAggregate", memo: Memo) -> None:
        super().__init__(front, memo)
        self._modern = front
        self._fresh: dict[tuple[str, str], int] = {}

    def ttl(self, method: str) -> int:
        """Milliseconds for which the merged list is fresh: 0 as soon as one part says nothing, or is missing."""
        return min((self._fresh.get((method, b), 0) for b in self._modern.backends), default=0)

    def noted(self, method: str, outcome: LinkOutcome) -> None:
        """A page of a list: all of a list is as fresh as its stalest page."""
        key = (method, outcome.backend)
        try:
            said = ttl(json.members(outcome.payload)) if outcome.ok else None
        except Malformed:
            said = None
        self._fresh[key] = min(self._fresh.get(key, said or 0), said or 0)

    def _wants(self, method: str, backend: str) -> bool:
        """Always: who keeps a list for how long is the link's business, or the catalogue's."""
        running = self._fetches.get((method, backend))
        return running is None or not running.slow

    def _fetch(self, method: str, backend: str, *, fresh: bool) -> None:
        front = self._modern
        if not front.modern(backend) or front.lists_itself(backend):
            self._fresh.pop((method, backend), None)
            super()._fetch(method, backend, fresh=fresh)
            return

        def ready(hello: Hello | None, error: Raw) -> None:
            if hello is None and front.modern(backend):
                self._arrived(method, backend, None, told=False)
            else:
                self._fetch(method, backend, fresh=fresh)

        front.when_ready(backend, ready)
