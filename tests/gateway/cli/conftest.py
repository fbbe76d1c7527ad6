from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from gateway.cli import cli
from gateway.cli.client import ClientFailedError, Parts, Target
from gateway.config import Settings


@dataclass
class Composition:
    """Stands for the composition: remembers what the commands asked of it, and answers from `entries` and `result`."""

    status: int = 0
    entries: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=lambda: {"content": [{"type": "text", "text": "done"}]})
    failure: str | None = None
    ran: list[Settings] = field(default_factory=list)
    supervised: list[tuple[Settings, tuple[str, ...]]] = field(default_factory=list)
    operated: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    """What was asked about sessions."""
    told: list[tuple[int, dict[str, Any]] | None] = field(default_factory=list)
    """What the admin listener of a running gateway answers to that, one after the other."""
    worked: list[tuple[Settings, int]] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    gateway: list[dict[str, Any]] | None = None
    """What the admin listener of a running gateway says of its servers."""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def parts(self) -> Parts:
        return Parts(
            self.run, self.open_client, self.ask_gateway, self.supervise, self.work, self.operate, self.stdio, self.run
        )

    async def ask_gateway(self, url: str, admin: str | None) -> list[dict[str, Any]] | None:
        await trio.lowlevel.checkpoint()
        self.asked.append((url, admin))
        return self.gateway

    def run(self, settings: Settings, announce: Callable[[Settings], None]) -> int:
        announce(settings)
        self.ran.append(settings)
        return self.status

    def stdio(self, settings: Callable[[], Settings]) -> int:
        self.ran.append(settings())
        return self.status

    def supervise(self, settings: Settings, source: tuple[str, ...], announce: Callable[[Settings], None]) -> int:
        announce(settings)
        self.supervised.append((settings, source))
        return self.status

    def work(self, settings: Callable[[], Settings], descriptor: int) -> int:
        self.worked.append((settings(), descriptor))
        return self.status

    async def operate(
        self, url: str, admin: str | None, what: str, name: str, options: Mapping[str, str]
    ) -> tuple[int, dict[str, Any]] | None:
        await trio.lowlevel.checkpoint()
        self.asked.append((url, admin))
        self.operated.append((what, name, dict(options)))
        return self.told.pop(0)

    @asynccontextmanager
    async def open_client(self, target: Target) -> AsyncIterator["Composition"]:
        self.targets.append(target)
        async with trio.open_nursery():  # what fails inside comes out in a group, as from a real client
            if self.failure:
                raise ClientFailedError(self.failure)
            yield self

    async def servers(self) -> list[dict[str, Any]]:
        await trio.lowlevel.checkpoint()
        return self.entries["servers"]

    async def list(self, kind: str) -> list[dict[str, Any]]:
        await trio.lowlevel.checkpoint()
        return self.entries.get(kind, [])

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        self.calls.append((name, arguments))
        return self.result


@pytest.fixture
def composition() -> Composition:
    return Composition()


@pytest.fixture
def stagedoor(composition: Composition) -> Callable[..., Result]:
    """Runs the command line with these words."""

    def stagedoor(*words: str, **env: str) -> Result:
        result = CliRunner().invoke(cli, words, obj=composition.parts, env=env, prog_name="stagedoor")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return stagedoor


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], str]:
    """Writes a configuration and gives its name."""

    def file(text: str) -> str:
        path = tmp_path / "c.jsonc"
        path.write_text(text)
        return str(path)

    return file
