"""An MCP server whose streams can be resumed, and that counts what it executes: `python -m loadtest.resumable`.

Tools: `echo` answers at once, `steps` reports progress so many `steps`, `pause` seconds apart, and then answers. Each
call has a number `n` of its own, with which its result begins. What is said on a stream has ids and is kept, so that
whoever comes back with one gets the rest; a call goes on without a reader. A session that has chosen a log level is
told something numbered every `TICK` seconds on its GET stream; with `--calls-only` there are no such streams, only
those of calls. `GET /counts` says what was executed.
"""

from __future__ import annotations

import argparse
import gc
import itertools
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from loadtest.backend import JSON, Message, decode, encode, initialized, respond
from loadtest.proc import raise_file_limit
from loadtest.wire import Request, ServerConnection, serve

TICK = 5.0  # seconds
KEPT_EVENTS = 64  # of one stream
KEPT_FOR = 120.0  # seconds after its end


class Stream:
    """What is said on one stream. One reader at a time: the newest."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._said: deque[tuple[int, bytes]] = deque(maxlen=KEPT_EVENTS)
        self._numbers = itertools.count(1)
        self._over = False
        self._news = trio.Event()
        self._readers = 0

    def say(self, data: bytes) -> None:
        self._said.append((next(self._numbers), data))
        self._wake()

    def end(self) -> None:
        self._over = True
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = trio.Event()

    async def read(self, connection: ServerConnection, after: int) -> None:
        """Writes what was said after so many events and what is said from now on, to the end of the stream or until
        another one reads."""
        self._readers += 1
        me = self._readers
        self._wake()
        while me == self._readers:
            news = self._news
            for number, data in [said for said in self._said if said[0] > after]:
                after = number
                await connection.piece(b"id: %b/%d\ndata: %b\n\n" % (self.name.encode(), number, data))
            if self._over:
                break
            if news is self._news:
                await news.wait()


@dataclass
class Session:
    """What one client of this server has."""

    unasked: Stream = field(default_factory=lambda: Stream("get"))
    streams: dict[str, Stream] = field(default_factory=dict)
    told: int = 0
    """How often it was told something; 0 for one that wants to hear nothing."""


class Server:
    """All sessions, and the calls that run."""

    def __init__(self, nursery: trio.Nursery, calls_only: bool) -> None:
        self._nursery = nursery
        self._calls_only = calls_only
        self._sessions: dict[bytes, Session] = {}
        self._executed: Counter[int] = Counter()
        self._names = itertools.count(1)

    async def handle(self, connection: ServerConnection) -> None:
        """Serves one HTTP connection."""
        while (request := await connection.next_request()) is not None:
            session = self._sessions.get(request.headers.get(b"mcp-session-id", b""))
            if request.target == b"/counts":
                await connection.answer(b"200 OK", encode(self._counts()), JSON)
            elif request.method == b"POST":
                await self._post(connection, request, session)
            elif session is None:
                await connection.answer(b"404 Not Found")
            elif request.method == b"GET":
                if await self._get(connection, request, session):
                    return
            else:
                self._sessions.pop(request.headers[b"mcp-session-id"])
                await connection.answer(b"200 OK")

    def _counts(self) -> dict[str, int]:
        twice = sum(count > 1 for count in self._executed.values())
        return {"executed": len(self._executed), "twice": twice, "sessions": len(self._sessions)}

    async def _post(self, connection: ServerConnection, request: Request, session: Session | None) -> None:
        message = decode(request.body)
        if message.method == "initialize":
            name = b"s%d" % next(self._names)
            self._sessions[name] = Session()
            head = b"%bmcp-session-id: %b\r\n" % (JSON, name)
            result = initialized(message.params)
            await connection.answer(b"200 OK", encode({"jsonrpc": "2.0", "id": message.id, "result": result}), head)
        elif session is None:
            await connection.answer(b"404 Not Found")
        elif message.id is None or not message.method:
            await connection.answer(b"202 Accepted")
        else:
            await self._answer(connection, message, session)

    async def _answer(self, connection: ServerConnection, message: Message, session: Session) -> None:
        if message.method == "logging/setLevel":
            session.told = max(session.told, 1)
        elif message.method == "tools/call":
            arguments: dict[str, Any] = message.params["arguments"]
            self._executed[arguments["n"]] += 1
            if message.params["name"] == "steps":
                stream = Stream(f"c{next(self._names)}")
                session.streams[stream.name] = stream
                stream.say(b"")
                self._nursery.start_soon(self._run, message, session, stream)
                await connection.start_events()
                await stream.read(connection, 0)
                await connection.piece(b"")
                return
        await connection.answer(b"200 OK", respond(message), JSON)

    async def _run(self, message: Message, session: Session, stream: Stream) -> None:
        arguments = message.params["arguments"]
        token = (message.params.get("_meta") or {}).get("progressToken")
        for step in range(1, arguments["steps"] + 1):
            await trio.sleep(arguments["pause"])
            told = {"progressToken": token, "progress": step}
            stream.say(encode({"jsonrpc": "2.0", "method": "notifications/progress", "params": told}))
        stream.say(respond(message))
        stream.end()
        await trio.sleep(KEPT_FOR)
        session.streams.pop(stream.name, None)

    async def _get(self, connection: ServerConnection, request: Request, session: Session) -> bool:
        """Whether there was a stream: its connection has no further use."""
        name, _, place = request.headers.get(b"last-event-id", b"").decode().partition("/")
        if not name and self._calls_only:
            await connection.answer(b"405 Method Not Allowed")
            return False
        stream = session.unasked if name in ("", "get") else session.streams.get(name)
        if stream is None:
            await connection.answer(b"404 Not Found")
            return False
        await connection.start_events(b"connection: close\r\n")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_closed, connection, nursery.cancel_scope)
            with suppress(OSError, trio.BrokenResourceError):
                await stream.read(connection, int(place or 0))
                await connection.piece(b"")
            nursery.cancel_scope.cancel()
        return True

    async def tick(self) -> None:
        """Tells something to each of those who want to hear it, in turn."""
        while True:
            listening = [session for session in self._sessions.values() if session.told]
            for session in listening:
                said = {"level": "info", "data": session.told}
                session.told += 1
                session.unasked.say(encode({"jsonrpc": "2.0", "method": "notifications/message", "params": said}))
                await trio.sleep(TICK / len(listening))
            if not listening:
                await trio.sleep(TICK)


async def _until_closed(connection: ServerConnection, scope: trio.CancelScope) -> None:
    with suppress(OSError, trio.BrokenResourceError):
        await connection.wait_closed()
    scope.cancel()


async def run(port: int, calls_only: bool) -> None:
    async with trio.open_nursery() as nursery:
        server = Server(nursery, calls_only)
        nursery.start_soon(server.tick)
        nursery.start_soon(partial(serve, port, server.handle))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--calls-only", action="store_true")
    options = parser.parse_args()
    raise_file_limit()
    gc.set_threshold(200_000, 50, 1000)
    trio.run(run, options.port, options.calls_only)


if __name__ == "__main__":
    main()
