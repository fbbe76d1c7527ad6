"""The store goes away at any operation of a modern client's call of a legacy server, loses what it had, and who has the
pool, or the client's connection, is lost at any other: one outcome, which is true, and nothing hangs or is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.cluster.test_outages import PAUSE, Loss, lose
from tests.support.door_client import Message, Pending
from tests.support.harness import Gateway, open_replicas
from tests.support.mcp_backend import Backend, Request
from tests.support.outages import Wire
from tests.support.pooled import FORM, asker, client, echo, retry

Kind = Literal["plain", "asking"]

WITHIN = 40.0
"""Seconds in which a request has its outcome, whatever happens here."""
OPERATIONS = 24
"""About so many there are until all is over."""


@dataclass(frozen=True)
class Plan:
    """Of so many replicas one is lost at an operation, and the store goes away at another, for so many seconds. 0 owns
    the pool, unless it is `fresh`. The client comes to these replicas, with its call and with its answers."""

    kind: Kind
    transport: str
    replicas: int
    fresh: bool
    at: tuple[int, int]
    lost: int
    loss: Loss
    lost_at: int
    away_at: int
    seconds: float
    cut: tuple[int, ...]
    """For whom it goes away; none: for all."""
    flushed_at: int | None
    """When the store loses all that it had."""


def plans(kind: Kind) -> st.SearchStrategy[Plan]:
    return st.builds(
        Plan,
        st.just(kind),
        st.sampled_from(("http", "stdio")),
        st.integers(2, 3),
        st.booleans(),
        st.tuples(st.integers(0, 1), st.integers(0, 1)),
        st.integers(0, 1),
        st.sampled_from(("killed", "killed at once", "paused", "drained", "nothing")),
        st.integers(1, OPERATIONS // 2),
        st.integers(1, OPERATIONS),
        st.sampled_from((0.3, 1.5, 4.0, 8.0, 12.0)),
        st.sampled_from(((), (0,), (1,))),
        st.one_of(st.none(), st.integers(1, OPERATIONS)),
    )


@pytest.mark.parametrize("kind", ["plain", "asking"])
def test_whenever_the_store_goes_away_a_modern_clients_call_has_one_true_outcome(kind):
    @given(plans(kind))
    def each(plan: Plan) -> None:
        trio.run(carried_out, plan, clock=MockClock(autojump_threshold=0))

    each()


async def serve(alpha: Backend, kind: Kind) -> None:
    """The held tool takes a moment, and asks first if it is to."""

    async def call(request: Request) -> None:
        await trio.sleep(0.05)
        if kind == "asking":
            await request.ask("elicitation/create", FORM).outcome()
            await trio.sleep(0.05)
        request.text("done")

    async with trio.open_nursery() as nursery:
        while True:
            request = await alpha.next()
            if request.params["name"] == "ask":
                nursery.start_soon(call, request)


@dataclass
class Caller:
    """One client with one call, who comes with answers where it is asked, and repeats nothing. `homes`: where it comes
    to; who is gone has no more requests by the balancer, which has another for it."""

    homes: list[Gateway]
    another: Gateway
    gone: set[int] = field(default_factory=set)
    parts: list[Pending] = field(default_factory=list)

    async def run(self) -> None:
        params: dict[str, Any] | None = {"name": "ask"}
        for home in self.homes:
            part = client(home if id(home) not in self.gone else self.another).begin("tools/call", params)
            self.parts.append(part)
            await part.end()
            answers = answers_of(part)
            if not answers or answers[0].get("result", {}).get("resultType") != "input_required":
                return
            params = retry(answers[0]["result"])


def answers_of(part: Pending) -> list[Message]:
    return [message for message in part.messages if "method" not in message]


async def carried_out(plan: Plan, note: Callable[[Wire], object] = lambda wire: None) -> None:
    alpha = asker(plan.transport)
    async with trio.open_nursery() as nursery, open_replicas(plan.replicas, alpha) as replicas:
        nursery.start_soon(serve, alpha, plan.kind)
        if not plan.fresh:
            assert await echo(client(replicas[0])) == "alpha: hi"
        await trio.sleep(1)
        wire = Wire(replicas)
        note(wire)
        lost = replicas[plan.lost]
        ends = plan.loss in ("killed", "killed at once", "drained")

        def flush() -> None:
            replicas[0].store.lose()  # type: ignore[attr-defined]
            for gateway in replicas:
                if not (ends and gateway is lost):
                    gateway.store.replica.find_loss()  # type: ignore[attr-defined]

        caller = Caller([replicas[number] for number in plan.at], replicas[1 - plan.lost])

        def lose_it() -> None:
            lose(lost, plan.loss, nursery)
            if ends:
                caller.gone.add(id(lost))

        wire.at(plan.lost_at, lose_it)
        wire.at(plan.away_at, partial(wire.break_for, plan.seconds, *plan.cut))
        if plan.flushed_at is not None:
            wire.at(plan.flushed_at, flush)
        with trio.move_on_after(2 * WITHIN) as scope:
            await caller.run()
        broken = ends and lost in caller.homes
        assert broken or not scope.cancelled_caught, f"no outcome: {caller}"
        wire.disarm()
        executions = len([r for r in alpha.asked_for("tools/call") if r.params["name"] == "ask"])
        check(caller, executions, broken=broken)
        await trio.sleep(15 + PAUSE + plan.seconds)
        for replica in replicas:
            if replica is not lost or not ends:
                with trio.fail_after(WITHIN):
                    assert await echo(client(replica), "again") == "alpha: again"
                assert replica.left()["requests"] == 0
        nursery.cancel_scope.cancel()


def check(caller: Caller, executions: int, *, broken: bool) -> None:
    """One answer to each request, and what it says of the execution is true. `broken`: a process that had one of the
    connections is no more."""
    assert executions <= 1
    for part in caller.parts:
        answers = answers_of(part)
        assert len(answers) == 1 or (broken and not answers), (part.status, answers)
        for answer in answers:
            if "error" in answer:
                data = answer["error"].get("data") or {}
                assert data.get("executed") != "no" or not executions, answers
            else:
                assert executions == 1
