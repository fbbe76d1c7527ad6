"""Who has an affinity pool: this process, another one, or nobody yet.

The connections of a pool hold a server's hidden state, so they are one process's at a time: of the one that the record
in the store names. All that comes for a pool comes here first. While this process owns it, the pool gets it; while
another one does, it goes there by mail; and while it can't be told who does, it waits. Nothing of what waits was begun,
so it goes wherever the pool turns out to be.
"""

from itertools import count
from typing import ClassVar, Final, Protocol, TypeAlias, TypeVar, assert_never

from actors.doubt import AGAIN, Allowed
from actors.endpoints.host import Tree
from actors.machines.upstream.events import Wanted
from actors.machines.upstream.legacy_calls import failure
from actors.pools import letters
from actors.pools import messages as pm
from actors.pools.mail import WITHIN, Link
from actors.pools.remote import RemotePool
from actors.ports import UNAVAILABLE, Failed, Grant, Incarnation, Principal, Record, Refused, SessionKey
from actors.protocol.messages import base36
from actors.protocol.table import Replaced
from actors.quotas import Evict
from actors.record import FINAL, RETRY, OwnedRecord, Renamed, SaveDue, Stored, reader
from actors.runtime import Context, Down
from actors.services import Services
from actors.upstreams import messages as um
from actors.upstreams.own_calls import OwnDue
from actors.upstreams.subscribers import Subscribers

LOOK_AGAIN = 0.25
"""Seconds after which the owner of a pool is looked for again."""
LINKS = count(-1, -1)
"""The numbers of the links of this process: none is that of another letter."""
STORE_AWAY = ("store_away", "the session store is not available")
"""Why something is not begun."""

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
LifeMessage: TypeAlias = pm.CallDue | pm.IdleDue | pm.StaleDue | pm.RepliesDue | OwnDue | Evict | Replaced | Down
LocalMessage: TypeAlias = CallerMessage | ConnectionMessage | LifeMessage
"""What the pool gets while this process owns it."""
RecordMessage: TypeAlias = Stored | SaveDue | Renamed | pm.KeepDue | pm.DoubtDue | pm.ReadersKnown
LinkMessage: TypeAlias = pm.LinkMessage | pm.PostDue | pm.CheckDue | pm.EnterDue | pm.LateDue
PoolMessage: TypeAlias = LocalMessage | RecordMessage | LinkMessage
OfOwner: TypeAlias = (
    ConnectionMessage
    | pm.ReadersKnown
    | pm.KeepDue
    | pm.DoubtDue
    | pm.StaleDue
    | pm.CallDue
    | pm.EnterDue
    | OwnDue
    | SaveDue
    | Renamed
)
"""What is of no meaning while another process owns it."""

Kept = TypeVar("Kept")


def without(messages: list[Kept], message: um.Cancel | um.Leave) -> list[Kept]:
    """These messages, but for what nobody wants any more since this one came."""
    match message:
        case um.Cancel(caller=caller, call=call):
            calls = um.Call | pm.Resume
            return [m for m in messages if not (isinstance(m, calls) and m.caller is caller and m.call == call)]
        case um.Leave(caller=caller):
            asked = um.Call | pm.Resume | um.Join | pm.Admit
            return [m for m in messages if not (isinstance(m, asked) and m.caller is caller)]


class LocalPool(Protocol):
    """The pool itself: its actor, and what is done where it is owned."""

    ctx: Context
    mailbox_size: ClassVar[int]
    stale: bool
    """Its server is configured otherwise now: nothing new is to be done for it."""

    @property
    def unused(self) -> bool:
        """Whether nobody needs it at present."""

    def handle(self, message: LocalMessage) -> None:
        """It is owned here."""

    def settled(self) -> None:
        """All that had waited was handled."""

    def busy(self) -> None:
        """It has something in hand, wherever it is owned."""

    def announce(self, message: um.UpstreamReady | um.UpstreamDown) -> None:
        """All who have joined hear it."""

    def disowned(self, waiting: list[PoolMessage], owner: Incarnation | None) -> list[PoolMessage]:
        """It is owned here no more, but perhaps by this `owner`: it lets go of all that it has. Returns what is still
        to be done of what was `waiting`, and what it has not begun itself."""

    def end(self) -> None:
        """Nobody waits for anything, and none of it is owned here."""


KIND: Final = b"broker"


def is_pool(record: Record) -> bool:
    """Whether it is the record of a pool."""
    return record.fields.get("kind") == KIND


class _Pool:
    """What the store could lose of a pool: nothing but the fields of its record. Whoever else had the pool has ended
    it."""

    def content(self, grant: Grant) -> Record:
        return Record(grant.owner, grant.epoch)

    def surely_lost(self) -> bool:
        return True


_POOL: Final = _Pool()


class Ownership:
    """Knows who has one pool, and passes on to it what comes for it."""

    def __init__(
        self,
        pool: LocalPool,
        key: SessionKey,
        principal: Principal,
        enter: letters.Enter,
        services: Services,
        tree: Tree,
        subscribers: Subscribers,
    ) -> None:
        """`key` is of the record, and `enter` what is said to another owner first."""
        self.ctx = pool.ctx
        self.named = ""
        """This life while it owns the pool, in what its client holds; nothing while it does not."""
        self._pool = pool
        self._key = key
        self._principal = principal
        self._enter = enter
        self._backend = enter.backend
        self._services = services
        self._tree = tree
        self._subscribers = subscribers
        self._early: list[PoolMessage] = []
        """What came while it could not be told who owns it."""
        self._held = False
        """It can't be told whether this life still does."""
        self._remote: RemotePool | None = None
        """Another process does."""
        self._looking = False
        """Who does, is being found out; not for ever."""
        self._hint: Incarnation | None = None
        """Who may, as another has said."""
        self._acquire()

    @property
    def epoch(self) -> int:
        """Of this life, while it owns the pool."""
        return self._record.grant.epoch

    @property
    def here(self) -> bool:
        """Whether no other process has the pool, as far as is known."""
        return self._remote is None

    def _acquire(self) -> None:
        """What it knows of its record is of no use to another life, nor what the store still says of that."""
        record = self._record = OwnedRecord(self._key, self._services, self.ctx)
        record.life = _POOL
        record.acquire({"kind": KIND, "backend": self._backend.encode()})

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
            allowed = self._hold_still()
            if allowed is Allowed.OVER and isinstance(message, um.Call | pm.Resume):
                self.turn_away([message], *STORE_AWAY)
                return
        if isinstance(message, Stored | pm.DoubtDue | pm.ReadersKnown) or (self._record.owned and not self._held):
            self._act(message)
        else:
            self.wait(message)

    def _act(self, message: PoolMessage) -> None:
        """What is of the ownership, and what is of the pool."""
        if isinstance(message, RecordMessage):
            self._of_record(message)
        elif not isinstance(message, LinkMessage):  # of a link that is over
            self._pool.handle(message)

    def _of_record(self, message: RecordMessage) -> None:
        match message:
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
            case _:
                assert_never(message)

    def leave(self) -> None:
        """The pool has ended: nobody here relies on the link, and the next life may begin anywhere."""
        if self._remote is not None:
            self._remote.leave()
        self._record.delete()

    # What waits

    def wait(self, message: PoolMessage) -> None:
        """Keeps it, at most as much as a mailbox holds: nothing was done yet, so that whoever gives up has asked for
        nothing."""
        match message:
            case Evict() | pm.IdleDue() | pm.CheckDue() | pm.PostDue():
                pass  # when it is owned it is idle anew
            case pm.MailCame() | pm.Posted() | pm.Withdrawn() | pm.ProcessDown():
                pass  # of a link that is over
            case pm.EnterDue():
                self._enter_again()
            case pm.LateDue():
                self._not_owned()
            case um.Cancel() | um.Leave():
                self.drop(message)
                self._keep_of_a_user(message)
            case Down(ref=ref):
                self.drop(um.Leave(ref))
                self._keep_of_a_user(message)
            case um.Call() | pm.Resume() | um.Join() | Wanted() if len(self._early) >= self._pool.mailbox_size:
                self.turn_away([message], "overloaded", "too much waits for this client's connections")
            case um.UpstreamNotification() if len(self._early) >= self._pool.mailbox_size:
                self._services.telemetry.count("stagedoor_messages_dropped_total", ("overflow",))
            case _ if not self.named and isinstance(message, OfOwner):
                pass  # of a life that is over
            case _:
                self._early.append(message)

    def drop(self, message: um.Cancel | um.Leave) -> None:
        """Nobody wants this any more of what was kept."""
        self._early = without(self._early, message)

    def _keep_of_a_user(self, message: um.Cancel | um.Leave | Down) -> None:
        """What it ends may have begun before."""
        if not self._pool.unused:
            self._early.append(message)

    def take_early(self) -> list[PoolMessage]:
        """All that waits, which the caller answers for."""
        early, self._early = self._early, []
        return early

    def turn_away(self, messages: list[PoolMessage], reason: str, text: str) -> None:
        """Tells whoever waits for something that it was not done."""
        error = failure(reason, text, "no", self._backend)
        for message in messages:
            if isinstance(message, um.Call | pm.Resume):
                told = failure(reason, text, pm.unbegun(message), self._backend)
                message.caller.reply(um.UpstreamOutcome(self._backend, message.call, False, told))
            elif isinstance(message, um.Join):
                message.caller.reply(um.UpstreamDown(self.ctx.ref, self._backend, "not owned", error))
            elif isinstance(message, pm.Admit):
                message.caller.reply(pm.NotHere())

    # This process has the pool

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
        elif record.owned and self._hold_still() not in (Allowed.HOLD, Allowed.FORMER):
            self._go_on()
        elif failed and message.step in ("reclaim", "reread", "restore"):
            self.ctx.set_timer("doubt", RETRY, pm.DoubtDue())

    def _go_on(self) -> None:
        """With what came meanwhile."""
        self._held = False
        self._found()
        grant = self._record.grant
        self.named = self.named or f"{grant.owner}.{base36(grant.epoch)}"
        for kept in self.take_early():
            self._act(kept)
        self._pool.settled()

    def _hold_still(self) -> Allowed:
        """What may be done at present; what comes meanwhile waits."""
        allowed = self._tree.doubt.allowed(self._record.grant, self.ctx.now())
        if allowed is Allowed.FORMER:
            self._record.reclaim(self._record.grant.owner)
        elif allowed is Allowed.HOLD:
            self._held = True
            self.ctx.set_timer("doubt", AGAIN, pm.DoubtDue())
        return allowed

    def _doubt_due(self) -> None:
        """Without the store it goes on with what it has."""
        self._held = False
        self._hold_still()
        if not self._record.owned and self._services.cluster.doubtful:
            self.ctx.set_timer("doubt", RETRY, pm.DoubtDue())
        elif self._record.owned and not self._held:
            self._go_on()

    # It does not, or not any more

    def _lost(self, why: Refused, version: int) -> None:
        """This life does not own the record: what was not begun goes on where the pool is."""
        for timer in ("keep", "save", "doubt"):
            self.ctx.cancel_timer(timer)
        owned = bool(self.named)
        if owned:
            self._services.log.warning("broker_not_owned", backend=self._backend, reason=why.value)
            self._early = self._pool.disowned(self.take_early(), self._record.other)
            self.named, self._held = "", False
        other, me = self._record.other, self._services.cluster.incarnation
        if owned and (self._pool.stale or (not self._early and self.ctx.idle)):
            self._pool.end()
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

    def _not_owned(self) -> None:
        self._refuse("not_owned", "the state of this client's connections can't be had")

    def _refuse(self, reason: str, text: str) -> None:
        """All who wait. For those who come next it is looked for anew."""
        self._services.log.warning("broker_not_owned", backend=self._backend, reason=reason)
        self.turn_away(self.take_early(), reason, text)
        error = failure(reason, text, "no", self._backend)
        self._pool.announce(um.UpstreamDown(self.ctx.ref, self._backend, text, error))
        if self.ctx.idle:
            self._pool.end()
            return
        if self._remote is not None:
            self._remote.leave()
        self._remote = None
        self._found()
        self._acquire()

    # Another process does

    def _seek(self) -> None:
        """Looks for who has it, which may be itself, in a moment."""
        self._look()
        self.ctx.set_timer("enter", LOOK_AGAIN, pm.EnterDue())

    def _look(self) -> None:
        if not self._looking:
            self._looking = True
            self.ctx.set_timer("late", WITHIN, pm.LateDue())

    def _found(self) -> None:
        self._looking = False
        self.ctx.cancel_timer("late")

    def _enter_again(self) -> None:
        owner, self._hint = self._hint, None
        if owner is not None and owner != self._services.cluster.incarnation:
            self._follow(owner)
        else:
            self._acquire()

    def _readers_known(self, found: pm.ReadersKnown) -> None:
        """One that can read the record has the pool, or says who has."""
        able = reader(self._key, found.version, found.outcome, self._services.cluster.incarnation)
        if able is not None:
            self._follow(able)
        else:
            self._refuse("too_new", "the record of this client's connections can't be read by this replica")

    def _follow(self, owner: Incarnation) -> None:
        """What its callers want is asked of this process."""
        self._look()
        link = Link(self._key, self._principal, self._services.cluster.incarnation, owner, next(LINKS))
        self._remote = RemotePool(self, link, self._enter, self._services, self._tree, self._subscribers)

    # As in `RemoteHost`

    def announce(self, message: um.UpstreamReady | um.UpstreamDown) -> None:
        """What the owner says to all."""
        self._pool.announce(message)

    def entered(self) -> None:
        """The owner is found: it gets what waits."""
        self._found()
        self._pool.busy()
        for kept in self.take_early():
            self.receive(kept)

    def link_over(self, unbegun: list[pm.CallOrResume], owner: Incarnation | None) -> None:
        """With what is to be done it looks for the next owner, which it may be itself."""
        self._remote, self._hint, self._early = None, owner, [*unbegun, *self._early]
        if not self._early and self.ctx.idle:
            self._pool.end()
        else:
            self._seek()

    def not_to_be_had(self) -> None:
        """Tells all who wait that the pool is not to be had."""
        self._remote = None
        self._not_owned()

    def unused(self) -> None:
        """It ends, unless somebody has just come."""
        if self.ctx.idle and not self._early:
            self._pool.end()
