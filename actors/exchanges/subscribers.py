"""The subscriptions of one actor of exchanges: steps their machines, runs their effects, has the backends watched."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec import Raw

from actors import ports
from actors.exchanges.exchange_messages import FlushDue, Gone, HonourDue
from actors.exchanges.modern_endpoint import ModernEndpoint
from actors.exchanges.watches import Watches
from actors.ledger import Ledger
from actors.protocol import errors, sse
from actors.protocol.capabilities import ClientBits
from actors.protocol.errors import ProtocolError
from actors.protocol.messages import Request
from actors.protocol.modern import filter as filters
from actors.protocol.modern import subscription_events as ev
from actors.protocol.modern import tasks
from actors.protocol.modern.filter import Filter
from actors.protocol.modern.subscription import Subscription, step
from actors.protocol.modern.subscription_table import Phase
from actors.runtime import Reply
from actors.streams.connection import Connection

GATHER = 0.1
"""Seconds in which changes of one kind become one notification."""

HONOUR_WITHIN = 10.0
"""Seconds for servers to say what they can do for a subscription; then it is acknowledged without those that have not.
"""

OVER = (Phase.DONE, Phase.ABANDONED)


@dataclass(slots=True)
class _Running:
    """`places`: the resources asked for, in the words of the backends that have them. `able` grows as backends say what
    they can do; `left` have not."""

    subscription: Subscription
    reply: Reply | None
    connection: Connection | None = None
    places: dict[str, tuple[str, str]] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)
    able: set[tuple[str, str]] = field(default_factory=set)
    changes: frozenset[str] = frozenset()
    tasks: dict[str, dict[str, str]] = field(default_factory=dict)
    """Those asked for: by backend, its own id → the client's."""
    able_tasks: list[str] = field(default_factory=list)


class Subscribers:
    """By the numbers that the actor gives them."""

    def __init__(self, endpoint: ModernEndpoint, ledger: Ledger, ended: Callable[[], object]) -> None:
        self.watches = Watches(endpoint)
        self._endpoint = endpoint
        self._ledger = ledger
        self._ended = ended
        self._running: dict[int, _Running] = {}
        self._ctx = endpoint.host.ctx

    def __len__(self) -> int:
        return len(self._running)

    def __contains__(self, call: int) -> bool:
        return call in self._running

    # What happens to them

    def begin(self, call: int, request: Request, reply: Reply, bits: ClientBits) -> None:
        """A `subscriptions/listen` of a client with these bits."""
        self._ledger.listens(self._endpoint.host.principal, 1)
        try:
            wanted = filters.read(request.params)
        except errors.Refusal as refusal:
            self._running[call] = _Running(Subscription(request.id, Filter()), reply)
            self.step(call, ev.Refused(refusal.error))
            return
        if wanted.tasks and not tasks.declared(bits):
            self._running[call] = _Running(Subscription(request.id, Filter()), reply)
            self.step(call, ev.Refused(tasks.undeclared()))
            return
        reply.on_abandon = lambda: self._ctx.ref.reply(Gone(call))
        self._running[call] = _Running(Subscription(request.id, wanted), reply)
        self.step(call, ev.Opened())

    def changed(self, backend: str, method: str, params: Raw) -> None:
        """A notification of a backend that belongs to no request, in the client's words but for the id of a task: one
        that several subscriptions name may have another id in each."""
        for call, running in list(self._running.items()):
            said: Raw | None = params
            if method == tasks.NOTIFICATION:
                said = tasks.told(params, running.tasks.get(backend, {}))
            if said is not None:
                self.step(call, ev.Changed(method, said))

    def end_all(self) -> None:
        """The gateway is shutting down."""
        for call in list(self._running):
            self.step(call, ev.Ended())

    def cut(self) -> None:
        """The actor is no more: who finds the stream broken comes back, and takes it that everything has changed."""
        self._ledger.listens(self._endpoint.host.principal, -len(self._running))
        for running in self._running.values():
            if running.connection is not None:
                running.connection.cut()

    def step(self, call: int, event: ev.SubscriptionEvent) -> None:
        """Steps one machine and runs the effects."""
        running = self._running.get(call)
        if running is None:
            return
        running.subscription, effects = step(running.subscription, event)
        over = running.subscription.phase in OVER
        if over:
            del self._running[call]
            self._ledger.listens(self._endpoint.host.principal, -1)
        for effect in effects:
            _EFFECTS[type(effect)](self, call, running, effect)
        if over:
            self._ctx.cancel_timer(("flush", call))
            self._ctx.cancel_timer(("honour", call))
            self._ended()

    # What the backends can do

    def _watch(self, call: int, running: _Running, effect: ev.Watch) -> None:
        self._ctx.set_timer(("honour", call), HONOUR_WITHIN, HonourDue(call))
        self._endpoint.naming.look_for(effect.filter.uris, lambda: self._looked(call, running, effect.filter))

    def _looked(self, call: int, running: _Running, filter: Filter) -> None:
        """It is known whose the resources are, as far as that can be known."""
        if self._running.get(call) is not running or running.subscription.phase is not Phase.OPENING:
            return
        places = {uri: owner for uri in filter.uris if (owner := self._endpoint.naming.owner(uri)) is not None}
        running.places = places
        principal, sealer = self._endpoint.host.principal.name, self._endpoint.services.sealer
        running.tasks = tasks.filtered(filter.tasks, sealer, principal=principal) if filter.tasks else {}
        parts: dict[str, Filter] = {}
        for backend in self._endpoint.watched:
            uris = tuple(dict.fromkeys(name for owner, name in places.values() if owner == backend))
            part = Filter(filter.changes, uris, tuple(running.tasks.get(backend, ())))
            if not part.empty:
                parts[backend] = part
        running.left = set(parts)
        if self._endpoint.naming.merges:
            # The gateway itself says that a merged list has changed, whatever the backends can.
            running.changes = filter.changes
        for backend, part in parts.items():
            self._watch_part(call, running, backend, part)
        if not parts:
            self.honour(call)

    def _watch_part(self, call: int, running: _Running, backend: str, part: Filter) -> None:
        def honoured(able: Filter | None, error: ProtocolError | None) -> None:
            if self._running.get(call) is not running:
                return
            running.left.discard(backend)
            if able is not None:
                running.able |= {(backend, uri) for uri in able.uris}
                own = running.tasks.get(backend, {})
                running.able_tasks += [own[task] for task in able.tasks if task in own]
                running.changes |= able.changes
            elif error is not None and not self._endpoint.naming.merges:
                self.step(call, ev.Refused(error))
                return
            if not running.left:
                self.honour(call)

        self.watches.add(call, backend, part, honoured)

    def honour(self, call: int) -> None:
        """All have said what they can do, or time is over: what is known counts."""
        running = self._running.get(call)
        if running is not None and running.subscription.phase is Phase.OPENING:
            self._ctx.cancel_timer(("honour", call))
            uris = tuple(uri for uri, place in running.places.items() if place in running.able)
            self.step(call, ev.Honoured(Filter(running.changes, uris, tuple(running.able_tasks))))

    def _unwatch(self, call: int, running: _Running, effect: ev.Unwatch) -> None:
        self.watches.remove(call)

    # The client's side

    def _answer(self, call: int, running: _Running, effect: ev.Answer) -> None:
        if running.reply is not None:
            running.reply.answer(ports.Answer(effect.status, effect.body))

    def _open(self, call: int, running: _Running, effect: ev.OpenStream) -> None:
        ref, limits = self._ctx.ref, self._endpoint.services.limits

        def closed(connection: Connection, whole: bool) -> None:
            self._ledger.streams["listen"] -= 1
            ref.reply(Gone(call))

        bounds = (limits.outbox_events, limits.outbox_bytes)
        connection = running.connection = Connection(call, f"listen-{call}", bounds, closed)
        self._ledger.streams["listen"] += 1
        if running.reply is None or not running.reply.answer(ports.Streaming(connection)):
            connection.close()

    def _write(self, call: int, running: _Running, effect: ev.Write) -> None:
        connection = running.connection
        if connection is not None and not connection.put(0, sse.encode_event(effect.frame)):
            self._endpoint.services.telemetry.count("stagedoor_slow_consumers_total", ("listen",))
            self.step(call, ev.Overflowed())

    def _close(self, call: int, running: _Running, effect: ev.Close) -> None:
        connection = running.connection
        if connection is None:
            return
        if effect.cut:
            connection.cut(sse.encode_event(effect.frame))
        else:
            connection.put(0, sse.encode_event(effect.frame), urgent=True)
            connection.end()

    def _gather(self, call: int, running: _Running, effect: ev.StartFlushClock) -> None:
        self._ctx.set_timer(("flush", call), GATHER, FlushDue(call))

    def _tally(self, call: int, running: _Running, effect: ev.Tally) -> None:
        if effect.what != "change_unwanted":
            self._endpoint.services.telemetry.count("stagedoor_messages_dropped_total", (effect.what,))


_EFFECTS: dict[type, Callable[[Subscribers, int, _Running, Any], None]] = {
    ev.Watch: Subscribers._watch,
    ev.Unwatch: Subscribers._unwatch,
    ev.Answer: Subscribers._answer,
    ev.OpenStream: Subscribers._open,
    ev.Write: Subscribers._write,
    ev.Close: Subscribers._close,
    ev.StartFlushClock: Subscribers._gather,
    ev.Tally: Subscribers._tally,
}
