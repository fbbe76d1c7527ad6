"""Tasks that do an actor's IO."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVarTuple

import trio

from actors.runtime.boundary import Boundary
from actors.runtime.exits import Exit

Ts = TypeVarTuple("Ts")


class Task:
    """A running task of an actor; `ended` is told of its end."""

    __slots__ = ("_ended", "_scope", "name")

    def __init__(self, name: str, ended: Callable[["Task", Exit], object]) -> None:
        self.name = name
        self._ended = ended
        self._scope = trio.CancelScope()

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def cancel(self) -> None:
        """Cancels it; its end still comes as TaskEnded, once it has cleaned up."""
        self._scope.cancel()

    async def run(self, fn: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """Its body, inside the crash boundary."""
        with self._scope, Boundary(self._over):
            await fn(*args)

    def _over(self, reason: Exit) -> None:
        self._ended(self, reason)


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """A task that this actor started has ended. CRASHED carries the exception, CANCELLED is a `Task.cancel`."""

    name: str
    reason: Exit
    task: Task
