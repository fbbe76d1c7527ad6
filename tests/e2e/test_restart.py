"""Streams survive a cut, and sessions survive the process: with Redis, clients keep their session id and their place.

Every test counts: each event of a stream comes once, in order, and each call has exactly one outcome.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.patience import PATIENCE
from tests.support.processes import ROOT, Gateway, Programs, accepts, free_port
from tests.support.raw import RawSession, SseEvent, Stream

pytestmark = pytest.mark.e2e

NO_SESSION = 404
Start = Callable[..., Gateway]


@pytest.fixture
def backend(programs: Programs) -> dict[str, Any]:
    """A server with a tool that logs, waits as long as it is told, and answers."""
    port = free_port()
    command = [sys.executable, "-m", "loadtest.backend", "--port", str(port)]
    programs.start("backend", command, ready=accepts(port), cwd=ROOT)
    return {"mcpServers": {"slow": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}}}


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])
def store(request: pytest.FixtureRequest) -> str:
    return "memory://" if request.param == "memory" else request.getfixturevalue("redis_url")


def ids(events: list[SseEvent]) -> list[str]:
    return [event.id for event in events if event.id is not None]


def messages(events: list[SseEvent]) -> list[dict[str, Any]]:
    return [event.message for event in events if event.message is not None]


def test_a_cut_stream_is_resumed_after_the_last_event_seen(
    store: str, programs: Programs, backend: dict[str, Any]
) -> None:
    session = RawSession(programs.gateway(backend, "--store", store).endpoint("slow"))
    first = session.call(7, "slow", {"seconds": 0.8, "n": 41}).first_with_id()
    resumed = session.listen(after=first.id).until_answer(7)
    assert "41" in str(resumed[-1].message)
    everything = [first, *resumed]
    assert len(set(ids(everything))) == len(everything), "an event came twice, or without an id"
    assert [message.get("method") for message in messages(everything)] == ["notifications/message", None]
    assert session.tools()


def test_a_finished_stream_can_be_read_again_from_any_place(
    store: str, programs: Programs, backend: dict[str, Any]
) -> None:
    session = RawSession(programs.gateway(backend, "--store", store).endpoint("slow"))
    whole = session.call(3, "slow", {"seconds": 0.4}).until_answer(3)
    for place, event in enumerate(whole[:-1]):
        assert session.listen(after=event.id).until_answer(3) == whole[place + 1 :]


@pytest.mark.redis
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_a_client_goes_on_after_a_restart_with_its_session_and_streams(
    number: signal.Signals, redis_url: str, programs: Programs, backend: dict[str, Any]
) -> None:
    first = programs.gateway(backend, "--store", redis_url)
    session = RawSession(first.endpoint("slow"))
    whole = session.call(3, "slow", {"seconds": 0.4}).until_answer(3)
    first.program.stop(number)
    programs.gateway(backend, "--store", redis_url, in_place_of=first)
    assert session.listen(after=whole[0].id).until_answer(3) == whole[1:]
    assert session.tools() == ["echo", "stream", "slow", "flood", "events", "large", "ask"]
    assert "5:" in str(session.ask(9, "tools/call", {"name": "echo", "arguments": {"n": 5}})["result"])


@pytest.mark.redis
def test_a_call_that_was_running_when_the_process_was_killed_has_one_explicit_outcome(
    redis_url: str, programs: Programs, backend: dict[str, Any]
) -> None:
    first = programs.gateway(backend, "--store", redis_url)
    session = RawSession(first.endpoint("slow"))
    stream = session.call(5, "slow", {"seconds": 2})
    with stream:
        seen = next(event for event in stream.events() if event.id is not None)
        first.program.stop(signal.SIGKILL)
    programs.gateway(backend, "--store", redis_url, in_place_of=first)
    rest = session.listen(after=seen.id).until_answer(5)
    outcome = rest[-1].message
    assert outcome is not None
    assert ("result" in outcome) != ("error" in outcome)
    assert session.tools()


@pytest.mark.redis
def test_a_call_that_waited_for_its_server_when_the_process_was_killed_was_surely_not_executed(
    redis_url: str, programs: Programs, tmp_path: Path
) -> None:
    fast = tmp_path / "fast"
    fast.touch()
    server = Path(__file__).with_name("slow_server.py")
    start = f"[ -e {fast} ] && touch {tmp_path}/$$.go; exec {sys.executable} -S -E {server} {tmp_path} legacy"
    config = {"mcpServers": {"slow": {"command": "sh", "args": ["-c", start]}}, "gateway": {"prestart": False}}
    first = programs.gateway(config, "--store", redis_url)
    session = RawSession(first.endpoint("slow"))
    process = int(session.ask(1, "tools/call", {"name": "echo"})["result"]["content"][0]["text"])
    fast.unlink()
    os.kill(process, signal.SIGKILL)
    for id in range(2, 50):  # at first it may not be known yet that the server is gone
        params = {"name": "echo", "arguments": {}}
        message = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
        connection = session.post_and_leave(message)
        response = connection.getresponse()
        if response.headers.get_content_type() == "text/event-stream":
            break
        connection.close()
    with Stream(connection, response) as stream:
        seen = next(event for event in stream.events() if event.id is not None)
        wait_for_entry(redis_url, b'"w":true')
        first.program.stop(signal.SIGKILL)
    fast.touch()
    programs.gateway(config, "--store", redis_url, in_place_of=first)
    outcome = session.listen(after=seen.id).until_answer(id)[-1].message
    assert outcome is not None
    assert outcome["error"]["data"] == {"reason": "owner_lost", "executed": "no"}
    assert session.ask(100, "tools/call", {"name": "echo"})["result"]


def wait_for_entry(url: str, part: bytes) -> None:
    """Until some session's record has a request in flight that says this."""
    client, give_up = redis.Redis.from_url(url), time.monotonic() + PATIENCE
    with client:
        while True:
            records = [client.hgetall(key) for key in client.scan_iter("*:s")]
            if any(name.startswith(b"q:") and part in value for r in records for name, value in r.items()):
                return
            assert time.monotonic() < give_up, records
            time.sleep(0.02)


@pytest.mark.redis
def test_a_second_process_on_the_same_store_serves_beside_the_first(
    redis_url: str, programs: Programs, backend: dict[str, Any]
) -> None:
    """The session stays where it is as long as that process lives, and goes on at the other one when it was killed."""
    first = programs.gateway(backend, "--store", redis_url)
    session = RawSession(first.endpoint("slow"))
    second = programs.gateway(backend, "--store", redis_url)
    other = RawSession(second.endpoint("slow"))
    assert session.tools() == other.tools()
    with redis.from_url(redis_url) as client:
        assert len({client.hget(key, "owner") for key in client.scan_iter("*:s")}) == 2
    session.go_to(second.endpoint("slow"))
    assert session.tools(), "by mail"
    first.program.stop(signal.SIGKILL)
    assert session.tools(), "taken over"


def test_without_a_store_that_lasts_an_old_session_is_unknown_after_a_restart(
    programs: Programs, backend: dict[str, Any]
) -> None:
    first = programs.gateway(backend)
    session = RawSession(first.endpoint("slow"))
    first.program.stop()
    programs.gateway(backend, in_place_of=first)
    response, _ = session.post({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    assert response.status == NO_SESSION
