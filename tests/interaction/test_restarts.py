"""Sessions and streams over the end of a process, in both stores, and an actor that crashed.

(A real process that is killed is restarted in the end-to-end tests.)
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.interaction.backend import Backend, Connection, Request, text
from tests.interaction.codes import INTERNAL
from tests.interaction.stage import Cell, Route, Stage
from tests.support.schemas import NEWEST
from tests.support.wire_client import HttpError, Message

DURABLE = pytest.mark.cells((Cell(), Cell("2025-06-18"), Cell(NEWEST, "redis", "http")))
REDIS = pytest.mark.cells((Cell(NEWEST, "redis"),))

FORM = {"message": "who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}


async def end(stage: Stage, how: str) -> None:
    await (stage.restart() if how == "drained" else stage.crash())


async def subscribed_again(backend: Backend) -> Connection:
    """The connection on which the backend was asked for the subscription a second time."""
    with trio.fail_after(10):
        while len(found := [c for c in backend.connections if c.of("resources/subscribe")]) < 2:
            await backend.changed.park()
    return found[1]


HOW = pytest.mark.parametrize("how", ["drained", "crashed"])


@DURABLE
@HOW
@pytest.mark.requirement("restart-session")
async def test_a_session_goes_on_after_a_restart(stage: Stage, route: Route, how: str) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = await stage.connect(route.path)
    assert await client.call(route.name("echo")) == text("yes")
    await end(stage, how)
    assert await client.call(route.name("echo")) == text("yes")
    assert await client.end() == 200
    assert await client.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}).head() == 404


@DURABLE
@HOW
@pytest.mark.requirement("restart-stream")
async def test_a_finished_stream_can_be_resumed_after_a_restart(stage: Stage, route: Route, how: str) -> None:
    backend = await stage.backend()

    @backend.tool("logs")
    async def logs(request: Request) -> Message:
        for n in range(3):
            request.log("info", n)
        return text("done")

    client = await stage.connect(route.path)
    call = client.start_call(route.name("logs"))
    await call.result()
    await end(stage, how)
    again = await client.resume(call, call.events[0].id)
    assert await again.result() == text("done")
    assert again.events == call.events[1:]


@DURABLE
@pytest.mark.requirement("restart-in-flight", "one-answer")
async def test_a_call_that_was_running_in_a_crash_has_one_explicit_outcome_on_its_stream(
    stage: Stage, route: Route
) -> None:
    backend = await stage.backend()

    @backend.tool("wait")
    async def wait(request: Request) -> None:
        request.log("info", "started")
        await trio.sleep_forever()

    client = await stage.connect(route.path)
    call = client.start_call(route.name("wait"))
    await call.message("notifications/message")
    await stage.crash()
    resumed = await client.resume(call)
    error = await resumed.error()
    assert error.code == INTERNAL
    assert error.data["executed"] == "unknown"
    assert await resumed.next() is None
    assert len(backend.of("tools/call")) == 1, "what may have been sent is never sent again"
    assert await client.request("ping") == {}


@DURABLE
@pytest.mark.requirement("drain-streams")
async def test_a_drain_waits_for_calls_in_hand(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    draining = trio.Event()

    @backend.tool("wait")
    async def wait(request: Request) -> Message:
        request.log("info", "started")
        await draining.wait()
        return text("in time")

    client = await stage.connect(route.path)
    call = client.start_call(route.name("wait"))
    await call.message("notifications/message")
    listening = await client.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.drain)
        if client.revision == NEWEST:
            assert await listening.next() is None, "streams of those who can come back are let go"
            assert [event.retry for event in listening.events if event.retry is not None]
        draining.set()
        assert await call.result() == text("in time")
    await stage.begin()
    assert await client.request("ping") == {}


@DURABLE
@HOW
@pytest.mark.requirement("restart-subscriptions")
async def test_subscriptions_are_in_force_again_after_a_restart(stage: Stage, route: Route, how: str) -> None:
    backend = await stage.backend()
    backend.add("resources", {"uri": "file:///a", "name": "a"})
    backend.answers("resources/subscribe", {})
    client = await stage.connect(route.path)
    await client.request("resources/subscribe", {"uri": route.uri("file:///a")})
    if how == "crashed":
        await stage.recorded()
    await end(stage, how)
    assert await client.request("ping") == {}
    stream = await client.listen()
    # Over HTTP the session with the backend has outlived the process, and the subscription with it.
    kept = bool(backend.headers)
    connection = backend.connections[-1] if kept else await subscribed_again(backend)
    if not kept:
        connection.notify("notifications/resources/updated", {"uri": "file:///a"})
    for _ in range(2 if kept else 1):
        # The first update is the gateway's: nobody knows what came while nobody was there.
        while (message := await stream.next()) is not None and message["method"] != "notifications/resources/updated":
            pass
        assert message is not None
        assert message["params"] == {"uri": route.uri("file:///a")}
        for _ in range(2):  # one may still go to the connection of the process that died
            connection.notify("notifications/resources/updated", {"uri": "file:///a"})
    assert not kept or len(connection.of("resources/subscribe")) == 1


@DURABLE
@pytest.mark.requirement("restart-question")
async def test_an_answer_to_a_question_of_a_former_life_is_accepted_and_dropped(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("ask")
    async def ask(request: Request) -> Message:
        return text(str(await request.ask("roots/list")))

    client = await stage.connect(route.path, capabilities={"roots": {}})
    call = client.start_call(route.name("ask"))
    question = await call.message("roots/list")
    await stage.crash()
    await client.answer(question, {"roots": []})
    assert (await (await client.resume(call)).error()).code == INTERNAL


@DURABLE
@HOW
@pytest.mark.tokens(ann="token-of-ann", bob="token-of-bob")
@pytest.mark.requirement("restart-session", "session-foreign", "pitfall-11")
async def test_after_a_restart_a_session_is_still_its_principals_own(stage: Stage, how: str) -> None:
    await stage.backend()
    ann = await stage.connect("/mcp/alpha", token="token-of-ann")
    thief = stage.client("/mcp/alpha", token="token-of-bob")
    thief.session = ann.session
    await end(stage, how)
    ping: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert await thief.post(ping).head() == 404
    with pytest.raises(HttpError) as refused:
        await thief.listen()
    assert refused.value.status == 404
    assert await thief.end() == 404
    assert await ann.request("ping") == {}


@DURABLE
@pytest.mark.requirement("restart-session")
async def test_ids_of_a_later_life_never_repeat_those_of_a_former_one(stage: Stage, route: Route) -> None:
    """The client asserts it of event ids and of the ids of questions, the backend of request ids."""
    backend = await stage.backend()

    @backend.tool("ask")
    async def ask(request: Request) -> Message:
        request.log("info", "about to ask")
        return text(str(await request.ask("roots/list")))

    client = await stage.connect(route.path, capabilities={"roots": {}})
    client.answerers["roots/list"] = lambda params: {"roots": []}
    await client.call(route.name("ask"))
    await stage.crash()
    await client.call(route.name("ask"))


@REDIS
@pytest.mark.requirement("store-holds-no-secrets")
async def test_the_store_never_holds_a_session_id(stage: Stage, redis_url: str) -> None:
    import redis

    client = await stage.connect()
    assert client.session is not None
    with redis.Redis.from_url(redis_url) as looking:
        keys = looking.keys("*")
        assert keys
        dumps = [looking.dump(key) or b"" for key in keys]
    assert all(client.session.encode() not in bytes(key) for key in keys)
    assert all(client.session.encode() not in bytes(dump) for dump in dumps)
