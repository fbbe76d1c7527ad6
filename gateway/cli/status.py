"""`stagedoor status`: replicas, servers and sessions of a running gateway, by its admin listener."""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click
import trio

from gateway.cli.asking import DEFAULT_URL
from gateway.cli.client import ClientFailedError, Parts
from gateway.cli.common import json_option
from gateway.cli.output import print_json, print_rows, printable

PAGE = 500
"""Sessions asked for at one time."""
MOST = 10_000
"""Sessions counted; of more it is said that there are more."""
EVERY = 2.0
"""Seconds between two looks of `--watch`."""


@click.command()
@click.option("--url", metavar="URL", default=DEFAULT_URL, help=f"A running gateway ({DEFAULT_URL}).")
@click.option("--admin", metavar="URL", help="Its admin listener, if it isn't found.")
@click.option("--watch", is_flag=True, help="Look again every 2 s, until Ctrl-C.")
@json_option
@click.pass_obj
def status(parts: Callable[[], Parts], /, *, url: str, admin: str | None, watch: bool, as_json: bool) -> None:
    """Show the replicas of a running gateway, its servers, and its sessions by state and era."""
    show = print_json if as_json else _show
    show(_found(parts, url, admin))
    # That is how it is ended, and no failure.
    with suppress(KeyboardInterrupt):
        while watch:
            time.sleep(EVERY)
            show(_found(parts, url, admin))


def _found(parts: Callable[[], Parts], url: str, admin: str | None) -> dict[str, Any]:
    try:
        return trio.run(_look, parts(), url, admin)
    except ClientFailedError as error:
        raise click.ClickException(str(error)) from error


async def _look(parts: Parts, url: str, admin: str | None) -> dict[str, Any]:
    servers = await parts.ask_gateway(url, admin)
    if servers is None:
        raise ClientFailedError(f"no admin listener of a gateway answers for {url} (--admin URL)")
    replicas: list[dict[str, Any]] = []
    seen: dict[str, tuple[str, str]] = {}
    cursor, modern = "", 0
    while len(seen) < MOST:
        code, page = await parts.operate(url, admin, "list", "", {"cursor": cursor, "limit": str(PAGE)}) or (504, {})
        if code != 200:
            raise ClientFailedError(str(page.get("error", f"the admin listener answered {code}")))
        replicas = page.get("replicas", replicas)
        for entry in page.get("sessions", ()):
            seen[entry["key"]] = str(entry.get("state", "")), str(entry.get("era", ""))
        modern += page.get("modern", 0)
        cursor = page.get("next", "")
        if not cursor:
            break
    counts = Counter(seen.values())
    if modern:
        counts["live", "modern"] = modern
    counted = [{"state": s, "era": e, "sessions": n} for (s, e), n in sorted(counts.items())]
    return {"replicas": replicas, "servers": servers, "sessions": counted, "more": bool(cursor)}


def _show(found: dict[str, Any]) -> None:
    print_rows(
        ("replica", "state", "host", "process"),
        [
            [r["incarnation"], "alive" if r["alive"] else "dead", str(r.get("host", "-")), str(r.get("pid", "-"))]
            for r in found["replicas"]
        ],
    )
    print_rows(
        ("server", "status", "era", "connections", "why"),
        [
            [
                printable(str(s.get("name", ""))),
                str(s.get("status", "")),
                str(s.get("era", "-")),
                str(s.get("connections", 0)),
                printable(str(s.get("error", {}).get("message", ""))),
            ]
            for s in found["servers"]
        ],
    )
    print_rows(("state", "era", "sessions"), [[s["state"], s["era"], str(s["sessions"])] for s in found["sessions"]])
    if found["more"]:
        click.echo(f"there are more sessions than {MOST}", err=True)
