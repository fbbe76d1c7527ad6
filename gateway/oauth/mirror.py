"""The metadata of an issuer, as clients of 2025-03-26 look for it: at the origin of the server itself ("Server Metadata
Discovery" there). Later ones find the issuer by the metadata of the resource, and never look here.
"""

from typing import Final

import trio

from gateway.oauth import metadata
from gateway.oauth.discovery import Http
from gateway.oauth.errors import OAuthError
from gateway.oauth.trust import trusted_by

FRESH: Final = 300.0
"""Seconds for which it is not fetched again, had or not."""


class Mirror:
    """Serves the metadata of one issuer at our origin."""

    def __init__(self, issuer: str, http: Http) -> None:
        self._issuer = issuer
        self._http = http
        self._trusted = trusted_by(issuer)
        self._body: bytes | None = None
        self._fetched = -FRESH
        self._lock = trio.Lock()

    async def __call__(self) -> bytes | None:
        """The document; None: it can't be had. One request for all who ask."""
        async with self._lock:
            if trio.current_time() - self._fetched >= FRESH:
                self._body = await self._fetch()
                self._fetched = trio.current_time()
            return self._body

    async def _fetch(self) -> bytes | None:
        try:
            for where in metadata.issuer_urls(self._issuer):
                answer = await self._http("GET", where, headers={"Accept": "application/json"}, trusted=self._trusted)
                if answer.status == 200:
                    metadata.read_keys_url(self._issuer, answer.body)  # it is of this very issuer
                    return answer.body
        except OAuthError:
            return None
        return None
