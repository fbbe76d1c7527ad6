"""A server that is declared `shared` has one connection or process for all sessions."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.support.processes import ROOT, Programs, accepts, free_port
from tests.support.raw import RawSession

pytestmark = pytest.mark.e2e

BACKEND = ["-m", "loadtest.backend"]


@pytest.fixture(params=["http", "stdio"])
def shared(request: pytest.FixtureRequest, programs: Programs) -> dict[str, Any]:
    if request.param == "stdio":
        return {"command": sys.executable, "args": [*BACKEND, "--stdio"], "cwd": str(ROOT), "sharing": "shared"}
    port = free_port()
    programs.start("backend", [sys.executable, *BACKEND, "--port", str(port)], ready=accepts(port))
    return {"type": "http", "url": f"http://127.0.0.1:{port}/mcp", "sharing": "shared"}


def echo(session: RawSession, number: int) -> str:
    return str(session.ask(number, "tools/call", {"name": "echo", "arguments": {"n": number}})["result"])


def test_sessions_use_a_shared_server_at_once_and_one_after_another(shared: dict[str, Any], programs: Programs) -> None:
    gateway = programs.gateway({"mcpServers": {"one": shared}})
    together = [RawSession(gateway.endpoint("one")) for _ in range(4)]
    for number, session in enumerate(together, 10):
        assert f"{number}:" in echo(session, number)
    for session in together:
        assert session.end() == 200
    for number in range(20, 23):  # the last one has gone: the next must find the server again
        session = RawSession(gateway.endpoint("one"))
        assert f"{number}:" in echo(session, number)
        assert session.end() == 200
