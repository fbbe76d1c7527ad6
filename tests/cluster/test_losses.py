"""The store has lost what it had acknowledged: where the session lives it goes on, no event id comes to mean something
else, and what is missing is said."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio

from actors.doubt import REMEMBERED
from actors.ports import Failed, Grant, Refused
from gateway.store.memory import MemoryStore
from tests.support.calls import reached, streaming
from tests.support.door_client import Client, Pending
from tests.support.harness import Gateway, open_gateway, open_replicas
from tests.support.mcp_backend import Backend

CHANGES = [
    "notifications/prompts/list_changed",
    "notifications/resources/list_changed",
    "notifications/tools/list_changed",
]


def http(**more: Any) -> Backend:
    return Backend("alpha", kind="http", tools=("echo", "slow"), held={"slow"}, **more)


def memory(gateway: Gateway) -> MemoryStore:
    assert isinstance(gateway.store, MemoryStore)
    return gateway.store


def flush(gateway: Gateway) -> None:
    """Everything is gone."""
    memory(gateway).lose()


def state(gateway: Gateway) -> Any:
    """What came after it is to be lost."""
    return memory(gateway).snapshot()


def back_to(gateway: Gateway, before: Any) -> None:
    memory(gateway).lose(before)


def held(gateway: Gateway, name: str, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What is asked of its store by this call from now on, to be passed on."""
    found: list[Callable[[], None]] = []
    call = getattr(gateway.store, name)
    monkeypatch.setattr(gateway.store, name, lambda *args, **more: found.append(partial(call, *args, **more)))
    return found


def ids(call: Pending) -> list[str]:
    return [e.id for e in call.events if e.id is not None]


def resumed(client: Client, call: Pending, after: int) -> Pending:
    rest = client.listen(ids(call)[after])
    rest.id = call.id
    return rest


async def test_a_stream_goes_on_behind_what_was_lost_and_says_the_hole(autojump_clock):
    alpha = http()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        call, request = await streaming(client, alpha)
        before = state(gateway)
        for n in (2, 3):
            request.progress(n)
        await gateway.settle()
        back_to(gateway, before)
        request.progress(4)
        request.text("done")
        result = await call.result()
        assert [m["params"]["progress"] for m in call.seen("notifications/progress")] == [1, 2, 3, 4]
        assert "_meta" not in result, "who was there has seen all of it"
        assert len(set(ids(call))) == len(ids(call)) == 6
        rest = resumed(client, call, 1)
        meta = (await rest.result())["_meta"]["stagedoor/gap"]
        assert (meta["after"], meta["resumed"]) == (2, 5)
        assert [m["params"]["progress"] for m in rest.seen("notifications/progress")] == [4]
        assert ids(rest) == ids(call)[4:]
        assert gateway.telemetry.total("stagedoor_gaps_total", "lost") == 1


@pytest.mark.parametrize("elsewhere", [False, True], ids=["at the owner", "elsewhere"])
async def test_whoever_resumes_before_the_owner_has_found_that_out_is_told_too(autojump_clock, elsewhere):
    alpha = http()
    async with open_replicas(2, alpha) as (gateway, other):
        client = await gateway.connect("alpha")
        call, request = await streaming(client, alpha)
        before = state(gateway)
        for n in (2, 3):
            request.progress(n)
        await gateway.settle()
        back_to(gateway, before)
        client.to(other if elsewhere else gateway)
        rest = resumed(client, call, 1)
        await trio.sleep(0.1)
        request.progress(4)
        request.text("done")
        meta = (await rest.result())["_meta"]["stagedoor/gap"]
        assert (meta["after"], meta["resumed"], meta["reason"]) == (2, 5, "lost")
        assert [m["params"]["progress"] for m in rest.seen("notifications/progress")] == [4]


async def test_a_record_that_is_gone_is_written_again_where_its_session_lives(autojump_clock):
    alpha = http()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha", capabilities={"roots": {}})
        await client.call("resources/subscribe", {"uri": "test:///a"})
        await client.call("logging/setLevel", {"level": "error"})
        call, request = await streaming(client, alpha)
        asked = request.ask("roots/list", {})
        question = await call.next("roots/list")
        [before] = gateway.store.records().values()
        flush(gateway)
        request.progress(2)
        await call.next()
        [record] = gateway.store.records().values()
        assert {n: v for n, v in record.fields.items() if n != "box"} == dict(before.fields)
        assert dict(record.requests) == dict(before.requests)
        assert dict(record.asked) == dict(before.asked)
        assert record.epoch == before.epoch
        await client.respond(question, {"roots": []})
        await asked.outcome()
        request.text("done")
        await call.result()
        assert len(set(ids(call))) == len(ids(call))
        assert await client.tool("echo") == "alpha: echo"
        assert gateway.telemetry.total("stagedoor_records_restored_total") == 1


async def test_after_a_flush_another_replica_can_go_on_with_it(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        call, request = await streaming(client, alpha)
        flush(one)
        request.progress(2)
        await call.next()
        one.kill(at_once=True)
        client.to(two)
        assert await client.tool("echo") == "alpha: echo"
        error = await resumed(client, call, -1).error()
        assert error.data["reason"] == "owner_lost"


async def test_a_claim_that_was_lost_is_not_another_s(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        await client.tool("echo")
        await alpha.next()
        before = state(one)
        one.kill(at_once=True)
        client.to(two)
        call, request = await streaming(client, alpha)
        back_to(two, before)
        request.progress(2)
        await call.next()
        request.text("done")
        await call.result()
        [record] = two.store.records().values()
        assert record.owner == two.services.cluster.incarnation
        assert two.telemetry.total("stagedoor_sessions_ended_total") == 0


@pytest.mark.parametrize("endpoint", ["", "alpha"])
async def test_on_a_get_stream_all_that_may_have_changed_is_said(autojump_clock, endpoint):
    alpha = http()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(endpoint)
        uris = await client.names("resources/list", "uri")
        await client.call("resources/subscribe", {"uri": uris[0]})
        events = client.listen()
        await events.head()
        before = state(gateway)
        alpha.upstream.notify("notifications/resources/updated", {"uri": "test:///a"})
        await events.next("notifications/resources/updated")
        back_to(gateway, before)
        alpha.upstream.notify("notifications/resources/updated", {"uri": "test:///a"})
        await trio.sleep(5)
        said = sorted(m["method"] for m in events.messages)
        assert said == sorted([*CHANGES, *["notifications/resources/updated"] * 3])
        assert events.messages[-1]["params"] == {"uri": uris[0]}
        assert len(set(ids(events))) == len(ids(events))


async def test_an_idle_session_is_restored_when_it_is_kept(autojump_clock):
    async with open_gateway(http(), idle_ttl=800.0, passivate_after=700.0) as gateway:
        client = await gateway.connect("alpha")
        flush(gateway)
        await trio.sleep(150)
        await client.call("ping")
        [record] = gateway.store.records().values()
        assert record.fields["version"] == b"2025-11-25"


async def test_one_that_is_put_to_rest_just_then_is_restored_and_rests_later(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        await trio.sleep(55)
        flush(one)
        await trio.sleep(10)
        assert await client.tool("echo") == "alpha: echo"
        await trio.sleep(70)
        assert not one.actors.sessions.table
        client.to(two)
        assert await client.tool("echo") == "alpha: echo"
        assert alpha.methods.count("initialize") == 1


async def test_what_has_ended_is_not_raised_from_the_dead(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha) as (one, _):
        client = await one.connect("alpha")
        call, request = await streaming(client, alpha)
        [(key, record)] = one.store.records().items()
        outcome: list[Any] = []
        one.store.end(key, Grant(record.owner, record.epoch), "test", outcome.append)
        assert outcome == [None]
        request.progress(2)
        await call.end()
        await one.settle()
        assert not one.store.records()
        assert await client.begin("ping").head() == 404


@pytest.mark.parametrize("seconds", [10, 400])
async def test_what_a_flush_took_with_the_lease_is_written_again_after_a_short_lapse_alone(autojump_clock, seconds):
    """After a longer one it may have ended elsewhere, and nobody remembers."""
    alpha = http()
    async with open_replicas(1, alpha) as (one,):
        client = await one.connect("alpha")
        call, request = await streaming(client, alpha)
        flush(one)
        await one.pause()
        await trio.sleep(seconds)
        await one.resume()
        await trio.sleep(3)
        if seconds > REMEMBERED:
            assert not one.actors.sessions.table
            assert await client.begin("ping").head() == 404
            return
        request.progress(2)
        await call.next()
        request.text("done")
        await call.result()
        assert len(set(ids(call))) == len(ids(call))
        assert await client.tool("echo") == "alpha: echo"
        [record] = one.store.records().values()
        assert record.owner == one.services.cluster.incarnation


async def test_a_stream_that_was_lost_is_not_taken_for_a_later_one_by_its_name(autojump_clock):
    """Of which its client, who gets no priming event, has seen nothing, and whose owner is gone with its log."""
    alpha = http()
    async with open_replicas(3, alpha) as (one, two, three):
        client = await one.connect("alpha", version="2025-06-18")
        await client.tool("echo")
        await alpha.next()
        client.to(two)
        before = state(one)
        lost = client.begin("tools/call", {"name": "slow"})
        await alpha.next()
        await trio.sleep(1)
        await two.pause()
        back_to(one, before)
        one.kill(at_once=True)
        client.to(three)
        other, request = await streaming(client, alpha)
        await two.resume()
        error = await lost.error()
        assert error.data["executed"] == "unknown"
        request.text("done")
        await other.result()
        assert not lost.seen("notifications/progress")


async def test_an_answer_on_its_way_when_the_record_is_written_again_is_owed_until_it_is_in_the_log(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        call, request = await streaming(client, alpha)
        flush(one)
        restore = memory(one).restore

        def last_words(*args: Any) -> None:
            restore(*args[:-1], lambda _: None)
            one.kill(at_once=True)

        memory(one).restore = last_words  # type: ignore[method-assign]
        request.text("done")
        await call.end()
        client.to(two)
        error = await resumed(client, call, -1).error()
        assert error.data["reason"] == "owner_lost"


async def test_an_answer_that_was_lost_with_the_end_of_its_stream_is_an_error_for_whoever_comes_back(autojump_clock):
    alpha = http()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        lost, first = await streaming(client, alpha)
        call, second = await streaming(client, alpha)
        before = state(gateway)
        first.text("done")
        await lost.result()
        second.progress(2)
        await call.next()
        back_to(gateway, before)
        second.progress(3)
        await call.next()
        rest = resumed(client, lost, -2)
        error = await rest.error()
        assert (error.code, error.data["reason"], error.data["executed"]) == (-32603, "events_lost", "unknown")
        assert ids(rest)[0] != ids(lost)[-1], "no id comes to mean something else"
        assert await resumed(client, lost, -1).head() == 400, "who has seen the answer gets no other"
        second.text("done")
        await call.result()
        [record] = gateway.store.records().values()
        assert not record.requests


async def test_what_a_loss_has_left_of_answered_requests_is_not_answered_again_by_the_next_owner(autojump_clock):
    """Of a batch, one of whose answers is in no log any more."""
    alpha = Backend("alpha", kind="http", tools=("echo", "slow", "long"), held={"slow", "long"})
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha", version="2025-03-26")
        calls = [
            {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name}}
            for id, name in (("first", "slow"), ("second", "long"))
        ]
        both = client.post(calls)
        first, second = await alpha.next(), await alpha.next()
        first, second = sorted((first, second), key=lambda request: request.params["name"] == "long")
        await trio.sleep(1)
        second.ask("ping", {})
        before = state(one)
        first.text("done")
        await trio.sleep(1)
        back_to(one, before)
        second.notify("notifications/message", {"level": "error", "data": "x"})
        await trio.sleep(1)
        one.kill(at_once=True)
        client.to(two)
        rest = client.listen(ids(both)[-1])
        await rest.end()
        assert [m["id"] for m in (*both.messages, *rest.messages) if "method" not in m] == ["first", "second"]


# It is noticed, though nothing is written --------------------------------------------------------------------------


async def test_an_idle_session_whose_record_was_lost_is_restored_at_once(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha) as (one, two):
        before = state(one)
        client = await one.connect("alpha")
        await client.tool("echo")
        back_to(one, before)
        one.store.replica.find_loss()
        await trio.sleep(1)
        [record] = one.store.records().values()
        assert record.owner == one.services.cluster.incarnation
        assert record.tries == 0
        client.to(two)
        assert await client.tool("echo") == "alpha: echo"
        assert not two.actors.sessions.table, "it lives where it lived"


async def test_a_session_whose_claim_was_lost_is_claimed_again_at_once(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        await client.tool("echo")
        await alpha.next()
        before = state(one)
        one.kill(at_once=True)
        client.to(two)
        call, request = await streaming(client, alpha)
        back_to(two, before)
        two.store.replica.find_loss()
        await trio.sleep(1)
        [record] = two.store.records().values()
        assert record.owner == two.services.cluster.incarnation
        request.text("done")
        await call.result()
        assert len(set(ids(call))) == len(ids(call))


async def test_a_write_that_is_refused_while_the_session_is_claimed_again_does_not_end_it(autojump_clock, monkeypatch):
    """Its claim says what has become of it."""
    async with open_replicas(2, http()) as (one, _):
        client = await one.connect("alpha", capabilities={})
        saves, claims = held(one, "save", monkeypatch), held(one, "claim", monkeypatch)
        call = client.begin("logging/setLevel", {"level": "error"})
        await one.settle()
        flush(one)
        one.store.replica.find_loss()
        await one.settle()
        monkeypatch.undo()
        for write in (*saves, *claims):
            write()
            await one.settle()
        await call.result()
        assert await client.tool("echo") == "alpha: echo"
        [record] = one.store.records().values()
        assert record.owner == one.services.cluster.incarnation


@pytest.mark.parametrize("why", [None, Refused.AWAY])
async def test_a_session_that_was_taken_over_as_it_was_put_to_rest_is_mailed_to_its_owner(
    autojump_clock, monkeypatch, why
):
    """It was given back under a name that the process has no more, and what is heard of that (that it is another's,
    or nothing) says not whose it is now."""
    alpha = http()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        releases = held(one, "release", monkeypatch)
        await trio.sleep(65)
        await one.pause()
        await trio.sleep(6)
        client.to(two)
        assert await client.tool("echo") == "alpha: echo"
        await one.resume()
        client.to(one)
        early = client.begin("tools/call", {"name": "echo"})
        await one.settle()
        [release] = releases
        if why is None:
            release()
        else:
            release.args[2](Failed(why))  # type: ignore[attr-defined]
        with trio.fail_after(10):
            await early.result()
            assert await client.tool("echo") == "alpha: echo"
        first, second = alpha.upstreams
        assert (len(first.params_of("tools/call")), len(second.params_of("tools/call"))) == (0, 3)
        assert not one.actors.sessions.table


async def test_who_has_lost_a_session_in_a_loss_serves_it_no_more(autojump_clock):
    """Though all that it does there are quick calls, which write nothing."""
    alpha = http()
    async with open_replicas(3, alpha) as (one, two, three):
        client = await one.connect("alpha")
        await client.tool("echo")
        before = state(one)
        one.kill(at_once=True)
        client.to(two)
        await client.tool("echo")
        back_to(two, before)
        client.to(three)
        await client.tool("echo")
        assert len(three.actors.sessions.table) == len(two.actors.sessions.table) == 1, "nobody has noticed"
        two.store.replica.find_loss()
        three.store.replica.find_loss()
        client.to(two)
        assert await client.tool("echo") == "alpha: echo"
        assert not two.actors.sessions.table
        assert len(three.actors.sessions.table) == 1


async def test_what_has_ended_meanwhile_is_not_restored(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha) as (one, _):
        client = await one.connect("alpha")
        [(key, record)] = one.store.records().items()
        one.store.end(key, Grant(record.owner, record.epoch), "test", lambda _: None)
        one.store.replica.find_loss()
        await trio.sleep(1)
        assert not one.store.records()
        assert not one.actors.sessions.table
        assert await client.begin("ping").head() == 404


async def test_an_answer_that_was_lost_is_told_though_nothing_is_written(autojump_clock):
    alpha = http()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        call, request = await streaming(client, alpha)
        before = state(gateway)
        request.text("done")
        await call.result()
        back_to(gateway, before)
        assert isinstance(gateway.store, MemoryStore)
        gateway.store.replica.find_loss()
        await trio.sleep(1)
        error = await resumed(client, call, -2).error()
        assert error.data["reason"] == "events_lost"


async def test_an_event_of_a_lost_stream_is_none_of_a_later_one_that_has_lost_its_own(autojump_clock):
    """Two losses: the first one takes a stream and its owner, the second one the first events of its namesake."""
    alpha = http()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        await client.tool("echo")
        await alpha.next()
        before = state(one)
        lost, _ = await streaming(client, alpha)
        back_to(one, before)
        one.kill(at_once=True)
        client.to(two)
        call, request = await reached(client, alpha, progress="mine")
        before = state(two)
        for n in (1, 2, 3):
            request.progress(n)
        await call.next()
        back_to(two, before)
        request.progress(4)
        await two.settle()
        assert ids(call)[0].startswith("p1:")
        assert await resumed(client, lost, -1).head() == 400
        request.text("done")
        await call.result()
