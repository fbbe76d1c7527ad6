"""An affinity pool: the connections of one modern client to one legacy server.

To those who call it, it is a connection; besides, it suspends calls whose server asks something, and goes on with
them when the client comes with answers. Which call goes over which connection, and what becomes of it, is decided
by the machine of `machines/modern/suspended_calls`. A pool lives as long as it is used: what its server remembers
is there for the next request. The connections hold a server's hidden state, so they are owned like sessions are: by
one life at a time, the one that its record in the store names.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias, assert_never

from msgspec import Raw
from msgspec.structs import replace

from actors.doubt import AGAIN, Standing
from actors.endpoints.host import ASKABLE, Tree, profile_of
from actors.machines.modern import request_state
from actors.machines.modern import suspended_calls as ev
from actors.machines.upstream.events import AnswerGiven, ServerInfo, Wanted
from actors.machines.upstream.legacy_calls import failure
from actors.machines.upstream.legacy_state import Profile
from actors.pools import letters
from actors.pools import messages as pm
from actors.pools.mail import WITHIN, Link
from actors.pools.remote import RemotePool
from actors.ports import UNAVAILABLE, Failed, Incarnation, Principal, Record, Refused
from actors.protocol import capabilities, errors, meta, translate
from actors.protocol import payload as json
from actors.protocol.capabilities import LEVELS, ClientBits
from actors.protocol.messages import EMPTY, base36
from actors.protocol.methods import METHODS, SET_LEVEL, SUBSCRIBE, UNSUBSCRIBE
from actors.protocol.table import BackendSpec, Replaced, StdioTarget, same_server
from actors.protocol.versions import LATEST_HANDSHAKE, MODERN
from actors.quotas import PATIENCE, Evict, Evictable, SuspendedCalls
from actors.record import FINAL, RETRY, OwnedRecord, Renamed, SaveDue, Stored, reader
from actors.runtime import NORMAL, SHUTDOWN, AtCapacity, Down, Exit, Ref, SystemClosed
from actors.services import Services
from actors.upstreams import messages as um
from actors.upstreams.legacy import LegacyUpstream
from actors.upstreams.own_calls import OwnCalls, OwnDue, Then
from actors.upstreams.start import start_upstream
from actors.upstreams.subscribers import CHATTER, REPLIES_AGAIN, Subscribers

IDLE_AGAIN = 1.0
"""Seconds after which a pool that was about to end, and found a message, looks again."""
GATHER = 0.05
"""Seconds for which further server requests are waited for after the first: nothing beside the time that a person or a
model takes to answer, and enough for what a busy server asks at once."""
INFO_BYTES = 16 * 1024
"""Of what a client says of itself; whoever says more is not introduced."""
QUESTIONS_BYTES = 32 * 1024 * 1024
"""Of the params of all server requests that have no answer; a further one is refused."""
GRACE = 5.0
"""Seconds within which a server must answer a ping after a call was given up."""
LOOK_AGAIN = 0.25
"""Seconds after which the owner of a pool is looked for again."""
LINKS = count(-1, -1)
"""The numbers of the links of this process: none is that of another letter."""
WAIT = 30.0
"""Seconds after which a call that waits for a connection looks whether there is any hope."""
STORE_AWAY = ("store_away", "the session store is not available")
"""Why something is not begun."""
LENT = frozenset({"roots", *ASKABLE})
"""What a client can be asked in the course of a call."""

Owner: TypeAlias = tuple[Ref, int]
"""A caller, and its number of the call."""

CallerMessage: TypeAlias = um.Join | um.Leave | um.Call | um.Cancel | Wanted | pm.Resume | pm.Admit
ConnectionMessage: TypeAlias = (
    um.UpstreamReady
    | um.UpstreamDown
    | um.UpstreamWrongEra
    | um.UpstreamOutcome
    | um.UpstreamRequest
    | um.UpstreamWithdrew
    | um.UpstreamNotification
    | um.UpstreamPlaced
    | um.UpstreamAwaited
)
OwnDues: TypeAlias = (
    pm.ReadersKnown | pm.KeepDue | pm.DoubtDue | pm.StaleDue | pm.CallDue | pm.EnterDue | OwnDue | SaveDue
)
OfOwner: TypeAlias = ConnectionMessage | OwnDues | Renamed
"""What is of no meaning while another process owns it."""
LifeMessage: TypeAlias = pm.OwnMessage | pm.LinkMessage | OwnDue | SaveDue | Renamed | Stored | Evict | Replaced | Down
PoolMessage: TypeAlias = CallerMessage | ConnectionMessage | LifeMessage


@dataclass(frozen=True, slots=True)
class PoolKey:
    """One modern client, as far as it can be told to be one."""

    principal: Principal
    bits: ClientBits
    affinity: str = ""


@dataclass(slots=True)
class PooledCall:
    """A call that is not over. `owner`: whoever waits for it at present, `last`: whoever did last; `level` and
    `progress` are what that one wants. `since`: when it was suspended first."""

    call: um.Call
    owner: Owner | None
    last: Owner
    level: str | None
    progress: bool
    may_ask_back: bool
    connection: int = 0
    since: float | None = None


@dataclass(slots=True)
class PooledConnection:
    """One of the connections to the server. `level` is the last one that the server was told over it."""

    number: int
    ref: Ref
    server_info: ServerInfo | None = None
    level: str | None = None


class PoolActor(Evictable):
    """Temporary: a crash ends its connections and whatever is suspended; the next request begins another."""

    mailbox_size = 1024
    disposable = True

    _own: OwnCalls
    _record: OwnedRecord

    def __init__(
        self,
        spec: BackendSpec,
        record_key: str,
        key: PoolKey,
        services: Services,
        tree: Tree,
        suspended: SuspendedCalls,
        connected: set[str],
    ) -> None:
        self._backend = spec.name
        self._record_key = record_key
        self._key = key
        self._services = services
        self._tree = tree
        self._suspended = suspended
        self._connected = connected
        """The record keys of all pools that have a connection."""
        self._related = not isinstance(spec.target, StdioTarget)
        lines = 1 + services.limits.overflow_connections
        self._state = ev.Calls(ev.Rules(serialized(spec, key.bits), lines, server=spec.name))
        self._subscribers = Subscribers(True, self._drop, self._tell_later)
        self._connections: dict[int, PooledConnection] = {}
        """By the numbers that the machine gives: the first is the one over which the server's hidden state is."""
        self._info = EMPTY
        """The Implementation of the client that the server hears of."""
        self._calls: dict[int, PooledCall] = {}
        self._numbers: dict[Owner, int] = {}
        """By whoever waits for a call, or did last: the pool's own number of it."""
        self._next = 0
        self._resuming: pm.Resume | None = None
        self._todo: list[ev.SuspensionEvent] = []
        self._stepping = False
        self._early: list[PoolMessage] = []
        """What came before this life owned its record."""
        self._held = False
        """It can't be told whether it is still the owner."""
        self._remote: RemotePool | None = None
        """Another process is."""
        self._looking = False
        """Who is, is being found out; not for ever."""
        self._hint: Incarnation | None = None
        """Who may be, as another has said."""
        self._guests: set[Ref] = set()
        """Callers that stand for other processes."""
        self._named = ""
        """This life, in what its client holds."""
        self._stale = False
        self._used = 0.0
        """When the last use of the connections ended, as far as that is known."""

    def __repr__(self) -> str:
        return f"<PoolActor {self._backend}: {len(self._calls)} calls, {len(self._connections)} connections>"

    # Life

    def started(self) -> None:
        self._own = OwnCalls(self.ctx, self._services.limits.request_deadline)
        self._acquire()
        self._rests()

    def _acquire(self) -> None:
        """What it knows of its record is of no use to another life, nor what the store still says of that."""
        record = self._record = OwnedRecord(self._record_key, self._services, self.ctx)
        record.content = lambda grant: Record(grant.owner, grant.epoch)
        record.surely_lost = lambda: True  # whoever else had the pool has ended it
        record.acquire({"kind": b"broker", "backend": self._backend.encode()})

    def receive(self, message: PoolMessage) -> None:
        """Nothing is done before this life owns what it is about to hold, or while it can't be told whether it does."""
        if self._remote is not None and not isinstance(message, Stored):
            if isinstance(message, pm.LateDue):
                self._not_owned()
            elif not isinstance(message, OfOwner):
                self._remote.receive(message)
            return
        cluster = self._services.cluster
        if self._record.owned and (cluster.doubtful or self._record.grant.term != cluster.term):
            standing = self._hold_still()
            if standing is Standing.OVER and isinstance(message, um.Call | pm.Resume):
                self._turn_away([message], *STORE_AWAY)
                return
        if isinstance(message, Stored | pm.DoubtDue | pm.ReadersKnown) or (self._record.owned and not self._held):
            self._handle(message)
        else:
            self.wait(message)

    def wait(self, message: PoolMessage) -> None:
        """Keeps what came before this life owns its record, at most as much as a mailbox holds: nothing was done yet,
        so that whoever gives up has asked for nothing."""
        match message:
            case Evict() | pm.IdleDue() | pm.CheckDue() | pm.PostDue():
                pass  # when it is owned it is idle anew
            case pm.MailCame() | pm.Posted() | pm.Withdrawn() | pm.ProcessDown():
                pass  # of a link that is over
            case pm.EnterDue():
                self._enter()
            case pm.LateDue():
                self._not_owned()
            case um.Cancel() | um.Leave():
                self.drop(message)
                self._keep_of_a_user(message)
            case Down(ref=ref):
                self.drop(um.Leave(ref))
                self._keep_of_a_user(message)
            case um.Call() | pm.Resume() | um.Join() | Wanted() if len(self._early) >= self.mailbox_size:
                self._turn_away([message], "overloaded", "too much waits for this client's connections")
            case um.UpstreamNotification() if len(self._early) >= self.mailbox_size:
                self._drop("overflow")
            case _ if not self._named and isinstance(message, OfOwner):
                pass  # of a life that is over
            case _:
                self._early.append(message)

    def drop(self, message: um.Cancel | um.Leave) -> None:
        """Nobody wants this any more of what was kept."""
        match message:
            case um.Cancel(caller=caller, call=call):
                calls = um.Call | pm.Resume
                self._early = [
                    m for m in self._early if not (isinstance(m, calls) and m.caller is caller and m.call == call)
                ]
            case um.Leave(caller=caller):
                asked = um.Call | pm.Resume | um.Join | pm.Admit
                self._early = [m for m in self._early if not (isinstance(m, asked) and m.caller is caller)]

    def _keep_of_a_user(self, message: um.Cancel | um.Leave | Down) -> None:
        """What it ends may have begun before."""
        if not self._unused:
            self._early.append(message)

    def _handle(self, message: PoolMessage) -> None:
        """What callers and connections say; an outcome and a call are all that a plain call needs."""
        if type(message) is um.UpstreamOutcome:
            if message.call > 0:
                self._step(ev.Ended(message.call, message.ok, message.payload))
            else:
                self._own.outcome(message.call, message.ok, message.payload)
            return
        match message:
            case um.Call():
                self._call(message)
            case pm.Resume():
                self._resume(message)
            case um.Cancel():
                self._cancelled(message)
            case um.UpstreamNotification():
                self._told(message)
            case um.UpstreamRequest():
                self._asked(message)
            case um.UpstreamWithdrew():
                self._withdrew(message)
            case um.UpstreamPlaced() | um.UpstreamAwaited():
                pass  # a pool is never rebuilt: nobody would go on from there; and it sees to turns itself
            case um.UpstreamReady():
                self._ready(message)
            case um.UpstreamDown():
                self._down(message)
            case um.UpstreamWrongEra():
                self._wrong_era(message)
            case um.Join():
                self._join(message)
            case pm.Admit(caller):
                self._guests.add(caller)
                caller.reply(pm.Admitted())
                self._join(um.Join(caller))
            case um.Leave(caller=caller):
                self.ctx.demonitor(caller)
                self._left(caller)
            case Wanted():
                self._step(ev.Warmed())
            case _:
                self._handle_life(message)

    def _handle_life(self, message: LifeMessage) -> None:
        """Clocks, outcomes of the store, and what becomes of others."""
        match message:
            case pm.CallDue(event=event):
                self._call_due(event)
            case OwnDue(call=call):
                self._own.overdue(call)
            case Stored():
                self._stored(message)
            case SaveDue():
                self._record.write()
            case pm.KeepDue():
                self._record.keep()
            case pm.DoubtDue():
                self._doubt_due()
            case pm.ReadersKnown():
                self._readers_known(message)
            case Renamed():
                pass  # it is claimed again before any message
            case pm.MailCame() | pm.Posted() | pm.Withdrawn() | pm.ProcessDown():
                pass  # of a link that is over
            case pm.PostDue() | pm.CheckDue() | pm.EnterDue() | pm.LateDue():
                pass
            case pm.RepliesDue():
                self._subscribers.settle()
            case pm.IdleDue():
                if self._unused and not self._ended_unused():
                    self.ctx.set_timer("idle", IDLE_AGAIN, pm.IdleDue())
            case Evict():
                if self._unused and not self._ended_unused():
                    self.idle()
            case pm.StaleDue():
                if not self._calls:
                    self._end(NORMAL)
            case Replaced():
                self._replaced(message)
            case Down():
                self._ended(message.ref)
            case _:
                assert_never(message)

    def _stored(self, message: Stored) -> None:
        """The record is kept from expiring as long as this life goes on, and goes with it: it says nothing that would
        be needed again."""
        record, failed = self._record, isinstance(message.outcome, Failed)
        if message.record is not record or record.over:
            return  # of a life that is over
        if failed and not record.owned and message.step in ("save", "touch"):
            return  # it is claimed again, and that says what has become of it
        owned = record.owned
        record.heard(message)
        if record.lost is not None:
            self._lost(record.lost, message.outcome.head if failed else 0)
        elif owned:
            away = failed and message.step in ("touch", "restore")
            self.ctx.set_timer("keep", RETRY if away else self._services.limits.idle_ttl / 8, pm.KeepDue())
        elif record.owned and self._hold_still() not in (Standing.HOLD, Standing.FORMER):
            self._go_on()
        elif failed and message.step in ("reclaim", "reread", "restore"):
            self.ctx.set_timer("doubt", RETRY, pm.DoubtDue())

    def _go_on(self) -> None:
        """With what came meanwhile."""
        self._held = False
        self._found()
        grant = self._record.grant
        self._named = self._named or f"{grant.owner}.{base36(grant.epoch)}"
        early, self._early = self._early, []
        for kept in early:
            self._handle(kept)
        self._settled()

    def _hold_still(self) -> Standing:
        """What may be done at present; what comes meanwhile waits."""
        standing = self._tree.doubt.standing(self._record.grant, self.ctx.now())
        if standing is Standing.FORMER:
            self._record.reclaim(self._record.grant.owner)
        elif standing is Standing.HOLD:
            self._held = True
            self.ctx.set_timer("doubt", AGAIN, pm.DoubtDue())
        return standing

    def _doubt_due(self) -> None:
        """Without the store it goes on with what it has."""
        self._held = False
        self._hold_still()
        if not self._record.owned and self._services.cluster.doubtful:
            self.ctx.set_timer("doubt", RETRY, pm.DoubtDue())
        elif self._record.owned and not self._held:
            self._go_on()

    def _lost(self, why: Refused, version: int) -> None:
        """This life does not own the record, or not any more: what was not begun goes on where the pool is."""
        for timer in ("keep", "save", "doubt"):
            self.ctx.cancel_timer(timer)
        owned = bool(self._named)
        if owned:
            self._disowned(why)
        other, me = self._record.other, self._services.cluster.incarnation
        if owned and (self._stale or (not self._early and self.ctx.idle)):
            self._end(NORMAL)
        elif why is Refused.TOO_NEW:
            ref = self.ctx.ref
            self._services.cluster.replicas(lambda out: ref.reply(pm.ReadersKnown(version, out)))
        elif why is Refused.FENCED and other is not None and other != me:
            self._follow(other)
        elif why in FINAL or (why in UNAVAILABLE and self._looking):
            self._seek()
        elif why in UNAVAILABLE:
            self._refuse(*STORE_AWAY)
        else:
            self._not_owned()

    def _disowned(self, why: Refused) -> None:
        """Another process has this client's connections now. What was sent may have been executed; of that only what
        the server has answered is known. What is suspended is lost."""
        self._services.log.warning("broker_not_owned", backend=self._backend, reason=why.value)
        unsent = self._take_unsent()
        for kept in self._early:
            if isinstance(kept, um.UpstreamOutcome):
                self._handle(kept)
        text = "another replica has this client's connections now"
        lost = errors.internal(text, reason="moved", executed="unknown", backend=self._backend).raw
        for call in self._calls.values():
            if call.owner is not None:
                self._subscribers.subscribed(call.owner, False)
                self._outcome(call.owner, False, lost)
        self._let_go()
        self.ctx.cancel_timer("idle")
        self._early = [*unsent, *(kept for kept in self._early if not isinstance(kept, OfOwner))]
        self._named, self._held = "", False
        self._part_with_guests()
        self._closed(text)

    def _take_unsent(self) -> list[um.Call]:
        """The calls that wait for their turn, as if they had not come yet."""
        waiting = [number for number, held in self._state.held.items() if held.phase is ev.Phase.WAITING]
        unsent = [self._calls[number].call for number in waiting]
        for number in waiting:
            self._step(ev.Cancelled(number, "not sent"))
        return unsent

    def _part_with_guests(self) -> None:
        """Who comes from other processes looks for the pool itself."""
        for guest in self._guests:
            mine = [kept for kept in self._early if isinstance(kept, um.Call | pm.Resume) and kept.caller is guest]
            guest.reply(pm.NotHere(self._record.other, tuple(kept.call for kept in mine)))
            self.drop(um.Leave(guest))
            self._subscribers.leave(guest)
            self.ctx.demonitor(guest)
        self._guests.clear()

    def _let_go(self) -> None:
        """Of all calls and connections; whoever is asked is told."""
        for number, call in list(self._calls.items()):
            self._step(ev.Cancelled(number, "the connection is closed") if call.owner else ev.Expired(number))
        for number in list(self._connections):
            self._leave(number)
            self._step(ev.ConnectionGone(number))

    def _not_owned(self) -> None:
        self._refuse("not_owned", "the state of this client's connections can't be had")

    def _refuse(self, reason: str, text: str) -> None:
        """All who wait. For those who come next it is looked for anew."""
        self._services.log.warning("broker_not_owned", backend=self._backend, reason=reason)
        early, self._early = self._early, []
        self._turn_away(early, reason, text)
        self.announce(um.UpstreamDown(self.ctx.ref, self._backend, text, self._failure(reason, text)))
        if self.ctx.idle:
            self._end(NORMAL)
            return
        if self._remote is not None:
            self._remote.leave()
        self._remote = None
        self._found()
        self._acquire()

    # Another process has the pool

    def _seek(self) -> None:
        """Looks for who has it, which may be itself, in a moment."""
        self._look()
        self.ctx.set_timer("enter", LOOK_AGAIN, pm.EnterDue())

    def _look(self) -> None:
        if not self._looking:
            self._looking = True
            self.ctx.set_timer("late", WITHIN, pm.LateDue())

    def _enter(self) -> None:
        owner, self._hint = self._hint, None
        if owner is not None and owner != self._services.cluster.incarnation:
            self._follow(owner)
        else:
            self._acquire()

    def _readers_known(self, found: pm.ReadersKnown) -> None:
        """One that can read the record has the pool, or says who has."""
        me = self._services.cluster.incarnation
        able = reader(self._record_key, found.version, found.outcome, me)
        if able is not None:
            self._follow(able)
        else:
            self._refuse("too_new", "the record of this client's connections can't be read by this replica")

    def _follow(self, owner: Incarnation) -> None:
        """What its callers want is asked of this process."""
        self._look()
        me, key = self._services.cluster.incarnation, self._key
        link = Link(self._record_key, key.principal, me, owner, next(LINKS))
        enter = letters.Enter(self._backend, tuple(sorted(key.bits)), key.affinity)
        self._remote = RemotePool(self, link, enter, self._services, self._tree, self._subscribers)

    def _found(self) -> None:
        self._looking = False
        self.ctx.cancel_timer("late")

    def entered(self) -> None:
        """As in `RemoteHost`."""
        self._found()
        self.busy()
        early, self._early = self._early, []
        for kept in early:
            self.receive(kept)

    def link_over(self, unbegun: list[pm.Asked], owner: Incarnation | None) -> None:
        """As in `RemoteHost`: with what is to be done it looks for the next owner, which it may be itself."""
        self._remote, self._hint, self._early = None, owner, [*unbegun, *self._early]
        if not self._early and self.ctx.idle:
            self._end(NORMAL)
        else:
            self._seek()

    def not_to_be_had(self) -> None:
        """As in `RemoteHost`."""
        self._remote = None
        self._not_owned()

    def unused(self) -> None:
        """As in `RemoteHost`."""
        if self.ctx.idle and not self._early:
            self._end(NORMAL)

    def _turn_away(self, messages: list[PoolMessage], reason: str, text: str) -> None:
        """Tells whoever waits for something that it was not done."""
        error = self._failure(reason, text)
        for message in messages:
            if isinstance(message, um.Call | pm.Resume):
                told = failure(reason, text, pm.unbegun(message), self._backend)
                self._outcome((message.caller, message.call), False, told)
            elif isinstance(message, um.Join):
                message.caller.reply(um.UpstreamDown(self.ctx.ref, self._backend, "not owned", error))
            elif isinstance(message, pm.Admit):
                message.caller.reply(pm.NotHere())

    def _outcome(self, owner: Owner, ok: bool, payload: Raw) -> None:
        caller, call = owner
        caller.reply(um.UpstreamOutcome(self._backend, call, ok, payload))

    @property
    def _unused(self) -> bool:
        """Whether nobody needs the connections at present."""
        return not self._calls and not self._subscribers.members

    def _rests(self) -> None:
        """No call is left."""
        self._used = self.ctx.now()
        self._settled()

    def _settled(self) -> None:
        """Something is over: if nobody needs the connections any more, they are kept for a while."""
        if self._stale:
            self.ctx.set_timer("stale", 0.0, pm.StaleDue())
        elif self._unused:
            self.idle()
            left = self._used + self._services.limits.broker_idle - self.ctx.now()
            self.ctx.set_timer("idle", max(0.0, left), pm.IdleDue())

    def _ended_unused(self) -> bool:
        """Ends, unless somebody has just come."""
        nobody = self.ctx.idle
        if nobody:
            self._end(NORMAL)
        return nobody

    def drain(self, deadline: float) -> None:
        self._end(SHUTDOWN)  # whoever used it has ended

    def _end(self, reason: Exit) -> None:
        """Whoever is asked, or waits for an answer, is told."""
        early, self._early = self._early, []
        self._turn_away([*self._take_unsent(), *early], "link_ended", "the connection is closed")
        self._let_go()
        self.ctx.stop(reason)

    def stopped(self, reason: Exit) -> None:
        """After a crash too: what was suspended is not there any more, and the next life may begin anywhere."""
        self._connected.discard(self._record_key)
        if self._remote is not None:
            self._remote.leave()
        for number in self._calls:
            self._suspended.remove((self, number))
        self._record.delete()

    def _replaced(self, message: Replaced) -> None:
        """How calls are told apart depends on the server: for another one there is another pool, as soon as the
        connections have said that theirs are over."""
        was, spec = (t.backends.get(self._backend) for t in (message.before, self._services.table.value))
        if not same_server(was, spec):
            self._stale = True
            self._settled()

    def _failure(self, reason: str, message: str) -> Raw:
        """Of what was not executed."""
        return failure(reason, message, "no", self._backend)

    # Callers

    def _join(self, message: um.Join) -> None:
        self.busy()
        self.ctx.cancel_timer("idle")
        self._subscribers.members[message.caller] = None
        self.ctx.monitor(message.caller)
        first = self._first
        if first is not None and first.server_info is not None:
            message.caller.reply(um.UpstreamReady(self.ctx.ref, self._backend, first.server_info, False))

    def _left(self, ref: Ref) -> None:
        """A caller is gone. What is suspended is its client's, and stays."""
        self._guests.discard(ref)
        for owner in [call.owner for call in self._calls.values() if call.owner is not None]:
            if owner[0] is ref:
                self._give_up(owner, "the client has disconnected")
        first = self._first
        for uri in self._subscribers.leave(ref):
            if first is not None:
                self._request(first, UNSUBSCRIBE, json.dumps({"uri": uri}), lambda ok, payload: None)
        # Whoever has nothing in hand leaves after `link_idle`; until then it may have had a subscription here.
        self._used = max(self._used, self.ctx.now() - self._services.limits.link_idle)
        self._settled()

    def _call(self, message: um.Call) -> None:
        owner, client = (message.caller, message.call), message.client
        level = client.level if client is not None else None
        refusal = meta.unknown_level(level) if level is not None else None
        if refusal is not None:  # between the eras only what is known
            self._outcome(owner, False, refusal.raw)
            return
        if self._unused:
            self.busy()
        if message.method in (SUBSCRIBE, UNSUBSCRIBE) and self._subscribers.settles(owner, message):
            self._outcome(owner, True, json.dumps({}))
            return
        if client is not None and not self._info and 0 < len(client.info) <= INFO_BYTES:
            self._info = Raw(bytes(client.info))
        self._next += 1
        row = METHODS.get(message.method)
        may_ask_back = row is not None and row.may_ask_back
        self._calls[self._next] = PooledCall(message, owner, owner, level, message.progress, may_ask_back)
        self._numbers[owner] = self._next
        self._step(ev.Begun(self._next, owner, may_ask_back))

    def _resume(self, message: pm.Resume) -> None:
        """A client has come with answers."""
        owner, refusal = (message.caller, message.call), meta.unknown_level(message.level)
        if message.incarnation != self._named or not message.suspend.isdecimal():
            refusal = request_state.invalid()
        if refusal is not None:
            self._outcome(owner, False, refusal.raw)
            return
        self._resuming = message
        self._step(ev.Resumed(int(message.suspend), owner, message.round, message.answers))
        self._resuming = None

    def _cancelled(self, message: um.Cancel) -> None:
        owner = (message.caller, message.call)
        self._subscribers.subscribed(owner, False)
        self._give_up(owner, message.reason)

    def _give_up(self, owner: Owner, reason: str) -> None:
        """Nobody waits for this call any more. If it was just suspended, nobody has heard of that."""
        number = self._numbers.get(owner)
        if number is None:
            return
        suspended = self._calls[number].owner is None
        self._calls[number].owner = None
        self._step(ev.Expired(number) if suspended else ev.Cancelled(number, reason))

    def announce(self, message: um.UpstreamReady | um.UpstreamDown) -> None:
        (self._connected.add if isinstance(message, um.UpstreamReady) else self._connected.discard)(self._record_key)
        for ref in self._subscribers.members:
            ref.reply(message)

    def _closed(self, why: str) -> None:
        """The connection with the server's state is gone, and what was to be heard over it."""
        self.announce(um.UpstreamDown(self.ctx.ref, self._backend, why, self._failure("link_ended", why)))

    # Connections

    @property
    def _first(self) -> PooledConnection | None:
        return self._connections[min(self._connections)] if self._connections else None

    def _of(self, ref: Ref) -> PooledConnection | None:
        """The connection whose actor this is."""
        return next((found for found in self._connections.values() if found.ref is ref), None)

    def _open(self, number: int, level: str | None) -> PooledConnection | None:
        """A new connection; None if none can be had: without a configuration, at a bound, or while the gateway ends."""
        spec = self._services.table.value.backends.get(self._backend)
        if spec is None:
            return None
        level, tree = level if spec.sharing != "shared" else None, self._tree

        def make() -> LegacyUpstream:
            return LegacyUpstream(spec, self._profile(spec), self._services, tree.backends, level=level, eras=tree.eras)

        try:
            ref = start_upstream(spec, self.ctx.system.registry, tree.upstreams, make)
        except (AtCapacity, SystemClosed):
            return None
        self.ctx.monitor(ref)
        ref.reply(um.Join(self.ctx.ref))
        opened = self._connections[number] = PooledConnection(number, ref, level=level)
        return opened

    def _profile(self, spec: BackendSpec) -> Profile:
        """The gateway, with the client's name in its title; and what exactly this kind of client can be asked."""
        bits, epoch = self._key.bits, self._record.grant.epoch
        if spec.sharing == "shared":
            return profile_of(None, frozenset(), epoch, self._services.identity)
        return Profile(capabilities.declare(bits), self._introduced(), serialized(spec, bits), base36(epoch))

    def _introduced(self) -> Raw:
        own = Raw(self._services.identity)
        try:
            said, ours = json.members(self._info), json.members(own)
            name = json.text_or_none(said.get("title")) or json.text_or_none(said.get("name"))
            if not name:
                return own
            me = json.text_or_none(ours.get("title")) or json.text_or_none(ours.get("name"))
            return json.replace_members(own, {"title": json.dumps(f"{me} for {name[:128]}")})
        except errors.Malformed:
            return own

    def _leave(self, number: int) -> PooledConnection | None:
        """A connection that has ended, or that is needed no more: it closes by itself."""
        found = self._connections.pop(number, None)
        if found is not None:
            self.ctx.demonitor(found.ref)
            found.ref.reply(um.Leave(self.ctx.ref))
        return found

    def _ready(self, message: um.UpstreamReady) -> None:
        connection = self._of(message.upstream)
        if connection is None:
            return
        connection.server_info = message.server_info
        if message.again:
            self._step(ev.ConnectionLost(connection.number))
        if connection is self._first:
            self.announce(um.UpstreamReady(self.ctx.ref, self._backend, message.server_info, message.again))

    def _down(self, message: um.UpstreamDown) -> None:
        connection = self._of(message.upstream)
        if connection is None:
            return
        connection.server_info = None
        self._step(ev.ConnectionLost(connection.number))
        if connection is self._first:
            self.announce(um.UpstreamDown(self.ctx.ref, self._backend, message.message, message.payload))

    def _ended(self, ref: Ref) -> None:
        """An actor is gone: of a connection, or a caller."""
        connection, first = self._of(ref), self._first
        if connection is None:
            self._left(ref)
            return
        self._leave(connection.number)
        if connection is first:
            self._closed("the connection to the server ended")
        self._step(ev.ConnectionGone(connection.number))

    def _wrong_era(self, message: um.UpstreamWrongEra) -> None:
        """The server is modern: the calls go back to whoever made them, and so does the finding."""
        back: dict[Ref, list[um.Call]] = {}
        for returned in message.calls:
            call = self._calls.get(returned.call)
            if call is not None and call.owner is not None:
                back.setdefault(call.owner[0], []).append(call.call)
                self._step(ev.Unsent(returned.call))
        connection = self._of(message.upstream)
        if connection is not None:
            self._step(ev.ConnectionGone(connection.number))
            self._leave(connection.number)
        for ref in list(self._subscribers.members):
            ref.reply(um.UpstreamWrongEra(self.ctx.ref, self._backend, tuple(back.get(ref, ()))))

    def _asked(self, message: um.UpstreamRequest) -> None:
        """A server request: its call is suspended, or it is answered at once."""
        connection = self._of(message.upstream)
        number = message.call if message.call is not None else self._raiser(message.method, connection)
        call = self._calls.get(number) if number is not None else None
        if number is None or call is None:
            message.upstream.reply(AnswerGiven(message.id, *ev.unasked(message.method)))
            return
        found = ev.for_client(call.call.method, self._key.bits, message.method, message.params)
        if isinstance(found, Raw) and self._asking + len(found) > QUESTIONS_BYTES:
            found = (False, errors.internal("too much is being asked of this client", reason="too_many").raw)
        if isinstance(found, Raw):
            self._step(ev.ServerRequested(number, message.id, message.method, found))
        else:
            message.upstream.reply(AnswerGiven(message.id, *found))

    @property
    def _asking(self) -> int:
        """Bytes of what has no answer yet."""
        return sum(len(q.params) for held in self._state.held.values() for q in held.open.values())

    def _raiser(self, method: str, connection: PooledConnection | None) -> int | None:
        """The call on a connection that a server request without one belongs to, if there is but one that may have
        raised it. Official SDKs ask for roots on the stream that belongs to no call. The answer is the same
        whichever call wanted it, so the newest that runs is asked; nothing else is ever guessed."""
        over = connection.number if connection is not None else 0
        able = [number for number, call in self._calls.items() if call.connection == over and call.may_ask_back]
        if method == "roots/list" and len(able) > 1:
            able = [max((number for number in able if self._calls[number].owner is not None), default=able[0])]
        return able[0] if len(able) == 1 else None

    def _withdrew(self, message: um.UpstreamWithdrew) -> None:
        if message.upstream is not None:
            connection = self._of(message.upstream)
            self._step(ev.Withdrawn(connection.number if connection is not None else 0, message.id))

    def _told(self, message: um.UpstreamNotification) -> None:
        """Progress and log messages are of one request; what has changed is news for all."""
        if message.method == "notifications/progress":
            call = self._calls.get(message.call) if message.call is not None else None
            self._tell(message, call.owner if call is not None and call.progress else None)
        elif message.method == "notifications/message":
            self._tell(message, self._reader(message))
        else:
            told = um.UpstreamNotification(self.ctx.ref, self._backend, None, message.method, message.params)
            self._subscribers.tell(told, None)

    def _reader(self, message: um.UpstreamNotification) -> Owner | None:
        """Who asked for this log message: the call it came with; or the only one, where the transport does not say."""
        connection = self._of(message.upstream)
        wanting = self._wanting(connection.number) if connection is not None else []
        if message.call is not None:
            wanting = [call for call in wanting if call is self._calls.get(message.call)]
        elif self._related:
            wanting = []
        return wanting[0].owner if len(wanting) == 1 else None

    def _wanting(self, number: int) -> list[PooledCall]:
        """The calls on a connection that want log messages."""
        return [c for c in self._calls.values() if c.connection == number and c.owner and c.level is not None]

    def _tell(self, message: um.UpstreamNotification, owner: Owner | None) -> None:
        """What is of one request; it may be lost."""
        if owner is None:
            self._drop("unwanted" if message.method in CHATTER else "unattributed")
            return
        ref, call = owner
        told = um.UpstreamNotification(self.ctx.ref, self._backend, call, message.method, message.params)
        if ref.crowded or not ref.cast(told):
            self._drop("notification_refused")

    def _tell_later(self) -> None:
        self.ctx.set_timer("owed", REPLIES_AGAIN, pm.RepliesDue())

    def _drop(self, what: str) -> None:
        self._services.telemetry.count("stagedoor_messages_dropped_total", (what,))

    # Requests of its own

    def _request(
        self, over: PooledConnection, method: str, params: Raw, then: Then, seconds: float | None = None
    ) -> None:
        me, upstream = self.ctx.ref, over.ref
        self._own.make(
            lambda call: upstream.reply(um.Call(me, call, method, params)),
            lambda call, reason: upstream.reply(um.Cancel(me, call, reason)),
            then,
            seconds,
        )

    def _adjust(self, connection: PooledConnection) -> None:
        """Has the server log over a connection as much as the calls on it want: that is the client's business only
        where a request asked for it (2026-07-28, server/utilities/logging); as before, if the server refuses."""
        levels = [call.level for call in self._wanting(connection.number) if call.level is not None]
        level = min(levels, key=LEVELS.index, default=None)
        spec, server_info = self._services.table.value.backends.get(self._backend), connection.server_info
        logs = server_info is None or capabilities.parse(server_info.capabilities).has(("logging",))
        if level in (None, connection.level) or not logs or (spec is not None and spec.sharing == "shared"):
            return
        before, connection.level = connection.level, level

        def told(ok: bool, payload: Raw) -> None:
            if not ok and connection.level == level:
                connection.level = before

        self._request(connection, SET_LEVEL, json.dumps({"level": level}), told)

    # The machine

    def _step(self, event: ev.SuspensionEvent) -> None:
        """One event, and what follows from it."""
        self._todo.append(event)
        if self._stepping:
            return
        self._stepping = True
        while self._todo:
            self._state, effects = ev.step(self._state, self._todo.pop(0))
            for effect in effects:
                EFFECTS[type(effect)](self, effect)
        self._stepping = False

    def _call_due(self, event: ev.SuspensionEvent) -> None:
        """A clock: how things stand with other calls is known when it is over."""
        if isinstance(event, ev.GatherOver):
            event = ev.GatherOver(event.call, self._suspended.room(self._key.principal, self.ctx.now()))
        elif isinstance(event, ev.WaitOver):
            now = self.ctx.now()
            since = {n: c.since for n, c in self._calls.items() if c.since is not None and now - c.since >= PATIENCE}
            event = ev.WaitOver(event.call, tuple(sorted(since, key=since.__getitem__)))
        self._step(event)

    def _connect(self, effect: ev.Connect) -> None:
        number = effect.line
        connection = self._connections.get(number)
        connection = connection or self._open(number, None)
        if connection is not None:
            connection.ref.reply(Wanted())
        else:
            self._closed("no connection to the server can be made")

    def _dispatch(self, effect: ev.Dispatch) -> None:
        pooled = self._calls[effect.call]
        pooled.connection, call = effect.line, pooled.call
        connection = self._connections.get(effect.line)
        connection = connection or self._open(effect.line, pooled.level)
        if connection is None:
            error = self._failure("no_link", "no connection to the server can be made")
            self._step(ev.Ended(effect.call, False, error))
            return
        if pooled.level is not None:
            self._adjust(connection)
        params = translate.client_request(call.method, call.params, LATEST_HANDSHAKE, MODERN)
        connection.ref.reply(um.Call(self.ctx.ref, effect.call, call.method, params, call.progress))

    def _deliver(self, effect: ev.Outcome) -> None:
        caller, call = owner = _owner(effect.owner)
        number = self._numbers.get(owner)
        if number is not None and self._calls[number].call.method == SUBSCRIBE:
            self._subscribers.subscribed(owner, effect.ok)
        caller.reply(um.UpstreamOutcome(self._backend, call, effect.ok, effect.payload))

    def _forget(self, effect: ev.Forget) -> None:
        call = self._calls.pop(effect.call, None)
        if call is not None:
            self._numbers.pop(call.last, None)
        if not self._calls:
            self._rests()

    def _suspend(self, effect: ev.Suspend) -> None:
        pooled, number = self._calls[effect.call], effect.call
        # What was sent is not sent again: its params need not be kept while a human thinks.
        pooled.call = replace(pooled.call, params=EMPTY)
        pooled.owner = None
        if pooled.since is None:
            pooled.since = self.ctx.now()
        expired, ref = pm.CallDue(ev.Expired(number)), self.ctx.ref
        self._suspended.add(self._key.principal, (self, number), pooled.since, lambda: ref.reply(expired))
        self.ctx.set_timer(("park", number), self._services.limits.park_ttl, expired)
        caller, call = _owner(effect.owner)
        place = (self._named, str(number), effect.round)
        caller.reply(pm.UpstreamSuspended(self._backend, call, *place, effect.questions))

    def _unsuspend(self, effect: ev.Unsuspend) -> None:
        """Whoever resumed it has it from here on: before the server gets the answers."""
        number = effect.call
        self.ctx.cancel_timer(("park", number))
        self._suspended.remove((self, number))
        held, message = self._state.held.get(number), self._resuming
        if message is None or held is None or held.owner != (message.caller, message.call):
            return
        call = self._calls[number]
        self._numbers.pop(call.last, None)
        call.owner = call.last = (message.caller, message.call)
        call.level = message.level
        call.progress = message.progress
        self._numbers[call.last] = number
        connection = self._connections.get(call.connection)
        if message.level is not None and connection is not None:
            self._adjust(connection)

    def _answer(self, effect: ev.Answer) -> None:
        connection = self._connections.get(effect.line)
        if connection is None:
            return
        version = connection.server_info.version if connection.server_info is not None else LATEST_HANDSHAKE
        ok, payload = translate.answer(effect.method, effect.ok, effect.payload, version, MODERN)
        connection.ref.reply(AnswerGiven(effect.id, ok, payload))

    def _start_grace(self, effect: ev.StartGrace) -> None:
        """Servers that do one thing after the other answer a ping when they are done with what was cancelled; one that
        answers no ping is stuck."""
        connection, settled = self._connections.get(effect.line), ev.Settled(effect.call)
        if connection is None:
            self._step(settled)
            return
        self.ctx.set_timer(("grace", effect.call), GRACE, pm.CallDue(ev.GraceOver(effect.call)))
        # Whether that comes in time the clock decides, which is over before the deadline of this.
        self._request(connection, "ping", EMPTY, lambda ok, payload: self._step(settled), 2 * GRACE)

    def _discard(self, effect: ev.Discard) -> None:
        first = self._first
        dropped = self._leave(effect.line)
        if dropped is not None and dropped is first:
            self._closed("the connection to the server was closed")

    def _cancel(self, effect: ev.Cancel) -> None:
        connection = self._connections.get(effect.line)
        if connection is not None:
            connection.ref.reply(um.Cancel(self.ctx.ref, effect.call, effect.reason))

    def _start_gather(self, effect: ev.StartGather) -> None:
        self.ctx.set_timer(("gather", effect.call), GATHER, pm.CallDue(ev.GatherOver(effect.call, True)))

    def _start_wait(self, effect: ev.StartWait) -> None:
        self.ctx.set_timer(("wait", effect.call), WAIT, pm.CallDue(ev.WaitOver(effect.call)))

    def _stop_wait(self, effect: ev.StopWait) -> None:
        self.ctx.cancel_timer(("wait", effect.call))

    def _stop_grace(self, effect: ev.StopGrace) -> None:
        self.ctx.cancel_timer(("grace", effect.call))

    def _count(self, effect: ev.Count) -> None:
        self._drop(effect.what)


EFFECTS: dict[type, Callable[[PoolActor, Any], object]] = {
    ev.Connect: PoolActor._connect,
    ev.Dispatch: PoolActor._dispatch,
    ev.Suspend: PoolActor._suspend,
    ev.Unsuspend: PoolActor._unsuspend,
    ev.Outcome: PoolActor._deliver,
    ev.Answer: PoolActor._answer,
    ev.Cancel: PoolActor._cancel,
    ev.StartGather: PoolActor._start_gather,
    ev.StartWait: PoolActor._start_wait,
    ev.StopWait: PoolActor._stop_wait,
    ev.StartGrace: PoolActor._start_grace,
    ev.StopGrace: PoolActor._stop_grace,
    ev.Discard: PoolActor._discard,
    ev.Forget: PoolActor._forget,
    ev.Count: PoolActor._count,
}


def serialized(spec: BackendSpec, bits: ClientBits) -> bool:
    """Whether calls take turns: something may be asked, and the transport does not say for which call."""
    return bool(bits & LENT) and spec.sharing != "shared" and isinstance(spec.target, StdioTarget)


def _owner(owner: Hashable) -> Owner:
    """What the machine carries as an opaque name."""
    assert isinstance(owner, tuple)
    return owner
