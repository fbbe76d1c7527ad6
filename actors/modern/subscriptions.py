"""The `subscriptions/listen` requests of one actor of modern requests, and what its servers are watched for.

Each request is a machine, `protocol/modern/subscription`. What they want to hear of the servers is put together: a
modern server is watched by an upstream `subscriptions/listen`, one for each different filter (one with members that
nobody here knows is its request's own: what the server says to it is for this client); a legacy one by
`resources/subscribe`, one for each resource, and by being connected to. A watch that is lost is begun again, and what
may have been missed meanwhile is announced (2026-07-28, patterns/subscriptions, "Graceful Closure").
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import assert_never

from msgspec import Raw, Struct

from actors import ports
from actors.endpoints.catalogue import whose
from actors.endpoints.listing import catalogue_key
from actors.endpoints.slow import Whom
from actors.endpoints.upstreams import no_upstream
from actors.machines.modern import subscription as ev
from actors.machines.modern.subscription import Phase, Subscription, step
from actors.machines.upstream import breaker
from actors.machines.upstream.events import ServerInfo
from actors.modern.endpoint import ModernEndpoint
from actors.ports import NO_RIGHTS, Rights
from actors.protocol import capabilities, errors, sse
from actors.protocol import filter as filters
from actors.protocol import modern_tasks as tasks
from actors.protocol import payload as json
from actors.protocol.capabilities import ClientBits
from actors.protocol.errors import ProtocolError, Refusal
from actors.protocol.filter import Filter
from actors.protocol.messages import EMPTY, Request
from actors.protocol.methods import ACKNOWLEDGED, SUBSCRIBE, UNSUBSCRIBE, UPDATED
from actors.protocol.table import Limits
from actors.quotas import Quotas
from actors.runtime import Ref, Reply
from actors.streams.connection import Connection
from actors.upstreams.messages import UpstreamNotification, UpstreamOutcome

GATHER = 0.1
"""Seconds in which changes of one kind become one notification."""

HONOUR_WITHIN = 10.0
"""Seconds for servers to say what they can do for a subscription; then it is acknowledged without those that have not.
"""

OVER = (Phase.DONE, Phase.ABANDONED)

CAPABILITIES = {
    filters.TOOLS: ("tools", "listChanged"),
    filters.PROMPTS: ("prompts", "listChanged"),
    filters.RESOURCES: ("resources", "listChanged"),
}
"""What a legacy backend must have declared to say that a list has changed."""

LASTS = 30.0
"""Seconds for which a watch must have been there for its loss to be the first one."""

Honoured = Callable[[Filter | None, ProtocolError | None], None]
"""Gets what a backend can do of a filter; None and an error, if it can do nothing at all."""


class Gone(Struct, frozen=True):
    """The connection of a modern request or a subscription is gone."""

    call: int


class FlushDue(Struct, frozen=True):
    """Changes have gathered long enough."""

    call: int


class Expired(Struct, frozen=True):
    """The token ends that a subscription was asked for with: it ends too, and its client comes again."""

    call: int


class HonourDue(Struct, frozen=True):
    """A subscription has waited long enough for those who have not said what they can do."""

    call: int


class WatchDue(Struct, frozen=True):
    """Time to watch a backend again that could not be watched, or was lost."""

    watch: int


def open_stream(kind: str, call: int, reply: Reply, owner: Ref, limits: Limits, quotas: Quotas) -> Connection:
    """Answers with a stream, whose end the owner is told of by `Gone`; `kind` is what it is counted as."""

    def closed(connection: Connection, whole: bool) -> None:
        quotas.streams[kind] -= 1
        owner.reply(Gone(call))

    connection = Connection(call, f"{kind}-{call}", (limits.outbox_events, limits.outbox_bytes), closed)
    quotas.streams[kind] += 1
    if not reply.answer(ports.Streaming(connection)):
        connection.close()
    return connection


@dataclass(slots=True)
class ListenRequest:
    """`places`: the resources asked for, in the words of the backends that have them. `able` grows as backends say what
    they can do; `left` have not."""

    subscription: Subscription
    reply: Reply
    beside: Raw
    """What its one server alone knows of its params."""
    rights: Rights = NO_RIGHTS
    connection: Connection | None = None
    places: dict[str, tuple[str, str]] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)
    able: set[tuple[str, str]] = field(default_factory=set)
    changes: frozenset[str] = frozenset()
    others: tuple[tuple[str, bytes], ...] = ()
    tasks: dict[str, dict[str, str]] = field(default_factory=dict)
    """Those asked for: by backend, its own id → the client's."""
    able_tasks: list[str] = field(default_factory=list)


class ListenRequests:
    """Those that are `open`, by the numbers that the actor gives them."""

    def __init__(self, endpoint: ModernEndpoint, quotas: Quotas, ended: Callable[[], object]) -> None:
        self.open: dict[int, ListenRequest] = {}
        self.watches = Watches(endpoint)
        self._endpoint = endpoint
        self._quotas = quotas
        self._ended = ended
        self._ctx = endpoint.host.ctx

    # What happens to them

    def begin(self, call: int, request: Request, reply: Reply, bits: ClientBits, rights: Rights = NO_RIGHTS) -> None:
        """A `subscriptions/listen` of a client with these bits, asked for with these rights."""
        self._quotas.listens.add(self._endpoint.host.principal, 1)
        try:
            wanted, beside = self._read(request.params, bits)
        except Refusal as refusal:
            self.open[call] = ListenRequest(Subscription(request.id, Filter()), reply, EMPTY, rights)
            self.step(call, ev.Refused(refusal.error))
            return
        reply.on_abandon = lambda: self._ctx.ref.reply(Gone(call))
        self.open[call] = ListenRequest(Subscription(request.id, wanted), reply, beside, rights)
        if rights.ends is not None:
            left = rights.ends - self._endpoint.services.wall()
            self._ctx.set_timer(("expiry", call), max(0.0, left), Expired(call))
        self.step(call, ev.Opened())

    def _read(self, params: Raw, bits: ClientBits) -> tuple[Filter, Raw]:
        """What is asked for, and what the one server behind the endpoint alone knows. Raises Refusal."""
        one_server = not self._endpoint.naming.merges
        wanted = filters.read(params, others=one_server)
        if wanted.tasks and not tasks.declared(bits):
            raise Refusal(tasks.undeclared())
        return wanted, filters.beside(params) if one_server else EMPTY

    def changed(self, backend: str, method: str, params: Raw, users: Collection[int] | None = None) -> None:
        """A notification of a backend that belongs to no request, in the client's words but for the id of a task: one
        that several subscriptions name may have another id in each. `users`: whom it was said to, if not to all."""
        for call, listen in list(self.open.items()):
            if users is not None and call not in users:
                continue
            said: Raw | None = params
            if method == tasks.NOTIFICATION:
                said = tasks.told(params, listen.tasks.get(backend, {}))
            if said is not None:
                self.step(call, ev.Changed(method, said))

    def end_all(self) -> None:
        """The gateway is shutting down."""
        for call in list(self.open):
            self.step(call, ev.Ended())

    def renew(self, concerns: Callable[[Rights], bool]) -> None:
        """Who asked with these rights may see other things than before: he hears that his lists have changed, and
        comes again."""
        for call, listen in list(self.open.items()):
            if not concerns(listen.rights):
                continue
            for method in listen.subscription.filter.changes:
                self.step(call, ev.Changed(method, EMPTY))
            self.step(call, ev.Ended())

    def cut(self) -> None:
        """The actor is no more: who finds the stream broken comes back, and takes it that everything has changed."""
        self._quotas.listens.add(self._endpoint.host.principal, -len(self.open))
        for listen in self.open.values():
            if listen.connection is not None:
                listen.connection.cut()

    def step(self, call: int, event: ev.SubscriptionEvent) -> None:
        """Steps one machine and runs the effects."""
        listen = self.open.get(call)
        if listen is None:
            return
        listen.subscription, effects = step(listen.subscription, event)
        over = listen.subscription.phase in OVER
        if over:
            del self.open[call]
            self._quotas.listens.add(self._endpoint.host.principal, -1)
        for effect in effects:
            self._run(call, listen, effect)
        if over:
            self._ctx.cancel_timer(("flush", call))
            self._ctx.cancel_timer(("honour", call))
            if listen.rights.ends is not None:
                self._ctx.cancel_timer(("expiry", call))
            self._ended()

    def _run(self, call: int, listen: ListenRequest, effect: ev.SubscriptionEffect) -> None:
        match effect:
            case ev.Watch(filter):
                self._watch(call, listen, filter)
            case ev.Unwatch():
                self.watches.remove(call)
            case ev.Answer(status, body):
                listen.reply.answer(ports.Answer(status, body))
            case ev.OpenStream():
                limits = self._endpoint.services.limits
                listen.connection = open_stream("listen", call, listen.reply, self._ctx.ref, limits, self._quotas)
            case ev.Write(frame):
                self._write(call, listen, frame)
            case ev.Close():
                self._close(listen, effect)
            case ev.StartFlushClock():
                self._ctx.set_timer(("flush", call), GATHER, FlushDue(call))
            case ev.Count(what):
                if what != "change_unwanted":
                    self._endpoint.services.telemetry.count("stagedoor_messages_dropped_total", (what,))
            case _:
                assert_never(effect)

    # What the backends can do

    def _watch(self, call: int, listen: ListenRequest, filter: Filter) -> None:
        self._ctx.set_timer(("honour", call), HONOUR_WITHIN, HonourDue(call))
        self._endpoint.naming.look_for(filter.uris, lambda: self._looked(call, listen, filter))

    def _looked(self, call: int, listen: ListenRequest, filter: Filter) -> None:
        """It is known whose the resources are, as far as that can be known."""
        if self.open.get(call) is not listen or listen.subscription.phase is not Phase.OPENING:
            return
        may, guard = self._may_hear, self._endpoint.guard
        owners = {uri: owner for uri in filter.uris if (owner := self._endpoint.naming.owner(uri)) is not None}
        places = {uri: (backend, own) for uri, (backend, own) in owners.items() if may(backend, own)}
        listen.places = places
        principal, sealer = self._endpoint.host.principal.name, self._endpoint.services.sealer
        if filter.tasks:
            listen.tasks = tasks.filtered(filter.tasks, sealer, guard.shows_task, principal=principal)
        parts: dict[str, Filter] = {}
        for backend in self._endpoint.watched:
            uris = tuple(dict.fromkeys(name for owner, name in places.values() if owner == backend))
            part = Filter(filter.changes, uris, tuple(listen.tasks.get(backend, ())), filter.others)
            if not part.empty:
                parts[backend] = part
        listen.left = {backend for backend, part in parts.items() if self._awaits(backend, part)}
        if self._endpoint.naming.merges:
            # The gateway itself says that a merged list has changed, whatever the backends can.
            listen.changes = filter.changes
        for backend, part in parts.items():
            self._watch_part(call, listen, backend, part)
        if not listen.left:
            self.honour(call)

    def _awaits(self, backend: str, part: Filter) -> bool:
        """Whether the acknowledgement waits for what this server can do; not for a slow one of which only changes of
        merged lists are wanted, which the gateway says itself."""
        merged, slow = self._endpoint.merged, self._endpoint.tree.slow_listens
        if merged is None or part.uris or part.tasks:
            return True
        worth = slow.worth(self._whom(backend), HONOUR_WITHIN, self._ctx.now())
        return worth and merged.listing.worth(backend, HONOUR_WITHIN)

    def _whom(self, backend: str) -> Whom:
        return whose(catalogue_key(self._endpoint, backend))

    def _may_hear(self, backend: str, uri: str) -> bool:
        """Whether this client may subscribe to a resource, which is not acknowledged else, like one that there is
        not."""
        guard = self._endpoint.guard
        ruleset = guard.ruleset
        if not guard.accepts(backend, uri):
            return False
        return ruleset is None or ruleset.decide("resource", backend, uri).allowed

    def _watch_part(self, call: int, listen: ListenRequest, backend: str, part: Filter) -> None:
        def honoured(able: Filter | None, error: ProtocolError | None) -> None:
            if self.open.get(call) is not listen:
                return
            listen.left.discard(backend)
            if able is not None:
                self._endpoint.tree.slow_listens.answered(self._whom(backend))
                listen.able |= {(backend, uri) for uri in able.uris}
                own = listen.tasks.get(backend, {})
                listen.able_tasks += [own[task] for task in able.tasks if task in own]
                listen.changes |= able.changes
                listen.others += able.others
            elif error is not None and not self._endpoint.naming.merges:
                self.step(call, ev.Refused(error))
                return
            if not listen.left:
                self.honour(call)

        self.watches.add(call, backend, part, listen.beside, honoured)

    def overdue(self, call: int) -> None:
        """Time is over: what is known counts."""
        listen = self.open.get(call)
        for backend in listen.left if listen is not None else ():
            self._endpoint.tree.slow_listens.late(self._whom(backend), HONOUR_WITHIN, self._ctx.now())
        self.honour(call)

    def honour(self, call: int) -> None:
        """All that are waited for have said what they can do."""
        listen = self.open.get(call)
        if listen is not None and listen.subscription.phase is Phase.OPENING:
            self._ctx.cancel_timer(("honour", call))
            uris = tuple(uri for uri, place in listen.places.items() if place in listen.able)
            able = Filter(listen.changes, uris, tuple(listen.able_tasks), listen.others)
            self.step(call, ev.Honoured(able))

    # The client's side

    def _write(self, call: int, listen: ListenRequest, frame: bytes) -> None:
        connection = listen.connection
        if connection is not None and not connection.put(0, sse.encode_event(frame)):
            self._endpoint.services.telemetry.count("stagedoor_slow_consumers_total", ("listen",))
            self.step(call, ev.Overflowed())

    def _close(self, listen: ListenRequest, effect: ev.Close) -> None:
        connection = listen.connection
        if connection is None:
            return
        if effect.cut:
            connection.cut(sse.encode_event(effect.frame))
        else:
            connection.put(0, sse.encode_event(effect.frame), urgent=True)
            connection.end()


@dataclass(slots=True, eq=False)
class Watch:
    """What one server is watched for, in its own words; `beside` as in `ListenRequest`.

    `key`: server, filter, and the only user that it may have, or 0 for any. `honoured` is None as long as the server
    has not said what it can do; `since` when it did last; `call` is the number of the upstream subscription, 0 if there
    is none.
    """

    number: int
    key: tuple[str, Filter, int]
    backend: str
    filter: Filter
    beside: Raw
    honoured: Filter | None = None
    call: int = 0
    attempt: int = 0
    since: float = 0.0
    missed: bool = False
    waiting: list[Honoured] = field(default_factory=list)
    users: set[int] = field(default_factory=set)


class Watches:
    """The watches of one actor; `users` are the numbers of its listen requests."""

    def __init__(self, endpoint: ModernEndpoint) -> None:
        self._endpoint = endpoint
        self._watches: dict[tuple[str, Filter, int], Watch] = {}
        self._by_call: dict[int, Watch] = {}
        self._subscribed: dict[tuple[str, str], set[int]] = {}
        """Backend and resource → the watches that need this subscription."""
        self._next = 1

    def __len__(self) -> int:
        return len(self._watches)

    def add(self, user: int, backend: str, filter: Filter, beside: Raw, then: Honoured) -> None:
        """Watches a backend; `then` is called once, perhaps at once."""
        key = (backend, filter, user if filter.others or beside else 0)
        watch = self._watches.get(key)
        if watch is None:
            watch = self._watches[key] = Watch(self._next, key, backend, filter, beside)
            self._next += 1
        watch.users.add(user)
        if watch.honoured is not None:
            then(watch.honoured, None)
            return
        watch.waiting.append(then)
        if len(watch.users) == 1:
            self._begin(watch)

    def remove(self, user: int) -> None:
        """A subscription is over; what nobody else needs is not watched any more."""
        for watch in [w for w in self._watches.values() if user in w.users]:
            watch.users.discard(user)
            if not watch.users:
                del self._watches[watch.key]
                self._endpoint.host.ctx.cancel_timer(("watch", watch.number))
                self._end(watch)

    # How a watch begins

    def _begin(self, watch: Watch) -> None:
        def ready(server_info: ServerInfo | None, error: Raw) -> None:
            if not watch.users:
                return
            if server_info is None:
                self._failed(watch, error)
            elif self._endpoint.modern(watch.backend):
                self._listen(watch)
            else:
                self._subscribe(watch, server_info)

        self._endpoint.upstreams.when_ready(watch.backend, ready)

    def _listen(self, watch: Watch) -> None:
        """At a modern backend; its acknowledgement comes as a message on the call."""

        def ended(outcome: UpstreamOutcome) -> None:
            self._by_call.pop(watch.call, None)
            watch.call = 0
            endpoint, backend = self._endpoint, watch.backend
            if watch.honoured is not None and backend in endpoint.upstreams.connections and endpoint.as_is(backend):
                # A loss is mended by the upstream connection: this is the server's own word, to the only ones who
                # listen to it.
                for user in sorted(watch.users):
                    endpoint.host.listens.step(user, ev.Ended(EMPTY if outcome.ok else outcome.payload))
            elif watch.users:
                self._failed(watch, outcome.payload if not outcome.ok else EMPTY)

        watch.call = self._endpoint.listen(watch.backend, watch.filter, watch.beside, ended)
        if watch.call:
            self._by_call[watch.call] = watch
        else:
            self._failed(watch, no_upstream(watch.backend).raw)

    def _subscribe(self, watch: Watch, server_info: ServerInfo) -> None:
        """At a legacy backend."""
        declared = capabilities.parse(server_info.capabilities)
        changes = frozenset(m for m in watch.filter.changes if declared.has(CAPABILITIES[m]))
        wanted = watch.filter.uris if declared.has(("resources", "subscribe")) else ()
        left, good = set(wanted), set[str]()

        def subscribed(uri: str, ok: bool) -> None:
            left.discard(uri)
            if ok:
                good.add(uri)
            else:
                self._needless(watch, uri)
            if not left and watch.users:
                self._honoured(watch, Filter(changes, tuple(u for u in wanted if u in good)))

        if not wanted:
            self._honoured(watch, Filter(changes))
        for uri in wanted:
            self._ask(watch, uri, subscribed)

    def _ask(self, watch: Watch, uri: str, then: Callable[[str, bool], None]) -> None:
        self._subscribed.setdefault((watch.backend, uri), set()).add(watch.number)
        params = json.dumps({"uri": uri})
        if not self._endpoint.upstreams.own_call(
            watch.backend, SUBSCRIBE, params, lambda outcome: then(uri, outcome.ok)
        ):
            then(uri, False)

    def _end(self, watch: Watch) -> None:
        if watch.call:
            del self._by_call[watch.call]
            self._endpoint.cancel(watch.call, "unsubscribed")
        for uri in watch.filter.uris:
            if self._needless(watch, uri):
                self._unsubscribe(watch.backend, uri)

    def _needless(self, watch: Watch, uri: str) -> bool:
        """A watch needs this subscription no more: whether it was the last one."""
        needed = self._subscribed.get((watch.backend, uri), set())
        if watch.number not in needed:
            return False
        needed.discard(watch.number)
        if not needed:
            del self._subscribed[watch.backend, uri]
        return not needed

    def _unsubscribe(self, backend: str, uri: str) -> None:
        if backend in self._endpoint.upstreams.server_infos and not self._endpoint.modern(backend):
            self._endpoint.upstreams.own_call(backend, UNSUBSCRIBE, json.dumps({"uri": uri}), lambda outcome: None)

    # How it goes on

    def heard(self, message: UpstreamNotification) -> None:
        """A message on an upstream subscription: it is passed on as what belongs to no call, to those whose it is. A
        server says the same on others, and what was asked for on one may be nobody else's business."""
        watch = self._by_call.get(message.call or 0)
        if watch is None:
            return
        if message.method == ACKNOWLEDGED:
            try:
                own = self._endpoint.as_is(watch.backend)
                self._honoured(watch, filters.read(message.params, others=own))
            except Refusal as refusal:
                self._failed(watch, refusal.error.raw)
        elif watch.filter.wants(message.method, message.params):
            heard = UpstreamNotification(message.upstream, message.backend, None, message.method, message.params)
            self._endpoint.told(heard, frozenset(watch.users))
        elif self._endpoint.as_is(watch.backend) and tasks.is_strange(message.method) and self._has_one_client(watch):
            for user in sorted(watch.users):
                self._endpoint.host.listens.step(user, ev.Notified(message.method, message.params))
        else:
            self._endpoint.services.telemetry.count("stagedoor_messages_dropped_total", ("not_subscribed",))

    def _has_one_client(self, watch: Watch) -> bool:
        """Whether what the server says to it can be meant for one principal only. Of those that nobody knows each is
        another one."""
        return len(watch.users) == 1 or not self._endpoint.host.principal.anonymous

    def _honoured(self, watch: Watch, honoured: Filter) -> None:
        watch.honoured, watch.since = honoured, self._endpoint.host.ctx.now()
        waiting, watch.waiting = watch.waiting, []
        for then in waiting:
            then(honoured, None)
        if watch.missed:
            watch.missed = False
            self._announce(watch, honoured)

    def _announce(self, watch: Watch, honoured: Filter) -> None:
        """Nobody knows what has changed while nobody listened: everything may have."""
        ref, users = self._endpoint.host.ctx.ref, frozenset(watch.users)
        for method in sorted(honoured.changes):
            self._endpoint.told(UpstreamNotification(ref, watch.backend, None, method, EMPTY), users)
        for uri in honoured.uris:
            updated = UpstreamNotification(ref, watch.backend, None, UPDATED, json.dumps({"uri": uri}))
            self._endpoint.told(updated, users)

    # How it is lost, and found again

    def _failed(self, watch: Watch, error: Raw) -> None:
        """Whoever waits is told; as long as somebody is interested it is tried again."""
        if watch.honoured is not None and self._endpoint.host.ctx.now() - watch.since >= LASTS:
            watch.attempt = 0
        watch.honoured, watch.missed = None, True
        waiting, watch.waiting = watch.waiting, []
        for then in waiting:
            then(None, _error(error))
        if watch.users:
            watch.attempt += 1
            seconds = breaker.delay(watch.attempt, self._endpoint.services.jitter())
            self._endpoint.host.ctx.set_timer(("watch", watch.number), seconds, WatchDue(watch.number))

    def disconnected(self, backend: str) -> None:
        """Nothing is heard from this backend any more. (Upstream subscriptions end by themselves.)"""
        for watch in [w for w in self._watches.values() if w.backend == backend and w.honoured is not None]:
            if not watch.call:
                self._failed(watch, EMPTY)

    def due(self, number: int) -> None:
        """Time to try again."""
        watch = next((w for w in self._watches.values() if w.number == number), None)
        if watch is not None and watch.honoured is None and not watch.call:
            self._begin(watch)


def _error(error: Raw) -> ProtocolError:
    try:
        return errors.parse_error_member(error)
    except ValueError:
        return errors.internal("the server does not say what changes", reason="backend_down", executed="no")
