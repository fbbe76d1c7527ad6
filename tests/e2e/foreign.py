"""Programs on SDKs of other languages, built from `tests/e2e/peers` by their own toolchains, and what they should see.

A toolchain that is not on this machine skips the tests that need it, in CI too; a build that fails is a failure.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import ROOT, environment

BUILT = ROOT / "build" / "peers"
TOOLCHAINS = {"go": "go", "rust": "cargo", "jvm": "mvn"}
FASTMCP = ROOT / ".venv-peers" / "fastmcp"
BUILD_SECONDS = 600
VISIT_SECONDS = 300

TOOLS = ["change", "echo", "elicit", "fail", "roots", "sample", "steps", "touch"]


@cache
def make(target: str) -> None:
    """Makes it, if it is not made: the Makefile knows what it is made from."""
    done = subprocess.run(
        ["make", "--no-print-directory", target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        env={name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")},
        check=False,
    )
    assert done.returncode == 0, f"{target} can't be made:\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"


def built(language: str) -> Path:
    """The folder of the programs in a language."""
    tool = TOOLCHAINS[language]
    if shutil.which(tool) is None:
        pytest.skip(f"there is no {tool} on this machine, which builds the peers in {language}")
    make(f"build/peers/{language}/.stamp")
    return BUILT / language


def go(program: str) -> list[str]:
    return [str(built("go") / program)]


def rust(program: str) -> list[str]:
    return [str(built("rust") / program)]


def jvm(program: str) -> list[str]:
    # What takes a JVM longest is to become quick, which is for programs that run for longer.
    return ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-jar", str(built("jvm") / f"{program}.jar")]


@dataclass(frozen=True)
class Visit:
    """One connection that a client is to make, what stands before the server's names and URIs there, and what the
    server tells of by itself."""

    url: str
    revision: str
    names: str = ""
    uris: str = ""
    told: Sequence[str] = field(default_factory=tuple)

    def __str__(self) -> str:
        return f"{self.url.rpartition('/mcp')[2] or '/'} {self.names} {self.revision}"


def expected(visit: Visit, unknown: Any) -> dict[str, Any]:
    """What a visit shows of every server, in either era and on either route."""
    seen: dict[str, Any] = {
        "revision": visit.revision,
        "tools": TOOLS,
        "echo": "you said grüße",
        "fail": "isError it failed",
        "unknown tool": unknown,
        "steps": "done",
        "progress": [1, 2, 3],
        "elicit": "accept red",
        "sample": "sampled words",
        "roots": "file:///home",
        "resources": ["memo:///one"],
        "templates": ["memo:///by-id/{id}"],
        "read": "one",
        "read by template": "id 7",
        "prompts": ["greeting"],
        "prompt": "About tea",
        "completion": ["music", "museum"],
    }
    if "updated" in visit.told:
        seen["updated"] = True
    if "changes" in visit.told:
        seen["tools after one came"] = sorted([*TOOLS, "extra"])
        seen["tools after it left"] = TOOLS
    return seen


def seen_by(command: Sequence[str], visits: Iterable[Visit]) -> list[dict[str, Any]]:
    """What the client saw at each visit."""
    done = subprocess.run(
        [*command, json.dumps([asdict(visit) for visit in visits])],
        capture_output=True,
        text=True,
        timeout=VISIT_SECONDS,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen: list[dict[str, Any]] = json.loads(done.stdout)
    return seen


def differences(visit: Visit, seen: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    found = [f"{visit}: broken: {seen['broken']}"] if "broken" in seen else []
    return (
        found
        + [
            f"{visit}: {feature}: expected {value!r}, saw {seen[feature]!r}"
            for feature, value in wanted.items()
            if feature in seen and seen[feature] != value
        ]
        + ([f"{visit}: never tried: {sorted(wanted.keys() - seen.keys())}"] if wanted.keys() - seen.keys() else [])
    )
