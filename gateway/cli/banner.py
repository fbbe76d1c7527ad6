"""What `serve` says at its start: where everything is, and lines to paste."""

import json
import shlex
from typing import Any

from gateway.config import Address, Settings

_INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "curl", "version": "1"},
    },
}


def endpoint_url(settings: Settings, name: str = "") -> str:
    """The URL under which a client of this machine finds an endpoint; over a Unix socket that of the aggregate is
    `unix:/PATH`, and any other one is a path there."""
    if settings.listen.path:
        return f"http://localhost/mcp/{name}" if name else str(settings.listen)
    scheme = "http" if settings.tls is None else "https"
    return f"{scheme}://{_authority(settings.listen)}/mcp" + (f"/{name}" if name else "")


def admin_url(settings: Settings) -> str:
    """The URL of the admin listener."""
    return f"http://{_authority(settings.admin)}"


def banner(settings: Settings) -> str:
    """The whole text, several lines. Ports that are 0 must have been replaced by the real ones."""
    return "\n".join([*_places(settings), "", *_lines_to_paste(settings)])


def summary(settings: Settings) -> dict[str, Any]:
    """The same for programs."""
    table = settings.table
    return {
        "endpoint": endpoint_url(settings),
        "admin": admin_url(settings),
        "endpoints": {name: endpoint_url(settings, name) for name in table.endpoints if name},
        "store": store_kind(settings),
        "config_digest": settings.config_digest,
    }


def store_kind(settings: Settings) -> str:
    """The scheme of the store's URL: the rest may hold a password."""
    return settings.store.partition(":")[0]


def _places(settings: Settings) -> list[str]:
    table = settings.table
    groups = [name for name, endpoint in table.endpoints.items() if name and endpoint.kind == "aggregate"]
    named = [name for name in table.backends if name in table.endpoints]
    alone = [endpoint_url(settings, f"{{{','.join(named)}}}")] if named else []
    merged = table.endpoints[""].kind == "aggregate"
    held = f"{_count(len(table.backends), 'server')} in one" if merged else "one server, as it is"
    # "memory" loses every session with the process: whoever starts it should know.
    keeps = " (sessions end with this process)" if store_kind(settings) == "memory" else ""
    rows = [
        ("endpoint", [f"{endpoint_url(settings)}   {held}"]),
        ("alone", alone),
        ("groups", [endpoint_url(settings, name) for name in groups]),
        ("admin", [f"{admin_url(settings)}   /livez /readyz /metrics"]),
        ("store", [store_kind(settings) + keeps]),
        ("identity", [_identity(settings)]),
    ]
    return ["Stagedoor", *(f"  {label:<10}{value}" for label, values in rows for value in values)]


def _identity(settings: Settings) -> str:
    auth = settings.auth
    known = ["bearer tokens of " + ", ".join(name for name, _ in auth.tokens)] if auth.tokens else []
    known += ["tokens from " + ", ".join(one.issuer for one in auth.issuers)] if auth.issuers else []
    return "; ".join(known) or "anonymous (no auth.tokens)"


def _lines_to_paste(settings: Settings) -> list[str]:
    url = endpoint_url(settings)
    if settings.listen.path:
        curl = f"curl -sS --unix-socket {shlex.quote(settings.listen.path)} http://localhost/mcp"
        return ["Connect a client:", f"  {'curl':<12}{_curl(curl, tokens=settings.auth.asked)}"]
    authorized = ' --header "Authorization: Bearer $TOKEN"'
    header = authorized if settings.auth.tokens else ""  # at issuers these clients sign in by themselves
    added: dict[str, object] = {"name": "stagedoor", "type": "http", "url": url}
    if header:
        # An editor asks for what is named there alone.
        added["inputs"] = [{"type": "promptString", "id": "token", "description": "Bearer token", "password": True}]
        added["headers"] = {"Authorization": "Bearer ${input:token}"}
    inspector = f"npx @modelcontextprotocol/inspector --cli {url} --transport http"
    rows = [
        ("Claude Code", f"claude mcp add --transport http stagedoor {url}{header}"),
        ("VS Code", f"code --add-mcp {shlex.quote(json.dumps(added))}"),
        ("Inspector", f"{inspector}{authorized if settings.auth.asked else ''} --method tools/list"),
        ("curl", _curl(f"curl -sS {url}", tokens=settings.auth.asked)),
    ]
    return ["Connect a client:", *(f"  {label:<12}{line}" for label, line in rows)]


def _curl(command: str, *, tokens: bool) -> str:
    header = ' -H "Authorization: Bearer $TOKEN"' if tokens else ""
    return (
        f"{command}{header} -H 'Content-Type: application/json' "
        f"-H 'Accept: application/json, text/event-stream' -d {shlex.quote(json.dumps(_INITIALIZE))}"
    )


def _authority(address: Address) -> str:
    return f"{address.url_host}:{address.port}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
