"""Signing in to our pages at the issuer of the gateway's own tokens (OpenID Connect Core, authorization code flow).

The ID token comes from the token endpoint itself, over a connection that has shown whose it is, so its signature is not
looked at (section 3.1.3.7, 6); everything that it says is.

Anybody may begin a sign-in, so none is kept for it: what is to be known at its end goes with it as its `state`, sealed.
That an answer has come is kept: a `state` is good for one (RFC 9700, section 4.2.4), and so is its code, however the
issuer has answered us (RFC 6749, section 4.1.2).
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from actors.ports import Failed, Refused, Sealer, Shelf
from actors.protocol.issuers import Issuer, rights_of
from actors.protocol.rights import Rights, principal_id
from gateway.oauth import grants
from gateway.oauth.discovery import Discovery
from gateway.oauth.errors import OAuthError
from gateway.oauth.grants import Client
from gateway.oauth.metadata import AuthorizationServer
from gateway.oauth.trust import checked, trusted_by
from gateway.oauth.vault import shelf_key, there

LIVES: Final = 600.0
"""Seconds that a sign-in may take."""
SKEW: Final = 60.0
MARK: Final = "in."
"""Begins a `state` that is of a sign-in."""
CONTEXT: Final = b"sign-in"


KNOWN: Final = 300.0
"""Seconds that the metadata of an issuer is kept."""


class _Pending(Struct, frozen=True, array_like=True):
    issuer: str
    browser: str
    verifier: str
    nonce: str
    onward: str
    until: float


class AnsweredError(OAuthError):
    """An answer with this `state` has come before: whoever reloads the page goes on where the sign-in led to."""

    def __init__(self, onward: str) -> None:
        super().__init__("bad_state", "this answer was used before: begin again")
        self.onward = onward


class SignIn:
    """Signs users in to our pages, on any replica. `issuers`: those of the gateway; the first one is asked where
    nothing says which."""

    def __init__(
        self,
        issuers: Sequence[Issuer],
        client_id: str,
        client_secret: str | None,
        redirect_uri: str,
        shelf: Shelf,
        sealer: Sealer,
        discovery: Discovery,
        wall: Callable[[], float],
    ) -> None:
        self._issuers = {issuer.issuer: issuer for issuer in issuers}
        self._first = issuers[0].issuer
        self._client_id = client_id
        self._client_secret = client_secret
        self._redirect_uri = redirect_uri
        self._shelf = shelf
        self._sealer = sealer
        self._discovery = discovery
        self._wall = wall
        self._servers: dict[str, tuple[AuthorizationServer, float]] = {}
        """By issuer: its metadata, and until when they are kept."""

    def issuer_of(self, principal: str | None) -> str:
        """Where this principal can show who he is."""
        for issuer in self._issuers:
            if principal is not None and principal.startswith(f"{len(issuer)}:{issuer}:"):
                return issuer
        return self._first

    def is_its(self, state: str) -> bool:
        """Whether an answer is one to a sign-in."""
        return state.startswith(MARK)

    async def begin(self, issuer: str, browser: str, onward: str) -> str:
        """Where to sign in; afterwards the browser goes on at `onward`, a page of ours. Raises OAuthError."""
        server = await self._server(issuer)
        if server.authorization_endpoint is None:
            raise OAuthError("bad_metadata", "the login names no place to sign in")
        checked(server.authorization_endpoint, trusted_by(issuer))
        nonce, verifier = secrets.token_urlsafe(16), grants.verifier()
        pending = _Pending(issuer, browser, verifier, nonce, onward, self._wall() + LIVES)
        state = MARK + self._sealer.seal(msgspec.json.encode(pending), CONTEXT)
        return grants.authorize_url(
            server.authorization_endpoint,
            client_id=self._client_id,
            redirect_uri=self._redirect_uri,
            state=state,
            code_challenge=grants.challenge(verifier),
            # Claims of a profile are what tells users apart where `sub` does not (Entra's `oid`).
            scopes=("openid",) if self._issuers[issuer].subject == (("sub",),) else ("openid", "profile"),
            resource=None,
            more={"nonce": nonce},
        )

    async def finish(self, state: str, browser: str, answer: Mapping[str, str]) -> tuple[str, Rights, str]:
        """Who has signed in, with what rights, and where he goes on. Raises OAuthError."""
        pending = self._pending(state)
        if not browser or not secrets.compare_digest(pending.browser, browser):
            raise OAuthError("other_browser", "this answer is for another browser: begin again in this one")
        server = await self._server(pending.issuer)
        await self._use_up(state, pending)
        grants.check_iss(pending.issuer, server.iss, answer.get("iss"))
        if "error" in answer or not answer.get("code"):
            raise OAuthError("declined", "you were not signed in")
        form = grants.code_form(answer["code"], pending.verifier, self._redirect_uri, None)
        method = "client_secret_basic" if self._client_secret is not None else "none"
        client = Client(self._client_id, method, self._client_secret)
        claims = await self._discovery.id_token(pending.issuer, server.token_endpoint, client, form, self._wall())
        self._check(claims, pending)
        issuer = self._issuers.get(pending.issuer)
        rights = rights_of(claims, issuer, None) if issuer is not None else None
        if rights is None:
            raise OAuthError("bad_login", "the login did not say who you are")
        return principal_id(pending.issuer, rights.subject), rights, pending.onward

    def _pending(self, state: str) -> _Pending:
        plain = self._sealer.unseal(state.removeprefix(MARK), CONTEXT)
        if plain is None:
            raise _unknown()
        pending = msgspec.json.decode(plain, type=_Pending)
        if self._wall() > pending.until:
            raise _unknown()
        return pending

    async def _use_up(self, state: str, pending: _Pending) -> None:
        left = max(1.0, pending.until - self._wall())
        answered = await self._shelf.put(shelf_key("sign-in", state), b"answered", left, instead="")
        if isinstance(answered, Failed) and answered.reason is Refused.FENCED:
            raise AnsweredError(pending.onward)
        there(answered)

    async def _server(self, issuer: str) -> AuthorizationServer:
        if issuer not in self._issuers:  # of a configuration before
            raise _unknown()
        server, until = self._servers.get(issuer, (None, 0.0))
        if server is None or self._wall() > until:
            server = await self._discovery.server(issuer)
            self._servers[issuer] = server, self._wall() + KNOWN
        return server

    def _check(self, claims: Mapping[str, Any], pending: _Pending) -> None:
        audience, expires = claims.get("aud"), claims.get("exp")
        audiences = audience if isinstance(audience, list) else [audience]
        good = (
            claims.get("iss") == pending.issuer
            and self._client_id in audiences
            and claims.get("azp", self._client_id) == self._client_id
            and isinstance(expires, int | float)
            and expires > self._wall() - SKEW
            and claims.get("nonce") == pending.nonce
        )
        if not good:
            raise OAuthError("bad_login", "the login's answer is not for this sign-in")


def _unknown() -> OAuthError:
    return OAuthError("bad_state", "this answer is of no sign-in that is under way: begin again")
