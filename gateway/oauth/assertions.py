"""Who a client is, by its own signature (`private_key_jwt`; RFC 7523, section 2.2)."""

import secrets
from collections.abc import Mapping
from typing import Any, Final

import jwt
from jwt.algorithms import UnsupportedAlgorithm  # type: ignore[attr-defined]  # of the library that reads keys for it

LIVES: Final = 120
"""Seconds that an assertion is good for."""
TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_WRONG: Final = (jwt.PyJWTError, UnsupportedAlgorithm, ValueError, TypeError, AttributeError, NotImplementedError)
"""What comes of a key that can't sign: it is none, of another kind, on an unknown curve, encrypted, or a public one."""


def assertion(client_id: str, key: str, algorithm: str, audience: str, now: float) -> str:
    """For this audience, which is one string. Raises ValueError where the key can't sign by this algorithm."""
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
    )


def can_sign(key: str, algorithm: str) -> bool:
    """Whether this is the text of a private key that signs by this algorithm."""
    try:
        _signed({}, key, algorithm)
    except ValueError:
        return False
    return True


def _signed(claims: Mapping[str, Any], key: str, algorithm: str) -> str:
    try:
        return jwt.encode(dict(claims), key, algorithm=algorithm)
    except _WRONG as error:
        raise ValueError(f"the client's key can't sign by {algorithm}") from error
