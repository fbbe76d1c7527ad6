"""An endpoint for modern requests: routes them to servers, and what servers say back to them.

The rules of clients without a session are here: what is found out of the endpoint by `server/discover`, which server
the state belongs to that a request brings, headers that repeat arguments, tasks under sealed ids, and upstream
subscriptions.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from msgspec import Raw
from msgspec.structs import replace

from actors.endpoints.endpoint import Endpoint
from actors.endpoints.host import Host, Tree, profile_of, whose_connection
from actors.endpoints.last_known import Key
from actors.endpoints.listing import catalogue_key
from actors.endpoints.merged import EXTENSIONS, Merged, passed_on
from actors.endpoints.single import Single
from actors.endpoints.task_registry import exposed
from actors.endpoints.upstreams import Waiter, no_upstream
from actors.machines.modern import request_state
from actors.machines.modern.input_required import InputRequest
from actors.machines.modern.request import ModernRequest
from actors.machines.modern.retry import Backend, Fresh, Retry, Waiting
from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.machines.session.state import Client
from actors.machines.upstream.events import AnswerGiven, ServerInfo, Wanted
from actors.machines.upstream.legacy_state import Profile
from actors.machines.upstream.modern_events import Caller
from actors.modern.lists import LearnedHeaders, ListedHeaders, ModernSource
from actors.pools.messages import Resume, UpstreamSuspended
from actors.pools.pool import PoolKey
from actors.pools.pools import Pools
from actors.ports import NO_RIGHTS, Principal, Rights
from actors.protocol import capabilities, classify_modern, errors, modern_tasks, translate
from actors.protocol import payload as json
from actors.protocol.filter import Filter
from actors.protocol.headers import check_arguments
from actors.protocol.messages import EMPTY, Outcome
from actors.protocol.meta import SERVER_KEY, Envelope
from actors.protocol.methods import METHODS, UPDATED
from actors.protocol.subjects import CALL
from actors.protocol.table import BackendSpec, Table, replaced
from actors.protocol.versions import LATEST_HANDSHAKE, MODERN, SERVED
from actors.runtime import Ref, Registry, Reply
from actors.services import Services
from actors.streams.connection import Connection
from actors.upstreams.messages import (
    Call,
    PeerNotified,
    UpstreamNotification,
    UpstreamOutcome,
    UpstreamReady,
    UpstreamRequest,
)
from actors.upstreams.start import start_modern_upstream

if TYPE_CHECKING:
    from actors.modern.subscriptions import ListenRequests

FRESH_FOR = 60_000
"""Milliseconds for which a client may take it that several servers offer what they do, once all are known."""


class UpstreamResolver:
    """The connections that there are for one kind of client: the pools of legacy servers are those of its `key`."""

    def __init__(self, key: PoolKey, services: Services, tree: Tree, pools: Pools, registry: Registry) -> None:
        self._key = key
        self._services = services
        self._tree = tree
        self._pools = pools
        self._registry = registry

    def modern(self, spec: BackendSpec) -> bool | None:
        """Whether a server is known to be modern, or not to be; None: not known."""
        return self._tree.eras.modern(spec)

    def suspends(self, spec: BackendSpec) -> None:
        """One of its calls waits in a pool: as far as nothing else is known of it, it has sessions."""
        if self._tree.eras.modern(spec) is None:
            self._tree.eras.found_modern(spec, False, sure=False)

    def upstream(self, spec: BackendSpec) -> Ref:
        """The connection without a session, which everybody shares. Raises AtCapacity, SystemClosed."""
        tree, spec = self._tree, spec.of(self._key.principal.name)
        return start_modern_upstream(spec, self._services, tree.backends, tree.eras, self._registry, tree.upstreams)

    def pool(self, spec: BackendSpec) -> Ref:
        """The pool of this client for a legacy server. Raises AtCapacity, SystemClosed."""
        return self._pools.find(spec, self._key)

    def connected(self, spec: BackendSpec) -> bool:
        """Whether such a pool has a connection."""
        return self._pools.connected(spec, self._key)


@dataclass(slots=True)
class Running:
    """One modern request, and the connection of its client. `pinned`: the backend whose state it brings; `tool`: what
    the backend calls the tool that is asked for, where a policy wants to know.

    `head_due`, `due`: when its head is, and its answer; `looks_at`: when a timer tells of either (infinite: never).
    """

    state: ModernRequest
    envelope: Envelope
    headers: Mapping[str, str] | None
    reply: Reply
    rights: Rights = NO_RIGHTS
    connection: Connection | None = None
    pinned: str | None = None
    tool: str = ""
    retry: Retry | None = None
    head_due: float = math.inf
    due: float = math.inf
    looks_at: float = math.inf


class ModernHost(Host, Protocol):
    """The modern requests of one kind of client."""

    resolver: UpstreamResolver

    running: dict[int, Running]
    """The requests under way, by the numbers of their calls."""

    listens: "ListenRequests"

    @property
    def client(self) -> Client:
        """What its clients can be asked, and who asks for what many of them share."""

    def finished(self, call: int, backend: Backend, outcome: Outcome) -> Outcome:
        """The outcome of a call at a backend as the client may get it."""

    def suspended(self, message: UpstreamSuspended) -> Raw:
        """The result for a call that waits at an affinity pool."""

    def connecting(self, call: int, backend: str, params: Raw, *, paid: bool) -> Raw:
        """The result for a call whose user is sent to our page. `paid`: its limits have let it through."""


class ModernEndpoint(Endpoint):
    """The endpoint of one kind of modern client: routes its requests, and puts them into the words of their servers."""

    era = "modern"
    host: ModernHost
    many = True

    def __init__(self, host: ModernHost, name: str, services: Services, tree: Tree, *, merged: bool) -> None:
        own = capabilities.carried(host.client.bits)
        self._bits = passed_on(own) if merged else own
        self.dialer = ModernDialer(host, self._bits, merged=merged)
        super().__init__(host, name, services, tree, self.dialer)
        self.headers: ListedHeaders | LearnedHeaders
        """Which arguments of tools the headers of a request repeat."""
        self._single: Single | None = None
        self._learned: LearnedHeaders | None = None
        if merged:
            self.merged = self.naming = Merged(self, ModernSource(self))
            self.headers = ListedHeaders(self, self.merged.listing)
        else:
            self._single = self.naming = Single(self)
            self.headers = self._learned = LearnedHeaders(self, self._single)
        self._known: dict[str, Backend] = {}
        self._offer: tuple[list[ServerInfo | None], Raw, capabilities.Capabilities] | None = None

    def statistics(self) -> dict[str, int]:
        """As in `Endpoint`."""
        return super().statistics() | {"headers": self._learned.pending if self._learned is not None else 0}

    @property
    def bits(self) -> capabilities.ClientBits:
        """As in `Endpoint`."""
        return self._bits

    # What the servers are

    def modern(self, backend: str) -> bool:
        """Whether a server is called, or would be tried, without a session."""
        if backend in self.upstreams.connections:
            return backend not in self.dialer.pools
        spec = self.services.table.value.backends.get(backend)
        return spec is not None and self.host.resolver.modern(spec) is not False

    def as_is(self, backend: str) -> bool:
        """As in `Endpoint`."""
        known = self._known.get(backend)
        return known is not None and known.version == MODERN and self.merged is None

    def server_info(self, backend: str) -> ServerInfo | None:
        """As in `Endpoint`."""
        server_info = self.upstreams.server_infos.get(backend) or self.tree.server_info(Key("", MODERN, backend))
        return server_info or self.tree.server_info(catalogue_key(self, backend))

    def lists_itself(self, backend: str) -> bool:
        """A modern server shows the same to every connection. A legacy one may show other things to the connection of
        this client, which is the same for all its requests; as long as it has none, what is shown is what the catalogue
        knows."""
        up = backend in self.upstreams.server_infos
        return up and (backend not in self.dialer.pools or not self.upstreams.shares(backend))

    @property
    def watched(self) -> tuple[str, ...]:
        """The servers whose changes concern this endpoint."""
        served, backends = self.upstreams.served, self.services.table.value.backends
        return tuple(b for b in served.backends if b in backends and self.guard.sees(b)) if served is not None else ()

    def profile(self, spec: BackendSpec) -> Profile:
        """As in `Endpoint`."""
        client, whose = None if spec.common else self.host.client, self.host.principal
        return profile_of(client, self.bits, 1, self.services.identity, principal=whose_connection(spec, whose))

    # Accounts

    def client_info(self, call: int) -> Raw:
        """As in `Endpoint`."""
        request = self.host.running.get(call)
        return request.envelope.info if request is not None else EMPTY

    def ask(self, call: int, id: str, params: Raw) -> None:
        """As in `Endpoint`: the result asks, and the client comes again."""
        held = self.connecting.held[call]
        self.end(call, True, self.host.connecting(call, held.backend, params, paid=held.effect.paid))

    def accepted(self, call: int) -> bool:
        """As in `Endpoint`."""
        request = self.host.running.get(call)
        return request is not None and isinstance(request.retry, Fresh) and request.retry.visited

    def complete(self, params: Raw) -> None:
        """As in `Endpoint`: this revision has no word for it."""

    # Requests of clients

    def dispatch(self, effect: fx.Dispatch) -> None:
        """A request of a client; `CallEnded` follows, now or later."""
        method = effect.method
        if method == "tools/call" and self._learned is not None and self._learned.holds(effect):
            return
        if method in modern_tasks.METHODS:
            self._about_task(effect)
        elif not self._offers(method):
            self.refuse(effect.call, errors.method_not_found(method))
        elif method == "server/discover":
            self._discover(effect.call)
        else:
            self.naming.route(effect)

    def _offers(self, method: str) -> bool:
        """Several servers have what they have declared. A single one answers for itself, but between the eras only what
        is known can pass."""
        if self.merged is not None:
            row = METHODS.get(method)
            capability = row.server_capability if row is not None else None
            return capability is None or self._offered()[1].has(capability)
        if method in METHODS:
            return True
        backend = self._single.backend if self._single is not None else None
        return backend is None or self.modern(backend)

    def send(self, effect: fx.Dispatch, backend: str, params: Raw, *, waited: bool = False) -> None:
        """As in `Endpoint`."""
        call, method = effect.call, effect.method
        spec = self.services.table.value.backends.get(backend)
        if spec is not None and spec.auth is not None and spec.connectable and self.connects(effect, backend, params):
            return
        request = self.host.running.get(call)
        if request is not None and isinstance(request.retry, Waiting):
            self._go_on(effect, backend, request, request.retry)
            return
        if request is not None and method == CALL and self.services.table.value.policy is not None:
            request.tool = json.text_member(params, "name") or ""
        refusal = self._misdirected(call, backend, method, params)
        if refusal is not None:
            self.refuse(call, refusal)
            return
        if self.services.observer is not None:
            self.host.sent(call, backend)
        mends = self._learned is None or not self._learned.untold(call)
        if not self.upstreams.call(call, backend, method, params, effect.progress, mends=mends, rights=effect.rights):
            self.refuse(call, no_upstream(backend))
            return
        spec, limits = self.services.table.value.backends[backend], self.services.limits
        if spec.timeout < limits.request_deadline:
            self.host.routed(call)  # from here on the deadline of this call is the server's

    def _misdirected(self, call: int, backend: str, method: str, params: Raw) -> errors.ProtocolError | None:
        """Why this request may not go to this server: it brings the state of another one, or its headers say something
        else than its arguments."""
        request = self.host.running.get(call)
        if request is None:
            return None
        if request.pinned not in (None, backend):
            return request_state.invalid()
        if method != "tools/call" or request.headers is None:
            return None
        try:
            name = json.text_member(params, "name") or ""
            detail = check_arguments(request.headers, self.headers.mirrored(backend, name), params)
        except errors.Malformed as malformed:
            return malformed.error
        return classify_modern.mismatch(detail) if detail is not None else None

    def _about_task(self, effect: fx.Dispatch) -> None:
        """A request about a task, for whoever runs it."""
        served, principal = self.upstreams.served, self.host.principal.name
        try:
            routed = modern_tasks.routed(
                effect.params, self.host.client.bits, self.services.sealer, principal=principal
            )
        except errors.Malformed as malformed:
            self.refuse(effect.call, malformed.error)
        except errors.Refusal as refused:
            self.refuse(effect.call, refused.error)
        else:
            backend = routed.backend
            about = self.guard.asking(effect.rights, lambda: self.guard.shows_task(backend, routed.tool))
            if served is None or backend not in served.backends or not about or not self.modern(backend):
                self.refuse(effect.call, modern_tasks.unknown())
            else:
                passed = fx.Dispatch(effect.call, effect.method, routed.params, False, effect.rights)
                if self.merged is not None:
                    self.merged.exposes(effect.call, effect.method)
                self.send(passed, backend, routed.params)

    def _go_on(self, effect: fx.Dispatch, backend: str, request: Running, waiting: Waiting) -> None:
        """The rules let a call through that waits at an affinity pool."""
        if waiting.backend != backend:
            self.refuse(effect.call, request_state.invalid())
        else:
            level = request.state.level
            self.resume(effect.call, effect.method, waiting, progress=effect.progress, level=level)

    def resume(
        self, call: int, method: str, waiting: Waiting, *, progress: bool, level: str | None, waited: bool = False
    ) -> None:
        """Goes on with a call that waits at an affinity pool: that of a server with sessions, as another replica has
        found out if this one has not."""
        backend, (incarnation, suspend, round) = waiting.backend, waiting.place
        served = self.upstreams.served
        if served is not None and backend in served.backends:
            self.host.resolver.suspends(self.services.table.value.backends[backend])
            if backend in self.upstreams.connections and self.modern(backend) and not waited:
                # Somebody is finding out.
                def again(server_info: ServerInfo | None, error: Raw) -> None:
                    if call in self.host.running:
                        self.resume(call, method, waiting, progress=progress, level=level, waited=True)

                self.upstreams.when_ready(backend, again)
                return
        upstream = self.upstreams.connection(backend) if served is not None and backend in served.backends else None
        if upstream is None or backend not in self.dialer.pools:
            self.refuse(call, request_state.invalid())
            return
        self.upstreams.runs(call, backend)
        if self.services.observer is not None:
            self.host.sent(call, backend)
        if self.merged is not None:
            self.merged.exposes(call, method)
        self.host.routed(call)
        upstream.reply(Resume(self.host.ctx.ref, call, incarnation, suspend, round, waiting.answers, progress, level))

    def inform(self, method: str, params: Raw) -> None:
        """A notification of the client for the server behind the endpoint, if there is one that it may go to: between
        the eras only what is known, and the mailbox is everybody's."""
        backend = self._single.backend if self._single is not None else None
        if backend is not None and not self.guard.shows(backend, "tool", method):
            backend = None
        upstream = self.upstreams.connection(backend) if backend is not None and self.modern(backend) else None
        # The upstream connection of before may have gone, and the new one be a pool: what the era is was found out
        # since.
        known = upstream is not None and backend not in self.dialer.pools
        if upstream is None or not known or not upstream.cast(PeerNotified(method, params, self.host.principal.name)):
            self.services.telemetry.count("stagedoor_messages_dropped_total", ("unknown_notification",))

    def forget(self, call: int) -> None:
        """As in `Endpoint`."""
        super().forget(call)
        if self._learned is not None:
            self._learned.forget(call)

    def refuse(self, call: int, error: errors.ProtocolError) -> None:
        """As in `Endpoint`."""
        super().refuse(call, errors.for_modern(error))

    # What the endpoint says of itself

    def _discover(self, call: int) -> None:
        """A single server answers itself. For several the gateway does, and waits for none of them: one that is not
        known is connected to, so that it is the next time."""
        if self.merged is not None:
            self.end(call, True, self._discovered(self.merged))
            return
        backend = self._single.backend if self._single is not None else None
        if backend is None:
            self.refuse(call, self.naming.unconfigured())
            return

        def ready(server_info: ServerInfo | None, error: Raw) -> None:
            if server_info is None:
                self.end(call, False, error)
            else:
                said = discover_result(server_info)
                self.end(call, True, self.guard.introducing(backend, server_info.instructions, said))

        self.upstreams.when_ready(backend, ready)

    def _offered(self) -> tuple[Raw, capabilities.Capabilities]:
        """The capabilities of several servers; one that nobody has asked yet, or that this client does not see, counts
        as having everything."""
        up, table = self.upstreams.server_infos, self.services.table.value
        served = table.endpoints.get(self.name)
        backends = configured = served.backends if served is not None else ()
        if table.policy is not None:
            backends = tuple(backend for backend in configured if self.guard.sees(backend))
        server_infos = [up.get(backend) or self.server_info(backend) for backend in backends]
        offer = self._offer
        if offer is not None and offer[0] == server_infos:
            return offer[1], offer[2]
        known = [server_info for server_info in server_infos if server_info is not None]
        # Only modern ones have tasks of this era, whatever others may say.
        declared = [capabilities.transparent_server(h.capabilities, modern=h.version == MODERN) for h in known]
        extensions = (*EXTENSIONS, modern_tasks.EXTENSION)
        offered = capabilities.merge_server(declared, pending=len(known) < len(configured), extensions=extensions)
        self._offer = (server_infos, offered, capabilities.parse(offered))
        return self._offer[1], self._offer[2]

    def _discovered(self, merged: Merged) -> Raw:
        offered, _ = self._offered()
        backends = merged.listing.backends
        said = {b: server_info for b in backends if (server_info := self.server_info(b)) is not None}
        for backend in backends:
            if backend not in said:
                self.upstreams.when_ready(backend, lambda server_info, error: None)
        hints = {"ttlMs": FRESH_FOR if len(said) == len(backends) else 0, "cacheScope": "private"}
        result = {"resultType": "complete", "supportedVersions": SERVED, "capabilities": offered}
        return json.dumps(result | self.instructions(said) | hints)

    # What connections say

    def outcome(self, message: UpstreamOutcome) -> None:
        """As in `Endpoint`."""
        if message.call in self.connecting.noted and self._held(message):
            return
        if self.pinning is not None:
            message = self.pinning.worded(message)
        request = self.host.running.get(message.call)
        if self._learned is not None:
            learned = self._learned.outcome(message, request)
            if learned is None:
                return
            message = learned
        if request is not None and self.services.table.value.policy is not None:
            message = self._for_this_client(message)
        if not message.ok and request is not None and self.merged is not None:
            # Before it is put into the words of this era, which may say again what the client asked for.
            failed, merged = message, self.merged
            message = self.guard.asking(self.rights_of(message.call), lambda: merged.exposed(failed))
        backend, ok, payload = message.backend, message.ok, message.payload
        if request is not None and message.call in self.calls and (ok or not self.as_is(backend)):
            known = self._known.get(backend) or Backend(backend, LATEST_HANDSHAKE)
            message = UpstreamOutcome(backend, message.call, *self.host.finished(message.call, known, (ok, payload)))
        super().outcome(message)

    def _for_this_client(self, message: UpstreamOutcome) -> UpstreamOutcome:
        """What a server may say to everybody, not everybody may see here: nobody else is to be given it."""
        if self.guard.ruleset is None or not message.ok or not json.mentions(message.payload, b'"cacheScope"'):
            return message
        try:
            private = json.replace_members(message.payload, {"cacheScope": json.dumps("private")})
        except errors.Malformed:
            return message
        return replace(message, payload=private)

    def suspended(self, message: UpstreamSuspended) -> None:
        """A call waits at its affinity pool: its client is asked."""
        backend = message.backend
        questions = tuple(
            InputRequest(q.key, q.method, self.naming.question(backend, q.method, q.params)) for q in message.requests
        )
        payload = self.host.suspended(replace(message, requests=questions))
        super().outcome(UpstreamOutcome(backend, message.call, True, payload))
        self.forget(message.call)

    def told(self, message: UpstreamNotification, users: Collection[int] | None = None) -> None:
        """A notification of a server: on an upstream subscription, or for a client. `users`: the numbers of the listen
        requests that alone it was said to."""
        if message.call is not None and message.call < 0:
            self.host.listens.watches.heard(message)
            return
        backend, method, params = message.backend, message.method, message.params
        known = self._known.get(backend)
        if known is None or known.version != MODERN:
            if not translate.is_told(method, MODERN):
                return
            params = translate.notification(method, params, MODERN)
        if self._learned is not None:
            self._learned.told(method)
        if self.news(backend, method):
            return
        if method == UPDATED and not self.guard.shows_update(backend, params):
            return
        if method == modern_tasks.NOTIFICATION:
            params = self.guard.without_hidden(backend, params)
        if self.merged is not None:
            params = exposed(backend, method, self.merged.notification(backend, method, params))
        if users is not None:
            self.host.listens.changed(backend, method, params, users)
            return
        now, as_is = self.host.ctx.now(), self.as_is(backend)
        self.host.event(ev.CallProgressed(backend, message.call, method, params, now, message.place, as_is))

    def asked(self, message: UpstreamRequest) -> None:
        """Modern servers ask nothing, and affinity pools suspend calls; whoever asks all the same gets an answer."""
        message.upstream.reply(AnswerGiven(message.id, False, errors.method_not_found(message.method).raw))

    def ready(self, message: UpstreamReady) -> None:
        """A connection is up."""
        backend, server_info = message.backend, message.server_info
        if self.upstreams.connections.get(backend) is not message.upstream:
            return  # nothing new goes over it
        self.upstreams.ready(message)
        self._known[backend] = Backend(backend, server_info.version, server_info.implementation)
        if server_info.version == MODERN:
            key = Key("", MODERN, backend)
            self.tree.server_infos[key] = server_info
            self.tree.known.greet(key, server_info)
        self.connected(backend, server_info)

    def redirect(self, backend: str, upstream: Ref, calls: list[Call]) -> None:
        """As in `Endpoint`. The other era has tasks of another form, and
        what is not known may mean something else there."""
        for call in calls:
            about_task = call.method in modern_tasks.METHODS
            if about_task or call.method not in METHODS:
                refusal = modern_tasks.unknown() if about_task else errors.method_not_found(call.method)
                self.outcome(UpstreamOutcome(backend, call.call, False, refusal.raw))
            else:
                upstream.reply(call)
        upstream.reply(Wanted())

    def disconnected(self, backend: str, was_up: bool) -> None:
        """As in `Endpoint`."""
        self.host.listens.watches.disconnected(backend)

    # Subscriptions

    def listen(self, backend: str, filter: Filter, beside: Raw, ended: Waiter) -> int:
        """Subscribes at a modern server: the number of the call, 0 if there is no connection. It has no deadline.
        `beside`: the params but for the filter, as the client gave them."""
        params = json.replace_members(beside, {"notifications": filter.raw})
        return self.upstreams.own_call(backend, "subscriptions/listen", params, ended, math.inf)

    # Its life

    def reconfigured(self, before: Table) -> None:
        """The table was replaced. A server without sessions is called as it is configured from now on. One with them
        stays, with what it remembers of the client, for as long as the pool of this client does."""
        table, upstreams = self.services.table.value, self.upstreams
        for backend in replaced(before, table) & table.backends.keys() - self.dialer.pools:
            upstreams.renew(backend)
        if self.merged is not None:
            self.merged.reconfigured(before)
        elif self._single is not None:
            self._single.reconfigured(before)


class ModernDialer:
    """Finds the connection to a server for one kind of modern client."""

    changes = False
    told = None

    def __init__(self, host: ModernHost, bits: capabilities.ClientBits, *, merged: bool) -> None:
        self.pools: set[str] = set()
        """The servers that are called through an affinity pool."""
        self._host = host
        self._merged = merged
        # What a modern server hears of the client: also that it knows tasks.
        own = host.client.bits
        self._declared = capabilities.declare(bits | (own - capabilities.carried(own)), MODERN)

    def dial(self, spec: BackendSpec, attempt: int) -> Ref:
        """As in `Dialer`."""
        if self._host.resolver.modern(spec) is False:
            self.pools.add(spec.name)
            return self._host.resolver.pool(spec)
        self.pools.discard(spec.name)
        return self._host.resolver.upstream(spec)

    def caller(self, backend: str, call: int) -> Caller:
        """The client whose request it is, else (what many share) the gateway."""
        host, request = self._host, self._host.running.get(call)
        principal: Principal = host.principal
        if request is None:
            return Caller(principal.name, self._declared, host.client.info, None, False)
        info, level = request.envelope.info, request.state.level
        if self._merged:
            return Caller(principal.name, self._declared, info, level, False)
        return Caller(principal.name, request.envelope.capabilities.raw, info, level, False, as_is=True)

    def shares(self, spec: BackendSpec) -> bool:
        """As in `Dialer`."""
        return spec.common


def discover_result(server_info: ServerInfo) -> Raw:
    """What a server says of itself, with the revisions in which it can be had here. A modern one says it in its own
    words."""
    modern = server_info.version == MODERN
    result: dict[str, object] = {**json.members(server_info.result)} if modern else {}
    if server_info.instructions is not None:
        result["instructions"] = server_info.instructions
    meta = json.members(json.meta_of(server_info.result)) if modern else {}
    return json.dumps(
        {
            **result,
            "resultType": "complete",
            "supportedVersions": SERVED,
            "capabilities": capabilities.transparent_server(server_info.capabilities, modern=modern),
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": {**meta, SERVER_KEY: server_info.implementation},
        }
    )
