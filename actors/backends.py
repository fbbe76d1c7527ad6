"""The backends actor: one circuit breaker and status per backend, and the bound on child processes over all of them.

A link asks here before it connects, and tells how it went. Asking costs a message per connection, not per call.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from msgspec import Raw

from actors.protocol import breaker as br
from actors.protocol import errors
from actors.protocol.table import StdioTarget
from actors.runtime import Actor, Down, Ref
from actors.services import Services


@dataclass(frozen=True, slots=True)
class AskPermit:
    """May this link connect?"""

    link: Ref
    backend: str


@dataclass(frozen=True, slots=True)
class Granted:
    """It may. A process place, if it takes one, is its own until `Returned` or its end."""


@dataclass(frozen=True, slots=True)
class Denied:
    """It may not: the JSON-RPC error object for those who wait."""

    payload: Raw


@dataclass(frozen=True, slots=True)
class Connected:
    """The handshake worked."""

    backend: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A connection failed, or was lost."""

    backend: str
    message: str


@dataclass(frozen=True, slots=True)
class Returned:
    """The link's transport is gone, and with it its process place."""

    link: Ref


@dataclass(frozen=True, slots=True)
class _WaitOver:
    link: Ref


@dataclass(slots=True)
class Status:
    """What is known of one backend, for people."""

    breaker: br.Breaker = field(default_factory=br.Breaker)
    connections: int = 0
    last_error: str = ""


@dataclass(slots=True)
class _Places:
    """Child processes: who holds a place, who waits for one."""

    held: set[Ref] = field(default_factory=set)
    waiting: deque[tuple[Ref, str]] = field(default_factory=deque)


class Backends(Actor):
    """Permanent; its state is rebuilt by use."""

    mailbox_size = 4096

    def __init__(self, services: Services) -> None:
        self._services = services
        self._places = _Places()
        self.status: dict[str, Status] = {}

    def receive(self, message: Any) -> None:
        match message:
            case AskPermit(link, backend):
                self._ask(link, backend)
            case Connected(backend):
                status = self._of(backend)
                status.connections += 1
                status.last_error = ""
                self._set(backend, br.succeeded(status.breaker))
            case Failure(backend, text):
                status = self._of(backend)
                status.last_error = text
                self._set(backend, br.failed(status.breaker, self.ctx.now(), self._services.jitter()))
            case Returned(link) | Down(ref=link):
                self._returned(link)
            case _WaitOver(link):
                self._wait_over(link)

    def _of(self, backend: str) -> Status:
        return self.status.setdefault(backend, Status())

    def _set(self, backend: str, breaker: br.Breaker) -> None:
        status = self._of(backend)
        if breaker.state is not status.breaker.state:
            self._services.log.info(
                "backend_state", backend=backend, state=breaker.state.value, error=status.last_error
            )
        status.breaker = breaker
        healthy = 1.0 if breaker.state is br.BreakerState.CLOSED else 0.0
        self._services.telemetry.gauge("stagedoor_backend_up", healthy, (backend,))

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
        if spec is None or not isinstance(spec.target, StdioTarget):
            link.reply(Granted())
            return
        self._take_place(link, backend)

    def _take_place(self, link: Ref, backend: str) -> None:
        places = self._places
        if len(places.held) < self._services.limits.child_processes:
            places.held.add(link)
            self.ctx.monitor(link)
            link.reply(Granted())
            return
        places.waiting.append((link, backend))
        self.ctx.set_timer(link, self._services.limits.process_wait, _WaitOver(link))

    def _returned(self, link: Ref) -> None:
        places = self._places
        if link in places.held:
            places.held.discard(link)
            self.ctx.demonitor(link)
        while places.waiting and len(places.held) < self._services.limits.child_processes:
            waiting, backend = places.waiting.popleft()
            self.ctx.cancel_timer(waiting)
            if waiting.alive:
                self._take_place(waiting, backend)

    def _wait_over(self, link: Ref) -> None:
        for entry in list(self._places.waiting):
            if entry[0] is link:
                self._places.waiting.remove(entry)
                error = errors.internal(
                    "too many server processes are running", reason="backend_full", executed="no", backend=entry[1]
                )
                link.reply(Denied(error.raw))
