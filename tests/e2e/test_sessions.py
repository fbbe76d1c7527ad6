"""`stagedoor sessions` with a running gateway."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.support.processes import Gateway, Programs, stagedoor
from tests.support.raw import RawSession

pytestmark = pytest.mark.e2e


def sessions(gateway: Gateway, *words: str) -> subprocess.CompletedProcess[str]:
    return stagedoor("sessions", *words, "--url", gateway.endpoint(), "--admin", gateway.admin)


def test_sessions_are_listed_and_one_is_ended(programs: Programs) -> None:
    gateway = programs.gateway()
    first, second = RawSession(gateway.endpoint("demo")), RawSession(gateway.endpoint("notes"))
    listed = json.loads(sessions(gateway, "list", "--json").stdout)
    by_endpoint = {entry["endpoint"]: entry for entry in listed["sessions"]}
    assert sorted(by_endpoint) == ["demo", "notes"]
    assert [replica["alive"] for replica in listed["replicas"]] == [True]
    ended = sessions(gateway, "end", by_endpoint["demo"]["handle"])
    assert ended.returncode == 0, ended.stderr
    assert second.tools()
    rows = sessions(gateway, "list").stdout.splitlines()
    assert [row.split("\t")[2] for row in rows] == ["/mcp/notes"]
    again = sessions(gateway, "end", by_endpoint["demo"]["handle"])
    assert (again.returncode, "no such session" in again.stderr) == (1, True)
    assert "error" in first.ask(1, "tools/list")
