"""Each scenario is broken off at each of its steps: once its clients are, once the whole process is.

What was begun has at most one outcome and one execution, nothing is left over, and the next one works.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.faults import promises
from tests.faults.play import act, recover, set_out
from tests.faults.scenarios import SCENARIOS, Scenario
from tests.faults.world import open_world
from tests.support.cancel import cancel_at, count_points

BROKEN = frozenset({"broken", "gone"})
SAMPLE = 6
"""Steps of each scenario that are tried outside the long runs."""

Broken = Callable[[Scenario, trio.CancelScope], Awaitable[None]]


@dataclass(eq=False)
class _Steps(trio.abc.Instrument):
    """The steps between begin and end of what is broken off."""

    count: int = 0
    first: int = 0
    last: int = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


STEPS = _Steps()


async def clients_break_off(scenario: Scenario, scope: trio.CancelScope) -> None:
    """Everything that the victim and its like were doing ends, and their connections break."""
    async with open_world() as world:
        await set_out(world, scenario)
        STEPS.first = STEPS.count
        with scope:
            await act(world, scenario, watched=True)
        STEPS.last = STEPS.count
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
        STEPS.first = STEPS.count
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.revive)
            await act(world, scenario, watched=False)
            nursery.cancel_scope.cancel()
        STEPS.last = STEPS.count
        await wait_all_tasks_blocked()
        scope.cancel()  # at the latest: what sockets do takes more steps at one time than at another
        await first.over.wait()
        if world.life is first:
            await world.begin()
        await recover(world, spared=False)
        promises.check(world, BROKEN, spared=False)
        await promises.check_nothing_left(world)
        assert not world.crashes, world.crashes


def points(scenario: Scenario, way: Broken) -> range:
    """The steps at which it is under way."""

    async def counted(scope: trio.CancelScope) -> None:
        STEPS.count = 0
        trio.lowlevel.add_instrument(STEPS)
        await way(scenario, scope)

    before = count_points(counted) - STEPS.count  # steps that were taken before ours were counted
    return range(STEPS.first + before, STEPS.last + before + 1)


WAYS = (clients_break_off, the_process_breaks_off)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_a_scenario_that_is_broken_off_leaves_nothing_behind(scenario: Scenario, way: Broken) -> None:
    found = points(scenario, way)
    assert len(found) > SAMPLE
    for point in sorted(random.Random(str(scenario)).sample(found, SAMPLE)):
        cancel_at(partial(way, scenario), point)


@pytest.mark.chaos
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_a_scenario_can_be_broken_off_at_every_step(scenario: Scenario, way: Broken) -> None:
    for point in points(scenario, way):
        cancel_at(partial(way, scenario), point)
