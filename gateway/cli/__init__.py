"""The command `stagedoor`. Exit status: 0 done, 1 failed, 2 wrong usage or configuration."""

import gc
from importlib import import_module
from typing import Any

import click

from gateway.cli.accounts import accounts, vault
from gateway.cli.asking import call, ls
from gateway.cli.audit import audit
from gateway.cli.client import Parts
from gateway.cli.doctor import doctor
from gateway.cli.pin import pin
from gateway.cli.policy import explain, policy
from gateway.cli.principals import principals
from gateway.cli.serving import check, run, serve, stdio
from gateway.cli.sessions import sessions
from gateway.cli.status import status
from gateway.observability.logging import configure
from gateway.version import VERSION


def composed() -> Parts:
    """The parts as composition makes them."""

    def late(name: str, module: str = "gateway.app") -> Any:
        """Imported when it is called, so that `--help` and `check` are quick, and `stdio` takes what it needs alone."""

        def part(*given: Any) -> Any:
            return getattr(import_module(module), name)(*given)

        return part

    return Parts(
        late("run"),
        late("open_client"),
        late("ask_gateway"),
        late("supervise"),
        late("work"),
        late("operate"),
        late("serve_stdio", "gateway.stdio"),
        late("run_alone"),
        late("verify", "gateway.auditing"),
        compare=late("compare", "gateway.reaching"),
        examine=late("examine", "gateway.doctoring"),
        define=late("define", "gateway.pinning"),
    )


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version=VERSION, prog_name="stagedoor")
@click.pass_context
def cli(context: click.Context) -> None:
    """Many MCP servers behind one endpoint, and no session lost."""
    if context.obj is None:
        context.obj = composed


for _commands in (
    (run, serve, stdio, check, ls, call, status),
    (sessions, principals, accounts, vault, audit, doctor, explain, policy, pin),
):
    for _command in _commands:
        cli.add_command(_command)


def main() -> None:
    """The entry point of the command line."""
    gc.disable()  # nothing of what a start makes is garbage; who serves collects again
    configure("error", "console")  # `serve` sets logging up again, as its configuration says
    cli(prog_name="stagedoor")


__all__ = ["Parts", "cli", "composed", "main"]
