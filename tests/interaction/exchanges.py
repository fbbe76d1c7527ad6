"""What tests of the HTTP rules ask of a single exchange."""

from __future__ import annotations

from typing import Any

from tests.support.wire_client import Exchange, WireClient

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


async def refused(exchange: Exchange, status: int, code: int | None = None, id: Any = None) -> dict[str, Any]:
    """The error in a refusal of this status, which has the id of its request or none at all."""
    assert await exchange.head() == status, await exchange.whole()
    body = await exchange.json()
    assert body["jsonrpc"] == "2.0"
    assert body.get("id", "none") == ("none" if id is None else id), "left out, never null"
    assert body["error"]["message"]
    if code is not None:
        assert body["error"]["code"] == code
    assert "mcp-session-id" not in exchange.headers
    found: dict[str, Any] = body["error"]
    return found


async def works(client: WireClient) -> None:
    """The session goes on."""
    assert await client.request("ping") == {}


async def each_method(client: WireClient, **headers: str | None) -> list[Exchange]:
    """A POST, a GET and a DELETE with these headers."""
    return [
        client.post(PING, **headers),
        client.http.begin("GET", client.path, client.headers(accept="text/event-stream", **headers)),
        client.http.begin("DELETE", client.path, client.headers(**headers)),
    ]
