"""What a client was to be told of changes is not lost with a connection that it no longer read."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from actors.ports import ANONYMOUS, Get, Streaming
from tests.support.door_client import Client, parse_events
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend, tool

CHANGED = "notifications/tools/list_changed"
UPDATED = "notifications/resources/updated"


@asynccontextmanager
async def stalled(gateway: Gateway, client: Client) -> AsyncIterator[Streaming]:
    """A GET stream whose reader takes the first event and nothing after it."""
    assert client.session is not None
    headers = {"mcp-session-id": client.session, "mcp-protocol-version": client.version}
    reply = await gateway.actors.door.get(Get(client.endpoint, ANONYMOUS, headers))
    assert isinstance(reply, Streaming)
    await reply.source.receive()
    try:
        yield reply
    finally:
        reply.source.close()


@pytest.mark.parametrize("pause", [0.0, 120.0], ids=["at once", "after passivation"])
async def test_a_fresh_get_repeats_the_changes_that_an_older_one_never_wrote(autojump_clock, pause):
    alpha = Backend("alpha")
    async with open_gateway(alpha, idle_ttl=3600.0) as gateway:
        client = await gateway.connect("alpha")
        await client.call("resources/subscribe", {"uri": "test:///a"})
        async with stalled(gateway, client):
            alpha.upstream.notify(CHANGED)
            alpha.upstream.notify(UPDATED, {"uri": "test:///a"})
            await gateway.settle()
        await trio.sleep(pause)
        fresh = client.listen()
        await fresh.next(UPDATED)
        assert [m["method"] for m in fresh.messages] == [CHANGED, UPDATED]


async def test_a_change_that_was_written_is_not_repeated(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        events = client.listen()
        await gateway.settle()
        alpha.upstream.notify(CHANGED)
        await events.next(CHANGED)
        events.drop()
        await gateway.settle()
        fresh = client.listen()
        await trio.sleep(1)
        assert fresh.messages == []


async def test_an_aggregate_of_passivated_sessions_repeats_them_too(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        await client.names()
        alpha.lists["tools/list"].append(tool("new"))
        async with stalled(gateway, client):
            alpha.upstream.notify(CHANGED)
            await trio.sleep(1)
        await trio.sleep(120)
        assert gateway.left()["sessions"] == 0
        fresh = client.listen()
        await fresh.next(CHANGED)


async def test_who_resumes_gets_them_from_the_log_and_once(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        async with stalled(gateway, client) as reply:
            alpha.upstream.notify(CHANGED)
            await gateway.settle()
            [event] = parse_events(await reply.source.receive() or b"")
        resumed = client.listen(str(event.id).rsplit("-", 1)[0] + "-1")
        await resumed.next(CHANGED)
        await trio.sleep(1)
        assert len(resumed.messages) == 1
