"""A session whose record kills whoever rebuilds it is given up; one that only had bad luck is not."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from actors.ports import Failed, Refused
from actors.sessions import router
from actors.sessions.router import REBUILDS, Sessions
from tests.support.harness import Gateway, open_gateway, open_replicas
from tests.support.mcp_backend import Backend

LONG = 10.0
"""Seconds after which a lease has surely run out."""


def loses(gateway: Gateway, *calls: str) -> None:
    """What it asks of the store by these calls does not come there."""
    for name in calls:
        setattr(gateway.store, name, lambda *args, **more: args[-1](Failed(Refused.AWAY)))


@pytest.mark.parametrize("deaths", [1, REBUILDS - 1, REBUILDS])
async def test_a_session_is_given_up_whose_owners_have_died_before_their_first_write(autojump_clock, deaths):
    async with open_replicas(deaths + 2, Backend("alpha", kind="http")) as replicas:
        first, *victims, last = replicas
        client = await first.connect("alpha")
        first.kill(at_once=True)
        for victim in victims:
            loses(victim, "save")
            client.to(victim)
            assert await client.tool("echo") == "alpha: echo"
            victim.kill(at_once=True)
        client.to(last)
        status = await client.begin("tools/call", {"name": "echo"}).head()
        assert status == (404 if deaths == REBUILDS else 200)
        assert len(last.log.events("session_poisoned")) == (deaths == REBUILDS)


async def test_claims_of_which_nothing_was_heard_count_once(autojump_clock):
    async with open_gateway(Backend("alpha", kind="http")) as gateway:
        client = await gateway.connect("alpha")
        await trio.sleep(70)
        assert not gateway.actors.sessions.table
        claim = gateway.store.claim

        def unheard(*args: Any, **more: Any) -> None:
            claim(*args[:-1], lambda outcome: args[-1](Failed(Refused.AWAY)), **more)

        gateway.store.claim = unheard  # type: ignore[method-assign]
        for _ in range(REBUILDS + 1):
            assert await client.begin("tools/call", {"name": "echo"}).head() == 503
        gateway.store.claim = claim  # type: ignore[method-assign]
        assert await client.tool("echo") == "alpha: echo"


async def test_of_such_claims_and_of_owners_elsewhere_only_so_many_are_remembered(autojump_clock, monkeypatch):
    monkeypatch.setattr(router, "UNHEARD", 1)
    async with open_gateway(Backend("alpha", kind="http")) as gateway:
        clients = [await gateway.connect("alpha") for _ in range(2)]
        await trio.sleep(70)
        claim = gateway.store.claim

        def unheard(*args: Any, **more: Any) -> None:
            claim(*args[:-1], lambda outcome: args[-1](Failed(Refused.AWAY)), **more)

        gateway.store.claim = unheard  # type: ignore[method-assign]
        for _ in range(REBUILDS + 1):
            for client in clients:
                assert await client.begin("ping").head() == 503
        gateway.store.claim = claim  # type: ignore[method-assign]
        assert await clients[0].begin("ping").head() == 404, "each counted: the other's claim was the last one"
    monkeypatch.setattr(router, "ELSEWHERE", 3)
    sessions = Sessions()
    for key in ("a", "b", "c", "a", "d"):
        sessions.know(key, "owner")
    assert list(sessions.elsewhere) == ["c", "a", "d"]


async def test_a_session_that_lives_through_lapses_is_not_given_up_by_its_next_owner(autojump_clock):
    async with open_replicas(2, Backend("alpha", kind="http")) as (one, two):
        client = await one.connect("alpha")
        loses(one, "save")
        for _ in range(REBUILDS + 1):
            await one.pause()
            await trio.sleep(LONG)
            await one.resume()
            await trio.sleep(1)
            [record] = one.store.records().values()  # type: ignore[attr-defined]
            assert record.owner == one.services.cluster.incarnation
        one.kill(at_once=True)
        client.to(two)
        assert await client.tool("echo") == "alpha: echo"
