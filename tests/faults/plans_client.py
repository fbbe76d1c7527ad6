"""What the victim's connections go through."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from tests.faults.client import Client, Exchange, Point
from tests.faults.plans_backend import flood, on_call
from tests.faults.play import Plan
from tests.faults.world import World

Do = Callable[[World, Exchange], Awaitable[None]]


def at(
    point: Point, do: Do, *, events: int = 0, method: str = "POST", requests: bool = True
) -> Callable[[World], None]:
    """Once, at this point of an exchange; `events` must have come; `requests`: it carries a request."""

    def install(world: World) -> None:
        done = False

        async def trouble(at: Point, exchange: Exchange) -> None:
            nonlocal done
            if done or at != point or exchange.method != method or len(exchange.events) < events:
                return
            sent = exchange.sent if isinstance(exchange.sent, list) else [exchange.sent]
            if method == "POST" and not any(isinstance(m, dict) and "id" in m and "method" in m for m in sent):
                return
            done = True
            world.fire(f"{point} {exchange!r}")
            await do(world, exchange)

        world.trouble = trouble

    return install


async def leave(world: World, exchange: Exchange) -> None:
    """Goes at once."""
    await trio.lowlevel.checkpoint()
    exchange.leave()


async def leave_unread(world: World, exchange: Exchange) -> None:
    """Reads no more, and goes when everything was written."""
    await trio.sleep(8)
    exchange.leave()


async def leave_soon(world: World, exchange: Exchange) -> None:
    """Goes while the server is at work."""
    await trio.sleep(0.1)
    exchange.leave()


async def half_close(world: World, exchange: Exchange) -> None:
    """Sends no more; the answer may still come."""
    await exchange.stream.send_eof()


async def stall(world: World, exchange: Exchange) -> None:
    """Reads nothing for longer than a write may take."""
    await trio.sleep(50)


async def two_gets(world: World, exchange: Exchange) -> None:
    """Two further streams are opened, and one that is too many by far."""
    others = [await world.victim.open("GET") for _ in range(5)]
    statuses = [other.status for other in others]
    assert 409 in statuses or {404, 503} & set(statuses), statuses
    await trio.sleep(0.3)
    for other in others:
        other.leave()


def _last_id(exchange: Exchange) -> str | None:
    return next((event.id for event in reversed(exchange.events) if event.id), None)


async def resume_at_once(world: World, exchange: Exchange) -> None:
    """The stream is resumed elsewhere while this connection is open: the newest wins."""
    last = _last_id(exchange)
    if last is None:
        return
    other = await world.victim.open("GET", after=last)
    await trio.sleep(0.1)
    other.leave()


async def resume_twice(world: World, exchange: Exchange) -> None:
    """Two resumptions of one stream at the same moment."""
    last = _last_id(exchange)
    if last is None:
        return
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(_resume_and_leave, world.victim, last)


async def _resume_and_leave(client: Client, last: str) -> None:
    other = await client.open("GET", after=last)
    await trio.sleep(0.05)
    other.leave()


def _both(*installs: Callable[[World], None]) -> Callable[[World], None]:
    def install(world: World) -> None:
        for one in installs:
            one(world)

    return install


def _plan(name: str, install: Callable[[World], None], *needs: str, **more: Any) -> Plan:
    return Plan(f"client: {name}", install, frozenset(needs), **more)


BROKEN = frozenset({"broken"})

PLANS = (
    _plan("its connection breaks before the head", at("sent", leave), allowed=BROKEN),
    _plan("its connection breaks while the server works", at("sent", leave_soon), allowed=BROKEN),
    _plan("its connection breaks after the head", at("head", leave), "stream", allowed=BROKEN),
    _plan(
        "its connection breaks after the first event",
        at("event", leave, events=1),
        "stream",
        complete=True,
    ),
    _plan("its connection breaks in mid-stream", at("event", leave, events=2), "stream", complete=True),
    _plan(
        "its connection breaks late in the stream",
        at("event", leave, events=4),
        "report",
        complete=True,
        without=frozenset({"resume"}),
    ),
    _plan("it goes with the rest unread", at("event", leave_unread, events=1), "stream", complete=True),
    _plan("its GET stream breaks", at("event", leave, events=2, method="GET"), "get", complete=True),
    _plan(
        "its resumed stream breaks",
        at("event", leave, events=1, method="GET"),
        "resume",
        complete=True,
    ),
    _plan("it sends no more", at("sent", half_close), allowed=BROKEN),
    _plan("it opens too many GET streams", at("event", two_gets, events=1), "stream", complete=True),
    _plan(
        "its stream is resumed elsewhere",
        at("event", resume_at_once, events=1),
        "stream",
        complete=True,
    ),
    _plan(
        "its stream is resumed twice at once",
        at("event", resume_twice, events=1),
        "stream",
        complete=True,
    ),
    _plan("it stalls", at("event", stall, events=1), "stream", complete=True, within=60.0),
    _plan(
        "it stalls in a flood",
        _both(on_call(flood), at("event", stall, events=1)),
        "call",
        harmless=True,
        limits={"outbox_events": 64},
        within=60.0,
    ),
)
