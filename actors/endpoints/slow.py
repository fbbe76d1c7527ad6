"""Servers that have let somebody wait in vain, and that nobody waits for again for a while: what is known of them
counts, and what comes of them is announced when it is there.
"""

from collections import OrderedDict
from collections.abc import Collection, Hashable
from typing import Final

from msgspec import Struct

SLOW_FOR: Final = 60.0
"""Seconds for which nobody waits again for one that was too slow."""

Whom = tuple[str, Hashable]
"""A principal, and what is slow to it: a server by its name, or a connection."""


class _Late(Struct, frozen=True):
    until: float
    waited: float


class SlowServers:
    """Who is slow to whom, of one thing that servers are waited for."""

    __slots__ = ("_late",)

    def __init__(self) -> None:
        self._late: OrderedDict[Whom, _Late] = OrderedDict()
        """Those first that are over first."""

    def __repr__(self) -> str:
        return f"<SlowServers: {len(self._late)}>"

    def nobody(self, now: float) -> bool:
        """Whether nobody is slow, as nearly always."""
        while self._late and next(iter(self._late.values())).until <= now:
            self._late.popitem(last=False)
        return not self._late

    def worth(self, whom: Whom, seconds: float, now: float) -> bool:
        """Whether to wait so long. Whoever can wait longer than the one who waited in vain does so once."""
        late = self._late.get(whom)
        return late is None or late.until <= now or late.waited < seconds

    def late(self, whom: Whom, seconds: float, now: float) -> None:
        """Somebody has waited so long in vain."""
        if self.nobody(now) or self.worth(whom, seconds, now):
            self._late[whom] = _Late(now + SLOW_FOR, seconds)
            self._late.move_to_end(whom)

    def answered(self, *those: Whom) -> None:
        """They are heard of again, or are others now."""
        for whom in those:
            self._late.pop(whom, None)

    def replaced(self, servers: Collection[str]) -> None:
        """These are other servers now, for everybody."""
        self.answered(*[whom for whom in self._late if whom[1] in servers])
