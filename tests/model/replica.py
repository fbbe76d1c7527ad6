"""One replica: its lease, what it holds for clients by the real route and follow machines, and what it owns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from actors.machines.cluster import follow as fo
from actors.machines.cluster import lease as le
from actors.machines.cluster import route as ro
from actors.ports import Failed, Record, Refused
from actors.protocol.messages import Notification
from tests.model.owner import Life, Target, lost
from tests.model.people import Connection, Servers, uid_of
from tests.model.store import Bug
from tests.model.world import Line, Process, World

TO_OWNER = ("deliver", "note", "attach", "recover", "ask_head", "detach")
PAGE = 3
"""Events read at once: few, so that there are more pages."""
GONE_TWICE = 0.5
GRACE = 2.0
LIVES = 6


@dataclass
class Held:
    """One connection of a client, and the stream on it."""

    connection: Connection
    key: str
    mid: int
    owner: str = ro.HERE
    stream: str = ""
    follow: fo.Follow | None = None
    uid: str = ""
    """The call that it came with."""
    dead_end: bool = False
    """Nothing follows what is in the log."""
    checks: int = 0


@dataclass
class Letter:
    """One letter under way, and whose it is."""

    key: str
    body: Any
    held: Held
    uid: str = ""
    accepting: tuple[str, Any] | None = None
    clocks: dict[ro.Clock, int] = field(default_factory=dict)


@dataclass
class Cancels:
    """Of all calls, at all owners."""

    taken: set[tuple[str, str]] = field(default_factory=set)
    """The call, and who held it."""
    early: set[str] = field(default_factory=set)
    """Calls whose cancel came before them, and not again after them."""


class Replica(Process):
    def __init__(self, world: World, name: str, servers: Servers, cancels: Cancels) -> None:
        super().__init__(world, name)
        self.servers = servers
        self.bug = world.bug
        self.inc = f"{name}.1"
        self.former: set[str] = set()
        self.lease = le.Lease()
        self.draining = False
        self.generation = -1
        """Of the store, when it was last heard of."""
        self.lives: dict[str, Life] = {}
        self.cancels = cancels
        self.taken: set[tuple[str, int]] = set()
        """Letters with requests that its sessions were given: who held them, and their numbers."""
        self.dead_ones: set[str] = set()
        self.connections: list[Connection] = []
        self.main, self._beats, self._inbox = (Line(self), Line(self), Line(self))
        world.lines += [self.main, self._beats, self._inbox]
        self._gone_since: dict[str, float] = {}
        self._suspects: set[str] = set()
        self._seen: dict[str, int] = {}
        self._owners: dict[str, str] = {}
        self._routes: dict[Any, ro.Route] = {}
        self._letters: dict[int, Letter] = {}
        self._held: dict[int, Held] = {}
        self._resolving: dict[str, list[Callable[[str | Failed], object]]] = {}
        self._arriving: dict[str, list[tuple[Target, Any]]] = {}
        self._mids = 0
        self._sent = 0
        self._claims = 0
        self._clocks = 0
        self._rung = False
        self.later(0.0, self._beat)

    @property
    def serving(self) -> bool:
        return not self.dead and not self.draining

    # The lease

    @property
    def doubtful(self) -> bool:
        if self.bug is Bug.NO_DOUBT:
            return False
        return self.lease.doubted if self.bug is Bug.DOUBT_BY_FLAG else le.doubtful(self.lease, self.world.now)

    def _beat(self) -> None:
        self._lease(le.BeatDue(self.world.now, self.world.now))
        if self.lease.phase is not le.LeasePhase.GONE:
            self.later(le.EVERY, self._beat)

    def leave(self) -> None:
        """The end in order: nothing is owned any more."""
        self._lease(le.DrainBegun())
        self._lease(le.Drained())

    def _lease(self, event: le.LeaseEvent) -> None:
        self.lease, effects = le.step(self.lease, event)
        for effect in effects:
            match effect:
                case le.Beat(take):
                    sent, inc = self.world.now, self.inc
                    self._beats.say("beat", inc, take, done=lambda out: self._beaten(inc, sent, out))  # noqa: B023
                case le.Certain():
                    for life in list(self.lives.values()):
                        life.unpark()
                case le.Rename():
                    self.generation = -1
                    self.former.add(self.inc)
                    self.inc = f"{self.name}.{len(self.former) + 1}"
                    self.world.note(self.name, "is", self.inc)
                case le.Verify():
                    self._verify()
                case le.VerifyAgain():
                    self.world.note(self.inc, "finds that the store has lost writes")
                    for life in list(self.lives.values()):
                        life.verify()
                case le.GiveUp():
                    self._beats.say("give_up", self.inc)
                case le.Doubt():
                    pass

    def _beaten(self, inc: str, sent: float, outcome: Any) -> None:
        if inc != self.inc:
            return
        if isinstance(outcome, Failed):
            self._lease(le.Lapsed(self.world.now))
        else:
            generation, alive, known = outcome
            self._lease(le.Beaten(sent, self.world.now))
            another, self.generation = self.generation not in (-1, generation), generation
            if another and self.bug is not Bug.LOSS_UNNOTICED:
                self._lease(le.Forgot(self.world.now))
            self._look(alive, known)

    def _verify(self) -> None:
        for life in list(self.lives.values()):
            if self.bug is not Bug.NO_VERIFY:
                life.verify()
            life.unpark()
        for way in list(self._routes):
            self._route(way, ro.Renamed())
        for held in list(self._held.values()):
            if held.owner != ro.HERE:  # its frames go to an inbox that nobody reads
                self._followed(held, fo.OwnerLost())
        self._lease(le.Verified())

    # The others

    def _look(self, alive: frozenset[str], known: frozenset[str]) -> None:
        for inc in alive:
            self._gone_since.pop(inc, None)
        for inc in sorted(known - alive - self.former - {self.inc} - self.dead_ones):
            if self.world.now - self._gone_since.setdefault(inc, self.world.now) >= GONE_TWICE:
                self._down(inc)

    def _ask(self, inc: str) -> None:
        """Looks at one that may be on no list: the store may have lost its name."""

        def told(alive: bool) -> None:
            if alive:
                self._suspects.discard(inc)
            since = self._gone_since.setdefault(inc, self.world.now)
            if not alive and inc not in self.dead_ones and self.world.now - since >= GONE_TWICE:
                self._down(inc)

        self.main.say("living", inc, done=told)

    def _down(self, inc: str) -> None:
        self.dead_ones.add(inc)
        self.world.note(self.inc, "finds", inc, "dead")
        for key in list(self._routes):
            if self.bug is Bug.LOST_NOTE:
                for letter in self._routes[key].letters:
                    if letter.to == inc and letter.kind is ro.Kind.NOTE:
                        self._letters[letter.mid].accepting = (inc, ("taken",))
                        self._route(key, ro.Heard(letter.mid))
            self._route(key, ro.OwnerDown(inc))
        for held in list(self._held.values()):
            if held.owner == inc:
                self._followed(held, fo.OwnerLost())
        for life in list(self.lives.values()):
            life.lose_holder(inc)
        if self.bug is not Bug.NO_SWEEP:
            self.later(0.5 + self.world.spell(0, 1), lambda: self._sweep(inc))

    def _sweep(self, inc: str) -> None:
        if self.draining:
            return
        if not le.may_claim(self.lease, self.world.now):
            self.later(1.0, lambda: self._sweep(inc))
            return
        self.main.say("owned", inc, done=lambda keys: [self._look_after(inc, key) for key in keys])

    def look_after_released(self, key: str) -> None:
        """What was in flight in a session that was handed over, if nobody came for it. (After a drain others do.)"""
        if self.bug is not Bug.NO_SWEEP:
            self.later(GRACE, lambda: self._look_after(self.inc, key))

    def _look_after(self, inc: str, key: str) -> None:
        def read(record: Any) -> None:
            if isinstance(record, Record) and record.owner in (inc, None) and (record.requests or record.asked):
                self._resolve(key, lambda _: self.main.say("disown", inc, key) if inc != self.inc else None)

        self.main.say("read", key, done=read)

    # Who owns a session

    def _resolve(self, key: str, done: Callable[[str | Failed], object]) -> None:
        """HERE, or another incarnation, or why nobody does."""
        if self._owns(key):
            self.later(0.0, lambda: done(ro.HERE))
            return
        self._resolving.setdefault(key, []).append(done)
        if len(self._resolving[key]) == 1:
            self._read(key, 0)

    def _resolved(self, key: str, outcome: str | Failed) -> None:
        for done in self._resolving.pop(key, []):
            done(outcome)

    def _read(self, key: str, tries: int) -> None:
        self.main.say("read", key, done=lambda record: self._found(key, record, tries))

    def _found(self, key: str, record: Record | Failed, tries: int) -> None:
        if isinstance(record, Failed):
            self._resolved(key, record)
        elif self.draining:
            known = record.owner not in (None, self.inc, *self.former)
            self._resolved(key, str(record.owner) if known else Failed(Refused.AWAY))
        elif record.owner is None or record.owner in (self.inc, *self.former):
            self._claim(key, record, tries)
        elif record.owner in self._suspects - self.dead_ones and tries < LIVES * 4:
            # No mail reaches it: it is dead, or its process has another name by now.
            self._ask(record.owner)
            self.later(0.25, lambda: self._read(key, tries + 1))
        elif record.owner not in self.dead_ones and self.bug is not Bug.CLAIM_WITHOUT_COMPARE:
            self._resolved(key, record.owner)
        elif le.may_claim(self.lease, self.world.now) or self.bug is Bug.CLAIM_WITHOUT_COMPARE:
            self._claim(key, record, tries)
        elif tries < LIVES * 4:
            self.later(0.25, lambda: self._read(key, tries + 1))
        else:
            self._resolved(key, Failed(Refused.AWAY))

    def _claim(self, key: str, record: Record, tries: int) -> None:
        nonce = self.nonce()

        def claimed(outcome: Any) -> None:
            if isinstance(outcome, Failed) or outcome[0].owner != self.inc:
                if tries < LIVES * 4:
                    self._read(key, tries + 1)
                else:
                    self._resolved(key, Failed(Refused.AWAY))
                return
            self.lives[key] = Life(self, key, *outcome)
            self._resolved(key, ro.HERE)

        self.main.say("claim", key, record.owner, record.epoch, self.inc, nonce, done=claimed)

    def nonce(self) -> str:
        """Of a claim: never given twice."""
        self._claims += 1
        return f"{self.inc} {self._claims}"

    def _owns(self, key: str) -> bool:
        return key in self.lives and self.lives[key].over is None

    def forget(self, life: Life) -> None:
        if self.lives.get(life.key) is life:
            del self.lives[life.key]

    # Clients

    def request(self, connection: Connection, message: Any) -> None:
        self._letter(ro.Kind.REQUESTS, connection, ("deliver", message), message.id)

    def note(self, connection: Connection, message: Any, number: int) -> None:
        uid = uid_of(message) if isinstance(message, Notification) else None
        self._letter(ro.Kind.NOTE, connection, ("note", message, number), uid or "")

    def get(self, connection: Connection, stream: str | None, epoch: int, seq: int) -> None:
        self._letter(ro.Kind.ATTACH, connection, ("attach", stream, epoch, seq))

    def _letter(
        self, kind: ro.Kind, connection: Connection, body: Any, uid: str = "", held: Held | None = None
    ) -> None:
        self._mids += 1
        mid = self._mids
        held = held or Held(connection, connection.key, mid, uid=uid if kind is ro.Kind.REQUESTS else "")
        held.mid = mid
        self._letters[mid] = Letter(connection.key, body, held, uid)
        self._route(self._way(mid), ro.Sent(mid, kind))

    def _way(self, mid: int) -> Any:
        """All letters of a session go one way."""
        key = self._letters[mid].key
        return (key, mid) if self.bug is Bug.OVERTAKING else key

    def cut(self, connection: Connection) -> None:
        """The client's connection breaks."""
        if not connection.open:
            return
        for mid, letter in list(self._letters.items()):
            if letter.held.connection is connection:
                self._route(self._way(mid), ro.Abandoned(mid))
        for held in list(self._held.values()):
            if held.connection is connection:
                self._followed(held, fo.Closed())
        connection.close("cut")

    def hang_up(self, why: str) -> None:
        """The process ends, and its connections with it."""
        for connection in self.connections:
            connection.close(why)

    # The route machine

    def _route(self, way: Any, event: ro.RouteEvent) -> None:
        key = way[0] if isinstance(way, tuple) else way
        known = ro.HERE if self._owns(key) else self._owners.get(key)
        route, effects = ro.step(self._routes.get(way) or ro.Route(known), event)
        self._routes[way] = route
        if route.owner:
            self._owners[key] = route.owner
        else:
            self._owners.pop(key, None)
        if route.idle:
            del self._routes[way]
        for effect in effects:
            self._routed(way, key, effect)

    def _routed(self, way: Any, key: str, effect: ro.RouteEffect) -> None:
        match effect:
            case ro.Resolve(after=after) if after:
                self.later(after, lambda: self._routed(way, key, ro.Resolve()))
            case ro.Resolve(claim_from):
                self._suspects.add(claim_from or "")
                self._resolve(key, lambda out: self._route(
                    way, ro.Unresolved(out.reason) if isinstance(out, Failed) else ro.Resolved(out)
                ))  # fmt: skip
            case ro.Post(mid, to):
                self._post(to, key, mid, self._letters[mid].body, lambda out: self._posted(way, mid, to, out))
            case ro.GiveHere(mid):
                self._give(key, mid, self._letters[mid].body)
            case ro.Recover(mid, to):
                body = ("recover", self._letters[mid].uid)
                if to == ro.HERE:
                    self._give(key, mid, body)
                else:
                    self._post(to, key, mid, body, lambda out: self._posted(way, mid, to, out))
            case ro.AskAlive(inc):
                self.later(0.02, lambda: self._route(way, ro.AliveSaid(inc, inc not in self.dead_ones)))
            case ro.Withdraw(mid, to, entry):
                unread = True if self.bug is Bug.RESEND_TAKEN else None
                self.main.say(
                    "withdraw", to, entry, done=lambda out: self._route(way, ro.Withdrawn(mid, unread or out))
                )
            case ro.Detach(mid, to):
                self._post(to, key, mid, ("detach",))
            case ro.Accept(mid):
                self._accept(mid)
            case ro.Fail(mid, why, reason):
                self._fail(mid, why, reason)
            case ro.StartClock(mid, clock, seconds):
                self._start(way, mid, clock, seconds)
            case ro.StopClocks(mid):
                self._letters[mid].clocks = {}

    def _start(self, way: Any, mid: int, clock: ro.Clock, seconds: float) -> None:
        self._clocks += 1
        number = self._clocks
        self._letters[mid].clocks[clock] = number
        event = ro.QuietDue(mid) if clock is ro.Clock.QUIET else ro.LateDue(mid)

        def rings() -> None:
            if mid in self._letters and self._letters[mid].clocks.get(clock) == number:
                self._route(way, event)

        self.later(seconds, rings)

    def _give(self, key: str, mid: int, body: Any) -> None:
        target = Target(self.name, mid)
        if self._owns(key):
            self.lives[key].take(target, body)
        else:
            self.reply(target, key, ("moved", None))

    def _posted(self, way: Any, mid: int, to: str, outcome: Any) -> None:
        if isinstance(outcome, Failed):
            self._route(way, ro.NotPosted(mid, to, ro.Unposted(outcome.reason.value)))
        else:
            self._route(way, ro.Posted(mid, to, outcome))

    def _fail(self, mid: int, why: ro.Why, reason: object) -> None:
        letter = self._letters.pop(mid)
        connection = letter.held.connection
        self.world.note(self.inc, "fails", letter.body[0], letter.uid, why.value, reason)
        if letter.held.follow is not None:
            passing = why is not ro.Why.REFUSED or reason in (503, Refused.AWAY)
            self._followed(letter.held, fo.NotAttached(passing))
        elif why is ro.Why.LOST and letter.body[0] == "deliver":
            connection.answer(200, lost(letter.uid))
        elif reason is Refused.GONE or reason is Refused.ENDED:
            connection.answer(404, certain=True)
        else:
            connection.answer(reason if isinstance(reason, int) else 503, certain=why is not ro.Why.LOST)

    def _accept(self, mid: int) -> None:
        """What was heard of a letter is what becomes of it."""
        letter = self._letters.pop(mid)
        assert letter.accepting is not None
        (by, body), held = letter.accepting, letter.held
        match body:
            case ("answer", data):
                held.connection.answer(200, data)
            case ("taken",):
                held.connection.answer(202)
            case ("opened", stream, epoch):
                self._begin(held, mid, by, stream, epoch, 0, 0)
            case ("attached", stream, epoch, seq, head, live):
                if held.follow is not None:
                    self._held[mid], held.owner, held.stream = held, by, stream
                    self._followed(held, fo.Attached(head if live else held.follow.seq + 1))
                else:
                    self._begin(held, mid, by, stream, epoch, seq, head if live else seq + 1)
                held.dead_end = not live
            case _:
                raise AssertionError(body)

    # The follow machine

    def _begin(self, held: Held, mid: int, by: str, stream: str, epoch: int, seq: int, head: int) -> None:
        held.owner, held.stream = by, stream
        self._held[mid] = held
        held.follow, effects = fo.begin(epoch, seq, head=head)
        self._follow_effects(held, effects)
        if by in self.dead_ones:
            self._followed(held, fo.OwnerLost())

    def _followed(self, held: Held, event: fo.FollowEvent) -> None:
        follow = held.follow
        if follow is None:
            return
        if isinstance(event, fo.Frames) and follow.phase is not fo.Phase.READING:
            over = self.bug is Bug.WRITE_OVER_HOLE and event.first > follow.seq + 1
            twice = self.bug is Bug.WRITE_TWICE and event.last <= follow.seq
            if over or twice:
                follow = replace(follow, seq=event.first - 1)
        if isinstance(event, fo.CheckDue) and self.bug is Bug.NO_HEAD:
            return
        held.follow, effects = fo.step(follow, event)
        self._follow_effects(held, effects)

    def _follow_effects(self, held: Held, effects: fo.Effects) -> None:
        for effect in effects:
            self._follow_effect(held, effect)

    def _follow_effect(self, held: Held, effect: fo.FollowEffect) -> None:
        match effect:
            case fo.Write(data):
                epoch, seq, event = data.split(b" ", 2)
                held.connection.event(held.stream, int(epoch), int(seq), event)
            case fo.WriteEntries(entries):
                for entry in entries:
                    held.connection.event(held.stream, entry.epoch, entry.seq, entry.data)
            case fo.ReadLog(epoch, seq):
                self.main.say(
                    "replay", held.key, held.stream, epoch, seq, PAGE, done=lambda out: self._read_page(held, out)
                )
            case fo.AskHead():
                self._ask_head(held)
            case fo.Reattach(epoch, seq):
                if self.bug is not Bug.NO_REATTACH:
                    self._letter(ro.Kind.ATTACH, held.connection, ("attach", held.stream, epoch, seq), held=held)
            case fo.Gap(after, resumed):
                self.world.note(self.inc, "says a gap on", held.stream, after, resumed)
                held.connection.gap = held.connection.gap or self.bug is not Bug.SILENT_GAP
            case fo.Finish(whole):
                self._let_go(held)
                held.connection.close("end" if whole else "gap")
            case fo.Detach():
                self._let_go(held)
                self._post(held.owner, held.key, held.mid, ("detach",))
            case fo.StartCheckClock():
                held.checks += 1
                number = held.checks
                self.later(fo.CHECK, lambda: self._followed(held, fo.CheckDue()) if held.checks == number else None)
            case fo.StartRetryClock():
                self.later(fo.RETRY, lambda: self._followed(held, fo.RetryDue()))
            case fo.StopClocks():
                held.checks = -1

    def _let_go(self, held: Held) -> None:
        self._held = {mid: other for mid, other in self._held.items() if other is not held}

    def _read_page(self, held: Held, outcome: Any) -> None:
        if isinstance(outcome, Failed):
            self._followed(held, fo.NoPage(passing=outcome.reason is Refused.AWAY))
            return
        entries = tuple(fo.Entry(e.epoch, e.seq, e.data) for e in outcome.entries)
        if held.dead_end and not outcome.finished and not entries:
            self._followed(held, fo.NoPage(passing=False))
        else:
            self._followed(held, fo.Page(entries, outcome.head, outcome.finished, outcome.lost))

    def _ask_head(self, held: Held) -> None:
        body = ("ask_head", held.stream)
        if held.owner == ro.HERE:
            self._give(held.key, held.mid, body)
        else:
            self._post(held.owner, held.key, held.mid, body, lambda out: self._head_posted(held, out))

    def _head_posted(self, held: Held, outcome: Any) -> None:
        if isinstance(outcome, Failed) and outcome.reason is Refused.DEAD:
            self._followed(held, fo.OwnerLost())

    # Mail

    def _post(self, to: str, key: str, mid: int, body: Any, done: Any = None) -> None:
        if to == ro.HERE:
            self.arrived(Target(self.name, mid), key, body)
            return
        self._sent += 1
        envelope = (self.inc, self._sent, key, mid, body)
        self.main.say("post", to, self.inc, self._sent, envelope, self.world.store.generation, done=done)

    def reply(self, target: Target, key: str, body: Any) -> None:
        if target.inc == self.name:
            self.later(0.0, lambda: self._heard(target.mid, ro.HERE, body))
        else:
            self._post(target.inc, key, target.mid, body)

    def ring(self, to: str) -> None:
        if to == self.inc and not self._rung:
            self._rung = True
            late = self.world.chance(self.world.weather.late)
            self.later(self.world.spell(0.2, 3.0) if late else self.world.spell(0.001, 0.02), self._poll)

    def _poll(self) -> None:
        self._rung = False
        self._inbox.say("take", self.inc, done=self._mail)

    def _mail(self, letters: list[Any]) -> None:
        for sender, n, key, mid, body in letters:
            for _ in range(1 + self.world.chance(self.world.weather.doubled)):
                if n <= self._seen.get(sender, 0) and self.bug is not Bug.DOUBLED_MAIL:
                    continue
                self._seen[sender] = max(n, self._seen.get(sender, 0))
                if body[0] in TO_OWNER:
                    self.arrived(Target(sender, mid), key, body)
                else:
                    self._heard(mid, sender, body)

    def arrived(self, target: Target, key: str, body: Any) -> None:
        """Something for a session that this process may own. What comes to a life that is over waits for the next."""
        if target.inc == self.name and not self._owns(key):
            self.reply(target, key, ("moved", None))
        elif key in self._arriving:
            self._arriving[key].append((target, body))
        elif self._owns(key):
            self.lives[key].take(target, body)
        elif body[0] in ("ask_head", "detach") or self.draining:
            self.reply(target, key, ("moved", None))
        else:
            self._arriving[key] = [(target, body)]
            self._resolve(key, lambda outcome: self._pass_on(key, outcome))

    def _pass_on(self, key: str, outcome: str | Failed) -> None:
        for target, body in self._arriving.pop(key, []):
            if isinstance(outcome, Failed):
                self.reply(target, key, ("refused", outcome.reason))
            elif outcome == ro.HERE and self._owns(key):
                self.lives[key].take(target, body)
            else:
                self.reply(target, key, ("moved", outcome or None))

    def _heard(self, mid: int, by: str, body: Any) -> None:
        held, letter = self._held.get(mid), self._letters.get(mid)
        if held is not None and held.mid != mid and body[0] != "frames":
            return  # of an attachment that another one of this connection has followed
        match body:
            case ("frames", epoch, seq, data, finished) if held is not None:
                wire = b"%d %d %b" % (epoch, seq, data)
                self._followed(held, fo.Frames(epoch, seq, seq, wire, finished))
            case ("head", epoch, seq, finished) if held is not None:
                self._followed(held, fo.HeadSaid(epoch, seq, finished))
            case ("superseded",) if held is not None:
                self._followed(held, fo.Superseded())
            case ("released",) if held is not None:
                self._followed(held, fo.OwnerLost())
            case ("moved", owner):
                if letter is not None:
                    self._route(self._way(mid), ro.Moved(mid, by, owner))
                elif held is not None:
                    self._followed(held, fo.OwnerLost())
            case ("refused", reason) if letter is not None:
                self._route(self._way(mid), ro.Refused(mid, reason))
            case ("unrecorded",) if letter is not None:
                again = letter.held.follow is not None
                self._route(self._way(mid), ro.Refused(mid, 404) if again else ro.Recovered(mid, False))
            case ("answer" | "taken" | "opened" | "attached", *_):
                self._outcome(mid, by, body, letter)

    def _outcome(self, mid: int, by: str, body: Any, letter: Letter | None) -> None:
        if letter is not None:
            letter.accepting = (by, body)
            recovered = letter.body[0] == "deliver" and body[0] == "attached"
            self._route(self._way(mid), ro.Recovered(mid, True) if recovered else ro.Heard(mid))
        elif self.bug is Bug.TWO_HOMES and body[0] == "answer" and mid in self._held:
            self._held[mid].connection.reader.answered(200, body[1], False)
