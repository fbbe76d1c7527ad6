"""The catalogue: the last known lists of every backend, by (principal, client capabilities, backend).

Merged lists are answered from here, so that a session which only looks around needs no connection of its own. The
catalogue fetches over a link of its own, at most one per key, once for all who wait; it hears what changes while that
link is up, and closes it when nobody has asked for a while. A backend that is away keeps its last list.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from msgspec import Raw

from actors.link import (
    Call,
    CloseLink,
    GiveAnswer,
    Join,
    LinkActor,
    LinkAsked,
    LinkDown,
    LinkOutcome,
    LinkReady,
    LinkTold,
)
from actors.named import Named
from actors.paging import Items, Paging
from actors.protocol import capabilities, errors
from actors.protocol.link_events import Hello
from actors.protocol.link_state import Profile
from actors.protocol.messages import RequestId
from actors.protocol.methods import METHODS
from actors.runtime import Actor, AtCapacity, Down, DynamicSupervisor, Ref, SystemClosed
from actors.services import Services

MAX_ENTRIES = 4096
"""Keys kept; the least recently used one goes first."""


@dataclass(frozen=True, slots=True)
class Key:
    """Whose view of which backend."""

    principal: str
    bits: str
    backend: str


@dataclass(frozen=True, slots=True)
class Consult:
    """What does this backend list? Listed follows, with `token`, within the list deadline."""

    caller: Ref
    token: int
    key: Key
    profile: Profile
    method: str


@dataclass(frozen=True, slots=True)
class Listed:
    """The answer: `items` is None if nothing is known and nothing could be learned. `hello` as far as known."""

    token: int
    backend: str
    method: str
    items: Items | None
    hello: Hello | None


@dataclass(frozen=True, slots=True)
class Changed:
    """A list of this key is no longer what it was: fetch it anew when it is asked for next."""

    key: Key
    method: str


@dataclass(frozen=True, slots=True)
class Watch:
    """The caller wants CatalogueChanged for this key while it lives."""

    caller: Ref
    key: Key


@dataclass(frozen=True, slots=True)
class CatalogueChanged:
    """What was listed for this backend may have changed."""

    backend: str
    notification: str


@dataclass(frozen=True, slots=True)
class _Overdue:
    key: Key
    method: str


@dataclass(frozen=True, slots=True)
class _IdleLink:
    key: Key


@dataclass(slots=True)
class _Entry:
    profile: Profile
    link: Ref | None = None
    hello: Hello | None = None
    lists: dict[str, Items] = field(default_factory=dict)
    stale: set[str] = field(default_factory=set)
    waiting: dict[str, list[tuple[Ref, int]]] = field(default_factory=dict)
    fetching: set[str] = field(default_factory=set)
    watchers: set[Ref] = field(default_factory=set)


class Catalogue(Actor):
    """Permanent; what it forgets in a crash it fetches again."""

    mailbox_size = 8192

    def __init__(self, services: Services, links: DynamicSupervisor, backends: Named, hellos: dict[Key, Hello]) -> None:
        self._hellos = hellos
        self._services = services
        self._links = links
        self._backends = backends
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._calls: dict[int, tuple[Key, str, Paging]] = {}
        self._next_call = 1
        self._by_link: dict[Ref, Key] = {}
        self._watching: dict[Ref, set[Key]] = {}

    def receive(self, message: Any) -> None:
        match message:
            case Consult() as consult:
                self._consult(consult)
            case LinkOutcome(_, call, ok, payload):
                found = self._calls.pop(call, None)
                if found is not None:
                    found[2].outcome(ok, payload)
            case Watch(caller, key):
                self._watch(caller, key)
            case Changed(key, method):
                entry = self._entries.get(key)
                if entry is not None:
                    entry.stale.add(method)
            case _Overdue(key, method):
                self._overdue(key, method)
            case _IdleLink(key):
                self._close_link(key)
            case LinkReady() | LinkDown() | LinkTold():
                self._from_link(message)
            case LinkAsked(link=link, id=id):
                self._refuse(link, id)
            case Down(ref=ref):
                self._down(ref)

    # Questions

    def _consult(self, consult: Consult) -> None:
        entry = self._entry(consult.key, consult.profile)
        known = entry.lists.get(consult.method)
        if known is not None and consult.method not in entry.stale:
            self._touch(consult.key, entry)
            consult.caller.reply(Listed(consult.token, consult.key.backend, consult.method, known, entry.hello))
            return
        entry.waiting.setdefault(consult.method, []).append((consult.caller, consult.token))
        timer = ("overdue", consult.key, consult.method)
        self.ctx.set_timer(timer, self._services.limits.list_deadline, _Overdue(consult.key, consult.method))
        self._fetch(consult.key, entry, consult.method)

    def _entry(self, key: Key, profile: Profile) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(profile)
            while len(self._entries) > MAX_ENTRIES:
                oldest = next(iter(self._entries))
                self._close_link(oldest)
                self._entries.pop(oldest, None)
                self._hellos.pop(oldest, None)
        self._entries.move_to_end(key)
        return entry

    def _fetch(self, key: Key, entry: _Entry, method: str) -> None:
        if method in entry.fetching:
            return
        link = self._link(key, entry)
        if link is None:
            self._answer(key, entry, method)
            return
        entry.fetching.add(method)
        member = METHODS[method].items or ""

        def ask(params: Raw) -> None:
            call = self._next_call
            self._next_call += 1
            self._calls[call] = (key, method, paging)
            link.reply(Call(self.ctx.ref, call, method, params))

        def done(items: Items | None, error: Raw) -> None:
            self._fetched(key, method, items)

        paging = Paging(member, ask, done)
        paging.start()

    def _fetched(self, key: Key, method: str, items: Items | None) -> None:
        entry = self._entries.get(key)
        if entry is None:
            return
        entry.fetching.discard(method)
        if items is not None:
            before = entry.lists.get(method)
            entry.lists[method] = items
            entry.stale.discard(method)
            if before is not None and before != items:
                self._announce(entry, key, method)
        elif entry.hello is not None and not _offers(entry.hello, method):
            entry.lists[method] = ()  # it has no such feature: that is an answer
        self._answer(key, entry, method)

    def _answer(self, key: Key, entry: _Entry, method: str) -> None:
        self.ctx.cancel_timer(("overdue", key, method))
        items = entry.lists.get(method)
        for caller, token in entry.waiting.pop(method, []):
            caller.reply(Listed(token, key.backend, method, items, entry.hello))
        self._touch(key, entry)

    def _overdue(self, key: Key, method: str) -> None:
        """A slow backend never delays the others: whoever waits gets what is known; the fetch goes on."""
        entry = self._entries.get(key)
        if entry is not None:
            self._answer(key, entry, method)

    # Links

    def _link(self, key: Key, entry: _Entry) -> Ref | None:
        if entry.link is not None and entry.link.alive:
            return entry.link
        spec = self._services.table.value.backends.get(key.backend)
        if spec is None:
            return None
        actor = LinkActor(spec, entry.profile, self._services, self._backends)
        try:
            link = self._links.start_child(actor)
        except (AtCapacity, SystemClosed):
            return None
        entry.link = link
        self._by_link[link] = key
        self.ctx.monitor(link)
        link.reply(Join(self.ctx.ref))
        return link

    def _touch(self, key: Key, entry: _Entry) -> None:
        if entry.link is not None:
            self.ctx.set_timer(("idle", key), self._services.limits.link_idle, _IdleLink(key))

    def _close_link(self, key: Key) -> None:
        entry = self._entries.get(key)
        if entry is not None and entry.link is not None and not entry.fetching:
            entry.link.reply(CloseLink())

    def _down(self, ref: Ref) -> None:
        for watched in self._watching.pop(ref, set()):
            entry = self._entries.get(watched)
            if entry is not None:
                entry.watchers.discard(ref)
        key = self._by_link.pop(ref, None)
        entry = self._entries.get(key) if key is not None else None
        if key is None or entry is None or entry.link is not ref:
            return
        entry.link = None
        # Nobody listens to this backend any more: what it lists may change unheard.
        entry.stale.update(entry.lists)
        for method in list(entry.fetching):
            entry.fetching.discard(method)
            self._answer(key, entry, method)

    # What links say

    def _refuse(self, link: Ref, id: RequestId) -> None:
        """Nobody stands behind a link that only lists: what it asks is refused at once, never left hanging."""
        link.reply(GiveAnswer(id, False, errors.method_not_found("there is no client to ask").raw))

    def _from_link(self, told: LinkReady | LinkDown | LinkTold) -> None:
        key = self._by_link.get(told.link)
        entry = self._entries.get(key) if key is not None else None
        if entry is None or key is None:
            return
        match told:
            case LinkReady(hello=hello, again=again):
                entry.hello = self._hellos[key] = hello
                if again:
                    entry.stale.update(entry.lists)
            case LinkDown():
                entry.stale.update(entry.lists)
            case LinkTold(method=notification):
                changed = [m for m, n in NOTIFICATIONS.items() if n == notification]
                if changed:
                    entry.stale.update(changed)
                    for watcher in entry.watchers:
                        watcher.reply(CatalogueChanged(key.backend, notification))

    def _announce(self, entry: _Entry, key: Key, method: str) -> None:
        for watcher in entry.watchers:
            watcher.reply(CatalogueChanged(key.backend, NOTIFICATIONS[method]))

    def _watch(self, caller: Ref, key: Key) -> None:
        entry = self._entries.get(key)
        if entry is not None and caller not in entry.watchers:
            entry.watchers.add(caller)
            if caller not in self._watching:
                self.ctx.monitor(caller)
            self._watching.setdefault(caller, set()).add(key)


NOTIFICATIONS = {
    "tools/list": "notifications/tools/list_changed",
    "prompts/list": "notifications/prompts/list_changed",
    "resources/list": "notifications/resources/list_changed",
    "resources/templates/list": "notifications/resources/list_changed",
}
"""What is said when a list has changed."""


def _offers(hello: Hello, method: str) -> bool:
    return capabilities.allows(capabilities.parse(hello.capabilities), method)
