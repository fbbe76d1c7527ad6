"""The actor of exchanges: the requests of one client without sessions, as far as it can be told to be one.

There is one for each endpoint, principal, kind of client (what it can be asked) and affinity that the client may give;
it exists while there is something to do. It hosts a front, steps a machine for each request and each subscription, and
keeps nothing of one request for the next: what must outlast an answer is sealed in the client's hands.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Raw, Struct

from actors import ports
from actors.brokers.broker_messages import LinkParked
from actors.durations import Durations
from actors.exchanges import exchange_messages as xm
from actors.exchanges.exchange_effects import EFFECTS, clock_due
from actors.exchanges.exchange_running import Running
from actors.exchanges.modern_front import ModernFront, Peers
from actors.exchanges.modern_fronts import ModernAggregate, ModernTransparent
from actors.exchanges.subscribers import Subscribers
from actors.fronts.aggregate import ChangeDue
from actors.fronts.catalogue_messages import CatalogueChanged, Listed
from actors.fronts.host import Tree
from actors.fronts.listing import GatherDue
from actors.ledger import Ledger
from actors.links.link_messages import LinkAsked, LinkDown, LinkOutcome, LinkReady, LinkTold, LinkUnfit, LinkWithdrew
from actors.links.own_calls import OwnDue
from actors.links.resume import KeptLinks
from actors.links.shares import Evict, Evictable
from actors.protocol import capabilities, codec, errors, sse
from actors.protocol import effects as fx
from actors.protocol import events as ev
from actors.protocol.capabilities import ClientBits
from actors.protocol.messages import EMPTY, RequestId
from actors.protocol.modern import exchange_events as xv
from actors.protocol.modern import retry
from actors.protocol.modern import subscription_events as sv
from actors.protocol.modern.caller import Caller
from actors.protocol.modern.exchange import Exchange, step
from actors.protocol.modern.exchange_table import Phase
from actors.protocol.modern.outcomes import Outcome
from actors.protocol.session_state import Client
from actors.protocol.table_change import Replaced, touches
from actors.protocol.versions import MODERN
from actors.runtime import SHUTDOWN, Down, Exit
from actors.services import DRAIN_MARGIN, Services

SUBSCRIPTIONS_MAX = 64
"""Of one actor; a further one gets 429. The anonymous principal is everybody: it has as many as there is room for."""

STREAMS_MAX = 4096
"""Subscriptions of the process; a further one gets 503."""

IN_FLIGHT_MAX = 10_000
"""Requests without a session of the process; a further one gets 503."""

OVER = (Phase.DONE, Phase.ABANDONED)


class Kind(Struct, frozen=True):
    """Which requests one actor serves."""

    endpoint: str
    principal: ports.Principal
    bits: ClientBits
    affinity: str


class ExchangesActor(Evictable):
    """Temporary: a crash ends the requests in hand, and the next one begins another."""

    mailbox_size = 4096
    disposable = True

    front: ModernFront
    subscribers: Subscribers

    def __init__(self, kind: Kind, services: Services, tree: Tree, ledger: Ledger, peers: Peers) -> None:
        self.kind = kind
        self.peers = peers
        self.principal = kind.principal
        self.services = services
        self.tree = tree
        self.ledger = ledger
        self.kept = KeptLinks("", services.sealer, _nothing, _nothing)
        self.running: dict[int, Running] = {}
        self.times = Durations(services.telemetry, services.shown)
        # Nothing of the first request itself: what it says of its client holds for no other.
        declared = capabilities.parse(capabilities.declare(kind.bits, MODERN))
        self._client = Client(declared, kind.bits, Raw(services.identity))
        self._next = 1
        self._draining = False
        self._rests_since = 0.0
        self._looks = False

    def __repr__(self) -> str:
        return f"<ExchangesActor: {len(self.running)} requests, {len(self.subscribers)} subscriptions>"

    # What the front sees of its host

    epoch = 1
    version = MODERN
    level = None
    """Of a session; here each request has its own."""

    @property
    def client(self) -> Client | None:
        """What the clients of this kind can be asked. Who they are, each request says for itself."""
        return self._client

    def save(self, fields: dict[str, bytes | None]) -> None:
        """Nothing is kept."""

    def routed(self, call: int) -> None:
        """A request that had to wait has found its backend, whose deadline may be shorter than that which runs."""
        running = self.running.get(call)
        if running is not None and running.exchange.phase not in OVER:
            accepted = running.exchange.accepted
            EFFECTS[xv.StartDeadline](self, call, running, xv.StartDeadline(accepted, accepted))

    def leave(self, call: int, act: Callable[[], None]) -> None:
        """There is no record."""
        act()

    def caller(self, call: int) -> Caller:
        """On whose behalf a call is made: of the client whose request it is, else (what many share) of the gateway."""
        running = self.running.get(call)
        info = running.envelope.info if running is not None else self._client.info
        level = running.exchange.level if running is not None else None
        if running is not None and not self.front.merges:
            return Caller(self.principal.name, running.envelope.capabilities.raw, info, level, False, as_is=True)
        declared = capabilities.declare(self.front.declared_bits, MODERN)
        return Caller(self.principal.name, declared, info, level, False)

    @property
    def listening(self) -> bool:
        """Whether anybody wants to hear of changes."""
        return len(self.subscribers) > 0

    def request(self, call: int) -> Running | None:
        """The request of the client that a call is."""
        return self.running.get(call)

    def event(self, event: ev.SessionEvent) -> None:
        """What a front says to a session, said to one exchange, or to all subscriptions."""
        match event:
            case ev.CallEnded(call, ok, payload):
                self.times.ended(event, self.ctx.now(), MODERN)
                self.step(call, xv.Ended(ok, payload, event.as_is))
            case ev.CallProgressed(backend, None, method, params, _):
                self.subscribers.changed(backend, method, params)
            case ev.CallProgressed(_, int() as call, method, params, now):
                self.step(call, xv.Told(method, params, now, event.as_is))
            case ev.Asked(backend, _, id, method, _):
                # Links without sessions ask nothing, and brokers park; whoever asks all the same gets an answer.
                self.front.answer(backend, id, False, errors.method_not_found(method).raw)
            case _:
                pass

    def finished(self, call: int, backend: retry.Backend, outcome: Outcome) -> Outcome:
        """The outcome of a call as the client may get it; what it needs to come again goes out sealed."""
        running = self.running.get(call)
        if running is None:
            return outcome
        request, expose = self._request(running.exchange), self.front.exposed_question
        try:
            return retry.finished(request, backend, outcome, self.kind.bits, self.services.sealer, expose)
        except errors.Malformed:
            text = "the server's result is malformed"
            return False, errors.internal(text, reason="malformed", executed="yes", backend=backend.name).raw
        except errors.Refusal as refused:
            return False, refused.error.raw

    def parked(self, message: LinkParked) -> Raw:
        """The result for a call that waits at a broker."""
        running = self.running.get(message.call)
        if running is None:
            return EMPTY
        place = (message.incarnation, message.park, message.round)
        request = self._request(running.exchange)
        return retry.parked(request, message.backend, place, message.requests, self.services.sealer)

    def _request(self, exchange: Exchange) -> retry.Request:
        return retry.Request(
            self.principal.name, exchange.method, exchange.params, self.services.wall(), self.services.limits.park_ttl
        )

    # Life

    def started(self) -> None:
        served = self.services.table.value.endpoints.get(self.kind.endpoint)
        transparent = served is not None and served.kind == "transparent"
        front = ModernTransparent if transparent else ModernAggregate
        self.front = front(self, self.kind.endpoint, self.services, self.tree)
        self.subscribers = Subscribers(self.front, self.ledger, self._settled)
        self._settled()

    def receive(self, message: Any) -> None:
        """One message."""
        handler = HANDLERS.get(type(message))
        if handler is not None:
            handler(self, message)

    def _settled(self) -> None:
        """Something is over: if it was the last thing, the actor waits for a while, or goes."""
        if self.running or len(self.subscribers):
            return
        if self._draining:
            self.ctx.stop(SHUTDOWN)
        else:
            self.idle()
            # With the last actor that uses it a shared connection ends, and with that perhaps a process.
            self._rests_since = self.ctx.now()
            if not self._looks:
                self._look_after(self.services.limits.link_idle)

    def _look_after(self, seconds: float) -> None:
        """A timer that runs goes on under the next request: it looks whether anything was in hand meanwhile."""
        self._looks = True
        self.ctx.set_timer("idle", seconds, xm.IdleDue())

    def _idle(self, message: xm.IdleDue) -> None:
        self._looks = False
        if self.running or len(self.subscribers):
            return
        left = self._rests_since + self.services.limits.link_idle - self.ctx.now()
        if left > 0:
            self._look_after(left)
        elif self.ctx.idle:
            self.ctx.stop()
        else:
            self._settled()

    def _evict(self, message: Evict) -> None:
        if self.running or len(self.subscribers):
            return
        if self.ctx.idle:
            self.ctx.stop()
        else:
            self.idle()

    def drain(self, deadline: float) -> None:
        """Subscriptions are told that they end; requests have until the deadline."""
        self._draining = True
        self.ctx.set_timer("drain", max(0.0, deadline - self.ctx.now() - DRAIN_MARGIN), xm.DrainDue())
        self.subscribers.end_all()
        self._settled()

    def _drain_due(self, message: xm.DrainDue) -> None:
        for call in list(self.running):
            self.step(call, xv.DrainOverdue())

    def stopped(self, reason: Exit) -> None:
        """After a crash: whoever has a stream is told there. (Whoever has none is told by the call that failed.)"""
        error = errors.internal("the request was lost", reason="crashed", executed="unknown")
        for running in self.running.values():
            if running.connection is not None:
                running.connection.cut(sse.encode_event(codec.encode_error(running.exchange.id, error)))
        self.ledger.add(self.principal, -len(self.running))
        self.ledger.exchanges -= len(self.running)
        self.subscribers.cut()
        self.front.let_go()

    # Requests

    def _begin(self, message: xm.Begin) -> None:
        request, envelope, reply = message.request, message.envelope, message.reply
        refusal = self._refusal(request.method)
        if refusal is not None:
            reply.answer(_refused(refusal, request.id))
            self._settled()
            return
        call = self._next
        self._next += 1
        self.busy()
        if request.method == "subscriptions/listen":
            self.subscribers.begin(call, request, reply, self.kind.bits)
            return
        reply.on_abandon = lambda: self.ctx.ref.reply(xm.Gone(call))
        exchange = Exchange(
            request.id,
            request.method,
            request.params,
            self.kind.bits,
            envelope.level,
            envelope.progress,
            Raw(self.services.identity) if self.front.merges else EMPTY,
        )
        self._run(call, Running(exchange, envelope, message.headers, reply))

    def _inform(self, message: xm.Inform) -> None:
        """Accepted as soon as it is with the link: what comes after it from this client comes after it there."""
        if self._draining:
            message.reply.answer(_refused(errors.draining(), None))
        else:
            self.front.inform(message.notification.method, message.notification.params)
            message.reply.answer(ports.Answer(202))
        self._settled()

    def _run(self, call: int, running: Running) -> None:
        self.running[call] = running
        self.ledger.add(self.principal, 1)
        self.ledger.exchanges += 1
        found = retry.resume(self._request(running.exchange), self.services.sealer)
        match found:
            case retry.Settled(ok, payload):
                self.step(call, xv.Ended(ok, payload))
                return
            case retry.Fresh(_, backend):
                running.pinned = backend
            case _:
                pass
        running.retry = found
        self.step(call, xv.Begun(self.ctx.now()))

    def _refusal(self, method: str) -> errors.ProtocolError | None:
        """Why there is no room for this request."""
        if self._draining:
            return errors.draining()
        if method == "subscriptions/listen":
            if self.ledger.listening.total() >= STREAMS_MAX:
                return errors.overloaded()
            full = len(self.subscribers) >= SUBSCRIPTIONS_MAX and not self.principal.anonymous
            full = full or not self.ledger.may_listen(self.principal)
            return errors.too_many_requests("subscriptions of this client") if full else None
        if self.ledger.exchanges >= IN_FLIGHT_MAX:
            return errors.overloaded()
        return None if self.ledger.allows(self.principal, 1) else errors.too_many_requests("of this principal")

    def step(self, call: int, event: xv.ExchangeEvent) -> None:
        """Steps one machine and runs the effects."""
        running = self.running.get(call)
        if running is None:
            return
        running.exchange, effects = step(running.exchange, event)
        over = running.exchange.phase in OVER
        if over:
            del self.running[call]
            self.ledger.add(self.principal, -1)
            self.ledger.exchanges -= 1
        for effect in effects:
            EFFECTS[type(effect)](self, call, running, effect)
        if over:
            self._settled()

    def dispatch(self, call: int, running: Running, effect: xv.Dispatch) -> None:
        """To the front: as a request of its own, or as one that goes on where it waited."""
        self.times.began(fx.Dispatch(call, effect.method, effect.params, effect.progress), self.ctx.now())
        found = running.retry
        if isinstance(found, retry.Waiting):
            level = running.exchange.level
            self.front.resume(call, effect.method, found, progress=effect.progress, level=level)
        else:
            params = found.params if isinstance(found, retry.Fresh) else effect.params
            self.front.dispatch(fx.Dispatch(call, effect.method, params, effect.progress))

    def _gone(self, message: xm.Gone) -> None:
        if message.call in self.subscribers:
            self.subscribers.step(message.call, _DISCONNECTED)
        else:
            self.step(message.call, xv.Disconnected())

    # Backends

    def _replaced(self, message: Replaced) -> None:
        """The table is another one. Subscriptions end: their clients come again, and take it that all has changed."""
        if isinstance(self.front, ModernAggregate):
            self.front.reconfigured(message.before)
        if touches(message.before, self.services.table.value, self.kind.endpoint):
            self.subscribers.end_all()

    def heard(self, message: LinkTold) -> None:
        """A message on an upstream subscription."""
        self.subscribers.watches.heard(message)

    def unsubscribed(self, call: int, error: Raw) -> None:
        """The server has ended what this subscription listens to."""
        self.subscribers.step(call, sv.Ended(error))

    def disconnected(self, backend: str) -> None:
        """Nothing is heard from this backend any more."""
        self.subscribers.watches.disconnected(backend)


_DISCONNECTED, _FLUSH = sv.Disconnected(), sv.FlushDue()

HANDLERS: dict[type, Callable[[ExchangesActor, Any], None]] = {
    xm.Begin: ExchangesActor._begin,
    xm.Inform: ExchangesActor._inform,
    xm.Gone: ExchangesActor._gone,
    xm.IdleDue: ExchangesActor._idle,
    Evict: ExchangesActor._evict,
    xm.DrainDue: ExchangesActor._drain_due,
    xm.ClockDue: clock_due,
    xm.FlushDue: lambda self, m: self.subscribers.step(m.call, _FLUSH),
    xm.HonourDue: lambda self, m: self.subscribers.honour(m.call),
    xm.WatchDue: lambda self, m: self.subscribers.watches.due(m.watch),
    LinkOutcome: lambda self, m: self.front.outcome(m),
    LinkTold: lambda self, m: self.front.told(m),
    LinkAsked: lambda self, m: self.front.asked(m),
    LinkWithdrew: lambda self, m: self.front.withdrew(m),
    LinkReady: lambda self, m: self.front.ready(m),
    LinkDown: lambda self, m: self.front.down(m),
    LinkUnfit: lambda self, m: self.front.unfit(m),
    LinkParked: lambda self, m: self.front.parked(m),
    Listed: lambda self, m: self.front.listed(m),
    CatalogueChanged: lambda self, m: self.front.changed(m),
    ChangeDue: lambda self, m: self.front.change_due(m.notification),
    GatherDue: lambda self, m: self.front.gather_due(m.method, looks=m.looks),
    OwnDue: lambda self, m: self.front.own_due(m.call),
    Down: lambda self, m: self.front.link_ended(m.ref),
    Replaced: ExchangesActor._replaced,
}


def _nothing(fields: dict[str, bytes | None]) -> None:
    """There is no record."""


def _refused(error: errors.ProtocolError, id: RequestId | None) -> ports.Answer:
    error = errors.for_modern(error)
    return ports.Answer(error.status, errors.encode_error_body(error, id), error.headers)
