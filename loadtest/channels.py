"""MCP clients of the handshake era that make load over WebSocket, HTTP+SSE and standard streams.

As those of client.py, and written by hand for the same reason as they are: what makes the load must not cost more than
what it measures. (A call by `gateway.client` costs about what the gateway's part in it does.)
"""

from __future__ import annotations

import base64
import os
import subprocess
from typing import Any, Protocol

import trio
from wsproto.connection import Connection, ConnectionType
from wsproto.events import TextMessage

from loadtest.client import (
    ABOUT,
    ARGUMENT,
    ARGUMENTS,
    CAPABILITIES,
    HEADERS,
    Client,
    Result,
    Session,
    WrongAnswerError,
    checked,
    decode,
    encode,
    events,
)
from loadtest.wire import READ, Address, ClientConnection

BLANK = b"\n\n"


class Channel(Protocol):
    """Carries messages both ways."""

    async def send(self, message: bytes) -> None: ...

    async def receive(self) -> list[bytes]:
        """What has come, at least one message."""

    def close(self) -> None: ...


class Shared:
    """A channel for any number of callers: one of those that wait reads for all."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._answers: dict[int, bytes] = {}
        self._reading = False
        self._read = trio.Event()
        self._last = 0

    async def ask(self, method: str, params: dict[str, Any]) -> Result:
        self._last += 1
        number = self._last
        await self._channel.send(encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))
        while number not in self._answers:
            if self._reading:
                await self._read.wait()
            else:
                await self._read_on()
        return checked(self._answers.pop(number), number)

    async def _read_on(self) -> None:
        self._reading = True
        try:
            for data in await self._channel.receive():
                message = decode(data)
                if not message.method and isinstance(message.id, int):
                    self._answers[message.id] = data
        finally:
            self._reading = False
            self._read.set()
            self._read = trio.Event()

    async def open(self) -> None:
        """The handshake."""
        params = {"protocolVersion": Session.REVISION, "capabilities": CAPABILITIES, "clientInfo": ABOUT}
        await self.ask("initialize", params)
        await self._channel.send(encode({"jsonrpc": "2.0", "method": "notifications/initialized"}))

    def close(self) -> None:
        self._channel.close()


class Channeled(Client):
    """A client of which the channel is the session."""

    shared: Shared | None = None

    async def _call(self, tool: str) -> tuple[int, Result]:
        assert self.shared is not None
        return ARGUMENT, await self.shared.ask("tools/call", self._tool(tool, ARGUMENTS))

    def rest(self) -> None:
        """It can't do without its channel."""

    async def wake(self) -> None:
        """It is awake."""

    def close(self) -> None:
        if self.shared is not None:
            self.shared.close()
            self.shared = None


class WebSocket:
    """A `Channel`."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._frames = Connection(ConnectionType.CLIENT)
        self._part = ""

    async def shake_hands(self, address: Address) -> None:
        key = base64.b64encode(os.urandom(16))
        head = b"GET %b HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        head += b"sec-websocket-version: 13\r\nsec-websocket-protocol: mcp\r\nsec-websocket-key: %b\r\n\r\n"
        await self._stream.send_all(head % (address.path, address.port, key))
        answer = b""
        while b"\r\n\r\n" not in answer:  # nothing follows it until the client has spoken
            answer += await self._some()
        if not answer.startswith(b"HTTP/1.1 101"):
            raise WrongAnswerError(f"no WebSocket: {answer[:200]!r}")

    async def send(self, message: bytes) -> None:
        await self._stream.send_all(self._frames.send(TextMessage(message.decode())))

    async def receive(self) -> list[bytes]:
        messages: list[bytes] = []
        while not messages:
            self._frames.receive_data(await self._some())
            for event in self._frames.events():
                if not isinstance(event, TextMessage):
                    continue
                self._part += event.data
                if event.message_finished:
                    messages.append(self._part.encode())
                    self._part = ""
        return messages

    async def _some(self) -> bytes:
        data = await self._stream.receive_some(READ)
        if not data:
            raise trio.BrokenResourceError("the server closed the connection")
        return bytes(data)

    def close(self) -> None:
        self._stream.socket.close()


class OverWebSocket(Channeled):
    """A client on a WebSocket of its own."""

    async def open(self) -> None:
        self.close()
        channel = WebSocket(await trio.open_tcp_stream("127.0.0.1", self._address.port))
        self.shared = Shared(channel)
        await channel.shake_hands(self._address)
        await self.shared.open()


class EventStream:
    """A `Channel`: HTTP+SSE of 2024-11-05. Messages go out by POSTs on one connection and come in on another."""

    def __init__(self, stream: ClientConnection, posts: ClientConnection) -> None:
        self._stream, self._posts = stream, posts
        self._rest = b""
        self._endpoint = b""

    async def begin(self, address: Address) -> None:
        status = await self._stream.request(b"GET", address.path, b"accept: text/event-stream\r\n")
        if status != 200:
            raise WrongAnswerError(f"GET: HTTP {status}")
        [self._endpoint] = await self.receive()

    async def send(self, message: bytes) -> None:
        status = await self._posts.request(b"POST", self._endpoint, HEADERS, message)
        await self._posts.body()
        if status != 202:
            raise WrongAnswerError(f"POST: HTTP {status}")

    async def receive(self) -> list[bytes]:
        messages: list[bytes] = []
        while not messages:
            piece = await self._stream.piece()
            if not piece:
                raise trio.BrokenResourceError("the server ended the stream")
            whole, separator, rest = (self._rest + piece).replace(b"\r\n", b"\n").rpartition(BLANK)
            self._rest = rest
            messages = events(whole + separator)
        return messages

    def close(self) -> None:
        self._stream.close()
        self._posts.close()


class OverEvents(Channeled):
    """A client with a stream of its own."""

    async def open(self) -> None:
        self.close()
        channel = EventStream(await self._address.connect(), await self._address.connect())
        self.shared = Shared(channel)
        await channel.begin(self._address)
        await self.shared.open()


class Pipe:
    """A `Channel`: the standard streams of a process. It lasts longer than the loops that use it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._out, self._in = process.stdin.fileno(), process.stdout.fileno()
        os.set_blocking(self._out, False)
        self._rest = b""
        self._writing = trio.Lock()
        self.shared: Shared | None = None
        """Of the one session that there is."""

    async def send(self, message: bytes) -> None:
        data = message + b"\n"
        async with self._writing:
            while data:
                await trio.lowlevel.wait_writable(self._out)
                data = data[os.write(self._out, data) :]

    async def receive(self) -> list[bytes]:
        messages: list[bytes] = []
        while not messages:
            await trio.lowlevel.wait_readable(self._in)
            piece = os.read(self._in, READ)
            if not piece:
                raise trio.BrokenResourceError("the process has ended")
            *messages, self._rest = (self._rest + piece).split(b"\n")
        return messages

    def close(self) -> None:
        """The process goes on."""


class OverPipe(Channeled):
    """One of the callers on the streams of a process."""

    def __init__(self, pipe: Pipe, prefix: str = "") -> None:
        super().__init__(Address(0), prefix)
        self._pipe = pipe

    async def open(self) -> None:
        if self._pipe.shared is None:
            self._pipe.shared = Shared(self._pipe)
            await self._pipe.shared.open()
        self.shared = self._pipe.shared
