"""The broker: the connections of one client without sessions to one backend that has them.

To those who call it, it is a link; besides, it parks calls whose backend asks something, and goes on with them when the
client comes with answers. It lives as long as it is used: what its backend remembers is there for the next request.
What becomes of calls is in `broker_calls`, of connections in `broker_lines`; here are its life and whoever joined it.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeAlias

from actors.brokers.broker_calls import BrokerCalls, Due, Patron
from actors.brokers.broker_lines import Lines, leased
from actors.brokers.broker_messages import Resume
from actors.brokers.parks import Parks
from actors.fronts.host import Tree
from actors.links.link_messages import (
    Call,
    Cancel,
    Join,
    Leave,
    LinkAsked,
    LinkDown,
    LinkOutcome,
    LinkPlaced,
    LinkReady,
    LinkTold,
    LinkUnfit,
    LinkWithdrew,
    Warm,
)
from actors.links.own_calls import OwnDue
from actors.links.shares import Evict, Evictable
from actors.links.subscribers import CHATTER, OWED_AGAIN, Subscribers
from actors.ports import Refused
from actors.protocol import errors
from actors.protocol import payload as json
from actors.protocol.bridge import parking_events as ev
from actors.protocol.bridge.parking_state import Rules
from actors.protocol.link_calls import UNSUBSCRIBE
from actors.protocol.modern import meta
from actors.protocol.table import BackendSpec, StdioTarget
from actors.protocol.table_change import Replaced, same_server
from actors.record import OwnedRecord, SaveDue, Stored
from actors.runtime import NORMAL, SHUTDOWN, Down, Exit, Ref
from actors.services import Services

IDLE_AGAIN = 1.0
"""Seconds after which a broker that was about to end, and found a message, looks again."""


class _Due(Enum):
    KEEP = "keep"
    IDLE = "idle"
    STALE = "stale"
    OWED = "owed"


class BrokerActor(Evictable):
    """Temporary: a crash ends its connections and whatever is parked; the next request begins another."""

    mailbox_size = 1024
    disposable = True

    _calls: BrokerCalls
    _lines: Lines
    _record: OwnedRecord

    def __init__(
        self,
        spec: BackendSpec,
        key: str,
        patron: Patron,
        services: Services,
        tree: Tree,
        parks: Parks,
        connected: set[str],
    ) -> None:
        self._backend = spec.name
        self._key = key
        self._patron = patron
        self._services = services
        self._tree = tree
        self._parks = parks
        self._connected = connected
        """The keys of all brokers that have a connection."""
        self._related = not isinstance(spec.target, StdioTarget)
        lines = 1 + services.limits.overflow_connections
        self._rules = Rules(leased(spec, patron.bits), lines, server=spec.name)
        self._audience = Subscribers(True, self._drop, self._settle_later)
        self._early: list[Any] = []
        self._stale = False
        self._used = 0.0
        """When the last use of the connections ended, as far as that is known."""

    def __repr__(self) -> str:
        return f"<BrokerActor {self._backend}: {len(self._calls.running)} calls, {len(self._lines)} connections>"

    # Life

    def started(self) -> None:
        self._lines = Lines(self._backend, self._patron.bits, self._services, self._tree, self.ctx)
        self._calls = BrokerCalls(
            self._backend,
            self._patron,
            self._rules,
            self._services,
            self._lines,
            self._parks,
            self.ctx,
            self._rests,
            self._closed,
            self._audience.subscribed,
        )
        self._record = OwnedRecord(self._key, self._services, self.ctx)
        self._record.acquire({"kind": b"broker", "backend": self._backend.encode()})
        self._rests()

    def receive(self, message: Any) -> None:
        """Nothing is done before this life owns what it is about to hold."""
        if isinstance(message, Stored):
            self._stored(message)
        elif not self._record.owned:
            if not isinstance(message, Evict):  # what waits here is in no mailbox; when it is owned it is idle anew
                self._early.append(message)
        else:
            self._handle(message)

    def _handle(self, message: Any) -> None:
        HANDLERS[type(message)](self, message)

    def _stored(self, message: Stored) -> None:
        """The record is kept from expiring as long as this life goes on, and goes with it: it says nothing that would
        be needed again."""
        owned = self._record.owned
        self._record.heard(message)
        if self._record.lost is not None:
            self._disowned(self._record.lost)
        elif owned:
            self.ctx.set_timer("keep", self._services.limits.idle_ttl / 8, _Due.KEEP)
        elif self._record.owned:
            self._calls.grant = self._record.grant
            early, self._early = self._early, []
            for kept in early:
                self._handle(kept)
            self._settled()

    def _disowned(self, reason: Refused) -> None:
        """Another process holds this client's connections, or nobody can tell: what waits was not sent."""
        self._services.log.warning("broker_not_owned", backend=self._backend, reason=reason.value)
        error = errors.internal(
            "the state of this client's connections can't be had",
            reason="not_owned",
            executed="no",
            backend=self._backend,
        ).raw
        for message in self._early:
            match message:
                case Call(caller=caller, call=call) | Resume(caller=caller, call=call):
                    caller.reply(LinkOutcome(self._backend, call, False, error))
                case Join(caller):
                    caller.reply(LinkDown(self.ctx.ref, self._backend, "not owned", error))
                case _:
                    pass
        self._end(NORMAL)

    def _rests(self) -> None:
        """No call is left."""
        self._used = self.ctx.now()
        self._settled()

    def _settled(self) -> None:
        """Something is over: if nobody needs the connections any more, they are kept for a while."""
        if self._stale:
            self.ctx.set_timer("stale", 0.0, _Due.STALE)
        elif not self._calls.running and not self._audience.members:
            self.idle()
            left = self._used + self._services.limits.broker_idle - self.ctx.now()
            self.ctx.set_timer("idle", max(0.0, left), _Due.IDLE)

    def _due(self, what: _Due) -> None:
        if what is _Due.KEEP:
            self._record.keep()
        elif what is _Due.OWED:
            self._audience.settle()
        elif what is _Due.STALE:
            if not self._calls.running:
                self._end(NORMAL)
        elif not self._calls.running and not self._audience.members:
            if self.ctx.idle:
                self._end(NORMAL)
            else:
                self.ctx.set_timer("idle", IDLE_AGAIN, _Due.IDLE)

    def _evict(self, message: Evict) -> None:
        if self._calls.running or self._audience.members:
            return
        if self.ctx.idle:
            self._end(NORMAL)
        else:
            self.idle()

    def drain(self, deadline: float) -> None:
        self._end(SHUTDOWN)  # whoever used it has ended

    def _end(self, reason: Exit) -> None:
        self._calls.give_up()
        for line in self._lines.numbers():
            self._lines.drop(line)
        self.ctx.stop(reason)

    def stopped(self, reason: Exit) -> None:
        """After a crash too."""
        self._connected.discard(self._key)
        self._calls.forget_parked()
        self._record.delete()

    def _replaced(self, message: Replaced) -> None:
        """How calls are told apart depends on the server: for another one there is another broker, as soon as the links
        have said that theirs are over."""
        was, spec = (t.backends.get(self._backend) for t in (message.before, self._services.table.value))
        if not same_server(was, spec):
            self._stale = True
            self._settled()

    # Callers

    def _join(self, message: Join) -> None:
        self.busy()
        self.ctx.cancel_timer("idle")
        self._audience.members[message.caller] = None
        self.ctx.monitor(message.caller)
        first = self._lines.first()
        if first is not None and first.hello is not None:
            message.caller.reply(LinkReady(self.ctx.ref, self._backend, first.hello, False))

    def _left(self, ref: Ref) -> None:
        self._calls.left(ref)
        first = self._lines.first()
        for uri in self._audience.leave(ref):
            if first is not None:
                self._calls.request(first.ref, UNSUBSCRIBE, json.dumps({"uri": uri}), lambda ok, payload: None)
        # Whoever has nothing in hand leaves after `link_idle`; until then it may have had a subscription here.
        self._used = max(self._used, self.ctx.now() - self._services.limits.link_idle)
        self._settled()

    def _leave(self, message: Leave) -> None:
        self.ctx.demonitor(message.caller)
        self._left(message.caller)

    def _call(self, message: Call) -> None:
        refusal = meta.unknown_level(message.client.level) if message.client is not None else None
        if refusal is not None:  # between the eras only what is known
            message.caller.reply(LinkOutcome(self._backend, message.call, False, refusal.raw))
            return
        self.busy()
        if self._audience.settles((message.caller, message.call), message):
            message.caller.reply(LinkOutcome(self._backend, message.call, True, json.dumps({})))
        else:
            self._calls.begin(message)

    def _cancel(self, message: Cancel) -> None:
        owner = (message.caller, message.call)
        self._audience.subscribed(owner, False)
        self._calls.cancel(owner, message.reason)

    def _announce(self, message: LinkReady | LinkDown) -> None:
        (self._connected.add if isinstance(message, LinkReady) else self._connected.discard)(self._key)
        for ref in self._audience.members:
            ref.reply(message)

    def _closed(self, why: str) -> None:
        """The connection with the backend's state is gone, and what was to be heard over it."""
        error = errors.internal(why, reason="link_ended", executed="no", backend=self._backend)
        self._announce(LinkDown(self.ctx.ref, self._backend, why, error.raw))

    # Links

    def _ready(self, message: LinkReady) -> None:
        number = self._lines.number(message.link)
        line = self._lines.get(number)
        if line is None:
            return
        line.hello = message.hello
        if message.again:
            self._calls.step(ev.LineLost(number))
        if line is self._lines.first():
            self._announce(LinkReady(self.ctx.ref, self._backend, message.hello, message.again))

    def _down(self, message: LinkDown) -> None:
        number = self._lines.number(message.link)
        line = self._lines.get(number)
        if line is None:
            return
        line.hello = None
        self._calls.step(ev.LineLost(number))
        if line is self._lines.first():
            self._announce(LinkDown(self.ctx.ref, self._backend, message.message, message.payload))

    def _ended(self, message: Down) -> None:
        number = self._lines.number(message.ref)
        if not number:
            self._left(message.ref)
            return
        first = self._lines.first()
        if self._lines.drop(number) is first:
            self._closed("the connection to the server ended")
        self._calls.step(ev.LineGone(number))

    def _withdrew(self, message: LinkWithdrew) -> None:
        if message.link is not None:
            self._calls.step(ev.Withdrawn(self._lines.number(message.link), message.id))

    def _unfit(self, message: LinkUnfit) -> None:
        """Its calls go back to whoever made them, and so does the finding."""
        number = self._lines.number(message.link)
        back = self._calls.unfit(message, number)
        self._lines.drop(number)
        for ref in list(self._audience.members):
            ref.reply(LinkUnfit(self.ctx.ref, self._backend, tuple(back.get(ref, ()))))

    def _told(self, message: LinkTold) -> None:
        """Progress and log messages are of one request; what has changed is news for all."""
        if message.method == "notifications/progress":
            running = self._calls.running.get(message.call) if message.call is not None else None
            self._tell(message, running.owner if running is not None and running.progress else None)
        elif message.method == "notifications/message":
            self._tell(message, self._reader(message))
        else:
            self._audience.tell(LinkTold(self.ctx.ref, self._backend, None, message.method, message.params), None)

    def _reader(self, message: LinkTold) -> tuple[Ref, int] | None:
        """Who asked for this log message: the call it came with; or the only one, where the transport does not say."""
        wanting = self._calls.wanting(self._lines.number(message.link))
        if message.call is not None:
            wanting = [running for running in wanting if running is self._calls.running.get(message.call)]
        elif self._related:
            wanting = []
        return wanting[0].owner if len(wanting) == 1 else None

    def _tell(self, message: LinkTold, owner: tuple[Ref, int] | None) -> None:
        """What is of one request; it may be lost."""
        if owner is None:
            self._drop("unwanted" if message.method in CHATTER else "unattributed")
            return
        ref, call = owner
        waiting = ref.statistics()
        told = LinkTold(self.ctx.ref, self._backend, call, message.method, message.params)
        if waiting.ordinary * 2 >= waiting.size or not ref.cast(told):
            self._drop("notification_refused")

    def _settle_later(self) -> None:
        self.ctx.set_timer("owed", OWED_AGAIN, _Due.OWED)

    def _drop(self, what: str) -> None:
        self._services.telemetry.count("stagedoor_messages_dropped_total", (what,))


Message: TypeAlias = (
    Join
    | Leave
    | Call
    | Cancel
    | Warm
    | Resume
    | LinkReady
    | LinkDown
    | LinkUnfit
    | LinkOutcome
    | LinkAsked
    | LinkWithdrew
    | LinkTold
    | LinkPlaced
    | Replaced
    | Down
    | Due
    | OwnDue
    | Evict
    | SaveDue
    | _Due
)
"""What a broker is told once it owns what it holds."""

HANDLERS: dict[type, Callable[[BrokerActor, Any], None]] = {
    Join: BrokerActor._join,
    Leave: BrokerActor._leave,
    Call: BrokerActor._call,
    Cancel: BrokerActor._cancel,
    Warm: lambda self, m: self._calls.step(ev.Warmed()),
    Resume: lambda self, m: self._calls.resume(m),
    LinkReady: BrokerActor._ready,
    LinkDown: BrokerActor._down,
    LinkUnfit: BrokerActor._unfit,
    LinkOutcome: lambda self, m: self._calls.outcome(m),
    LinkAsked: lambda self, m: self._calls.asked(m, self._lines.number(m.link)),
    LinkWithdrew: BrokerActor._withdrew,
    LinkTold: BrokerActor._told,
    LinkPlaced: lambda self, m: None,  # what it calls is not gone on with over another connection
    Replaced: BrokerActor._replaced,
    Down: BrokerActor._ended,
    Due: lambda self, m: self._calls.due(m.event),
    OwnDue: lambda self, m: self._calls.own.overdue(m.call),
    Evict: BrokerActor._evict,
    SaveDue: lambda self, m: self._record.write(),
    _Due: BrokerActor._due,
}
