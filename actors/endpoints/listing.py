"""What the servers of an endpoint list, as one client sees it, and the naming tables made of it.

A server that the client is connected to is asked over that connection, any other through the catalogue. Tables and
merged lists are shared between clients that see the same lists.

Backends stand in the order of the configuration, and what each lists in the order in which it was known first: a list
whose definitions are the same is the same to the byte (`steady`).
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from msgspec import Raw, Struct

from actors.endpoints.catalogue import NAMED_BY, Consult, Listed, whose
from actors.endpoints.connecting import connect_tool
from actors.endpoints.endpoint import Endpoint
from actors.endpoints.last_known import Key
from actors.endpoints.slow import Whom
from actors.machines.upstream.events import ServerInfo
from actors.protocol import aggregate, capabilities, errors, tasks
from actors.protocol.aggregate import Naming, item_name
from actors.protocol.messages import EMPTY
from actors.protocol.methods import CHANGED, METHODS
from actors.protocol.naming import Names, Uris, build_names, build_uris
from actors.protocol.steady import Items, steady
from actors.protocol.subjects import LISTED
from actors.protocol.table import BackendSpec, Table
from actors.protocol.transport import UNAUTHORIZED
from actors.runtime import EMPTY_SET, EMPTY_TABLE, put, without
from actors.upstreams.messages import UpstreamOutcome
from actors.upstreams.paging import Page, Paging

TOOLS, PROMPTS = "tools/list", "prompts/list"
RESOURCES, TEMPLATES = "resources/list", "resources/templates/list"
LONGEST_KEY = 256
"""Characters of a key by capabilities; a longer one is hashed."""
LONG = 512
"""Items of a list about which rules are not asked twice."""
LOOK_WITHIN = 10.0
"""Seconds that a call waits for the lists on which its name may be."""


class GatherDue(Struct, frozen=True):
    """Those who wait for this list have waited long enough; `looks`: as in `Listing.gather`."""

    method: str
    looks: str


class View(Struct, frozen=True):
    """One backend's list; `version` tells two contents apart."""

    items: Items
    version: int


@dataclass(slots=True)
class _Gathering:
    """`shows`: what is gathered goes to the client at once, so that it need not be told of a change."""

    waiting: set[str]
    done: list[Callable[[], None]]
    shows: bool


class Source:
    """Where the lists of one kind of client come from, and what it may be shown of them. As it is here: for clients
    with a session, in which what is listed keeps its form, and changes are said."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    @property
    def eager(self) -> bool:
        """Whether a list that may be another one is asked for as soon as there is a connection of the client's own."""
        return True

    def modern(self, backend: str) -> bool:
        """Whether lists come over the connection that everybody shares, which keeps what may be kept."""
        return False

    def connected(self, backend: str) -> bool:
        """Whether there is a connection of the client's own that this endpoint does not know yet."""
        return False

    def last_known(self, method: str, backend: str) -> Items | None:
        """The list as it was known last, perhaps before the last start."""
        return self._endpoint.tree.known.items(catalogue_key(self._endpoint, backend), method)

    def fetching(self, method: str, backend: str) -> None:
        """A list is fetched anew."""

    def page(self, method: str, outcome: UpstreamOutcome) -> None:
        """A page of a list came."""

    def learned(self, method: str, backend: str, items: Items) -> None:
        """A list came, whole, over a connection."""

    def visible(self, backend: str, tools: Iterable[Raw], listed: Items) -> Iterable[Raw]:
        """The tools of a server that the client may be shown, in its form; `listed`: all there are."""
        return tools

    def form(self, backends: Iterable[str]) -> tuple[object, ...]:
        """What the form of these servers' tools depends on."""
        return ()

    def hints(self, method: str, backends: Iterable[str]) -> dict[str, object]:
        """What the client is told of a merged list besides its items."""
        return {}


class Listing:
    """The lists of one endpoint for one client. `changed` is called when the client may have been shown another list
    than there is now, `complete` when a list is known as far as it can be."""

    def __init__(
        self, endpoint: Endpoint, source: Source, changed: Callable[[str], None], complete: Callable[[str], None]
    ) -> None:
        self._endpoint = endpoint
        self._source = source
        self._changed = changed
        self._complete = complete
        self._memo = endpoint.tree.memo
        self.views: dict[str, dict[str, View | None]] = {}
        """By method and backend; None: it is not known, though it was asked for."""
        self._failed: dict[tuple[str, str], Raw] = EMPTY_TABLE
        """By method and backend: it was asked for, and can't be had; why, if that is for want of credentials."""
        self._stale: frozenset[tuple[str, str]] = EMPTY_SET
        """Method and backend: it may be another one now."""
        self._fetches: frozenset[tuple[str, str]] = EMPTY_SET
        """Those that are being fetched over a connection."""
        self._connecting: frozenset[tuple[str, str]] = EMPTY_SET
        """Those that are fetched as soon as there is a connection."""
        self._stands_for: frozenset[str] = EMPTY_SET
        """Backends for whose tools one of ours is shown."""
        self._gathering: dict[tuple[str, str], _Gathering] = EMPTY_TABLE
        """By method, and whose list a name is looked for on: a backend's, `*` for all, or that of none."""
        self.tables: tuple[Table, str, Naming] | None = None
        """What `naming` was made last, under which configuration, and of what its client may see."""

    @property
    def backends(self) -> tuple[str, ...]:
        """The servers of the endpoint of which its client may see anything, in order."""
        served = self._endpoint.upstreams.served
        if served is None:
            return ()
        if self._endpoint.services.table.value.policy is None:
            return served.backends
        return tuple(backend for backend in served.backends if self._endpoint.guard.sees(backend))

    @property
    def served(self) -> int:
        """How many servers the endpoint has, for whoever sees all."""
        served = self._endpoint.upstreams.served
        return len(served.backends) if served is not None else 0

    @property
    def busy(self) -> bool:
        """Whether somebody waits for a list."""
        return bool(self._gathering or self._fetches)

    # Fetching

    def gather(self, method: str, done: Callable[[], None], *, looks: str = "") -> None:
        """Brings this list up to date for every backend, as far as that can be done in time; then calls `done`. What is
        to be shown is the last list known, and soon; whoever `looks` for a name (of one backend, or `*`) wants it
        fresh, and can wait longer."""
        running = self._gathering.get((method, looks))
        if running is not None:
            running.done.append(done)
            running.shows = running.shows or not looks
            return
        wanted = [b for b in self.backends if self._wants(method, b)]
        self._gather(wanted, method, done, shows=not looks, looks=looks)

    def refresh(self, method: str, done: Callable[[], None]) -> None:
        """Brings up to date what may be another one now, and what is not known at all; then calls `done`."""
        running = self._gathering.get((method, ""))
        if running is not None:
            running.done.append(lambda: self.refresh(method, done))
            return
        views = self.views.get(method, {})
        wanted = [b for b in self.backends if b not in views or (method, b) in self._stale]
        self._gather(wanted, method, done, shows=False, looks="")

    def _gather(self, wanted: list[str], method: str, done: Callable[[], None], shows: bool, *, looks: str) -> None:
        """What is slow is asked too, but not waited for: its list is announced when it is there."""
        seconds = self._within(looks)
        waiting = {b for b in wanted if self._awaits(b, seconds, looks)}
        if waiting:
            self._gathering = put(self._gathering, (method, looks), _Gathering(waiting, [done], shows))
            self._endpoint.host.ctx.set_timer(("gather", method, looks), seconds, GatherDue(method, looks))
        nobody = not waiting  # what is there at once is taken out of it
        for backend in wanted:
            self._fetch(method, backend, fresh=bool(looks) and (backend == looks or self.worth(backend, seconds)))
        if nobody:
            self._complete(method)
            done()

    def _within(self, looks: str) -> float:
        return LOOK_WITHIN if looks else self._endpoint.services.limits.list_deadline

    def _awaits(self, backend: str, seconds: float, looks: str) -> bool:
        """Whether a list waits for a server; not for others than the one whose name is looked for."""
        if looks not in ("", "*"):
            return backend == looks
        return not self._itself(backend) or self.worth(backend, seconds)

    def worth(self, backend: str, seconds: float) -> bool:
        """Whether to wait so long for a server."""
        slow, now = self._endpoint.tree.slow, self._endpoint.host.ctx.now()
        return slow.nobody(now) or slow.worth(self._whom(backend), seconds, now)

    def _late(self, backend: str, seconds: float) -> None:
        """A server was waited for so long in vain."""
        self._endpoint.tree.slow.late(self._whom(backend), seconds, self._endpoint.host.ctx.now())

    def _answered(self, backend: str) -> None:
        """A server is heard of again, or is another one; whoever found it slow had perhaps no connection yet."""
        slow = self._endpoint.tree.slow
        if not slow.nobody(self._endpoint.host.ctx.now()):
            slow.answered(self._whom(backend), whose(catalogue_key(self._endpoint, backend)))

    def _whom(self, backend: str) -> Whom:
        """Who is slow if this server is, to this principal: over a connection of the client's own it may be busy with
        what the client wants of it, which says nothing of others."""
        endpoint = self._endpoint
        whom = whose(catalogue_key(endpoint, backend))
        upstream = endpoint.upstreams.connections.get(backend) if endpoint.lists_itself(backend) else None
        return whom if upstream is None else (whom[0], upstream)

    def _itself(self, backend: str) -> bool:
        """Whether it is asked from here: the catalogue has its own deadline, and always answers."""
        return self._endpoint.lists_itself(backend) or self._source.modern(backend) or self._source.connected(backend)

    def _wants(self, method: str, backend: str) -> bool:
        """The catalogue is always asked, for it knows what is stale, and so is a connection that everybody shares; the
        list of a connection of the client's own is good until the server says that it has changed."""
        if not self._endpoint.lists_itself(backend) or self._source.modern(backend):
            return True
        return self._view(method, backend) is None or (method, backend) in self._stale

    def _fetch(self, method: str, backend: str, *, fresh: bool) -> None:
        if self._endpoint.lists_itself(backend):
            self._source.fetching(method, backend)
            self._fetch_own(method, backend)
        elif self._itself(backend):
            self._connect(method, backend, fresh=fresh)
        else:
            self._consult(method, backend, fresh=fresh)

    def _consult(self, method: str, backend: str, *, fresh: bool) -> None:
        endpoint = self._endpoint
        self._source.fetching(method, backend)
        spec, key = endpoint.services.table.value.backends.get(backend), catalogue_key(endpoint, backend)
        rights = endpoint.upstreams.own_rights(backend)
        if spec is None or not endpoint.tree.catalogue.reply(
            Consult(endpoint.host.ctx.ref, key, endpoint.profile(spec), method, fresh, rights)
        ):
            self._arrived(method, backend, None, failed=EMPTY)

    def _connect(self, method: str, backend: str, *, fresh: bool) -> None:
        """It is fetched as soon as there is a connection; until then the last list known is shown."""
        key = (method, backend)

        def ready(server_info: ServerInfo | None, error: Raw) -> None:
            self._connecting = without(self._connecting, key)
            if server_info is not None:
                self._fetch(method, backend, fresh=fresh)
            elif self._source.modern(backend):
                self._arrived(method, backend, None, failed=error)
            else:
                self._consult(method, backend, fresh=fresh)

        if not fresh and not self._source.connected(backend):
            view = self._view(method, backend)
            last = view.items if view is not None else self._source.last_known(method, backend)
            if last is not None:
                self._arrived(method, backend, last)  # what is different from it is announced when it is there
        if key not in self._connecting:
            self._connecting |= {key}
            self._endpoint.upstreams.when_ready(backend, ready)

    def _fetch_own(self, method: str, backend: str) -> None:
        """Over a connection that is there, one fetch of a list at a time."""
        upstreams, key = self._endpoint.upstreams, (method, backend)
        if key in self._fetches:
            return
        self._stale = without(self._stale, key)
        if not capabilities.allows(capabilities.parse(upstreams.server_infos[backend].capabilities), method):
            self._arrived(method, backend, ())
            return
        self._fetches |= {key}

        def ask(params: Raw, page: Page) -> None:
            def came(outcome: UpstreamOutcome) -> None:
                self._source.page(method, outcome)
                page(outcome.ok, outcome.payload)

            if not upstreams.own_call(backend, method, params, came):
                done(None, Raw(b"null"))

        def done(items: Items | None, error: Raw) -> None:
            self._fetches = without(self._fetches, key)
            overtaken = key in self._stale  # while the pages came
            if error:
                self._stale |= {key}
                items = items if self._view(method, backend) is None else None
            if items is not None:
                items = self._as_known(method, backend, items)
            self._arrived(method, backend, items, failed=error if items is None else None)
            view = self._view(method, backend)
            if not error and view is not None:
                self._answered(backend)
                self._source.learned(method, backend, view.items)
            if overtaken:
                self._changed(method)

        Paging(METHODS[method].items or "", ask, done).start()

    def _as_known(self, method: str, backend: str, items: Items) -> Items:
        """What comes over the session's own connection, in the order in which it is known: the client may have been
        given it in an earlier life of its session, and others are given it by the catalogue."""
        if self._view(method, backend) is not None:
            return items
        last = self._source.last_known(method, backend)
        return steady(last, items, NAMED_BY[method]) if last is not None else items

    def listed(self, message: Listed) -> None:
        """The catalogue's answer."""
        self._stale = without(self._stale, (message.method, message.backend))
        failed = message.error if message.items is None and not message.pending else None
        self._arrived(message.method, message.backend, message.items, failed=failed)

    def _arrived(self, method: str, backend: str, items: Items | None, *, failed: Raw | None = None) -> None:
        """`failed`: it can't be had, and why."""
        if failed is not None:
            self._failed = put(self._failed, (method, backend), errors.kept(failed, UNAUTHORIZED))
        else:
            self._failed.pop((method, backend), None)
            self._failed = self._failed or EMPTY_TABLE
        items = self._before_account(method, backend, items)
        awaited = [k for k, gathering in self._gathering.items() if k[0] == method and backend in gathering.waiting]
        if self._take(method, backend, items) and not any(self._gathering[key].shows for key in awaited):
            self._changed(method)
        for _, looks in awaited:
            self._gathered(method, backend, looks=looks)

    def _before_account(self, method: str, backend: str, items: Items | None) -> Items | None:
        """What is shown of a server that lists nothing without an account: what is known of it, else what of it was
        accepted, else a tool of ours in the place of its tools."""
        if items is None and self._endpoint.connecting.lacks(backend):
            ours = method == TOOLS and backend in self._stands_for
            if self._view(method, backend) is not None and not ours:
                return None
            spec = self._endpoint.services.table.value.backends.get(backend)
            items = tuple(spec.pins.lists.get(method, ())) if spec is not None and spec.pins is not None else ()
            if method == TOOLS and not items:
                self._stands_for |= {backend}
                return (connect_tool(backend),)
            items = items or None
        if items is not None and method == TOOLS:
            self._stands_for = without(self._stands_for, backend)
        return items

    def stands_for(self, backend: str) -> bool:
        """Whether a tool of ours is listed for this server."""
        return backend in self._stands_for

    def _gathered(self, method: str, backend: str, *, looks: str) -> None:
        """This one is waited for no more."""
        gathering = self._gathering.get((method, looks))
        if gathering is None or backend not in gathering.waiting:
            return
        gathering.waiting.discard(backend)
        if not gathering.waiting:
            del self._gathering[method, looks]
            self._gathering = self._gathering or EMPTY_TABLE
            self._endpoint.host.ctx.cancel_timer(("gather", method, looks))
            self._complete(method)
            for done in gathering.done:
                done()

    def _take(self, method: str, backend: str, items: Items | None) -> bool:
        """Keeps a list; True if it is another than the client can have been shown."""
        views = self.views.setdefault(method, {})
        known, before = backend in views, views.get(backend)
        if items is None:
            views.setdefault(backend, None)
            return False
        view = View(items, self._memo.version(items))
        if before is not None:
            view = self._steady(method, before, view)
            if before.version == view.version:
                return False
        views[backend] = view
        self.tables = None
        return known

    def _steady(self, method: str, before: View, fetched: View) -> View:
        if before.version == fetched.version:
            return before

        def make() -> View:
            items = steady(before.items, fetched.items, NAMED_BY[method])
            return View(items, self._memo.version(items))

        value = self._memo.get(("steady", method, before.version, fetched.version), make, [fetched.items])
        assert isinstance(value, View)
        return value

    def gather_due(self, method: str, *, looks: str) -> None:
        """A slow backend does not hold the others up: what is known counts."""
        gathering = self._gathering.get((method, looks))
        views = self.views.setdefault(method, {})
        for backend in list(gathering.waiting) if gathering is not None else ():
            if looks or self._itself(backend):
                self._late(backend, self._within(looks))
            views.setdefault(backend, None)
            self._gathered(method, backend, looks=looks)

    def connected(self, backend: str) -> None:
        """The client has its own connection: it may list other things than the catalogue knew."""
        self.outdate(backend)
        if self._source.modern(backend) or self._source.eager:
            for method in [m for m, b in self._stale if b == backend]:
                self._fetch_own(method, backend)

    def outdate(self, backend: str) -> None:
        """What this server lists may be something else now."""
        for method, views in self.views.items():
            if backend in views:
                self._stale |= {(method, backend)}

    def changed(self, backend: str, notification: str) -> None:
        """The backend said so, or the catalogue has found out."""
        for method, views in self.views.items():
            if CHANGED[method] == notification and backend in views:
                self._stale |= {(method, backend)}

    def forget(self, backends: Collection[str]) -> None:
        """These are no more, or are other servers now."""
        for backend in backends:
            self._answered(backend)
            for views in self.views.values():
                views.pop(backend, None)
        self._failed = {key: why for key, why in self._failed.items() if key[1] not in backends} or EMPTY_TABLE
        self.tables = None

    def shrink(self) -> None:
        """Nobody was heard for a while: what the catalogue knows can be had again. What came over a connection of the
        session's own stays as its client was given it."""
        for method, views in self.views.items():
            self.views[method] = {b: v for b, v in views.items() if v is not None and self._endpoint.lists_itself(b)}
        self.tables = None

    # Looking

    def hopeless(self, method: str) -> bool:
        """Whether nothing is known, and every backend was asked in vain: that is an error, and no empty list."""
        backends = self.backends
        return (
            bool(backends)
            and all((method, b) in self._failed for b in self.silent(method))
            and not any(self._present(method))
        )

    def missing(self, method: str) -> dict[str, str]:
        """The backends whose list is not known, and whether it is `pending` or its fetch `failed`."""
        return {b: "failed" if (method, b) in self._failed else "pending" for b in self.silent(method)}

    def unauthorized(self, method: str, backend: str) -> Raw | None:
        """The error that says so, if the list can't be had since the server takes none of our credentials."""
        return self._failed.get((method, backend)) or None

    def differs(self, method: str, backend: str, items: Items) -> bool:
        """Whether this server's list, which is known, has other items than these."""
        view = self._view(method, backend)
        return view is not None and Counter(map(bytes, view.items)) != Counter(map(bytes, items))

    def silent(self, method: str) -> list[str]:
        """The backends whose list is not known, though it was asked for."""
        views = self.views.get(method, {})
        return [b for b in self.backends if views.get(b) is None]

    def merged(self, method: str) -> list[Raw]:
        """The items of all backends, in their order, under their exposed names."""
        views, naming = self._present(method), self.naming
        items = (view.items for _, view in views)
        value = self._memo.get(self._key("merged", method, views), lambda: self._merge(method, views, naming), items)
        assert isinstance(value, list)
        return value

    def digest(self, method: str) -> str:
        """A short digest of the merged list."""
        items = self.merged(method)
        value = self._memo.get(self._key("digest", method, self._present(method)), lambda: hash_of(items))
        assert isinstance(value, str)
        return value

    def _merge(self, method: str, views: list[tuple[str, View]], naming: Naming) -> list[Raw]:
        exposed: dict[str, Raw] = {}
        for backend, view in views:
            for item in aggregate.expose_items(method, backend, self._visible(method, backend, view), naming):
                # Of two things with one name the first one counts: the tables resolve it to that one.
                exposed.setdefault(item_name(item, NAMED_BY[method]) or "", item)
        return list(exposed.values())

    def _visible(self, method: str, backend: str, view: View) -> Iterable[Raw]:
        spec = self._endpoint.services.table.value.backends.get(backend)
        kind, items = LISTED[method], view.items
        if spec is not None and spec.pins is not None and backend in self._stands_for and method == TOOLS:
            spec = replace(spec, pins=None)  # the tool is ours
        if spec is not None and self._endpoint.guard.hides(spec, kind):
            items = self._allowed(spec, method, view)
        if method != TOOLS:
            return items
        shared = spec is not None and spec.common
        return self._source.visible(backend, map(tasks.untasked, items) if shared else items, view.items)

    def _allowed(self, spec: BackendSpec, method: str, view: View) -> Items:
        """What of a list may be seen. Of a long one that is found out once for the tables, the merged list, and all who
        see the same; what pins make of it depends on more than is asked here."""
        endpoint = self._endpoint

        def make() -> Items:
            return tuple(endpoint.guard.visible(spec, LISTED[method], view.items, NAMED_BY[method], whole=True))

        if len(view.items) < LONG or spec.pins is not None:
            return make()
        key = ("allowed", endpoint.services.table.value.digest, endpoint.guard.key, method, spec.name, view.version)
        value = endpoint.tree.memo.get(key, make, [view.items])
        assert isinstance(value, tuple)
        return value

    def _view(self, method: str, backend: str) -> View | None:
        return self.views.get(method, {}).get(backend)

    def _present(self, method: str) -> list[tuple[str, View]]:
        views = self.views.get(method, {})
        return [(b, v) for b in self.backends if (v := views.get(b)) is not None]

    @property
    def naming(self) -> Naming:
        """The tables over everything that is known."""
        table = self._endpoint.services.table.value
        key = "" if table.policy is None else self._endpoint.guard.key
        if self.tables is None or self.tables[0] is not table or self.tables[1] != key:
            self.tables = (table, key, Naming(self._names(TOOLS), self._names(PROMPTS), self._uris()))
        return self.tables[2]

    def _names(self, method: str) -> Names:
        views = self._present(method)
        table = self._endpoint.services.table.value
        separator, configured = table.separator, (*table.backends, *self.backends)

        def make() -> Names:
            lists = [(b, [n for i in self._visible(method, b, v) if (n := item_name(i))]) for b, v in views]
            return build_names(lists, separator, configured)

        value = self._memo.get(self._key("names", method, views), make, (view.items for _, view in views))
        assert isinstance(value, Names)
        return value

    def _uris(self) -> Uris:
        views = [(m, b, v) for m in (RESOURCES, TEMPLATES) for b, v in self._present(m)]

        def make() -> Uris:
            lists = [(b, [u for i in self._visible(m, b, v) if (u := item_name(i, NAMED_BY[m]))]) for m, b, v in views]
            # The beginnings of URIs are those of all servers: nobody's resources are called otherwise for his rights.
            return build_uris(served.backends if served is not None else (), lists)

        endpoint = self._endpoint
        served, table = endpoint.upstreams.served, endpoint.services.table.value
        seen = "" if table.policy is None else endpoint.guard.key
        key = ("uris", endpoint.name, table.digest, seen, *((m, b, v.version) for m, b, v in views))
        value = self._memo.get(key, make, (view.items for _, _, view in views))
        assert isinstance(value, Uris)
        return value

    def _key(self, what: str, method: str, views: list[tuple[str, View]]) -> tuple[object, ...]:
        """What a value is made of: the endpoint as it is configured, and the content of each list."""
        endpoint = self._endpoint
        form, table = self._source.form([b for b, _ in views]), endpoint.services.table.value
        seen = "" if table.policy is None else endpoint.guard.key
        return (*form, what, endpoint.name, table.digest, seen, method, *((b, v.version) for b, v in views))


def catalogue_key(endpoint: Endpoint, backend: str) -> Key:
    """Whose view of a server a client sees; all share that of a connection that is configured as shared. (On a modern
    one, which everybody shares too, each is told of the client for whom it is asked.) Who comes with other rights has
    another view of a server that knows them."""
    spec = endpoint.services.table.value.backends.get(backend)
    if spec is not None and spec.sharing == "shared" and not spec.personal:
        return Key("", "", backend)
    bits = "" if spec is not None and spec.common else capabilities.bits_key(endpoint.bits)
    if len(bits) > LONGEST_KEY:  # settings of extensions are as long as the client likes
        bits = hashlib.sha256(bits.encode()).hexdigest()
    if spec is not None and spec.exchanged:
        bits = f"{bits} {endpoint.host.rights.digest}"
    return Key(endpoint.host.principal.name, bits, backend)


def hash_of(items: list[Raw]) -> str:
    """A short digest of a list's content, the same in every process."""
    digest = hashlib.sha256()
    for item in items:
        digest.update(b"%d," % len(item))
        digest.update(item)
    return digest.hexdigest()[:16]
