"""Which arguments of a tool go into headers: the `x-mcp-header` annotations of its schema, and whether they are legal
(2026-07-28, streamable-http, "Schema Extension").

A tool that breaks the rules cannot be called by any client on HTTP, so it is left out of lists, with the reason in the
log. Schemas are untrusted: the walk follows no reference, and looks at a bounded number of places.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from msgspec import Raw, Struct

from actors.protocol.errors import Malformed
from actors.protocol.messages import EMPTY
from actors.protocol.payload import loads, members, mentions

ANNOTATION: Final = "x-mcp-header"
PREFIX: Final = "Mcp-Param-"

PLACES_MAX: Final = 10_000
"""Schemas inside a schema that are looked at; only schemas that mention the annotation are looked into."""
DEPTH_MAX: Final = 64
"""Of a property in properties."""
MIRRORED_MAX: Final = 64
"""Annotations of one tool: HTTP servers limit the headers of a request to about a hundred."""


class Mirrored(Struct, frozen=True):
    """An argument that goes into a header: the header's name, and the path of property names to the argument."""

    name: str
    path: tuple[str, ...]


class IllegalAnnotation(ValueError):  # noqa: N818 - a verdict on somebody's schema, not a fault of the program
    """The tool breaks the rules; the text says which."""


_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TYPES: Final = frozenset({"string", "integer", "boolean"})

# The keywords of JSON Schema whose values are schemas, by the shape of the value; none of them leads to an argument by
# a fixed path. What is data (`default`, `const`, `enum`, `examples`) is not looked into.
_ONE: Final = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
_MANY: Final = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_BY_NAME: Final = frozenset({"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties"})

_Path = tuple[str, ...] | None
"""The property names that lead to a schema; None where no fixed path does."""


def of_tool(tool: Raw) -> tuple[Mirrored, ...]:
    """What a tool of a list mirrors. Raises IllegalAnnotation, and Malformed for what is no object."""
    return of_schema(members(tool).get("inputSchema", EMPTY))


def of_schema(input_schema: Raw) -> tuple[Mirrored, ...]:
    """What an `inputSchema` makes of arguments. Raises IllegalAnnotation."""
    if not input_schema or not mentions(input_schema, ANNOTATION.encode()):
        return ()
    try:
        schema = loads(input_schema)
    except Malformed as malformed:
        raise IllegalAnnotation(f"the schema cannot be read: {malformed.reason}") from None
    found: dict[str, Mirrored] = {}
    for path, place in _places(schema):
        if ANNOTATION not in place:
            continue
        mirror = _mirrored(path, place)
        if found.setdefault(mirror.name.lower(), mirror) is not mirror:
            raise IllegalAnnotation(f"{mirror.name} is named twice")
        if len(found) > MIRRORED_MAX:
            raise IllegalAnnotation(f"more than {MIRRORED_MAX} arguments in headers")
    return tuple(found.values())


def _mirrored(path: _Path, place: dict[str, Any]) -> Mirrored:
    if not path:
        raise IllegalAnnotation(f"{ANNOTATION} is at a place that is not reached by `properties` alone")
    where, name, kind = ".".join(path)[:100], place[ANNOTATION], place.get("type")
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise IllegalAnnotation(f"{ANNOTATION} of {where!r} is no header name")
    if not isinstance(kind, str) or kind not in _TYPES:
        raise IllegalAnnotation(f"{ANNOTATION} of {where!r}: only a string, an integer or a boolean goes into a header")
    return Mirrored(PREFIX + name, path)


def _places(schema: Any) -> Iterator[tuple[_Path, dict[str, Any]]]:
    """Every schema in a schema, itself included, in order."""
    stack: list[tuple[_Path, Any]] = [((), schema)]
    seen = 0
    while stack:
        path, place = stack.pop()
        seen += 1
        if seen > PLACES_MAX or len(path or ()) > DEPTH_MAX:
            raise IllegalAnnotation("the schema is too large to be checked")
        if isinstance(place, dict):
            yield path, place
            stack.extend(reversed(list(_inside(path, place))))


def _inside(path: _Path, place: dict[str, Any]) -> Iterator[tuple[_Path, Any]]:
    for keyword, value in place.items():
        if keyword == "properties" and isinstance(value, dict):
            for name, schema in value.items():
                yield (None if path is None else (*path, name)), schema
        elif keyword in _MANY and isinstance(value, list):
            yield from ((None, schema) for schema in value)
        elif keyword in _BY_NAME and isinstance(value, dict):
            yield from ((None, schema) for schema in value.values())
        elif keyword in _ONE:
            yield None, value
