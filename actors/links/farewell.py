"""Ends a session with a backend that nobody has a connection to: connects with what was kept of it, and closes."""

from actors.ports import Kept
from actors.protocol.table import BackendSpec
from actors.runtime import Actor, AtCapacity, DynamicSupervisor, SystemClosed, TaskEnded
from actors.services import Services


class Farewell(Actor):
    """Temporary: as long as the transport takes to close, which is bounded."""

    mailbox_size = 4

    def __init__(self, spec: BackendSpec, services: Services, kept: Kept) -> None:
        self._spec = spec
        self._services = services
        self._kept = kept

    def started(self) -> None:
        transport = self._services.connector.connect(self._spec, _ignore)
        transport.resume(self._kept)
        transport.close()
        self.ctx.start_task("farewell", transport.run)

    def receive(self, message: object) -> None:
        if isinstance(message, TaskEnded):
            self.ctx.stop()


def farewell(services: Services, links: DynamicSupervisor, spec: BackendSpec, kept: Kept) -> None:
    """Has a session ended in the background. Where there is no room for that, the backend's own timeout ends it."""
    if kept.session is None:
        return
    try:
        links.start_child(Farewell(spec, services, kept))
    except (AtCapacity, SystemClosed):
        services.telemetry.count("stagedoor_backend_sessions_left_total", (spec.name,))


def _ignore(event: object) -> None:
    """Nobody waits for this."""
