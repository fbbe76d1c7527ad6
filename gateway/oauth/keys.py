"""The public keys of one issuer, as long as they are good (RFC 7517; RFC 8414, section 3).

They are fetched when a token first needs them, so that a start needs no issuer, and again in the background when they
get old. A key that nobody knows is looked for at once, and after one that was not there no other for a while, whoever
asks how often. Where the issuer is away the last keys go on. Fetching belongs to a nursery of the gateway's: a client
that hangs up takes nothing from those who wait too.
"""

import re
from collections.abc import Sequence
from typing import Final

import trio

from actors.ports import Log
from actors.protocol.issuers import Issuer
from gateway.oauth import metadata
from gateway.oauth.access_tokens import Key, Named, choose, read_keys
from gateway.oauth.discovery import Answer, Http
from gateway.oauth.errors import AwayError, OAuthError, shown
from gateway.oauth.trust import trusted_by

SHORTEST: Final = 300.0
LONGEST: Final = 24 * 3600.0
"""Seconds for which keys are not fetched again, whatever their issuer says (`Cache-Control`)."""
KEPT: Final = 24 * 3600.0
"""Seconds for which keys are good while their issuer is away."""
AGAIN: Final = 30.0
"""Seconds without another look, after one for a key that was not there."""
RETRY: Final = 5.0
"""Seconds between two attempts to reach an issuer of which no key is known."""

_MAX_AGE = re.compile(r"(?:^|[,\s])max-age=(\d{1,9})(?:$|[,\s])")


class Keys:
    """Fetches the public keys of one issuer, and keeps them as long as they are good."""

    def __init__(self, issuer: Issuer, http: Http, nursery: trio.Nursery, log: Log) -> None:
        self._issuer = issuer
        self._http = http
        self._nursery = nursery
        self._log = log
        self._trusted = trusted_by(issuer.issuer, *((issuer.jwks_uri,) if issuer.jwks_uri is not None else ()))
        self._keys: Sequence[Key] = ()
        self._fetched = -KEPT
        """When these were, and when it was last tried."""
        self._tried = -KEPT
        self._fresh_until = -KEPT
        self._missed = -KEPT
        """When a key was looked for last that was not there."""
        self._away = False
        """Whether the last attempt failed."""
        self._under_way: trio.Event | None = None

    def of(self, issuer: Issuer) -> bool:
        """Whether these are the keys of an issuer of which this is said."""
        return (issuer.issuer, issuer.jwks_uri) == (self._issuer.issuer, self._issuer.jwks_uri)

    async def choose(self, named: Named) -> Sequence[Key]:
        """The keys that may have signed this token. Raises AwayError where nobody can tell."""
        now = trio.current_time()
        if now - self._fetched >= KEPT:
            self._keys = ()
        found = choose(self._keys, named)
        if found:
            if now >= self._fresh_until and self._may_try(now):
                self._fetch()
            return found
        if self._under_way is not None or self._may_look(now):
            await self._fetch().wait()
            found = choose(self._keys, named)
            if not found:
                self._missed = trio.current_time()
        if not found and self._away:
            raise AwayError("keys_away", f"the keys of {shown(self._issuer.issuer)} can't be had")
        return found

    def _may_look(self, now: float) -> bool:
        """A key of a rotation is there, however new the others are; one that somebody has made up is not."""
        return now - self._missed >= AGAIN if self._keys else self._may_try(now)

    def _may_try(self, now: float) -> bool:
        return now - self._tried >= (AGAIN if self._keys else RETRY)

    def _fetch(self) -> trio.Event:
        """One for all."""
        if self._under_way is None:
            self._under_way = trio.Event()
            self._tried = trio.current_time()
            self._nursery.start_soon(self._bring, self._under_way)
        return self._under_way

    async def _bring(self, done: trio.Event) -> None:
        try:
            await self._replace()
            self._away = False
        except OAuthError as error:
            self._away = True
            self._log.warning(
                "issuer_away", issuer=self._issuer.issuer, reason=error.reason, error=str(error), keys=len(self._keys)
            )
        finally:
            self._under_way = None
            done.set()

    async def _replace(self) -> None:
        url = self._issuer.jwks_uri or await self._named()
        answer = await self._http("GET", url, headers={"Accept": "application/json"}, trusted=self._trusted)
        keys = read_keys(answer.body) if answer.status == 200 else None
        if keys is None:
            raise OAuthError("bad_keys", f"{shown(metadata.origin(url))} gave no keys (HTTP {answer.status})")
        self._keys, self._fetched = keys, trio.current_time()
        self._fresh_until = self._fetched + _lifetime(answer)

    async def _named(self) -> str:
        """Where the issuer's metadata says that they are."""
        issuer = self._issuer.issuer
        for where in metadata.issuer_urls(issuer):
            answer = await self._http("GET", where, headers={"Accept": "application/json"}, trusted=self._trusted)
            if answer.status >= 500:
                raise AwayError("metadata_away", f"{shown(issuer)} answered with HTTP {answer.status}")
            if answer.status == 200:
                return metadata.read_keys_url(issuer, answer.body)
        raise OAuthError("no_metadata", f"{shown(issuer)} has no metadata")


def _lifetime(answer: Answer) -> float:
    said = _MAX_AGE.search(answer.headers.get("cache-control", "").lower())
    return min(max(float(said[1]) if said is not None else SHORTEST, SHORTEST), LONGEST)
