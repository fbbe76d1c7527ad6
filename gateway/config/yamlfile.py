"""YAML as a tree of plain values with the line of each: the safe schema, doubled keys refused, aliases bounded."""

from collections.abc import Iterator
from typing import Any, NoReturn

import yaml

from gateway.config.jsonc import MAX_DEPTH
from gateway.config.problems import ConfigError, Path, Problem

MAX_VALUES = 100_000
"""Values in all, aliases counted each time: nine lines of YAML can otherwise say a billion."""


def parse(text: str, file: str) -> tuple[Any, dict[Path, int]]:
    """The value and the line of each part of it; ConfigError where the text is not YAML of the safe schema."""
    return _Reader(text, file).document()


class _Reader:
    def __init__(self, text: str, file: str) -> None:
        self._file = file
        self._text = text
        self._lines: dict[Path, int] = {}

    def document(self) -> tuple[Any, dict[Path, int]]:
        try:
            self._loader = yaml.SafeLoader(self._text)
            node = self._loader.get_single_node()
            return (None if node is None else self._value(node, ())), self._lines
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            self._fail(error.problem or "not YAML", (), None if mark is None else mark.line + 1)
        except yaml.YAMLError as error:
            self._fail(str(error).partition("\n")[0], (), None)

    def _value(self, node: yaml.Node, path: Path) -> Any:
        line = node.start_mark.line + 1
        self._lines.setdefault(path, line)
        if len(path) > MAX_DEPTH:
            self._fail(f"nested more than {MAX_DEPTH} deep", path, line)
        if len(self._lines) > MAX_VALUES:
            self._fail(f"more than {MAX_VALUES} values", path, line)
        if isinstance(node, yaml.MappingNode):
            return dict(self._members(node, path))
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*path, index)) for index, item in enumerate(node.value)]
        try:
            return self._loader.construct_object(node)
        except ValueError as error:  # a date that is none
            self._fail(str(error), path, line)

    def _members(self, node: yaml.MappingNode, path: Path) -> Iterator[tuple[str, Any]]:
        self._refuse_doubles(node, path)
        self._loader.flatten_mapping(node)
        merged = {self._key(key, path): (key, value) for key, value in node.value}
        for name, (key, value) in merged.items():
            self._lines[(*path, name)] = key.start_mark.line + 1
            yield name, self._value(value, (*path, name))

    def _refuse_doubles(self, node: yaml.MappingNode, path: Path) -> None:
        """Before `<<` is merged in: what a merge brings may be overridden, what is written twice is a slip."""
        seen: dict[str, int] = {}
        for key, _ in node.value:
            name, line = self._key(key, path), key.start_mark.line + 1
            if name in seen and name != "<<":
                self._fail(f"the key is there twice (first in line {seen[name]})", (*path, name), line)
            seen[name] = line

    def _key(self, node: yaml.Node, path: Path) -> str:
        if not isinstance(node, yaml.ScalarNode):
            self._fail("a key must be a word", path, node.start_mark.line + 1)
        return str(node.value)

    def _fail(self, message: str, path: Path, line: int | None) -> NoReturn:
        raise ConfigError([Problem(message, path, file=self._file, line=line)])
