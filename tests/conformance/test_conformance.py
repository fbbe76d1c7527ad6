"""The official conformance suites, against the fixture server itself and through the gateway in front of it.

Direct runs show that the fixture is right, so that a failure through the gateway is the gateway's own.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import NODE_PACKAGES, Programs, accepts, environment, free_port

pytestmark = [pytest.mark.e2e, pytest.mark.node]

FIXTURE = Path(__file__).with_name("fixture.py")
SUITE_SECONDS = 240


@dataclass(frozen=True)
class Suite:
    """A release of the suite, what to run of it, and how many scenarios that must be at least."""

    package: str
    options: tuple[str, ...]
    scenarios: int


SUITES = {
    "requirements-2025-11-25": Suite("@modelcontextprotocol/conformance", ("--requirements", "2025-11-25"), 30),
    "0.1.16-all": Suite("conformance-stable", ("--suite", "all"), 32),
}


@dataclass(frozen=True)
class Outcome:
    """What a run of a suite found: per scenario, the checks that did not succeed."""

    failed: dict[str, list[str]]
    output: str

    def report(self) -> str:
        lines = [f"{name}: {problem}" for name, problems in sorted(self.failed.items()) for problem in problems]
        summary = self.output[self.output.rfind("=== SUMMARY") :][-4000:]
        return "\n".join((f"{len(lines)} failed checks in {len(self.failed)} scenarios", *lines, summary))


def problem(check: dict[str, Any]) -> str:
    details = json.dumps(check.get("details"))[:600]
    return f"[{check['id']}] {check['description']}: {check.get('errorMessage', '')} {details}"


def run_suite(suite: Suite, node: Path, url: str, results: Path) -> Outcome:
    program = NODE_PACKAGES / suite.package / "dist" / "index.js"
    done = subprocess.run(
        [node, program, "server", "--url", url, *suite.options, "--output-dir", results],
        capture_output=True,
        text=True,
        timeout=SUITE_SECONDS,
        env=environment(),
        check=False,
    )
    failed = {}
    for file in results.glob("server-*/checks.json"):
        scenario = re.sub(r"^server-(.*)-\d{4}-\d\d-\d\dT.*$", r"\1", file.parent.name)
        checks = json.loads(file.read_text())
        failed[scenario] = [problem(check) for check in checks if check["status"] == "FAILURE"]
    return Outcome(failed, done.stdout + done.stderr)


def require_all_passed(suite: Suite, outcome: Outcome, story: str = "") -> None:
    """Fails with a report that names scenario, check and what was seen."""
    if len(outcome.failed) < suite.scenarios:
        pytest.fail(f"only {len(outcome.failed)} scenarios ran\n{outcome.report()}\n{story}", pytrace=False)
    if any(outcome.failed.values()):
        pytest.fail(f"{outcome.report()}\n{story}", pytrace=False)


def start_fixture(programs: Programs) -> str:
    port = free_port()
    programs.start("fixture", [sys.executable, FIXTURE, "--http", str(port)], ready=accepts(port))
    return f"http://127.0.0.1:{port}/mcp"


@pytest.mark.parametrize("suite", SUITES.values(), ids=SUITES)
def test_the_fixture_itself_passes_the_suite(suite: Suite, programs: Programs, node: Path, tmp_path: Path) -> None:
    url = start_fixture(programs)
    require_all_passed(suite, run_suite(suite, node, url, tmp_path / "results"))


@pytest.mark.parametrize("transport", ["http", "stdio"])
@pytest.mark.parametrize("suite", SUITES.values(), ids=SUITES)
def test_the_suite_passes_through_the_gateway(
    suite: Suite, transport: str, programs: Programs, node: Path, tmp_path: Path
) -> None:
    backend: dict[str, Any]
    if transport == "http":
        backend = {"type": "http", "url": start_fixture(programs)}
    else:
        backend = {"command": sys.executable, "args": [str(FIXTURE)]}
    gateway = programs.gateway({"mcpServers": {"fixture": backend}})
    outcome = run_suite(suite, node, gateway.endpoint("fixture"), tmp_path / "results")
    require_all_passed(suite, outcome, gateway.program.story())
