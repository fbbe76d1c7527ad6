"""The state of a link: frozen values, changed only by `link_machine` and its parts."""

from msgspec import Raw, Struct, field
from msgspec.structs import replace

from actors.protocol.events import Place
from actors.protocol.link_events import CallKey, Effects, Hello, Send
from actors.protocol.link_table import TRANSITIONS, Phase
from actors.protocol.messages import EMPTY, RequestId
from actors.protocol.persistent import PersistentMap

__all__ = ["Link", "Pending", "Phase", "Profile", "Step", "moved"]


class Profile(Struct, frozen=True):
    """What the link tells the backend of its client: constant for the link's life. `leased`: the client can be asked
    things, so a transport that does not relate messages runs one eligible call at a time."""

    capabilities: Raw
    client_info: Raw
    leased: bool
    prefix: str
    """Begins every upstream id: an epoch, so that a rebuilt session never repeats an id."""
    tasks: bool = False
    """What its client sends as a task may go out as one."""


class Pending(Struct, frozen=True):
    """A request that was sent, or waits to be. `call` is None for the link's own."""

    call: CallKey | None
    method: str
    params: Raw = EMPTY
    progress: bool = False
    eligible: bool = False
    retried: bool = False
    """The backend refused it once, for it did not know our session."""
    final: bool = False
    version: str = ""
    """Both as in `Called`."""
    held: bool = False
    """It is not sent before it is released."""
    due: bool = False
    """That was asked for."""


class Link(Struct, frozen=True):
    """One link. `waiting` are calls not yet sent, in order; `asked` are the backend's requests not yet answered, with
    the call that each came with."""

    profile: Profile
    phase: Phase = Phase.IDLE
    related: bool = False
    hello: Hello | None = None
    connected_before: bool = False
    attempt: int = 0
    next_id: int = 1
    tag: int = 0
    pending: PersistentMap[RequestId, Pending] = field(default_factory=PersistentMap)
    waiting: tuple[Pending, ...] = ()
    asked: dict[RequestId, CallKey | None] = {}
    level: str | None = None
    subscriptions: tuple[str, ...] = ()
    kept: bool = False
    """The backend's session is that of an earlier link, with its `hello`: no handshake is needed."""
    missed: bool = False
    """And nobody knows what the backend said unasked meanwhile."""
    picking: tuple[Place, ...] = ()
    """Answers to fetch as soon as it is there."""
    unsaid: tuple[Send, ...] = ()
    """What the backend is told then."""
    warm: bool = False
    listens: bool = False
    """As in `Started`."""
    unheard: bool = False
    """Nothing is known of the stream that was asked for, and it is waited for no more."""
    lost_once: bool = False
    """The backend forgot our session and has answered no call since: a second time is a failure."""
    server: str = ""
    """The backend's name, for errors."""

    @property
    def named(self) -> str:
        """The backend, as sentences for clients call it."""
        return f"server {self.server!r}" if self.server else "the server"


Step = tuple[Link, Effects]


def moved(link: Link, cause: str) -> Link:
    """The link in the phase that this cause brings it to. KeyError for what can't come up in its phase."""
    return replace(link, phase=TRANSITIONS[link.phase, cause])
