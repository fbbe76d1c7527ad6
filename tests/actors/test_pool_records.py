"""A pool's life is owned: one at a time over all processes of a store, each named in what its clients hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from actors.pools.pool import PoolActor
from actors.pools.pools import record_key
from actors.ports import Failed, Record, Refused
from actors.protocol.table import Limits
from actors.runtime.cell import Drain
from actors.upstreams.messages import Join
from gateway.store.memory import MemoryStore
from tests.support.harness import open_gateway
from tests.support.mcp_backend import Backend
from tests.support.pool_client import PoolClient, pools_of

FORM = {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}}


class Watched(MemoryStore):
    """Counts what is asked of it, and may refuse."""

    def __init__(self) -> None:
        super().__init__(Limits(), trio.current_time)
        self.asked: list[str] = []
        self.refuses: dict[str, Failed] = {}
        self.keys: set[str] = set()
        self.holds: Callable[[Callable[[], None]], object] | None = None
        """Gets what is to be written later."""

    def _note(self, what: str, key: str, done: Callable[[Any], object]) -> bool:
        self.asked.append(what)
        self.keys.add(key)
        refusal = self.refuses.get(what)
        if refusal is not None:
            done(refusal)
        return refusal is not None

    def create(self, key: str, *rest: Any) -> None:
        if self.holds is not None:
            self.holds(lambda: MemoryStore.create(self, key, *rest))
        elif not self._note("create", key, rest[-1]):
            super().create(key, *rest)

    def read(self, key: str, *rest: Any) -> None:
        if not self._note("read", key, rest[-1]):
            super().read(key, *rest)

    def claim(self, key: str, *rest: Any, **more: Any) -> None:
        if not self._note("claim", key, rest[-1]):
            super().claim(key, *rest, **more)

    def save(self, key: str, *rest: Any) -> None:
        if self.holds is not None:
            self.holds(lambda: self.save(key, *rest))
        elif not self._note("save", key, rest[-1]):
            super().save(key, *rest)

    def touch(self, key: str, *rest: Any) -> None:
        if not self._note("touch", key, rest[-1]):
            super().touch(key, *rest)

    def restore(self, key: str, *rest: Any) -> None:
        if not self._note("restore", key, rest[-1]):
            super().restore(key, *rest)

    def release(self, key: str, *rest: Any) -> None:
        if not self._note("release", key, rest[-1]):
            super().release(key, *rest)

    def record(self) -> Record:
        (key,) = self.keys
        found: list[Any] = []
        MemoryStore.read(self, key, found.append)
        return found[0]  # type: ignore[no-any-return]


async def test_a_life_costs_the_store_two_writes_however_many_calls_there_are(autojump_clock: Any) -> None:
    store = Watched()
    async with open_gateway(Backend("alpha"), store=store) as gateway:
        client = PoolClient(gateway, pools_of(gateway), "alpha")
        for _ in range(50):
            await client.outcome(client.tool("echo"))
        assert store.asked == ["create", "save"]
        record = store.record()
        assert (record.owner, record.tries, record.fields["kind"]) == (store.owner, 0, b"broker")


async def test_the_record_lives_as_long_as_its_pool_and_no_longer(autojump_clock: Any) -> None:
    store = Watched()
    async with open_gateway(Backend("alpha"), store=store) as gateway:
        client = PoolClient(gateway, pools_of(gateway), "alpha")
        await client.outcome(client.tool("echo"))
        await trio.sleep(10_000)
        assert store.record().owner == store.owner
        client.ref.stop()
        await trio.sleep(1_000)
        assert len(store) == 0


async def test_a_pool_that_crashes_leaves_no_record(autojump_clock: Any) -> None:
    store = Watched()
    async with open_gateway(Backend("alpha"), store=store) as gateway:
        client = PoolClient(gateway, pools_of(gateway), "alpha")
        await client.outcome(client.tool("echo"))
        pool = client.pool
        pool.cell.actor.receive = None
        client.tool("echo")
        await gateway.settle()
        assert not pool.alive
        assert gateway.crashes
        gateway.crashes.clear()
        assert len(store) == 0


async def test_pools_that_have_ended_take_no_room_in_the_store(autojump_clock: Any) -> None:
    store = MemoryStore(Limits(sessions=3), trio.current_time)
    async with open_gateway(Backend("alpha"), store=store) as gateway:
        pools = pools_of(gateway)
        for number in range(10):
            client = PoolClient(gateway, pools, "alpha", affinity=str(number))
            assert await client.text(client.tool("echo")) == "alpha: echo"
            client.ref.stop()
            await trio.sleep(gateway.services.limits.broker_idle + 10)


@pytest.mark.parametrize("pause", [0, 2_000])
async def test_the_next_life_has_another_name(autojump_clock: Any, pause: float) -> None:
    store = Watched()
    async with open_gateway(Backend("alpha", tools=("ask",), held={"ask"}), store=store) as gateway:
        pools = pools_of(gateway)
        seen = []
        for _ in range(2):
            client = PoolClient(gateway, pools, "alpha", {"elicit.form"})
            call = client.tool("ask")
            request = await gateway.backends["alpha"].next()
            request.ask("elicitation/create", FORM)
            seen.append((await client.suspended(call)).incarnation)
            if pause:
                client.ref.stop()
                await trio.sleep(pause)
            else:
                client.pool.stop()
                await gateway.settle()
            assert len(store) == 0
        assert len(set(seen)) == 2


async def test_a_record_that_a_process_left_behind_is_taken_over(autojump_clock: Any) -> None:
    store = Watched()
    async with open_gateway(Backend("alpha"), store=store) as gateway:
        client = PoolClient(gateway, pools_of(gateway), "alpha", join=False)
        MemoryStore.create(store, record_key("alpha", client.pool_key), {}, lambda grant: None)
        assert await client.text(client.tool("echo")) == "alpha: echo"
        assert store.asked.count("claim") == 1


async def test_connections_that_another_process_holds_are_not_made_twice(autojump_clock: Any) -> None:
    store = Watched()
    backend = Backend("alpha")
    async with open_gateway(backend, store=store) as gateway:
        client = PoolClient(gateway, pools_of(gateway), "alpha", join=False)
        key = record_key("alpha", client.pool_key)
        MemoryStore.create(store, key, {}, lambda grant: None)
        store.refuses = {"claim": Failed(Refused.FENCED)}  # as it does while the other process is alive
        error = await client.error(client.tool("echo"))
        assert error["data"] == {"backend": "alpha", "reason": "not_owned", "executed": "no"}
        assert not backend.upstreams


async def test_without_the_store_nothing_is_begun_and_the_next_call_tries_again(autojump_clock: Any) -> None:
    store = Watched()
    backend = Backend("alpha")
    async with open_gateway(backend, store=store) as gateway:
        store.refuses = {"create": Failed(Refused.AWAY)}
        pools = pools_of(gateway)
        client = PoolClient(gateway, pools, "alpha")
        error = await client.error(client.tool("echo"))
        assert error["data"]["executed"] == "no"
        assert not backend.upstreams
        store.refuses = {}
        again = PoolClient(gateway, pools, "alpha")
        assert await again.text(again.tool("echo")) == "alpha: echo"


async def test_what_waits_for_the_ownership_keeps_a_pool_from_being_evicted(autojump_clock: Any) -> None:
    store = Watched()
    async with open_gateway(Backend("alpha"), store=store, sessions_per_principal=1) as gateway:
        pools, held = pools_of(gateway), []
        store.holds = held.append
        first = PoolClient(gateway, pools, "alpha", join=False)
        assert first.pool.alive
        life = first.pool
        second = PoolClient(gateway, pools, "alpha", affinity="other", join=False)
        assert second.pool.alive  # both are idle, which is one too many
        await trio.testing.wait_all_tasks_blocked()
        first.pool.reply(Join(first.ref))
        call = first.tool("echo")
        await trio.testing.wait_all_tasks_blocked()
        creates = held.copy()
        for create in creates:
            create()
        await trio.testing.wait_all_tasks_blocked()
        assert life.alive
        assert await first.text(call) == "alpha: echo"


async def test_what_waits_for_the_ownership_is_bounded_and_may_be_given_up(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PoolActor, "mailbox_size", 8)
    store, held = Watched(), []
    store.holds = held.append
    alpha = Backend("alpha")
    async with open_gateway(alpha, store=store) as gateway:
        client = PoolClient(gateway, pools_of(gateway), "alpha", {"elicit.form"})
        for _ in range(20):
            client.cancel(client.tool("echo"))
        kept = [client.tool("echo") for _ in range(7)]  # the eighth is that somebody has come at all
        for _ in range(3):
            error = await client.error(client.tool("echo"))
            assert (error["data"]["reason"], error["data"]["executed"]) == ("overloaded", "no")
        held.pop()()
        for call in kept:
            assert await client.text(call) == "alpha: echo"
        assert len([m for m in alpha.upstream.methods if m == "tools/call"]) == 7


async def test_what_waits_for_the_ownership_as_everything_ends_was_not_executed(autojump_clock: Any) -> None:
    store, held = Watched(), []
    store.holds = held.append
    async with open_gateway(Backend("alpha"), store=store) as gateway:
        client = PoolClient(gateway, pools_of(gateway), "alpha", {"elicit.form"})
        call = client.tool("echo")
        await trio.testing.wait_all_tasks_blocked()
        client.pool.urgent(Drain(trio.current_time() + 10))
        assert (await client.error(call))["data"]["executed"] == "no"


async def test_a_life_that_lost_its_record_ends_and_nothing_of_it_goes_on(autojump_clock: Any) -> None:
    store = Watched()
    backend = Backend("alpha", tools=("ask",), held={"ask"})
    async with open_gateway(backend, store=store) as gateway:
        client = PoolClient(gateway, pools_of(gateway), "alpha", {"elicit.form"})
        call = client.tool("ask")
        request = await backend.next()
        asked = request.ask("elicitation/create", FORM)
        suspended = await client.suspended(call)
        pool = client.pool
        store.refuses = dict.fromkeys(("touch", "restore"), Failed(Refused.FENCED))  # another has it
        await trio.sleep(300)
        assert not pool.alive
        assert (await asked.outcome())["result"] == {"action": "cancel"}
        assert request.cancelled.is_set()
        await trio.sleep(10)
        assert not backend.open
        store.refuses = {}
        assert (await client.error(client.accept(suspended)))["code"] == -32602


async def test_a_record_that_could_not_be_saved_is_saved_later(autojump_clock: Any) -> None:
    store = Watched()
    async with open_gateway(Backend("alpha"), store=store) as gateway:
        store.refuses = {"save": Failed(Refused.AWAY)}
        client = PoolClient(gateway, pools_of(gateway), "alpha")
        await client.outcome(client.tool("echo"))
        store.refuses = {}
        await trio.sleep(50)
        assert store.asked.count("save") > 1
        assert isinstance(store.record(), Record)
        await trio.sleep(5_000)
        assert isinstance(store.record(), Record)
        assert store.record().owner == store.owner


async def test_a_record_that_could_not_be_kept_is_kept_a_moment_later(autojump_clock: Any) -> None:
    store = Watched()
    async with open_gateway(Backend("alpha"), store=store) as gateway:
        client = PoolClient(gateway, pools_of(gateway), "alpha")
        await client.outcome(client.tool("echo"))
        store.refuses = {"touch": Failed(Refused.AWAY)}
        every = gateway.services.limits.idle_ttl / 8
        await trio.sleep(every + 10)
        assert store.asked.count("touch") > 2
        store.refuses = {}
        await trio.sleep(10)
        kept = store.asked.count("touch")
        await trio.sleep(every / 2)
        assert store.asked.count("touch") == kept
