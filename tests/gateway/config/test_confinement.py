"""What a configuration says of what a child process may have."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.protocol.table import Confinement, Sandbox, StdioTarget
from gateway.config import Problem, Settings, advice, load


def file(**server: Any) -> str:
    return json.dumps({"mcpServers": {"a": {"command": "sh", **server}}})


def confinement(settings: Settings) -> Confinement | None:
    target = settings.table.backends["a"].target
    assert isinstance(target, StdioTarget)
    return target.confinement


def test_without_any_of_its_keys_nothing_is_confined(settings: Callable[..., Settings]) -> None:
    assert confinement(settings(file())) is None


def test_limits_user_and_sandbox_are_as_written_with_absolute_paths(
    settings: Callable[..., Settings], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    resources = {"memoryBytes": "1000", "processes": 7, "files": 8}
    folders = {"read": ["data"], "write": [str(tmp_path)]}
    found = settings(file(resources=resources, user="nobody", sandbox="bwrap", folders=folders, network=True))
    sandbox = Sandbox((str(tmp_path / "data"),), (str(tmp_path),), network=True)
    assert confinement(found) == Confinement(1000, 7, 8, "nobody", sandbox)


def test_a_sandbox_reaches_no_network_unless_it_is_said(settings: Callable[..., Settings]) -> None:
    assert confinement(settings(file(sandbox="bwrap"))) == Confinement(sandbox=Sandbox())


@pytest.mark.parametrize(
    ("server", "field", "said"),
    [
        ({"folders": {"read": ["."]}}, "folders", 'goes with `"sandbox": "bwrap"`'),
        ({"network": True}, "network", 'goes with `"sandbox": "bwrap"`'),
        ({"sandbox": "docker"}, "sandbox", "bwrap"),
        ({"sandbox": "bwrap", "folders": {"write": ["nowhere"]}}, "folders.write[0]", "there is no such file"),
        ({"resources": {"files": 0}}, "resources.files", "1"),
    ],
)
def test_what_can_t_be_meant_is_an_error(
    problem: Callable[..., Problem], server: dict[str, Any], field: str, said: str
) -> None:
    found = problem(file(**server))
    assert found.field == f"mcpServers.a.{field}"
    assert said in found.message


@pytest.mark.parametrize("key", [{"user": "nobody"}, {"sandbox": "bwrap"}, {"resources": {"files": 9}}])
def test_only_processes_are_confined(problem: Callable[..., Problem], key: dict[str, Any]) -> None:
    found = problem(json.dumps({"mcpServers": {"a": {"url": "http://127.0.0.1:1/mcp", **key}}}))
    assert "goes with `command`" in found.message


def test_a_sandbox_of_vs_code_is_left_to_it(settings: Callable[..., Settings]) -> None:
    assert confinement(settings(file(sandbox={"network": {"allowedDomains": ["example.com"]}}))) is None


def test_what_will_not_work_here_is_a_warning(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", "/nowhere")
    text = file(command=str(program), sandbox="bwrap", user="nobody", resources={"processes": 5})
    found = {problem.field: problem.message for problem in advice(load(write(text), {}))}
    assert "no `bwrap` on PATH" in found["mcpServers.a.sandbox"]
    assert "which its sandbox does not have" in found["mcpServers.a.folders"]
    assert "runs as root" in found["mcpServers.a.user"]
