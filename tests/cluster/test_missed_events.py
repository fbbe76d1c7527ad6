"""A client comes back for a GET stream and some of its events are gone: it goes on behind them, and the client is told
what may have changed, wherever it comes back, whoever owns its session by then, and whatever took the events."""

from itertools import pairwise

import pytest
import trio

from actors.gate import parse_event_id
from tests.support.door_client import Client, Pending
from tests.support.harness import Gateway, open_replicas
from tests.support.mcp_backend import Backend
from tests.support.outages import Wire

URI = "test:///a"
CHANGES = {
    "notifications/tools/list_changed",
    "notifications/resources/list_changed",
    "notifications/prompts/list_changed",
    "notifications/resources/updated",
}


async def reading(gateway: Gateway, alpha: Backend, count: int) -> tuple[Client, Pending]:
    """A client with a GET stream on which so many numbers came, and whose connection broke then."""
    client = await gateway.connect("alpha")
    await client.call("resources/subscribe", {"uri": URI})
    events = client.listen()
    await gateway.settle()
    await say(alpha, 0, count)
    events.drop()
    await gateway.settle()
    assert numbers(events) == [*range(count)]
    return client, events


async def say(alpha: Backend, begin: int, end: int) -> None:
    for number in range(begin, end):
        alpha.upstream.notify("notifications/message", {"level": "info", "data": number})
        await trio.sleep(0.02)
    await trio.sleep(1)


def numbers(pending: Pending) -> list[int]:
    return [m["params"]["data"] for m in pending.seen("notifications/message")]


def ids(pending: Pending) -> list[str]:
    return [event.id for event in pending.events if event.id]


def changed(pending: Pending) -> set[str]:
    return {m["method"] for m in pending.messages} & CHANGES


def in_order(pending: Pending) -> bool:
    """Whether after the hole, which is before the first event, none is missing, doubled or out of order."""
    places = [parse_event_id(id) for id in ids(pending)]
    return all(a and b and b[2] == a[2] + 1 for a, b in pairwise(places))


@pytest.mark.parametrize("where", ["at the owner", "elsewhere", "at the next owner"])
async def test_a_trimmed_stream_goes_on(autojump_clock, where):
    alpha = Backend("alpha", kind="http")
    async with open_replicas(2, alpha, log_events=1_000) as (one, two):
        client, events = await reading(one, alpha, 800)
        if where != "at the owner":
            client.to(two)
        if where == "at the next owner":
            one.kill()
        again = client.listen(ids(events)[3])
        assert await again.head() == 200
        await trio.sleep(5)
        await say(alpha, 800, 805)
        kept = numbers(again)
        assert kept == [*range(kept[0], 805)]
        assert kept[0] > 3
        assert in_order(again)
        assert changed(again) == CHANGES
        assert {m["params"]["uri"] for m in again.seen("notifications/resources/updated")} == {URI}


@pytest.mark.parametrize("where", ["at the owner", "elsewhere"])
async def test_a_stream_whose_newest_events_the_store_has_lost_goes_on(autojump_clock, where):
    alpha = Backend("alpha", kind="http")
    async with open_replicas(2, alpha) as (one, two):
        client, events = await reading(one, alpha, 10)
        before = one.store.snapshot()
        again = client.listen(ids(events)[-1])
        await say(alpha, 10, 13)
        again.drop()
        await one.settle()
        one.store.lose(before)
        if where == "elsewhere":
            client.to(two)
        last = client.listen(ids(events)[-1])
        assert await last.head() == 200
        await trio.sleep(5)
        await say(alpha, 13, 16)
        assert numbers(last) == [13, 14, 15]
        assert in_order(last)
        assert changed(last) == CHANGES


async def test_who_has_what_is_there_misses_nothing_as_its_session_is_taken_over(autojump_clock):
    alpha = Backend("alpha", kind="http")
    async with open_replicas(3, alpha, log_events=1_000) as (one, two, three):
        client, events = await reading(one, alpha, 800)
        client.to(two)
        again = client.listen(ids(events)[3])
        await trio.sleep(1)
        assert one.telemetry.total("stagedoor_gaps_total", "trimmed") == 1
        one.kill()
        client.to(three)
        await client.call("ping")
        await trio.sleep(10)
        await say(alpha, 800, 805)
        kept = numbers(again)
        assert kept == [*range(kept[0], 805)]
        assert in_order(again)
        assert three.telemetry.total("stagedoor_gaps_total") == 0


@pytest.mark.parametrize("where", ["at the owner", "elsewhere", "at the next owner"])
async def test_who_has_events_that_nobody_else_has_any_more_gets_another_stream(autojump_clock, where):
    """From such a place there is no way on: the number may be another event's by now."""
    alpha = Backend("alpha", kind="http")
    async with open_replicas(3, alpha) as (one, two, three):
        client, events = await reading(one, alpha, 10)
        before = one.store.snapshot()
        again = client.listen(ids(events)[-1])
        await say(alpha, 10, 13)
        again.drop()
        await one.settle()
        one.kill(at_once=True)
        two.store.lose(before)
        client.to(two)
        await client.call("ping")
        if where == "elsewhere":
            client.to(three)
        if where == "at the next owner":
            two.kill(at_once=True)
            client.to(three)
        last = client.listen(ids(again)[-1])
        assert await last.head() == 200
        await trio.sleep(5)
        await say(alpha, 13, 16)
        assert numbers(last) == [13, 14, 15]
        assert in_order(last)
        assert changed(last) == CHANGES
        streams = [{id.partition(":")[0] for id in ids(pending)} for pending in (events, last)]
        assert not streams[0] & streams[1]
        asked = two if where == "at the owner" else three
        assert asked.telemetry.total("stagedoor_gaps_total", "lost") == 1


async def test_who_is_owner_no_more_and_cannot_know_it_asks_for_patience(autojump_clock):
    """A place of a later life of the session is no mistake of the client."""
    alpha = Backend("alpha", kind="http")
    async with open_replicas(2, alpha) as (one, two):
        wire = Wire([one, two])
        client, events = await reading(one, alpha, 3)
        wire.break_for(30.0, 0)
        await trio.sleep(8)
        client.to(two)
        again = client.listen(ids(events)[-1])
        assert await again.head() == 200
        await trio.sleep(1)
        again.drop()
        await two.settle()
        client.to(one)
        early = client.listen(ids(again)[-1])
        assert await early.head() == 503
        await trio.sleep(30)
        late = client.listen(ids(again)[-1])
        assert await late.head() == 200
        await say(alpha, 3, 5)
        assert numbers(late) == [3, 4]
        assert in_order(late)
