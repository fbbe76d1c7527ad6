"""Runs of trio that are the same every time."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio
from trio._core import _run
from trio.testing import MockClock


def run(fn: Callable[..., Awaitable[object]], *args: Any, seed: int = 0, instruments: Sequence[Any] = ()) -> None:
    """On a loop and an autojump clock of its own. The order in which trio runs the tasks of one batch is random; it
    follows from the seed, which trio takes nowhere else."""
    _run._r.seed(seed)
    trio.run(fn, *args, clock=MockClock(autojump_threshold=0), instruments=instruments)
