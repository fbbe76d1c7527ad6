"""Two replicas on a Redis that is slow, read-only or full, while each has calls for sessions of the other: every call
has one outcome, which says truly whether it may have been executed, and afterwards everybody is served again."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.redis_trouble.conftest import Backend, Door, eventually
from tests.support.raw import RawSession
from tests.support.redis_server import MISSING, RedisServer, installed

pytestmark = [pytest.mark.e2e, pytest.mark.redis]

LONG = 6.0
"""Seconds: longer than a lease, and than anybody waits before the store counts as away."""
KEYS = itertools.count()
LANES = 3
"""Of each session at each replica."""


@pytest.fixture
def server() -> Iterator[RedisServer]:
    if not installed():
        pytest.skip(MISSING)
    with RedisServer(aof=True) as running:
        yield running


@contextmanager
def slow(server: RedisServer) -> Iterator[None]:
    """Most of the time it does not run."""
    over = threading.Event()

    def hold() -> None:
        while not over.wait(0.02):
            server.pause()
            over.wait(0.3)
            server.go_on()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def read_only(server: RedisServer) -> Iterator[None]:
    with server.client() as client:
        client.replicaof("127.0.0.1", "1")
        yield
        client.replicaof("NO", "ONE")


@contextmanager
def full(server: RedisServer) -> Iterator[None]:
    with server.client() as client:
        client.config_set("maxmemory", "1")
        yield
        client.config_set("maxmemory", "0")


@dataclass
class Outcome:
    """Of one call."""

    key: str
    mailed: bool
    status: int
    answer: Any

    @property
    def good(self) -> bool:
        return self.status == 200 and "result" in self.answer

    @property
    def denied(self) -> bool:
        """Whether its client was told that it was not executed."""
        error = (self.answer or {}).get("error") or {}
        return self.status in (429, 503) or (error.get("data") or {}).get("executed") == "no"


class Traffic:
    """Calls, one after the other, on several lanes for each session and replica. The nth session is the nth door's."""

    def __init__(self, sessions: list[RawSession], doors: list[Door]) -> None:
        self.outcomes: list[Outcome] = []
        self._over = threading.Event()
        ways = [(at(s, d), n != m) for (n, s), (m, d) in itertools.product(enumerate(sessions), enumerate(doors))]
        self._threads = [threading.Thread(target=self._run, args=way) for way in ways * LANES]
        for thread in self._threads:
            thread.start()

    def _run(self, session: RawSession, mailed: bool) -> None:
        while not self._over.is_set():
            self.outcomes.append(called(session, f"t{next(KEYS)}", mailed=mailed))

    def end(self) -> None:
        """When the last one has its outcome."""
        self._over.set()
        for thread in self._threads:
            thread.join()


def at(session: RawSession, door: Door) -> RawSession:
    """The same session through another replica."""
    other = object.__new__(RawSession)
    other.headers = dict(session.headers)
    other.go_to(door.gateway.endpoint("alpha"))
    return other


def called(session: RawSession, key: str, *, mailed: bool = False) -> Outcome:
    """One call, to its outcome. (The connection would time out if there were none.)"""
    params = {"name": "quick", "arguments": {"key": key}}
    response, answer = session.post({"jsonrpc": "2.0", "id": key, "method": "tools/call", "params": params})
    return Outcome(key, mailed, response.status, answer)


@pytest.mark.parametrize("trouble", [slow, read_only, full], ids=lambda trouble: trouble.__name__)
def test_calls_between_replicas_have_one_outcome_whatever_befalls_redis(
    trouble: Callable[[RedisServer], Any], server: RedisServer, open_door: Any, backend: Backend
) -> None:
    one, two = doors = [open_door(server.url), open_door(server.url)]
    sessions = [one.session(), two.session()]
    stream, call = one.steps(sessions[0])
    call.say("before")
    stream.wait("before")
    traffic = Traffic(sessions, doors)
    eventually(lambda: len(traffic.outcomes) > 50)
    assert all(outcome.good for outcome in list(traffic.outcomes))
    with trouble(server):
        time.sleep(LONG)
        call.say("meanwhile")
    everywhere = list(itertools.product(sessions, doors))
    eventually(lambda: all(called(at(*way), f"after{next(KEYS)}").good for way in everywhere))
    traffic.end()
    call.finish()
    stream.wait("before", "meanwhile", f"done {one.last_stream}")
    assert None not in stream.ids

    executed = Counter(backend.executions)
    assert {key: times for key, times in executed.items() if times > 1} == {}
    assert [o for o in traffic.outcomes if executed[o.key] and o.denied] == []
    assert [o for o in traffic.outcomes if not executed[o.key] and o.good] == []
    assert [o for o in traffic.outcomes if not o.good and not o.denied and "error" not in (o.answer or {})] == []
    if trouble is not read_only:  # then leases run out, and sessions may move
        assert [o for o in traffic.outcomes if not o.good and not o.mailed] == []
