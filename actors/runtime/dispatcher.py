"""The one task in which the actors of a system run, when they have messages.

Ready actors stand in a queue; each gets a burst and, if it has more, goes to the back. After one pass over the queue,
or 2 ms, every other task of the loop gets its turn. (`docs/decisions/actors-run-on-demand.md` has the measurements.)
"""

from collections import deque
from time import perf_counter
from typing import Protocol

import trio

PASS_SECONDS = 0.002
"""How long the dispatcher keeps the loop to itself."""


class Runnable(Protocol):
    """What stands in the queue."""

    def burst(self) -> None:
        """Does some work; neither waits nor raises."""


class Dispatcher:
    """The run queue and its task."""

    def __init__(self) -> None:
        self._ready: deque[Runnable] = deque()
        self._parked: trio.lowlevel.Task | None = None

    def __len__(self) -> int:
        """How many are ready to run."""
        return len(self._ready)

    def schedule(self, runnable: Runnable) -> None:
        """Puts it at the back of the queue; the caller sees to it that it stands there once."""
        self._ready.append(runnable)
        if self._parked is not None:
            trio.lowlevel.reschedule(self._parked)
            self._parked = None

    async def run(self) -> None:
        """The task; ends by cancellation."""
        while True:
            if self._ready:
                await trio.lowlevel.checkpoint()
            else:
                await self._park()
            until = perf_counter() + PASS_SECONDS
            for _ in range(len(self._ready)):
                self._ready.popleft().burst()
                if perf_counter() >= until:
                    break

    async def _park(self) -> None:
        def unpark(_: object) -> trio.lowlevel.Abort:
            self._parked = None
            return trio.lowlevel.Abort.SUCCEEDED

        self._parked = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(unpark)
