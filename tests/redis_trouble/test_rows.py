"""What clients see of a Redis in trouble, through a whole gateway: one test for each kind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.redis_server import MISSING, RedisServer, installed

pytestmark = [pytest.mark.e2e, pytest.mark.redis]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """With a file that every write goes through to."""
    if not installed():
        pytest.skip(MISSING)
    with RedisServer(aof=True) as running:
        yield running


def killed(server: RedisServer) -> Iterator[None]:
    server.kill()
    yield
    server.start()


def stopped(server: RedisServer) -> Iterator[None]:
    server.pause()
    yield
    server.go_on()


def read_only(server: RedisServer) -> Iterator[None]:
    with server.client() as client:
        client.replicaof("127.0.0.1", "1")
        yield
        client.replicaof("NO", "ONE")


@pytest.mark.parametrize("away", [killed, stopped, read_only], ids=lambda away: away.__name__)
def test_away_for_seconds(away: Callable[[RedisServer], Iterator[None]], server: RedisServer, open_door: Any) -> None:
    door = open_door(server.url)
    calm, busy = door.session(), door.session()
    stream, call = door.steps(busy)
    call.say("1")
    stream.wait("1")
    assert not door.degraded()

    trouble = away(server)
    next(trouble)
    call.say("2", "3")
    assert door.refused()["retry-after"]
    door.eventually(door.degraded)
    for session in (calm, busy):
        door.quick(session)
    time.sleep(1.1)  # until it counts as away
    began, other = door.steps(calm)
    other.say("a")
    other.finish()
    began.wait("a", "done k4")
    assert set(began.ids) == {None}
    assert stream.said == ["1"], "written before it was acknowledged"
    assert not stream.over

    next(trouble, None)
    stream.wait("1", "2", "3")
    call.finish()
    stream.wait("1", "2", "3", "done k1")
    stream.wait_over()
    assert None not in stream.ids
    again = door.resume(busy, stream.ids[0])
    again.wait("1", "2", "3", "done k1")
    assert again.ids == stream.ids[1:]
    door.eventually(lambda: not door.degraded())
    door.quick(door.session())
    assert sorted(door.backend.executions) == ["k1", "k2", "k3", "k4", "k5"]


@contextmanager
def slowed(server: RedisServer) -> Iterator[None]:
    """It answers four times in a second."""
    over = threading.Event()

    def halt() -> None:
        while not over.is_set():
            server.pause()
            over.wait(0.24)
            server.go_on()
            over.wait(0.01)

    halting = threading.Thread(target=halt)
    halting.start()
    try:
        yield
    finally:
        over.set()
        halting.join()


def test_slowed_down(server: RedisServer, open_door: Any) -> None:
    """Everything takes longer, nothing else is different."""
    door = open_door(server.url)
    with slowed(server):
        calm, busy = door.session(), door.session()
        stream, call = door.steps(busy)
        said = [str(number) for number in range(200)]
        for number in said:
            call.say(number)
            if number.endswith("9"):
                time.sleep(0.1)
                door.quick(calm)
        stream.wait(*said)
        again, other = door.steps(calm)
        other.say("a")
        other.finish()
        again.wait("a", f"done {door.last_key}")
        call.finish()
        stream.wait(*said, "done k1")
        stream.wait_over()
        assert not door.degraded()
        resumed = door.resume(busy, stream.ids[0])
        resumed.wait(*said, "done k1")
    assert resumed.ids == stream.ids[1:]
    assert None not in [*stream.ids, *again.ids]
    assert calm.end() == busy.end() == 200
    assert len(set(door.backend.executions)) == len(door.backend.executions)


def test_away_for_longer_than_it_is_waited_for(server: RedisServer, open_door: Any) -> None:
    door = open_door(server.url)
    calm, busy = door.session(), door.session()
    stream, call = door.steps(busy)
    call.say("1")
    stream.wait("1")
    server.kill()
    call.say("2")
    stream.wait_over()
    assert stream.said == ["1"], "closed, to be resumed"
    assert None not in stream.ids

    status, headers, _ = door.status(busy, stream.ids[-1])
    assert status == 503
    assert headers["retry-after"]
    assert door.refused()["retry-after"]
    assert door.degraded()
    call.say("3")
    call.finish()
    for session in (calm, busy):
        door.quick(session)
        began, other = door.steps(session)
        other.say("a")
        other.finish()
        began.wait("a", f"done {door.last_key}")
        assert set(began.ids) == {None}
    status, _, _ = door.status(busy, stream.ids[-1])
    assert status == 503

    server.start()
    door.eventually(lambda: not door.degraded())
    door.eventually(lambda: door.status(busy, stream.ids[-1])[0] == 200)
    resumed = door.resume(busy, stream.ids[-1])
    resumed.wait("2", "3", "done k1")
    resumed.wait_over()
    assert None not in resumed.ids
    assert len({*stream.ids, *resumed.ids}) == len(stream.ids) + len(resumed.ids)
    door.quick(door.session())
    assert len(set(door.backend.executions)) == len(door.backend.executions)
