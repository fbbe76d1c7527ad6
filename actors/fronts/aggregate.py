"""The aggregate front: several backends under one roof, their names prefixed, their lists merged.

Which backend a request belongs to is looked up in tables made from what the backends list (`listing`), never guessed
from the shape of a name.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from actors.fronts.catalogue_messages import DEBOUNCE, LIST_CHANGED, CatalogueChanged, Key, Listed, list_kind
from actors.fronts.front import NEWS, Front
from actors.fronts.host import Host, Tree
from actors.fronts.listing import PROMPTS, RESOURCES, TEMPLATES, TOOLS, Listing, hash_of
from actors.links.backends import all_unreachable, unreachable
from actors.links.link_messages import LinkAsked, LinkOutcome, LinkReady, LinkTold
from actors.protocol import aggregate, capabilities, cursors, errors, tasks
from actors.protocol import effects as fx
from actors.protocol import events as ev
from actors.protocol import payload as json
from actors.protocol.link_calls import SET_LEVEL
from actors.protocol.link_events import Hello
from actors.protocol.messages import EMPTY
from actors.protocol.methods import METHODS, Treatment
from actors.protocol.naming import is_web
from actors.protocol.table import Table
from actors.protocol.table_change import replaced, touches
from actors.protocol.versions import can_use
from actors.services import Services

LONGEST_KEY = 256
"""Characters of a key by capabilities; a longer one is hashed."""

PAGE_ITEMS = 1000
"""Items of a merged list in one page: many clients never ask for a second one."""
LONGEST_CHECK = 30.0
"""Seconds between two looks at lists that servers say have changed again and again, and have not."""
MISSING = "stagedoor/missing"
"""In the `_meta` of a merged list: the servers whose part is not known, each `pending` or `failed`."""
SHOWN = "shown"
"""The field of a session's record that says which lists its client has, by their digests."""
EXTENSIONS = ("io.modelcontextprotocol/ui",)
"""Extensions that an aggregate passes on."""

LOOKED_UP: dict[str, tuple[str, ...]] = {
    "tools/call": (TOOLS,),
    "prompts/get": (PROMPTS,),
    "completion/complete": (PROMPTS, RESOURCES, TEMPLATES),
    "resources/read": (RESOURCES, TEMPLATES),
    "resources/subscribe": (RESOURCES, TEMPLATES),
    "resources/unsubscribe": (RESOURCES, TEMPLATES),
}
"""Which lists must be known before a name of this method can be called unknown."""


@dataclass(frozen=True, slots=True)
class ChangeDue:
    """Time to look whether lists have changed, and to say so."""

    notification: str


class Aggregate(Front):
    """One session on `/mcp` or `/mcp/<group>`."""

    merges = True

    def __init__(self, host: Host, endpoint: str, services: Services, tree: Tree) -> None:
        super().__init__(host, endpoint, services, tree)
        self.listing = Listing(self, tree.memo)
        self._methods: dict[int, str] = {}
        self._looking: set[int] = set()
        """Calls that wait for lists to be fetched, and requests for lists."""
        self._announcing: set[str] = set()
        self._vain: dict[str, tuple[int, float]] = {}
        """By notification: how many looks in a row found nothing new, and when the last one was."""
        self._shown: dict[str, str] = {}
        """By method: the digest of the list that the client was given last, or told of."""
        self._recalled: set[str] = set()
        """Those that it was given in an earlier life of its session."""
        self._looked: dict[str, str] = {}
        """The same of lists that it was not given, but which were looked into for it."""

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends of the endpoint, in order."""
        served = self.served
        return served.backends if served is not None else ()

    def catalogue_key(self, backend: str) -> Key:
        """Whose view of the backend this session sees; all share that of a connection that is configured as shared. (On
        one without sessions, which everybody shares too, each is told of the client for whom it is asked.)"""
        spec = self.table.backends.get(backend)
        if spec is not None and spec.sharing == "shared":
            return Key("", "", backend)
        bits = capabilities.bits_key(self.bits)
        if len(bits) > LONGEST_KEY:  # settings of extensions are as long as the client likes
            bits = hashlib.sha256(bits.encode()).hexdigest()
        return Key(self.host.principal.name, bits, backend)

    @property
    def bits(self) -> capabilities.ClientBits:
        """As far as an aggregate passes them on."""
        return passed_on(super().bits)

    def lists_itself(self, backend: str) -> bool:
        """Whether the session has a connection of its own, over which it may see other things than others."""
        return backend in self.hellos and not self.shares(backend)

    # Requests

    def dispatch(self, effect: fx.Dispatch) -> None:
        row = METHODS.get(effect.method)
        if self.served is None:
            error = errors.internal("this endpoint is no longer configured", reason="unconfigured", executed="no")
            self.refuse(effect.call, error)
        elif effect.method == "initialize":
            self.end(effect.call, True, self._welcome())
        elif row is None:
            self.refuse(effect.call, errors.method_not_found(effect.method))
        elif row.treatment is Treatment.MERGED:
            self._looking.add(effect.call)
            self.listing.gather(effect.method, lambda: self._gathered(effect))
        elif effect.method == SET_LEVEL:
            self._set_level(effect)
        elif effect.method in tasks.ASKING:
            if self.tasks.dispatch(effect) and effect.method == tasks.RESULT:
                self._methods[effect.call] = "tools/call"  # which is what its result is of
        else:
            self._route(effect, fresh=False)

    def _welcome(self) -> Raw:
        """The superset of what the backends have: a session's capabilities can't grow later. What a backend said to
        nobody in particular is not all that it may say to this client."""
        said = {b: h for b in self.backends if (h := self.tree.hello(self.catalogue_key(b))) is not None}
        known = {b: h for b, h in said.items() if self.tree.surely(self.catalogue_key(b))}
        merged = capabilities.merge_server(
            [h.capabilities for h in known.values()], pending=len(known) < len(self.backends), extensions=EXTENSIONS
        )
        result: dict[str, object] = {
            "protocolVersion": self.host.version,
            "capabilities": merged,
            "serverInfo": Raw(self.services.identity),
        }
        if can_use(self.host.version, "tasks"):
            shown = [h.capabilities for b, h in known.items() if self.tasks.offers(b, h)]
            pending = any(b not in known and not self.shares(b) for b in self.backends)
            result["capabilities"] = json.replace_members(merged, {"tasks": tasks.merged(shown, pending=pending)})
        parts = [(b, h.instructions) for b, h in said.items() if h.instructions]
        instructions = aggregate.merge_instructions(parts, self.table.separator, backends=self.table.backends)
        if instructions is not None:
            result["instructions"] = instructions
        return json.dumps(result)

    def _route(self, effect: fx.Dispatch, *, fresh: bool) -> None:
        """To the backend that owns the name. A name that the tables lack may be on a list that was not fetched yet."""
        try:
            routed = self._routed(effect, fresh=fresh)
        except errors.Refusal as refused:
            self.refuse(effect.call, refused.error)
            return
        if routed is None:
            self._look_again(effect)
            return
        backend = routed.backend
        if effect.method == "completion/complete" and self._cannot_complete(backend):
            self.end(effect.call, True, Raw(b'{"completion":{"values":[]}}'))
            return
        refusal = self.subscriptions.note(effect.call, effect.method, effect.params)
        if refusal is not None:
            self.refuse(effect.call, refusal)
        elif self.call(effect.call, backend, effect.method, routed.params, effect.progress):
            self._methods[effect.call] = effect.method
            if fresh:
                self.host.routed(effect.call)
        else:
            self.refuse_linkless(effect.call, backend)

    def _routed(self, effect: fx.Dispatch, *, fresh: bool) -> aggregate.Routed | None:
        """Where a request goes; None if that can't be said before the lists are `fresh`. A tool may be called by its
        bare name where only one backend has it, which is sure once all have said what they have."""
        method, naming = effect.method, self.listing.naming
        try:
            routed = aggregate.resolve(method, effect.params, naming)
            sure = fresh or method == "tools/call" or not self._disputed(routed)
            return routed if sure else None
        except errors.Malformed:
            raise
        except errors.Refusal as unknown:
            looked = fresh and self._prefixed(effect) is None  # else one list only
            sure = method == "tools/call" and (looked or not self.listing.silent(TOOLS))
            bare = aggregate.resolve_bare(effect.params, naming.tools) if sure else None
            if bare is None and fresh:
                raise self._unknown(method, unknown) from None
            return bare

    def _disputed(self, routed: aggregate.Routed) -> bool:
        """Whether it is a web address that a backend may have of which nothing is known and which goes first."""
        if not is_web(routed.name):
            return False
        silent = {*self.listing.silent(RESOURCES), *self.listing.silent(TEMPLATES)}
        return bool(silent) and not silent.isdisjoint(self.backends[: self.backends.index(routed.backend)])

    def _unknown(self, method: str, unknown: errors.Refusal) -> errors.Refusal:
        """A name is unknown unless the list of the one backend that it could be of is."""
        backend = unknown.backend if isinstance(unknown, aggregate.Unlisted) else None
        if backend is None or backend not in self.listing.silent(LOOKED_UP[method][0]):
            return unknown
        status = self.tree.status.get(backend)
        if status is not None and status.failure is not None:
            return errors.Refusal(unreachable(backend, status))
        text = f"server {backend!r}, which may have it, can't be asked"
        return errors.Refusal(errors.internal(text, reason="backend_down", executed="no", backend=backend))

    def _look_again(self, effect: fx.Dispatch) -> None:
        """A name that the tables lack may be on a list that is not known yet, or not known any more."""
        self._looking.add(effect.call)

        def looked() -> None:
            if effect.call in self._looking:
                self._looking.discard(effect.call)
                self.host.leave(effect.call, lambda: self._route(effect, fresh=True))

        self._look(LOOKED_UP.get(effect.method, ()), looked, self._prefixed(effect) or "*")

    def _prefixed(self, effect: fx.Dispatch) -> str | None:
        """Whose name it is by its prefix: nobody else's list has to be waited for."""
        try:
            aggregate.resolve(effect.method, effect.params, self.listing.naming)
        except aggregate.Unlisted as unknown:
            return unknown.backend if unknown.backend in self.backends else None
        except errors.Refusal:
            return None
        return None

    def _look(self, lists: tuple[str, ...], then: Callable[[], None], of: str = "*") -> None:
        """Brings several lists up to date, of one backend or of all."""
        waiting = set(lists)

        def arrived(method: str) -> None:
            waiting.discard(method)
            if not waiting:
                then()

        for method in lists:
            self.listing.gather(method, lambda method=method: arrived(method), looks=of)  # type: ignore[misc]

    def _cannot_complete(self, backend: str) -> bool:
        hello = self._hello(backend)
        if hello is None:
            return False
        declared = capabilities.parse(hello.capabilities)
        return not capabilities.allows(declared, "completion/complete", hello.version)

    def _hello(self, backend: str) -> Hello | None:
        """What the backend said of itself, to this session or to the catalogue."""
        return self.hellos.get(backend) or self.tree.hello(self.catalogue_key(backend))

    def _set_level(self, effect: fx.Dispatch) -> None:
        """The level is the gateway's own to accept: it leaves out what is below, whatever backends make of it."""
        self.end(effect.call, True, Raw(b"{}"))

    def use_level(self, level: str) -> None:
        """Told to every backend that is connected; those that come later hear it when they are."""
        for backend in self.links:
            self.set_level(backend, level)

    def restored(self, uris: tuple[str, ...]) -> None:
        super().restored(uris)
        web = [uri for uri in uris if self.listing.naming.uris.resolve(uri) is None]

        def looked() -> None:
            owners = [self.listing.naming.uris.resolve(uri) for uri in web]
            for owner in owners:
                if owner is not None:
                    self.subscribe_again(owner.backend, owner.name)

        if web:  # such an address is found once the lists are known
            self._look((RESOURCES, TEMPLATES), looked)

    def subscriptions_at(self, backend: str) -> tuple[str, ...]:
        owners = [self.listing.naming.uris.resolve(uri) for uri in self.subscriptions.uris]
        return tuple(owner.name for owner in owners if owner is not None and owner.backend == backend)

    # Lists

    def _gathered(self, effect: fx.Dispatch) -> None:
        """What came for a request that was cancelled meanwhile, its client was not given: it is told instead."""
        if effect.call in self._looking:
            self._looking.discard(effect.call)
            self._list(effect)
        elif self._shown.get(effect.method, "") not in ("", self.listing.digest(effect.method)):
            self.announce(LIST_CHANGED[effect.method])

    def _list(self, effect: fx.Dispatch) -> None:
        if self.listing.hopeless(effect.method):
            self.refuse(effect.call, all_unreachable(self.backends, self.tree.status))
            return
        items = self.listing.merged(effect.method)
        try:
            offset = self._offset(effect, items)
        except errors.Refusal as refusal:
            self.refuse(effect.call, refusal.error)
            return
        result: dict[str, object] = {METHODS[effect.method].items or "": items[offset : offset + PAGE_ITEMS]}
        if offset + PAGE_ITEMS < len(items):
            cursor = self._cursor(effect.method, items, offset + PAGE_ITEMS)
            result["nextCursor"] = cursors.pack(cursor, self.services.sealer)
        missing = self.listing.missing(effect.method)
        self._note_missing(effect.method, missing)
        if missing:
            result["_meta"] = {MISSING: missing}
        self._show(effect.method)
        self.end(effect.call, True, json.dumps(result))

    def _note_missing(self, method: str, missing: Mapping[str, str]) -> None:
        """Operators hear once of each thing that is missing, not once for each client that asks."""
        for backend in missing:
            self.services.telemetry.count("stagedoor_lists_incomplete_total", (backend,))
        place = (self.endpoint, method)
        if self.tree.missing.get(place, {}) != missing:
            self.tree.missing[place] = missing
            if missing:
                self.services.log.warning("list_incomplete", endpoint=self.endpoint, list=method, missing=dict(missing))
            else:
                self.services.log.info("list_complete", endpoint=self.endpoint, list=method)

    def _show(self, method: str) -> None:
        """The client is given this list: what is different from it from now on is news."""
        digest = self.listing.digest(method)
        self._recalled.discard(method)
        if self._shown.get(method) != digest:
            self._shown[method] = digest
            self.host.save({SHOWN: msgspec.json.encode(self._shown)})

    def gathered(self, method: str) -> None:
        """A list is known as far as it can be. One that was not shown may have been looked up in all the same."""
        if method not in self._shown:
            self._looked.setdefault(method, self.listing.digest(method))

    def recall(self, fields: Mapping[str, bytes]) -> None:
        """The session was rebuilt: the lists that its client has are those of its earlier life. Nobody told it of
        changes meanwhile, and nobody would from here on: it looks, and watches."""
        if SHOWN in fields:
            self._shown = msgspec.json.decode(fields[SHOWN], type=dict[str, str])
            self._recalled = set(self._shown)
            for notification in sorted({LIST_CHANGED[method] for method in self._shown}):
                self.announce(notification)

    def _cursor(self, method: str, items: list[Raw], offset: int) -> cursors.Cursor:
        """Where the next page begins."""
        return cursors.Cursor(
            method=method,
            backend=self.endpoint,
            cursor=str(offset),
            epoch=0,
            principal=self.host.principal.name,
            digest=self._digest(items),
        )

    def _digest(self, items: list[Raw]) -> str:
        """Binds a cursor to this endpoint, this configuration, and this very list."""
        return f"{self.endpoint}.{self.table.digest}.{hash_of(items)}"

    def _offset(self, effect: fx.Dispatch, items: list[Raw]) -> int:
        try:
            token = msgspec.json.decode(effect.params or b"{}", type=_Page).cursor
        except (msgspec.DecodeError, RecursionError):
            raise errors.Refusal(errors.invalid_params("cursor must be a string")) from None
        if token is None:
            return 0
        opened = cursors.unpack(
            token,
            self.services.sealer,
            method=effect.method,
            principal=self.host.principal.name,
            digest=self._digest(items),
        )
        return int(opened.cursor or "0")

    def listed(self, message: Listed) -> None:
        self.listing.listed(message)

    def changed(self, message: CatalogueChanged) -> None:
        if not self.lists_itself(message.backend):
            self.listing.changed(message.backend, message.notification)
            self.announce(message.notification)

    def gather_due(self, method: str, *, looks: str) -> None:
        self.listing.gather_due(method, looks=looks)

    def list_changed(self, method: str) -> None:
        """What this session was shown is no longer so."""
        self.announce(LIST_CHANGED[method])

    def reconfigured(self, before: Table) -> None:
        """The table was replaced: other lists may be in it, other filters, other names."""
        self.listing.forget(replaced(before, self.table))
        if touches(before, self.table, self.endpoint):
            self.announce_all()

    def announce_all(self) -> None:
        """Whatever this session was shown may be different now."""
        for notification in LIST_CHANGED.values():
            self.announce(notification)

    def announce(self, notification: str) -> None:
        """The lists may be others: if they are, the client is told, once for many changes."""
        if notification not in self._announcing:
            self._announcing.add(notification)
            vain, at = self._vain.get(notification, (0, 0.0))
            if self.host.ctx.now() - at > 2 * LONGEST_CHECK:
                vain, self._vain[notification] = 0, (0, at)
            seconds = min(LONGEST_CHECK, DEBOUNCE * 2 ** min(vain, 16))
            self.host.ctx.set_timer(("changed", notification), seconds, ChangeDue(notification))

    def change_due(self, notification: str) -> None:
        """The debounce time is over: what may have changed is looked at."""
        self._announcing.discard(notification)
        methods = [m for m, said in LIST_CHANGED.items() if said == notification and self._had(m) is not None]
        left = set(methods)

        def refreshed(method: str) -> None:
            left.discard(method)
            if not left:
                self._compare(notification, methods)

        if not methods:
            # Nobody knows which lists the client has, perhaps from an earlier session: what is said is passed on.
            self._tell(notification)
        for method in methods:
            self.listing.refresh(method, lambda method=method: refreshed(method))  # type: ignore[misc]

    def _compare(self, notification: str, methods: list[str]) -> None:
        """A client that has these very lists is not told that they have changed."""
        different = [m for m in methods if self._had(m) != self.listing.digest(m) and not self._unsettled(m)]
        vain = 0 if different else self._vain.get(notification, (0, 0.0))[0] + 1
        self._vain[notification] = (vain, self.host.ctx.now())
        for method in different:
            self._show(method)
        if different:
            self._tell(notification)
        else:
            self._count(notification, "spared")

    def _unsettled(self, method: str) -> bool:
        """A list of an earlier life is not another one for the lack of a server that has not answered yet."""
        return method in self._recalled and "pending" in self.listing.missing(method).values()

    def _had(self, method: str) -> str | None:
        """The digest of the list that the client has, as far as is known."""
        return self._shown.get(method) or self._looked.get(method)

    def _tell(self, notification: str) -> None:
        self._count(notification, "sent")
        self.host.event(ev.CallProgressed("", None, notification, EMPTY, self.host.ctx.now()))

    def _count(self, notification: str, outcome: str) -> None:
        self.services.telemetry.count("stagedoor_list_changed_total", (list_kind(notification), outcome))

    # What links say

    def ready(self, message: LinkReady) -> None:
        super().ready(message)
        if self.lists_itself(message.backend):
            self.listing.connected(message.backend)

    def outcome(self, message: LinkOutcome) -> None:
        method = self._methods.pop(message.call, None)
        if method is not None:
            naming = self.listing.naming
            if message.ok:
                payload = aggregate.expose_result(method, message.backend, message.payload, naming)
            else:
                payload = aggregate.expose_error(message.backend, message.payload, naming)
            message = LinkOutcome(message.backend, message.call, message.ok, payload)
        super().outcome(message)

    def shrink(self) -> None:
        super().shrink()
        if not self.listing.busy:
            self.listing.shrink()

    def go_on(self, effect: fx.Continue) -> None:
        self._methods[effect.call] = effect.method
        super().go_on(effect)

    def may_wait(self, call: int) -> bool:
        return call in self._looking or super().may_wait(call)

    def hold(self, call: int) -> None:
        if call in self._looking:
            self.host.event(ev.CallHeld(call))
        else:
            super().hold(call)

    def cancel(self, call: int, reason: str) -> None:
        self._methods.pop(call, None)
        self._looking.discard(call)
        super().cancel(call, reason)

    def told(self, message: LinkTold) -> None:
        if message.method in NEWS:
            self.heard(message.backend, message.method)
            self.listing.changed(message.backend, message.method)
            self.announce(message.method)
            return
        params = aggregate.expose_notification(message.method, message.backend, message.params, self.listing.naming)
        params = self.tasks.exposed(message.backend, message.method, params)
        now = self.host.ctx.now()
        self.host.event(ev.CallProgressed(message.backend, message.call, message.method, params, now, message.place))

    def exposed_request(self, message: LinkAsked) -> Raw:
        return aggregate.expose_request(message.method, message.backend, message.params, self.listing.naming)


class _Page(msgspec.Struct):
    cursor: str | None = None


def passed_on(bits: capabilities.ClientBits) -> capabilities.ClientBits:
    """Without the extensions that an aggregate does not pass on: they would only make one view many."""
    return frozenset(b for b in bits if not b.startswith("ext:") or b[4:].split("=")[0] in EXTENSIONS)
