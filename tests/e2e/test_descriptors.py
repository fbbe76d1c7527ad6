"""Clients that open more connections than the process may have file descriptors: probes answer, and calls go on."""

from __future__ import annotations

import contextlib
import http.client
import json
import resource
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from tests.support.patience import PATIENCE
from tests.support.processes import ROOT, Gateway, Programs, accepts, free_port
from tests.support.raw import REVISION

pytestmark = pytest.mark.e2e

LIMIT = 256
IDLE = 400
BACKEND = ["-m", "loadtest.backend"]


class TooManyError(Exception):
    """The gateway has as many connections as it may have."""


class Held:
    """A session over one connection that stays open."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._path = parts.path
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE)
        self._headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        client = {"name": "held", "version": "1"}
        params = {"protocolVersion": REVISION, "capabilities": {}, "clientInfo": client}
        response, _ = self._post({"id": 0, "method": "initialize", "params": params})
        if response.status == 503:
            self._connection.close()
            raise TooManyError
        self._headers |= {"Mcp-Session-Id": response.headers["Mcp-Session-Id"], "MCP-Protocol-Version": REVISION}
        self._post({"method": "notifications/initialized"})
        self._socket = self._connection.sock

    def echo(self, number: int) -> str:
        """A call, over the same connection."""
        params = {"name": "echo", "arguments": {"n": number}}
        _, body = self._post({"id": number, "method": "tools/call", "params": params})
        assert self._connection.sock is self._socket, "the connection was closed"
        return body

    def _post(self, message: dict[str, Any]) -> tuple[http.client.HTTPResponse, str]:
        self._connection.request("POST", self._path, json.dumps({"jsonrpc": "2.0", **message}), self._headers)
        response = self._connection.getresponse()
        return response, response.read().decode()

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def gateway(request: pytest.FixtureRequest, programs: Programs) -> Gateway:
    """A gateway that may have few descriptors, and a server of each kind that it has not spoken to."""
    port = free_port()
    programs.start("backend", [sys.executable, *BACKEND, "--port", str(port)], ready=accepts(port))
    servers = {
        "far": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"},
        "near": {"command": sys.executable, "args": [*BACKEND, "--stdio"], "cwd": str(ROOT)},
    }
    return programs.gateway({"mcpServers": servers}, ulimit=request.param)


@contextlib.contextmanager
def idle(gateway: Gateway, count: int) -> Iterator[list[socket.socket]]:
    """Connections that say nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count + 200:
        pytest.skip("this machine does not let a process have so many connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 200), hard))
    address = urlsplit(gateway.url).hostname, urlsplit(gateway.url).port
    try:
        with contextlib.ExitStack() as opened:
            yield [opened.enter_context(socket.create_connection(address, timeout=PATIENCE)) for _ in range(count)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def status_of(url: str) -> int:
    with urlopen(url, timeout=PATIENCE) as response:
        return int(response.status)


@pytest.mark.parametrize("gateway", [f"-n {LIMIT}"], indirect=True)
def test_probes_answer_and_open_connections_reach_their_servers_when_the_descriptors_are_used_up(
    gateway: Gateway,
) -> None:
    sessions = {name: Held(gateway.endpoint(name)) for name in ("far", "near")}
    with idle(gateway, IDLE):
        for path in ("/readyz", "/livez", "/metrics"):
            assert status_of(gateway.admin + path) == 200
        for name, session in sessions.items():
            for number in (10, 11):
                assert f"{number}:" in session.echo(number), name
        assert status_of(gateway.admin + "/readyz") == 200
    for session in sessions.values():
        session.close()
    assert "descriptors_low" in gateway.program.output()
    again = held_as_soon_as_there_is_room(gateway.endpoint("near"))
    assert "12:" in again.echo(12)
    again.close()
    assert gateway.program.stop() == 0


def held_as_soon_as_there_is_room(url: str) -> Held:
    """The gateway learns in its own time that connections have ended; until then a further one is too many (503)."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return Held(url)
        except TooManyError:
            assert time.monotonic() < until, "no place became free"
            time.sleep(0.05)


def soft_limit(pid: int) -> int:
    """Of open files."""
    [line] = [
        line for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if line.startswith("Max open files")
    ]
    return int(line.split()[3])


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("gateway", [f"-S -n {LIMIT}"], indirect=True)
def test_a_low_soft_limit_is_raised_for_the_gateway_and_not_for_the_programs_that_it_starts(gateway: Gateway) -> None:
    session = Held(gateway.endpoint("near"))
    assert "1:" in session.echo(1)
    session.close()
    own = gateway.program.pid
    started = [int(pid) for of in Path(f"/proc/{own}/task").glob("*/children") for pid in of.read_text().split()]
    servers = [pid for pid in started if b"--stdio" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert {soft_limit(pid) for pid in servers} == {LIMIT}
    assert soft_limit(own) > LIMIT
