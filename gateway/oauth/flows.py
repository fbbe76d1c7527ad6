"""How a user connects his account at a server: what is kept while he does, and what each step may do.

A flow is named by a handle, which the client and its model know, and which proves nothing. What the authorization
server sends back is tied to it by `state`, which is known to nobody before the user has pressed *Connect*, and to the
browser in which he did (2026-07-28, elicitation, "Phishing"; security best practices, "Confused Deputy").
"""

import hashlib
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import trio
from msgspec import Struct

from actors.ports import Sealer, Shelf, Shelved
from actors.protocol.table import BackendSpec
from gateway.oauth import grants, metadata
from gateway.oauth.challenges import Challenge
from gateway.oauth.discovery import Discovery, Provider
from gateway.oauth.errors import AwayError, ClientRefusedError, OAuthError, shown
from gateway.oauth.grants import Client, Described, Tokens
from gateway.oauth.known_issuers import KnownIssuers
from gateway.oauth.metadata import AuthorizationServer
from gateway.oauth.sources import client_now, configured_client
from gateway.oauth.trust import checked, trusted_by
from gateway.oauth.vault import Account, AccountKey, Vault, opened, shelf_key, there

LIVES: Final = 600.0
"""Seconds that a flow may take, from its beginning to the callback."""
ENDS_WITHIN: Final = 12.0
"""Seconds that an account has to be connected, or to be ended, though its user leaves the page or the gateway ends
meanwhile: nobody else has the tokens. More than one answer of an authorization server may take, and less than until the
watchdog ends a process that drains."""


class Flow(Struct, frozen=True):
    """Somebody is to connect an account. `client`: who asked for it, in the words of that client, and `era`: of which
    era it is; "": the user came by himself. `scopes`: those that the server wants, as far as it has said so; `before`:
    those that the account has."""

    principal: str
    backend: str
    url: str
    client: str = ""
    challenge: dict[str, str] | None = None
    before: tuple[str, ...] = ()
    era: str = ""


class Pending(Struct, frozen=True):
    """A user has been sent to an authorization server. `browser`: which one it was."""

    flow: str
    principal: str
    backend: str
    url: str
    browser: str
    issuer: str
    iss: bool
    token_endpoint: str
    revocation_endpoint: str | None
    verifier: str
    redirect_uri: str
    resource: str | None
    scopes: tuple[str, ...]
    client: Client
    era: str = ""


class Flows:
    """Keeps the flows in which users connect accounts; what one replica begins another may end. Raises AwayError where
    the store is away."""

    def __init__(
        self,
        shelf: Shelf,
        sealer: Sealer,
        vault: Vault,
        discovery: Discovery,
        wall: Callable[[], float],
        *,
        redirect_uri: str,
        described: Described | None,
        known: KnownIssuers | None = None,
    ) -> None:
        """`described`: our client where clients may be URLs; None: nobody could read its document. `known`: whose
        sign-ins are for nobody else."""
        self._known = known
        self._shelf = shelf
        self._sealer = sealer
        self._vault = vault
        self._discovery = discovery
        self._wall = wall
        self._redirect_uri = redirect_uri
        self._described = described

    # Its beginning

    async def begin(self, flow: Flow) -> str:
        """The handle of a flow: that of one which waits already, if there is one."""
        pointer = shelf_key("flow-of", flow.principal, flow.backend, flow.url)
        found = there(await self._shelf.read(pointer))
        if found is not None:
            handle = found.value.decode("latin-1")
            waiting = await self.read(handle)
            if waiting is not None and waiting.principal == flow.principal:
                await self._keep(handle, flow)  # it may want more by now
                return handle
        handle = secrets.token_urlsafe(16)
        await self._keep(handle, flow)
        there(await self._shelf.put(pointer, handle.encode(), LIVES))
        return handle

    async def _keep(self, handle: str, flow: Flow) -> None:
        key = shelf_key("flow", handle)
        there(await self._shelf.put(key, self._seal(key, msgspec.json.encode(flow)), LIVES))

    async def read(self, handle: str) -> Flow | None:
        """The flow with this handle, as long as it waits."""
        key = shelf_key("flow", handle)
        found = there(await self._shelf.read(key))
        plain = self._open(key, found)
        return msgspec.json.decode(plain, type=Flow) if plain is not None else None

    async def end(self, handle: str, flow: Flow) -> None:
        """Forgets a flow that is over."""
        there(await self._shelf.take(shelf_key("flow", handle)))
        there(await self._shelf.take(shelf_key("flow-of", flow.principal, flow.backend, flow.url)))

    # To the authorization server

    async def provider(self, flow: Flow, spec: BackendSpec) -> Provider:
        """Where the user will sign in. Raises OAuthError."""
        assert spec.auth is not None
        challenge = Challenge("bearer", flow.challenge) if flow.challenge is not None else None
        provider = await self._discovery.provider(flow.url, challenge, spec.auth)
        checked(metadata.for_users(provider.server), provider.trusted)  # a browser is sent there
        if self._known is not None and provider.server.issuer != spec.auth.issuer:
            await self._known.check(provider.server)
        return provider

    def scopes(self, flow: Flow, spec: BackendSpec, provider: Provider) -> tuple[str, ...]:
        """What the user is asked for."""
        assert spec.auth is not None
        challenge = Challenge("bearer", flow.challenge) if flow.challenge is not None else None
        challenged = challenge.scopes if challenge is not None else None
        return grants.scopes_for(provider.server, challenged, provider.resource.scopes, spec.auth.scopes, flow.before)

    async def authorize(self, handle: str, flow: Flow, spec: BackendSpec, provider: Provider, browser: str) -> str:
        """The user has pressed *Connect* in this browser: the address at which he signs in. Raises OAuthError."""
        assert spec.auth is not None
        server, scopes = provider.server, self.scopes(flow, spec, provider)
        redirect_uri = self._redirect(spec, server)
        client = await self._client(flow, spec, provider, redirect_uri, scopes)
        state, verifier = secrets.token_urlsafe(24), grants.verifier()
        pending = Pending(
            handle,
            flow.principal,
            flow.backend,
            flow.url,
            browser,
            server.issuer,
            server.iss,
            server.token_endpoint,
            server.revocation_endpoint,
            verifier,
            redirect_uri,
            provider.resource.resource,
            scopes,
            client,
            flow.era,
        )
        key = shelf_key("state", state)
        there(await self._shelf.put(key, self._seal(key, msgspec.json.encode(pending)), LIVES))
        return grants.authorize_url(
            metadata.for_users(server),
            client_id=client.id,
            redirect_uri=redirect_uri,
            state=state,
            code_challenge=grants.challenge(verifier),
            scopes=scopes,
            resource=provider.resource.resource,
            more=dict(spec.auth.authorize),
        )

    def _redirect(self, spec: BackendSpec, server: AuthorizationServer) -> str:
        """Where the answer of this authorization server comes to. One that does not name itself in its answers has a
        place of its own: an answer of another one, which it may have sent the browser on to, comes elsewhere (RFC 9700,
        section 4.4.2). What an operator has registered or described himself has the common one alone."""
        assert spec.auth is not None
        described = self._described
        fixed = described is not None and not described.each and described.fits(server)
        common = server.iss or fixed or spec.auth.client_id is not None
        return self._redirect_uri if common else callback_of(self._redirect_uri, server.issuer)

    async def _client(
        self, flow: Flow, spec: BackendSpec, provider: Provider, redirect_uri: str, scopes: tuple[str, ...]
    ) -> Client:
        """In the order of MCP ("Client Registration Approaches"): one that the operator has, a URL, or one that is
        registered now and then kept."""
        configured = await configured_client(self._vault, spec, flow.url, provider)
        if configured is not None:
            return configured
        server = provider.server
        if self._described is not None and self._described.fits(server):
            common = redirect_uri == self._redirect_uri
            return Client(self._described.url if common else self._described.at(server.issuer))
        if server.registration_endpoint is None:
            raise OAuthError(
                "no_client",
                f"{shown(server.issuer)} takes no new clients: its operator has to configure `auth.clientId`",
            )
        place = (spec.name, flow.url, server.issuer, redirect_uri)
        known = await self._vault.client(*place)
        if known is not None and (known.expires is None or known.expires > self._wall() + LIVES):
            return known
        client = await self._discovery.register(provider, redirect_uri, scopes)
        await self._vault.keep_client(*place, client)
        return client

    # And back

    async def take(self, state: str, browser: str, where: str) -> Pending:
        """What this callback belongs to: it is good once, in one browser and at one address. Raises OAuthError."""
        key = shelf_key("state", state)
        found = there(await self._shelf.take(key))
        plain = self._open(key, found)
        if plain is None:
            raise OAuthError(
                "bad_state", "this answer was used before, or is of no sign-in that is under way: begin again"
            )
        pending = msgspec.json.decode(plain, type=Pending)
        if not browser or not secrets.compare_digest(pending.browser, browser):
            raise OAuthError("other_browser", "this answer is for another browser: begin again in this one")
        if pending.redirect_uri != where:
            raise grants.wrong_issuer()
        return pending

    async def redeem(self, pending: Pending, spec: BackendSpec, answer: dict[str, str]) -> None:
        """The answer of the authorization server to the user's sign-in: his account is kept. Raises OAuthError."""
        assert spec.auth is not None
        grants.check_iss(pending.issuer, pending.iss, answer.get("iss"))
        if "error" in answer or not answer.get("code"):
            said = shown(answer.get("error", "no code"), 60)
            raise OAuthError("declined", f"{shown(pending.issuer)} did not grant access ({said})")
        with trio.move_on_after(ENDS_WITHIN, shield=True):
            await self._keep_account(pending, spec, answer["code"])
            return
        raise AwayError("too_slow", f"{shown(pending.issuer)} or the store is too slow")

    async def _keep_account(self, pending: Pending, spec: BackendSpec, code: str) -> None:
        place = AccountKey(pending.principal, pending.backend, pending.url)
        refused: ClientRefusedError | None = None
        try:
            tokens = await self._tokens(pending, spec, code)
        except ClientRefusedError as error:
            refused = error
        if refused is not None:
            # The client that was registered is unknown there by now: the next attempt registers another one.
            client_place = (pending.backend, pending.url, pending.issuer, pending.redirect_uri)
            await self._vault.keep_client(*client_place, None)
            raise refused
        account = Account(
            pending.issuer,
            pending.token_endpoint,
            pending.client,
            tokens,
            pending.resource,
            pending.revocation_endpoint,
            pending.scopes,
            self._wall(),
            pending.redirect_uri,
        )
        await self._vault.put(place, account)
        await self._vault.remember(place)
        flow = Flow(pending.principal, pending.backend, pending.url)
        await self.end(pending.flow, flow)

    async def _tokens(self, pending: Pending, spec: BackendSpec, code: str) -> Tokens:
        assert spec.auth is not None
        return await self._discovery.tokens(
            pending.issuer,
            pending.token_endpoint,
            pending.client,
            grants.code_form(code, pending.verifier, pending.redirect_uri, pending.resource),
            asked=pending.scopes,
            now=self._wall(),
            trusted=trusted_by(pending.url, *spec.auth.named),
        )

    async def give_key(self, handle: str, flow: Flow, key: str) -> None:
        """The user has given a key of his own."""
        account = Account("", "", Client(""), Tokens(key), connected=self._wall())
        place = AccountKey(flow.principal, flow.backend, flow.url)
        await self._vault.put(place, account)
        await self._vault.remember(place)
        await self.end(handle, flow)

    async def disconnect(
        self, place: AccountKey, spec: BackendSpec | None, gone: Callable[[], Awaitable[object]]
    ) -> bool:
        """The account is no more, here at once, and at its authorization server if that can be told; whether there was
        one. `gone`: before that server is asked, which may take long. Each of the two has half of the time."""
        account = None
        try:
            with trio.move_on_after(ENDS_WITHIN / 2, shield=True):
                account = await self._vault.take(place)
                await gone()
        finally:
            if account is not None:
                with trio.move_on_after(ENDS_WITHIN / 2, shield=True):
                    await give_back(self._discovery, self._vault, place, account, spec, self._wall())
        return account is not None

    # Sealing

    def _seal(self, key: str, plain: bytes) -> bytes:
        return self._sealer.seal(plain, b"flow " + key.encode()).encode()

    def _open(self, key: str, found: Shelved | None) -> bytes | None:
        return opened(self._sealer, found, b"flow " + key.encode())


async def give_back(
    discovery: Discovery, vault: Vault, place: AccountKey, account: Account, spec: BackendSpec | None, now: float
) -> None:
    """Tells the authorization server that nobody has this account any more, if that can be told."""
    if account.revocation_endpoint is None:
        return
    auth = spec.auth if spec is not None else None
    client = client_now(auth, account) if auth is not None else account.client
    trusted = trusted_by(place.url, *(auth.named if auth is not None else ()))
    for done in await discovery.give_back(
        account.issuer, account.revocation_endpoint, client, account.tokens, now, trusted
    ):
        vault.revoked(place, account, done=done)


def callback_of(common: str, issuer: str) -> str:
    """Below the common callback, that of this issuer alone."""
    return f"{common}/{hashlib.sha256(issuer.encode()).hexdigest()[:32]}"
