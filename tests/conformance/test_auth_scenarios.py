"""The suite's scenarios about authorization, with the gateway in the place of the client."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.conformance.test_client_mode import SUITE
from tests.support.patience import PATIENCE
from tests.support.processes import Programs, environment

pytestmark = [pytest.mark.e2e, pytest.mark.node]

CLIENT = Path(__file__).with_name("auth_client.py")
FORKED = Path(__file__).with_name("forking.py")

BOTH = (
    *(f"metadata-{name}" for name in ("default", "var1", "var2", "var3")),
    "basic-cimd",
    *(f"scope-{name}" for name in ("from-www-authenticate", "from-scopes-supported", "omitted-when-undefined")),
    "scope-step-up",
    "scope-retry-limit",
    *(f"token-endpoint-auth-{name}" for name in ("basic", "post", "none")),
    "pre-registration",
)
SCENARIOS = {
    "2025-03-26": ("2025-03-26-oauth-metadata-backcompat", "2025-03-26-oauth-endpoint-fallback"),
    "2025-11-25": BOTH,
    "2026-07-28": (
        *BOTH,
        "resource-mismatch",
        "offline-access-scope",
        "offline-access-not-supported",
        "authorization-server-migration",
        *(f"iss-{name}" for name in ("supported", "not-advertised", "supported-missing", "wrong-issuer", "unexpected")),
        "iss-normalized",
        "metadata-issuer-mismatch",
    ),
}


@dataclass(frozen=True)
class Verdicts:
    """What a run of the suite found: a folder for each scenario, and the suite's own words."""

    folders: dict[str, Path]
    output: str


def suite_run(revision: str, node: Path, folder: Path) -> Verdicts:
    """All scenarios of a revision in one run, which has them side by side."""
    programs = Programs(folder)
    try:
        socket, results = folder / "socket", folder / f"results-{revision}"
        programs.start("client", [sys.executable, CLIENT, socket], ready=socket.exists)
        command = shlex.join([sys.executable, "-IS", str(FORKED), str(socket)])
        # Per scenario, in which it waits for its turn too. The client itself gives up before.
        limit = PATIENCE * len(SCENARIOS[revision])
        options = ["--suite", "all", "--spec-version", revision, "--timeout", str(int(limit * 1000))]
        done = subprocess.run(
            [node, SUITE, "client", "--command", command, *options, "--output-dir", results],
            capture_output=True,
            text=True,
            timeout=limit + PATIENCE,
            env=environment(),
            check=False,
        )
    finally:
        programs.end()
    folders = {
        re.sub(r"-\d{4}-\d\d-\d\dT[^/]*$", "", str(file.parent.relative_to(results))): file.parent
        for file in results.rglob("checks.json")
    }
    return Verdicts(folders, done.stdout + done.stderr)


@pytest.fixture(scope="module")
def verdicts(node: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Verdicts]:
    """Of the run for a revision, made when it is first asked for."""
    return cache(lambda revision: suite_run(revision, node, tmp_path_factory.mktemp("suite")))


@pytest.mark.parametrize(("revision", "scenario"), [(r, s) for r, names in SCENARIOS.items() for s in names])
def test_the_gateway_authorizes_itself_as_a_client_does(
    revision: str, scenario: str, verdicts: Callable[[str], Verdicts]
) -> None:
    found = verdicts(revision)
    folder = found.folders.get(f"auth/{scenario}")
    assert folder is not None, f"the suite did not judge it\n{found.output[-4000:]}"
    checks = json.loads((folder / "checks.json").read_text())
    bad = [check for check in checks if check["status"] in ("FAILURE", "WARNING")]
    failed = [f"{check['id']}: {check.get('errorMessage')}" for check in bad]
    story = f"the client wrote:\n{(folder / 'stderr.txt').read_text()[-16_000:]}"
    assert checks, story
    assert not failed, "\n".join((*failed, story))


@pytest.mark.parametrize("revision", SCENARIOS)
def test_no_scenario_about_authorization_is_left_out(revision: str, verdicts: Callable[[str], Verdicts]) -> None:
    judged = {name for name in verdicts(revision).folders if name.startswith("auth/")}
    assert judged == {f"auth/{name}" for name in SCENARIOS[revision]}
