"""Each scenario is broken off at each of its steps: once its clients are, once the whole process is.

What was begun has at most one outcome and one execution, nothing is left over, and the next one works.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.faults import promises
from tests.faults.play import act, recover, set_out
from tests.faults.scenarios import SCENARIOS, Scenario
from tests.faults.world import open_world
from tests.support.cancel import count_points

BROKEN = frozenset({"broken", "gone"})
SAMPLE = 6
"""Steps of each scenario that are tried outside the long runs."""

Broken = Callable[[Scenario, trio.CancelScope], Awaitable[None]]


@dataclass(eq=False)
class _Steps(trio.abc.Instrument):
    """Counts the steps that are taken while a scenario is under way, and cancels its scope after `target` of them. What
    comes before is not counted: what sockets do takes more steps at one time than at another."""

    target: int | None = None
    count: int = 0
    scope: trio.CancelScope | None = None

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.scope is not None:
            self.count += 1
            if self.count == self.target:
                self.scope.cancel()


STEPS = _Steps()


async def clients_break_off(scenario: Scenario, scope: trio.CancelScope) -> None:
    """Everything that the victim and its like were doing ends, and their connections break."""
    async with open_world() as world:
        await set_out(world, scenario)
        with scope:
            STEPS.scope = scope
            await act(world, scenario, watched=True)
        STEPS.scope = None
        for client in world.clients:
            for exchange in client.exchanges:
                if not exchange.end:
                    exchange.leave()
        await recover(world)
        promises.check(world, BROKEN)
        await promises.check_nothing_left(world)
        assert not world.life.gateway.crashes, world.life.gateway.crashes


async def the_process_breaks_off(scenario: Scenario, scope: trio.CancelScope) -> None:
    """It is gone from one step to the next, and another begins on the same store."""
    async with open_world(first=scope) as world:
        await set_out(world, scenario)
        first = world.life
        STEPS.scope = scope
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.revive)
            await act(world, scenario, watched=False)
            nursery.cancel_scope.cancel()
        STEPS.scope = None
        await wait_all_tasks_blocked()
        scope.cancel()  # at the latest: it may have taken fewer steps than before
        await first.over.wait()
        if world.life is first:
            await world.begin()
        await recover(world, spared=False)
        promises.check(world, BROKEN, spared=False)
        await promises.check_nothing_left(world)
        assert not world.crashes, world.crashes


def play(scenario: Scenario, way: Broken, target: int | None = None) -> int:
    """How many steps it took."""
    STEPS.target, STEPS.count, STEPS.scope = target, 0, None

    async def counted(scope: trio.CancelScope) -> None:
        trio.lowlevel.add_instrument(STEPS)
        await way(scenario, scope)

    try:
        count_points(counted)
    except BaseException as error:
        error.add_note(f"broken off after step {target}")
        raise
    return STEPS.count


WAYS = (clients_break_off, the_process_breaks_off)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_a_scenario_that_is_broken_off_leaves_nothing_behind(scenario: Scenario, way: Broken) -> None:
    steps = play(scenario, way)
    assert steps > SAMPLE
    for point in sorted(random.Random(str(scenario)).sample(range(1, steps + 1), SAMPLE)):
        play(scenario, way, point)


@pytest.mark.chaos
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_a_scenario_can_be_broken_off_at_every_step(scenario: Scenario, way: Broken) -> None:
    for point in range(1, play(scenario, way) + 1):
        play(scenario, way, point)
