"""One heap and one task for all the timers of a system.

Cancelled timers stay in the heap until it is half full of them, so that the usual life of a timer (armed, cancelled
soon after) costs no search and wakes nobody; the heap is bounded by the live timers all the same. A timer that is
late because the loop was stalled is given a second chance: what waited in sockets meanwhile is read first, else each
stall would become a storm of false timeouts.
"""

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

import trio

LATE = 0.1
"""Seconds after which a timer counts as late, and for which it is then armed once more."""

_SLACK = 64
"""Cancelled timers that are kept in the heap in any case."""


class Timer:
    """One timer; made by `Timers.start`."""

    __slots__ = ("_fire", "deferred")

    def __init__(self, fire: Callable[[], object]) -> None:
        self._fire: Callable[[], object] | None = fire
        self.deferred = False

    @property
    def armed(self) -> bool:
        """Whether it may still fire."""
        return self._fire is not None

    def disarm(self) -> Callable[[], object] | None:
        """Takes what it would do out of it."""
        fire, self._fire = self._fire, None
        return fire


class Timers:
    """The timers of one system, on trio's clock. What they do must neither wait nor raise."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = count()
        self._cancelled = 0
        self._nap = trio.CancelScope()

    def start(self, seconds: float, fire: Callable[[], object]) -> Timer:
        """Calls `fire` once, `seconds` from now (at the earliest: see LATE)."""
        timer = Timer(fire)
        self._push(trio.current_time() + seconds, timer)
        return timer

    def cancel(self, timer: Timer) -> None:
        """It will not fire; nothing happens if it has fired, or was cancelled."""
        if timer.disarm() is None:
            return
        self._cancelled += 1
        if self._cancelled > _SLACK and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].armed]
            heapify(self._heap)
            self._cancelled = 0

    def __len__(self) -> int:
        """The timers that are armed."""
        return len(self._heap) - self._cancelled

    @property
    def kept(self) -> int:
        """The armed ones, and those cancelled that still take room."""
        return len(self._heap)

    async def run(self) -> None:
        """The task that fires them; ends by cancellation."""
        while True:
            self._forget_cancelled()
            with trio.CancelScope(deadline=self._heap[0][0] if self._heap else math.inf) as self._nap:
                await trio.sleep_forever()
            self._fire_due(trio.current_time())

    def _push(self, deadline: float, timer: Timer) -> None:
        heappush(self._heap, (deadline, next(self._order), timer))
        if deadline < self._nap.deadline:  # noqa: PLR1730 - setting it is not free
            self._nap.deadline = deadline

    def _forget_cancelled(self) -> None:
        """Nobody is woken for those that would come next: where each call arms one, that were as many as calls."""
        while self._heap and not self._heap[0][2].armed:
            heappop(self._heap)
            self._cancelled -= 1

    def _fire_due(self, now: float) -> None:
        while self._heap and self._heap[0][0] <= now:
            deadline, _, timer = heappop(self._heap)
            if not timer.armed:
                self._cancelled -= 1
            elif now - deadline > LATE and not timer.deferred:
                timer.deferred = True
                self._push(now + LATE, timer)
            else:
                fire = timer.disarm()
                assert fire is not None
                fire()
