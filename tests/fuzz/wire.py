"""HTTP/1.1 by hand on trio: every byte that comes in is looked at, and nothing is retried or pooled in secret."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import trio

Look = Callable[[bytes], None]


class BrokenAnswerError(Exception):
    """A connection ended before its answer did."""


class Event(NamedTuple):
    """Its id, and the message in it; either may be missing."""

    id: str | None
    message: Any

    @classmethod
    def read(cls, text: bytes) -> Event | None:
        lines = text.decode().split("\n")
        ids = [line[3:].strip() for line in lines if line.startswith("id:")]
        data = "\n".join(line[5:].strip() for line in lines if line.startswith("data:"))
        return cls(ids[-1] if ids else None, json.loads(data) if data else None) if ids or data else None


@dataclass
class Response:
    """A response; its body comes piece by piece."""

    stream: trio.SocketStream
    look: Look
    status: int
    headers: dict[str, str]
    rest: bytes
    _left: int | None = None
    _text: bytes = b""
    _events: deque[Event] = field(default_factory=deque)

    async def _more(self) -> None:
        data = await self.stream.receive_some(65536)
        if not data:
            raise BrokenAnswerError(f"in the body of {self.status}")
        self.look(data)
        self.rest += data

    async def piece(self) -> bytes | None:
        """More of the body, decoded; None at its end."""
        if self.headers.get("transfer-encoding") == "chunked":
            while b"\r\n" not in self.rest:
                await self._more()
            size, _, self.rest = self.rest.partition(b"\r\n")
            length = int(size, 16)
            while len(self.rest) < length + 2:
                await self._more()
            piece, self.rest = self.rest[:length], self.rest[length + 2 :]
            return piece or None
        if self._left is None:
            self._left = int(self.headers.get("content-length", 0))
        if not self._left:
            return None
        if not self.rest:
            await self._more()
        piece, self.rest = self.rest[: self._left], self.rest[self._left :]
        self._left -= len(piece)
        return piece

    async def body(self) -> bytes:
        body = b""
        while piece := await self.piece():
            body += piece
        return body

    async def event(self) -> Event | None:
        """The next event of a stream, or a body of JSON as if it were one; None at the end."""
        if not self.headers.get("content-type", "").startswith("text/event-stream"):
            body = await self.body()
            return Event(None, json.loads(body)) if body else None
        while not self._events:
            piece = await self.piece()
            if piece is None:
                return None
            *whole, self._text = (self._text + piece).split(b"\n\n")
            self._events += (event for each in whole if (event := Event.read(each)) is not None)
        return self._events.popleft()


@dataclass
class Wire:
    """Where the gateway is, and who looks at what it says."""

    port: int
    look: Look

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    @asynccontextmanager
    async def request(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None = None
    ) -> AsyncIterator[Response]:
        """One request on a connection of its own."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        async with await self.connect() as stream:
            await stream.send_all("\r\n".join([*lines, "", ""]).encode() + (body or b""))
            head = b""
            while b"\r\n\r\n" not in head:
                data = await stream.receive_some(65536)
                if not data:
                    raise BrokenAnswerError(f"{method} {path}: no head, but {head!r}")
                self.look(data)
                head += data
            head, _, rest = head.partition(b"\r\n\r\n")
            start, *fields = head.decode("latin-1").split("\r\n")
            found = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in fields)}
            yield Response(stream, self.look, int(start.split()[1]), found, rest)
