"""Which accounts have changed lately: one small value on the shelf, which every replica with accounts in hand reads.

A connection that goes on with what was sent when it was made (a WebSocket, a process) asks the shelf no more. So
whoever changes an account says that he did; what it is now, each reads for himself.
"""

import secrets
from collections.abc import Collection
from typing import Final

import msgspec
from msgspec import Struct

from actors.ports import Failed, Refused, Shelf
from gateway.oauth.vault import AccountKey

KEY: Final = "accounts-changed"
KEPT: Final = 600.0
"""Seconds for which it stands there after the last change."""
MOST: Final = 256
"""Changes that are told; a replica that was away for longer reads accounts anew as it uses them."""
ATTEMPTS: Final = 8


class _News(Struct, frozen=True):
    id: str
    principal: str
    backend: str
    url: str


class AccountNews:
    """Tells and reads which accounts have changed, for one replica."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._tag = ""
        self._seen: frozenset[str] = frozenset()

    async def tell(self, place: AccountKey) -> None:
        """This account is another one. A store that is away keeps it from nobody for long: accounts are read again
        before they are used."""
        news = _News(secrets.token_hex(8), place.principal, place.backend, place.url)
        for _ in range(ATTEMPTS):
            found = await self._shelf.read(KEY)
            if isinstance(found, Failed):
                return
            before = _decoded(found.value) if found is not None else []
            value = msgspec.json.encode([*before, news][-MOST:])
            put = await self._shelf.put(KEY, value, KEPT, instead=found.tag if found is not None else "")
            if not isinstance(put, Failed) or put.reason is not Refused.FENCED:
                return

    async def read(self) -> Collection[AccountKey]:
        """What was told since the last time."""
        found = await self._shelf.read(KEY)
        if found is None or isinstance(found, Failed) or found.tag == self._tag:
            return ()
        news = _decoded(found.value)
        places = {AccountKey(one.principal, one.backend, one.url) for one in news if one.id not in self._seen}
        self._tag, self._seen = found.tag, frozenset(one.id for one in news)
        return places


def _decoded(value: bytes) -> list[_News]:
    try:
        return msgspec.json.decode(value, type=list[_News])
    except msgspec.DecodeError:
        return []
