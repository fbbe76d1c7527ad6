"""The benchmark runs and reports; what it measures is nobody's test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT, environment

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc and pins processes"),
]


def test_a_quick_run_reports_every_load_without_an_error(tmp_path: Path) -> None:
    options = ["--seconds", "0.2", "--rounds", "1", "--scale", "0.005", "--targets", "direct,floor,stagedoor"]
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.run", *options, "--results", tmp_path],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert not [cell for cell in report["loads"] if cell["errors"] or "cpu_us" not in cell], done.stdout
    assert {"direct", "floor", "stagedoor"} == {cell["target"] for cell in report["loads"]}
    (memory,) = report["memory"]
    assert "failed" not in memory, memory
    assert "| stagedoor |" in next(tmp_path.glob("*.md")).read_text()
