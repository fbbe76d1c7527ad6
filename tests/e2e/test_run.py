"""The gateway as a process: it comes up, says where it is, answers, and ends when told to, with nothing left behind."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.processes import ROOT, STAGEDOOR, Gateway, Programs, answers, environment, free_port

pytestmark = pytest.mark.e2e

FIXTURE = ROOT / "tests" / "conformance" / "fixture.py"
STDIO_FIXTURE = {"mcpServers": {"fixture": {"command": sys.executable, "args": [str(FIXTURE)]}}}
HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


class RawSession:
    """One session over plain HTTP, so that a test holds its connections in its own hands."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._address, self._path = (parts.hostname, parts.port), parts.path
        self._headers = dict(HEADERS)
        client = {"name": "raw", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
        response, self.server = self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        self._headers["Mcp-Session-Id"] = response.headers["Mcp-Session-Id"]
        self._headers["MCP-Protocol-Version"] = "2025-11-25"
        response, _ = self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert response.status == 202

    def _send(self, method: str, body: str | None = None) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(*self._address, timeout=20)
        connection.request(method, self._path, body, self._headers)
        return connection

    def post(self, message: dict[str, Any]) -> tuple[http.client.HTTPResponse, Any]:
        """Sends a message; returns the response and the last JSON-RPC message in it."""
        connection = self._send("POST", json.dumps(message))
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        if response.headers.get_content_type() == "text/event-stream":
            text = [line.removeprefix("data:") for line in text.splitlines() if line.startswith("data:")][-1]
        return response, json.loads(text) if text.strip() else None

    def open_stream(self) -> http.client.HTTPResponse:
        """A GET stream that nobody reads."""
        self._headers["Accept"] = "text/event-stream"
        return self._send("GET").getresponse()

    def post_and_leave(self, message: dict[str, Any]) -> http.client.HTTPConnection:
        """Sends a message and does not look at the answer."""
        return self._send("POST", json.dumps(message))

    def tools(self) -> list[str]:
        _, answer = self.post({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        return [tool["name"] for tool in answer["result"]["tools"]]


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as response:
        text: str = response.read().decode()
        return text


@pytest.fixture
def demo(programs: Programs) -> Gateway:
    return programs.gateway()


def test_without_configuration_the_demo_servers_answer(demo: Gateway) -> None:
    session = RawSession(demo.endpoint())
    assert session.server["result"]["protocolVersion"] == "2025-11-25"
    assert session.tools()


def test_the_admin_listener_tells_health_and_metrics(demo: Gateway) -> None:
    RawSession(demo.endpoint()).tools()
    assert answers(f"{demo.admin}/livez")()
    assert answers(f"{demo.admin}/readyz")()
    metrics = get(f"{demo.admin}/metrics")
    assert "mcp_server_operation_duration_seconds" in metrics
    assert "stagedoor_" in metrics


def test_metrics_are_never_on_the_public_listener(demo: Gateway) -> None:
    assert answers(f"{demo.url}/metrics", status=404)()
    assert answers(f"{demo.url}/healthz")()


def test_the_banner_has_lines_to_paste(demo: Gateway) -> None:
    demo.program.wait_output(f"claude mcp add --transport http stagedoor {demo.endpoint()}")
    banner = demo.program.output()
    assert demo.admin.removeprefix("http://") in banner
    assert "@modelcontextprotocol/inspector" in banner
    assert "curl" in banner


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_curl_line_of_the_banner_gets_an_answer(demo: Gateway) -> None:
    demo.program.wait_output("curl")
    lines = demo.program.output().splitlines()
    start = next(number for number, line in enumerate(lines) if line.strip().startswith("curl"))
    command = ""
    for line in lines[start:]:
        command += line.strip().removesuffix("\\") + " "
        if not line.rstrip().endswith("\\"):
            break
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=10, check=False)
    assert '"jsonrpc"' in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_it_with_status_0_and_no_child_left(number: signal.Signals, programs: Programs) -> None:
    gateway = programs.gateway(STDIO_FIXTURE)
    session = RawSession(gateway.endpoint("fixture"))
    assert "test_simple_text" in session.tools()
    if Path("/proc").exists():
        assert len(gateway.program.family()) > 1, "the backend's process was never seen"
    assert gateway.program.stop(number) == 0, gateway.program.story()
    gateway.program.wait_alone()


def test_it_ends_in_time_with_calls_running_and_a_reader_that_is_stuck(programs: Programs) -> None:
    gateway = programs.gateway(STDIO_FIXTURE)
    session = RawSession(gateway.endpoint("fixture"))
    call = {"name": "test_tool_with_logging", "arguments": {}}
    held = [
        session.post_and_leave({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call})
        for number in range(10, 14)
    ]
    stream = session.open_stream()
    assert stream.status == 200
    assert gateway.program.stop() == 0, gateway.program.story()
    gateway.program.wait_alone()
    stream.close()
    for connection in held:
        connection.close()


def test_make_run_prints_the_endpoint_and_goes_on(programs: Programs) -> None:
    if not (ROOT / ".venv" / ".stamp").exists():
        pytest.skip("`make setup` has not been run here")
    listen, admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    made = programs.start(
        "make-run", ["make", "run", f"LISTEN={listen}", f"ADMIN={admin}"], ready=answers(f"http://{admin}/readyz")
    )
    made.wait_output(f"http://{listen}/mcp")
    assert RawSession(f"http://{listen}/mcp").tools()
    made.stop()  # make tells the gateway, waits for it, and says with its own status that it was interrupted
    made.wait_alone()


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.json*")), ids=lambda path: path.name)
def test_the_examples_are_in_order(example: Path) -> None:
    done = subprocess.run(
        [STAGEDOOR, "check", example], capture_output=True, text=True, timeout=20, env=environment(), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
