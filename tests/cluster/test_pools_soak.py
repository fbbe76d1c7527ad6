"""Clients without sessions come to any of three replicas, whose mail is lost, late and doubled, and which stand still,
are killed and end in order: each call is executed at most once and has one outcome in time, and nothing is left."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
import trio

from tests.support.door_client import Pending
from tests.support.harness import Gateway, open_replica_maker
from tests.support.mcp_backend import Backend, Request
from tests.support.pooled import FORM, asker, client, retry

IN_TIME = 15.0
"""Seconds that a call may take whose server answers at once, whatever happens."""


class Soak:
    """One run."""

    def __init__(self, random: Random, alpha: Backend, replicas: list[Gateway]) -> None:
        self.random = random
        self.alpha = alpha
        self.replicas = replicas
        self.still: set[int] = set()
        self.seen: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.late: list[str] = []

    def serve(self, request: Request) -> Any:
        """The server answers, or asks first."""
        words = str(request.params["arguments"]["text"])
        self.seen[words] += 1
        return {"content": [{"type": "text", "text": words}]}

    def somewhere(self) -> Gateway:
        return self.random.choice([g for g in self.replicas if id(g) not in self.still])

    async def call(self, words: str) -> None:
        gateway = self.somewhere()
        pending = client(gateway).begin("tools/call", {"name": "echo", "arguments": {"text": words}})
        await self.ended(pending, gateway, words)

    async def ended(self, pending: Pending, gateway: Gateway, words: str) -> None:
        began = trio.current_time()
        while not pending.done:
            if gateway not in self.replicas or id(gateway) in self.still:
                self.outcomes["its replica is gone"] += 1
                return
            await trio.sleep(0.1)
            if trio.current_time() - began > IN_TIME:
                self.late.append(words)
                return
        if not pending.messages:
            self.outcomes["broken"] += 1
            return
        (message,) = [m for m in pending.messages if "method" not in m]
        if "result" in message:
            assert message["result"]["content"][0]["text"] == words
            assert self.seen[words] == 1
            self.outcomes["result"] += 1
        else:
            executed = message["error"].get("data", {}).get("executed")
            assert executed in ("no", "unknown"), message
            assert executed == "unknown" or not self.seen[words], message
            self.outcomes[executed] += 1

    def mail(self, gateway: Gateway) -> None:
        """From here on this one's letters fare otherwise."""
        chance = self.random.choice((0.0, 0.0, 0.02))
        copies = self.random.choice((1, 1, 2))
        delay = self.random.choice((0.0, 0.01, 0.3))

        def post_office(to: str, letter: bytes) -> list[float]:
            return [] if self.random.random() < chance else [delay] * copies

        assert gateway.life is not None
        gateway.life.store.replica.post_office = post_office

    def pause(self, nursery: trio.Nursery, gateway: Gateway, seconds: float) -> None:
        """It counts as still from now on, and not only when its task has begun."""
        self.still.add(id(gateway))
        nursery.start_soon(self._stand_still, gateway, seconds)

    async def _stand_still(self, gateway: Gateway, seconds: float) -> None:
        await gateway.pause()
        await trio.sleep(seconds)
        await gateway.resume()
        await trio.sleep(1)
        self.still.discard(id(gateway))

    def kill(self, gateway: Gateway) -> None:
        self.replicas.remove(gateway)
        gateway.kill(at_once=self.random.random() < 0.3)

    async def end(self, gateway: Gateway) -> None:
        self.replicas.remove(gateway)
        await gateway.system.drain(8.0)
        gateway.kill(at_once=True)


@pytest.mark.parametrize("kind", ["http", "stdio"])
@pytest.mark.parametrize("seed", range(4))
async def test_each_call_has_one_outcome_in_time(autojump_clock: Any, seed: int, kind: str) -> None:
    random, alpha = Random(seed), asker(kind)
    async with open_replica_maker(alpha) as start, trio.open_nursery() as nursery:
        soak = Soak(random, alpha, [await start() for _ in range(3)])
        alpha.results["tools/call"] = soak.serve
        for number in range(300):
            nursery.start_soon(soak.call, f"call {number}")
            await trio.sleep(random.choice((0.0, 0.01, 0.2)))
            whole = [g for g in soak.replicas if id(g) not in soak.still]
            what = random.random()
            if what < 0.1:
                soak.mail(random.choice(whole))
            elif what < 0.12 and len(whole) > 2:
                soak.pause(nursery, random.choice(whole), random.choice((1.0, 2.5, 5.0)))
            elif what < 0.14 and len(whole) > 2:
                soak.kill(random.choice(whole))
                soak.replicas.append(await start())
            elif what < 0.15 and len(whole) > 2:
                nursery.start_soon(soak.end, random.choice(whole))
                soak.replicas.append(await start())
        await trio.sleep(IN_TIME + 5)
        assert not soak.late
        assert max(soak.seen.values()) == 1
        assert soak.outcomes["result"] > 150
        nursery.cancel_scope.cancel()


async def test_suspended_calls_go_on_or_are_told_to_be_gone(autojump_clock: Any) -> None:
    random, alpha = Random(7), asker("http")
    ended: Counter[str] = Counter()
    async with open_replica_maker(alpha) as start:
        replicas = [await start() for _ in range(3)]
        for _ in range(40):
            before = len(alpha.asked_for("tools/call"))
            call = client(random.choice(replicas)).begin("tools/call", {"name": "ask"})
            request = [await alpha.next() for _ in range(before - alpha.taken["tools/call"] + 1)][-1]
            asked_at = request.ask("elicitation/create", FORM)
            asked = await call.result()
            if random.random() < 0.3:
                replicas.pop(random.randrange(3)).kill(at_once=random.random() < 0.5)
                replicas.append(await start())
            retries = [client(g).begin("tools/call", retry(asked)) for g in random.sample(replicas, 2)]
            for _ in range(150):
                await trio.sleep(0.1)
                if asked_at.answers:
                    request.text("done")
                    break
            answers = [await pending.response() for pending in retries]
            results = sum("result" in answer for answer in answers)
            assert all(answer["error"]["code"] == -32602 for answer in answers if "error" in answer)
            assert results <= 1
            assert len(alpha.asked_for("tools/call")) == before + 1
            ended["done" if results else "gone"] += 1
    assert ended["done"] >= 20
    assert ended["gone"] >= 1
