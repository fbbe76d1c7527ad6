"""Writes docs/cli.md from the commands themselves. A test keeps the two equal."""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gateway.cli import cli  # noqa: E402 - the tree must be on the path first

DOCUMENT = ROOT / "docs" / "cli.md"
HEAD = """\
# Command line

<!-- generated from gateway/cli by scripts/cli_reference.py -->
Exit status: 0 done, 1 failed, 2 wrong usage or configuration. `stagedoor --version` prints the version, and `-h` or
`--help` behind any command what stands here.
"""


def commands(group: click.Group, before: str = "stagedoor") -> Iterator[tuple[str, click.Command]]:
    """Every command by all its words, those of groups behind them."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        yield f"{before} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{before} {name}")


def options(command: click.Command) -> list[click.Option]:
    """What can be said to it, but for its help."""
    return [one for one in command.params if isinstance(one, click.Option) and not one.hidden]


def names(option: click.Option, context: click.Context) -> str:
    """All names of an option, and what it takes."""
    words = ", ".join([*option.opts, *option.secondary_opts])
    return words if option.is_flag else f"{words} {option.make_metavar(context)}"


def cell(text: str) -> str:
    """As it stands in a table."""
    return text.replace("|", "\\|")


def section(name: str, command: click.Command) -> str:
    """One command."""
    context = click.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    text = [f"## {name}", f"`{usage}`", inspect.cleandoc(command.help or "").replace("\b\n", "")]
    rows = [f"| `{cell(names(one, context))}` | {cell(one.help or '')} |" for one in options(command)]
    if rows:
        text.append("\n".join(["| option | what |", "| --- | --- |", *rows]))
    return "\n\n".join(text) + "\n"


def render() -> str:
    """The page."""
    return "\n".join([HEAD, *(section(name, command) for name, command in commands(cli))])


if __name__ == "__main__":
    DOCUMENT.write_text(render())
