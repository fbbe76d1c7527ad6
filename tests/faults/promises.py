"""The promises of docs/guarantees.md, asked of a transcript and of what is left when everything is over."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import trio

from tests.faults.client import Client, Event, Exchange, Fate
from tests.faults.world import PEOPLE, World

REFUSED = frozenset({400, 404, 409, 429, 503})
"""Statuses that say: nothing was executed."""

OUR_ERROR = -32603
"""The code of what went wrong between client and server."""


def check(world: World, allowed: frozenset[str], *, spared: bool = True) -> None:
    """Raises AssertionError with everything that was broken. `allowed`: kinds of outcome beside an answer."""
    wrong = [*world.wrong, *_outcomes(world, allowed, spared), *_streams(world), *_isolation(world)]
    assert not wrong, "\n".join([*wrong, "", *map(repr, _of_interest(world))])


def _of_interest(world: World) -> list[Exchange]:
    return [e for client in world.clients if client is not world.bystander for e in client.exchanges]


# One outcome -----------------------------------------------------------------------------------------------------


def _outcomes(world: World, allowed: frozenset[str], spare: bool) -> Iterator[str]:
    for client in world.clients:
        spared = spare and client is world.bystander
        for key, fate in client.fates:
            yield from (f"{key}: {wrong}; {fate}" for wrong in _outcome(world, key, fate, allowed, spared))
        yield from _answers(client)
    for server in (world.alpha, world.beta):
        for key, count in server.executions.items():
            if count > 1:
                yield f"{key} was executed {count} times"


def _outcome(world: World, key: str, fate: Fate, allowed: frozenset[str], spared: bool) -> Iterator[str]:
    executed = world.executions(key)
    if fate.kind == "hanging":
        yield "no outcome, however often its stream was resumed"
    elif fate.kind == "refused":
        if fate.status not in REFUSED:
            yield f"refused with {fate.status}"
        if executed:
            yield "refused, and executed"
    elif fate.kind == "answered":
        yield from _error(fate, executed)
    elif key == "initialize" and fate.kind == "gone":
        return  # a handshake that was cut short has no session to come back to
    elif fate.kind not in allowed:
        yield f"{fate.kind}, which this fault is no reason for"
    if spared and not fate.ok:
        yield "the bystander was disturbed"


def _error(fate: Fate, executed: int) -> Iterator[str]:
    error = fate.error
    if error.get("code") != OUR_ERROR:
        return
    said = (error.get("data") or {}).get("executed")
    if said not in ("no", "unknown", "yes"):
        yield "an error after a failure that does not say whether it was executed"
    if said == "no" and executed:
        yield "executed, and denied"
    if said == "yes" and not executed:
        yield "not executed, and claimed"


def _answers(client: Client) -> Iterator[str]:
    """No response but one to each request, over all connections; a replayed event is the same event."""
    seen: dict[tuple[str, Any], str] = {}
    for exchange, event in _events(client):
        message = event.message or {}
        if "method" in message or not message:
            continue
        place = event.id or f"unnumbered on {id(exchange)}"
        before = seen.setdefault((exchange.session, message.get("id")), place)
        if before != place:
            yield f"two responses to {message.get('id')!r}: {before} and {place}"


def _events(client: Client) -> Iterator[tuple[Exchange, Event]]:
    for exchange in client.exchanges:
        for event in exchange.events:
            yield exchange, event


def check_reports(world: World) -> None:
    """Every report of a tool that ran to its end has come, once; and news of a resource that is subscribed to."""
    for client in world.clients:
        finished = {key for key, fate in client.fates if f"stream {key}" in json.dumps(fate.response)}
        came = (*(event.message or {} for _, event in _events(client)), *(client.heard if client.on_channel else ()))
        said = Counter(m["params"]["data"]["key"] for m in came if m.get("method") == "notifications/message")
        wrong = {key: said[key] for key in finished if said[key] != 3}
        assert not wrong, f"{client.who} heard of three steps of each but these: {wrong}"
    subscribed = any(key == "resources/subscribe" and fate.ok for key, fate in world.victim.fates)
    assert not subscribed or world.victim.heard, "no news of the resource"


# Streams ---------------------------------------------------------------------------------------------------------


def _streams(world: World) -> Iterator[str]:
    for client in world.clients:
        contents: dict[tuple[str, str], Any] = {}
        for exchange in client.exchanges:
            yield from (f"{client.who}: {wrong} in {exchange!r}" for wrong in _order(exchange))
            for event in exchange.events:
                if event.id is not None:
                    known = contents.setdefault((exchange.session, event.id), event.message)
                    if known != event.message:
                        yield f"{client.who}: {event.id} stands for two events"


def _order(exchange: Exchange) -> Iterator[str]:
    """On one connection: one stream, its numbers one by one from where it began, or from after the cursor."""
    previous = _place(exchange.after) if exchange.after is not None else None
    for event in exchange.events:
        if event.id is None:
            continue
        place = _place(event.id)
        if previous is not None:
            stream, epoch, seq = previous
            if place[0] != stream:
                yield f"{event.id} on the stream {stream}"
            elif place[2] != seq + 1:
                yield f"{event.id} after number {seq}"
            elif place[1] < epoch:
                yield f"{event.id} after epoch {epoch}"
        elif place[2] != 1:
            yield f"{event.id} is the first of its stream"
        previous = place


def _place(id: str) -> tuple[str, int, int]:
    stream, _, position = id.partition(":")
    epoch, _, seq = position.partition("-")
    return stream, int(epoch), int(seq)


# Isolation -------------------------------------------------------------------------------------------------------


def _isolation(world: World) -> Iterator[str]:
    for client in world.clients:
        others = [f"{who}." for who in PEOPLE if who != client.who]
        for exchange in client.exchanges:
            heard = exchange.body.decode() + json.dumps([event.message for event in exchange.events])
            if any(other in heard for other in others):
                yield f"{client.who} has heard what is another's: {exchange!r}"
    for server in (world.alpha, world.beta):
        for people in server.served.values():
            if len(people) > 1:
                yield f"{server.name} got requests of {sorted(people)} on one connection"


# What is left ----------------------------------------------------------------------------------------------------


async def check_nothing_left(world: World) -> None:
    """After all sessions have ended, within the time in which unused connections close: nothing is left of them."""
    for client in world.clients:
        if client.session is not None:
            client.trouble = None
            await client.delete()
    pools = world.limits.broker_idle if world.channel == "modern" else 0
    latest = trio.current_time() + 2 * world.limits.link_idle + pools + 100
    while left := await _left(world):
        assert trio.current_time() < latest, f"left over: {left}"
        await trio.sleep(world.limits.link_idle / 4)
    world.store.inner.sweep(trio.current_time() + 10 * world.limits.idle_ttl)
    assert not len(world.store.inner), "records are left"


async def _left(world: World) -> list[str]:
    """What there still is of sessions, when nothing more happens without the clock."""
    life = world.life
    await life.gateway.settle()
    left = [f"{n} {name}" for name, n in life.gateway.left().items() if n > life.baseline[name]]
    if left:
        left += [ref.name for ref in life.gateway.system.registry]
    tasks = trio.lowlevel.current_statistics().tasks_living - life.tasks
    upstreams = [upstream for server in (world.alpha, world.beta) for upstream in server.open]
    return [
        *left,
        *(["connections are open"] if life.connections.open else []),
        *(["something is being answered"] if life.connections.working else []),
        *([f"connections to servers are open: {upstreams}"] if upstreams else []),
        *([f"{tasks} more tasks than at first"] if tasks > 0 else []),
    ]
