"""Time, chance, processes and the lines between them, with every fault that the protocol must bear.

A process can be killed, or stand still and wake later with all that it had begun. What it had said to the store is
done all the same, perhaps twice. Mail is lost, doubled and late; the store loses what it had acknowledged.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.model.store import Bug, Store

Act = Callable[[], object]


class Breach(AssertionError):  # noqa: N818 - what a law suffers
    """A law was broken."""

    def __init__(self, law: str, what: str) -> None:
        super().__init__(f"{law}: {what}")
        self.law = law


@dataclass
class Weather:
    """How bad the lines are: chances."""

    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0
    resent: float = 0.0


class World:
    """Runs what is due, in order of time."""

    def __init__(self, seed: int, bug: Bug | None = None) -> None:
        self.now = 100.0
        self.rng = random.Random(seed)
        self.bug = bug
        self.store = Store(bug)
        self.weather = Weather()
        self.stalled = 0.0
        """The store answers nobody before this time."""
        self.lines: list[Line] = []
        self.trace: list[str] = []
        self._due: list[tuple[float, int, Act]] = []
        self._numbers = count()

    def at(self, delay: float, act: Act) -> None:
        heapq.heappush(self._due, (self.now + delay, next(self._numbers), act))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self._due and self._due[0][0] <= until:
            self.now, _, act = heapq.heappop(self._due)
            act()
        self.now = until

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    def spell(self, least: float, most: float) -> float:
        return self.rng.uniform(least, most)

    def note(self, *words: object) -> None:
        self.trace.append(f"{self.now:8.3f} " + " ".join(map(str, words)))

    def ring(self, to: str) -> None:
        """There is mail for an incarnation; or it is lost."""
        inbox = self.store.data.inboxes[to]
        if self.chance(self.weather.lost) and inbox.letters:
            del inbox.letters[max(inbox.letters)]
        for line in self.lines:
            line.process.ring(to)

    def lose_writes(self, to: Any) -> None:
        """The store goes back to an earlier state. What it had not answered is said to it again."""
        self.store.fail_over(to)
        for line in self.lines:
            line.say_again()
        for inc in self.store.data.inboxes:
            self.ring(inc)


class Process:
    """Runs acts as long as it lives; while it stands still they wait."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.dead = False
        self.stopped = False
        self._waiting: list[Act] = []

    def later(self, delay: float, act: Act) -> None:
        self.world.at(delay, lambda: self._run(act))

    def _run(self, act: Act) -> None:
        if self.dead:
            return
        if self.stopped:
            self._waiting.append(act)
        else:
            act()

    def ring(self, to: str) -> None:
        """There may be mail for this incarnation."""

    def stop(self) -> None:
        self.stopped = True

    def wake(self) -> None:
        self.stopped = False
        waiting, self._waiting = self._waiting, []
        for act in waiting:
            self._run(act)


@dataclass
class Command:
    name: str
    args: tuple[Any, ...]
    done: Callable[[Any], object] | None
    outcome: Any = None
    applied: bool = False
    answered: bool = False


@dataclass
class Line:
    """One connection of a process to the store: commands are done in order, and answered in order."""

    process: Process
    commands: list[Command] = field(default_factory=list)
    _last: float = 0.0
    _heard: float = 0.0

    def say(self, name: str, *args: Any, done: Callable[[Any], object] | None = None) -> None:
        world = self.process.world
        command = Command(name, args, done)
        self.commands.append(command)
        delay = world.spell(0.001, 0.01) if not world.chance(world.weather.late) else world.spell(0.1, 1.0)
        self._last = max(self._last, world.now + delay, world.stalled)
        world.at(self._last - world.now, self._apply_next)

    def _apply_next(self) -> None:
        world = self.process.world
        if world.now < world.stalled:
            self._last = max(self._last, world.stalled)
            world.at(world.stalled - world.now, self._apply_next)
            return
        command = next(command for command in self.commands if not command.applied)
        self._do(command)
        if world.chance(world.weather.resent):
            # The connection broke: what was not answered is said again whole, in order.
            for said in self.commands[: self.commands.index(command) + 1]:
                self._do(said)
        self._heard = max(self._heard, world.now + world.spell(0.001, 0.01))
        self.process.later(self._heard - world.now, lambda: self._answer(command))

    def _do(self, command: Command) -> None:
        store = self.process.world.store
        store.now = self.process.world.now
        command.outcome = getattr(store, command.name)(*command.args)
        command.applied = True
        if command.name == "post" and isinstance(command.outcome, str):
            self.process.world.ring(command.args[0])

    def _answer(self, command: Command) -> None:
        command.answered = True
        self.commands.remove(command)
        if command.done is not None:
            command.done(command.outcome)

    def say_again(self) -> None:
        for command in self.commands:
            if command.applied:
                self._do(command)
