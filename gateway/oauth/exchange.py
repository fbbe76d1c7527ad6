"""Tokens of users for a server, in place of those by which they ask (RFC 8693, token exchange).

The token by which a user asks is shown to its own issuer alone, by the gateway as the client that it is there; the
server gets what the issuer gives for it, which ends when that token does. Each user has his own for each server, and
for whatever the token says with which he asks: a client that may little at the gateway may not more at the server.
"""

from collections.abc import Callable
from typing import Final

import trio

from actors.ports import Rights
from actors.protocol.table import BackendSpec, UpstreamAuth
from gateway.oauth import grants
from gateway.oauth.challenges import Challenge
from gateway.oauth.discovery import Discovery
from gateway.oauth.errors import AwayError, OAuthError, shown
from gateway.oauth.grants import Client, Tokens
from gateway.oauth.metadata import AuthorizationServer
from gateway.oauth.sources import client_of, due
from gateway.oauth.subjects import Subjects
from gateway.oauth.token_trail import NO_TRAIL, TokenTrail
from gateway.oauth.trust import trusted_by

METADATA_FRESH: Final = 300.0
"""Seconds for which it is known where the issuer exchanges tokens."""


class Exchange:
    """For one server: how the gateway asks the issuer."""

    def __init__(
        self,
        spec: BackendSpec,
        url: str,
        subjects: Subjects,
        discovery: Discovery,
        wall: Callable[[], float],
        told: TokenTrail = NO_TRAIL,
    ) -> None:
        self._name = spec.name
        self._told = told
        assert spec.auth is not None
        assert spec.auth.issuer is not None
        self._auth: UpstreamAuth = spec.auth
        self._issuer = spec.auth.issuer
        self._url = url
        self._subjects = subjects
        self._discovery = discovery
        self._wall = wall
        self._server: tuple[float, AuthorizationServer] | None = None
        self._own: tuple[float, Tokens] | None = None
        """The gateway's own tokens at the issuer, and when they were given."""
        self._turn = trio.Lock()

    async def ask(
        self, principal: str, rights: Rights, challenge: Challenge | None, before: tuple[str, ...]
    ) -> tuple[Tokens, tuple[str, ...]]:
        """As `sources.Ask`, for who asks with these rights."""
        subject = await self._subjects.find(principal, rights)
        if subject is None or subject.issuer != self._issuer:
            raise OAuthError("no_subject", f"it is for who asks by a token of {shown(self._issuer)}")
        challenged = challenge.scopes if challenge is not None else None
        asked = tuple(dict.fromkeys((*before, *self._auth.scopes, *(challenged or ()))))
        resource = None if self._auth.omit_resource else self._url
        server = await self._metadata()
        try:
            actor = await self._actor(server) if self._auth.delegation else None
            form = grants.exchange_form(subject.token, resource, self._auth.audience, asked, actor)
            now = self._wall()
            tokens = await self._discovery.exchange(
                server,
                self._client(server),
                form,
                asked=asked,
                now=now,
                until=subject.until,
                named=self._auth.named,
            )
        except OAuthError as error:
            self._server = None  # it may be elsewhere by now
            if not isinstance(error, AwayError):
                self._own = None  # which may be what was refused
                of = {"account": principal, "iss": self._issuer}
                self._told.token("token.refused", self._name, **of, reason=error.reason)
            raise
        scopes = list(tokens.scopes)
        self._told.token("token.fetch", self._name, account=principal, iss=self._issuer, scopes=scopes)
        return tokens, asked

    async def _actor(self, server: AuthorizationServer) -> str:
        """The token by which the gateway says that it is the one who acts."""
        async with self._turn:
            now = self._wall()
            if self._own is None or due(self._own[1], self._own[0], now):
                tokens = await self._discovery.tokens(
                    server.issuer,
                    server.token_endpoint,
                    self._client(server),
                    grants.client_form((), None),
                    asked=(),
                    now=now,
                    trusted=trusted_by(server.issuer, *self._auth.named),
                )
                self._own = (now, tokens)
                self._told.token("token.fetch", self._name, iss=self._issuer, scopes=list(tokens.scopes))
            return self._own[1].access

    async def _metadata(self) -> AuthorizationServer:
        now = trio.current_time()
        if self._server is None or now - self._server[0] >= METADATA_FRESH:
            self._server = (now, await self._discovery.server(self._issuer, *self._auth.named))
        return self._server[1]

    def _client(self, server: AuthorizationServer) -> Client:
        assert self._auth.client_id is not None
        return client_of(self._auth, self._auth.client_id, server)
