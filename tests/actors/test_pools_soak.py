"""Many clients, one backend, anything at any time: each exchange has at most one answer, each question one, each call
one execution, and in the end nothing is left."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import trio

from actors.pools.messages import UpstreamSuspended
from actors.ports import Principal
from actors.upstreams.messages import UpstreamOutcome
from tests.support.harness import open_gateway
from tests.support.mcp_backend import Backend, Kind, Request, ServerRequested
from tests.support.pool_client import PoolClient, pools_of

ASKS: dict[str, dict[str, Any]] = {
    "elicitation/create": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
    "sampling/createMessage": {"messages": [], "maxTokens": 1},
    "roots/list": {},
}
ANSWERS: dict[str, Any] = {
    "elicitation/create": {"action": "accept"},
    "sampling/createMessage": {"role": "assistant", "model": "m", "content": {"type": "text", "text": "x"}},
    "roots/list": {"roots": []},
}


class World:
    """What happened, and the dice."""

    def __init__(self, backend: Backend, clients: list[PoolClient], seed: int) -> None:
        self.backend = backend
        self.clients = clients
        self.dice = random.Random(seed)
        self.begun = 0
        self.suspended: list[tuple[PoolClient, UpstreamSuspended]] = []
        self.asked: list[tuple[Request, ServerRequested]] = []
        self.seen: Counter[int] = Counter()

    def open_requests(self) -> list[Request]:
        """What the backend works on."""
        return [
            r
            for r in self.backend.asked_for("tools/call")
            if not r.cancelled.is_set() and not r.upstream.transport.closed and not getattr(r, "over", False)
        ]

    def notice(self) -> None:
        """The parks that clients have heard of since."""
        for client in self.clients:
            for message in client.messages[self.seen[id(client)] :]:
                if isinstance(message, UpstreamSuspended):
                    self.suspended.append((client, message))
            self.seen[id(client)] = len(client.messages)

    def step(self) -> None:
        """Anything that may happen."""
        dice, client = self.dice, self.dice.choice(self.clients)
        requests = self.open_requests()
        what = dice.choice(("call", "ask", "ask", "answer", "answer", "end", "leave", "replay", "die", "progress"))
        if what == "call":
            self.begun += 1
            client.tool("ask", level=dice.choice((None, "info")), progress=dice.random() < 0.5)
        elif what == "ask" and requests:
            request, method = dice.choice(requests), dice.choice(tuple(ASKS))
            self.asked.append((request, request.ask(method, ASKS[method])))
        elif what == "answer" and self.suspended:
            who, suspended = self.suspended.pop(dice.randrange(len(self.suspended)))
            some = [q for q in suspended.requests if dice.random() < 0.9]
            who.resume(suspended, {q.key: ANSWERS[q.method] if dice.random() < 0.95 else {} for q in some})
        elif what == "replay" and self.suspended:
            who, suspended = dice.choice(self.suspended)
            who.resume(suspended, {}, round=suspended.round + dice.choice((-1, 1)))
        elif what == "end" and requests:
            request = dice.choice(requests)
            request.over = True  # type: ignore[attr-defined]
            request.text("done")
        elif what == "leave":
            client.cancel(dice.randint(1, 1 + len(client.messages)))
        elif what == "progress" and requests:
            dice.choice(requests).progress(dice.random())
        elif what == "die" and self.backend.open and dice.random() < 0.2:
            dice.choice(self.backend.open).die()


def outcomes(clients: list[PoolClient]) -> list[UpstreamOutcome]:
    """All that anybody got."""
    return [message for client in clients for message in client.messages if isinstance(message, UpstreamOutcome)]


@pytest.mark.parametrize("kind", ["stdio", "http"])
@pytest.mark.parametrize("seed", range(6))
async def test_whatever_happens_nothing_is_left(kind: Kind, seed: int, autojump_clock: Any) -> None:
    backend = Backend("alpha", tools=("ask",), held={"ask"}, kind=kind)
    async with open_gateway(backend) as gateway:
        before = gateway.left()
        pools = pools_of(gateway)
        bits = ("roots", "sampling", "elicit.form")
        clients = [PoolClient(gateway, pools, "alpha", bits, principal=Principal(n)) for n in "aabc"]
        world = World(backend, clients, seed)
        for _ in range(300):
            world.step()
            await trio.sleep(world.dice.choice((0, 0, 0.01, 0.05, 1, 20)))
            world.notice()
        for client in clients:
            client.ref.stop()
        await trio.sleep(3_000)
        for client in clients:
            answers = Counter(m.call for m in client.messages if isinstance(m, (UpstreamOutcome, UpstreamSuspended)))
            assert set(answers.values()) == {1}
        assert sum(answered.ok for answered in outcomes(clients)) > 3
        assert sum(isinstance(m, UpstreamSuspended) for c in clients for m in c.messages) > 10
        assert len(backend.asked_for("tools/call")) <= world.begun
        for request, asked in world.asked:
            assert len(asked.answers) == 1 or request.upstream.transport.closed, (request.id, asked.answers)
            assert len(asked.answers) <= 1
        assert not backend.open
        assert pools.suspended.total == 0
        assert gateway.left()["upstreams"] == before["upstreams"]
        assert gateway.telemetry.gauges["stagedoor_parked_calls", ()] == 0
