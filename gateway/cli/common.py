"""What the commands share: reading a configuration, and how problems are shown."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.output import printable
from gateway.config import ConfigError, Problem

if TYPE_CHECKING:
    from gateway.config import Loaded


class ConfigProblemsError(click.ClickException):
    """The configuration cannot be used: exit status 2, like wrong usage."""

    exit_code = 2

    def __init__(self, error: ConfigError) -> None:
        super().__init__(str(error))

    def show(self, file: Any = None) -> None:
        for line in self.message.splitlines():
            click.secho("error: ", fg="red", nl=False, err=True)
            click.echo(printable(line), err=True)


@contextmanager
def config_problems() -> Iterator[None]:
    """Problems of a configuration that turn up inside end the command."""
    try:
        yield
    except ConfigError as error:
        raise ConfigProblemsError(error) from error


def file_argument(command: Callable[..., None]) -> Callable[..., None]:
    """FILE, or `--config FILE` as other commands want it; the command is given its name as `file`."""

    @wraps(command)
    def named(*args: Any, file: str | None, config: str | None, **given: Any) -> None:
        if (file is None) == (config is None):
            raise click.UsageError("FILE (or --config FILE) says which servers")
        command(*args, file=config if file is None else file, **given)

    named = click.option("--config", metavar="FILE", help="The same as FILE.")(named)
    return click.argument("file", required=False)(named)


def load_file(file: str) -> "Loaded":
    """Reads a configuration; its problems end the command."""
    from gateway.config import load

    with config_problems():
        return load(Path(file))


def warn(problems: Iterable[Problem]) -> None:
    """Shows warnings on standard error."""
    for problem in problems:
        click.secho("warning: ", fg="yellow", nl=False, err=True)
        click.echo(printable(str(problem)), err=True)


def note(problems: Iterable[Problem]) -> None:
    """Shows notes on standard error."""
    for problem in problems:
        click.secho("note: ", fg="cyan", nl=False, err=True)
        click.echo(printable(str(problem)), err=True)


def tell_troubles(troubles: Mapping[str, str]) -> None:
    """Says on standard error which servers do not work, and why, and ends the command with status 1 if any."""
    for name, why in troubles.items():
        click.secho(f"server {printable(name)!r}: ", fg="red", nl=False, err=True)
        click.echo(printable(why.removeprefix(f"{name}: ")), err=True)
    if troubles:
        raise SystemExit(1)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
