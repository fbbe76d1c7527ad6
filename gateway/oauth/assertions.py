"""Who a client is, by its own signature (`private_key_jwt`; RFC 7523, section 2.2)."""

import base64
import hashlib
import json
import secrets
from collections.abc import Mapping
from typing import Any, Final

import jwt
from jwt.algorithms import UnsupportedAlgorithm  # type: ignore[attr-defined]  # of the library that reads keys for it

LIVES: Final = 120
"""Seconds that an assertion is good for."""
TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_MEMBERS: Final[tuple[str, ...]] = ("kty", "crv", "x", "y", "n", "e")
"""What a public key must say of itself, of whichever kind it is (RFC 7638, section 3.2)."""
_WRONG: Final = (jwt.PyJWTError, UnsupportedAlgorithm, ValueError, TypeError, AttributeError, NotImplementedError)
"""What comes of a key that can't sign: it is none, of another kind, on an unknown curve, encrypted, or a public one."""


def assertion(client_id: str, key: str, algorithm: str, audience: str, now: float, *, named: bool = False) -> str:
    """For this audience, which is one string; `named`: it says by which key of `public_key` it is signed. Raises
    ValueError where the key can't sign by this algorithm."""
    kid = public_key(key, algorithm)["kid"] if named else None
    return _signed(
        {
            "iss": client_id,
            "sub": client_id,
            "aud": audience,
            "iat": int(now),
            "exp": int(now) + LIVES,
            "jti": secrets.token_urlsafe(16),
        },
        key,
        algorithm,
        kid,
    )


def public_key(key: str, algorithm: str) -> dict[str, Any]:
    """What others know a private key by, as a JWK whose `kid` is its thumbprint (RFC 7638). Raises ValueError as
    above."""
    try:
        by = jwt.get_algorithm_by_name(algorithm)
        public = by.to_jwk(by.prepare_key(key).public_key(), as_dict=True)
    except _WRONG as error:
        raise ValueError(f"the client's key can't sign by {algorithm}") from error
    known: dict[str, str] = {name: public[name] for name in _MEMBERS if name in public}
    return {**known, "kid": thumbprint(known), "alg": algorithm, "use": "sig"}


def thumbprint(jwk: Mapping[str, str]) -> str:
    """What names a key that has the members that it must have, and no others (RFC 7638, section 3)."""
    text = json.dumps(jwk, separators=(",", ":"), sort_keys=True)
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def can_sign(key: str, algorithm: str) -> bool:
    """Whether this is the text of a private key that signs by this algorithm."""
    try:
        _signed({}, key, algorithm)
    except ValueError:
        return False
    return True


def _signed(claims: Mapping[str, Any], key: str, algorithm: str, kid: str | None = None) -> str:
    try:
        return jwt.encode(dict(claims), key, algorithm=algorithm, headers=None if kid is None else {"kid": kid})
    except _WRONG as error:
        raise ValueError(f"the client's key can't sign by {algorithm}") from error
