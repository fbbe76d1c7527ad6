"""A session goes to the replica to which its client's messages come, where a balancer leads them to one."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from actors.cluster import letters
from actors.protocol.table import Limits
from tests.cluster.test_mail import elsewhere, http, numbers, owners, pair, sent
from tests.support.door_client import Client
from tests.support.harness import Gateway
from tests.support.mcp_backend import Backend

ENOUGH = Limits().follow_after
REST = Limits().passivate_after + 10


async def calls(client: Client, count: int) -> None:
    for _ in range(count):
        assert await client.tool("echo") == "alpha: echo"


async def test_a_session_goes_to_where_all_its_messages_come_and_nothing_is_mailed_any_more(autojump_clock):
    alpha = http()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        await calls(client, ENOUGH - 1)
        assert owners(one, two) == [1, 0]
        await calls(client, 2)
        assert owners(one, two) == [0, 1]
        mailed = sent(two, "deliver")
        await calls(client, 10)
        assert sent(two, "deliver") == mailed
        assert alpha.methods.count("initialize") == 1, "its server knows nothing of it"


async def test_a_session_whose_messages_come_to_replicas_in_turn_stays(autojump_clock):
    async with pair(http(), 3) as (one, two, three):
        client = await elsewhere(one, two)
        for replica in [two, three, one, two, three] * ENOUGH:
            client.to(replica)
            await calls(client, 1)
        for replica in [one, two] * ENOUGH:
            client.to(replica)
            await calls(client, 1)
        assert owners(one, two, three) == [1, 0, 0]


@pytest.mark.parametrize("ids", [True, False])
async def test_a_stream_that_is_read_there_goes_along_only_where_that_leaves_no_hole(autojump_clock, ids):
    """A server that gives its events no ids does not say again what it said while nobody listened."""
    alpha = http()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        stream = client.listen()
        await trio.sleep(1)
        for number in range(ENOUGH + 3):
            cursor = f"c{number}" if ids else None
            if owners(one, two) == [1, 0]:
                alpha.upstream.notify("notifications/message", {"level": "info", "data": number}, cursor=cursor)
            await calls(client, 1)
        await trio.sleep(1)
        assert owners(one, two) == ([0, 1] if ids else [1, 0])
        said = [m["params"]["data"] for m in stream.messages if m["method"] == "notifications/message"]
        assert said == list(range(ENOUGH if ids else ENOUGH + 3))
        assert numbers(stream) == list(range(1, len(numbers(stream)) + 1))
        assert not stream.done


@pytest.mark.parametrize("where", ["at the owner", "at a third replica"])
async def test_a_session_whose_stream_is_read_elsewhere_stays(autojump_clock, where):
    async with pair(http(), 3) as (one, two, three):
        client = await elsewhere(one, two)
        client.to(one if where == "at the owner" else three)
        stream = client.listen()
        await trio.sleep(1)
        client.to(two)
        await calls(client, 2 * ENOUGH)
        assert owners(one, two, three) == [1, 0, 0]
        assert not stream.done


async def test_a_session_with_a_process_of_its_own_stays(autojump_clock):
    async with pair(Backend("alpha")) as (one, two):
        client = await elsewhere(one, two)
        await calls(client, 2 * ENOUGH)
        assert owners(one, two) == [1, 0]


async def test_it_goes_when_nothing_is_in_flight(autojump_clock):
    alpha = http(tools=("echo", "slow"), held={"slow"})
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        call = client.begin("tools/call", {"name": "slow"})
        request = await alpha.next()
        await calls(client, 2 * ENOUGH)
        assert owners(one, two) == [1, 0]
        request.text("done")
        assert (await call.result())["content"][0]["text"] == "done"
        await calls(client, 2)
        assert owners(one, two) == [0, 1]
        assert len(alpha.asked_for("tools/call")) == 2 * ENOUGH + 3


async def test_messages_that_come_while_it_goes_are_executed_once_each(autojump_clock):
    alpha = http()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        await calls(client, ENOUGH - 1)
        pending = [client.begin("tools/call", {"name": "echo", "arguments": {"text": str(n)}}) for n in range(20)]
        for number, call in enumerate(pending):
            assert (await call.result())["content"][0]["text"] == f"alpha: {number}"
        await calls(client, 2)
        assert owners(one, two) == [0, 1]
        assert len(alpha.asked_for("tools/call")) == ENOUGH - 1 + 20 + 2


async def test_it_stays_where_that_is_configured(autojump_clock):
    async with pair(http(), follow_after=0) as (one, two):
        client = await elsewhere(one, two)
        await calls(client, 2 * ENOUGH)
        assert owners(one, two) == [1, 0]


# After a rest -------------------------------------------------------------------------------------------------


async def rested(one: Gateway, two: Gateway) -> Client:
    """A client whose session has left the memory of the one; the other still takes that one for its owner."""
    client = await elsewhere(one, two)
    await calls(client, 1)
    await trio.sleep(REST)
    assert owners(one, two) == [0, 0]
    assert one.services.cluster.incarnation in two.actors.sessions.elsewhere.values()
    return client


async def test_after_a_rest_it_is_where_its_first_message_comes(autojump_clock):
    async with pair(http()) as (one, two):
        client = await rested(one, two)
        began = trio.current_time()
        await calls(client, 1)
        assert trio.current_time() - began < 0.1
        assert owners(one, two) == [0, 1]
        mailed = sent(two, "deliver")
        await calls(client, 3)
        assert sent(two, "deliver") == mailed


async def test_two_messages_at_two_replicas_find_one_session_after_a_rest(autojump_clock):
    alpha = http()
    async with pair(alpha) as (one, two):
        client = await rested(one, two)
        began = trio.current_time()
        first = client.begin("tools/call", {"name": "echo"})
        client.to(one)
        second = client.begin("tools/call", {"name": "echo"})
        for call in (first, second):
            assert (await call.result())["content"][0]["text"] == "alpha: echo"
        assert trio.current_time() - began < 1
        assert sum(owners(one, two)) == 1
        assert len(alpha.asked_for("tools/call")) == 3


async def test_who_does_not_say_that_it_can_have_the_session_is_served_by_the_former_owner(
    autojump_clock, monkeypatch: Any
):
    """A replica of before, or one that drains."""
    encode = letters.encode
    async with pair(http()) as (one, two):
        client = await rested(one, two)
        monkeypatch.setattr(
            letters, "encode", lambda letter: encode(letters.Letter(*(getattr(letter, n) for n in BEFORE)))
        )
        await calls(client, 1)
        assert owners(one, two) == [1, 0]


BEFORE = [name for name in letters.Letter.__struct_fields__ if name != "able"]
