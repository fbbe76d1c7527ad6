from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.config import ConfigError, Problem, Settings, load
from gateway.native import Server


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a configuration file."""

    def write(text: str, name: str = "stagedoor.jsonc") -> Path:
        file = tmp_path / name
        file.write_text(text)
        return file

    return write


@pytest.fixture
def settings(write: Callable[..., Path]) -> Callable[..., Settings]:
    """The settings of a configuration given as text; native references resolve to servers of that name."""

    def settings(text: str, name: str = "stagedoor.jsonc", **environ: str) -> Settings:
        return load(write(text, name), environ, resolve=Server).settings

    return settings


@pytest.fixture
def problems(settings: Callable[..., Settings]) -> Callable[..., tuple[Problem, ...]]:
    """The problems of a configuration that must be refused."""

    def problems(text: str, name: str = "stagedoor.jsonc", **environ: str) -> tuple[Problem, ...]:
        with pytest.raises(ConfigError) as caught:
            settings(text, name, **environ)
        return caught.value.problems

    return problems


@pytest.fixture
def problem(problems: Callable[..., tuple[Problem, ...]]) -> Callable[..., Problem]:
    """The one problem of a configuration that has exactly one."""

    def problem(text: str, name: str = "stagedoor.jsonc", **environ: Any) -> Problem:
        found = problems(text, name, **environ)
        assert len(found) == 1, found
        return found[0]

    return problem
