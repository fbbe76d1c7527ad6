"""What operators are told of the servers, and how a gateway of this machine is found."""

import json
import os

from actors.protocol.diagnostics import Diagnostics
from actors.protocol.table import BackendSpec, HttpTarget, NativeTarget, SseTarget, StdioTarget, WebSocketTarget
from actors.upstreams.backends import Status
from actors.upstreams.messages import Failure
from gateway.running import admins, recorded
from gateway.servers import described
from tests.support.harness import RecordingLog

SECRET = "hush-hush"
TARGETS = [
    StdioTarget("npx", ("--token", SECRET), (("API_KEY", SECRET),)),
    StdioTarget(f"npx --token {SECRET}"),
    HttpTarget(f"https://example.com/{SECRET}?key={SECRET}", (("Authorization", f"Bearer {SECRET}"),)),
    HttpTarget("unix:/run/mcp.sock"),
    SseTarget(f"https://example.com:1/{SECRET}"),
    WebSocketTarget(f"wss://example.com:1/{SECRET}"),
    NativeTarget(object()),
]


def test_12_no_credential_is_in_what_is_told_of_a_server():
    told = [described(BackendSpec("fx", target), None) for target in TARGETS]
    assert SECRET not in json.dumps(told)
    assert [entry["transport"] for entry in told] == ["stdio", "stdio", "http", "http", "sse", "ws", "inproc"]
    places = [
        "npx",
        "npx",
        "https://example.com",
        "unix:/run/mcp.sock",
        "https://example.com:1",
        "wss://example.com:1",
        None,
    ]
    assert [entry.get("command", entry.get("origin")) for entry in told] == places
    assert {entry["status"] for entry in told} == {"unused"}


def test_a_server_that_does_not_work_is_told_with_everything_that_is_known():
    diagnostics = Diagnostics(401, ("line",), "http://h:1: refused")
    status = Status(failure=Failure("fx", "http_status", "refused", diagnostics), failures=3)
    entry = described(BackendSpec("fx", TARGETS[0]), status)
    assert entry["status"] == "failing"
    assert entry["error"] == {
        "reason": "http_status",
        "message": "http://h:1: refused",
        "status": 401,
        "stderr": ["line"],
        "failures": 3,
    }


def test_era_and_revision_of_a_server_that_works_are_told():
    status = Status(connections=2, revision="2026-07-28", server=("fixture", "1"))
    entry = described(BackendSpec("fx", TARGETS[0]), status)
    assert (entry["status"], entry["era"], entry["revision"]) == ("healthy", "modern", "2026-07-28")
    assert (entry["server"], entry["version"], entry["connections"]) == ("fixture", "1", 2)


def test_a_gateway_is_found_by_its_port_while_it_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    log = RecordingLog()
    with recorded(8080, "http://127.0.0.1:9000", log):
        assert admins(8080) == ["http://127.0.0.1:9000"]
        assert admins(8081) == []
        [file] = (tmp_path / "stagedoor" / "running").iterdir()
        assert file.stat().st_mode & 0o077 == 0
    assert admins(8080) == []


def test_what_a_killed_gateway_left_behind_is_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    folder = tmp_path / "stagedoor" / "running"
    folder.mkdir(parents=True)
    (folder / f"8080-{child}.json").write_text("{}")
    (folder / "8080-x.json").write_text("no JSON")
    assert admins(8080) == []
    with recorded(8080, "http://127.0.0.1:9000", RecordingLog()):
        assert len(list(folder.iterdir())) == 1


def test_a_state_directory_that_cannot_be_written_changes_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    log = RecordingLog()
    with recorded(8080, "http://127.0.0.1:9000", log):
        assert admins(8080) == []
    assert log.events("not_recorded")
