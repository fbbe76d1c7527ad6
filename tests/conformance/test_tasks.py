"""The suite's scenarios for the tasks extension, which it does not score: through the gateway, on an endpoint of the
server alone. (On a merged one tools have other names than the scenarios call.)"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from tests.support.processes import NODE_PACKAGES, Programs, accepts, environment, free_port

pytestmark = [pytest.mark.e2e, pytest.mark.node]

SERVER = Path(__file__).with_name("tasks_server.py")
SUITE = NODE_PACKAGES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
SCENARIOS = (
    "tasks-lifecycle",
    "tasks-capability-negotiation",
    "tasks-wire-fields",
    "tasks-request-state-removal",
    "tasks-mrtr-input",
    "tasks-request-headers",
    "tasks-dispatch-and-envelope",
    "tasks-required-task-error",
    "tasks-mrtr-composition",
)


def test_every_check_of_the_extension_passes(programs: Programs, node: Path, tmp_path: Path) -> None:
    port = free_port()
    programs.start("tasks-server", [sys.executable, SERVER, str(port)], ready=accepts(port))
    gateway = programs.gateway({"mcpServers": {"tasks": {"url": f"http://127.0.0.1:{port}/mcp"}}})
    # The suite that has them; what else is in it asks for things that this server does not have.
    options = ["--suite", "pending", "--timeout", str(int(PATIENCE * 1000)), "--output-dir", tmp_path]
    done = subprocess.run(
        [node, SUITE, "server", "--url", gateway.endpoint("tasks"), *options],
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        env=environment(),
        check=False,
    )
    for scenario in SCENARIOS:
        [file] = tmp_path.glob(f"server-{scenario}-20*/checks.json")
        checks = json.loads(file.read_text())
        bad = [check for check in checks if check["status"] in ("FAILURE", "WARNING")]
        assert not bad, f"{scenario}: {bad}"
        assert any(check["status"] == "SUCCESS" for check in checks), done.stdout + done.stderr
