"""The cursor of a merged list: where the next page begins.

Clients get it sealed (by a port: keys and randomness are none of this layer's business) and hand it back. It is good
for the principal and method that it was made for, and for this very list.
"""

from typing import Final, Protocol

import msgspec
from msgspec import Struct

from actors.protocol.errors import Refusal, invalid_params

VERSION: Final = 2
"""Of the fields below: a cursor of another version is stale."""


class Sealer(Protocol):
    """Authenticated encryption of small values that go out to clients and come back."""

    def seal(self, plain: bytes, context: bytes) -> str:
        """A URL-safe token."""

    def unseal(self, token: str, context: bytes) -> bytes | None:
        """What was sealed with this context; None for anything else."""


class Cursor(Struct, frozen=True, array_like=True):
    """`digest` names the list, and the configuration under which it was made; `offset` counts its items."""

    method: str
    principal: str
    digest: str
    offset: int
    version: int = VERSION


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Cursor).decode


def pack(cursor: Cursor, sealer: Sealer) -> str:
    """The cursor as the client sees it."""
    return sealer.seal(_encode(cursor), _context(cursor.method, cursor.principal))


def unpack(token: str, sealer: Sealer, *, method: str, principal: str, digest: str) -> Cursor:
    """What `pack` was given. Raises Refusal (-32602) for a cursor that is forged, foreign or stale."""
    plain = sealer.unseal(token, _context(method, principal))
    if plain is None:
        raise Refusal(invalid_params("Invalid cursor"))
    try:
        cursor = _decode(plain)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Refusal(invalid_params("Invalid cursor")) from None
    if (cursor.method, cursor.principal) != (method, principal):
        raise Refusal(invalid_params("Invalid cursor"))
    if cursor.version != VERSION or cursor.digest != digest:
        raise Refusal(invalid_params("Stale cursor"))
    return cursor


def _context(method: str, principal: str) -> bytes:
    return _encode(("cursor", method, principal))
