"""A process that may have lost its lease: what it owns holds still, is claimed again under its next name, and ends
where another has taken it."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from actors.ports import Failed, Refused
from actors.protocol.table import Limits
from actors.runtime.cell import Drain
from actors.services import DRAIN_MARGIN
from actors.sessions import messages as sm
from actors.sessions.session import SessionActor
from actors.streams.follower import Follower
from gateway.store.memory import MemoryStore
from tests.support.calls import reached, streaming
from tests.support.door_client import Client, parse_events
from tests.support.harness import Gateway, open_gateway, open_replicas
from tests.support.mcp_backend import Backend
from tests.support.pool_client import PoolClient, pools_of

HELD = {"tools": ("echo", "slow"), "held": {"slow"}}
LONG = 10.0
"""Seconds after which a lease has surely run out."""


def http(**more: Any) -> Backend:
    return Backend("alpha", kind="http", **(HELD | more))


def session(gateway: Gateway) -> SessionActor:
    """The actor of the only one in memory."""
    [alive] = gateway.actors.sessions.table.values()
    actor = alive.ref.cell.actor
    assert isinstance(actor, SessionActor)
    return actor


async def lapse(gateway: Gateway) -> None:
    """Its lease runs out, and it finds that out."""
    await gateway.pause()
    await trio.sleep(LONG)
    await gateway.resume()


def executions(backend: Backend) -> int:
    return len(backend.asked_for("tools/call"))


# Claimed again ------------------------------------------------------------------------------------------------


async def test_what_nobody_took_is_claimed_again_and_goes_on(autojump_clock):
    alpha = http()
    async with open_replicas(1, alpha) as (one,):
        client = await one.connect("alpha", capabilities={"roots": {}})
        call, request = await reached(client, alpha)
        await trio.sleep(1)  # it is a stream
        before = session(one).epoch
        asked = request.ask("roots/list", {})
        first = await call.next("roots/list")
        await lapse(one)
        assert await client.tool("echo") == "alpha: echo"
        assert session(one).record.grant.owner == one.services.cluster.incarnation
        assert session(one).epoch > before
        await client.respond(first, {"roots": []})
        assert (await asked.outcome())["result"] == {"roots": []}
        request.ask("roots/list", {})
        second = await call.next("roots/list")
        assert second["id"] != first["id"]
        request.text("done")
        assert (await call.result())["content"][0]["text"] == "done"
        numbers = [int(e.id.rsplit("-", 1)[1]) for e in call.events if e.id is not None]
        assert numbers == [*range(1, len(numbers) + 1)]
        ids = [m["id"] for m in alpha.upstream.messages if "method" in m and "id" in m]
        assert len(alpha.upstreams) == 1
        assert len(ids) == len(set(ids))


async def test_an_idle_session_is_claimed_again_too(autojump_clock):
    async with open_replicas(1, http()) as (one,):
        await one.connect("alpha")
        await lapse(one)
        await trio.sleep(1)
        [record] = one.store.records().values()
        assert record.owner == one.services.cluster.incarnation
        assert record.tries == 0


async def test_claims_come_in_turns(autojump_clock):
    async with open_replicas(1, http()) as (one,):
        for _ in range(250):
            await one.connect("alpha")
        await lapse(one)

        def claimed() -> int:
            return sum(r.owner == one.services.cluster.incarnation for r in one.store.records().values())

        assert claimed() == 200
        await trio.sleep(0.2)
        assert claimed() == 250


async def test_it_may_lapse_again_and_again(autojump_clock):
    alpha = http()
    async with open_replicas(1, alpha) as (one,):
        client = await one.connect("alpha")
        call, request = await reached(client, alpha, progress="mine")
        for n in range(5):
            request.progress(n + 1)
            await trio.sleep(1)
            await lapse(one)
        request.text("done")
        await call.result()
        assert [m["params"]["progress"] for m in call.seen("notifications/progress")] == [1, 2, 3, 4, 5]
        rest = client.listen(call.events[0].id)
        await rest.end()
        assert [e.id for e in rest.events] == [e.id for e in call.events[1:]]


class Unsaid(MemoryStore):
    """Of what it does, nothing may be heard."""

    silent = False

    def append(self, *args: Any, **more: Any) -> None:
        *rest, done = args
        outcome: list[Any] = []
        super().append(*rest, outcome.append, **more)
        done(Failed(Refused.AWAY) if self.silent else outcome[0])

    def claim(self, *args: Any, **more: Any) -> None:
        *rest, done = args
        outcome: list[Any] = []
        super().claim(*rest, outcome.append, **more)
        done(Failed(Refused.AWAY) if self.silent else outcome[0])


async def test_an_event_keeps_the_id_under_which_it_came_into_the_log(autojump_clock):
    alpha, store = http(), Unsaid(Limits(), trio.current_time)
    async with open_gateway(alpha, store=store) as gateway:
        gateway.nursery.start_soon(store.replica.run)
        client = await gateway.connect("alpha")
        call, request = await reached(client, alpha, progress="mine")
        await trio.sleep(0.5)
        store.silent = True
        request.progress(1)
        await gateway.settle()
        store.replica.cut_off()
        await trio.sleep(LONG)
        store.replica.resume()
        await gateway.settle()
        request.progress(2)
        await trio.sleep(3)
        store.silent = False
        await trio.sleep(3)
        request.text("done")
        await trio.sleep(1)
        rest = client.listen(call.events[0].id)
        await rest.end()
        assert [m["params"]["progress"] for m in rest.seen("notifications/progress")] == [1, 2]
        last = client.listen(rest.events[-2].id)
        await last.end()
        assert [e.id for e in last.events] == [rest.events[-1].id]


# Moved --------------------------------------------------------------------------------------------------------


async def moved(one: Gateway, two: Gateway, client: Client) -> None:
    """The first stands still, the second takes its session over, the first goes on."""
    await one.pause()
    await trio.sleep(LONG)
    client.to(two)
    assert await client.tool("echo") == "alpha: echo"
    await one.resume()
    await trio.sleep(2)


async def test_a_session_that_moved_ends_here_and_its_backends_sessions_stay(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        await client.tool("echo")
        own = alpha.upstream
        await moved(one, two, client)
        assert not one.actors.sessions.table
        assert own.transport.let_go_of
        assert await client.tool("echo") == "alpha: echo"
        assert alpha.methods.count("initialize") == 1
        assert one.telemetry.total("stagedoor_sessions_ended_total", "fenced") == 1


async def test_an_unrecorded_request_hears_that_it_may_have_run_and_its_server_hears_nothing(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        call, request = await reached(client, alpha)
        await moved(one, two, client)
        error = await call.error()
        assert (error.code, error.data["reason"], error.data["executed"]) == (-32603, "moved", "unknown")
        assert not request.cancelled.is_set()


async def test_a_recorded_request_is_answered_by_the_next_owner_alone(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha", capabilities={"roots": {}})
        call, request = await reached(client, alpha, progress="mine")
        alpha.upstream.transport.prime("c0", request.id)
        alpha.upstream.notify(
            "notifications/progress", {"progressToken": request.token, "progress": 1}, related=request.id, cursor="c1"
        )
        asked = alpha.upstream.ask("roots/list", {}, related=request.id, cursor="c2")
        question = await call.next("roots/list")
        await moved(one, two, client)
        assert not [m for m in call.messages if "method" not in m]
        assert not asked.answers
        assert not request.cancelled.is_set()
        rest = client.listen([e.id for e in call.events if e.id][-1])
        rest.id = call.id
        await client.respond(question, {"roots": []})
        await two.settle()
        alpha.upstream.transport.deliver(
            {"id": request.id, "result": {"content": [{"type": "text", "text": "done"}]}}, request.id, "c3"
        )
        assert (await rest.result())["content"][0]["text"] == "done"
        assert executions(alpha) == 2  # with that of the other tool


async def test_what_was_not_begun_is_not_done_by_the_former_owner(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        await one.pause()
        await trio.sleep(LONG)
        client.to(two)
        await client.tool("echo")
        client.to(one)
        late = client.begin("tools/call", {"name": "slow"})
        await one.resume()
        await trio.sleep(5)
        own = alpha.upstreams[0]
        assert "slow" not in [p["name"] for p in own.params_of("tools/call")]
        assert late.status != 200 or executions(alpha) == 2


async def test_nor_where_it_was_taken_over_before_it_could_be_given_back(autojump_clock, monkeypatch):
    alpha = http()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        waiting: list[Any] = []
        for name in ("save", "release"):
            write = getattr(one.store, name)
            monkeypatch.setattr(one.store, name, lambda *a, write=write, **k: waiting.append((write, a, k)))
        while not waiting:  # it is put to rest
            await trio.sleep(1)
        one.life.store.replica.cut_off()
        await trio.sleep(LONG)
        client.to(two)
        await client.tool("echo")
        client.to(one)
        late = client.begin("tools/call", {"name": "slow"})
        await one.settle()
        for write, what, more in waiting:
            write(*what, **more)
        await trio.sleep(5)
        assert "slow" not in [p["name"] for p in alpha.upstreams[0].params_of("tools/call")]
        assert not one.actors.sessions.table
        late.drop()


async def test_a_refused_write_ends_it_in_the_same_way(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        await client.tool("echo")
        await alpha.next()
        own = alpha.upstream
        call, request = await reached(client, alpha, progress="mine")
        await trio.sleep(1)
        one.life.store.replica.cut_off()
        await trio.sleep(LONG)
        client.to(two)
        assert await client.tool("echo") == "alpha: echo"
        request.progress(1)
        await trio.sleep(2)
        assert not one.actors.sessions.table
        assert own.transport.let_go_of
        [outcome] = [m for m in call.messages if "method" not in m]
        assert outcome["error"]["data"]["reason"] == "owner_lost"  # from the log, as its next owner has written it
        assert await client.tool("echo") == "alpha: echo"


async def test_its_end_is_said_to_whoever_has_it_by_now(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        await one.pause()
        await trio.sleep(LONG)
        client.to(two)
        await client.tool("echo")
        client.to(one)
        statuses: list[int] = []

        async def end() -> None:
            statuses.append(await client.delete())

        one.nursery.start_soon(end)
        await one.resume()
        await trio.sleep(5)
        assert statuses == [200]
        assert not two.actors.sessions.table
        assert not one.store.records()


async def test_so_is_that_of_one_which_is_just_given_back(autojump_clock):
    async with open_replicas(2, http()) as (one, _):
        client = await one.connect("alpha")
        [alive] = one.actors.sessions.table.values()
        assert alive.ref.urgent(Drain(trio.current_time() + 8))
        assert await client.delete() == 200
        assert not one.store.records()


async def test_and_of_one_that_was_taken_over_while_the_store_was_out_of_reach(autojump_clock, monkeypatch):
    async with open_replicas(2, http()) as (one, two):
        client = await one.connect("alpha")
        replica, end = one.life.store.replica, one.store.end

        async def back(*what: Any) -> None:
            await trio.sleep(1)
            replica.resume()
            await one.settle()
            end(*what)

        monkeypatch.setattr(one.store, "end", lambda *what: one.nursery.start_soon(back, *what))
        replica.cut_off()
        await trio.sleep(LONG)
        client.to(two)
        await client.tool("echo")
        client.to(one)
        assert await client.delete() == 200
        assert not two.actors.sessions.table
        assert not one.store.records()


# Doubt --------------------------------------------------------------------------------------------------------


async def test_nothing_is_given_to_a_backend_while_in_doubt(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha) as (one, _):
        client = await one.connect("alpha")
        replica = one.life.store.replica
        replica.cut_off()
        await trio.sleep(2.1)
        call = client.begin("tools/call", {"name": "echo"})
        await trio.sleep(0.5)
        assert executions(alpha) == 0
        replica.resume()
        await call.result()
        assert executions(alpha) == 1


async def test_what_was_held_back_behind_the_end_of_a_drain_is_for_the_next_owner(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha) as (one, _):
        client = await one.connect("alpha")
        slow = client.begin("tools/call", {"name": "slow"})
        await alpha.next()
        one.life.store.replica.cut_off()
        await trio.sleep(2.1)
        client.begin("ping")
        await one.settle()
        [alive] = one.actors.sessions.table.values()
        assert alive.ref.urgent(Drain(trio.current_time() + DRAIN_MARGIN + 0.2))
        await trio.sleep(0.5)
        late = client.begin("tools/call", {"name": "echo"})
        await trio.sleep(3)
        assert (await slow.error()).data["executed"] == "unknown"
        assert [p["name"] for p in alpha.upstreams[0].params_of("tools/call")] == ["slow"]
        assert (await late.result())["content"][0]["text"] == "alpha: echo"


async def test_a_doubt_that_lasts_means_that_the_store_is_away_and_is_not_borne_for_ever(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha, store_outage=30.0) as (one, _):
        client = await one.connect("alpha")
        one.actors.doubt.others = True
        replica, began = one.life.store.replica, trio.current_time()
        replica.cut_off()
        await trio.sleep(2.1)
        assert await client.tool("echo") == "alpha: echo"
        assert trio.current_time() - began < 3.5
        await trio.sleep(20)
        assert await client.tool("echo") == "alpha: echo"
        await trio.sleep(20)
        assert await client.begin("tools/call", {"name": "echo"}).head() == 503
        assert executions(alpha) == 2
        replica.resume()
        assert await client.tool("echo") == "alpha: echo"


async def test_the_only_replica_bears_it_for_ever(autojump_clock):
    alpha = http()
    async with open_replicas(1, alpha) as (one,):
        client = await one.connect("alpha")
        one.life.store.replica.cut_off()
        for _ in range(10):
            await trio.sleep(120)
            assert await client.tool("echo") == "alpha: echo"


async def test_what_is_to_be_written_first_is_not_waited_for_where_the_store_is_away_from_a_new_name(
    autojump_clock, monkeypatch
):
    """Claimed again it can't be, and what it changes is for when it is."""
    alpha = http()
    async with open_replicas(1, alpha) as (one,):
        client = await one.connect("alpha")
        with monkeypatch.context() as store:
            store.setattr(one.store, "save", lambda *what: None)
            before = client.begin("logging/setLevel", {"level": "error"})
            await one.settle()
            await one.pause()
            await trio.sleep(LONG)
            for name in ("claim", "read", "save"):
                store.setattr(one.store, name, lambda *what, **more: what[-1](Failed(Refused.AWAY)))
            await one.resume()
            one.life.store.replica.cut_off()
            with trio.fail_after(15):
                assert await before.result() == {}
                await trio.sleep(5)  # it goes on without the store
                assert await client.tool("echo") == "alpha: echo"
                assert await client.call("logging/setLevel", {"level": "debug"}) == {}
                assert await client.post({"method": "notifications/roots/list_changed"}).head() == 202
        one.life.store.replica.resume()
        await trio.sleep(5)
        [record] = one.store.records().values()
        assert (record.owner, record.fields["level"]) == (one.services.cluster.incarnation, b"debug")


async def test_who_else_is_there_is_known_from_the_last_look(autojump_clock):
    async with open_replicas(2, http()) as (one, two):
        doubt = one.actors.doubt
        doubt.look(trio.current_time())
        assert doubt.others
        two.kill(at_once=True)
        doubt.look(trio.current_time())
        assert not doubt.others


# Recover ------------------------------------------------------------------------------------------------------


async def recover(gateway: Gateway, *ids: int) -> Any:
    [alive] = gateway.actors.sessions.table.values()
    return await alive.ref.call(lambda reply: sm.Recover(ids, reply))


async def test_what_an_earlier_life_has_recorded_is_had_from_its_beginning(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        call, _ = await streaming(client, alpha)
        quick = client.begin("tools/call", {"name": "slow"})
        await alpha.next()
        one.kill(at_once=True)
        client.to(two)
        await client.tool("echo")
        assert await recover(two, quick.id) is None
        found = await recover(two, call.id)
        assert isinstance(found, Follower)
        assert await found.begin() is None
        chunk, events = await found.receive(), []
        while chunk is not None:
            events += parse_events(chunk)
            chunk = await found.receive()
        found.close()
        assert [e.id for e in events[:2]] == [e.id for e in call.events]
        assert events[-1].message["error"]["data"]["executed"] == "unknown"
        await trio.sleep(61)
        await client.call("ping")
        assert await recover(two, call.id) is None


async def test_a_call_that_goes_on_is_recovered_with_its_answer(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        call, request = await reached(client, alpha, progress="mine")
        alpha.upstream.transport.prime("c0", request.id)
        alpha.upstream.notify(
            "notifications/progress", {"progressToken": request.token, "progress": 1}, related=request.id, cursor="c1"
        )
        await call.next()
        one.kill(at_once=True)
        client.to(two)
        await client.call("ping")
        found = await recover(two, call.id)
        assert await found.begin() is None
        assert len(parse_events(await found.receive())) == 2
        result = {"content": [{"type": "text", "text": "done"}]}
        alpha.upstream.transport.deliver({"id": request.id, "result": result}, request.id, "c2")
        [answer] = parse_events(await found.receive())
        assert answer.message["result"] == result
        assert await found.receive() is None


# Pools --------------------------------------------------------------------------------------------------------


async def test_a_pool_is_claimed_again_or_ends(autojump_clock):
    alpha = Backend("alpha")
    async with open_replicas(1, alpha) as (one,):
        pools = pools_of(one)
        client = PoolClient(one, pools, "alpha")
        assert await client.text(client.tool("echo")) == "alpha: echo"
        await lapse(one)
        assert await client.text(client.tool("echo")) == "alpha: echo"
        [record] = one.store.records().values()
        assert record.owner == one.services.cluster.incarnation
        assert len(alpha.upstreams) == 1


async def test_a_pool_does_nothing_while_in_doubt(autojump_clock):
    alpha = Backend("alpha")
    async with open_replicas(1, alpha) as (one,):
        client = PoolClient(one, pools_of(one), "alpha")
        await client.text(client.tool("echo"))
        replica = one.life.store.replica
        replica.cut_off()
        await trio.sleep(2.1)
        call = client.tool("echo")
        await trio.sleep(0.5)
        assert executions(alpha) == 1
        await trio.sleep(1)
        assert await client.text(call) == "alpha: echo"


@pytest.mark.parametrize("running", [False, True])
async def test_a_pool_that_another_owns_is_used_there(autojump_clock, running):
    alpha = Backend("alpha", **HELD)
    async with open_replicas(2, alpha) as (one, two):
        client = PoolClient(one, pools_of(one), "alpha")
        await client.text(client.tool("echo"))
        call = client.tool("slow") if running else 0
        await one.pause()
        await trio.sleep(LONG)
        other = PoolClient(two, pools_of(two), "alpha")
        assert await other.text(other.tool("echo")) == "alpha: echo"
        await one.resume()
        late = client.tool("echo")
        assert await client.text(late) == "alpha: echo"
        if running:
            assert (await client.error(call))["data"]["executed"] == "unknown"
        assert await other.text(other.tool("echo")) == "alpha: echo"
        echoes = [r.upstream for r in alpha.asked_for("tools/call") if r.params["name"] == "echo"]
        assert len(echoes) == 4
        assert len(set(echoes[1:])) == 1
