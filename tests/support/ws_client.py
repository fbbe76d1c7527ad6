"""A WebSocket client on a socket that a test holds; it can be made to break every rule."""

from __future__ import annotations

import json
from typing import Any

import trio
from wsproto import ConnectionType
from wsproto.connection import Connection
from wsproto.events import CloseConnection, Event, Message, Ping, TextMessage

from tests.support.patience import PATIENCE

HANDSHAKE = (
    "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{more}\r\n"
)


def handshake(path: str = "/ws", **headers: str) -> bytes:
    headers = {"sec-websocket-protocol": "mcp"} | {name.replace("_", "-"): value for name, value in headers.items()}
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value)
    return HANDSHAKE.format(path=path, more=more).encode()


class WebSocket:
    """Connected, with the handshake done."""

    def __init__(self, stream: trio.abc.Stream, head: bytes, rest: bytes) -> None:
        self.stream = stream
        self.head = head
        self.frames = Connection(ConnectionType.CLIENT)
        self.pongs = 0
        self._events: list[Event] = []
        if rest:
            self.frames.receive_data(rest)
            self._events += self.frames.events()
        self._text = ""

    @classmethod
    async def connect(cls, stream: trio.abc.Stream, path: str = "/ws", **headers: str) -> WebSocket:
        await stream.send_all(handshake(path, **headers))
        head = b""
        while b"\r\n\r\n" not in head:
            data = await stream.receive_some()
            assert data, head
            head += data
        head, _, rest = head.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101"), head + rest
        return cls(stream, head, rest)

    async def send(self, event: Event) -> None:
        await self.stream.send_all(self.frames.send(event))

    async def say(self, message: dict[str, Any] | str) -> None:
        await self.send(TextMessage(message if isinstance(message, str) else json.dumps(message)))

    async def ask(self, id: int | str, method: str, **params: Any) -> dict[str, Any]:
        await self.say({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        while True:
            message = await self.next()
            if message.get("id") == id and "method" not in message:
                return message

    async def next(self) -> dict[str, Any]:
        """The next message."""
        event = await self.event()
        assert isinstance(event, Message), event
        return dict(json.loads(event.data))

    async def closed(self) -> tuple[int, str]:
        """How the other end closes, whatever comes before."""
        while not isinstance(event := await self.event(), CloseConnection):
            pass
        return int(event.code), event.reason or ""

    async def event(self) -> Event:
        """The next message or close; pings are answered."""
        with trio.fail_after(PATIENCE):
            while True:
                while self._events:
                    event = self._events.pop(0)
                    if isinstance(event, Ping):
                        await self.send(event.response())
                    elif isinstance(event, TextMessage):
                        self._text += event.data
                        if event.message_finished:
                            text, self._text = self._text, ""
                            return TextMessage(text)
                    elif isinstance(event, CloseConnection):
                        return event
                    else:
                        self.pongs += 1
                try:
                    data = await self.stream.receive_some()
                except trio.BrokenResourceError:
                    data = b""
                if not data:
                    return CloseConnection(1006, "the connection broke")
                self.frames.receive_data(data)
                self._events += self.frames.events()
