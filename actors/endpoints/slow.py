"""Servers that have let somebody wait in vain for a list, and that nobody waits for again for a while: what is known of
them counts, and what comes of them is announced when it is there.
"""

from collections.abc import Hashable
from typing import Final

from msgspec import Struct

SLOW_FOR: Final = 60.0
"""Seconds for which nobody waits for a list after one that was too slow."""


class _Late(Struct, frozen=True):
    until: float
    waited: float


class SlowServers:
    """By whatever is slow: a connection, or a server as one principal sees it."""

    __slots__ = ("_late",)

    def __init__(self) -> None:
        self._late: dict[Hashable, _Late] = {}

    @property
    def none(self) -> bool:
        """Whether there are none, as nearly always."""
        return not self._late

    def worth(self, who: Hashable, seconds: float, now: float) -> bool:
        """Whether to wait so long. Whoever can wait longer than the one who waited in vain does so once."""
        late = self._late.get(who)
        return late is None or late.until <= now or late.waited < seconds

    def late(self, who: Hashable, seconds: float, now: float) -> None:
        """Somebody has waited so long in vain."""
        if self.worth(who, seconds, now):
            self._late = {other: late for other, late in self._late.items() if late.until > now}
            self._late[who] = _Late(now + SLOW_FOR, seconds)

    def answered(self, who: Hashable) -> None:
        """It is heard of again, or is another one now."""
        self._late.pop(who, None)
