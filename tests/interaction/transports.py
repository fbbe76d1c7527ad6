"""Ways by which the gateway reaches a scripted backend: in its process, over stdio, over Streamable HTTP."""

from __future__ import annotations

import json
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import h11
import trio

from actors.protocol.table import HttpTarget, NativeTarget, StdioTarget, Target
from tests.interaction.backend import Backend, Connection, HttpAnswer, Id

Kind = Literal["inproc", "stdio", "http"]

PIPE = Path(__file__).with_name("pipe.py")
BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError)


@asynccontextmanager
async def reached(backend: Backend, kind: Kind, nursery: trio.Nursery) -> AsyncIterator[Target]:
    """What to configure, while the backend can be reached."""
    if kind == "inproc":
        yield NativeTarget(_NativeServer(backend))
    elif kind == "stdio":
        with tempfile.TemporaryDirectory(prefix="stagedoor-pipe-") as folder:
            path = f"{folder}/socket"
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(path)
            listener.listen()
            nursery.start_soon(trio.serve_listeners, partial(_piped, backend), _listeners(listener))
            yield StdioTarget(sys.executable, ("-S", "-E", "-I", str(PIPE), path))
    else:
        server = HttpServer(backend)
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, server.serve, _listeners(listener))
        yield HttpTarget(f"http://127.0.0.1:{port}/mcp", (("X-Backend-Key", "backend-secret"),))


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
    ) -> _NativeSession:
        return _NativeSession(self._backend.connected(send))


class _NativeSession:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._over = trio.Event()
        connection.hang_up = self._over.set

    async def run(self) -> None:
        await self._over.wait()
        self._connection.end()

    def receive(self, frame: bytes) -> bool:
        self._connection.feed(frame)
        return True

    def cancel(self, id: Id) -> None:
        """The gateway also says so in a message."""

    def close(self) -> None:
        self._over.set()
        self._connection.end()


# stdio ------------------------------------------------------------------------------------------------------------


async def _piped(backend: Backend, stream: trio.SocketStream) -> None:
    outgoing, waiting = trio.open_memory_channel[bytes](100_000)
    connection = backend.connected(lambda frame, related: outgoing.send_nowait(frame + b"\n"))
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


async def _write_all(stream: trio.SocketStream, waiting: trio.MemoryReceiveChannel[bytes]) -> None:
    with suppress(*BROKEN):
        async for data in waiting:
            await stream.send_all(data)
        await stream.aclose()


# Streamable HTTP --------------------------------------------------------------------------------------------------


class _Body:
    """A message stream of one HTTP answer."""

    def __init__(self) -> None:
        self.send, self.receive = trio.open_memory_channel[bytes](100_000)


class HttpSession:
    """What one `Mcp-Session-Id` stands for."""

    def __init__(self, number: int) -> None:
        self.id = f"backend-session-{number}"
        self.posts: dict[Id, _Body] = {}
        self.unrelated = _Body()
        self.connection: Connection

    def write(self, frame: bytes, related: Id | None) -> None:
        body = self.posts.get(related) if related is not None else None
        if body is None:
            self.unrelated.send.send_nowait(frame)
            return
        body.send.send_nowait(frame)
        with suppress(ValueError):
            message = json.loads(frame)
            if isinstance(message, dict) and message.get("id") == related and "method" not in message:
                body.send.close()


class HttpServer:
    """Streamable HTTP as a server has it; an answer is a stream when something came before the result."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._sessions: dict[str, HttpSession] = {}

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection."""
        wire = _Http1(stream)
        with suppress(*BROKEN):
            while (request := await wire.next_request()) is not None:
                headers = {name.decode().lower(): value.decode() for name, value in request.headers}
                self._backend.headers.append(headers)
                await self._handle(wire, request.method.decode(), headers, await wire.body())
                wire.next_cycle()
        await stream.aclose()

    async def _handle(self, wire: _Http1, method: str, headers: dict[str, str], body: bytes) -> None:
        known = headers.get("mcp-session-id")
        session = self._sessions.get(known or "")
        if known is not None and session is None:
            await wire.answer(404)
        elif method == "POST":
            await self._post(wire, session, body)
        elif session is None:
            await wire.answer(400)
        elif method == "GET":
            await wire.stream(session.unrelated.receive)
        else:
            session.connection.end()
            await wire.answer(200)

    async def _post(self, wire: _Http1, session: HttpSession | None, body: bytes) -> None:
        message: Any = json.loads(body)
        if session is None:
            if message.get("method") != "initialize":
                await wire.answer(400)
                return
            session = self._open()
        if "method" not in message or "id" not in message:
            session.connection.feed(body)
            await wire.answer(202)
            return
        special = self._backend.http_answers.get(message["method"])
        if special:
            await self._answer_specially(wire, session, special.pop(0))
            return
        answer = session.posts[message["id"]] = _Body()
        session.connection.feed(body)
        header = [("Mcp-Session-Id", session.id)] if message["method"] == "initialize" else []
        await self._answer(wire, answer, header)

    async def _answer_specially(self, wire: _Http1, session: HttpSession, answer: HttpAnswer) -> None:
        if answer.lost:
            self._forget(session)
        await wire.answer(answer.status, answer.body, [("Content-Type", answer.kind)])

    async def _answer(self, wire: _Http1, body: _Body, header: list[tuple[str, str]]) -> None:
        first = await body.receive.receive()
        if body.receive.statistics().open_send_channels == 0 and not body.receive.statistics().current_buffer_used:
            await wire.answer(200, first, [("Content-Type", "application/json"), *header])
        else:
            await wire.stream(body.receive, header, first)

    def _forget(self, session: HttpSession) -> None:
        """As a restart of the server would."""
        self._sessions.pop(session.id, None)
        session.connection.end()

    def _open(self) -> HttpSession:
        session = HttpSession(len(self._sessions) + 1)
        session.connection = self._backend.connected(session.write)
        session.connection.hang_up = lambda: self._forget(session)
        self._sessions[session.id] = session
        return session


def _event(message: bytes) -> bytes:
    return b"".join(b"data: %b\n" % line for line in message.split(b"\n")) + b"\n"


class _Http1:
    """h11 over a socket."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._h11 = h11.Connection(h11.SERVER)

    async def _event(self) -> Any:
        while (event := self._h11.next_event()) is h11.NEED_DATA:
            self._h11.receive_data(await self._stream.receive_some(65536))
        return event

    async def next_request(self) -> h11.Request | None:
        event = await self._event()
        return event if isinstance(event, h11.Request) else None

    async def body(self) -> bytes:
        body = b""
        while isinstance(event := await self._event(), h11.Data):
            body += event.data
        return body

    async def answer(self, status: int, body: bytes = b"", headers: list[tuple[str, str]] | None = None) -> None:
        await self._send(
            h11.Response(status_code=status, headers=[*(headers or []), ("Content-Length", str(len(body)))])
        )
        await self._send(h11.Data(data=body), h11.EndOfMessage())

    async def stream(
        self,
        messages: trio.MemoryReceiveChannel[bytes],
        headers: list[tuple[str, str]] | None = None,
        first: bytes | None = None,
    ) -> None:
        kind = ("Content-Type", "text/event-stream")
        await self._send(h11.Response(status_code=200, headers=[kind, *(headers or [])]))
        if first is not None:
            await self._send(h11.Data(data=_event(first)))
        async for message in messages:
            await self._send(h11.Data(data=_event(message)))
        await self._send(h11.EndOfMessage())

    async def _send(self, *events: Any) -> None:
        for event in events:
            data = self._h11.send(event)
            if data:
                await self._stream.send_all(data)

    def next_cycle(self) -> None:
        if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()
