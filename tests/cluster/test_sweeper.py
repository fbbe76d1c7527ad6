"""What a dead replica has left: work is taken over by whoever is there, all else waits, and ends at its time."""

import trio

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


async def test_one_of_several_takes_it_over(autojump_clock):
    alpha = working()
    async with open_replicas(4, alpha) as (one, *others):
        client = await one.connect("alpha")
        await begun(client, alpha, "work")
        one.kill()
        await trio.sleep(LEASE + 1.6)
        assert sum(alive(other) for other in others) == 1


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
