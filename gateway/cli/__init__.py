"""The command `stagedoor`. Exit status: 0 done, 1 failed, 2 wrong usage or configuration."""

import gc
import os
import signal
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from gateway.version import VERSION

if TYPE_CHECKING:
    from gateway.cli.client import Parts


def composed() -> "Parts":
    """The parts as composition makes them."""
    from gateway.cli.client import Parts

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
        compare=late("compare", "gateway.admin_client"),
        examine=late("examine", "gateway.doctoring"),
        define=late("define", "gateway.pinning"),
    )


_COMMANDS = {
    "run": "serving",
    "serve": "serving",
    "stdio": "serving",
    "check": "serving",
    "ls": "asking",
    "call": "asking",
    "status": "status",
    "sessions": "sessions",
    "principals": "principals",
    "accounts": "accounts",
    "vault": "accounts",
    "audit": "audit",
    "doctor": "doctor",
    "explain": "policy",
    "policy": "policy",
    "pin": "pin",
}
"""The commands by the module of this package that has them."""


class Commands(click.Group):
    """Each is loaded when it is asked for: who starts a server needs none of the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"{__name__}.{_COMMANDS[cmd_name]}"), cmd_name)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version=VERSION, prog_name="stagedoor")
@click.pass_context
def cli(context: click.Context) -> None:
    """Many MCP servers behind one endpoint, and no session lost."""
    if context.obj is None:
        context.obj = composed


def main() -> None:
    """The entry point of the command line."""
    _end_when_told()
    _open_standard_streams()
    gc.disable()  # nothing of what a start makes is garbage; who serves collects again
    from gateway.observability.logging import configure  # as all but click: once nothing is collected any more

    configure("error", "console")  # `serve` sets logging up again, as its configuration says
    cli(prog_name="stagedoor")


def _end_when_told() -> None:
    """SIGTERM ends the process from now on, until whoever serves listens to it. Linux does that by itself, but not to
    the first process of a container, which gets only those signals that it has a handler for: what it is told while it
    loads would be lost, and it would be killed at the end of its time. The status is that of who was ended by a signal:
    what a job was to do is not done."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))


def _open_standard_streams() -> None:
    """Whoever has started this process may have closed some of them. What is opened next would have their numbers, and
    get what is written there, and there would be nothing to write to."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which gets the lowest number that is free
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - for as long as the process lives


__all__ = ["cli", "composed", "main"]
