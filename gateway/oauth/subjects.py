"""The tokens by which users ask, where servers want others in their place (`exchange`).

The replica that verified a token may not be the one whose connection needs it: so it stands on the shelf, sealed for
its principal and the rights that it gives, until it ends. It goes to its own issuer and nowhere else.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import Struct

from actors.ports import NO_RIGHTS, Asker, Failed, Rights, Sealer, Shelf, Shelved
from gateway.oauth.errors import AwayError
from gateway.oauth.vault import opened, shelf_key, there

REMEMBERED: Final = 10_000
"""Tokens that one process has in hand; those of which nobody has asked for longest are read again."""
AGAIN: Final = 60.0
"""Seconds after which a token that still comes is written again: the store may have lost it."""
SOON: Final = 5.0
"""The same, where it could not be written: no request waits each time for a store that is away."""
UNTOLD: Final = 3600.0
"""Seconds for which a token is kept that does not say when it ends."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A token that was good when it came. `until`: by the wall clock."""

    issuer: str
    token: str = field(repr=False)
    until: float


class _Sealed(Struct):
    issuer: str
    token: str
    until: float


class Subjects:
    """Keeps the tokens by which users ask, for all replicas."""

    def __init__(self, shelf: Shelf, sealer: Sealer, wall: Callable[[], float]) -> None:
        self._shelf = shelf
        self._sealer = sealer
        self._wall = wall
        self._known: OrderedDict[str, Subject] = OrderedDict()
        self._written: OrderedDict[bytes, float] = OrderedDict()
        """By digests of tokens: when they were written."""

    async def note(self, asker: Asker, token: str) -> None:
        """Somebody asks by this token. The one that came first last counts; it is written now and then."""
        rights, principal = asker.rights, asker.principal.name
        key, last, now = _key(principal, rights), _key(principal, NO_RIGHTS), self._wall()
        digest = sha256(token.encode()).digest()
        # That by which he came last may have ended before this one.
        known = all((one := self._known.get(place)) is not None and one.until > now for place in (key, last))
        if known and now - self._written.get(digest, 0.0) < AGAIN:
            return
        until = rights.expiry if rights.expiry is not None else now + UNTOLD
        subject = Subject(rights.issuer, token, until)
        self._written[digest] = now - AGAIN + SOON
        self._written.move_to_end(digest)
        if len(self._written) > REMEMBERED:
            self._written.popitem(last=False)
        outcomes = []
        for place in (key, last):
            self._know(place, subject)
            outcomes.append(await self._shelf.put(place, self._seal(place, subject), max(1.0, until - now)))
        if digest in self._written and not any(isinstance(outcome, Failed) for outcome in outcomes):
            self._written[digest] = now

    async def find(self, principal: str, rights: Rights) -> Subject | None:
        """The one by which this principal asks with these rights; without any, that by which he came last. Raises
        AwayError."""
        key = _key(principal, rights)
        subject = self._known.get(key)
        # The gateway's own requests follow what came to any replica.
        if subject is None or subject.until <= self._wall() or rights == NO_RIGHTS:
            try:
                subject = self._opened(key, there(await self._shelf.read(key))) or subject
            except AwayError:
                if subject is None:
                    raise
            if subject is not None:
                self._know(key, subject)
        return subject if subject is not None and subject.until > self._wall() else None

    def known(self, principal: str, rights: Rights) -> Subject | None:
        """The same, as far as this process knows."""
        return self._known.get(_key(principal, rights))

    def _know(self, key: str, subject: Subject) -> None:
        self._known[key] = subject
        self._known.move_to_end(key)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def _seal(self, key: str, subject: Subject) -> bytes:
        plain = msgspec.json.encode(_Sealed(subject.issuer, subject.token, subject.until))
        return self._sealer.seal(plain, b"subject " + key.encode()).encode()

    def _opened(self, key: str, found: Shelved | None) -> Subject | None:
        plain = opened(self._sealer, found, b"subject " + key.encode())
        if plain is None:
            return None
        sealed = msgspec.json.decode(plain, type=_Sealed)
        return Subject(sealed.issuer, sealed.token, sealed.until)


def _key(principal: str, rights: Rights) -> str:
    return shelf_key("subject", principal, rights.digest)
