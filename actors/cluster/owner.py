"""The owner's side of mail: gives letters of other replicas to the sessions here, and mails back what comes of them.

The holder of a client's connection is a guest of its session: it is checked as the gate checks a client, its letters
reach the session in the order of their sending, and what it does not read any more costs nothing. A part of the mailer,
which has the mailbox and the clocks.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count, filterfalse
from typing import Any, TypeAlias, assert_never

from msgspec import Struct
from msgspec.structs import replace

from actors.cluster import letters as lt
from actors.cluster.feeds import told_of
from actors.cluster.letters import Letter, UnreadableError
from actors.named import LIVES, NamedRef
from actors.ports import Answer, Failed, Incarnation, Post, Principal, Refused, SessionKey, Streaming, Where
from actors.protocol import errors
from actors.protocol.errors import ProtocolError
from actors.protocol.messages import Request, RequestId
from actors.runtime import ActorDown, Context, MailboxFull, Ref, Reply
from actors.services import Services
from actors.sessions import messages as sm
from actors.sessions.router import Activate, Alive, Elsewhere, Sessions
from actors.streams.connection import Connection
from actors.streams.follower import Follower
from actors.streams.recorder import handle
from actors.watched import PostWatch

MOST = 10_000
"""Letters of others in hand, those with streams included; a further one is refused."""
SEEN = 10_000
"""Deliveries remembered, so that none that comes twice runs twice."""
RETRY = 0.5
"""Seconds between two attempts to reach an inbox that is full, or a store that is away."""
HELD_BACK = 1_000
"""Letters to one replica that wait for that; more are dropped, and it finds out by itself."""
SAID = 20.0
SAID_BYTES = 4 * 1024 * 1024
"""Seconds for which whole answers are kept, and how much they may hold: a holder that has not got one asks after it in
10 to 15 s."""
LAST = 60.0
"""Seconds that the holder of a stream that has ended has to say what it wrote of it."""


class Activated(Struct, frozen=True):
    """What the router says of a session: a Ref, Elsewhere, a ProtocolError, or how the question ended. `former`: the
    owner that it was to be claimed from, should that be dead."""

    where: Where
    outcome: Any
    former: Incarnation | None = None


class Outcome(Struct, frozen=True):
    """What the session made of the letter of this number."""

    mid: int
    outcome: Any


class FlushDue(Struct, frozen=True):
    """There are events to mail."""


class MailRefused(Struct, frozen=True):
    """A letter to this replica was not posted. `number`: in the order of all letters."""

    to: Incarnation
    number: int
    letter: Letter
    outcome: Failed


class RetryDue(Struct, frozen=True):
    """Time to try this inbox again."""

    to: Incarnation


class Overdue(Struct, frozen=True):
    """The holder of a stream that has ended says nothing."""

    mid: int


OwnerMessage: TypeAlias = Activated | Outcome | FlushDue | MailRefused | RetryDue | Overdue


@dataclass(eq=False, slots=True)
class Guest:
    """One letter of another replica, and the connection that came of it. `mid`: its number, of which no two replicas
    have the same; `to`: the name that its holder goes by. `order`: of arrival. `index`: the letters that its stream has
    had."""

    mid: int
    to: Incarnation
    letter: Letter
    ask: lt.Ask
    order: int
    lives: int = 0
    asked: Reply | None = None
    connection: Connection | None = None
    index: int = 0
    last: int = 0
    ready: bool = False
    over: bool = False
    watch: PostWatch | None = None
    """Who observes its requests, if somebody does."""

    @property
    def where(self) -> Where:
        """The session, and whose it must be."""
        return self.letter.key, self.letter.principal, self.letter.endpoint

    @property
    def recovers(self) -> bool:
        """Whether it asks for what is recorded of a letter that may have been executed: no answer to a client can come
        of it, but from the record."""
        return isinstance(self.letter.body, lt.Recover)


class Owner:
    """All methods are synchronous; what comes of them is an OwnerMessage to the actor of `ctx`."""

    def __init__(self, ctx: Context, services: Services, sessions: Sessions, router: NamedRef) -> None:
        self._ctx = ctx
        self._services = services
        self._cluster = services.cluster
        self._sessions = sessions
        self._router = router
        self._guests: dict[int, Guest] = {}
        self._orders = count()
        self._waiting: dict[Where, list[Guest]] = {}
        """Those whose session is being brought into memory, in their order."""
        self._seen: OrderedDict[int, tuple[SessionKey, lt.Attach | None]] = OrderedDict()
        """Deliveries that were taken, by their numbers: whose, and the stream that came of each, from its beginning."""
        self._said: OrderedDict[int, tuple[float, lt.Whole]] = OrderedDict()
        """The last whole answers to deliveries, and when each was given, by their numbers."""
        self._said_bytes = 0
        self._ready: list[Guest] = []
        self._held_back: dict[Incarnation, list[tuple[int, Letter]]] = {}
        """Letters that wait for room in an inbox, or for the store, in the order of their numbers."""
        self._letters = count()

    @property
    def idle(self) -> bool:
        """Whether nobody is a guest here."""
        return not self._guests

    def receive(self, message: OwnerMessage) -> None:
        """One message."""
        match message:
            case Outcome(mid, outcome):
                self._outcome(mid, outcome)
            case FlushDue():
                self._flush()
            case Activated(where, outcome, former):
                self._activated(where, outcome, former)
            case MailRefused(to, number, letter, outcome):
                self._refused(to, number, letter, outcome)
            case RetryDue(to):
                self._retry(to)
            case Overdue(mid):
                self._leave(mid, 0)
            case _:
                assert_never(message)

    # What holders say

    def take(self, letter: Letter, body: lt.ToOwner) -> None:
        """A letter for a session, or about one that came before."""
        to, mid = letter.reply
        match body:
            case lt.Detach(written):
                self._leave(mid, written)
            case lt.Written(seq):
                guest = self._guests.get(mid)
                if guest is not None and guest.connection is not None:
                    guest.connection.written = max(guest.connection.written, seq)
            case lt.Held(mids):
                for unsent in filterfalse(self._sends, mids):
                    self.mail(to, Letter(letter.key, (self._cluster.incarnation, unsent), lt.Released(), NOBODY, ""))
            case _:
                self._ask(mid, to, letter, body)

    def _sends(self, mid: int) -> bool:
        """Whether the stream of this letter comes from here. (Where its last events are in no log, they were said.)"""
        guest = self._guests.get(mid)
        connection = guest.connection if guest is not None else None
        return guest is not None and connection is not None and (connection.recorded or not guest.over)

    def _ask(self, mid: int, to: Incarnation, letter: Letter, ask: lt.Ask) -> None:
        there, seen = self._guests.get(mid), self._seen.get(mid)
        if isinstance(ask, lt.Recover):
            if there is not None and there.connection is None:
                there.to = to
                return  # the session has it in hand
            self._leave(mid, 0)
            if seen is not None and seen[0] == letter.key and mid in self._said:
                self._say(Guest(mid, to, letter, ask, next(self._orders)), self._said[mid][1])
                return
            if seen is not None and seen[0] == letter.key and seen[1] is not None:
                ask = seen[1]
        elif isinstance(ask, lt.Attach | lt.Note) and there is not None and there.to != to:
            self._leave(mid, 0)  # its holder has another name, by which it has heard nothing
        elif there is not None or seen is not None:
            return  # doubled
        guest = Guest(mid, to, letter, ask, next(self._orders))
        if len(self._guests) >= MOST:
            self._close(guest, lt.Refused(lt.FULL))
            return
        self._guests[mid] = guest
        self._place(guest)

    def _place(self, guest: Guest) -> None:
        """To its session, behind what came before it."""
        where = guest.where
        waiting = self._waiting.get(where)
        alive = self._sessions.table.get(where[0])
        if waiting is not None:
            insort(waiting, guest, key=lambda other: other.order)
        elif alive is not None and alive.ref.alive:
            self._give(guest, alive)
        elif guest.lives >= LIVES:
            self._close(guest, lt.Refused(lt.NOT_TAKEN))
        else:
            guest.lives += 1
            self._waiting[where] = [guest]
            self._activate(where, able=guest.letter.able)

    def _activate(self, where: Where, former: Incarnation | None = None, *, able: bool) -> None:
        ref = self._ctx.ref
        self._router.ask(
            lambda reply: Activate(*where, reply, former, mailed=True, able=able),
            self._services.limits.admission,
            lambda out: ref.reply(Activated(where, out, former)),
        )

    def _give(self, guest: Guest, alive: Alive) -> None:
        if (alive.principal, alive.endpoint) != guest.where[1:]:
            self._refuse(guest, errors.session_not_found())
            return
        try:
            make = lt.asked(guest.ask, guest.letter.rights, guest.to)
            if self._services.observer is not None:
                make = self._watched(guest, make)
        except UnreadableError as unreadable:
            self._services.telemetry.count("stagedoor_letters_refused_total", (guest.letter.kind, unreadable.reason))
            self._close(guest, lt.Refused(unreadable.reason))
            return
        ref, mid = self._ctx.ref, guest.mid
        guest.asked = alive.ref.ask(make, self._services.limits.admission, lambda out: ref.reply(Outcome(mid, out)))

    def _watched(self, guest: Guest, make: Callable[[Any], lt.SessionAsk]) -> Callable[[Any], lt.SessionAsk]:
        """The same, observed: each request within what its holder has begun for it."""
        message = make(None)
        if not isinstance(message, sm.PostMessages):
            return make
        observer = self._services.observer
        assert observer is not None
        key, principal, endpoint = guest.where
        post = Post(endpoint, principal, {}, b"", rights=guest.letter.rights, transport="mail", peer=guest.letter.peer)
        watch = PostWatch(observer, self._services.shown, post, self._services.audit)
        began = partial(watch.began, session=handle(key), era="legacy")
        messages = tuple(began(m) if isinstance(m, Request) else m for m in message.messages)
        guest.watch = watch
        return lambda reply: replace(message, messages=messages, reply=reply, operations=watch.operations)

    def _activated(self, where: Where, outcome: Any, former: Incarnation | None) -> None:
        """A holder that can't have the session says no more of its owner than the record does: if that one is dead, it
        is claimed here."""
        if isinstance(outcome, Elsewhere) and outcome.owner is not None and former is None and not outcome.handed:
            waiting = self._waiting.get(where, [])
            if not all(guest.letter.able for guest in waiting):
                self._activate(where, outcome.owner, able=False)
                return
        for guest in self._waiting.pop(where, []):
            match outcome:
                case Ref():
                    self._place(guest)
                case Elsewhere(owner):
                    self._close(guest, lt.Moved(owner, outcome.rests))
                case ProtocolError():
                    self._refuse(guest, outcome)
                case _ if self._sessions.draining:
                    self._close(guest, lt.Moved())  # it was given back, or will be
                case _:
                    self._close(guest, lt.Refused(lt.NOT_TAKEN))

    # What sessions say

    def _outcome(self, mid: int, outcome: Any) -> None:
        guest = self._guests.get(mid)
        if guest is None or guest.asked is None:
            _close(outcome)
            return
        guest.asked = None
        if guest.watch is not None and isinstance(outcome, Answer):
            guest.watch.replied(outcome)
        match outcome:
            case Answer() if guest.recovers:
                if outcome.passing:
                    self._forget(guest)  # its holder asks again in a while
                else:
                    self._close(guest, lt.Refused(lt.NOT_TAKEN))
            case Answer():
                self._answer(guest, outcome)
            case Streaming(Connection() as connection):
                epoch = connection.opener if connection.recorded else 0
                self._say(guest, lt.Opened(connection.stream, connection.recorded, epoch))
                self._follow(guest, connection)
            case Follower(connection=live):
                epoch, seq = outcome.position
                self._say(guest, lt.Attached(outcome.stream, epoch, seq, outcome.head, live is not None, outcome.marks))
                if live is None:
                    self._forget(guest)
                else:
                    live.written = max(live.written, seq)
                    self._follow(guest, live)
            case None:
                self._close(guest, lt.Unrecorded())
            case bool():
                self._close(guest, lt.Whole(200 if outcome else 409))
            case ActorDown(taken=False):
                self._place(guest)
            case ActorDown():
                self._lost(guest)
            case MailboxFull():
                self._services.telemetry.count("stagedoor_mailbox_refusals_total", ("session",))
                self._close(guest, lt.Refused(lt.FULL))
            case _:
                self._close(guest, lt.Refused(lt.NOT_TAKEN))

    def _lost(self, guest: Guest) -> None:
        """The session's actor ended with the letter in hand: what it held may have been executed."""
        if not isinstance(guest.ask, lt.Deliver):
            self._close(guest, lt.Refused(lt.NOT_TAKEN))
            return
        message = lt.asked(guest.ask)(None)  # type: ignore[arg-type]
        assert isinstance(message, sm.PostMessages)
        answer = sm.unanswered(message.messages, batch=message.batch)
        if guest.watch is not None:
            guest.watch.replied(answer)
        self._close(guest, lt.Whole(answer.status, answer.body, answer.headers))

    def _refuse(self, guest: Guest, error: ProtocolError) -> None:
        """As the gate answers a client."""
        if guest.recovers:
            self._close(guest, lt.Refused(error.kind))
            return
        answer = Answer.refusing(error, _id_of(guest.ask))
        if self._services.observer is not None and isinstance(guest.ask, lt.Deliver):
            with suppress(UnreadableError):
                self._watched(guest, lt.asked(guest.ask))
            if guest.watch is not None:
                guest.watch.replied(answer)
        self._answer(guest, answer)

    def _answer(self, guest: Guest, answer: Answer) -> None:
        """A refusal is counted here, since the letter does not say that it is one."""
        if answer.reason:
            self._services.telemetry.count("stagedoor_messages_rejected_total", (answer.reason,))
        self._close(guest, lt.Whole(answer.status, answer.body, answer.headers))

    # Streams

    def _follow(self, guest: Guest, connection: Connection) -> None:
        guest.connection, connection.elsewhere = connection, guest.to if connection.recorded else ""
        beginning = lt.Attach(connection.stream, connection.opener) if connection.recorded else None
        self._remember(guest, beginning)
        ref = self._ctx.ref

        def ready() -> None:
            if not guest.ready:
                guest.ready = True
                if not self._ready:
                    ref.reply(FlushDue())
                self._ready.append(guest)

        connection.listen(ready)

    def _flush(self) -> None:
        ready, self._ready = self._ready, []
        for guest in ready:
            guest.ready = False
            if guest.connection is not None and not guest.connection.closed and not guest.over:
                self._mail_events(guest, guest.connection)

    def _mail_events(self, guest: Guest, connection: Connection) -> None:
        for news in told_of(connection, guest.index + 1):
            guest.index += 1
            if isinstance(news, lt.Events | lt.Head):
                guest.last = news.last
                guest.over = news.ended if isinstance(news, lt.Events) else news.finished
            self._say(guest, news)
            if isinstance(news, lt.Released) or (isinstance(news, lt.Events) and news.ended and not news.finished):
                self._leave(guest.mid, 0)
        if guest.over:
            # The log is kept for as long as it is not known to be written.
            self._ctx.set_timer(("last", guest.mid), LAST, Overdue(guest.mid))

    def _leave(self, mid: int, written: int) -> None:
        """Nobody reads there any more; what was written is known up to a number."""
        guest = self._guests.get(mid)
        if guest is None:
            return
        self._forget(guest)
        if mid not in self._seen:
            self._remember(guest)
        self._ctx.cancel_timer(("last", mid))
        waiting = self._waiting.get(guest.where)
        if waiting is not None and guest in waiting:
            waiting.remove(guest)
        if guest.asked is not None:
            guest.asked.abandon()
        if guest.connection is not None:
            guest.connection.written = max(guest.connection.written, written)
            guest.connection.close(whole=guest.over and written >= guest.last)

    # What goes out

    def _close(self, guest: Guest, body: lt.ToHolder) -> None:
        """The whole answer to a letter."""
        if not isinstance(body, lt.Moved):  # which may come again by the same number
            self._remember(guest)
        if isinstance(body, lt.Whole) and type(guest.ask) is lt.Deliver:
            self._keep(guest.mid, body)
        self._forget(guest)
        self._say(guest, body)

    def _forget(self, guest: Guest) -> None:
        if self._guests.get(guest.mid) is guest:
            del self._guests[guest.mid]

    def _remember(self, guest: Guest, stream: lt.Attach | None = None) -> None:
        if type(guest.ask) is lt.Deliver:
            self._seen[guest.mid] = guest.letter.key, stream
            if len(self._seen) > SEEN:
                self._seen.popitem(last=False)

    def _keep(self, mid: int, answer: lt.Whole) -> None:
        """An answer that is in no log: its letter may be lost."""
        if mid in self._said:
            return
        now = self._ctx.now()
        self._said[mid] = now, answer
        self._said_bytes += len(answer.body)
        while self._said and (self._said_bytes > SAID_BYTES or next(iter(self._said.values()))[0] < now - SAID):
            _, (_, gone) = self._said.popitem(last=False)
            self._said_bytes -= len(gone.body)

    def _say(self, guest: Guest, body: lt.ToHolder) -> None:
        self.mail(guest.to, Letter(guest.letter.key, (self._cluster.incarnation, guest.mid), body, NOBODY, ""))

    def mail(self, to: Incarnation, letter: Letter) -> None:
        """Posts it, or as soon as there is room; in order."""
        self._mail(to, next(self._letters), letter)

    def _mail(self, to: Incarnation, number: int, letter: Letter) -> None:
        if to in self._held_back:
            self._hold_back(to, number, letter)
            return
        ref = self._ctx.ref
        self._services.telemetry.count("stagedoor_letters_sent_total", (letter.kind,))

        def done(outcome: Any) -> None:
            if isinstance(outcome, Failed):
                ref.reply(MailRefused(to, number, letter, outcome))

        self._cluster.post(to, lt.encode(letter), done)

    def _refused(self, to: Incarnation, number: int, letter: Letter, failed: Failed) -> None:
        self._services.telemetry.count("stagedoor_letters_refused_total", (letter.kind, failed.reason.value))
        if failed.reason is Refused.DEAD:
            self.down(to)
            return
        if to not in self._held_back:
            self._held_back[to] = []
            self._ctx.set_timer(("held back", to), RETRY, RetryDue(to))
        self._hold_back(to, number, letter)

    def _hold_back(self, to: Incarnation, number: int, letter: Letter) -> None:
        """Behind those before it, though it may have been refused later than what came after it was held back."""
        held_back = self._held_back[to]
        insort(held_back, (number, letter), key=lambda held: held[0])
        del held_back[HELD_BACK:]

    def _retry(self, to: Incarnation) -> None:
        for number, letter in self._held_back.pop(to, ()):
            self._mail(to, number, letter)

    # What happens to replicas

    def down(self, incarnation: Incarnation) -> None:
        """It is no more: nobody waits there."""
        self._held_back.pop(incarnation, None)
        self._ctx.cancel_timer(("held back", incarnation))
        for mid in [mid for mid, guest in self._guests.items() if guest.to == incarnation]:
            self._leave(mid, 0)

    def stop(self) -> None:
        """The mailer ends: the streams of its guests go on with the next one, and what no session was given goes to
        the next owner."""
        for guest in [guest for waiting in self._waiting.values() for guest in waiting]:
            self._close(guest, lt.Moved())
        self._waiting.clear()
        for mid, guest in list(self._guests.items()):
            if guest.connection is not None:
                self._say(guest, lt.Released())
            self._leave(mid, 0)


NOBODY = Principal("")
"""In letters to holders, who know whose they are."""


def _id_of(ask: lt.Ask) -> RequestId | None:
    """The id of the request that an error answers: the first one."""
    message = lt.asked(ask)(None) if isinstance(ask, lt.Deliver) else None  # type: ignore[arg-type]
    messages = message.messages if isinstance(message, sm.PostMessages) else ()
    return next((m.id for m in messages if isinstance(m, Request)), None)


def _close(outcome: Any) -> None:
    """Lets go of the stream of a letter that nobody waits for."""
    match outcome:
        case Streaming(source):
            source.close()
        case Follower():
            outcome.close()
        case _:
            pass  # an answer, or a refusal
