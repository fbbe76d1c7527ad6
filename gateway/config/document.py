"""A configuration file as it is written: its plain values, before any meaning, and where each of them stands."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

from msgspec import Struct

from gateway.config import jsonc
from gateway.config.problems import ConfigError, Lines, Path, Problem, line_of
from gateway.config.snapshot import text_of


def _yaml(text: str, file: str) -> tuple[Any, dict[Path, int]]:
    from gateway.config import yamlfile  # and with it a library

    return yamlfile.parse(text, file)


_READERS = {".json": jsonc.parse, ".jsonc": jsonc.parse, ".yaml": _yaml, ".yml": _yaml}


class Document(Struct, frozen=True):
    """`data` is the root mapping. Relative paths in it are relative to `folder`."""

    data: Mapping[str, Any]
    lines: Lines
    file: str
    folder: FilePath

    def locate(self, problem: Problem) -> Problem:
        """The problem with file and line."""
        return replace(problem, file=self.file, line=line_of(self.lines, problem.path))


def read(file: FilePath, text: str | None = None) -> Document:
    """Reads a file by its extension, or takes this for what stands in it; ConfigError where it cannot be read or is not
    what its name says."""
    name = str(file)
    parse = _READERS.get(file.suffix.lower())
    if parse is None:
        raise ConfigError([Problem(f"the name must end in one of {', '.join(_READERS)}", file=name)])
    data, lines = parse(text_of(file) if text is None else text, name)
    if not isinstance(data, dict):
        raise ConfigError([Problem("the configuration must be an object with named members", file=name, line=1)])
    return Document(data, lines, name, file.resolve().parent)
