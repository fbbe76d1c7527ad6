"""An MCP session over plain HTTP, so that a test holds connections, streams and event ids in its own hands."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.support.patience import PATIENCE

REVISION = "2025-11-25"


@dataclass(frozen=True)
class SseEvent:
    """One event of a stream; `message` is None for a priming event."""

    id: str | None
    message: dict[str, Any] | None


class Stream:
    """An open SSE answer, read event by event."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._connection = connection
        self._response = response

    def events(self) -> Iterator[SseEvent]:
        """Events as they come, to the end of the stream."""
        event_id, data = None, ""
        while line := self._response.readline():
            name, _, value = line.decode().rstrip("\r\n").partition(":")
            value = value.removeprefix(" ")
            if name == "id":
                event_id = value
            elif name == "data":
                data += value
            elif not name and not value and (event_id is not None or data):  # not what follows a comment
                yield SseEvent(event_id, json.loads(data) if data else None)
                event_id, data = None, ""

    def until_answer(self, number: int) -> list[SseEvent]:
        """The events up to the answer to the request of that id, and closes.

        Raises AssertionError when the stream ends before.
        """
        found = []
        with self:
            for event in self.events():
                found.append(event)
                if event.message is not None and event.message.get("id") == number and "method" not in event.message:
                    return found
        raise AssertionError(f"the stream ended without the answer to {number}: {found}")

    def first_with_id(self) -> SseEvent:
        """The first event that has an id, and cuts the connection there."""
        with self:
            return next(event for event in self.events() if event.id is not None)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._response.close()
        self._connection.close()


class RawSession:
    """One session; every exchange is on a connection of its own."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        revision: str = REVISION,
        capabilities: Mapping[str, Any] | None = None,
    ) -> None:
        self.go_to(url)
        self.headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if token is not None:
            self.headers["Authorization"] = f"Bearer {token}"
        client = {"name": "raw", "version": "1"}
        params = {"protocolVersion": revision, "capabilities": dict(capabilities or {}), "clientInfo": client}
        response, self.server = self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        assert response.status == 200, self.server
        assert "result" in self.server, self.server
        self.headers |= {"Mcp-Session-Id": response.headers["Mcp-Session-Id"], "MCP-Protocol-Version": revision}
        response, body = self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert response.status == 202, body

    def go_to(self, url: str) -> None:
        """Sends what comes from now on to this endpoint."""
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._address, self._path = (parts.hostname, parts.port), parts.path

    def send(self, method: str, body: str | None, headers: dict[str, str]) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(*self._address, timeout=PATIENCE)
        connection.request(method, self._path, body, {**self.headers, **headers})
        return connection

    def post(self, message: dict[str, Any]) -> tuple[http.client.HTTPResponse, Any]:
        """Sends a message; returns the response and the last JSON-RPC message in it."""
        connection = self.send("POST", json.dumps(message), {})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        if response.headers.get_content_type() == "text/event-stream":
            text = [line.removeprefix("data:") for line in text.splitlines() if line.startswith("data:")][-1]
        return response, json.loads(text) if text.strip() else None

    def ask(self, number: int, method: str, params: dict[str, Any] | None = None) -> Any:
        """The answer, result or error, to one request."""
        _, answer = self.post({"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}})
        assert answer["id"] == number, answer
        return answer

    def end(self) -> int:
        """Ends the session; returns the status."""
        connection = self.send("DELETE", None, {})
        status = connection.getresponse().status
        connection.close()
        return status

    def tools(self) -> list[str]:
        return [tool["name"] for tool in self.ask(1, "tools/list")["result"]["tools"]]

    def post_and_leave(self, message: dict[str, Any]) -> http.client.HTTPConnection:
        """Sends a message and does not look at the answer."""
        return self.send("POST", json.dumps(message), {})

    def call(self, number: int, tool: str, arguments: dict[str, Any] | None = None) -> Stream:
        """Starts a tool call that is answered by a stream."""
        params = {"name": tool, "arguments": arguments or {}}
        message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        return self._stream(self.send("POST", json.dumps(message), {}))

    def listen(self, after: str | None = None) -> Stream:
        """Opens a GET stream, or resumes the stream of the event id `after`."""
        headers = {"Accept": "text/event-stream"} | ({} if after is None else {"Last-Event-ID": after})
        return self._stream(self.send("GET", None, headers))

    @staticmethod
    def _stream(connection: http.client.HTTPConnection) -> Stream:
        response = connection.getresponse()
        kind = response.headers.get_content_type()
        assert (response.status, kind) == (200, "text/event-stream"), (response.status, kind, response.read()[:500])
        return Stream(connection, response)
