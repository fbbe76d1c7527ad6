"""`stagedoor ls` and `stagedoor call`: a client for the terminal, of a running gateway or of a configuration."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeVar

import click
import trio

from actors.protocol.methods import ListKind
from gateway.cli.arguments import from_json, from_pairs
from gateway.cli.client import Client, ClientFailedError, Parts, Target, UrlTarget
from gateway.cli.common import config_problems, json_option, load_file, tell_troubles
from gateway.cli.output import print_json, print_rows, printable
from gateway.config import native_settings

DEFAULT_URL = "http://127.0.0.1:8080/mcp"

_T = TypeVar("_T")
_COLUMNS: dict[str, tuple[str, ...]] = {
    "servers": ("name", "transport", "status", "version"),
    "tools": ("name", "description"),
    "resources": ("uri", "name", "mimeType", "description"),
    "prompts": ("name", "arguments", "description"),
}

_MISSING = {"failed": "its list can't be had", "pending": "it has not answered yet"}
"""What a list says of the servers that are not in it, in plain words."""


def _where(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say whom to ask."""
    command = click.option(
        "--config", metavar="FILE", help="Ask the servers of a file, without a gateway and its rules."
    )(command)
    command = click.option("--native", metavar="TARGET", help="Ask one in-process server, without a gateway.")(command)
    command = click.option("--token", envvar="STAGEDOOR_TOKEN", help="Bearer token (better: $STAGEDOOR_TOKEN).")(
        command
    )
    return click.option("--url", metavar="URL", help=f"A running gateway (default {DEFAULT_URL}).")(command)


def _target(url: str | None, token: str | None, config: str | None, native: str | None) -> Target:
    given = [f"--{name}" for name, value in {"url": url, "config": config, "native": native}.items() if value]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} exclude each other")
    if native is not None:
        with config_problems():
            return native_settings(native)
    return UrlTarget(url or DEFAULT_URL, token) if config is None else load_file(config).settings


def ask(parts: Callable[[], Parts], target: Target, question: Callable[[Client], Awaitable[_T]]) -> _T:
    """Runs one question. What the client cannot do ends the command with status 1, wrong usage with 2."""

    async def asked() -> _T:
        async with parts().open_client(target) as client:
            return await question(client)

    failures: list[BaseException] = []
    try:
        return trio.run(asked)
    except* (ClientFailedError, click.UsageError) as group:
        failures += _leaves(group)
    for failure in failures:
        if isinstance(failure, click.UsageError):
            raise failure
    raise click.ClickException(printable("; ".join(map(str, failures))))


def _leaves(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    found: list[BaseException] = []
    for one in group.exceptions:
        found += _leaves(one) if isinstance(one, BaseExceptionGroup) else [one]
    return found


@click.command()
@click.argument("what", type=click.Choice(list(_COLUMNS)), default="servers")
@click.option("--admin", metavar="URL", help="With --url: the gateway's admin listener, if it isn't found.")
@_where
@json_option
@click.pass_obj
def ls(
    parts: Callable[[], Parts],
    /,
    *,
    what: ListKind | Literal["servers"],
    as_json: bool,
    admin: str | None,
    **where: str | None,
) -> None:
    """List servers, tools, resources or prompts.

    Exit status 1 when a server does not work; standard error says which, and why.
    """
    target = _target(**where)
    if what == "servers":
        entries = _servers(parts, target, admin)
        troubles = {entry["name"]: _trouble(entry) for entry in entries if entry.get("error")}
    else:
        entries, troubles = _entries(parts, target, what, admin)
    if as_json:
        print_json(entries)
    else:
        print_rows(_COLUMNS[what], [[_cell(entry.get(column)) for column in _COLUMNS[what]] for entry in entries])
    tell_troubles(troubles)


def _entries(
    parts: Callable[[], Parts], target: Target, kind: ListKind, admin: str | None
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    async def question(client: Client) -> tuple[list[dict[str, Any]], dict[str, str]]:
        return await client.list(kind), client.missing

    entries, missing = ask(parts, target, question)
    known: dict[str, str] = {}
    if isinstance(target, UrlTarget) and missing:  # why is for operators to know, and for clients that call them
        servers = trio.run(parts().ask_gateway, target.url, admin) or ()
        known = {str(entry["name"]): _trouble(entry) for entry in servers if entry.get("error")}
    return entries, {name: known.get(name, _MISSING.get(why, why)) for name, why in missing.items()}


def _servers(parts: Callable[[], Parts], target: Target, admin: str | None) -> list[dict[str, Any]]:
    """Of a running gateway by its admin listener; else by connecting to each."""
    if isinstance(target, UrlTarget):
        known = trio.run(parts().ask_gateway, target.url, admin)
        if known is not None:
            return known
        if admin is not None:
            raise click.ClickException(f"no admin listener of a gateway answers at {admin}")
        click.echo(
            f"no admin listener of a gateway is known for {target.url} (--admin URL): it is one server", err=True
        )
    return ask(parts, target, lambda client: client.servers())


def _trouble(entry: dict[str, Any]) -> str:
    error = entry["error"]
    return "\n".join([str(error.get("message")), *(f"  {line}" for line in error.get("stderr", ()))])


def _cell(value: Any) -> str:
    if isinstance(value, list):  # of a prompt's arguments; an optional one in brackets
        return " ".join(str(one.get("name")) if one.get("required") else f"[{one.get('name')}]" for one in value)
    return "" if value is None else str(value)


@click.command(epilog="A value given by --arg gets the type that the tool's schema has for it.")
@click.argument("tool")
@click.option("--arg", "pairs", metavar="KEY=VALUE", multiple=True, help="One argument; may be repeated.")
@click.option(
    "--json", "text", metavar="[OBJECT]", is_flag=False, flag_value="", help="All arguments as JSON; print JSON too."
)
@_where
@click.pass_obj
def call(
    parts: Callable[[], Parts], /, *, tool: str, pairs: Sequence[str], text: str | None, **where: str | None
) -> None:
    """Call a tool and print what it says.

    With --json the whole result is printed as JSON. Exit status 1 when the tool reports an error.
    """
    if pairs and text:
        raise click.UsageError("--arg and --json {…} exclude each other")
    given = _usage(from_json, text) if text else None

    async def question(client: Client) -> dict[str, Any]:
        arguments = given
        if arguments is None:
            schema = await _schema(client, tool) if pairs else {}
            arguments = _usage(from_pairs, pairs, schema)
        return await client.call(tool, arguments)

    result = ask(parts, _target(**where), question)
    failed = result.get("isError") is True
    if text is None:
        _print_result(result, failed)
    else:
        print_json(result)
    raise SystemExit(1 if failed else 0)


def _usage(parse: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
    try:
        return parse(*given)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


async def _schema(client: Client, tool: str) -> dict[str, Any]:
    for entry in await client.list("tools"):
        if entry.get("name") == tool:
            return dict(entry.get("inputSchema") or {})
    return {}


def _print_result(result: dict[str, Any], failed: bool) -> None:
    blocks = result.get("content") or []
    for block in blocks:
        click.echo(printable(_block(block)), err=failed)
    if not blocks and "structuredContent" in result:
        print_json(result["structuredContent"])


def _block(block: dict[str, Any]) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text"))
    if kind == "resource_link":
        return f"[link {block.get('uri')}]"
    if kind == "resource":
        resource = block.get("resource") or {}
        return str(resource["text"]) if "text" in resource else f"[resource {resource.get('uri')}]"
    return f"[{kind} {block.get('mimeType')}, {len(str(block.get('data', '')))} characters of base64]"
