"""The running half of an actor: its mailbox, its turn, and everything that ends with it.

Actors run on demand. A cell stands in the dispatcher's queue exactly while it has something to do: the flag is set with
the enqueue and cleared with the emptiness check, each in one synchronous step.
"""

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, TypeVarTuple

import trio

from actors.runtime.actor import Actor, Context
from actors.runtime.boundary import Boundary
from actors.runtime.exits import Exit, ExitKind
from actors.runtime.mailbox import Mailbox, MailboxStatistics, Place
from actors.runtime.ref import Ended, Ref
from actors.runtime.tables import EMPTY_TABLE, put
from actors.runtime.tasks import Task, TaskEnded
from actors.runtime.timers import Timer

if TYPE_CHECKING:
    from actors.runtime.reply import Reply
    from actors.runtime.system import System

Ts = TypeVarTuple("Ts")

BURST_MESSAGES = 32
BURST_SECONDS = 0.002
"""An actor's turn ends with the first of the two, then others have theirs."""


@dataclass(frozen=True, slots=True)
class Down:
    """An actor that the receiver monitors has ended."""

    ref: Ref
    reason: Exit


class Monitor(Place):
    """One actor's interest in the end of another, and the place of the Down that ends it. Both have it among their
    `monitors`: the watcher by the address of the other, the other by itself."""

    __slots__ = ("_ref", "_watcher")

    def __init__(self, watcher: "Cell", ref: Ref) -> None:
        self._watcher, self._ref = watcher, ref

    def down(self, reason: Exit) -> None:
        """Tells the watcher that the actor has ended."""
        self._watcher.put(Down(self._ref, reason), self)

    def taken(self) -> None:
        del self._watcher.monitors[self._ref]

    def drop(self) -> None:
        """Nobody is to be told any more."""
        if isinstance(self._ref.cell, Cell):
            self._ref.cell.monitors.pop(self, None)


class Owner(Protocol):
    """Who started an actor: a supervisor, or the system."""

    def child_ended(self, ref: Ref, reason: Exit) -> None:
        """Told synchronously, last of all."""


class Drain:
    """Sent by the urgent lane to begin an actor's drain."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline


class _TimerPlace(Place):
    """An actor's timer, and the place of its message once it has fired."""

    __slots__ = ("_cell", "_due", "_key", "_message", "timer")

    def __init__(self, cell: "Cell", key: Hashable, seconds: float, message: Any) -> None:
        self._cell, self._key, self._message = cell, key, message
        self._due = trio.current_time() + seconds
        self.timer: Timer = cell.system.timers.start(seconds, self._fire)

    def put_off(self, seconds: float, message: Any) -> bool:
        """Takes the place of another timer that would be due later; False if this one has fired, or is due later. The
        clock is not told: deadlines are put off with every sign of life, and hardly one of them ever comes."""
        due = trio.current_time() + seconds
        if due < self._due or not self.timer.armed:
            return False
        self._due, self._message = due, message
        return True

    def _fire(self) -> None:
        left = self._due - trio.current_time()
        if left > 0:
            self.timer = self._cell.system.timers.start(left, self._fire)
        else:
            self._cell.put(self._message, self)

    def taken(self) -> None:
        del self._cell.timers[self._key]


class Cell:
    """Everything of one life of one actor but its own state."""

    __slots__ = (
        "_ended",
        "_fresh",
        "_gone",
        "_running",
        "_scheduled",
        "_stopping",
        "actor",
        "mailbox",
        "monitors",
        "owner",
        "pending",
        "reason",
        "ref",
        "system",
        "tasks",
        "timers",
    )

    def __init__(self, system: "System", actor: Actor, name: str, owner: Owner) -> None:
        if getattr(actor, "ctx", None) is not None:
            raise ValueError(f"{actor!r} lives, or has lived; an actor lives once")
        self.system = system
        self.owner = owner
        self.actor: Actor | None = actor
        self.ref = Ref(name, self)
        self.mailbox = Mailbox(actor.mailbox_size)
        self.reason: Exit | None = None
        self.pending: dict[Reply, None] = EMPTY_TABLE
        self.timers: dict[Hashable, _TimerPlace] = EMPTY_TABLE
        self.tasks: tuple[Task, ...] = ()
        self.monitors: dict[Ref | Monitor, Monitor] = EMPTY_TABLE
        """Its own, by whom it watches, and others' of it, in the order in which they were set."""
        self._fresh = True
        self._running = False
        self._scheduled = False
        self._stopping: Exit | None = None
        self._ended: trio.Event | None = None
        self._gone: Actor | None = None
        """A disposable actor that has ended, while tasks of its clean up."""
        actor.ctx = Context(self)

    @property
    def name(self) -> str:
        """The name of the actor."""
        return self.ref.name

    # Messages in

    def offer(self, message: Any, place: Place | None = None) -> bool:
        """New work; False when full or dead."""
        if not self.mailbox.offer(message, place):
            return False
        if not self._scheduled:
            self.schedule()
        return True

    def put(self, message: Any, *place: Place) -> bool:
        """What the actor caused itself; False when dead."""
        if not self.mailbox.put(message, *place):
            return False
        if not self._scheduled:
            self.schedule()
        return True

    def urge(self, message: Any) -> bool:
        """By the urgent lane; False when full or dead."""
        if not self.mailbox.urge(message):
            return False
        if not self._scheduled:
            self.schedule()
        return True

    def stop(self, reason: Exit) -> bool:
        """The actor ends before its next message; the first reason given holds."""
        if self.reason is not None:
            return False
        if self._stopping is None:
            self._stopping = reason
        if not self._scheduled:
            self.schedule()
        return True

    # Its turn

    def start(self) -> None:
        """The first turn: at once for who is eager, else from the dispatcher."""
        if self.actor is not None and self.actor.eager:
            self._scheduled = True
            self.burst()
        else:
            self.schedule()

    def schedule(self) -> None:
        """Asks for a turn."""
        self._scheduled = True
        self.system.dispatcher.schedule(self)

    def burst(self) -> None:
        """Runs the turn of this actor: some of its messages."""
        self._running = True
        with Boundary(self._burst_over):
            self._receive_some()

    def _receive_some(self) -> None:
        actor, mailbox = self.actor, self.mailbox
        if actor is None or self._stopping is not None:
            return
        if self._fresh:
            self._fresh = False
            actor.started()
        until = perf_counter() + BURST_SECONDS
        for _ in range(BURST_MESSAGES):
            if self._stopping is not None or not mailbox:
                return
            if mailbox.urgent:
                self._receive_urgent(actor, mailbox.take_urgent())
            else:
                actor.receive(mailbox.take())
            if perf_counter() >= until:
                return

    @staticmethod
    def _receive_urgent(actor: Actor, message: Any) -> None:
        if isinstance(message, Drain):
            actor.drain(message.deadline)
        else:
            actor.receive(message)

    def _burst_over(self, exit: Exit) -> None:
        self._running = False
        if exit.kind is not ExitKind.NORMAL:
            self._end(exit)
        elif self._stopping is not None:
            self._end(self._stopping)
        elif self.mailbox:
            self.system.dispatcher.schedule(self)
        else:
            self._scheduled = False
            self._rest()

    def _rest(self) -> None:
        """Idle actors are many: what is empty gives back its memory."""
        self.mailbox.rest()
        self.pending, self.timers = self.pending or EMPTY_TABLE, self.timers or EMPTY_TABLE

    def callback_over(self, exit: Exit) -> None:
        """A callback that the actor had left somewhere ran; a crash in it is the actor's, or, if that has ended, only
        told."""
        if exit.kind is ExitKind.NORMAL:
            return
        if self.reason is None:
            self.end(exit)
        elif exit.error is not None:
            self.system.report(self.ref.name, exit.error)

    # Its end

    def end(self, reason: Exit) -> None:
        """Ends it at once, or after the message in hand if it is having its turn."""
        if self._running:
            self._stopping = reason
        else:
            self._end(reason)

    def _end(self, reason: Exit) -> None:
        """Exit reason, registry, clean-up, failed calls, monitors: in one synchronous step."""
        actor, self.actor = self.actor, None
        if actor is None:
            return
        self.reason = reason
        self.system.registry.forget(self.ref)
        queued = self.mailbox.close()
        if not self._fresh:
            reason = self.reason = self._clean_up(actor, reason)
        for place in (*queued, *self.pending):
            place.closed(self.ref.name, reason)
        self._drop_possessions()
        if reason.error is not None:
            self.system.report(self.ref.name, reason.error)
        for monitor in self.monitors.values():
            monitor.down(reason)
        self.monitors = EMPTY_TABLE
        if self._ended is not None:
            self._ended.set()
        self.owner.child_ended(self.ref, reason)
        # Those who have its address keep nothing of it alive but that.
        self.ref.cell = Ended(reason)
        if actor.disposable:
            self._gone = actor
            self._dispose()

    def _clean_up(self, actor: Actor, reason: Exit) -> Exit:
        """The reason, after `stopped` has had its say: a crash in it makes the end a crash."""
        with Boundary() as inside:
            actor.stopped(reason)
        if inside.exit.error is None:
            return reason
        if reason.error is None:
            return inside.exit
        self.system.report(self.ref.name, inside.exit.error)
        return reason

    def _drop_possessions(self) -> None:
        for place in self.timers.values():
            self.system.timers.cancel(place.timer)
        self.timers = EMPTY_TABLE
        for task in self.tasks:
            task.cancel()
        for key in [key for key in self.monitors if isinstance(key, Ref)]:
            self.monitors.pop(key).drop()

    @property
    def crowded(self) -> bool:
        """See Ref."""
        return self.mailbox.crowded

    def statistics(self) -> MailboxStatistics:
        """What is in the mailbox."""
        return self.mailbox.statistics()

    def _dispose(self) -> None:
        """See `Actor.disposable`; its tasks may use it as long as they clean up."""
        if self._gone is not None and not self.tasks:
            self._gone.drop_all()
            self._gone.ctx = Context(self)
            self._gone = None

    async def wait_ended(self) -> Exit:
        """Waits for the end."""
        if self.reason is None:
            if self._ended is None:
                self._ended = trio.Event()
            await self._ended.wait()
        else:
            await trio.lowlevel.checkpoint()
        assert self.reason is not None
        return self.reason

    # What its Context does

    def set_timer(self, key: Hashable, seconds: float, message: Any) -> None:
        """See Context."""
        set_before = self.timers.get(key)
        if set_before is not None:
            if set_before.put_off(seconds, message):
                return
            self.cancel_timer(key)
        if self.reason is None:
            self.timers = put(self.timers, key, _TimerPlace(self, key, seconds, message))

    def cancel_timer(self, key: Hashable) -> None:
        """See Context."""
        place = self.timers.pop(key, None)
        if place is None:
            return
        if place.timer.armed:
            self.system.timers.cancel(place.timer)
        else:
            self.mailbox.revoke(place)

    def start_task(self, name: str, fn: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> Task:
        """See Context."""
        task = Task(name, self._task_ended)
        self.tasks = (*self.tasks, task)
        if self.reason is not None:
            task.cancel()
        self.system.nursery.start_soon(task.run, fn, *args, name=f"{self.ref.name}/{name}")
        return task

    def _task_ended(self, task: Task, reason: Exit) -> None:
        self.tasks = tuple(other for other in self.tasks if other is not task)
        if reason.error is not None:
            self.system.report(f"{self.ref.name}/{task.name}", reason.error)
        self.put(TaskEnded(task.name, reason, task))
        if self._gone is not None:
            self._dispose()

    def monitor(self, ref: Ref) -> None:
        """See Context."""
        if ref in self.monitors or self.reason is not None:
            return
        monitor, cell = Monitor(self, ref), ref.cell
        self.monitors = put(self.monitors, ref, monitor)
        if cell.reason is not None:
            monitor.down(cell.reason)
        elif isinstance(cell, Cell):
            cell.monitors = put(cell.monitors, monitor, monitor)

    def demonitor(self, ref: Ref) -> None:
        """See Context."""
        monitor = self.monitors.pop(ref, None)
        if monitor is not None:
            monitor.drop()
            self.mailbox.revoke(monitor)
