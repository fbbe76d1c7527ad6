"""Faults of servers and of the process, for clients of both eras on a channel, and what can happen to a channel.

The promises are the same as by HTTP; nothing is resumed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import trio

from tests.faults import plans_backend, plans_process
from tests.faults.channel_client import ChannelClient
from tests.faults.play import Plan, play
from tests.faults.scenarios import SCENARIOS
from tests.faults.world import World, run

PLAYED = {"a call that streams", "a call that asks", "cancelled calls"}
"""What is no matter of HTTP's own."""
SCENES = tuple(scene for scene in SCENARIOS if scene.name in PLAYED)
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
PLANS = (*OWN, *(plan for plan in (*plans_backend.PLANS, *plans_process.PLANS) if not {"goes on", "back"} & plan.needs))
MATRIX = tuple((plan, scene) for plan in PLANS for scene in SCENES if plan.suits(scene))


def era_of(number: int) -> str:
    """Both eras meet every fault, each in some of the scenarios."""
    return "legacy" if number % 4 == 0 else "modern"


@pytest.mark.parametrize("tenth", range(10))
def test_the_promises_hold_on_a_channel(tenth: int, subtests: pytest.Subtests) -> None:
    for number in range(tenth, len(MATRIX), 10):
        plan, scene = MATRIX[number]
        with subtests.test(plan=str(plan), scenario=str(scene), era=era_of(number)):
            run(partial(play, plan, scene, era_of(number)))
