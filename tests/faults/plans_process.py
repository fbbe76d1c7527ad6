"""What happens to the process and to time: drain, kill, long silences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from tests.faults.play import Plan
from tests.faults.world import World


def after(seconds: float, what: str) -> Callable[[World], None]:
    """In the middle of the scenario the process ends, by `drain` or `kill`, and another begins."""

    def install(world: World) -> None:
        world.nursery.start_soon(world.act_after, seconds, what)

    return install


def between(seconds: float) -> Callable[[World], None]:
    """Nothing is said for so long between two steps of the scenario."""

    def install(world: World) -> None:
        async def pause() -> None:
            world.fire(f"{seconds} s of silence")
            await trio.sleep(seconds)

        world.between = pause

    return install


def _plan(name: str, install: Callable[[World], None], *needs: str, **more: Any) -> Plan:
    return Plan(f"process: {name}", install, frozenset(needs), spares=False, **more)


BROKEN = frozenset({"broken"})

PLANS = (
    _plan("is drained at once", after(0.0, "drain"), allowed=BROKEN),
    _plan("is drained in the middle", after(0.5, "drain"), "stream", allowed=BROKEN),
    _plan(
        "is drained, and has little time",
        after(0.5, "drain"),
        "stream",
        allowed=BROKEN,
        limits={"drain_deadline": 1.2},
    ),
    _plan("is killed at once", after(0.0, "kill"), allowed=BROKEN),
    _plan("is killed in the middle", after(0.5, "kill"), "stream", allowed=BROKEN),
    _plan("is killed late", after(0.65, "kill"), "report", allowed=BROKEN),
    _plan("the session leaves memory in the middle", between(100.0), "steps", limits={"passivate_after": 20.0}),
    _plan("the session ends in the middle, idle", between(2500.0), "steps", allowed=frozenset({"gone"})),
)
