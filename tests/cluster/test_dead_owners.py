"""Sessions whose owner is dead come to a replica that may not take anything over yet, or not any more."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from actors.machines.cluster import lease
from tests.cluster.test_giving_back import draining
from tests.cluster.test_lost_owners import slow
from tests.cluster.test_mail import http, owners
from tests.cluster.test_versions import NEWER, reads_less
from tests.support.calls import reached
from tests.support.door_client import Client
from tests.support.harness import Gateway, open_replica_maker, open_replicas

KINDS = ("request", "notification", "stream", "end")


async def asks(client: Client, kind: str) -> int:
    """The status of what it gets."""
    if kind == "end":
        return await client.delete()
    if kind == "stream":
        return await client.listen().head()
    if kind == "notification":
        return await client.post({"method": "notifications/roots/list_changed"}).head()
    return await client.begin("tools/call", {"name": "echo"}).head()


def begin_only_now(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own lease is not as old yet as one lasts: so long the store lets it claim nothing from others."""
    claim, may = gateway.services.store.claim, trio.current_time() + lease.TTL

    async def claim_later(*arguments: Any, **more: Any) -> None:
        await trio.sleep_until(may)
        claim(*arguments, **more)

    def claimed(*arguments: Any, **more: Any) -> None:
        gateway.nursery.start_soon(lambda: claim_later(*arguments, **more))

    monkeypatch.setattr(gateway.services.store, "claim", claimed)


@pytest.mark.parametrize("kind", KINDS)
async def test_whatever_comes_to_a_replica_that_has_just_begun_waits_until_it_may_take_over(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async with open_replicas(2, http()) as (one, two):
        client = await one.connect("alpha")
        one.kill()
        await trio.sleep(5)
        begin_only_now(two, monkeypatch)
        client.to(two)
        began = trio.current_time()
        assert await asks(client, kind) in (200, 202)
        assert lease.TTL <= trio.current_time() - began < lease.TTL + 1
        assert owners(two) == [0 if kind == "end" else 1]


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_what_comes_to_one_that_drains_goes_to_another_which_takes_over(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch, kind: str, begun: bool
) -> None:
    """`begun`: the other one has just begun. Whoever wants a stream comes back there by itself."""
    alpha = slow()
    async with open_replicas(3, alpha) as (one, two, three):
        client, busy = await one.connect("alpha"), await two.connect("alpha")
        call, request = await reached(busy, alpha)
        one.kill()
        await trio.sleep(5)
        if begun:
            begin_only_now(three, monkeypatch)
        client.to(two)
        async with draining(two):
            assert await asks(client, kind) in ((503,) if kind == "stream" else (200, 202))
            request.text("done")
            await call.result()
        client.to(three)
        if kind == "stream":
            assert await asks(client, kind) == 200
        assert owners(three) == [0 if kind == "end" else 1]


async def test_what_waits_as_the_drain_begins_goes_to_another_too(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_replicas(3, slow()) as (one, two, three):
        client = await one.connect("alpha")
        one.kill()
        await trio.sleep(5)
        begin_only_now(two, monkeypatch)
        client.to(two)
        call = client.begin("tools/call", {"name": "echo"})
        await trio.sleep(1)
        async with draining(two):
            assert (await call.result())["content"]
        assert owners(three) == [1]


async def test_of_several_that_drain_the_message_finds_its_way_to_one_that_does_not(autojump_clock: Any) -> None:
    alpha = slow()
    async with open_replicas(4, alpha) as (one, two, three, four):
        client, calls = await one.connect("alpha"), []
        for busy in (two, three):
            calls.append(await reached(await busy.connect("alpha"), alpha))
        one.kill()
        await trio.sleep(5)
        client.to(two)
        async with draining(two), draining(three):
            assert await client.tool("echo") == "alpha: echo"
            for call, request in calls:
                request.text("done")
                await call.result()
        assert owners(four) == [1]


async def test_what_a_draining_one_sends_to_the_wrong_replica_goes_to_its_living_owner(autojump_clock: Any) -> None:
    alpha = slow()
    async with open_replicas(3, alpha) as (one, two, three):
        client = await one.connect("alpha")
        [key] = one.actors.sessions.table
        call, request = await reached(await two.connect("alpha"), alpha)
        two.actors.sessions.know(key, three.services.cluster.incarnation)
        client.to(two)
        async with draining(two):
            began = trio.current_time()
            assert await client.tool("echo") == "alpha: echo"
            assert trio.current_time() - began < 1
            request.text("done")
            await call.result()
        assert owners(one, three) == [1, 0]


async def test_one_that_can_t_read_the_record_hands_the_message_to_one_that_takes_over(autojump_clock: Any) -> None:
    async with open_replica_maker(http()) as start:
        older, newer, other = await start(), await start(info=NEWER), await start(info=NEWER)
        client = await newer.connect("alpha")
        reads_less(older)
        newer.kill()
        await trio.sleep(5)
        client.to(older)
        assert await client.tool("echo") == "alpha: echo"
        assert owners(older, other) == [0, 1]
