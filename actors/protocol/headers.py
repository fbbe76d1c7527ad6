"""Mirrored headers: what a request's HTTP headers repeat of its body, read and written (2026-07-28, streamable-http,
"Request Metadata").

`headers` here are lower-case names to values; a name that came twice has its values joined by a line feed, which no
value may contain, so that a mirror that came twice is an illegal one. Values are compared once they are decoded, and
every check gives the mismatch as a text, or None.

Which arguments of a tool are repeated is said by the `x-mcp-header` annotations of its schema ("Schema Extension"). A
tool that breaks their rules can't be called by any client on HTTP, so it is left out of lists. Schemas are untrusted:
the walk follows no reference, and looks at a bounded number of places.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from msgspec import Raw, Struct

from actors.protocol import errors
from actors.protocol.messages import EMPTY
from actors.protocol.payload import is_object, loads, members, mentions, text_member, text_or_none
from actors.protocol.versions import MODERN

Headers = Mapping[str, str]

VERSION_HEADER: Final = "MCP-Protocol-Version"
METHOD_HEADER: Final = "Mcp-Method"
NAME_HEADER: Final = "Mcp-Name"

_LOWER: Final = {name: name.lower() for name in (VERSION_HEADER, METHOD_HEADER, NAME_HEADER)}
"""The headers for routing, and what they are called in `headers`."""

REPEATED: Final = "\n"
"""Between the values of a header that came more than once."""

NAMED_BY: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""Method → the member of params that Mcp-Name repeats."""

_OPTIONAL: Final = "taskId"
"""For tasks a client must send Mcp-Name, but no rule says that a server must insist on it."""

_LEGAL: Final = re.compile(r"(?:[!-~](?:[\t -~]*[!-~])?)?")
"""Visible ASCII, with spaces and tabs only inside (RFC 9110, "Field Values")."""
_SENTINEL: Final = re.compile(r"=\?base64\?(.*)\?=")
_DECIMAL: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_DIGITS: Final = 64
"""Of a number that is compared as one; longer ones are never equal. (A short text can be a very large number.)"""
_NO_VALUE: Final = b"n{["
"""How null, an object and an array begin."""
_SAFE: Final = 2**53 - 1
"""No larger integer may be mirrored: readers that keep numbers as floats would see another one."""

ANNOTATION: Final = "x-mcp-header"
PARAM_PREFIX: Final = "Mcp-Param-"

PLACES_MAX: Final = 10_000
"""Schemas inside a schema that are looked at; only schemas that mention the annotation are looked into."""
DEPTH_MAX: Final = 64
"""Of a property in properties."""
MIRRORED_MAX: Final = 64
"""Annotations of one tool: HTTP servers limit the headers of a request to about a hundred."""


# ---------------------------------------------------------------------------------------------------------------- tools


class Mirrored(Struct, frozen=True):
    """An argument that goes into a header: the header's name, and the path of property names to the argument."""

    name: str
    path: tuple[str, ...]


class IllegalAnnotation(ValueError):  # noqa: N818 - a verdict on somebody's schema, not a fault of the program
    """The tool breaks the rules; the text says which."""


TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
"""What names of headers and of authentication schemes are made of (RFC 9110, section 5.6.2)."""
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
    except errors.Malformed as malformed:
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
    if not isinstance(name, str) or not TOKEN.fullmatch(name):
        raise IllegalAnnotation(f"{ANNOTATION} of {where!r} is no header name")
    if not isinstance(kind, str) or kind not in _TYPES:
        raise IllegalAnnotation(f"{ANNOTATION} of {where!r}: only a string, an integer or a boolean goes into a header")
    return Mirrored(PARAM_PREFIX + name, path)


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


# ------------------------------------------------------------------------------------------------------------- values


def encode_value(text: str) -> str:
    """A value as a header can carry it: as it is, or in base64 ("Value Encoding"). A tab is legal, and a control
    character; in base64 it is both."""
    if _LEGAL.fullmatch(text) and "\t" not in text and not (text.startswith("=?base64?") and text.endswith("?=")):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def decode_value(value: str) -> str | None:
    """The value that a header carries; None for illegal characters and for base64 that no encoder writes."""
    if not _LEGAL.fullmatch(value):
        return None
    sentinel = _SENTINEL.fullmatch(value)
    if sentinel is None:
        return value
    try:
        decoded = base64.b64decode(sentinel[1], validate=True)
        return decoded.decode() if base64.b64encode(decoded).decode() == sentinel[1] else None
    except (binascii.Error, UnicodeDecodeError):
        return None


# ------------------------------------------------------------------------------------------------------------ inbound


def repeated(headers: Headers) -> str | None:
    """The first of the headers for routing that came more than once: its readers would disagree."""
    for name, lower in _LOWER.items():
        if REPEATED in headers.get(lower, ""):
            return f"{name} came more than once"
    return None


def check_routing(headers: Headers, method: str, params: Raw, version: str) -> str | None:
    """Where the headers for routing disagree with a request that names `version`. Raises Malformed for params that
    are no object."""
    for name, expected in ((VERSION_HEADER, version), (METHOD_HEADER, method)):
        found = headers.get(_LOWER[name])
        if found is None:
            return f"{name} is missing"
        if found != expected:
            return f"{name} does not match the body"
    member = NAMED_BY.get(method)
    if member is None:
        return None
    value, found = text_member(params, member), headers.get(_LOWER[NAME_HEADER])
    if found is None:
        return None if value is None or member == _OPTIONAL else f"{NAME_HEADER} is missing"
    matches = value is not None and decode_value(found) == value
    return None if matches else f"{NAME_HEADER} does not match params.{member}"


def check_arguments(headers: Headers, mirrored: Sequence[Mirrored], params: Raw) -> str | None:
    """Where the Mcp-Param headers of a `tools/call` disagree with its arguments, given what the tool mirrors. Headers
    that it does not define are nobody's business. Raises Malformed."""
    arguments = members(params).get("arguments", EMPTY) if mirrored else EMPTY
    for mirror in mirrored:
        value, found = _at(arguments, mirror.path), headers.get(mirror.name.lower())
        if value is None:
            if found is not None:
                return f"{mirror.name} is there, and its argument is not"
        elif found is None:
            return f"{mirror.name} is missing"
        else:
            decoded = decode_value(found)
            if decoded is None or not _same(value, decoded):
                return f"{mirror.name} does not match its argument"
    return None


def _at(arguments: Raw, path: tuple[str, ...]) -> Raw | None:
    """The value at a path of member names; None if there is none, or one that no header carries."""
    node: Raw | None = arguments
    for name in path:
        node = members(node).get(name) if node is not None and is_object(node) else None
    return None if not node or memoryview(node)[0] in _NO_VALUE else node


def _same(value: Raw, decoded: str) -> bool:
    """Whether a header says what a string, a number or a boolean of the body is; numbers count by value."""
    text = text_or_none(value)
    if text is not None:
        return decoded == text
    spelled = bytes(value).decode()
    if spelled in ("true", "false"):
        return decoded == spelled
    wanted, found = _number(spelled), _number(decoded) if _DECIMAL.fullmatch(decoded) else None
    return wanted is not None and wanted == found


def _number(spelled: str) -> Decimal | None:
    """A number that may be mirrored; compared and never computed with, so nothing is rounded."""
    if len(spelled) > _DIGITS:
        return None
    try:
        number = Decimal(spelled)
    except InvalidOperation:  # an exponent beyond all measure
        return None
    return number if -_SAFE <= number <= _SAFE else None


# ----------------------------------------------------------------------------------------------------------- outbound


def outbound(
    method: str, params: Raw, mirrored: Sequence[Mirrored] = (), version: str = MODERN
) -> tuple[tuple[str, str], ...]:
    """The headers for a request with these params, as they are sent; for a `tools/call`, `mirrored` is what the tool
    mirrors under its name there. Raises Malformed for params that are no object, and for a method that no header can
    carry: Mcp-Method has no encoding, so no server over HTTP can have such a method."""
    if not _LEGAL.fullmatch(method):
        raise errors.Malformed(errors.method_not_found(method))
    headers = [(VERSION_HEADER, version), (METHOD_HEADER, method)]
    member = NAMED_BY.get(method)
    name = None if member is None else text_member(params, member)
    if name is not None:
        headers.append((NAME_HEADER, encode_value(name)))
    arguments = members(params).get("arguments", EMPTY) if mirrored else EMPTY
    for mirror in mirrored:
        value = _at(arguments, mirror.path)
        if value is not None:
            headers.append((mirror.name, encode_value(_rendered(value))))
    return tuple(headers)


def _rendered(value: Raw) -> str:
    """A string, a number or a boolean as text; integers in plain decimal, unless they are too large to be mirrored."""
    text = text_or_none(value)
    if text is not None:
        return text
    spelled = bytes(value).decode()
    number = None if spelled in ("true", "false") else _number(spelled)
    if number is not None and number == number.to_integral_value():
        return str(int(number))
    return spelled
