"""What a dead replica has left: work is taken over by whoever is there, all else waits, and ends at its time."""

import random

import pytest
import trio

from actors.ports import Failed, Principal, Refused
from tests.actors.test_continued import back, begun
from tests.support.door_client import Client
from tests.support.harness import Gateway, open_replicas
from tests.support.mcp_backend import Backend

LEASE = 3.5
"""Seconds until a killed replica is found dead."""


def http(**more: object) -> Backend:
    return Backend("alpha", kind="http", **more)  # type: ignore[arg-type]


def working() -> Backend:
    return http(tools=("echo", "work"), held={"work"})


def alive(gateway: Gateway) -> int:
    return len(gateway.actors.sessions.table)


async def test_work_in_flight_is_taken_over_though_nobody_asks_for_it(autojump_clock):
    alpha = working()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        call, story = await begun(client, alpha, "work")
        one.kill()
        await trio.sleep(LEASE + 1.6)
        assert alive(two) == 1
        assert two.telemetry.total("stagedoor_takeovers_total", "takeover") == 1
        assert alpha.upstream.transport.picked_up == [(story.request.id, "c1")]
        story.result("done")
        client.to(two)
        answer = await back(client, call).response()
        assert answer["result"]["content"][0]["text"] == "done"
        assert len(alpha.asked_for("tools/call")) == 1


async def test_work_for_which_there_is_no_room_waits_for_its_client_and_no_connection_waits_for_it(autojump_clock):
    alpha, me = working(), Principal("me")
    async with open_replicas(2, alpha, sessions_per_principal=1) as (one, two):
        client = await one.connect("alpha", me)
        client.to(two)
        call, _ = await begun(client, alpha, "work")
        other = await two.connect("alpha", me)
        one.kill()
        with trio.fail_after(15):
            await call.end()
        assert await back(client, call).head() == 429
        assert await other.delete() == 200
        answer = await back(client, call).response()
        assert "result" in answer or answer["error"]["data"]["executed"] == "unknown"


@pytest.mark.parametrize("done_all_the_same", [False, True])
async def test_it_is_tried_again_where_the_store_was_away_at_that_moment(
    autojump_clock, monkeypatch, done_all_the_same
):
    alpha = working()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        call, story = await begun(client, alpha, "work")
        one.kill()
        back_at, claim = trio.current_time() + LEASE + 6, two.store.claim

        def troubled(key, owner, epoch, nonce, done):
            if trio.current_time() < back_at:
                if done_all_the_same and owner != two.store.owner:
                    claim(key, owner, epoch, nonce, lambda _: None)
                done(Failed(Refused.AWAY))
            else:
                claim(key, owner, epoch, nonce, done)

        monkeypatch.setattr(two.store, "claim", troubled)
        await trio.sleep(LEASE + 5)
        assert alive(two) == 0
        await trio.sleep(7)
        assert alive(two) == 1
        story.result("done")
        client.to(two)
        answer = await back(client, call).response()
        assert answer["result"]["content"][0]["text"] == "done"


async def test_one_of_several_takes_it_over(autojump_clock):
    alpha = working()
    async with open_replicas(4, alpha) as (one, *others):
        client = await one.connect("alpha")
        await begun(client, alpha, "work")
        one.kill()
        await trio.sleep(LEASE + 1.6)
        assert sum(alive(other) for other in others) == 1


async def test_replicas_do_not_all_begin_at_once(autojump_clock):
    alpha = working()
    async with open_replicas(2, alpha, jitter=0.9) as (one, two):
        client = await one.connect("alpha")
        await begun(client, alpha, "work")
        one.kill()
        await trio.sleep(LEASE + 0.5 + 0.8)
        assert alive(two) == 0
        await trio.sleep(0.3)
        assert alive(two) == 1


async def test_an_idle_session_waits_for_its_next_message(autojump_clock):
    async with open_replicas(2, http()) as (one, two):
        client = await one.connect("alpha")
        await client.tool("echo")
        one.kill()
        await trio.sleep(20)
        assert alive(two) == 0
        client.to(two)
        assert await client.tool("echo") == "alpha: echo"


async def test_a_thousand_sessions_do_not_fall_upon_the_others_at_once(autojump_clock):
    alpha, many = working(), 300
    async with open_replicas(2, alpha) as (one, two):
        for _ in range(many):
            client = await one.connect("alpha")
            call = client.begin("tools/call", {"name": "work"}, progress="mine")
            request = await alpha.next()
            alpha.upstream.transport.prime("c0", request.id)
            first = {"progressToken": request.token, "progress": 1}
            alpha.upstream.notify("notifications/progress", first, related=request.id, cursor="c1")
            await call.next("notifications/progress")
        one.kill()
        await trio.sleep(LEASE + 0.5 + 0.5)
        assert 0 < alive(two) <= 120
        await trio.sleep(2)
        assert alive(two) == many


async def test_each_goes_through_what_is_left_in_an_order_of_its_own_and_strikes_it_off(autojump_clock, monkeypatch):
    chance = random.Random(9)
    async with open_replicas(3, http(), jitter=lambda: chance.random() / 100) as (one, *others):
        for _ in range(30):
            await one.connect("alpha")
        dead = one.services.cluster.incarnation
        looked: list[list[str]] = []
        for other in others:
            seen, read = list[str](), other.store.read
            looked.append(seen)
            monkeypatch.setattr(
                other.store, "read", lambda key, done, seen=seen, read=read: (seen.append(key), read(key, done))
            )
        one.kill()
        await trio.sleep(LEASE + 1.5)
        listed: list[str] = []
        others[0].services.cluster.replicas(lambda found: listed.extend(replica.incarnation for replica in found))
        assert dead not in listed
        first, second = looked
        assert set(first) | set(second) == set(others[0].store.records())
        assert [key for key in first if key in second] != [key for key in second if key in first]


async def put_to_rest(gateway: Gateway) -> Client:
    client = await gateway.connect("alpha")
    await client.tool("echo")
    await trio.sleep(70)
    assert alive(gateway) == 0
    return client


async def test_a_session_at_rest_ends_upstream_though_its_process_is_no_more(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha, idle_ttl=600.0) as (one, two):
        await put_to_rest(one)
        session = alpha.upstream.transport.session
        one.kill()
        await trio.sleep(450)
        assert len(two.store.records()) == 1
        await trio.sleep(250)
        assert two.store.records() == {}
        assert two.telemetry.total("stagedoor_sessions_ended_total", "idle") == 1
        upstream = alpha.upstream.transport
        assert upstream.resumed.session == session
        assert upstream.closed
        assert not upstream.let_go_of


async def test_one_that_was_given_back_in_a_drain_ends_too(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha, idle_ttl=600.0) as (one, two):
        client = await one.connect("alpha")
        await client.tool("echo")
        with trio.move_on_after(8):
            await one.system.drain(8)
        one.kill(at_once=True)
        await trio.sleep(550)
        assert len(two.store.records()) == 1
        await trio.sleep(250)
        assert two.store.records() == {}
        assert alpha.upstream.transport.closed


async def test_an_idle_session_of_a_dead_replica_ends_too(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha, idle_ttl=600.0) as (one, two):
        client = await one.connect("alpha")
        await client.tool("echo")
        one.kill()
        await trio.sleep(550)
        assert len(two.store.records()) == 1
        await trio.sleep(250)
        assert two.store.records() == {}


async def test_one_that_was_claimed_and_nobody_heard_of_it_ends_too(autojump_clock, monkeypatch):
    alpha = http()
    async with open_replicas(3, alpha, idle_ttl=600.0) as (one, two, _):
        client = await put_to_rest(one)
        claim = two.store.claim

        def unheard(key, owner, epoch, nonce, done):
            claim(key, owner, epoch, nonce, lambda _: None)
            done(Failed(Refused.AWAY))

        client.to(two)
        with monkeypatch.context() as troubled:
            troubled.setattr(two.store, "claim", unheard)
            assert (await client.begin("tools/call", {"name": "echo"}).head()) == 503
        [record] = two.store.records().values()
        assert record.owner == two.store.owner
        await trio.sleep(800)
        assert two.store.records() == {}
        assert alpha.upstream.transport.closed


async def test_a_session_that_came_back_elsewhere_is_not_ended(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha, idle_ttl=600.0) as (one, two):
        client = await put_to_rest(one)
        client.to(two)
        for _ in range(30):
            await client.tool("echo")
            await trio.sleep(50)
        assert len(two.store.records()) == 1
        assert await client.tool("echo") == "alpha: echo"
