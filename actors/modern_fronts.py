"""The fronts of clients without sessions: as those of sessions, over links that suit what such a client may be told.

A backend without sessions is called over the connection that everybody shares, on behalf of each caller; one with
sessions through the broker of this client. Which of the two a backend takes is known, or found out by the first
connection (2026-07-28, versioning).
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from msgspec import Raw
from msgspec.structs import replace

from actors.aggregate import EXTENSIONS, Aggregate
from actors.broker_messages import LinkParked, Resume
from actors.catalogue_messages import Key
from actors.filters import filtered
from actors.front import Front, Waiter
from actors.host import Host, Tree
from actors.link_messages import Call, Leave, LinkAsked, LinkDown, LinkOutcome, LinkReady, LinkTold, LinkUnfit, Warm
from actors.modern_listing import ModernListing
from actors.protocol import aggregate, capabilities, errors
from actors.protocol import effects as fx
from actors.protocol import payload as json
from actors.protocol.bridge import raising, request_state
from actors.protocol.bridge.input_required import Parked
from actors.protocol.link_events import Hello
from actors.protocol.methods import METHODS
from actors.protocol.modern.caller import Caller
from actors.protocol.modern.filter import Filter
from actors.protocol.modern.meta import SERVER_KEY
from actors.protocol.modern.outcomes import Outcome
from actors.protocol.modern.retry import Backend, Waiting
from actors.protocol.table import BackendSpec
from actors.protocol.versions import LATEST_HANDSHAKE, MODERN, SERVED
from actors.runtime import Ref
from actors.services import Services
from actors.transparent import Transparent

ATTEMPTS = 2
"""Connections of either kind that are tried in a row before a backend counts as one that speaks neither era."""

FRESH_FOR = 60_000
"""Milliseconds for which a client may take it that an aggregate offers what it does, once all backends are known."""

Ready = Callable[[Hello | None, Raw], None]
"""Gets what a backend said of itself, or None and the JSON-RPC error object that says why it can't be had."""


class Peers(Protocol):
    """How such a front comes to its links. Both raise AtCapacity and SystemClosed."""

    def modern(self, spec: BackendSpec) -> bool | None:
        """Whether a backend is known to speak the era without sessions, or not to; None: not known."""

    def link(self, spec: BackendSpec) -> Ref:
        """The connection without a session, which everybody shares."""

    def broker(self, spec: BackendSpec) -> Ref:
        """The broker of this client for a backend with sessions."""


class ModernHost(Host, Protocol):
    """What such a front needs besides."""

    peers: Peers

    def caller(self, call: int) -> Caller:
        """On whose behalf a call is made; with a negative number: for all clients of this actor."""

    def pinned(self, call: int) -> str | None:
        """The only backend that may get this call."""

    def finished(self, call: int, backend: Backend, outcome: Outcome) -> Outcome:
        """The outcome of a call at a backend as the client may get it."""

    def parked(self, message: LinkParked) -> Raw:
        """The result for a call that waits at a broker."""

    def heard(self, message: LinkTold) -> None:
        """A message on an upstream subscription."""

    def disconnected(self, backend: str) -> None:
        """Nothing is heard from this backend any more."""


class ModernFront(Front):
    """What both kinds share: whom they call, and what becomes of an answer."""

    host: ModernHost

    def __init__(self, host: ModernHost, endpoint: str, services: Services, tree: Tree) -> None:
        super().__init__(host, endpoint, services, tree)
        self._brokers: set[str] = set()
        self._waiting: dict[str, list[Ready]] = {}
        self._unfit: Counter[str] = Counter()
        self._known: dict[str, Backend] = {}

    # Links

    def _start(self, spec: BackendSpec) -> Ref:
        if self.host.peers.modern(spec) is False:
            self._brokers.add(spec.name)
            return self.host.peers.broker(spec)
        self._brokers.discard(spec.name)
        return self.host.peers.link(spec)

    def modern(self, backend: str) -> bool:
        """Whether a backend is called, or would be tried, without a session."""
        if backend in self.links:
            return backend not in self._brokers
        spec = self.table.backends.get(backend)
        return spec is not None and self.host.peers.modern(spec) is not False

    def when_ready(self, backend: str, then: Ready) -> None:
        """Connects, and tells how that went."""
        hello = self.hellos.get(backend)
        if hello is not None:
            then(hello, Raw(b""))
            return
        link = self.link(backend)
        if link is None:
            then(None, errors.internal("no connection can be made", reason="no_link", executed="no").raw)
            return
        self._waiting.setdefault(backend, []).append(then)
        link.reply(Warm())

    def _tell_waiting(self, backend: str, hello: Hello | None, error: Raw) -> None:
        for then in self._waiting.pop(backend, ()):
            then(hello, error)

    def ready(self, message: LinkReady) -> None:
        super().ready(message)
        self._unfit.pop(message.backend, None)
        self._known[message.backend] = Backend(message.backend, message.hello.version, message.hello.server_info)
        if message.hello.version == MODERN:
            self.tree.hellos[Key("", MODERN, message.backend)] = message.hello
        self._tell_waiting(message.backend, message.hello, Raw(b""))

    def down(self, message: LinkDown) -> None:
        super().down(message)
        self._tell_waiting(message.backend, None, message.payload)

    def _disconnected(self, backend: str) -> None:
        super()._disconnected(backend)
        self.host.disconnected(backend)

    def link_ended(self, ref: Ref) -> None:
        lost = [backend for backend, link in self.links.items() if link is ref]
        super().link_ended(ref)
        for backend in lost:
            error = errors.internal("the connection to the server ended", reason="link_ended", executed="no")
            self._tell_waiting(backend, None, error.raw)

    def unfit(self, message: LinkUnfit) -> None:
        """The backend speaks the other era: its calls go to the other kind of link, under the same numbers."""
        backend, ref = message.backend, self.host.ctx.ref
        if self.links.get(backend) is message.link:
            del self.links[backend]
            self.hellos.pop(backend, None)
            self.host.ctx.demonitor(message.link)
            message.link.reply(Leave(ref))
        self._unfit[backend] += 1
        link = self.link(backend) if self._unfit[backend] <= ATTEMPTS else None
        calls = [call for call in message.calls if self.calls.get(call.call) == backend]
        if link is not None:
            for call in calls:
                link.reply(call)
            link.reply(Warm())
            return
        self._unfit.pop(backend, None)
        error = errors.internal("the server speaks no known revision", reason="no_common_version", executed="no").raw
        for call in calls:
            self.outcome(LinkOutcome(backend, call.call, False, error))
        self._tell_waiting(backend, None, error)

    # Calls

    def call(self, call: int, backend: str, method: str, params: Raw, progress: bool) -> bool:
        if self.host.pinned(call) not in (None, backend):
            self.refuse(call, request_state.invalid())
            return True
        link = self.link(backend)
        if link is None:
            return False
        self.calls[call] = backend
        link.reply(Call(self.host.ctx.ref, call, method, params, progress, self.host.caller(call)))
        return True

    def listen(self, backend: str, filter: Filter, ended: Waiter) -> int:
        """Subscribes at a backend: the number of the call, 0 if there is no link. It has no deadline."""
        self._own -= 1
        params = json.dumps({"notifications": filter.raw})
        self.waiters[self._own] = ended
        if self.call(self._own, backend, "subscriptions/listen", params, False):
            return self._own
        del self.waiters[self._own]
        return 0

    def resume(self, call: int, method: str, waiting: Waiting, *, progress: bool, level: str | None) -> None:
        """Goes on with a call that waits at a broker."""
        backend, (incarnation, park, round) = waiting.backend, waiting.place
        served = self.served
        link = self.link(backend) if served is not None and backend in served.backends else None
        if link is None or backend not in self._brokers:
            self.refuse(call, request_state.invalid())
            return
        self.calls[call] = backend
        ref = self.host.ctx.ref
        link.reply(Resume(ref, call, incarnation, park, round, waiting.answers, progress, level))

    def parked(self, message: LinkParked) -> None:
        """The call waits at the broker: its client is asked."""
        exposed = tuple(
            Parked(q.key, q.method, self.exposed_question(message.backend, q.method, q.params))
            for q in message.requests
        )
        payload = self.host.parked(replace(message, requests=exposed))
        super().outcome(LinkOutcome(message.backend, message.call, True, payload))

    def exposed_question(self, backend: str, method: str, params: Raw) -> Raw:
        """The params of a backend's question as the client sees them."""
        link = self.links.get(backend, self.host.ctx.ref)
        return self.exposed_request(LinkAsked(link, backend, None, 0, method, params))

    def outcome(self, message: LinkOutcome) -> None:
        if message.call > 0 and message.call in self.calls:
            backend = self._known.get(message.backend) or Backend(message.backend, LATEST_HANDSHAKE)
            ok, payload = self.host.finished(message.call, backend, (message.ok, message.payload))
            message = LinkOutcome(message.backend, message.call, ok, payload)
        super().outcome(message)

    def refuse(self, call: int, error: errors.ProtocolError) -> None:
        super().refuse(call, errors.for_modern(error))

    def told(self, message: LinkTold) -> None:
        if message.call is not None and message.call < 0:
            self.host.heard(message)
            return
        known, params = self._known.get(message.backend), message.params
        if known is None or known.version != MODERN:
            raised = raising.notification_to_modern(message.method, params)
            if raised is None:
                return
            params = raised
        self.told_client(replace(message, params=params))

    @abstractmethod
    def told_client(self, message: LinkTold) -> None:
        """A notification of a backend for the client."""

    # Subscriptions

    merges = False
    """Whether lists are made of those of several backends, and change with them."""

    def look_for(self, uris: tuple[str, ...], then: Callable[[], None]) -> None:
        """Brings up to date what tells whose these URIs are."""
        then()

    @abstractmethod
    def owner(self, uri: str) -> tuple[str, str] | None:
        """Whose a URI is, and what it is called there."""

    @property
    def watched(self) -> tuple[str, ...]:
        """The backends whose changes concern this endpoint."""
        served = self.served
        return tuple(b for b in served.backends if b in self.table.backends) if served is not None else ()


class ModernTransparent(ModernFront, Transparent):
    """On `/mcp/<backend>`."""

    def dispatch(self, effect: fx.Dispatch) -> None:
        backend = self._backend()
        if effect.method != "server/discover" or backend is None:
            super().dispatch(effect)
            return

        def ready(hello: Hello | None, error: Raw) -> None:
            self.end(effect.call, hello is not None, _welcome(hello) if hello is not None else error)

        self.when_ready(backend, ready)

    def outcome(self, message: LinkOutcome) -> None:
        spec = self.table.backends.get(message.backend)
        # What the gateway filtered is no longer what the backend said that everybody may see.
        if message.ok and message.call in self.waiters and spec is not None and filtered(spec):
            private = json.replace_members(message.payload, {"cacheScope": json.dumps("private")})
            message = LinkOutcome(message.backend, message.call, True, private)
        super().outcome(message)

    def told_client(self, message: LinkTold) -> None:
        Transparent.told(self, message)

    def owner(self, uri: str) -> tuple[str, str] | None:
        backend = self._backend()
        return (backend, uri) if backend is not None else None


class ModernAggregate(ModernFront, Aggregate):
    """On `/mcp` or `/mcp/<group>`."""

    merges = True

    def __init__(self, host: ModernHost, endpoint: str, services: Services, tree: Tree) -> None:
        super().__init__(host, endpoint, services, tree)
        self.listing: ModernListing = ModernListing(self, tree.memo)
        self._listed: dict[int, str] = {}

    def dispatch(self, effect: fx.Dispatch) -> None:
        row = METHODS.get(effect.method)
        if effect.method == "server/discover":
            self.end(effect.call, True, self._discovered())
            return
        offered, _ = self._offered()
        if row is not None and row.server_capability and not capabilities.parse(offered).has(row.server_capability):
            self.refuse(effect.call, errors.method_not_found(effect.method))
            return
        if row is not None and row.items is not None:
            self._listed[effect.call] = effect.method
        super().dispatch(effect)

    def lists_itself(self, backend: str) -> bool:
        """A backend without sessions shows the same to every connection; one with sessions is asked over the
        catalogue's, which is the same for all requests of this client (2026-07-28, server/tools, "Listing")."""
        return backend in self.hellos and self.modern(backend)

    def end(self, call: int, ok: bool, payload: Raw) -> None:
        method = self._listed.pop(call, None)
        if method is not None and ok:
            ttl = self.listing.ttl(method)
            payload = json.replace_members(payload, {"ttlMs": json.dumps(ttl), "cacheScope": json.dumps("private")})
        super().end(call, ok, payload)

    def own_call(self, backend: str, method: str, params: Raw, waiter: Waiter) -> int:
        if METHODS[method].items is None:
            return super().own_call(backend, method, params, waiter)

        def noted(outcome: LinkOutcome) -> None:
            self.listing.noted(method, outcome)
            waiter(outcome)

        return super().own_call(backend, method, params, noted)

    def cancel(self, call: int, reason: str) -> None:
        self._listed.pop(call, None)
        super().cancel(call, reason)

    def resume(self, call: int, method: str, waiting: Waiting, *, progress: bool, level: str | None) -> None:
        self._methods[call] = method
        super().resume(call, method, waiting, progress=progress, level=level)

    def _hello(self, backend: str) -> Hello | None:
        return super()._hello(backend) or self.tree.hellos.get(Key("", MODERN, backend))

    def _offered(self) -> tuple[Raw, bool]:
        """The capabilities of the endpoint, and whether they are all that there can be: a backend that nobody has asked
        yet counts as having everything."""
        known = [hello for b in self.backends if (hello := self._hello(b)) is not None]
        complete = len(known) == len(self.backends)
        declared = [hello.capabilities for hello in known]
        return capabilities.merge_server(declared, pending=not complete, extensions=EXTENSIONS), complete

    def _discovered(self) -> Raw:
        """Never waits for a backend; one that is not known is connected to, so that it is the next time."""
        offered, complete = self._offered()
        known = [(b, hello) for b in self.backends if (hello := self._hello(b)) is not None]
        parts = [(b, hello.instructions) for b, hello in known if hello.instructions]
        instructions = aggregate.merge_instructions(parts, self.table.separator)
        for backend in self.backends:
            if self._hello(backend) is None:
                self.when_ready(backend, lambda hello, error: None)
        said = {"instructions": instructions} if instructions is not None else {}
        hints = {"ttlMs": FRESH_FOR if complete else 0, "cacheScope": "private"}
        return json.dumps(
            {"resultType": "complete", "supportedVersions": SERVED, "capabilities": offered, **said, **hints}
        )

    def look_for(self, uris: tuple[str, ...], then: Callable[[], None]) -> None:
        if all(self.owner(uri) is not None for uri in uris):
            then()
        else:
            self._look(("resources/list", "resources/templates/list"), then)

    def told_client(self, message: LinkTold) -> None:
        Aggregate.told(self, message)

    def owner(self, uri: str) -> tuple[str, str] | None:
        owner = self.listing.naming.uris.resolve(uri)
        return (owner.backend, owner.name) if owner is not None else None


def _welcome(hello: Hello) -> Raw:
    """What a backend says of itself, with the revisions in which it can be had here."""
    meta = json.members(json.meta_of(hello.result)) if hello.version == MODERN else {}
    if hello.server_info:
        meta[SERVER_KEY] = hello.server_info
    result: dict[str, object] = {
        "resultType": "complete",
        "supportedVersions": SERVED,
        "capabilities": capabilities.transparent_server(hello.capabilities),
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": meta,
    }
    if hello.instructions is not None:
        result["instructions"] = hello.instructions
    return json.dumps(result)
