"""A system of actors: its registry, dispatcher, timers and tasks, all inside one `async with`."""

import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from traceback import print_exception
from types import TracebackType
from typing import TypeAlias

import trio

from actors.runtime.actor import Actor
from actors.runtime.boundary import Boundary, forget_frames, unwrapped
from actors.runtime.cell import Cell, Drain, Owner
from actors.runtime.dispatcher import Dispatcher
from actors.runtime.exits import SHUTDOWN, Exit, SystemClosed, SystemFailed
from actors.runtime.ref import Ref, Registry
from actors.runtime.supervisor import BaseSupervisor
from actors.runtime.timers import Timers

DRAIN_TOGETHER = 16
"""Actors that are told to drain at once."""
DRAIN_SHARE = 2 / 3
"""Of the time there is, in which all are told: those of a busy process go on with their work until it is their turn."""

OnCrash: TypeAlias = Callable[[str, BaseException], object]
"""Gets the name of an actor (or `actor/task`) and what escaped from it."""


def print_crash(name: str, error: BaseException) -> None:
    """Writes name and traceback to stderr: what happens to crashes that nobody else wants."""
    sys.stderr.write(f"{name} crashed\n")
    print_exception(error)


@dataclass(frozen=True, slots=True)
class SystemStatistics:
    """How much there is of everything."""

    actors: int
    ready: int
    timers: int


class System:
    """Made by `open_system`."""

    nursery: trio.Nursery
    """Where the tasks run."""

    def __init__(self, on_crash: OnCrash) -> None:
        self.registry = Registry()
        self.timers = Timers()
        self.dispatcher = Dispatcher()
        self.failure: SystemFailed | None = None
        self._on_crash = on_crash
        self._top: dict[Ref, bool] = {}
        self._numbers: Counter[str] = Counter()
        self._closed = False

    def spawn(self, actor: Actor, name: str | None = None) -> Ref:
        """Starts an actor at the top; without a name it gets a unique one, made from its class.

        It is restarted by nobody, and if it is a supervisor, its crash ends the system with SystemFailed. Raises
        AlreadyStarted, SystemClosed.
        """
        if self._closed:
            raise SystemClosed("the system is ending")
        cell = self.create(actor, name, self)
        self._top[cell.ref] = isinstance(actor, BaseSupervisor)
        cell.start()
        return cell.ref

    async def drain(self, deadline: float) -> None:
        """Lets all actors finish, last started first, for at most `deadline` seconds; then ends the rest.

        An actor ends by itself after its `drain` hook was called. A supervisor whose turn has come restarts nobody.
        """
        until = trio.current_time() + deadline
        self._closed = True
        for ref in reversed([*self._top]):
            await self._drain([ref], until)

    async def _drain(self, refs: Sequence[Ref], until: float) -> None:
        """Tells the actors of one phase to drain, waits until they have ended, at most `until` (trio's clock), and ends
        the rest; after that time nobody is asked any more. A supervisor drains phase by phase before it ends itself."""
        if trio.current_time() < until:
            await self._ask(refs, until)
        for ref in refs:
            ref.cell.end(SHUTDOWN)

    async def _ask(self, refs: Sequence[Ref], until: float) -> None:
        supervisors = [ref.cell.actor for ref in refs if isinstance(ref.cell.actor, BaseSupervisor)]
        others = [ref for ref in refs if not isinstance(ref.cell.actor, BaseSupervisor)]
        began = trio.current_time()
        pace = (until - began) * DRAIN_SHARE / max(1, len(others))
        for number, ref in enumerate(others, 1):
            ref.urgent(Drain(until))
            if number % DRAIN_TOGETHER == 0:
                await self._catch_up(began + number * pace)
        for supervisor in supervisors:
            supervisor.closing = True
            for phase in supervisor.phases():
                await self._drain(phase, until)
        with trio.move_on_at(until):
            for ref in others:
                await ref.ended()

    async def _catch_up(self, latest: float) -> None:
        """Waits until few are ready to run, so that what comes meanwhile does not stand behind all who drain; until
        this time (trio's clock) at most."""
        with trio.move_on_at(latest):
            while True:
                await trio.lowlevel.checkpoint()
                if len(self.dispatcher) <= DRAIN_TOGETHER:
                    return

    def statistics(self) -> SystemStatistics:
        """A snapshot."""
        return SystemStatistics(len(self.registry), len(self.dispatcher), len(self.timers))

    # The rest is the runtime's own.

    def create(self, actor: Actor, name: str | None, owner: Owner) -> Cell:
        """An actor with a name, not started yet."""
        cell = Cell(self, actor, self._unique(type(actor).__name__) if name is None else name, owner)
        self.registry.add(cell.ref)
        return cell

    def child_ended(self, ref: Ref, reason: Exit) -> None:
        """An actor at the top has ended."""
        root = self._top.pop(ref)
        if root and reason.abnormal and not self._closed and self.failure is None:
            self.failure = SystemFailed(ref.name, reason)
            self.nursery.cancel_scope.cancel()

    def report(self, name: str, error: BaseException) -> None:
        """A crash. A raise in the callback that logs it is no reason to crash too; it goes to stderr. Afterwards the
        error is without its frames, for they hold what crashed, and the exit reason is kept."""
        with Boundary() as inside:
            self._on_crash(name, error)
        if inside.exit.error is not None:
            print_crash(name, inside.exit.error)
        forget_frames(error)

    def close(self) -> None:
        """Ends all actors, last started first."""
        self._closed = True
        for ref in reversed([*self._top]):
            ref.cell.end(SHUTDOWN)

    def _unique(self, kind: str) -> str:
        while True:
            self._numbers[kind] += 1
            name = f"{kind}-{self._numbers[kind]}"
            if self.registry.whereis(name) is None:
                return name


class _Ending:
    """Decides what the system's end looks like from outside: its failure, else the body's error without the group that
    the nursery put on it."""

    def __init__(self, system: System) -> None:
        self._system = system

    def __enter__(self) -> None: ...

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        failure = self._system.failure
        if failure is not None:
            raise failure from failure.reason.error
        if isinstance(error, BaseExceptionGroup) and (single := unwrapped(error)) is not error:
            raise single from None


@asynccontextmanager
async def open_system(on_crash: OnCrash = print_crash) -> AsyncIterator[System]:
    """A system that lives as long as the body; then all actors end at once and their tasks are cancelled.

    (`await system.drain(seconds)` first, for a gentle end.) Raises SystemFailed if a supervisor at the top gave up.
    """
    system = System(on_crash)
    with _Ending(system):
        async with trio.open_nursery() as system.nursery:
            system.nursery.start_soon(system.dispatcher.run, name="actors")
            system.nursery.start_soon(system.timers.run, name="timers")
            try:
                yield system
            finally:
                system.close()
                system.nursery.cancel_scope.cancel()
