"""The server of backend.py in the era without sessions (2026-07-28): the same tools at the same cost.

`python -m loadtest.modern_backend --port PORT`. `ask` answers with its question first, and with the result when it is
asked again with the answer. Logs are sent only to requests that name a level.
"""

from __future__ import annotations

from typing import Any

import trio

from loadtest.backend import (
    JSON,
    NO_SUCH_METHOD,
    QUESTION,
    TOOLS,
    Message,
    before_answer,
    called,
    decode,
    encode,
    given,
    main,
)
from loadtest.wire import Request, ServerConnection

REVISION = "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
ABOUT = {PREFIX + "serverInfo": {"name": "loadtest-backend", "version": "1"}}
COMPLETE = {"resultType": "complete", "_meta": ABOUT}
KEPT = {"ttlMs": 60_000, "cacheScope": "public"}
CAPABILITIES: dict[str, Any] = {"tools": {}, "logging": {}}

DISCOVERED = {**COMPLETE, **KEPT, "supportedVersions": [REVISION], "capabilities": CAPABILITIES}
LISTED = {**COMPLETE, **KEPT, "tools": TOOLS}
ASKING = {
    "resultType": "input_required",
    "inputRequests": {"n": {"method": "elicitation/create", "params": QUESTION}},
    "requestState": "asked",
}


def result_of(message: Message) -> dict[str, Any] | None:
    """The result of a request; None for an unknown method."""
    params = message.params
    match message.method:
        case "tools/call" if params.get("name") != "ask":
            return {**called(params), **COMPLETE}
        case "tools/call" if answers := params.get("inputResponses"):
            return {**called({"arguments": given(answers["n"])}), **COMPLETE}
        case "tools/call":
            return ASKING
        case "tools/list":
            return LISTED
        case "server/discover":
            return DISCOVERED
        case _:
            return None


def event(message: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % encode({"jsonrpc": "2.0", **message})


async def handle(connection: ServerConnection) -> None:
    """Serves one HTTP connection."""
    while (request := await connection.next_request()) is not None:
        if request.method == b"POST":
            await post(connection, request)
        else:
            await connection.answer(b"405 Method Not Allowed")


async def post(connection: ServerConnection, request: Request) -> None:
    message = decode(request.body)
    if message.id is None:
        await connection.answer(b"202 Accepted")
        return
    if message.method == "subscriptions/listen":
        await listen(connection, message)
        return
    result = result_of(message)
    if result is None:
        error = {"code": NO_SUCH_METHOD, "message": f"Method not found: {message.method}"}
        await connection.answer(b"404 Not Found", encode({"jsonrpc": "2.0", "id": message.id, "error": error}), JSON)
        return
    logged, wait = before_answer(message)
    if not logged or PREFIX + "logLevel" not in message.params.get("_meta", ()):
        await connection.answer(b"200 OK", encode({"jsonrpc": "2.0", "id": message.id, "result": result}), JSON)
        return
    await connection.start_events()
    for line in logged:
        await connection.piece(b"data: %b\n\n" % line)
    if wait:
        await trio.sleep(wait)
    await connection.piece(event({"id": message.id, "result": result}))
    await connection.piece(b"")


async def listen(connection: ServerConnection, message: Message) -> None:
    """A subscription to nothing, until the client goes away."""
    params = {"notifications": {}, "_meta": {PREFIX + "subscriptionId": message.id}}
    await connection.start_events()
    await connection.piece(event({"method": "notifications/subscriptions/acknowledged", "params": params}))
    await connection.wait_closed()


if __name__ == "__main__":
    main(handle)
