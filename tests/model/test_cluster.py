"""The protocol of the cluster, played by the very machines that run it, under every fault that it must bear.

Each deliberate fault in it must be found: a law that no fault can break proves nothing.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given

from tests.model.cluster import Step, play
from tests.model.plans import (
    Phrase,
    a_plan,
    abandoned,
    asleep,
    beheaded,
    deleted,
    forgotten,
    namesake,
    passed_on,
    plans,
    read_elsewhere,
    seeds,
)
from tests.model.store import Bug
from tests.model.world import Breach


@given(seeds, plans())
def test_the_laws_hold_whatever_happens_to_processes_and_mail(seed: int, plan: list[Step]) -> None:
    play(seed, plan)


@given(seeds, plans(*(forgotten, namesake, asleep, beheaded)))
def test_they_hold_where_the_store_loses_writes_but_for_what_is_said_to_be_lost(seed: int, plan: list[Step]) -> None:
    play(seed, plan)


FAULTS: dict[Bug, tuple[str, *tuple[Phrase, ...]]] = {
    Bug.RESEND_TAKEN: ("law 2", asleep, beheaded),
    Bug.WITHDRAW_AFTER_LOSS: ("law 2", forgotten),
    Bug.DOUBLED_MAIL: ("law 1", read_elsewhere),
    Bug.UNFENCED_APPEND: ("law 1", asleep),
    Bug.CLAIM_WITHOUT_COMPARE: ("law 4", beheaded),
    Bug.SAME_EPOCH: ("ids", forgotten),
    Bug.COUNTED_EPOCH: ("ids", forgotten),
    Bug.WRITE_OVER_HOLE: ("law 3", read_elsewhere),
    Bug.WRITE_TWICE: ("law 3", asleep, beheaded, read_elsewhere),
    Bug.NO_HEAD: ("liveness", read_elsewhere),
    Bug.SAVE_RAISES_THE_DEAD: ("law 5", deleted),
    Bug.NO_DOUBT: ("law 4", asleep),
    Bug.DOUBT_BY_FLAG: ("law 4", asleep),
    Bug.NO_VERIFY: ("law 4", asleep),
    Bug.OVERTAKING: ("one queue", passed_on),
    Bug.TWO_HOMES: ("law 1", beheaded),
    Bug.NOT_RECORDED: ("law 1", asleep),
    Bug.LOST_NOTE: ("notes", asleep),
    Bug.LOSS_UNNOTICED: ("law 4", forgotten, beheaded),
    Bug.NO_SWEEP: ("liveness", abandoned),
    Bug.NO_REATTACH: ("liveness", beheaded),
    Bug.BY_NAME: ("sessions", namesake),
    Bug.SILENT_GAP: ("law 3", forgotten),
}
"""Each with the law that it breaks, and the phrases that are likely to show it."""


TRIES = 1000
"""Plans in which a fault must show."""


def test_every_law_has_a_fault_that_breaks_it() -> None:
    assert {law for law, *_ in FAULTS.values()} >= {f"law {number}" for number in range(1, 6)}


@pytest.mark.parametrize("bug", Bug, ids=lambda bug: bug.name.lower())
def test_a_fault_in_the_protocol_is_found(bug: Bug) -> None:
    law, *phrases = FAULTS[bug]
    assert any(_shows(bug, law, seed, a_plan(Random(seed).choice, *phrases)) for seed in range(TRIES))


def _shows(bug: Bug, law: str, seed: int, plan: list[Step]) -> bool:
    """Whether the fault breaks its law here, and nothing but the fault does. (It may break something else first: nobody
    can read a record that was made of nothing.)"""
    try:
        play(seed, plan, bug)
    except Exception as broken:
        if not isinstance(broken, Breach) or broken.law != law:
            return False
    else:
        return False
    play(seed, plan)
    return True
