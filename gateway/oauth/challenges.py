"""What servers say of how to authorize requests: `WWW-Authenticate` (RFC 9110, section 11.6.1; RFC 6750, section 3)."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from actors.protocol.headers import TOKEN

LONGEST: Final = 8 * 1024
"""Characters of all fields together that are read."""
MOST: Final = 32
"""Challenges, and parameters of each, that are read."""

_SKIP = re.compile(r"[\s,]*")
_TOKEN68 = re.compile(r"[A-Za-z0-9\-._~+/]+=*(?=[ \t]*(?:,|$))")
_PARAMETER = re.compile(r'([!#$%&\'*+\-.^_`|~0-9A-Za-z]+)[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]*))', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Challenge:
    """One challenge. `scheme` and the names of `parameters` are lower-case."""

    scheme: str
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def scopes(self) -> tuple[str, ...] | None:
        """Those that the request needs; None: it does not say."""
        scope = self.parameters.get("scope")
        return tuple(scope.split()) if scope is not None else None


def parse(fields: Iterable[str]) -> list[Challenge]:
    """The challenges in all fields of this name. What can't be read ends the field that it stands in."""
    found: list[Challenge] = []
    left = LONGEST
    for value in fields:
        if len(value) > left or len(found) >= MOST:
            break
        left -= len(value)
        _read(value, found)
    return found[:MOST]


def _read(value: str, found: list[Challenge]) -> None:
    """A comma separates challenges as well as the parameters of one: what tells them apart is the equals sign."""
    at = _end(_SKIP, value, 0)
    current: dict[str, str] | None = None
    while at < len(value) and len(found) < MOST:
        parameter = _PARAMETER.match(value, at) if current is not None else None
        if current is not None and parameter is not None:
            name, quoted, bare = parameter.groups()
            if len(current) < MOST:
                # The first one counts: a later one of the same name may be another's addition.
                current.setdefault(name.lower(), _ESCAPED.sub(r"\1", quoted) if quoted is not None else bare)
            at = parameter.end()
        else:
            scheme = TOKEN.match(value, at)
            if scheme is None:
                return
            current = {}
            found.append(Challenge(scheme[0].lower(), current))
            at = _end(re.compile(r"[ \t]*"), value, scheme.end())
            at = _end(_TOKEN68, value, at) if at > scheme.end() else at
        at = _end(_SKIP, value, at)


def _end(pattern: re.Pattern[str], value: str, at: int) -> int:
    match = pattern.match(value, at)
    return match.end() if match is not None else at


def bearer(fields: Iterable[str]) -> Challenge | None:
    """The first challenge for bearer tokens that says something, else the first one."""
    ours = [challenge for challenge in parse(fields) if challenge.scheme == "bearer"]
    return next((challenge for challenge in ours if challenge.parameters), ours[0] if ours else None)
