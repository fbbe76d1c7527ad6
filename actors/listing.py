"""What the backends of an aggregate list, as one session sees it, and the naming tables made of it.

A backend that the session is connected to is asked over that connection, any other through the catalogue. Tables and
merged lists are shared between sessions that see the same lists.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Raw

from actors.catalogue import Consult, Key, Listed, Watch
from actors.link import LinkOutcome
from actors.memo import Memo
from actors.paging import Items, Paging
from actors.protocol import aggregate, capabilities
from actors.protocol.aggregate import Naming, item_name
from actors.protocol.methods import METHODS
from actors.protocol.naming import Names, Uris, build_names, build_uris
from actors.transparent import shown

if TYPE_CHECKING:
    from actors.aggregate import Aggregate

TOOLS, PROMPTS = "tools/list", "prompts/list"
RESOURCES, TEMPLATES = "resources/list", "resources/templates/list"

GRACE = 1.0
"""Seconds after the list deadline: the catalogue has one of its own, and answers first."""


@dataclass(frozen=True, slots=True)
class GatherDue:
    """The list deadline has passed."""

    method: str


@dataclass(frozen=True, slots=True)
class View:
    """One backend's list; `version` tells two contents apart."""

    items: Items
    version: int


@dataclass(slots=True)
class _Gathering:
    waiting: set[str]
    done: list[Callable[[], None]]


class Listing:
    """The lists of one session."""

    def __init__(self, front: "Aggregate", memo: Memo) -> None:
        self._front = front
        self._memo = memo
        self._views: dict[str, dict[str, View | None]] = {}
        self._stale: set[tuple[str, str]] = set()
        self._gathering: dict[str, _Gathering] = {}
        self._watching: set[str] = set()

    # Fetching

    def gather(self, method: str, done: Callable[[], None]) -> None:
        """Brings this list up to date for every backend, then calls `done`."""
        running = self._gathering.get(method)
        if running is not None:
            running.done.append(done)
            return
        missing = {b for b in self._front.backends if self._needs(method, b)}
        if not missing:
            done()
            return
        self._gathering[method] = _Gathering(set(missing), [done])
        seconds = self._front.services.limits.list_deadline
        self._front.host.ctx.set_timer(("gather", method), seconds + GRACE, GatherDue(method))
        for backend in missing:
            self._fetch(method, backend)

    def is_complete(self, method: str) -> bool:
        """Whether nothing of this list has to be fetched."""
        return not any(self._needs(method, b) for b in self._front.backends)

    def _needs(self, method: str, backend: str) -> bool:
        views = self._views.get(method, {})
        return views.get(backend) is None or (method, backend) in self._stale

    def _fetch(self, method: str, backend: str) -> None:
        if backend in self._front.hellos:
            self._fetch_own(method, backend)
            return
        front = self._front
        spec = front.table.backends.get(backend)
        if spec is None:
            self._arrived(method, backend, None)
            return
        key = front.catalogue_key(backend)
        front.tree.catalogue.reply(Consult(front.host.ctx.ref, 0, key, front.profile(spec), method))

    def _fetch_own(self, method: str, backend: str) -> None:
        hello = self._front.hellos[backend]
        if not capabilities.allows(capabilities.parse(hello.capabilities), method):
            self._arrived(method, backend, ())
            return

        def waiter(outcome: LinkOutcome) -> None:
            paging.outcome(outcome.ok, outcome.payload)

        def ask(params: Raw) -> None:
            if not self._front.own_call(backend, method, params, waiter):
                self._arrived(method, backend, None)

        def done(items: Items | None, error: Raw) -> None:
            self._arrived(method, backend, items)

        paging = Paging(METHODS[method].items or "", ask, done)
        paging.start()

    def listed(self, message: Listed) -> None:
        """The catalogue's answer."""
        if message.backend not in self._watching:
            self._watching.add(message.backend)
            key: Key = self._front.catalogue_key(message.backend)
            self._front.tree.catalogue.reply(Watch(self._front.host.ctx.ref, key))
        self._arrived(message.method, message.backend, message.items)

    def _arrived(self, method: str, backend: str, items: Items | None) -> None:
        views = self._views.setdefault(method, {})
        before = views.get(backend)
        if items is not None:
            views[backend] = View(items, self._memo.version(items))
            self._stale.discard((method, backend))
            if before is not None and before.version != self._memo.version(items):
                self._front.list_changed(method)
        else:
            views.setdefault(backend, None)
        gathering = self._gathering.get(method)
        if gathering is not None:
            gathering.waiting.discard(backend)
            if not gathering.waiting:
                del self._gathering[method]
                self._front.host.ctx.cancel_timer(("gather", method))
                for done in gathering.done:
                    done()

    def gather_due(self, method: str) -> None:
        """A slow backend does not hold the others up: what is known counts."""
        gathering = self._gathering.get(method)
        if gathering is not None:
            for backend in list(gathering.waiting):
                self._arrived(method, backend, None)

    def connected(self, backend: str) -> None:
        """The session has its own connection now: it may list other things than the catalogue knew."""
        for method, views in self._views.items():
            if views.get(backend) is not None:
                self._stale.add((method, backend))
                self._fetch_own(method, backend)

    def changed(self, backend: str, notification: str) -> None:
        """The backend said so."""
        for method in self._views:
            if notification == f"notifications/{method.split('/')[0]}/list_changed":
                self._stale.add((method, backend))

    # Looking

    def known(self, method: str) -> bool:
        """Whether any backend's list is known: if none is, that is an error, not an empty list."""
        views = self._views.get(method, {})
        return not self._front.backends or any(views.get(b) is not None for b in self._front.backends)

    def merged(self, method: str) -> list[Raw]:
        """The items of all backends, in their order, under their exposed names."""
        views = self._present(method)
        naming = self.naming
        key = ("merged", self._front.endpoint, self._front.table.digest, method, _key(views))
        value = self._memo.get(key, lambda: [i for b, v in views for i in self._exposed(method, b, v, naming)])
        assert isinstance(value, list)
        return value

    def _exposed(self, method: str, backend: str, view: View, naming: Naming) -> list[Raw]:
        return aggregate.expose_items(method, backend, self._visible(method, backend, view), naming)

    def _visible(self, method: str, backend: str, view: View) -> Items:
        spec = self._front.table.backends.get(backend)
        if spec is None or method != TOOLS or (spec.enabled_tools is None and not spec.disabled_tools):
            return view.items
        return tuple(item for item in view.items if shown(spec, item_name(item) or ""))

    def _present(self, method: str) -> list[tuple[str, View]]:
        views = self._views.get(method, {})
        return [(b, v) for b in self._front.backends if (v := views.get(b)) is not None]

    @property
    def naming(self) -> Naming:
        """The tables over everything that is known."""
        return Naming(self._names(TOOLS), self._names(PROMPTS), self._uris())

    def _names(self, method: str) -> Names:
        views = self._present(method)
        separator = self._front.table.separator

        def make() -> Names:
            lists = [(b, [n for i in self._visible(method, b, v) if (n := item_name(i))]) for b, v in views]
            return build_names(lists, separator)

        value = self._memo.get(("names", self._front.endpoint, self._front.table.digest, method, _key(views)), make)
        assert isinstance(value, Names)
        return value

    def _uris(self) -> Uris:
        resources, templates = self._present(RESOURCES), self._present(TEMPLATES)

        def make() -> Uris:
            lists = [(b, [u for i in v.items if (u := item_name(i, "uri"))]) for b, v in resources]
            lists += [(b, [u for i in v.items if (u := item_name(i, "uriTemplate"))]) for b, v in templates]
            return build_uris(self._front.backends, lists)

        key = ("uris", self._front.endpoint, self._front.table.digest, _key(resources), _key(templates))
        value = self._memo.get(key, make)
        assert isinstance(value, Uris)
        return value


def _key(views: list[tuple[str, View]]) -> tuple[tuple[str, int], ...]:
    return tuple((backend, view.version) for backend, view in views)
