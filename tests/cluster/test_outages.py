"""The store goes away at any operation of a call, and who has it is lost at any other: one outcome, which is true, and
nothing hangs or is left."""

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

from actors.cluster.owner import LAST
from tests.cluster.test_mail import elsewhere, numbers
from tests.support.door_client import Client, Pending
from tests.support.harness import Gateway, open_replicas
from tests.support.mcp_backend import Backend, Request
from tests.support.outages import Wire
from tests.support.scripted import ScriptedTransport

Kind = Literal["json", "streamed", "asking", "lasting"]
"""What the call comes to: one that lasts is resumed at its server."""
Loss = Literal["killed", "killed at once", "paused", "drained", "nothing"]

WITHIN = 40.0
"""Seconds in which a call has its outcome, whatever happens here."""
PAUSE = 6.0
OPERATIONS = 30
"""About so many there are until all is over."""


@dataclass(frozen=True)
class Plan:
    """Of so many replicas one is lost at an operation, the store goes away at another, for so many seconds. 0 owns the
    session, 1 has the client's connection."""

    kind: Kind
    replicas: int
    lost: int
    loss: Loss
    lost_at: int
    away_at: int
    seconds: float
    cut: tuple[int, ...] = ()
    """For whom it goes away; none: for all."""


def plans(kind: Kind) -> st.SearchStrategy[Plan]:
    return st.builds(
        Plan,
        st.just(kind),
        st.integers(2, 3),
        st.integers(0, 1),
        st.sampled_from(("killed", "killed at once", "paused", "drained", "nothing")),
        st.integers(1, OPERATIONS // 3),
        st.integers(1, OPERATIONS),
        st.sampled_from((0.3, 1.5, 4.0, 8.0, 12.0)),
        st.sampled_from(((), (0,), (1,))),
    )


@pytest.mark.parametrize("kind", ["json", "streamed", "asking", "lasting"])
def test_whenever_the_store_goes_away_a_call_has_one_true_outcome(kind):
    @given(plans(kind))
    def each(plan: Plan) -> None:
        trio.run(carried_out, plan, clock=MockClock(autojump_threshold=0))

    each()


class Server:
    """What has the tool; with `lasting`, whoever resumes a call's stream gets what came after a cursor."""

    def __init__(self, kind: Kind) -> None:
        self.backend = Backend("alpha", kind="http", tools=("echo", "work"), held={"work"})
        self._kind = kind
        self._said: dict[Any, list[dict[str, Any]]] = {}
        self._readers: dict[Any, ScriptedTransport] = {}
        self._connect = self.backend.connect
        self.backend.connect = self._connected  # type: ignore[method-assign]

    def _connected(self, *args: Any, **more: Any) -> ScriptedTransport:
        transport = self._connect(*args, **more)
        transport.pick_up = partial(self._pick_up, transport)  # type: ignore[method-assign]
        return transport

    @property
    def executions(self) -> int:
        return len([r for r in self.backend.asked_for("tools/call") if r.params["name"] == "work"])

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                request = await self.backend.next()
                if request.params["name"] == "work":
                    nursery.start_soon(self._call, request)

    async def _call(self, request: Request) -> None:
        await trio.sleep(0.05)
        if self._kind == "asking":
            asked = request.ask("elicitation/create", {"message": "?", "requestedSchema": {"type": "object"}})
            await asked.outcome()
        elif self._kind != "json":
            if self._kind == "lasting":
                self._said[request.id], self._readers[request.id] = [], request.upstream.transport
                request.upstream.transport.prime("0", request.id)
            for step in range(3):
                params = {"progressToken": request.token, "progress": step}
                self._say(request, {"method": "notifications/progress", "params": params})
                await trio.sleep(1)
        self._say(request, {"id": request.id, "result": {"content": [{"type": "text", "text": "done"}]}})

    def _say(self, request: Request, message: dict[str, Any]) -> None:
        said = self._said.get(request.id)
        if said is None:
            request.upstream.transport.deliver(message, request.id)
        else:
            said.append(message)
            self._readers[request.id].deliver(message, request.id, str(len(said)))

    def _pick_up(self, transport: ScriptedTransport, id: Any, cursor: str) -> None:
        self._readers[id] = transport
        for number, message in enumerate(self._said[id][int(cursor) :], int(cursor) + 1):
            transport.deliver(message, id, str(number))


@dataclass
class Caller:
    """One client with one call, which it brings to its end by the rules: it resumes, answers, and never repeats."""

    client: Client
    call: Pending
    parts: list[Pending] = field(default_factory=list)
    refusals: list[int] = field(default_factory=list)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            part = self.call
            while True:
                self.parts.append(part)
                nursery.start_soon(self._answer, part)
                await part.end()
                if self.outcomes or not self._last_id:
                    nursery.cancel_scope.cancel()
                    return
                part = await self._resume()

    @property
    def outcomes(self) -> list[dict[str, Any]]:
        return [m for part in self.parts for m in part.messages if "method" not in m]

    @property
    def events(self) -> list[int]:
        return [n for part in self.parts for n in numbers(part)]

    @property
    def _last_id(self) -> str | None:
        ids = [event.id for part in self.parts for event in part.events if event.id is not None]
        return ids[-1] if ids else None

    async def _answer(self, part: Pending) -> None:
        """The question, until that is accepted: the connection may break, and whoever has it may be away."""
        try:
            asked = await part.next("elicitation/create")
        except AssertionError:
            return  # it ended without one
        while True:
            answer = self.client.post({"id": asked["id"], "result": {"action": "accept", "content": {}}})
            await answer.end()
            if answer.status == 202:
                return
            await trio.sleep(1)

    async def _resume(self) -> Pending:
        while True:
            part = self.client.listen(self._last_id)
            part.id = self.call.id
            status = await part.head()
            if status == 200:
                return part
            self.refusals.append(status)
            assert status == 503, (status, part.messages)
            await trio.sleep(1)


def lose(owner: Gateway, loss: Loss, nursery: trio.Nursery) -> None:
    async def paused() -> None:
        await owner.pause()
        await trio.sleep(PAUSE)
        await owner.resume()

    async def drained() -> None:
        with trio.move_on_after(30):
            await owner.system.drain(4.0)
        owner.kill(at_once=True)

    if loss in ("killed", "killed at once"):
        owner.kill(at_once=loss == "killed at once")
    elif loss != "nothing":
        nursery.start_soon(paused if loss == "paused" else drained)


async def carried_out(plan: Plan, note: Callable[[Wire], object] = lambda wire: None) -> None:
    server = Server(plan.kind)
    async with trio.open_nursery() as nursery, open_replicas(plan.replicas, server.backend) as replicas:
        nursery.start_soon(server.run)
        one, two, *_ = replicas
        client = await elsewhere(one, two, capabilities={"elicitation": {}})
        assert await client.tool("echo") == "alpha: echo"
        await trio.sleep(1)
        wire = Wire(replicas)
        note(wire)
        lost = replicas[plan.lost]

        def lose_it() -> None:
            lose(lost, plan.loss, nursery)
            if lost is two and plan.loss != "nothing":
                client.to(one)  # as a balancer finds out

        wire.at(plan.lost_at, lose_it)
        wire.at(plan.away_at, partial(wire.break_for, plan.seconds, *plan.cut))
        progress = None if plan.kind == "asking" else "t"
        caller = Caller(client, client.begin("tools/call", {"name": "work"}, progress=progress))
        with trio.move_on_after(WITHIN) as scope:
            await caller.run()
        assert not scope.cancelled_caught, f"no outcome: {caller} {server.executions}"
        wire.disarm()
        check(caller, server.executions, broken=lost is two and plan.loss in ("killed", "killed at once", "drained"))
        await trio.sleep(15 + PAUSE + plan.seconds)
        client.to(one if lost is two else two)
        await goes_on(client)
        await trio.sleep(LAST + 5)
        for replica in replicas:
            if replica is not lost or plan.loss in ("paused", "nothing"):
                idle(replica)
        nursery.cancel_scope.cancel()


def check(caller: Caller, executions: int, *, broken: bool) -> None:
    """One outcome, and what it says of the execution is true. `broken`: the process with the connection is no more."""
    assert executions <= 1
    status, outcomes = caller.call.status, caller.outcomes
    assert caller.events == list(range(1, len(caller.events) + 1)), caller.events
    if broken and not caller.events and not outcomes and status in (None, 200):
        return  # its client had nothing to come back with
    assert len(outcomes) == 1 or (status != 200 and not outcomes), (status, outcomes)
    if status != 200:
        assert status == 503, (status, outcomes)
        assert executions == 0, (status, outcomes)
    elif "error" in outcomes[0]:
        assert outcomes[0]["error"]["data"]["executed"] != "no" or not executions, outcomes
    else:
        assert executions == 1


async def goes_on(client: Client) -> None:
    """The session is there, and has one owner."""
    call = client.begin("tools/call", {"name": "echo"})
    await call.end()
    assert [m for m in call.messages if "result" in m], (call.status, call.messages)


def idle(gateway: Gateway) -> None:
    """Nothing is kept of what is over."""
    left = gateway.left()
    assert left["requests"] == left["streams"] == 0, left
    mailer = gateway.system.registry.whereis("mailer")
    assert mailer is not None
    actor = mailer.cell.actor  # type: ignore[union-attr]
    assert (actor.holder.idle, actor.owner.idle) == (True, True), actor.holder.feeds
    assert not gateway.actors.sessions.under_way
