"""The holder's side of mail: what this process has for sessions of others, and what it hears of it.

One route machine (`machines/cluster/route.py`) for each session and client with letters under way; here are its
effects. A part of the mailer, which has the mailbox and the clocks.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from math import inf
from secrets import randbits
from typing import Any, Final, TypeAlias, assert_never

from msgspec import Struct

from actors import ports
from actors.cluster import letters as lt
from actors.cluster.feeds import MailFeed, News
from actors.cluster.letters import Letter
from actors.cluster.remote import Send
from actors.machines.cluster import follow as fl
from actors.machines.cluster import route as rt
from actors.machines.session.machine import RETRY_MS
from actors.named import NamedRef
from actors.ports import Answer, Failed, Incarnation, Principal, Record, SessionKey, Streaming, Where, ignore
from actors.protocol import errors
from actors.protocol.errors import ProtocolError, Refusal
from actors.protocol.messages import Request, RequestId
from actors.runtime import ActorDown, Context, Exit, ExitKind, MailboxFull, NotTaken, Ref, Reply
from actors.services import Services
from actors.sessions import messages as sm
from actors.sessions.router import Activate, Elsewhere, Sessions
from actors.streams.follower import Follower

PER_SESSION = 512
MOST = 10_000
"""Letters of one session, and in all, that are under way; a further one is refused at once."""
REMEMBERED = 1_000
"""Of the dead."""
MOMENT = 0.05
"""Seconds from one look at the clocks of all letters to the next, at least: ten thousand that nobody answers must not
be looked through for each of them."""
CHECK = fl.CHECK
"""Seconds between two looks at the heads of streams that come by mail."""

HELD = 4_000
"""Streams that one letter names: so many numbers are no large letter."""

NAME = "mail"
"""As which mail fails."""

NOBODY: Final[Where] = ("", Principal(""), "")
"""In letters that only name another one."""

LOST = Exit(ExitKind.CRASHED, detail="its process is gone")
ABSENT = Exit(ExitKind.SHUTDOWN, detail="not here")


# What the mailer is told for this side ------------------------------------------------------------------------


class Gone(Struct, frozen=True):
    """Nobody waits for what becomes of the letter."""

    mid: int


class Found(Struct, frozen=True):
    """What the router says of a session: a Ref, Elsewhere, a ProtocolError, or how the question ended. `dead`: an owner
    that is no more."""

    where: Where
    outcome: Any
    dead: Incarnation | None = None


class PostDone(Struct, frozen=True):
    """What became of a post to this replica: the name of its entry, or Failed."""

    mid: int
    to: Incarnation
    outcome: Any


class WithdrawDone(Struct, frozen=True):
    """Whether the letter was taken back; Failed: nobody can tell."""

    mid: int
    outcome: Any


class AliveSaid(Struct, frozen=True):
    """Whether an incarnation is alive; Failed: nobody can tell."""

    incarnation: Incarnation
    outcome: Any


class GivenHere(Struct, frozen=True):
    """What the session in this process made of the letter; `recover`: of the question what it knows of it."""

    mid: int
    outcome: Any
    recover: bool


class ClocksDue(Struct, frozen=True):
    """Time to look whether clocks of letters have run out."""


class FeedClosed(Struct, frozen=True):
    """Nobody listens to the stream any more; everything up to this event was written."""

    mid: int
    written: int


class FeedWritten(Struct, frozen=True):
    """Much more of the stream was written."""

    mid: int


class CheckDue(Struct, frozen=True):
    """Time to look at the streams that come by mail."""


class DrainStarted(Struct, frozen=True):
    """The process ends when what is in flight has settled."""


class RecordRead(Struct, frozen=True):
    """What the store says of a session for which a process that drains has mail. `dead`: as in `Found`."""

    where: Where
    outcome: Any
    dead: Incarnation | None = None


class ReplicasRead(Struct, frozen=True):
    """Who there is to give a session to that nobody owns."""

    where: Where
    outcome: Any


class LookDue(Struct, frozen=True):
    """Time to look again whose a session is that is being given back."""

    where: Where


class HeadsRead(Struct, frozen=True):
    """What the store says of the heads of these streams."""

    mids: tuple[int, ...]
    outcome: Any


HolderMessage: TypeAlias = (
    Send
    | Gone
    | Found
    | PostDone
    | WithdrawDone
    | AliveSaid
    | GivenHere
    | ClocksDue
    | FeedClosed
    | FeedWritten
    | CheckDue
    | DrainStarted
    | RecordRead
    | ReplicasRead
    | LookDue
    | HeadsRead
)


@dataclass(slots=True)
class Pending:
    """One letter under way. `heard`: what was said of it last; `quiet`, `late`: when its clocks run out; `posted`: what
    became of its post, while its route need not know; `plain`: nothing has happened to it but that."""

    where: Where
    send: Send
    message: Any
    ask: lt.Ask
    since: float
    heard: Any = None
    given: Reply | None = None
    quiet: float = inf
    late: float = inf
    posted: "PostDone | None" = None
    plain: bool = True

    @property
    def ids(self) -> tuple[RequestId, ...]:
        """The ids of its requests."""
        messages = self.message.messages if isinstance(self.message, sm.PostMessages) else ()
        return tuple(m.id for m in messages if isinstance(m, Request))


class Holder:
    """All methods are synchronous; what comes of them is a HolderMessage to the actor of `ctx`."""

    def __init__(self, ctx: Context, services: Services, sessions: Sessions, router: NamedRef) -> None:
        self.feeds: dict[int, MailFeed] = {}
        """Streams that come by mail, by the letter that began each."""
        self._ctx = ctx
        self._ref = ctx.ref
        self._services = services
        self._cluster = services.cluster
        self._sessions = sessions
        self._router = router
        self._routes: dict[Where, rt.Route] = {}
        self._handed: set[Where] = set()
        """Routes to a session that nobody owns, and that only another process can have."""
        self._pending: dict[int, Pending] = {}
        # A mailer that was restarted must not be told what its predecessor asked for.
        self._mids = count(randbits(48))
        self._dead: OrderedDict[Incarnation, None] = OrderedDict()
        self._looks_at = inf
        """When it is looked at the clocks of all letters."""

    @property
    def idle(self) -> bool:
        """Whether nothing is under way, and nobody listens."""
        return not self._pending and not self.feeds

    def receive(self, message: HolderMessage) -> None:
        """One message."""
        match message:
            case Send():
                self._send(message)
            case PostDone(mid, to, Failed(reason)):
                self._step_of(mid, rt.NotPosted(mid, to, _unposted(reason)))
            case PostDone(mid, to, entry):
                self._step_of(mid, rt.Posted(mid, to, entry))
            case ClocksDue():
                self._clocks_due()
            case Gone(mid):
                self._gone(mid)
            case Found(where, outcome, dead):
                self._found(where, outcome, dead)
            case GivenHere():
                self._given(message)
            case WithdrawDone(mid, outcome):
                self._step_of(mid, rt.Withdrawn(mid, None if isinstance(outcome, Failed) else outcome))
            case AliveSaid(incarnation, outcome):
                alive = None if isinstance(outcome, Failed) else outcome
                self._step_all(rt.AliveSaid(incarnation, alive))
            case FeedClosed(mid, written):
                self._feed_closed(mid, written)
            case FeedWritten(mid):
                self._report(mid)
            case CheckDue():
                self._check()
            case DrainStarted():
                self._let_go()
            case RecordRead(where, outcome, dead):
                self._read(where, outcome, dead)
            case ReplicasRead(where, outcome):
                self._pass_on(where, outcome)
            case LookDue(where):
                self._resolve(where, None)
            case HeadsRead(mids, outcome):
                self._heads_read(mids, outcome)
            case _:
                assert_never(message)

    # The route machine

    def _send(self, send: Send) -> None:
        where = (send.key, send.principal, send.endpoint)
        route = self._routes.get(where)
        if len(self._pending) >= MOST or (route is not None and len(route.letters) >= PER_SESSION):
            send.reply.fail(MailboxFull(NAME))
            return
        mid, message, ref = next(self._mids), send.make(send.reply), self._ref
        ask = lt.ask_of(message)
        self._pending[mid] = Pending(where, send, message, ask, self._ctx.now())
        send.reply.on_abandon = lambda: ref.reply(Gone(mid))
        self._step(where, rt.Sent(mid, _kind(ask)))

    def _step_of(self, mid: int, event: rt.RouteEvent) -> None:
        pending = self._pending.get(mid)
        if pending is not None:
            self._step(pending.where, event)

    def _step_all(self, event: rt.RouteEvent) -> None:
        for where in list(self._routes):
            self._step(where, event)

    def _step(self, where: Where, event: rt.RouteEvent) -> None:
        before = self._routes.get(where)
        if before is not None and not isinstance(event, rt.Sent | rt.Posted | rt.Heard):
            self._catch_up(before)
            before = self._routes[where]
        if before is None:
            before = rt.Route(self._known(where[0]))
            self._sessions.under_way[where[0]] += 1
        route, effects = rt.step(before, event)
        self._routes[where] = route
        for effect in effects:
            self._run(where, effect)
        if route.idle:
            self._drop(where, route)

    def _known(self, key: SessionKey) -> str | None:
        alive = self._sessions.table.get(key)
        return rt.HERE if alive is not None and alive.ref.alive else self._sessions.elsewhere.get(key)

    def _drop(self, where: Where, route: rt.Route) -> None:
        """Nothing is under way; the next letter goes the same way."""
        key = where[0]
        del self._routes[where]
        self._handed.discard(where)
        self._sessions.under_way[key] -= 1
        if not self._sessions.under_way[key]:
            del self._sessions.under_way[key]
        self._sessions.know(key, route.owner if route.owner != rt.HERE else None)

    def _run(self, where: Where, effect: rt.RouteEffect) -> None:
        ref = self._ref
        match effect:
            case rt.Post(mid, to):
                self._post(to, mid, self._pending[mid].ask)
            case rt.StartClock(mid, clock, seconds):
                self._start_clock(self._pending[mid], clock, seconds)
            case rt.StopClocks(mid):
                pending = self._pending[mid]
                pending.quiet = pending.late = inf
            case rt.Accept(mid):
                self._accept(mid)
            case rt.Fail(mid, why, reason):
                self._fail(mid, why, reason)
            case rt.Resolve(after=after) if after:
                self._ctx.set_timer(("look", where), after, LookDue(where))
            case rt.Resolve(claim_from):
                self._resolve(where, claim_from)
            case rt.GiveHere(mid):
                self._give(mid, self._pending[mid].send.make)
            case rt.Recover(mid, to):
                self._recover(mid, to)
            case rt.AskAlive(incarnation):
                self._cluster.alive(incarnation, lambda out: ref.reply(AliveSaid(incarnation, out)))
            case rt.Withdraw(mid, to, entry):
                self._cluster.withdraw(to, entry, lambda out: ref.reply(WithdrawDone(mid, out)))
            case rt.Detach(mid, to):
                self._detach(mid, to)
            case _:
                assert_never(effect)

    # The clocks of letters. One timer is set for the first that runs out: nearly all are stopped long before they do,
    # and what was stopped is seen when that one is due.

    def _start_clock(self, pending: Pending, clock: rt.Clock, seconds: float) -> None:
        due = self._ctx.now() + seconds
        if clock is rt.Clock.QUIET:
            pending.quiet = due
        else:
            pending.late = due
        self._look_at_clocks(due)

    def _look_at_clocks(self, due: float) -> None:
        if due < self._looks_at:
            self._looks_at = due
            self._ctx.set_timer("clocks", max(MOMENT, due - self._ctx.now()), ClocksDue())

    def _clocks_due(self) -> None:
        now, self._looks_at = self._ctx.now(), inf
        for mid, pending in list(self._pending.items()):
            if pending.quiet <= now:
                pending.quiet = inf
                self._step_of(mid, rt.QuietDue(mid))
            if pending.late <= now:
                pending.late = inf
                self._step_of(mid, rt.LateDue(mid))
        self._look_at_clocks(min((min(one.quiet, one.late) for one in self._pending.values()), default=inf))

    def _post(self, to: Incarnation, mid: int, body: lt.ToOwner) -> None:
        ref, pending = self._ref, self._pending[mid]

        def done(outcome: Any) -> None:
            posted = PostDone(mid, to, outcome)
            if pending.plain and not isinstance(outcome, Failed):
                pending.posted = posted
            else:
                ref.reply(posted)

        self._mail(to, pending.where, mid, body, done, lt.rights_of(pending.message), lt.peer_of(pending.message))

    def _catch_up(self, route: rt.Route) -> None:
        """Nearly all letters are answered before their names are of use: a route is told of them before whatever else
        happens to it, and at once from then on."""
        for letter in route.letters:
            pending = self._pending[letter.mid]
            pending.plain = False
            if pending.posted is not None:
                posted, pending.posted = pending.posted, None
                self.receive(posted)

    def _mail(
        self,
        to: Incarnation,
        where: Where,
        mid: int,
        body: lt.ToOwner,
        done: ports.Done = ignore,
        rights: ports.Rights = ports.NO_RIGHTS,
        peer: str = "",
    ) -> None:
        key, principal, endpoint = where
        able = not (self._sessions.draining or where in self._handed or type(body) is lt.Take)
        me = self._cluster.incarnation
        letter = Letter(key, (me, mid), body, principal, endpoint, rights=rights, peer=peer, able=able)
        self._services.telemetry.count("stagedoor_letters_sent_total", (letter.kind,))
        self._cluster.post(to, lt.encode(letter), done)

    def _resolve(self, where: Where, dead: Incarnation | None) -> None:
        key, principal, endpoint = where
        ref = self._ref
        self._sessions.know(key, None)
        if self._sessions.draining:
            self._look(where, dead)
            return
        self._router.ask(
            lambda reply: Activate(key, principal, endpoint, reply, dead),
            self._services.limits.admission,
            lambda out: ref.reply(Found(where, out, dead)),
        )

    def _found(self, where: Where, outcome: Any, dead: Incarnation | None) -> None:
        match outcome:
            case Ref():
                self._step(where, rt.Resolved(rt.HERE))
            case Elsewhere(str() as owner):
                if outcome.handed:
                    self._handed.add(where)
                self._step(where, rt.Resolved(owner))
            case _ if self._sessions.draining:
                self._look(where, dead)
            case ProtocolError():
                self._step(where, rt.Unresolved(outcome))
            case _:
                self._step(where, rt.Unresolved(errors.overloaded()))

    # Sessions of others, in a process that drains: nothing is claimed any more, but clients still come on connections
    # that they have kept. What they have for a session that nobody owns, or a dead one, goes to another replica, which
    # claims it.

    def _look(self, where: Where, dead: Incarnation | None) -> None:
        ref = self._ref
        if self._known(where[0]) == rt.HERE:
            self._step(where, rt.Resolved(rt.HERE))
        else:
            self._services.store.read(where[0], lambda out: ref.reply(RecordRead(where, out, dead)))

    def _read(self, where: Where, outcome: Record | Failed, dead: Incarnation | None) -> None:
        ref, me = self._ref, self._cluster.incarnation
        route = self._routes.get(where)
        if route is None:
            return
        streams = all(letter.kind is rt.Kind.ATTACH for letter in route.letters)
        if isinstance(outcome, Failed) or (streams and outcome.owner in (None, dead, me)):
            self._step(where, rt.Unresolved(errors.draining()))  # whoever wants a stream comes back elsewhere
        elif outcome.owner == me:
            self._ctx.set_timer(("look", where), rt.LEAVING, LookDue(where))
        elif outcome.owner not in (None, dead):
            self._step(where, rt.Resolved(outcome.owner))
        else:
            self._cluster.replicas(lambda out: ref.reply(ReplicasRead(where, out)))

    def _pass_on(self, where: Where, outcome: list[ports.Replica] | Failed) -> None:
        found = [] if isinstance(outcome, Failed) else outcome
        others = [one.incarnation for one in found if one.alive and one.incarnation != self._cluster.incarnation]
        route = self._routes.get(where)
        former = route.former if route is not None else None  # it has given the letter back, and drains too
        others = [other for other in others if other != former] or others
        if others:
            self._step(where, rt.Resolved(others[int(self._services.jitter() * len(others))]))
        else:
            self._step(where, rt.Unresolved(errors.draining()))

    # The session in this process

    def _give(self, mid: int, make: Callable[[Reply], Any], *, recover: bool = False) -> None:
        """To the session as it is now. The order is that of the asks."""
        pending, ref = self._pending[mid], self._ref
        key, principal, endpoint = pending.where
        alive = self._sessions.table.get(key)

        def done(outcome: Any) -> None:
            ref.reply(GivenHere(mid, outcome, recover))

        if alive is None or not alive.ref.alive:
            done(ActorDown(NAME, ABSENT))
        elif alive.principal != principal or alive.endpoint != endpoint:
            done(Refusal(errors.session_not_found()))
        else:
            pending.given = alive.ref.ask(make, self._services.limits.admission, done)

    def _given(self, message: GivenHere) -> None:
        mid, outcome = message.mid, message.outcome
        pending = self._pending.get(mid)
        if pending is None:
            close(outcome)
            return
        pending.given = None
        if isinstance(outcome, ActorDown) and not outcome.taken:
            self._step(pending.where, rt.Moved(mid, rt.HERE))
        elif message.recover and (isinstance(outcome, Exception | Answer)):
            self._step(pending.where, rt.NotPosted(mid, rt.HERE, rt.Unposted.AWAY))  # asked again in a while
        elif isinstance(outcome, MailboxFull | NotTaken | Refusal):
            self._step(pending.where, rt.Refused(mid, outcome))
        else:
            pending.heard = outcome
            recovered = rt.Recovered(mid, outcome is not None)
            self._step(pending.where, recovered if message.recover else rt.Heard(mid))

    def _recover(self, mid: int, to: str) -> None:
        pending = self._pending[mid]
        ids = pending.ids
        if to == rt.HERE:
            self._give(mid, lambda reply: sm.Recover(ids, reply), recover=True)
        else:
            self._post(to, mid, lt.ask_of(sm.Recover(ids, pending.send.reply)))

    # What becomes of letters

    def _accept(self, mid: int) -> None:
        pending = self._pending.pop(mid)
        outcome = pending.heard
        if isinstance(outcome, Exception):
            pending.send.reply.fail(outcome)
        elif not pending.send.reply.answer(outcome):
            close(outcome)

    def _fail(self, mid: int, why: rt.Why, reason: object) -> None:
        pending = self._pending.pop(mid)
        reply = pending.send.reply
        self._services.telemetry.count("stagedoor_letters_refused_total", (lt.KINDS[type(pending.ask)], why.value))
        match why, reason:
            case rt.Why.LOST, _ if pending.ids:
                reply.fail(ActorDown(NAME, LOST, taken=True))
            case rt.Why.OVERLOADED, _:
                reply.fail(MailboxFull(NAME))
            case rt.Why.REFUSED, ProtocolError() as error:
                reply.fail(Refusal(error))
            case rt.Why.REFUSED, Exception() as error:
                reply.fail(error)
            case _:
                reply.fail(NotTaken(NAME))

    def _gone(self, mid: int) -> None:
        """A request whose connection broke goes no further than it is."""
        pending = self._pending.get(mid)
        if pending is None:
            return
        self._step(pending.where, rt.Abandoned(mid))
        if _kind(pending.ask) is not rt.Kind.NOTE:
            self._pending.pop(mid, None)

    def _detach(self, mid: int, to: str) -> None:
        pending = self._pending[mid]
        if to != rt.HERE:
            self._mail(to, pending.where, mid, lt.Detach())
        elif pending.given is not None:
            pending.given.abandon()

    # What owners say

    def take(self, sender: Incarnation, mid: int, body: lt.ToHolder) -> None:
        """A letter about one of ours."""
        if isinstance(body, lt.Events | lt.Head | lt.Released):
            self._news(sender, mid, body)
            return
        pending = self._pending.get(mid)
        if pending is None:
            if isinstance(body, lt.Opened | lt.Attached) and mid not in self.feeds:
                self._turn_away(sender, mid)
            return
        match body:
            case lt.Opened() | lt.Attached():
                self._opened(sender, mid, pending, body)
            case lt.Whole(status, content, headers):
                self._heard(mid, pending, Answer(status, content, headers))
            case lt.Unrecorded():
                self._step(pending.where, rt.Recovered(mid, found=False))
            case lt.Refused(reason):
                self._step(pending.where, rt.Refused(mid, reason))
            case lt.Moved(owner):
                known = owner if owner != self._cluster.incarnation else None
                self._step(pending.where, rt.Moved(mid, sender, known, body.rests))
            case _:
                assert_never(body)

    def _heard(self, mid: int, pending: Pending, outcome: Any) -> None:
        pending.heard = outcome
        self._services.telemetry.observe("stagedoor_mail_seconds", self._ctx.now() - pending.since)
        self._step(pending.where, rt.Heard(mid))

    # Streams that come by mail

    def _opened(self, sender: Incarnation, mid: int, pending: Pending, body: lt.Opened | lt.Attached) -> None:
        ref = self._ref
        feed = MailFeed(
            pending.where[0],
            sender,
            body,
            lambda written: ref.reply(FeedClosed(mid, written)),
            lambda: ref.reply(FeedWritten(mid)),
        )
        if not feed.live:  # all that there is of it is in the log
            self._heard(mid, pending, feed)
            return
        if not self.feeds:
            self._ctx.set_timer("check", CHECK, CheckDue())
        self.feeds[mid] = feed
        self._heard(mid, pending, feed)
        if sender in self._dead:
            self._lose(mid, feed)

    def _news(self, sender: Incarnation, mid: int, news: News) -> None:
        feed = self.feeds.get(mid)
        if feed is None or feed.owner != sender:
            if not isinstance(news, lt.Released):
                self._turn_away(sender, mid)
        elif isinstance(news, lt.Released):
            self._lose(mid, feed)
            self._released(feed.key, sender)
        else:
            feed.tell(news)

    def _turn_away(self, sender: Incarnation, mid: int) -> None:
        """Nobody waits for this stream here."""
        self._mail(sender, NOBODY, mid, lt.Detach())

    def _released(self, key: SessionKey, owner: Incarnation) -> None:
        """The session goes on elsewhere."""
        if self._sessions.elsewhere.get(key) == owner:
            self._sessions.know(key, None)
        for where in [where for where in self._routes if where[0] == key]:
            self._step(where, rt.Released(owner))

    def _lose(self, mid: int, feed: MailFeed) -> None:
        """Who listens looks for the session; what the former owner has of it nobody reads any more."""
        del self.feeds[mid]
        feed.tell(lt.Released())

    def _feed_closed(self, mid: int, written: int) -> None:
        feed = self.feeds.pop(mid, None)
        if feed is not None:
            self._mail(feed.owner, (feed.key, *NOBODY[1:]), mid, lt.Detach(written))

    def _report(self, mid: int) -> None:
        feed = self.feeds.get(mid)
        if feed is not None and feed.seq > feed.reported:
            feed.reported = feed.seq
            self._mail(feed.owner, (feed.key, *NOBODY[1:]), mid, lt.Written(feed.seq))

    def _check(self) -> None:
        """Mail may have been lost, the last event's too: the store is asked for all streams at once. Whether they still
        come from there, each owner."""
        held: defaultdict[Incarnation, list[int]] = defaultdict(list)
        for mid, feed in self.feeds.items():
            self._report(mid)
            held[feed.owner].append(mid)
        for owner, mids_of in held.items():
            for begin in range(0, len(mids_of), HELD):
                self._mail(owner, NOBODY, 0, lt.Held(tuple(mids_of[begin : begin + HELD])))
        listening = [(mid, feed.listener) for mid, feed in self.feeds.items() if feed.listener is not None]
        mids = tuple(mid for mid, listener in listening if listener.check())
        if mids:
            ref, streams = self._ref, [(self.feeds[mid].key, self.feeds[mid].stream) for mid in mids]
            self._services.store.heads(streams, lambda out: ref.reply(HeadsRead(mids, out)))
        if self.feeds:
            self._ctx.set_timer("check", CHECK, CheckDue())

    def _let_go(self) -> None:
        """Connections whose clients come back elsewhere are closed; all others stay."""
        for feed in list(self.feeds.values()):
            if feed.listener is not None:
                feed.listener.let_go(int(RETRY_MS * (1 + self._services.jitter())))

    def _heads_read(self, mids: tuple[int, ...], outcome: list[ports.Head | Failed | None]) -> None:
        for mid, head in zip(mids, outcome, strict=True):
            feed = self.feeds.get(mid)
            if feed is None or feed.listener is None or isinstance(head, Failed):
                continue
            if head is None or head.owner != feed.owner:
                self._lose(mid, feed)
                self._released(feed.key, feed.owner)
            else:
                feed.listener.head_said(head)

    # What happens to replicas

    def down(self, incarnation: Incarnation) -> None:
        """It is no more: what went there goes on elsewhere."""
        self._dead[incarnation] = None
        if len(self._dead) > REMEMBERED:
            self._dead.popitem(last=False)
        self._sessions.forget(incarnation)
        for where in list(self._routes):
            self._step(where, rt.OwnerDown(incarnation))
        self._lose_all(incarnation)

    def renamed(self) -> None:
        """Letters to the name that this process had come no more: streams, and what became of letters that were posted,
        are asked for again under the new one."""
        self._step_all(rt.Renamed())
        self._lose_all(None)

    def _lose_all(self, owner: Incarnation | None) -> None:
        for mid, feed in [(m, f) for m, f in self.feeds.items() if owner in (None, f.owner)]:
            self._lose(mid, feed)

    def stop(self) -> None:
        """The mailer ends: its streams end too, and go on with the next one. Nobody waits for what a session in this
        process makes of a letter."""
        self._lose_all(None)
        for pending in self._pending.values():
            if pending.given is not None:
                pending.given.abandon()


def _kind(ask: lt.Ask) -> rt.Kind:
    match ask:
        case lt.Note() | lt.End() | lt.Move() | lt.Take():
            return rt.Kind.NOTE
        case lt.Deliver():
            return rt.Kind.REQUESTS
        case lt.Attach() | lt.Recover():
            return rt.Kind.ATTACH
        case _:
            assert_never(ask)


def _unposted(reason: ports.Refused) -> rt.Unposted:
    if reason is ports.Refused.DEAD:
        return rt.Unposted.DEAD
    return rt.Unposted.INBOX_FULL if reason is ports.Refused.INBOX_FULL else rt.Unposted.AWAY


def close(outcome: Any) -> None:
    """Lets go of the stream that came too late, if it is one."""
    match outcome:
        case Streaming(source):
            source.close()
        case MailFeed():
            outcome.close(0)
        case Follower():
            outcome.close()
        case _:
            pass  # an answer, or a refusal
