"""How long to wait before a worker that ended unasked is started again."""

STEADY = 10.0
"""Seconds: one that lived so long did not fail at its start; its end counts as a first one."""
FIRST = 1.0
LONGEST = 30.0
"""Seconds before the second start in a row, and the most that later ones wait."""


class Backoff:
    """How long one place waits for its next worker: nothing the first time, then 1 s, twice as long each further time,
    30 s at most."""

    def __init__(self) -> None:
        self._deaths = 0

    def after(self, lived: float) -> float:
        """Seconds to wait after the end of a worker that lived so long."""
        if lived >= STEADY:
            self._deaths = 0
        delay = 0.0 if self._deaths == 0 else min(LONGEST, FIRST * 2.0 ** (self._deaths - 1))
        self._deaths = min(self._deaths + 1, 16)
        return delay
