"""The catalogue: the last known lists of every backend, by (principal, client capabilities, backend).

Merged lists are answered from here, so that a session which only looks around needs no connection of its own. The
catalogue fetches over an upstream connection of its own, at most one per key, once for all who wait; it hears what
changes while that upstream connection is up, and closes it when nobody has asked for a while. A backend that is
away keeps its last list.

Nobody waits longer than the list deadline, which is one for all the lists of a backend, and for a backend that was
slower than that nobody waits again for a while: what is known is the answer, and what comes in the end is
announced. A list that somebody had to do without is fetched until it is there.

Nothing is announced before it is known: a backend that says that a list has changed, or that was away, is asked,
and only what is different is passed on. A list whose definitions are the same stays the same to the byte
(`steady`).
"""

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

from msgspec import Raw, Struct

from actors.endpoints.host import Tree, profile_of
from actors.endpoints.last_known import Key, neutral
from actors.endpoints.slow import Whom
from actors.machines.upstream import breaker
from actors.machines.upstream.events import AnswerGiven, ServerInfo, Wanted
from actors.machines.upstream.legacy_state import Profile
from actors.machines.upstream.modern_events import Caller
from actors.ports import NO_RIGHTS, Rights
from actors.protocol import capabilities, errors
from actors.protocol.messages import EMPTY, RequestId
from actors.protocol.methods import CHANGED, METHODS
from actors.protocol.steady import Items, steady
from actors.protocol.table import HttpTarget, Replaced, Table, repinned, replaced
from actors.protocol.transport import UNAUTHORIZED
from actors.runtime import EMPTY_SET, Actor, AtCapacity, Down, DynamicSupervisor, Ref, SystemClosed
from actors.services import Services
from actors.upstreams.eras import ERA_ATTEMPTS
from actors.upstreams.messages import (
    Call,
    Cancel,
    Join,
    Leave,
    UpstreamDown,
    UpstreamNotification,
    UpstreamOutcome,
    UpstreamPlaced,
    UpstreamReady,
    UpstreamRequest,
    UpstreamWithdrew,
    UpstreamWrongEra,
)
from actors.upstreams.own_calls import OwnCalls
from actors.upstreams.paging import Page, Paging
from actors.upstreams.start import start_list_upstream

# Messages ------------------------------------------------------------------------------------------------------


class Consult(Struct, frozen=True):
    """What does this backend list? Listed follows within the list deadline (if it must be
    `fresh`, when that is known or can't be had), and from then on, as long as the caller
    lives, CatalogueChanged whenever this backend lists something else. Unless it must be `fresh`, the last list
    known is the answer, at once, though nobody has heard of the backend for a while. `rights`: with which a backend is
    asked that knows the rights of users; then `key` is of them too."""

    caller: Ref
    key: Key
    profile: Profile
    method: str
    fresh: bool = False
    rights: Rights = NO_RIGHTS


class Listed(Struct, frozen=True):
    """The answer: `items` is None if nothing is known and nothing could be learned; `pending`: it is still on its
    way. `error`: why it could not be learned when it was asked for last, if that was for want of credentials."""

    backend: str
    method: str
    items: Items | None
    pending: bool
    error: Raw


class CatalogueChanged(Struct, frozen=True):
    """What was listed for this backend is no longer so: the catalogue has another list."""

    backend: str
    notification: str


class PrincipalsAccount(Struct, frozen=True):
    """This principal's account at this server is another one, or is no more."""

    principal: str
    backend: str


class Prestart(Struct, frozen=True):
    """Connect to the servers of aggregates of which nothing is known, on behalf of nobody in particular."""


# Clocks -------------------------------------------------------------------------------------------------------


class Overdue(Struct, frozen=True):
    """Whoever waits for a list of this backend has waited long enough."""

    key: Key


class CheckDue(Struct, frozen=True):
    """Time to look at a list that the backend says is another one now."""

    key: Key
    method: str


class GiveUp(Struct, frozen=True):
    """The request for this list has run long enough."""

    key: Key
    method: str


class Again(Struct, frozen=True):
    """Time to ask once more for a list that somebody had to do without."""

    key: Key
    method: str


class IdleUpstream(Struct, frozen=True):
    """Nobody has asked for a while."""

    key: Key


Message: TypeAlias = (
    Consult
    | Prestart
    | PrincipalsAccount
    | Overdue
    | CheckDue
    | GiveUp
    | Again
    | IdleUpstream
    | UpstreamOutcome
    | UpstreamReady
    | UpstreamDown
    | UpstreamNotification
    | UpstreamWrongEra
    | UpstreamRequest
    | UpstreamWithdrew
    | UpstreamPlaced
    | Replaced
    | Down
)
"""What it is asked, what its connections say, and its clocks."""

NAMED_BY = {
    "tools/list": "name",
    "prompts/list": "name",
    "resources/list": "uri",
    "resources/templates/list": "uriTemplate",
}
"""The member that tells two items of a list apart."""
DEBOUNCE = 0.1
"""Seconds in which changes of one kind become one."""


LISTS_SHARE = 0.95
"""Of the list deadline: those who gather lists from here have a deadline of their own, and want to hear first."""
CHECK_LATEST = 30.0
"""A backend that says again and again that its lists have changed, and they have not, is asked so seldom at last."""
PRESTARTED = 32
"""Servers that are started ahead at most; and never more than half of the places for child processes."""
MAX_ENTRIES = 1024
"""Keys kept; the least recently used one goes first."""
MAX_BYTES = 256 * 1024 * 1024
"""Of all lists kept; the same."""
MAX_UPSTREAMS = 64
"""Connections kept; the least recently used one closes first."""


def whose(key: Key) -> Whom:
    """By what a server is told to be slow, where it is asked through the catalogue: whatever clients say of themselves,
    it is the same for one principal."""
    return key.principal, key.backend


def list_kind(notification: str) -> str:
    """`tools`, `prompts` or `resources`."""
    return notification.split("/")[1]


def _has_lists(table: Table, backend: str) -> bool:
    """Whether a server lists something to nobody in particular."""
    spec = table.backends.get(backend)
    return spec is not None and (spec.auth is None or not spec.personal or spec.auth.catalog is not None)


@dataclass(slots=True)
class Patience:
    """How long what is said to have changed waits to be looked at: the longer, the more often it had not. `vain`: so
    many looks in a row found nothing new; `at`: when the last look was."""

    vain: int = 0
    at: float = 0.0

    def seconds(self, now: float) -> float:
        """Seconds to wait from this moment on."""
        if now - self.at > 2 * CHECK_LATEST:
            self.vain = 0
        return min(CHECK_LATEST, DEBOUNCE * 2.0 ** min(self.vain, 16))

    def looked(self, now: float, *, different: bool) -> None:
        """Something new was there, or nothing."""
        self.vain, self.at = 0 if different else self.vain + 1, now


@dataclass(slots=True)
class Known:
    """One list of one backend; `call` is the request that runs for it."""

    items: Items | None = None
    stale: bool = False
    """It may be another one now: nothing was heard of the backend for a while, or it has said so."""
    told: bool = False
    """The backend has said so: whoever asks waits for the new one."""
    checked: bool = False
    """The running fetch was begun since it had said so."""
    patience: Patience = field(default_factory=Patience)
    heard: int = 0
    """How often anybody had heard that it has changed, when it was asked for."""
    missed: bool = False
    """Somebody was answered without it."""
    held: bool = False
    """It is fetched as soon as the first connection to its server is there, which is another one's."""
    fetching: bool = False
    call: int | None = None
    error: Raw = field(default_factory=Raw)
    """Why the last fetch brought nothing, if that was for want of credentials."""
    attempt: int = 0
    waiting: list[Ref] = field(default_factory=list)
    looking: dict[Ref, None] = field(default_factory=dict)
    """Those who wait for the end of the fetch, however long it takes."""

    @property
    def current(self) -> bool:
        """It is what the backend lists, as far as has been heard."""
        return self.items is not None and not self.stale and not self.fetching

    @property
    def presentable(self) -> bool:
        """It is the last list known, and the backend has not said that it is another one now."""
        return self.items is not None and not self.told and not (self.fetching and self.checked)

    @property
    def size(self) -> int:
        """Bytes of the items."""
        return sum(map(len, self.items or ()))


@dataclass(slots=True)
class Entry:
    """One backend as one kind of client sees it; `watchers` want to hear of changes. `rights`: see `Consult`."""

    profile: Profile
    rights: Rights = NO_RIGHTS
    upstream: Ref | None = None
    ready: bool = False
    server_info: ServerInfo | None = None
    lists: dict[str, Known] = field(default_factory=dict)
    watchers: dict[Ref, None] = field(default_factory=dict)

    due: float | None = None
    """Whoever waits for lists of this backend, waits until then; None: nobody does."""
    awaited_by: frozenset[Whom] = EMPTY_SET
    """For whom it is slow then: also for whoever else sees it so."""
    wrong_era: int = 0
    """Connections in a row that were of the other era than the backend."""

    @property
    def caller(self) -> Caller:
        """On whose behalf a modern backend is asked: of nobody who could be told from others."""
        return Caller("", self.profile.capabilities, self.profile.client_info, None, True)

    def offers(self, method: str) -> bool:
        """Whether the backend declared this list, as far as is known."""
        return self.server_info is None or capabilities.allows(
            capabilities.parse(self.server_info.capabilities), method
        )

    @property
    def fetching(self) -> bool:
        """Whether any list is on its way."""
        return any(wanted.fetching for wanted in self.lists.values())

    def outdate(self) -> None:
        """Nothing has been heard of the backend for a while: its lists may have changed."""
        for wanted in self.lists.values():
            wanted.stale = True


class Catalogue(Actor):
    """Keeps the last lists of every backend, and fetches them anew. Permanent: what it forgets in a crash it fetches
    again."""

    mailbox_size = 8192

    def __init__(self, services: Services, upstreams: DynamicSupervisor, tree: Tree) -> None:
        self._hellos = tree.server_infos
        self._changes = tree.changes
        self._known = tree.known
        self._slow = tree.slow
        self._slow_listens = tree.slow_listens
        self._eras = tree.eras
        self._services = services
        self._upstreams = upstreams
        self._backends = tree.backends
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self._bytes = 0
        self._by_upstream: dict[Ref, Key] = {}
        self._watching: dict[Ref, set[Key]] = {}

    def statistics(self) -> dict[str, int]:
        """How much it keeps, and for how many."""
        return {"views": len(self._entries), "bytes": self._bytes, "watchers": len(self._watching)}

    def started(self) -> None:
        self._pages = OwnCalls(self.ctx, math.inf)  # a list has its deadline as a whole

    def receive(self, message: Message) -> None:
        """One message."""
        match message:
            case Consult() as consult:
                self._consult(consult)
            case UpstreamOutcome(_, call, ok, payload):
                self._pages.outcome(call, ok, payload)
            case Prestart():
                self._prestart()
            case Overdue(key):
                self._overdue(key)
            case CheckDue(key, method):
                self._check(key, method)
            case GiveUp(key, method):
                self._give_up(key, method)
            case Again(key, method):
                self._again(key, method)
            case IdleUpstream(key):
                self._close_idle(key)
            case UpstreamReady() | UpstreamDown() | UpstreamNotification() | UpstreamWrongEra():
                self._from_upstream(message)
            case PrincipalsAccount(principal, backend):
                self._account_changed(principal, backend)
            case Replaced(before):
                self._replaced(replaced(before, self._services.table.value))
                self._accepted(before)
            case UpstreamRequest(upstream=upstream, id=id):
                self._refuse(upstream, id)
            case UpstreamWithdrew() | UpstreamPlaced():
                pass  # its server requests were refused at once, and lists are asked for anew
            case Down(ref=ref):
                self._down(ref)
            case _:
                assert_never(message)

    # Server requests

    def _consult(self, consult: Consult) -> None:
        key, method = self._seen_as(consult.key), consult.method
        entry = self._entry(key, consult.profile)
        entry.rights = consult.rights
        self._watch(consult.caller, key, entry)
        wanted = self._list(key, entry, method)
        if wanted.heard != self._changes[key.backend, CHANGED[method]]:
            wanted.stale = True
        if wanted.current or (wanted.presentable and not consult.fresh):
            consult.caller.reply(Listed(key.backend, method, wanted.items, False, EMPTY))
            if not wanted.current:
                self._fetch(key, entry, method, wanted)  # what is different is announced
            self._used(key, entry)
            return
        if consult.fresh:
            wanted.looking[consult.caller] = None
        else:
            wanted.waiting.append(consult.caller)
            self._awaited(key, entry, {whose(key), whose(consult.key)})
        self._fetch(key, entry, method, wanted)

    def _awaited(self, key: Key, entry: Entry, those: set[Whom]) -> None:
        """Somebody waits until the lists of an entry are due; not where it was late for one of those already."""
        limit, now = self._services.limits.list_deadline, self.ctx.now()
        if entry.due is None:
            worth = all(self._slow.worth(whom, limit, now) for whom in those)
            seconds = LISTS_SHARE * limit if worth else 0.0
            entry.due = now + seconds
            self.ctx.set_timer(("overdue", key), seconds, Overdue(key))
        if entry.due > now:
            entry.awaited_by |= those

    def _entry(self, key: Key, profile: Profile) -> Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = Entry(profile)
            if len(self._entries) > MAX_ENTRIES:
                self._forget(next(iter(self._entries)))
        self._entries.move_to_end(key)
        return entry

    def _list(self, key: Key, entry: Entry, method: str) -> Known:
        """One list of an entry. A new one is what was known last, perhaps before the last start; it is checked."""
        wanted = entry.lists.get(method)
        if wanted is None:
            wanted = entry.lists[method] = Known(stale=True)
            known = self._known.items(key, method)
            wanted.items = known if known is not None else self._of_nobody(key, method)
            self._bytes += wanted.size
        return wanted

    def _of_nobody(self, key: Key, method: str) -> Items | None:
        entry = self._entries.get(neutral(key.backend))
        wanted = entry.lists.get(method) if entry is not None else None
        return wanted.items if wanted is not None else None

    # Ahead of the first client

    def _prestart(self) -> None:
        """Servers of which nothing is known yet are connected to before anybody asks, as a client that can be asked
        nothing: what they list to it is what everybody is given until there is something better."""
        table, limits = self._services.table.value, self._services.limits
        backends = dict.fromkeys(b for e in table.endpoints.values() if e.kind == "aggregate" for b in e.backends)
        room = min(PRESTARTED, limits.child_processes // 2)
        for backend in [b for b in backends if _has_lists(table, b) and not self._known.knows(b)][:room]:
            key = neutral(backend)
            entry = self._entry(key, profile_of(None, frozenset(), 0, self._services.identity))
            for method in CHANGED:
                self._fetch(key, entry, method, self._list(key, entry, method))

    def _seen_as(self, key: Key) -> Key:
        """A client that can be asked nothing sees what nobody in particular sees, if that connection is there."""
        first = neutral(key.backend)
        spec = self._services.table.value.backends.get(key.backend)
        if spec is not None and spec.personal:
            return key
        return first if not key.bits and key not in self._entries and first in self._entries else key

    def _behind(self, key: Key) -> bool:
        """Whether the server is just being started for everybody: a second one at the same time would make both
        slower, and may disturb the first one's installation."""
        first = self._entries.get(neutral(key.backend))
        return key != neutral(key.backend) and first is not None and first.fetching and not first.ready

    def _handed_on(self, key: Key, method: str) -> None:
        """The list of nobody in particular is there, or can't be had: those who see it otherwise go on from it."""
        if key != neutral(key.backend):
            return
        items = self._entries[key].lists[method].items
        for other, entry in list(self._entries.items()):
            wanted = entry.lists.get(method) if other.backend == key.backend and other != key else None
            if wanted is None:
                continue
            if wanted.items is None and items is not None:
                self._keep(wanted, items)
                wanted.stale = True
                if wanted.missed:
                    wanted.missed = False
                    self._announce(entry, other, CHANGED[method], wanted.waiting)
                self._answer(other, entry, method, wanted)
            if wanted.stale and wanted.held:
                wanted.held = False
                self._fetch(other, entry, method, wanted)

    def _forget(self, key: Key) -> None:
        entry = self._entries[key]
        for method, wanted in entry.lists.items():
            self._end_fetch(key, method, wanted)
            wanted.held = False
            self._answer(key, entry, method, wanted)
            self.ctx.cancel_timer(("again", key, method))
            self.ctx.cancel_timer(("check", key, method))
            self._bytes -= wanted.size
        self._close_upstream(key, entry)
        for watcher in entry.watchers:
            self._unwatch(watcher, key)
        del self._entries[key]
        self._hellos.pop(key, None)
        if key == neutral(key.backend):
            self._release(key.backend)

    def _release(self, backend: str) -> None:
        """The connection that lists were held for is not there any more: whoever went without them gets them later."""
        for key, entry in self._entries.items():
            for method, wanted in entry.lists.items() if key.backend == backend else ():
                if wanted.held:
                    wanted.held = False
                    self._answer(key, entry, method, wanted)

    def _replaced(self, backends: frozenset[str]) -> None:
        """They are no more, or are other servers now: nothing that is known of them counts."""
        for key in [k for k in self._entries if k.backend in backends]:
            for wanted in self._entries[key].lists.values():
                self._keep(wanted, ())
                wanted.items = None
            self._forget(key)
        for key in [k for k in self._hellos if k.backend in backends]:  # of modern servers too
            del self._hellos[key]
        self._slow.replaced(backends)
        self._slow_listens.replaced(backends)

    def _accepted(self, before: Table) -> None:
        """Where something else is accepted of a server than before, somebody has seen that its lists are others, which
        it need not have said."""
        backends = repinned(before, self._services.table.value)
        for key, entry in self._entries.items():
            for method, wanted in entry.lists.items() if key.backend in backends else ():
                self._told(key, entry, method, wanted)

    def _fetch(self, key: Key, entry: Entry, method: str, wanted: Known) -> None:
        if wanted.fetching:
            return
        wanted.held = not entry.ready and self._behind(key)
        if wanted.held:
            return
        upstream = self._upstream(key, entry)
        if upstream is None:
            self._answer(key, entry, method, wanted)
            return
        wanted.fetching = True
        self.ctx.set_timer(("fetch", key, method), self._fetch_deadline(key), GiveUp(key, method))
        if entry.ready:
            self._ask(key, entry, method, wanted)
        else:
            upstream.reply(Wanted())

    def _ask(self, key: Key, entry: Entry, method: str, wanted: Known) -> None:
        """The connection is up: a list that the backend does not declare is not asked for."""
        upstream, caller = entry.upstream, self.ctx.ref
        assert upstream is not None
        wanted.stale, wanted.told, wanted.checked = False, False, wanted.told or wanted.checked
        wanted.heard = self._changes[key.backend, CHANGED[method]]
        if not entry.offers(method):
            self._fetched(key, entry, method, ())
            return

        def ask(params: Raw, page: Page) -> None:
            wanted.call = self._pages.make(
                lambda call: upstream.reply(
                    Call(caller, call, method, params, client=entry.caller, rights=entry.rights)
                ),
                lambda call, reason: upstream.reply(Cancel(caller, call, reason)),
                page,
            )

        def done(items: Items | None, error: Raw) -> None:
            if error and wanted.items is not None:
                items = None  # a part is no better than the whole that is known
            self._fetched(key, entry, method, items, error)
            wanted.stale = wanted.stale or bool(error)

        Paging(METHODS[method].items or "", ask, done).start()

    def _fetch_deadline(self, key: Key) -> float:
        spec = self._services.table.value.backends.get(key.backend)
        longest = self._services.limits.request_deadline
        return min(longest, spec.timeout) if spec is not None else longest

    def _fetched(self, key: Key, entry: Entry, method: str, items: Items | None, error: Raw = EMPTY) -> None:
        wanted = entry.lists[method]
        self._end_fetch(key, method, wanted)
        wanted.error = errors.kept(error, UNAUTHORIZED)
        overtaken = wanted.told and items is not None  # the backend said so while the pages came
        if items is None:
            # What the backend has said of it is still to be looked into.
            wanted.stale, wanted.told, wanted.checked = True, False, wanted.told or wanted.checked
        else:
            self._learned(key, entry, method, items)
        self._answer(key, entry, method, wanted)
        self._handed_on(key, method)
        self._used(key, entry)
        if overtaken:
            self._check_soon(key, entry, method, wanted)
        while self._bytes > MAX_BYTES and len(self._entries) > 1:
            self._forget(next(iter(self._entries)))

    def _learned(self, key: Key, entry: Entry, method: str, items: Items) -> None:
        """A list is there, whole. Those who watch hear of it if it is another one than they can have seen."""
        wanted = entry.lists[method]
        if wanted.items is not None:
            items = steady(wanted.items, items, NAMED_BY[method])
        different = wanted.missed or (wanted.items is not None and wanted.items is not items)
        self._keep(wanted, items)
        self._known.keep(key, method, items)
        self._slow.answered(whose(key))
        wanted.missed, wanted.attempt = False, 0
        self.ctx.cancel_timer(("again", key, method))
        if different or wanted.checked:
            wanted.patience.looked(self.ctx.now(), different=different)
        if different:
            self._announce(entry, key, CHANGED[method], [*wanted.waiting, *wanted.looking])
        elif wanted.checked:
            kind = list_kind(CHANGED[method])
            self._services.telemetry.count("stagedoor_list_changed_total", (kind, "spared"), len(entry.watchers))
        wanted.checked = False

    def _keep(self, wanted: Known, items: Items) -> None:
        self._bytes -= wanted.size
        wanted.items = items
        self._bytes += wanted.size

    def _end_fetch(self, key: Key, method: str, wanted: Known) -> None:
        """It is over, or nobody waits for it any more."""
        self.ctx.cancel_timer(("fetch", key, method))
        wanted.fetching = False
        call, wanted.call = wanted.call, None
        if call is not None:
            self._pages.drop(call, "deadline exceeded")

    def _answer(self, key: Key, entry: Entry, method: str, wanted: Known) -> None:
        """Whoever waits gets what is known. What somebody had to do without is fetched again, until it is there."""
        waiting, wanted.waiting = wanted.waiting, []
        if not wanted.fetching and not wanted.held:
            waiting, wanted.looking = [*waiting, *wanted.looking], {}
        if entry.due is not None and not any(other.waiting for other in entry.lists.values()):
            entry.due = None
            entry.awaited_by = EMPTY_SET
            self.ctx.cancel_timer(("overdue", key))
        for caller in waiting:
            caller.reply(Listed(key.backend, method, wanted.items, wanted.fetching or wanted.held, wanted.error))
        wanted.missed = wanted.missed or (wanted.items is None and bool(waiting))
        if (wanted.missed or wanted.checked) and not wanted.fetching and not wanted.held:
            wanted.attempt += 1
            seconds = breaker.delay(wanted.attempt, self._services.jitter())
            self.ctx.set_timer(("again", key, method), seconds, Again(key, method))

    def _again(self, key: Key, method: str) -> None:
        entry = self._entries.get(key)
        if entry is not None and entry.watchers and (entry.lists[method].missed or entry.lists[method].checked):
            self._fetch(key, entry, method, entry.lists[method])

    def _overdue(self, key: Key) -> None:
        """A slow backend never delays the others: the fetch goes on, and what comes of it is announced."""
        entry = self._entries.get(key)
        if entry is not None:
            for whom in entry.awaited_by:
                self._slow.late(whom, self._services.limits.list_deadline, self.ctx.now())
            for method, wanted in entry.lists.items():
                if wanted.waiting:
                    self._answer(key, entry, method, wanted)

    def _check_soon(self, key: Key, entry: Entry, method: str, wanted: Known) -> None:
        """The backend has said that this list is another one: that is looked into, on behalf of those who watch."""
        if entry.watchers and not wanted.fetching:
            seconds = wanted.patience.seconds(self.ctx.now())
            self.ctx.set_timer(("check", key, method), seconds, CheckDue(key, method))

    def _check(self, key: Key, method: str) -> None:
        entry = self._entries.get(key)
        if entry is not None and entry.watchers and entry.lists[method].told:
            self._fetch(key, entry, method, entry.lists[method])

    def _give_up(self, key: Key, method: str) -> None:
        """A request that is never answered must not be the last one."""
        entry = self._entries.get(key)
        if entry is not None:
            self._fetched(key, entry, method, None)

    # Upstream connections

    def _upstream(self, key: Key, entry: Entry) -> Ref | None:
        if entry.upstream is not None and entry.upstream.alive:
            return entry.upstream
        spec = self._services.table.value.backends.get(key.backend)
        if spec is None:
            return None
        spec = spec.of(key.principal)
        if entry.upstream is not None:
            self._lost(entry.upstream)
        self._make_room()
        services, registry = self._services, self.ctx.system.registry
        try:
            upstream = start_list_upstream(
                spec,
                entry.profile,
                services,
                self._backends,
                self._eras,
                registry,
                self._upstreams,
                # For a client the server is asked in the client's own era first. Nobody has none: then 2026-07-28 goes
                # first (versioning, "Backward Compatibility"), but not on pipes, which a first message may lock to it.
                modern_first=key == neutral(spec.name) and not spec.common and isinstance(spec.target, HttpTarget),
                whose=key.principal,
            )
        except (AtCapacity, SystemClosed):
            return None
        entry.upstream = upstream
        self._by_upstream[upstream] = key
        self.ctx.monitor(upstream)
        upstream.reply(Join(self.ctx.ref))
        return upstream

    def _make_room(self) -> None:
        """Views come and go with what clients say of themselves; the connections behind them are bounded."""
        if len(self._by_upstream) < MAX_UPSTREAMS:
            return
        for key, entry in self._entries.items():
            if entry.upstream is not None and not entry.fetching:
                self._close_upstream(key, entry)
                return

    def _used(self, key: Key, entry: Entry) -> None:
        if entry.upstream is not None:
            self.ctx.set_timer(("idle", key), self._services.limits.link_idle, IdleUpstream(key))

    def _close_idle(self, key: Key) -> None:
        entry = self._entries.get(key)
        if entry is not None and not entry.fetching:
            self._close_upstream(key, entry)

    def _close_upstream(self, key: Key, entry: Entry) -> None:
        """From here on nobody listens to this backend: what it lists may change unheard."""
        self.ctx.cancel_timer(("idle", key))
        upstream, entry.upstream, entry.ready = entry.upstream, None, False
        if upstream is not None:
            del self._by_upstream[upstream]
            self.ctx.demonitor(upstream)
            upstream.reply(Leave(self.ctx.ref))
            entry.outdate()

    def _down(self, ref: Ref) -> None:
        for key in self._watching.pop(ref, set()):
            self._entries[key].watchers.pop(ref, None)
        if ref in self._by_upstream:
            self._lost(ref)

    def _lost(self, upstream: Ref) -> None:
        """An upstream connection's actor is gone, and with it what it was asked."""
        key = self._by_upstream.pop(upstream)
        entry = self._entries[key]
        entry.upstream = None
        self._disconnected(key, entry)

    def _disconnected(self, key: Key, entry: Entry, error: Raw = EMPTY) -> None:
        entry.ready = False
        entry.outdate()
        for method, wanted in entry.lists.items():
            if wanted.fetching:
                self._fetched(key, entry, method, None, error)

    # What upstream connections say

    def _refuse(self, upstream: Ref, id: RequestId) -> None:
        """Nobody stands behind an upstream connection that only lists: what it asks is refused at once, never left
        hanging."""
        upstream.reply(AnswerGiven(id, False, errors.method_not_found("there is no client to ask").raw))

    def _account_changed(self, principal: str, backend: str) -> None:
        """What this principal sees of a server may be something else now."""
        self._slow.answered((principal, backend))
        self._slow_listens.answered((principal, backend))
        for key, entry in list(self._entries.items()):
            if (key.principal, key.backend) == (principal, backend):
                self._close_upstream(key, entry)
                for method, wanted in entry.lists.items():
                    running = wanted.fetching
                    if running:
                        self._end_fetch(key, method, wanted)
                    self._told(key, entry, method, wanted)
                    if running:  # over a connection with the account of before: whoever waits, waits for the new one
                        self._fetch(key, entry, method, wanted)

    def _from_upstream(self, told: UpstreamReady | UpstreamDown | UpstreamNotification | UpstreamWrongEra) -> None:
        key = self._by_upstream.get(told.upstream)
        if key is None:
            return
        entry = self._entries[key]
        match told:
            case UpstreamReady(server_info=server_info):
                entry.ready, entry.wrong_era = True, 0
                entry.server_info = self._hellos[key] = server_info
                self._known.greet(key, server_info)
                for method, wanted in entry.lists.items():
                    if wanted.fetching and wanted.call is None:
                        self._ask(key, entry, method, wanted)
            case UpstreamDown(payload=error):
                self._disconnected(key, entry, error)
            case UpstreamWrongEra(upstream):
                self._wrong_era(key, entry, upstream)
            case UpstreamNotification(method=notification):
                for method, wanted in entry.lists.items():
                    if CHANGED[method] == notification:
                        self._told(key, entry, method, wanted)

    def _told(self, key: Key, entry: Entry, method: str, wanted: Known) -> None:
        """The backend says that this list is another one now."""
        fresh, wanted.stale, wanted.told = not wanted.told, True, True
        if fresh:
            self._check_soon(key, entry, method, wanted)

    def _wrong_era(self, key: Key, entry: Entry, upstream: Ref) -> None:
        """It is of the other era: what was not asked yet is asked over the other kind of upstream connection."""
        del self._by_upstream[upstream]
        self.ctx.demonitor(upstream)
        upstream.reply(Leave(self.ctx.ref))
        entry.upstream, entry.wrong_era = None, entry.wrong_era + 1
        other = self._upstream(key, entry) if entry.wrong_era <= ERA_ATTEMPTS else None
        if other is not None:
            other.reply(Wanted())
        else:
            spec = self._services.table.value.backends.get(key.backend)
            self._backends.reply(self._eras.neither(key.backend, spec))
            self._disconnected(key, entry)

    def _announce(self, entry: Entry, key: Key, notification: str, but: list[Ref] | None = None) -> None:
        """Tells those who watch, but for those who get the list itself."""
        told = set(but or ())
        for watcher in entry.watchers:
            if watcher not in told:
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
