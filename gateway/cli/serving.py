"""`stagedoor serve`, `run`, `stdio` and `check`."""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import trio

from gateway.cli.asking import ask
from gateway.cli.banner import banner, summary
from gateway.cli.client import Client, ClientFailedError, Parts, ServeFailedError
from gateway.cli.common import config_problems, file_argument, json_option, load_file, note, warn
from gateway.cli.output import print_json, printable
from gateway.config import (
    Address,
    ConfigError,
    Problem,
    Settings,
    native_settings,
    parse_address,
    parse_listen,
)


def _parse_store(text: str) -> str:
    from gateway.config import parse_store

    return parse_store(text)


def _parsed(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    def callback(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Any:
        try:
            return None if text is None else parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return callback


_ANONYMOUS = "Let everybody in without a token, where others can reach the address."


@click.command()
@click.argument("file", required=False)
@click.option("--config", metavar="FILE", help="The same as FILE.")
@click.option("--native", metavar="TARGET", help="Serve one in-process server as it is, as `run` does.")
@click.option("--reload", is_flag=True, help="With --native: load it anew when its files change.")
@click.option("--watch-config", is_flag=True, help="Read FILE anew when it changes, as on SIGHUP.")
@click.option("--listen", metavar="HOST:PORT|unix:PATH", callback=_parsed(parse_listen), help="Where clients connect.")
@click.option("--admin", metavar="HOST:PORT", callback=_parsed(parse_address), help="Where metrics and probes are.")
@click.option("--store", metavar="URL", callback=_parsed(_parse_store), help="memory:// or redis://…")
@click.option("--anonymous", is_flag=True, help=_ANONYMOUS)
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
    native: str | None,
    reload: bool,
    watch_config: bool,
    worker: int | None,
    anonymous: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Run the gateway with the servers of FILE until SIGTERM or Ctrl-C.

    Without FILE it serves the demo servers.
    """
    # What is started has not read its configuration yet: there is nothing to be read or begun anew, nor to end for.
    for number in {signal.SIGHUP, getattr(signal, "SIGUSR2", signal.SIGHUP)}:  # not every system has the second
        signal.signal(number, lambda *_: None)  # a function: what is ignored would be so in child processes too
    if sum(place is not None for place in (file, config, native)) > 1:
        raise click.UsageError("FILE, --config and --native exclude each other")
    if reload and native is None:
        raise click.UsageError("--reload is for --native")
    file = config if file is None else file
    if watch_config and file is None:
        raise click.UsageError("--watch-config is for a FILE")

    def settings_of() -> Settings:
        return _native(native, reload) if native else _settings(file, quiet=as_json or worker is not None)

    if worker is not None:
        with config_problems():
            raise SystemExit(parts().work(settings_of, worker))
    settings = replace(settings_of(), watch=watch_config)
    settings = replace(settings, **{key: value for key, value in given.items() if value is not None})
    if settings.listen == settings.admin and settings.listen.port:
        raise click.UsageError("--listen and --admin are the same address: the two are separate listeners")
    if anonymous:
        settings = _for_anybody(settings)
    for refused in (settings.unshared, settings.unguarded, settings.unreadable):
        if refused:
            raise click.UsageError(refused)
    if settings.workers > 1 and settings.reload:
        raise click.UsageError("--reload is for one worker")

    def announce(serving: Settings) -> None:
        try:
            if as_json:
                print_json(summary(serving))
            else:
                click.echo(banner(serving))
        except OSError:
            _give_up_output()

    try:
        if settings.workers > 1:
            source = ("--native", native) if native else (file,) if file else ()
            status = parts().supervise(settings, source, announce)
        else:
            status = parts().run(settings, announce)
    except ServeFailedError as error:
        raise click.ClickException(str(error)) from error
    raise SystemExit(status)


@click.command()
@click.argument("file", required=False)
@click.option("--config", metavar="FILE", help="The same as FILE.")
@click.option("--native", metavar="TARGET", help="Serve one in-process server as it is, as `run` does.")
@click.pass_obj
def stdio(parts: Callable[[], Parts], /, *, file: str | None, config: str | None, native: str | None) -> None:
    """Be one MCP server on standard input and output, for a client that starts its servers.

    It is all the servers of FILE together. Ends with status 0 when its input ends. Everything but the protocol goes to
    standard error.
    """
    if sum(place is not None for place in (file, config, native)) != 1:
        raise click.UsageError("one of FILE, --config and --native says what to serve")

    def settings() -> Settings:
        if native is not None:
            return _native(native, quiet=True)
        loaded = load_file(str(config if file is None else file))
        asked = (loaded.document.data.get("gateway") or {}).get("log") or {}
        return loaded.settings if "level" in asked else _quiet(loaded.settings)

    raise SystemExit(parts().stdio(settings))


@click.command()
@click.argument("target")
@click.option("--http", metavar="HOST:PORT", callback=_parsed(parse_address), help="Serve over HTTP, at /mcp.")
@click.option("--anonymous", is_flag=True, help=_ANONYMOUS)
@click.option("--reload", is_flag=True, help="Load the server anew when its files change.")
@click.pass_obj
def run(parts: Callable[[], Parts], /, *, target: str, http: Address | None, anonymous: bool, reload: bool) -> None:
    """Run one server written in Python: module:server, or path/to/file.py:server.

    It speaks on standard input and output, and ends with status 0 when its input does; with --http over Streamable
    HTTP, until SIGTERM or Ctrl-C. Everything but the protocol goes to standard error. Of a module or file alone it is
    the `server`.
    """
    if http is None:
        raise SystemExit(parts().stdio(lambda: _native(target, reload, quiet=not reload)))

    def announce(serving: Settings) -> None:
        click.echo(f"{target} is at http://{serving.listen.url_host}:{serving.listen.port}/mcp", err=True)

    settings = replace(_native(target, reload), listen=http)
    if settings.unguarded and not anonymous:
        raise click.UsageError(
            f"others can reach {http}, and anybody could use the server: say --anonymous if it is meant"
        )
    try:
        status = parts().run_alone(settings, announce)
    except ServeFailedError as error:
        raise click.ClickException(str(error)) from error
    raise SystemExit(status)


def _for_anybody(settings: Settings) -> Settings:
    return replace(settings, auth=replace(settings.auth, anonymous=True))


def _native(target: str, reload: bool = False, *, quiet: bool = False) -> Settings:
    with config_problems():
        settings = native_settings(target, reload)
    return _quiet(settings) if quiet else settings


def _give_up_output() -> None:
    """Nobody reads standard output, or its disk is full: no reason to serve nobody. What is left of it is not written
    at the end either, which would fail once more."""
    with suppress(OSError, ValueError):  # it is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _quiet(settings: Settings) -> Settings:
    """Nothing but warnings is said: a client that starts its servers shows what they write, if at all, as trouble."""
    return replace(settings, log=replace(settings.log, level="warning"))


def _settings(config: str | None, *, quiet: bool) -> Settings:
    from gateway.config import advice, demo_settings

    if config is None:
        with config_problems():
            return demo_settings()
    loaded = load_file(config)
    if not quiet:
        _advise(loaded.settings, loaded.notes, advice(loaded))
    return loaded.settings


def _advise(settings: Settings, notes: Iterable[Problem], warnings: Iterable[Problem]) -> None:
    """As lines of the log, where these are JSON: whoever reads one reads all of standard error so."""
    style = settings.log.format
    if style == "console" or (style == "auto" and sys.stderr.isatty()):
        note(notes)
        warn(warnings)
        return
    from gateway.observability.logging import configure, get_log

    configure(settings.log.level, style, settings.secrets)
    log = get_log("stagedoor")
    for problem in notes:
        log.info("configuration_note", message=str(problem))
    for problem in warnings:
        log.warning("configuration_warning", message=str(problem))


@click.command()
@file_argument
@click.option(
    "--connect", is_flag=True, help="Also connect to each server, and say what it is or why it does not work."
)
@click.option("--against", metavar="URL", help="Also say what a reload would change at a running gateway.")
@click.option("--admin", metavar="URL", help="Its admin listener, if it isn't found.")
@json_option
@click.pass_obj
def check(
    parts: Callable[[], Parts],
    /,
    *,
    file: str,
    connect: bool,
    against: str | None,
    admin: str | None,
    as_json: bool,
) -> None:
    """Say what is wrong with a configuration, or unwise.

    Exit status 2 when it cannot be used, 1 when --connect finds a server that does not work; warnings change nothing.
    """
    if as_json:
        _check_for_programs(parts, file, connect, (against, admin))
        return
    from gateway.config import advice

    loaded = load_file(file)
    note(loaded.notes)
    warn(advice(loaded))
    table = loaded.settings.table
    endpoints = " ".join(f"/mcp/{name}" if name else "/mcp" for name in sorted(table.endpoints))
    click.echo(f"{file} can be served: {endpoints}")
    if against is not None:
        for line in _reload_lines(_compared(parts, loaded.settings, against, admin)):
            click.echo(printable(line))
    if connect:
        entries = _connected(parts, loaded.settings)
        for entry in entries:
            click.echo(printable(_line(entry)))
        for name, count in _pins(parts, loaded.settings).items():
            said = f"{count} differences to what was accepted (`stagedoor pin` shows them)" if count else "as accepted"
            click.echo(printable(f"  {name}: {said}"))
        if any("error" in entry for entry in entries):
            raise SystemExit(1)


def _compared(parts: Callable[[], Parts], settings: Settings, url: str, admin: str | None) -> dict[str, Any]:
    """What a reload would change there. Nothing but digests of what stands in the file is sent, with that one's key."""
    from gateway.config.changes import digests

    try:
        answer = trio.run(parts().compare, url, admin, lambda key: digests(settings.values, key))
    except ClientFailedError as error:
        raise click.ClickException(str(error)) from error
    if answer is None:
        raise click.ClickException(f"no admin listener of a gateway answers for {url} (--admin URL)")
    status, told = answer
    if status != 200:
        raise click.ClickException(printable(str(told.get("error", f"it answered {status}"))))
    return told


def _reload_lines(told: Mapping[str, Any]) -> list[str]:
    lines = [f"  added: {name}" for name in told.get("added", ())]
    lines += [f"  removed: {name}" for name in told.get("removed", ())]
    lines += [f"  changed: {name} ({', '.join(keys)})" for name, keys in told.get("changed", {}).items()]
    lines += [f"  changed: {key}" for key in told.get("settings", ())]
    lines += [f"  needs a restart: {key}" for key in told.get("needs_restart", ())]
    return ["a reload would change:", *lines] if lines else ["a reload would change nothing"]


def _connected(parts: Callable[[], Parts], settings: Settings) -> list[dict[str, Any]]:
    async def servers(client: Client) -> list[dict[str, Any]]:
        return await client.servers()

    return ask(parts, settings, servers)


def _pins(parts: Callable[[], Parts], settings: Settings) -> dict[str, int]:
    from gateway.cli.pin import compared

    return compared(parts, settings)


def _line(entry: dict[str, Any]) -> str:
    """One server, as people read it."""
    if "error" in entry:
        error = entry["error"]
        lines = "".join(f"\n    {line}" for line in error.get("stderr", ()))
        return f"  {entry['name']}: does not work: {error.get('message')}{lines}"
    what = [f"{entry.get('era')} era, revision {entry.get('revision')}"]
    what += [
        f"{count} {kind.removesuffix('s') if count == 1 else kind}" for kind, count in entry.get("counts", {}).items()
    ]
    itself = " ".join(filter(None, (entry.get("server"), entry.get("version"))))
    return (
        f"  {entry['name']}: works ({itself}): {', '.join(what)}" if itself else f"  {entry['name']}: {', '.join(what)}"
    )


def _check_for_programs(
    parts: Callable[[], Parts], file: str, connect: bool, against: tuple[str | None, str | None]
) -> None:
    from gateway.config import advice, load

    errors: tuple[Problem, ...] = ()
    warnings: list[Problem] = []
    found: dict[str, Any] = {}
    try:
        loaded = load(Path(file))
        warnings, found = advice(loaded), summary(loaded.settings)
        if loaded.notes:
            found["notes"] = [*map(_told, loaded.notes)]
        if against[0] is not None:
            found["reload"] = _compared(parts, loaded.settings, against[0], against[1])
        if connect:
            found["servers"] = _connected(parts, loaded.settings)
            if pins := _pins(parts, loaded.settings):
                found["pins"] = pins
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
