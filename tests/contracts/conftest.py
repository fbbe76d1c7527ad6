"""Stores to try the contract on: the one in memory by a clock that the test moves, the other on a real Redis."""

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import trio

from actors.ports import NO_DELTAS, Deltas, Grant, Replay, Store
from actors.protocol.table import Limits
from gateway.store.memory import MemoryStore
from gateway.store.redis import RedisStore, open_redis_store
from tests.support.patience import PATIENCE
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_sentinel import Sentinel
from tests.support.redis_server import MISSING, RedisServer, installed
from tests.support.store_calls import Letters, Lines, ask, eventually

LIMITS = replace(Limits(), log_events=12, log_bytes=60_000, replay_ttl=2.0, replay_ttl_written=1.0)
PATIENT = replace(LIMITS, replay_ttl=60.0, replay_ttl_written=30.0)
"""Where nothing is meant to expire, however slow the machine is."""


@dataclass
class World:
    """A store, a session in it, and time."""

    store: Store
    pass_time: Callable[[float], Awaitable[None]]
    key: str = ""
    grant: Grant = Grant("", 0)  # noqa: RUF009 - it is frozen


@pytest.fixture(name="ask")
def ask_fixture() -> Callable[..., Awaitable[Any]]:
    return ask


@pytest.fixture
def limits() -> Limits:
    return LIMITS


@pytest.fixture
def new_key() -> Callable[[], str]:
    return lambda: secrets.token_hex(16)


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    """A server for all tests that don't harm it."""
    if not installed():
        pytest.skip(MISSING)
    with RedisServer() as running:
        yield running


@pytest.fixture(scope="session")
def cluster() -> Iterator[RedisCluster]:
    """A cluster of three primaries for all tests that don't harm it."""
    if not installed():
        pytest.skip(MISSING)
    with RedisCluster() as running:
        yield running


@pytest.fixture
def start_server() -> Iterator[Callable[..., RedisServer]]:
    """Starts servers for one test, which may do with them what it likes."""
    if not installed():
        pytest.skip(MISSING)
    running: list[RedisServer] = []

    def start(*options: str, aof: bool = False) -> RedisServer:
        running.append(RedisServer(*options, aof=aof))
        return running[-1].start()

    yield start
    for each in running:
        each.stop()


@pytest.fixture
def start_sentinel() -> Iterator[Callable[..., Awaitable[Sentinel]]]:
    """Starts sentinels for one test, which know their primary (and so many replicas of it) when they are there."""
    running: list[Sentinel] = []

    async def start(primary: int, *lines: str, replicas: int = 0) -> Sentinel:
        sentinel = Sentinel(primary, *lines)
        running.append(sentinel)
        await until(lambda: sentinel.primary() is not None and sentinel.replicas() == replicas)
        return sentinel

    yield start
    for each in running:
        each.stop()


@pytest.fixture
def opened() -> Callable[..., Any]:
    """Opens a Redis store; a test fails if it is lost and did not say what to do then."""

    @asynccontextmanager
    async def opening(url: str, limits: Limits = PATIENT, **options: Any) -> AsyncIterator[RedisStore]:
        lost: list[str] = []
        settings: dict[str, Any] = {"log": Lines(), "on_lost": lost.append, **options}
        async with open_redis_store(url, limits, **settings) as store:
            yield store
        assert lost == []

    return opening


@pytest.fixture(params=["memory", *(pytest.param(kind, marks=pytest.mark.redis) for kind in ("redis", "cluster"))])
async def world(request: pytest.FixtureRequest, new_key: Callable[[], str], limits: Limits) -> AsyncIterator[World]:
    """A store of each kind with a session that is past its first save."""
    if request.param == "memory":
        now = [time.time()]

        async def move(seconds: float) -> None:
            now[0] += seconds

        yield await _inhabited(World(MemoryStore(limits, lambda: now[0]), move, new_key()))
        return
    server = request.getfixturevalue("server" if request.param == "redis" else "cluster")
    async with request.getfixturevalue("opened")(server.url, limits) as store:
        yield await _inhabited(World(store, trio.sleep, new_key()))


async def _inhabited(world: World) -> World:
    world.grant = await ask(world.store.create, world.key, {"state": b"new"})
    assert await ask(world.store.save, world.key, world.grant, 1, NO_DELTAS) is None
    return world


async def until(condition: Callable[[], Any]) -> None:
    """Waits for what servers do among themselves."""
    with trio.fail_after(PATIENCE):
        while not await trio.to_thread.run_sync(condition):
            await trio.sleep(0.02)


@pytest.fixture(name="until")
def until_fixture() -> Callable[[Callable[[], Any]], Awaitable[None]]:
    return until


async def mails_itself(store: RedisStore, ask: Any) -> None:
    """Letters of both kinds from a replica to itself, the first of which it takes back."""
    letters = [b"withdrawn", b"small", b"large" * 20_000, b"last"]
    entries = [await ask(store.post, store.incarnation, letter) for letter in letters]
    assert await ask(store.withdraw, store.incarnation, entries[0]) is True
    heard = Letters()
    store.subscribe(heard)
    await eventually(lambda: heard.all == letters[1:])
    assert await ask(store.withdraw, store.incarnation, entries[1]) is False


@pytest.fixture(name="mails_itself")
def mails_itself_fixture() -> Callable[..., Awaitable[None]]:
    return mails_itself


async def lives_through(store: Store, ask: Any, key: str) -> None:
    """A session from its creation to its end."""
    grant = await ask(store.create, key, {"state": b"new"})
    assert await ask(store.save, key, grant, 1, Deltas(fields={"a": b"1"})) is None
    assert await ask(store.open, key, grant, "p1", {"r": b"q"}, b"one") is None
    assert await ask(store.open, key, grant, "g1", {}, b"one") is None
    assert await ask(store.append, key, grant, "g1", 2, [b"two"]) is None
    assert await ask(store.trim, key, grant, "g1", 2) is None
    finished = Deltas(requests={"r": None})
    assert await ask(store.append, key, grant, "p1", 2, [b"two"], finish=True, deltas=finished) is None
    replay = await store.replay(key, "p1", grant.epoch, 1, 10)
    assert isinstance(replay, Replay), replay
    assert [entry.data for entry in replay.entries] == [b"two"]
    store.written(key, grant, "p1")
    assert await ask(store.drop, key, grant, "p1") is None
    assert await ask(store.touch, key, grant) is None
    assert await ask(store.release, key, grant) is None
    again, record = await ask(store.claim, key, None, grant.epoch, "n")
    assert record.fields == {"state": b"new", "a": b"1"}
    store.due_at(key, 1.0)
    assert key in await ask(store.due, int(key[0], 16), 2.0)
    store.due_at(key, None)
    assert await ask(store.end, key, again, "why") is None


@pytest.fixture(name="lives_through")
def lives_through_fixture() -> Callable[..., Awaitable[None]]:
    return lives_through


@pytest.fixture
def session(ask, new_key):
    """Makes a session past its first save, with the stream p1 open at event 1."""

    async def make(store):
        key = new_key()
        grant = await ask(store.create, key, {"state": b"new"})
        assert await ask(store.save, key, grant, 1, NO_DELTAS) is None
        assert await ask(store.open, key, grant, "p1", {}, b"1") is None
        return key, grant

    return make


@pytest.fixture
def client(server):
    with server.client() as connection:
        yield connection
