"""The command `stagedoor`. Exit status: 0 done, 1 failed, 2 wrong usage or configuration."""

from importlib.metadata import PackageNotFoundError, version

import click

from gateway.cli.asking import call, ls
from gateway.cli.client import Parts
from gateway.cli.serving import check, serve
from gateway.cli.sessions import sessions
from gateway.observability import configure


def composed() -> Parts:
    """The parts as composition makes them; imported late, so that `--help` and `check` are quick."""
    from gateway.app import ask_gateway, open_client, operate, run, supervise, work

    return Parts(run, open_client, ask_gateway, supervise, work, operate)


def _version() -> str:
    try:
        return version("stagedoor")
    except PackageNotFoundError:
        return "(from its source tree)"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version=_version(), prog_name="stagedoor")
@click.pass_context
def cli(context: click.Context) -> None:
    """Many MCP servers behind one endpoint, and no session lost."""
    if context.obj is None:
        context.obj = composed


for _command in (serve, check, ls, call, sessions):
    cli.add_command(_command)


def main() -> None:
    """The entry point of the command line."""
    configure("error", "console")  # `serve` sets logging up again, as its configuration says
    cli(prog_name="stagedoor")


__all__ = ["Parts", "cli", "composed", "main"]
