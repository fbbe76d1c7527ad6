"""JWTs as access tokens: which issuer and key they name, whether that key has signed them, and what they claim.

What is read before the signature is checked only selects, among configured values, what to check with (RFC 8725).
Addresses and keys in a token are never looked at. Pure.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import jwt
from jwt.algorithms import get_default_algorithms

from actors.protocol.issuers import Issuer
from actors.protocol.rights import SKEW
from gateway.oauth import documents
from gateway.oauth.documents import number

LONGEST: Final = 16 * 1024
"""Characters of a token."""
NAME: Final = 512
"""Characters of a key's name."""
KEYS: Final = 100
"""Of one issuer; further ones are not read."""
TRIED: Final = 4
"""Keys that are tried for a token that names none."""
RSA_BITS: Final = 2048

_OTHER_KINDS: Final = (("typ", ("ID", "Refresh", "Offline", "Logout")), ("token_use", ("id",)))
"""Claims by which Keycloak and Cognito say that a JWT is no access token. Its audience is a client, which may be one of
`audiences`."""
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
_ED = frozenset({"Ed25519", "Ed448"})


class BadTokenError(Exception):
    """It is not good here. The reason is a word for metrics and logs."""

    def __init__(self, reason: str, *, expired: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.expired = expired


@dataclass(frozen=True, slots=True)
class Named:
    """What an unverified token names: enough to find out what to verify it with."""

    issuer: str
    algorithm: str
    key: str | None
    kind: str


@dataclass(frozen=True, slots=True)
class Key:
    """A public key of an issuer."""

    name: str | None
    kind: str
    curve: str
    algorithm: str | None
    key: Any = field(repr=False)

    def fits(self, algorithm: str) -> bool:
        """Whether it may verify by this algorithm: the type of a key is tied to what it is used with (RFC 8725,
        section 3.1)."""
        if self.algorithm is not None and self.algorithm != algorithm:
            return False
        if algorithm.startswith(("RS", "PS")):
            return self.kind == "RSA"
        if algorithm.startswith("ES"):
            return self.kind == "EC" and self.curve == _CURVES[algorithm]
        return algorithm == "EdDSA" and self.kind == "OKP" and self.curve in _ED


def named(token: str) -> Named | None:
    """What a token names; None: it is no JWT. Raises BadTokenError for one that can't be an access token."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    header = _object(parts[0])
    if header is None:
        return None
    claims = _object(parts[1])
    algorithm, kind, key = header.get("alg"), header.get("typ", ""), header.get("kid")
    if claims is None or not isinstance(algorithm, str) or not isinstance(kind, str):
        raise BadTokenError("malformed")
    if "crit" in header:
        raise BadTokenError("critical_extension")
    if key is not None and (not isinstance(key, str) or len(key) > NAME):
        raise BadTokenError("malformed")
    issuer = claims.get("iss")
    if not isinstance(issuer, str):
        raise BadTokenError("no_issuer")
    return Named(issuer, algorithm, key, kind.lower().removeprefix("application/"))


def check_kind(found: Named, issuer: Issuer) -> None:
    """Raises BadTokenError for an algorithm that is not allowed, and for a JWT of another kind."""
    if found.algorithm not in issuer.algorithms:
        raise BadTokenError("algorithm")
    if found.kind != "at+jwt" and (issuer.strict_type or found.kind not in ("", "jwt")):
        raise BadTokenError("type")


def choose(keys: Sequence[Key], found: Named) -> list[Key]:
    """The keys that may have signed it."""
    fitting = [key for key in keys if key.fits(found.algorithm)]
    if found.key is None:
        return fitting[:TRIED]
    return [key for key in fitting if key.name == found.key][:TRIED]


def signed(token: str, found: Named, keys: Sequence[Key]) -> Mapping[str, Any]:
    """The claims. Raises BadTokenError if none of these keys has signed them."""
    signing_input, _, signature = token.rpartition(".")
    algorithm = get_default_algorithms()[found.algorithm]
    try:
        given = _decoded(signature)
        good = any(algorithm.verify(signing_input.encode(), key.key, given) for key in keys)
    except (ValueError, TypeError, jwt.PyJWTError):
        good = False
    if not good:
        raise BadTokenError("signature")
    claims = _object(signing_input.partition(".")[2])
    assert claims is not None  # it was read before
    return claims


def check_claims(claims: Mapping[str, Any], issuer: Issuer, now: float) -> float:
    """Raises BadTokenError for a token of another time, or bound to a key that nobody asks for; else when it ends."""
    if claims.get("iss") != issuer.issuer:
        raise BadTokenError("issuer")
    expiry = number(claims.get("exp"))
    if expiry is None:
        raise BadTokenError("no_expiry")
    if expiry + SKEW <= now:
        raise BadTokenError("expired", expired=True)
    check_begun(claims, now)
    if claims.get("cnf") is not None and not issuer.bound:
        raise BadTokenError("bound")
    check_use(claims)
    return expiry


def check_use(claims: Mapping[str, Any]) -> None:
    """Raises BadTokenError for what says itself that it is no access token."""
    if any(claims.get(name) in kinds for name, kinds in _OTHER_KINDS):
        raise BadTokenError("type")


def check_begun(claims: Mapping[str, Any], now: float) -> None:
    """Raises BadTokenError for what is not good yet."""
    for name in ("nbf", "iat"):
        begins = number(claims.get(name))
        if begins is None and claims.get(name) is not None:
            raise BadTokenError("malformed")
        if begins is not None and begins > now + SKEW:
            raise BadTokenError("not_yet")


def audiences(claims: Mapping[str, Any]) -> frozenset[str]:
    """For whom it is meant."""
    given = claims.get("aud")
    listed = given if isinstance(given, list) else [given]
    return frozenset(one.removesuffix("/") for one in listed if isinstance(one, str))


# Keys ----------------------------------------------------------------------------------------------------------


def read_keys(body: bytes) -> list[Key] | None:
    """The keys of a JWK set that may verify something; None: it is none."""
    document = documents.read(body)
    given = document.get("keys") if document is not None else None
    if not isinstance(given, list):
        return None
    return [key for jwk in given[:KEYS] if (key := _key(jwk)) is not None]


def _key(jwk: Any) -> Key | None:
    if not isinstance(jwk, dict) or jwk.get("use") == "enc" or "d" in jwk:
        return None
    operations = jwk.get("key_ops")
    if isinstance(operations, list) and "verify" not in operations:
        return None
    kind, name, algorithm, curve = (jwk.get(member) for member in ("kty", "kid", "alg", "crv"))
    if kind not in ("RSA", "EC", "OKP"):
        return None
    try:
        key = jwt.PyJWK(jwk, algorithm=_any_algorithm(kind, curve)).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    if kind == "RSA" and key.key_size < RSA_BITS:
        return None
    texts = [value if isinstance(value, str) else None for value in (name, algorithm)]
    return Key(texts[0], kind, curve if isinstance(curve, str) else "", texts[1], key)


def _any_algorithm(kind: str, curve: Any) -> str:
    """One that such a key is read by."""
    if kind == "EC":
        return next((name for name, its in _CURVES.items() if its == curve), "ES256")
    return {"RSA": "RS256", "OKP": "EdDSA"}[kind]


# Reading -------------------------------------------------------------------------------------------------------


def _object(part: str) -> dict[str, Any] | None:
    try:
        return documents.read(_decoded(part))
    except ValueError:
        return None


def _decoded(part: str) -> bytes:
    if len(part) > LONGEST or "=" in part:
        raise ValueError
    return base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
