"""JSON with comments: RFC 8259 plus `//` and `/* */` comments and a comma after the last element, nothing else.

It is the dialect of VS Code's settings; scalars are read by the standard library. It remembers the line of every
value and refuses what JSON readers commonly let pass: doubled keys, NaN, lone surrogates.
"""

import json
import re
from bisect import bisect_right
from typing import Any, NoReturn

from gateway.config.problems import ConfigError, Path, Problem

MAX_DEPTH = 64
"""Levels of nesting; a configuration needs six."""

_BLANK = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)


def parse(text: str, file: str) -> tuple[Any, dict[Path, int]]:
    """The value and the line of each part of it; ConfigError where the text is not JSON with comments."""
    return _Reader(text, file).document()


class _Reader:
    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file
        self._at = 0
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._lines: dict[Path, int] = {}
        self._scalars = json.JSONDecoder(parse_constant=self._refuse_constant)

    def document(self) -> tuple[Any, dict[Path, int]]:
        value = self._value(())
        if self._peek():
            self._fail("something follows the end of the document")
        return value, self._lines

    def _value(self, path: Path) -> Any:
        if len(path) > MAX_DEPTH:
            self._fail(f"nested more than {MAX_DEPTH} deep", path)
        char = self._peek()
        self._lines.setdefault(path, self._line())
        if char == "{":
            return self._object(path)
        if char == "[":
            return self._array(path)
        return self._scalar(path)

    def _object(self, path: Path) -> dict[str, Any]:
        members: dict[str, Any] = {}
        self._at += 1
        while self._peek() != "}":
            if self._peek() != '"':
                self._fail('expected a key in double quotes or "}"', path)
            line = self._line()
            key = self._scalar(path)
            inner = (*path, key)
            if key in members:
                self._fail(f"the key is there twice (first in line {self._lines[inner]})", inner)
            self._lines[inner] = line
            if self._peek() != ":":
                self._fail('expected ":"', inner)
            self._at += 1
            members[key] = self._value(inner)
            self._comma("}", path)
        self._at += 1
        return members

    def _array(self, path: Path) -> list[Any]:
        items: list[Any] = []
        self._at += 1
        while self._peek() != "]":
            items.append(self._value((*path, len(items))))
            self._comma("]", path)
        self._at += 1
        return items

    def _comma(self, closing: str, path: Path) -> None:
        char = self._peek()
        if char == ",":
            self._at += 1
        elif char != closing:
            self._fail(f'expected "," or "{closing}"', path)

    def _scalar(self, path: Path) -> Any:
        try:
            value, self._at = self._scalars.raw_decode(self._text, self._at)
        except ValueError as error:
            self._fail(error.msg.lower() if isinstance(error, json.JSONDecodeError) else str(error), path)
        if isinstance(value, str) and not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            self._fail("half a surrogate pair is not text", path)
        return value

    def _peek(self) -> str:
        """Skips blanks and comments; the next character, or "" at the end."""
        match = _BLANK.match(self._text, self._at)
        self._at = match.end() if match else self._at
        if self._text.startswith("/*", self._at):
            self._fail("a comment is not closed")
        return self._text[self._at : self._at + 1]

    def _line(self) -> int:
        return bisect_right(self._starts, self._at)

    def _refuse_constant(self, name: str) -> NoReturn:
        raise ValueError(f"{name} is not a JSON value")

    def _fail(self, message: str, path: Path = ()) -> NoReturn:
        raise ConfigError([Problem(message, path, file=self._file, line=self._line())])
