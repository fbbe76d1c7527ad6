"""Seals small values that go out to clients and come back: AES-256-GCM, the port `Sealer`.

The first key seals, every key opens, so keys can be rotated: add the new one as second everywhere, then move it to
first.
"""

import hashlib
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE = 12
"""Bytes; random for each token (NIST SP 800-38D allows 2^32 of them under one key)."""
LONGEST = 1024 * 1024
"""Characters of a token; a longer one is none of ours. Some hold what a backend keeps with its client."""


class AesSealer:
    """Tokens are URL-safe base64 of nonce and ciphertext; `context` is authenticated with them."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys:
            raise ValueError("at least one key is needed")
        self.fingerprints = [hashlib.sha256(b"stagedoor key\0" + key).hexdigest()[:16] for key in keys]
        """By which keys can be compared and not found out, in their order."""
        self._keys = tuple(keys)

    @cached_property
    def _ciphers(self) -> "list[AESGCM]":
        """Made with the first token: many a process never seals anything, and the library takes a while to load."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        # Keys may be given in any length: a hash makes them 256 bits.
        return [AESGCM(hashlib.sha256(b"stagedoor seal\0" + key).digest()) for key in self._keys]

    def seal(self, plain: bytes, context: bytes) -> str:
        nonce = secrets.token_bytes(NONCE)
        return urlsafe_b64encode(nonce + self._ciphers[0].encrypt(nonce, plain, context)).decode().rstrip("=")

    def unseal(self, token: str, context: bytes) -> bytes | None:
        if len(token) > LONGEST:
            return None
        from cryptography.exceptions import InvalidTag

        try:
            sealed = urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
        except (UnicodeEncodeError, Base64Error, ValueError):
            return None
        if urlsafe_b64encode(sealed).decode().rstrip("=") != token:
            return None  # a token has one spelling
        for cipher in self._ciphers:
            try:
                return cipher.decrypt(sealed[:NONCE], sealed[NONCE:], context)
            except (InvalidTag, ValueError):
                continue
        return None
