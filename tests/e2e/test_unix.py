"""A gateway on a Unix socket, as a process: alone and with workers, found by the command line, gone without a trace."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import STAGEDOOR, Programs, stagedoor

INITIALIZE = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }
)


def post(path: Path, url: str = "http://any.example/mcp") -> str:
    command = ["curl", "-sS", "--unix-socket", path, url, "-d", INITIALIZE, "-H", "Content-Type: application/json"]
    accept = ["-H", "Accept: application/json, text/event-stream"]
    return subprocess.run([*command, *accept], capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["alone", "workers"])
def test_it_serves_is_found_and_leaves_nothing(
    options: tuple[str, ...], programs: Programs, redis_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "gateway.sock"
    env = {"XDG_STATE_HOME": str(tmp_path)}
    store = ("--store", redis_url) if options else ()
    command = [STAGEDOOR, "serve", "--listen", f"unix:{path}", "--admin", "127.0.0.1:0", *store, *options]
    program = programs.start("gateway", command, env=env, ready=path.exists, fork=True)
    program.wait_output(f"endpoint  unix:{path}")
    assert '"serverInfo"' in post(path)
    found = stagedoor("ls", "servers", "--url", f"unix:{path}", "--json", env=env)
    assert {entry["name"] for entry in json.loads(found.stdout)} >= {"demo"}, found.stderr
    assert program.stop(signal.SIGTERM) == 0
    assert not path.exists()


def test_after_a_kill_the_next_one_serves_there(programs: Programs, tmp_path: Path) -> None:
    path = tmp_path / "gateway.sock"
    command = [STAGEDOOR, "serve", "--listen", f"unix:{path}", "--admin", "127.0.0.1:0"]
    first = programs.start("first", command, ready=path.exists, fork=True)
    first.wait_output("endpoint")
    first.stop(signal.SIGKILL)
    assert path.exists()
    second = programs.start("second", command, ready=path.exists, fork=True)
    second.wait_output("endpoint")
    assert '"serverInfo"' in post(path)
    third = stagedoor(*command[1:])
    assert third.returncode == 1
    assert "another program listens there already" in third.stderr
