"""The one task in which the actors of a system run, when they have messages.

Ready actors stand in a queue; each gets a burst and, if it has more, goes to the back. When nobody is ready, and at the
latest after 64 bursts or 2 ms, every other task of the loop gets its turn. Measurements and alternatives:
`docs/decisions/actors-run-on-demand.md`.
"""

from collections import deque
from time import perf_counter
from typing import Protocol

import trio

TURN_BURSTS = 64
TURN_SECONDS = 0.002
"""The dispatcher's turn of the loop ends with the first of the two; long enough for a message to pass through a chain
of actors, short enough for sockets and timers to be served in between."""


class Runnable(Protocol):
    """What stands in the run queue."""

    def burst(self) -> None:
        """Does some work; neither waits nor raises."""


class Dispatcher:
    """The run queue and its task."""

    def __init__(self) -> None:
        self._ready: deque[Runnable] = deque()
        self._asleep: trio.lowlevel.Task | None = None

    def __len__(self) -> int:
        """How many are ready to run."""
        return len(self._ready)

    def schedule(self, runnable: Runnable) -> None:
        """Puts it at the back of the queue; the caller sees to it that it stands there once."""
        self._ready.append(runnable)
        if self._asleep is not None:
            trio.lowlevel.reschedule(self._asleep)
            self._asleep = None

    async def run(self) -> None:
        """The task; ends by cancellation."""
        while True:
            if self._ready:
                await trio.lowlevel.checkpoint()
            else:
                await self._park()
            until = perf_counter() + TURN_SECONDS
            for _ in range(TURN_BURSTS):
                self._ready.popleft().burst()
                if not self._ready or perf_counter() >= until:
                    break

    async def _park(self) -> None:
        def unpark(_: object) -> trio.lowlevel.Abort:
            self._asleep = None
            return trio.lowlevel.Abort.SUCCEEDED

        self._asleep = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(unpark)
