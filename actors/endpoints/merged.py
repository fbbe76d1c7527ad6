"""Several servers under one roof: their names prefixed, their lists merged.

Which server a request belongs to is looked up in tables made from what the servers list (`listing`), never guessed
from the shape of a name.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias, assert_never

import msgspec
from msgspec import Raw, Struct

from actors.endpoints.catalogue import CatalogueChanged, Listed, Patience, list_kind
from actors.endpoints.endpoint import Endpoint
from actors.endpoints.listing import PROMPTS, RESOURCES, TEMPLATES, TOOLS, GatherDue, Listing, Source, hash_of
from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.protocol import aggregate, capabilities, cursors, errors
from actors.protocol import payload as json
from actors.protocol.errors import BROKEN
from actors.protocol.messages import EMPTY
from actors.protocol.methods import CHANGED, LIST_CHANGED, METHODS
from actors.protocol.naming import is_web
from actors.protocol.table import Table, repinned, replaced, touched
from actors.runtime import EMPTY_SET, EMPTY_TABLE, put, without
from actors.upstreams.backends import all_unreachable, unreachable
from actors.upstreams.messages import UpstreamOutcome

PAGE_ITEMS = 1000
"""Items of a merged list in one page: many clients never ask for a second one."""
MISSING = "stagedoor/missing"
"""In the `_meta` of a merged list: the servers whose part is not known, each `pending` or `failed`."""
EXTENSIONS = ("io.modelcontextprotocol/ui",)
"""Extensions that pass between clients and several servers."""

LOOKED_UP: dict[str, tuple[str, ...]] = {
    "tools/call": (TOOLS,),
    "prompts/get": (PROMPTS,),
    "completion/complete": (PROMPTS, RESOURCES, TEMPLATES),
    "resources/read": (RESOURCES, TEMPLATES),
    "resources/subscribe": (RESOURCES, TEMPLATES),
    "resources/unsubscribe": (RESOURCES, TEMPLATES),
}
"""Which lists must be known before a name of this method can be called unknown."""

SHOWN = "shown"
"""The field of a session's record that says which lists its client has, by their digests."""


class ChangeDue(Struct, frozen=True):
    """Time to look whether lists have changed, and to say so."""

    notification: str


AboutLists: TypeAlias = Listed | CatalogueChanged | ChangeDue | GatherDue
"""What the actor of a client hears about merged lists."""


class Merged:
    """The naming of `/mcp` and `/mcp/<group>`."""

    merges = True

    def __init__(self, endpoint: Endpoint, source: Source) -> None:
        self.listing = Listing(endpoint, source, self._list_changed, self._list_complete)
        self.changes = ListChanges(endpoint, self.listing)
        self._endpoint = endpoint
        self._source = source
        self._methods: dict[int, str] = EMPTY_TABLE
        """Of calls that are under way at servers."""
        self._looking: frozenset[int] = EMPTY_SET
        """Calls that wait for lists to be fetched, and requests for lists."""

    @property
    def pending(self) -> int:
        """Calls of which something is remembered."""
        return len(self._methods) + len(self._looking)

    @property
    def configured(self) -> bool:
        """As in `Naming`."""
        return self._endpoint.name in self._endpoint.services.table.value.endpoints

    def unconfigured(self) -> errors.ProtocolError:
        """As in `Naming`."""
        return errors.internal("this endpoint is no longer configured", reason="unconfigured", executed="no")

    # Requests

    def route(self, effect: fx.Dispatch) -> None:
        """As in `Naming`."""
        row = METHODS.get(effect.method)
        if self._endpoint.name not in self._endpoint.services.table.value.endpoints:
            self._endpoint.refuse(effect.call, self.unconfigured())
        elif row is None:
            self._endpoint.refuse(effect.call, errors.method_not_found(effect.method))
        elif row.items is not None:
            self._looking |= {effect.call}
            self.listing.gather(effect.method, lambda: self._gathered(effect))
        else:
            self._route(effect, fresh=False)

    def _route(self, effect: fx.Dispatch, *, fresh: bool) -> None:
        """To the server that owns the name. One that the tables lack may be on a list that was not fetched yet."""
        method, naming = effect.method, self.listing.naming
        routed: aggregate.Routed | errors.Refusal | None
        try:
            routed = aggregate.resolve(method, effect.params, naming)
        except errors.Refusal as refused:
            routed = self._unlisted(effect, naming, refused, fresh=fresh)
        else:
            if not fresh and method != "tools/call" and self._disputed(routed):
                routed = None
        if routed is None:
            self._look_again(effect)
        elif isinstance(routed, errors.Refusal):
            self._refuse(effect, routed)
        elif method == "completion/complete" and self._cannot_complete(routed.backend):
            self._endpoint.end(effect.call, True, Raw(b'{"completion":{"values":[]}}'))
        else:
            self._methods = self._methods or {}
            self._methods[effect.call] = method
            self._endpoint.judge(effect, routed.backend, routed.params, waited=fresh)

    def _refuse(self, effect: fx.Dispatch, refused: errors.Refusal) -> None:
        """A name that nobody has, or that rules hide; but of a server whose lists need an account, it may be there
        with one."""
        if isinstance(refused, aggregate.Unlisted) and refused.backend is not None:
            self._endpoint.guard.unlisted(effect, refused.backend, refused.bare)
        backend, connecting = self._prefixed(effect), self._endpoint.connecting
        if backend is None or not connecting.lacks(backend) or not connecting.hold(effect, backend):
            self._endpoint.refuse(effect.call, refused.error)

    def _unlisted(
        self, effect: fx.Dispatch, naming: aggregate.Naming, refused: errors.Refusal, *, fresh: bool
    ) -> aggregate.Routed | errors.Refusal | None:
        """Where a request goes whose name is in no table; None if that can't be said before the lists are `fresh`. A
        tool may be called by its bare name where only one server has it, which is sure once all have said what they
        have."""
        if isinstance(refused, errors.Malformed):
            return refused
        tool = effect.method == "tools/call"
        # Fresh are all lists, or only that of the one server whose prefix the name has.
        sure = tool and ((fresh and self._prefixed(effect) is None) or not self.listing.silent(TOOLS))
        try:
            bare = aggregate.resolve_bare(effect.params, naming.tools) if sure else None
        except errors.Refusal as ambiguous:
            return ambiguous
        return self._unknown(effect.method, refused) if bare is None and fresh else bare

    def _disputed(self, routed: aggregate.Routed) -> bool:
        """Whether it is a web address that a server may have of which nothing is known and which goes first."""
        if not is_web(routed.name):
            return False
        silent, backends = {*self.listing.silent(RESOURCES), *self.listing.silent(TEMPLATES)}, self.listing.backends
        return bool(silent) and not silent.isdisjoint(backends[: backends.index(routed.backend)])

    def _unknown(self, method: str, unknown: errors.Refusal) -> errors.Refusal:
        """A name is unknown unless the list of the one server that it could be of is."""
        backend = unknown.backend if isinstance(unknown, aggregate.Unlisted) else None
        stands = backend is not None and self.listing.stands_for(backend)
        if backend is None or (not stands and backend not in self.listing.silent(LOOKED_UP[method][0])):
            return unknown
        unauthorized = self.listing.unauthorized(LOOKED_UP[method][0], backend)
        if unauthorized is not None:
            return errors.Refusal(errors.parse_error_member(unauthorized))
        status = self._endpoint.tree.status.get(backend)
        if status is not None and status.failure is not None:
            return errors.Refusal(unreachable(backend, status))
        text = f"server {backend!r}, which may have it, can't be asked"
        return errors.Refusal(errors.internal(text, reason="backend_down", executed="no", backend=backend))

    def _look_again(self, effect: fx.Dispatch) -> None:
        """A name that the tables lack may be on a list that is not known yet, or not known any more."""
        self._looking |= {effect.call}

        def looked() -> None:
            if effect.call in self._looking:
                self._looking = without(self._looking, effect.call)
                route = partial(self._route, effect, fresh=True)
                self._endpoint.leave(effect.call, lambda: self._endpoint.guard.asking(effect.rights, route))

        self.look(LOOKED_UP.get(effect.method, ()), looked, self._prefixed(effect) or "*")

    def _prefixed(self, effect: fx.Dispatch) -> str | None:
        """Whose name it is by its prefix: nobody else's list has to be waited for."""
        try:
            aggregate.resolve(effect.method, effect.params, self.listing.naming)
        except aggregate.Unlisted as unknown:
            return unknown.backend if unknown.backend in self.listing.backends else None
        except errors.Refusal:
            return None
        return None

    def look(self, lists: tuple[str, ...], then: Callable[[], None], of: str = "*") -> None:
        """Brings several lists up to date, of one server or of all."""
        waiting = set(lists)

        def arrived(method: str) -> None:
            waiting.discard(method)
            if not waiting:
                then()

        for method in lists:
            self.listing.gather(method, lambda method=method: arrived(method), looks=of)  # type: ignore[misc]

    def _cannot_complete(self, backend: str) -> bool:
        server_info = self._endpoint.server_info(backend)
        if server_info is None:
            return False
        declared = capabilities.parse(server_info.capabilities)
        return not capabilities.allows(declared, "completion/complete", server_info.version)

    def waits(self, call: int) -> bool:
        """Whether a call waits for lists."""
        return call in self._looking

    def forget(self, call: int) -> None:
        """Nobody waits for this call any more."""
        self._methods.pop(call, None)
        if call in self._looking:
            self._looking = without(self._looking, call)

    # What servers say

    def exposes(self, call: int, method: str) -> None:
        """The outcome of this call will be that of a request of this method."""
        self._methods = put(self._methods, call, method)

    def exposed(self, message: UpstreamOutcome) -> UpstreamOutcome:
        """The outcome of a call, in the client's words."""
        method = self._methods.pop(message.call, None)
        self._methods = self._methods or EMPTY_TABLE
        if method is None:
            return message
        backend, payload = message.backend, message.payload
        if not message.ok:
            payload = aggregate.expose_error(backend, payload, self.listing.naming)
        elif json.mentions(payload, *aggregate.NAMES_IN_RESULTS.get(method, ())):
            payload = aggregate.expose_result(method, backend, payload, self.listing.naming)
        if payload is message.payload:
            return message
        return UpstreamOutcome(backend, message.call, message.ok, payload)

    def notification(self, backend: str, method: str, params: Raw) -> Raw:
        """The params of what a server tells, in the client's words."""
        return aggregate.expose_notification(method, backend, params, self.listing.naming)

    def question(self, backend: str, method: str, params: Raw) -> Raw:
        """As in `Naming`."""
        return aggregate.expose_request(method, backend, params, self.listing.naming)

    # Resources

    def annotations(self, backend: str, tool: str) -> Any:
        """As in `Naming`."""
        view = self.listing.views.get(TOOLS, {}).get(backend)
        return aggregate.annotations_of(view.items, tool) if view is not None else None

    def owner(self, uri: str) -> tuple[str, str] | None:
        """As in `Naming`."""
        owner = self.listing.naming.uris.resolve(uri)
        return (owner.backend, owner.name) if owner is not None else None

    def look_for(self, uris: tuple[str, ...], then: Callable[[], None]) -> None:
        """As in `Naming`."""
        if all(self.owner(uri) is not None for uri in uris):
            then()
        else:
            self.look((RESOURCES, TEMPLATES), then)

    # Lists

    def receive(self, message: AboutLists) -> None:
        """Something has become of a list."""
        match message:
            case Listed():
                self.listing.listed(message)
            case CatalogueChanged(backend, notification):
                if not self._endpoint.lists_itself(backend):
                    self.changed(backend, notification)
            case ChangeDue(notification):
                self.changes.due(notification)
            case GatherDue(method, looks):
                self.listing.gather_due(method, looks=looks)
            case _:
                assert_never(message)

    def changed(self, backend: str, notification: str) -> None:
        """A list of this server may be another one."""
        self.listing.changed(backend, notification)
        self.changes.announce(notification)

    def reconfigured(self, before: Table) -> None:
        """The table was replaced: other lists may be in it, other filters, other names."""
        table = self._endpoint.services.table.value
        others = replaced(before, table)
        kept = frozenset(backend for backend in others & table.backends.keys() if self._endpoint.lists_itself(backend))
        self.listing.forget(others - kept)
        for backend in repinned(before, table):
            self.listing.outdate(backend)
        for kind in sorted(touched(before, table, self._endpoint.name, kept)):
            self.changes.announce(LIST_CHANGED[kind])

    def renewed(self, backend: str) -> None:
        """The client goes on with another server of this name: its lists may be others."""
        self.listing.forget(frozenset({backend}))
        self.changes.announce_all()

    def shrink(self) -> None:
        """Nobody was heard for a while: what can be had again is let go of."""
        if not self.listing.busy:
            self.listing.shrink()

    def let_go(self) -> None:
        """Its actor has ended: its parts point at each other, and their memory is to be free at once."""
        del self.changes, self.listing

    def _list_changed(self, method: str) -> None:
        """What this client was shown is no longer so."""
        self.changes.announce(CHANGED[method])

    def _list_complete(self, method: str) -> None:
        self.changes.gathered(method)

    def _gathered(self, effect: fx.Dispatch) -> None:
        if effect.call in self._looking:
            self._looking = without(self._looking, effect.call)
            self._endpoint.guard.asking(effect.rights, lambda: self._list(effect))
        else:
            self.changes.withheld(effect.method)

    def _list(self, effect: fx.Dispatch) -> None:
        endpoint, method = self._endpoint, effect.method
        if self.listing.hopeless(method):
            endpoint.refuse(effect.call, all_unreachable(self.listing.backends, endpoint.tree.status))
            return
        items = self.listing.merged(method)
        try:
            offset = self._offset(effect, items)
        except errors.Refusal as refusal:
            endpoint.refuse(effect.call, refusal.error)
            return
        result: dict[str, object] = {METHODS[method].items or "": items[offset : offset + PAGE_ITEMS]}
        if offset + PAGE_ITEMS < len(items):
            principal = endpoint.host.principal.name
            cursor = cursors.Cursor(method, principal, self._digest(items), offset + PAGE_ITEMS)
            result["nextCursor"] = cursors.pack(cursor, endpoint.services.sealer)
        missing = self.listing.missing(method)
        self._note_missing(method, missing)
        if missing:
            result["_meta"] = {MISSING: missing}
        another = self.changes.show(method)
        endpoint.end(effect.call, True, json.dumps(result | self._source.hints(method, self.listing.backends)))
        if another and endpoint.many:
            self.changes.tell(CHANGED[method])  # what one client is given, the others may not have

    def _note_missing(self, method: str, missing: Mapping[str, str]) -> None:
        """Operators hear once of each thing that is missing, not once for each client that asks."""
        endpoint = self._endpoint
        name, services, told = endpoint.name, endpoint.services, endpoint.tree.missing
        for backend in missing:
            services.telemetry.count("stagedoor_lists_incomplete_total", (backend,))
        if told.get((name, method), {}) != missing:
            told[name, method] = missing
            if missing:
                services.log.warning("list_incomplete", endpoint=name, list=method, missing=dict(missing))
            else:
                services.log.info("list_complete", endpoint=name, list=method)

    def _digest(self, items: list[Raw]) -> str:
        """Binds a cursor to this endpoint, this configuration, and this very list."""
        return f"{self._endpoint.name}.{self._endpoint.services.table.value.digest}.{hash_of(items)}"

    def _offset(self, effect: fx.Dispatch, items: list[Raw]) -> int:
        try:
            token = msgspec.json.decode(effect.params or b"{}", type=_Page).cursor
        except BROKEN:
            raise errors.Refusal(errors.invalid_params("cursor must be a string")) from None
        if token is None:
            return 0
        opened = cursors.unpack(
            token,
            self._endpoint.services.sealer,
            method=effect.method,
            principal=self._endpoint.host.principal.name,
            digest=self._digest(items),
        )
        return opened.offset


class ListChanges:
    """When a client is told that a merged list has changed: once for many changes, and only of what is really different
    from the list that it has."""

    def __init__(self, endpoint: Endpoint, listing: Listing) -> None:
        self._endpoint = endpoint
        self._listing = listing
        self._announcing: frozenset[str] = EMPTY_SET
        self._late: frozenset[str] = EMPTY_SET
        """What is looked at when the client is heard of."""
        self._patience: defaultdict[str, Patience] = defaultdict(Patience)
        """By notification."""
        self._shown: dict[str, str] = EMPTY_TABLE
        """By method: the digest of the list that the client was given last, or told of."""
        self._recalled: frozenset[str] = EMPTY_SET
        """Those that it was given in an earlier life of its session."""
        self._looked: dict[str, str] = EMPTY_TABLE
        """The same of lists that it was not given, but which were looked into for it."""

    def show(self, method: str) -> bool:
        """The client is given this list: what is different from it from here on is news. Whether it is another one than
        was given before."""
        before, digest = self._shown.get(method), self._listing.digest(method)
        self._recalled = without(self._recalled, method)
        if before == digest:
            return False
        self._shown = put(self._shown, method, digest)
        self._endpoint.save({SHOWN: msgspec.json.encode(self._shown)})
        return before is not None

    def withheld(self, method: str) -> None:
        """What came for a request that was cancelled meanwhile, its client was not given: it is told instead."""
        if self._shown.get(method, "") not in ("", self._listing.digest(method)):
            self.announce(CHANGED[method])

    def gathered(self, method: str) -> None:
        """A list is known as far as it can be. One that was not shown may have been looked up in all the same."""
        if method not in self._shown and method not in self._looked:
            self._looked = put(self._looked, method, self._listing.digest(method))

    def recall(self, fields: Mapping[str, bytes]) -> None:
        """The session was rebuilt: the lists that its client has are those of its earlier life. Nobody told it of
        changes meanwhile, and nobody would from here on: it looks, and watches."""
        if SHOWN in fields:
            self._shown = msgspec.json.decode(fields[SHOWN], type=dict[str, str])
            self._recalled = frozenset(self._shown)
            for notification in sorted({CHANGED[method] for method in self._shown}):
                self.announce(notification)

    def announce_all(self) -> None:
        """Whatever this client was shown may be different."""
        for notification in CHANGED.values():
            self.announce(notification)

    def announce_had(self) -> None:
        """Of the lists that this client has, any may be different for it."""
        for notification in sorted({CHANGED[method] for method in CHANGED if self._had(method) is not None}):
            self.announce(notification)

    def heard(self) -> None:
        """It is known what the client may see."""
        late, self._late = self._late, EMPTY_SET
        for notification in sorted(late):
            self.announce(notification)

    def announce(self, notification: str) -> None:
        """The lists may be others: if they are, the client is told, once for many changes."""
        if notification not in self._announcing:
            self._announcing |= {notification}
            ctx = self._endpoint.host.ctx
            seconds = self._patience[notification].seconds(ctx.now())
            ctx.set_timer(("changed", notification), seconds, ChangeDue(notification))

    def due(self, notification: str) -> None:
        """The debounce time is over: what may have changed is looked at."""
        self._announcing = without(self._announcing, notification)
        if self._endpoint.unheard:
            self._late |= {notification}
            return
        methods = [m for m, said in CHANGED.items() if said == notification and self._had(m) is not None]
        left = set(methods)

        def refreshed(method: str) -> None:
            left.discard(method)
            if not left:
                self._compare(notification, methods)

        if not methods:
            # Nobody knows which lists the client has, perhaps from an earlier session: what is said is passed on.
            self.tell(notification)
        for method in methods:
            self._listing.refresh(method, lambda method=method: refreshed(method))  # type: ignore[misc]

    def _compare(self, notification: str, methods: list[str]) -> None:
        """A client that has these very lists is not told that they have changed."""
        different = [m for m in methods if self._had(m) != self._listing.digest(m) and not self._unsettled(m)]
        self._patience[notification].looked(self._endpoint.host.ctx.now(), different=bool(different))
        for method in different:
            self.show(method)
        if different:
            self.tell(notification)
        else:
            self._count(notification, "spared")

    def _unsettled(self, method: str) -> bool:
        """A list of an earlier life is not another one for the lack of a server that has not answered yet."""
        return method in self._recalled and "pending" in self._listing.missing(method).values()

    def _had(self, method: str) -> str | None:
        """The digest of the list that the client has, as far as is known."""
        return self._shown.get(method) or self._looked.get(method)

    def tell(self, notification: str) -> None:
        """Every client of the endpoint hears it."""
        self._count(notification, "sent")
        host = self._endpoint.host
        host.event(ev.CallProgressed("", None, notification, EMPTY, host.ctx.now()))

    def _count(self, notification: str, outcome: str) -> None:
        self._endpoint.services.telemetry.count("stagedoor_list_changed_total", (list_kind(notification), outcome))


class _Page(msgspec.Struct):
    cursor: str | None = None


def passed_on(bits: capabilities.ClientBits) -> capabilities.ClientBits:
    """Without the extensions that don't pass to several servers: they would only make one view many."""
    return frozenset(b for b in bits if not b.startswith("ext:") or b[4:].split("=")[0] in EXTENSIONS)
