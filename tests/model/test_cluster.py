"""The protocol of the cluster, played by the very machines that run it, under every fault that it must bear.

Each deliberate fault in it must be found: a law that no fault can break proves nothing.
"""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings

from tests.model.cluster import Step, play
from tests.model.plans import (
    Phrase,
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


FAULTS: dict[Bug, tuple[Phrase, ...]] = {
    Bug.RESEND_TAKEN: (asleep, beheaded),
    Bug.WITHDRAW_AFTER_LOSS: (forgotten,),
    Bug.DOUBLED_MAIL: (read_elsewhere,),
    Bug.UNFENCED_APPEND: (asleep,),
    Bug.CLAIM_WITHOUT_COMPARE: (beheaded,),
    Bug.SAME_EPOCH: (forgotten,),
    Bug.COUNTED_EPOCH: (forgotten,),
    Bug.WRITE_OVER_HOLE: (read_elsewhere,),
    Bug.WRITE_TWICE: (asleep, beheaded, read_elsewhere),
    Bug.NO_HEAD: (read_elsewhere,),
    Bug.SAVE_RAISES_THE_DEAD: (deleted,),
    Bug.NO_DOUBT: (asleep,),
    Bug.DOUBT_BY_FLAG: (asleep,),
    Bug.NO_VERIFY: (asleep,),
    Bug.OVERTAKING: (passed_on,),
    Bug.TWO_HOMES: (beheaded,),
    Bug.NOT_RECORDED: (asleep,),
    Bug.LOST_NOTE: (asleep,),
    Bug.LOSS_UNNOTICED: (forgotten, beheaded),
    Bug.NO_SWEEP: (abandoned,),
    Bug.NO_REATTACH: (beheaded,),
    Bug.BY_NAME: (namesake,),
    Bug.SILENT_GAP: (forgotten,),
}
"""Each with the phrases that are likely to show it."""


class Found(Exception):  # noqa: N818 - it is what is hoped for
    """The fault, and nothing but the fault, breaks a law."""


@pytest.mark.parametrize("bug", Bug, ids=lambda bug: bug.name.lower())
def test_a_fault_in_the_protocol_is_found(bug: Bug) -> None:
    @settings(phases=[Phase.generate], max_examples=1000, derandomize=True, database=None)
    @given(seeds, plans(*FAULTS[bug]))
    def search(seed: int, plan: list[Step]) -> None:
        try:
            play(seed, plan, bug)
        except Breach as breach:
            play(seed, plan)
            raise Found(breach.law) from breach

    with pytest.raises(Found):
        search()
