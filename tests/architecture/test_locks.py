"""The lock of the image against the lock that everything is tested with."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tests.architecture.source import ROOT

AGAIN = "run scripts/lock.sh (needs uv), or only its line for this file"


def pinned(path: Path) -> dict[str, set[str]]:
    """The versions of each package in a lock."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==(\S+)", path.read_text(), re.M):
        found.setdefault(name, set()).add(version)
    return found


def normal(requirement: str) -> str:
    """The name of the package in a requirement, as locks have it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement)[0]).lower()


def test_the_image_has_the_packages_of_the_project_in_the_versions_that_are_tested() -> None:
    ours, all_of_it = pinned(ROOT / "deploy/image/runtime.lock"), pinned(ROOT / "requirements.lock")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = dict(project["optional-dependencies"])
    development = {*map(normal, optional.pop("dev"))}
    needed = {normal(requirement) for wanted in (project["dependencies"], *optional.values()) for requirement in wanted}
    assert needed <= ours.keys(), f"not in deploy/image/runtime.lock: {sorted(needed - ours.keys())}; {AGAIN}"
    other = {name: versions for name, versions in ours.items() if not versions <= all_of_it.get(name, set())}
    assert not other, f"other versions than in requirements.lock: {other}; {AGAIN}"
    assert not development & ours.keys() - needed, AGAIN


def test_what_builds_the_image_is_locked_like_the_rest() -> None:
    built = pinned(ROOT / "deploy/image/build.lock")
    assert built
    assert all(versions <= pinned(ROOT / "requirements.lock")[name] for name, versions in built.items()), AGAIN
