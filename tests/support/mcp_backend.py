"""MCP servers in memory, for tests of the actors: each answers by itself what it can, and the test does the rest.

A `Backend` is what a configuration names; each connection of the gateway to it is a `Link`, each request that comes in
a `Request`. What has no answer of its own (a tool in `held`, a method in `mute`) waits for the test:

    backend = Backend("alpha", tools=("echo", "slow"), held={"slow"})
    ...
    request = await backend.next("tools/call")
    request.progress(1)
    asked = request.ask("sampling/createMessage", {...})
    outcome = await asked.outcome()
    request.text("done")

Faults: `link.die()`, `link.lose_session()`, `link.garbage()`, `request.fail()`, a second `request.text()`; and for
connections to come `down` (they end at once) and `silent` (nothing is ever answered).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal

import trio

from actors.ports import TransportEvent, TransportKind
from actors.protocol.codec import dumps, loads
from actors.protocol.messages import RequestId
from actors.protocol.table import BackendSpec, HttpTarget, NativeTarget, SseTarget, StdioTarget, Target, WebSocketTarget
from actors.protocol.transport import RELATING
from tests.support.scripted import ScriptedTransport, Sent

Message = dict[str, Any]
WAIT = 3600.0
"""Seconds on the test's clock, which jumps: what takes longer hangs."""
Kind = TransportKind

LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
"""Method → the member of its result that holds the items."""

EVERYTHING: Mapping[str, Any] = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "logging": {},
    "completions": {},
}


def tool(name: str, **members: Any) -> Message:
    """A tool as it is listed."""
    return {"name": name, "inputSchema": {"type": "object"}, **members}


def resource(uri: str, **members: Any) -> Message:
    """A resource as it is listed."""
    return {"uri": uri, "name": uri.rsplit("/", 1)[-1], **members}


class Backend:
    """One server, over all its connections. Everything may be changed while it runs."""

    def __init__(
        self,
        name: str = "alpha",
        *,
        tools: Iterable[str | Message] = ("echo",),
        prompts: Iterable[str] = ("hello",),
        resources: Iterable[str | Message] = ("test:///a",),
        templates: Iterable[str] = (),
        held: Collection[str] = (),
        mute: Collection[str] = (),
        page: int | None = None,
        kind: Kind = "stdio",
        version: str = "2025-11-25",
        capabilities: Mapping[str, Any] = EVERYTHING,
        welcome: Mapping[str, Any] | None = None,
        **spec: Any,
    ) -> None:
        self.name = name
        self.kind = kind
        self.lists: dict[str, list[Message]] = {
            "tools/list": [tool(t) if isinstance(t, str) else t for t in tools],
            "prompts/list": [{"name": p} for p in prompts],
            "resources/list": [resource(r) if isinstance(r, str) else r for r in resources],
            "resources/templates/list": [{"uriTemplate": t, "name": t} for t in templates],
        }
        self.held = set(held)
        self.mute = set(mute)
        self.page = page
        self.version = version
        self.capabilities = dict(capabilities)
        self.welcome = dict(welcome or {})
        """More members of the answer to `initialize`."""
        self.results: dict[str, Callable[[Request], Mapping[str, Any]]] = {}
        """By method; goes before what is answered otherwise."""
        self.down = False
        self.silent = False
        self.holds_stream = False
        """Over HTTP: the GET stream of connections to come is not answered."""
        self.upstreams: list[Upstream] = []
        self.requests: list[Request] = []
        self.spec = BackendSpec(name, self._target(), **spec)
        self._lot = trio.lowlevel.ParkingLot()
        self.taken: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<Backend {self.name}: {len(self.open)} of {len(self.upstreams)} links open>"

    def _target(self) -> Target:
        match self.kind:
            case "http":
                return HttpTarget(f"http://{self.name}.test/mcp")
            case "sse":
                return SseTarget(f"http://{self.name}.test/sse")
            case "ws":
                return WebSocketTarget(f"ws://{self.name}.test/ws")
            case "stdio":
                return StdioTarget(self.name)
            case "inproc":
                return NativeTarget(self)

    # What the test looks at

    @property
    def open(self) -> list[Upstream]:
        """The connections that have not ended."""
        return [upstream for upstream in self.upstreams if not upstream.transport.closed]

    @property
    def upstream(self) -> Upstream:
        """The newest connection."""
        return self.upstreams[-1]

    @property
    def methods(self) -> list[str]:
        """What was requested or notified, over all connections, in order."""
        return [method for upstream in self.upstreams for method in upstream.methods]

    def asked_for(self, method: str) -> list[Request]:
        """The requests of this method so far."""
        return [request for request in self.requests if request.method == method]

    async def next(self, method: str = "tools/call") -> Request:
        """The next request of this method, in order, each once."""
        with trio.fail_after(WAIT):
            while len(found := self.asked_for(method)) <= self.taken[method]:
                await self._lot.park()
        self.taken[method] += 1
        return found[self.taken[method] - 1]

    async def connected(self, count: int) -> Upstream:
        """Waits for this many connections, ended ones counted; the last of them."""
        with trio.fail_after(WAIT):
            while len(self.upstreams) < count:
                await self._lot.park()
        return self.upstreams[count - 1]

    # What it does by itself

    def connect(
        self, spec: BackendSpec, emit: Callable[[TransportEvent], None], modern: bool = False
    ) -> ScriptedTransport:
        """As in the port `Connector`."""
        upstream = Upstream(self, spec, emit)
        upstream.transport.warm = (
            self.kind == "stdio" and bool(self.upstreams) and self.upstreams[-1].transport.handed_over
        )
        upstream.transport.holds_stream = self.holds_stream
        self.upstreams.append(upstream)
        if self.down:
            upstream.transport.end("spawn_failed", "scripted: down")
        self._lot.unpark_all()
        return upstream.transport

    def came(self, request: Request) -> None:
        """A request is here."""
        self.requests.append(request)
        self._lot.unpark_all()
        if self.silent or request.method in self.mute:
            return
        custom = self.results.get(request.method)
        if custom is not None:
            request.result(custom(request))
        elif request.method in LISTS:
            self.list(request)
        else:
            self.answer(request)

    def list(self, request: Request) -> None:
        items = self.lists[request.method]
        start = int(request.params.get("cursor") or 0)
        stop = start + (self.page or len(items) or 1)
        more = {"nextCursor": str(stop)} if stop < len(items) else {}
        request.result({LISTS[request.method]: items[start:stop], **more})

    def answer(self, request: Request) -> None:
        params = request.params
        match request.method:
            case "initialize":
                info = {"name": self.name, "version": "1"}
                request.result(
                    {
                        "protocolVersion": self.version,
                        "capabilities": self.capabilities,
                        "serverInfo": info,
                        **self.welcome,
                    }
                )
            case "tools/call":
                self._call(request)
            case "resources/read":
                request.result({"contents": [{"uri": params["uri"], "text": f"{self.name}: {params['uri']}"}]})
            case "prompts/get":
                words = {"type": "text", "text": f"{self.name}: {params['name']}"}
                request.result({"messages": [{"role": "user", "content": words}]})
            case "completion/complete":
                request.result({"completion": {"values": [self.name]}})
            case "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe":
                request.result({})
            case _:
                request.error(-32601, "Method not found")

    def _call(self, request: Request) -> None:
        name = request.params.get("name")
        if name in self.held:
            return
        if not any(item.get("name") == name for item in self.lists["tools/list"]):
            request.error(-32602, f"Unknown tool: {name}")
            return
        request.text(f"{self.name}: {request.params.get('arguments', {}).get('text', name)}")


class Upstream:
    """One connection."""

    def __init__(self, backend: Backend, spec: BackendSpec, emit: Callable[[TransportEvent], None]) -> None:
        self.backend = backend
        self.transport = ScriptedTransport(spec, emit, self._script, backend.kind)
        self.messages: list[Message] = []
        """Whatever came in."""
        self._questions: dict[int | str, ServerRequested] = {}
        self._next = 1

    @property
    def methods(self) -> list[str]:
        """What was requested or notified here."""
        return [message["method"] for message in self.messages if "method" in message]

    @property
    def declared(self) -> Message:
        """The params of `initialize`."""
        return next(m["params"] for m in self.messages if m.get("method") == "initialize")

    def params_of(self, method: str) -> list[Message]:
        """The params of all messages of this method."""
        return [m.get("params", {}) for m in self.messages if m.get("method") == method]

    def ask(self, method: str, params: Mapping[str, Any], id: int | str | None = None, **where: Any) -> ServerRequested:
        """A request of the server's own; `related` for one on the stream of a request."""
        if id is None:
            id, self._next = self._next, self._next + 1
        asked = self._questions[id] = ServerRequested(id)
        self.transport.deliver({"id": id, "method": method, "params": dict(params)}, **where)
        return asked

    def notify(self, method: str, params: Mapping[str, Any] | None = None, **where: Any) -> None:
        """A notification."""
        self.transport.deliver({"method": method, **({} if params is None else {"params": dict(params)})}, **where)

    def garbage(self, frame: bytes = b"this is not JSON", related: RequestId | None = None) -> None:
        """Something that is no message; `related`: on the stream of this request."""
        self.transport.deliver(frame, related)

    def die(self, message: str = "exit status 1") -> None:
        """The process ends, the connection breaks."""
        self.transport.end("exited", message)

    def lose_session(self, request: Request | None = None) -> None:
        """The server has forgotten the session (and refused this request for it)."""
        self.transport.lose_session(request.id if request is not None else None)

    def _script(self, transport: ScriptedTransport, sent: Sent) -> None:
        message = dict(loads(dumps(sent.message)))
        self.messages.append(message)
        if "method" not in message:
            asked = self._questions.get(message["id"])
            if asked is not None:
                asked.settle(message)
        elif "id" in message:
            self.backend.came(Request(self, message))
        elif message["method"] == "notifications/cancelled":
            for request in self.backend.requests:
                if request.upstream is self and request.id == message["params"]["requestId"]:
                    request.cancelled.set()


class Request:
    """A request that came in on an upstream connection."""

    def __init__(self, upstream: Upstream, message: Message) -> None:
        self.upstream = upstream
        self.message = message
        self.cancelled = trio.Event()

    @property
    def id(self) -> int | str:
        id: int | str = self.message["id"]
        return id

    @property
    def method(self) -> str:
        return str(self.message["method"])

    @property
    def params(self) -> Message:
        return dict(self.message.get("params") or {})

    @property
    def token(self) -> Any:
        """The progress token."""
        return self.params.get("_meta", {}).get("progressToken")

    @property
    def _related(self) -> int | str | None:
        return self.id if self.upstream.backend.kind in RELATING else None

    def result(self, result: Mapping[str, Any]) -> None:
        """Answers."""
        self.upstream.transport.deliver({"id": self.id, "result": dict(result)}, self._related)

    def text(self, text: str, **members: Any) -> None:
        """Answers with a tool's result of one text."""
        self.result({"content": [{"type": "text", "text": text}], **members})

    def error(self, code: int, message: str, data: Any = None) -> None:
        """Answers with an error."""
        error = {"code": code, "message": message, **({} if data is None else {"data": data})}
        self.upstream.transport.deliver({"id": self.id, "error": error}, self._related)

    def fail(self, executed: Literal["no", "unknown"] = "unknown") -> None:
        """The transport reports that no answer will come."""
        self.upstream.transport.fail(self.id, executed)

    def progress(self, progress: float, **members: Any) -> None:
        """Reports progress under the token that came with the request."""
        self.notify("notifications/progress", {"progressToken": self.token, "progress": progress, **members})

    def log(self, data: Any, level: str = "info", **members: Any) -> None:
        """A log message in the course of the request."""
        self.notify("notifications/message", {"level": level, "data": data, **members})

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """A notification on the stream of this request, where the transport has such."""
        self.upstream.notify(method, params, related=self._related)

    def ask(self, method: str, params: Mapping[str, Any], id: int | str | None = None) -> ServerRequested:
        """A question in the course of the request."""
        return self.upstream.ask(method, params, id, related=self._related)


class ServerRequested:
    """A question of the server; `answers` are the responses that came (one, if all is well)."""

    def __init__(self, id: int | str) -> None:
        self.id = id
        self.answers: list[Message] = []
        self._came = trio.Event()

    def settle(self, response: Message) -> None:
        """A response came."""
        self.answers.append(response)
        self._came.set()

    async def outcome(self) -> Message:
        """The first response, whole."""
        with trio.fail_after(WAIT):
            await self._came.wait()
        return self.answers[0]
