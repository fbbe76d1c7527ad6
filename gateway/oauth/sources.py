"""Where the tokens for one server come from, and what is done when it refuses them.

A source is one server's, or one user's at a server; all transports to it ask the same one, so that whoever is refused
first has new tokens for all. None of it is on the way of a request that is not refused.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

import trio

from actors.ports import Log
from actors.protocol.table import BackendSpec, UpstreamAuth
from gateway.oauth import grants
from gateway.oauth.challenges import Challenge
from gateway.oauth.discovery import Discovery, Provider
from gateway.oauth.errors import AwayError, ClientRefusedError, GrantRefusedError, OAuthError
from gateway.oauth.grants import Client, Tokens
from gateway.oauth.metadata import SCOPES_MAX, AuthorizationServer
from gateway.oauth.vault import Account, Vault

EARLY: Final = 60.0
EARLY_SHARE: Final = 0.2
"""Seconds before its end, and the share of its life, in which a token is exchanged for another one."""
AGAIN: Final = 5.0
"""Seconds after a failure in which an authorization server is left alone; and after new tokens, in which they are not
taken for old ones."""
WITHIN: Final = 25.0
"""Seconds for new tokens: discovery, and a request or two."""


class RefusedError(Exception):
    """The server takes none of our credentials, for one of the reasons of `UNAUTHORIZED`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Source(Protocol):
    """Gives the tokens for one server, or for one user's account at it."""

    @property
    def token(self) -> str | None:
        """What is sent, if anything."""

    @property
    def fresh(self) -> bool:
        """Whether it can be sent as it is."""

    async def load(self) -> None:
        """Brings it up to date, as far as that can be done. Never raises."""

    async def refused(self, challenge: Challenge | None, sent: str | None, *, scope: bool) -> None:
        """The server has refused what was `sent`; `scope`: for want of rights. Afterwards `token` is another
        one. Raises RefusedError."""


def due(tokens: Tokens, obtained: float, now: float) -> bool:
    """Whether they are to be exchanged for others before anybody refuses them."""
    if tokens.expires is None:
        return False
    left, life = tokens.expires - now, tokens.expires - obtained
    return left < min(EARLY, life / 2) or left < life * EARLY_SHARE


def expired(tokens: Tokens, now: float) -> bool:
    """Whether nobody will take them any more."""
    return tokens.expires is not None and tokens.expires <= now


async def configured_client(vault: Vault, spec: BackendSpec, url: str, provider: Provider) -> Client | None:
    """The client that the configuration names, for the issuer that it belongs to. Raises OAuthError for another one: a
    secret goes to one issuer, and so does the answer to a sign-in, which comes to the address of all such clients."""
    auth = spec.auth
    assert auth is not None
    if auth.client_id is None:
        return None
    issuer = provider.server.issuer
    if auth.issuer is None:
        first = await vault.first_issuer(spec.name, url, auth.client_id, issuer)
        if first != issuer:
            raise OAuthError(
                "issuer_changed",
                f"the client is of {first}, and the server names {issuer} now: configure `auth.issuer` and the client",
            )
    return client_of(auth, auth.client_id, provider.server)


def client_of(auth: UpstreamAuth, id: str, server: AuthorizationServer) -> Client:
    """The configured client, as it authenticates at this authorization server."""
    method = grants.method_for(server, secret=auth.client_secret is not None, key=auth.private_key is not None)
    audience = server.token_endpoint if auth.for_token_endpoint else None
    return Client(id, method, auth.client_secret, auth.private_key, auth.algorithm, audience=audience)


def client_now(auth: UpstreamAuth, account: Account) -> Client:
    """The one that the tokens of an account were given to; of one that is configured, with what it has there now."""
    client = account.client
    if auth.client_id != client.id or auth.issuer not in (None, account.issuer):
        return client
    audience = account.token_endpoint if auth.for_token_endpoint else None
    return replace(client, secret=auth.client_secret, key=auth.private_key, algorithm=auth.algorithm, audience=audience)


class Fixed:
    """A token that stands in the configuration."""

    def __init__(self, token: str) -> None:
        self.token: str | None = token
        self.fresh = True

    async def load(self) -> None:
        """Nothing to do."""

    async def refused(self, challenge: Challenge | None, sent: str | None, *, scope: bool) -> None:
        """There is no other one."""
        raise RefusedError("auth_refused", "the server refuses the configured token")


class Nothing:
    """There are no credentials: what the server refuses without, is refused."""

    token: str | None = None
    fresh = True

    async def load(self) -> None:
        """Nothing to do."""

    async def refused(self, challenge: Challenge | None, sent: str | None, *, scope: bool) -> None:
        """Nobody is there who could connect."""
        raise RefusedError("not_connected", "it is for users who have connected their accounts")


class Ask(Protocol):
    """Asks for tokens."""

    async def __call__(self, challenge: Challenge | None, before: tuple[str, ...]) -> tuple[Tokens, tuple[str, ...]]:
        """Others, and the scopes that were asked for: `before`, and what the challenge wants. Raises OAuthError."""


class AskedTokens:
    """Tokens that are had by asking. They are kept in memory, and replaced by asking again.

    `ahead`: they are asked for before anything is sent; else the server's first 401 shows where. `about`: what an
    answer depends on; where it is another one, a failure of before says nothing."""

    def __init__(
        self,
        backend: str,
        ask: Ask,
        wall: Callable[[], float],
        log: Log,
        *,
        ahead: bool = False,
        about: Callable[[], object] = lambda: None,
    ) -> None:
        self._backend = backend
        self._ask = ask
        self._wall = wall
        self._log = log
        self._ahead = ahead
        self._about = about
        self._tokens: Tokens | None = None
        self._obtained = 0.0
        self._scopes: tuple[str, ...] = ()
        """Those that were asked for last."""
        self._failed: tuple[float, object, RefusedError] | None = None
        """When they could not be had last, about what, and why."""
        self._lock = trio.Lock()

    @property
    def token(self) -> str | None:
        tokens = self._tokens
        return tokens.access if tokens is not None and not expired(tokens, self._wall()) else None

    @property
    def fresh(self) -> bool:
        tokens = self._tokens
        good = not self._ahead if tokens is None else not due(tokens, self._obtained, self._wall())
        return good or self._recent_failure() is not None

    def _recent_failure(self) -> RefusedError | None:
        if self._failed is None:
            return None
        at, about, why = self._failed
        return why if trio.current_time() - at < AGAIN and about == self._about() else None

    async def load(self) -> None:
        async with self._lock:
            if not self.fresh:
                try:
                    await self._obtain(None, self._scopes)
                except RefusedError:
                    return  # as long as it is good, the old one is sent; then the server refuses it

    async def refused(self, challenge: Challenge | None, sent: str | None, *, scope: bool) -> None:
        async with self._lock:
            if self.token is not None and self.token != sent:
                return
            failure = self._recent_failure()
            if failure is not None:
                raise failure
            wanted = tuple(dict.fromkeys((*self._scopes, *((challenge.scopes or ()) if challenge is not None else ()))))
            if scope and self._tokens is not None and set(wanted) <= {*self._scopes, *self._tokens.scopes}:
                raise RefusedError("insufficient_scope", "the gateway has not the rights that it needs")
            if len(wanted) > SCOPES_MAX:
                raise RefusedError("insufficient_scope", "it wants other rights again and again")
            if not scope and sent is not None and self._wall() - self._obtained < AGAIN:
                raise RefusedError("auth_refused", "the server refuses a token that was given a moment ago")
            await self._obtain(challenge, wanted if self._tokens is not None or scope else ())

    async def _obtain(self, challenge: Challenge | None, before: tuple[str, ...]) -> None:
        """New tokens."""
        try:
            with trio.fail_after(WITHIN):
                tokens, asked = await self._ask(challenge, before)
        except trio.TooSlowError:
            self._fail(RefusedError("auth_unavailable", "its authorization server is too slow"))
        except AwayError as error:
            self._fail(RefusedError("auth_unavailable", str(error)))
        except OAuthError as error:
            self._fail(RefusedError("auth_refused", str(error)))
        else:
            self._tokens, self._scopes, self._obtained, self._failed = tokens, asked, self._wall(), None

    def _fail(self, refusal: RefusedError) -> None:
        self._failed = (trio.current_time(), self._about(), refusal)
        self._log.warning("auth_failed", backend=self._backend, reason=refusal.reason, error=str(refusal))
        raise refusal


class ClientCredentials:
    """Asks as the gateway itself (OAuth 2.1, client credentials grant), at the authorization server that the server
    names."""

    def __init__(
        self, spec: BackendSpec, url: str, discovery: Discovery, vault: Vault, wall: Callable[[], float]
    ) -> None:
        assert spec.auth is not None
        self._spec = spec
        self._auth: UpstreamAuth = spec.auth
        self._url = url
        self._discovery = discovery
        self._vault = vault
        self._wall = wall
        self._provider: Provider | None = None

    async def __call__(self, challenge: Challenge | None, before: tuple[str, ...]) -> tuple[Tokens, tuple[str, ...]]:
        """As in `Ask`."""
        provider, self._provider = self._provider, None
        if provider is None or challenge is not None:
            provider = await self._discovery.provider(self._url, challenge, self._auth)
        client = await configured_client(self._vault, self._spec, self._url, provider)
        if client is None:
            raise OAuthError("no_client", "`auth.clientId` is missing")
        resource, server = provider.resource, provider.server
        challenged = challenge.scopes if challenge is not None else None
        chosen = self._auth.scopes or challenged or (resource.scopes or ())
        asked = tuple(dict.fromkeys((*before, *chosen)))
        told, name = self._vault.told, self._spec.name
        try:
            tokens = await self._discovery.tokens(
                server.issuer,
                server.token_endpoint,
                client,
                grants.client_form(asked, resource.resource),
                asked=asked,
                now=self._wall(),
                trusted=provider.trusted,
            )
        except (GrantRefusedError, ClientRefusedError) as refused:
            told.token("token.refused", name, iss=server.issuer, reason=refused.reason)
            raise
        told.token("token.fetch", name, iss=server.issuer, scopes=list(tokens.scopes))
        self._provider = provider
        return tokens, asked


__all__ = [
    "Ask",
    "AskedTokens",
    "ClientCredentials",
    "ClientRefusedError",
    "Fixed",
    "Nothing",
    "RefusedError",
    "Source",
    "due",
    "expired",
]
