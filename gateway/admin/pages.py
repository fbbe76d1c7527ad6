"""The pages of the admin listener, by quart-trio: metrics, servers, sessions.

Quart's own limits are set here, each by name: their defaults cut a response after 60 s and take bodies of 16 MiB.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from quart import Response, request
from quart_trio import QuartTrio

from gateway.admin.app import FROM, Compare, Operate

RESPONSE_TIMEOUT = 10.0
"""Seconds for one answer; a scrape of everything takes milliseconds."""
BODY_TIMEOUT = 5.0
"""Seconds for a request's body; none is expected."""
MAX_CONTENT_LENGTH = 4 * 1024 * 1024
"""Bytes of a request's body: the digests of a large configuration."""


def pages(
    metrics: Callable[[str], Awaitable[tuple[bytes, str]]],
    servers: Callable[[], Mapping[str, Any]],
    sessions: Operate | None,
    config: Compare | None = None,
) -> QuartTrio:
    """The app; what it is given is as in `admin_app`."""
    app = QuartTrio("stagedoor.admin", static_folder=None)
    app.config.update(
        RESPONSE_TIMEOUT=RESPONSE_TIMEOUT,
        BODY_TIMEOUT=BODY_TIMEOUT,
        MAX_CONTENT_LENGTH=MAX_CONTENT_LENGTH,
        PROPAGATE_EXCEPTIONS=True,  # to the serve loop, which answers 500 and writes to our log
    )

    @app.get("/api/servers")
    async def api_servers() -> Response:
        return _json(200, servers())

    if sessions is not None:
        _add_sessions(app, sessions)
        _add_principals(app, sessions)
        _add_accounts(app, sessions)

    if config is not None:
        _add_config(app, config)

    @app.get("/metrics")
    async def scrape() -> Response:
        body, content_type = await metrics(request.headers.get("Accept", ""))
        return Response(body, content_type=content_type, headers={"Cache-Control": "no-store", "Vary": "Accept"})

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
        options = await _posted()
        if isinstance(options, Response):
            return options
        return _json(*await operate(what, name, _from(options)))


def _add_config(app: QuartTrio, compare: Compare) -> None:
    @app.get("/api/config")
    async def key() -> Response:
        return _json(*compare(None))

    @app.post("/api/config")
    async def differences() -> Response:
        told = await _posted()
        if isinstance(told, Response):
            return told
        return _json(*compare(told))


def _add_principals(app: QuartTrio, operate: Operate) -> None:
    @app.post("/api/principals/<what>")
    async def change(what: str) -> Response:
        options = await _posted()
        if isinstance(options, Response):
            return options
        principal = options.get("principal")
        if what not in ("revoke", "restore") or not principal:
            return _json(400, {"error": "the body is a JSON object with the principal"})
        return _json(*await operate(what, principal, _from({})))


def _from(options: Mapping[str, str]) -> Mapping[str, str]:
    """With the address of who asks."""
    return {**options, FROM: request.remote_addr or ""}


def _add_accounts(app: QuartTrio, operate: Operate) -> None:
    @app.get("/api/accounts")
    async def list_accounts() -> Response:
        return _json(*await operate("accounts", "", request.args.to_dict()))

    async def act(what: str, needs: tuple[str, ...] = ()) -> Response:
        options = await _posted()
        if isinstance(options, Response):
            return options
        if missing := [name for name in needs if not options.get(name)]:
            return _json(400, {"error": f"the body lacks {missing[0]}"})
        return _json(*await operate(what, options.get("principal", ""), _from(options)))

    @app.post("/api/accounts/disconnect")
    async def disconnect() -> Response:
        return await act("accounts-disconnect", ("principal",))

    @app.post("/api/vault/rewrap")
    async def rewrap() -> Response:
        return await act("rewrap")


async def _posted() -> dict[str, str] | Response:
    """The body of a POST, or what is answered instead. No page in a browser may change anything: what one sends to
    another origin without being asked names its own, or has no type that a program's request has."""
    if "Origin" in request.headers or request.headers.get("Sec-Fetch-Site", "none") != "none":
        return _json(403, {"error": "this is not for pages in a browser"})
    if request.mimetype != "application/json":
        return _json(415, {"error": "the content type is application/json"})
    body = await request.get_json(silent=True)
    if not isinstance(body, dict) or not all(isinstance(value, str) for value in body.values()):
        return _json(400, {"error": "the body is a JSON object of texts"})
    return body


def _json(status: int, body: Mapping[str, Any]) -> Response:
    return Response(
        json.dumps(body) + "\n", status, content_type="application/json", headers={"Cache-Control": "no-store"}
    )
