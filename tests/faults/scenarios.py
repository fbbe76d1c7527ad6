"""What clients do: each scenario drives the victim, and perhaps others, to the end of everything that it has begun.

`has` names what happens in it, so that a plan which needs such a thing to happen knows where it can.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import trio

from tests.faults.client import Client, Exchange, Point
from tests.faults.world import World

Run = Callable[[World], Awaitable[None]]


@dataclass(frozen=True)
class Scenario:
    """One of them. `allowed`: outcomes, beside an answer and a refusal, that it brings about by itself."""

    name: str
    run: Run
    has: frozenset[str] = frozenset()
    endpoint: str = ""
    revision: str = "2025-11-25"
    allowed: frozenset[str] = frozenset()
    limits: Mapping[str, Any] = field(default_factory=dict)
    lasting: bool = False
    """The server keeps what it says in the course of requests."""

    def __str__(self) -> str:
        return self.name


async def calls_quickly(world: World) -> None:
    for _ in range(3):
        await world.victim.call("quick")
        await world.between()


async def call_streams(world: World) -> None:
    await world.victim.call("stream", token=True)
    await world.between()
    await world.victim.call("wait")


async def call_asks(world: World) -> None:
    await world.victim.call("ask")


async def stream_resumes(world: World) -> None:
    """The victim loses its connection after two events, by its own doing."""
    await _leave_after(world.victim, 2, lambda: world.victim.call("stream", token=True))
    await world.between()


async def _leave_after(client: Client, events: int, run: Callable[[], Awaitable[object]]) -> None:
    meddle = client.trouble
    left = False

    async def leave(point: Point, exchange: Exchange) -> None:
        nonlocal left
        if meddle is not None:
            await meddle(point, exchange)
        if not left and point == "event" and len(exchange.events) >= events:
            left = True
            exchange.leave()

    client.trouble = leave
    await run()
    client.trouble = meddle


async def subscribes(world: World) -> None:
    victim = world.victim
    async with trio.open_nursery() as nursery:
        await nursery.start(victim.listen)
        await victim.request("resources/subscribe", {"uri": _uri(victim)})
        await world.between()
        await trio.sleep(3)
        await victim.request("resources/unsubscribe", {"uri": _uri(victim)})
        await trio.sleep(3)
        nursery.cancel_scope.cancel()


def _uri(client: Client) -> str:
    return f"{'' if client.target != '/mcp' else 'alpha+'}test:///{client.who}"


async def lists(world: World) -> None:
    for method in ("tools/list", "resources/list", "prompts/list"):
        await world.victim.request(method)
        await world.between()


async def sends_a_batch(world: World) -> None:
    victim = world.victim
    await victim.batch(
        [victim.tool("quick"), victim.tool("stream", token=True), victim.message("ping"), victim.tool("wait")]
    )
    await world.between()
    await victim.batch([victim.tool("quick"), victim.message("tools/list")])


async def cancels(world: World) -> None:
    victim = world.victim
    for tool in ("wait", "stream"):
        message = victim.tool(tool, token=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(victim.follow, message)
            await trio.sleep(0.7)
            await victim.notify("notifications/cancelled", {"requestId": message["id"], "reason": "enough"})
        await world.between()


async def twins_call(world: World) -> None:
    """Two sessions with the same ids, keys but for the name, and tokens, at once."""
    twin = world.client("twin", endpoint=world.victim.target.removeprefix("/mcp/").removeprefix("/mcp"))
    if not await twin.initialize():
        return

    async def one(client: Client) -> None:
        async with trio.open_nursery() as nursery:
            for tool in ("stream", "quick", "ask", "wait"):
                nursery.start_soon(client.follow, client.tool(tool, token=True))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one, world.victim)
        nursery.start_soon(one, twin)
    await world.between()


async def deletes_in_flight(world: World) -> None:
    victim = world.victim
    async with trio.open_nursery() as nursery:
        for tool in ("wait", "stream", "ask", "quick"):
            nursery.start_soon(victim.follow, victim.tool(tool, token=True))
        await trio.sleep(0.7)
        await victim.delete()
    await world.between()


async def begins_anew(world: World) -> None:
    """A whole life of a session."""
    later = world.client("later", endpoint=world.victim.target.removeprefix("/mcp/").removeprefix("/mcp"))
    for _ in range(3):
        if await later.initialize():
            await later.call("quick")
            await world.between()
            await later.call("stream", token=True)
            await later.delete()
            return
        await trio.sleep(3)


async def calls_too_much(world: World) -> None:
    """More at a time than a session may."""
    async with trio.open_nursery() as nursery:
        for tool in ("stream", "wait", "quick", "stream", "wait", "quick", "ask"):
            nursery.start_soon(world.victim.follow, world.victim.tool(tool, token=True))
            await trio.sleep(0.01)


async def comes_back(world: World) -> None:
    """The victim is away for so long that its session leaves memory."""
    await world.victim.call("quick")
    await trio.sleep(200)
    await world.victim.request("tools/list")
    await world.between()
    await trio.sleep(200)
    await world.victim.call("stream", token=True)


async def goes_on(world: World) -> None:
    """The victim's session loses its actor in the middle of two calls; the server keeps the rest of their answers."""
    victim = world.victim
    async with trio.open_nursery() as nursery:
        for tool in ("stream", "ask"):
            nursery.start_soon(victim.follow, victim.tool(tool, token=True))
        await trio.sleep(0.5)
        await world.lose_actor()
    await world.between()
    await victim.call("stream", token=True)


CALL = frozenset({"call", "answers"})
STREAM = frozenset({"call", "opens", "stream"})
"""A call that turns into a stream: by its progress, by its questions, or because it takes long."""
REPORT = STREAM | {"report"}
"""One of them reports progress, so that its stream has five events and more."""

SCENARIOS = (
    Scenario("quick calls", calls_quickly, CALL | {"steps", "connects"}),
    Scenario("a call that streams", call_streams, CALL | REPORT | {"slow", "steps", "connects"}),
    Scenario("a call that asks", call_asks, CALL | STREAM | {"ask"}, "alpha"),
    Scenario("a stream that is resumed", stream_resumes, CALL | REPORT | {"resume", "connects"}),
    Scenario("a subscription", subscribes, frozenset({"opens", "get", "saves", "connects", "steps"})),
    Scenario("merged lists", lists, frozenset({"lists", "connects", "steps"})),
    Scenario("batches", sends_a_batch, CALL | REPORT | {"batch", "steps", "connects"}, revision="2025-03-26"),
    Scenario("cancelled calls", cancels, REPORT | {"slow", "cancel", "steps"}, "alpha"),
    Scenario(
        "two sessions with the same ids",
        twins_call,
        CALL | REPORT | {"slow", "ask", "new", "saves", "connects"},
    ),
    Scenario(
        "DELETE while calls are in flight",
        deletes_in_flight,
        CALL | REPORT | {"slow", "ask", "delete", "connects"},
        allowed=frozenset({"gone"}),
    ),
    Scenario(
        "more calls than allowed",
        calls_too_much,
        CALL | REPORT | {"slow", "too many"},
        "alpha",
        limits={"requests_per_session": 3},
    ),
    Scenario("a new session", begins_anew, CALL | REPORT | {"new", "saves", "delete", "steps", "connects"}, "alpha"),
    Scenario("calls that go on", goes_on, CALL | REPORT | {"resume", "ask", "goes on", "steps"}, lasting=True),
    Scenario("a session that was idle", comes_back, CALL | REPORT | {"lists", "back", "saves", "steps", "connects"}),
)
