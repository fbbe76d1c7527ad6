"""How a link stands with the backends actor: it asks before it connects, and tells how it went.

What is told while that actor is being restarted goes nowhere; the one that comes then takes a census of the links.
"""

from actors.links.link_messages import AskPermit, Connected, Failure, LinkMoved, Present, Returned
from actors.named import Named
from actors.ports import Log
from actors.protocol import link_events as ev
from actors.protocol.diagnostics import NO_DIAGNOSTICS, Diagnostics
from actors.protocol.link_state import Phase
from actors.runtime import Ref


class Standing:
    """One link's side of it. Nothing here waits, or minds whether it is heard."""

    def __init__(self, link: Ref, backend: str, backends: Named) -> None:
        self._link = link
        self._backend = backend
        self._backends = backends

    def moved(self, phase: Phase) -> None:
        """The link is in this phase."""
        self._backends.reply(LinkMoved(self._link, self._backend, phase))

    def ask(self) -> None:
        """May it connect? Granted or Denied follows, also if the question is lost with whom it was asked."""
        self._backends.reply(AskPermit(self._link, self._backend))

    def connected(self, hello: ev.Hello | None = None) -> None:
        """The backend is well; `hello` is what it said of itself."""
        self._backends.reply(Connected(self._backend, hello))

    def failed(
        self, reason: str, message: str, diagnostics: Diagnostics = NO_DIAGNOSTICS, *, ran: bool = False
    ) -> None:
        """The backend is not well."""
        self._backends.reply(Failure(self._backend, reason, message, diagnostics, ran))

    def down(self, log: Log, effect: ev.Down, *, counts: bool) -> None:
        """The connection is lost, or could not be made. What says something of the backend's health is logged by the
        backends actor, once for all who meet it; only what does not is logged here."""
        if counts:
            self.failed(effect.reason, effect.message, effect.diagnostics, ran=effect.ran)
        else:
            log.debug("link_down", backend=self._backend, reason=effect.reason, detail=effect.message)

    def give_back(self) -> None:
        """No process is there any more."""
        self._backends.reply(Returned(self._link))

    def counted(self, phase: Phase, *, holds: bool, asks: bool) -> None:
        """To a census."""
        self._backends.reply(Present(self._link, self._backend, phase, holds, asks))
