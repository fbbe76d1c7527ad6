"""How a session meets the end of its process: what is in flight has until the deadline, then the record is given back.

With a store that lasts, calls that the next process can go on with are left as they are.
"""

from typing import TYPE_CHECKING

from actors.fronts.leaving import put_down
from actors.protocol import events as ev
from actors.protocol.session_table import TRANSITIONS
from actors.runtime import SHUTDOWN
from actors.services import DRAIN_MARGIN
from actors.sessions.expiry import last_activity
from actors.sessions.session_messages import DrainDue

if TYPE_CHECKING:
    from actors.sessions.session import SessionActor


class Draining:
    """Of one life of one session. All methods are synchronous."""

    def __init__(self, session: "SessionActor") -> None:
        self._session = session
        self._on = False

    def begin(self, deadline: float) -> None:
        """Nothing new; what is in flight has until the deadline (trio's clock)."""
        session, self._on = self._session, True
        session.ctx.set_timer("drain", max(0.0, deadline - session.ctx.now() - DRAIN_MARGIN), DrainDue())
        if (session.state.phase, "drain") in TRANSITIONS:
            session.event(ev.DrainStarted())

    def due(self) -> None:
        """The deadline is near."""
        session = self._session
        lasting = session.kept.lasting if session.services.store.durable else frozenset()
        session.event(ev.DrainOverdue(lasting))
        if self._on and session.state.requests:
            self._leave()  # with them: the next process goes on where the record says

    def settle(self) -> None:
        """Follows every message: without anything in flight there is nothing to wait for."""
        if self._on and not self._session.state.requests:
            self._leave()

    def _leave(self) -> None:
        """The actor goes, the session stays: its record is given back for whoever claims it next."""
        session, self._on = self._session, False
        session.keeper.release(last_activity(session.services.wall()))
        if session.services.store.durable:
            put_down(session.front)
        session.ctx.stop(SHUTDOWN)
