"""The admin listener's app: liveness, readiness, and pages (metrics, how the servers are, sessions). It only reads, and
only through what it is given.

Never on the public listener. Probes are answered here, since each process is probed and few are asked for more; the
pages' library is loaded when one is asked for.
"""

import ipaddress
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeAlias
from urllib.parse import parse_qs

import trio

_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:/?#@\[\]]+))(?::[0-9]{0,5})?")
_LOOPBACK = frozenset({"localhost"})
_READS = ("GET", "HEAD")

App: TypeAlias = Callable[[Mapping[str, Any], Any, Any], Awaitable[None]]
"""ASGI."""

Operate: TypeAlias = Callable[[str, str, Mapping[str, str]], Awaitable[tuple[int, Mapping[str, Any]]]]
"""What is to be done (`list`, or with the session of this name), with options; an HTTP status and a JSON object."""


FROM = "from"
"""The option that says from which address it is asked."""

Compare: TypeAlias = Callable[[Mapping[str, str] | None], tuple[int, Mapping[str, Any]]]
"""What a configuration of these digests would change, or, for None, the key for them; an HTTP status and a JSON object.
"""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether new work should be sent here, and what there is to know: `details` are JSON values.

    `degraded` (the store is away, say) leaves it ready: taking a replica out does not bring a store back.
    """

    ready: bool
    degraded: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)


def host_allowed(host: str, names: frozenset[str]) -> bool:
    """Whether a Host header is an IP address (probes and scrapes by pod IP) or one of the names, with any port."""
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = (match[1] or match[2]).lower().removesuffix(".")
    if name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def admin_app(
    readiness: Callable[[], Readiness],
    metrics: Callable[[str], Awaitable[tuple[bytes, str]]],
    hosts: tuple[str, ...] = (),
    servers: Callable[[], Mapping[str, Any]] = dict,
    before: Callable[[], Awaitable[object]] | None = None,
    sessions: Operate | None = None,
    config: Compare | None = None,
) -> App:
    """The app. `metrics` gives the exposition and its content type, by the `Accept` header; `hosts` are further names
    to be called by, with any port, whichever they are given with; `servers` says how every server is, in JSON values
    without credentials; `before` brings up to date what the others say; `sessions` lists sessions and acts on them;
    `config` compares configurations with the one in force."""
    names = _LOOPBACK | {host.lower().partition(":")[0] for host in hosts}
    pages = _Pages(metrics, servers, sessions, config)

    def livez(_query: bytes) -> tuple[int, Mapping[str, Any]]:
        return 200, {"status": "ok"}

    def readyz(query: bytes) -> tuple[int, Mapping[str, Any]]:
        state = readiness()
        status = "not ready" if not state.ready else "degraded" if state.degraded else "ready"
        body = {**state.details, "status": status, "ready": state.ready, "degraded": state.degraded}
        if b"verbose" in parse_qs(query, keep_blank_values=True):
            body.update(servers())
        return 200 if state.ready else 503, body

    probes = {"/livez": livez, "/healthz": livez, "/readyz": readyz}

    async def app(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await pages(scope, receive, send)  # which has nothing of the kind
            return
        host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
        if not host_allowed(host, names):
            await _answer(send, 403, {"error": "this Host is not served here"})
            return
        probe = probes.get(scope["path"])
        if before is not None and probe is not livez:
            await before()
        if probe is None:
            await pages(scope, receive, send)
        elif scope["method"] in _READS:
            await _answer(send, *probe(scope["query_string"]))
        else:
            await _answer(send, 405, {"error": "method not allowed"}, (b"allow", ", ".join(_READS).encode()))

    return app


class _Pages:
    """Serves every page of the admin listener that is no probe."""

    def __init__(self, *given: Any) -> None:
        self._given = given
        self._app: App | None = None
        self._loading = trio.Lock()

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        async with self._loading:
            if self._app is None:
                module = await trio.to_thread.run_sync(import_module, "gateway.admin.pages")
                self._app = module.pages(*self._given)
        await self._app(scope, receive, send)


async def _answer(send: Any, status: int, body: Mapping[str, Any], *headers: tuple[bytes, bytes]) -> None:
    data = json.dumps(body).encode() + b"\n"
    more = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    length = (b"content-length", str(len(data)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [length, *more, *headers]})
    await send({"type": "http.response.body", "body": data, "more_body": False})
