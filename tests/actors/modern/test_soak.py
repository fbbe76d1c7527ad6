"""Many clients that say the same things at once, and do what clients do: nobody gets anything of anybody else."""

import random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from actors.ports import Principal
from tests.support.door_client import Pending
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend, Request
from tests.support.modern_backend import ModernBackend, needs
from tests.support.modern_client import ModernClient

CLIENTS, ROUNDS = 6, 12
FORM: Any = {"elicitation": {}}
QUESTION: Any = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}


class Visitor:
    """A client whose calls all carry its mark; ids and tokens are those of everybody."""

    def __init__(self, at: Gateway, number: int, dice: random.Random) -> None:
        self.mark = f"client {number}"
        self.dice = dice
        self.endpoint = dice.choice(["alpha", "beta"])
        principal = Principal(f"principal {number % 2}")
        self.client = ModernClient(at.actors.door, at.nursery, self.endpoint, principal, capabilities=FORM)
        self.ends = 0

    async def visit(self) -> None:
        for round in range(ROUNDS):
            params: Any = {"name": "slow", "arguments": {"mark": self.mark, "round": round}}
            pending = self.client.begin("tools/call", params, id=1, progress="t", level="debug")
            if self.dice.random() < 0.25:
                await trio.sleep(self.dice.random())
                pending.drop()
                await pending.end()
                self.check(pending)
                continue
            while (asked := await self.outcome(pending)) is not None:
                (key,) = asked["inputRequests"]
                answers = {key: {"action": "accept", "content": {"mark": self.mark}}}
                retry = {"inputResponses": answers}
                if "requestState" in asked:
                    retry["requestState"] = asked["requestState"]
                pending = self.client.begin("tools/call", {**params, **retry}, id=1, progress="t", level="debug")

    async def outcome(self, pending: Pending) -> Any:
        """The questions that came instead of an outcome."""
        response = await pending.response()
        self.check(pending)
        if "error" in response:
            assert response["error"]["code"] in (-32603, -32602), response
            return None
        result = response["result"]
        if result["resultType"] == "input_required":
            assert result["inputRequests"]
            return result
        assert result["content"][0]["text"] == self.mark
        self.ends += 1
        return None

    def check(self, pending: Pending) -> None:
        for message in pending.messages:
            if "method" in message:
                params = message["params"]
                assert params.get("message", params.get("data")) == self.mark
        assert sum("method" not in message for message in pending.messages) <= 1


async def serve(backend: Backend, dice: random.Random, nursery: trio.Nursery) -> None:
    """Answers every call in its own time."""
    while True:
        nursery.start_soon(answer, backend, await backend.next(), dice)


async def answer(backend: Backend, request: Request, dice: random.Random) -> None:
    """Progress, a log message, perhaps a question, and the mark of whoever asked."""
    mark = request.params["arguments"]["mark"]
    if dice.random() < 0.5:
        request.progress(1, message=mark)
    if dice.random() < 0.5 and backend.kind == "http":
        request.log(mark)
    await trio.sleep(dice.random())
    if dice.random() < 0.4 and not request.cancelled.is_set():
        if not isinstance(backend, ModernBackend):
            outcome = await request.ask("elicitation/create", QUESTION).outcome()
            if "result" in outcome and "content" in outcome["result"]:
                assert outcome["result"]["content"]["mark"] == mark
        elif "inputResponses" not in request.params:
            needs(request, f"state of {mark}", q={"method": "elicitation/create", "params": QUESTION})
            return
    if "requestState" in request.params:
        assert request.params["requestState"] == f"state of {mark}"
    request.text(mark)


@pytest.mark.parametrize("seed", range(8))
async def test_nobody_gets_anything_of_anybody_else(autojump_clock: MockClock, seed: int) -> None:
    dice = random.Random(seed)
    kind: Any = dice.choice(["http", "stdio"])
    alpha = ModernBackend("alpha", kind=kind, tools=("slow",), held={"slow"})
    beta = Backend("beta", kind="http", tools=("slow",), held={"slow"})
    async with open_gateway(alpha, beta) as at:
        before = at.left()
        visitors = [Visitor(at, number, dice) for number in range(CLIENTS)]
        async with trio.open_nursery() as backends:
            for backend in (alpha, beta):
                backends.start_soon(serve, backend, dice, backends)
            async with trio.open_nursery() as nursery:
                for visitor in visitors:
                    nursery.start_soon(visitor.visit)
            backends.cancel_scope.cancel()
        assert sum(visitor.ends for visitor in visitors) > CLIENTS * ROUNDS / 4
        assert at.actors.quotas.requests.total == at.actors.quotas.modern_requests == 0
        await trio.sleep(4000)
        assert at.left() == before
