"""What the tests of transports share: a recorder of events and of log lines."""

import contextlib
import json
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from actors.ports import TransportEvent


class Events:
    """An `emit` that keeps what it gets, and lets a test wait for it."""

    def __init__(self) -> None:
        self.all: list[TransportEvent] = []
        self._send, self._receive = trio.open_memory_channel[TransportEvent](math.inf)

    def __call__(self, event: TransportEvent) -> None:
        self.all.append(event)
        self._send.send_nowait(event)

    async def next(self, kind: type | None = None) -> Any:
        """The next event, or the next of this kind (others are passed over)."""
        while True:
            event = await self._receive.receive()
            if kind is None or isinstance(event, kind):
                return event

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.all if isinstance(event, kind)]

    async def longest_run(self, total: int) -> int:
        """Waits for so many events; how many came at most between two turns of another task."""
        longest = seen = 0
        while seen < total:
            await trio.lowlevel.checkpoint()
            longest = max(longest, len(self.all) - seen)
            seen = len(self.all)
        return longest


class RecordedLog:
    """A `Log` that keeps (level, event, values)."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def _level(self, level: str) -> Callable[..., None]:
        def write(event: str, **values: Any) -> None:
            self.lines.append((level, event, values))

        return write

    def __getattr__(self, level: str) -> Callable[..., None]:
        return self._level(level)

    def of(self, event: str) -> list[dict[str, Any]]:
        return [values for _, name, values in self.lines if name == event]


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def log() -> RecordedLog:
    return RecordedLog()


class HttpRequest:
    """One request that a backend got, and the ways to answer it."""

    def __init__(self, stream: Any, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        self.stream = stream
        self.method = method
        self.target = target
        self.headers = headers
        self.body = body

    @property
    def message(self) -> dict[str, Any]:
        return dict(json.loads(self.body))

    @property
    def id(self) -> Any:
        return self.message.get("id")

    async def raw(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def answer(self, status: int, body: bytes = b"", kind: str = "application/json", **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.raw("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def result(self, result: Any, **headers: str) -> None:
        await self.answer(200, result_frame(self.id, result), **headers)

    async def error(self, status: int, code: int, id: Any = None) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": "no"}}).encode()
        await self.answer(status, body)

    async def accepted(self) -> None:
        await self.answer(202)

    async def events(self) -> None:
        await self.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")

    async def event(self, data: bytes | None = None, **fields: Any) -> None:
        if data is not None:
            fields["data"] = data.decode()
        text = "".join(f"{name}: {value}\n" for name, value in fields.items()).encode() + b"\n"
        await self.raw(b"%x\r\n%b\r\n" % (len(text), text))

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")


def result_frame(id: Any, result: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode()


class HttpBackend:
    """Answers by `handlers`, one per request in the order of arrival (the last one goes on), on real sockets."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/mcp"
        self.requests: list[HttpRequest] = []
        self.handlers: list[Callable[[HttpRequest], Awaitable[None]]] = []
        self.connections = 0
        self.closed = 0
        self._changed = trio.lowlevel.ParkingLot()

    async def wait_requests(self, count: int = 1) -> None:
        while len(self.requests) < count:
            await self._changed.park()

    async def wait_closed(self, count: int = 1) -> None:
        while self.closed < count:
            await self._changed.park()

    async def serve(self, stream: Any) -> None:
        self.connections += 1
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while request := await self.read(stream):
                self.requests.append(request)
                self._changed.unpark_all()
                handler = self.handlers.pop(0) if len(self.handlers) > 1 else self.handlers[0]
                if await handler(request) == "cut":
                    break
        self.closed += 1
        self._changed.unpark_all()

    async def read(self, stream: Any) -> HttpRequest | None:
        data = b""
        while b"\r\n\r\n" not in data:
            chunk = await stream.receive_some(65536)
            if not chunk:
                return None
            data += chunk
        head, _, body = data.partition(b"\r\n\r\n")
        line, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        while len(body) < int(headers.get("content-length", "0")):
            body += await stream.receive_some(65536)
        return HttpRequest(stream, *line.split(" ")[:2], headers, body)


@pytest.fixture
async def backend(nursery):
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    backend = HttpBackend(listener.socket.getsockname()[1])
    nursery.start_soon(trio.serve_listeners, backend.serve, [listener])
    return backend
