"""helm/stagedoor as helm renders it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.processes import ROOT, need

CHART = ROOT / "helm" / "stagedoor"
SETS = sorted((CHART / "ci").glob("*.yaml"))
RELEASE, NAMESPACE = "rel", "prod"
KUBERNETES = "1.34.0"


def helm() -> str:
    """The program. Without it and without Go, which builds it, a test is skipped."""
    built = ROOT / "build" / "tools" / "helm"
    found = str(built) if built.exists() else shutil.which("helm")
    if found is None:
        if shutil.which("go"):
            need(False, "helm is")
        pytest.skip("no helm, and no Go to build it")
    return found


def run_helm(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    around = {**os.environ, **(env or {})}
    return subprocess.run([helm(), *words], capture_output=True, text=True, env=around, check=False)


@dataclass(frozen=True)
class Rendered:
    """The manifests of a set of values, and the configuration in them."""

    manifests: tuple[dict[str, Any], ...]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [manifest for manifest in self.manifests if manifest["kind"] == kind]

    def one(self, kind: str, name: str = "") -> dict[str, Any]:
        (found,) = [manifest for manifest in self.of(kind) if manifest["metadata"]["name"].endswith(name)]
        return found

    @property
    def deployment(self) -> dict[str, Any]:
        return self.one("Deployment")

    @property
    def pod(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.deployment["spec"]["template"]["spec"]
        return spec

    @property
    def container(self) -> dict[str, Any]:
        (found,) = self.pod["containers"]
        return dict(found)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration file in the Secret."""
        loaded: dict[str, Any] = json.loads(self.one("Secret", "-config")["stringData"]["stagedoor.json"])
        return loaded

    def secret_references(self) -> Iterator[tuple[str, str]]:
        """Names and keys of all Secrets that the gateway's variables come from."""
        for variable in self.container["env"]:
            if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                yield reference["name"], reference["key"]


def template(*options: str) -> subprocess.CompletedProcess[str]:
    return run_helm("template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--kube-version", KUBERNETES, *options)


@cache
def rendered(*options: str) -> Rendered:
    done = template(*options)
    assert done.returncode == 0, done.stderr
    return Rendered(tuple(manifest for manifest in yaml.safe_load_all(done.stdout) if manifest))


def of_set(path: Path) -> Rendered:
    """By one of the files in `ci/`."""
    return rendered("--values", str(path))


def named(name: str) -> Rendered:
    return of_set(CHART / "ci" / f"{name}-values.yaml")
