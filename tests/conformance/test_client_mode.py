"""The suite's client mode: its own servers judge what the gateway sends to a backend, with a real client before it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.judging import FORKED, Verdicts
from tests.support.processes import Programs, environment

pytestmark = [pytest.mark.e2e, pytest.mark.node]

CLIENT = Path(__file__).with_name("gateway_client.py")

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
def test_what_the_gateway_sends_upstream_conforms(
    revision: str, scenario: str, verdicts: Callable[[str, str], Verdicts]
) -> None:
    verdicts("gateway_client.py", revision).require(scenario)


@each_scenario
def test_what_our_client_sends_conforms(revision: str, scenario: str, verdicts: Callable[[str, str], Verdicts]) -> None:
    verdicts("own_client.py", revision).require(scenario)


@pytest.mark.parametrize("revision", SCENARIOS)
def test_no_other_scenario_is_left_out(revision: str, verdicts: Callable[[str, str], Verdicts]) -> None:
    judged = {name for name in verdicts("own_client.py", revision).folders if not name.startswith("auth/")}
    assert judged == set(SCENARIOS[revision])


def test_a_gateway_that_does_not_start_fails_its_client_with_the_reason(programs: Programs, tmp_path: Path) -> None:
    socket = tmp_path / "socket"
    programs.start("client", [sys.executable, CLIENT, socket], ready=socket.exists)
    done = subprocess.run(
        [sys.executable, FORKED, socket, "not a URL"],
        capture_output=True,
        text=True,
        env={**environment(), "MCP_CONFORMANCE_SCENARIO": "initialize"},
        check=False,
    )
    assert "stagedoor ended while starting" in done.stderr
    assert "mcpServers.judge.url: must be an http" in done.stderr
