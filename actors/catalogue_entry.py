"""What the catalogue knows of one backend."""

from dataclasses import dataclass, field

from actors.paging import Items
from actors.protocol.link_events import Hello
from actors.protocol.link_state import Profile
from actors.runtime import Ref


@dataclass(slots=True)
class Known:
    """One list of one backend; `call` is the request that runs for it."""

    items: Items | None = None
    stale: bool = False
    announced: bool = False
    """That it is stale has been announced."""
    news: bool = True
    """What the running fetch will bring was not announced before."""
    slow: float = 0.0
    """Until then nobody waits for it: a fetch took longer than the list deadline."""
    missed: bool = False
    """Somebody was answered without it."""
    fetching: bool = False
    call: int | None = None
    attempt: int = 0
    waiting: list[Ref] = field(default_factory=list)

    @property
    def current(self) -> bool:
        """It is what the backend lists, as far as has been heard."""
        return self.items is not None and not self.stale and not self.fetching

    @property
    def presentable(self) -> bool:
        """It is the last list known, and nobody was told that it is another one now."""
        return self.items is not None and not self.announced and (self.news or not self.fetching)

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

    @property
    def fetching(self) -> bool:
        """Whether any list is on its way."""
        return any(wanted.fetching for wanted in self.lists.values())

    def outdate(self) -> None:
        """Nothing has been heard of the backend for a while: its lists may have changed."""
        for wanted in self.lists.values():
            wanted.stale = True
