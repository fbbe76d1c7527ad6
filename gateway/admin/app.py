"""The admin listener's quart-trio app: liveness, readiness, metrics, and how the servers are. It only reads, and only
through what it is given.

Never on the public listener. Quart's own limits are set here, each by name: their defaults cut a response after 60 s
and take bodies of 16 MiB.
"""

import ipaddress
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quart import Response, request
from quart_trio import QuartTrio

RESPONSE_TIMEOUT = 10.0
"""Seconds for one answer; a scrape of everything takes milliseconds."""
BODY_TIMEOUT = 5.0
"""Seconds for a request's body; none is expected."""
MAX_CONTENT_LENGTH = 64 * 1024
"""Bytes of a request's body."""

_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:/?#@\[\]]+))(?::[0-9]{0,5})?")
_LOOPBACK = frozenset({"localhost"})


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
    metrics: Callable[[], tuple[bytes, str]],
    hosts: tuple[str, ...] = (),
    servers: Callable[[], Mapping[str, Any]] = dict,
    before: Callable[[], Awaitable[object]] | None = None,
) -> QuartTrio:
    """The app. `metrics` gives the exposition and its content type; `hosts` are further names to be called by;
    `servers` says how every server is, in JSON values without credentials; `before` brings up to date what the others
    say."""
    app = QuartTrio("stagedoor.admin", static_folder=None)
    app.config.update(
        RESPONSE_TIMEOUT=RESPONSE_TIMEOUT,
        BODY_TIMEOUT=BODY_TIMEOUT,
        MAX_CONTENT_LENGTH=MAX_CONTENT_LENGTH,
        PROPAGATE_EXCEPTIONS=True,  # to the serve loop, which answers 500 and writes to our log
    )
    names = _LOOPBACK | {host.lower() for host in hosts}

    @app.before_request
    async def check_host() -> Response | None:
        if not host_allowed(request.headers.get("Host", ""), names):
            return _json(403, {"error": "this Host is not served here"})
        if before is not None and request.path != "/livez":
            await before()
        return None

    @app.get("/livez")
    async def livez() -> Response:
        return _json(200, {"status": "ok"})

    @app.get("/readyz")
    async def readyz() -> Response:
        state = readiness()
        status = "not ready" if not state.ready else "degraded" if state.degraded else "ready"
        body = {**state.details, "status": status, "ready": state.ready, "degraded": state.degraded}
        if "verbose" in request.args:
            body.update(servers())
        return _json(200 if state.ready else 503, body)

    @app.get("/api/servers")
    async def api_servers() -> Response:
        return _json(200, servers())

    @app.get("/metrics")
    async def scrape() -> Response:
        body, content_type = metrics()
        return Response(body, content_type=content_type, headers={"Cache-Control": "no-store"})

    @app.errorhandler(404)
    async def not_found(_: Exception) -> Response:
        return _json(404, {"error": "not found"})

    @app.errorhandler(405)
    async def not_allowed(error: Any) -> Response:
        response = _json(405, {"error": "method not allowed"})
        response.headers["Allow"] = ", ".join(sorted(error.valid_methods or ()))
        return response

    return app


def _json(status: int, body: Mapping[str, Any]) -> Response:
    return Response(
        json.dumps(body) + "\n", status, content_type="application/json", headers={"Cache-Control": "no-store"}
    )
