"""All fault plans, and the matrix: each with every scenario in which it can happen."""

from __future__ import annotations

from tests.faults import plans_backend, plans_client, plans_crash, plans_process, plans_store
from tests.faults.play import Plan
from tests.faults.scenarios import SCENARIOS, Scenario

PLANS: tuple[Plan, ...] = (
    *plans_store.PLANS,
    *plans_backend.PLANS,
    *plans_client.PLANS,
    *plans_crash.PLANS,
    *plans_process.PLANS,
)

MATRIX: tuple[tuple[Plan, Scenario], ...] = tuple(
    (plan, scenario) for plan in PLANS for scenario in SCENARIOS if plan.suits(scenario)
)
