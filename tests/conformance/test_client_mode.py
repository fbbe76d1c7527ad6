"""The suite's client mode: its own servers judge what the gateway sends to a backend, with a real client before it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from tests.support.processes import NODE_PACKAGES, environment

pytestmark = [pytest.mark.e2e, pytest.mark.node]

CLIENT = Path(__file__).with_name("client.py")
OWN = Path(__file__).with_name("own_client.py")
SUITE = NODE_PACKAGES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"

SCENARIOS = {
    "2025-11-25": (
        "initialize",
        "tools_call",
        "sse-retry",
        "elicitation-sep1034-client-defaults",
        "json-schema-2020-12-preservation",
    ),
    "2026-07-28": (
        "tools_call",
        "request-metadata",
        "sep-2322-client-request-state",
        "http-standard-headers",
        "http-custom-headers",
        "http-invalid-tool-headers",
        "json-schema-ref-no-deref",
        "json-schema-2020-12-preservation",
    ),
}
"""Every scenario of the client mode that is not about authorization."""


each_scenario = pytest.mark.parametrize(
    ("revision", "scenario"), [(r, s) for r, names in SCENARIOS.items() for s in names]
)


@each_scenario
def test_what_the_gateway_sends_upstream_conforms(revision: str, scenario: str, node: Path, tmp_path: Path) -> None:
    judge(CLIENT, revision, scenario, node, tmp_path)


@each_scenario
def test_what_our_client_sends_conforms(revision: str, scenario: str, node: Path, tmp_path: Path) -> None:
    judge(OWN, revision, scenario, node, tmp_path)


def judge(program: Path, revision: str, scenario: str, node: Path, tmp_path: Path) -> None:
    """Runs a scenario with this client."""
    command = shlex.join([sys.executable, str(program)])
    options = ["--scenario", scenario, "--spec-version", revision, "--output-dir", str(tmp_path)]
    # 30 s by itself. The client gives up before, and says in what: for the start, the calls, and the end of its gateway
    # it has `PATIENCE` each.
    options += ["--timeout", str(int(3 * PATIENCE * 1000))]
    done = subprocess.run(
        [node, SUITE, "client", "--command", command, *options],
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        env=environment(),
        check=False,
    )
    checks = [check for file in tmp_path.rglob("checks.json") for check in json.loads(file.read_text())]
    bad = [check for check in checks if check["status"] in ("FAILURE", "WARNING")]
    failed = [f"{check['id']}: {check.get('errorMessage')}" for check in bad]
    client = "".join(file.read_text() for file in tmp_path.rglob("stderr.txt"))
    story = f"{(done.stdout + done.stderr)[-4000:]}\nthe client wrote:\n{client[-16_000:]}"
    assert checks, story
    assert not failed, "\n".join((*failed, story))


def test_a_gateway_that_does_not_start_fails_its_client_with_the_reason() -> None:
    done = subprocess.run(
        [sys.executable, CLIENT, "not a URL"],
        capture_output=True,
        text=True,
        env={**environment(), "MCP_CONFORMANCE_SCENARIO": "initialize"},
        check=False,
    )
    assert done.returncode
    assert "stagedoor ended while starting" in done.stderr
    assert "mcpServers.judge.url: must be an http" in done.stderr
