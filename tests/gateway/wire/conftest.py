"""A server of raw bytes for tests of HTTP clients."""

from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio


class RawServer:
    """Runs `handler(server, stream)` per connection and keeps what each connection read."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}/mcp"
        self.connections = 0
        self.requests: list[bytes] = []
        self.closed = 0
        self._changed = trio.lowlevel.ParkingLot()

    async def read_request(self, stream: Any) -> bytes:
        """One whole request (with Content-Length or without body); b"" at the end of the connection."""
        data = b""
        while b"\r\n\r\n" not in data:
            chunk = await stream.receive_some(65536)
            if not chunk:
                return b""
            data += chunk
        head, _, body = data.partition(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        wanted = int(lengths[0].partition(b":")[2]) if lengths else 0
        while len(body) < wanted:
            body += await stream.receive_some(65536)
        self.requests.append(head + b"\r\n\r\n" + body)
        return self.requests[-1]

    def note_closed(self) -> None:
        self.closed += 1
        self._changed.unpark_all()

    async def wait_closed(self, count: int = 1) -> None:
        while self.closed < count:
            await self._changed.park()


Handler = Callable[[RawServer, Any], Awaitable[None]]


@asynccontextmanager
async def raw_server(handler: Handler, tls: Any = None):
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    server = RawServer(listener.socket.getsockname()[1])

    async def serve(stream: Any) -> None:
        server.connections += 1
        try:
            await handler(server, stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            server.note_closed()

    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, serve, [trio.SSLListener(listener, tls) if tls else listener])
        yield server
        nursery.cancel_scope.cancel()


@pytest.fixture
def serve():
    return raw_server


def answering(*answers: bytes, step: int = 0) -> Handler:
    """Gives these answers, one per request, whole or in pieces of `step` bytes; then reads on, silently."""

    async def handler(server: RawServer, stream: Any) -> None:
        left = list(answers)
        while await server.read_request(stream):
            if not left:
                continue
            answer = left.pop(0)
            for start in range(0, len(answer), step or len(answer)):
                await stream.send_all(answer[start : start + (step or len(answer))])
                if step:
                    await trio.lowlevel.checkpoint()

    return handler


@pytest.fixture
def replies():
    return answering
