"""What is sent to an authorization server, and what its answers mean (OAuth 2.1; RFC 7523, 7591, 8707, 9207). Pure."""

import base64
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, quote_plus, urlencode, urlsplit, urlunsplit

from gateway.oauth import documents
from gateway.oauth.errors import AwayError, ClientRefusedError, GrantRefusedError, OAuthError, shown
from gateway.oauth.metadata import AuthorizationServer

TOKEN_MAX: Final = 32 * 1024
"""Characters of a token."""

# Clients -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Client:
    """A client at one authorization server, and how it authenticates at its token endpoint."""

    id: str
    method: str = "none"
    secret: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)
    """A private key in PEM, for `private_key_jwt`."""
    algorithm: str = "ES256"
    expires: float | None = None
    """When its secret does, by the wall clock."""
    audience: str | None = None
    """Whom its key signs for, if that is not the issuer."""
    named: bool = False
    """What its key signs says which one it is."""


@dataclass(frozen=True, slots=True)
class Described:
    """The client that a document of ours describes, whose address is its id (Client ID Metadata Documents). It
    authenticates by the first of its private `keys`, and others know it by all of them; without any, by its address
    alone. `each`: below there it has an address for each issuer that must have its own; "": it is the operator's
    document, and has one."""

    url: str
    keys: tuple[str, ...] = field(default=(), repr=False)
    algorithm: str = "ES256"
    each: str = ""

    def at(self, issuer: str) -> str:
        """Its address for this issuer alone, which says whose it is."""
        return f"{self.each}/{base64.urlsafe_b64encode(issuer.encode()).decode().rstrip('=')}.json"

    def known_by(self, id: str) -> bool:
        """Whether this is one of its addresses."""
        return id == self.url or (self.each != "" and id.startswith(f"{self.each}/"))

    def fits(self, server: AuthorizationServer) -> bool:
        """Whether this authorization server takes such a client, as far as it says."""
        return server.cimd and (not self.keys or server.methods is None or "private_key_jwt" in server.methods)

    def now(self, client: Client) -> Client:
        """This client as it authenticates now, if it is this one: whoever has signed in may have done so before it had
        a key, or with another one."""
        if not self.known_by(client.id):
            return client
        if not self.keys:
            return Client(client.id)
        return Client(client.id, "private_key_jwt", key=self.keys[0], algorithm=self.algorithm, named=True)

    def signs(self, client: Client) -> bool:
        """Whether it is this one, and has a key that could be wrong."""
        return bool(self.keys) and self.known_by(client.id)

    def document(self, redirect_uri: str) -> dict[str, Any]:
        """What is to be had at its address."""
        found: dict[str, Any] = {
            "client_id": self.url,
            "client_name": "Stagedoor",
            "redirect_uris": [redirect_uri],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "private_key_jwt" if self.keys else "none",
        }
        if self.keys:
            from gateway.oauth import assertions  # few have keys

            found["token_endpoint_auth_signing_alg"] = self.algorithm
            found["jwks"] = {"keys": [assertions.public_key(key, self.algorithm) for key in self.keys]}
        return found


def method_for(server: AuthorizationServer, *, secret: bool, key: bool) -> str:
    """How a client authenticates that has this. Without a list servers take HTTP Basic (RFC 8414, section 2)."""
    if key:
        return "private_key_jwt"
    if not secret:
        return "none"
    offered = server.methods if server.methods is not None else ("client_secret_basic",)
    wanted = ("client_secret_basic", "client_secret_post")
    return next((method for method in wanted if method in offered), "client_secret_basic")


def authenticated(
    form: Mapping[str, str], client: Client, issuer: str, now: float
) -> tuple[dict[str, str], dict[str, str]]:
    """The headers and the form with which this client asks."""
    headers: dict[str, str] = {}
    whole = dict(form)
    if client.method == "client_secret_basic" and client.secret is not None:
        # Both halves are form-encoded first (RFC 6749, section 2.3.1).
        pair = f"{quote_plus(client.id)}:{quote_plus(client.secret)}"
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        return headers, whole
    whole["client_id"] = client.id
    if client.method == "client_secret_post" and client.secret is not None:
        whole["client_secret"] = client.secret
    elif client.method == "private_key_jwt" and client.key is not None:
        from gateway.oauth import assertions  # few have keys

        whole["client_assertion_type"] = assertions.TYPE
        try:
            audience = client.audience or issuer
            signed = assertions.assertion(client.id, client.key, client.algorithm, audience, now, named=client.named)
        except ValueError as error:
            raise OAuthError("bad_key", str(error)) from error
        whole["client_assertion"] = signed
    return headers, whole


def registration(server: AuthorizationServer, redirect_uri: str, scopes: Sequence[str]) -> dict[str, Any]:
    """The body of a dynamic registration (RFC 7591). `application_type`: a callback on this machine is that of a native
    application (OpenID Connect Registration, section 2)."""
    offered = server.methods or ("client_secret_basic",)
    method = next((m for m in ("none", "client_secret_basic", "client_secret_post") if m in offered), "none")
    native = urlsplit(redirect_uri).hostname in ("localhost", "127.0.0.1", "::1")
    body: dict[str, Any] = {
        "client_name": "Stagedoor",
        "application_type": "native" if native else "web",
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
    }
    if scopes:
        body["scope"] = " ".join(scopes)
    return body


def registered(server: AuthorizationServer, status: int, body: bytes) -> Client:
    """The client that a registration has made. Raises OAuthError."""
    answer = _answer(body)
    if status >= 500:
        raise AwayError("registration_failed", f"{shown(server.issuer)} answered the registration with HTTP {status}")
    id = answer.get("client_id")
    if status not in (200, 201) or not isinstance(id, str) or not 0 < len(id) <= TOKEN_MAX:
        raise OAuthError("registration_refused", _said(server, "refused to register the gateway", status, answer))
    secret = answer.get("client_secret")
    secret = secret if isinstance(secret, str) and 0 < len(secret) <= TOKEN_MAX else None
    method = answer.get("token_endpoint_auth_method")
    if method not in ("none", "client_secret_basic", "client_secret_post"):
        method = method_for(server, secret=secret is not None, key=False)
    ends = documents.number(answer.get("client_secret_expires_at")) if secret is not None else None
    return Client(id, "none" if secret is None else method, secret, expires=ends or None)


# The authorization request, and its response -------------------------------------------------------------------


def verifier() -> str:
    """A fresh PKCE verifier (RFC 7636, section 4.1)."""
    return secrets.token_urlsafe(48)


def challenge(of: str) -> str:
    """By S256."""
    return base64.urlsafe_b64encode(hashlib.sha256(of.encode()).digest()).decode().rstrip("=")


def scopes_for(
    server: AuthorizationServer,
    challenged: Sequence[str] | None,
    supported: Sequence[str] | None,
    configured: Sequence[str],
    before: Sequence[str] = (),
) -> tuple[str, ...]:
    """What to ask for: what is configured, else what the challenge names, else what the resource supports, else nothing
    ("Scope Selection Strategy"); with it what was asked for before (SEP-2350), and a refresh token where the
    authorization server says that it has such a scope (SEP-2207)."""
    chosen = configured or challenged or (supported or () if challenged is None else ())
    wanted = dict.fromkeys((*before, *chosen, *(challenged or () if configured else ())))
    if "offline_access" in server.scopes:
        wanted["offline_access"] = None
    return tuple(wanted)


def authorize_url(
    endpoint: str,
    *,
    client_id: str,
    redirect_uri: str,
    state: str,
    code_challenge: str,
    scopes: Sequence[str],
    resource: str | None,
    more: Mapping[str, str] | None = None,
) -> str:
    """Where the browser goes. What stands in the endpoint's own query stays."""
    parts = urlsplit(endpoint)
    query = [
        *parse_qsl(parts.query, keep_blank_values=True),
        ("response_type", "code"),
        ("client_id", client_id),
        ("redirect_uri", redirect_uri),
        ("state", state),
        ("code_challenge", code_challenge),
        ("code_challenge_method", "S256"),
    ]
    if scopes:
        query.append(("scope", " ".join(scopes)))
    if resource is not None:
        query.append(("resource", resource))
    if "offline_access" in scopes and "prompt" not in (more or {}):
        query.append(("prompt", "consent"))  # without it OpenID providers give none (Core, section 11)
    query += (more or {}).items()
    return urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(query), ""))


def check_iss(issuer: str, advertised: bool, iss: str | None) -> None:
    """The issuer that an authorization response names must be the one that was asked, as a string (RFC 9207, section
    2.4; RFC 3986, section 6.2.1). Raises OAuthError."""
    if iss is None and not advertised:
        return
    if iss != issuer:
        raise wrong_issuer()


def wrong_issuer() -> OAuthError:
    """An answer that another one may have given."""
    return OAuthError("wrong_issuer", "the answer is not of the authorization server that was asked")


# Tokens --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a token endpoint gave. `expires`: by the wall clock; None: it does not say."""

    access: str = field(repr=False)
    refresh: str | None = field(default=None, repr=False)
    expires: float | None = None
    scopes: tuple[str, ...] = ()


def code_form(code: str, code_verifier: str, redirect_uri: str, resource: str | None) -> dict[str, str]:
    """For the code of an authorization response."""
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri}
    return _for(resource, form | {"code_verifier": code_verifier})


def refresh_form(refresh_token: str, resource: str | None) -> dict[str, str]:
    """For the next tokens. Without a scope: as granted."""
    return _for(resource, {"grant_type": "refresh_token", "refresh_token": refresh_token})


def client_form(scopes: Sequence[str], resource: str | None) -> dict[str, str]:
    """For a token of the gateway itself."""
    form = {"grant_type": "client_credentials"}
    if scopes:
        form["scope"] = " ".join(scopes)
    return _for(resource, form)


EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - a kind of token
ISSUED: Final = frozenset({ACCESS_TOKEN, "urn:ietf:params:oauth:token-type:jwt"})
"""What may be given for a token: one that a resource takes (RFC 8693, section 2.2.1)."""


def exchange_form(
    subject_token: str,
    resource: str | None,
    audience: str | None,
    scopes: Sequence[str],
    actor_token: str | None = None,
) -> dict[str, str]:
    """For a token for this resource, in place of the one by which its user asks (RFC 8693, section 2.1). With a token
    of the actor it is to say who acts for the user (section 1.1, delegation)."""
    form = {
        "grant_type": EXCHANGE,
        "subject_token": subject_token,
        "subject_token_type": ACCESS_TOKEN,
        "requested_token_type": ACCESS_TOKEN,
    }
    if actor_token is not None:
        form |= {"actor_token": actor_token, "actor_token_type": ACCESS_TOKEN}
    if audience is not None:
        form["audience"] = audience
    if scopes:
        form["scope"] = " ".join(scopes)
    return _for(resource, form)


def exchanged(issuer: str, status: int, body: bytes, asked: Sequence[str], now: float, until: float) -> Tokens:
    """The answer to that. It is good until then at the longest. Raises OAuthError."""
    found = tokens(issuer, status, body, asked, now)
    if _answer(body).get("issued_token_type") not in ISSUED:
        raise OAuthError("bad_answer", f"{shown(issuer)} gave something else than an access token")
    ends = until if found.expires is None else min(until, found.expires)
    return Tokens(found.access, None, ends, found.scopes)


def _for(resource: str | None, form: dict[str, str]) -> dict[str, str]:
    return form | {"resource": resource} if resource is not None else form


def tokens(issuer: str, status: int, body: bytes, asked: Sequence[str], now: float) -> Tokens:
    """The answer of a token endpoint. Raises OAuthError: only GrantRefusedError and ClientRefusedError say something of
    what was sent."""
    answer = _answer(body)
    if status != 200:
        _refused(issuer, status, answer)
    access, kind = answer.get("access_token"), answer.get("token_type")
    if not isinstance(access, str) or not fits_header(access):
        raise OAuthError("bad_answer", f"{shown(issuer)} gave no access token")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise OAuthError("bad_answer", f"{shown(issuer)} gave a token of another type than Bearer")
    refresh, scope = answer.get("refresh_token"), answer.get("scope")
    lives = _seconds(answer.get("expires_in"))
    return Tokens(
        access,
        refresh if isinstance(refresh, str) and 0 < len(refresh) <= TOKEN_MAX else None,
        now + lives if lives is not None else None,
        tuple(scope.split()) if isinstance(scope, str) else tuple(asked),
    )


def id_claims(issuer: str, status: int, body: bytes) -> Mapping[str, Any]:
    """The claims of the ID token in the answer of a token endpoint, unchecked. Raises OAuthError."""
    answer = _answer(body)
    if status != 200:
        _refused(issuer, status, answer)
    token = answer.get("id_token")
    parts = token.split(".") if isinstance(token, str) and len(token) <= TOKEN_MAX else []
    try:
        payload = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)) if len(parts) == 3 else b""
    except ValueError:
        payload = b""
    claims = _answer(payload)
    if not claims:
        raise OAuthError("bad_answer", f"{shown(issuer)} gave no ID token")
    return claims


def _refused(issuer: str, status: int, answer: Mapping[str, Any]) -> None:
    error = answer.get("error")
    told = f"{shown(issuer)} refused: {shown(error)}" if isinstance(error, str) else f"it answered with HTTP {status}"
    if status >= 500 or status == 429:
        raise AwayError("issuer_away", f"{shown(issuer)} answered with HTTP {status}")
    if error == "invalid_grant":
        raise GrantRefusedError("invalid_grant", told)
    if error == "invalid_client":
        raise ClientRefusedError("invalid_client", told)
    raise OAuthError("grant_failed", told)


def _seconds(value: object) -> float | None:
    """A number of seconds, which some write as text."""
    try:
        seconds = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        return None
    return min(seconds, 10 * 365 * 86400.0) if seconds is not None and seconds > 0 else None


def fits_header(token: str) -> bool:
    """Whether a header can carry it."""
    return 0 < len(token) <= TOKEN_MAX and token.isascii() and all(" " < character < "\x7f" for character in token)


def _answer(body: bytes) -> Mapping[str, Any]:
    return documents.read(body) or {}


def _said(server: AuthorizationServer, what: str, status: int, answer: Mapping[str, Any]) -> str:
    error = answer.get("error")
    more = f": {shown(error, 60)}" if isinstance(error, str) else ""
    return f"{shown(server.issuer)} {what} (HTTP {status}){more}"
