"""How many file descriptors the process may have, and what they are for.

Without a budget whoever opens the most connections would leave none for anybody else: none for probes, and none for the
servers behind connections that are already open.
"""

import resource
import sys
from typing import Final, NamedTuple

CONNECTIONS: Final = 25_000
"""Connections of clients, if there are descriptors for them; a further one gets 503."""
ADMIN_CONNECTIONS: Final = 32
"""Connections to the admin listener."""
RESERVED: Final = 96
"""Descriptors for these, the store, the listeners and the log; a quarter where there are few."""
OF_A_PROCESS: Final = 4
"""Descriptors of a child process: its three pipes, and one by which its end is noticed."""
WANTED: Final = 65_536
"""A higher limit would be of no use here."""
TAKEN_ANYWHERE: Final = 10_240
"""What systems accept that call their hard limit infinite and refuse to go there (macOS)."""

Limit = tuple[int, int]
"""Soft and hard."""


class Budget(NamedTuple):
    """What a limit of descriptors is enough for."""

    limit: int
    clients: int
    """Connections of clients."""
    servers: int
    """Connections to servers over HTTP, all together."""
    processes: int
    """Child processes."""

    def falls_short(self, processes: int) -> bool:
        """Whether it is less than what would be used otherwise."""
        return self.clients < CONNECTIONS or self.processes < processes


def budget(limit: int, processes: int) -> Budget:
    """The budget of a limit where so many child processes may run: half of what is not reserved for clients, the other
    half for what stands behind them."""
    free = limit - min(RESERVED, limit // 4)
    return Budget(
        limit,
        max(1, min(CONNECTIONS, free // 2)),
        max(1, free // 4),
        max(1, min(processes, free // 4 // OF_A_PROCESS)),
    )


def raise_limit() -> tuple[int, Limit | None]:
    """Raises the soft limit as far as the hard one and the system allow. The limit in force, and what it was before, if
    it is another now: programs that we start get that one back, since some can't cope with high descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (WANTED, TAKEN_ANYWHERE):
        target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if soft == resource.RLIM_INFINITY or target <= soft:
            break
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        except (OSError, ValueError):
            continue
        return target, (soft, hard)
    return (sys.maxsize if soft == resource.RLIM_INFINITY else soft), None
