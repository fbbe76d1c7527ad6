"""What the backends of an aggregate list, as one session sees it, and the naming tables made of it.

A backend that the session is connected to is asked over that connection, any other through the catalogue. Tables and
merged lists are shared between sessions that see the same lists.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Raw

from actors.fronts.catalogue_messages import LIST_CHANGED, Consult, Listed
from actors.fronts.filters import filtered, shown
from actors.fronts.memo import Memo
from actors.links.paging import Items, Page, Paging
from actors.protocol import aggregate, capabilities, tasks
from actors.protocol.aggregate import Naming, item_name
from actors.protocol.methods import METHODS
from actors.protocol.naming import Names, Uris, build_names, build_uris
from actors.protocol.table import Table

if TYPE_CHECKING:
    from actors.fronts.aggregate import Aggregate

TOOLS, PROMPTS = "tools/list", "prompts/list"
RESOURCES, TEMPLATES = "resources/list", "resources/templates/list"
NAMED_BY = {TOOLS: "name", PROMPTS: "name", RESOURCES: "uri", TEMPLATES: "uriTemplate"}
"""The member that tells two items of a list apart."""

GRACE = 0.1
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
    """`shows`: what is gathered goes to the client at once, so that it need not be told of a change. `fresh`: the last
    list known is not good enough."""

    waiting: set[str]
    done: list[Callable[[], None]]
    shows: bool
    fresh: bool


@dataclass(slots=True)
class _Own:
    """A list that is being fetched over the session's own connection. `told`: that it has changed was announced before;
    `slow`: the list deadline has passed."""

    told: bool
    slow: bool = False


class Listing:
    """The lists of one session."""

    def __init__(self, front: "Aggregate", memo: Memo) -> None:
        self._front = front
        self._memo = memo
        self._views: dict[str, dict[str, View | None]] = {}
        self._stale: dict[tuple[str, str], bool] = {}
        """Method and backend → whether that was announced."""
        self._fetches: dict[tuple[str, str], _Own] = {}
        self._gathering: dict[str, _Gathering] = {}
        self._naming: tuple[Table, Naming] | None = None

    @property
    def busy(self) -> bool:
        """Whether somebody waits for a list."""
        return bool(self._gathering or self._fetches)

    # Fetching

    def gather(self, method: str, done: Callable[[], None], *, shows: bool) -> None:
        """Brings this list up to date for every backend, as far as that can be done in time; then calls `done`. What is
        to be shown is the last list known; whoever looks for something wants it fresh."""
        running = self._gathering.get(method)
        if running is not None and not shows and not running.fresh:
            running.done.append(lambda: self.gather(method, done, shows=False))
            return
        if running is not None:
            running.done.append(done)
            running.shows = running.shows or shows
            return
        wanted = [b for b in self._front.backends if self._wants(method, b)]
        if not wanted:
            done()
            return
        self._gathering[method] = _Gathering(set(wanted), [done], shows, fresh=not shows)
        seconds = self._front.services.limits.list_deadline
        self._front.host.ctx.set_timer(("gather", method), seconds + GRACE, GatherDue(method))
        for backend in wanted:
            self._fetch(method, backend, fresh=not shows)

    def _wants(self, method: str, backend: str) -> bool:
        """The catalogue is always asked, for it knows what is stale; an own connection says so itself."""
        if not self._front.lists_itself(backend):
            return True
        running = self._fetches.get((method, backend))
        if running is not None and running.slow:
            return False
        return self._views.get(method, {}).get(backend) is None or (method, backend) in self._stale

    def _fetch(self, method: str, backend: str, *, fresh: bool) -> None:
        front = self._front
        spec = front.table.backends.get(backend)
        if front.lists_itself(backend):
            self._fetch_own(method, backend)
        elif spec is None or not front.tree.catalogue.reply(
            Consult(front.host.ctx.ref, front.catalogue_key(backend), front.profile(spec), method, fresh)
        ):
            self._arrived(method, backend, None, told=False)

    def _fetch_own(self, method: str, backend: str) -> None:
        """Over the session's own connection, one fetch of a list at a time."""
        front, key = self._front, (method, backend)
        if key in self._fetches:
            return
        told = self._stale.pop(key, False)
        if not capabilities.allows(capabilities.parse(front.hellos[backend].capabilities), method):
            self._arrived(method, backend, (), told=told)
            return
        own = self._fetches[key] = _Own(told)

        def ask(params: Raw, page: Page) -> None:
            if not front.own_call(backend, method, params, lambda out: page(out.ok, out.payload)):
                done(None, Raw(b"null"))

        def done(items: Items | None, error: Raw) -> None:
            self._fetches.pop(key, None)
            changed = key in self._stale  # while the pages came
            if error:
                self._stale.setdefault(key, own.told)
                items = items if self._views.get(method, {}).get(backend) is None else None
            self._arrived(method, backend, items, told=own.told)
            if changed:
                front.list_changed(method)

        Paging(METHODS[method].items or "", ask, done).start()

    def listed(self, message: Listed) -> None:
        """The catalogue's answer."""
        told = self._stale.pop((message.method, message.backend), False)
        self._arrived(message.method, message.backend, message.items, told=told)

    def _arrived(self, method: str, backend: str, items: Items | None, *, told: bool) -> None:
        gathering = self._gathering.get(method)
        awaited = gathering is not None and backend in gathering.waiting
        changed = self._take(method, backend, items)
        if changed and not told and not (awaited and gathering is not None and gathering.shows):
            self._front.list_changed(method)
        if gathering is None or not awaited:
            return
        gathering.waiting.discard(backend)
        if not gathering.waiting:
            del self._gathering[method]
            self._front.host.ctx.cancel_timer(("gather", method))
            for done in gathering.done:
                done()

    def _take(self, method: str, backend: str, items: Items | None) -> bool:
        """Keeps a list; True if it is another than the client can have been shown."""
        views = self._views.setdefault(method, {})
        known, before = backend in views, views.get(backend)
        if items is None:
            views.setdefault(backend, None)
            return False
        view = View(items, self._memo.version(items))
        if before is not None and before.version == view.version:
            return False
        views[backend] = view
        self._naming = None
        return known

    def gather_due(self, method: str) -> None:
        """A slow backend does not hold the others up: what is known counts."""
        gathering = self._gathering.get(method)
        for backend in list(gathering.waiting) if gathering is not None else ():
            running = self._fetches.get((method, backend))
            if running is not None:
                running.slow = True
            self._arrived(method, backend, None, told=False)

    def connected(self, backend: str) -> None:
        """The session has its own connection now: it may list other things than the catalogue knew."""
        self._outdate(backend)
        for method in [m for m, b in self._stale if b == backend]:
            self._fetch_own(method, backend)

    def _outdate(self, backend: str) -> None:
        for method, views in self._views.items():
            if backend in views:
                self._stale.setdefault((method, backend), False)

    def changed(self, backend: str, notification: str) -> None:
        """The backend said so, and it is being announced."""
        for method, views in self._views.items():
            if LIST_CHANGED[method] == notification and backend in views:
                self._stale[method, backend] = True

    def forget(self, backends: Iterable[str]) -> None:
        """These are no more, or are other servers now."""
        for backend in backends:
            for views in self._views.values():
                views.pop(backend, None)
        self._naming = None

    # Looking

    def known(self, method: str) -> bool:
        """Whether any backend's list is known: if none is, that is an error, not an empty list."""
        views = self._views.get(method, {})
        return not self._front.backends or any(views.get(b) is not None for b in self._front.backends)

    def silent(self, method: str) -> list[str]:
        """The backends whose list is not known, though it was asked for."""
        views = self._views.get(method, {})
        return [b for b in self._front.backends if views.get(b) is None]

    def merged(self, method: str) -> list[Raw]:
        """The items of all backends, in their order, under their exposed names."""
        views, naming = self._present(method), self.naming
        value = self._memo.get(self._key("merged", method, views), lambda: self._merge(method, views, naming))
        assert isinstance(value, list)
        return value

    def _merge(self, method: str, views: list[tuple[str, View]], naming: Naming) -> list[Raw]:
        exposed: dict[str, Raw] = {}
        for backend, view in views:
            for item in aggregate.expose_items(method, backend, self._visible(method, backend, view), naming):
                # Of two things with one name the first one counts: the tables resolve it to that one.
                exposed.setdefault(item_name(item, NAMED_BY[method]) or "", item)
        return list(exposed.values())

    def _visible(self, method: str, backend: str, view: View) -> Iterable[Raw]:
        spec = self._front.table.backends.get(backend)
        if spec is None or method != TOOLS:
            return view.items
        items = [tasks.untasked(tool) for tool in view.items] if spec.sharing == "shared" else view.items
        return (item for item in items if shown(spec, item_name(item) or "")) if filtered(spec) else items

    def _present(self, method: str) -> list[tuple[str, View]]:
        views = self._views.get(method, {})
        return [(b, v) for b in self._front.backends if (v := views.get(b)) is not None]

    @property
    def naming(self) -> Naming:
        """The tables over everything that is known."""
        table = self._front.table
        if self._naming is None or self._naming[0] is not table:
            self._naming = (table, Naming(self._names(TOOLS), self._names(PROMPTS), self._uris()))
        return self._naming[1]

    def _names(self, method: str) -> Names:
        views = self._present(method)
        separator, configured = self._front.table.separator, (*self._front.table.backends, *self._front.backends)

        def make() -> Names:
            lists = [(b, [n for i in self._visible(method, b, v) if (n := item_name(i))]) for b, v in views]
            return build_names(lists, separator, configured)

        value = self._memo.get(self._key("names", method, views), make)
        assert isinstance(value, Names)
        return value

    def _uris(self) -> Uris:
        views = [(m, b, v) for m in (RESOURCES, TEMPLATES) for b, v in self._present(m)]

        def make() -> Uris:
            lists = [(b, [u for i in v.items if (u := item_name(i, NAMED_BY[m]))]) for m, b, v in views]
            return build_uris(self._front.backends, lists)

        key = ("uris", self._front.endpoint, self._front.table.digest, *((m, b, v.version) for m, b, v in views))
        value = self._memo.get(key, make)
        assert isinstance(value, Uris)
        return value

    def _key(self, what: str, method: str, views: list[tuple[str, View]]) -> tuple[object, ...]:
        """What a value is made of: the endpoint as it is configured, and the content of each list."""
        front = self._front
        return (what, front.endpoint, front.table.digest, method, *((b, v.version) for b, v in views))
