"""Composes what tells whose a token is, from the settings. What verifies the tokens of issuers is loaded only for those
who have some."""

from collections.abc import Awaitable, Callable
from functools import partial
from time import time
from typing import TYPE_CHECKING

import trio

from actors.ports import NO_AUDIT, Asker, Audit, Log, Revocations, Telemetry
from actors.protocol.issuers import EVERYTHING
from gateway.config.settings import Address, Settings
from gateway.http.authorization import Authorization, Resource
from gateway.http.security import SecurityChecks

if TYPE_CHECKING:
    from gateway.oauth.verifier import TokenVerifier


class Admission:
    """Makes the checks of a listener at this address, from the settings that are put in force one after the other. What
    they fetch is fetched in `nursery`. `note` hears of each good token of an issuer. What is known of an issuer, and of
    its tokens, stays known for as long as the same is said of it."""

    def __init__(
        self,
        listen: Address,
        nursery: trio.Nursery,
        log: Log,
        telemetry: Telemetry,
        revocations: Revocations | None = None,
        audit: Audit = NO_AUDIT,
        note: Callable[[Asker, str], Awaitable[None] | None] | None = None,
    ) -> None:
        self._listen = listen
        self._nursery = nursery
        self._log = log
        self._telemetry = telemetry
        self._revocations = revocations
        self._audit = audit
        self._note = note
        self._verifier: TokenVerifier | None = None

    def __call__(self, settings: Settings) -> Callable[[SecurityChecks], Authorization]:
        """As these settings say."""
        auth = settings.auth
        checks = partial(Authorization, revocations=self._revocations, audit=self._audit)
        if not auth.issuers:
            self._verifier = None
            return partial(checks, public_url=settings.public_url)
        from gateway.oauth.http import GuardedHttp
        from gateway.oauth.mirror import Mirror
        from gateway.oauth.verifier import TokenVerifier

        scopes = tuple(dict.fromkeys(scope for issuer in auth.issuers for scope in issuer.scopes))
        resource = Resource(
            settings.public_url or _at(settings, self._listen), tuple(issuer.issuer for issuer in auth.issuers), scopes
        )
        self._verifier = TokenVerifier(
            auth.issuers,
            GuardedHttp(),
            self._nursery,
            self._log,
            self._telemetry,
            time,
            bind_client=auth.bind_client,
            claims=claims_of(settings),
            before=self._verifier,
        )
        mirror = Mirror(auth.issuers[0].issuer, GuardedHttp()) if auth.legacy_metadata else None
        return partial(checks, resource=resource, verifier=self._verifier, mirror=mirror, note=self._note)


def claims_of(settings: Settings) -> frozenset[str]:
    """Which claims of tokens the rules ask about; all of them may count for a server that gets a token in place of a
    user's."""
    table = settings.table
    asked = table.policy.claims if table.policy is not None else frozenset[str]()
    exchanged = any(spec.exchanged for spec in table.backends.values())
    return asked | {EVERYTHING} if exchanged else asked


def _at(settings: Settings, listen: Address) -> str:
    """Of a listener that this machine alone can reach."""
    scheme = "https" if settings.tls is not None else "http"
    return f"{scheme}://{listen.url_host}:{listen.port}"
