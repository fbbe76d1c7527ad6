"""The crash boundary: the one place that catches everything.

Actors, their tasks, connections, handlers of foreign code and the store's threads run inside it, so that a bug in one
ends that one. What may not be caught passes through: cancellation belongs to whoever cancelled, an interrupt to the
process. An exception group can hold both kinds at once (a crash while being cancelled); it is split, so that neither
the bug is lost nor the program ended by it. Nothing is logged here: the exit reason carries the exception.
"""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TypeAlias, TypeVarTuple

import trio

from actors.runtime.exits import CANCELLED, NORMAL, Exit, crashed

Ts = TypeVarTuple("Ts")

OnExit: TypeAlias = Callable[[Exit], object]
"""Told synchronously, before anything else runs, why it ended. It must not raise."""

_PASSING = (trio.Cancelled, KeyboardInterrupt, SystemExit, GeneratorExit)


def unwrapped(error: BaseException) -> BaseException:
    """The exception inside groups of one, as nurseries make them; a group of several as it is."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def forget_frames(error: BaseException) -> None:
    """Takes the tracebacks off an exception, and off those that it came from."""
    left, seen = [error], set()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = None
        left += [other for other in (one.__cause__, one.__context__) if other is not None]
        if isinstance(one, BaseExceptionGroup):
            left += one.exceptions


def _halves(error: BaseException | None) -> tuple[BaseException | None, BaseException | None]:
    """(the crash, what passes)."""
    if isinstance(error, BaseExceptionGroup):
        passing, crash = error.split(_PASSING)
        if passing is None:
            return unwrapped(error), None
        return crash and unwrapped(crash), passing
    return (None, error) if isinstance(error, _PASSING) else (error, None)


class Boundary:
    """The boundary as a context manager, for a body of one's own; `exit` is set when it has been left."""

    __slots__ = ("_on_exit", "exit")

    def __init__(self, on_exit: OnExit | None = None) -> None:
        self._on_exit = on_exit
        self.exit = NORMAL

    def __enter__(self) -> "Boundary":
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> bool:
        crash, passing = (None, None) if error is None else _halves(error)
        if error is not None:
            self.exit = CANCELLED if crash is None else crashed(crash)
        if self._on_exit is not None:
            self._on_exit(self.exit)
        if passing is not None and passing is not error:
            raise passing from None
        return passing is None


async def boundary(fn: Callable[[*Ts], Awaitable[object]], *args: *Ts, on_exit: OnExit | None = None) -> Exit:
    """Runs `fn(*args)` and tells `on_exit` why it ended; returns the same.

    Raises nothing but cancellation and interrupts, and of a mixed group only that half.
    """
    inside = Boundary(on_exit)
    with inside:
        await fn(*args)
    try:
        return inside.exit
    finally:
        del inside  # a crash holds this frame, which would hold the crash


def thread_boundary(fn: Callable[[*Ts], object], *args: *Ts, on_exit: OnExit | None = None) -> Exit:
    """The form for code that does not await: the body of a thread, or a callback. `on_exit` runs in that thread."""
    inside = Boundary(on_exit)
    with inside:
        fn(*args)
    try:
        return inside.exit
    finally:
        del inside  # as above
