"""Transports, by which upstream connection actors reach backends: what a transport does, and what it says. Ports of
`actors.ports`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias

from msgspec import Struct

from actors.protocol.codec import Frame, Malformed
from actors.protocol.messages import RequestId
from actors.protocol.rights import NO_RIGHTS, Rights
from actors.protocol.table import BackendSpec


class FrameReceived(Struct, frozen=True):
    """One message (or, on 2025-03-26, a batch) of the backend, within the size limit.

    `related` is the id of the request on whose own response stream it came; None where the transport has no such
    streams (`RELATING`), or on the GET stream. `cursor` is the event id from which that stream goes on after this
    message, if the backend gives such. `status` is the HTTP status of an answer that is a refusal, if there was one.
    `read` is what the frame says, from a transport that had to know.
    """

    frame: bytes
    related: RequestId | None = None
    cursor: str | None = None
    status: int | None = None
    read: Frame | Malformed | None = None


class Positioned(Struct, frozen=True):
    """The stream of request `related` (None: the GET stream) goes on from this event id, which came without a message.
    None: the backend took its last id back."""

    related: RequestId | None
    cursor: str | None


class EventsMissed(Struct, frozen=True):
    """The backend can't say what came on the GET stream since the last event: it goes on from here."""


class Listening(Struct, frozen=True):
    """What belongs to no request is heard from here on, as far as it ever will be: the head of the answer to the first
    GET after `listen` has come, or it is sure that none comes for now. What a server says before that may be lost."""


class Spoke(Struct, frozen=True):
    """The process has written to its standard output for the first time: it has started. (What it writes to standard
    error may be its launcher's, which installs it first.)"""


class FrameAccepted(Struct, frozen=True):
    """The frame sent with this tag has reached the backend (HTTP: its 202; stdio: it is in the pipe)."""

    tag: int


class RequestFailed(Struct, frozen=True):
    """The request with this id will get no response. `executed` says whether the backend may have run it. `message` is
    for clients: the server's name and a reason, no address; `detail`, for operators, may have one."""

    id: RequestId
    reason: str
    message: str
    executed: Literal["no", "unknown"]
    status: int | None = None
    detail: str = ""
    stderr: tuple[str, ...] = ()


class SessionLost(Struct, frozen=True):
    """The backend no longer knows our session (HTTP 404). The request named, if any, was not executed."""

    id: RequestId | None


class SpeaksSse(Struct, frozen=True):
    """The first request was refused, and the server has HTTP+SSE of 2024-11-05 at this URL (2025-11-25, transports,
    "Backwards Compatibility"). Nothing was executed, and nothing better comes over this transport."""


class TransportClosed(Struct, frozen=True):
    """Nothing more comes. Everything still pending is lost. Sent once, and it is the last event. `message` and `detail`
    as in RequestFailed; `stderr` are the last lines of a process's standard error, without credentials."""

    reason: str
    message: str
    detail: str = ""
    stderr: tuple[str, ...] = ()


TransportEvent: TypeAlias = (
    FrameReceived
    | Positioned
    | EventsMissed
    | Listening
    | Spoke
    | FrameAccepted
    | RequestFailed
    | SessionLost
    | SpeaksSse
    | TransportClosed
)


@dataclass(frozen=True, slots=True)
class Resumable:
    """What another transport needs to go on with a backend's session. The id (None: the backend gave none) is a bearer
    secret: it is sealed wherever it is written. `cursor`: where the GET stream goes on."""

    session: str | None = field(repr=False)
    version: str
    cursor: str | None = None


TransportKind: TypeAlias = Literal["stdio", "http", "sse", "ws", "inproc"]
"""`sse` is HTTP+SSE of 2024-11-05, `ws` WebSocket."""
UNAUTHORIZED: Final = frozenset({"not_connected", "auth_unavailable", "auth_refused", "insufficient_scope"})
"""Reasons of `RequestFailed` and `TransportClosed` by which a server took none of our credentials: that says nothing of
its health, and may be one user's affair. `not_connected`: the user whose account it is can help it."""
RELATING: Final[frozenset[TransportKind]] = frozenset({"http", "inproc"})
"""Those that say which request a message belongs to (`FrameReceived.related`); the others can't."""

Headers: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values."""


class Transport(Protocol):
    """One connection (or process) to one backend. All methods but `run` are synchronous and never wait."""

    kind: TransportKind
    """The value of the metrics label `network_transport`."""

    warm: bool
    """Whether it goes on with a process that an earlier transport has handed over."""

    @property
    def kept(self) -> Resumable | None:
        """What it takes to go on with the backend's session elsewhere, once the handshake is over; None: the session is
        bound to this transport."""

    async def run(self) -> None:
        """Does the IO until the connection has ended; the owner runs it in its nursery and cancels it to abort.

        Emits TransportClosed before it returns. A cancelled run ends child process groups within a bounded time.
        """

    @property
    def stderr(self) -> tuple[str, ...]:
        """The last lines that a child process wrote to its standard error, without credentials; none elsewhere."""

    def send(
        self,
        frame: bytes,
        *,
        id: RequestId | None = None,
        tag: int | None = None,
        headers: Headers = (),
        rights: Rights = NO_RIGHTS,
    ) -> None:
        """Sends one message; `id` is given for requests, whose failure is reported by RequestFailed; `tag` for
        messages whose acceptance the owner waits for; `headers` go with this message alone, where the wire has such
        (HTTP without sessions); `rights`, with which it is asked, only servers of this process are told. Allowed before
        `run` has started."""

    def negotiated(self, version: str) -> None:
        """The handshake settled on this revision (HTTP: sent as MCP-Protocol-Version from now on)."""

    def listen(self) -> None:
        """Opens the stream for messages that belong to no request, if the transport has one (HTTP: GET; `Listening`
        follows)."""

    def forget(self, id: RequestId) -> None:
        """Nobody waits for this request any more: free what it holds, report nothing for it."""

    def restart(self) -> None:
        """Drops the backend's session id, its streams and version, so that a new `initialize` can be sent (HTTP)."""

    def resume(self, kept: Resumable) -> None:
        """Goes on with a session of an earlier transport, in place of `initialize`. Called first, if at all."""

    def pick_up(self, id: RequestId, cursor: str) -> None:
        """Goes on with the response to a request which an earlier transport sent, after this event."""

    def close(self) -> None:
        """Ends gracefully (HTTP: DELETE; stdio: stdin closed, then TERM, then KILL of the group). Idempotent."""

    def let_go(self) -> None:
        """As `close`, but the backend's session stays, if it is not bound to this transport."""

    def hand_over(self) -> None:
        """As `close`, but a process serves the next transport to the same target, if one comes soon. For a process that
        has only refused to speak this era (2026-07-28, stdio, "Backward Compatibility": the other handshake follows
        over the same streams)."""

    def belongs_to(self, principal: str) -> None:
        """Whose connection it is, before it runs: servers of this process are told, nobody else is."""


class Connector(Protocol):
    """Makes transports. `emit` is called from the loop's thread, never waits, and must not raise. `modern`: for the
    revisions without sessions, where that makes a difference on the wire (HTTP)."""

    def connect(self, spec: BackendSpec, emit: Callable[[TransportEvent], None], modern: bool = False) -> Transport: ...
