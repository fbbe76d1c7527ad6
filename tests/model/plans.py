"""What may happen to a cluster: single steps, and phrases in which a fault meets what it hurts. Chance draws them, or
Hypothesis, which finds the least plan that breaks a law."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.model.cluster import Step

FEW = (0.01, 0.05, 0.1, 0.3, 1.0, 2.0)
MANY = (0.2, 0.5, 1.0, 2.0, 3.0, 5.0)
DEEDS = ("call", "call", "call", "call", "cancel", "listen", "announce", "cut")
FAULTS = ("kill", "kill", "pause", "pause", "drain", "move", "weather", "stall", "cut")

Phrase = Callable[[int, int], list[Step]]


def beheaded(where: int, how: int) -> list[Step]:
    """An owner is killed while it runs another's call."""
    owner, other = where, where + 1
    return [
        Step("call", 0.1, owner, how),
        Step("call", 0.5, other, how),
        Step("kill", 0.4, owner),
        Step("call", 0.1, other, how),
    ]


def abandoned(where: int, how: int) -> list[Step]:
    """An owner is killed while it runs what nobody waits for."""
    return [
        Step("call", 0.5, where, how | 1),
        Step("cut", 0.3, 0, how),
        Step("kill", 0.2, where),
    ]


def asleep(where: int, how: int) -> list[Step]:
    """An owner stands still, with mail that it has not read and calls that it has taken, and wakes when it is one no
    more."""
    owner, other = where, where + 1
    return [
        Step("call", 0.1, owner, how),
        Step("call", 0.5, other, how + 2),
        Step("pause", 0.02, owner, 0, 4.0),
        Step("call", 0.05, owner, how),
        Step("call", 0.05, other, how),
        Step("cancel", 0.05, other, how + 4),
        Step("call", 8.0, other, how),
    ]


def deleted(where: int, how: int) -> list[Step]:
    """A session is ended while a former owner, who has something to write, stands still."""
    owner, other = where, where + 1
    return [
        Step("call", 0.1, owner, how),
        Step("pause", 0.5, owner, 0, 4.0),
        Step("announce", 0.1, 0, how),
        Step("call", 0.5, other, how),
        Step("end", 7.0, 0, how),
    ]


def passed_on(where: int, how: int) -> list[Step]:
    """A session goes from hand to hand while calls and their cancels are on the way."""
    return [
        Step("call", 0.1, where, how),
        Step("call", 0.3, where + 1, how),
        Step("move", 0.1, 0, how),
        Step("cancel", 0.003, where + 1, how),
        Step("cancel", 0.002, where + 2, how),
        Step("move", 0.02, 0, how),
        Step("kill", 0.01, where),
    ]


def read_elsewhere(where: int, how: int) -> list[Step]:
    """Streams are followed from another process while mail gets lost."""
    return [
        Step("listen", 0.1, 0, how),
        Step("call", 0.1, where, how),
        Step("weather", 0.1, 0, 1 + how % 2),
        Step("call", 0.1, where + 1, how + 2),
        Step("call", 0.1, where + 2, how + 4),
        Step("announce", 0.2, 0, how),
        Step("cut", 0.5, 0, how),
    ]


def forgotten(where: int, how: int) -> list[Step]:
    """The store loses what it had acknowledged."""
    return [
        Step("call", 0.1, where, how),
        Step("lose", 0.3, 0, 0, 1.0),
        Step("call", 0.2, where + 1, how),
        Step("call", 0.3, where + 2, how + 2),
        Step("kill", 0.45, where + how % 3),
        Step("call", 0.1, where + 1, how + 4),
    ]


def namesake(where: int, how: int) -> list[Step]:
    """The store and a killed owner lose a stream of which nothing was written, while its holder stands still; another
    one gets its name."""
    owner, holder, other = where, where + 1, where + 2
    old = 2 * how + 1  # no priming event
    return [
        Step("call", 0.1, owner, 3),
        Step("lose", 0.3, 0, 0, 1.0),
        Step("call", 0.1, holder, old),
        Step("pause", 0.5, holder, 0, 2.0),
        Step("kill", 0.45, owner),
        Step("call", 0.1, other, 3),
        Step("call", 6.0, other, 3),
    ]


PHRASES: tuple[Phrase, ...] = (beheaded, abandoned, deleted, asleep, passed_on, read_elsewhere)
"""Those of a store that loses nothing; `forgotten` and `namesake` are those of a store that does."""

Pick = Callable[[Sequence[Any]], Any]
"""One of several: `Random.choice`, or Hypothesis."""

WHERE, HOW = range(3), range(60)


def a_plan(pick: Pick, *phrases: Phrase) -> list[Step]:
    """One in which some of these phrases are said, or of all; with those of a store that loses writes it does so at
    other times, too."""
    said = phrases or PHRASES
    faults = (*FAULTS, "lose") if {forgotten, namesake} & {*said} else FAULTS
    plan: list[Step] = []
    for _ in range(pick(range(1, 15))):
        kinds = pick((said, DEEDS, faults, DEEDS))
        if kinds is said:
            plan += pick(said)(pick(WHERE), pick(HOW))
        else:
            plan.append(Step(pick(kinds), pick(FEW), pick(WHERE), pick(HOW), pick(MANY)))
    return plan


@st.composite
def plans(draw: st.DrawFn, *phrases: Phrase) -> list[Step]:
    """The same, as Hypothesis draws it."""
    return a_plan(lambda of: draw(st.sampled_from(of)), *phrases)


seeds = st.integers(0, 2**16)
