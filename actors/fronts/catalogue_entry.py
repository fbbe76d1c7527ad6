"""What the catalogue knows of one backend."""

from dataclasses import dataclass, field

from actors.links.paging import Items
from actors.protocol import capabilities
from actors.protocol.link_events import Hello
from actors.protocol.link_state import Profile
from actors.protocol.modern.caller import Caller
from actors.runtime import Ref


@dataclass(slots=True)
class Known:
    """One list of one backend; `call` is the request that runs for it."""

    items: Items | None = None
    stale: bool = False
    """It may be another one now: nothing was heard of the backend for a while, or it has said so."""
    told: bool = False
    """The backend has said so: whoever asks waits for the new one."""
    checked: bool = False
    """The running fetch was begun since it had said so."""
    vain: int = 0
    """Times in a row that it said so, and nothing was different; `checked_at`: the last of them."""
    checked_at: float = 0.0
    heard: int = 0
    """How often anybody had heard that it has changed, when it was asked for."""
    missed: bool = False
    """Somebody was answered without it."""
    held: bool = False
    """It is fetched as soon as the first connection to its server is there, which is another one's."""
    fetching: bool = False
    call: int | None = None
    attempt: int = 0
    waiting: list[Ref] = field(default_factory=list)
    looking: list[Ref] = field(default_factory=list)
    """Those who wait for the end of the fetch, however long it takes."""

    @property
    def current(self) -> bool:
        """It is what the backend lists, as far as has been heard."""
        return self.items is not None and not self.stale and not self.fetching

    @property
    def presentable(self) -> bool:
        """It is the last list known, and the backend has not said that it is another one now."""
        return self.items is not None and not self.told and not (self.fetching and self.checked)

    @property
    def size(self) -> int:
        """Bytes of the items."""
        return sum(map(len, self.items or ()))


@dataclass(slots=True)
class Entry:
    """One backend as one kind of client sees it; `watchers` want to hear of changes."""

    profile: Profile
    link: Ref | None = None
    ready: bool = False
    hello: Hello | None = None
    lists: dict[str, Known] = field(default_factory=dict)
    watchers: dict[Ref, None] = field(default_factory=dict)

    due: float | None = None
    """Whoever waits for lists of this backend, waits until then; None: nobody does."""
    slow: float = 0.0
    """Until then nobody waits for them: the backend has let a deadline pass."""
    unfit: int = 0
    """Connections in a row that were of the other era than the backend."""

    @property
    def caller(self) -> Caller:
        """On whose behalf a backend without sessions is asked: of nobody who could be told from others."""
        return Caller("", self.profile.capabilities, self.profile.client_info, None, True)

    def offers(self, method: str) -> bool:
        """Whether the backend declared this list, as far as is known."""
        return self.hello is None or capabilities.allows(capabilities.parse(self.hello.capabilities), method)

    @property
    def fetching(self) -> bool:
        """Whether any list is on its way."""
        return any(wanted.fetching for wanted in self.lists.values())

    def outdate(self) -> None:
        """Nothing has been heard of the backend for a while: its lists may have changed."""
        for wanted in self.lists.values():
            wanted.stale = True
