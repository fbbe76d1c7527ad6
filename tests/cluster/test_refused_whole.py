"""What is refused because the store is away was not executed, and says so of a request in it: where there is no HTTP
status, nothing else does."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from actors.ports import Failed, Refused
from tests.cluster.test_mail import http, pair
from tests.support.door_client import Client, Pending
from tests.support.harness import Gateway

AWAY = Failed(Refused.AWAY)


def post(client: Client, count: int) -> Pending:
    """So many calls in one message."""
    calls = [{"id": f"call {n}", "method": "tools/call", "params": {"name": "echo"}} for n in range(count)]
    return client.post(calls if count > 1 else calls[0])


async def at_rest(one: Gateway, two: Gateway, client: Client) -> None:
    """Nobody has the session, and its record can't be read."""
    await trio.sleep(100)
    one.store.read = lambda *args: args[-1](AWAY)  # type: ignore[method-assign]


async def of_a_former_name(one: Gateway, two: Gateway, client: Client) -> None:
    """Its process has another name since, and the store says nothing to its claim."""
    await one.pause()
    await trio.sleep(5)
    one.store.claim = lambda *args, **more: args[-1](AWAY)  # type: ignore[method-assign]
    await one.resume()


async def in_doubt(one: Gateway, two: Gateway, client: Client) -> None:
    """Its process hears nothing of the store, and others may have it by now."""
    one.actors.doubt.others = True
    one.store.replica.cut_off()  # type: ignore[attr-defined]
    await trio.sleep(3)
    assert await client.tool("echo") == "alpha: echo"
    await trio.sleep(70)


async def at_rest_for_another(one: Gateway, two: Gateway, client: Client) -> None:
    """The same as its owner is asked by mail."""
    await client.tool("echo")
    client.to(two)
    await client.tool("echo")
    await at_rest(one, two, client)
    two.actors.sessions.know(next(iter(two.store.records())), one.services.cluster.incarnation)  # type: ignore[attr-defined]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("happens", [at_rest, of_a_former_name, in_doubt, at_rest_for_another])
async def test_it_names_the_first_request(autojump_clock: Any, happens: Any, count: int) -> None:
    alpha = http()
    options = {"passivate_after": 1000.0} if happens is in_doubt else {}
    async with pair(alpha, **options) as (one, two):
        client = await one.connect("alpha", version="2025-03-26")
        await client.tool("echo")
        await happens(one, two, client)
        before = len(alpha.asked_for("tools/call"))
        call = post(client, count)
        assert await call.head() == 503
        [refusal] = call.messages
        assert refusal["id"] == "call 0"
        assert refusal["error"]["data"]["executed"] == "no"
        assert len(alpha.asked_for("tools/call")) == before
