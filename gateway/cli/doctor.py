"""`stagedoor doctor`: what servers cost."""

from collections.abc import Callable
from typing import Any

import click
import trio

from gateway.cli.client import Parts
from gateway.cli.common import file_argument, json_option, load_file, tell_troubles
from gateway.cli.output import print_json, print_rows, printable

_COLUMNS = ("server", "processes", "memory", "starts in", "tools", "sharing")


@click.command()
@file_argument
@json_option
@click.pass_obj
def doctor(parts: Callable[[], Parts], /, *, file: str, as_json: bool) -> None:
    """Start each server of FILE that is a process, one after the other, and say what it costs and whether it could be
    shared. Of servers behind a URL there is nothing to say."""
    found = trio.run(parts().examine, load_file(file).settings)
    troubles = {entry["name"]: entry["error"] for entry in found if "error" in entry}
    if as_json:
        print_json(found)
        raise SystemExit(1 if troubles else 0)
    _print(found)
    tell_troubles(troubles)


def _print(found: list[dict[str, Any]]) -> None:
    examined = [entry for entry in found if "error" not in entry]
    print_rows(_COLUMNS, [_row(entry) for entry in examined])
    for entry in examined:
        if entry["advice"]:
            click.echo(printable(f"{entry['name']}: {entry['advice']}"), err=True)
    if not found:
        click.echo("no server of this configuration is a process", err=True)


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    memory = f"{entry['memory'] / 1024 / 1024:.0f} MiB"
    return (
        entry["name"],
        str(entry["processes"]),
        memory,
        f"{entry['seconds']:.1f} s",
        str(entry["tools"]),
        entry["sharing"],
    )
