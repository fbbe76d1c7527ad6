"""The router: brings sessions into the world and back into memory.

It creates a session's record before its actor, claims a record before it rebuilds one, and counts what there is. What
is alive is looked up in `Sessions` without a message; only the rest comes here.
"""

import hashlib
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias, assert_never

from msgspec import Struct
from msgspec.structs import replace

from actors.endpoints.host import Tree
from actors.machines.session import record as session_record
from actors.ports import (
    ANONYMOUS,
    NO_DELTAS,
    UNAVAILABLE,
    Failed,
    Grant,
    Incarnation,
    Principal,
    Record,
    Refused,
    Replica,
    SessionKey,
    ignore,
)
from actors.protocol import errors
from actors.protocol.errors import ProtocolError
from actors.quotas import Quotas
from actors.record import reader
from actors.runtime import Actor, AtCapacity, Down, DynamicSupervisor, Exit, ExitKind, Ref, Reply, SystemClosed
from actors.services import Services
from actors.sessions.expiry import Overdue, end, remaining
from actors.sessions.messages import Move
from actors.sessions.session import Identity, SessionActor
from actors.streams.recorder import handle

MOVING = 5.0
"""Seconds for which a session that is moved is left to other replicas."""
MOVE_LOOK = 0.2
"""Seconds between two looks for who has taken it, while somebody waits for it."""
ATTEMPTS = 3
"""Claims of a session that others claim too, before whoever waits for it is told to come back."""
REBUILDS = 3
"""Lives of a session that began, and ended before their first write: there is no fourth."""
UNHEARD = 1000
"""Claims of whose outcome nothing was heard that are remembered."""
KEYS_REMEMBERED = 4096
"""What sessions are called, which each request asks for."""
ID_CHARACTERS = 64
"""Of an id; a longer one is none of ours."""
CRASH_WINDOW = 60.0
"""Seconds: a session that crashes twice within it ends for good."""


def session_key(session_id: str) -> SessionKey:
    """What a session is called everywhere but on the wire: the id itself is a secret of its client."""
    key = short_key if len(session_id) <= ID_CHARACTERS else short_key.__wrapped__
    return key(session_id)


@lru_cache(KEYS_REMEMBERED)
def short_key(session_id: str) -> SessionKey:
    """The same of what may be an id, which is remembered."""
    return hashlib.sha256(session_id.encode("utf-8", "replace")).hexdigest()[:32]


class Alive(Struct, frozen=True):
    """A session in memory."""

    ref: Ref
    principal: Principal
    endpoint: str


ELSEWHERE = 20_000
"""Sessions of other replicas whose owner is remembered; of any further one the record is read."""


@dataclass(slots=True)
class Sessions:
    """What is alive here, which only the router changes, and what is known of sessions elsewhere."""

    table: dict[SessionKey, Alive] = field(default_factory=dict)
    draining: bool = False
    elsewhere: OrderedDict[SessionKey, Incarnation] = field(default_factory=OrderedDict)
    """Who owned a session when it was last heard of, and does, most likely."""
    under_way: Counter[SessionKey] = field(default_factory=Counter)
    """Sessions to which mail is under way: what is for them goes behind it."""
    on_drain: list[Callable[[], object]] = field(default_factory=list)
    """Called when the process begins to drain."""

    def know(self, key: SessionKey, owner: Incarnation | None) -> None:
        """Remembers the owner of a session; None: it is not known any more."""
        if owner is None:
            self.elsewhere.pop(key, None)
            return
        self.elsewhere[key] = owner
        self.elsewhere.move_to_end(key)
        if len(self.elsewhere) > ELSEWHERE:
            self.elsewhere.popitem(last=False)

    def forget(self, owner: Incarnation) -> None:
        """Forgets what was known of this owner, which owns nothing any more."""
        for key in [key for key, known in self.elsewhere.items() if known == owner]:
            del self.elsewhere[key]


class OpenSession(Struct, frozen=True):
    """A new session; the reply gets (Ref, session id) or a ProtocolError."""

    principal: Principal
    endpoint: str
    reply: Reply


class Activate(Struct, frozen=True):
    """A session that is not in memory; the reply gets its Ref, Elsewhere or a ProtocolError. `dead`: an owner that is
    no more. `mailed`: another replica asks, which can have it as well; `able`: and is to have it if it is nobody's."""

    key: SessionKey
    principal: Principal
    endpoint: str
    reply: Reply
    dead: Incarnation | None = None
    mailed: bool = False
    able: bool = False


class Elsewhere(Struct, frozen=True):
    """Another process owns the session, and is presumed to live; None: nobody does, and others are to have it. `rests`:
    nobody has had it for a while. `handed`: nobody has it, and this one can read its record."""

    owner: Incarnation | None
    rests: bool = False
    handed: bool = False


class TakeOver(Struct, frozen=True):
    """A session of a dead replica, or one that this one has given back, with work in flight: `found` in its record."""

    key: SessionKey
    found: Record
    dead: Incarnation


class MoveSession(Struct, frozen=True):
    """A session that lives here is to go on at another replica. The reply gets True when it was given back for that,
    False if that can't be done (it is not here, or not initialized), or an Answer that refuses. For `MOVING` seconds
    it is left to others; whoever looks for it here waits."""

    key: SessionKey
    reply: Reply


class MoveDue(Struct, frozen=True):
    """Time to look whether another replica has taken a session that was given back to it."""

    key: SessionKey


class LeftDue(Struct, frozen=True):
    """Time to look whether anybody has taken a session that `former` has left or given back, if it has work in
    flight."""

    key: SessionKey
    former: Incarnation


class LeftRead(Struct, frozen=True):
    """What the store says of a session that was left or given back."""

    left: LeftDue
    outcome: Any


class Created(Struct, frozen=True):
    """What the store says of the record of a new session."""

    open: OpenSession
    key: SessionKey
    session_id: str
    fields: Mapping[str, bytes]
    outcome: Any


class Readers(Struct, frozen=True):
    """Who is there, for a session whose record, of this version, can't be read here."""

    key: SessionKey
    version: int
    outcome: list[Replica] | Failed


class Read(Struct, frozen=True):
    """What the store says of a record that is to be claimed."""

    key: SessionKey
    outcome: Any


class Claimed(Struct, frozen=True):
    """What the store says of a claim."""

    key: SessionKey
    principal: Principal
    endpoint: str
    outcome: Any


class TakenOver(Struct, frozen=True):
    """What the store says of a claim that nobody here waits for."""

    claimed: Claimed
    dead: Incarnation


RouterMessage: TypeAlias = (
    OpenSession
    | Activate
    | TakeOver
    | MoveSession
    | MoveDue
    | LeftDue
    | LeftRead
    | Created
    | Read
    | Readers
    | Claimed
    | TakenOver
    | Down
)


class Router(Actor):
    """Creates sessions, and brings them back into memory. Permanent."""

    mailbox_size = 8192

    def __init__(
        self, services: Services, sessions: Sessions, supervisor: DynamicSupervisor, tree: Tree, quotas: Quotas
    ) -> None:
        self._services = services
        self._sessions = sessions
        self._supervisor = supervisor
        self._tree = tree
        self._quotas = quotas
        self._keys: dict[Ref, SessionKey] = {}
        self._activating: dict[SessionKey, list[Activate]] = {}
        self._fenced: Counter[SessionKey] = Counter()
        """Claims that failed since another owns the session."""
        self._unheard: OrderedDict[SessionKey, str] = OrderedDict()
        """The nonces of claims of whose outcome nothing was heard. Made once more, each counts as the same."""
        self._granted: dict[SessionKey, tuple[Grant, Record]] = {}
        """What was claimed, and nobody lives up to yet."""
        self.crashed: dict[SessionKey, float] = {}
        """When each of those that crashed lately did so last."""
        self._moving: dict[SessionKey, float] = {}
        """Until when those that were given back to be moved are left to others."""

    def started(self) -> None:
        """After a crash of its own: the sessions live on, so they are watched again."""
        self._quotas.sessions.recount(alive.principal for alive in self._sessions.table.values())
        for key, alive in self._sessions.table.items():
            self._keys[alive.ref] = key
            self.ctx.monitor(alive.ref)

    def receive(self, message: RouterMessage) -> None:
        match message:
            case OpenSession():
                self._open(message)
            case Created():
                self._created(message)
            case Activate():
                self._activate(message)
            case Read(key, outcome):
                self._read(key, outcome)
            case Readers():
                self._hand_over(message)
            case Claimed():
                self._claimed(message)
            case TakeOver():
                self._take_over(message)
            case LeftDue(key):
                self._services.store.read(key, lambda out: self.ctx.ref.reply(LeftRead(message, out)))
            case LeftRead(left, outcome):
                self._left(left, outcome)
            case TakenOver(claimed, dead):
                self._taken_over(claimed, dead)
            case MoveSession():
                self._move(message)
            case MoveDue(key):
                self._look(key)
            case Down(ref=ref, reason=reason):
                self._down(ref, reason.kind)
            case _:
                assert_never(message)

    def drain(self, deadline: float) -> None:
        self._sessions.draining = True
        for tell in self._sessions.on_drain:
            tell()
        super().drain(deadline)

    def stopped(self, reason: Exit) -> None:
        """What it was still to hear of claims nobody hears."""
        self._give_back()

    # New sessions

    def _open(self, opening: OpenSession) -> None:
        if self._sessions.draining:
            opening.reply.answer(errors.draining())
            return
        no_room = self._no_room(opening.principal)
        if no_room is not None:
            opening.reply.answer(no_room)
            return
        session_id = secrets.token_urlsafe(24)
        key = session_key(session_id)
        self._quotas.sessions.add(opening.principal)
        version = self._services.cluster.schema
        fields = session_record.birth(opening.principal.name, opening.endpoint, version)
        fields |= session_record.configuration(self._services.table.value, opening.endpoint)

        def created(out: Any) -> None:
            self.ctx.ref.reply(Created(opening, key, session_id, fields, out))

        self._services.store.create(key, fields, created)

    def _no_room(self, principal: Principal) -> ProtocolError | None:
        """Why there can't be one more in memory."""
        if self._quotas.sessions.total >= self._services.limits.sessions:
            return errors.server_full()
        return None if self._quotas.sessions.room(principal) else errors.too_many_sessions()

    def _created(self, created: Created) -> None:
        self._quotas.sessions.add(created.open.principal, -1)
        if isinstance(created.outcome, Failed):
            self._services.log.warning("session_not_created", reason=created.outcome.reason.value)
            created.open.reply.answer(_refusal(created.outcome))
            return
        identity = Identity(created.key, created.open.principal, created.open.endpoint)
        self._services.log.info(
            "session_opened",
            session=handle(created.key),
            principal=identity.principal.name,
            endpoint=identity.endpoint,
        )
        ref = self._start(identity, created.outcome, created.fields)
        created.open.reply.answer(errors.server_full() if ref is None else (ref, created.session_id))

    def _start(self, identity: Identity, grant: Grant, record: Record | Mapping[str, bytes]) -> Ref | None:
        actor = SessionActor(identity, grant, self._services, self._tree, self._quotas, record)
        try:
            ref = self._supervisor.start_child(actor)
        except (AtCapacity, SystemClosed):
            return None
        self.ctx.monitor(ref)
        self._keys[ref] = identity.key
        if identity.key not in self._sessions.table:
            self._quotas.sessions.add(identity.principal)
        self._sessions.table[identity.key] = Alive(ref, identity.principal, identity.endpoint)
        self._gauge()
        return ref

    # Sessions that come back

    def _activate(self, activate: Activate) -> None:
        alive = self._sessions.table.get(activate.key)
        if alive is not None and alive.ref.alive:
            activate.reply.answer(alive.ref if _same(alive, activate) else errors.session_not_found())
            return
        if self._sessions.draining:
            activate.reply.answer(Elsewhere(None) if activate.mailed else errors.draining())
            return
        waiting = self._activating.setdefault(activate.key, [])
        waiting.append(activate)
        if len(waiting) == 1:
            self._look(activate.key)

    def _look(self, key: SessionKey) -> None:
        if key in self._activating:
            self._services.store.read(key, lambda out: self.ctx.ref.reply(Read(key, out)))

    def _read(self, key: SessionKey, outcome: Record | Failed) -> None:
        if isinstance(outcome, Failed) and outcome.reason is Refused.TOO_NEW:
            self._services.cluster.replicas(lambda out: self.ctx.ref.reply(Readers(key, outcome.head, out)))
            return
        if isinstance(outcome, Failed):
            self._settle(key, _refusal(outcome))
            return
        if outcome.owner is None and self._is_moving(key):
            waiting = self._activating[key]
            self._activating[key] = [activate for activate in waiting if not activate.mailed]
            for activate in waiting:
                if activate.mailed:
                    activate.reply.answer(Elsewhere(None))
            self.ctx.set_timer(("move", key), MOVE_LOOK, MoveDue(key))
            return
        if outcome.owner is None:
            self._leave_to_askers(key)
        principal = outcome.fields.get("principal", b"").decode()
        endpoint = outcome.fields.get("endpoint", b"").decode()
        mine: list[Activate] = []
        for activate in self._activating.get(key, []):
            if activate.principal.name == principal and activate.endpoint == endpoint:
                mine.append(activate)
            else:
                activate.reply.answer(errors.session_not_found())  # as if it were not there at all
        over = outcome.owner is None and remaining(outcome.fields, self._services) <= 0
        if over:
            self._tree.expiry.reply(Overdue(key))
        self._activating[key] = mine
        owner, dead = outcome.owner, {activate.dead for activate in mine}
        elsewhere = owner not in (None, self._services.cluster.incarnation) and owner not in dead
        # One whose handshake is under way has no record that it could be rebuilt from; its owner knows it.
        if over or not mine or not (elsewhere or session_record.is_complete(outcome.fields)):
            self._settle(key, errors.session_not_found())
            return
        if elsewhere:
            self._settle(key, Elsewhere(owner))
            return
        no_room = self._no_room(mine[0].principal)
        if no_room is not None:  # told before the claim: one that nobody lives up to counts against the session
            self._settle(key, no_room)
            return
        self._quotas.sessions.add(mine[0].principal)
        self._claim(key, outcome, lambda out: self.ctx.ref.reply(Claimed(key, mine[0].principal, endpoint, out)))

    def _leave_to_askers(self, key: SessionKey) -> None:
        """Nobody has it: it goes to where its client's messages come, unless one of them came here."""
        waiting = self._activating.get(key, [])
        if waiting and all(activate.able for activate in waiting):
            self._settle(key, Elsewhere(None, rests=True))

    def _claim(self, key: SessionKey, found: Record, done: Callable[[Any], bool]) -> None:
        """`done` says whether anybody hears of it."""
        nonce = self._unheard.pop(key, None) or secrets.token_hex(8)

        def claimed(outcome: Any) -> None:
            if not isinstance(outcome, Failed):
                self._granted[key] = outcome
            elif outcome.reason in UNAVAILABLE:
                self._unheard[key] = nonce
                if len(self._unheard) > UNHEARD:
                    self._unheard.popitem(last=False)
            if not done(outcome):
                self._give_back()

        self._services.store.claim(key, found.owner, found.epoch, nonce, claimed)

    def _give_back(self) -> None:
        """The router has ended: whoever comes finds what it had claimed free, and not tried."""
        granted, self._granted = self._granted, {}
        for key, (grant, record) in granted.items():
            self._services.store.save(key, grant, record.rev, NO_DELTAS, ignore)
            self._services.store.release(key, grant, ignore, work=bool(record.requests or record.asked))

    def _hand_over(self, found: Readers) -> None:
        """To one that lives and can read it, the same for each message; who owns it says that one."""
        to = reader(found.key, found.version, found.outcome, self._services.cluster.incarnation)
        self._settle(found.key, Elsewhere(to, handed=True) if to is not None else errors.too_new())

    def _claimed(self, claimed: Claimed) -> None:
        key = claimed.key
        self._quotas.sessions.add(claimed.principal, -1)
        if isinstance(claimed.outcome, Failed):
            self._fenced[key] += claimed.outcome.reason is Refused.FENCED
            if 0 < self._fenced[key] < ATTEMPTS:
                # Another has it by now, or the one that was taken for dead still lives.
                self._activating[key] = [replace(activate, dead=None) for activate in self._activating.get(key, [])]
                self._services.store.read(key, lambda out: self.ctx.ref.reply(Read(key, out)))
                return
            self._settle(key, _refusal(claimed.outcome))
            return
        dead = {activate.dead for activate in self._activating.get(key, []) if activate.dead is not None}
        for owner in dead:
            self._services.cluster.disown(owner, [key])
        self._rebuild(claimed, "crash" if key in self.crashed else "takeover" if dead else "activation")

    def _rebuild(self, claimed: Claimed, reason: str) -> None:
        """It is owned here from now on."""
        grant, record = claimed.outcome
        self._granted.pop(claimed.key, None)
        self._services.telemetry.count("stagedoor_takeovers_total", (reason,))
        if reason == "crash":
            self._services.telemetry.count("stagedoor_restarts_total", ("SessionActor",))
        identity = Identity(claimed.key, claimed.principal, claimed.endpoint)
        if record.tries > REBUILDS:
            self._services.log.warning("session_poisoned", session=handle(claimed.key), tries=record.tries)
            end(claimed.key, grant, record, "poisoned", self._services, self._tree.upstreams, self._tree.expiry)
            self._settle(claimed.key, errors.session_not_found())
            return
        self._services.log.info("session_activated", session=handle(claimed.key), epoch=grant.epoch, reason=reason)
        ref = self._start(identity, grant, record)
        self._settle(claimed.key, ref if ref is not None else errors.server_full())

    def _take_over(self, message: TakeOver) -> None:
        key, found = message.key, message.found
        principal = principal_of(found.fields)
        endpoint = found.fields.get("endpoint", b"").decode()
        if key in self._sessions.table or self._sessions.draining or self._no_room(principal) is not None:
            return  # its next message finds it, or another replica
        self._quotas.sessions.add(principal)

        def claimed(out: Any) -> bool:
            return self.ctx.ref.reply(TakenOver(Claimed(key, principal, endpoint, out), message.dead))

        self._claim(key, found, claimed)

    def _taken_over(self, claimed: Claimed, dead: Incarnation) -> None:
        """Whoever waits for the session here has asked for it too."""
        self._quotas.sessions.add(claimed.principal, -1)
        outcome, why = claimed.outcome, None
        if isinstance(outcome, Failed):
            why = outcome.reason
        else:
            self._rebuild(claimed, "takeover")
        if why in UNAVAILABLE:
            self._look_later(LeftDue(claimed.key, dead))  # the others were told the same, most likely
        elif why is not Refused.TOO_NEW and dead != self._services.cluster.incarnation:
            self._services.cluster.disown(dead, [claimed.key])

    def _settle(self, key: SessionKey, outcome: Ref | Elsewhere | ProtocolError) -> None:
        self._fenced.pop(key, None)
        for activate in self._activating.pop(key, []):
            activate.reply.answer(outcome)

    # Sessions that are moved

    def _move(self, message: MoveSession) -> None:
        alive = self._sessions.table.get(message.key)
        if alive is None:
            message.reply.answer(False)
            return

        def moved(outcome: Any) -> None:
            """It may have ended instead."""
            message.reply.answer(False if isinstance(outcome, Exception) else outcome)

        alive.ref.ask(Move, self._services.limits.admission, moved)
        self._leave_to_others(message.key)

    def _leave_to_others(self, key: SessionKey) -> None:
        """For a while it is not claimed here. If nobody claims it meanwhile, it is looked after here again."""
        now = self.ctx.now()
        self._moving = {key: until for key, until in self._moving.items() if until > now}
        self._moving[key] = now + MOVING
        self._look_later(LeftDue(key, self._services.cluster.incarnation))

    def _look_later(self, left: LeftDue) -> None:
        self.ctx.set_timer(("left", left.key), MOVING, left)

    def _left(self, left: LeftDue, outcome: Record | Failed) -> None:
        """Nobody has it: what is in flight there must not wait for its client to come back. (A claim of which nothing
        was heard may have made it ours.)"""
        if isinstance(outcome, Failed):
            if outcome.reason in UNAVAILABLE:
                self._look_later(left)
        elif outcome.owner in (None, left.former, self._services.cluster.incarnation) and (
            outcome.requests or outcome.asked
        ):
            self._take_over(TakeOver(left.key, outcome, left.former))

    def _is_moving(self, key: SessionKey) -> bool:
        until = self._moving.get(key)
        if until is not None and self.ctx.now() >= until:
            del self._moving[key]  # nobody wanted it
            return False
        return until is not None

    # Ends

    def _down(self, ref: Ref, kind: ExitKind) -> None:
        key = self._keys.pop(ref, None)
        if key is None:
            return
        alive = self._sessions.table.get(key)
        if alive is not None and alive.ref is ref:
            del self._sessions.table[key]
            self._quotas.sessions.add(alive.principal, -1)
        self._gauge()
        if kind is ExitKind.CRASHED:
            self._after_crash(key)
        elif self._is_moving(key):
            self._leave_to_others(key)  # it may have taken a while until it was given back

    def _after_crash(self, key: SessionKey) -> None:
        """The next message rebuilds it from its record, or what is in flight there does; but not again and again."""
        now = self.ctx.now()
        before = self.crashed.get(key)
        self.crashed = {k: at for k, at in self.crashed.items() if now - at < CRASH_WINDOW}
        self.crashed[key] = now
        if before is None or now - before >= CRASH_WINDOW:
            # Whoever follows a stream of its calls elsewhere may not have heard that it was cut, and sends nothing.
            self._look_later(LeftDue(key, self._services.cluster.incarnation))
            return

        def claimed(outcome: Any) -> bool:
            if not isinstance(outcome, Failed):
                grant, record = self._granted.pop(key)
                end(key, grant, record, "poisoned", self._services, self._tree.upstreams, self._tree.expiry)
            return True

        def read(outcome: Any) -> None:
            if not isinstance(outcome, Failed):
                self._claim(key, outcome, claimed)

        self._services.store.read(key, read)

    def _gauge(self) -> None:
        self._services.telemetry.gauge("stagedoor_sessions", float(len(self._sessions.table)), ("live", "legacy"))


def principal_of(fields: Mapping[str, bytes]) -> Principal:
    """Whose a recorded session is."""
    name = fields.get("principal", b"").decode()
    return ANONYMOUS if name == ANONYMOUS.name else Principal(name)


def _same(alive: Alive, activate: Activate) -> bool:
    return alive.principal == activate.principal and alive.endpoint == activate.endpoint


def _refusal(failed: Failed) -> ProtocolError:
    """What a store's refusal means to a client: gone for good, or not now."""
    if failed.reason in (Refused.GONE, Refused.ENDED):
        return errors.session_not_found()
    if failed.reason is Refused.FULL:
        return errors.server_full()
    if failed.reason is Refused.TOO_NEW:
        return errors.too_new()
    return errors.store_full() if failed.reason is Refused.STORE_FULL else errors.store_away()
