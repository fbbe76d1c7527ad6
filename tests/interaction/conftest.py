"""The matrix of the interaction tests: which revisions, stores and transports each test runs on.

A test runs on EVERYWHERE unless the marker `cells` says otherwise, and for a client on a channel unless `by_http` says
that it is about HTTP itself; `since` and `until` bound the revisions. With an argument `route` it runs on both kinds of
endpoint.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.interaction.cells import EVERYWHERE, ON_A_CHANNEL
from tests.interaction.stage import AGGREGATE, ROUTES, Cell, Stage, open_stage
from tests.support.redis_server import MISSING, RedisServer, installed


def _jumping(fn: Any, clock: Any = None, **options: Any) -> Any:
    return trio.run(fn, clock=MockClock(autojump_threshold=0), **options)


def _argument(metafunc: pytest.Metafunc, name: str, default: Any) -> Any:
    marker = metafunc.definition.get_closest_marker(name)
    return marker.args[0] if marker is not None else default


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cell" not in metafunc.fixturenames:
        return
    first, last = _argument(metafunc, "since", ""), _argument(metafunc, "until", "9999")
    http = metafunc.definition.get_closest_marker("by_http") is not None
    everywhere = EVERYWHERE if http else (*EVERYWHERE, ON_A_CHANNEL)
    cells = [cell for cell in _argument(metafunc, "cells", everywhere) if first <= cell.revision <= last]
    if "route" not in metafunc.fixturenames:
        metafunc.parametrize("cell", [pytest.param(cell, id=str(cell), marks=_marks(cell)) for cell in cells])
        return
    # Where time is real, and on a channel, a test takes one of the two routes, and its neighbours take the other.
    turn = len(metafunc.function.__name__)
    places = []
    for n, cell in enumerate(cells):
        for route in ROUTES if cell.jumps and cell != ON_A_CHANNEL else ROUTES[(n + turn) % 2 :][:1]:
            id = f"{cell}-{'merged' if route is AGGREGATE else 'plain'}"
            places.append(pytest.param(cell, route, id=id, marks=_marks(cell)))
    metafunc.parametrize(("cell", "route"), places)


def _marks(cell: Cell) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.trio(run=_jumping)] if cell.jumps else []
    return [*marks, pytest.mark.redis] if cell.store == "redis" else marks


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    if not installed():
        pytest.skip(MISSING)
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis_url(cell: Cell, request: pytest.FixtureRequest) -> str:
    """Of an empty database, where the cell needs one."""
    if cell.store != "redis":
        return ""
    server: RedisServer = request.getfixturevalue("redis_server")
    with server.client() as client:
        client.flushall()
    return server.url


@pytest.fixture
async def stage(cell: Cell, redis_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    limits = request.node.get_closest_marker("limits")
    tokens = request.node.get_closest_marker("tokens")
    async with open_stage(
        cell,
        limits=limits.kwargs if limits is not None else {},
        tokens=tokens.kwargs if tokens is not None else None,
        redis_url=redis_url,
    ) as stage:
        yield stage
