"""A scripted MCP server, in the hands of the test, behind any transport.

A `Backend` is what is configured; each connection of the gateway to it is a `Connection`. Requests go to handlers,
async functions of a `Request`, by which they can report, ask the client, and answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import trio

from tests.interaction.connection import Connection, Id, InputNeeded, Request
from tests.support.schemas import NEWEST
from tests.support.wire_client import WAIT, Message, RpcError

__all__ = ["Backend", "Connection", "Handler", "HttpAnswer", "Id", "InputNeeded", "Request", "text"]

Handler = Callable[[Request], Awaitable[Mapping[str, Any] | None]]
"""Gives the result; None answers nothing, an RpcError raised by it is the answer."""


def text(value: str) -> Message:
    """A tool's result of one text."""
    return {"content": [{"type": "text", "text": value}]}


class HttpAnswer(NamedTuple):
    """An answer on the HTTP level."""

    status: int
    body: bytes = b""
    kind: str = "application/json"
    lost: bool = False
    """The server has forgotten the session."""


class Backend:
    """One server as it is configured."""

    sessions = True
    """Whether it speaks the handshake era."""
    modern = False
    """Whether it speaks the era without sessions."""

    def __init__(
        self,
        name: str,
        nursery: trio.Nursery,
        *,
        revision: str = NEWEST,
        capabilities: Mapping[str, Any] | None = None,
        instructions: str | None = None,
    ) -> None:
        self.name = name
        self.revision = revision
        self.capabilities = capabilities
        self.instructions = instructions
        self.info: Message = {"name": name, "version": "7"}
        self.trusting = False
        """Answers that a client made wrong on purpose are not held against the gateway."""
        self.extensions: set[str] = set()
        """Methods that no revision has."""
        self.faults: list[BaseException] = []
        self.connections: list[Connection] = []
        self.headers: list[dict[str, str]] = []
        """Of each HTTP request, where there are any."""
        self.http_answers: dict[str, list[HttpAnswer]] = {}
        """Over HTTP: what the next POSTs with this method get instead of an answer of the handlers."""
        self.handlers: dict[str, Handler] = {
            "initialize": self.initialize,
            "ping": self._nothing,
            "logging/setLevel": self._nothing,
        }
        self.items: dict[str, list[Message]] = {}
        self.tools: dict[str, Handler] = {}
        self._nursery = nursery
        self.changed = trio.lowlevel.ParkingLot()
        """Wakes whoever waits for a connection or for a message on any of them."""

    def __repr__(self) -> str:
        return f"<Backend {self.name}, {len(self.connections)} connections>"

    # The script

    def on(self, method: str) -> Callable[[Handler], Handler]:
        """Registers a handler."""

        def register(handler: Handler) -> Handler:
            self.handlers[method] = handler
            return handler

        return register

    def tool(self, name: str, **item: Any) -> Callable[[Handler], Handler]:
        """Registers a tool: `item` holds more members of its place in the list."""

        def register(handler: Handler) -> Handler:
            self.tools[name] = handler
            self.add("tools", {"name": name, "inputSchema": {"type": "object"}, **item})
            self.handlers.setdefault("tools/call", self._call_tool)
            return handler

        return register

    def result(self, name: str, result: Mapping[str, Any], **item: Any) -> None:
        """A tool that always answers this."""

        async def answer(request: Request) -> Mapping[str, Any]:
            return result

        self.tool(name, **item)(answer)

    def answers(self, method: str, result: Mapping[str, Any]) -> None:
        """A method that is always answered so."""

        async def answer(request: Request) -> Mapping[str, Any]:
            return result

        self.handlers[method] = answer

    def refuses(self, method: str, code: int, message: str, data: Any = None) -> None:
        """A method that is always answered with this error."""

        async def refuse(request: Request) -> Mapping[str, Any]:
            raise RpcError({"code": code, "message": message, "data": data})

        self.handlers[method] = refuse

    def add(self, kind: str, item: Mapping[str, Any]) -> None:
        """An item of a list: of `tools`, `resources`, `resourceTemplates` or `prompts`."""
        method = "resources/templates/list" if kind == "resourceTemplates" else f"{kind}/list"
        items = self.items.setdefault(kind, [])
        items.append(dict(item))
        if method not in self.handlers:

            async def listed(request: Request) -> Mapping[str, Any]:
                return {kind: items}

            self.handlers[method] = listed

    # Serving

    def connected(self, write: Callable[[bytes, Id | None], None]) -> Connection:
        """A new connection."""
        connection = Connection(self, write)
        self.connections.append(connection)
        self.changed.unpark_all()
        return connection

    def serve(self, request: Request) -> None:
        """Runs the handler of a request."""
        request.connection.running[request.id] = request
        self._nursery.start_soon(self._run, request)

    async def _run(self, request: Request) -> None:
        handler = self.handlers.get(request.method)
        connection = request.connection
        outcome: Message | None = None
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stop_when_over, request, scope)
                try:
                    if handler is None:
                        raise RpcError({"code": -32601, "message": f"{self.name} has no {request.method}"})
                    result = await handler(request)
                    outcome = None if result is None else {"result": connection.result(request, result)}
                except InputNeeded as needed:
                    outcome = {"result": connection.needs(request, needed)}
                except RpcError as error:
                    body: Message = {"code": error.code, "message": error.message}
                    outcome = {"error": body if error.data is None else {**body, "data": error.data}}
                except (AssertionError, LookupError, TypeError, trio.TooSlowError) as fault:
                    self.faults.append(fault)
                    outcome = {"error": {"code": -32603, "message": f"the test's handler failed: {fault!r}"}}
                nursery.cancel_scope.cancel()
        if outcome is not None and connection.running.pop(request.id, None) is not None:
            connection.say({"id": request.id, **outcome}, related=request.id)

    async def _stop_when_over(self, request: Request, scope: trio.CancelScope) -> None:
        """A cancelled request ends, and so do all when the connection does."""
        async with trio.open_nursery() as nursery:
            for event in (request.cancelled, request.connection.ended):
                nursery.start_soon(_then, event, scope)

    async def initialize(self, request: Request) -> Message:
        declared = self.capabilities if self.capabilities is not None else self._found()
        server_info: Message = {"protocolVersion": self.revision, "capabilities": declared, "serverInfo": self.info}
        return server_info if self.instructions is None else {**server_info, "instructions": self.instructions}

    def _found(self) -> Message:
        """The capabilities that go with the handlers."""
        prefixes = {method.split("/")[0] for method in self.handlers}
        declared: Message = {kind: {"listChanged": True} for kind in ("tools", "prompts") if kind in prefixes}
        if "resources" in prefixes:
            declared["resources"] = {"listChanged": True, "subscribe": "resources/subscribe" in self.handlers}
        if "completion" in prefixes and self.revision >= "2025-03-26":
            declared["completions"] = {}
        return {**declared, "logging": {}}

    async def _nothing(self, request: Request) -> Message:
        return {}

    async def _call_tool(self, request: Request) -> Mapping[str, Any] | None:
        handler = self.tools.get(request.params["name"])
        if handler is None:
            raise RpcError({"code": -32602, "message": f"Unknown tool: {request.params['name']}"})
        return await handler(request)

    def announce(self, method: str, uri: str | None = None) -> None:
        """Something has changed: said to everybody who listens."""
        for connection in self.connections:
            if not connection.ended.is_set():
                connection.notify(method, None if uri is None else {"uri": uri})

    # Looking

    async def connection(self, number: int = 1) -> Connection:
        """The so-manieth connection, as soon as it is there."""
        with trio.fail_after(WAIT):
            while len(self.connections) < number:
                await self.changed.park()
        return self.connections[number - 1]

    def of(self, method: str) -> list[Message]:
        """Messages with this method over all connections."""
        return [m for connection in self.connections for m in connection.of(method)]


async def _then(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
