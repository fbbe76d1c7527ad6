"""Whatever ids, tokens and orders clients choose, nobody gets anything of another (a property)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.interaction.backend import Request, text
from tests.interaction.scripts import FORM
from tests.interaction.stage import Cell, Era, Stage, Way, open_stage
from tests.support.modern_wire import ModernCall
from tests.support.schemas import MODERN, NEWEST
from tests.support.wire_client import Call, Message

TOKENS = {name: f"token-of-{name}" for name in ("ann", "bob")}
"""Two principals."""


class Plan(NamedTuple):
    """One call of one client: with few ids and tokens, so that they meet."""

    who: str
    session: bool
    channel: bool
    """Without a session: a channel of its own, instead of HTTP."""
    id: int | str
    token: int | str
    asks: bool
    cut: bool


plans = st.builds(
    Plan,
    who=st.sampled_from(sorted(TOKENS)),
    session=st.booleans(),
    channel=st.booleans(),
    id=st.sampled_from([1, "1", 2]),
    token=st.sampled_from([1, "1"]),
    asks=st.booleans(),
    cut=st.booleans(),
)


@pytest.mark.hypothesis
@pytest.mark.parametrize("era", ["modern", "legacy", "dual"])
@pytest.mark.requirement("bridge-isolation", "pitfall-5", "pitfall-6", "pitfall-30", "isolation")
def test_nobody_gets_anything_of_another(era: Era) -> None:
    """Over a channel that nothing relates to requests but what is said on it."""

    @given(st.lists(plans, min_size=2, max_size=7), st.randoms(use_true_random=False))
    def holds(made: list[Plan], random: Any) -> None:
        order = list(range(len(made)))
        random.shuffle(order)
        trio.run(_play, era, made, order, clock=MockClock(autojump_threshold=0))

    holds()


async def _play(era: Era, made: Sequence[Plan], order: Sequence[int]) -> None:
    cell = Cell(MODERN, "memory", "channel", era)
    async with open_stage(cell, limits={}, tokens=TOKENS, redis_url="") as stage:
        await _scene(stage, made, order)


async def _scene(stage: Stage, made: Sequence[Plan], order: Sequence[int]) -> None:
    backend = await stage.backend()
    going = {number: trio.Event() for number in range(len(made))}

    @backend.tool("tell")
    async def tell(request: Request) -> Message:
        number = request.arguments["number"]
        secret = f"secret {number}"
        request.progress(1, message=secret)
        answer: Message = {}
        if made[number].asks:
            form = {**FORM, "message": secret}
            answer = await request.ask("elicitation/create", form)
        await going[number].wait()
        request.progress(2, message=secret)
        return {**text(secret), "_meta": {"answer": answer}}

    async with trio.open_nursery() as nursery:
        for number, plan in enumerate(made):
            client = await _client(stage, plan, number)
            call = client.start_call("alpha__tell", id=plan.id, token=plan.token, number=number)
            nursery.start_soon(_watch, call, plan, number)
        for number in order:
            await trio.sleep(1)
            going[number].set()


async def _client(stage: Stage, plan: Plan, number: int) -> Any:
    """Sessions are everybody's own; plain clients of one principal are one client."""
    capabilities: Message = {"elicitation": {}}
    if plan.session:
        return await stage.connect(token=TOKENS[plan.who], capabilities=capabilities, revision=NEWEST)
    by: Way = "channel" if plan.channel else "http"
    return stage.modern(by=by, token=TOKENS[plan.who], capabilities=capabilities)


async def _watch(call: Any, plan: Plan, number: int) -> None:
    """Reads everything that one call gets, and answers what it asks."""
    mine = f"secret {number}"
    if plan.cut:
        await trio.sleep(0.5)
        call.cut()
        return
    calls: list[Any] = [call]
    answer = {"action": "accept", "content": {"name": mine}}
    if isinstance(call, ModernCall):
        response = await call.response(within=500)
        while response.get("result", {}).get("resultType") == "input_required":
            ((key, asked),) = response["result"]["inputRequests"].items()
            assert asked["params"]["message"] == f"[alpha] {mine}"
            retry = calls[-1].client.retry(calls[-1], response["result"], {key: answer}, progress=plan.token)
            calls.append(retry)
            response = await retry.response(within=500)
    else:
        response = await _until_response(call, mine, answer)
    assert response["result"]["content"] == text(mine)["content"]
    assert response["result"]["_meta"]["answer"] == (answer if plan.asks else {})
    for one in calls:
        told = [m["params"] for m in one.messages if m.get("method") == "notifications/progress"]
        assert all(params["message"] == mine for params in told)


async def _until_response(call: Call, mine: str, answer: Message) -> Message:
    while (message := await call.next(within=500)) is not None:
        if "method" not in message:
            return message
        if message["method"] == "elicitation/create":
            assert message["params"]["message"] == f"[alpha] {mine}"
            await call.client.answer(message, answer)
    raise AssertionError("no response")
