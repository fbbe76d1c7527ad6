"""How each server is, for operators: what `/api/servers`, `/readyz?verbose` and `stagedoor ls` say.

No credential is in it: neither variables nor headers nor arguments, and of a URL the origin alone.
"""

from typing import Any

from actors.protocol.table import BackendSpec, HttpTarget, SseTarget, StdioTarget, WebSocketTarget
from actors.protocol.versions import MODERN
from actors.tree import GatewayActors
from actors.upstreams.backends import Status
from gateway.wire.url import parse_url


def servers_of(actors: GatewayActors) -> list[dict[str, Any]]:
    """Every server of the configuration, in its order."""
    return [
        described(spec, actors.backends.status.get(name)) for name, spec in actors.services.table.value.backends.items()
    ]


def described(spec: BackendSpec, status: Status | None) -> dict[str, Any]:
    """One server. Members that are not known are left out."""
    entry: dict[str, Any] = {"name": spec.name, **_place(spec), "status": status.state if status else "unused"}
    if spec.groups:
        entry["groups"] = list(spec.groups)
    if status is None:
        return entry
    if status.revision:
        name, version = status.server
        entry |= {
            "era": "modern" if status.revision == MODERN else "legacy",
            "revision": status.revision,
            "server": name,
            "version": version,
        }
    entry["connections"] = status.connections
    if status.failure is not None:
        diagnostics = status.failure.diagnostics
        told = {
            "reason": status.failure.reason,
            "message": status.last_error,
            "status": diagnostics.status,
            "stderr": list(diagnostics.stderr) or None,
            "failures": status.failures,
        }
        entry["error"] = {key: value for key, value in told.items() if value is not None}
    return entry


def _place(spec: BackendSpec) -> dict[str, str]:
    match spec.target:
        case StdioTarget(command):
            return {"transport": "stdio", "command": (command.split() or [""])[0]}
        case HttpTarget(url):
            return {"transport": "http", **_origin(url)}
        case SseTarget(url):
            return {"transport": "sse", **_origin(url)}
        case WebSocketTarget(url):
            return {"transport": "ws", **_origin(url)}
        case _:
            return {"transport": "inproc"}


def _origin(url: str) -> dict[str, str]:
    try:
        return {"origin": str(parse_url(url).origin)}
    except ValueError:
        return {}
