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
from typing import Any, TypeAlias

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


Operate: TypeAlias = Callable[[str, str, Mapping[str, str]], Awaitable[tuple[int, Mapping[str, Any]]]]
"""What is to be done (`list`, or with the session of this name), with options; an HTTP status and a JSON object."""


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
    sessions: Operate | None = None,
) -> QuartTrio:
    """The app. `metrics` gives the exposition and its content type; `hosts` are further names to be called by;
    `servers` says how every server is, in JSON values without credentials; `before` brings up to date what the others
    say; `sessions` lists sessions and acts on them."""
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
        if before is not None and request.path not in ("/livez", "/healthz"):
            await before()
        return None

    @app.get("/livez")
    @app.get("/healthz")
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

    if sessions is not None:
        _add_sessions(app, sessions)

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


def _add_sessions(app: QuartTrio, operate: Operate) -> None:
    @app.get("/api/sessions")
    async def list_sessions() -> Response:
        return _json(*await operate("list", "", request.args.to_dict()))

    @app.post("/api/sessions/<name>/<what>")
    async def act(name: str, what: str) -> Response:
        refused = _of_a_page()
        if refused is not None:
            return refused
        options = await request.get_json(silent=True)
        if not isinstance(options, dict) or not all(isinstance(value, str) for value in options.values()):
            return _json(400, {"error": "the body is a JSON object of texts"})
        return _json(*await operate(what, name, options))


def _of_a_page() -> Response | None:
    """No page in a browser may change anything: what one sends to another origin without being asked names its own, or
    has no type that a program's request has."""
    if "Origin" in request.headers or request.headers.get("Sec-Fetch-Site", "none") != "none":
        return _json(403, {"error": "this is not for pages in a browser"})
    if request.mimetype != "application/json":
        return _json(415, {"error": "the content type is application/json"})
    return None


def _json(status: int, body: Mapping[str, Any]) -> Response:
    return Response(
        json.dumps(body) + "\n", status, content_type="application/json", headers={"Cache-Control": "no-store"}
    )
