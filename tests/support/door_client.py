"""A raw MCP client over the door: what the edge would pass on, it passes on, and it keeps a transcript of each stream.

    client = Client(harness, "")
    await client.initialize()
    result = await client.call("tools/call", {"name": "alpha__echo"})

    pending = client.begin("tools/call", {"name": "alpha__slow"})     # goes on in the background
    question = await pending.next("sampling/createMessage")
    await client.respond(question, {...})
    result = await pending.result()

A `Pending` is one POST or GET: `messages` and `events` are what came on it so far, `drop()` breaks its connection.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from actors.ports import ANONYMOUS, NO_RIGHTS, Answer, Delete, Door, Get, Post, Principal, Streaming

if TYPE_CHECKING:
    from tests.support.harness import Gateway

Message = dict[str, Any]
WAIT = 3600.0
"""Seconds on the test's clock, which jumps: what takes longer hangs."""


class RpcError(Exception):
    """The JSON-RPC error that answered a request."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code = int(error["code"])
        self.message = str(error["message"])
        self.data: Any = error.get("data")


@dataclass(frozen=True)
class Event:
    """One SSE event; `message` is None for a priming event."""

    id: str | None
    message: Message | None
    retry: int | None = None


def parse_events(chunk: bytes) -> list[Event]:
    """The events in bytes that hold whole ones."""
    events = []
    for block in chunk.decode().split("\n\n"):
        fields: dict[str, str] = {}
        for line in block.split("\n"):
            name, _, value = line.partition(":")
            if name:
                fields[name] = fields.get(name, "") + value.removeprefix(" ")
        if fields:
            data, retry = fields.get("data"), fields.get("retry")
            events.append(
                Event(fields.get("id"), json.loads(data) if data else None, int(retry) if retry is not None else None)
            )
    return events


class Pending:
    """One POST or GET and what came of it."""

    def __init__(self, id: int | str | None) -> None:
        self.id = id
        self.answer: Answer | None = None
        self.streaming = False
        self.headers: Mapping[str, str] = {}
        self.events: list[Event] = []
        self.messages: list[Message] = []
        self.done = False
        """Nothing more comes."""
        self.scope = trio.CancelScope()
        self._lot = trio.lowlevel.ParkingLot()
        self._taken: list[Message] = []

    def __repr__(self) -> str:
        return f"<Pending {self.id}: {'SSE' if self.streaming else self.answer}, {len(self.messages)} messages>"

    @property
    def status(self) -> int | None:
        """The HTTP status, once there is one."""
        return 200 if self.streaming else self.answer.status if self.answer is not None else None

    async def head(self) -> int:
        """Waits for the HTTP status."""
        await self._until(lambda: self.status is not None)
        assert self.status is not None
        return self.status

    async def response(self) -> Message:
        """The response to the request, wherever it comes."""
        found: list[Message] = []

        def came() -> bool:
            found[:] = [m for m in self.messages if "method" not in m and m.get("id") == self.id]
            return bool(found)

        await self._until(came)
        return found[0]

    async def result(self) -> Message:
        """The result of the request. Raises RpcError."""
        response = await self.response()
        if "error" in response:
            raise RpcError(response["error"])
        result: Message = response["result"]
        return result

    async def error(self) -> RpcError:
        """The error that answered the request."""
        response = await self.response()
        assert "error" in response, response
        return RpcError(response["error"])

    async def next(self, method: str | None = None) -> Message:
        """The next request or notification (of this method) on it, each once."""

        def waiting() -> list[Message]:
            return [
                m
                for m in self.messages
                if "method" in m and method in (None, m["method"]) and not any(m is t for t in self._taken)
            ]

        await self._until(lambda: bool(waiting()))
        message = waiting()[0]
        self._taken.append(message)
        return message

    async def end(self) -> None:
        """Waits for the end of the answer or stream."""
        await self._until(lambda: self.done)

    def seen(self, method: str) -> list[Message]:
        """All requests or notifications of this method so far."""
        return [m for m in self.messages if m.get("method") == method]

    def drop(self) -> None:
        """The connection breaks."""
        self.scope.cancel()

    async def _until(self, ready: Any) -> None:
        with trio.fail_after(WAIT):
            while not ready():
                if self.done:
                    await trio.lowlevel.checkpoint()  # who is cancelled together with it hears of that
                    raise AssertionError(f"it ended before that: {self!r} {self.messages}")
                await self._lot.park()

    # What the client does with it

    def begun(self, reply: Answer | Streaming) -> None:
        """The head is here."""
        self.headers = dict(reply.headers)
        if isinstance(reply, Streaming):
            self.streaming = True
        else:
            self.answer = reply
            if reply.body:
                body = json.loads(reply.body)
                self.messages += body if isinstance(body, list) else [body]
        self._lot.unpark_all()

    def came(self, chunk: bytes) -> None:
        """Bytes of the stream."""
        for event in parse_events(chunk):
            self.events.append(event)
            if event.message is not None:
                self.messages.append(event.message)
        self._lot.unpark_all()

    def ended(self) -> None:
        """It is over, one way or the other."""
        self.done = True
        self._lot.unpark_all()


class Client:
    """One client of one endpoint. Not initialized yet."""

    def __init__(
        self,
        door: Door,
        nursery: trio.Nursery,
        endpoint: str = "",
        principal: Principal = ANONYMOUS,
        *,
        version: str = "2025-11-25",
        capabilities: Mapping[str, Any] | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.principal = principal
        self.version = version
        self.capabilities = dict(capabilities or {})
        self.info = dict(info or {"name": "test", "version": "1"})
        self.session: str | None = None
        self.rights = NO_RIGHTS
        """Of the token that it sends with whatever it says next."""
        self.peer = ""
        self.server: Message = {}
        """The result of `initialize`."""
        self._door = door
        self.nursery = nursery
        self._next = 1

    def to(self, gateway: Gateway) -> None:
        """What it sends from now on comes to this gateway; what it has open stays where it is."""
        self._door, self.nursery = gateway.door, gateway.nursery

    # The usual things

    async def initialize(self) -> Message:
        """The handshake; the InitializeResult."""
        params = {"protocolVersion": self.version, "capabilities": self.capabilities, "clientInfo": self.info}
        pending = self.begin("initialize", params)
        self.server = await pending.result()
        self.session = pending.headers.get("mcp-session-id")
        self.version = self.server["protocolVersion"]
        await self.notify("notifications/initialized")
        return self.server

    async def call(self, method: str, params: Mapping[str, Any] | None = None) -> Message:
        """A request and its result. Raises RpcError."""
        return await self.begin(method, params).result()

    async def tool(self, name: str, **arguments: Any) -> str:
        """Calls a tool; the text of its result."""
        result = await self.call("tools/call", {"name": name, "arguments": arguments})
        return str(result["content"][0]["text"])

    async def names(self, method: str = "tools/list", member: str = "name") -> list[str]:
        """The names in a list, all pages."""
        names: list[str] = []
        cursor: Mapping[str, Any] | None = None
        while True:
            page = await self.call(method, cursor)
            items = next(value for key, value in page.items() if isinstance(value, list))
            names += [item[member] for item in items]
            if "nextCursor" not in page:
                return names
            cursor = {"cursor": page["nextCursor"]}

    def begin(
        self, method: str, params: Mapping[str, Any] | None = None, *, id: int | str | None = None, progress: Any = None
    ) -> Pending:
        """Sends a request and goes on; `progress` is its progress token."""
        if id is None:
            id, self._next = self._next, self._next + 1
        message: Message = {"id": id, "method": method}
        if progress is not None:
            params = {**(params or {}), "_meta": {"progressToken": progress}}
        if params is not None:
            message["params"] = dict(params)
        return self.post(message)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """A notification, until it is accepted."""
        await self._accepted({"method": method, **({} if params is None else {"params": dict(params)})})

    async def respond(self, asked: Message, result: Mapping[str, Any] | None = None, **error: Any) -> None:
        """The answer to a request of the server: a result, or an error by `code` and `message`."""
        outcome = {"error": error} if result is None else {"result": dict(result)}
        await self._accepted({"id": asked["id"], **outcome})

    async def cancel(self, pending: Pending, reason: str = "test") -> None:
        """Cancels a request by the protocol."""
        await self.notify("notifications/cancelled", {"requestId": pending.id, "reason": reason})

    async def _accepted(self, message: Message) -> None:
        assert await self.post(message).head() == 202

    # Raw

    def post(self, message: Message | Sequence[Message] | bytes, **headers: str) -> Pending:
        """Posts a message (that gets its `jsonrpc`), a batch, or bytes as they are."""
        if isinstance(message, bytes):
            body, id = message, None
        elif isinstance(message, Mapping):
            body, id = json.dumps({"jsonrpc": "2.0", **message}).encode(), message.get("id")
        else:
            body, id = json.dumps([{"jsonrpc": "2.0", **m} for m in message]).encode(), None
        pending = Pending(id)
        request = Post(self.endpoint, self.principal, self._headers(headers), body, rights=self.rights, peer=self.peer)
        self.nursery.start_soon(self._run, pending, self._door.post, request)
        return pending

    def listen(self, last_event_id: str | None = None, **headers: str) -> Pending:
        """A GET stream; with an event id, the rest of one."""
        pending = Pending(None)
        if last_event_id is not None:
            headers["last_event_id"] = last_event_id
        request = Get(self.endpoint, self.principal, self._headers(headers), self.rights)
        self.nursery.start_soon(self._run, pending, self._door.get, request)
        return pending

    async def delete(self) -> int:
        """Ends the session; the HTTP status."""
        return (await self._door.delete(Delete(self.endpoint, self.principal, self._headers({})))).status

    def _headers(self, more: Mapping[str, str]) -> dict[str, str]:
        headers = {name.replace("_", "-"): value for name, value in more.items()}
        if self.session is not None:
            headers.setdefault("mcp-session-id", self.session)
            headers.setdefault("mcp-protocol-version", self.version)
        return headers

    async def _run(self, pending: Pending, ask: Any, request: Post | Get) -> None:
        """As an edge does: the head, then the stream, closed at the end whatever happens."""
        source = None
        try:
            with pending.scope:
                reply = await ask(request)
                source = reply.source if isinstance(reply, Streaming) else None
                pending.begun(reply)
                while source is not None:
                    chunk = await source.receive()
                    if chunk is None:
                        break
                    pending.came(chunk)
        finally:
            if source is not None:
                source.close()
            pending.ended()
