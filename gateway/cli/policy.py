"""`stagedoor explain` and `stagedoor policy test`: what the rules of a configuration come to."""

from dataclasses import replace
from typing import Any

import click

from gateway.cli.arguments import from_json
from gateway.cli.common import json_option, load_file
from gateway.cli.output import print_json, printable


@click.command()
@click.option("--config", metavar="FILE", required=True, help="The configuration whose rules are asked.")
@click.option("--group", "groups", multiple=True, metavar="NAME", help="A group of the token; may be repeated.")
@click.option("--scope", "scopes", multiple=True, metavar="NAME", help="A scope of the token; may be repeated.")
@click.option("--client", default="", metavar="ID", help="The OAuth client that the token was issued to.")
@click.option("--claims", metavar="JSON", help="Further claims of the token, for conditions.")
@click.option("--args", "arguments", metavar="JSON", help="Arguments of the call, for conditions.")
@json_option
@click.argument("principal")
@click.argument("item")
def explain(
    *,
    config: str,
    groups: tuple[str, ...],
    scopes: tuple[str, ...],
    client: str,
    claims: str | None,
    arguments: str | None,
    as_json: bool,
    principal: str,
    item: str,
) -> None:
    """Say whether PRINCIPAL may use ITEM, which rule decides it, and how often.

    ITEM is SERVER:TOOL, prompt:SERVER:NAME or resource:SERVER:URI, by the server's own names. PRINCIPAL is the name
    of a configured token, which has the groups and scopes that are configured, or ISSUER#SUBJECT.
    """
    from gateway.config.policies import caller, conditions, explained, limits

    settings = load_file(config).settings
    try:
        args = None if arguments is None else from_json(arguments)
        told = None if claims is None else from_json(claims)
        who = caller(principal, groups, scopes, client, settings.callers, told)
        decision = explained(settings.table, *who, item, args)
        depends = (
            [] if args is not None or decision.outcome == "deny" else conditions(settings.table.policy, *who, item)
        )
        limited = limits(settings.table.policy, *who, item, args) if decision.outcome != "deny" else []
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    rules, unruled = settings.table.policy, explained(replace(settings.table, policy=None), *who, item)
    observed = rules is not None and not rules.enforced and decision.outcome != "allow" == unruled.outcome
    if as_json:
        print_json(
            _told(decision)
            | ({"conditions": depends} if depends else {})
            | ({"limits": limited} if limited else {})
            | ({"mode": "observe"} if observed else {})
        )
        return
    click.echo(printable(f"{decision.outcome}: {decision.rule}"))
    if observed:
        click.echo('nothing is refused by that: `policyMode` is "observe"')
    for condition in depends:
        click.echo(printable(f"depends on the arguments (--args): {condition}"))
    if decision.scopes:
        click.echo(printable(f"needs the scopes: {' '.join(decision.scopes)}"))
    if decision.constraint:
        click.echo(printable(f"the arguments have to meet: {decision.constraint}"))
    for limit in limited:
        click.echo(printable(f"limited by {limit}"))


def _told(decision: Any) -> dict[str, Any]:
    found = {"decision": decision.outcome, "rule": decision.rule}
    if decision.scopes:
        found["scopes"] = [*decision.scopes]
    if decision.constraint:
        found["constraint"] = decision.constraint
    return found


@click.group()
def policy() -> None:
    """Who may see and use what."""


@policy.command()
@click.option("--config", metavar="FILE", required=True, help="The configuration whose `policyTests` are tried.")
def test(*, config: str) -> None:
    """Try the cases of `gateway.policyTests`.

    Exit status 1 when the rules say something else than a case expects; each such case is named.
    """
    from actors.protocol.policy import called
    from gateway.config.policies import explained

    settings = load_file(config).settings
    failed = 0
    for index, case in enumerate(settings.policy_tests):
        decision = explained(settings.table, case.principal, case.rights, case.item, case.args)
        if decision.outcome != case.expect:
            failed += 1
            place = f"policyTests[{index}]: {called(case.principal, case.rights)} {case.item}"
            click.echo(printable(f"{place}: expected {case.expect}, is {decision.outcome} ({decision.rule})"), err=True)
    total = len(settings.policy_tests)
    click.echo(f"{total - failed} of {total} cases are as expected")
    if failed:
        raise SystemExit(1)
