"""The state of an upstream connection to a legacy backend: frozen values, changed only by `upstream/legacy` and
`upstream/legacy_calls`, and its phases. The machine looks up every change of phase in the table, the tests walk it,
and the diagram is drawn from it.
"""

from enum import Enum

from msgspec import Raw, Struct, field
from msgspec.structs import replace

from actors.machines.session.events import Place
from actors.machines.session.state import nothing
from actors.machines.upstream.events import Called, CallKey, Effects, Send, ServerInfo
from actors.protocol.messages import RequestId
from actors.protocol.persistent import EMPTY_MAP, PersistentMap


class Phase(Enum):
    """Where an upstream connection is in its life."""

    IDLE = "idle"
    """No transport; the first call brings one."""
    CONNECTING = "connecting"
    """A transport was asked for."""
    INITIALIZING = "initializing"
    """`initialize` is sent."""
    CONFIRMING = "confirming"
    """`notifications/initialized` is sent and not yet accepted."""
    LISTENING = "listening"
    """The stream for what belongs to no request was asked for. A server that asked something before it is there
    would drop its server request, and wait for the answer (2025-11-25 transports, "Listening for Messages from the
    Server")."""
    READY = "ready"
    """Calls pass."""
    WAITING = "waiting"
    """Lost, with subscriptions that must be restored: a back-off runs."""
    CLOSED = "closed"
    """Gone for good."""


LIVE = (Phase.CONNECTING, Phase.INITIALIZING, Phase.CONFIRMING, Phase.LISTENING, Phase.READY)
"""There is a transport, or one is on its way."""

TRANSITIONS: dict[tuple[Phase, str], Phase] = {
    (Phase.IDLE, "call"): Phase.CONNECTING,
    (Phase.WAITING, "call"): Phase.CONNECTING,
    (Phase.WAITING, "back-off over"): Phase.CONNECTING,
    (Phase.CONNECTING, "transport there"): Phase.INITIALIZING,
    (Phase.CONNECTING, "session kept"): Phase.READY,
    (Phase.CONNECTING, "session kept, stream asked for"): Phase.LISTENING,
    (Phase.INITIALIZING, "ended after a probe"): Phase.CONNECTING,
    (Phase.INITIALIZING, "initialize answered"): Phase.CONFIRMING,
    (Phase.CONFIRMING, "initialized accepted"): Phase.READY,
    (Phase.CONFIRMING, "stream asked for"): Phase.LISTENING,
    (Phase.LISTENING, "stream there"): Phase.READY,
    (Phase.LISTENING, "session forgotten"): Phase.INITIALIZING,
    (Phase.READY, "session forgotten"): Phase.INITIALIZING,
    **{(phase, "lost"): Phase.IDLE for phase in LIVE},
    **{(phase, "lost with subscriptions"): Phase.WAITING for phase in LIVE},
    **{(phase, "shut"): Phase.CLOSED for phase in Phase if phase is not Phase.CLOSED},
}
"""By the phase and the cause. A cause that has no row can't come up in that phase."""


class Profile(Struct, frozen=True):
    """What the upstream connection tells the backend of its client: constant for the upstream connection's life.
    `serialized`: the client can be asked things, so a transport that does not relate messages runs one such
    call at a time."""

    capabilities: Raw
    client_info: Raw
    serialized: bool
    prefix: str
    """Begins every upstream id: an epoch, so that a rebuilt session never repeats an id."""
    tasks: bool = False
    """What its client sends as a task may go out as one."""
    principal: str | None = None
    """Whose connection it is; None: of somebody without a name, or everybody's."""
    needs_call: bool = False
    """Its client can be asked in the course of a call, and nowhere else."""


class Upstream(Struct, frozen=True):
    """One upstream connection. `waiting` are calls not yet sent, in order; `asked` are the backend's requests not
    yet answered, with the call that each came with."""

    profile: Profile
    phase: Phase = Phase.IDLE
    related: bool = False
    server_info: ServerInfo | None = None
    connected_before: bool = False
    attempt: int = 0
    next_id: int = 1
    tag: int = 0
    pending: PersistentMap[RequestId, Called] = EMPTY_MAP
    waiting: tuple[Called, ...] = ()
    asked: dict[RequestId, CallKey | None] = field(default_factory=nothing)
    level: str | None = None
    subscriptions: tuple[str, ...] = ()
    kept: bool = False
    """The backend's session is that of an earlier upstream connection, with its `server_info`: no handshake is
    needed."""
    missed: bool = False
    """And nobody knows what the backend said unasked meanwhile."""
    picking: tuple[Place, ...] = ()
    """Answers to fetch as soon as it is there."""
    unsent: tuple[Send, ...] = ()
    """What the backend is told then."""
    warm: bool = False
    listens: bool = False
    """As in `Started`."""
    runs_tasks: bool = False
    """Calls of tools can be made as tasks of the backend (2025-11-25, tasks)."""
    unheard: bool = False
    """Nothing is known of the stream that was asked for, and it is waited for no more."""
    settling: tuple[RequestId, RequestId] | None = None
    """A call that was cancelled while it had the turn, and the ping behind it: as soon as either is answered, the
    backend is done with it."""
    grace_over: bool = False
    """It did not come to that in time: others have their turn."""
    unanswered: frozenset[RequestId] = frozenset()
    """Calls that were cancelled and have no answer: what the backend asks may belong to one of them, however long ago
    that was."""
    doubtful: frozenset[RequestId] = frozenset()
    """Requests of the backend that may."""
    to_replace: bool = False
    """Its requests can't reach the client any more for that reason: another connection takes its place as soon as
    nothing runs on this one."""
    made: dict[RequestId, str] = field(default_factory=nothing)
    """Calls that became tasks, by id, where progress is wanted: it goes on (2025-11-25, progress)."""
    lost_once: bool = False
    """The backend forgot our session and has answered no call since: a second time is a failure."""
    server: str = ""
    """The backend's name, for errors."""

    @property
    def rests(self) -> bool:
        """Nothing runs on it, and nobody is asked."""
        if self.phase is not Phase.READY or self.asked or not (self.settling is None or self.grace_over):
            return False
        return all(pending.call is None for pending in self.pending.values())

    @property
    def named(self) -> str:
        """The backend, as sentences for clients call it."""
        return f"server {self.server!r}" if self.server else "the server"


Step = tuple[Upstream, Effects]


def moved(upstream: Upstream, cause: str) -> Upstream:
    """The upstream connection in the phase that this cause brings it to. KeyError for what can't come up in its
    phase."""
    return replace(upstream, phase=TRANSITIONS[upstream.phase, cause])
