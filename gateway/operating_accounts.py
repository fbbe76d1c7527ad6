"""What operators see of users' accounts at servers, and do with them: never a token, only that there is one."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import trio

from actors.protocol.table import BackendSpec, Table

if TYPE_CHECKING:
    from gateway.oauth.flows import Flows
    from gateway.oauth.service import UpstreamAuthorization
    from gateway.oauth.vault import AccountKey

MOST: Final = 1000
"""Accounts in one list."""
WITHIN: Final = 15.0
"""Seconds for one of these; what was not done then is told, and may be asked for again."""
AWAY: Final = {"error": "the store of the accounts is not available; try again"}


async def operate_accounts(
    authorization: "UpstreamAuthorization[Any]", flows: "Flows", table: Table, what: str, options: Mapping[str, str]
) -> tuple[int, dict[str, Any]]:
    """An HTTP status and a JSON object. `accounts` lists them, `accounts-disconnect` ends those of a `principal`, at
    one `server` or at all; `rewrap` seals all anew by the present key."""
    from gateway.oauth.errors import AwayError

    try:
        places = [
            place
            for place in await authorization.vault.places()
            if options.get("principal") in (None, "", place.principal)
            and options.get("server") in (None, "", place.backend)
        ]
        match what:
            case "accounts":
                return 200, await _listed(authorization, table, places)
            case "accounts-disconnect":
                return 200, await _disconnected(authorization, flows, table, places)
            case _:
                return 200, await _rewrapped(authorization, places)
    except AwayError:
        return 503, AWAY


def _spec(table: Table, place: "AccountKey") -> BackendSpec | None:
    """The server that an account is for, as long as it is configured as it was."""
    from gateway.oauth.service import url_of

    spec = table.backends.get(place.backend)
    return spec if spec is not None and spec.connectable and url_of(spec) == place.url else None


async def _listed(
    authorization: "UpstreamAuthorization[Any]", table: Table, places: "list[AccountKey]"
) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    more = False
    with trio.move_on_after(WITHIN) as scope:
        for place in places:
            kept = await authorization.vault.read(place)
            if kept is None:
                continue  # it has ended by itself
            more = len(found) == MOST
            if more:
                break
            since = datetime.fromtimestamp(kept.account.connected, UTC).isoformat(timespec="seconds")
            found.append(
                {
                    "principal": place.principal,
                    "server": place.backend,
                    "at": place.url,
                    "issuer": kept.account.issuer or None,
                    "connected": since,
                    "used": _spec(table, place) is not None,
                }
            )
    return {"accounts": found, "more": more or scope.cancelled_caught}


async def _disconnected(
    authorization: "UpstreamAuthorization[Any]", flows: "Flows", table: Table, places: "list[AccountKey]"
) -> dict[str, Any]:
    done = 0
    with trio.move_on_after(WITHIN) as scope:
        for place in places:
            if await authorization.disconnect_at(flows, place, _spec(table, place)):
                done += 1
    return {"disconnected": done, "more": scope.cancelled_caught}


async def _rewrapped(authorization: "UpstreamAuthorization[Any]", places: "list[AccountKey]") -> dict[str, Any]:
    """Accounts, and the clients that were registered to get them. A client that no key opens is no loss: another one
    is registered."""
    vault, counts = authorization.vault, {"rewrapped": 0, "unreadable": 0, "clients": 0}
    with trio.move_on_after(WITHIN) as scope:
        for place in places:
            outcome = await vault.rewrap(place)
            if outcome is not None:
                counts["rewrapped" if outcome else "unreadable"] += 1
        for key in await vault.clients():
            counts["clients"] += bool(await vault.rewrap_client(key))
    return {**counts, "more": scope.cancelled_caught}
