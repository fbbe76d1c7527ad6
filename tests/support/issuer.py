"""An issuer of access tokens that a test holds: it signs anything, and counts how often it is asked for its keys."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import jwt
import trio
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from gateway.oauth.discovery import Answer
from gateway.oauth.errors import AwayError

NOW = 1_800_000_000.0
RESOURCE = "https://mcp.test/mcp"
_RSA = [rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2)]


def jwk_of(key: Any, kid: str | None = "one", **more: Any) -> dict[str, Any]:
    """The public half."""
    kind = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    if isinstance(key, ed25519.Ed25519PrivateKey):
        kind = OKPAlgorithm
    public = kind.to_jwk(key.public_key(), as_dict=True)
    return {**public, **({"kid": kid} if kid is not None else {}), **more}


@dataclass
class FakeIssuer:
    """`keys` are served, `key` signs."""

    issuer: str = "https://idp.test"
    key: Any = field(default_factory=lambda: _RSA[0])
    keys: list[dict[str, Any]] = field(default_factory=lambda: [jwk_of(_RSA[0])])
    resource: str = RESOURCE
    now: Callable[[], float] = lambda: NOW
    away: bool = False
    asked: list[str] = field(default_factory=list)
    age: int | None = None
    slow: float = 0.0
    opaque: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """What introspection says of tokens; of others that they are not active."""
    introspected: list[tuple[dict[str, str], dict[str, str]]] = field(default_factory=list)
    """The headers and the form of each question."""
    strange: int = 200
    """The status of introspection for a token that it does not know."""
    error: str = ""
    """And what it calls that."""

    def claims(self, **more: Any) -> dict[str, Any]:
        """Of a good token; None takes one out."""
        now = self.now()
        whole = {"iss": self.issuer, "sub": "ann", "aud": self.resource, "iat": now, "exp": now + 600, **more}
        return {name: value for name, value in whole.items() if value is not None}

    def token(
        self, algorithm: str = "RS256", kid: str | None = "one", headers: Mapping[str, Any] | None = None, **claims: Any
    ) -> str:
        """A token, signed."""
        head = {"typ": "at+jwt", **({"kid": kid} if kid is not None else {}), **(headers or {})}
        return jwt.encode(self.claims(**claims), self.key, algorithm=algorithm, headers=head)

    async def __call__(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        trusted: frozenset[str] = frozenset(),
    ) -> Answer:
        """As in `discovery.Http`."""
        self.asked.append(url)
        await trio.sleep(self.slow)
        if self.away:
            raise AwayError("away", "it can't be reached")
        age = {"cache-control": f"public, max-age={self.age}"} if self.age is not None else {}
        if url.endswith("/introspect"):
            form = dict(parse_qsl(body.decode()))
            self.introspected.append((dict(headers or {}), form))
            known = self.opaque.get(form["token"])
            if known is None and self.strange != 200:
                return Answer(self.strange, json.dumps({"error": self.error}).encode())
            return Answer(200, json.dumps(known or {"active": False}).encode())
        if url.endswith("/jwks"):
            return Answer(200, json.dumps({"keys": self.keys}).encode(), age)
        base = self.issuer.rstrip("/")
        if url in (f"{base}/.well-known/oauth-authorization-server", f"{base}/.well-known/openid-configuration"):
            return Answer(200, json.dumps({"issuer": self.issuer, "jwks_uri": f"{self.issuer}/jwks"}).encode())
        return Answer(404)

    @property
    def fetched(self) -> int:
        """How often the keys were asked for."""
        return sum(url.endswith("/jwks") for url in self.asked)


def another_key() -> Any:
    """A second RSA key."""
    return _RSA[1]


def elliptic(curve: Any = None) -> Any:
    """A key on a curve."""
    return ec.generate_private_key(curve or ec.SECP256R1())


def unsigned(header: Mapping[str, Any], claims: Mapping[str, Any], signature: bytes = b"") -> str:
    """A token as an attacker writes it."""
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


def pem(key: Any) -> bytes:
    """The public half as text."""
    encoded: bytes = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return encoded


def private(key: Any) -> str:
    """The private half as text."""
    encoded: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return encoded.decode()
