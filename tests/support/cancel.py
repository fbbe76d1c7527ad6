"""Cancels a scenario at each of its checkpoints.

A scenario is an async function that gets a cancel scope and enters it around the part that is to be cancelled; what it
does outside that scope sets up, and asserts afterwards. It runs once uncancelled, counting every step of every task of
the run, then once for each step in which the scope is entered, with the scope cancelled after it. Each run has a trio
loop, an autojump clock and an order of scheduling of its own, the same for the same step: to cancel a scope before it
is entered is the same at whatever step, and after it was left too, so that one step is tried of either. Sockets,
threads and processes don't go with this clock.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import trio

from tests.support.repeatable import run

Scenario: TypeAlias = Callable[[trio.CancelScope], Awaitable[object]]

RUN_SECONDS = 3600.0
"""On the scenario's own clock, which jumps: a run that takes longer hangs."""


@dataclass(eq=False)
class _Steps(trio.abc.Instrument):
    """Counts the steps of all tasks, notes those after which the scope is entered, and cancels it after `target`."""

    scope: trio.CancelScope
    target: int | None
    count: int = field(default=0)
    within: list[int] = field(default_factory=list)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1
        if self.scope._cancel_status is not None:  # it is entered
            self.within.append(self.count)
        if self.count == self.target:
            self.scope.cancel()


def count_points(scenario: Scenario) -> int:
    """Runs the scenario uncancelled; the number of points at which it can be cancelled."""
    return _run(scenario, None).count


def cancel_at(scenario: Scenario, point: int) -> None:
    """Runs the scenario, cancelled after its step `point`. What it raises says at which point."""
    try:
        _run(scenario, point)
    except BaseException as error:
        error.add_note(f"cancelled after step {point}")
        raise


def cancel_everywhere(scenario: Scenario, *, sample: int | None = None, seed: int = 0) -> Sequence[int]:
    """Cancels the scenario at all points that differ, or at a seeded sample of so many; returns the points."""
    within = _run(scenario, None).within
    points: Sequence[int] = range(max(1, within[0] - 1), within[-1] + 2)
    if sample is not None and sample < len(points):
        points = sorted(random.Random(seed).sample(points, sample))
    for point in points:
        cancel_at(scenario, point)
    return points


def _run(scenario: Scenario, target: int | None) -> _Steps:
    scope = trio.CancelScope()
    steps = _Steps(scope, target)

    async def main() -> None:
        with trio.fail_after(RUN_SECONDS):
            await scenario(scope)

    run(main, instruments=[steps])
    return steps
