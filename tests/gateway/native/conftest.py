"""A small MCP client on `NativeTransport`, which checks all that the server sends against the published schema."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from actors.ports import FrameReceived, TransportClosed, TransportEvent
from actors.protocol.table import BackendSpec, NativeTarget
from gateway.backends.native import NativeTransport
from gateway.native import Server
from tests.support.patience import PATIENCE
from tests.support.schemas import check

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
EVERYTHING = {
    "roots": {"listChanged": True},
    "sampling": {"context": {}, "tools": {}},
    "elicitation": {"form": {}, "url": {}},
}
RESULTS = {
    "initialize": "InitializeResult",
    "ping": "EmptyResult",
    "tools/list": "ListToolsResult",
    "tools/call": "CallToolResult",
    "resources/list": "ListResourcesResult",
    "resources/templates/list": "ListResourceTemplatesResult",
    "resources/read": "ReadResourceResult",
    "resources/subscribe": "EmptyResult",
    "resources/unsubscribe": "EmptyResult",
    "prompts/list": "ListPromptsResult",
    "prompts/get": "GetPromptResult",
    "completion/complete": "CompleteResult",
    "logging/setLevel": "EmptyResult",
}


class FailedError(Exception):
    """A JSON-RPC error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code, self.message, self.data = error["code"], error["message"], error.get("data")


class RecordedLog:
    """A `Log` that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def error(self, event: str, **values: Any) -> None:
        self.lines.append((event, values))

    debug = info = warning = error


class McpClient:
    """One client's end. `notes` are the notifications so far, each with the request it belongs to."""

    def __init__(self, server: Server, version: str, capabilities: dict[str, Any], **options: Any) -> None:
        self.log = RecordedLog()
        self.version, self.capabilities = version, capabilities
        spec = BackendSpec("fixture", NativeTarget(server))
        self.transport = NativeTransport(spec, self._emit, log=self.log, **options)
        self.events: list[TransportEvent] = []
        self.notes: list[tuple[str, dict[str, Any], Any]] = []
        self.asked: list[tuple[dict[str, Any], Any]] = []
        self.stray: list[dict[str, Any]] = []
        self.methods: dict[int | str, str] = {}
        self.answers: dict[int | str, tuple[dict[str, Any], Any]] = {}
        self._handlers: dict[str, Callable[[dict[str, Any]], Any]] = {}
        self._changed = trio.Event()
        self._last = 0

    # What the server sends

    def _emit(self, event: TransportEvent) -> None:
        self.events.append(event)
        if isinstance(event, FrameReceived):
            self._read(json.loads(event.frame), event.related)
        self._changed.set()
        self._changed = trio.Event()

    def _read(self, message: dict[str, Any], related: Any) -> None:
        # The id of an error is optional since 2025-11-25 alone, but never null.
        if "error" in message and "id" not in message:
            check("2025-11-25", "JSONRPCMessage", message)
            self.stray.append(message)
            return
        check(self.version, "JSONRPCMessage", message)
        if "method" not in message:
            if "result" in message:
                check(self.version, RESULTS[self.methods[message["id"]]], message["result"])
            assert message["id"] not in self.answers, "answered twice"
            self.answers[message["id"]] = (message, related)
        elif "id" in message:
            check(self.version, "ServerRequest", message)
            self.asked.append((message, related))
            handler = self._handlers.get(message["method"])
            if handler:
                self._answer(message["id"], handler(message.get("params", {})))
        else:
            check(self.version, "ServerNotification", message)
            self.notes.append((message["method"], message.get("params", {}), related))

    def _answer(self, id: int | str, answer: Any) -> None:
        member = {"result": answer}
        if isinstance(answer, FailedError):
            member = {"error": {"code": answer.code, "message": answer.message}}
        self.send({"jsonrpc": "2.0", "id": id, **member})

    # What the client sends

    def send(self, message: Any, **options: Any) -> None:
        self.transport.send(json.dumps(message).encode(), **options)

    def post(self, method: str, params: dict[str, Any] | None = None, id: int | str | None = None) -> int | str:
        """Sends a request and does not wait."""
        self._last += 1
        id = self._last if id is None else id
        self.methods[id] = method
        self.send(
            {"jsonrpc": "2.0", "id": id, "method": method} | ({} if params is None else {"params": params}), id=id
        )
        return id

    def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        self.send({"jsonrpc": "2.0", "method": method} | ({} if params is None else {"params": params}))

    async def answer_to(self, id: int | str) -> dict[str, Any]:
        await self.until(lambda: id in self.answers)
        message, related = self.answers[id]
        assert related == id, "an answer belongs to its own request"
        if "error" in message:
            raise FailedError(message["error"])
        result: dict[str, Any] = message["result"]
        return result

    async def request(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        return await self.answer_to(self.post(method, params))

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return await self.request("tools/call", {"name": tool, "arguments": arguments})

    async def text(self, tool: str, **arguments: Any) -> str:
        """The text of a successful call."""
        result = await self.call(tool, **arguments)
        assert not result.get("isError"), result
        return "".join(block["text"] for block in result["content"] if block["type"] == "text")

    async def error(self, tool: str, **arguments: Any) -> str:
        """The text of a call that failed."""
        result = await self.call(tool, **arguments)
        assert result["isError"], result
        text: str = result["content"][0]["text"]
        return text

    def on(self, method: str, answer: Any) -> None:
        """How the client answers a request of the server: a value, or a function of the params."""
        self._handlers[method] = answer if callable(answer) else lambda _: answer

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(PATIENCE):
            while not condition():
                await self._changed.wait()

    async def initialize(self) -> dict[str, Any]:
        return await self.request(
            "initialize",
            {
                "protocolVersion": self.version,
                "capabilities": self.capabilities,
                "clientInfo": {"name": "test", "version": "1"},
            },
        )

    async def open(self) -> dict[str, Any]:
        """The whole handshake."""
        result = await self.initialize()
        self.notify("notifications/initialized")
        return result

    @property
    def closed(self) -> list[TransportClosed]:
        return [e for e in self.events if isinstance(e, TransportClosed)]


Connect = Callable[..., Awaitable[McpClient]]


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """Each revision in turn."""
    return str(request.param)


@pytest.fixture
def unstarted() -> Callable[..., McpClient]:
    """A client whose transport does not run yet."""

    def make(
        server: Server, version: str = "2025-11-25", capabilities: dict[str, Any] | None = None, **options: Any
    ) -> McpClient:
        return McpClient(server, version, EVERYTHING if capabilities is None else capabilities, **options)

    return make


@pytest.fixture
def attach(unstarted: Callable[..., McpClient], nursery: trio.Nursery) -> Callable[..., McpClient]:
    """The same, started, before its handshake."""

    def start(*args: Any, **options: Any) -> McpClient:
        client = unstarted(*args, **options)
        nursery.start_soon(client.transport.run)
        return client

    return start


@pytest.fixture
def connect(attach: Callable[..., McpClient]) -> Connect:
    """The same, and does the handshake."""

    async def start(*args: Any, **options: Any) -> McpClient:
        client = attach(*args, **options)
        await client.open()
        await client.request("ping")  # so that `initialized` has been read
        return client

    return start


@pytest.fixture
def failed() -> type[FailedError]:
    """The exception for a JSON-RPC error."""
    return FailedError
