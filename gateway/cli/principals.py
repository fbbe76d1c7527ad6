"""`stagedoor principals`: takes the access from somebody, on all replicas of a running gateway, or gives it back."""

from collections.abc import Callable

import click

from actors.protocol.rights import principal_id
from gateway.cli.client import Parts
from gateway.cli.common import json_option
from gateway.cli.output import print_json, printable
from gateway.cli.sessions import ask, where


@click.group()
def principals() -> None:
    """Take the access from a principal, or give it back."""


def _named(principal: str, issuer: str | None) -> str:
    return principal if issuer is None else principal_id(issuer, principal)


@principals.command()
@click.argument("principal")
@click.option("--issuer", metavar="URL", help="PRINCIPAL is the subject of this issuer.")
@click.option("--accounts", is_flag=True, help="Disconnect the accounts at servers too.")
@where
@json_option
@click.pass_obj
def revoke(
    parts: Callable[[], Parts],
    /,
    *,
    principal: str,
    issuer: str | None,
    accounts: bool,
    url: str,
    admin: str | None,
    as_json: bool,
) -> None:
    """End the sessions of PRINCIPAL, and refuse every token that was issued until now.

    PRINCIPAL is a name of `auth.tokens`, or as `sessions list` shows it. A configured token stays refused until
    `principals restore`; a user of an issuer may come back with a token that is newer.
    """
    told = ask(parts, (url, admin), "revoke", _named(principal, issuer))
    if accounts:
        told |= ask(parts, (url, admin), "accounts-disconnect", principal=_named(principal, issuer))
    if as_json:
        print_json(told)
    else:
        click.echo(printable(f"{told.get('principal')} has no access any more"))
    if accounts and told.get("more"):
        raise click.ClickException("there are more accounts: run it again")


@principals.command()
@click.argument("principal")
@click.option("--issuer", metavar="URL", help="PRINCIPAL is the subject of this issuer.")
@where
@json_option
@click.pass_obj
def restore(
    parts: Callable[[], Parts], /, *, principal: str, issuer: str | None, url: str, admin: str | None, as_json: bool
) -> None:
    """Take the tokens of PRINCIPAL again."""
    told = ask(parts, (url, admin), "restore", _named(principal, issuer))
    if as_json:
        print_json(told)
    else:
        click.echo(printable(f"{told.get('principal')} has access again"))
