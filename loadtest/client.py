"""MCP clients that make load, of both eras.

Each is on a connection of its own, as real clients are, and a client of the handshake era is a session of its own.
Every answer is checked: its id, that it is a result, and that a call's result is the one asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import httptools
import msgspec
import trio

from loadtest.wire import Address, ClientConnection

HEADERS = (
    b"content-type: application/json\r\naccept: application/json, text/event-stream\r\n"
    b"user-agent: stagedoor-loadtest/1\r\n"
)
ABOUT = {"name": "loadtest", "version": "1"}
CAPABILITIES: dict[str, Any] = {"elicitation": {"form": {}}}
ANSWER_WITHIN = 30.0  # seconds after which a call counts as an error
BROKEN = (OSError, trio.BrokenResourceError, trio.TooSlowError, httptools.HttpParserError, msgspec.MsgspecError)
ARGUMENT, FILLED_IN = 7, 9
"""The number that calls carry, and the one that is given when the server asks. Results begin with it."""
QUIET_TOOLS = ("echo", "ask", "events", "large")
LEVEL = "info"
"""Of the log messages that other tools send, for which the client must have asked."""
REPORTED = {"progressToken": "p"}
"""With the calls whose progress is reported."""
ANSWER = {"action": "accept", "content": {"n": FILLED_IN}}


class Content(msgspec.Struct):
    text: str = ""


class Result(msgspec.Struct, rename="camel"):
    """As much of a result as is checked, or used to go on."""

    is_error: bool = False
    content: list[Content] = []
    result_type: str = "complete"
    input_requests: dict[str, Any] = {}
    request_state: str | None = None


class Message(msgspec.Struct):
    """An answer, or something on its stream."""

    id: int | str | None = None
    method: str = ""
    result: Result | None = None


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Message).decode


class WrongAnswerError(Exception):
    """A server answered otherwise than with the result that was asked for."""


def events(body: bytes) -> list[bytes]:
    """The data of every SSE event in `body`."""
    return [line[5:].strip() for line in body.splitlines() if line.startswith(b"data:") and len(line) > len(b"data: ")]


def last_id(body: bytes) -> bytes | None:
    ids = [line[3:].strip() for line in body.splitlines() if line.startswith(b"id:")]
    return ids[-1] if ids else None


class Client:
    """What clients of both eras do alike. `prefix` stands before the names of the tools; `token` goes with whatever is
    said, if there is one."""

    def __init__(self, address: Address, prefix: str = "", token: str = "") -> None:
        self._address = address
        self._prefix = prefix
        self._said_always = HEADERS + (b"authorization: Bearer %b\r\n" % token.encode() if token else b"")
        self._headers = self._said_always
        self._ids = itertools.count(1)
        self.connection: ClientConnection | None = None

    async def open(self) -> None:
        """Makes the connection and whatever must come before calls. Raises WrongAnswerError when it is refused."""
        raise NotImplementedError

    async def call(self, tool: str = "echo") -> None:
        """One tool call, from sending to the checked answer; answers what the server asks on the way."""
        number, result = await self._call(self._prefix + tool)
        if result.is_error or not result.content or not result.content[0].text.startswith(f"{number}: "):
            raise WrongAnswerError(f"{tool}: {result}"[:300])

    async def _call(self, tool: str) -> tuple[int, Result]:
        """The number with which the result must begin, and the result."""
        raise NotImplementedError

    async def listen(self) -> ClientConnection:
        """Opens a stream for what the server has to say outside of calls, on a connection of its own."""
        raise NotImplementedError

    async def end(self) -> None:
        """Says goodbye."""
        self.close()

    def rest(self) -> None:
        """Closes what a session lasts without while nothing is said."""
        self.close()

    async def wake(self) -> None:
        """What comes before the next call then."""
        await self.reopen()

    async def call_and_stall(self) -> None:
        """Sends a call that is answered by much more than the sockets hold, and never reads on."""
        await self.reopen(receive_buffer=4096)
        await self._send("tools/call", self._tool(f"{self._prefix}flood", {}))

    def _tool(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        params: dict[str, Any] = {"name": name, "arguments": arguments}
        return {**params, "_meta": REPORTED} if name.endswith("events") else params

    def _headers_of(self, method: str, params: dict[str, Any]) -> bytes:
        return self._headers

    async def _ask(self, method: str, params: dict[str, Any]) -> Result:
        number = await self._send(method, params)
        return await self._result(number)

    async def _send(self, method: str, params: dict[str, Any]) -> int:
        assert self.connection is not None
        number = next(self._ids)
        body = encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        headers = self._headers_of(method, params)
        status = await self.connection.request(b"POST", self._address.path, headers, body)
        if status != 200:
            raise WrongAnswerError(f"{method}: HTTP {status}: {(await self.connection.body())[:200]!r}")
        return number

    async def _result(self, number: int) -> Result:
        assert self.connection is not None
        if not self.connection.headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            return checked(await self.connection.body(), number)
        rest = b""
        while piece := await self.connection.piece():
            *whole, rest = (rest + piece).replace(b"\r\n", b"\n").split(b"\n\n")
            for data in events(b"\n".join(whole)):
                message = decode(data)
                if message.id is None:
                    continue
                if not message.method:
                    await self.connection.body()
                    return checked(data, number)
                await self._asked(message)
        raise WrongAnswerError("the stream ended without the answer")

    async def _asked(self, message: Message) -> None:
        """Answers a request of the server."""
        raise WrongAnswerError(f"the server asked: {message.method}")

    async def reopen(self, receive_buffer: int | None = None) -> None:
        """A fresh connection in the place of the one there was."""
        self.close()
        self.connection = await self._address.connect(receive_buffer)

    async def go_to(self, address: Address) -> None:
        """Goes on at another address, with a connection of its own there."""
        self._address = address
        await self.reopen()

    def close(self) -> None:
        """Closes the connection; the session, if there is one, goes on."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None


def checked(data: bytes, number: int) -> Result:
    """The result that is the answer to a request."""
    message = decode(data)
    if message.result is None or message.id != number:
        raise WrongAnswerError(data[:300].decode(errors="replace"))
    return message.result


ARGUMENTS = {"n": ARGUMENT, "text": "a little text to carry along"}


class Session(Client):
    """A session of the handshake era."""

    REVISION = "2025-11-25"
    _aside: ClientConnection | None = None
    """Where questions are answered while the call's own connection is busy."""
    _wants_logs = False

    async def open(self) -> None:
        self.close()
        self._headers, self._wants_logs = self._said_always, False
        self.connection = await self._address.connect()
        params = {"protocolVersion": self.REVISION, "capabilities": CAPABILITIES, "clientInfo": ABOUT}
        await self._ask("initialize", params)
        session = self.connection.headers.get(b"mcp-session-id")
        if session is not None:
            self._headers += b"mcp-session-id: %b\r\n" % session
        self._headers += b"mcp-protocol-version: %b\r\n" % self.REVISION.encode()
        await self._tell(self.connection, {"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def _tell(self, connection: ClientConnection, message: dict[str, Any]) -> None:
        await connection.request(b"POST", self._address.path, self._headers, encode(message))
        await connection.body()

    async def _call(self, tool: str) -> tuple[int, Result]:
        if not tool.endswith(QUIET_TOOLS) and not self._wants_logs:
            self._wants_logs = True
            await self._ask("logging/setLevel", {"level": LEVEL})
        result = await self._ask("tools/call", self._tool(tool, ARGUMENTS))
        return FILLED_IN if tool.endswith("ask") else ARGUMENT, result

    async def _asked(self, message: Message) -> None:
        if self._aside is None:
            self._aside = await self._address.connect()
        await self._tell(self._aside, {"jsonrpc": "2.0", "id": message.id, "result": ANSWER})

    async def listen(self) -> ClientConnection:
        connection = await self._address.connect()
        headers = self._headers.replace(b"application/json, text/event-stream", b"text/event-stream")
        status = await connection.request(b"GET", self._address.path, headers)
        if status != 200:
            raise WrongAnswerError(f"GET: HTTP {status}")
        return connection

    async def call_cut_and_resume(self, seconds: float) -> None:
        """Starts a slow call, cuts its connection once an event id has come, and fetches the answer by it."""
        assert self.connection is not None
        number = await self._send("tools/call", self._tool(f"{self._prefix}slow", {"seconds": seconds}))
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
        await self.reopen()
        assert self.connection is not None
        await self.connection.request(b"DELETE", self._address.path, self._headers)
        self.close()

    def close(self) -> None:
        super().close()
        if self._aside is not None:
            self._aside.close()
            self._aside = None


class Stateless(Client):
    """A client of the era without sessions: each request says all of it, in its envelope and in mirrored headers."""

    REVISION = "2026-07-28"
    PREFIX = "io.modelcontextprotocol/"
    ENVELOPE = {
        PREFIX + "protocolVersion": REVISION,
        PREFIX + "clientCapabilities": CAPABILITIES,
        PREFIX + "clientInfo": ABOUT,
    }
    WITH_LOGS = {**ENVELOPE, PREFIX + "logLevel": LEVEL}
    ROUNDS = 4
    """So often a call may be answered with a question."""

    async def open(self) -> None:
        await self.reopen()
        await self._ask("server/discover", {"_meta": self.ENVELOPE})

    def _headers_of(self, method: str, params: dict[str, Any]) -> bytes:
        name = params.get("name")
        mirrored = b"mcp-name: %b\r\n" % name.encode() if name else b""
        version = self.REVISION.encode()
        said = self._said_always, version, method.encode(), mirrored
        return b"%bmcp-protocol-version: %b\r\nmcp-method: %b\r\n%b" % said

    def _tool(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        meta = self.ENVELOPE if name.endswith(QUIET_TOOLS) else self.WITH_LOGS
        if name.endswith("events"):
            meta = {**meta, **REPORTED}
        return {"name": name, "arguments": arguments, "_meta": meta}

    async def _call(self, tool: str) -> tuple[int, Result]:
        params, number = self._tool(tool, ARGUMENTS), ARGUMENT
        result = await self._ask("tools/call", params)
        for _ in range(self.ROUNDS):
            if result.result_type != "input_required":
                break
            number = FILLED_IN
            retry = {**params, "inputResponses": dict.fromkeys(result.input_requests, ANSWER)}
            if result.request_state is not None:
                retry["requestState"] = result.request_state
            result = await self._ask("tools/call", retry)
        return number, result

    async def listen(self) -> ClientConnection:
        connection = await self._address.connect()
        params = {"notifications": {"toolsListChanged": True}, "_meta": self.ENVELOPE}
        body = encode({"jsonrpc": "2.0", "id": next(self._ids), "method": "subscriptions/listen", "params": params})
        headers = self._headers_of("subscriptions/listen", params)
        status = await connection.request(b"POST", self._address.path, headers, body)
        if status != 200:
            raise WrongAnswerError(f"listen: HTTP {status}")
        return connection


async def _each(clients: list[Client], do: Callable[[Client], Awaitable[None]], at_once: int = 8) -> None:
    waiting = iter(clients)

    async def worker() -> None:
        for client in waiting:
            with trio.fail_after(ANSWER_WITHIN):
                await do(client)

    async with trio.open_nursery() as nursery:
        for _ in range(min(at_once, len(clients))):
            nursery.start_soon(worker)


async def open_clients(make: Callable[[], Client], count: int, *, keep_connections: bool = True) -> list[Client]:
    """Opens clients, a few at a time."""
    clients = [make() for _ in range(count)]

    async def opened(client: Client) -> None:
        await client.open()
        if not keep_connections:
            client.rest()

    await _each(clients, opened)
    return clients


async def end_clients(clients: list[Client]) -> None:
    """Ends clients, a few at a time."""
    await _each(clients, lambda client: client.end())
