"""Many clients, one backend, anything at any time: each exchange has at most one answer, each question one, each call
one execution, and in the end nothing is left."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import trio

from actors.brokers.pool_messages import LinkParked
from actors.links.link_messages import LinkOutcome
from actors.ports import Principal
from tests.support.broker_client import BrokerClient, brokers_of
from tests.support.harness import open_gateway
from tests.support.mcp_backend import Asked, Backend, Kind, Request

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

    def __init__(self, backend: Backend, clients: list[BrokerClient], seed: int) -> None:
        self.backend = backend
        self.clients = clients
        self.dice = random.Random(seed)
        self.begun = 0
        self.parked: list[tuple[BrokerClient, LinkParked]] = []
        self.asked: list[tuple[Request, Asked]] = []
        self.seen: Counter[int] = Counter()

    def open_requests(self) -> list[Request]:
        """What the backend works on."""
        return [
            r
            for r in self.backend.asked_for("tools/call")
            if not r.cancelled.is_set() and not r.link.transport.closed and not getattr(r, "over", False)
        ]

    def notice(self) -> None:
        """The parks that clients have heard of since."""
        for client in self.clients:
            for message in client.messages[self.seen[id(client)] :]:
                if isinstance(message, LinkParked):
                    self.parked.append((client, message))
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
        elif what == "answer" and self.parked:
            who, parked = self.parked.pop(dice.randrange(len(self.parked)))
            some = [q for q in parked.requests if dice.random() < 0.9]
            who.resume(parked, {q.key: ANSWERS[q.method] if dice.random() < 0.95 else {} for q in some})
        elif what == "replay" and self.parked:
            who, parked = dice.choice(self.parked)
            who.resume(parked, {}, round=parked.round + dice.choice((-1, 1)))
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


def outcomes(clients: list[BrokerClient]) -> list[LinkOutcome]:
    """All that anybody got."""
    return [message for client in clients for message in client.messages if isinstance(message, LinkOutcome)]


@pytest.mark.parametrize("kind", ["stdio", "http"])
@pytest.mark.parametrize("seed", range(6))
async def test_whatever_happens_nothing_is_left(kind: Kind, seed: int, autojump_clock: Any) -> None:
    backend = Backend("alpha", tools=("ask",), held={"ask"}, kind=kind)
    async with open_gateway(backend) as gateway:
        before = gateway.left()
        brokers = brokers_of(gateway)
        bits = ("roots", "sampling", "elicit.form")
        clients = [BrokerClient(gateway, brokers, "alpha", bits, principal=Principal(n)) for n in "aabc"]
        world = World(backend, clients, seed)
        for _ in range(300):
            world.step()
            await trio.sleep(world.dice.choice((0, 0, 0.01, 0.05, 1, 20)))
            world.notice()
        for client in clients:
            client.ref.stop()
        await trio.sleep(3_000)
        for client in clients:
            answers = Counter(m.call for m in client.messages if isinstance(m, (LinkOutcome, LinkParked)))
            assert set(answers.values()) == {1}
        assert sum(answered.ok for answered in outcomes(clients)) > 3
        assert sum(isinstance(m, LinkParked) for c in clients for m in c.messages) > 10
        assert len(backend.asked_for("tools/call")) <= world.begun
        for request, asked in world.asked:
            assert len(asked.answers) == 1 or request.link.transport.closed, (request.id, asked.answers)
            assert len(asked.answers) <= 1
        assert not backend.open
        assert brokers.suspended.total == 0
        assert gateway.left()["links"] == before["links"]
        assert gateway.telemetry.gauges["stagedoor_parked_calls", ()] == 0
