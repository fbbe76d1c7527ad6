"""All fault plans, and the matrix: each with every scenario in which it can happen."""

from __future__ import annotations

from tests.faults import plans_together
from tests.faults.play import Plan
from tests.faults.scenarios import SCENARIOS, Scenario

PLANS: tuple[Plan, ...] = (*plans_together.SINGLE, *plans_together.PLANS)

MATRIX: tuple[tuple[Plan, Scenario], ...] = tuple(
    (plan, scenario) for plan in PLANS for scenario in SCENARIOS if plan.suits(scenario)
)

FEW = 2
"""A plan that can happen in no more scenarios is played in them all, always."""


def _always() -> frozenset[tuple[str, str]]:
    """Like the black fields of a chessboard. Neighbours among the plans are variants of one fault (the first, the
    second, the fourth append; each reason for a refusal): what one leaves out its neighbours play."""
    fields = set()
    for row, plan in enumerate(PLANS):
        suitable = [(column, of) for column, of in enumerate(SCENARIOS) if plan.suits(of)]
        fields |= {(plan.name, of.name) for column, of in suitable if len(suitable) <= FEW or (row + column) % 2 == 0}
    return frozenset(fields)


ALWAYS = _always()
"""By their names, those of the matrix that every run plays; the long runs (`make chaos`) play all."""
