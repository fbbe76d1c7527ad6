"""Where a server's authorization server is, and what it can do: which documents to ask for, and what they must say.

RFC 9728 (protected resource metadata), RFC 8414 and OpenID Connect Discovery, as MCP 2026-07-28 has them (basic,
authorization, "Authorization Server Location" and "Protected Resource Metadata Discovery"). Pure: `discovery` fetches.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit, urlunsplit

from gateway.oauth import documents
from gateway.oauth.errors import OAuthError, shown
from gateway.wire.url import WEB_PORTS

ISSUERS_MAX: Final = 16
SCOPES_MAX: Final = 128
"""Of a document; what is beyond is not looked at."""
TEXT_MAX: Final = 2048
"""Characters of one value."""
_AUTHORITY: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]*[A-Za-z0-9_-])(?::[0-9]*)?")
"""A host, as it is asked for by a browser too, and a port. What browsers make a host of by themselves (other letters,
codes, a backslash) is compared, and shown to users, as another one than they go to."""


@dataclass(frozen=True, slots=True)
class Resource:
    """What protected resource metadata says. `resource` is sent as it is (RFC 8707); None: there is none, since
    there is no document. `scopes`: None where it names none."""

    resource: str | None
    issuers: tuple[str, ...]
    scopes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class AuthorizationServer:
    """What the metadata of an authorization server says. `methods`: how clients may authenticate at its token endpoint;
    None: it does not say. `s256`: PKCE by S256 is offered (None: there is no document that could say so). `iss`: its
    authorization responses name their issuer (RFC 9207). `cimd`: a client may be a URL."""

    issuer: str
    authorization_endpoint: str | None
    token_endpoint: str
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    scopes: tuple[str, ...] = ()
    methods: tuple[str, ...] | None = None
    s256: bool | None = None
    iss: bool = False
    cimd: bool = False


# Which documents -----------------------------------------------------------------------------------------------


def resource_urls(server: str) -> tuple[str, ...]:
    """Where the metadata of this server may be: at the path form of RFC 9728 section 3.1, else at the root."""
    url = urlsplit(server)
    path = url.path.rstrip("/")
    known = "/.well-known/oauth-protected-resource"
    return _at(url, known + path) if not path else (*_at(url, known + path), *_at(url, known))


def issuer_urls(issuer: str) -> tuple[str, ...]:
    """Where the metadata of this issuer may be, in the order in which MCP has it."""
    url = urlsplit(issuer)
    path = url.path.rstrip("/")
    oauth, openid = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"
    if not path:
        return (*_at(url, oauth), *_at(url, openid))
    return (*_at(url, oauth + path), *_at(url, openid + path), *_at(url, path + openid))


def _at(url: SplitResult, path: str) -> tuple[str]:
    return (urlunsplit((url.scheme, url.netloc, path, "", "")),)


def origin(url: str) -> str:
    """Scheme, host and port, as they are compared."""
    parts = urlsplit(url)
    port = parts.port or WEB_PORTS.get(parts.scheme)
    host = parts.hostname or ""
    return f"{parts.scheme.lower()}://[{host}]:{port}" if ":" in host else f"{parts.scheme.lower()}://{host}:{port}"


# What they say -------------------------------------------------------------------------------------------------


def read_resource(server: str, body: bytes) -> Resource:
    """The metadata of a resource, which must be this server or a parent of it on the same origin: a token for it is
    good there. Raises OAuthError."""
    document = _document(body, "protected resource metadata")
    resource = _text(document, "resource")
    if resource is None or not _covers(resource, server):
        raise OAuthError("resource_mismatch", f"its metadata is of another resource: {shown(resource)}")
    issuers = tuple(text for text in _texts(document, "authorization_servers") or () if text)[:ISSUERS_MAX]
    scopes = _texts(document, "scopes_supported")
    return Resource(resource, issuers, scopes[:SCOPES_MAX] if scopes is not None else None)


def _covers(resource: str, server: str) -> bool:
    try:
        if origin(resource) != origin(server):
            return False
        outer, inner = urlsplit(resource), urlsplit(server)
    except ValueError:
        return False
    above, below = outer.path.rstrip("/"), inner.path.rstrip("/")
    same = above == below and outer.query in ("", inner.query)
    return not outer.fragment and (same or (not outer.query and below.startswith(above + "/")))


def choose_issuer(resource: Resource, configured: str | None) -> str:
    """The configured issuer, else the first one that the server names. Raises OAuthError for a configured one that the
    server does not name: credentials of one issuer are never sent to another."""
    if configured is not None:
        if resource.issuers and configured not in resource.issuers:
            raise OAuthError(
                "issuer_changed", f"the server names other authorization servers than the configured one {configured}"
            )
        return configured
    if not resource.issuers:
        raise OAuthError("no_issuer", "its metadata names no authorization server")
    return _checked(resource.issuers[0], "authorization server")


def read_server(issuer: str | None, body: bytes) -> AuthorizationServer:
    """The metadata of an authorization server, which must be of this very issuer (RFC 8414, section 3.3). None: of
    whichever it says, since the operator has named this document. Raises OAuthError."""
    document = _document(body, "authorization server metadata")
    named = _text(document, "issuer")
    issuer = _checked(named or "", "issuer") if issuer is None else issuer
    if named != issuer:
        raise OAuthError("issuer_mismatch", f"the metadata of {shown(issuer)} is of another issuer: {shown(named)}")
    token_endpoint = _endpoint(document, "token_endpoint")
    if token_endpoint is None:
        raise OAuthError("bad_metadata", f"the metadata of {shown(issuer)} names no token endpoint")
    challenges = _texts(document, "code_challenge_methods_supported")
    return AuthorizationServer(
        issuer,
        _endpoint(document, "authorization_endpoint"),
        token_endpoint,
        _endpoint(document, "registration_endpoint"),
        _endpoint(document, "revocation_endpoint"),
        (_texts(document, "scopes_supported") or ())[:SCOPES_MAX],
        _texts(document, "token_endpoint_auth_methods_supported"),
        challenges is not None and "S256" in challenges,
        document.get("authorization_response_iss_parameter_supported") is True,
        document.get("client_id_metadata_document_supported") is True,
    )


def read_keys_url(issuer: str, body: bytes) -> str:
    """Where the keys of an issuer are, as the metadata of this very issuer says. Raises OAuthError."""
    document = _document(body, "authorization server metadata")
    named = _text(document, "issuer")
    if named != issuer:
        raise OAuthError("issuer_mismatch", f"the metadata of {shown(issuer)} is of another issuer: {shown(named)}")
    url = _endpoint(document, "jwks_uri")
    if url is None:
        raise OAuthError("bad_metadata", f"the metadata of {shown(issuer)} names no keys")
    return url


def at_origin(server: str) -> str:
    """The issuer of a server of 2025-03-26, which is its own: its origin, as it stands in its URL."""
    url = urlsplit(server)
    return urlunsplit((url.scheme, url.netloc, "", "", ""))


def by_default(issuer: str) -> AuthorizationServer:
    """Of a server of 2025-03-26 without metadata ("Fallbacks for Servers without Metadata Discovery")."""
    return AuthorizationServer(issuer, f"{issuer}/authorize", f"{issuer}/token", f"{issuer}/register")


def for_users(server: AuthorizationServer) -> str:
    """Where a user signs in. Raises OAuthError where PKCE by S256 is not offered (MCP 2026-07-28, authorization,
    "Authorization Code Protection"), or there is no such place."""
    if server.authorization_endpoint is None:
        raise OAuthError("bad_metadata", f"{shown(server.issuer)} names no authorization endpoint")
    if server.s256 is False:
        raise OAuthError("no_pkce", f"{shown(server.issuer)} does not offer PKCE by S256")
    return server.authorization_endpoint


def check_place(server: AuthorizationServer, places: Iterable[str]) -> None:
    """Raises OAuthError where users would sign in at one of these places of other issuers, though it is this one that
    gives the tokens: the code of the one would be told to the other (RFC 9700, section 4.4, "Mix-Up Attacks"). Only
    an issuer that names itself in its answers (RFC 9207) keeps that apart by itself."""
    where = origin(for_users(server))
    if where != origin(server.issuer) and where in set(map(origin, places)):
        raise OAuthError(
            "foreign_sign_in",
            f"{shown(server.issuer)} sends users to the sign-in of another issuer, {shown(where)}: "
            "if that is meant, its operator has to configure `auth.issuer`",
        )


# Reading JSON of strangers -------------------------------------------------------------------------------------


def _document(body: bytes, what: str) -> Mapping[str, Any]:
    document = documents.read(body)
    if document is None:
        raise OAuthError("bad_metadata", f"its {what} is no JSON object")
    return document


def _text(document: Mapping[str, Any], name: str) -> str | None:
    value = document.get(name)
    return value if isinstance(value, str) and 0 < len(value) <= TEXT_MAX else None


def _texts(document: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    value = document.get(name)
    if not isinstance(value, Sequence) or isinstance(value, str):
        return None
    return tuple(text for text in value if isinstance(text, str) and len(text) <= TEXT_MAX)


def _endpoint(document: Mapping[str, Any], name: str) -> str | None:
    """Only what is a web address: a browser is sent there, or our client ("OAuth Authorization URL Validation")."""
    url = _text(document, name)
    return _checked(url, name) if url is not None else None


def _checked(url: str, name: str) -> str:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises
    except ValueError:
        parts = urlsplit("")
    named = parts.scheme in WEB_PORTS and _AUTHORITY.fullmatch(parts.netloc) and not parts.fragment
    if not named or any(character <= " " or character == "\x7f" for character in url):
        raise OAuthError("bad_metadata", f"its {name} is no web address")
    return url
