"""All fault plans, and the matrix: each with every scenario in which it can happen."""

from __future__ import annotations

from tests.faults import plans_together
from tests.faults.play import Plan
from tests.faults.scenarios import SCENARIOS, Scenario

PLANS: tuple[Plan, ...] = (*plans_together.SINGLE, *plans_together.PLANS)

MATRIX: tuple[tuple[Plan, Scenario], ...] = tuple(
    (plan, scenario) for plan in PLANS for scenario in SCENARIOS if plan.suits(scenario)
)
