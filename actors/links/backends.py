"""The backends actor: one circuit breaker and status per backend, and the bound on child processes over all of them.

A link asks here before it connects, and tells how it went (`standing`). Asking costs a message per connection, not per
call. After a crash the links that live are counted anew; until all have answered, each of them may hold a process.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from actors.links.standing import AskPermit, Census, Connected, Denied, Failure, Granted, LinkMoved, Present, Returned
from actors.protocol import breaker as br
from actors.protocol import errors
from actors.protocol.link_state import Phase
from actors.protocol.table import StdioTarget
from actors.protocol.table_change import Replaced, replaced
from actors.runtime import Actor, Down, Ref
from actors.services import Services


@dataclass(frozen=True, slots=True)
class _WaitOver:
    link: Ref


@dataclass(slots=True)
class Status:
    """What is known of one backend, for people."""

    breaker: br.Breaker = field(default_factory=br.Breaker)
    connections: int = 0
    last_error: str = ""


UP = {br.BreakerState.CLOSED: 1.0, br.BreakerState.HALF_OPEN: 0.5, br.BreakerState.OPEN: 0.0}
"""What the gauge shows."""

STATES = {
    Phase.IDLE: "idle",
    Phase.CONNECTING: "connecting",
    Phase.INITIALIZING: "connecting",
    Phase.CONFIRMING: "connecting",
    Phase.READY: "ready",
    Phase.WAITING: "waiting",
    Phase.CLOSED: "closing",
}
"""What people are told of a link's phase."""


class Backends(Actor):
    """Permanent. `status` outlives a crash, for it is nothing but values; `links` gives those that live."""

    mailbox_size = 4096

    def __init__(self, services: Services, status: dict[str, Status], links: Callable[[], Iterable[Ref]]) -> None:
        self._services = services
        self._living = links
        self.status = status
        self._places: dict[Ref, str] = {}
        """The links that hold a place for a child process."""
        self._waiting: dict[Ref, str] = {}
        """Those that wait for one, in order."""
        self._links: dict[Ref, tuple[str, str]] = {}
        self._in_state: Counter[tuple[str, str]] = Counter()
        self._uncounted: set[Ref] = set()
        """Links that have not answered the census."""

    def started(self) -> None:
        for backend in self.status:
            for state in STATES.values():
                self._services.telemetry.gauge("stagedoor_backend_links", 0.0, (backend, state))
            self._count_places(backend)
        for link in self._living():
            self._uncounted.add(link)
            self.ctx.monitor(link)
            link.reply(Census())

    def receive(self, message: Any) -> None:
        match message:
            case AskPermit(link, backend):
                self._ask(link, backend)
            case Connected(backend):
                self._connected(backend)
            case Failure():
                self._failed(message)
            case LinkMoved(link, backend, phase):
                self._moved(link, (backend, STATES[phase]))
            case Returned(link):
                self._returned(link)
            case Present():
                self._counted(message)
            case Replaced(before):
                self._forget(replaced(before, self._services.table.value))
            case Down(ref=link):
                self._moved(link, None)
                self._waiting.pop(link, None)
                self._uncounted.discard(link)
                self.ctx.cancel_timer(link)
                self._returned(link)
            case _WaitOver(link):
                self._wait_over(link)

    # How the backends are

    def _of(self, backend: str) -> Status:
        return self.status.setdefault(backend, Status())

    def _connected(self, backend: str) -> None:
        status = self._of(backend)
        status.connections += 1
        status.last_error = ""
        self._set(backend, br.succeeded(status.breaker))

    def _failed(self, failure: Failure) -> None:
        status = self._of(failure.backend)
        status.last_error = failure.message
        self._services.telemetry.count("stagedoor_backend_failures_total", (failure.backend, failure.reason))
        self._set(failure.backend, br.failed(status.breaker, self.ctx.now(), self._services.jitter()))

    def _forget(self, backends: Iterable[str]) -> None:
        """They are no more, or are others now: how they were says nothing."""
        for backend in backends:
            if self.status.pop(backend, None) is not None:
                self._services.telemetry.gauge("stagedoor_backend_up", UP[br.BreakerState.CLOSED], (backend,))

    def _set(self, backend: str, breaker: br.Breaker) -> None:
        status = self._of(backend)
        if breaker.state is not status.breaker.state:
            self._services.log.info(
                "backend_state", backend=backend, state=breaker.state.value, error=status.last_error
            )
        status.breaker = breaker
        self._services.telemetry.gauge("stagedoor_backend_up", UP[breaker.state], (backend,))

    def _moved(self, link: Ref, state: tuple[str, str] | None) -> None:
        """Keeps the numbers of links by backend and state; None: this one has ended."""
        before = self._links.pop(link, None)
        if before is None and state is not None:
            self.ctx.monitor(link)
        for key, change in ((before, -1), (state, 1)):
            if key is not None:
                self._in_state[key] += change
                self._services.telemetry.gauge("stagedoor_backend_links", float(self._in_state[key]), key)
        if state is not None:
            self._links[link] = state

    # Permits

    def _ask(self, link: Ref, backend: str) -> None:
        status = self._of(backend)
        breaker, allowed = br.attempt(status.breaker, self.ctx.now())
        self._set(backend, breaker)
        if not allowed:
            error = errors.internal(
                f"server {backend!r} is down: {status.last_error or 'it could not be reached'}",
                reason="backend_down",
                executed="no",
                backend=backend,
            )
            link.reply(Denied(error.raw))
            return
        spec = self._services.table.value.backends.get(backend)
        if spec is None or not isinstance(spec.target, StdioTarget) or link in self._places:
            link.reply(Granted())
        elif self._has_place:
            self._give_place(link, backend)
        else:
            self._waiting[link] = backend
            self.ctx.monitor(link)
            self.ctx.set_timer(link, self._services.limits.process_wait, _WaitOver(link))

    @property
    def _has_place(self) -> bool:
        return len(self._places) + len(self._uncounted) < self._services.limits.child_processes

    def _give_place(self, link: Ref, backend: str) -> None:
        self._places[link] = backend
        self.ctx.monitor(link)
        self._count_places(backend)
        link.reply(Granted())

    def _returned(self, link: Ref) -> None:
        backend = self._places.pop(link, None)
        if backend is not None:
            self._count_places(backend)
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._has_place:
            waiting = next(iter(self._waiting))
            self.ctx.cancel_timer(waiting)
            self._give_place(waiting, self._waiting.pop(waiting))

    def _counted(self, present: Present) -> None:
        """A link that was there before us; what it asked may have been lost with the one it asked."""
        link, backend = present.link, present.backend
        self._uncounted.discard(link)
        self._moved(link, (backend, STATES[present.phase]))
        if present.holds and link not in self._places:
            self._places[link] = backend
            self._count_places(backend)
        if present.asks and link not in self._waiting:
            self._ask(link, backend)
        self._let_in()

    def _wait_over(self, link: Ref) -> None:
        backend = self._waiting.pop(link, None)
        if backend is not None:
            error = errors.internal(
                "too many server processes are running", reason="backend_full", executed="no", backend=backend
            )
            link.reply(Denied(error.raw))

    def _count_places(self, backend: str) -> None:
        held = sum(1 for holder in self._places.values() if holder == backend)
        self._services.telemetry.gauge("stagedoor_child_processes", float(held), (backend,))
