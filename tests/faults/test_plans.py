"""Every fault plan in every scenario in which it can happen: the promises hold, and the fault did happen.

Here are the faults of clients and servers, and pairs of faults; those of the gateway itself are in `test_plans_within`.
"""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from tests.faults.plans import MATRIX, PLANS, WITHIN, names
from tests.faults.plans_together import pair
from tests.faults.play import Plan, play
from tests.faults.scenarios import SCENARIOS, Scenario
from tests.faults.world import World, run

NOTHING = Plan("nothing happens", lambda world: world.fire("nothing"), harmless=True, strict=True)

SAMPLE, PAIRS = 100, 2000
"""Pairs of faults that are tried always, and in long runs."""

OF_PEERS = [(plan, scenario) for plan, scenario in MATRIX if plan.group not in WITHIN]


@pytest.mark.parametrize(("plan", "scenario"), OF_PEERS, ids=names(*OF_PEERS))
def test_the_promises_hold(plan: Plan, scenario: Scenario) -> None:
    run(lambda: play(plan, scenario))


def _pairs(seeds: range) -> None:
    for seed in seeds:
        plan, scenario = pair(Random(seed))
        try:
            run(partial(play, plan, scenario))
        except BaseException as error:
            error.add_note(f"seed {seed}: {plan} / {scenario}")
            raise


@pytest.mark.parametrize("tens", range(SAMPLE // 10))
def test_the_promises_hold_when_two_faults_meet(tens: int) -> None:
    _pairs(range(10 * tens, 10 * tens + 10))


@pytest.mark.chaos
def test_the_promises_hold_when_any_two_faults_meet() -> None:
    _pairs(range(SAMPLE, PAIRS))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_without_a_fault_every_request_has_a_result(scenario: Scenario) -> None:
    run(lambda: play(NOTHING, scenario))


def test_every_plan_can_happen_somewhere_and_every_scenario_meets_every_kind_of_fault() -> None:
    assert len({plan.name for plan in PLANS}) == len(PLANS), "two plans of one name"
    events = frozenset().union(*(scenario.has for scenario in SCENARIOS))
    assert not [f"{p}: nowhere is there {word}" for p in PLANS for word in (p.needs | p.without) - events]
    assert not {plan.name for plan in PLANS} - {plan.name for plan, _ in MATRIX}
    for scenario in SCENARIOS:
        met = {plan.group for plan, of in MATRIX if of is scenario}
        untouched = {"store"} if scenario.name in ("quick calls", "merged lists") else set()  # nothing of them is kept
        assert met == {"client", "server", "process", "bug", "both", "store"} - untouched, scenario.name


def test_a_fault_that_never_happens_is_noticed() -> None:
    def forget(world: World) -> None:
        """Does nothing."""

    with pytest.raises(ExceptionGroup) as raised:
        run(lambda: play(Plan("forgotten", forget), SCENARIOS[0]))
    assert "the fault never happened" in str(raised.value.exceptions)
