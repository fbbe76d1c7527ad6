"""A client on real HTTP that keeps a transcript, and follows up each request to its end as a good client does.

Each exchange has a connection of its own. (To a unix socket, where the clock jumps: the kernel passes its bytes on in
one step, so that the clock never jumps while they are under way.) A stream that breaks is resumed after its last event
until the answer has come, or until it is said that it never will. `trouble` may meddle at every step of an exchange.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import h11
import trio

Message = dict[str, Any]
Id = int | str

NEWEST = "2025-11-25"
WAIT = 4000.0
"""Seconds on a clock that jumps: what takes longer hangs."""
ATTEMPTS = 80
"""To resume a stream, a second or more apart."""
TRY_AGAIN = frozenset({0, 429, 502, 503})
"""Statuses that say: later. (0: the connection broke.)"""

Point = Literal["sent", "head", "event", "over"]
End = Literal["", "whole", "cut", "left"]


class LeftError(Exception):
    """The client has closed this connection itself."""


@dataclass(frozen=True)
class Event:
    """One SSE event."""

    id: str | None
    message: Message | None
    retry: int | None


@dataclass(eq=False)
class Exchange:
    """One HTTP request and what came of it. `after` is its Last-Event-ID."""

    method: str
    sent: Any
    after: str | None
    stream: trio.SocketStream
    session: str
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    events: list[Event] = field(default_factory=list)
    end: End = ""
    began: float = field(default_factory=trio.current_time)
    _http: h11.Connection = field(default_factory=lambda: h11.Connection(h11.CLIENT))
    _text: str = ""
    _ready: list[Event] = field(default_factory=list)

    def __repr__(self) -> str:
        ids = [event.id for event in self.events]
        return f"<{self.method} {self.sent} after {self.after}: {self.status} {self.end} {ids} {self.body[:300]!r}>"

    @property
    def streams(self) -> bool:
        """Whether the answer is a stream of events."""
        return self.headers.get("content-type", "").startswith("text/event-stream")

    def leave(self) -> None:
        """Closes the connection, whatever is on its way."""
        self.end = self.end or "left"
        self.stream.socket.close()

    async def send(self, target: str, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        """The whole request. A peer that does not take it is found out when its answer is read."""
        head = h11.Request(method=self.method, target=target, headers=headers)
        events: list[h11.Event] = [head, *([h11.Data(data=body)] if body else []), h11.EndOfMessage()]
        data = b"".join(self._http.send(event) or b"" for event in events)
        try:
            await self.stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async def head(self) -> int:
        """The status; 0 if the connection broke."""
        event = await self._next()
        if isinstance(event, h11.Response):
            self.status = event.status_code
            self.headers = {name.decode().lower(): value.decode() for name, value in event.headers}
        return self.status

    async def whole(self) -> bytes:
        """The body, or as much as came."""
        while isinstance(event := await self._next(), h11.Data):
            self.body += bytes(event.data)
        return self.body

    async def event(self) -> Event | None:
        """The next event; None at the end."""
        while not self._ready:
            part = await self._next()
            if not isinstance(part, h11.Data):
                return None
            self._text += bytes(part.data).decode()
            *blocks, self._text = self._text.split("\n\n")
            self._ready += [event for block in blocks if (event := _parse(block)) is not None]
        event = self._ready.pop(0)
        self.events.append(event)
        return event

    async def _next(self) -> Any:
        """The next event of HTTP; None at the end, whose kind is noted."""
        if self.end == "left":
            raise LeftError
        if self.end:
            return None
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self.stream.receive_some(65536))
        except (h11.RemoteProtocolError, trio.BrokenResourceError):
            event = h11.ConnectionClosed()
        except trio.ClosedResourceError:
            raise LeftError from None
        if isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            self.end = "whole" if isinstance(event, h11.EndOfMessage) else "cut"
            self.stream.socket.close()
            return None
        return event


def _parse(block: str) -> Event | None:
    fields: dict[str, str] = {}
    for line in block.split("\n"):
        name, _, value = line.partition(":")
        if name:
            fields[name] = value.removeprefix(" ")
    if not fields:
        return None
    data, retry = fields.get("data"), fields.get("retry")
    return Event(fields.get("id"), json.loads(data) if data else None, int(retry) if retry is not None else None)


@dataclass
class Fate:
    """What came of one request. `id`: whether an event id was given before that; if it was, the rest can be `lost` (the
    gap error), or the session `gone`; if not, the connection can be `broken`."""

    kind: Literal["answered", "refused", "broken", "lost", "gone", "hanging"]
    id: bool = False
    status: int = 200
    response: Message | None = None
    seconds: float = 0.0
    """How long it took."""

    @property
    def ok(self) -> bool:
        """A result."""
        return self.response is not None and "result" in self.response

    @property
    def error(self) -> Message:
        """The error, if that is what it is."""
        found: Message = (self.response or {}).get("error", {})
        return found


Trouble = Callable[[Point, Exchange], Awaitable[None]]


class Client:
    """One client."""

    resume_after = 1.0
    """Seconds from the loss of a stream to the first attempt to resume it."""

    on_channel = False

    def __init__(
        self,
        connect: Callable[[], Awaitable[trio.SocketStream]],
        who: str,
        *,
        revision: str = NEWEST,
        endpoint: str = "",
        asks: bool = True,
    ) -> None:
        self.who = who
        self._connect = connect
        self.revision = revision
        self.target = f"/mcp/{endpoint}" if endpoint else "/mcp"
        self.prefix = "" if endpoint else "alpha__"
        self.capabilities = {"elicitation": {}, "sampling": {}} if asks else {}
        self.session: str | None = None
        self.exchanges: list[Exchange] = []
        self.fates: list[tuple[str, Fate]] = []
        """(key, fate) of each call of a tool; the key of other requests is their method."""
        self.heard: list[Message] = []
        """Messages of GET streams."""
        self.trouble: Trouble | None = None
        self.pause: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self._next_id = 1
        self._next_key = 1

    # One exchange

    async def open(self, method: str, sent: Any = None, after: str | None = None, **more: str) -> Exchange:
        """A request, up to the head of its answer."""
        exchange = Exchange(method, sent, after, await self._connected(), self.session or "")
        self.exchanges.append(exchange)
        body = json.dumps(sent).encode() if sent is not None else b""
        await exchange.send(self.target, self._headers(body, after, more), body)
        await self._at("sent", exchange)
        await exchange.head()
        self.session = exchange.headers.get("mcp-session-id", self.session)
        await self._at("head", exchange)
        return exchange

    async def _connected(self) -> trio.SocketStream:
        for _ in range(ATTEMPTS):
            try:
                return await self._connect()
            except OSError:
                await trio.sleep(1)  # a process that is being started
        raise AssertionError("nobody listens")

    async def _at(self, point: Point, exchange: Exchange) -> None:
        if self.trouble is not None:
            await self.trouble(point, exchange)

    def _headers(self, body: bytes, after: str | None, more: Mapping[str, str]) -> list[tuple[str, str]]:
        headers = {"host": "127.0.0.1:8080", "accept": "application/json, text/event-stream", **more}
        if body:
            headers |= {"content-type": "application/json", "content-length": str(len(body))}
        if self.session is not None:
            headers["mcp-session-id"] = self.session
            headers["mcp-protocol-version"] = self.revision
        if after is not None:
            headers["last-event-id"] = after
        return list(headers.items())

    async def plain(self, method: str, sent: Any = None, **more: str) -> Exchange:
        """A request whose answer is no stream, whole."""
        exchange = None
        try:
            exchange = await self.open(method, sent, **more)
            await exchange.whole()
        except LeftError:
            assert exchange is None or exchange.end == "left"
        return exchange or self.exchanges[-1]

    # Sessions

    async def initialize(self) -> bool:
        """The handshake; False if there is no session now."""
        self.session = None
        told = {
            "protocolVersion": self.revision,
            "capabilities": self.capabilities,
            "clientInfo": {"name": self.who, "version": "1"},
        }
        message = self._request("initialize", told)
        fate = (await self._fates_of([message], "initialize"))[0]
        if not fate.ok:
            return False
        assert self.session, "no session id with the answer to initialize"
        return await self.notify("notifications/initialized") == 202

    async def notify(self, method: str, params: Message | None = None) -> int:
        """The status that a notification gets; it is sent again while that is `later`."""
        message = {"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})}
        return await self._note(message)

    async def _note(self, message: Message) -> int:
        for attempt in range(ATTEMPTS):
            exchange = await self.plain("POST", message)
            if exchange.status not in TRY_AGAIN:
                return exchange.status
            await trio.sleep(1 + attempt)
        return 0

    async def delete(self) -> int:
        """Ends the session."""
        for _ in range(ATTEMPTS):
            status = (await self.plain("DELETE")).status
            if status not in TRY_AGAIN:
                return status
            await trio.sleep(1)
        return 0

    # Requests

    def _request(self, method: str, params: Message | None = None) -> Message:
        id, self._next_id = self._next_id, self._next_id + 1
        return {"jsonrpc": "2.0", "id": id, "method": method, **({} if params is None else {"params": params})}

    def tool(self, name: str, *, token: bool = False) -> Message:
        """A call of a tool, under a key of its own; of another server than usual if the name says so."""
        key, self._next_key = f"{self.who}.{self._next_key}", self._next_key + 1
        exposed = name if "__" in name else self.prefix + name
        message = self._request("tools/call", {"name": exposed, "arguments": {"key": key}})
        if token:
            message["params"]["_meta"] = {"progressToken": message["id"]}
        return message

    async def call(self, name: str, *, token: bool = False) -> Fate:
        """Calls a tool, to the end."""
        return await self.follow(self.tool(name, token=token))

    async def request(self, method: str, params: Message | None = None) -> Fate:
        """Any other request."""
        return await self.follow(self._request(method, params))

    def message(self, method: str, params: Message | None = None) -> Message:
        """Any other request, not sent yet."""
        return self._request(method, params)

    async def follow(self, message: Message) -> Fate:
        """Sends one request, to its end."""
        return (await self._fates_of([message], message["method"]))[0]

    async def batch(self, messages: Sequence[Message]) -> list[Fate]:
        """Sends several in one body."""
        return await self._fates_of(messages, "batch")

    async def _fates_of(self, messages: Sequence[Message], kind: str) -> list[Fate]:
        sent: Any = list(messages) if kind == "batch" else messages[0]
        found = _Found({m["id"] for m in messages})
        began = trio.current_time()
        fate = await self._pursue(sent, found)
        seconds = trio.current_time() - began
        fates = [
            Fate("answered", found.last is not None, 200, found.responses[m["id"]], seconds)
            if m["id"] in found.responses
            else replace(fate, seconds=seconds)
            for m in messages
        ]
        for message, one in zip(messages, fates, strict=True):
            self.fates.append((str(message.get("params", {}).get("arguments", {}).get("key", message["method"])), one))
        return fates

    async def _pursue(self, sent: Any, found: _Found) -> Fate:
        """Until everything is answered, or it is clear that it never will be: that is what is returned."""
        exchange: Exchange | None = None
        try:
            exchange = await self.open("POST", sent)
            await self._read(exchange, found)
        except LeftError:
            exchange = exchange or next(e for e in reversed(self.exchanges) if e.sent is sent)
        if found.whole:
            return Fate("answered", found.last is not None)
        if exchange.status not in (0, 200):
            return Fate("refused", False, exchange.status, _json(exchange.body))
        if found.last is None:
            return Fate("broken", False, exchange.status)
        return await self._resume(found)

    async def _resume(self, found: _Found) -> Fate:
        for attempt in range(ATTEMPTS):
            await trio.sleep(self.resume_after + attempt / 4)
            exchange: Exchange | None = None
            try:
                exchange = await self.open("GET", after=found.last)
                await self._read(exchange, found)
            except LeftError:
                continue
            if found.whole:
                return Fate("answered", True)
            if exchange.status not in TRY_AGAIN and exchange.status != 200:
                kind: Literal["gone", "lost"] = "gone" if exchange.status == 404 else "lost"
                return Fate(kind, True, exchange.status, _json(exchange.body))
        return Fate("hanging", True)

    async def _read(self, exchange: Exchange, found: _Found) -> None:
        """To the end of the answer. Questions are answered as they come."""
        if not exchange.streams:
            body = _json(await exchange.whole())
            if exchange.status == 200:
                for message in body if isinstance(body, list) else [body]:
                    found.take(message)
        else:
            while (event := await exchange.event()) is not None:
                found.last = event.id or found.last
                if event.message is not None and not found.take(event.message) and "id" in event.message:
                    await self._answer(event.message)
                await self._at("event", exchange)
        await self._at("over", exchange)

    async def _answer(self, question: Message) -> None:
        result: Message = {"action": "accept", "content": {"yes": True}}
        if question["method"] == "sampling/createMessage":
            result = {"role": "assistant", "content": {"type": "text", "text": "so"}, "model": "m"}
        await self._note({"jsonrpc": "2.0", "id": question["id"], "result": result})

    # Streams of their own

    async def listen(self, *, task_status: trio.TaskStatus[Exchange] = trio.TASK_STATUS_IGNORED) -> None:
        """A GET stream, resumed whenever it ends, until the session does."""
        last: str | None = None
        told = False
        while True:
            exchange: Exchange | None = None
            try:
                exchange = await self.open("GET", after=last)
                if not told:
                    told = True
                    task_status.started(exchange)
                if exchange.streams:
                    while (event := await exchange.event()) is not None:
                        last = event.id or last
                        if event.message is not None:
                            self.heard.append(event.message)
                        await self._at("event", exchange)
                else:
                    await exchange.whole()
                    if exchange.status == 404:
                        return
                    if exchange.status == 400:
                        last = None
            except LeftError:
                pass
            if not told:
                told = True
                task_status.started(self.exchanges[-1])
            await trio.sleep(1)


@dataclass
class _Found:
    """What has come of some requests so far."""

    wanted: set[Id]
    responses: dict[Id, Message] = field(default_factory=dict)
    last: str | None = None

    @property
    def whole(self) -> bool:
        """Everything is answered."""
        return self.wanted <= set(self.responses)

    def take(self, message: Any) -> bool:
        """Whether this is the response to one of them."""
        if not isinstance(message, dict) or "method" in message or message.get("id") not in self.wanted:
            return False
        self.responses.setdefault(message["id"], message)
        return True


def _json(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError:
        return None
