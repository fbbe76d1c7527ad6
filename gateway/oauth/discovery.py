"""Finds the authorization server of an MCP server, and speaks with it. What it says is `metadata`'s and `grants`'."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol
from urllib.parse import urlencode

import trio

from actors.protocol.table import UpstreamAuth
from gateway.oauth import grants, metadata
from gateway.oauth.challenges import Challenge
from gateway.oauth.errors import AwayError, OAuthError, shown
from gateway.oauth.grants import Client, Described, Tokens
from gateway.oauth.metadata import AuthorizationServer, Resource
from gateway.oauth.trust import trusted_by

WITHIN: Final = 20.0
"""Seconds in which the authorization server of a server has to be found, however many documents that takes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, whole and within the bounds. Names of `headers` are lower-case."""

    status: int
    body: bytes = field(default=b"", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class Http(Protocol):
    """Makes one request to an address that another one has named: bounded in time and size, never inwards but to what
    is `trusted` (origins, as `metadata.origin` has them), and without following redirects."""

    async def __call__(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        trusted: frozenset[str] = frozenset(),
    ) -> Answer:
        """Raises AwayError, and OAuthError for an address that it will not speak to."""


@dataclass(frozen=True, slots=True)
class Provider:
    """Where the tokens for one MCP server come from."""

    resource: Resource
    server: AuthorizationServer
    trusted: frozenset[str] = frozenset()


class Discovery:
    """Finds and asks the authorization servers of all servers. `now`: the wall clock."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self.described: Described | None = None
        """Our client at those who take a URL for one."""

    async def provider(self, url: str, challenge: Challenge | None, auth: UpstreamAuth) -> Provider:
        """Of the server at this URL, with what is configured. Raises OAuthError."""
        with trio.move_on_after(WITHIN):
            return await self._provider(url, challenge, auth)
        raise AwayError("too_slow", f"the authorization server of {metadata.origin(url)} is not found in time")

    async def _provider(self, url: str, challenge: Challenge | None, auth: UpstreamAuth) -> Provider:
        trusted = trusted_by(url, *auth.named)
        resource = await self._resource(url, challenge, trusted)
        if auth.metadata_url is not None:
            server = await self._described(auth.metadata_url, auth.issuer, trusted)
            if resource is not None:
                metadata.choose_issuer(resource, server.issuer)
        elif resource is None:
            server = await self._at_origin(url, auth.issuer, trusted)
        else:
            server = await self._known(metadata.choose_issuer(resource, auth.issuer), trusted)
        resource = resource or Resource(None, ())
        return Provider(replace(resource, resource=None) if auth.omit_resource else resource, server, trusted)

    async def server(self, issuer: str | None, *named: str, metadata_url: str | None = None) -> AuthorizationServer:
        """The metadata of an issuer that the operator has named, itself or by where that is. Raises OAuthError."""
        if metadata_url is not None:
            trusted = trusted_by(issuer or metadata_url, metadata_url, *named)
            return await self._described(metadata_url, issuer, trusted)
        assert issuer is not None
        return await self._known(issuer, trusted_by(issuer, *named))

    async def id_token(
        self, issuer: str, endpoint: str, client: Client, form: Mapping[str, str], now: float
    ) -> Mapping[str, Any]:
        """What the ID token says that a token endpoint gives for this. Raises OAuthError."""
        answer = await self._post(issuer, endpoint, client, form, now, trusted_by(issuer))
        return grants.id_claims(issuer, answer.status, answer.body)

    async def _resource(self, url: str, challenge: Challenge | None, trusted: frozenset[str]) -> Resource | None:
        named = challenge.parameters.get("resource_metadata") if challenge is not None else None
        for where in dict.fromkeys((*((named,) if named else ()), *metadata.resource_urls(url))):
            body = await self._document(where, trusted)
            if body is not None:
                return metadata.read_resource(url, body)
        return None

    async def _server(self, issuer: str, trusted: frozenset[str]) -> AuthorizationServer | None:
        for where in metadata.issuer_urls(issuer):
            body = await self._document(where, trusted)
            if body is not None:
                return metadata.read_server(issuer, body)
        return None

    async def _known(self, issuer: str, trusted: frozenset[str]) -> AuthorizationServer:
        server = await self._server(issuer, trusted)
        if server is None:
            raise OAuthError("no_metadata", f"{shown(issuer)} has no metadata")
        return server

    async def _described(self, url: str, issuer: str | None, trusted: frozenset[str]) -> AuthorizationServer:
        """By the document that the operator has named."""
        body = await self._document(url, trusted)
        if body is None:
            raise OAuthError("no_metadata", f"there is no metadata at {shown(url)}")
        return metadata.read_server(issuer, body)

    async def _at_origin(self, url: str, issuer: str | None, trusted: frozenset[str]) -> AuthorizationServer:
        """No document says whose tokens it takes: it is configured, or a server of 2025-03-26, which gives them itself
        ("Server Metadata Discovery" there)."""
        chosen = issuer or metadata.at_origin(url)
        found = await self._server(chosen, trusted)
        if found is None and issuer is not None:
            raise OAuthError("no_metadata", f"{shown(chosen)} has no metadata")
        return found or metadata.by_default(chosen)

    async def _document(self, url: str, trusted: frozenset[str]) -> bytes | None:
        """None where there is none: the next place is tried. A server with a fault of its own is asked again later."""
        answer = await self._http("GET", url, headers={"Accept": "application/json"}, trusted=trusted)
        if answer.status >= 500:
            raise AwayError("metadata_away", f"{metadata.origin(url)} answered with HTTP {answer.status}")
        return answer.body if answer.status == 200 else None

    async def register(self, provider: Provider, redirect_uri: str, scopes: tuple[str, ...]) -> Client:
        """Makes a client there (RFC 7591). Raises OAuthError."""
        server = provider.server
        assert server.registration_endpoint is not None
        body = json.dumps(grants.registration(server, redirect_uri, scopes)).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        answer = await self._http(
            "POST", server.registration_endpoint, headers=headers, body=body, trusted=provider.trusted
        )
        return grants.registered(server, answer.status, answer.body)

    async def tokens(
        self,
        issuer: str,
        endpoint: str,
        client: Client,
        form: Mapping[str, str],
        *,
        asked: tuple[str, ...],
        now: float,
        trusted: frozenset[str],
    ) -> Tokens:
        """What a token endpoint gives for this. Raises OAuthError."""
        answer = await self._post(issuer, endpoint, client, form, now, trusted)
        return grants.tokens(issuer, answer.status, answer.body, asked, now)

    async def exchange(
        self,
        server: AuthorizationServer,
        client: Client,
        form: Mapping[str, str],
        *,
        asked: tuple[str, ...],
        now: float,
        until: float,
        named: tuple[str, ...] = (),
    ) -> Tokens:
        """What the issuer of a token gives for it. Raises OAuthError."""
        issuer = server.issuer
        answer = await self._post(issuer, server.token_endpoint, client, form, now, trusted_by(issuer, *named))
        return grants.exchanged(issuer, answer.status, answer.body, asked, now, until)

    async def give_back(
        self, issuer: str, endpoint: str, client: Client, tokens: Tokens, now: float, trusted: frozenset[str]
    ) -> list[bool]:
        """Tells the authorization server that these are not needed any more (RFC 7009): of each, whether it was
        told."""
        done = []
        for token, hint in ((tokens.refresh, "refresh_token"), (tokens.access, "access_token")):
            if token is not None:
                form = {"token": token, "token_type_hint": hint}
                try:
                    answer = await self._post(issuer, endpoint, client, form, now, trusted)
                except OAuthError:
                    done.append(False)
                else:
                    done.append(answer.status == 200)
        return done

    async def _post(
        self,
        issuer: str,
        endpoint: str,
        client: Client,
        form: Mapping[str, str],
        now: float,
        trusted: frozenset[str],
    ) -> Answer:
        client = self.described.now(client) if self.described is not None else client
        headers, whole = grants.authenticated(form, client, issuer, now)
        headers |= {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        return await self._http("POST", endpoint, headers=headers, body=urlencode(whole).encode(), trusted=trusted)
