"""The benchmark runs and reports; what it measures is nobody's test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from loadtest import opened
from tests.support.patience import PATIENCE
from tests.support.processes import ROOT, Programs, environment

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc and pins processes"),
]


def bench(*options: str | Path) -> str:
    """Runs it and returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.run", "--seconds", "0.05", "--rounds", "1", *options],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=ROOT,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_quick_run_reports_every_load_without_an_error(tmp_path: Path) -> None:
    printed = bench("--scale", "0.005", "--targets", "direct,floor,stagedoor,over-ws", "--results", tmp_path)
    report = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert not [cell for cell in report["loads"] if cell["errors"] or "cpu_us" not in cell], printed
    assert {"direct", "floor", "stagedoor", "over-ws"} == {cell["target"] for cell in report["loads"]}
    assert [row["target"] for row in report["memory"] if "failed" not in row] == ["stagedoor", "over-ws"], report
    assert "| stagedoor |" in next(tmp_path.glob("*.md")).read_text()


def test_clients_and_servers_of_both_eras_are_measured_side_by_side(tmp_path: Path) -> None:
    cells = ["stagedoor", "legacy-modern", "modern-legacy", "modern-modern"]
    targets = ["direct-modern", "floor-modern", *cells]
    loads = ["16 callers", "16 callers, streamed", "16 callers, asked"]
    printed = bench("--scale", "0", "--targets", ",".join(targets), "--loads", ";".join(loads), "--results", tmp_path)
    report = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert not [cell for cell in report["loads"] if cell["errors"] or "cpu_us" not in cell], printed
    assert {(load, target) for load in loads for target in targets} == {
        (cell["load"], cell["target"]) for cell in report["loads"]
    }
    assert {cell["target"] for cell in report["loads"] if "of_sessions" in cell} == set(cells)


def test_all_transports_and_servers_on_other_libraries_are_measured_side_by_side(tmp_path: Path) -> None:
    transports = ["over-http", "over-ws", "over-sse", "over-stdio"]
    targets = [*transports, "native-http", "sdk-http", "native-stdio", "sdk-stdio"]
    load = "16 callers"
    printed = bench("--scale", "0", "--targets", ",".join(targets), "--loads", load, "--results", tmp_path)
    report = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert not [cell for cell in report["loads"] if cell["errors"] or "cpu_us" not in cell], printed
    assert {(load, target) for target in targets} == {(cell["load"], cell["target"]) for cell in report["loads"]}
    assert {cell["target"] for cell in report["loads"] if "of_http" in cell} == set(transports)
    assert "as a multiple of over-http's" in printed


def test_the_public_client_is_measured_over_every_transport(programs: Programs, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"mcpServers": {"bench": {"native": "loadtest.echo:server"}}}))
    port = int(programs.gateway(config).url.rpartition(":")[2])
    found = trio.run(opened.measure, port, config, 1, 0)
    for load in opened.LOADS:
        assert set(found[load]) == {opened.BY_HAND, *opened.ways(port, config)}
        assert all(cost["calls_per_s"] > 0 for cost in found[load].values())


@pytest.mark.parametrize("profiler", ["samples", "calls"])
def test_a_profile_names_functions_of_the_gateway_however_short_the_load(profiler: str) -> None:
    printed = bench("--profile", profiler, "--targets", "stagedoor", "--loads", "16 callers", "--seconds", "0.001")
    assert "stagedoor, 16 callers" in printed
    assert "| gateway/http/" in printed
