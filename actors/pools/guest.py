"""Who uses a pool of this process from another one: to the pool it is a caller, to that other process the pool."""

from collections.abc import Callable
from typing import Final, TypeAlias, assert_never

from actors.cluster.letters import FromPool
from actors.machines.upstream.events import Wanted
from actors.pools import letters
from actors.pools import messages as pm
from actors.pools.mail import Link, Outgoing
from actors.ports import Incarnation
from actors.protocol.table import Replaced
from actors.runtime import Actor, Down, Exit, Ref
from actors.services import DRAIN_MARGIN, Services
from actors.upstreams import messages as um
from actors.upstreams.subscribers import CHATTER

SILENT: Final = 60.0
"""Seconds without a word of the other side, which asks for one every few as long as it waits for something."""
WAITING_MOST: Final = 4096
"""Messages that wait to be mailed; with more the link ends."""
WAITING_MANY: Final = 256
"""Of more than that, what may be lost is."""

PoolSaid: TypeAlias = (
    um.UpstreamReady
    | um.UpstreamDown
    | um.UpstreamWrongEra
    | um.UpstreamOutcome
    | um.UpstreamNotification
    | pm.UpstreamSuspended
    | pm.Admitted
    | pm.NotHere
)
GuestMessage: TypeAlias = PoolSaid | pm.LinkMessage | pm.PostDue | pm.IdleDue | pm.LateDue | Replaced | Down


class Guest(Actor):
    """The owner's side of one link. Whatever ends it, the other side is told, and the pool takes it for a client that
    has left."""

    mailbox_size = 1024
    disposable = True

    _out: Outgoing

    def __init__(self, pool: Ref, link: Link, services: Services, gone: Callable[[], object]) -> None:
        self._pool = pool
        self._link = link
        self._services = services
        self._gone = gone
        self._calls: set[int] = set()
        self._heard = 0.0
        """When the other side was last heard of."""
        self._ended = self._closing = False

    def started(self) -> None:
        self._out = Outgoing(self._link, self.ctx, self._services, FromPool)
        self._out.seen = 1  # the one that brought it here
        self._heard = self.ctx.now()
        self.ctx.monitor(self._pool)
        self._pool.reply(pm.Admit(self.ctx.ref))
        self._watch()

    def receive(self, message: GuestMessage) -> None:
        match message:
            case pm.MailCame():
                self._read(message)
            case pm.Posted(outcome=outcome):
                if not self._out.posted(outcome) or (self._ended and self._out.settled):
                    self.ctx.stop()
            case pm.PostDue():
                self._out.again()
            case pm.ProcessDown(incarnation):
                if incarnation in (self._link.peer, self._link.me):
                    self._ended = True
                    self.ctx.stop()
            case pm.IdleDue():
                self._idle_due()
            case pm.LateDue() | Down():
                self._end(letters.GONE)
            case pm.Withdrawn() | Replaced():
                pass
            case _:
                if not self._ended:
                    self._told(message)

    # What the other side says

    def _read(self, message: pm.MailCame) -> None:
        if self._ended or message.number <= self._out.seen:
            return
        try:
            said = letters.to_owner(message.said)
        except letters.UnreadableError:
            said = ()
        if not said or message.number > self._out.seen + 1:
            self._end(letters.GONE)  # what came before is lost
            return
        self._heard = self.ctx.now()
        self._out.seen = message.number
        self._out.read_up_to(message.seen)
        for one in said:
            if not self._ended:
                self._asked(one)
        self._close()

    def _asked(self, said: letters.ToOwner) -> None:
        ref, principal = self.ctx.ref, self._link.principal.name
        match said:
            case letters.Call():
                self._calls.add(said.call)
                self._pool.reply(letters.call_for(ref, principal, said))
            case letters.Resume():
                self._calls.add(said.call)
                self._pool.reply(letters.resume_for(ref, said))
            case letters.Cancel(call, reason):
                self._calls.discard(call)
                self._pool.reply(um.Cancel(ref, call, reason))
            case letters.Want():
                self._pool.reply(Wanted())
            case letters.Check():
                self._out.say(letters.Here())
            case letters.Leave():
                self._ended = True
                self._pool.reply(um.Leave(ref))
                self.ctx.stop()
            case letters.Enter():
                pass  # it is here
            case _:
                assert_never(said)

    # What the pool says

    def _told(self, message: PoolSaid) -> None:
        match message:
            case um.UpstreamOutcome():
                self._out.say(letters.Outcome(message.call, message.ok, bytes(message.payload)))
                self._calls.discard(message.call)
            case pm.UpstreamSuspended():
                self._out.say(letters.suspended_of(message))
                self._calls.discard(message.call)
            case um.UpstreamNotification():
                self._notified(message)
            case um.UpstreamReady():
                self._out.say(letters.ready_of(message))
            case um.UpstreamDown():
                self._out.say(letters.Down(message.message, bytes(message.payload)))
            case um.UpstreamWrongEra():
                self._out.say(letters.WrongEra(tuple(call.call for call in message.calls)))
                self._calls.difference_update(call.call for call in message.calls)
            case pm.Admitted():
                self._out.say(letters.Entered())
            case pm.NotHere(owner, unbegun):
                self._end(letters.GONE, owner, unbegun)
            case _:
                assert_never(message)
        self._close()

    def _notified(self, message: um.UpstreamNotification) -> None:
        """As much as the other side takes; what has changed is said once, as long as it waits."""
        said = letters.Told(message.call, message.method, bytes(message.params))
        waiting = self._out.waiting
        if message.method in CHATTER and len(waiting) >= WAITING_MANY:
            self._services.telemetry.count("stagedoor_messages_dropped_total", ("notification_refused",))
        elif len(waiting) >= WAITING_MOST:
            self._end(letters.GONE)
        elif message.method in CHATTER or said not in waiting:
            self._out.say(said)

    # Its end

    def _close(self) -> None:
        """As soon as nothing runs, if it is to. (A letter was read to its end by then: the other side knows of no more
        than that it was read.)"""
        if self._closing and not self._calls:
            self._end(letters.GONE)

    def _end(self, reason: str, owner: Incarnation | None = None, unbegun: tuple[int, ...] = ()) -> None:
        """The other side hears what was said so far, and that nothing follows."""
        if not self._ended:
            self._ended = True
            self._pool.reply(um.Leave(self.ctx.ref))
            self._out.say(letters.Ended(reason, owner, unbegun))

    def _watch(self) -> None:
        self.ctx.set_timer("idle", min(SILENT, self._services.limits.broker_idle), pm.IdleDue())

    def _idle_due(self) -> None:
        """The last word of the other side may have been lost."""
        longest = SILENT if self._calls else self._services.limits.broker_idle
        if self.ctx.now() - self._heard >= longest:
            self._end(letters.GONE)
        else:
            self._watch()

    def drain(self, deadline: float) -> None:
        """What runs has until the deadline; anything new waits there until somebody else has the pool."""
        self._closing = True
        self._out.say(letters.Closing())
        self.ctx.set_timer("late", max(0.0, deadline - self.ctx.now() - DRAIN_MARGIN), pm.LateDue())
        self._close()

    def stopped(self, reason: Exit) -> None:
        """After a crash too the other side is to know."""
        if not self._ended:
            self._out.last(letters.Ended(letters.GONE))
        self._gone()
