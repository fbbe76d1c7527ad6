"""What the backends of an aggregate list, as clients without sessions see it.

A backend without sessions is asked over the connection that everybody shares, which keeps what may be kept; one with
sessions through the catalogue. A merged list is fresh as long as each of its parts.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Raw

from actors.exchanges.tool_mirrors import Mirrors, legal, mirrors_of
from actors.fronts.catalogue_messages import Key
from actors.fronts.listing import TOOLS, Listing, View
from actors.fronts.memo import Memo
from actors.links.link_messages import LinkOutcome
from actors.links.paging import Items
from actors.protocol import payload as json
from actors.protocol.errors import Malformed
from actors.protocol.link_events import Hello
from actors.protocol.modern.outcomes import ttl
from actors.protocol.modern.tool_headers import ANNOTATION, Mirrored
from actors.protocol.translate import without_execution
from actors.protocol.versions import MODERN

if TYPE_CHECKING:
    from actors.exchanges.modern_fronts import ModernAggregate


class ModernListing(Listing):
    """The lists of one actor of exchanges."""

    def __init__(self, front: "ModernAggregate", memo: Memo) -> None:
        super().__init__(front, memo)
        self._modern = front
        self._fresh: dict[tuple[str, str], int] = {}
        self._connecting: set[tuple[str, str]] = set()
        """Method and backend: it is fetched as soon as there is a connection."""

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

    def _itself(self, backend: str) -> bool:
        front = self._modern
        return front.modern(backend) or front.lists_itself(backend) or front.connected(backend)

    def _wants(self, method: str, backend: str) -> bool:
        """Who keeps a list for how long is the link's business, or the catalogue's; but the list of a connection with a
        session is good until the backend says that it has changed."""
        own = not self._modern.modern(backend) and self._modern.lists_itself(backend)
        return not own or super()._wants(method, backend)

    def connected(self, backend: str) -> None:
        """What a connection with a session lists is asked for when it is wanted, or told of."""
        if self._modern.modern(backend) or self._modern.host.listening:
            super().connected(backend)
        else:
            self._outdate(backend)

    def _fetch(self, method: str, backend: str, *, fresh: bool) -> None:
        front, key = self._modern, (method, backend)
        if front.lists_itself(backend) or not self._itself(backend):
            self._fresh.pop(key, None)
            super()._fetch(method, backend, fresh=fresh)
            return

        def ready(hello: Hello | None, error: Raw) -> None:
            self._connecting.discard(key)
            if hello is not None:
                self._fetch(method, backend, fresh=fresh)
            elif front.modern(backend):
                self._arrived(method, backend, None, failed=True)
            else:
                Listing._fetch(self, method, backend, fresh=fresh)

        last = self._last_known(method, backend) if not fresh and not front.connected(backend) else None
        if last is not None:
            self._arrived(method, backend, last)  # what is different from it is announced when it is there
        if key not in self._connecting:
            self._connecting.add(key)
            front.when_ready(backend, ready)

    def _last_known(self, method: str, backend: str) -> Items | None:
        view = self._views.get(method, {}).get(backend)
        if view is not None:
            return view.items
        known, front = self._modern.tree.known, self._modern
        items = known.items(self._known_as(backend), method)
        return items if items is not None else known.items(front.catalogue_key(backend), method)

    def _learned(self, method: str, backend: str) -> None:
        view = self._views.get(method, {}).get(backend)
        if view is not None and self._modern.modern(backend):
            self._modern.tree.known.keep(self._known_as(backend), method, view.items)

    def _known_as(self, backend: str) -> Key:
        """Lists have another form in this era, so they are kept apart."""
        key = self._modern.catalogue_key(backend)
        return Key(key.principal, f"{MODERN} {key.bits}", backend)

    # Tools whose arguments go into headers

    def mirrored(self, backend: str, tool: str) -> tuple[Mirrored, ...]:
        """Which arguments of a backend's tool the headers of a request repeat."""
        view = self._views.get(TOOLS, {}).get(backend)
        if view is None:
            return ()
        found = self._memo.get(("mirrors", view.version), lambda: _Mirrored(mirrors_of(view.items)), [view.items])
        assert isinstance(found, _Mirrored)
        return found.by_tool.get(tool, ())

    def _visible(self, method: str, backend: str, view: View) -> Iterable[Raw]:
        visible = super()._visible(method, backend, view)
        if method != TOOLS:
            return visible
        if any(json.mentions(item, ANNOTATION.encode()) for item in view.items):
            visible = (item for item in visible if legal(item))
        return visible if self._surely(backend) else map(without_execution, visible)

    def _surely(self, backend: str) -> bool:
        """Whether its lists are of this era: those that were known last may be of the other one."""
        return backend in self._modern.hellos and self._modern.modern(backend)

    def _key(self, what: str, method: str, views: list[tuple[str, View]]) -> tuple[object, ...]:
        return ("modern", *(self._surely(b) for b, _ in views), *super()._key(what, method, views))


@dataclass(frozen=True, slots=True)
class _Mirrored:
    """A value to be kept also where it is empty."""

    by_tool: Mirrors
