"""The faults of tests/faults for clients of both eras on a channel, and what can happen to a channel.

The promises are the same as by HTTP; nothing is resumed by the client. What a fault does behind the door is tried over
HTTP, in every scenario (`test_plans`). Here are the places where what the door says has to become what a channel says:
each fault of a server in two scenarios, each of the store and of an actor in one, and two clients with the same ids
where the process or a channel is what fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
import trio

from tests.faults import plans_backend, plans_crash, plans_process, plans_store
from tests.faults.channel_client import ChannelClient
from tests.faults.play import Plan, play
from tests.faults.scenarios import SCENARIOS, Scenario
from tests.faults.world import World, run

SCENES = {scene.name: scene for scene in SCENARIOS}
STREAMS, ASKS, CANCELS = (SCENES[name] for name in ("a call that streams", "a call that asks", "cancelled calls"))
TWINS = SCENES["two sessions with the same ids"]
BROKEN = frozenset({"broken"})


def then(seconds: float, do: Callable[[ChannelClient], None]) -> Callable[[World], None]:
    """So much later this happens to the victim's channel."""

    def install(world: World) -> None:
        async def go() -> None:
            world.fire("the channel")
            await trio.sleep(seconds)
            assert isinstance(world.victim, ChannelClient)
            if world.victim.wire is not None:
                do(world.victim)

        world.nursery.start_soon(go)

    return install


def leave(client: ChannelClient) -> None:
    """It hangs up."""
    assert client.wire is not None
    client.wire.hang_up()


def read_nothing(client: ChannelClient) -> None:
    """Nothing is taken from the channel any more."""
    assert client.wire is not None
    client.wire.stuck = True


def talk_nonsense(client: ChannelClient) -> None:
    """Whatever is no message, among those that are."""
    assert client.wire is not None
    for frame in (
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"jsonrpc":"2.0","id":{},"method":"ping"}',
        b'{"id":77,"result":{}}',
    ):
        client.wire.say(frame)


def a_plan(name: str, install: Callable[[World], None], **more: object) -> Plan:
    return Plan(f"channel: {name}", install, **more)  # type: ignore[arg-type]


OWN = (
    a_plan("it is closed at once", then(0.0, leave), allowed=BROKEN),
    a_plan("it is closed in the middle", then(0.5, leave), allowed=BROKEN),
    a_plan("nobody reads it", then(0.3, read_nothing), allowed=BROKEN, within=60.0),
    a_plan("nonsense comes", then(0.1, talk_nonsense), harmless=True),
)
Cell = tuple[Plan, Scenario, str]
BOTH = ("legacy", "modern")


def suiting(plans: tuple[Plan, ...], *scenes: Scenario) -> Iterator[tuple[Plan, Scenario]]:
    """Each of these faults in each of these scenarios where it can happen to somebody who never comes back."""
    for plan in plans:
        if not {"goes on", "back"} & plan.needs:
            yield from ((plan, scene) for scene in scenes if plan.suits(scene))


def of_servers() -> Iterator[Cell]:
    """Two scenarios for each, and eras by turns."""
    for number, plan in enumerate(plans_backend.PLANS):
        scenes = [scene for place, scene in enumerate((STREAMS, ASKS, CANCELS)) if place != number % 3]
        for turn, (_, scene) in enumerate(suiting((plan,), *scenes)):
            yield plan, scene, BOTH[(number // 3 + turn) % 2]


def of_the_process() -> Iterator[Cell]:
    for number, (plan, scene) in enumerate(suiting((*OWN, *plans_process.PLANS), STREAMS, ASKS, CANCELS, TWINS)):
        yield plan, scene, BOTH[number % 2]


def of_the_store() -> Iterator[Cell]:
    """Of a session alone anything is kept. One that ends takes its channel with it."""
    for number, plan in enumerate((*plans_store.PLANS, *plans_crash.PLANS)):
        found = list(suiting((plan,), STREAMS, ASKS))
        if found:
            ends = plan.name == "bug: the session, twice"
            yield (
                replace(plan, allowed=plan.allowed | BROKEN) if ends else plan,
                found[number % len(found)][1],
                "legacy",
            )


MATRIX = (*of_servers(), *of_the_process(), *of_the_store())


@pytest.mark.parametrize("tenth", range(10))
def test_the_promises_hold_on_a_channel(tenth: int, subtests: pytest.Subtests) -> None:
    for number in range(tenth, len(MATRIX), 10):
        plan, scene, era = MATRIX[number]
        with subtests.test(plan=str(plan), scenario=str(scene), era=era):
            run(partial(play, plan, scene, era))
