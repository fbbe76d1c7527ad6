"""What all replicas share of small values: changed by one at a time, gone at its end."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import trio

from actors.ports import Failed, Refused, Shelf, Shelved
from gateway.store.memory import MemoryStore
from tests.contracts.conftest import LIMITS


@dataclass
class Two:
    """The shelf as two replicas see it, and time."""

    one: Shelf
    other: Shelf
    key: str
    pass_time: Callable[[float], Awaitable[None]]


@pytest.fixture(params=["memory", *(pytest.param(kind, marks=pytest.mark.redis) for kind in ("redis", "cluster"))])
async def two(request: pytest.FixtureRequest, new_key: Callable[[], str]) -> AsyncIterator[Two]:
    if request.param == "memory":
        now = [1000.0]

        async def move(seconds: float) -> None:
            now[0] += seconds

        store = MemoryStore(LIMITS, lambda: now[0])
        yield Two(store.shelf, store.beside().shelf, new_key(), move)
        return
    server = request.getfixturevalue("server" if request.param == "redis" else "cluster")
    async with AsyncExitStack() as stack:
        opened: Any = request.getfixturevalue("opened")
        stores = [await stack.enter_async_context(opened(server.url)) for _ in range(2)]
        yield Two(stores[0].shelf, stores[1].shelf, new_key(), trio.sleep)


def fenced(outcome: object) -> bool:
    return isinstance(outcome, Failed) and outcome.reason is Refused.FENCED


async def test_a_value_is_there_for_every_replica_until_its_end(two: Two) -> None:
    assert await two.other.read(two.key) is None
    tag = await two.one.put(two.key, b"\x00\xffvalue", 0.5)
    assert isinstance(tag, str)
    assert await two.other.read(two.key) == Shelved(b"\x00\xffvalue", tag)
    await two.pass_time(0.6)
    assert await two.other.read(two.key) is None


async def test_a_value_that_is_used_stays_and_one_that_is_only_looked_at_does_not(two: Two) -> None:
    used, seen, empty = (f"{two.key}-{name}" for name in ("used", "seen", "empty"))
    tags = [await two.one.put(key, b"" if key == empty else b"x", 0.5) for key in (used, seen, empty)]
    assert await two.other.read(used, keep=60.0) == Shelved(b"x", str(tags[0]))
    await two.one.read(seen)
    await two.one.read(empty, keep=60.0)
    await two.pass_time(0.6)
    assert await two.one.read(used) == Shelved(b"x", str(tags[0])), "with the same tag: nothing has changed"
    assert await two.one.read(used, keep=0.5) is not None, "nobody takes from it what another one gave"
    await two.pass_time(0.6)
    assert [await two.one.read(key) for key in (used, seen, empty)][1:] == [None, None]
    assert await two.other.read(used) is not None


async def test_only_one_of_several_takes_a_value(two: Two) -> None:
    await two.one.put(two.key, b"code", 60)
    got: list[object] = []

    async def take(shelf: Shelf) -> None:
        got.append(await shelf.take(two.key))

    async with trio.open_nursery() as nursery:
        for shelf in (two.one, two.other) * 4:
            nursery.start_soon(take, shelf)
    assert sum(isinstance(found, Shelved) for found in got) == 1
    assert got.count(None) == 7


async def test_nobody_overwrites_what_he_has_not_seen(two: Two) -> None:
    first = await two.one.put(two.key, b"1", 60, instead="")
    assert fenced(await two.other.put(two.key, b"also first", 60, instead=""))
    assert isinstance(first, str)
    second = await two.other.put(two.key, b"2", 60, instead=first)
    assert isinstance(second, str)
    assert fenced(await two.one.put(two.key, b"late", 60, instead=first))
    assert await two.one.read(two.key) == Shelved(b"2", second)


async def test_a_tag_never_comes_back_with_a_value_that_was_removed_and_put_again(two: Two) -> None:
    first = await two.one.put(two.key, b"mine", 60)
    await two.other.take(two.key)
    await two.other.put(two.key, b"another's", 60)
    assert isinstance(first, str)
    assert fenced(await two.one.put(two.key, b"mine, refreshed", 60, instead=first))


async def test_a_lock_is_one_replicas_until_it_is_given_back_or_over(two: Two) -> None:
    assert await two.one.lock(two.key, "one", 30) is True
    assert await two.one.lock(two.key, "one", 30) is True
    assert await two.other.lock(two.key, "other", 30) is False
    await two.other.unlock(two.key, "other")
    assert await two.other.lock(two.key, "other", 30) is False
    await two.one.unlock(two.key, "one")
    assert await two.other.lock(two.key, "other", 0.3) is True
    await two.pass_time(0.4)
    assert await two.one.lock(two.key, "one", 30) is True


async def test_a_lock_neither_keeps_a_value_alive_nor_takes_it_away(two: Two) -> None:
    tag = await two.one.put(two.key, b"value", 0.5)
    assert await two.one.lock(two.key, "one", 30) is True
    await two.one.unlock(two.key, "one")
    assert await two.one.read(two.key) == Shelved(b"value", str(tag))
    await two.one.lock(two.key, "one", 30)
    await two.pass_time(0.6)
    assert await two.other.read(two.key) is None


async def test_names_are_found_by_every_replica(two: Two) -> None:
    await two.one.name(two.key, there=True)
    assert two.key in await two.other.names()  # type: ignore[operator]
    await two.other.name(two.key, there=False)
    assert two.key not in await two.one.names()  # type: ignore[operator]
