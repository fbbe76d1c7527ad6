"""The official conformance suites, against the fixture server itself and through the gateway in front of it.

Direct runs show that the fixture is right, so that a failure through the gateway is the gateway's own. A server on the
project's own API passes too, with nothing in between. Through the gateway every revision's requirements meet a backend
of either era, or of both. What can't be where the eras differ is listed in `baselines/`, check by check, with the rule
that makes it so; everything else passes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import PATIENCE
from tests.support.processes import NODE_PACKAGES, STAGEDOOR, Gateway, Programs, accepts, environment, free_port

pytestmark = [pytest.mark.e2e, pytest.mark.node]

FIXTURE = Path(__file__).with_name("fixture")
NATIVE = Path(__file__).with_name("native_server.py")
BASELINES = Path(__file__).with_name("baselines")
TIMEOUT = ("--timeout", str(int(PATIENCE * 1000)))
"""Milliseconds for one scenario; 30 s by itself. The stable release has no such option, and no such limit."""
IMPOSSIBLE_AT_MOST = 8
"""Scenarios of one cell that its baseline may name."""
TIMING = "timing: "
"""Begins the rule of an entry that a quick machine may not need."""


@dataclass(frozen=True)
class Suite:
    """A release of the suite, what to run of it, and how many scenarios that must be at least."""

    package: str
    options: tuple[str, ...]
    scenarios: int


LEGACY = Suite("@modelcontextprotocol/conformance", ("--requirements", "2025-11-25", *TIMEOUT), 30)
MODERN = Suite("@modelcontextprotocol/conformance", ("--requirements", "2026-07-28", *TIMEOUT), 37)
STABLE = Suite("conformance-stable", ("--suite", "all"), 32)
SUITES = {"2025-11-25": LEGACY, "2026-07-28": MODERN, "0.1.16-all": STABLE}

DIRECT = [
    ("2025-11-25", "dual"),
    ("2025-11-25", "legacy"),
    ("2026-07-28", "dual"),
    ("2026-07-28", "modern"),
    ("0.1.16-all", "dual"),
]
ERAS = ("dual", "legacy", "modern")
CELLS = [
    *((suite, era) for suite in ("2025-11-25", "2026-07-28") for era in ERAS),
    ("0.1.16-all", "dual"),
]


@dataclass(frozen=True)
class Outcome:
    """What a run of a suite found: per scored scenario, the checks that did not succeed, with what was seen."""

    failed: dict[str, dict[str, str]] = field(default_factory=dict)
    output: str = ""

    def report(self, unexpected: dict[str, dict[str, str]]) -> str:
        lines = [f"{name}: {seen}" for name, checks in sorted(unexpected.items()) for seen in checks.values()]
        summary = self.output[self.output.rfind("=== SUMMARY") :][-4000:]
        return "\n".join((f"{len(lines)} failed checks in {len(unexpected)} scenarios", *lines, summary))


def seen(check: dict[str, Any]) -> str:
    details = json.dumps(check.get("details"))[:600]
    return f"[{check['id']}] {check['description']}: {check.get('errorMessage', '')} {details}"


def run_suite(suite: Suite, node: Path, url: str, results: Path) -> Outcome:
    program = NODE_PACKAGES / suite.package / "dist" / "index.js"
    done = subprocess.run(
        [node, program, "server", "--url", url, *suite.options, "--output-dir", results],
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        env=environment(),
        check=False,
    )
    output = done.stdout + done.stderr
    unscored = set(re.findall(r"^ +[✓✗] (\S+) \(", output[output.rfind("Not scored") :], re.MULTILINE))
    failed = {}
    for file in results.glob("server-*/checks.json"):
        scenario = re.sub(r"^server-(.*)-\d{4}-\d\d-\d\dT.*$", r"\1", file.parent.name)
        if scenario not in unscored:
            checks = json.loads(file.read_text())
            failed[scenario] = {check["id"]: seen(check) for check in checks if check["status"] == "FAILURE"}
    return Outcome(failed, output)


def baseline(cell: str) -> dict[str, dict[str, str]]:
    """Scenario → check → the rule that makes it impossible in this cell."""
    file = BASELINES / f"{cell}.json"
    entries: dict[str, dict[str, str]] = json.loads(file.read_text()) if file.exists() else {}
    assert len(entries) <= IMPOSSIBLE_AT_MOST
    assert all(rule for checks in entries.values() for rule in checks.values()), "an entry names its rule"
    return entries


def require_all_passed(suite: Suite, outcome: Outcome, cell: str = "", story: str = "") -> None:
    """Fails with a report that names scenario, check and what was seen."""
    impossible = baseline(cell) if cell else {}
    unexpected = {
        name: rest
        for name, checks in outcome.failed.items()
        if (rest := {id: what for id, what in checks.items() if id not in impossible.get(name, {})})
    }
    if unexpected or len(outcome.failed) < suite.scenarios:
        ran = f"{len(outcome.failed)} of {suite.scenarios} scenarios ran"
        pytest.fail(f"{ran}\n{outcome.report(unexpected)}\n{story}", pytrace=False)
    certain = [
        (name, id) for name, checks in impossible.items() for id, rule in checks.items() if not rule.startswith(TIMING)
    ]
    stale = [(name, id) for name, id in certain if id not in outcome.failed[name]]
    if stale:
        pytest.fail(f"listed as impossible, and passed: {stale}", pytrace=False)


@pytest.fixture(scope="module")
def command(shared_programs: Programs) -> list[str]:
    """Starts the fixture at once."""
    return shared_programs.forks("fixture", [sys.executable, FIXTURE])


@pytest.fixture(scope="module")
def urls(command: list[str], shared_programs: Programs) -> dict[str, str]:
    """Era → where a fixture of that era is."""
    ports = {era: free_port() for era in ERAS}
    for era, port in ports.items():
        options = ["--http", str(port), "--era", era]
        shared_programs.start(f"fixture-{era}", [*command, *options], ready=accepts(port))
    return {era: f"http://127.0.0.1:{port}/mcp" for era, port in ports.items()}


@pytest.fixture(scope="module")
def gateway(command: list[str], urls: dict[str, str], shared_programs: Programs) -> Gateway:
    """In front of a fixture of each era over each transport, which is called ERA-TRANSPORT."""
    python, *program = command
    servers: dict[str, Any] = {f"{era}-http": {"type": "http", "url": url} for era, url in urls.items()}
    servers |= {f"{era}-stdio": {"command": python, "args": [*program, "--era", era]} for era in ERAS}
    return shared_programs.gateway({"mcpServers": servers})


@pytest.mark.parametrize(("suite", "era"), DIRECT)
def test_the_fixture_itself_passes_the_suite(
    suite: str, era: str, urls: dict[str, str], node: Path, tmp_path: Path
) -> None:
    require_all_passed(SUITES[suite], run_suite(SUITES[suite], node, urls[era], tmp_path / "results"))


@pytest.fixture(scope="module")
def native(shared_programs: Programs) -> str:
    """Where the server on the project's own API is."""
    port = free_port()
    command = [STAGEDOOR, "run", NATIVE, "--http", f"127.0.0.1:{port}"]
    shared_programs.start("native", command, ready=accepts(port))
    return f"http://127.0.0.1:{port}/mcp"


@pytest.mark.parametrize("suite", SUITES)
def test_a_server_on_our_own_api_passes_the_suite(suite: str, native: str, node: Path, tmp_path: Path) -> None:
    require_all_passed(SUITES[suite], run_suite(SUITES[suite], node, native, tmp_path / "results"))


@pytest.mark.parametrize("transport", ["http", "stdio"])
@pytest.mark.parametrize(("suite", "era"), CELLS)
def test_the_suite_passes_through_the_gateway(
    suite: str, era: str, transport: str, gateway: Gateway, node: Path, tmp_path: Path
) -> None:
    outcome = run_suite(SUITES[suite], node, gateway.endpoint(f"{era}-{transport}"), tmp_path / "results")
    require_all_passed(SUITES[suite], outcome, f"{suite}-{era}-{transport}", gateway.program.story())


def test_every_baseline_belongs_to_a_cell() -> None:
    cells = {f"{suite}-{era}-{transport}" for suite, era in CELLS for transport in ("http", "stdio")}
    assert {file.stem for file in BASELINES.glob("*.json")} <= cells
