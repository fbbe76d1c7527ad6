"""All fault plans, and the matrix: each with every scenario in which it can happen."""

from __future__ import annotations

from tests.faults import plans_together
from tests.faults.play import Plan
from tests.faults.scenarios import SCENARIOS, Scenario

PLANS: tuple[Plan, ...] = (*plans_together.SINGLE, *plans_together.PLANS)

MATRIX: tuple[tuple[Plan, Scenario], ...] = tuple(
    (plan, scenario) for plan in PLANS for scenario in SCENARIOS if plan.suits(scenario)
)


WITHIN = frozenset({"store", "process", "bug"})
"""Groups of faults of the gateway itself and of what it keeps its sessions in; the others come from its peers."""


def names(*of: tuple[Plan, Scenario]) -> list[str]:
    """Of rows of the matrix, for a test's id."""
    return [f"{plan} / {scenario}" for plan, scenario in of]
