"""Calls that came by mail, whose connection broke before their client had an event id, and which then ask."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.actors.test_unheard_calls import BROKEN, FORM, GIVEN, KINDS, MAY_ALL
from tests.cluster.test_mail import elsewhere, pair
from tests.support.door_client import Client, Pending
from tests.support.harness import Gateway
from tests.support.mcp_backend import Backend

LOST = pytest.mark.parametrize("lost", ["the connection", "its process", "its process, seen to end"])
FOUND = 5.0
"""Seconds in which the death of a process is known at the latest."""


def lose(client: Client, call: Pending, one: Gateway, two: Gateway, lost: str) -> float:
    """The connection is gone; how much longer it may take until the owner knows that."""
    if lost == "the connection":
        call.drop()
    else:
        two.kill(at_once="seen" in lost)
    client.to(one)
    return FOUND if lost == "its process" else 0.0


@LOST
@BROKEN
@KINDS
async def test_what_it_asks_is_refused_within_the_wait_for_a_stream(
    autojump_clock: Any, kind: str, version: str, after: float, lost: str
) -> None:
    alpha = Backend("alpha", tools=("ask",), held={"ask"}, kind=kind)
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two, capabilities=MAY_ALL, version=version)
        first = client.begin("tools/call", {"name": "ask"})
        request = await alpha.next()
        await trio.sleep(after)
        more = lose(client, first, one, two, lost)
        await one.settle()
        before = trio.current_time()
        asked = request.ask("elicitation/create", FORM)
        second = client.begin("tools/call", {"name": "ask"})
        assert (await asked.outcome())["error"]["data"]["reason"] == ("timeout" if more else "no_stream")
        assert 5 <= trio.current_time() - before < 6 + more
        request.text("never mind")
        (await alpha.next()).text("done")
        assert (await second.result())["content"][0]["text"] == "done"


@pytest.mark.parametrize("lost", ["the connection", "its process, seen to end"])
@BROKEN
@KINDS
async def test_with_a_get_stream_what_it_asks_goes_there(
    autojump_clock: Any, kind: str, version: str, after: float, lost: str
) -> None:
    alpha = Backend("alpha", tools=("ask",), held={"ask"}, kind=kind)
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two, capabilities=MAY_ALL, version=version)
        client.to(one)
        events = client.listen()
        client.to(two)
        first = client.begin("tools/call", {"name": "ask"})
        request = await alpha.next()
        await trio.sleep(after)
        lose(client, first, one, two, lost)
        await one.settle()
        asked = request.ask("elicitation/create", FORM)
        question = await events.next("elicitation/create")
        await trio.sleep(20)
        await client.respond(question, GIVEN)
        assert (await asked.outcome())["result"] == GIVEN
        request.text("done")
        second = client.begin("tools/call", {"name": "ask"})
        (await alpha.next()).text("done too")
        assert (await second.result())["content"][0]["text"] == "done too"
