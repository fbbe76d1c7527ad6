"""Reading the head of a request: headers as the actors want them, content negotiation."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from actors.protocol.headers import REPEATED

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]

RANGES = 32
"""Media ranges of an Accept header that are read; the rest counts as not there."""
PARAMETERS = 8
"""Parameters of one media type that are read."""

_JSON = ("application", "json")
_EVENTS = ("text", "event-stream")


def header_map(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Names to values; a name that comes twice gets the values joined by commas (RFC 9110 §5.3).

    A header of MCP is no list, so its values are joined by a line feed, which is in no value and cannot be mistaken.
    """
    pairs = [(name.decode("latin-1"), value.decode("latin-1").strip(" \t")) for name, value in raw]
    headers = dict(pairs)
    if len(headers) == len(pairs):
        return headers  # nearly always
    headers.clear()
    for name, value in pairs:
        before = f"{headers[name]}{REPEATED if name.startswith('mcp-') else ', '}" if name in headers else ""
        headers[name] = before + value
    return headers


def peer_of(scope: Scope) -> str:
    """The address at the other end of the connection; "": it has none. What a header says of it is not looked at."""
    client = scope.get("client")
    return str(client[0]) if client else ""


@dataclass(frozen=True, slots=True)
class Accepts:
    """Which of the two types of answer the client takes."""

    json: bool
    events: bool


@lru_cache(maxsize=64)
def accepts(header: str) -> Accepts:
    """Reads an Accept header: of the ranges that match a type the most specific one decides (RFC 9110 §12.5.1)."""
    ranges = [_media_range(part) for part in header.split(",", RANGES)[:RANGES]]
    return Accepts(_quality(_JSON, ranges) > 0, _quality(_EVENTS, ranges) > 0)


def _pieces(media_type: str) -> list[str]:
    """A media type and its first parameters."""
    return [piece.strip().lower() for piece in media_type.split(";", PARAMETERS + 1)[: PARAMETERS + 1]]


def _media_range(part: str) -> tuple[str, str, float]:
    media, *parameters = _pieces(part)
    kind, _, subtype = media.partition("/")
    quality = 1.0
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                quality = float(parameter[2:])
            except ValueError:
                quality = 0.0
    return kind, subtype, quality


def _quality(wanted: tuple[str, str], ranges: list[tuple[str, str, float]]) -> float:
    for kind, subtype in (wanted, (wanted[0], "*"), ("*", "*")):
        matching = [quality for k, s, quality in ranges if (k, s) == (kind, subtype)]
        if matching:
            return max(matching)
    return 0.0


@lru_cache(maxsize=64)
def is_json(content_type: str) -> bool:
    """Whether it is `application/json`, in UTF-8 if a charset is named."""
    media, *parameters = _pieces(content_type)
    charsets = {p.partition("=")[2].strip('"') for p in parameters if p.startswith("charset=")}
    return media == "application/json" and charsets <= {"utf-8", "utf8", "us-ascii"}


REFUSED: Final = "stagedoor.refused"
"""Among the extensions in a request's scope: the `status` by which its connection has answered in the app's place."""


class DisconnectedError(Exception):
    """The client is gone, or broke the protocol, in the middle of its request."""
