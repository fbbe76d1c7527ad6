"""`stagedoor serve` and `stagedoor check`."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gateway.cli.asking import ask
from gateway.cli.banner import banner, summary
from gateway.cli.client import Client, Parts, ServeFailedError
from gateway.cli.common import config_problems, json_option, load_file, note, warn
from gateway.cli.output import print_json, printable
from gateway.config import (
    ConfigError,
    Problem,
    Settings,
    advice,
    demo_settings,
    load,
    native_settings,
    parse_address,
    parse_listen,
    parse_store,
)


def _parsed(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    def callback(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Any:
        try:
            return None if text is None else parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return callback


@click.command()
@click.argument("file", required=False)
@click.option("--config", metavar="FILE", help="The same as FILE.")
@click.option("--listen", metavar="HOST:PORT|unix:PATH", callback=_parsed(parse_listen), help="Where clients connect.")
@click.option("--admin", metavar="HOST:PORT", callback=_parsed(parse_address), help="Where metrics and probes are.")
@click.option("--store", metavar="URL", callback=_parsed(parse_store), help="memory:// or redis://…")
@click.option("--workers", metavar="N", type=click.IntRange(min=1), help="Processes on one port; needs redis://….")
@click.option("--worker", metavar="FD", type=int, hidden=True, help="Be one of them, for the supervisor at FD.")
@json_option
@click.pass_obj
def serve(
    parts: Callable[[], Parts],
    /,
    *,
    file: str | None,
    config: str | None,
    worker: int | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Run the gateway with the servers of FILE until SIGTERM or Ctrl-C.

    Without FILE it serves the demo servers.
    """
    if file is not None and config is not None:
        raise click.UsageError("FILE and --config exclude each other")
    file = file or config
    settings = _settings(file, quiet=as_json or worker is not None)
    if worker is not None:
        raise SystemExit(parts().work(settings, worker))
    settings = replace(settings, **{key: value for key, value in given.items() if value is not None})
    if settings.listen == settings.admin and settings.listen.port:
        raise click.UsageError("--listen and --admin are the same address: the two are separate listeners")
    if settings.unshared:
        raise click.UsageError(settings.unshared)

    def announce(serving: Settings) -> None:
        if as_json:
            print_json(summary(serving))
        else:
            click.echo(banner(serving))

    try:
        if settings.workers > 1:
            status = parts().supervise(settings, file, announce)
        else:
            status = parts().run(settings, announce)
    except ServeFailedError as error:
        raise click.ClickException(str(error)) from error
    raise SystemExit(status)


@click.command()
@click.option("--config", metavar="FILE", help="Serve the servers of a file, all together.")
@click.option("--native", metavar="TARGET", help="Serve one in-process server (module:server) as it is.")
@click.pass_obj
def stdio(parts: Callable[[], Parts], /, *, config: str | None, native: str | None) -> None:
    """Be one MCP server on standard input and output, for a client that starts its servers.

    Ends with status 0 when its input ends. Everything but the protocol goes to standard error.
    """
    if (config is None) == (native is None):
        raise click.UsageError("one of --config and --native says what to serve")

    def settings() -> Settings:
        with config_problems():
            return native_settings(native) if native is not None else load(Path(str(config))).settings

    raise SystemExit(parts().stdio(settings))


def _settings(config: str | None, *, quiet: bool) -> Settings:
    if config is None:
        with config_problems():
            return demo_settings()
    loaded = load_file(config)
    if not quiet:
        note(loaded.notes)
        warn(advice(loaded))
    return loaded.settings


@click.command()
@click.argument("file")
@click.option(
    "--connect", is_flag=True, help="Also connect to each server, and say what it is or why it does not work."
)
@json_option
@click.pass_obj
def check(parts: Callable[[], Parts], /, *, file: str, connect: bool, as_json: bool) -> None:
    """Say what is wrong with a configuration, or unwise.

    Exit status 2 when it cannot be used, 1 when --connect finds a server that does not work; warnings change nothing.
    """
    if as_json:
        _check_for_programs(parts, file, connect)
        return
    loaded = load_file(file)
    note(loaded.notes)
    warn(advice(loaded))
    table = loaded.settings.table
    endpoints = " ".join(f"/mcp/{name}" if name else "/mcp" for name in sorted(table.endpoints))
    click.echo(f"{file} can be served: {endpoints}")
    if connect:
        entries = _connected(parts, loaded.settings)
        for entry in entries:
            click.echo(printable(_line(entry)))
        if any("error" in entry for entry in entries):
            raise SystemExit(1)


def _connected(parts: Callable[[], Parts], settings: Settings) -> list[dict[str, Any]]:
    async def servers(client: Client) -> list[dict[str, Any]]:
        return await client.servers()

    return ask(parts, settings, servers)


def _line(entry: dict[str, Any]) -> str:
    """One server, as people read it."""
    if "error" in entry:
        error = entry["error"]
        lines = "".join(f"\n    {line}" for line in error.get("stderr", ()))
        return f"  {entry['name']}: does not work: {error.get('message')}{lines}"
    what = [f"{entry.get('era')} era, revision {entry.get('revision')}"]
    what += [f"{count} {kind}" for kind, count in entry.get("counts", {}).items()]
    itself = " ".join(filter(None, (entry.get("server"), entry.get("version"))))
    return (
        f"  {entry['name']}: works ({itself}): {', '.join(what)}" if itself else f"  {entry['name']}: {', '.join(what)}"
    )


def _check_for_programs(parts: Callable[[], Parts], file: str, connect: bool) -> None:
    errors: tuple[Problem, ...] = ()
    warnings: list[Problem] = []
    found: dict[str, Any] = {}
    try:
        loaded = load(Path(file))
        warnings, found = advice(loaded), summary(loaded.settings)
        if loaded.notes:
            found["notes"] = [*map(_told, loaded.notes)]
        if connect:
            found["servers"] = _connected(parts, loaded.settings)
    except ConfigError as error:
        errors = error.problems
    print_json({"ok": not errors, "errors": [*map(_told, errors)], "warnings": [*map(_told, warnings)], **found})
    dead = any("error" in entry for entry in found.get("servers", ()))
    raise SystemExit(2 if errors else 1 if dead else 0)


def _told(problem: Problem) -> dict[str, object]:
    return {
        "file": problem.file,
        "line": problem.line,
        "field": problem.field,
        "message": problem.message,
        "nearest": problem.nearest,
    }
