"""Redis that does not answer for a while: nothing is lost, nothing crashes, and the client hears of nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio
import trio.testing

from tests.interaction.backend import Request, text
from tests.interaction.stage import Cell, Stage
from tests.support.redis_server import RedisServer
from tests.support.schemas import NEWEST
from tests.support.wire_client import Message

pytestmark = pytest.mark.cells((Cell(NEWEST, "redis"),))


@contextmanager
def away(server: RedisServer) -> Iterator[None]:
    """It holds its connections and answers nothing."""
    server.pause()
    try:
        yield
    finally:
        server.go_on()


@pytest.mark.requirement("store-away")
async def test_while_the_store_is_away_calls_of_known_sessions_go_on(stage: Stage, redis_server: RedisServer) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = await stage.connect("/mcp/alpha")
    await stage.recorded()
    with away(redis_server):
        for _ in range(3):
            assert await client.call("echo") == text("yes")
    assert await client.call("echo") == text("yes")


@pytest.mark.requirement("store-away")
async def test_a_stream_that_has_ids_holds_its_events_until_they_are_stored(
    stage: Stage, redis_server: RedisServer
) -> None:
    backend = await stage.backend()
    steps, done = trio.open_memory_channel[int](10)

    @backend.tool("steps")
    async def tell(request: Request) -> Message:
        while (step := await done.receive()) >= 0:
            request.log("info", step)
        return text("done")

    client = await stage.connect("/mcp/alpha")
    call = client.start_call("steps")
    steps.send_nowait(1)
    await call.message("notifications/message")
    with away(redis_server):
        for step in (2, 3, -1):
            steps.send_nowait(step)
        assert await client.request("ping") == {}
        assert [event for event in call.exchange.unread if event.data] == [], "written only once it is stored"
    assert [(await call.message("notifications/message"))["params"]["data"] for _ in range(2)] == [2, 3]
    assert await call.result() == text("done")
    again = await client.resume(call, call.events[0].id)
    assert await again.result() == text("done")
    assert again.events == call.events[1:]


@pytest.mark.requirement("store-away")
async def test_what_needs_the_store_waits_for_it_or_is_refused_with_503(
    stage: Stage, redis_server: RedisServer
) -> None:
    await stage.backend()
    late = stage.client("/mcp/alpha")
    with away(redis_server):
        call = late.start("initialize", late.introduction())
        await trio.testing.wait_all_tasks_blocked()
    assert await call.exchange.head() in (200, 503)
    assert await (await stage.connect("/mcp/alpha")).request("ping") == {}
