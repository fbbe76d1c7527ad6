"""An MCP client that shows a test every exchange, and lets no test forget the rules.

It speaks one revision over `wire_http`. Whatever arrives is checked at once: against the schema of the revision, and
against the session rules that hold everywhere (an event id names one event, a request has one response, ids of server
requests are fresh, progress rises, no response on a stream of its own, no priming for those who can't read it).
Every wait has a deadline.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.schemas import NEWEST, assert_valid
from tests.support.wire_http import WAIT, AsgiHttp, Event, Exchange, Message

__all__ = ["WAIT", "AsgiHttp", "Call", "Event", "Exchange", "HttpError", "Message", "RpcError", "Stream", "WireClient"]

INITIALIZE = "initialize"
ACCEPT = "application/json, text/event-stream"

Id = int | str


class RpcError(Exception):
    """The error that answered a request."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: int = error["code"]
        self.message: str = error["message"]
        self.data: Any = error.get("data")


class HttpError(Exception):
    """A request that was refused on the HTTP level; `error` is the JSON-RPC error in the body, if there is one."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(f"{status}: {body[:300]!r}")
        self.status = status
        self.headers = headers
        self.body = body
        self.error: Mapping[str, Any] = json.loads(body)["error"] if body else {}


Answerer = Callable[[Message], Awaitable[Message] | Message]
"""Gets the params of a server's request, gives the result; an RpcError raised by it is the answer."""


@dataclass
class _Books:
    """What a session has seen, to hold later messages against."""

    methods: dict[tuple[type, Id], str] = field(default_factory=dict)
    tokens: dict[tuple[type, Id], Id] = field(default_factory=dict)
    answered: set[tuple[type, Id]] = field(default_factory=set)
    progress: dict[tuple[type, Id], float] = field(default_factory=dict)
    over: set[tuple[type, Id]] = field(default_factory=set)
    asked: set[tuple[type, Id]] = field(default_factory=set)
    events: dict[str, str] = field(default_factory=dict)
    owns: dict[str, bool] = field(default_factory=dict)


def _typed(id: Id) -> tuple[type, Id]:
    """Ids are told apart by type and value."""
    return type(id), id


class Stream:
    """Messages in the order in which they come on one exchange; those that came are in `messages`."""

    def __init__(self, client: WireClient, exchange: Exchange, *, own: bool) -> None:
        self.client = client
        self.exchange = exchange
        self.messages: list[Message] = []
        self.events: list[Event] = []
        self._own = own
        """It belongs to no request: no response may come on it."""
        self._batch: list[Message] = []

    @property
    def last_id(self) -> str:
        """Of the last event that had one."""
        return [event.id for event in self.events if event.id is not None][-1]

    @property
    def primed(self) -> bool:
        return bool(self.events) and not self.events[0].data and self.events[0].id is not None

    async def next(self, within: float = WAIT) -> Message | None:
        """The next message, checked; None at the end."""
        await self.opened(within)
        message = await (self._from_stream(within) if self.exchange.is_stream else self._from_body(within))
        if message is not None:
            self.messages.append(message)
        return message

    async def message(self, method: str, within: float = WAIT) -> Message:
        """The next message, which must have this method."""
        message = await self.next(within)
        assert message is not None, f"the stream ended before {method}"
        assert message.get("method") == method, f"{message} came before {method}"
        return message

    async def opened(self, within: float = WAIT) -> Stream:
        """Raises HttpError for anything but a good answer."""
        status = await self.exchange.head(within)
        assert status, "the connection broke before there was an answer"
        if status not in (200, 202):
            raise HttpError(status, self.exchange.headers, await self.exchange.whole())
        return self

    async def primer(self) -> Event:
        """The priming event at the start of a stream."""
        await self.opened()
        event = await self.exchange.event()
        assert event is not None
        assert not event.data
        self._note(event)
        return event

    def cut(self) -> None:
        self.exchange.cut()

    async def _from_body(self, within: float) -> Message | None:
        if not self._batch and not self.messages:
            body = await self.exchange.whole(within)
            parsed = json.loads(body) if body else []
            self._batch = parsed if isinstance(parsed, list) else [parsed]
            for message in self._batch:
                self.client.check(message, own=self._own)
        return self._batch.pop(0) if self._batch else None

    async def _from_stream(self, within: float) -> Message | None:
        while (event := await self.exchange.event(within)) is not None:
            replayed = self._note(event)
            if event.data:
                self.client.check(event.message, own=self._own, replayed=replayed)
                return event.message
        return None

    def _note(self, event: Event) -> bool:
        """Whether this event was seen before."""
        self.events.append(event)
        if event.id is None:
            assert event.data or event.retry is not None, "an event that says nothing"
            return False
        if not event.data:
            assert self.client.revision >= "2025-11-25", "an older client would parse the empty data"
        books = self.client.books
        replayed = event.id in books.events
        assert books.events.setdefault(event.id, event.data) == event.data, f"{event.id!r} stands for two events"
        assert books.owns.setdefault(event.id, self._own) == self._own, f"{event.id!r} came on another stream's resume"
        return replayed


class Call(Stream):
    """A request on its way."""

    def __init__(self, client: WireClient, exchange: Exchange, id: Id) -> None:
        super().__init__(client, exchange, own=False)
        self.id = id

    async def response(self, within: float = WAIT) -> Message:
        """The response; requests of the server before it are answered by the client's answerers."""
        while True:
            message = await self.next(within)
            assert message is not None, f"the stream ended without the response to {self.id!r}"
            if "method" not in message:
                assert _typed(message["id"]) == _typed(self.id), f"a response to another request: {message}"
                return message
            if "id" in message:
                await self.client.serve(message)

    async def result(self, within: float = WAIT) -> Message:
        """The result; raises RpcError for an error."""
        response = await self.response(within)
        if "error" in response:
            raise RpcError(response["error"])
        result: Message = response["result"]
        return result

    async def error(self, within: float = WAIT) -> RpcError:
        """The error; a result is a failure."""
        response = await self.response(within)
        assert "error" in response, f"an error was expected: {response}"
        return RpcError(response["error"])

    def cancel(self, reason: str = "no longer wanted") -> Exchange:
        """Asks for its end."""
        params = {"requestId": self.id, "reason": reason}
        return self.client.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})


class WireClient:
    """One session. `answerers` serve requests of the server while a call is awaited."""

    def __init__(
        self,
        http: AsgiHttp,
        path: str = "/mcp",
        *,
        revision: str = NEWEST,
        capabilities: Mapping[str, Any] | None = None,
        token: str | None = None,
        first_id: int = 1,
    ) -> None:
        self.http = http
        self.path = path
        self.revision = revision
        self.capabilities = dict(capabilities or {})
        self.token = token
        self.session: str | None = None
        self.server_info: Message = {}
        self.answerers: dict[str, Answerer] = {}
        self.books = _Books()
        self.trusting = False
        """Payloads that a backend made wrong on purpose are not held against the gateway."""
        self.extensions: set[str] = set()
        """Methods of a server that no revision has."""
        self._next_id = first_id

    # The lifecycle

    async def connect(self) -> Message:
        """The whole handshake; what the server said of itself."""
        await self.initialize()
        await self.notify("notifications/initialized")
        return self.server_info

    async def initialize(self, **params: Any) -> Message:
        call = self.start(INITIALIZE, {**self.introduction(), **params})
        self.server_info = await call.result()
        self.revision = self.server_info["protocolVersion"]
        self.session = call.exchange.headers.get("mcp-session-id")
        assert self.session, "no session id on the response to initialize"
        assert all(0x21 <= ord(c) <= 0x7E for c in self.session), "only visible ASCII (transports, Session Management)"
        return self.server_info

    def introduction(self) -> Message:
        """The params of `initialize`."""
        return {
            "protocolVersion": self.revision,
            "capabilities": self.capabilities,
            "clientInfo": {"name": "wire", "version": "1"},
        }

    async def end(self) -> int:
        """DELETE; its status."""
        exchange = self.http.begin("DELETE", self.path, self.headers())
        return await exchange.head()

    def elsewhere(self, http: AsgiHttp, token: str | None) -> WireClient:
        """The same session by way of another edge, with this token, and with ids of its own."""
        other = WireClient(http, self.path, revision=self.revision, token=token, first_id=1000 + self._next_id)
        other.session, other.books = self.session, self.books
        return other

    # Messages

    def headers(self, **overrides: str | None) -> list[tuple[str, str]]:
        """What the client sends with every request; underscores in names stand for hyphens, None leaves one out."""
        headers: dict[str, str | None] = {"accept": ACCEPT, "mcp-session-id": self.session}
        if self.session is not None and self.revision >= "2025-06-18":
            headers["mcp-protocol-version"] = self.revision
        if self.token is not None:
            headers["authorization"] = f"Bearer {self.token}"
        headers |= {name.replace("_", "-"): value for name, value in overrides.items()}
        return [(name, value) for name, value in headers.items() if value is not None]

    def post(self, message: Any, **overrides: str | None) -> Exchange:
        """POSTs a message, a batch, or bytes as they are."""
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        headers = self.headers(**{"content_type": "application/json", **overrides})
        return self.http.begin("POST", self.path, headers, body)

    def start(
        self, method: str, params: Mapping[str, Any] | None = None, *, id: Id | None = None, **overrides: str | None
    ) -> Call:
        """Sends a request and returns at once."""
        message = self.request_message(method, params, id=id)
        return Call(self, self.post(message, **overrides), message["id"])

    def request_message(self, method: str, params: Mapping[str, Any] | None = None, *, id: Id | None = None) -> Message:
        """A request, and its place in the books."""
        if id is None:
            id, self._next_id = self._next_id, self._next_id + 1
        message: Message = {"jsonrpc": "2.0", "id": id, "method": method}
        if params is not None:
            message["params"] = dict(params)
        token = (params or {}).get("_meta", {}).get("progressToken")
        self.books.methods[_typed(id)] = method
        self.books.answered.discard(_typed(id))
        if token is not None:
            self.books.tokens[_typed(id)] = token
            self.books.progress.pop(_typed(token), None)
            self.books.over.discard(_typed(token))
        return message

    async def request(self, method: str, params: Mapping[str, Any] | None = None, within: float = WAIT) -> Message:
        """The result of a request."""
        return await self.start(method, params).result(within)

    async def refused(self, method: str, params: Mapping[str, Any] | None = None) -> RpcError:
        """The error that a request gets."""
        return await self.start(method, params).error()

    async def call(self, tool: str, **arguments: Any) -> Message:
        """The result of a tool."""
        return await self.request("tools/call", {"name": tool, "arguments": arguments})

    def start_call(self, tool: str, *, token: Id | None = None, id: Id | None = None, **arguments: Any) -> Call:
        """A call of a tool, not awaited."""
        params: Message = {"name": tool, "arguments": arguments}
        if token is not None:
            params["_meta"] = {"progressToken": token}
        return self.start("tools/call", params, id=id)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """A notification, accepted."""
        message: Message = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            message["params"] = dict(params)
        await self.accepted(self.post(message))

    async def answer(self, request: Message, result: Mapping[str, Any]) -> None:
        """The result of a request of the server's."""
        await self.accepted(self.post({"jsonrpc": "2.0", "id": request["id"], "result": dict(result)}))

    async def decline(self, request: Message, code: int, message: str = "no") -> None:
        """An error for a request of the server's."""
        error = {"code": code, "message": message}
        await self.accepted(self.post({"jsonrpc": "2.0", "id": request["id"], "error": error}))

    async def serve(self, request: Message) -> None:
        """Answers a request of the server's by the answerers."""
        answerer = self.answerers.get(request["method"])
        assert answerer is not None, f"nobody answers {request}"
        try:
            result = answerer(request.get("params", {}))
            await self.answer(request, result if isinstance(result, dict) else await result)
        except RpcError as error:
            await self.decline(request, error.code, error.message)

    async def accepted(self, exchange: Exchange) -> None:
        """202 and no body."""
        status = await exchange.head()
        body = await exchange.whole()
        if status != 202:
            raise HttpError(status, exchange.headers, body)
        assert not body, "an accepted message has no body"
        assert "mcp-session-id" not in exchange.headers

    async def listen(self, after: str | None = None, **overrides: str | None) -> Stream:
        """A GET stream: a new one, or the rest of the one that event `after` was on."""
        stream = self.begin_listening(after, **overrides)
        return await stream.opened()

    def begin_listening(self, after: str | None = None, **overrides: str | None) -> Stream:
        headers = self.headers(**{"accept": "text/event-stream", "last_event_id": after, **overrides})
        exchange = self.http.begin("GET", self.path, headers)
        return Stream(self, exchange, own=after is None or self.books.owns.get(after, False))

    async def resume(self, call: Call, after: str | None = None) -> Call:
        """The rest of a call's stream, after the last event that was seen."""
        stream = await self.listen(after or call.last_id)
        return Call(self, stream.exchange, call.id)

    # What holds for every message that comes

    def check(self, message: Message, *, own: bool = False, replayed: bool = False) -> None:
        """Raises AssertionError for what may not be said, or not here, or not again."""
        if "method" not in message:
            self._check_response(message, own, replayed)
            return
        if message["method"] not in self.extensions:
            assert_valid(message, self.revision, "server")
        if "id" in message:
            assert replayed or _typed(message["id"]) not in self.books.asked, f"an id was used before: {message}"
            self.books.asked.add(_typed(message["id"]))
        elif message["method"] == "notifications/progress":
            self._check_progress(message["params"], replayed)

    def _check_response(self, message: Message, own: bool, replayed: bool) -> None:
        assert not own, f"a response on a stream that belongs to no request: {message}"
        id = message.get("id")
        if id is None:
            assert "error" in message
            assert "id" not in message, "never null"
            return
        method = self.books.methods.get(_typed(id))
        assert method is not None, f"a response to nothing: {message}"
        assert replayed or _typed(id) not in self.books.answered, f"a second response: {message}"
        self.books.answered.add(_typed(id))
        if _typed(id) in self.books.tokens:
            self.books.over.add(_typed(self.books.tokens[_typed(id)]))
        revision = message["result"]["protocolVersion"] if method == INITIALIZE and "result" in message else None
        checked = None if self.trusting else method
        assert_valid(message, revision or self.revision, "server", method=checked)

    def _check_progress(self, params: Message, replayed: bool) -> None:
        token = _typed(params["progressToken"])
        assert token in {_typed(t) for t in self.books.tokens.values()}, f"progress for nobody: {params}"
        if not replayed:
            assert token not in self.books.over, f"progress after the response: {params}"
            before = self.books.progress.get(token)
            rises = before is None or params["progress"] > before
            assert rises or self.trusting, f"progress that does not rise: {params}"
            self.books.progress[token] = params["progress"]
