"""Whoever calls a pool, in the place of an actor of modern requests: one client without sessions, at one backend.

async with open_gateway(Backend("alpha", held={"ask"})) as gateway:
    client = BrokerClient(gateway, "alpha", {"elicit.form"})
    call = client.call("tools/call", {"name": "ask"})
    request = await gateway.backends["alpha"].next()
    request.ask("elicitation/create", {...})
    suspended = await client.suspended(call)
    again = client.resume(suspended, {suspended.requests[0].key: {"action": "accept"}})
    request.text("done")
    assert (await client.outcome(again)).ok
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import trio

from actors.machines.upstream.modern_events import Caller
from actors.pools.messages import Resume, UpstreamSuspended
from actors.pools.pool import PoolKey
from actors.pools.pools import Pools
from actors.ports import ANONYMOUS, Principal
from actors.protocol.messages import EMPTY
from actors.protocol.payload import dumps, loads
from actors.quotas import QuotaSupervisor
from actors.runtime import Actor, Ref
from actors.upstreams.messages import Call, Cancel, Join, UpstreamOutcome
from tests.support.harness import Gateway

WAIT = 7200.0
"""Seconds on the test's clock, which jumps: what takes longer hangs."""


class _Heard(Actor):
    mailbox_size = 4096

    def __init__(self, client: PoolClient) -> None:
        self._client = client

    def receive(self, message: Any) -> None:
        self._client.heard(message)


def pools_of(gateway: Gateway) -> Pools:
    """A supervisor of pools beside the tree of a test's gateway."""
    supervisor = QuotaSupervisor(gateway.services.limits)
    gateway.system.spawn(supervisor, "test-brokers")
    guests = QuotaSupervisor(gateway.services.limits)
    gateway.system.spawn(guests, "test-guests")
    return Pools(gateway.services, gateway.system.registry, supervisor, gateway.actors.tree, guests)


class PoolClient:
    """One caller of one pool."""

    def __init__(
        self,
        gateway: Gateway,
        pools: Pools,
        backend: str,
        bits: Collection[str] = (),
        *,
        principal: Principal = ANONYMOUS,
        affinity: str = "",
        join: bool = True,
    ) -> None:
        self.messages: list[Any] = []
        self._pools = pools
        self._spec = gateway.backends[backend].spec
        self.pool_key = PoolKey(principal, frozenset(bits), affinity)
        self.ref = gateway.system.spawn(_Heard(self))
        self._lot = trio.lowlevel.ParkingLot()
        self._next = 0
        if join:
            self.pool.reply(Join(self.ref))

    @property
    def pool(self) -> Ref:
        """As a front finds it for each call."""
        return self._pools.find(self._spec, self.pool_key)

    def heard(self, message: Any) -> None:
        """Something came."""
        self.messages.append(message)
        self._lot.unpark_all()

    def call(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        level: str | None = None,
        progress: bool = False,
        name: str = "",
    ) -> int:
        """A request; its number."""
        self._next += 1
        info = dumps({"name": name, "version": "1"}) if name else EMPTY
        caller = Caller(self.pool_key.principal.name, dumps({}), info, level, False)
        raw = dumps(params) if params is not None else EMPTY
        self.pool.reply(Call(self.ref, self._next, method, raw, progress, caller))
        return self._next

    def tool(self, tool: str, **how: Any) -> int:
        """A call of a tool."""
        return self.call("tools/call", {"name": tool, "arguments": {}}, **how)

    def resume(self, suspended: UpstreamSuspended, answers: Mapping[str, Any], **how: Any) -> int:
        """The retry, by default of that round; its number."""
        self._next += 1
        raw = {key: dumps(answer) for key, answer in answers.items()}
        place = {"incarnation": suspended.incarnation, "suspend": suspended.suspend, "round": suspended.round} | {
            key: how.pop(key) for key in ("incarnation", "suspend", "round") if key in how
        }
        self.pool.reply(Resume(self.ref, self._next, answers=raw, **place, **how))
        return self._next

    def accept(self, suspended: UpstreamSuspended, **how: Any) -> int:
        """The retry with all answers of the user's consent."""
        return self.resume(suspended, {q.key: {"action": "accept", "content": {}} for q in suspended.requests}, **how)

    def cancel(self, call: int) -> None:
        """The connection of that exchange is closed."""
        self.pool.reply(Cancel(self.ref, call, "the client has disconnected"))

    async def answer(self, call: int) -> UpstreamOutcome | UpstreamSuspended:
        """What the exchange gets."""
        with trio.fail_after(WAIT):
            while not (found := self.answers(call)):
                await self._lot.park()
        return found[0]

    def answers(self, call: int) -> list[UpstreamOutcome | UpstreamSuspended]:
        """All that it got: one, if all is well."""
        return [m for m in self.messages if isinstance(m, (UpstreamOutcome, UpstreamSuspended)) and m.call == call]

    async def outcome(self, call: int) -> UpstreamOutcome:
        """It is over."""
        answer = await self.answer(call)
        assert isinstance(answer, UpstreamOutcome), answer
        return answer

    async def suspended(self, call: int) -> UpstreamSuspended:
        """It waits for answers."""
        answer = await self.answer(call)
        assert isinstance(answer, UpstreamSuspended), loads(answer.payload)
        return answer

    async def error(self, call: int) -> Any:
        """It failed: the error."""
        outcome = await self.outcome(call)
        assert not outcome.ok, loads(outcome.payload)
        return loads(outcome.payload)

    async def text(self, call: int) -> str:
        """The text of a tool's result."""
        outcome = await self.outcome(call)
        assert outcome.ok, loads(outcome.payload)
        text: str = loads(outcome.payload)["content"][0]["text"]
        return text

    def told(self, method: str) -> list[Any]:
        """The notifications of this method: (call, params)."""
        return [
            (m.call, loads(m.params) if m.params else {}) for m in self.messages if getattr(m, "method", "") == method
        ]
