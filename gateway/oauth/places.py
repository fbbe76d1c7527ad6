"""Who may make so many requests at once: each has places of his own, so that nobody waits for another one."""

from collections.abc import Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

import trio

Who = TypeVar("Who", bound=Hashable)


class Places(Generic[Who]):
    """So many for each. Of whoever has nothing under way nothing is remembered."""

    def __init__(self, each: int) -> None:
        self._each = each
        self._taken: WeakValueDictionary[Who, trio.CapacityLimiter] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._taken)

    def of(self, who: Who) -> trio.CapacityLimiter:
        """His places: a context manager waits there for one."""
        return self._taken.setdefault(who, trio.CapacityLimiter(self._each))
