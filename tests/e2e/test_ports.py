"""The ports that tests give to programs which can't choose one themselves: several runs share a machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.ports import RANGE
from tests.support.processes import ROOT

pytestmark = pytest.mark.e2e

MANY = 200
DRAWN = f"from tests.support.ports import free_port; print(*(free_port() for _ in range({MANY})), flush=True); input()"


def test_no_port_is_given_twice_to_runs_beside_each_other() -> None:
    command = [sys.executable, "-c", DRAWN]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as one, subprocess.Popen(command, cwd=ROOT, **pipes) as other:
        given = [int(port) for run in (one, other) for port in run.stdout.readline().split()]
        one.communicate("over\n")
        other.communicate("over\n")
    assert len(set(given)) == 2 * MANY
    assert set(given) <= set(RANGE)
