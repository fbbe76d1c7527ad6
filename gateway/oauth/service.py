"""What composition opens: whatever the gateway does as a client of authorization servers, as one value."""

import hashlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, Generic, TypeVar

import msgspec
import trio

from actors.ports import Log, Rights, Sealer, Shelf
from actors.protocol.table import BackendSpec, RemoteTarget, StdioTarget
from actors.runtime.boundary import boundary
from gateway.oauth.account_news import AccountNews
from gateway.oauth.accounts import FRESH, UserAccount
from gateway.oauth.authorizer import BEARER, Authorizer, KeyVariable
from gateway.oauth.discovery import Answer, Discovery, Http
from gateway.oauth.errors import AwayError
from gateway.oauth.exchange import Exchange
from gateway.oauth.flows import Flow, Flows
from gateway.oauth.sources import AskedTokens, ClientCredentials, Fixed, Nothing, Source
from gateway.oauth.subjects import Subjects
from gateway.oauth.token_trail import NO_TRAIL, TokenTrail
from gateway.oauth.vault import AccountKey, Vault

ACCOUNTS: Final = 10_000
"""Accounts that one process has in hand; the one that was used longest ago is read anew when it is needed."""
RIGHTS: Final = 64
"""Sets of rights of one principal that one connection has in hand."""

LOOK: Final = 0.5
"""Seconds after which it is looked again whether an account is connected."""
WATCHED: Final = 600.0
"""Seconds for which that is done once somebody was sent to connect it: as long as a flow may take."""

Refusal = TypeVar("Refusal")


class UpstreamAuthorization(Generic[Refusal]):
    """Tokens and accounts for servers, of one process. `refusal` makes what transports are told where there are no
    credentials."""

    def __init__(
        self,
        shelf: Shelf,
        sealer: Sealer,
        http: Http,
        refusal: Callable[[str, str], Refusal],
        log: Log,
        nursery: trio.Nursery,
        wall: Callable[[], float],
        told: TokenTrail = NO_TRAIL,
    ) -> None:
        self.vault = Vault(shelf, sealer, told)
        self.subjects = Subjects(shelf, sealer, wall)
        self.discovery = Discovery(http)
        self._refusal = refusal
        self._log = log
        self._nursery = nursery
        self._wall = wall
        self._accounts: dict[tuple[BackendSpec, str], UserAccount] = {}
        self._own: dict[str, tuple[BackendSpec, AskedTokens]] = {}
        self._exchanges: dict[str, tuple[BackendSpec, Exchange]] = {}
        self._exchanged: dict[tuple[BackendSpec, str], AskedTokens] = {}
        self._watched: set[UserAccount] = set()
        self._bound: dict[AccountKey, list[Callable[[], object]]] = {}
        """By account: connections that go on with what was sent when they were made."""
        self._news = AccountNews(shelf)
        self._hears = False
        self.on_change: list[Callable[[AccountKey], object]] = []
        """Who hears that an account is another one, or is there no more."""

    def credentials(self, spec: BackendSpec) -> Authorizer[Refusal] | None:
        """For one connection; None: its headers are all it needs."""
        if spec.auth is None or not isinstance(spec.target, RemoteTarget):
            return None
        line = f"{spec.auth.header.replace('{key}', '{}')}\r\n" if spec.auth.mode == "key" else BEARER
        return Authorizer(self._sources(spec), self._refusal, self.start, line, partial(self._bind, spec))

    def key(self, spec: BackendSpec) -> KeyVariable[Refusal] | None:
        """For one process; None: there is none in its environment."""
        if spec.auth is None or spec.auth.variable is None or not isinstance(spec.target, StdioTarget):
            return None
        return KeyVariable(self._source(spec), spec.auth.variable, self._refusal, partial(self._bind, spec))

    def _bind(self, spec: BackendSpec, lost: Callable[[], object]) -> Callable[[], object]:
        """Has this called when the account of a connection is another one."""
        if not spec.account or not spec.connectable:
            return lambda: None
        place = AccountKey(spec.account, spec.name, url_of(spec))
        bound = self._bound.setdefault(place, [])
        bound.append(lost)

        def unbind() -> None:
            if lost in bound:
                bound.remove(lost)
            if not bound and self._bound.get(place) is bound:
                del self._bound[place]

        return unbind

    def _sources(self, spec: BackendSpec) -> Callable[[Rights], Source]:
        assert spec.auth is not None
        if spec.auth.mode == "exchange" and spec.account:
            return self._by_rights(spec)
        source = self._source(spec)
        return lambda rights: source

    def _source(self, spec: BackendSpec) -> Source:
        assert spec.auth is not None
        if spec.auth.mode == "client_credentials":
            return self._as_itself(spec)
        if spec.account:
            return self.account(spec, spec.account)
        return Fixed(spec.auth.catalog) if spec.auth.catalog is not None else Nothing()

    def _as_itself(self, spec: BackendSpec) -> AskedTokens:
        known = self._own.get(spec.name)
        if known is not None and (known[0].target, known[0].auth) == (spec.target, spec.auth):
            return known[1]
        ask = ClientCredentials(spec, url_of(spec), self.discovery, self.vault, self._wall)
        source = AskedTokens(spec.name, ask, self._wall, self._log)
        self._own[spec.name] = (spec, source)
        return source

    # Tokens in place of those by which users ask

    def _by_rights(self, spec: BackendSpec) -> Callable[[Rights], Source]:
        """Those of one connection, for whoever asks over it."""
        known: dict[str, AskedTokens] = {}

        def source(rights: Rights) -> Source:
            found = known.get(rights.digest)
            if found is None:
                if len(known) >= RIGHTS:
                    known.clear()
                found = known[rights.digest] = self._exchange(spec, rights)
            return found

        return source

    def _exchange(self, spec: BackendSpec, rights: Rights) -> AskedTokens:
        """For who asks with these rights; all connections of a principal have the same."""
        principal, key = spec.account, (spec, rights.digest)
        found = self._exchanged.pop(key, None)
        if found is None:
            ask = partial(self._issuer_of(spec).ask, principal, rights)
            about = partial(self.subjects.known, principal, rights)
            found = AskedTokens(spec.name, ask, self._wall, self._log, ahead=True, about=about)
        self._exchanged[key] = found
        if len(self._exchanged) > ACCOUNTS:
            del self._exchanged[next(iter(self._exchanged))]
        return found

    def _issuer_of(self, spec: BackendSpec) -> Exchange:
        known = self._exchanges.get(spec.name)
        if known is not None and (known[0].target, known[0].auth) == (spec.target, spec.auth):
            return known[1]
        exchange = Exchange(spec, url_of(spec), self.subjects, self.discovery, self._wall, self.vault.told)
        self._exchanges[spec.name] = (spec, exchange)
        return exchange

    # Users' accounts

    def account(self, spec: BackendSpec, principal: str) -> UserAccount:
        """A user's account at a server."""
        place = AccountKey(principal, spec.name, url_of(spec))
        key = (spec.of(principal), principal)
        found = self._accounts.pop(key, None)
        if found is None:
            found = UserAccount(
                place, spec, self.discovery, self.vault, self.start, self._wall, self._log, self._changed
            )
        self._accounts[key] = found
        if not self._hears:
            self._hears = True
            self.start(self._hear)
        if len(self._accounts) > ACCOUNTS:
            del self._accounts[next(iter(self._accounts))]
        return found

    def known(self, spec: BackendSpec, principal: str) -> UserAccount | None:
        """The same, if this process has it in hand."""
        return self._accounts.get((spec.of(principal), principal))

    def flow_of(self, account: UserAccount, client: str = "", era: str = "") -> Flow:
        """What connects this account, with the rights that it lacks."""
        challenge = account.challenge
        place = account.place
        said = dict(challenge.parameters) if challenge is not None else None
        return Flow(place.principal, place.backend, place.url, client, said, account.wanted, era)

    async def disconnect(self, flows: Flows, spec: BackendSpec, principal: str) -> bool:
        """A user wants the gateway to use his account no more; whether there was one."""
        self.account(spec, principal)  # in hand, so that whoever uses it is told
        return await self.disconnect_at(flows, AccountKey(principal, spec.name, url_of(spec)), spec)

    async def disconnect_at(self, flows: Flows, place: AccountKey, spec: BackendSpec | None) -> bool:
        """The same, where the server may be configured no more."""
        return await flows.disconnect(place, spec, lambda: self.changed(place))

    def watch(self, account: UserAccount) -> None:
        """Looks for a while whether another process has another account: somebody has been sent to connect it."""
        if account not in self._watched:
            self._watched.add(account)
            self.start(lambda: self._look(account))

    async def _look(self, account: UserAccount) -> None:
        try:
            with trio.move_on_after(WATCHED):
                while not account.connected:
                    await trio.sleep(LOOK)
                    with suppress(AwayError):
                        await account.read()
        finally:
            self._watched.discard(account)

    async def wait(self, account: UserAccount, seconds: float) -> bool:
        """Until the account is another one than was refused; whether it is."""
        with trio.move_on_after(seconds):
            while not account.connected:
                await trio.sleep(LOOK)
                with suppress(AwayError):
                    await account.read()
        return account.connected

    def _changed(self, place: AccountKey) -> None:
        for lost in tuple(self._bound.get(place, ())):
            lost()
        for hear in self.on_change:
            hear(place)

    async def changed(self, place: AccountKey) -> None:
        """An account is another one: all replicas look."""
        await self._news.tell(place)
        await self._look_at({place})

    async def _hear(self) -> None:
        """What other replicas tell of accounts that are in hand here."""
        while True:
            await trio.sleep(FRESH)
            await self._look_at(await self._news.read())

    async def _look_at(self, places: Collection[AccountKey]) -> None:
        found = [account for account in self._accounts.values() if account.place in places]
        for account in found:
            with suppress(AwayError):
                await account.read()
        for place in {*places} - {account.place for account in found}:
            if place in self._bound:
                self._changed(place)  # whoever has it in hand reads it anew

    def start(self, fn: Callable[[], Awaitable[object]]) -> None:
        """Runs something in a task of the gateway's; a fault in it is its own."""
        self._nursery.start_soon(self._run, fn)

    async def _run(self, fn: Callable[[], Awaitable[object]]) -> None:
        outcome = await boundary(fn)
        if outcome.error is not None:
            self._log.error("authorization_crashed", exc_info=outcome.error)


def url_of(spec: BackendSpec) -> str:
    """Where a server is, as its resource is named: a WebSocket is at the https URL of the same place, a process is what
    its command is."""
    if isinstance(spec.target, StdioTarget):
        words = msgspec.json.encode([spec.target.command, *spec.target.args])
        return f"process:{hashlib.sha256(words).hexdigest()[:32]}"
    assert isinstance(spec.target, RemoteTarget)
    url = spec.target.url
    scheme, separator, rest = url.partition("://")
    return {"ws": "http", "wss": "https"}.get(scheme.lower(), scheme) + separator + rest


class LateHttp:
    """The client for authorization servers, whose library is loaded with the first request: most gateways make none."""

    def __init__(self) -> None:
        self._http: Http | None = None

    async def __call__(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        trusted: frozenset[str] = frozenset(),
    ) -> Answer:
        if self._http is None:
            self._http = await trio.to_thread.run_sync(_guarded)
        return await self._http(method, url, headers=headers, body=body, trusted=trusted)


def _guarded() -> Http:
    from gateway.oauth.http import GuardedHttp

    return GuardedHttp()
