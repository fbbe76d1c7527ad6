"""The fault plans whose fault is the gateway's own, or that of the store that it keeps its sessions in."""

from __future__ import annotations

import pytest

from tests.faults.plans import MATRIX, WITHIN, names
from tests.faults.play import Plan, play
from tests.faults.scenarios import Scenario
from tests.faults.world import run

OWN = [(plan, scenario) for plan, scenario in MATRIX if plan.group in WITHIN]


@pytest.mark.parametrize(("plan", "scenario"), OWN, ids=names(*OWN))
def test_the_promises_hold(plan: Plan, scenario: Scenario) -> None:
    run(lambda: play(plan, scenario))
