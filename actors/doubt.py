"""How long this process may go on while it can't tell whether it is still the owner of what it holds.

A process of which no sign of life was acknowledged for a while counts as dead to the others, and they take over what
it owns. So what it owns holds still as soon as there is doubt, for one second: by then either its lease was renewed, or
the store is away, for the others as much as for us. Then what is in memory goes on without the store, for as long as
the operator says that it may happen that two serve a session; without end where nobody else is there to do so.
"""

import math
from collections.abc import Callable
from enum import Enum

from actors.ports import Cluster, Failed, Grant, Replica
from actors.protocol.table import Limits

BRIEF = 1.0
"""Seconds after which a doubt means that the store is away."""
REMEMBERED = 300.0
"""Seconds for which the store surely remembers what has ended."""
AGAIN = 0.1
"""Seconds after which those who hold still look again."""


class Allowed(Enum):
    """What may be done with what is owned under a grant."""

    SURE = "sure"
    """Everything."""
    FORMER = "former"
    """It was claimed in an earlier term: nothing, before it was claimed again."""
    HOLD = "hold"
    """Nothing for the moment."""
    ALONE = "alone"
    """The store is away: what needs no record."""
    OVER = "over"
    """It was away for too long: nothing new."""


class Doubt:
    """Says what this process may still do with what it owns, while it can't tell whether it is still the owner."""

    def __init__(self, cluster: Cluster, limits: Limits) -> None:
        self.others = False
        """Whether another replica was there when that was last known."""
        self._cluster = cluster
        self._limits = limits
        self.lapse = math.inf
        """Seconds for which the lease was out of sight before the present term began."""
        self._since: float | None = None
        self._certain = -math.inf
        """When there was no doubt last, as far as somebody looked."""

    def allowed(self, grant: Grant, now: float) -> Allowed:
        """What may be done at this time, on trio's clock."""
        if not self._cluster.doubtful:
            self._since = None
            return Allowed.SURE if grant.term == self._cluster.term else Allowed.FORMER
        if self._since is None:
            self._since = now
        if now - self._since < BRIEF:
            return Allowed.HOLD
        over = self.others and now - self._since > self._limits.store_outage
        return Allowed.OVER if over else Allowed.ALONE

    def new_term(self, now: float) -> None:
        """What is owned has to be claimed again."""
        self.lapse, self._certain = now - self._certain, now

    def look(self, now: float, known: Callable[[], object] = lambda: None) -> None:
        """To be called now and then: that a doubt has begun is noticed by asking. Who else is there counts from the
        last answer on; `known` is called when there is one, or can't be."""
        if self._cluster.doubtful:
            self._since = now if self._since is None else self._since
            known()
            return

        def hear(outcome: list[Replica] | Failed) -> None:
            if not isinstance(outcome, Failed):
                self.others = any(r.alive and r.incarnation != self._cluster.incarnation for r in outcome)
            known()

        self._since, self._certain = None, now
        self._cluster.replicas(hear)
