"""What an issuer says of a token when it is asked (RFC 7662).

Strangers can make up any number of tokens, and each costs the issuer a question. So there are few places for tokens
that were never good, others for those that were, and an answer that is about one token says nothing of the next.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

import trio

from actors.protocol.issuers import Introspection, Issuer
from actors.protocol.rights import SKEW
from gateway.oauth import documents
from gateway.oauth.access_tokens import BadTokenError, audiences, check_begun, check_use
from gateway.oauth.discovery import Http
from gateway.oauth.documents import number
from gateway.oauth.errors import AwayError, shown
from gateway.oauth.grants import Client, authenticated
from gateway.oauth.trust import trusted_by

AT_ONCE: Final = 8
"""Questions under way at one issuer, of tokens that were good before, and as many of others."""
PATIENCE: Final = 5.0
"""Seconds that a question waits for its turn."""
OURS: Final = ("invalid_client", "unauthorized_client")
"""What is wrong is the gateway, not the token; with 400 where no header said who asks (RFC 6749, section 5.2)."""


class Introspector:
    """Asks one issuer of tokens, a few at a time."""

    def __init__(self, issuer: Issuer, introspection: Introspection, http: Http) -> None:
        self.issuer = issuer
        self._endpoint = introspection.endpoint
        asked = introspection
        self._client = Client(asked.client_id, asked.method, asked.client_secret, asked.private_key, asked.algorithm)
        self._http = http
        self._trusted = trusted_by(introspection.endpoint, issuer.issuer)
        self._known = trio.CapacityLimiter(AT_ONCE)
        self._strangers = trio.CapacityLimiter(AT_ONCE)

    async def ask(self, token: str, now: float, *, known: bool) -> Mapping[str, Any]:
        """The claims of a token that is active. `known`: it was good before. Raises BadTokenError; AwayError where
        nobody can tell."""
        places = self._known if known else self._strangers
        with trio.move_on_after(PATIENCE) as waiting:
            await places.acquire()
        if waiting.cancelled_caught:
            raise AwayError("introspection_busy", f"{shown(self.issuer.issuer)} is asked too much")
        try:
            return _claims(self.issuer, *await self._post(token, now), now)
        finally:
            places.release()

    async def _post(self, token: str, now: float) -> tuple[int, bytes]:
        form = {"token": token, "token_type_hint": "access_token"}
        headers, whole = authenticated(form, self._client, self.issuer.issuer, now)
        headers |= {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        body = urlencode(whole).encode()
        answer = await self._http("POST", self._endpoint, headers=headers, body=body, trusted=self._trusted)
        return answer.status, answer.body


def _claims(issuer: Issuer, status: int, body: bytes, now: float) -> Mapping[str, Any]:
    said = documents.read(body)
    if status == 400 and (said or {}).get("error") not in OURS:
        raise BadTokenError("refused")  # the issuer can make nothing of this one
    claims = said if status == 200 else None
    if claims is None:
        # Also where our own credentials are refused (401): that is no fault of the token's.
        raise AwayError("introspection_failed", f"{shown(issuer.issuer)} answered with HTTP {status}")
    if claims.get("active") is not True:
        raise BadTokenError("inactive")
    if claims.get("iss", issuer.issuer) != issuer.issuer:
        raise BadTokenError("issuer")
    expiry = number(claims.get("exp"))
    if expiry is not None and expiry + SKEW <= now:
        raise BadTokenError("expired", expired=True)
    check_begun(claims, now)
    check_use(claims)
    if claims.get("cnf") is not None and not issuer.bound:
        raise BadTokenError("bound")
    if not issuer.any_audience and not audiences(claims):
        raise BadTokenError("audience")
    return claims
