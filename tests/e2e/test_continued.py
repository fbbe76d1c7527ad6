"""Calls and sessions that outlive the gateway's process, with real processes and a server on the official SDK."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_sessions import sessions
from tests.support.patience import PATIENCE
from tests.support.processes import ROOT, Gateway, Programs, accepts, free_port
from tests.support.raw import RawSession, SseEvent

pytestmark = [pytest.mark.e2e, pytest.mark.redis]


@pytest.fixture
def notes(tmp_path: Path) -> Callable[[], list[str]]:
    """What the server noted so far."""
    file = tmp_path / "notes"
    file.touch()
    return lambda: file.read_text().split()


@pytest.fixture
def backend(programs: Programs, tmp_path: Path, notes: Callable[[], list[str]]) -> dict[str, Any]:
    return {"mcpServers": {"lasting": lasting(programs, tmp_path / "notes")}}


def lasting(programs: Programs, notes: Path) -> dict[str, str]:
    """Starts the server; its entry in a configuration."""
    port = free_port()
    command = [sys.executable, "-m", "tests.e2e.lasting_server", str(port), str(notes)]
    programs.start("lasting", command, ready=accepts(port), cwd=ROOT)
    return {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}


def logged(events: list[SseEvent]) -> list[str]:
    return [e.message["params"]["data"] for e in events if e.message is not None and "method" in e.message]


@pytest.mark.parametrize("endpoint", ["lasting", None], ids=["transparent", "aggregate"])
def test_a_call_goes_on_after_the_gateway_was_killed_and_its_real_answer_comes(
    endpoint: str | None, redis_url: str, programs: Programs, backend: dict[str, Any], notes: Callable[[], list[str]]
) -> None:
    first = programs.gateway(backend, "--store", redis_url)
    session = RawSession(first.endpoint(endpoint))
    session.tools()
    name = "work" if endpoint else "lasting__work"
    seen: list[SseEvent] = []
    with session.call(5, name, {"steps": 10, "pause": 0.5}) as stream:
        for event in stream.events():
            seen.append(event)
            if len(logged(seen)) == 2:
                break
        first.program.stop(signal.SIGKILL)
    second = programs.gateway(backend, "--store", redis_url, in_place_of=first)
    last = [event.id for event in seen if event.id is not None][-1]
    rest = session.listen(after=last).until_answer(5)
    assert logged(seen + rest) == [f"step {n}" for n in range(10)]
    answer = rest[-1].message
    assert answer is not None
    assert answer["result"]["content"][0]["text"] == "the real answer"
    begun = notes().count("begun")
    assert notes().count("executed") == 1
    assert session.ask(6, "tools/call", {"name": name})["result"]
    assert notes().count("begun") == begun, "another session with the server"
    assert session.end() == 200
    assert until(lambda: "ended" in notes())
    assert second.program.stop() == 0


def test_a_call_goes_on_after_a_drain_whose_deadline_it_did_not_meet(
    redis_url: str, programs: Programs, backend: dict[str, Any], notes: Callable[[], list[str]]
) -> None:
    config = {**backend, "gateway": {"drain": {"deadline": 2}}}
    first = programs.gateway(config, "--store", redis_url)
    session = RawSession(first.endpoint("lasting"))
    session.tools()
    seen: list[SseEvent] = []
    with session.call(5, "work", {"steps": 12, "pause": 0.5}) as stream:
        events = stream.events()
        while len(logged(seen)) < 2:
            seen.append(next(events))
        first.program.send(signal.SIGTERM)
        seen += events
    assert until(lambda: first.program.status == 0)
    assert all(e.message is None or "method" in e.message for e in seen), seen[-1]
    second = programs.gateway(config, "--store", redis_url, in_place_of=first)
    last = [event.id for event in seen if event.id is not None][-1]
    rest = session.listen(after=last).until_answer(5)
    assert logged(seen + rest) == [f"step {n}" for n in range(12)]
    answer = rest[-1].message
    assert answer is not None
    assert answer["result"]["content"][0]["text"] == "the real answer"
    assert notes().count("executed") == 1
    assert session.end() == 200
    assert second.program.stop() == 0


def listed(gateway: Gateway) -> Any:
    """What `stagedoor sessions list` says to programs."""
    return json.loads(sessions(gateway, "list", "--json").stdout)


def test_a_call_goes_on_at_the_replica_to_which_its_session_is_moved(
    redis_url: str, programs: Programs, backend: dict[str, Any], notes: Callable[[], list[str]], tmp_path: Path
) -> None:
    """And either replica lists, moves and ends it, whichever has it."""
    one, two = (programs.gateway(backend, "--store", redis_url) for _ in range(2))
    session = RawSession(one.endpoint("lasting"))
    session.tools()
    seen: list[SseEvent] = []
    with session.call(5, "work", {"steps": 2, "until": str(tmp_path / "go")}) as stream:
        events = stream.events()
        while len(logged(seen)) < 2:
            seen.append(next(events))
        found = listed(two)
        [entry] = found["sessions"]
        [other] = [r["incarnation"] for r in found["replicas"] if r["incarnation"] != entry["owner"]]
        while (moved := sessions(two, "move", entry["handle"])).stderr == "Error: another replica has it\n":
            """It is left to the other one for 5 seconds, which may be too few."""
        assert (moved.returncode, other in moved.stdout) == (0, True), moved
        [entry] = listed(one)["sessions"]
        assert entry["owner"] == other
        (tmp_path / "go").touch()
        seen += events
    answer = seen[-1].message
    assert answer is not None
    assert answer["result"]["content"][0]["text"] == "the real answer"
    assert logged(seen) == ["step 0", "step 1"]
    assert notes().count("executed") == 1
    ended = sessions(one, "end", entry["handle"])
    assert ended.returncode == 0, ended.stderr
    assert "error" in session.ask(6, "tools/list")
    assert until(lambda: "ended" in notes())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_a_session_goes_on_in_a_process_that_has_one_server_less(
    number: signal.Signals, redis_url: str, programs: Programs, backend: dict[str, Any], tmp_path: Path
) -> None:
    """A call at the server that is gone gets its error; one at another goes on."""
    drain = {"gateway": {"drain": {"deadline": 2}}}
    servers = backend["mcpServers"] | {"gone": lasting(programs, tmp_path / "gone")}
    first = programs.gateway({"mcpServers": servers, **drain}, "--store", redis_url)
    second = programs.gateway({**backend, **drain}, "--store", redis_url)
    session = RawSession(first.endpoint())
    assert until(lambda: session.tools() == ["lasting__work", "gone__work"])
    arguments = {"steps": 1, "until": str(tmp_path / "go")}
    calls = {name: session.call(id, f"{name}__work", arguments) for id, name in enumerate(servers, 5)}
    last = {name: next(e.id for e in call.events() if e.message is not None) for name, call in calls.items()}
    first.program.stop(number)
    for call in calls.values():
        call.close()
    session.go_to(second.endpoint())
    lost = session.listen(last["gone"]).until_answer(6)[-1].message
    assert lost is not None
    assert lost["error"]["data"]["executed"] == "unknown"
    (tmp_path / "go").touch()
    kept = session.listen(last["lasting"]).until_answer(5)[-1].message
    assert kept is not None
    assert kept["result"]["content"][0]["text"] == "the real answer"
    with session.listen() as stream:
        said = (event.message["method"] for event in stream.events() if event.message is not None)
        assert "notifications/tools/list_changed" in said
    assert session.tools() == ["lasting__work"]
    assert "error" in session.ask(9, "tools/call", {"name": "gone__work"})
    for name in ("notes", "gone"):
        assert (tmp_path / name).read_text().count("executed") == 1


def test_a_kill_right_after_the_answer_loses_no_subscription_and_no_level(
    redis_url: str, programs: Programs, backend: dict[str, Any]
) -> None:
    everything = {"mcpServers": {"slow": {"command": sys.executable, "args": ["-m", "loadtest.backend", "--stdio"]}}}
    first = programs.gateway(everything, "--store", redis_url)
    session = RawSession(first.endpoint("slow"))
    session.tools()
    assert session.ask(7, "logging/setLevel", {"level": "error"})["result"] == {}
    first.program.stop(signal.SIGKILL)
    fields = subprocess.run(
        ["redis-cli", "-u", redis_url, "--scan", "--pattern", "*:s"], capture_output=True, text=True, check=True
    ).stdout.split()
    [key] = fields
    record = subprocess.run(["redis-cli", "-u", redis_url, "HGETALL", key], capture_output=True, text=True, check=True)
    assert "error" in record.stdout.split()


def until(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
