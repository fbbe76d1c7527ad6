"""The suite's scenarios for the tasks extension, which it does not score: through the gateway, on an endpoint of the
server alone. (On a merged one tools have other names than the scenarios call.)"""

from __future__ import annotations

import re
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
    for scenario in SCENARIOS:
        options = ["--scenario", scenario, "--spec-version", "2026-07-28", "--force", "--output-dir", tmp_path]
        options += ["--timeout", str(int(PATIENCE * 1000))]
        done = subprocess.run(
            [node, SUITE, "server", "--url", gateway.endpoint("tasks"), *options],
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            env=environment(),
            check=False,
        )
        passed = re.search(r"^Passed: (\d+)/(\d+), 0 failed, 0 warnings$", done.stdout, re.MULTILINE)
        assert passed, done.stdout + done.stderr
        assert passed[1] == passed[2] != "0"
