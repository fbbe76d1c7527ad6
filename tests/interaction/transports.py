"""Ways by which the gateway reaches a scripted backend: in its process, over stdio, over Streamable HTTP (`unix`: on a
Unix domain socket), over HTTP+SSE, over a WebSocket."""

from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_server_stream

from actors.ports import Connector, FrameReceived, Log, Transport, TransportEvent, TransportKind
from actors.protocol.table import BackendSpec, HttpTarget, NativeTarget, SseTarget, StdioTarget, Target, WebSocketTarget
from gateway.backends.native import NativeTransport
from tests.interaction.backend import Backend, Connection, Id
from tests.interaction.http_server import BROKEN, HttpServer, SseServer

Kind = Literal["inproc", "channel", "stdio", "http", "unix", "sse", "found", "ws"]
"""`channel` is stdio without a process: what comes over it names no request but by what it says. `found` is `sse`
without having been told."""

HEADERS = (("X-Backend-Key", "backend-secret"),)
"""What the gateway is configured to say to every backend with headers."""
PIPE = Path(__file__).with_name("pipe.py")


@asynccontextmanager
async def reached(backend: Backend, kind: Kind, nursery: trio.Nursery) -> AsyncIterator[Target]:
    """What to configure, while the backend can be reached."""
    if kind == "inproc":
        yield NativeTarget(_NativeServer(backend))
    elif kind == "channel":
        yield StdioTarget(_Channel(backend))
    elif kind == "stdio":
        with _socket() as (path, listener):
            nursery.start_soon(trio.serve_listeners, partial(_piped, backend), _listeners(listener))
            yield StdioTarget(sys.executable, ("-S", "-E", "-I", str(PIPE), path))
    elif kind == "unix":
        with _socket() as (path, listener):
            nursery.start_soon(trio.serve_listeners, HttpServer({"/mcp": backend}).serve, _listeners(listener))
            yield HttpTarget(f"unix:{path}", HEADERS)
    elif kind in ("sse", "found"):
        async with served(SseServer(backend).serve, nursery) as origin:
            url = f"{origin}/sse"
            yield SseTarget(url, HEADERS) if kind == "sse" else HttpTarget(url, HEADERS, may_be_sse=True)
    elif kind == "ws":
        async with served(partial(_web_socket, backend), nursery) as origin:
            yield WebSocketTarget(f"{origin.replace('http', 'ws')}/ws", HEADERS)
    else:
        async with shared_origin({"/mcp": backend}, nursery) as origin:
            yield HttpTarget(f"{origin}/mcp", HEADERS)


@contextmanager
def _socket() -> Iterator[tuple[str, socket.socket]]:
    """A Unix domain socket that listens, and its path."""
    with tempfile.TemporaryDirectory(prefix="stagedoor-") as folder:
        path = f"{folder}/socket"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        yield path, listener


@asynccontextmanager
async def shared_origin(backends: Mapping[str, Backend], nursery: trio.Nursery) -> AsyncIterator[str]:
    """One host and port for backends at these paths, in front of which its address is to be put."""
    async with served(HttpServer(backends).serve, nursery) as origin:
        yield origin


@asynccontextmanager
async def served(serve: Callable[[trio.SocketStream], Awaitable[None]], nursery: trio.Nursery) -> AsyncIterator[str]:
    """Whatever answers connections, as an origin."""
    listener = socket.create_server(("127.0.0.1", 0))
    nursery.start_soon(trio.serve_listeners, serve, _listeners(listener))
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def _listeners(listener: socket.socket) -> list[trio.SocketListener]:
    return [trio.SocketListener(trio.socket.from_stdlib_socket(listener))]


# In the process of the gateway ----------------------------------------------------------------------------------


class _NativeServer:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def connect(
        self,
        send: Callable[[bytes, Id | None], None],
        crash: Callable[[str, BaseException], None],
        message_bytes: int,
        principal: str | None = None,
        blocked: Callable[[str, str, float], None] | None = None,
    ) -> _NativeSession:
        return _NativeSession(self._backend.connected(send))


class _NativeSession:
    principal: str | None = None

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._over = trio.Event()
        connection.hang_up = self._over.set

    async def run(self) -> None:
        await self._over.wait()
        self._connection.end()

    def receive(self, frame: bytes, rights: object = None) -> bool:
        self._connection.feed(frame)
        return True

    def cancel(self, id: Id) -> None:
        """The gateway also says so in a message."""

    def close(self) -> None:
        self._over.set()
        self._connection.end()


# Over a channel -------------------------------------------------------------------------------------------------


class _Channel(str):
    """The command of a child process that is none."""

    server: _NativeServer

    def __new__(cls, backend: Backend) -> _Channel:
        made = super().__new__(cls, f"channel to {backend.name}")
        made.server = _NativeServer(backend)
        return made


class _ChannelTransport(NativeTransport):
    kind: TransportKind = "stdio"


class ChannelConnector:
    """In front of another one: channels are connected here."""

    def __init__(self, other: Connector, log: Log) -> None:
        self._other = other
        self._log = log

    def connect(self, spec: BackendSpec, emit: Callable[[TransportEvent], None], modern: bool = False) -> Transport:
        """As in `Connector`."""
        target = spec.target
        if not isinstance(target, StdioTarget) or not isinstance(target.command, _Channel):
            return self._other.connect(spec, emit, modern)

        def unrelated(event: TransportEvent) -> None:
            emit(FrameReceived(event.frame) if isinstance(event, FrameReceived) else event)

        native = replace(spec, target=NativeTarget(target.command.server))
        return _ChannelTransport(native, unrelated, log=self._log)


# stdio ------------------------------------------------------------------------------------------------------------


async def _piped(backend: Backend, stream: trio.SocketStream) -> None:
    outgoing, waiting = trio.open_memory_channel[bytes](100_000)

    def write(frame: bytes, related: Id | None) -> None:
        with suppress(trio.ClosedResourceError):  # it was hung up
            outgoing.send_nowait(frame + b"\n")

    connection = backend.connected(write)
    connection.hang_up = outgoing.close
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_write_all, stream, waiting)
        rest = b""
        with suppress(*BROKEN):
            async for chunk in stream:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    connection.feed(line)
        connection.end()
        nursery.cancel_scope.cancel()


async def _web_socket(backend: Backend, stream: trio.SocketStream) -> None:
    outgoing, waiting = trio.open_memory_channel[bytes](100_000)

    def write(frame: bytes, related: Id | None) -> None:
        with suppress(trio.ClosedResourceError):  # it was hung up
            outgoing.send_nowait(frame)

    async def write_all(socket: WebSocketConnection) -> None:
        with suppress(ConnectionClosed):
            async for frame in waiting:
                await socket.send_message(frame.decode(errors="replace"))
            await socket.aclose()

    async with trio.open_nursery() as nursery:
        request = await wrap_server_stream(nursery, stream)
        backend.headers.append({name.decode(): value.decode() for name, value in request.headers})
        socket = await request.accept(subprotocol=request.proposed_subprotocols[0])
        connection = backend.connected(write)
        connection.hang_up = outgoing.close
        nursery.start_soon(write_all, socket)
        with suppress(ConnectionClosed):
            while True:
                message = await socket.get_message()
                assert isinstance(message, str)
                connection.feed(message.encode())
        connection.end()
        nursery.cancel_scope.cancel()


async def _write_all(stream: trio.SocketStream, waiting: trio.MemoryReceiveChannel[bytes]) -> None:
    with suppress(*BROKEN):
        async for data in waiting:
            await stream.send_all(data)
        await stream.aclose()
