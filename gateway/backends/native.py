"""Servers that run in this process, as backends.

The server itself is opaque here: all that is asked of it stands in `gateway.wire.inproc`.
"""

from collections.abc import Callable
from typing import Final

from actors.ports import (
    NO_RIGHTS,
    FrameAccepted,
    FrameReceived,
    Headers,
    Log,
    RequestFailed,
    Rights,
    Telemetry,
    TransportClosed,
    TransportEvent,
    TransportKind,
)
from actors.protocol.messages import RequestId
from actors.protocol.table import BackendSpec, Limits, NativeTarget
from actors.runtime.boundary import Boundary
from actors.runtime.exits import Exit, ExitKind
from gateway.backends.bound import BoundTransport
from gateway.wire.inproc import NativeServer, NativeSession

_LIMITS: Final = Limits()
_REASONS: Final = {ExitKind.NORMAL: "closed", ExitKind.CANCELLED: "cancelled", ExitKind.CRASHED: "crashed"}


class _Over:
    """In the place of a session that has ended, which would hold its transport as that holds it."""

    principal: str | None = None

    async def run(self) -> None:
        """There is nothing to serve."""

    def receive(self, frame: bytes, rights: Rights = NO_RIGHTS) -> bool:
        """Takes nothing."""
        return False

    def cancel(self, id: RequestId) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """It has ended."""


_OVER: Final = _Over()


class NativeTransport(BoundTransport):
    """One session with a server in this process: the Transport of `actors.ports`.

    A crashing handler fails its own request; nothing short of a bug in the session itself closes the transport.
    """

    kind: TransportKind = "inproc"

    def __init__(
        self,
        spec: BackendSpec,
        emit: Callable[[TransportEvent], None],
        *,
        log: Log,
        telemetry: Telemetry | None = None,
        message_bytes: int = _LIMITS.message_bytes,
        shared: bool = False,
    ) -> None:
        assert isinstance(spec.target, NativeTarget), "the connector chooses by target"
        self._server: NativeServer = spec.target.server
        self._name = spec.name
        self._emit = emit
        self._log = log
        self._telemetry = telemetry
        self._message_bytes = message_bytes
        self._shared = shared
        self._principal: str | None = None
        self._closing = False
        self._overflowed = False
        self._sessions = 0
        self._session: NativeSession = self._connect()

    def belongs_to(self, principal: str) -> None:
        """The server is told."""
        self._principal = principal
        self._session.principal = principal

    async def run(self) -> None:
        """Serves this session, and after `restart` the next, until `close`."""
        with Boundary(on_exit=self._ended):
            current = None
            while current is not self._session:
                current = self._session
                await current.run()

    def send(
        self,
        frame: bytes,
        *,
        id: RequestId | None = None,
        tag: int | None = None,
        headers: Headers = (),
        rights: Rights = NO_RIGHTS,
    ) -> None:
        """Hands the frame over. With no room for it a request fails, and any other message, which nobody could be
        told is lost, ends the session; that of all clients goes on, and what one of them notifies is lost."""
        if self._session.receive(frame, rights):
            if tag is not None:
                self._emit(FrameAccepted(tag))
        elif id is not None:
            self._emit(RequestFailed(id, "full", f"{self._name} takes no more messages", executed="no"))
        elif self._shared:
            self._log.warning("backend_message_dropped", backend=self._name, why="inbox full")
        elif not self._closing:
            self._overflowed = True
            self.close()

    def negotiated(self, version: str) -> None:
        """Nothing to do: the session took part in the handshake."""

    def listen(self) -> None:
        """Nothing to open: messages that belong to no request come at any time."""

    def forget(self, id: RequestId) -> None:
        """Stops the handler."""
        self._session.cancel(id)

    def restart(self) -> None:
        """Ends the session and begins another; what the ended one still says goes nowhere."""
        if not self._closing:
            ended, self._session = self._session, self._connect()
            ended.close()

    def close(self) -> None:
        """Ends the session and what runs in it."""
        self._closing = True
        self._session.close()

    def _connect(self) -> NativeSession:
        self._sessions += 1
        mine = self._sessions

        def receive(frame: bytes, related: RequestId | None) -> None:
            if self._sessions == mine:
                self._emit(FrameReceived(frame, related))

        return self._server.connect(receive, self._crashed, self._message_bytes, self._principal, self._blocked)

    def _crashed(self, method: str, error: BaseException) -> None:
        self._log.error("native_handler_crashed", backend=self._name, method=method, exc_info=error)

    def _blocked(self, method: str, name: str, seconds: float) -> None:
        if self._telemetry is not None:
            self._telemetry.observe("stagedoor_native_blocked_seconds", seconds, (self._name, method, name))
        self._log.warning(
            "native_handler_blocks_the_loop", backend=self._name, method=method, name=name, seconds=round(seconds, 3)
        )

    def _ended(self, outcome: Exit) -> None:
        if outcome.error:
            self._log.error("native_session_crashed", backend=self._name, exc_info=outcome.error)
        self._session = _OVER
        reason = "overflow" if self._overflowed else _REASONS[outcome.kind]
        self._emit(TransportClosed(reason, f"{self._name} has ended its session: {outcome}"))
