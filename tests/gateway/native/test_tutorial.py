"""The programs of docs/tutorial.md run, as they are written, and are as short as they are said to be."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE

pytestmark = pytest.mark.e2e

DOCS = (Path(__file__).parents[3] / "docs" / "tutorial.md").read_text()
HELLO, ASK, TODO, TIDY, TEST = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, program in (("hello", HELLO), ("ask", ASK), ("todo", TODO), ("tidy", TIDY), ("test_hello", TEST)):
        (tmp_path / f"{name}.py").write_text(program)
    return tmp_path


def run(folder: Path, *command: str) -> str:
    """What it prints. Its programs are found as in an environment that is active."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, "PATH": path},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_they_are_as_short_as_they_are_said_to_be() -> None:
    written = [len([line for line in program.splitlines() if line.strip()]) for program in (HELLO, ASK, TODO)]
    assert written[0] <= 10
    assert written[1] <= 10
    assert written[2] <= 100


def test_the_short_client_asks_the_short_server(folder: Path) -> None:
    assert run(folder, sys.executable, "ask.py") == "Hello, Ada.\n"
    assert "Hello, Ada." in run(folder, "stagedoor", "call", "greet", "--arg", "name=Ada", "--native", "hello.py")
    run(folder, sys.executable, "test_hello.py")


def test_the_real_server_keeps_asks_and_tells(folder: Path) -> None:
    said = run(folder, sys.executable, "tidy.py").splitlines()
    assert json.loads(said[0]) == [{"id": 1, "title": "write a server", "priority": "high", "done": False}]
    assert said[1:] == [
        "Plan my day around what has high priority:",
        "- write a server (high)",
        "write a server",
        "1 removed.",
    ]
    assert json.loads((folder / "todo.json").read_text()) == []
