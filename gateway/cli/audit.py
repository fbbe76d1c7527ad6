"""`stagedoor audit`: the audit trail, afterwards."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gateway.cli.client import Parts
from gateway.cli.common import json_option, load_file
from gateway.cli.output import print_json, printable


@click.group()
def audit() -> None:
    """What is in the audit trail."""


@audit.command()
@click.argument("files", nargs=-1, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--config", metavar="FILE", help="The configuration, for its keys and the name of its file.")
@click.option("--partial", is_flag=True, help="The first lines may be in earlier files.")
@json_option
@click.pass_obj
def verify(
    parts: Callable[[], Parts], /, *, files: tuple[Path, ...], config: str | None, partial: bool, as_json: bool
) -> None:
    """Check that no line was changed, left out or put in. Rotated FILES are given oldest first. Without a configuration
    only the chain of hashes is checked, which whoever can write the file could have made anew."""
    settings = None if config is None else load_file(config).settings
    if settings is not None and settings.audit.file is not None:
        files = files or (settings.audit.file,)
    if not files:
        raise click.UsageError("name the files, or a configuration that has one (--config FILE)")
    try:
        found = parts().verify(settings, files, partial)
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from error
    if as_json:
        print_json(found)
    else:
        _print(found)
    raise SystemExit(0 if found["good"] else 1)


def _print(found: dict[str, Any]) -> None:
    for chain in found["chains"]:
        click.echo(printable(_told(chain, signed=found["signed"])))
        for problem in chain["problems"]:
            click.secho("changed: ", fg="red", nl=False, err=True)
            click.echo(printable(problem), err=True)
    for place in found["foreign"]:
        click.secho("changed: ", fg="red", nl=False, err=True)
        click.echo(printable(f"{place}: is no line of an audit trail"), err=True)
    for place in found["torn"]:
        click.secho("torn: ", fg="yellow", nl=False, err=True)
        click.echo(printable(f"{place} is the beginning of a line, as a full disk leaves it"), err=True)
    click.echo("nothing was changed" if found["good"] else "the trail was changed")
    if not found["signed"]:
        click.echo("signatures were not checked (--config FILE)", err=True)


def _told(chain: dict[str, Any], *, signed: bool) -> str:
    last = chain["first"] + chain["lines"] - 1
    parts = [f"chain {chain['chain']}: {chain['lines']} lines"]
    if signed:
        parts.append("signed to its end" if chain["signed"] == last else f"signed to line {chain['signed']} of {last}")
    if not chain["ended"]:
        parts.append("it has no end: its process runs, or was killed")
    if chain["lost"]:
        parts.append(f"{chain['lost']} lines were lost, as it says itself")
    parts.append(", ".join(f"{count} {event}" for event, count in chain["events"].items()))
    if chain["unknown"]:
        parts.append(f"this version does not know {', '.join(chain['unknown'])}")
    return "; ".join(parts)
