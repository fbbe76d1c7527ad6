"""What the fronts of clients without sessions share: they are as those of sessions, over other links.

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

from actors.brokers.broker_messages import LinkParked, Resume
from actors.exchanges.exchange_running import Running
from actors.fronts.catalogue_messages import Key
from actors.fronts.front import Front, Waiter
from actors.fronts.host import Host, Tree
from actors.links.eras import ERA_ATTEMPTS
from actors.links.link_messages import (
    Call,
    Leave,
    LinkAsked,
    LinkDown,
    LinkOutcome,
    LinkReady,
    LinkTold,
    LinkUnfit,
    Warm,
)
from actors.protocol import capabilities, errors, translate
from actors.protocol import effects as fx
from actors.protocol import payload as json
from actors.protocol.bridge import request_state
from actors.protocol.bridge.input_required import Parked
from actors.protocol.link_events import Hello
from actors.protocol.methods import METHODS
from actors.protocol.modern import ladder, tasks
from actors.protocol.modern.caller import Caller
from actors.protocol.modern.filter import Filter
from actors.protocol.modern.headers import check_arguments
from actors.protocol.modern.outcomes import Outcome
from actors.protocol.modern.retry import Backend, Waiting
from actors.protocol.modern.tool_headers import Mirrored
from actors.protocol.table import BackendSpec
from actors.protocol.versions import LATEST_HANDSHAKE, MODERN
from actors.runtime import Ref
from actors.services import Services

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

    def connected(self, spec: BackendSpec) -> bool:
        """Whether such a broker has a connection now."""


class ModernHost(Host, Protocol):
    """What such a front needs besides."""

    peers: Peers

    @property
    def listening(self) -> bool:
        """Whether anybody wants to hear of changes."""

    def caller(self, call: int) -> Caller:
        """On whose behalf a call is made; with a negative number: for all clients of this actor."""

    def request(self, call: int) -> Running | None:
        """The request of the client that a call is."""

    def finished(self, call: int, backend: Backend, outcome: Outcome) -> Outcome:
        """The outcome of a call at a backend as the client may get it."""

    def parked(self, message: LinkParked) -> Raw:
        """The result for a call that waits at a broker."""

    def heard(self, message: LinkTold) -> None:
        """A message on an upstream subscription."""

    def unsubscribed(self, call: int, error: Raw) -> None:
        """The server has ended what this subscription of the client listens to, in an orderly way (EMPTY) or not."""

    def disconnected(self, backend: str) -> None:
        """Nothing is heard from this backend any more."""


class ModernFront(Front):
    """What both kinds share: whom they call, and what becomes of an answer."""

    host: ModernHost
    hears_changes = False

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

    def connected(self, backend: str) -> bool:
        """Whether this client has a connection of its own to a backend with sessions, for whichever endpoint."""
        spec = self.table.backends.get(backend)
        return spec is not None and not self.shares(backend) and self.host.peers.connected(spec)

    def when_ready(self, backend: str, then: Ready) -> None:
        """Connects, and tells how that went."""
        hello = self.hellos.get(backend)
        if hello is not None:
            then(hello, Raw(b""))
            return
        link = self.link(backend)
        if link is None:
            text = f"no connection to server {backend!r} can be made"
            then(None, errors.internal(text, reason="no_link", executed="no", backend=backend).raw)
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
            key = Key("", MODERN, message.backend)
            self.tree.hellos[key] = message.hello
            self.tree.known.greet(key, message.hello)
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
            text = f"the connection to server {backend!r} ended"
            error = errors.internal(text, reason="link_ended", executed="no", backend=backend)
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
        link = self.link(backend) if self._unfit[backend] <= ERA_ATTEMPTS else None
        calls = [call for call in message.calls if self.calls.get(call.call) == backend]
        if link is not None:
            for call in [call for call in calls if call.method in tasks.METHODS or call.method not in METHODS]:
                # The other era has tasks of another form, and what is not known may mean something else there.
                calls.remove(call)
                about_task = call.method in tasks.METHODS
                refusal = tasks.unknown() if about_task else errors.method_not_found(call.method)
                self.outcome(LinkOutcome(backend, call.call, False, refusal.raw))
            for call in calls:
                link.reply(call)
            link.reply(Warm())
            return
        self._unfit.pop(backend, None)
        failure = self.tree.eras.neither(backend, self.table.backends.get(backend))
        self.tree.backends.reply(failure)
        error = errors.internal(failure.message, reason=failure.reason, executed="no", backend=backend).raw
        for call in calls:
            self.outcome(LinkOutcome(backend, call.call, False, error))
        self._tell_waiting(backend, None, error)

    # Calls

    @property
    def declared_bits(self) -> capabilities.ClientBits:
        """What a backend without sessions hears of the client: also that it knows tasks."""
        client = self.host.client
        bits = client.bits if client is not None else frozenset()
        return self.bits | (bits - capabilities.carried(bits))

    def about_task(self, effect: fx.Dispatch) -> None:
        """A request about a task, for whoever runs it."""
        client, served = self.host.client, self.served
        bits = client.bits if client is not None else frozenset()
        try:
            routed = tasks.routed(effect.params, bits, self.services.sealer, principal=self.host.principal.name)
        except errors.Malformed as malformed:
            self.refuse(effect.call, malformed.error)
        except errors.Refusal as refused:
            self.refuse(effect.call, refused.error)
        else:
            backend = routed.backend
            if served is None or backend not in served.backends or not self.modern(backend):
                self.refuse(effect.call, tasks.unknown())
            elif not self.call(effect.call, backend, effect.method, routed.params, False):
                self.refuse_linkless(effect.call, backend)

    def call(self, call: int, backend: str, method: str, params: Raw, progress: bool) -> bool:
        refusal = self._misdirected(call, backend, method, params)
        if refusal is not None:
            self.refuse(call, refusal)
            return True
        link = self.link(backend)
        if link is None:
            return False
        self._goes_to(call, backend)
        mends = not self.untold(call)
        link.reply(Call(self.host.ctx.ref, call, method, params, progress, self.host.caller(call), mends))
        return True

    def inform(self, method: str, params: Raw) -> None:
        """A notification of the client for the server behind the endpoint, if there is one that it may go to."""
        self.services.telemetry.count("stagedoor_messages_dropped_total", ("unknown_notification",))

    def _goes_to(self, call: int, backend: str) -> None:
        """From here on the deadline of this call is the backend's."""
        self.calls[call] = backend
        if call > 0:
            self.host.routed(call)

    def untold(self, call: int) -> bool:
        """Whether this is a tool call of a client, and nobody has said yet which arguments its headers repeat."""
        return False

    def _misdirected(self, call: int, backend: str, method: str, params: Raw) -> errors.ProtocolError | None:
        """Why this request may not go to this backend: it brings the state of another one, or its headers say something
        else than its arguments."""
        request = self.host.request(call)
        if request is None:
            return None
        if request.pinned not in (None, backend):
            return request_state.invalid()
        if method != "tools/call":
            return None
        try:
            name = json.text_member(params, "name") or ""
            detail = check_arguments(request.headers, self.mirrored(backend, name), params)
        except errors.Malformed as malformed:
            return malformed.error
        return ladder.mismatch(detail) if detail is not None else None

    @abstractmethod
    def mirrored(self, backend: str, tool: str) -> tuple[Mirrored, ...]:
        """Which arguments of a tool the request's headers repeat."""

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
        self._goes_to(call, backend)
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
        judged = message.ok or not self.as_is(message.backend)
        if judged and message.call > 0 and message.call in self.calls:
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
            if not translate.is_told(message.method, MODERN):
                return
            params = translate.notification(message.method, params, MODERN)
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
