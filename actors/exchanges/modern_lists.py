"""Where the lists of modern clients come from. A modern server is asked over the connection that everybody shares,
which keeps what may be kept; a legacy one through the catalogue. A merged list is fresh as long as each of its parts.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Raw

from actors.exchanges.tool_mirrors import Mirrors, legal, mirrors_of
from actors.fronts.catalogue_messages import Key
from actors.fronts.listing import TOOLS, Listing, Source, View, catalogue_key
from actors.links.link_messages import LinkOutcome
from actors.links.paging import Items
from actors.protocol import payload as json
from actors.protocol.errors import Malformed
from actors.protocol.modern.headers import ANNOTATION, Mirrored
from actors.protocol.modern.outcomes import ttl
from actors.protocol.translate import without_execution
from actors.protocol.versions import MODERN

if TYPE_CHECKING:
    from actors.exchanges.modern_endpoint import ModernEndpoint


class ModernSource(Source):
    """Of one endpoint of one kind of client."""

    _endpoint: "ModernEndpoint"

    def __init__(self, endpoint: "ModernEndpoint") -> None:
        super().__init__(endpoint)
        self._fresh: dict[tuple[str, str], int] = {}
        """Method and backend → milliseconds."""

    @property
    def eager(self) -> bool:
        """What a legacy connection lists is asked for when it is wanted, or told of."""
        return self._endpoint.host.listening

    def modern(self, backend: str) -> bool:
        """As in `Source`."""
        return self._endpoint.modern(backend)

    def connected(self, backend: str) -> bool:
        """As in `Source`: to a legacy server, for whichever endpoint."""
        spec = self._endpoint.services.table.value.backends.get(backend)
        return spec is not None and spec.sharing != "shared" and self._endpoint.host.peers.connected(spec)

    def last_known(self, method: str, backend: str) -> Items | None:
        """As in `Source`."""
        known, key = self._endpoint.tree.known, catalogue_key(self._endpoint, backend)
        items = known.items(_in_this_era(key), method)
        return items if items is not None else known.items(key, method)

    def fetching(self, method: str, backend: str) -> None:
        """As in `Source`."""
        self._fresh.pop((method, backend), None)

    def page(self, method: str, outcome: LinkOutcome) -> None:
        """As in `Source`: all of a list is as fresh as its stalest page."""
        key = (method, outcome.backend)
        try:
            said = ttl(json.members(outcome.payload)) if outcome.ok else None
        except Malformed:
            said = None
        self._fresh[key] = min(self._fresh.get(key, said or 0), said or 0)

    def learned(self, method: str, backend: str, items: Items) -> None:
        """As in `Source`."""
        if self.modern(backend):
            key = _in_this_era(catalogue_key(self._endpoint, backend))
            self._endpoint.tree.known.keep(key, method, items)

    def visible(self, backend: str, tools: Iterable[Raw], listed: Items) -> Iterable[Raw]:
        """As in `Source`: no tool that no client on HTTP could call."""
        if any(json.mentions(tool, ANNOTATION.encode()) for tool in listed):
            tools = (tool for tool in tools if legal(tool))
        return tools if self._surely(backend) else map(without_execution, tools)

    def form(self, backends: Iterable[str]) -> tuple[object, ...]:
        """As in `Source`."""
        return ("modern", *map(self._surely, backends))

    def hints(self, method: str, backends: Iterable[str]) -> dict[str, object]:
        """How many milliseconds it is fresh: 0 as soon as one part says nothing, or is missing."""
        fresh = min((self._fresh.get((method, backend), 0) for backend in backends), default=0)
        return {"ttlMs": fresh, "cacheScope": "private"}

    def _surely(self, backend: str) -> bool:
        """Whether its lists are of this era: those that were known last may be of the other one."""
        return backend in self._endpoint.upstreams.hellos and self.modern(backend)


def _in_this_era(key: Key) -> Key:
    """Lists have another form in this era, so they are kept apart."""
    return Key(key.principal, f"{MODERN} {key.bits}", key.backend)


@dataclass(frozen=True, slots=True)
class _Mirrored:
    """A value to be kept also where it is empty."""

    by_tool: Mirrors


class ListedHeaders:
    """Which arguments of tools the headers of a request repeat, as the lists say that the endpoint has anyway."""

    def __init__(self, endpoint: "ModernEndpoint", listing: Listing) -> None:
        self._memo = endpoint.tree.memo
        self._listing = listing
        self._found: dict[str, tuple[View, Mirrors]] = {}

    def mirrored(self, backend: str, tool: str) -> tuple[Mirrored, ...]:
        """Of one tool of a server."""
        view, found = self._listing.views.get(TOOLS, {}).get(backend), self._found.get(backend)
        if view is None:
            return ()
        if found is None or found[0] is not view:
            made = self._memo.get(("mirrors", view.version), lambda: _Mirrored(mirrors_of(view.items)), [view.items])
            assert isinstance(made, _Mirrored)
            found = self._found[backend] = (view, made.by_tool)
        return found[1].get(tool, ())
