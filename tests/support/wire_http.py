"""HTTP without sockets: exchanges with an ASGI app, of which a test sees every byte and every event.

Cutting an exchange is cancelling the app, as the serve loop does when a connection ends; a client that stalls lets the
app's writes wait. Every wait has a deadline.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from gateway.http.rounds import ROUNDS, Rounds

WAIT = 10.0
"""Seconds for anything to come."""

Message = dict[str, Any]


@dataclass(frozen=True)
class Event:
    """One event of a stream, with the id that was in force."""

    id: str | None
    data: str
    retry: int | None = None

    @property
    def message(self) -> Message:
        parsed: Message = json.loads(self.data)
        return parsed


class SseParser:
    """Lines to events (HTML, "Server-sent events"), apart from the gateway's own."""

    def __init__(self) -> None:
        self._rest = b""
        self._fields: dict[str, list[str]] = {}
        self.comments = 0

    def feed(self, chunk: bytes) -> list[Event]:
        *lines, self._rest = (self._rest + chunk).replace(b"\r\n", b"\n").split(b"\n")
        found = []
        for line in lines:
            if not line:
                event = self._event()
                if event is not None:
                    found.append(event)
            elif line.startswith(b":"):
                self.comments += 1
            else:
                name, _, value = line.decode().partition(":")
                self._fields.setdefault(name, []).append(value.removeprefix(" "))
        return found

    def _event(self) -> Event | None:
        fields, self._fields = self._fields, {}
        if not fields:
            return None
        retry = fields.get("retry")
        return Event(fields.get("id", [None])[-1], "\n".join(fields.get("data", [])), int(retry[-1]) if retry else None)


class Exchange:
    """One HTTP request and its answer, as it comes."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.parser = SseParser()
        self.scope = trio.CancelScope()
        self.reading = trio.Event()
        """Unset: the client takes nothing, and what the server writes waits."""
        self.reading.set()
        self._head = trio.Event()
        self._ended = trio.Event()
        self._chunks, self._next_chunk = trio.open_memory_channel[bytes](100_000)
        self._events: list[Event] = []

    def __repr__(self) -> str:
        return f"<Exchange {self.status or 'waiting'}, {len(self.body)} bytes>"

    # The server's side

    async def send(self, message: Mapping[str, Any]) -> None:
        await self.reading.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            for name, value in message["headers"]:
                assert name.decode() not in self.headers, f"header {name!r} comes twice"
                self.headers[name.decode()] = value.decode()
            self._head.set()
        else:
            self._chunks.send_nowait(message["body"])
            if not message["more_body"]:
                self.close()

    def close(self) -> None:
        """Nothing more comes."""
        self._chunks.close()
        self._head.set()
        self._ended.set()

    # The client's side

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type") == "text/event-stream"

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    @property
    def unread(self) -> list[Event]:
        """Events that have come and were not asked for."""
        while self._next_chunk.statistics().current_buffer_used:
            chunk = self._next_chunk.receive_nowait()
            self.body += chunk
            self._events += self.parser.feed(chunk)
        return list(self._events)

    async def head(self, within: float = WAIT) -> int:
        """The status, as soon as it is known; 0 for a connection that broke before."""
        with trio.fail_after(within):
            await self._head.wait()
        return self.status

    async def whole(self, within: float = WAIT) -> bytes:
        """The body, when the answer has ended."""
        with trio.fail_after(within):
            async for chunk in self._next_chunk:
                self.body += chunk
        return self.body

    async def json(self) -> Any:
        return json.loads(await self.whole())

    async def event(self, within: float = WAIT) -> Event | None:
        """The next event; None at the end of the stream."""
        with trio.fail_after(within):
            while not self._events:
                try:
                    chunk = await self._next_chunk.receive()
                except trio.EndOfChannel:
                    return None
                self.body += chunk
                self._events += self.parser.feed(chunk)
        return self._events.pop(0)

    async def wait_ended(self, within: float = WAIT) -> None:
        with trio.fail_after(within):
            await self._ended.wait()

    def stall(self) -> None:
        """The client stops reading."""
        self.reading = trio.Event()

    def cut(self) -> None:
        """The connection breaks."""
        self.scope.cancel()


class AsgiHttp:
    """HTTP without sockets: each exchange runs the app in a task of its own, and cutting it is cancelling that task,
    as the serve loop does when a connection ends."""

    def __init__(self, app: Any, nursery: trio.Nursery, host: str = "127.0.0.1:8080") -> None:
        self.app = app
        self.host = host
        self.exchanges: list[Exchange] = []
        self._nursery = nursery

    def begin(self, method: str, path: str, headers: Sequence[tuple[str, str]] = (), body: bytes = b"") -> Exchange:
        """Sends a request and returns at once."""
        exchange = Exchange()
        self.exchanges.append(exchange)
        given = {name.lower() for name, _ in headers}
        every = list(headers)
        if "host" not in given:
            every.append(("host", self.host))
        if body and "content-length" not in given:
            every.append(("content-length", str(len(body))))
        scope = {
            "type": "http",
            "method": method,
            "path": path.partition("?")[0],
            "query_string": path.partition("?")[2].encode(),
            "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in every],
        }
        self._nursery.start_soon(self._run, scope, body, exchange)
        return exchange

    def cut_all(self) -> None:
        """Every connection breaks."""
        for exchange in self.exchanges:
            exchange.cut()
        self.exchanges.clear()

    async def _run(self, scope: Mapping[str, Any], body: bytes, exchange: Exchange) -> None:
        async def receive() -> Mapping[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        rounds = Rounds()
        with exchange.scope:
            async with rounds.going():
                await self.app({**scope, ROUNDS: rounds}, receive, exchange.send)
        exchange.close()
