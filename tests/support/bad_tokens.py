"""Tokens that are nobody's, each for a reason of its own, as an issuer's enemies and careless friends make them."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.support.issuer import FakeIssuer, another_key, jwk_of, pem, unsigned


def hs256(idp: FakeIssuer) -> str:
    """Signed with the public key, taken for a shared secret."""
    head = unsigned({"alg": "HS256", "typ": "at+jwt", "kid": "one"}, idp.claims()).rpartition(".")[0]
    signature = hmac.digest(pem(idp.key), head.encode(), hashlib.sha256)
    return unsigned({"alg": "HS256", "typ": "at+jwt", "kid": "one"}, idp.claims(), signature)


def inside(idp: FakeIssuer, **header: Any) -> str:
    """Signed by the attacker's key, which the token brings along."""
    mallory = replace(idp, key=another_key())
    return mallory.token(headers=header)


def tampered(idp: FakeIssuer) -> str:
    head, _, signature = idp.token().split(".")
    body = unsigned({}, idp.claims(sub="root")).split(".")[1]
    return f"{head}.{body}.{signature}"


BAD: dict[str, Callable[[FakeIssuer], str]] = {
    "none": lambda i: unsigned({"alg": "none", "typ": "at+jwt"}, i.claims()),
    "None": lambda i: unsigned({"alg": "None"}, i.claims()),
    "hs256 with the public key": hs256,
    "unsigned": lambda i: unsigned({"alg": "RS256", "kid": "one"}, i.claims()),
    "tampered": tampered,
    "another's key": lambda i: replace(i, key=another_key()).token(),
    "jwk": lambda i: inside(i, jwk=jwk_of(another_key())),
    "jku": lambda i: inside(i, jku="https://evil.test/jwks"),
    "x5u": lambda i: inside(i, x5u="https://evil.test/cert"),
    "crit": lambda i: i.token(headers={"crit": ["exp"]}),
    "kid is a path": lambda i: i.token(kid="../../../dev/null"),
    "kid is sql": lambda i: i.token(kid="' UNION SELECT 'secret"),
    "kid is long": lambda i: i.token(kid="x" * 5000),
    "wrong algorithm for the key": lambda i: unsigned({"alg": "ES256", "kid": "one"}, i.claims(), b"x" * 64),
    "expired": lambda i: i.token(exp=i.now() - 61),
    "no expiry": lambda i: i.token(exp=None),
    "expiry is text": lambda i: unsigned({"alg": "RS256", "kid": "one"}, i.claims(exp="9999999999")),
    "not yet": lambda i: i.token(nbf=i.now() + 61),
    "issued later": lambda i: i.token(iat=i.now() + 61),
    "no subject": lambda i: i.token(sub=None),
    "subject is a list": lambda i: i.token(sub=""),
    "no audience": lambda i: i.token(aud=None),
    "another audience": lambda i: i.token(aud="https://other.test"),
    "an id token": lambda i: i.token(headers={"typ": "JWT"}, aud="client-id", nonce="n"),
    "an id token of Keycloak": lambda i: i.token(headers={"typ": "JWT"}, typ="ID"),
    "a refresh token of Keycloak": lambda i: i.token(headers={"typ": "JWT"}, typ="Refresh"),
    "an id token of Cognito": lambda i: i.token(headers={"typ": "JWT"}, token_use="id"),
    "a sibling's": lambda i: i.token(aud=f"{i.resource}/x"),
    "a prefix": lambda i: i.token(aud="https://mcp.test/m"),
    "another issuer": lambda i: i.token(iss="https://evil.test"),
    "issuer with a slash": lambda i: i.token(iss="https://idp.test/"),
    "no issuer": lambda i: i.token(iss=None),
    "logout": lambda i: i.token(headers={"typ": "logout+jwt"}),
    "dpop proof": lambda i: i.token(headers={"typ": "dpop+jwt"}),
    "id-jag": lambda i: i.token(headers={"typ": "application/oauth-id-jag+jwt"}),
    "bound to a key": lambda i: i.token(cnf={"jkt": "x"}),
    "too long": lambda i: i.token(padding="x" * 17000),
    "no json": lambda i: "e30.e30.e30",
    "deep": lambda i: unsigned({"alg": "RS256", "kid": "one"}, {"iss": i.issuer}).replace(".", ".W1tb", 1),
    "five parts": lambda i: f"{i.token()}.x.y",
    "opaque": lambda i: "made-up",
}
