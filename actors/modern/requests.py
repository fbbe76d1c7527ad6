"""Serves the modern requests that are under way with the same endpoint, principal, capabilities and affinity.

The actor exists while there is something to do. It has an endpoint, steps a machine for each request and each
subscription, and keeps nothing of one request for the next: what must outlast an answer is sealed in the client's
hands.
"""

import hashlib
import math
from collections.abc import Mapping
from functools import lru_cache, partial
from secrets import token_hex
from typing import Any, TypeAlias, assert_never

from msgspec import Raw, Struct
from msgspec.structs import replace

from actors import audit_lines, ports
from actors.audit_lines import who_asks
from actors.durations import Durations
from actors.endpoints.catalogue import CatalogueChanged, Listed, PrincipalsAccount
from actors.endpoints.connecting import AccountChanged, Invited, Waited
from actors.endpoints.host import CallEvent, Tree
from actors.endpoints.limiting import Weighed
from actors.endpoints.listing import GatherDue
from actors.endpoints.merged import ChangeDue
from actors.machines.modern import request as xv
from actors.machines.modern import retry
from actors.machines.modern import subscription as sv
from actors.machines.modern.request import HEAD_WAITS, ModernRequest, Phase, step
from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.machines.session.state import Client
from actors.modern.endpoint import ModernEndpoint, Running, UpstreamResolver
from actors.modern.subscriptions import Expired, FlushDue, Gone, HonourDue, ListenRequests, WatchDue, open_stream
from actors.pools.messages import UpstreamSuspended
from actors.protocol import capabilities, codec, errors, sse
from actors.protocol import payload as json
from actors.protocol.capabilities import ClientBits
from actors.protocol.messages import EMPTY, Notification, Outcome, Request
from actors.protocol.meta import Envelope
from actors.protocol.operations import Operation
from actors.protocol.outcomes import untaken
from actors.protocol.policy import shown_otherwise, shows_otherwise
from actors.protocol.table import TOOLS, Replaced, Table, touched
from actors.protocol.versions import MODERN
from actors.quotas import ClientGone, Evict, Evictable, Quotas
from actors.runtime import SHUTDOWN, Down, Exit, Reply
from actors.services import DRAIN_MARGIN, Services
from actors.upstreams.messages import (
    UpstreamDown,
    UpstreamNotification,
    UpstreamOutcome,
    UpstreamReady,
    UpstreamRequest,
    UpstreamWithdrew,
    UpstreamWrongEra,
)
from actors.upstreams.own_calls import OwnDue

SUBSCRIPTIONS_MAX = 64
"""Of one actor; a further one gets 429. The anonymous principal is everybody: it has as many as there is room for."""

STREAMS_MAX = 4096
"""Subscriptions of the process; a further one gets 503."""

IN_FLIGHT_MAX = 10_000
"""Requests without a session of the process; a further one gets 503."""

NAMES = 512
AFFINITY = 128
"""Names of actors that are remembered, and the most characters of what their clients say for it."""

OVER = (Phase.DONE, Phase.ABANDONED)

_PROOF = partial(token_hex, 8)


class Kind(Struct, frozen=True):
    """Which requests one actor serves. `rights` where a policy, or a server, makes a difference between them."""

    endpoint: str
    principal: ports.Principal
    bits: ClientBits
    affinity: str
    one_server: bool
    """Whether the endpoint is one server as it is."""
    rights: ports.Rights = ports.NO_RIGHTS

    @property
    def name(self) -> str:
        """Of the actor: long words of clients make it no longer."""
        brief = len(self.affinity) <= AFFINITY and capabilities.short(self.bits)
        endpoint = f"{self.endpoint}=" if self.one_server else self.endpoint
        make = _name if brief else _name.__wrapped__
        return make(endpoint, self.principal.name, self.bits, self.affinity, self.rights)

    @property
    def whoever(self) -> str:
        """The same for the same client, with whatever rights it comes."""
        return replace(self, rights=ports.NO_RIGHTS).name


@lru_cache(NAMES)
def _name(endpoint: str, principal: str, bits: ClientBits, affinity: str, rights: ports.Rights) -> str:
    parts = (endpoint, principal, capabilities.bits_key(bits), affinity, rights.digest)
    digest = hashlib.sha256(b"".join(b"%d:%b" % (len(p.encode()), p.encode()) for p in parts))
    return f"exchanges-{digest.hexdigest()[:32]}"


class Granted(Struct, frozen=True):
    """The same principal has come as this kind of client (`Kind.whoever`; None: to another replica, as any kind), with
    rights with which he was not known there before."""

    client: str | None
    rights: ports.Rights


class Begin(Struct, frozen=True):
    """A request without a session, all of whose headers and envelope are in order. The reply gets an Answer or
    Streaming; that its caller is cancelled is the cancellation of the request. `headers` are None where a transport has
    none."""

    request: Request
    envelope: Envelope
    headers: Mapping[str, str] | None
    reply: Reply
    rights: ports.Rights = ports.NO_RIGHTS
    watch: ports.PostObserver | None = None


class Inform(Struct, frozen=True):
    """A notification without a session, for the one server behind the endpoint. The reply gets an Answer."""

    notification: Notification
    reply: Reply
    rights: ports.Rights = ports.NO_RIGHTS


class ClockDue(Struct, frozen=True):
    """A response head may have waited long enough, or a request may take too long."""

    call: int


class IdleDue(Struct, frozen=True):
    """Nothing was in hand for a while."""


class DrainDue(Struct, frozen=True):
    """The drain is nearly over."""


Clock: TypeAlias = ClockDue | Expired | FlushDue | HonourDue | WatchDue | IdleDue | DrainDue | OwnDue
RequestsMessage: TypeAlias = (
    Begin
    | Inform
    | Gone
    | UpstreamOutcome
    | UpstreamNotification
    | UpstreamSuspended
    | UpstreamRequest
    | UpstreamWithdrew
    | UpstreamReady
    | UpstreamDown
    | UpstreamWrongEra
    | Down
    | Listed
    | CatalogueChanged
    | ChangeDue
    | GatherDue
    | Replaced
    | Granted
    | Evict
    | ClientGone
    | Invited
    | Waited
    | PrincipalsAccount
    | Weighed
    | Clock
)
"""What edges, connections and the catalogue say, and its clocks."""


class ModernRequests(Evictable):
    """Serves the requests and subscriptions of one kind of modern client. Temporary: a crash ends the requests in hand,
    and the next one begins another."""

    mailbox_size = 4096
    disposable = True

    endpoint: ModernEndpoint
    listens: ListenRequests

    def __init__(self, kind: Kind, services: Services, tree: Tree, quotas: Quotas, resolver: UpstreamResolver) -> None:
        self.kind = kind
        self.resolver = resolver
        self.principal = kind.principal
        self.rights = kind.rights
        self.services = services
        self.tree = tree
        self.quotas = quotas
        self.running: dict[int, Running] = {}
        self.times = Durations(services.telemetry, services.shown)
        # Nothing of the first request itself: what it says of its client holds for no other.
        declared = capabilities.parse(capabilities.declare(kind.bits, MODERN))
        self._client = Client(declared, kind.bits, Raw(services.identity))
        self._next = 1
        self._draining = False
        self._last = False
        """Nobody comes any more after what is in hand."""
        self._rests_since = 0.0
        self._looks = False

    def __repr__(self) -> str:
        return f"<ExchangesActor: {len(self.running)} requests, {len(self.listens.open)} subscriptions>"

    # What the endpoint sees of its host

    version = MODERN

    @property
    def client(self) -> Client:
        """What the clients of this kind can be asked. Who they are, each request says for itself."""
        return self._client

    def routed(self, call: int) -> None:
        """A request that had to wait has found its backend, whose deadline may be shorter than that which runs."""
        running = self.running.get(call)
        if running is not None and running.state.phase not in OVER:
            self._start_deadline(call, running, running.state.accepted)

    def event(self, event: CallEvent) -> None:
        """What the endpoint says, said to one modern request, or to all subscriptions."""
        match event:
            case ev.CallEnded(call, ok, payload):
                if ok and self.services.audit.on and call in self.running:
                    audit_lines.asked_by(self.services.audit, payload, partial(self._who, call))
                self.times.ended(event, self.ctx.now(), MODERN)
                self.step(call, xv.Ended(ok, payload, event.as_is, event.refusal))
            case ev.CallProgressed(backend, call, method, params, now):
                if call is None:
                    self.listens.changed(backend, method, params)
                else:
                    self.step(call, xv.Notified(method, params, now, event.as_is))
            case _:
                assert_never(event)

    def finished(self, call: int, backend: retry.Backend, outcome: Outcome) -> Outcome:
        """The outcome of a call as the client may get it; what it needs to come again goes out sealed."""
        running = self.running.get(call)
        if running is None:
            return outcome
        request, expose = self._request(running.state, running.tool), self.endpoint.naming.question
        try:
            return retry.finished(request, backend, outcome, self.kind.bits, self.services.sealer, expose)
        except errors.Malformed:
            text = "the server's result is malformed"
            return False, errors.internal(text, reason="malformed", executed="yes", backend=backend.name).raw
        except errors.Refusal as refused:
            return False, refused.error.raw

    def suspended(self, message: UpstreamSuspended) -> Raw:
        """The result for a call that waits at an affinity pool."""
        running = self.running.get(message.call)
        if running is None:
            return EMPTY
        place = (message.incarnation, message.suspend, message.round)
        request = self._request(running.state)
        return retry.suspended(request, message.backend, place, message.requests, self.services.sealer)

    def connecting(self, call: int, backend: str, params: Raw, *, paid: bool) -> Raw:
        """As in `ModernHost`."""
        running = self.running.get(call)
        if running is None:
            return EMPTY
        return retry.connecting(self._request(running.state, paid=paid), backend, params, self.services.sealer)

    def _request(self, state: ModernRequest, tool: str = "", *, paid: bool = True) -> retry.Request:
        """`paid`: limits have let it through, as they have whatever its server was asked."""
        wall, ttl = self.services.wall(), self.services.limits.park_ttl
        policy = self.services.table.value.policy
        proof = _PROOF if paid and policy is not None and policy.limited else str
        return retry.Request(self.principal.name, state.method, state.params, wall, ttl, tool, proof)

    # Life

    def started(self) -> None:
        merged = not self.kind.one_server
        self.endpoint = ModernEndpoint(self, self.kind.endpoint, self.services, self.tree, merged=merged)
        self.listens = ListenRequests(self.endpoint, self.quotas, self._settled)
        self._settled()

    def receive(self, message: RequestsMessage) -> None:
        """One message; an outcome and a request are all that a plain call needs."""
        if type(message) is UpstreamOutcome:
            self.endpoint.outcome(message)
            return
        match message:
            case Begin():
                self._begin(message)
            case UpstreamNotification():
                self.endpoint.told(message)
            case UpstreamSuspended():
                self.endpoint.suspended(message)
            case UpstreamRequest():
                self.endpoint.asked(message)
            case UpstreamWithdrew():
                pass  # what was asked was answered at once
            case UpstreamReady():
                self.endpoint.ready(message)
            case UpstreamDown():
                self.endpoint.upstreams.down(message)
            case UpstreamWrongEra():
                self.endpoint.upstreams.wrong_era(message)
            case Down():
                self.endpoint.upstreams.ended(message.ref)
            case Listed() | CatalogueChanged() | ChangeDue() | GatherDue() | Weighed():
                self.endpoint.about_lists(message)
            case Invited() | Waited():
                self.endpoint.about_accounts(message)
            case PrincipalsAccount(principal, backend):
                if principal == self.principal.name:
                    self.endpoint.about_accounts(AccountChanged(backend))
            case Inform():
                self._inform(message)
            case Gone():
                self._gone(message)
            case Replaced():
                self._replaced(message)
            case Granted():
                self._granted(message)
            case Evict():
                self._evict()
            case ClientGone():
                self._last = True
                self._settled()
            case _:
                self._due(message)

    def _due(self, message: Clock) -> None:
        match message:
            case ClockDue():
                self._clock_due(message.call)
            case FlushDue(call):
                self.listens.step(call, _FLUSH)
            case Expired(call):
                self.listens.step(call, sv.Ended())
            case HonourDue(call):
                self.listens.overdue(call)
            case WatchDue(watch):
                self.listens.watches.due(watch)
            case OwnDue(call):
                self.endpoint.upstreams.overdue(call)
            case IdleDue():
                self._idle()
            case DrainDue():
                for call in list(self.running):
                    self.step(call, xv.DrainOverdue())
            case _:
                assert_never(message)

    def _settled(self) -> None:
        """Something is over: if it was the last thing, the actor waits for a while, or goes."""
        if self.running or self.listens.open:
            return
        if self._draining or self._last:
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
        self.ctx.set_timer("idle", seconds, IdleDue())

    def _idle(self) -> None:
        self._looks = False
        if self.running or self.listens.open:
            return
        left = self._rests_since + self.services.limits.link_idle - self.ctx.now()
        if left > 0:
            self._look_after(left)
        elif self.ctx.idle:
            self.ctx.stop()
        else:
            self._settled()

    def _evict(self) -> None:
        if self.running or self.listens.open:
            return
        if self.ctx.idle:
            self.ctx.stop()
        else:
            self.idle()

    def drain(self, deadline: float) -> None:
        """Subscriptions are told that they end; requests have until the deadline."""
        self._draining = True
        self.ctx.set_timer("drain", max(0.0, deadline - self.ctx.now() - DRAIN_MARGIN), DrainDue())
        self.listens.end_all()
        self._settled()

    def stopped(self, reason: Exit) -> None:
        """After a crash: whoever has a stream is told there. (Whoever has none is told by the call that failed.)"""
        error = errors.internal("the request was lost", reason="crashed", executed="unknown")
        for running in self.running.values():
            if running.connection is not None:
                running.connection.cut(sse.encode_event(codec.encode_error(running.state.id, error)))
        self.quotas.modern_requests -= len(self.running)
        self.quotas.requests.add(self.principal, -len(self.running))
        self.times.left("lost")
        self.listens.cut()
        self.endpoint.let_go()

    # Requests

    def _begin(self, message: Begin) -> None:
        request, envelope, reply = message.request, message.envelope, message.reply
        refusal = self._admit(request.method)
        if refusal is not None:
            reply.answer(refused(refusal, request))
            self._settled()
            return
        if not self.running and not self.listens.open:
            self.busy()
        call = self._next
        self._next += 1
        if request.method == "subscriptions/listen":
            self.listens.begin(call, request, reply, self.kind.bits, message.rights)
            return
        reply.on_abandon = lambda: self.ctx.ref.reply(Gone(call))
        server = Raw(self.services.identity) if self.endpoint.naming.merges else EMPTY
        bits, level, token = self.kind.bits, envelope.level, envelope.progress
        state = ModernRequest(request.id, request.method, request.params, bits, level, token, server)
        running = self.running[call] = Running(state, envelope, message.headers, reply, message.rights)
        if message.watch is not None and (operation := message.watch.operations.get(request.id)) is not None:
            self.times.observe(call, operation)
        if json.mentions(request.params, b"requestState"):
            self._come_again(call, running)
        else:
            self.step(call, xv.Begun(self.ctx.now()))

    def _come_again(self, call: int, running: Running) -> None:
        """A request that was answered with server requests, and brings answers."""
        found = retry.resume(self._request(running.state), self.services.sealer)
        if isinstance(found, retry.Settled):
            self.step(call, xv.Ended(found.ok, found.payload))
            return
        if self.services.audit.on:
            audit_lines.answered_by(self.services.audit, running.state.params, self._who(call))
        if isinstance(found, retry.Fresh):
            running.pinned = found.backend
        running.retry = found
        self.step(call, xv.Begun(self.ctx.now()))

    def _inform(self, message: Inform) -> None:
        """Accepted as soon as it is with the upstream connection: what comes after it from this client comes after
        it there."""
        if self._draining:
            message.reply.answer(refused(errors.draining()))
        else:
            self.endpoint.inform(message.notification.method, message.notification.params)
            message.reply.answer(ports.Answer(202))
        self._settled()

    def _admit(self, method: str) -> errors.ProtocolError | None:
        """Takes the place of a request; the error, if there is none."""
        quotas, principal = self.quotas, self.principal
        if self._draining:
            return errors.draining()
        if method == "subscriptions/listen":
            if quotas.listens.total >= STREAMS_MAX:
                return errors.overloaded()
            full = len(self.listens.open) >= SUBSCRIPTIONS_MAX and not principal.anonymous
            full = full or not quotas.listens.room(principal)
            return errors.too_many_requests("subscriptions of this client") if full else None
        if quotas.modern_requests >= IN_FLIGHT_MAX:
            return errors.overloaded()
        if not quotas.requests.take(principal):
            return errors.too_many_requests("of this principal")
        quotas.modern_requests += 1
        return None

    def step(self, call: int, event: xv.ModernRequestEvent) -> None:
        """Steps one machine and runs the effects."""
        running = self.running.get(call)
        if running is None:
            return
        running.state, effects = step(running.state, event)
        over = running.state.phase in OVER
        if over:
            del self.running[call]
            self.quotas.modern_requests -= 1
            self.quotas.requests.add(self.principal, -1)
        for effect in effects:
            self._run_effect(call, running, effect)
        if over:
            if self.times.operations:
                self._observed(call, running)
            self._settled()

    def sent(self, call: int, backend: str) -> None:
        """A call goes to this server."""
        if (operation := self.times.operations.get(call)) is not None:
            operation.backend = backend

    def operation(self, call: int) -> Operation | None:
        """As in `Host`."""
        return self.times.operations.get(call)

    def _who(self, call: int) -> dict[str, Any]:
        """Who makes a request, for the audit trail; and what server it is at."""
        operation = self.operation(call)
        server = {"server": operation.backend} if operation is not None and operation.backend else {}
        return {**server, **who_asks(self.principal, self.running[call].rights, operation)}

    def _observed(self, call: int, running: Running) -> None:
        """It is over: what was not told by its outcome is told by its answer, or its client is gone."""
        operation = self.times.observed(call)
        if operation is not None and running.state.phase is Phase.ABANDONED:
            operation.ended("disconnected", "disconnected")

    def _run_effect(self, call: int, running: Running, effect: xv.ModernRequestEffect) -> None:
        """What the machine wants. What every call comes to is compared: a match that fails on a Struct costs as much as
        three comparisons of its type."""
        if type(effect) is xv.StartHeadClock:
            running.head_due = self.ctx.now() + HEAD_WAITS
            self._look_later(call, running)
        elif type(effect) is xv.StartDeadline:
            self._start_deadline(call, running, effect.since)
        elif type(effect) is xv.Dispatch:
            self._dispatch(call, running, effect)
        elif type(effect) is xv.StopHeadClock:
            running.head_due = math.inf
        elif type(effect) is xv.StopDeadline:
            running.head_due = running.due = math.inf
            self.ctx.cancel_timer(("clock", call))
        elif type(effect) is xv.Answer:
            running.reply.answer(ports.Answer(effect.status, effect.body, effect.headers))
        elif type(effect) is xv.Write:
            self._write(running, effect)
        else:
            match effect:
                case xv.OpenStream():
                    limits, ref = self.services.limits, self.ctx.ref
                    running.connection = open_stream("post", call, running.reply, ref, limits, self.quotas)
                case xv.Cancel(reason, error):
                    self.times.forget(call, error)
                    self.endpoint.cancel(call, reason)
                case xv.Count(what):
                    self.services.telemetry.count("stagedoor_messages_dropped_total", (what,))
                case _:
                    assert_never(effect)

    def _dispatch(self, call: int, running: Running, effect: xv.Dispatch) -> None:
        """To the endpoint: as a request of its own, or as one that goes on where it waited."""
        self.times.began(call, effect.method, effect.params, self.ctx.now())
        found = running.retry
        if isinstance(found, retry.Waiting) and self.services.table.value.policy is None:
            level = running.state.level
            self.endpoint.resume(call, effect.method, found, progress=effect.progress, level=level)
        else:
            # Where there are rules, also what waits is asked for anew: they may be others than when it was begun.
            params = found.params if isinstance(found, retry.Fresh) else effect.params
            once = found.paid if isinstance(found, retry.Fresh | retry.Waiting) else ""
            passed = fx.Dispatch(call, effect.method, params, effect.progress, running.rights, once=once)
            self.endpoint.dispatch(passed)

    def _write(self, running: Running, effect: xv.Write) -> None:
        """Without event ids: there is nothing to come back to. A client that reads too slowly for the progress and log
        messages of its call goes without some of them; its answer finds room."""
        connection = running.connection
        if connection is None:
            return
        fits = connection.put(0, sse.encode_event(effect.frame), urgent=effect.last)
        if effect.last:
            connection.end()
        elif not fits:
            self.services.telemetry.count("stagedoor_events_shed_total", ("unread",))

    def _start_deadline(self, call: int, running: Running, since: float) -> None:
        limits, endpoint = self.services.limits, self.endpoint
        seconds = endpoint.upstreams.deadline(call) if call in endpoint.calls else limits.request_deadline
        running.due = min(since + seconds, running.state.accepted + limits.request_deadline_cap)
        self._look_later(call, running)

    def _look_later(self, call: int, running: Running) -> None:
        """One timer for both clocks, since most calls end before either: it is set anew only for what comes earlier."""
        nearer = min(running.head_due, running.due)
        if nearer < running.looks_at:
            running.looks_at = nearer
            self.ctx.set_timer(("clock", call), max(0.0, nearer - self.ctx.now()), ClockDue(call))

    def _clock_due(self, call: int) -> None:
        """Looks which of both clocks it was."""
        running = self.running.get(call)
        if running is None:
            return
        running.looks_at, now = math.inf, self.ctx.now()
        if running.due <= now:
            self.step(call, xv.DeadlineDue(self.endpoint.calls.get(call)))
            return
        if running.head_due <= now:
            running.head_due = math.inf
            self.step(call, xv.HeadDue())
        self._look_later(call, running)

    def _gone(self, message: Gone) -> None:
        if message.call in self.listens.open:
            self.listens.step(message.call, _DISCONNECTED)
        else:
            self.step(message.call, xv.Disconnected())

    # Backends

    def _replaced(self, message: Replaced) -> None:
        """The table is another one. Subscriptions at other servers than before end, and of those for whom other rules
        count: their clients come again, and take it that all has changed. Where only filters are others, they hear of
        tools that have changed."""
        table, before = self.services.table.value, message.before
        if touched(before, table, self.kind.endpoint) - TOOLS:
            self.listens.end_all()
        elif shown_otherwise(before.policy, table.policy):
            self.listens.renew(lambda rights: self._sees_otherwise(before, rights, rights))
        self.endpoint.reconfigured(before)

    def _sees_otherwise(self, before: Table, rights: ports.Rights, now: ports.Rights) -> bool:
        table = self.services.table.value
        served = table.endpoints.get(self.kind.endpoint)
        backends = served.backends if served is not None else ()
        return shows_otherwise(before.policy, table.policy, self.principal.name, (rights, now), backends)

    def _granted(self, message: Granted) -> None:
        """The principal has come with other rights: whoever listens as the same kind of client with those of an older
        token comes again with the newer one."""
        table, now = self.services.table.value, message.rights
        if not self.listens.open or message.client not in (None, self.kind.whoever):
            return

        def concerns(rights: ports.Rights) -> bool:
            newer = now.client == rights.client and end_of(now) >= end_of(rights)
            return newer and self._sees_otherwise(table, rights, now)

        self.listens.renew(concerns)


def end_of(rights: ports.Rights) -> float:
    """When a token ends, so that of two the newer one can be told."""
    return math.inf if rights.expiry is None else rights.expiry


_DISCONNECTED, _FLUSH = sv.Disconnected(), sv.FlushDue()


def refused(error: errors.ProtocolError, request: Request | None = None) -> ports.Answer:
    """What refuses a notification, or this request, before anybody has taken it."""
    error = errors.for_modern(error)
    if request is None:
        return ports.Answer.refusing(error)
    return ports.Answer.refusing(untaken(error, request.params), request.id)
