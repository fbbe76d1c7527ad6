"""Redis has lost what it acknowledged, or takes nothing more: what clients are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.redis_sentinel import Sentinel
from tests.support.redis_server import MISSING, RedisServer, installed

pytestmark = [pytest.mark.e2e, pytest.mark.redis]

GONE = "Session not found"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """Without any file."""
    if not installed():
        pytest.skip(MISSING)
    with RedisServer() as running:
        yield running


def flush(server: RedisServer) -> None:
    with server.client() as client:
        client.flushall()


def restart(server: RedisServer) -> None:
    server.kill()
    server.start()


@pytest.mark.parametrize("lose", [flush, restart], ids=lambda lose: lose.__name__)
def test_everything_is_lost(lose: Callable[[RedisServer], None], server: RedisServer, open_door: Any) -> None:
    door = open_door(server.url)
    calm, busy, hasty = door.session(), door.session(), door.session()
    stream, call = door.steps(busy)
    first = door.last_key
    call.say("1")
    stream.wait("1")
    finished, other = door.steps(calm)
    other.finish()
    finished.wait_over()

    lose(server)
    for session in (calm, busy):
        door.quick(session)
    status, _, answer = door.status(calm, finished.ids[0])
    assert (status, answer["error"]["data"]["reason"]) == (400, "expired"), "no such events, and that is said"

    call.say("2")
    stream.wait("1", "2")
    assert len(set(stream.ids)) == len(stream.ids), "no id comes to mean something else"
    rest = door.resume(busy, stream.ids[0])
    call.finish()
    rest.wait("2", f"done {first}")
    gap = rest.events[-1].message["result"]["_meta"]["stagedoor/gap"]
    assert gap["resumed"] > gap["after"], "what is missing is said"
    door.quick(busy)

    door.quick(calm)
    door.quick(hasty)

    new = door.session()
    fresh, more = door.steps(new)
    more.say("a")
    more.finish()
    fresh.wait("a", f"done {door.last_key}")
    assert None not in fresh.ids
    assert not door.degraded()
    assert len(set(door.backend.executions)) == len(door.backend.executions)


def test_it_is_full(server: RedisServer, open_door: Any) -> None:
    door = open_door(server.url)
    calm, busy, ending = door.session(), door.session(), door.session()
    stream, call = door.steps(busy)
    call.say("1")
    stream.wait("1")
    with server.client() as client:
        owner = {key: client.hget(key, "owner") for key in client.keys("sd:*:s")}
        assert len(owner) == 3
        client.config_set("maxmemory", "1mb")
        assert "full" in door.refused()["message"]
        call.say("2")
        door.eventually(lambda: door.ready()["store"] == "full")
        assert door.degraded()
        for session in (calm, busy, ending):
            door.quick(session)
        assert ending.end() == 200
        assert sum(client.hget(key, "state") == b"ended" for key in owner) == 1, "an end works"
        assert stream.said == ["1"]
        assert not stream.over

        client.config_set("maxmemory", "0")
        stream.wait("1", "2")
        call.finish()
        stream.wait("1", "2", f"done {door.last_stream}")
        assert None not in stream.ids
        door.eventually(lambda: not door.degraded())
        door.session()

        def live() -> list[bytes]:
            return [key for key in client.keys("sd:*:s") if client.hget(key, "state") == b"live"]

        door.eventually(lambda: len(live()) == 3)
        client.config_set("maxmemory", "1mb")
        assert door.refused()["retry-after"]
        assert door.gateway.program.stop() == 0
        owners = [client.hget(key, "owner") for key in live()]
        assert owners == [b""] * 3, "a release works"


def test_a_failover_loses_what_was_acknowledged(open_door: Any) -> None:
    if not installed():
        pytest.skip(MISSING)
    with ExitStack() as running:
        primary = running.enter_context(RedisServer("--repl-diskless-sync-delay", "0"))
        replica = running.enter_context(RedisServer("--replicaof", "127.0.0.1", str(primary.port)))
        sentinel = Sentinel(primary.port)
        running.callback(sentinel.stop)
        _fail_over(primary, replica, sentinel, open_door)


def _fail_over(primary: RedisServer, replica: RedisServer, sentinel: Sentinel, open_door: Any) -> None:
    with primary.client() as client:
        sentinel.wait(lambda: client.set("sync", 1) and client.execute_command("WAIT", 1, 100) == 1)
        sentinel.wait(lambda: sentinel.primary() == primary.port and sentinel.replicas() == 1)
        door = open_door(sentinel.url)
        busy, whole = door.session(), door.session()
        stream, call = door.steps(busy)
        first = door.last_key
        call.say("1")
        stream.wait("1")
        client.execute_command("WAIT", 1, 1000)
        client.execute_command("ACL", "SETUSER", "default", "-psync", "-sync")
        client.execute_command("CLIENT", "KILL", "TYPE", "replica")
    call.say("2", "3")
    stream.wait("1", "2", "3")
    lost = door.session()
    primary.kill()
    call.say("4")
    door.eventually(lambda: sentinel.primary() == replica.port)
    with replica.client() as client:
        logs = [client.xlen(key) for key in client.keys("sd:*:l:*")]
        assert logs == [2], "nothing was lost"

    door.eventually(lambda: door.status(busy, stream.ids[-1])[0] != 503)
    rest = door.resume(busy, stream.ids[1])
    call.finish()
    rest.wait("4", f"done {first}")
    gap = rest.events[-1].message["result"]["_meta"]["stagedoor/gap"]
    assert gap["resumed"] > gap["after"], "what is missing is said"
    shown = [i for i in (*stream.ids, *rest.ids) if i is not None]
    assert len(set(shown)) == len({(e.id, str(e.message)) for e in (*stream.events, *rest.events)}), "one id, one event"
    for session in (busy, whole, lost):
        door.quick(session)
    door.quick(door.session())
    door.eventually(lambda: not door.degraded())
