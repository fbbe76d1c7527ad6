"""A door that does what a test tells it, real listeners, and raw clients."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

from actors.ports import Answer, Delete, Get, Post, Reply, Streaming
from actors.protocol.table import Limits
from gateway.http.app import McpApp
from gateway.http.config import ServeConfig
from gateway.http.security import Security
from gateway.http.serve import Connections, serve
from gateway.http.sockets import addresses, open_listeners
from tests.support.patience import PATIENCE


class FakeSource:
    """Events that the test pushes; `None` ends the stream."""

    def __init__(self) -> None:
        self.send, self._receive = trio.open_memory_channel[bytes | None](100)
        self.closed = trio.Event()

    def push(self, *events: bytes | None) -> "FakeSource":
        for event in events:
            self.send.send_nowait(event)
        return self

    async def receive(self) -> bytes | None:
        return await self._receive.receive()

    def close(self) -> None:
        self.closed.set()


@dataclass
class FakeDoor:
    """Records what it is asked and answers by `answer`, which a test may replace."""

    asked: list[Post | Get | Delete] = field(default_factory=list)
    answer: Callable[[Any], Awaitable[Reply]] | None = None
    gone: list[str] = field(default_factory=list)
    entered: trio.Event = field(default_factory=trio.Event)
    cancelled: trio.Event = field(default_factory=trio.Event)

    async def _ask(self, asked: Any) -> Any:
        self.asked.append(asked)
        self.entered.set()
        if isinstance(asked, Post) and asked.begun is not None:
            asked.begun()
        if self.answer is None:
            return Answer(200, b'{"ok":true}')
        try:
            return await self.answer(asked)
        except trio.Cancelled:
            self.cancelled.set()
            raise

    post = get = delete = _ask

    def client_gone(self, affinity: str) -> None:
        self.gone.append(affinity)

    def reply(self, reply: Reply) -> None:
        async def answer(_: Any) -> Reply:
            return reply

        self.answer = answer

    def stream(self, *events: bytes | None, headers: tuple[tuple[str, str], ...] = ()) -> FakeSource:
        source = FakeSource().push(*events)
        self.reply(Streaming(source, headers))
        return source

    def hang(self) -> None:
        async def answer(_: Any) -> Reply:
            await trio.sleep_forever()
            raise AssertionError

        self.answer = answer


class RecordingLog:
    """Keeps (event, values)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def _record(self, event: str, **values: Any) -> None:
        self.events.append((event, values))

    debug = info = warning = error = _record

    @property
    def names(self) -> list[str]:
        return [event for event, _ in self.events]


@dataclass
class Running:
    """A listener being served."""

    port: int
    stop: trio.Event
    stopped: trio.Event
    connections: Connections
    log: RecordingLog
    clients: list[trio.SocketStream] = field(default_factory=list)

    async def connect(self) -> trio.SocketStream:
        """A connection, closed at the latest with the server."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        self.clients.append(stream)
        return stream

    async def ask(self, data: bytes) -> bytes:
        """Sends the bytes on a connection of its own, ends its side, and reads to the end."""
        stream = await self.connect()
        async with stream:
            await stream.send_all(data)
            with suppress(trio.BrokenResourceError):
                await stream.send_eof()
            return await read_all(stream)


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    received = b""
    try:
        with trio.fail_after(PATIENCE):
            async for data in stream:
                received += data
    except trio.BrokenResourceError:
        received += b"<reset>"
    return received


async def read_until(stream: trio.abc.ReceiveStream, end: bytes) -> bytes:
    received = b""
    with trio.fail_after(PATIENCE):
        while True:
            data = await stream.receive_some()
            assert data, f"ended after {received!r}"
            received += data
            if end in received:
                return received


@pytest.fixture
def door() -> FakeDoor:
    return FakeDoor()


@pytest.fixture
def make_app(door: FakeDoor) -> Callable[..., McpApp]:
    def make(**given: Any) -> McpApp:
        security = given.pop("security", Security("127.0.0.1"))
        limits = given.pop("limits", Limits())
        given.setdefault("known", lambda name: name in {"", "files"})
        return McpApp(door, security, limits, **given)

    return make


@pytest.fixture(params=[True, False], ids=["whole", "by-hypercorn"])
def running(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`async with running(app, **config) as server`; over both ways from the connection to the app."""

    @asynccontextmanager
    async def run(app: Any, **config: Any) -> AsyncIterator[Running]:
        listeners = open_listeners("127.0.0.1", 0)
        log = RecordingLog()
        server = Running(addresses(listeners)[0][1], trio.Event(), trio.Event(), Connections(log), log)

        async def serving() -> None:
            await serve(
                app,
                listeners,
                ServeConfig(**{"whole": request.param, **config}),
                stop=server.stop,
                log=log,
                connections=server.connections,
                at_once=getattr(app, "at_once", None),
            )
            server.stopped.set()

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serving)
                try:
                    yield server
                finally:
                    for client in server.clients:
                        client.socket.close()
                nursery.cancel_scope.cancel()

    return run


@pytest.fixture
def read() -> Any:
    """The readers: `read.all(stream)`, `read.until(stream, end)`."""

    class Readers:
        all = staticmethod(read_all)
        until = staticmethod(read_until)

    return Readers


@dataclass
class Incoming:
    """What an app has sent."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False


@pytest.fixture
def ask(make_app: Callable[..., McpApp]) -> Callable[..., Awaitable[Incoming]]:
    """Drives the app in process: `await ask("POST", "/mcp", {"accept": …}, body, app=…)`."""

    async def asking(
        method: str, path: str = "/mcp", headers: dict[str, str] | None = None, body: bytes = b"", **given: Any
    ) -> Incoming:
        app = given.get("app") or make_app()
        heard = given.get("heard") or Incoming()
        lines = {"host": "127.0.0.1:8080", **(headers or {})}
        raw = [(name.encode(), value.encode("latin-1")) for name, value in lines.items() if value is not None]
        path, _, query = path.partition("?")
        scope = {"type": "http", "method": method, "path": path, "headers": raw, "query_string": query.encode()}
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if not messages:
                await trio.sleep_forever()
            return messages.pop()

        async def send(message: Any) -> None:
            await trio.lowlevel.checkpoint()
            if message["type"] == "http.response.start":
                heard.status = message["status"]
                heard.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                heard.body += message["body"]
                heard.ended = not message["more_body"]

        await app(scope, receive, send)
        return heard

    return asking
