"""A scripted server that speaks the era without sessions, alone or besides the handshake era, behind any transport.

Handlers are those of `Backend`: results get what this era adds to them, and `request.ask` becomes a round of
"input required". What the gateway sends is checked at once, and so is what the server says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import trio

from tests.interaction.backend import Backend
from tests.interaction.connection import Connection, Id, InputNeeded, Request
from tests.support import modern_rules as rules
from tests.support.schemas import INPUT_METHODS, MODERN, assert_valid
from tests.support.wire_client import Message


@dataclass(eq=False)
class Listen:
    """A subscription of the gateway's."""

    request: Request
    wanted: Message
    over: trio.Event = field(default_factory=trio.Event)

    @property
    def live(self) -> bool:
        request = self.request
        return not (self.over.is_set() or request.cancelled.is_set() or request.connection.ended.is_set())

    def tell(self, method: str, params: Mapping[str, Any]) -> None:
        self.request.notify(method, {**params, "_meta": {rules.SUBSCRIPTION: self.request.id}})

    def covers(self, method: str, uri: str | None) -> bool:
        """Whether a change is wanted."""
        if uri is None:
            return bool(self.wanted.get(rules.LISTENED[method]))
        return any(uri.startswith(watched) for watched in self.wanted.get("resourceSubscriptions", ()))


class ModernBackend(Backend):
    """`sessions`: it speaks the handshake era too; who begins so goes on so."""

    modern = True

    def __init__(self, name: str, nursery: trio.Nursery, *, sessions: bool = False, **more: Any) -> None:
        super().__init__(name, nursery, **more)
        self.sessions = sessions
        self.supported = [MODERN]
        self.hints: Message = {"ttlMs": 0, "cacheScope": "private"}
        self.refusal: Message = {"code": -32022, "message": "Unsupported protocol version"}
        """What `initialize` gets, if there are no sessions."""
        self.listens: list[Listen] = []
        self.honours: Callable[[Message], Message] = self._honoured
        """What of a subscription is granted."""
        self.states: dict[str, tuple[Message, Message]] = {}
        """States that were given out: the request, and the answers so far."""
        self.handlers |= {"server/discover": self._discover, "subscriptions/listen": self._listen}

    def connected(self, write: Callable[[bytes, Id | None], None]) -> Connection:
        connection = ModernConnection(self, write)
        self.connections.append(connection)
        self.changed.unpark_all()
        return connection

    @property
    def live(self) -> list[Listen]:
        """Subscriptions that nobody has ended."""
        return [listen for listen in self.listens if listen.live]

    async def listening(self, count: int = 1) -> Listen:
        """The so-manieth subscription, as soon as it is there."""
        with trio.fail_after(10):
            while len(self.listens) < count:
                await self.changed.park()
        return self.listens[count - 1]

    def announce(self, method: str, uri: str | None = None) -> None:
        for listen in self.live:
            if listen.covers(method, uri):
                listen.tell(method, {} if uri is None else {"uri": uri})
        for connection in self.connections:
            assert isinstance(connection, ModernConnection)
            if connection.era == "legacy" and not connection.ended.is_set():
                connection.notify(method, None if uri is None else {"uri": uri})

    def schema_of(self, tool: str) -> Message:
        """The input schema of a tool."""
        found: Message = next((t["inputSchema"] for t in self.items.get("tools", ()) if t["name"] == tool), {})
        return found

    async def _discover(self, request: Request) -> Message:
        about: Message = {"supportedVersions": self.supported, "capabilities": self._declared()}
        return about if self.instructions is None else {**about, "instructions": self.instructions}

    def _found(self) -> Message:
        declared = super()._found()
        if "resources" in declared:
            declared["resources"]["subscribe"] = True
        return declared

    def _declared(self) -> Message:
        return dict(self.capabilities) if self.capabilities is not None else self._found()

    def _honoured(self, wanted: Message) -> Message:
        declared = self._declared()
        granted = {kind + "ListChanged" for kind, has in declared.items() if "listChanged" in has}
        if declared.get("resources", {}).get("subscribe"):
            granted.add("resourceSubscriptions")
        return {kind: value for kind, value in wanted.items() if kind in granted}

    async def _listen(self, request: Request) -> Message:
        listen = Listen(request, self.honours(request.params["notifications"]))
        self.listens.append(listen)
        listen.tell(rules.ACKNOWLEDGED, {"notifications": listen.wanted})
        self.changed.unpark_all()
        await listen.over.wait()
        return {"_meta": {rules.SUBSCRIPTION: request.id}}


class ModernConnection(Connection):
    """Over stdio one process; over HTTP all requests without a session, or one session."""

    backend: ModernBackend
    era = ""
    """Of the first request."""

    def feed(self, frame: bytes, headers: Mapping[str, str] | None = None) -> None:
        """`headers`: of a request over HTTP."""
        self._headers = headers
        super().feed(frame)

    def _take(self, message: Message) -> None:
        if not self.era:
            self.era = self._choose(message)
        if self.era == "legacy":
            super()._take(message)
        elif message.get("method") == "initialize" and not self.backend.sessions:
            self.era = ""
            asked = message["params"]["protocolVersion"]
            data = {"supported": self.backend.supported, "requested": asked}
            Connection.say(self, {"id": message["id"], "error": {**self.backend.refusal, "data": data}}, message["id"])
        elif "id" not in message and message["method"] in self.backend.extensions:
            if self._headers is not None:
                said = {k: self._headers.get(k) for k in ("mcp-protocol-version", "mcp-method", "mcp-name")}
                assert said == {"mcp-protocol-version": MODERN, "mcp-method": message["method"], "mcp-name": None}
        elif "id" not in message:
            assert_valid(message, MODERN, "client")
            assert self._headers is None, f"nothing but requests is said over HTTP: {message}"
            self._cancelled(message["params"])
        else:
            self._take_request(message)

    def _choose(self, message: Message) -> str:
        return "legacy" if message.get("method") == "initialize" and self.backend.sessions else "modern"

    def _take_request(self, message: Message) -> None:
        assert "method" in message, f"nothing was asked: {message}"
        if message["method"] not in self.backend.extensions:
            assert_valid(message, MODERN, "client")
        assert (type(message["id"]), message["id"]) not in self._ids, f"an id was used before: {message}"
        self._ids.add((type(message["id"]), message["id"]))
        params = message["params"]
        assert params["_meta"][rules.VERSION] == MODERN
        request = Request(self, message, headers=self._headers or {})
        if self._headers is not None and not self._headers_agree(message, self._headers):
            self.say({"id": request.id, "error": {"code": -32020, "message": "a header is missing"}}, request.id)
            return
        if params.keys() & {"inputResponses", "requestState"}:
            request.answers = self._answers_of(message)
        self.backend.serve(request)

    def _headers_agree(self, message: Message, headers: Mapping[str, str]) -> bool:
        """Whether those are there that only the schema of the tool asks for; the others must be."""
        expected = rules.own_headers(message, self.backend.schema_of(message["params"].get("name", "")))
        repeated = {k: v for k, v in headers.items() if k.startswith("mcp-")}
        missing = {key for key in expected.keys() - repeated.keys() if key.startswith("mcp-param-")}
        agreed = {k: v for k, v in expected.items() if k not in missing}
        assert repeated == agreed, f"headers {repeated} do not say what the body says: {message}"
        return not missing

    def _answers_of(self, message: Message) -> Message:
        params = message["params"]
        assert message["method"] in INPUT_METHODS, f"there is no such retry: {message}"
        state = params.get("requestState")
        assert state is None or state in self.backend.states, f"a state that was never given out: {message}"
        asked, before = self.backend.states.get(state, (_asked(message), {}))
        assert asked == _asked(message), f"a state of another request: {message}"
        return {**before, **params.get("inputResponses", {})}

    # What is said

    def say(self, message: Mapping[str, Any], related: Id | None = None) -> None:
        whole = {"jsonrpc": "2.0", **message}
        if self.era == "modern" and not self.backend.trusting:
            self._check_said(whole)
        super().say(message, related)

    def _check_said(self, message: Message) -> None:
        try:
            method = None
            if "method" not in message:
                asked = [m for m in self.received if m.get("id") == message["id"]]
                method = asked[-1]["method"] if asked and asked[-1]["method"] not in self.backend.extensions else None
            assert_valid(message, MODERN, "server", method=method)
        except AssertionError as fault:
            self.backend.faults.append(fault)

    async def ask_for(self, request: Request, method: str, params: Mapping[str, Any] | None) -> Message:
        if self.era == "legacy":
            return await super().ask_for(request, method, params)
        request.asked += 1
        key = f"q{request.asked}"
        if key in request.answers:
            answer: Message = request.answers[key]
            return answer
        question: Message = {"method": method} if params is None else {"method": method, "params": dict(params)}
        raise InputNeeded({key: question})

    def result(self, request: Request, result: Mapping[str, Any]) -> Message:
        if self.era == "legacy":
            return super().result(request, result)
        meta = {rules.SERVER: self.backend.info, **result.get("_meta", {})}
        hints = self.backend.hints if request.method in rules.CACHEABLE else {}
        return {"resultType": "complete", **hints, **result, "_meta": meta}

    def needs(self, request: Request, needed: InputNeeded) -> Message:
        result: Message = {"resultType": "input_required"}
        if needed.questions is not None:
            result["inputRequests"] = needed.questions
        if needed.state is not None:
            states = self.backend.states
            result["requestState"] = state = needed.state or f'{{"of": {len(states)}}} \u00e4\u2028=?base64?\\"'
            states[state] = (_asked(request.message), request.answers)
        return result

    def cut(self, id: Id) -> None:
        """Over HTTP: the connection of a request was closed."""
        request = self.running.pop(id, None)
        if request is not None:
            request.cancelled.set()


def _asked(message: Message) -> Message:
    """What must be the same in a retry."""
    params = {k: v for k, v in message["params"].items() if k not in ("_meta", "inputResponses", "requestState")}
    asked: Message = json.loads(json.dumps([message["method"], params]))
    return asked
