"""Composition of what the gateway does as a client of authorization servers. Most gateways do nothing of it: then
nothing of `gateway.oauth` is loaded."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import trio

from actors.ports import ANONYMOUS, NO_AUDIT, Accounts, Answer, Asker, Audit, Log, Sealer, Shelf, Telemetry
from actors.protocol.table import BackendSpec, Table
from gateway.backends.credentials import Credentials, ProcessKey, Refusal
from gateway.config import Auth, Settings
from gateway.config.settings import Address, Browser

if TYPE_CHECKING:
    from gateway.http.app import ServePage
    from gateway.oauth.connect import Connect
    from gateway.oauth.discovery import Discovery
    from gateway.oauth.flows import Flows
    from gateway.oauth.grants import Described
    from gateway.oauth.known_issuers import KnownIssuers, NamedIssuer
    from gateway.oauth.service import UpstreamAuthorization
    from gateway.oauth.vault import AccountKey

Who = Callable[[str], Awaitable[Asker | None]]
"""Whose a token of the gateway's is."""


class Authorizing:
    """Makes the parts of upstream authorization when a server first needs them, once for a process."""

    def __init__(
        self,
        shelf: Shelf,
        sealer: Sealer,
        log: Log,
        nursery: trio.Nursery,
        wall: Callable[[], float],
        audit: Audit = NO_AUDIT,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._audit = audit
        self._telemetry = telemetry
        self._shelf = shelf
        self._sealer = sealer
        self._log = log
        self._nursery = nursery
        self._wall = wall
        self._accounts: Accounts | None = None

    @cached_property
    def authorization(self) -> "UpstreamAuthorization[Refusal]":
        """The sources of all tokens."""
        from gateway.oauth.service import LateHttp, UpstreamAuthorization
        from gateway.oauth.token_trail import TokenTrail

        told = TokenTrail(self._audit, self._telemetry)
        return UpstreamAuthorization(
            self._shelf, self._sealer, LateHttp(), Refusal, self._log, self._nursery, self._wall, told
        )

    @cached_property
    def _of_sign_ins(self) -> "Discovery":
        """Anybody may begin a sign-in to our pages: what strangers cause keeps nobody's token waiting."""
        from gateway.oauth.discovery import Discovery
        from gateway.oauth.service import LateHttp

        return Discovery(LateHttp())

    def credentials(self, spec: BackendSpec) -> Credentials | None:
        """What authorizes a connection to this server; None: its headers are all it needs."""
        return self.authorization.credentials(spec) if spec.auth is not None else None

    def noting(self, table: Callable[[], Table]) -> Callable[[Asker, str], Awaitable[None] | None]:
        """Keeps the tokens by which users ask, as long as there is a server for which they are exchanged; None where
        there is none."""
        seen: list[tuple[Table, bool]] = []

        def note(asker: Asker, token: str) -> Awaitable[None] | None:
            now = table()
            if not seen or seen[0][0] is not now:
                auths = [spec.auth for spec in now.backends.values()]
                seen[:] = [(now, any(auth is not None and auth.mode == "exchange" for auth in auths))]
            return self.authorization.subjects.note(asker, token) if seen[0][1] else None

        return note

    def key(self, spec: BackendSpec) -> ProcessKey | None:
        """What is in the environment of a user's own process; None: nothing that is his alone."""
        return self.authorization.key(spec) if spec.auth is not None else None

    # Users' accounts

    def flows(self, settings: Settings, base: str, known: "KnownIssuers | None" = None) -> "Flows":
        """How users connect their accounts, on pages at this address. `known`: see `Flows`."""
        from gateway.oauth.flows import Flows

        found = self.authorization
        readable = settings.client_metadata_url is not None or base.startswith("https://")
        found.discovery.described = described(settings, base) if readable else None
        return Flows(
            self._shelf,
            self._sealer,
            found.vault,
            found.discovery,
            self._wall,
            redirect_uri=f"{base}/connect/callback",
            described=found.discovery.described,
            known=known,
        )

    def accounts(
        self,
        settings: Callable[[], Settings],
        listen: Address,
        table: Callable[[], Table],
        hear: Callable[[str, str], object],
    ) -> Accounts | None:
        """What actors are told of users' accounts; None: pages for them have not been configured yet. (Later on calls
        may wait for an account at a server that is no more.) `settings` and `table` are those in force; `hear` is told,
        of each account that changes, whose it is and at which server."""
        if self._accounts is None and settings().auth.browser is not None:
            from gateway.oauth.invitations import Invitations

            now = settings()
            flows = self.flows(now, base_of(now, listen))
            self._accounts = Invitations(self.authorization, flows, table, lambda: base_of(settings(), listen))
            self.authorization.on_change.append(partial(_told, hear))
        return self._accounts

    def pages(
        self,
        settings: Callable[[], Settings],
        listen: Address,
        table: Callable[[], Table],
        who: Who,
        gone: Callable[[Asker], bool],
    ) -> "ServePage":
        """The pages on which users connect their accounts, where they are configured. `settings` and `table` are those
        in force; `gone`: whether somebody has no access any more."""
        made: list[tuple[Settings, Connect | None]] = []

        def in_force() -> "Connect | None":
            """The pages know issuers, tokens and their own address by the settings that they were made of."""
            now = settings()
            if not made or made[0][0] is not now:
                browser = now.auth.browser
                pages = None if browser is None else self._connect(now, browser, listen, table, who, gone)
                made[:] = [(now, pages)]
            return made[0][1]

        in_force()  # with what it needs
        return partial(_served, in_force)

    def _connect(
        self,
        settings: Settings,
        browser: Browser,
        listen: Address,
        table: Callable[[], Table],
        who: Who,
        gone: Callable[[Asker], bool],
    ) -> "Connect":
        from gateway.oauth.connect import Connect, Login
        from gateway.oauth.known_issuers import KnownIssuers
        from gateway.oauth.login import SignIn

        base = base_of(settings, listen)
        issuers = settings.auth.issuers
        login = Login(
            browser.mode,
            browser.client_id,
            browser.client_secret,
            browser.header,
            browser.peers,
            "" if settings.auth.asked else ANONYMOUS.name,
            browser.groups,
            settings.callers.tokens,
            settings.callers.issuers,
        )
        known = KnownIssuers(lambda: issuers_of(settings.auth, table()), self.authorization.discovery)
        flows = self.flows(settings, base, known)
        sign_in = None
        if browser.mode == "oidc" and issuers:
            self._of_sign_ins.described = self.authorization.discovery.described
            sign_in = SignIn(
                issuers,
                browser.client_id,
                browser.client_secret,
                f"{base}/connect/callback",
                self._shelf,
                self._sealer,
                self._of_sign_ins,
                self._wall,
            )
        return Connect(
            base,
            described(settings, base),
            login,
            flows,
            self.authorization,
            table,
            self._sealer,
            who,
            sign_in,
            self._log,
            gone,
        )

    async def operate(
        self, settings: Settings, listen: Address, table: Table, what: str, options: Mapping[str, str]
    ) -> tuple[int, dict[str, Any]]:
        """What an operator asks of accounts (`gateway.operating_accounts`)."""
        from gateway.operating_accounts import operate_accounts

        flows = self.flows(settings, base_of(settings, listen))
        return await operate_accounts(self.authorization, flows, table, what, options)


async def _served(
    connect: "Callable[[], Connect | None]",
    method: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    body: bytes,
    peer: str,
) -> Answer:
    pages = connect()
    if pages is None:
        from gateway.http.response import refusal

        return refusal(404, "Not found: no such endpoint")
    from gateway.oauth.connect import Request

    page = await pages(Request(method, path, query, headers, body, peer))
    return Answer(page.status, page.body, (*page.headers, ("Content-Type", page.type)))


def _told(hear: Callable[[str, str], object], place: "AccountKey") -> None:
    hear(place.principal, place.backend)


def issuers_of(auth: Auth, table: Table) -> "frozenset[NamedIssuer]":
    """All that the operator has named: the gateway's own, and those of servers."""
    from gateway.oauth.known_issuers import NamedIssuer

    auths = [spec.auth for spec in table.backends.values() if spec.auth is not None]
    of_servers = (NamedIssuer(a.issuer, a.metadata_url, a.inside) for a in auths if a.issuer or a.metadata_url)
    return frozenset((*(NamedIssuer(one.issuer) for one in auth.issuers), *of_servers))


def described(settings: Settings, base: str) -> "Described":
    """Our client at those who take a URL for one."""
    from gateway.oauth.grants import Described

    ours = f"{base}/connect/client-metadata"
    elsewhere, keys = settings.client_metadata_url, (settings.client_keys, settings.client_key_algorithm)
    return Described(elsewhere, *keys) if elsewhere is not None else Described(f"{ours}.json", *keys, each=ours)


def base_of(settings: Settings, listen: Address) -> str:
    """The address of the gateway without a path of ours: the configured one, else that of a listener that this machine
    alone can reach."""
    scheme = "https" if settings.tls is not None else "http"
    return settings.public_url or f"{scheme}://{listen.url_host}:{listen.port}"


@asynccontextmanager
async def open_authorizing(
    shelf: Shelf,
    sealer: Sealer,
    log: Log,
    wall: Callable[[], float] = time.time,
    audit: Audit = NO_AUDIT,
    telemetry: Telemetry | None = None,
) -> AsyncIterator[Authorizing]:
    """Until the block ends: then what renews an account comes to its end first."""
    async with trio.open_nursery() as nursery:
        yield Authorizing(shelf, sealer, log, nursery, wall, audit, telemetry)
        nursery.cancel_scope.cancel()
