"""Stores of two replicas, of each kind."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import trio

from actors.protocol.table import Limits
from gateway.store.memory import MemoryStore
from gateway.store.redis import open_redis_store
from tests.support.redis_server import MISSING, RedisServer, installed
from tests.support.store_calls import Lines


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    if not installed():
        pytest.skip(MISSING)
    with RedisServer() as running:
        yield running


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Any, Any]]:
    """Those of two replicas, which share everything."""
    if request.param == "memory":
        store = MemoryStore(Limits(), trio.current_time)
        yield store, store.beside()
        return
    server, lost = request.getfixturevalue("redis_server"), list[str]()
    with server.client() as client:
        client.flushall()
    url = server.url
    options = {"log": Lines(), "on_lost": lost.append}
    async with open_redis_store(url, Limits(), **options) as one, open_redis_store(url, Limits(), **options) as other:
        yield one, other
    assert lost == []
