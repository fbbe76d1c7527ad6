"""Where tasks wait, as lightly as can be: trio's own primitives hold tables, and have others run in between."""

from collections.abc import Awaitable
from types import TracebackType

import trio


class Place:
    """Where one task waits until it is woken. (The least that a task can wait with: an event has a set of tasks.)"""

    __slots__ = ("_task",)

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None

    def wait(self) -> Awaitable[object]:
        """Until `wake`; to be awaited at once."""
        assert self._task is None
        self._task = trio.lowlevel.current_task()
        return trio.lowlevel.wait_task_rescheduled(self._left)  # noqa: ASYNC105 — whoever calls awaits: a frame less

    def wake(self) -> bool:
        """Whether there was somebody."""
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)
        return task is not None

    def _left(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class Turns:
    """A lock, in the order of asking. Who finds it free has it at once: no checkpoint, and nobody runs in between."""

    __slots__ = ("_others", "taken")

    def __init__(self) -> None:
        self.taken = False
        self._others: trio.lowlevel.ParkingLot | None = None

    async def __aenter__(self) -> None:
        if self.taken:
            if self._others is None:
                self._others = trio.lowlevel.ParkingLot()
            await self._others.park()  # whoever had it hands it over
        self.taken = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._others:
            self._others.unpark()
        else:
            self.taken, self._others = False, None
