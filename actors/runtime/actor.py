"""What an actor is written as, and what it can do."""

from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVarTuple

import trio

from actors.runtime.boundary import Boundary
from actors.runtime.exits import NORMAL, SHUTDOWN, Exit

if TYPE_CHECKING:
    from actors.runtime.cell import Cell
    from actors.runtime.ref import Ref
    from actors.runtime.system import System
    from actors.runtime.tasks import Task

Ts = TypeVarTuple("Ts")


class Actor:
    """State that is changed by one message at a time. Subclass it.

    All hooks are synchronous and never wait: what an actor wants to know comes back to it as a message. A raise in any
    of them is a crash, and ends the actor.
    """

    mailbox_size: ClassVar[int] = 256
    """Ordinary places of its mailbox."""

    eager: ClassVar[bool] = False
    """Whether `started` runs inside the spawn (supervisors: their children are there when it returns)."""

    disposable: ClassVar[bool] = False
    """Whether it drops all that it holds, but for its context, when it and its tasks have ended. For actors that come
    and go, and are made of parts which point back at them: reference counting then frees them at once."""

    ctx: "Context"
    """Set when the actor is spawned."""

    _slots: ClassVar[frozenset[str]] = frozenset()
    """Its attributes that are in no `__dict__`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._slots = frozenset(name for kind in cls.__mro__ for name in getattr(kind, "__slots__", ()))

    def started(self) -> None:
        """Runs as the first thing of its life, before any message."""

    def receive(self, message: Any) -> None:
        """Gets each message."""
        raise NotImplementedError(f"{type(self).__name__} does not receive {message!r}")

    def drain(self, deadline: float) -> None:
        """The system is draining: finish what is in hand, then `ctx.stop()`. Who has not ended when trio's clock says
        `deadline` is ended. By default there is nothing to finish."""
        self.ctx.stop(SHUTDOWN)

    def stopped(self, reason: Exit) -> None:
        """Runs last, also after a crash, if `started` ran; calls that were taken may still be answered here."""

    def drop_all(self) -> None:
        """Lets go of whatever it holds. See `disposable`."""
        for name in self._slots:
            if hasattr(self, name):
                delattr(self, name)
        if hasattr(self, "__dict__"):
            self.__dict__.clear()


class Context:
    """What an actor can do besides changing its state. Everything here ends with the actor."""

    __slots__ = ("_cell",)

    def __init__(self, cell: "Cell") -> None:
        self._cell = cell

    @property
    def ref(self) -> "Ref":
        """The address of this actor."""
        return self._cell.ref

    @property
    def name(self) -> str:
        """The name of this actor."""
        return self._cell.ref.name

    @property
    def system(self) -> "System":
        """The system that this actor lives in."""
        return self._cell.system

    @property
    def idle(self) -> bool:
        """Whether nothing waits in its mailbox: who stops in the same step leaves nobody behind."""
        return not self._cell.mailbox

    def now(self) -> float:
        """Seconds on trio's clock."""
        return trio.current_time()

    def set_timer(self, key: Hashable, seconds: float, message: Any) -> None:
        """Sends itself `message` after `seconds`, by a reserved place; a timer with the same key is replaced.

        A timer that is late because the loop was stalled comes 0.1 s later still, after what the stall held back.
        """
        self._cell.set_timer(key, seconds, message)

    def cancel_timer(self, key: Hashable) -> None:
        """The message of this timer will not come any more, even if it waits in the mailbox already."""
        self._cell.cancel_timer(key)

    def start_task(self, name: str, async_fn: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> "Task":
        """Does IO in a task of its own, which is cancelled when the actor ends; its end comes as TaskEnded."""
        return self._cell.start_task(name, async_fn, *args)

    def guard(self, fn: Callable[[*Ts], object]) -> Callable[[*Ts], None]:
        """The function, to be called by others outside a turn: a crash in it is this actor's, and not theirs."""
        cell = self._cell

        def guarded(*args: *Ts) -> None:
            with Boundary(cell.callback_over):
                fn(*args)

        return guarded

    def monitor(self, ref: "Ref") -> None:
        """Down(ref, reason) comes when that actor ends, or at once if it has ended; after all that it sent before."""
        self._cell.monitor(ref)

    def demonitor(self, ref: "Ref") -> None:
        """No Down comes for it any more, even if it waits in the mailbox already."""
        self._cell.demonitor(ref)

    def stop(self, reason: Exit = NORMAL) -> None:
        """Ends after the message in hand."""
        self._cell.stop(reason)
