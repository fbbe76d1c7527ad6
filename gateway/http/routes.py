"""Which path is what. Pure."""

from typing import Final, TypeAlias

from msgspec import Struct


class Mcp(Struct, frozen=True):
    """`/mcp` (the endpoint named "") or `/mcp/<endpoint>`."""

    endpoint: str


class Ws(Struct, frozen=True):
    """`/ws` (the endpoint named "") or `/ws/<endpoint>`: WebSocket."""

    endpoint: str


class Sse(Struct, frozen=True):
    """`/sse` (the endpoint named "") or `/sse/<endpoint>`: the stream of HTTP+SSE."""

    endpoint: str


class Messages(Struct, frozen=True):
    """`/messages` or `/messages/<endpoint>`: where its clients POST."""

    endpoint: str


class Metadata(Struct, frozen=True):
    """`/.well-known/oauth-protected-resource` and a path of ours, or none: what a client needs to know to get a token
    for it (RFC 9728)."""

    path: str


class Pages(Struct, frozen=True):
    """`/connect` and what is below: the pages on which users connect their accounts."""


class Health(Struct, frozen=True):
    """`/healthz`: the process answers."""


class IssuerMetadata(Struct, frozen=True):
    """`/.well-known/oauth-authorization-server`: where clients of 2025-03-26 look for the issuer."""


Route: TypeAlias = Mcp | Ws | Sse | Messages | Metadata | IssuerMetadata | Pages | Health

WELL_KNOWN = "/.well-known/oauth-protected-resource"

_OF_ENDPOINTS: Final[dict[str, type[Mcp | Ws | Sse | Messages]]] = {
    "mcp": Mcp,
    "ws": Ws,
    "sse": Sse,
    "messages": Messages,
}
"""By the first part of their path; what is behind it names the endpoint."""
_HEALTH = Health()


def route(path: str, raw: bytes = b"") -> Route | None:
    """The route of a decoded path; None if there is none. A final slash makes no difference.

    A slash that is encoded in the `raw` path is no slash (RFC 3986 §2.2): who guards paths in front of us may have
    taken it for a part of a name.
    """
    if b"%2f" in raw.lower():
        return None
    first, _, rest = path[1:].partition("/")
    kind = _OF_ENDPOINTS.get(first)
    if kind is not None and path[0] == "/":
        name = rest.removesuffix("/")
        return kind(name) if "/" not in name and (name or not rest) else None
    if path == "/.well-known/oauth-authorization-server":
        return IssuerMetadata()
    if path == "/healthz":
        return _HEALTH
    if path == "/connect" or path.startswith("/connect/"):
        return Pages()
    if path.startswith(WELL_KNOWN):
        rest = path.removeprefix(WELL_KNOWN).removesuffix("/")
        return Metadata(rest) if not rest or rest.startswith("/") else None
    return None
