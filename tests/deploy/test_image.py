"""The Dockerfile: judged by a linter, and carried out in a folder, since few machines for tests have a container
engine. What comes of it is started as a container would start it: by another user, who can write nowhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.support.processes import ROOT, need

DOCKERFILE = ROOT / "Dockerfile"
TALLY = ROOT / ".venv-deploy" / "bin" / "tally"
NOBODY = 65532
LOOK_EVERY = 0.5
"""Seconds between two looks at its health, each of which is a start of Python."""
CONFINED = """
set -e
hold=$1 prefix=$2 hidden=$3; shift 3
if [ -n "$hidden" ]; then  # this Python lies where only root may go: a copy of the way there, open to all
  mount --bind "$prefix" "$hold"
  mount -t tmpfs -o mode=755 none "$hidden"
  mkdir -p "$prefix"
  mount --bind "$hold" "$prefix"
fi
mount -o remount,bind,ro /
exec setpriv --reuid 65532 --regid 65532 --clear-groups -- "$@"
"""
"""Runs a command as that user, on a root file system that is read-only for it and for nobody else (Linux, as root)."""


def confined(folder: Path) -> list[str]:
    """What stands before a command so that it runs as in a container; nothing where this machine does not let us."""
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("setpriv"):
        return []
    prefix = Path(sys.base_prefix).resolve()
    closed = [above for above in (prefix, *prefix.parents) if not above.stat().st_mode & stat.S_IXOTH]
    hold = folder.parent / "python"
    hold.mkdir(exist_ok=True)
    return ["unshare", "--mount", "sh", "-c", CONFINED, "sh", str(hold), str(prefix), str(closed[-1]) if closed else ""]


@dataclass(frozen=True)
class Image:
    """A stage that was carried out: its folder, and with what a container of it is started."""

    folder: Path
    config: Mapping[str, Any]

    def run(self, *command: str) -> subprocess.Popen[str]:
        """Starts a command as a container does: its variables and its user, and no place that it may write to."""
        program = shutil.which(command[0], path=self.config["env"]["PATH"])
        assert program is not None
        return subprocess.Popen(
            [*confined(self.folder), program, *command[1:]],
            env=self.config["env"],
            cwd=self.config["workdir"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def carried_out(folder: Path, target: str) -> Image:
    command = [sys.executable, ROOT / "scripts" / "image.py", folder, "--target", target]
    # An engine has its packages compiled, which is most of the work, and is not what is tried here.
    env = {**os.environ, "UV_COMPILE_BYTECODE": "0"}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True, text=True)
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    return Image(folder, json.loads(done.stdout))


def removable(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    with tempfile.TemporaryDirectory(prefix="stagedoor-image-") as top:
        Path(top).chmod(0o755)  # the image's user comes by here
        built = carried_out(Path(top, "root"), "full")
        yield built
        removable(built.folder)


def replaced(words: Sequence[str], by: Mapping[str, str]) -> list[str]:
    return [re.sub("|".join(by), lambda found: by[found[0]], word) for word in words]


def test_a_container_of_it_serves_and_is_healthy_without_a_place_to_write(image: Image) -> None:
    config = image.config
    assert config["user"] == f"{NOBODY}:{NOBODY}"
    listen, admin = free_port(), free_port()
    command = replaced(
        [*config["entrypoint"], *config["cmd"]], {"0.0.0.0:8080": f"127.0.0.1:{listen}", "8081": str(admin)}
    )
    assert len({*command} - {*config["entrypoint"], *config["cmd"]}) == 2, "it listens where the image says"
    health = replaced(config["healthcheck"], {"8081": str(admin)})
    serving = image.run(*command)
    try:
        while (looked := image.run(*health)).wait(PATIENCE) != 0:
            assert serving.poll() is None, serving.communicate()[0]
            looked.communicate()
            time.sleep(LOOK_EVERY)
        looked.communicate()
        named = image.run("stagedoor", "ls", "tools", "--url", f"http://127.0.0.1:{listen}/mcp", "--json")
        out, _ = named.communicate(timeout=PATIENCE)
        assert named.returncode == 0, out
        assert "demo__" in out
        serving.terminate()
        said, _ = serving.communicate(timeout=PATIENCE)
        assert serving.returncode == 0, said
    finally:
        serving.kill()
        serving.communicate()
    unhealthy = image.run(*health)
    unhealthy.communicate()
    assert unhealthy.returncode != 0, "nobody is there any more, and it was found healthy"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file system read-only")
@pytest.mark.skipif(sys.platform != "linux", reason="name spaces are Linux's")
def test_what_runs_in_these_tests_can_write_nowhere(image: Image) -> None:
    for place in (image.folder, Path("/tmp"), Path("/var/tmp")):
        out, _ = image.run("python", "-c", f"open({str(place / 'written')!r}, 'w')").communicate(timeout=PATIENCE)
        assert "Read-only file system" in out or "Permission denied" in out
    out, _ = image.run("python", "-c", "import os; print(os.getuid(), os.getgroups())").communicate(timeout=PATIENCE)
    assert out.split() == [str(NOBODY), "[]"]


def test_it_holds_the_gateway_and_nothing_of_development(image: Image) -> None:
    script = (
        "import importlib.metadata as m, json; print(json.dumps(sorted(d.name.lower() for d in m.distributions())))"
    )
    out, _ = image.run("python", "-c", script).communicate(timeout=PATIENCE)
    there = set(json.loads(out))
    assert {"stagedoor", "trio", "hypercorn"} <= there
    assert not there & {"pytest", "mypy", "ruff", "hypothesis", "mcp", "pip", "setuptools"}
    assert not (image.folder / "src").exists(), "what it was built of is in it"


def test_the_full_one_has_the_runners_of_npm_and_pypi(image: Image) -> None:
    out, _ = image.run("uvx", "--version").communicate(timeout=PATIENCE)
    assert out.startswith("uvx ")
    links = {name: os.readlink(image.folder / "usr/local/bin" / name) for name in ("npm", "npx")}
    assert links == {name: f"../lib/node_modules/npm/bin/{name}-cli.js" for name in ("npm", "npx")}
    copied = re.findall(r"COPY --from=node (\S+) \1\n", DOCKERFILE.read_text())
    assert copied == ["/usr/local/bin/node", "/usr/local/lib/node_modules/npm"]


def test_the_stage_that_is_built_when_none_is_named_is_the_small_one() -> None:
    stages = re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE.read_text(), re.M)
    assert stages[-1] == ("runtime", "slim")
    assert ("runtime", "full") in stages


def test_what_the_dockerfile_copies_is_sent_to_the_builder() -> None:
    """`.dockerignore` lets through by name."""
    ignore = (ROOT / ".dockerignore").read_text().split()
    assert "*" in ignore
    sent = {line[1:] for line in ignore if line.startswith("!")}
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE.read_text(), re.M):
        for source in sources.split():
            assert (ROOT / source).exists(), source
            assert any(source == one or source.startswith(f"{one}/") for one in sent), source


def test_a_linter_finds_nothing_in_the_dockerfile() -> None:
    need(TALLY.exists(), "the tools of tests/deploy are")
    command = [TALLY, "lint", "--no-color", "--slow-checks", "off", "--fail-level", "info"]
    done = subprocess.run(
        [*command, "-c", ROOT / "deploy/image/tally.toml", DOCKERFILE], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
