"""MCP clients that make load: steady, bursty, one that stops reading, and one that reconnects.

Each client is a session of its own on a connection of its own, as real clients are. Every answer is checked: its id,
and that it is a result. A wrong or missing answer counts as an error, never as a call.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import httptools
import msgspec
import trio

from loadtest.wire import Address, ClientConnection

REVISION = "2025-11-25"
HEADERS = (
    b"content-type: application/json\r\naccept: application/json, text/event-stream\r\n"
    b"user-agent: stagedoor-loadtest/1\r\n"
)
ANSWER_WITHIN = 30.0  # seconds after which a call counts as an error
BROKEN = (OSError, trio.BrokenResourceError, trio.TooSlowError, httptools.HttpParserError, msgspec.MsgspecError)


class Answer(msgspec.Struct):
    """As much of an answer as is checked."""

    id: int | str | None = None
    result: msgspec.Raw = msgspec.Raw(b"")


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Answer).decode


class WrongAnswerError(Exception):
    """A server answered otherwise than with the result that was asked for."""


def events(body: bytes) -> list[bytes]:
    """The data of every SSE event in `body`."""
    return [line[5:].strip() for line in body.splitlines() if line.startswith(b"data:") and len(line) > len(b"data: ")]


def last_id(body: bytes) -> bytes | None:
    ids = [line[3:].strip() for line in body.splitlines() if line.startswith(b"id:")]
    return ids[-1] if ids else None


class Session:
    """One MCP session and the connection on which it makes its calls."""

    def __init__(self, address: Address, prefix: str = "") -> None:
        self._address = address
        self._prefix = prefix
        self._headers = HEADERS
        self._ids = itertools.count(1)
        self.connection: ClientConnection | None = None

    async def open(self) -> None:
        """Does the handshake. Raises WrongAnswerError when it is refused."""
        self.connection = await self._address.connect()
        client = {"name": "loadtest", "version": "1"}
        params = {"protocolVersion": REVISION, "capabilities": {}, "clientInfo": client}
        await self._ask("initialize", params)
        session = self.connection.headers.get(b"mcp-session-id")
        if session is not None:
            self._headers += b"mcp-session-id: %b\r\n" % session
        self._headers += b"mcp-protocol-version: %b\r\n" % REVISION.encode()
        note = encode({"jsonrpc": "2.0", "method": "notifications/initialized"})
        await self.connection.request(b"POST", self._address.path, self._headers, note)
        await self.connection.body()

    async def _ask(self, method: str, params: object) -> bytes:
        assert self.connection is not None
        number = await self._send(method, params)
        body = await self.connection.body()
        return self._checked(number, body)

    async def _send(self, method: str, params: object) -> int:
        assert self.connection is not None
        number = next(self._ids)
        body = encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        status = await self.connection.request(b"POST", self._address.path, self._headers, body)
        if status != 200:
            raise WrongAnswerError(f"{method}: HTTP {status}: {(await self.connection.body())[:200]!r}")
        return number

    def _checked(self, number: int, body: bytes) -> bytes:
        assert self.connection is not None
        streamed = self.connection.headers.get(b"content-type", b"").startswith(b"text/event-stream")
        data = events(body)[-1] if streamed else body
        answer = decode(data)
        if not answer.result or answer.id != number:
            raise WrongAnswerError(data[:300].decode(errors="replace"))
        return data

    async def call(self, tool: str = "echo") -> None:
        """One tool call, from sending to the checked answer."""
        await self._ask("tools/call", {"name": tool, "arguments": {"n": 7, "text": "a little text to carry along"}})

    async def call_and_stall(self) -> None:
        """Sends a call that is answered by much more than the sockets hold, and never reads on."""
        await self.reopen(receive_buffer=4096)
        await self._send("tools/call", {"name": f"{self._prefix}flood", "arguments": {}})

    async def listen(self) -> ClientConnection:
        """Opens the session's GET stream on a connection of its own."""
        connection = await self._address.connect()
        headers = self._headers.replace(b"application/json, text/event-stream", b"text/event-stream")
        status = await connection.request(b"GET", self._address.path, headers)
        if status != 200:
            raise WrongAnswerError(f"GET: HTTP {status}")
        return connection

    async def call_cut_and_resume(self, seconds: float) -> None:
        """Starts a slow call, cuts its connection once an event id has come, and fetches the answer by it."""
        assert self.connection is not None
        number = await self._send("tools/call", {"name": f"{self._prefix}slow", "arguments": {"seconds": seconds}})
        seen = b""
        while last_id(seen) is None:
            piece = await self.connection.piece()
            if not piece:
                raise WrongAnswerError("the stream has no event ids")
            seen += piece
        await self.reopen()
        headers = self._headers + b"last-event-id: %b\r\n" % (last_id(seen) or b"")
        status = await self.connection.request(b"GET", self._address.path, headers)
        if status != 200:
            raise WrongAnswerError(f"resume: HTTP {status}")
        rest = b""
        while not any(decode(data).id == number for data in events(rest)):
            piece = await self.connection.piece()
            if not piece:
                raise WrongAnswerError("the resumed stream ended without the answer")
            rest += piece
        await self.reopen()

    async def end(self) -> None:
        """Says goodbye: the server may forget the session."""
        await self.reopen()
        assert self.connection is not None
        await self.connection.request(b"DELETE", self._address.path, self._headers)
        self.close()

    async def reopen(self, receive_buffer: int | None = None) -> None:
        """A fresh connection for the same session."""
        self.close()
        self.connection = await self._address.connect(receive_buffer)

    def close(self) -> None:
        """Closes the connection; the session goes on."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None


@dataclass
class Tally:
    """What a load has seen: seconds of each call, and errors by their text."""

    seconds: list[float] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        return len(self.seconds)

    def wrong(self, error: BaseException) -> None:
        text = f"{type(error).__name__}: {error}"[:200]
        self.errors[text] = self.errors.get(text, 0) + 1

    def percentile(self, share: float) -> float:
        """The latency in seconds under which that share of the calls stayed; 0 without calls."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


async def _each(sessions: list[Session], do: Callable[[Session], Awaitable[None]], at_once: int = 8) -> None:
    waiting = iter(sessions)

    async def worker() -> None:
        for session in waiting:
            with trio.fail_after(ANSWER_WITHIN):
                await do(session)

    async with trio.open_nursery() as nursery:
        for _ in range(min(at_once, len(sessions))):
            nursery.start_soon(worker)


async def open_sessions(
    address: Address, count: int, prefix: str = "", *, keep_connections: bool = True
) -> list[Session]:
    """Opens sessions, a few at a time."""
    sessions = [Session(address, prefix) for _ in range(count)]

    async def opened(session: Session) -> None:
        await session.open()
        if not keep_connections:
            session.close()

    await _each(sessions, opened)
    return sessions


async def end_sessions(sessions: list[Session]) -> None:
    """Ends sessions, a few at a time."""
    await _each(sessions, Session.end)


async def _timed(session: Session, tool: str, tally: Tally) -> None:
    began = time.perf_counter()
    try:
        with trio.fail_after(ANSWER_WITHIN):
            await session.call(tool)
    except (WrongAnswerError, *BROKEN) as error:
        tally.wrong(error)
        session.close()
        with trio.move_on_after(ANSWER_WITHIN):
            await session.open()
        return
    tally.seconds.append(time.perf_counter() - began)


async def steady(sessions: list[Session], tool: str, seconds: float) -> Tally:
    """Every session calls again as soon as it has its answer."""
    tally, end = Tally(), time.perf_counter() + seconds

    async def caller(session: Session) -> None:
        while time.perf_counter() < end:
            await _timed(session, tool, tally)

    async with trio.open_nursery() as nursery:
        for session in sessions:
            nursery.start_soon(caller, session)
    return tally


async def bursty(sessions: list[Session], tool: str, seconds: float, every: float = 0.1) -> Tally:
    """All sessions call in the same moment, again and again."""
    tally, end = Tally(), time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for session in sessions:
                nursery.start_soon(_timed, session, tool, tally)
        await trio.sleep_until(began + every)
    return tally


async def stalled(sessions: list[Session], tool: str, seconds: float, stuck: int = 8) -> Tally:
    """Some sessions have calls and GET streams that they do not read; the tally is of the others."""
    streams = []
    for session in sessions[:stuck]:
        streams.append(await session.listen())
        await session.call_and_stall()
    tally = await steady(sessions[stuck:], tool, seconds)
    for stream in streams:
        stream.close()
    return tally


async def reconnecting(sessions: list[Session], _tool: str, seconds: float, wait: float = 0.3) -> Tally:
    """Every session starts a slow call, loses its connection, and resumes; a lost answer is an error."""
    tally, end = Tally(), time.perf_counter() + seconds

    async def caller(session: Session) -> None:
        while time.perf_counter() < end:
            began = time.perf_counter()
            try:
                with trio.fail_after(ANSWER_WITHIN):
                    await session.call_cut_and_resume(wait)
            except (WrongAnswerError, *BROKEN) as error:
                tally.wrong(error)
                return
            tally.seconds.append(time.perf_counter() - began)

    async with trio.open_nursery() as nursery:
        for session in sessions:
            nursery.start_soon(caller, session)
    return tally
