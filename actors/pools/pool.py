"""An affinity pool: the connections of one modern client to one legacy server.

To those who call it, it is a connection; besides, it suspends calls whose server asks something, and goes on with
them when the client comes with answers. Which call goes over which connection, and what becomes of it, is decided
by the machine of `machines/modern/suspended_calls`. A pool lives as long as it is used: what its server remembers
is there for the next request. The connections hold a server's hidden state, so they are owned like sessions are; all
that comes goes through `Ownership`, which knows whether it is for this process.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, assert_never

from msgspec import Raw, Struct
from msgspec.structs import replace

from actors.endpoints.host import ASKABLE, Tree, name_of, profile_of, whose_connection
from actors.machines.modern import input_required, request_state
from actors.machines.modern import suspended_calls as ev
from actors.machines.upstream.events import AnswerGiven, ServerInfo, Wanted
from actors.machines.upstream.legacy_calls import ROOTS, failure
from actors.machines.upstream.legacy_state import Profile
from actors.pools import letters
from actors.pools import messages as pm
from actors.pools.ownership import LifeMessage, LocalMessage, OfOwner, Ownership, PoolMessage, without
from actors.ports import Incarnation, Principal
from actors.protocol import capabilities, errors, meta, tasks, translate
from actors.protocol import payload as json
from actors.protocol.capabilities import LEVELS, ClientBits
from actors.protocol.messages import EMPTY, base36
from actors.protocol.methods import METHODS, SET_LEVEL, SUBSCRIBE, UNSUBSCRIBE
from actors.protocol.table import BackendSpec, NativeTarget, Replaced, relates, same_server
from actors.protocol.versions import LATEST_HANDSHAKE, MODERN
from actors.quotas import PATIENCE, ClientGone, Evict, Evictable, SuspendedCalls
from actors.runtime import NORMAL, SHUTDOWN, AtCapacity, Down, Exit, Ref, SystemClosed
from actors.services import Services
from actors.upstreams import messages as um
from actors.upstreams.legacy import LegacyUpstream
from actors.upstreams.own_calls import OwnCalls, OwnDue, Then
from actors.upstreams.start import start_upstream
from actors.upstreams.subscribers import CHATTER, REPLIES_AGAIN, Subscribers

if TYPE_CHECKING:
    from actors.pools.looking import Looking

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
WAIT = 30.0
"""Seconds after which a call that waits for a connection looks whether there is any hope."""
LENT = frozenset({"roots", *ASKABLE})
"""What a client can be asked in the course of a call."""

Owner: TypeAlias = tuple[Ref, int]
"""A caller, and its number of the call."""


class PoolKey(Struct, frozen=True):
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
    """Holds the connections of one modern client to one legacy server, and its suspended calls. Temporary: a crash ends
    both; the next request begins another."""

    mailbox_size = 1024
    disposable = True

    _own: OwnCalls
    _ownership: Ownership

    def __init__(
        self,
        spec: BackendSpec,
        record_key: str,
        key: PoolKey,
        services: Services,
        tree: Tree,
        suspended: SuspendedCalls,
        connected: dict[str, bool],
    ) -> None:
        self._backend = spec.name
        self._record_key = record_key
        self._key = key
        self._services = services
        self._tree = tree
        self._suspended = suspended
        self._connected = connected
        """The record keys of all pools that have a connection, and whether it is one of this process."""
        self._spec = spec
        lines = 1 + services.limits.overflow_connections
        self._state = ev.Calls(ev.Rules(serialized(tree.eras.settled(spec), key.bits), lines, server=spec.name))
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
        self._looking: Looking | None = None
        """What is known of definitions at further processes, where they had to be accepted."""
        self._todo: list[ev.SuspensionEvent] = []
        self._stepping = False
        self._guests: set[Ref] = set()
        """Callers that stand for other processes."""
        self.stale = False
        """It ends as soon as no call is left: the server is another one."""
        self._former = False
        """So it is, and the pool has a connection to the one of before."""
        self._forsaken = False
        """Its client will not come again: not for what is suspended either."""
        self._used = 0.0
        """When the last use of the connections ended, as far as that is known."""

    def __repr__(self) -> str:
        return f"<PoolActor {self._backend}: {len(self._calls)} calls, {len(self._connections)} connections>"

    # Life

    def started(self) -> None:
        self._own = OwnCalls(self.ctx, self._services.limits.request_deadline)
        enter = letters.Enter(self._backend, tuple(sorted(self._key.bits)), self._key.affinity)
        self._ownership = Ownership(
            self, self._record_key, self._key.principal, enter, self._services, self._tree, self._subscribers
        )
        self._rests()

    def receive(self, message: PoolMessage | ClientGone) -> None:
        """What is for the pool itself comes back, as soon as this process owns it."""
        if isinstance(message, ClientGone):
            self._forsaken = True
            self.settled()
        else:
            self._ownership.receive(message)

    def handle(self, message: LocalMessage) -> None:
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
        """Clocks, and what becomes of others."""
        match message:
            case pm.CallDue(event=event):
                self._call_due(event)
            case OwnDue(call=call):
                self._own.overdue(call)
            case pm.RepliesDue():
                self._subscribers.settle()
            case pm.IdleDue():
                if self.unused and not self._ended_unused():
                    self.ctx.set_timer("idle", IDLE_AGAIN, pm.IdleDue())
            case Evict():
                if self.unused and not self._ended_unused():
                    self.idle()
            case pm.StaleDue():
                if not self._calls or (self._forsaken and not self._subscribers.members):
                    self.end()
            case Replaced():
                self._replaced(message)
            case Down():
                self._ended(message.ref)
            case _:
                assert_never(message)

    def disowned(self, waiting: list[PoolMessage], owner: Incarnation | None) -> list[PoolMessage]:
        """As in `LocalPool`. What was sent may have been executed; of that only what the server has answered is known.
        What is suspended is lost."""
        unsent = self._take_unsent()
        for kept in waiting:
            if isinstance(kept, um.UpstreamOutcome):
                self.handle(kept)
        text = "another replica has this client's connections now"
        lost = errors.internal(text, reason="moved", executed="unknown", backend=self._backend).raw
        for call in self._calls.values():
            if call.owner is not None:
                self._subscribers.subscribed(call.owner, False)
                self._outcome(call.owner, False, lost)
        self._let_go()
        self.ctx.cancel_timer("idle")
        undone = self._part_with_guests([*unsent, *(m for m in waiting if not isinstance(m, OfOwner))], owner)
        self._closed(text)
        return undone

    def _take_unsent(self) -> list[um.Call]:
        """The calls that wait for their turn, as if they had not come yet."""
        waiting = [number for number, held in self._state.held.items() if held.phase is ev.Phase.WAITING]
        unsent = [self._calls[number].call for number in waiting]
        for number in waiting:
            self._step(ev.Cancelled(number, "not sent"))
        return unsent

    def _part_with_guests(self, undone: list[PoolMessage], owner: Incarnation | None) -> list[PoolMessage]:
        """Who comes from other processes looks for the pool itself; returns what others want."""
        for guest in self._guests:
            mine = (m.call for m in undone if isinstance(m, um.Call | pm.Resume) and m.caller is guest)
            guest.reply(pm.NotHere(owner, tuple(mine)))
            undone = without(undone, um.Leave(guest))
            self._subscribers.leave(guest)
            self.ctx.demonitor(guest)
        self._guests.clear()
        return undone

    def _let_go(self) -> None:
        """Of all calls and connections; whoever is asked is told."""
        for number, call in list(self._calls.items()):
            self._step(ev.Cancelled(number, "the connection is closed") if call.owner else ev.Expired(number))
        for number in list(self._connections):
            self._leave(number)
            self._step(ev.ConnectionGone(number))

    def _outcome(self, owner: Owner, ok: bool, payload: Raw) -> None:
        caller, call = owner
        caller.reply(um.UpstreamOutcome(self._backend, call, ok, payload))

    @property
    def unused(self) -> bool:
        """Whether nobody needs the connections at present."""
        return not self._calls and not self._subscribers.members

    def _rests(self) -> None:
        """No call is left."""
        self._used = self.ctx.now()
        self.settled()

    def settled(self) -> None:
        """Something is over: if nobody needs the connections any more, they are kept for a while."""
        if self.stale or (self._forsaken and not self._subscribers.members):
            self.ctx.set_timer("stale", 0.0, pm.StaleDue())
        elif self.unused:
            self.idle()
            left = self._used + self._services.limits.broker_idle - self.ctx.now()
            self.ctx.set_timer("idle", max(0.0, left), pm.IdleDue())

    def _ended_unused(self) -> bool:
        """Ends, unless somebody has just come."""
        nobody = self.ctx.idle
        if nobody:
            self.end()
        return nobody

    def drain(self, deadline: float) -> None:
        self.end(SHUTDOWN)  # whoever used it has ended

    def end(self, reason: Exit = NORMAL) -> None:
        """Whoever is asked, or waits for an answer, is told."""
        undone = [*self._take_unsent(), *self._ownership.take_early()]
        self._ownership.turn_away(undone, "link_ended", "the connection is closed")
        self._let_go()
        self.ctx.stop(reason)

    def stopped(self, reason: Exit) -> None:
        """After a crash too: what was suspended is not there any more, and the next life may begin anywhere."""
        self._connected.pop(self._record_key, None)
        for number in self._calls:
            self._suspended.remove((self, number))
        self._ownership.leave()

    def _replaced(self, message: Replaced) -> None:
        """For another server there is another pool. What the server at the other end of a connection remembers of the
        client is still there, so the pool stays as long as that connection; it gets no other one beside it."""
        first, rules = self._first, self._state.rules
        changed = not same_server(self._spec, self._services.table.value.backends.get(self._backend))
        kept = first is not None and first.server_info is not None
        self._former, self.stale = changed and kept, changed and not kept
        lines = 1 if changed else 1 + self._services.limits.overflow_connections
        self._state = replace(self._state, rules=replace(rules, lines=lines))
        self.settled()

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
        self.settled()

    def _call(self, message: um.Call) -> None:
        owner, client = (message.caller, message.call), message.client
        level = client.level if client is not None else None
        refusal = meta.unknown_level(level) if level is not None else None
        if refusal is not None:  # between the eras only what is known
            self._outcome(owner, False, refusal.raw)
            return
        if self.unused:
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
        if message.incarnation != self._ownership.named or not message.suspend.isdecimal():
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
        if isinstance(message, um.UpstreamReady):
            self._connected[self._record_key] = self._ownership.here
        else:
            self._connected.pop(self._record_key, None)
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
        level, tree = None if spec.common else level, self._tree

        spec = spec.of(self._key.principal.name)

        def make() -> LegacyUpstream:
            return LegacyUpstream(spec, self._profile(spec), self._services, tree.backends, level=level, eras=tree.eras)

        try:
            ref = start_upstream(spec, self.ctx.system.registry, tree.upstreams, make, self._key.principal.name)
        except (AtCapacity, SystemClosed):
            return None
        self.ctx.monitor(ref)
        ref.reply(um.Join(self.ctx.ref))
        opened = self._connections[number] = PooledConnection(number, ref, level=level)
        return opened

    def _profile(self, spec: BackendSpec) -> Profile:
        """The gateway, with the client's name in its title; and what exactly this kind of client can be asked."""
        bits, epoch = self._key.bits, self._ownership.epoch
        if spec.common:
            of = whose_connection(spec, self._key.principal)
            return profile_of(None, frozenset(), epoch, self._services.identity, principal=of)
        declared, whose = capabilities.declare(bits), name_of(self._key.principal)
        serialized = may_ask(spec, bits)
        return Profile(declared, self._introduced(), serialized, base36(epoch), principal=whose, needs_call=True)

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
            if self._looking is not None:
                self._looking.left(found)
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
            self._move_on()

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
        if connection is first:
            self._move_on()

    def _move_on(self) -> None:
        """The connection with the server's state is gone: of a server that is another one now this pool has no more."""
        if self._former:
            self._former, self.stale = False, True
            self.settled()

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
        number = message.call if message.call is not None else self._raiser(message, connection)
        if message.doubtful and message.call is None:
            self._refuse_doubtful(message, number)
            return
        call = self._calls.get(number) if number is not None else None
        if number is None or call is None:
            message.upstream.reply(AnswerGiven(message.id, *ev.unasked(message.method)))
            return
        if not (self._relates and (message.call is not None or message.method == ROOTS)):
            self._remember_asking()
        found = ev.for_client(call.call.method, self._key.bits, message.method, message.params)
        if isinstance(found, Raw) and self._asking + len(found) > QUESTIONS_BYTES:
            found = (False, errors.internal("too much is being asked of this client", reason="too_many").raw)
        if isinstance(found, Raw):
            key = input_required.key_in(message.params)
            self._step(ev.ServerRequested(number, message.id, message.method, found, key))
        else:
            message.upstream.reply(AnswerGiven(message.id, *found))

    def _refuse_doubtful(self, message: um.UpstreamRequest, raiser: int | None) -> None:
        """It may belong to a call that was cancelled, and is put to nobody in the name of another. While none runs but
        one that was, it is that one's."""
        self._remember_asking()
        held = self._state.held.get(raiser) if raiser is not None else None
        if held is not None and held.phase is ev.Phase.SETTLING:
            answer = ev.abandoned(message.method)
        else:
            answer = (False, ev.doubtful().raw)
            self._drop("doubtful_request")
            self._services.log.warning("backend_request_refused", backend=self._backend, method=message.method)
        message.upstream.reply(AnswerGiven(message.id, *answer, unheard=True))

    def _remember_asking(self) -> None:
        spec = self._services.table.value.backends.get(self._backend)
        if spec is not None:
            self._tree.eras.found_asking(spec)

    @property
    def _relates(self) -> bool:
        """Whether what the server says tells the call it belongs to."""
        return relates(self._tree.eras.settled(self._spec).target)

    @property
    def _asking(self) -> int:
        """Bytes of what has no answer yet."""
        return sum(len(q.params) for held in self._state.held.values() for q in held.open.values())

    def _raiser(self, message: um.UpstreamRequest, connection: PooledConnection | None) -> int | None:
        """The call on a connection that a server request without one belongs to, if there is but one that may have
        raised it. Official SDKs ask for roots on the stream that belongs to no call. The answer is the same
        whichever call wanted it, so the newest that runs is asked; nothing else is ever guessed. What says that it is
        of a task is of no call here, or would have come with it."""
        if tasks.mentions_task(message.params):
            return None
        over = connection.number if connection is not None else 0
        able = [number for number, call in self._calls.items() if call.connection == over and call.may_ask_back]
        if message.method == ROOTS and len(able) > 1:
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
            connection = self._of(message.upstream)
            if self._looking is not None and connection is not None:
                self._looking.changed(connection, message.method)
            told = um.UpstreamNotification(self.ctx.ref, self._backend, None, message.method, message.params)
            self._subscribers.tell(told, None)

    def _reader(self, message: um.UpstreamNotification) -> Owner | None:
        """Who asked for this log message: the call it came with; or the only one, where the transport does not say."""
        connection = self._of(message.upstream)
        wanting = self._wanting(connection.number) if connection is not None else []
        if message.call is not None:
            wanting = [call for call in wanting if call is self._calls.get(message.call)]
        elif self._relates:
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
        self.ctx.set_timer("replies", REPLIES_AGAIN, pm.RepliesDue())

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
        if level in (None, connection.level) or not logs or (spec is not None and spec.common):
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
        params = self._introducing(translate.client_request(call.method, call.params, LATEST_HANDSHAKE, MODERN), call)
        sent = um.Call(self.ctx.ref, effect.call, call.method, params, call.progress, rights=call.rights)
        if connection is self._first or not self._looks_first(connection, sent):
            connection.ref.reply(sent)

    def _introducing(self, params: Raw, call: um.Call) -> Raw:
        """The connection was made in the gateway's name; a server of this process is told the client's with each
        request."""
        spec = self._services.table.value.backends.get(self._backend)
        if spec is None or spec.common or not isinstance(spec.target, NativeTarget):
            return params
        info = call.client.info if call.client is not None else EMPTY
        return meta.introduce(params, info) if 0 < len(info) <= INFO_BYTES else params

    def _looks_first(self, connection: PooledConnection, call: um.Call) -> bool:
        """Whether what a further process defines had to be accepted: the call goes on, or not, when that is known."""
        spec = self._services.table.value.backends.get(self._backend)
        if spec is None or spec.pins is None or not spec.pins.blocks:
            return False
        if self._looking is None:
            from actors.pools.looking import Looking  # only where there are pins

            self._looking = Looking(self._backend, self._key.principal, self._services, self.ctx.now, self._request)

        def refuse(error: Raw) -> None:
            self._step(ev.Ended(call.call, False, error))

        self._looking.pass_on(call.call, connection, call, spec.pins, lambda: connection.ref.reply(call), refuse)
        return True

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
        self.ctx.set_timer(("suspended", number), self._services.limits.park_ttl, expired)
        caller, call = _owner(effect.owner)
        place = (self._ownership.named, str(number), effect.round)
        caller.reply(pm.UpstreamSuspended(self._backend, call, *place, effect.questions))

    def _unsuspend(self, effect: ev.Unsuspend) -> None:
        """Whoever resumed it has it from here on: before the server gets the answers."""
        number = effect.call
        self.ctx.cancel_timer(("suspended", number))
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
        if self._looking is not None and self._looking.forget(effect.call):
            return  # the server has not heard of it
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


def may_ask(spec: BackendSpec, bits: ClientBits) -> bool:
    """Whether the server may ask this kind of client something."""
    return bool(bits & LENT) and not spec.common


def serialized(spec: BackendSpec, bits: ClientBits) -> bool:
    """Whether calls take turns: something may be asked, and the transport does not say for which call."""
    return may_ask(spec, bits) and not relates(spec.target)


def _owner(owner: Hashable) -> Owner:
    """What the machine carries as an opaque name."""
    assert isinstance(owner, tuple)
    return owner
