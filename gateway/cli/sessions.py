"""`stagedoor sessions`: the sessions of a running gateway and of all its replicas, by its admin listener."""

from collections.abc import Callable, Mapping
from typing import Any

import click
import trio

from gateway.cli.asking import DEFAULT_URL
from gateway.cli.client import ClientFailedError, Parts
from gateway.cli.common import json_option
from gateway.cli.output import print_json, print_rows, printable

PAGE = 200
"""Sessions asked for at one time."""
MOST = 1000
SHORT = 8
"""Digits of an incarnation in a table."""

_COLUMNS = ("handle", "principal", "endpoint", "era", "revision", "state", "owner", "idle", "in flight")


def where(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say whom to ask."""
    command = click.option("--admin", metavar="URL", help="Its admin listener, if it isn't found.")(command)
    url = click.option("--url", metavar="URL", default=DEFAULT_URL, help=f"A running gateway ({DEFAULT_URL}).")
    return url(command)


def ask(parts: Callable[[], Parts], place: tuple[str, str | None], what: str, name: str = "", **options: str) -> Any:
    """The JSON object that the admin listener answers; what it refuses ends the command with status 1."""
    try:
        answer = trio.run(parts().operate, *place, what, name, options)
    except ClientFailedError as error:
        raise click.ClickException(str(error)) from error
    if answer is None:
        raise click.ClickException(f"no admin listener of a gateway answers for {place[0]} (--admin URL)")
    status, body = answer
    if status != 200:
        raise click.ClickException(printable(str(body.get("error", f"it answered {status}"))))
    return body


@click.group()
def sessions() -> None:
    """List sessions, end one, or move one to another replica."""


@sessions.command("list")
@where
@click.option("--limit", metavar="N", type=click.IntRange(min=1), default=MOST, help=f"At most so many ({MOST}).")
@json_option
@click.pass_obj
def list_sessions(parts: Callable[[], Parts], /, *, url: str, admin: str | None, limit: int, as_json: bool) -> None:
    """The sessions of all replicas, and which replicas there are."""
    replicas: list[dict[str, Any]] = []
    found: dict[str, dict[str, Any]] = {}
    cursor = ""
    while len(found) < limit:
        page = ask(parts, (url, admin), "list", cursor=cursor, limit=str(PAGE))
        replicas = page.get("replicas", replicas)
        for entry in page.get("sessions", ()):
            known = found.get(entry["key"])
            if known is None or known.get("idle") is None:
                found[entry["key"]] = entry
        cursor = page.get("next", "")
        if not cursor:
            break
    entries = list(found.values())[:limit]
    if as_json:
        print_json({"replicas": replicas, "sessions": entries, "more": bool(cursor) or len(found) > limit})
        return
    for replica in replicas:
        click.echo(printable(_replica(replica)), err=True)
    print_rows(_COLUMNS, [_row(entry) for entry in entries])
    if cursor or len(found) > limit:
        click.echo("there are more (--limit)", err=True)


@sessions.command()
@click.argument("handle")
@where
@json_option
@click.pass_obj
def end(parts: Callable[[], Parts], /, *, handle: str, url: str, admin: str | None, as_json: bool) -> None:
    """End the session HANDLE, as its client would: what is in flight gets an error."""
    told = ask(parts, (url, admin), "end", handle)
    if as_json:
        print_json(told)
    else:
        click.echo(printable(f"session {told.get('handle')} has ended"))


@sessions.command()
@click.argument("handle")
@click.option("--to", metavar="INCARNATION", default="", help="Which replica, as `sessions list` calls them.")
@where
@json_option
@click.pass_obj
def move(parts: Callable[[], Parts], /, *, handle: str, to: str, url: str, admin: str | None, as_json: bool) -> None:
    """Hand the session HANDLE over to another replica.

    What is in flight goes on there where its server can go on with it. Without --to it is for whichever replica needs
    it first; with it, any that lives can be named.
    """
    told = ask(parts, (url, admin), "move", handle, **({"to": to} if to else {}))
    if as_json:
        print_json(told)
    else:
        target = f" to {told['to']}" if "to" in told else ""
        click.echo(printable(f"session {told.get('handle')} was handed over{target}"))


def _replica(replica: Mapping[str, Any]) -> str:
    where = f"process {replica['pid']} on {replica['host']}" if {"pid", "host"} <= replica.keys() else "-"
    return f"replica {replica['incarnation']}  {'alive' if replica['alive'] else 'dead'}  {where}"


def _row(entry: Mapping[str, Any]) -> list[str]:
    idle = entry.get("idle")
    return [
        str(entry.get("handle", "")),
        str(entry.get("principal", "")),
        "/mcp" + (f"/{entry['endpoint']}" if entry.get("endpoint") else ""),
        str(entry.get("era", "")),
        str(entry.get("revision", "")),
        str(entry.get("state", "")),
        str(entry.get("owner") or "-")[:SHORT],
        "-" if idle is None else f"{idle:.0f} s",
        str(entry.get("in_flight", "")),
    ]
