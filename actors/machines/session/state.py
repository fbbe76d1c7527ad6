"""The state of a session: its phases, what moves it from one to another and which of them take requests (2025-11-25
lifecycle); and the frozen values it is made of, which only `session/machine` and its parts replace. The machine
looks its phases up here, and the diagram is drawn from them.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Literal

from msgspec import Raw, Struct, field
from msgspec.structs import replace

from actors.machines.session.events import CallId, ConnectionId, Place, PostId
from actors.protocol import errors
from actors.protocol.capabilities import Capabilities, ClientBits
from actors.protocol.messages import RequestId


class SessionPhase(Enum):
    """How far the life of a session is; never backwards."""

    NEW = "new"
    """Nothing but `initialize` was ever seen."""
    INITIALIZING = "initializing"
    """`initialize` was received and has no answer."""
    CONFIRMING = "confirming"
    """`initialize` was answered; neither `notifications/initialized` nor a request has come."""
    OPERATION = "operation"
    """Everything that version and capabilities permit."""
    DRAINING_INITIALIZING = "draining-initializing"
    """The drain began before `initialize` was answered: a session without an answer to it is none."""
    DRAINING = "draining"
    """As in operation, as long as there is something in flight."""
    CLOSED = "closed"
    """Over."""


TRANSITIONS: dict[tuple[SessionPhase, str], SessionPhase] = {
    (SessionPhase.NEW, "initialize"): SessionPhase.INITIALIZING,
    (SessionPhase.INITIALIZING, "initialize answered"): SessionPhase.CONFIRMING,
    (SessionPhase.CONFIRMING, "notifications/initialized"): SessionPhase.OPERATION,
    (SessionPhase.CONFIRMING, "request"): SessionPhase.OPERATION,
    (SessionPhase.INITIALIZING, "drain"): SessionPhase.DRAINING_INITIALIZING,
    (SessionPhase.CONFIRMING, "drain"): SessionPhase.DRAINING,
    (SessionPhase.OPERATION, "drain"): SessionPhase.DRAINING,
    (SessionPhase.DRAINING_INITIALIZING, "initialize answered"): SessionPhase.DRAINING,
    **{(phase, "end"): SessionPhase.CLOSED for phase in SessionPhase if phase is not SessionPhase.CLOSED},
}
"""What moves a session on, by the phase and the cause. A cause that has no row changes nothing, or can't come up."""

REFUSALS: dict[tuple[SessionPhase, str], Callable[[], errors.ProtocolError]] = {
    (SessionPhase.NEW, "request"): errors.not_initialized,
    (SessionPhase.INITIALIZING, "request"): errors.not_initialized,
    (SessionPhase.INITIALIZING, "initialize"): errors.already_initialized,
    (SessionPhase.CONFIRMING, "initialize"): errors.already_initialized,
    (SessionPhase.OPERATION, "initialize"): errors.already_initialized,
    (SessionPhase.DRAINING_INITIALIZING, "request"): errors.draining,
    (SessionPhase.DRAINING_INITIALIZING, "initialize"): errors.draining,
    (SessionPhase.DRAINING, "initialize"): errors.draining,
}
"""What a phase answers to `initialize`, and to any other request but `ping`, which every phase takes. What is not here
passes."""

UNRECORDED = (
    SessionPhase.NEW,
    SessionPhase.INITIALIZING,
    SessionPhase.CONFIRMING,
    SessionPhase.DRAINING_INITIALIZING,
)
"""The handshake is not over: nothing may be said to the client that it did not ask for, and there is nothing that a
session could be rebuilt from (2025-11-25 lifecycle, "Initialization")."""


class Client(Struct, frozen=True):
    """What the client said of itself in `initialize`."""

    capabilities: Capabilities
    bits: ClientBits
    info: Raw


class ClientRequest(Struct, frozen=True):
    """A request of the client in flight. `token` is its progress token, if it gave one; `timed`: its deadline runs;
    `place`: where it stands at its `backend`, as far as that is known; `level`: the log level that it asks for.
    `unsent`: the record says that it was not sent, so it must not be; `clearing`: until the store has acknowledged that
    the record says so no more. `awaited`: another one is not sent before it is over. `trace`: by what later work can
    point at it. `as_task`: it is to become a task."""

    id: RequestId
    post: PostId
    call: CallId
    method: str
    accepted: float
    token: RequestId | None = None
    progress: float | None = None
    timed: bool = False
    backend: str = ""
    place: Place | None = None
    level: str | None = None
    unsent: bool = False
    clearing: bool = False
    awaited: bool = False
    trace: str = ""
    as_task: bool = False

    @property
    def executed(self) -> Literal["no", "unknown"]:
        """Whether it may have been executed, as far as is known without an answer."""
        return "no" if self.unsent else "unknown"


class Post(Struct, frozen=True):
    """A POST; `open` are its requests without an answer, in order. `stream`: it became one. `answers` wait for the
    others of a batch."""

    open: tuple[RequestId, ...]
    batch: bool = False
    stream: str | None = None
    broken: bool = False
    answers: tuple[bytes, ...] = ()


class Boxed(Struct, frozen=True):
    """A message that waits for a stream; one with the same key replaces it (None: never replaced).

    One that was said before, and perhaps not read, has the `stream` and the number under which it is there."""

    key: str | None
    data: bytes
    stream: str = ""
    seq: int = 0


class Stream(Struct, frozen=True):
    """An unfinished SSE stream: the last sequence number given, and the connection that carries it, if any. `unread`
    is what was said there of changes and may not have been written. `unheard`: no event of it is known to have been
    written, so that its client may have no id to come back with. `opener`: the epoch at which it was opened; 0: of an
    earlier life that did not say so. `sees`: as in `Attached`."""

    seq: int = 0
    connection: ConnectionId | None = None
    post: PostId | None = None
    unread: tuple[Boxed, ...] = ()
    unheard: bool = False
    opener: int = 0
    sees: Callable[[bytes], bool] | None = None

    @property
    def lost(self) -> bool:
        """Its client is gone, and as far as is known can't come back for it."""
        return self.unheard and self.connection is None


class ServerRequest(Struct, frozen=True):
    """A request of a backend that the client has to answer. `id` and `token` are the backend's own; `stream` is where
    it was sent, None while it waits for a stream."""

    backend: str
    id: RequestId
    call: CallId | None
    method: str
    frame: bytes
    stream: str | None = None
    token: RequestId | None = None


class Rules(Struct, frozen=True):
    """The bounds a session lives under."""

    requests: int = 64
    get_streams: int = 4
    box: int = 64
    gates: bool = True
    """Methods are gated by the capabilities that were declared; a transparent endpoint leaves that to the backend."""
    box_bytes: int = 1024 * 1024
    """In the box, whatever their number."""
    asks: int = 64
    """Server requests that wait for an answer of the client."""


NOTHING: Final[dict[Any, Any]] = {}
"""Every empty table of a machine: none is ever changed in place."""


def nothing() -> dict[Any, Any]:
    return NOTHING


class Session(Struct, frozen=True):
    """One session. Tables are never changed in place."""

    epoch: int
    rules: Rules
    phase: SessionPhase = SessionPhase.NEW
    version: str = ""
    client: Client | None = None
    server: Capabilities | None = None
    level: str | None = None
    """The log level in force; None: none was chosen. One that is not of the protocol lets every message through, and is
    "" if it can't be told to a server again."""
    subscriptions: tuple[str, ...] = ()
    requests: dict[RequestId, ClientRequest] = field(default_factory=nothing)
    calls: dict[CallId, RequestId] = field(default_factory=nothing)
    posts: dict[PostId, Post] = field(default_factory=nothing)
    streams: dict[str, Stream] = field(default_factory=nothing)
    asks: dict[str, ServerRequest] = field(default_factory=nothing)
    given: dict[str, CallId] = field(default_factory=nothing)
    """Server requests whose answer is in the record, and the calls to which they belong: as long as these run, another
    life may have to give the answers to the backend again."""
    as_tasks: dict[str, tuple[str, RequestId]] = field(default_factory=nothing)
    """Server requests that the client runs as tasks, with their backends and the tokens of these: progress goes on."""
    settled: tuple[str, ...] = ()
    """Server requests that have their answer and are still in the record: the next append takes them out of it."""
    box: tuple[Boxed, ...] = ()
    next_call: int = 1
    next_post_stream: int = 1
    next_get_stream: int = 1
    next_server_request: int = 1

    def called(self, call: CallId | None) -> ClientRequest | None:
        """The request in flight of this call."""
        id = self.calls.get(call) if call is not None else None
        return self.requests[id] if id is not None else None

    def holds_up(self, call: CallId | None) -> bool:
        """Whether another call waits for this one, of which nobody can hear any more, as far as is known."""
        entry = self.called(call)
        if entry is None or not entry.awaited:
            return False
        post = self.posts[entry.post]
        return post.broken if post.stream is None else self.streams[post.stream].lost

    def having(self, entry: ClientRequest) -> "Session":
        """With this request in flight as it is given."""
        return replace(self, requests={**self.requests, entry.id: entry})
