"""The gateway as a process: it comes up, says where it is, answers, and ends when told to, with nothing left behind."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from tests.support.processes import ROOT, Gateway, Programs, answers, environment, free_port, stagedoor
from tests.support.raw import RawSession

pytestmark = pytest.mark.e2e

FIXTURE = ROOT / "tests" / "conformance" / "fixture"
STDIO_FIXTURE = {"mcpServers": {"fixture": {"command": sys.executable, "args": [str(FIXTURE)]}}}


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as response:
        text: str = response.read().decode()
        return text


@pytest.fixture(scope="module")
def demo(shared_programs: Programs) -> Gateway:
    return shared_programs.gateway()


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


def pasted(gateway: Gateway, command: str) -> str:
    """What a line of the banner that begins with `command` prints when it is pasted into a shell."""
    gateway.program.wait_output(command)
    line = next(line for line in gateway.program.output().splitlines() if command in line)
    done = subprocess.run(
        ["sh", "-c", line[line.index(command) :]],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_banner_says_where_it_is_and_how_to_attach(demo: Gateway) -> None:
    demo.program.wait_output(f"claude mcp add --transport http stagedoor {demo.endpoint()}")
    assert demo.admin in demo.program.output()


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_curl_line_of_the_banner_works(demo: Gateway) -> None:
    assert '"protocolVersion":"2025-11-25"' in pasted(demo, "curl -sS").replace(" ", "")


@pytest.mark.node
def test_the_inspector_line_of_the_banner_works(demo: Gateway, node: Path) -> None:
    assert '"tools"' in pasted(demo, "npx @modelcontextprotocol/inspector")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_it_with_status_0_and_no_child_left(number: signal.Signals, programs: Programs) -> None:
    gateway = programs.gateway(STDIO_FIXTURE)
    session = RawSession(gateway.endpoint("fixture"))
    assert "test_simple_text" in session.tools()
    if Path("/proc").exists():
        assert len(gateway.program.family()) > 1, "the backend's process was never seen"
    assert gateway.program.stop(number) == 0, gateway.program.story()
    gateway.program.wait_alone()


def graceful(programs: Programs, seconds: float) -> Gateway:
    return programs.gateway({"mcpServers": {}, "gateway": {"drain": {"grace": seconds}}})


def test_until_the_grace_is_over_it_is_not_ready_and_serves_everybody(programs: Programs) -> None:
    gateway = graceful(programs, 3600)
    gateway.program.send(signal.SIGTERM)
    gateway.program.wait_output('"draining"')
    with pytest.raises(urllib.error.HTTPError, match="503"):
        get(f"{gateway.admin}/readyz")
    assert RawSession(gateway.endpoint()).end() == 200
    assert gateway.program.stop() == 1, "a second signal waits for nothing"


def test_when_the_grace_is_over_it_ends(programs: Programs) -> None:
    assert graceful(programs, 0.5).program.stop() == 0


def test_it_ends_in_time_with_calls_running_and_a_reader_that_is_stuck(programs: Programs) -> None:
    gateway = programs.gateway(STDIO_FIXTURE)
    session = RawSession(gateway.endpoint("fixture"))
    call = {"name": "test_tool_with_logging", "arguments": {}}
    held = [
        session.post_and_leave({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call})
        for number in range(10, 14)
    ]
    stream = session.listen()
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
    done = stagedoor("check", example)
    assert done.returncode == 0, done.stdout + done.stderr
