"""A replica that had a thousand sessions with work dies: two others take them over, no faster than they promise."""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.support.processes import ROOT, Gateway, Programs, accepts
from tests.support.raw import RawSession, SseEvent

pytestmark = [pytest.mark.e2e, pytest.mark.redis]

WORKING, IDLE = 1000, 200
AT_ONCE, RATE = 20, 200
"""The most that a replica takes over in one turn, and in a second."""
SOONEST = 3.0
"""Seconds after a death before which nobody can have found it: the rest of a lease, two readings, a pause."""


def taken_over(gateway: Gateway) -> int:
    with urllib.request.urlopen(f"{gateway.admin}/metrics", timeout=PATIENCE) as answer:
        page = answer.read().decode()
    return sum(
        int(float(n)) for n in re.findall(r'^stagedoor_takeovers_total\{reason="\w+"\} (\S+)$', page, re.MULTILINE)
    )


def at_work(gateway: Gateway) -> tuple[RawSession, SseEvent]:
    """A session whose call was recorded, and whose client has left."""
    session = RawSession(gateway.endpoint("plain"))
    return session, session.call(1, "slow", {"seconds": 600}).first_with_id()


def at_rest(gateway: Gateway) -> RawSession:
    session = RawSession(gateway.endpoint("plain"))
    assert session.ask(1, "tools/call", {"name": "echo"})["result"]
    return session


class Calling:
    """Sessions of others, which call without end."""

    def __init__(self, gateways: Sequence[Gateway]) -> None:
        self.answered = [0 for _ in gateways]
        self.failures: list[str] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=each) for each in enumerate(gateways)]

    def _call(self, place: int, gateway: Gateway) -> None:
        session, number = RawSession(gateway.endpoint("plain")), 1
        while not self._over.is_set():
            number += 1
            try:
                answer = session.ask(number, "tools/call", {"name": "echo", "arguments": {"n": number}})
                assert f"{number}: " in json.dumps(answer["result"])
                self.answered[place] += 1
            except Exception as error:
                self.failures.append(repr(error))
            time.sleep(0.02)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join(PATIENCE)


def test_a_thousand_sessions_do_not_fall_upon_the_others_at_once(redis_url: str, programs: Programs) -> None:
    port = free_port()
    backend = [sys.executable, "-m", "loadtest.backend", "--port", str(port)]
    programs.start("backend", backend, ready=accepts(port), cwd=ROOT)
    config: dict[str, Any] = {"mcpServers": {"plain": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}}}
    lost, *others = (programs.gateway(config, "--store", redis_url) for _ in range(3))
    with ThreadPoolExecutor(16) as several:
        working = list(several.map(at_work, [lost] * WORKING))
        resting = list(several.map(at_rest, [lost] * IDLE))
    calling = Calling(others)
    with calling.going_on():
        lost.program.send(signal.SIGKILL)
        died, seen, before = time.monotonic(), [0, 0], list(calling.answered)
        while sum(seen) < WORKING:
            for place, gateway in enumerate(others):
                seen[place] = taken_over(gateway)
                time_for = time.monotonic() - died - SOONEST
                assert seen[place] <= AT_ONCE + RATE * max(0.0, time_for), (seen, time_for)
            assert time.monotonic() - died < 2 * PATIENCE, f"{seen} are taken over"
            time.sleep(0.2)
        assert all(now > then for now, then in zip(calling.answered, before, strict=True))
        # None of them twice, and none that had nothing to do; what is left of the dead one is forgotten.
        with redis.Redis.from_url(redis_url) as client:
            end = time.monotonic() + PATIENCE
            while client.zcard("sd:c:{c}:replicas") > len(others):
                assert time.monotonic() < end, "its sessions are still looked for"
                time.sleep(0.2)
    assert calling.failures == []
    assert [taken_over(gateway) for gateway in others] == seen
    assert sum(seen) == WORKING
    assert min(seen) > 0
    for place, (session, event) in enumerate(working[:: WORKING // 20]):
        session.go_to(others[place % 2].endpoint("plain"))
        [answer] = session.listen(event.id).until_answer(1)[-1:]
        assert answer.message is not None
        assert answer.message["error"]["data"] == {"reason": "owner_lost", "executed": "unknown"}
    for place, session in enumerate(resting[:4]):
        session.go_to(others[place % 2].endpoint("plain"))
        assert session.ask(2, "tools/call", {"name": "echo"})["result"]
