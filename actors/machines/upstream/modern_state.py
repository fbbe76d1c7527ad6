"""What an upstream connection to a modern backend knows: its phases and what moves it from one to another, and its
state, frozen values that only its machine and the parts of it change."""

from collections.abc import Hashable, Sequence
from enum import Enum
from typing import Final, TypeAlias

from msgspec import Raw, Struct
from msgspec.structs import replace

from actors.machines.upstream import events as ev
from actors.machines.upstream import legacy_state
from actors.machines.upstream.events import CallKey, ServerInfo
from actors.machines.upstream.modern_events import Called, Caller, Effects, Notified
from actors.protocol import codec, headers, meta
from actors.protocol.capabilities import NOTHING, Capabilities
from actors.protocol.filter import Filter
from actors.protocol.headers import Mirrored
from actors.protocol.messages import EMPTY, RequestId
from actors.protocol.persistent import EMPTY_MAP, PersistentMap
from actors.protocol.rights import NO_RIGHTS, Rights


class Phase(Enum):
    """Where an upstream connection is in its life."""

    IDLE = "idle"
    """No transport; the first call brings one."""
    CONNECTING = "connecting"
    """A transport was asked for."""
    PROBING = "probing"
    """`server/discover` is sent: what speaks there?"""
    READY = "ready"
    """Calls pass."""
    WAITING = "waiting"
    """Lost, with subscriptions that must be restored: a back-off runs."""
    WRONG_ERA = "unfit"
    """The backend speaks the other era."""
    CLOSED = "closed"
    """Gone for good."""


LIVE = (Phase.CONNECTING, Phase.PROBING, Phase.READY)
"""There is a transport, or one is on its way."""

TRANSITIONS: dict[tuple[Phase, str], Phase] = {
    (Phase.IDLE, "call"): Phase.CONNECTING,
    (Phase.WAITING, "call"): Phase.CONNECTING,
    (Phase.WAITING, "back-off over"): Phase.CONNECTING,
    (Phase.CONNECTING, "transport there"): Phase.PROBING,
    (Phase.PROBING, "ended after initialize"): Phase.CONNECTING,
    (Phase.PROBING, "discovered"): Phase.READY,
    (Phase.PROBING, "other era"): Phase.WRONG_ERA,
    (Phase.READY, "doubted"): Phase.PROBING,
    (Phase.WRONG_ERA, "reconsidered"): Phase.IDLE,
    **{(phase, "lost"): Phase.IDLE for phase in LIVE},
    **{(phase, "lost with subscriptions"): Phase.WAITING for phase in LIVE},
    **{(phase, "shut"): Phase.CLOSED for phase in Phase if phase is not Phase.CLOSED},
}
"""By the phase and the cause. A cause that has no row can't come up in that phase."""

SHOWN: dict[Phase, legacy_state.Phase] = {
    Phase.IDLE: legacy_state.Phase.IDLE,
    Phase.CONNECTING: legacy_state.Phase.CONNECTING,
    Phase.PROBING: legacy_state.Phase.INITIALIZING,
    Phase.READY: legacy_state.Phase.READY,
    Phase.WAITING: legacy_state.Phase.WAITING,
    Phase.WRONG_ERA: legacy_state.Phase.IDLE,
    Phase.CLOSED: legacy_state.Phase.CLOSED,
}
"""What people are told of it, who know the phases of upstream connections with sessions."""


class Consent(Struct, frozen=True):
    """The client agreed to open this URL, under an id that was made for it."""

    key: str
    url: str
    id: str


class Running(Struct, frozen=True):
    """A call, from its first request to its outcome. `answers` and `state` are what its next request brings along
    (2026-07-28, patterns/mrtr)."""

    called: Called
    answers: Raw = EMPTY
    state: Raw = EMPTY
    round: int = 0
    pauses: int = 0
    consents: tuple[Consent, ...] = ()
    level: str | None = None
    """What the request that is out asked for in log messages."""
    reissued: bool = False
    """A broken stream lost it once."""
    rebuilt: bool = False
    """Its headers were made anew."""
    doubted: bool = False
    """The backend did not take it for a request of this era."""

    @property
    def fresh(self) -> bool:
        """Whether it says nothing that an earlier answer asked for."""
        return not self.answers and not self.state


class Question(Struct, frozen=True):
    """What a backend wants to know from a client. `consent`: what it means if the answer is yes."""

    key: str
    method: str
    consent: Consent | None = None


class Asking(Struct, frozen=True):
    """A call that waits for its client: server requests by the id of the ask, answers by the backend's keys."""

    running: Running
    open: dict[str, Question]
    answers: dict[str, Raw]


class Listen(Struct, frozen=True):
    """A `subscriptions/listen`: of a call, or for a caller of the other era (`owner`), or for all of those together
    (neither).

    `called` is the call's; `again`: it was acknowledged once and lost since; `acked`: now; `fading`: another one has
    taken its place, and only what is still on the way is heard; `told`: what was said since such a one fades."""

    filter: Filter = Filter()
    called: Called | None = None
    owner: Hashable | None = None
    again: bool = False
    acked: bool = False
    fading: bool = False
    told: frozenset[str] = frozenset()
    attempt: int = 0


class Change(Struct, frozen=True):
    """A wish to hear of a resource, or not any more."""

    called: Called
    uri: str
    wanted: bool


class Wish(Struct, frozen=True):
    """What a caller of the other era is subscribed to. `current` brings it; `opening` will, with the changes that are
    `taking` effect; `waiting` changes come after that."""

    uris: tuple[str, ...] = ()
    current: RequestId | None = None
    opening: RequestId | None = None
    taking: tuple[Change, ...] = ()
    waiting: tuple[Change, ...] = ()


class Probe(Struct, frozen=True):
    """`server/discover`, to know whom we speak to."""


class Refresh(Struct, frozen=True):
    """`tools/list`, to know which arguments go into headers."""

    pages: int = 1


Pending: TypeAlias = Running | Listen | Probe | Refresh


class Upstream(Struct, frozen=True):
    """One upstream connection. Everything that waits for something is in exactly one of `pending` (for the
    backend), `waiting` (for the connection), `asking` (for the client), `pausing` (for a timer), `rebuilding` (for
    the list of tools), `lost` (listens: for a timer, or the connection) and the wishes."""

    prefix: str
    """Begins every id: an epoch, so that no id is given twice."""
    info: Raw
    """The gateway's own Implementation."""
    phase: Phase = Phase.IDLE
    related: bool = False
    """HTTP: the transport relates messages to requests, and a request has headers."""
    warm: bool = False
    starts: bool = False
    settled: bool = False
    """As in `Started`; `starts` until the process was heard."""
    server_info: ServerInfo | None = None
    declared: Capabilities = NOTHING
    connected_before: bool = False
    attempt: int = 0
    probes: int = 0
    next_id: int = 1
    pending: PersistentMap[RequestId, Pending] = EMPTY_MAP
    """All callers' calls: as many as there may be at once."""
    waiting: tuple[Called | Running, ...] = ()
    unsent: tuple[Notified, ...] = ()
    """Notifications of clients that wait for the connection."""
    asking: PersistentMap[CallKey, Asking] = EMPTY_MAP
    pausing: PersistentMap[CallKey, Running] = EMPTY_MAP
    rebuilding: tuple[Running, ...] = ()
    lost: PersistentMap[int, Listen] = EMPTY_MAP
    wishes: PersistentMap[Hashable, Wish] = EMPTY_MAP
    mirrors: dict[str, tuple[Mirrored, ...]] = {}
    """By tool: the arguments that go into headers."""
    principal: str | None = None
    """Who used the present process first."""
    mixed: bool = False
    """Somebody else did, too."""
    server: str = ""
    """The backend's name, for errors."""

    @property
    def named(self) -> str:
        """The backend, as sentences for clients call it."""
        return f"server {self.server!r}" if self.server else "the server"


Step: TypeAlias = tuple[Upstream, Effects]


def moved(upstream: Upstream, cause: str) -> Upstream:
    """The upstream connection in the phase that this cause brings it to. KeyError for what can't come up in its
    phase."""
    return replace(upstream, phase=TRANSITIONS[upstream.phase, cause])


def connect(upstream: Upstream, cause: str = "call") -> Step:
    """Asks for a transport."""
    return moved(upstream, cause), [ev.StartClock(), ev.Connect()]


# Requests ----------------------------------------------------------------------------------------------------

NOBODY: Final = Caller("", Raw(b"{}"), EMPTY, None, False)
"""On whose behalf the upstream connection asks for itself: who can be asked nothing."""


def numbered(upstream: Upstream) -> tuple[Upstream, str]:
    """An id that was never given before."""
    return replace(upstream, next_id=upstream.next_id + 1), f"{upstream.prefix}.{upstream.next_id}"


def request(
    upstream: Upstream,
    id: str,
    method: str,
    params: Raw,
    client: Caller = NOBODY,
    level: str | None = None,
    token: str | None = None,
    mirrored: Sequence[Mirrored] = (),
    rights: Rights = NO_RIGHTS,
) -> ev.Send:
    """A request as it is sent; `mirrored` is what a tool wants in headers, `rights` are those with which it is asked.
    Raises Malformed for params that are no object."""
    info = client.info or upstream.info
    params = meta.stamp(params, capabilities=client.capabilities, info=info, level=level, token=token)
    own = headers.outbound(method, params, mirrored) if upstream.related else ()
    return ev.Send(codec.encode_request(id, method, params), id=id, headers=own, rights=rights)


def put(upstream: Upstream, id: RequestId, pending: Pending) -> Upstream:
    """This request is out."""
    return replace(upstream, pending=upstream.pending.having(id, pending))


def taken(upstream: Upstream, id: RequestId) -> Upstream:
    """That request is over."""
    return replace(upstream, pending=upstream.pending.without(id))


def drop(upstream: Upstream, id: RequestId, reason: str) -> Step:
    """Cancels a request: over HTTP by closing its stream, else by a notification (2026-07-28, cancellation)."""
    effects: Effects = []
    if not upstream.related:
        effects.append(ev.Send(codec.encode_cancelled(id, reason)))
    return taken(upstream, id), [*effects, ev.Forget(id)]
