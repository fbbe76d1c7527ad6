"""Plays one scenario under one plan, and asks for the promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import trio

from tests.faults import promises
from tests.faults.lasting import Memory
from tests.faults.scenarios import Scenario
from tests.faults.server import Server
from tests.faults.world import World, open_world
from tests.support.mcp_backend import Kind

SOON = 20.0
"""Seconds in which the bystander is answered, whatever happens to others."""


LATEST = 12.0
"""Seconds until a request has its outcome, unless the plan says otherwise: no wait for a deadline is as short."""


@dataclass(frozen=True)
class Plan:
    """One fault. `install` arms it when the scenario begins; it tells the world when it fires.

    `needs`: what must happen in a scenario for it to fire, and `without`: what must not. `allowed`: kinds of outcome,
    beside an answer and a refusal, that it excuses. `harmless`: every request has a result all the same, but for what
    the scenario is a reason for; `strict`: even then. `complete`: and nothing that a server reported is missing.
    `spares`: the bystander notices nothing. `crashes`: actors crash. `within`: seconds from each request to its
    outcome.
    """

    name: str
    install: Callable[[World], None]
    needs: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()
    allowed: frozenset[str] = frozenset()
    harmless: bool = False
    strict: bool = False
    complete: bool = False
    spares: bool = True
    crashes: bool = False
    within: float = LATEST
    kind: Kind = "http"
    limits: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    @property
    def group(self) -> str:
        """Whose fault it is."""
        return self.name.split(":")[0]

    def suits(self, scenario: Scenario) -> bool:
        """Whether it can fire there."""
        return self.needs <= scenario.has and not self.without & scenario.has


async def play(plan: Plan, scenario: Scenario, channel: str = "") -> None:
    """Raises AssertionError for a promise that was broken, or a fault that never happened. `channel`: the era of those
    who come on a channel each; the bystander comes by HTTP."""
    async with open_world(plan.kind, {**scenario.limits, **plan.limits}) as world:
        world.channel = channel
        await set_out(world, scenario)
        plan.install(world)
        await act(world, scenario, watched=plan.spares)
        assert world.fired or any(rule.fired for rule in world.store.rules), "the fault never happened"
        fates = [one for client in world.clients for one in client.fates]
        await recover(world, spared=plan.spares)
        promises.check(world, plan.allowed | scenario.allowed, spared=plan.spares)
        late = [one for one in fates if one[1].seconds > plan.within]
        assert not late, f"later than {plan.within} s: {late}"
        if plan.complete:
            promises.check_reports(world)
        failed = [one for one in fates if (plan.harmless or plan.complete) and not _fine(plan, scenario, one[1])]
        assert not failed, f"this fault is harmless, but: {failed}"
        await promises.check_nothing_left(world)
        crashes = world.life.gateway.crashes + world.crashes
        assert plan.crashes or not crashes, crashes
        world.life.gateway.crashes.clear()


def _fine(plan: Plan, scenario: Scenario, fate: Any) -> bool:
    too_many = fate.status == 429 and "too many" in scenario.has
    cancelled = fate.error.get("code") == -32800 and "cancel" in scenario.has
    ended = "delete" in scenario.has and fate.error.get("data", {}).get("reason") in ("delete", "actor_ended")
    reason = fate.error.get("data", {}).get("reason")
    interrupted = "goes on" in scenario.has and not plan.strict and reason in ("actor_ended", "owner_lost")
    return fate.ok or too_many or cancelled or ended or interrupted or fate.kind in scenario.allowed


async def set_out(world: World, scenario: Scenario) -> None:
    """Two sessions; the bystander has called something, so that it has connections of its own."""
    if scenario.lasting and isinstance(world.alpha, Server):
        world.alpha.memory = Memory()
    world.bystander = world.client("bystander", asks=False)
    assert await world.bystander.initialize()
    assert (await world.bystander.call("quick")).ok
    world.victim = world.client("victim", revision=scenario.revision, endpoint=scenario.endpoint)
    assert await world.victim.initialize()
    world.store.whose = world.is_victims


async def act(world: World, scenario: Scenario, *, watched: bool) -> None:
    """The scenario, while the bystander goes on with its own work."""
    async with trio.open_nursery() as nursery:
        if watched:
            nursery.start_soon(_stand_by, world)
        await scenario.run(world)
        nursery.cancel_scope.cancel()
    await world.finished()


async def _stand_by(world: World) -> None:
    """Calls again and again, ever more slowly, but never so slowly that its session leaves memory: what has to connect
    again is touched by whatever keeps others from it. Each call is answered soon."""
    pause = 0.1
    while True:
        await trio.sleep(pause)
        pause = min(1.7 * pause, world.limits.passivate_after / 2)
        with trio.CancelScope(shield=True), trio.fail_after(SOON):
            await world.bystander.call("quick")
            await world.bystander.request("ping")


async def recover(world: World, *, spared: bool = True) -> None:
    """The trouble is over: victim and bystander work, be it in a session begun anew."""
    world.patches.close()
    world.trouble = None
    world.store.rules = [rule for rule in world.store.rules if rule.fired]
    for rule in world.store.rules:
        rule.methods = frozenset()
    world.alpha.fault = lambda request: False
    world.alpha.bug = lambda key: None
    for client in (world.victim, world.bystander):
        for attempt in range(8):
            fate = await client.call("quick")
            if fate.ok:
                break
            if fate.status == 404:
                assert client is world.victim or not spared, "the bystander's session is gone"
                await client.initialize()
            await trio.sleep(5 * attempt)
        else:
            raise AssertionError(f"{client.who} is not served again: {fate}")
