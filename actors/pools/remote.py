"""An affinity pool that another process owns, as its callers have it here.

They tell it, and are told, what they would be by a pool of this process; in between it travels by mail. When the owner
is gone, what was surely not begun there goes on with whoever owns the pool next, perhaps this process; what may have
been begun is never sent again, and ends with an error that says so.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, TypeAlias

from msgspec import Raw

from actors.cluster.letters import ToPool
from actors.endpoints.host import Tree
from actors.machines.upstream.events import ServerInfo, Wanted
from actors.pools import letters
from actors.pools import messages as pm
from actors.pools.mail import Link, Outgoing
from actors.ports import Incarnation, Refused
from actors.protocol import errors
from actors.protocol import payload as json
from actors.protocol.methods import SUBSCRIBE, UNSUBSCRIBE
from actors.protocol.table import Replaced, same_server
from actors.quotas import Evict
from actors.runtime import Context, Down, Ref
from actors.services import Services
from actors.upstreams import messages as um
from actors.upstreams.subscribers import Subscribers

CHECK: Final = 4.0
"""Seconds after which the owner is asked for a word, while it has calls of ours; and for which it is looked for."""
UNANSWERED: Final = 2
"""Times that it may stay silent."""
RARELY: Final = 4.0
"""Words that are asked for without calls, in the time after which the owner takes us for gone."""

RemoteMessage: TypeAlias = (
    um.Join
    | um.Leave
    | um.Call
    | um.Cancel
    | Wanted
    | pm.Resume
    | pm.Admit
    | pm.LinkMessage
    | pm.PostDue
    | pm.CheckDue
    | pm.RepliesDue
    | pm.IdleDue
    | Evict
    | Replaced
    | Down
)


class Phase(Enum):
    """How far one link is."""

    ENTERING = "entering"
    """The owner was asked whether it has the pool."""
    OPEN = "open"
    """It has."""
    CLOSING = "closing"
    """It takes nothing new."""
    LOST = "lost"
    """It is found out what it had read."""


class RemoteHost(Protocol):
    """What the link asks of the actor that its callers know."""

    ctx: Context

    def wait(self, message: RemoteMessage) -> None:
        """Keeps it until it is known who has the pool."""

    def drop(self, message: um.Cancel | um.Leave) -> None:
        """Forgets what is kept for this one: nobody wants it any more."""

    def entered(self) -> None:
        """It is known: what was kept is handed over."""

    def announce(self, message: um.UpstreamReady | um.UpstreamDown) -> None:
        """All who have joined hear it."""

    def link_over(self, unbegun: list[pm.CallOrResume], owner: Incarnation | None) -> None:
        """This owner has the pool no more; these calls it has not begun. It knows another `owner`, perhaps."""

    def not_to_be_had(self) -> None:
        """It can't be had there, and nowhere else."""

    def unused(self) -> None:
        """Nobody needs it any more."""


@dataclass(slots=True)
class Pending:
    """A call that has no outcome."""

    caller: Ref
    call: int
    asked: pm.CallOrResume | None
    """None for one of our own, whose outcome nobody waits for."""


class RemotePool:
    """The holder's side of one link."""

    def __init__(
        self,
        host: RemoteHost,
        link: Link,
        enter: letters.Enter,
        services: Services,
        tree: Tree,
        subscribers: Subscribers,
    ) -> None:
        self._host = host
        self._link = link
        self._backend = enter.backend
        self._services = services
        self._tree = tree
        self._subscribers = subscribers
        self._phase = Phase.ENTERING
        self._server_info: ServerInfo | None = None
        self._pending: dict[int, Pending] = {}
        self._numbers: dict[tuple[Ref, int], int] = {}
        self._next = 0
        self._unanswered = 0
        self._checking = False
        self._stale = False
        self._withdrawing: set[int] = set()
        self._unbegun: set[int] = set()
        """Letters that the owner has not read, and never will."""
        self._returned: tuple[int, ...] = ()
        """Calls that it has read, and given back."""
        self._next_owner: Incarnation | None = None
        self._out = Outgoing(link, host.ctx, services, ToPool)
        self._out.say(enter)
        host.ctx.set_timer("check", CHECK, pm.CheckDue())

    @property
    def unused(self) -> bool:
        """Whether nobody needs it at present."""
        return not self._pending and not self._subscribers.members

    def leave(self) -> None:
        """Nobody here needs it any more, or can rely on it."""
        if self._phase is not Phase.LOST:
            self._out.last(letters.Leave())

    def receive(self, message: RemoteMessage) -> None:
        """What callers say, what comes by mail, and what becomes of that."""
        match message:
            case pm.MailCame():
                if (message.sender, message.link) == (self._link.peer, self._link.number):
                    self._read(message)
            case pm.Posted(link, outcome):
                if link == self._link.number:
                    self._posted(outcome)
            case pm.Withdrawn(link, number, outcome):
                if link == self._link.number:
                    self._withdrawn(number, outcome)
            case pm.ProcessDown(incarnation):
                if incarnation in (self._link.peer, self._link.me):
                    self._lose()
            case pm.PostDue():
                if self._phase is not Phase.LOST:
                    self._out.again()
            case pm.CheckDue():
                self._check()
            case pm.RepliesDue():
                self._subscribers.settle()
            case pm.IdleDue() | Evict():
                self._settled()
            case pm.Admit(caller):
                caller.reply(pm.NotHere(self._link.peer))
            case Replaced(before):
                self._replaced(before.backends.get(self._backend))
            case _:
                self._of_caller(message)

    # Callers

    def _of_caller(self, message: um.Join | um.Leave | um.Cancel | Wanted | Down | pm.CallOrResume) -> None:
        """What the owner takes at present is said to it, all else waits."""
        taken: tuple[type, ...] = ()
        if self._phase is Phase.OPEN:
            taken = (um.Join, um.Leave, um.Cancel, Wanted, Down, um.Call, pm.Resume)
        elif self._phase is Phase.CLOSING:
            taken = (um.Leave, um.Cancel, Down, pm.Resume)
        elif self._phase is Phase.LOST:
            taken = (um.Leave, um.Cancel, Down)
        if not isinstance(message, taken):
            self._host.wait(message)
            return
        match message:
            case um.Call() | pm.Resume():
                self._call(message)
            case um.Cancel(caller, call, reason):
                self._subscribers.subscribed((caller, call), False)
                self._host.drop(message)
                self._give_up(caller, call, reason)
            case um.Join(caller):
                self._subscribers.members[caller] = None
                self._host.ctx.monitor(caller)
                if self._server_info is not None:
                    caller.reply(um.UpstreamReady(self._host.ctx.ref, self._backend, self._server_info, False))
            case um.Leave(caller):
                self._host.ctx.demonitor(caller)
                self._host.drop(message)
                self._left(caller)
            case Down():
                self._left(message.ref)
            case Wanted():
                self._out.say(letters.Want())

    def _call(self, message: pm.CallOrResume) -> None:
        owner = (message.caller, message.call)
        if self._out.stuck is not None:
            reason = "overloaded" if self._out.reason is Refused.INBOX_FULL else "store_away"
            text = "the replica that has this client's connections can't be reached"
            self._fail(owner, text, reason, pm.unbegun(message))
            return
        subscribes = isinstance(message, um.Call) and message.method in (SUBSCRIBE, UNSUBSCRIBE)
        if isinstance(message, um.Call) and subscribes and self._subscribers.settles(owner, message):
            message.caller.reply(um.UpstreamOutcome(self._backend, message.call, True, json.dumps({})))
            return
        number = self._number(Pending(message.caller, message.call, message))
        self._numbers[owner] = number
        if isinstance(message, um.Call):
            self._out.say(letters.call_of(number, message))
        else:
            self._out.say(letters.resume_of(number, message))

    def _number(self, pending: Pending) -> int:
        self._next += 1
        self._pending[self._next] = pending
        if not self._checking:
            self._checking, self._unanswered = True, 0
            self._host.ctx.set_timer("check", CHECK, pm.CheckDue())
        return self._next

    def _give_up(self, caller: Ref, call: int, reason: str) -> None:
        """Nobody waits for it any more."""
        number = self._numbers.get((caller, call))
        if number is None:
            return
        self._over(number)
        if self._phase is not Phase.LOST:
            self._out.say(letters.Cancel(number, reason))
        self._settled()

    def _left(self, ref: Ref) -> None:
        """A caller is gone."""
        for caller, call in [owner for owner in self._numbers if owner[0] is ref]:
            self._give_up(caller, call, "the client has disconnected")
        for uri in self._subscribers.leave(ref):
            if self._phase in (Phase.OPEN, Phase.CLOSING):
                own = um.Call(self._host.ctx.ref, 0, UNSUBSCRIBE, json.dumps({"uri": uri}))
                self._out.say(letters.call_of(self._number(Pending(own.caller, 0, None)), own))
        self._settled()

    def _over(self, number: int) -> Pending | None:
        """It has its outcome, or needs none."""
        pending = self._pending.pop(number, None)
        if pending is not None:
            self._numbers.pop((pending.caller, pending.call), None)
        return pending

    def _settled(self) -> None:
        """Something is over."""
        if self._phase is Phase.OPEN and (self.unused or (self._stale and not self._pending)):
            self._host.unused()

    def _replaced(self, was: object) -> None:
        """For another server there is another pool."""
        spec = self._services.table.value.backends.get(self._backend)
        self._stale = self._stale or not same_server(was, spec)  # type: ignore[arg-type]
        self._settled()

    def _fail(self, owner: tuple[Ref, int], text: str, reason: str, executed: errors.Executed) -> None:
        error = errors.internal(text, reason=reason, executed=executed, backend=self._backend).raw
        owner[0].reply(um.UpstreamOutcome(self._backend, owner[1], False, error))

    # What the owner says

    def _read(self, message: pm.MailCame) -> None:
        if self._phase is Phase.LOST or (0 < message.number <= self._out.seen):
            return
        try:
            said = letters.to_holder(message.said)
        except letters.UnreadableError:
            said = ()
        if not said or message.number > self._out.seen + 1:
            self._break()  # what came before is lost
            return
        self._unanswered = 0
        self._out.seen = message.number or self._out.seen
        self._out.read_up_to(message.seen)
        for one in said:
            self._heard(one, message.seen if message.number else None)

    def _heard(self, said: letters.ToHolder, seen: int | None) -> None:
        if self._phase is Phase.LOST:
            return
        match said:
            case letters.Entered():
                self._phase = Phase.OPEN
                self._host.entered()
                self._settled()
            case letters.Outcome(number, ok, payload):
                self._ended(number, ok, Raw(payload))
            case letters.Suspended():
                pending = self._over(said.call)
                if pending is not None:
                    pending.caller.reply(letters.suspended_for(self._backend, pending.call, said))
                self._settled()
            case letters.Told(number, method, params):
                self._told(number, method, Raw(params))
            case letters.Ready():
                self._ready(said)
            case letters.Down(text, payload):
                self._server_info = None
                self._host.announce(um.UpstreamDown(self._host.ctx.ref, self._backend, text, Raw(payload)))
            case letters.WrongEra(calls):
                self._wrong_era(calls)
            case letters.Closing():
                self._phase = Phase.CLOSING if self._phase is Phase.OPEN else self._phase
            case letters.Ended(reason, owner, unbegun):
                if self._phase is Phase.ENTERING and reason != letters.GONE:
                    self._host.not_to_be_had()
                    return
                self._returned, self._next_owner = unbegun, owner
                self._lose(seen)
            case letters.Here():
                pass

    def _ended(self, number: int, ok: bool, payload: Raw) -> None:
        pending = self._over(number)
        if pending is not None and pending.asked is not None:
            self._subscribers.subscribed((pending.caller, pending.call), ok)
            pending.caller.reply(um.UpstreamOutcome(self._backend, pending.call, ok, payload))
        self._settled()

    def _told(self, number: int | None, method: str, params: Raw) -> None:
        ref = self._host.ctx.ref
        if number is None:
            self._subscribers.tell(um.UpstreamNotification(ref, self._backend, None, method, params), None)
            return
        pending = self._pending.get(number)
        told = pending is not None and um.UpstreamNotification(ref, self._backend, pending.call, method, params)
        if pending is None or not told or pending.caller.crowded or not pending.caller.cast(told):
            self._services.telemetry.count("stagedoor_messages_dropped_total", ("notification_refused",))

    def _ready(self, said: letters.Ready) -> None:
        spec = self._services.table.value.backends.get(self._backend)
        if spec is not None:
            self._tree.eras.found_legacy(spec)
        info = letters.server_info(said)
        self._host.announce(um.UpstreamReady(self._host.ctx.ref, self._backend, info, said.again))
        self._server_info = info  # whoever joins later has to hear it too

    def _wrong_era(self, calls: Iterable[int]) -> None:
        """The owner has found the server to be modern: the calls go back to whoever made them."""
        spec = self._services.table.value.backends.get(self._backend)
        if spec is not None:
            self._tree.eras.refused_legacy(spec, surely=True)
        back: dict[Ref, list[um.Call]] = {}
        for number in calls:
            pending = self._over(number)
            if pending is not None and isinstance(pending.asked, um.Call):
                back.setdefault(pending.caller, []).append(pending.asked)
        for ref in list(self._subscribers.members):
            ref.reply(um.UpstreamWrongEra(self._host.ctx.ref, self._backend, tuple(back.get(ref, ()))))

    # The end of the link

    def _posted(self, outcome: object) -> None:
        if self._phase is not Phase.LOST:
            if not self._out.posted(outcome):
                self._lose()
            self._settled()
            return
        sent = self._out.under_way
        if sent is None or sent.number not in self._withdrawing:
            return
        if not isinstance(outcome, str):
            self._out.posted(outcome)
            self._withdrawn(sent.number, self._out.absent)
        elif self._out.absent:
            self._withdraw(sent.number, outcome)
        else:
            self._withdrawn(sent.number, False)  # it may be there twice

    def _check(self) -> None:
        """Whether the owner is heard of, often while it has calls of ours."""
        if self._phase is Phase.LOST:
            self._withdrawing.clear()
            self._lost()
            return
        if self._phase is Phase.ENTERING or self._unanswered >= UNANSWERED:
            self._break()
            return
        self._checking = bool(self._pending)
        self._unanswered += 1
        self._out.say(letters.Check())
        # Who only listens has to say now and then that it is there, or it would be taken for gone.
        rarely = self._services.limits.broker_idle / RARELY
        self._host.ctx.set_timer("check", CHECK if self._checking else rarely, pm.CheckDue())

    def _break(self) -> None:
        """What is said on this link can't be relied on any more."""
        self.leave()
        self._lose()

    def _lose(self, seen: int | None = None) -> None:
        """Nothing more will be heard of the owner. What it has not read is taken back; `seen`: it has said itself that
        it read up to there, and no further."""
        if self._phase is Phase.LOST:
            return
        self._phase = Phase.LOST
        out = self._out
        if seen is not None:
            posted = [*out.unread, *([out.under_way] if out.under_way is not None else [])]
            self._unbegun = {sent.number for sent in posted if sent.number > seen}
        else:
            if out.under_way is not None and out.posting:
                self._withdrawing.add(out.under_way.number)  # as soon as it is known where it is
            elif out.under_way is not None and out.absent:
                self._unbegun.add(out.under_way.number)
            there = {sent.number: sent.entry for sent in out.unread if sent.entry is not None}
            self._withdrawing |= there.keys()
            self._host.ctx.set_timer("check", CHECK, pm.CheckDue())
            for number, entry in there.items():
                self._withdraw(number, entry)
        self._lost_if_known()

    def _withdraw(self, number: int, entry: str) -> None:
        link, ref = self._link, self._host.ctx.ref
        self._services.cluster.withdraw(link.peer, entry, lambda out: ref.reply(pm.Withdrawn(link.number, number, out)))

    def _withdrawn(self, number: int, outcome: object) -> None:
        if number in self._withdrawing:
            self._withdrawing.discard(number)
            if outcome is True:
                self._unbegun.add(number)
            self._lost_if_known()

    def _lost_if_known(self) -> None:
        """Of each call it is known whether it may have been begun."""
        if not self._withdrawing:
            self._lost()

    def _lost(self) -> None:
        out = self._out
        posted = [*out.unread, *([out.under_way] if out.under_way is not None else [])]
        said = [one for sent in posted if sent.number in self._unbegun for one in sent.said] + [*out.waiting]
        unread = [one.call for one in said if isinstance(one, letters.Call | letters.Resume)]
        calls = [*self._returned, *unread]
        unbegun = [p.asked for n in calls if (p := self._over(n)) is not None and p.asked is not None]
        text = f"the replica that has this client's connections to server {self._backend!r} is gone"
        for pending in self._pending.values():
            if pending.asked is not None:
                self._subscribers.subscribed((pending.caller, pending.call), False)
                self._fail((pending.caller, pending.call), text, "owner_lost", "unknown")
        self._pending.clear()
        self._numbers.clear()
        down = errors.internal(text, reason="owner_lost", executed="no", backend=self._backend).raw
        self._host.announce(um.UpstreamDown(self._host.ctx.ref, self._backend, text, down))
        self._host.ctx.cancel_timer("check")
        self._host.ctx.cancel_timer("post")
        self._host.link_over(unbegun, self._next_owner)
