"""Composes what tells whose a token is, from the settings. What verifies the tokens of issuers is loaded only for those
who have some."""

from collections.abc import Awaitable, Callable
from functools import partial
from time import time

import trio

from actors.ports import NO_AUDIT, Asker, Audit, Log, Revocations, Telemetry
from gateway.config.settings import Address, Settings
from gateway.http.authorization import Authorization, Resource
from gateway.http.security import Gate


def authorization(
    settings: Settings,
    listen: Address,
    nursery: trio.Nursery,
    log: Log,
    telemetry: Telemetry,
    revocations: Revocations | None = None,
    audit: Audit = NO_AUDIT,
    note: Callable[[Asker, str], Awaitable[None]] | None = None,
) -> Callable[[Gate], Authorization]:
    """Makes the checks of a listener at this address. What they fetch is fetched in `nursery`. `note` hears of each
    good token of an issuer."""
    auth = settings.auth
    if not auth.issuers:
        return partial(Authorization, revocations=revocations, audit=audit, public_url=settings.public_url)
    from gateway.oauth.http import GuardedHttp
    from gateway.oauth.mirror import Mirror
    from gateway.oauth.verifier import TokenVerifier

    scopes = tuple(dict.fromkeys(scope for issuer in auth.issuers for scope in issuer.scopes))
    resource = Resource(
        settings.public_url or _at(settings, listen), tuple(issuer.issuer for issuer in auth.issuers), scopes
    )
    verifier = TokenVerifier(auth.issuers, GuardedHttp(), nursery, log, telemetry, time, bind_client=auth.bind_client)
    mirror = Mirror(auth.issuers[0].issuer, GuardedHttp()) if auth.legacy_metadata else None
    return partial(
        Authorization,
        resource=resource,
        verifier=verifier,
        revocations=revocations,
        mirror=mirror,
        audit=audit,
        note=note,
    )


def _at(settings: Settings, listen: Address) -> str:
    """Of a listener that this machine alone can reach."""
    scheme = "https" if settings.tls is not None else "http"
    return f"{scheme}://{listen.url_host}:{listen.port}"
