"""When a session is not heard of: it leaves memory after a while, and ends after a longer one.

With connections that live and die with this process it stays where it is, and lets go of what can be had again. Any
other is given back to the store, and what comes meanwhile waits for the outcome; the object goes when that is known and
nothing has come. Its backends' sessions stay, for its next life.
"""

from typing import TYPE_CHECKING, Any

from actors.fronts.leaving import is_bound, put_down
from actors.ports import Failed, Refused
from actors.protocol import errors
from actors.protocol import events as ev
from actors.protocol.session_table import SessionPhase
from actors.sessions.effects import refusal
from actors.sessions.expiry import Passivated, last_activity
from actors.sessions.session_messages import EndSession, GetEvents, PostMessages, QuietDue, Reclaimed, Released, Saved

if TYPE_CHECKING:
    from actors.sessions.session import SessionActor

HANDSHAKE_TTL = 60.0
"""Seconds without a message after which a session whose handshake was not finished ends; its record has as long."""


class Quiet:
    """The clock of one life of one session. All methods are synchronous."""

    def __init__(self, session: "SessionActor") -> None:
        self.active = 0.0
        """When the session was last heard of."""
        self._session = session
        self._watching = False
        self._parked: list[Any] | None = None

    @property
    def leaving(self) -> bool:
        """Whether the record is being given back, or taken again."""
        return self._parked is not None

    def heard(self) -> None:
        """Something of the client's came, or went."""
        self.active = self._session.ctx.now()

    def parks(self, message: Any) -> bool:
        """Keeps a message that comes while the session is leaving."""
        if self._parked is None or isinstance(message, Released | Reclaimed | Saved):
            return False
        self._parked.append(message)
        return True

    def watch(self) -> None:
        """Looks again after a while."""
        if not self._watching:
            self._watch(self._session.services.limits.passivate_after)

    def _watch(self, seconds: float) -> None:
        self._watching = True
        self._session.ctx.set_timer("quiet", max(seconds, 0.01), QuietDue())

    def due(self) -> None:
        """Time to look."""
        self._watching = False
        session, limits = self._session, self._session.services.limits
        if session.busy:
            self.heard()
            return
        idle = session.ctx.now() - self.active
        unfinished = session.state.phase is not SessionPhase.OPERATION
        end = HANDSHAKE_TTL if unfinished else limits.idle_ttl
        leave = limits.passivate_after
        if idle >= end:
            session.event(ev.Ended("idle"))
        elif idle < leave:
            self._watch(min(leave, end) - idle)
        elif unfinished or is_bound(session.front):
            session.front.shrink()
            self._watch(end - idle)
        else:
            self._passivate(idle)

    # Leaving

    def _passivate(self, idle: float) -> None:
        self._parked = []
        session, ref = self._session, self._session.ctx.ref
        since = last_activity(session.services.wall() - idle)
        session.keeper.release(since, lambda out: ref.reply(Released(out)))

    def released(self, outcome: Any) -> None:
        """Given back. If nothing came meanwhile the object goes; else the session is claimed again."""
        session = self._session
        if isinstance(outcome, Failed):
            self._stay()
        elif not self._parked and session.ctx.idle and session.keeper.settled:
            self._go()
        else:
            ref, grant = session.ctx.ref, session.grant
            nonce = f"{grant.owner}-{grant.epoch}"
            key = session.identity.key
            session.services.store.claim(key, None, grant.epoch, nonce, lambda out: ref.reply(Reclaimed(out)))

    def _go(self) -> None:
        session = self._session
        put_down(session.front)
        left = session.services.limits.idle_ttl - (session.ctx.now() - self.active)
        session.tree.expiry.reply(Passivated(session.identity.key, left))
        session.ctx.stop()

    def reclaimed(self, outcome: Any) -> None:
        """Taken again, or not: then it has ended, or goes, for whoever comes next finds it in the store."""
        if not isinstance(outcome, Failed):
            self._session.renew(outcome[0])
        elif outcome.reason in (Refused.GONE, Refused.ENDED):
            self._session.event(ev.Ended(outcome.reason.value))
        else:
            self._refuse()
            self._go()
            return
        self._stay()

    def _refuse(self) -> None:
        """What waits was not begun, and may be sent again."""
        for message in self._parked or ():
            if isinstance(message, PostMessages | GetEvents | EndSession):
                message.reply.answer(refusal(errors.store_away()))

    def _stay(self) -> None:
        parked, self._parked = self._parked or [], None
        self._session.save(last_activity(None))
        for message in parked:
            self._session.handle(message)
