"""How a command reaches the admin listener of a running gateway."""

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import trio

from gateway.cli.client import ClientFailedError
from gateway.running import admins
from gateway.wire.errors import WireError
from gateway.wire.pool import Pool
from gateway.wire.url import Origin, parse_url

ADMIN_WAIT = 3.0
"""Seconds for an admin listener to answer."""
ACT_WAIT = 20.0
"""Seconds for it to look at sessions, or do something, perhaps by way of another replica."""
ANSWER_BYTES = 16 * 1024 * 1024
"""Of it."""
UNIX = "unix:"
LOCAL = ("127.0.0.1", "localhost", "::1")


async def ask_gateway(url: str, admin: str | None) -> list[dict[str, Any]] | None:
    """The servers of the gateway that listens where `url` says, by its admin API; None if that is not found."""
    pool = Pool()
    try:
        found = await _find(pool, url, admin)
    finally:
        pool.close()
    return None if found is None else list(found[1]["servers"])


async def operate(
    url: str, admin: str | None, what: str, name: str, options: Mapping[str, str]
) -> tuple[int, dict[str, Any]] | None:
    """Lists the sessions of that gateway and its replicas, or its users' accounts, or acts on them; None: its admin API
    is not found."""
    pool = Pool()
    try:
        found = await _find(pool, url, admin)
        if found is None:
            return None
        if what in ("list", "accounts"):
            of = "sessions" if what == "list" else what
            answer = await _json(pool, "GET", f"{found[0]}/api/{of}?{urlencode(options)}", None)
            return answer or (504, {"error": f"the admin listener at {found[0]} did not answer in time"})
        body = json.dumps(dict(options)).encode()
        place = f"sessions/{quote(name, safe='')}/{what}"
        if what in ("revoke", "restore"):
            place, body = f"principals/{what}", json.dumps({"principal": name}).encode()
        elif what in ("accounts-disconnect", "rewrap"):
            place = "accounts/disconnect" if what == "accounts-disconnect" else "vault/rewrap"
        answer = await _json(pool, "POST", f"{found[0]}/api/{place}", body)
        unknown = f"the admin listener at {found[0]} did not answer in time: it may have been done all the same"
        return answer or (504, {"error": unknown})
    finally:
        pool.close()


async def compare(
    url: str, admin: str | None, digests: Callable[[bytes], Mapping[str, str]]
) -> tuple[int, dict[str, Any]] | None:
    """What a configuration would change at that gateway, by its digests with the key that it gives; None: its admin API
    is not found."""
    pool = Pool()
    try:
        found = await _find(pool, url, admin)
        if found is None:
            return None
        place = f"{found[0]}/api/config"
        status, told = await _json(pool, "GET", place, None) or (504, {"error": "it did not answer in time"})
        if status != 200:
            return status, told
        body = json.dumps(dict(digests(bytes.fromhex(str(told["key"]))))).encode()
        return await _json(pool, "POST", place, body) or (504, {"error": "it did not answer in time"})
    finally:
        pool.close()


async def _find(pool: Pool, url: str, admin: str | None) -> tuple[str, dict[str, Any]] | None:
    """Where the admin listener is of the gateway that listens at this URL, and how its servers are."""
    if url.startswith(UNIX):
        return await _among(pool, [admin] if admin is not None else admins(url.removeprefix(UNIX)), url, admin)
    try:
        origin = parse_url(url).origin
    except ValueError as error:
        raise ClientFailedError(f"{url}: {error}") from error
    candidates = [admin] if admin is not None else [*_recorded(origin), *_beside(origin)]
    return await _among(pool, candidates, f":{origin.port}", admin, str(origin))


async def _among(
    pool: Pool, candidates: list[str], listen: str, *sure: str | None
) -> tuple[str, dict[str, Any]] | None:
    """The first of these that is an admin listener, of a gateway whose address ends so; of those that are `sure` no
    more is asked."""
    for candidate in candidates:
        place = candidate.rstrip("/")
        status, found = await _json(pool, "GET", f"{place}/api/servers", None) or (0, {})
        if status != 200 or not isinstance(found.get("servers"), list):
            continue
        if str(found.get("listen", "")).endswith(listen) or candidate in sure:
            return place, found
    return None


def _recorded(origin: Origin) -> list[str]:
    """Gateways of this machine have left word of where theirs is."""
    return admins(origin.port) if origin.host in LOCAL else []


def _beside(origin: Origin) -> list[str]:
    """Where an admin listener is by default: the next port. Or it was given itself."""
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    return [str(origin), f"http://{host}:{origin.port + 1}"]


async def _json(pool: Pool, method: str, url: str, body: bytes | None) -> tuple[int, dict[str, Any]] | None:
    """Status and body of an answer that is a JSON object; None for anything else."""
    headers = [("Accept", "application/json")] + ([("Content-Type", "application/json")] if body is not None else [])
    try:
        with trio.move_on_after(ADMIN_WAIT if url.endswith("/api/servers") else ACT_WAIT):
            with await pool.request(method, url, headers, body) as reply:
                found = json.loads(await reply.read(ANSWER_BYTES))
                return (reply.status, found) if isinstance(found, dict) else None
    except (WireError, ValueError):
        return None
    return None
