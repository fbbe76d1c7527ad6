"""`stagedoor principals`: takes the access from somebody, on all replicas of a running gateway, or gives it back."""

from collections.abc import Callable, Mapping
from typing import Any

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
        _warn_of_a_stranger(told)
    if accounts and told.get("more"):
        raise click.ClickException("there are more accounts: run it again")


def _warn_of_a_stranger(told: Mapping[str, Any]) -> None:
    """Whoever takes the access from somebody must not believe that it is done because of a slip of his pen."""
    if told.get("known") is False:
        click.secho("warning: ", fg="yellow", nl=False, err=True)
        click.echo(
            "no token of the configuration has this name, and none of its issuers: see `sessions list`", err=True
        )


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
