"""Two faults at once: chosen ones, which meet in the same place, and any two that are of different making."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from unittest import mock

from actors.ports import Refused
from tests.faults import plans_backend, plans_client, plans_crash, plans_process, plans_store
from tests.faults.client import Client
from tests.faults.plans_client import at, leave, resume_twice
from tests.faults.plans_process import after, between
from tests.faults.plans_store import ALL, EVERY, HELD, WRITES, rule
from tests.faults.play import Plan
from tests.faults.scenarios import SCENARIOS, Scenario
from tests.faults.world import World

Install = Callable[[World], None]

LATE = rule(*WRITES, effect="late", seconds=0.5, times=EVERY)


def together(*installs: Install) -> Install:
    """All of them."""

    def install(world: World) -> None:
        for one in installs:
            one(world)

    return install


def hastily(world: World) -> None:
    """Clients resume at once."""
    world.patches.enter_context(mock.patch.object(Client, "resume_after", 0.0))


PLANS = (
    Plan(
        "both: acknowledgements are late, and the client resumes meanwhile",
        together(LATE, hastily, at("event", leave, events=1)),
        frozenset({"stream"}),
        complete=True,
    ),
    Plan(
        "both: acknowledgements are late, and an append is refused, away",
        together(rule("append", first=2), LATE),
        frozenset({"opens"}),
    ),
    Plan(
        "both: acknowledgements are late, and an append is refused, full",
        together(rule("append", first=2, reason=Refused.FULL), LATE),
        frozenset({"report"}),
        without=frozenset({"ask"}),
    ),
    Plan(
        "both: an append is refused, and then its repetition",
        rule("append", first=2, times=3),
        frozenset({"opens"}),
    ),
    Plan(
        "both: the store is away, and the client resumes twice at once",
        together(rule(*ALL, seconds=5.0, **HELD), at("event", resume_twice, events=1)),
        frozenset({"stream"}),
        without=frozenset({"new", "goes on"}),
        harmless=True,
    ),
    Plan(
        "both: nothing is asked for a while, and the process is killed",
        together(between(6.0), after(3.5, "kill")),
        frozenset({"steps"}),
        spares=False,
        harmless=True,
    ),
    Plan(
        "both: nothing is asked for a while, and the process is drained",
        together(between(20.0), after(3.5, "drain")),
        frozenset({"steps"}),
        spares=False,
        harmless=True,
    ),
    Plan(
        "both: a save is refused, and the process is killed after its repetition",
        together(rule("save"), between(6.0), after(3.5, "kill")),
        frozenset({"steps", "saves"}),
        spares=False,
        harmless=True,
    ),
)

SINGLE = (*plans_store.PLANS, *plans_backend.PLANS, *plans_client.PLANS, *plans_crash.PLANS, *plans_process.PLANS)


def pair(chance: Random) -> tuple[Plan, Scenario]:
    """Any two plans of different groups, in a scenario in which both can happen."""
    while True:
        one, other = chance.sample(SINGLE, 2)
        suited = [scenario for scenario in SCENARIOS if one.suits(scenario) and other.suits(scenario)]
        if not (_lasts(one) and _lasts(other)):
            suited = [scenario for scenario in suited if not scenario.lasting]
        if one.group != other.group and suited and len({one.kind, other.kind, "http"}) < 3:
            return _both(one, other), chance.choice(suited)


def _lasts(plan: Plan) -> bool:
    """Whether what it does to a call reaches those who go on with it, and not only who has begun it."""
    return plan.kind == "http" and (plan.group != "server" or "goes on" in plan.needs)


def _both(one: Plan, other: Plan) -> Plan:
    # What could not be written while the store did not listen goes with the process, or the actor, that knew it.
    groups = {one.group, other.group}
    unwritten = frozenset({"gone"}) if "store" in groups and groups & {"process", "bug"} else frozenset()
    return Plan(
        f"{one} + {other}",
        together(one.install, other.install),
        allowed=one.allowed | other.allowed | unwritten,
        spares=one.spares and other.spares,
        crashes=one.crashes or other.crashes,
        within=one.within + other.within + 20,
        kind=other.kind if one.kind == "http" else one.kind,
        limits={**one.limits, **other.limits},
    )
