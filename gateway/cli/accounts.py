"""`stagedoor accounts` and `stagedoor vault`: users' accounts at servers, of a running gateway and all its replicas."""

from collections.abc import Callable
from typing import Any

import click

from actors.protocol.rights import principal_id
from gateway.cli.client import Parts
from gateway.cli.common import json_option
from gateway.cli.output import print_json, print_rows, printable
from gateway.cli.sessions import ask, where

_COLUMNS = ("principal", "server", "issuer", "connected", "used")


def _issuer(command: Callable[..., None]) -> Callable[..., None]:
    return click.option("--issuer", metavar="URL", help="PRINCIPAL is the subject of this issuer.")(command)


@click.group()
def accounts() -> None:
    """See the accounts that users have connected at servers, or disconnect them."""


@accounts.command("list")
@click.argument("principal", required=False)
@click.option("--server", metavar="NAME", default="", help="At this server alone.")
@_issuer
@where
@json_option
@click.pass_obj
def list_accounts(
    parts: Callable[[], Parts],
    /,
    *,
    principal: str | None,
    server: str,
    issuer: str | None,
    url: str,
    admin: str | None,
    as_json: bool,
) -> None:
    """The accounts of PRINCIPAL, or of everybody.

    No token is shown. An account that is not `used` is of a server that is not configured as it was.
    """
    whose = principal_id(issuer, principal) if issuer is not None and principal else principal or ""
    told = ask(parts, (url, admin), "accounts", principal=whose, server=server)
    if as_json:
        print_json(told)
        return
    rows = [[_cell(entry.get(column)) for column in _COLUMNS] for entry in told["accounts"]]
    print_rows(_COLUMNS, rows)
    if told.get("more"):
        click.echo("there are more", err=True)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


@accounts.command()
@click.argument("principal")
@click.argument("server", required=False)
@_issuer
@where
@json_option
@click.pass_obj
def disconnect(
    parts: Callable[[], Parts],
    /,
    *,
    principal: str,
    server: str | None,
    issuer: str | None,
    url: str,
    admin: str | None,
    as_json: bool,
) -> None:
    """Forget the account of PRINCIPAL at SERVER, or at all servers.

    The authorization server is told, if it can be. After seconds no replica uses the account any more.
    """
    whose = principal_id(issuer, principal) if issuer is not None else principal
    told = ask(parts, (url, admin), "accounts-disconnect", principal=whose, server=server or "")
    if as_json:
        print_json(told)
    else:
        click.echo(printable(f"{told.get('disconnected')} accounts of {whose} are disconnected"))
    if told.get("more"):
        raise click.ClickException("there are more: run it again")


@click.group()
def vault() -> None:
    """See to what seals the accounts of users."""


@vault.command()
@where
@json_option
@click.pass_obj
def rewrap(parts: Callable[[], Parts], /, *, url: str, admin: str | None, as_json: bool) -> None:
    """Seal all accounts and registered clients anew, by the first of `gateway.keys`.

    Then the other keys can be taken out. Exit status 1 if not all could be.
    """
    told = ask(parts, (url, admin), "rewrap")
    if as_json:
        print_json(told)
    else:
        number, clients = told.get("rewrapped"), told.get("clients", 0)
        click.echo(printable(f"{number} accounts and {clients} registered clients are sealed by the first key"))
    if told.get("unreadable"):
        raise click.ClickException(f"{told['unreadable']} accounts are sealed by no key that is configured")
    if told.get("more"):
        raise click.ClickException("there are more: run it again")
