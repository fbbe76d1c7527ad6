"""Sessions that are at home nowhere: each request goes to any replica that accepts connections, and everything that
comes back is checked. They do what a client may: a request is sent once, and a stream that ends too early is resumed
by its last event id.
"""

from __future__ import annotations

import itertools
import random
import select
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import trio

from loadtest.client import ABOUT, BROKEN, HEADERS, REPORTED, Result, encode
from loadtest.wire import Address, ClientConnection

REVISION = "2025-11-25"
RESUME_AFTER = (0.1, 0.5)
"""Seconds until a stream is resumed, from and to."""
OUTCOME_WITHIN = 90.0
"""Seconds beyond its own time after which a call counts as lost."""
LATER = frozenset({429, 502, 503, 504})
NOTES = 500
numbers = itertools.count(1)


class ErrorObject(msgspec.Struct):
    code: int = 0
    message: str = ""
    data: Any = None


class Message(msgspec.Struct):
    """An answer, or something else on a stream."""

    id: int | str | None = None
    method: str = ""
    params: dict[str, Any] = {}
    result: Result | None = None
    error: ErrorObject | None = None


decode = msgspec.json.Decoder(Message).decode


class FailedError(Exception):
    """A request that has no result, and why."""


@dataclass
class Ledger:
    """What all sessions have seen."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    """Of each kind of call with a result, in time."""
    failed: Counter[str] = field(default_factory=Counter)
    """Requests without, by what came instead."""
    wrong: Counter[str] = field(default_factory=Counter)
    """Events that were lost, doubled or out of order."""
    events: int = 0
    resumed: int = 0
    unheard: int = 0
    """What servers said while nobody read, and which never became an event."""
    draining: set[bytes] = field(default_factory=set)
    """The replicas that were told to end and have not been started anew."""
    drains: float = 0.0
    """When the last one was told."""
    notes: list[str] = field(default_factory=list)
    """When, what and where, of the first failures."""

    def drain(self, replica: bytes) -> None:
        """It was told to end."""
        self.draining.add(replica)
        self.drains = time.monotonic()

    def fail(self, kind: str, error: BaseException, replica: bytes, seconds: float = 0.0) -> None:
        """A request of this kind, which this replica had for so long, has no result."""
        text = f"{kind}: {error}" if isinstance(error, FailedError) else f"{kind}: {type(error).__name__} {error}"
        state = "draining" if replica in self.draining else "serving"
        self.failed[f"{text[:300]} ({state})"] += 1
        if len(self.notes) < NOTES:
            now = time.monotonic()
            since = f"{now - self.drains:.2f} s after the last drain began" if self.drains else "before any drain"
            self.notes.append(f"{now:.3f} {text[:300]}; {replica.decode()} ({state}), {seconds:.2f} s, {since}")


class Balancer:
    """Connects to any replica, as a balancer does that knows nothing of sessions."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = list(addresses)

    async def connect(self) -> ClientConnection:
        for address in random.sample(self._addresses, len(self._addresses)):
            try:
                return await address.connect()
            except OSError:
                continue
        raise FailedError("no replica accepts connections")


class Cursor:
    """Where one stream stands, by the ids of its events (`<stream>:<epoch>-<number>`)."""

    def __init__(self, ledger: Ledger) -> None:
        self.last = b""
        self._number = 0
        self._ledger = ledger

    def take(self, id: bytes) -> None:
        number = int(id.rpartition(b"-")[2])
        self._ledger.events += 1
        if number <= self._number:
            self._ledger.wrong["doubled"] += 1
        elif number > self._number + 1:
            self._ledger.wrong["missing"] += number - self._number - 1
        self.last, self._number = id, number


@dataclass
class Event:
    id: bytes = b""
    data: bytes = b""


class Events:
    """The events of a body."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._rest = b""
        self._whole: deque[bytes] = deque()

    async def next(self) -> Event | None:
        """The next one; None at the end."""
        while not self._whole:
            piece = await self._connection.piece()
            if not piece:
                return None
            *whole, self._rest = (self._rest + piece).split(b"\n\n")
            self._whole.extend(whole)
        event = Event()
        for line in self._whole.popleft().splitlines():
            name, _, value = line.partition(b":")
            if name == b"id":
                event.id = value.strip()
            elif name == b"data":
                event.data = value.strip()
        return event


class Roamer:
    """One session. One that `keeps` its connection uses it until it is closed; the others connect for each request."""

    def __init__(self, balancer: Balancer, path: bytes, ledger: Ledger, *, keeps: bool) -> None:
        self.busy = False
        self.heard = 0.0
        """When its GET stream last brought something."""
        self._balancer = balancer
        self._path = path
        self._ledger = ledger
        self._keeps = keeps
        self._kept: ClientConnection | None = None
        self._headers = HEADERS
        self._told = 0
        self._at = b""
        """The replica that had the last request of a call."""

    async def open(self) -> None:
        params = {"protocolVersion": REVISION, "capabilities": {}, "clientInfo": ABOUT}
        connection = await self._post({"id": next(numbers), "method": "initialize", "params": params})
        self._headers += b"mcp-session-id: %b\r\n" % connection.headers[b"mcp-session-id"]
        self._headers += b"mcp-protocol-version: %b\r\n" % REVISION.encode()
        await self._whole(connection)
        await self._whole(await self._post({"method": "notifications/initialized"}))

    # Calls

    async def call(self, tool: str, steps: int = 0, pause: float = 0.0) -> None:
        """One call, whose outcome is in the ledger afterwards."""
        self.busy = True
        kind, began, n = f"{tool} {steps * pause:g} s", time.perf_counter(), next(numbers)
        params = {"name": tool, "arguments": {"n": n, "steps": steps, "pause": pause}, "_meta": REPORTED}
        try:
            with trio.fail_after(OUTCOME_WITHIN + steps * pause):
                progress = await self._called(n, {"id": n, "method": "tools/call", "params": params})
            if progress != list(range(1, steps + 1)):
                self._ledger.wrong["progress"] += 1
                self._ledger.notes.append(f"{time.monotonic():.3f} {kind} {progress}")
            self._ledger.seconds.setdefault(kind, []).append(time.perf_counter() - began)
        except (FailedError, *BROKEN) as error:
            self._ledger.fail(kind, error, self._at, time.perf_counter() - began)
        finally:
            self.busy = False

    async def _called(self, n: int, message: dict[str, Any]) -> list[int]:
        """What was said of its progress, when it has its result."""
        connection = await self._post(message)
        if not connection.headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            checked(decode(await self._whole(connection)), n)
            return []
        cursor, progress = Cursor(self._ledger), list[int]()
        while True:
            try:
                events = Events(connection)
                while (event := await events.next()) is not None:
                    if event.id:
                        cursor.take(event.id)
                    if not event.data:
                        continue
                    said = decode(event.data)
                    if said.method == "notifications/progress":
                        progress.append(said.params["progress"])
                    elif said.id == n:
                        checked(said, n)
                        await self._leave(connection)
                        return progress
            except BROKEN as error:
                if not cursor.last:
                    raise FailedError(f"the stream broke before an id: {error}") from None
            connection.close()
            if not cursor.last:
                raise FailedError("the stream ended before an id")
            connection = await self._resumed(cursor)
            self._at = connection.host

    # Streams

    async def listen(self) -> None:
        """A GET stream, resumed whenever it ends."""
        try:
            await self._listen()
        except FailedError as error:
            self._ledger.fail("GET stream", error, b"any")

    async def _listen(self) -> None:
        level = {"id": next(numbers), "method": "logging/setLevel", "params": {"level": "info"}}
        await self._whole(await self._post(level))
        cursor = Cursor(self._ledger)
        connection = await self._resumed(cursor)
        while True:
            try:
                events = Events(connection)
                while (event := await events.next()) is not None:
                    if event.id:
                        cursor.take(event.id)
                    if event.data:
                        self._hear(decode(event.data))
            except BROKEN:
                pass
            connection.close()
            connection = await self._resumed(cursor)

    def _hear(self, said: Message) -> None:
        self.heard = time.monotonic()
        if said.method == "notifications/message":
            number = said.params["data"]
            if number <= self._told:
                self._ledger.wrong["said twice"] += 1
            self._ledger.unheard += max(0, number - self._told - 1) if self._told else 0
            self._told = number

    async def _resumed(self, cursor: Cursor) -> ClientConnection:
        """The rest of a stream, on a connection of its own; the first time all of it."""
        self._ledger.resumed += bool(cursor.last)
        headers = self._headers + (b"last-event-id: %b\r\n" % cursor.last if cursor.last else b"")
        while True:
            await trio.sleep(random.uniform(*RESUME_AFTER))
            try:
                connection = await self._balancer.connect()
                status = await connection.request(b"GET", self._path, headers)
            except BROKEN:
                continue
            if status == 200:
                return connection
            said = await connection.body()
            connection.close()
            if status not in LATER:
                raise FailedError(f"resumption: HTTP {status} {reason(said)}")

    # HTTP

    async def _post(self, message: dict[str, Any]) -> ClientConnection:
        """The connection on which the answer is, if it is one."""
        connection, self._kept = self._kept, None
        kept = connection is not None and not closed(connection)
        if connection is None or not kept:
            if connection is not None:
                connection.close()
            connection = await self._balancer.connect()
        self._at = connection.host
        try:
            status = await connection.request(b"POST", self._path, self._headers, encode({"jsonrpc": "2.0", **message}))
            if status in (200, 202):
                return connection
            refused = reason(await connection.body())
        except BROKEN as error:
            connection.close()
            raise FailedError(f"the connection broke{' (kept)' if kept else ''}: {error!r}") from None
        connection.close()
        raise FailedError(f"HTTP {status}{' (kept)' if kept else ''} {refused}")

    async def _whole(self, connection: ClientConnection) -> bytes:
        body = await connection.body()
        await self._leave(connection)
        return body

    async def _leave(self, connection: ClientConnection) -> None:
        """Its answer was read."""
        if self._keeps and connection.headers.get(b"connection", b"") != b"close":
            with trio.move_on_after(1):
                await connection.body()
                self._kept = connection
                return
        connection.close()

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()


def closed(connection: ClientConnection) -> bool:
    """Whether the other end has closed it: nothing else is to be read there now."""
    look = select.poll()
    look.register(connection.fileno(), select.POLLIN)
    return bool(look.poll(0))


def reason(body: bytes) -> str:
    """What a refusal says."""
    try:
        error = decode(body).error
    except msgspec.DecodeError:
        error = None
    if error is None:
        return repr(body[:160])
    return f"{error.message} {error.data}" if error.data else error.message


def checked(message: Message, n: int) -> None:
    """The answer to call `n`, whose result must be its own."""
    if message.error is not None:
        data = message.error.data if isinstance(message.error.data, dict) else {}
        raise FailedError(f"error {data.get('reason')}, executed {data.get('executed')}: {message.error.message}")
    if message.result is None or message.id != n or not message.result.content[0].text.startswith(f"{n}: "):
        raise FailedError(f"another answer than that to {n}: {message}"[:200])
