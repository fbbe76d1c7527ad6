"""Writing answers: JSON, refusals, and what browsers need to be told."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from actors.ports import Answer
from actors.protocol.errors import INTERNAL, INVALID_REQUEST

Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]


_EXPOSED = b"Mcp-Session-Id, Mcp-Protocol-Version, WWW-Authenticate, Retry-After"
_METHODS = b"GET, POST, DELETE, OPTIONS"
_TO_READ = b"GET, HEAD, OPTIONS"
_NAMES = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+(?:[ \t]*,[ \t]*[!#$%&'*+\-.^_`|~0-9A-Za-z]+)*")
_HEADERS = b"Accept, Authorization, Content-Type, Last-Event-ID, Mcp-Protocol-Version, Mcp-Session-Id"


_KINDS: Mapping[int, str] = {
    400: "invalid_request",
    401: "unauthorized",
    404: "endpoint_not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    413: "too_large",
    415: "unsupported_media_type",
    431: "header_too_large",
    503: "overloaded",
}


class HttpRefusal(Answer, frozen=True):
    """A refusal of which the door has heard nothing, so that it is not counted there."""


def kind_of(status: int) -> str:
    """What kind of error it is to be refused by this status before the door is asked; `other`: none that is known."""
    return _KINDS.get(status, "other")


def refusal(status: int, message: str, *headers: tuple[str, str], kind: str = "") -> HttpRefusal:
    """An HTTP error with a JSON-RPC error that has no id, since nothing of the body was read (MCP transports). `kind`:
    if the status does not say it."""
    code = INVALID_REQUEST if status < 500 else INTERNAL
    body = msgspec.json.encode({"jsonrpc": "2.0", "error": {"code": code, "message": message}})
    return HttpRefusal(status, body, headers, kind or kind_of(status))


def encoded(headers: tuple[tuple[str, str], ...]) -> list[Header]:
    """Headers as ASGI takes them."""
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]


def cors_headers(origin: str | None) -> tuple[Header, ...]:
    """For every answer to a page of an allowed origin; without them its script can't read the session id."""
    if origin is None:
        return ()
    return (
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", _EXPOSED),
        (b"vary", b"Origin"),
    )


PUBLIC: tuple[Header, ...] = ((b"access-control-allow-origin", b"*"),)
"""For what is told to the pages of every origin; with a second such header browsers would show it to none."""


def public_preflight_headers(requested: str | None) -> tuple[Header, ...]:
    """The same for OPTIONS: clients name their revision in a header, which browsers ask about first."""
    return (
        *PUBLIC,
        (b"allow", _TO_READ),
        (b"access-control-allow-methods", _TO_READ),
        (b"access-control-allow-headers", _granted(requested)),
        (b"access-control-max-age", b"600"),
    )


def preflight_headers(origin: str | None, requested: str | None) -> tuple[Header, ...]:
    """For OPTIONS: what the endpoint offers, and to a page what its script may send. Any header it asks for is granted,
    since revisions of the protocol add names (`Mcp-Param-*` is an open set) and the origin is allowed already; what is
    no list of header names is not repeated."""
    if origin is None:
        return ((b"allow", _METHODS),)
    return (
        *cors_headers(origin),
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-allow-headers", _granted(requested)),
        (b"access-control-max-age", b"600"),
    )


def _granted(requested: str | None) -> bytes:
    return requested.encode() if requested and _NAMES.fullmatch(requested) else _HEADERS


async def send_answer(send: Send, answer: Answer, extra: tuple[Header, ...] = (), *, head_only: bool = False) -> None:
    """Writes a whole answer."""
    headers = [*encoded(answer.headers), *extra]
    if answer.body and not any(name == b"content-type" for name, _ in headers):
        headers.append((b"content-type", b"application/json"))
    if answer.status != 204:
        headers.append((b"content-length", b"%d" % len(answer.body)))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if head_only else answer.body, "more_body": False})
