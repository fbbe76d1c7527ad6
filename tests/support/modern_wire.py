"""A client without sessions that shows a test every exchange, and lets no test forget the rules (2026-07-28).

    client = ModernWire(http, "/mcp", capabilities={"elicitation": {}})
    call = client.start_call("ask")
    required = await call.required()
    result = await client.retry(call, required, {"1": {"action": "accept"}}).complete()

Each request stands for itself: there is one `Exchange` for each, and cutting it is its cancellation. Whatever is sent
and whatever arrives is checked at once, against the schema and against `modern_rules`. Every wait has a deadline.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.support import modern_rules as rules
from tests.support.modern_rules import Id, Message, typed
from tests.support.schemas import MODERN, assert_valid
from tests.support.wire_client import ACCEPT, HttpError, RpcError
from tests.support.wire_http import WAIT, AsgiHttp, Exchange

__all__ = ["Listening", "ModernCall", "ModernWire"]

INFO: Message = {"name": "modern-wire", "version": "1"}


class Incoming:
    """Messages in the order in which they come on one exchange; those that came are in `messages`."""

    def __init__(self, client: ModernWire, exchange: Exchange, sent: Message) -> None:
        self.client = client
        self.exchange = exchange
        self.sent = sent
        self.messages: list[Message] = []
        self._over = False

    @property
    def id(self) -> Id:
        id: Id = self.sent["id"]
        return id

    @property
    def params(self) -> Message:
        params: Message = self.sent["params"]
        return params

    async def next(self, within: float = WAIT) -> Message | None:
        """The next message, checked; None at the end."""
        status = await self.exchange.head(within)
        assert status, "the connection broke before there was an answer"
        assert "mcp-session-id" not in self.exchange.headers
        if self.exchange.is_stream:
            message = await self._from_stream(within)
        elif self._over:
            message = None
        else:
            message = await self._from_body(status, within)
        if message is not None:
            self.messages.append(message)
        return message

    async def _from_stream(self, within: float) -> Message | None:
        assert self.exchange.headers.get("x-accel-buffering") == "no"
        while (event := await self.exchange.event(within)) is not None:
            assert event.id is None, "nothing can be resumed: no event has an id"
            if event.data:
                return self._checked(event.message, None)
        return None

    async def _from_body(self, status: int, within: float) -> Message:
        body = await self.exchange.whole(within)
        if not body:
            raise HttpError(status, self.exchange.headers, body)
        return self._checked(json.loads(body), status)

    def _checked(self, message: Message, status: int | None) -> Message:
        assert not self._over, f"something after the response: {message}"
        if "method" in message:
            assert "id" not in message, f"servers ask nothing in this era: {message}"
            assert status is None, f"a notification is no answer: {message}"
            if message["method"] in self.client.extensions:
                return message
            assert_valid(message, MODERN, "server")
            self._check_notification(message["method"], message["params"])
        else:
            self._over = True
            self._check_response(message, status)
        return message

    def _check_response(self, message: Message, status: int | None) -> None:
        # What was refused before its id was read has none.
        assert typed(message.get("id", self.id)) == typed(self.id), f"a response to another request: {message}"
        trusting = self.client.trusting
        known = not trusting and self.sent["method"] not in self.client.extensions
        assert_valid(message, MODERN, "server", method=self.sent["method"] if known else None)
        if "error" in message:
            if not trusting:
                rules.check_error(message["error"], status=status)
        else:
            assert status in (None, 200)
            meta = self.params["_meta"]
            if known:
                rules.check_result(self.sent["method"], message["result"], meta[rules.CAPABILITIES])

    def _check_notification(self, method: str, params: Message) -> None:
        raise NotImplementedError

    async def response(self, within: float = WAIT) -> Message:
        """The response, whatever comes before it."""
        while (message := await self.next(within)) is not None:
            if "method" not in message:
                return message
        raise AssertionError(f"the stream ended without the response to {self.id!r}")

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

    async def message(self, method: str, within: float = WAIT) -> Message:
        """The params of the next message, which must have this method."""
        message = await self.next(within)
        assert message is not None, f"the stream ended before {method}"
        assert message.get("method") == method, f"{message} came before {method}"
        params: Message = message["params"]
        return params

    def seen(self, method: str) -> list[Message]:
        """The params of all that came with this method."""
        return [message["params"] for message in self.messages if message.get("method") == method]

    def cut(self) -> None:
        """The connection is closed: this is how a client cancels."""
        self.exchange.cut()


class ModernCall(Incoming):
    """A request on its way."""

    def __init__(self, client: ModernWire, exchange: Exchange, sent: Message) -> None:
        super().__init__(client, exchange, sent)
        self._progress: float | None = None

    async def complete(self, within: float = WAIT) -> Message:
        """The result, which is the last word."""
        result = await self.result(within)
        assert self.client.trusting or result["resultType"] == "complete", f"this is not the end: {result}"
        return result

    async def required(self, within: float = WAIT) -> Message:
        """The result, which asks for something."""
        result = await self.result(within)
        assert result["resultType"] == "input_required", f"something was to be asked: {result}"
        return result

    async def question(self, within: float = WAIT) -> tuple[Message, str, Message]:
        """The one question that the result asks: with the result its key, and its method and params."""
        required = await self.required(within)
        ((key, asked),) = required["inputRequests"].items()
        return required, key, asked

    def _check_notification(self, method: str, params: Message) -> None:
        meta = self.params["_meta"]
        if method == "notifications/progress":
            token = meta.get("progressToken")
            assert token is not None, f"nobody wants progress: {params}"
            assert typed(params["progressToken"]) == typed(token), f"progress for another: {params}"
            rises = self.client.trusting or self._progress is None or params["progress"] > self._progress
            assert rises, f"it does not rise: {params}"
            self._progress = params["progress"]
        else:
            assert method == "notifications/message", f"{method} does not belong to a request"
            wanted = meta.get(rules.LEVEL)
            assert wanted is not None, f"nobody wants log messages: {params}"
            assert rules.loud_enough(params["level"], wanted), f"below {wanted}: {params}"


class Listening(Incoming):
    """A subscription."""

    def __init__(self, client: ModernWire, exchange: Exchange, sent: Message) -> None:
        super().__init__(client, exchange, sent)
        self.honoured: Message | None = None

    async def acknowledged(self, within: float = WAIT) -> Message:
        """What is honoured; it comes first."""
        await self.message(rules.ACKNOWLEDGED, within)
        assert self.honoured is not None
        return self.honoured

    async def changed(self, kind: str) -> None:
        """The next message says that this list has changed."""
        await self.message(f"notifications/{kind}/list_changed")

    async def updated(self) -> str:
        """The next message says that this resource was updated."""
        uri: str = (await self.message(rules.UPDATED))["uri"]
        return uri

    @property
    def quiet(self) -> bool:
        """Whether nothing has come that was not read."""
        return not [event for event in self.exchange.unread if event.data]

    def _check_response(self, message: Message, status: int | None) -> None:
        super()._check_response(message, status)
        if "result" in message:
            assert self.honoured is not None, "a result before the acknowledgement"
            assert typed(message["result"]["_meta"][rules.SUBSCRIPTION]) == typed(self.id)

    def _check_notification(self, method: str, params: Message) -> None:
        assert typed(params["_meta"][rules.SUBSCRIPTION]) == typed(self.id), f"not of {self.id!r}: {params}"
        wanted = self.params["notifications"]
        if self.honoured is None:
            assert method == rules.ACKNOWLEDGED, f"{method} before the acknowledgement"
            self.honoured = params["notifications"]
            for kind, value in self.honoured.items():
                subset = set(value) <= set(wanted.get(kind, ())) if isinstance(value, list) else wanted.get(kind)
                assert subset, f"{kind} was not asked for: {params}"
        elif method == rules.UPDATED:
            watched = self.honoured.get("resourceSubscriptions", ())
            assert any(params["uri"].startswith(uri) for uri in watched), f"nobody watches {params}"
        else:
            assert method in rules.LISTENED, f"{method} does not belong to a subscription"
            assert self.honoured.get(rules.LISTENED[method]), f"{method} was not asked for"


class ModernWire:
    """One client, which keeps nothing from one request to the next but its settings."""

    session = None
    """There is none."""

    def __init__(
        self,
        http: AsgiHttp,
        path: str = "/mcp",
        *,
        revision: str = MODERN,
        capabilities: Mapping[str, Any] | None = None,
        token: str | None = None,
        affinity: str | None = None,
        schemas: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.http = http
        self.path = path
        self.revision = revision
        self.capabilities = dict(capabilities or {})
        self.token = token
        self.affinity = affinity
        self.schemas = dict(schemas or {})
        """Of tools whose arguments are repeated in headers."""
        self.trusting = False
        """Payloads that a backend made wrong on purpose are not held against the gateway."""
        self.extensions: set[str] = set()
        """Methods of a server that no revision has."""
        self._next_id = 1

    # Messages

    def request_message(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        id: Id | None = None,
        level: str | None = None,
        progress: Id | None = None,
        capabilities: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Message:
        """A request with all that it must say; `progress` is its token."""
        if id is None:
            id, self._next_id = self._next_id, self._next_id + 1
        declared = self.capabilities if capabilities is None else dict(capabilities)
        said: Message = {rules.VERSION: self.revision, rules.CAPABILITIES: declared, rules.CLIENT: INFO}
        if level is not None:
            said[rules.LEVEL] = level
        if progress is not None:
            said["progressToken"] = progress
        sent = {**(params or {}), "_meta": {**said, **(meta or {})}}
        return {"jsonrpc": "2.0", "id": id, "method": method, "params": sent}

    def headers(self, message: Any, **overrides: str | None) -> list[tuple[str, str]]:
        """What belongs to this message; underscores in names stand for hyphens, None leaves one out."""
        headers: dict[str, str | None] = {"accept": ACCEPT, "content-type": "application/json"}
        if isinstance(message, dict) and "method" in message:
            headers |= rules.own_headers(message, self.schemas.get(message.get("params", {}).get("name", "")))
        if self.token is not None:
            headers["authorization"] = f"Bearer {self.token}"
        if self.affinity is not None:
            headers["stagedoor-affinity"] = self.affinity
        headers |= {name.replace("_", "-"): value for name, value in overrides.items()}
        return [(name, value) for name, value in headers.items() if value is not None]

    def post(self, message: Any, **overrides: str | None) -> Exchange:
        """POSTs any message, or bytes as they are."""
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        return self.http.begin("POST", self.path, self.headers(message, **overrides), body)

    def post_with(self, message: Any, headers: list[tuple[str, str]]) -> Exchange:
        """POSTs with exactly these headers."""
        return self.http.begin("POST", self.path, headers, json.dumps(message).encode())

    def start(self, method: str, params: Mapping[str, Any] | None = None, **more: Any) -> ModernCall:
        """Sends a request and returns at once; `more` are arguments of `request_message`."""
        message = self.request_message(method, params, **more)
        if method not in self.extensions:
            assert_valid(message, MODERN, "client")
        return ModernCall(self, self.post(message), message)

    def send(self, message: Message, **overrides: str | None) -> ModernCall:
        """Sends a request that a test has made, with headers that a test has made."""
        return ModernCall(self, self.post(message, **overrides), message)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None, **overrides: str | None) -> None:
        """A notification that no revision has, which is accepted."""
        said = {"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": dict(params)})}
        exchange = self.post(said, **{"mcp_protocol_version": self.revision, "mcp_method": method, **overrides})
        assert (await exchange.head(), await exchange.whole()) == (202, b"")

    def retry(
        self, call: ModernCall, required: Mapping[str, Any], answers: Mapping[str, Any] | None = None, **more: Any
    ) -> ModernCall:
        """The same request under a new id, with answers and what was given to come with them. It reports its progress,
        and wants log messages, only if `more` says so."""
        old = {k: v for k, v in call.params.items() if k not in ("_meta", "inputResponses", "requestState")}
        if answers is not None:
            old["inputResponses"] = dict(answers)
        if "requestState" in required:
            old["requestState"] = required["requestState"]
        return self.start(call.sent["method"], old, **more)

    async def request(self, method: str, params: Mapping[str, Any] | None = None, **more: Any) -> Message:
        """The result of a request."""
        return await self.start(method, params, **more).complete()

    async def refused(self, method: str, params: Mapping[str, Any] | None = None, **more: Any) -> RpcError:
        """The error that a request gets."""
        return await self.start(method, params, **more).error()

    async def call(self, tool: str, **arguments: Any) -> Message:
        """The result of a tool."""
        return await self.start_call(tool, **arguments).complete()

    def start_call(
        self, tool: str, *, id: Id | None = None, token: Id | None = None, level: str | None = None, **arguments: Any
    ) -> ModernCall:
        """A call of a tool, not awaited."""
        params = {"name": tool, "arguments": arguments}
        return self.start("tools/call", params, id=id, progress=token, level=level)

    def begin_listening(self, *uris: str, id: Id | None = None, **kinds: bool) -> Listening:
        """A subscription, not awaited; `kinds` are `tools`, `prompts` and `resources`."""
        wanted: Message = {f"{kind}ListChanged": on for kind, on in kinds.items()}
        if uris:
            wanted["resourceSubscriptions"] = list(uris)
        message = self.request_message("subscriptions/listen", {"notifications": wanted}, id=id)
        assert_valid(message, MODERN, "client")
        return Listening(self, self.post(message), message)

    async def listen(self, *uris: str, id: Id | None = None, **kinds: bool) -> Listening:
        """A subscription that is acknowledged."""
        listening = self.begin_listening(*uris, id=id, **kinds)
        await listening.acknowledged()
        return listening
