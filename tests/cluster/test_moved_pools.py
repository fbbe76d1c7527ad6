"""Affinity pools that one replica loses to another: what was begun is never said not to have been, and what was not
begun goes on where the pool is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from actors.ports import Failed, Refused
from gateway.store.memory import MemoryStore
from tests.cluster.test_versions import NEWER, reads_less
from tests.support.door_client import Pending
from tests.support.harness import Gateway, open_replica_maker, open_replicas
from tests.support.mcp_backend import Backend
from tests.support.outages import Wire
from tests.support.pooled import asker, client, echo, error_of, executed, retry, suspend, text


async def overtaken(one: Gateway, two: Gateway) -> None:
    """A replica has stood still until the other had its pool, and has yet to find out."""
    await one.pause()
    await trio.sleep(6)
    assert await echo(client(two)) == "alpha: hi"
    await one.resume()


def flush(*replicas: Gateway) -> None:
    """The store has lost everything, and they find out."""
    memory(replicas[0]).lose()
    for gateway in replicas:
        memory(gateway).replica.find_loss()


def memory(gateway: Gateway) -> MemoryStore:
    assert isinstance(gateway.store, MemoryStore)
    return gateway.store


def begin_echo(gateway: Gateway, words: str) -> Pending:
    return client(gateway).begin("tools/call", {"name": "echo", "arguments": {"text": words}})


def times(alpha: Backend, words: str) -> int:
    """How often a call with these words was executed."""
    return len([r for r in alpha.asked_for("tools/call") if r.params.get("arguments", {}).get("text") == words])


# Another replica has it -----------------------------------------------------------------------------------------


async def test_a_retry_that_comes_as_the_pool_is_another_replicas_is_not_said_to_be_unexecuted(
    autojump_clock: Any,
) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, two):
        Wire([one, two])
        asked, _ = await suspend(client(one), alpha)
        await overtaken(one, two)
        error = await error_of(client(one).begin("tools/call", retry(asked)))
        assert error.code == -32602
        assert executed(alpha) == 2


async def test_a_call_that_comes_as_the_pool_is_another_replicas_goes_on_there(autojump_clock: Any) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, two):
        Wire([one, two])
        await echo(client(one))
        await overtaken(one, two)
        call = begin_echo(one, "late")
        assert text(await call.result()) == "alpha: late"
        assert times(alpha, "late") == 1
        assert len({r.upstream for r in alpha.asked_for("tools/call")[1:]}) == 1
        assert await echo(client(one)) == "alpha: hi"


async def test_what_waits_for_its_turn_as_the_pool_is_lost_goes_on_elsewhere(autojump_clock: Any) -> None:
    alpha = asker("stdio")
    async with open_replicas(2, alpha) as (one, two):
        running = client(one).begin("tools/call", {"name": "ask"})
        await alpha.next()
        waiting = begin_echo(one, "next")
        await one.settle()
        assert executed(alpha) == 1
        await overtaken(one, two)
        error = await error_of(running)
        assert (error.data["reason"], error.data["executed"]) == ("moved", "unknown")
        assert text(await waiting.result()) == "alpha: next"
        assert times(alpha, "next") == 1
        assert len([r for r in alpha.asked_for("tools/call") if r.params["name"] == "ask"]) == 1


async def test_who_comes_from_a_third_replica_goes_on_with_the_next_owner_too(autojump_clock: Any) -> None:
    alpha = asker()
    async with open_replicas(3, alpha) as replicas:
        one, two, three = replicas
        await echo(client(one))
        await echo(client(three))
        running = client(three).begin("tools/call", {"name": "ask"})
        await alpha.next()
        await alpha.next()
        await alpha.next()
        Wire(replicas)
        memory(one).lose()
        first, late = begin_echo(two, "first"), begin_echo(three, "late")
        memory(one).replica.find_loss()
        assert text(await first.result()) == "alpha: first"
        assert text(await late.result()) == "alpha: late"
        error = await error_of(running)
        assert (error.data["reason"], error.data["executed"]) == ("moved", "unknown")
        assert times(alpha, "late") == 1
        assert len(list(one.actors.affinity_pools.guests)) == 0
        owners = {r.upstream for r in alpha.asked_for("tools/call") if r.params["name"] == "echo"}
        assert len(owners) == 2


async def test_what_a_server_has_answered_as_the_pool_is_lost_is_told(autojump_clock: Any) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, two):
        Wire([one, two])
        running = client(one).begin("tools/call", {"name": "ask"})
        request = await alpha.next()
        await overtaken(one, two)
        request.text("done")
        assert text(await running.result()) == "done"


async def test_a_subscription_goes_on_where_the_pool_is(autojump_clock: Any) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, two):
        events = client(one).listen("test:///a")
        await events.next("notifications/subscriptions/acknowledged")
        await overtaken(one, two)
        await trio.sleep(30)
        alpha.open[-1].notify("notifications/resources/updated", {"uri": "test:///a"})
        await events.next("notifications/resources/updated")
        assert len(one.actors.affinity_pools.guests) + len(two.actors.affinity_pools.guests) == 1


async def test_a_call_whose_replica_died_while_it_waited_is_not_made(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, two):
        await echo(client(one))
        await echo(client(two))
        claims: list[Callable[[], object]] = []
        claim = one.store.claim
        monkeypatch.setattr(one.store, "claim", lambda *given, **more: claims.append(lambda: claim(*given, **more)))
        memory(one).replica.find_loss()
        begin_echo(two, "waits")
        await one.settle()
        two.kill(at_once=True)
        await one.settle()
        for late in claims:
            late()
        await trio.sleep(5)
        assert times(alpha, "waits") == 0
        monkeypatch.undo()
        assert await echo(client(one)) == "alpha: hi"


# Nobody can be reached ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("why", [Refused.FENCED, Refused.AWAY, Refused.FULL])
async def test_a_retry_is_never_said_to_be_unexecuted_where_the_pool_can_not_be_had(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch, why: Refused
) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, two):
        asked, _ = await suspend(client(one), alpha)
        monkeypatch.setattr(two.store, "create", lambda key, fields, done: done(Failed(why)))
        call = client(two).begin("tools/call", retry(asked))
        assert (await error_of(call)).data["executed"] == "unknown"
        assert (await error_of(begin_echo(two, "fresh"))).data["executed"] == "no"
        assert executed(alpha) == 1


async def test_a_retry_that_can_not_be_posted_is_not_said_to_be_unexecuted(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, two):
        asked, request = await suspend(client(one), alpha)
        await echo(client(two))
        full = Failed(Refused.INBOX_FULL)
        monkeypatch.setattr(two.services.cluster, "post", lambda to, letter, done: done(full))
        begin_echo(two, "first")
        await two.settle()
        error = await error_of(client(two).begin("tools/call", retry(asked)))
        assert (error.data["reason"], error.data["executed"]) == ("overloaded", "unknown")
        monkeypatch.undo()
        await trio.sleep(1)
        call = client(two).begin("tools/call", retry(asked))
        await trio.sleep(1)
        request.text("done")
        assert text(await call.result()) == "done"


# The store has lost the record ----------------------------------------------------------------------------------


@pytest.mark.parametrize("found", ["told", "found out", "both at once"])
async def test_a_pool_outlives_the_loss_of_its_record(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, two):
        asked, request = await suspend(client(one), alpha)
        running = client(one).begin("tools/call", {"name": "ask"})
        other = await alpha.next()
        if found == "told":
            flush(one, two)
            await one.settle()
        elif found == "found out":
            memory(one).lose()
        else:
            Wire([one, two])
            touch = one.store.touch

            def lost(*given: Any) -> None:
                touch(*given)
                flush(one, two)

            monkeypatch.setattr(one.store, "touch", lost)
        await trio.sleep(one.services.limits.idle_ttl / 8 + 1)  # it says that it is there so often
        monkeypatch.undo()
        call = client(two).begin("tools/call", retry(asked))
        await trio.sleep(1)
        request.text("done")
        assert text(await call.result()) == "done"
        other.text("this too")
        assert text(await running.result()) == "this too"
        assert await echo(client(two)) == "alpha: hi"
        assert len({r.upstream for r in alpha.asked_for("tools/call")}) == 1
        assert len(memory(one).records()) == 1


async def test_a_record_that_can_not_be_made_again_at_once_is_made_when_the_store_is_back(autojump_clock: Any) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as replicas:
        one, two = replicas
        await echo(client(one))
        wire = Wire(replicas)
        flush(one, two)
        wire.at(2, lambda: wire.break_for(20.0))
        call = begin_echo(one, "waits")
        await trio.sleep(25)
        await call.end()
        assert times(alpha, "waits") == len([m for m in call.messages if "result" in m])
        assert await echo(client(one)) == "alpha: hi"
        assert await echo(client(two)) == "alpha: hi"
        assert len({r.upstream for r in alpha.asked_for("tools/call")}) == 1


# A record of another version ------------------------------------------------------------------------------------


async def test_who_can_t_read_a_pools_record_goes_to_its_owner_all_the_same(autojump_clock: Any) -> None:
    alpha = asker()
    async with open_replica_maker(alpha) as start:
        older, newer, other = await start(), await start(info=NEWER), await start(info=NEWER)
        reads_less(older)
        for words in "abcdefgh":  # whoever it asks first says who has the pool
            for home in (newer if words < "e" else other, older, older):
                assert await echo(client(home, affinity=words), words) == f"alpha: {words}"
        assert len({r.upstream for r in alpha.asked_for("tools/call")}) == 8


async def test_a_dead_owners_record_that_is_too_new_is_taken_by_one_that_reads_it(autojump_clock: Any) -> None:
    alpha = asker()
    async with open_replica_maker(alpha) as start:
        older, newer, other = await start(), await start(info=NEWER), await start(info=NEWER)
        await echo(client(newer))
        reads_less(older)
        newer.kill(at_once=True)
        assert await echo(client(older)) == "alpha: hi"
        assert [len(list(g.actors.pools.children())) for g in (older, other)] == [1, 1]


async def test_where_nobody_reads_a_pools_record_its_client_is_told(autojump_clock: Any) -> None:
    alpha = asker()
    async with open_replica_maker(alpha) as start:
        older, newer = await start(), await start(info=NEWER)
        asked, _ = await suspend(client(newer), alpha)
        reads_less(older)
        newer.kill(at_once=True)
        error = await error_of(begin_echo(older, "x"))
        assert (error.code, error.data["reason"], error.data["executed"]) == (-32603, "too_new", "no")
        error = await error_of(client(older).begin("tools/call", retry(asked)))
        assert error.data["executed"] == "unknown"
        assert executed(alpha) == 1
