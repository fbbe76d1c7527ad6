"""What goes wrong, and when: all of it follows from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

What = Literal[
    "kill replica",
    "pause replica",
    "drain replica",
    "kill backend",
    "kill process",
    "pause backend",
    "kill redis",
    "pause redis",
]
KILLS: tuple[What, ...] = ("kill replica", "kill backend", "kill process", "kill redis")

SHORT: dict[What, int] = {
    "kill replica": 11,
    "pause replica": 1,
    "drain replica": 2,
    "kill backend": 6,
    "kill process": 3,
    "pause backend": 1,
    "kill redis": 2,
    "pause redis": 1,
}
"""How often each happens in a short run; how likely each is in a long one."""

APART = (1.2, 3.2)
"""Seconds between two troubles, from and to."""


@dataclass(frozen=True)
class Trouble:
    """One of them: so long after the one before; `target` picks one of those that there are (0 to 1)."""

    after: float
    what: What
    target: float


def short(seed: int) -> list[Trouble]:
    """Each kind as often as `SHORT` says, in an order of its own for each seed."""
    chance = random.Random(seed)
    order = [what for what, times in SHORT.items() for _ in range(times)]
    chance.shuffle(order)
    order.sort(key=lambda what: what == "pause replica", reverse=True)  # the long one goes on beside the others
    return [_trouble(chance, what) for what in order]


def long(seed: int, seconds: float) -> list[Trouble]:
    """As many as there is time for."""
    return list(_until(random.Random(seed), seconds))


def _until(chance: random.Random, seconds: float) -> Iterator[Trouble]:
    while seconds > 0:
        trouble = _trouble(chance, chance.choices(tuple(SHORT), tuple(SHORT.values()))[0])
        seconds -= trouble.after
        yield trouble


def _trouble(chance: random.Random, what: What) -> Trouble:
    return Trouble(chance.uniform(*APART), what, chance.random())


def kills(plan: list[Trouble]) -> int:
    return sum(trouble.what in KILLS for trouble in plan)
