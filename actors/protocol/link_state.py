"""The state of a link: frozen values, changed only by the functions of `link_machine`."""

from enum import Enum

from msgspec import Raw, Struct

from actors.protocol.link_events import CallKey, Hello
from actors.protocol.messages import EMPTY, RequestId


class Phase(Enum):
    """Where a link is in its life."""

    IDLE = "idle"
    """No transport; the first call brings one."""
    CONNECTING = "connecting"
    """A transport was asked for."""
    INITIALIZING = "initializing"
    """`initialize` is sent."""
    CONFIRMING = "confirming"
    """`notifications/initialized` is sent and not yet accepted."""
    READY = "ready"
    """Calls pass."""
    WAITING = "waiting"
    """Lost, with interests that must be restored: a back-off runs."""
    CLOSED = "closed"
    """Gone for good."""


class Profile(Struct, frozen=True):
    """What the link tells the backend of its client: constant for the link's life. `leased`: the client can be asked
    things, so a transport that does not relate messages runs one eligible call at a time."""

    capabilities: Raw
    client_info: Raw
    leased: bool
    prefix: str
    """Begins every upstream id: an epoch, so that a rebuilt session never repeats an id."""


class Pending(Struct, frozen=True):
    """A request that was sent. `call` is None for the link's own."""

    call: CallKey | None
    method: str
    params: Raw = EMPTY
    progress: bool = False
    eligible: bool = False
    retried: bool = False


class Link(Struct, frozen=True):
    """One link. `waiting` are calls not yet sent, in order; `asked` are the backend's requests not yet answered."""

    profile: Profile
    phase: Phase = Phase.IDLE
    related: bool = False
    hello: Hello | None = None
    connected_before: bool = False
    attempt: int = 0
    next_id: int = 1
    tag: int = 0
    pending: dict[RequestId, Pending] = {}
    waiting: tuple[Pending, ...] = ()
    asked: dict[RequestId, CallKey | None] = {}
    level: str | None = None
    subscriptions: tuple[str, ...] = ()
    lost_once: bool = False
    """The backend forgot our session since it last answered anything: a second time is a failure."""
