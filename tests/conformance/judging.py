"""The suite's client mode: it starts its servers, runs a client of ours for each, and judges what they are sent."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.patience import PATIENCE
from tests.support.processes import NODE_PACKAGES, Programs, environment

SUITE = NODE_PACKAGES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
EXTENSIONS = "extensions"
"""The suite's name for scenarios that belong to no revision."""
FORKED = Path(__file__).with_name("forking.py")


@dataclass(frozen=True)
class Verdicts:
    """What a run of the suite found: a folder for each scenario, and the suite's own words."""

    folders: dict[str, Path]
    output: str

    def require(self, scenario: str) -> None:
        """Raises AssertionError where the suite found a fault, or did not look."""
        folder = self.folders.get(scenario)
        assert folder is not None, f"the suite did not judge it\n{self.output[-4000:]}"
        checks = json.loads((folder / "checks.json").read_text())
        bad = [check for check in checks if check["status"] in ("FAILURE", "WARNING")]
        failed = [f"{check['id']}: {check.get('errorMessage')}" for check in bad]
        wrote = (folder / "stderr.txt").read_text()
        # Its own words come before the gateway's log, which is longer than what is shown of it.
        words = "\n".join(line for line in wrote.splitlines() if not line.startswith("{"))
        story = f"the client wrote:\n{words[:8_000]}\nand in the end:\n{wrote[-16_000:]}"
        assert checks, story
        assert not failed, "\n".join((*failed, story))


def judge(client: Path, revision: str, node: Path, folder: Path) -> Verdicts:
    """All scenarios of a revision, or of EXTENSIONS, in one run, which has them side by side. `client SOCKET` forks a
    client for each `forking.py SOCKET URL`."""
    programs = Programs(folder)
    try:
        socket, results = folder / "socket", folder / "results"
        programs.start("client", [sys.executable, client, socket], ready=socket.exists)
        command = shlex.join([sys.executable, "-IS", str(FORKED), str(socket)])
        # Per scenario, in which it waits for its turn too. The client itself gives up before.
        limit = PATIENCE * 30
        suite = [EXTENSIONS] if revision == EXTENSIONS else ["all", "--spec-version", revision]
        options = ["--suite", *suite, "--timeout", str(int(limit * 1000))]
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
