"""The wheel as users install it: in an environment of its own, with what it says that it needs and nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.patience import PATIENCE
from tests.support.processes import ROOT, environment

pytestmark = pytest.mark.e2e

SOURCES = ("actors", "gateway", "stagedoor", "pyproject.toml", "README.md", "LICENSE")
SERVER = """
from stagedoor import PromptDefinition, Request, Response, Server, ToolDefinition, open_client

server = Server("shop", version="1.0")


@server.tool(input_schema={"type": "object"})
async def order(req: Request, res: Response) -> Response:
    return res.text("done").send()


@server.template("shop://{id}")
async def article(id: int) -> str:
    return str(id)
"""
IMPORT_ALL = """
import importlib, pkgutil, actors, gateway, stagedoor

for package in (actors, gateway, stagedoor):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if module.name.endswith(("__main__", "_main")):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as missing:  # what only an extra of the package brings
            if not (module.name.startswith("gateway.tracing.") and missing.name.startswith("opentelemetry")):
                raise
print(gateway.__file__)
"""
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


def run(*command: str | Path, cwd: Path, given: str = "") -> str:
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=cwd,
        env={name: value for name, value in environment().items() if name != "PYTHONPATH"},
        input=given,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(folder: Path) -> Path:
    """The wheel, from a copy: a build leaves things behind where it happens."""
    for name in SOURCES:
        source = ROOT / name
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, folder / name, ignore=ignored) if source.is_dir() else shutil.copy(source, folder)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", ".", cwd=folder)
    [wheel] = folder.glob("*.whl")
    return wheel


def needed(requirements: list[str], extras: frozenset[str], found: dict[str, Distribution]) -> dict[str, Distribution]:
    """The distributions that these requirements bring along."""
    for text in requirements:
        wanted = Requirement(text)
        marker = wanted.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in (extras or {""})):
            one = distribution(wanted.name)
            key = f"{one.name}[{','.join(sorted(wanted.extras))}]"
            if key not in found:
                found[key] = one
                needed(one.requires or [], frozenset(wanted.extras), found)
    return found


def test_the_wheel_works_where_nothing_else_is_installed(tmp_path: Path) -> None:
    source, place = tmp_path / "source", tmp_path / "clean"
    source.mkdir()
    wheel = built(source)
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    assert any(name.endswith(".lua") for name in names)
    assert not [name for name in names if name.startswith(("tests", "loadtest"))]

    venv.create(place, symlinks=True)
    python = place / "bin" / "python"
    install = ("install", "--quiet", "--no-deps", "--no-index", wheel)
    run(sys.executable, "-m", "pip", "--python", python, *install, cwd=source)
    here = Path(sysconfig.get_path("purelib"))
    there = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    [requires] = [d.requires or [] for d in Distribution.discover(name="stagedoor", path=[str(there)])]
    for one in needed(requires, frozenset(), {}).values():
        for top in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            if not (there / top).exists():
                (there / top).symlink_to(here / top)

    (tmp_path / "shop.py").write_text(SERVER)
    stagedoor = place / "bin" / "stagedoor"
    assert run(stagedoor, "--version", cwd=tmp_path).startswith("stagedoor, version ")
    assert run(stagedoor, "ls", "tools", "--native", "shop.py", cwd=tmp_path).split() == ["order"]
    assert run(stagedoor, "call", "order", "--native", "shop", cwd=tmp_path) == "done\n"
    answer = json.loads(run(stagedoor, "run", "shop.py", cwd=tmp_path, given=json.dumps(INITIALIZE) + "\n"))
    assert answer["result"]["serverInfo"] == {"name": "shop", "version": "1.0"}
    where = run(
        python,
        "-c",
        "import gateway.app, gateway.store.redis, gateway.admin.pages; print(gateway.__file__)",
        cwd=tmp_path,
    )
    assert Path(where.strip()).is_relative_to(place)
    where = run(python, "-c", IMPORT_ALL, cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(place)
