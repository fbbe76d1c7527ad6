"""URI templates: `{name}` stands for one path segment, `{+name}` for anything, slashes too (RFC 6570, levels 1-2)."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from gateway.native.errors import URI_MAX

_EXPRESSION = re.compile(r"\{(\+?)([A-Za-z_][A-Za-z0-9_]*)\}")
_DELIMITER: Final = re.compile(r"[/?#]")
"""What ends a path segment."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One expression, and the text between it and the next one, or the end."""

    name: str
    anything: bool
    after: str


@dataclass(frozen=True, slots=True)
class UriTemplate:
    """A template: the text before its first expression, and its expressions."""

    text: str
    before: str
    variables: tuple[Variable, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the variables, in order."""
        return tuple(variable.name for variable in self.variables)

    def match(self, uri: str) -> dict[str, str] | None:
        """The values in this URI, decoded; None if it is not one of the template's. Each variable takes as much as it
        can, the first one first. The work grows with the length of the URI, whatever it is made of."""
        if len(uri) > URI_MAX or not uri.startswith(self.before):
            return None
        delimiters = [found.start() for found in _DELIMITER.finditer(uri)]
        ends = self._ends(uri, delimiters)
        values, start = {}, len(self.before)
        for variable, possible in zip(self.variables, ends, strict=True):
            end = _furthest(variable, start, possible, delimiters, len(uri))
            if end is None:
                return None
            values[variable.name] = unquote(uri[start:end])
            start = end + len(variable.after)
        return values

    def _ends(self, uri: str, delimiters: Sequence[int]) -> list[list[int]]:
        """For each variable the places where it can end so that the rest of the URI matches the rest of the template:
        found from the last one to the first, so that no place is tried twice."""
        last = self.variables[-1]
        place = len(uri) - len(last.after)
        ends = [[place] if place >= 0 and uri.endswith(last.after) else []]
        for variable, following in zip(self.variables[-2::-1], self.variables[:0:-1], strict=True):
            width = len(variable.after)
            ends.append(
                [
                    place
                    for place in _places(uri, variable.after)
                    if _furthest(following, place + width, ends[-1], delimiters, len(uri)) is not None
                ]
            )
        return ends[::-1]


def _furthest(
    variable: Variable, start: int, ends: Sequence[int], delimiters: Sequence[int], length: int
) -> int | None:
    """The last of these places where a variable that begins at `start` can end."""
    limit = length
    if not variable.anything:
        following = bisect_right(delimiters, start - 1)
        limit = delimiters[following] if following < len(delimiters) else length
    found = bisect_right(ends, limit)
    return ends[found - 1] if found and ends[found - 1] > start else None


def _places(uri: str, text: str) -> Iterator[int]:
    """Where this text stands in the URI, in order."""
    place = uri.find(text)
    while place >= 0:
        yield place
        place = uri.find(text, place + 1)


def parse(text: str) -> UriTemplate:
    """ValueError for a template without expressions, with one name twice, or with other expressions."""
    found = list(_EXPRESSION.finditer(text))
    names = [expression[2] for expression in found]
    if not names or len(set(names)) < len(names) or set("{}") & set(_EXPRESSION.sub("", text)):
        raise ValueError(f"{text!r}: expected each of its variables once, as {{name}} or {{+name}}")
    stops = [expression.start() for expression in found[1:]] + [len(text)]
    variables = (Variable(e[2], bool(e[1]), text[e.end() : stop]) for e, stop in zip(found, stops, strict=True))
    return UriTemplate(text, text[: found[0].start()], tuple(variables))
