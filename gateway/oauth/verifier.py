"""Tells whose a bearer token is: by an issuer's signature, or by its word. Implements `Verifier`.

What was found out is remembered by the digest of the token, never by the token, for minutes; whom it is meant for is
looked at each time, since that depends on what is asked for.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import trio

from actors.ports import Asker, Log, Principal, Telemetry, Unproven
from actors.protocol import issuers
from actors.protocol.issuers import Issuer
from actors.protocol.rights import SKEW, principal_id
from gateway.oauth import access_tokens
from gateway.oauth.access_tokens import BadTokenError, Named
from gateway.oauth.discovery import Http
from gateway.oauth.documents import number
from gateway.oauth.errors import AwayError, OAuthError
from gateway.oauth.introspection import Introspector
from gateway.oauth.keys import Keys

REMEMBERED: Final = 10_000
"""Tokens of which it is known what they are worth."""
SIGNED_FOR: Final = 300.0
TOLD_FOR: Final = 60.0
REFUSED_FOR: Final = 10.0
"""Seconds for which that is so: what a signature says, what an issuer says, and that it says no."""
ISSUERS_ASKED: Final = 3
"""Issuers that are asked after one token which does not say whose it is."""
LOGGED: Final = 10.0
"""Seconds between two lines in the log on the same reason."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What a token is worth, no longer than it is good; `refused`: nothing. `any`: it is meant for all that is here."""

    until: float
    asker: Asker | None = None
    audiences: frozenset[str] = frozenset()
    any: bool = False
    refused: BadTokenError | None = None


class TokenVerifier:
    """Verifies tokens of all issuers. `wall` is the wall clock; `bind_client`: a principal is a user of one client;
    `claims`: those that rules ask about. `before` did this for the last configuration: an issuer that is away when
    another one comes into force goes on by what is known."""

    def __init__(
        self,
        found: Sequence[Issuer],
        http: Http,
        nursery: trio.Nursery,
        log: Log,
        telemetry: Telemetry,
        wall: Callable[[], float],
        *,
        bind_client: bool = False,
        claims: frozenset[str] = frozenset(),
        before: "TokenVerifier | None" = None,
    ) -> None:
        self._issuers = {issuer.issuer: issuer for issuer in found}
        self._keys = {issuer.issuer: Keys(issuer, http, nursery, log) for issuer in found}
        self._introspectors = {
            issuer.issuer: Introspector(issuer, issuer.introspection, http)
            for issuer in found
            if issuer.introspection is not None
        }
        self._log = log
        self._telemetry = telemetry
        self._wall = wall
        self._bind_client = bind_client
        self._claims = claims
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._good: OrderedDict[bytes, str] = OrderedDict()
        """Tokens that an issuer has once called good, and which one."""
        self._logged: dict[str, float] = {}
        if before is not None:
            self._learn(before)

    def _learn(self, before: "TokenVerifier") -> None:
        """Takes over what is as good as it was: keys that are found as before, and what the tokens of issuers are worth
        of which nothing else is said."""
        for name, keys in before._keys.items():
            if name in self._issuers and keys.of(self._issuers[name]):
                self._keys[name] = keys
        same = {name for name, issuer in self._issuers.items() if before._issuers.get(name) == issuer}
        self._introspectors |= {name: asks for name, asks in before._introspectors.items() if name in same}
        self._good.update((digest, name) for digest, name in before._good.items() if name in same)
        if (self._bind_client, self._claims) == (before._bind_client, before._claims):
            known = before._known.items()
            self._known.update((d, one) for d, one in known if one.asker and one.asker.rights.issuer in same)

    def known(self, token: str, resources: Sequence[str]) -> Asker | None:
        """As in `Verifier`. (Each request comes here, so that it is one look.)"""
        if len(token) > access_tokens.LONGEST:
            return None
        digest = sha256(token.encode()).digest()
        known = self._known.get(digest)
        if known is None or known.until <= self._wall():
            return None
        self._known.move_to_end(digest)
        return known.asker if known.any or not known.audiences.isdisjoint(resources) else None

    async def verify(self, token: str, resources: Sequence[str]) -> Asker | Unproven:
        """As in `Verifier`."""
        try:
            return self._meant(await self._worth(token), resources)
        except BadTokenError as error:
            self._tell(error.reason)
            return Unproven(expired=error.expired, reason=error.reason)
        except OAuthError as error:
            self._tell("away", error.reason)
            return Unproven(away=True, reason="away")

    def _meant(self, known: _Known, resources: Sequence[str]) -> Asker:
        """The audience is looked at always (MCP 2026-07-28, authorization, "Access Token Privilege Restriction")."""
        if known.refused is not None:
            raise known.refused
        asker = known.asker
        assert asker is not None
        expiry = asker.rights.expiry
        if expiry is not None and expiry + SKEW <= self._wall():
            raise BadTokenError("expired", expired=True)
        if not known.any and known.audiences.isdisjoint(resources):
            raise BadTokenError("audience")
        return asker

    async def _worth(self, token: str) -> _Known:
        if len(token) > access_tokens.LONGEST:
            raise BadTokenError("too_long")
        digest = sha256(token.encode()).digest()
        known = self._remembered(digest)
        if known is not None:
            return known
        named = access_tokens.named(token)
        found = await (self._opaque(token, digest) if named is None else self._signed(token, digest, named))
        return self._remember(digest, found)

    def _remembered(self, digest: bytes) -> _Known | None:
        known = self._known.get(digest)
        if known is None or known.until <= self._wall():
            return None
        self._known.move_to_end(digest)
        return known

    def _remember(self, digest: bytes, found: _Known) -> _Known:
        self._known[digest] = found
        self._known.move_to_end(digest)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return found

    # By signature

    async def _signed(self, token: str, digest: bytes, named: Named) -> _Known:
        issuer = self._issuers.get(named.issuer)
        if issuer is None:
            raise BadTokenError("unknown_issuer")  # nobody is asked for strangers
        access_tokens.check_kind(named, issuer)
        keys = await self._keys[named.issuer].choose(named)
        if not keys:
            raise BadTokenError("unknown_key")
        claims = access_tokens.signed(token, named, keys)
        expiry = access_tokens.check_claims(claims, issuer, self._wall())
        known = self._of(issuer, claims, expiry, SIGNED_FOR)
        if issuer.always and issuer.issuer in self._introspectors:
            told = await self._ask(self._introspectors[issuer.issuer], token, digest)
            if told.refused is not None:
                return told
            known = _Known(min(known.until, told.until), known.asker, known.audiences, known.any)
        return known

    def _of(self, issuer: Issuer, claims: Mapping[str, Any], expiry: float | None, seconds: float) -> _Known:
        rights = issuers.rights_of(claims, issuer, expiry, self._claims)
        if rights is None:
            raise BadTokenError("no_subject")
        if rights.partial:
            self._warn("groups_left_out", issuer=issuer.issuer)
        name = principal_id(issuer.issuer, rights.subject)
        if self._bind_client:
            name += f":{len(rights.client)}:{rights.client}"
        asker = Asker(Principal(name), rights, number(claims.get("iat")))
        ends = self._wall() + seconds
        until = ends if expiry is None else min(ends, expiry + SKEW)
        meant = access_tokens.audiences(claims)
        return _Known(until, asker, meant, not meant.isdisjoint(issuer.audiences))

    # By the issuer's word

    async def _opaque(self, token: str, digest: bytes) -> _Known:
        """Nobody can see whose it is: who once knew it, or a few in their order, are asked."""
        pinned = self._good.get(digest)
        asked = [self._introspectors[pinned]] if pinned is not None else list(self._introspectors.values())
        found = _Known(self._wall() + REFUSED_FOR, refused=BadTokenError("opaque"))
        away: AwayError | None = None
        for introspector in asked[:ISSUERS_ASKED]:
            try:
                found = await self._ask(introspector, token, digest)
            except AwayError as error:
                away = error
                continue
            if found.refused is None:
                return found
        if away is not None:
            raise away
        return found

    async def _ask(self, introspector: Introspector, token: str, digest: bytes) -> _Known:
        issuer = introspector.issuer
        try:
            claims = await introspector.ask(token, self._wall(), known=digest in self._good)
            if issuer.subject == (("sub",),) and "sub" not in claims:
                claims = {**claims, "sub": claims.get("client_id")}  # a client that asks for itself
            found = self._of(issuer, claims, number(claims.get("exp")), TOLD_FOR)
        except BadTokenError as refused:
            self._good.pop(digest, None)
            return _Known(self._wall() + REFUSED_FOR, refused=refused)
        self._good[digest] = issuer.issuer
        if len(self._good) > REMEMBERED:
            self._good.popitem(last=False)
        return _Known(found.until, found.asker, found.audiences, found.any or issuer.any_audience)

    # What the owner is told

    def _tell(self, reason: str, why: str = "") -> None:
        self._telemetry.count("stagedoor_tokens_refused_total", (reason,))
        self._warn("token_refused", reason=why or reason)

    def _warn(self, event: str, **values: str) -> None:
        key, now = f"{event} {values}", trio.current_time()
        if now - self._logged.get(key, -LOGGED) >= LOGGED:
            self._logged[key] = now
            self._log.warning(event, **values)
