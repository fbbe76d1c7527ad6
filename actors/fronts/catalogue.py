"""The catalogue: the last known lists of every backend, by (principal, client capabilities, backend).

Merged lists are answered from here, so that a session which only looks around needs no connection of its own. The
catalogue fetches over a link of its own, at most one per key, once for all who wait; it hears what changes while that
link is up, and closes it when nobody has asked for a while. A backend that is away keeps its last list.

Nobody waits longer than the list deadline, and for a backend that was slower than that nobody waits again for a while:
what is known is the answer, and what comes in the end is announced. A list that somebody had to do without is fetched
until it is there.
"""

from collections import OrderedDict
from typing import Any

from msgspec import Raw

from actors.fronts.catalogue_entry import Entry, Fetch, Known
from actors.fronts.catalogue_messages import (
    LIST_CHANGED,
    Again,
    CatalogueChanged,
    Consult,
    GiveUp,
    IdleLink,
    Key,
    Listed,
    Overdue,
)
from actors.fronts.host import Tree
from actors.fronts.sessionless import ATTEMPTS
from actors.links.link_messages import (
    Call,
    Cancel,
    GiveAnswer,
    Join,
    Leave,
    LinkAsked,
    LinkDown,
    LinkOutcome,
    LinkReady,
    LinkTold,
    LinkUnfit,
    Warm,
)
from actors.links.links import start_list_link
from actors.links.paging import Items, Page, Paging
from actors.protocol import breaker, errors
from actors.protocol.link_state import Profile
from actors.protocol.messages import RequestId
from actors.protocol.methods import METHODS
from actors.protocol.table_change import Replaced, replaced
from actors.runtime import Actor, AtCapacity, Down, DynamicSupervisor, Ref, SystemClosed
from actors.services import Services

SLOW_FOR = 60.0
"""Seconds for which nobody waits for a list after one that was too slow."""
MAX_ENTRIES = 1024
"""Keys kept; the least recently used one goes first."""
MAX_BYTES = 256 * 1024 * 1024
"""Of all lists kept; the same."""
MAX_LINKS = 64
"""Connections kept; the least recently used one closes first."""


class Catalogue(Actor):
    """Permanent; what it forgets in a crash it fetches again."""

    mailbox_size = 8192

    def __init__(self, services: Services, links: DynamicSupervisor, tree: Tree) -> None:
        self._hellos = tree.hellos
        self._changes = tree.changes
        self._eras = tree.eras
        self._services = services
        self._links = links
        self._backends = tree.backends
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self._fetches: dict[int, Fetch] = {}
        self._next_call = 1
        self._bytes = 0
        self._by_link: dict[Ref, Key] = {}
        self._watching: dict[Ref, set[Key]] = {}

    def receive(self, message: Any) -> None:
        match message:
            case Consult() as consult:
                self._consult(consult)
            case LinkOutcome(_, call, ok, payload):
                fetch = self._fetches.pop(call, None)
                if fetch is not None:
                    fetch.page(ok, payload)
            case Overdue(key, method):
                self._overdue(key, method)
            case GiveUp(key, method):
                self._give_up(key, method)
            case Again(key, method):
                self._again(key, method)
            case IdleLink(key):
                self._close_idle(key)
            case LinkReady() | LinkDown() | LinkTold() | LinkUnfit():
                self._from_link(message)
            case Replaced(before):
                self._replaced(replaced(before, self._services.table.value))
            case LinkAsked(link=link, id=id):
                self._refuse(link, id)
            case Down(ref=ref):
                self._down(ref)

    # Questions

    def _consult(self, consult: Consult) -> None:
        key, method = consult.key, consult.method
        entry = self._entry(key, consult.profile)
        self._watch(consult.caller, key, entry)
        wanted = entry.lists.setdefault(method, Known())
        if wanted.heard != self._changes[key.backend, LIST_CHANGED[method]]:
            wanted.stale = True
        if wanted.current or (wanted.presentable and not consult.fresh):
            consult.caller.reply(Listed(key.backend, method, wanted.items))
            if not wanted.current:
                self._fetch(key, entry, method, wanted)  # what is different is announced
            self._used(key, entry)
            return
        wanted.waiting.append(consult.caller)
        if len(wanted.waiting) == 1:
            slow = self.ctx.now() < wanted.slow
            seconds = 0.0 if slow else self._services.limits.list_deadline
            self.ctx.set_timer(("overdue", key, method), seconds, Overdue(key, method))
        self._fetch(key, entry, method, wanted)

    def _entry(self, key: Key, profile: Profile) -> Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = Entry(profile)
            if len(self._entries) > MAX_ENTRIES:
                self._forget(next(iter(self._entries)))
        self._entries.move_to_end(key)
        return entry

    def _forget(self, key: Key) -> None:
        entry = self._entries[key]
        for method, wanted in entry.lists.items():
            self._end_fetch(key, entry, method, wanted)
            self._answer(key, method, wanted)
            self.ctx.cancel_timer(("again", key, method))
            self._bytes -= wanted.size
        self._close_link(key, entry)
        for watcher in entry.watchers:
            self._unwatch(watcher, key)
        del self._entries[key]
        self._hellos.pop(key, None)

    def _replaced(self, backends: frozenset[str]) -> None:
        """They are no more, or are other servers now: nothing that is known of them counts."""
        for key in [k for k in self._entries if k.backend in backends]:
            for wanted in self._entries[key].lists.values():
                self._keep(wanted, ())
                wanted.items = None
            self._forget(key)

    def _fetch(self, key: Key, entry: Entry, method: str, wanted: Known) -> None:
        if wanted.fetching:
            return
        link = self._link(key, entry)
        if link is None:
            self._answer(key, method, wanted)
            return
        wanted.fetching, wanted.news = True, not wanted.announced
        self.ctx.set_timer(("fetch", key, method), self._fetch_deadline(key), GiveUp(key, method))
        if entry.ready:
            self._ask(key, entry, method, wanted)
        else:
            link.reply(Warm())

    def _ask(self, key: Key, entry: Entry, method: str, wanted: Known) -> None:
        """The connection is up: a list that the backend does not declare is not asked for."""
        link, caller = entry.link, self.ctx.ref
        assert link is not None
        wanted.stale, wanted.news, wanted.announced = False, not wanted.announced, False
        wanted.heard = self._changes[key.backend, LIST_CHANGED[method]]
        if not entry.offers(method):
            self._fetched(key, entry, method, ())
            return

        def ask(params: Raw, page: Page) -> None:
            call = wanted.call = self._next_call
            self._next_call += 1
            self._fetches[call] = Fetch(key, method, page)
            link.reply(Call(caller, call, method, params, client=entry.caller))

        def done(items: Items | None, error: Raw) -> None:
            if error and wanted.items is not None:
                items = None  # a part is no better than the whole that is known
            self._fetched(key, entry, method, items)
            wanted.stale = wanted.stale or bool(error)

        Paging(METHODS[method].items or "", ask, done).start()

    def _fetch_deadline(self, key: Key) -> float:
        spec = self._services.table.value.backends.get(key.backend)
        longest = self._services.limits.request_deadline
        return min(longest, spec.timeout) if spec is not None else longest

    def _fetched(self, key: Key, entry: Entry, method: str, items: Items | None) -> None:
        wanted = entry.lists[method]
        self._end_fetch(key, entry, method, wanted)
        changed = wanted.stale and items is not None  # while the pages came
        if items is None:
            wanted.stale, wanted.announced = True, wanted.announced or not wanted.news
        else:
            announce = wanted.missed or (wanted.news and wanted.items is not None and wanted.items != items)
            self._keep(wanted, items)
            wanted.slow, wanted.missed, wanted.attempt = 0.0, False, 0
            self.ctx.cancel_timer(("again", key, method))
            if announce:
                self._announce(entry, key, LIST_CHANGED[method], wanted.waiting)
        self._answer(key, method, wanted)
        self._used(key, entry)
        if changed:
            self._announce(entry, key, LIST_CHANGED[method])
        while self._bytes > MAX_BYTES and len(self._entries) > 1:
            self._forget(next(iter(self._entries)))

    def _keep(self, wanted: Known, items: Items) -> None:
        self._bytes -= wanted.size
        wanted.items = items
        self._bytes += wanted.size

    def _end_fetch(self, key: Key, entry: Entry, method: str, wanted: Known) -> None:
        """It is over, or nobody waits for it any more."""
        self.ctx.cancel_timer(("fetch", key, method))
        wanted.fetching = False
        call, wanted.call = wanted.call, None
        if call is not None and self._fetches.pop(call, None) is not None and entry.link is not None:
            entry.link.reply(Cancel(self.ctx.ref, call, "deadline exceeded"))

    def _answer(self, key: Key, method: str, wanted: Known) -> None:
        """Whoever waits gets what is known. What somebody had to do without is fetched again, until it is there."""
        self.ctx.cancel_timer(("overdue", key, method))
        waiting, wanted.waiting = wanted.waiting, []
        for caller in waiting:
            caller.reply(Listed(key.backend, method, wanted.items))
        wanted.missed = wanted.missed or (wanted.items is None and bool(waiting))
        if wanted.missed and not wanted.fetching:
            wanted.attempt += 1
            seconds = breaker.delay(wanted.attempt, self._services.jitter())
            self.ctx.set_timer(("again", key, method), seconds, Again(key, method))

    def _again(self, key: Key, method: str) -> None:
        entry = self._entries.get(key)
        if entry is not None and entry.watchers and entry.lists[method].missed:
            self._fetch(key, entry, method, entry.lists[method])

    def _overdue(self, key: Key, method: str) -> None:
        """A slow backend never delays the others: the fetch goes on, and what comes of it is announced."""
        entry = self._entries.get(key)
        if entry is not None:
            wanted = entry.lists[method]
            if wanted.slow <= self.ctx.now():
                wanted.slow = self.ctx.now() + SLOW_FOR
            self._answer(key, method, wanted)

    def _give_up(self, key: Key, method: str) -> None:
        """A request that is never answered must not be the last one."""
        entry = self._entries.get(key)
        if entry is not None:
            self._fetched(key, entry, method, None)

    # Links

    def _link(self, key: Key, entry: Entry) -> Ref | None:
        if entry.link is not None and entry.link.alive:
            return entry.link
        spec = self._services.table.value.backends.get(key.backend)
        if spec is None:
            return None
        if entry.link is not None:
            self._lost(entry.link)
        self._make_room()
        services, registry = self._services, self.ctx.system.registry
        try:
            link = start_list_link(spec, entry.profile, services, self._backends, self._eras, registry, self._links)
        except (AtCapacity, SystemClosed):
            return None
        entry.link = link
        self._by_link[link] = key
        self.ctx.monitor(link)
        link.reply(Join(self.ctx.ref))
        return link

    def _make_room(self) -> None:
        """Views come and go with what clients say of themselves; the connections behind them are bounded."""
        if len(self._by_link) < MAX_LINKS:
            return
        for key, entry in self._entries.items():
            if entry.link is not None and not entry.fetching:
                self._close_link(key, entry)
                return

    def _used(self, key: Key, entry: Entry) -> None:
        if entry.link is not None:
            self.ctx.set_timer(("idle", key), self._services.limits.link_idle, IdleLink(key))

    def _close_idle(self, key: Key) -> None:
        entry = self._entries.get(key)
        if entry is not None and not entry.fetching:
            self._close_link(key, entry)

    def _close_link(self, key: Key, entry: Entry) -> None:
        """From here on nobody listens to this backend: what it lists may change unheard."""
        self.ctx.cancel_timer(("idle", key))
        link, entry.link, entry.ready = entry.link, None, False
        if link is not None:
            del self._by_link[link]
            self.ctx.demonitor(link)
            link.reply(Leave(self.ctx.ref))
            entry.outdate()

    def _down(self, ref: Ref) -> None:
        for key in self._watching.pop(ref, set()):
            self._entries[key].watchers.pop(ref, None)
        if ref in self._by_link:
            self._lost(ref)

    def _lost(self, link: Ref) -> None:
        """A link's actor is gone, and with it what it was asked."""
        key = self._by_link.pop(link)
        entry = self._entries[key]
        entry.link = None
        self._disconnected(key, entry)

    def _disconnected(self, key: Key, entry: Entry) -> None:
        entry.ready = False
        entry.outdate()
        for method, wanted in entry.lists.items():
            if wanted.fetching:
                self._fetched(key, entry, method, None)

    # What links say

    def _refuse(self, link: Ref, id: RequestId) -> None:
        """Nobody stands behind a link that only lists: what it asks is refused at once, never left hanging."""
        link.reply(GiveAnswer(id, False, errors.method_not_found("there is no client to ask").raw))

    def _from_link(self, told: LinkReady | LinkDown | LinkTold | LinkUnfit) -> None:
        key = self._by_link.get(told.link)
        if key is None:
            return
        entry = self._entries[key]
        match told:
            case LinkReady(hello=hello):
                entry.ready, entry.unfit = True, 0
                entry.hello = self._hellos[key] = hello
                for method, wanted in entry.lists.items():
                    if wanted.fetching and wanted.call is None:
                        self._ask(key, entry, method, wanted)
            case LinkDown():
                self._disconnected(key, entry)
            case LinkUnfit(link):
                self._unfit(key, entry, link)
            case LinkTold(method=notification):
                changed = [w for m, w in entry.lists.items() if LIST_CHANGED[m] == notification]
                for wanted in changed:
                    wanted.stale = wanted.announced = True
                if changed:
                    self._announce(entry, key, notification)

    def _unfit(self, key: Key, entry: Entry, link: Ref) -> None:
        """It is of the other era: what was not asked yet is asked over the other kind of link."""
        del self._by_link[link]
        self.ctx.demonitor(link)
        link.reply(Leave(self.ctx.ref))
        entry.link, entry.unfit = None, entry.unfit + 1
        other = self._link(key, entry) if entry.unfit <= ATTEMPTS else None
        if other is not None:
            other.reply(Warm())
        else:
            self._disconnected(key, entry)

    def _announce(self, entry: Entry, key: Key, notification: str, but: list[Ref] | None = None) -> None:
        """Tells those who watch, but for those who get the list itself."""
        for watcher in entry.watchers:
            if not but or watcher not in but:
                watcher.reply(CatalogueChanged(key.backend, notification))

    def _watch(self, caller: Ref, key: Key, entry: Entry) -> None:
        if caller not in entry.watchers:
            entry.watchers[caller] = None
            self.ctx.monitor(caller)
            self._watching.setdefault(caller, set()).add(key)

    def _unwatch(self, caller: Ref, key: Key) -> None:
        keys = self._watching.get(caller, set())
        keys.discard(key)
        if not keys:
            self._watching.pop(caller, None)
            self.ctx.demonitor(caller)
