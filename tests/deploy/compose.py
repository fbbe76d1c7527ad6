"""The docker-compose.yml of the tree, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.processes import ROOT

FILE = ROOT / "docker-compose.yml"


@dataclass(frozen=True)
class Volume:
    """What is mounted where: a file of the tree, or a volume with a name."""

    source: str
    target: str
    mode: str

    @property
    def file(self) -> Path | None:
        return ROOT / self.source if self.source.startswith("./") else None


def load() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return loaded


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = load()["services"]
    return found


def volumes(service: dict[str, Any]) -> list[Volume]:
    return [Volume(*[*volume.split(":"), ""][:3]) for volume in service.get("volumes", ())]


def gateways() -> list[str]:
    return [name for name in services() if name.startswith("gateway-")]
