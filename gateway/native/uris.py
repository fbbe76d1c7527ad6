"""URI templates (RFC 6570), read backwards: which values a URI was made of.

The library knows the templates; that a URI is looked at once, whatever it is made of, is seen to here. Several URIs may
come of one template and several values of one URI; what is asked of both is written down in docs/native-servers.md.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import unquote

from msgspec import Struct

from gateway.native.errors import URI_MAX

if TYPE_CHECKING:
    from uritemplate.variable import URIVariable

_EXPRESSION: Final = re.compile(r"\{([^{}]+)\}")
_NAME: Final = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")
_OPERATORS: Final = ("", "+", "#", ".", "/", ";", "?", "&")
_DELIMITER: Final = re.compile(r"[/?#]")
"""What ends a path segment."""

Values: TypeAlias = dict[str, str | list[str]]


class Value(Struct, frozen=True):
    """What a variable stands for: text, of so many characters at most, or a list whose parts stand between
    separators."""

    name: str
    separator: str | None = None
    most: int | None = None

    def read(self, raw: str) -> str | list[str] | None:
        """Decoded; None if it is too long."""
        if self.separator is not None:
            return [unquote(part) for part in raw.split(self.separator)]
        text = unquote(raw)
        return None if self.most is not None and len(text) > self.most else text


class Variable(Struct, frozen=True):
    """A variable in the path, and the text between it and the next one, or the end."""

    value: Value
    anything: bool
    after: str


class UriTemplate(Struct, frozen=True):
    """A template: the text before its first variable, the variables, and those of its query and its fragment, which a
    URI may leave out. `given` parameters stand in the query before those."""

    text: str
    before: str
    variables: tuple[Variable, ...]
    query: Mapping[str, Value]
    given: int
    fragment: Value | None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the variables, in order."""
        own = (variable.value.name for variable in self.variables)
        return (*own, *self.query, *((self.fragment.name,) if self.fragment else ()))

    def match(self, uri: str) -> Values | None:
        """The values in this URI, decoded; None if it is not one of the template's. Each variable takes as much as it
        can, the first one first. The work grows with the length of the URI, whatever it is made of."""
        if len(uri) > URI_MAX or not uri.startswith(self.before):
            return None
        fragment: Values | None = {}
        if self.fragment:
            uri, mark, rest = uri.partition("#")
            fragment = _read([(self.fragment, rest)] if mark else [])
        query: Values | None = {}
        if self.query:
            uri, query = self._without_query(uri)
        path = self._path(uri)
        return None if path is None or query is None or fragment is None else path | query | fragment

    def _without_query(self, uri: str) -> tuple[str, Values | None]:
        """The URI without that which the query adds to it, and what that says."""
        path, mark, query = uri.partition("?")
        pairs = query.split("&") if mark else []
        own, added = pairs[: self.given], pairs[self.given :]
        given: dict[str, list[str]] = {}
        for pair in added:
            name, _, raw = pair.partition("=")
            given.setdefault(unquote(name), []).append(raw)
        if not given.keys() <= self.query.keys():
            return uri, None
        if any(len(raws) > 1 and self.query[name].separator is None for name, raws in given.items()):
            return uri, None
        found = _read([(self.query[name], "&".join(raws)) for name, raws in given.items()])
        return path + (f"?{'&'.join(own)}" if own else ""), found

    def _path(self, uri: str) -> Values | None:
        if not self.variables:
            return {} if uri == self.before else None
        delimiters = [found.start() for found in _DELIMITER.finditer(uri)]
        ends = self._ends(uri, delimiters)
        found, start = [], len(self.before)
        for variable, possible in zip(self.variables, ends, strict=True):
            end = _furthest(variable, start, possible, delimiters, len(uri))
            if end is None:
                return None
            found.append((variable.value, uri[start:end]))
            start = end + len(variable.after)
        return _read(found)

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


def _read(found: Sequence[tuple[Value, str]]) -> Values | None:
    values: Values = {}
    for value, raw in found:
        read = value.read(raw)
        if read is None:
            return None
        values[value.name] = read
    return values


def parse(text: str) -> UriTemplate:
    """ValueError for what is no template, or one that can't be read backwards."""
    found = list(_EXPRESSION.finditer(text))
    if not found or set("{}") & set(_EXPRESSION.sub("", text)):
        raise _wrong(text)
    built = _Building(text, text[: found[0].start()])
    stops = [expression.start() for expression in found[1:]] + [len(text)]
    for expression, stop in zip(found, stops, strict=True):
        built.add(expression[1], text[expression.end() : stop])
    return built.done()


class _Building:
    """A template, expression by expression. ValueError as `parse`."""

    def __init__(self, text: str, before: str) -> None:
        self._text = text
        self._pieces: list[tuple[Value, bool, str]] = []
        """Of the path: a variable, whether it is for anything, and the text before it."""
        self._literal = before
        self._query: dict[str, Value] = {}
        self._fragment: Value | None = None
        self._given = 0

    def add(self, body: str, after: str) -> None:
        """The next expression, and the text after it."""
        expression = self._parsed(body)
        operator, variables = expression.operator.value, expression.variables
        if self._fragment or (self._query and operator not in {"?", "&", "#"}):
            raise _wrong(self._text)
        if operator in {"?", "&"}:
            self._add_query(operator, variables, after)
        elif operator == "#" and len(variables) == 1 and not after:
            self._fragment = _value(*variables[0], ",")
        else:
            self._add_path(expression)
            self._literal = after

    def _parsed(self, body: str) -> "URIVariable":
        # Here, so that a server without templates does not load it.
        from uritemplate.variable import URIVariable

        try:
            expression = URIVariable(body)
        except ValueError:
            raise _wrong(self._text) from None
        legible = all(_NAME.fullmatch(name) for name, _ in expression.variables)
        if not legible or expression.defaults or expression.operator.value not in _OPERATORS:
            raise _wrong(self._text)
        return expression

    def _add_path(self, expression: "URIVariable") -> None:
        operator, separator = expression.operator.value, expression.operator.expansion_separator()
        text = expression.operator.variable_prefix()
        for name, modifiers in expression.variables:
            value = _value(name, modifiers, separator)
            if operator == ";":
                text = f";{name}="
                if value.separator:
                    raise _wrong(self._text)
            self._add(value, operator in {"+", "#"} or value.separator == "/", text)
            text = separator

    def _add(self, value: Value, anything: bool, text: str) -> None:
        self._pieces.append((value, anything, self._literal + text))
        self._literal = ""

    def _add_query(self, operator: str, variables: Iterable[tuple[str, Mapping[str, Any]]], after: str) -> None:
        if not self._query:
            own = self._literal.partition("?")[2]
            self._given = own.count("&") + 1 if own else 0
        if after or (operator == "&") != bool(self._given or self._query):
            raise _wrong(self._text)
        for name, modifiers in variables:
            if name in self._query:
                raise _wrong(self._text)
            self._query[name] = _value(name, modifiers, "&")

    def done(self) -> UriTemplate:
        """All of it."""
        before = self._pieces[0][2] if self._pieces else self._literal
        afters = [text for _, _, text in self._pieces[1:]] + [self._literal]
        pieces = zip(self._pieces, afters, strict=True) if self._pieces else ()
        variables = tuple(Variable(value, anything, after) for (value, anything, _), after in pieces)
        template = UriTemplate(self._text, before, variables, self._query, self._given, self._fragment)
        if len(set(template.names)) < len(template.names):
            raise _wrong(self._text)
        return template


def _value(name: str, modifiers: Mapping[str, Any], separator: str) -> Value:
    return Value(name, separator if modifiers["explode"] else None, modifiers["prefix"])


def _wrong(text: str) -> ValueError:
    return ValueError(f"{text!r}: expected each of its variables once, in expressions of RFC 6570, the query's last")
