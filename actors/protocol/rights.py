"""With what rights somebody asks: what the token of one request says of its bearer, as a value. Pure.

Who it is decides what belongs to them (`Principal`, in the ports), and stays the same over all their tokens. What they
may do is said by the token of each single request, so that rights travel with requests and are never kept for the next.
"""

from functools import lru_cache
from hashlib import sha256

from msgspec import Struct

DIGESTS = 1024
"""Digests that are remembered: a gateway sees about as many different rights as it has principals."""


SKEW = 60.0
"""Seconds that the clocks of issuers may be apart from ours."""


class Rights(Struct, frozen=True, omit_defaults=True, cache_hash=True):
    """Those of one request. All is empty where nobody has to say who they are.

    `issuer` and `subject` are those of the token, `client` is the id of the OAuth client that it was issued to.
    `expiry` is when the token ends, in seconds since 1970; None: it does not. `claims` are further ones that rules ask
    about, each with its value as JSON, and `cut` those that are too long to be kept. `partial`: there may be further
    groups, which the token could not name. `others`: a digest of all that the token says, where that may make a
    difference to a server."""

    issuer: str = ""
    subject: str = ""
    client: str = ""
    groups: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    expiry: float | None = None
    claims: tuple[tuple[str, str], ...] = ()
    partial: bool = False
    cut: tuple[str, ...] = ()
    others: str = ""

    @property
    def ends(self) -> float | None:
        """When what was begun with them has to end."""
        return None if self.expiry is None else self.expiry + SKEW

    @property
    def digest(self) -> str:
        """Equal for equal rights, in every process, whenever they expire."""
        lacks = self.partial, self.cut
        claims = (*self.claims, ("", self.others)) if self.others else self.claims
        return _digest(self.issuer, self.subject, self.client, self.groups, self.scopes, claims, lacks)


NO_RIGHTS = Rights()
"""Of the anonymous principal, and of the gateway itself."""

LENGTH = 6
"""Digits of a length in the name of a principal."""

STATIC = "static:"
"""The issuer of configured tokens, whose subject is the principal's name."""


def principal_id(issuer: str, subject: str) -> str:
    """The name of the principal that is this subject of this issuer. Both lengths are in it: no two pairs have one
    name, whatever their issuers and users are called (never joined raw: `a` + `bc` is not `ab` + `c`)."""
    return f"{len(issuer)}:{issuer}:{len(subject)}:{subject}"


def owner_of(name: str) -> tuple[str, str] | None:
    """The issuer and the subject of such a principal; None: it is another one."""
    found, whole = [], name
    for _ in range(2):
        length, colon, rest = name.partition(":")
        if not colon or not length.isascii() or not length.isdecimal() or len(length) > LENGTH:
            return None
        found.append(rest[: int(length)])
        name = rest[int(length) :].removeprefix(":")
    return (found[0], found[1]) if principal_id(found[0], found[1]) == whole else None


@lru_cache(DIGESTS)
def _digest(
    issuer: str,
    subject: str,
    client: str,
    groups: frozenset[str],
    scopes: frozenset[str],
    claims: tuple[tuple[str, str], ...],
    lacks: tuple[bool, tuple[str, ...]],
) -> str:
    parts = (issuer, subject, client, str(len(groups)), *sorted(groups), *sorted(scopes))
    digest = sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:%b" % (len(encoded), encoded))
    for name, value in claims:
        digest.update(repr((name, value)).encode("utf-8", "surrogatepass"))
    if any(lacks):
        digest.update(repr(lacks).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:32]
