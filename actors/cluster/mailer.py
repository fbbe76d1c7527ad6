"""The mailer: the one actor of a process that has its inbox, and through which its letters go.

What comes for sessions here is the owner's side (`owner.py`), what this process has for sessions elsewhere the holder's
(`holder.py`). When it crashes, streams of both sides are told that their owner was lost, and go on with its next life.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, assert_never, get_args

from msgspec import Struct

from actors.cluster import holder as ho
from actors.cluster import letters as lt
from actors.cluster import owner as ow
from actors.cluster.channels import Channels
from actors.cluster.holder import Holder
from actors.cluster.letters import Letter, UnreadableError
from actors.cluster.owner import Owner
from actors.named import NamedRef
from actors.ports import Cluster, ClusterListener, Incarnation, Principal, ignore
from actors.runtime import SHUTDOWN, Actor, Exit
from actors.services import DRAIN_MARGIN, Services
from actors.sessions.router import Sessions


class Arrived(Struct, frozen=True):
    """Letters that were in the inbox, in their order."""

    letters: Sequence[bytes]


class ReplicaDown(Struct, frozen=True):
    """Another replica is no more."""

    incarnation: Incarnation


class Renamed(Struct, frozen=True):
    """This replica has another incarnation than `former` now."""

    former: Incarnation


class DrainDue(Struct, frozen=True):
    """The drain is nearly over."""


MailerMessage: TypeAlias = ho.HolderMessage | ow.OwnerMessage | Arrived | ReplicaDown | Renamed | DrainDue


class Postman(ClusterListener):
    """What it hears goes to the mailer, whichever life that is in. After the last one, in a
    process that is about to end, letters are for whoever owns their sessions next."""

    def __init__(self, mailer: NamedRef, cluster: Cluster) -> None:
        self._mailer = mailer
        self._cluster = cluster

    def on_mail(self, letters: Sequence[bytes]) -> None:
        if not self._mailer.reply(Arrived(letters)):
            for data in letters:
                self._return(data)

    def _return(self, data: bytes) -> None:
        try:
            letter = lt.decode(data)
        except UnreadableError:
            return
        if isinstance(letter.body, lt.Ask):
            to, mid = letter.reply
            answer = Letter(letter.key, (self._cluster.incarnation, mid), lt.Moved(), ow.NOBODY, "")
            self._cluster.post(to, lt.encode(answer), ignore)

    def on_renamed(self, former: Incarnation, now: Incarnation) -> None:
        self._mailer.reply(Renamed(former))

    def on_down(self, incarnation: Incarnation) -> None:
        self._mailer.reply(ReplicaDown(incarnation))


class PoolPost(Protocol):
    """What has links to pools of other replicas, or of this one."""

    def take(self, letter: Letter) -> None:
        """A letter of a link."""

    def process_down(self, incarnation: Incarnation) -> None:
        """Another process is gone for good, or this one has another name now."""


class Mailer(Actor):
    """Reads the inbox of this process and posts its letters. Permanent."""

    mailbox_size = ho.MOST

    def __init__(
        self,
        services: Services,
        sessions: Sessions,
        router: NamedRef,
        pools: Callable[[], PoolPost],
        channels: Channels,
        came: Callable[[Letter], None],
    ) -> None:
        """`pools` and `channels`: who takes letters that are about these; `came` hears who has come elsewhere."""
        self._came = came
        self._channels = channels
        self._pools = pools
        self._services = services
        self._sessions = sessions
        self._router = router
        self._draining = False
        self._over = False
        """The time of the drain is."""

    def started(self) -> None:
        self._sessions.under_way.clear()
        self.holder = Holder(self.ctx, self._services, self._sessions, self._router)
        self.owner = Owner(self.ctx, self._services, self._sessions, self._router)

    def receive(self, message: MailerMessage) -> None:
        if isinstance(message, Arrived):
            for data in message.letters:
                self._take(data)
        elif isinstance(message, ho.HolderMessage):
            self.holder.receive(message)
        elif isinstance(message, ow.OwnerMessage):
            self.owner.receive(message)
        else:
            match message:
                case ReplicaDown(incarnation):
                    self.holder.down(incarnation)
                    self.owner.down(incarnation)
                    self._pools().process_down(incarnation)
                case Renamed(former):
                    self.holder.renamed()
                    self._pools().process_down(former)
                case DrainDue():
                    self._over = True
                case _:
                    assert_never(message)
        if self._draining:
            settled = self._over or (self.holder.idle and self.owner.idle)
            if settled and self.ctx.idle:  # what was read counts as taken: it is answered before the end
                self.ctx.stop(SHUTDOWN)

    def _take(self, data: bytes) -> None:
        try:
            letter = lt.decode(data)
        except UnreadableError as unreadable:
            self._unreadable(unreadable)
            return
        self._services.telemetry.count("stagedoor_letters_received_total", (letter.kind,))
        sender, mid = letter.reply
        if isinstance(letter.body, lt.ToOwner):
            self.owner.take(letter, letter.body)
        elif isinstance(letter.body, lt.ToHolder):
            self.holder.take(sender, mid, letter.body)
        elif isinstance(letter.body, lt.OfChannel):
            self._channels.take(letter)
        elif isinstance(letter.body, lt.Came):
            self._came(letter)
        else:
            self._pools().take(letter)

    def _unreadable(self, unreadable: UnreadableError) -> None:
        """Whoever sent it is told so, unless it was itself about a letter of ours."""
        reason, reply = unreadable.reason, unreadable.reply
        self._services.telemetry.count("stagedoor_letters_refused_total", (unreadable.kind or lt.UNKNOWN, reason))
        self._services.log.warning("letter_unreadable", reason=reason, kind=unreadable.kind)
        if reply is not None and lt.BODIES.get(unreadable.kind) not in get_args(lt.ToHolder):
            me = self._services.cluster.incarnation
            self.owner.mail(reply[0], Letter("", (me, reply[1]), lt.Refused(reason), Principal(""), ""))

    def drain(self, deadline: float) -> None:
        """Sessions have settled by now; connections that hold streams of others have until the deadline."""
        self._draining = True
        self.ctx.set_timer("drain", max(0.0, deadline - self.ctx.now() - DRAIN_MARGIN), DrainDue())
        if self.holder.idle and self.owner.idle and self.ctx.idle:
            self.ctx.stop(SHUTDOWN)

    def stopped(self, reason: Exit) -> None:
        self.holder.stop()
        self.owner.stop()
