"""Drives one machine by hand: each event goes through `step`, each frame that comes of it is held against the schema of
the revision."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeVar

from msgspec import Raw

from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.machines.session import machine
from actors.machines.session.state import Rules, Session
from actors.machines.upstream import events as ue
from actors.machines.upstream import legacy
from actors.machines.upstream.legacy_state import Profile, Upstream
from actors.protocol import codec, errors
from actors.protocol.messages import EMPTY, Error, Message, Notification, Request, RequestId, Result
from actors.protocol.transport import FrameAccepted
from tests.support.schemas import assert_valid

OLD, BATCHES, FORMS, NEWEST = "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"

E = TypeVar("E")


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


def plain(data: bytes | Raw) -> Any:
    return json.loads(bytes(data))


def only(kind: type[E], effects: Iterable[Any]) -> E:
    """The one effect of this kind."""
    found = all_of(kind, effects)
    assert len(found) == 1, f"{len(found)} of {kind.__name__}: {effects}"
    return found[0]


def all_of(kind: type[E], effects: Iterable[Any]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def kinds(effects: Iterable[Any]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def request(id: RequestId, method: str, **params: Any) -> Request:
    return Request(id, method, raw(params) if params else EMPTY)


def notification(method: str, **params: Any) -> Notification:
    return Notification(method, raw(params) if params else EMPTY)


def call(id: RequestId, name: str = "t", token: RequestId | None = None) -> Request:
    """A tools/call."""
    meta = {"_meta": {"progressToken": token}} if token is not None else {}
    return request(id, "tools/call", name=name, arguments={}, **meta)


CLIENT = {
    "roots": {"listChanged": True},
    "sampling": {"tools": {}, "context": {}},
    "elicitation": {"form": {}, "url": {}},
}
SERVER = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "logging": {},
    "completions": {},
}
INFO = {"name": "someone", "version": "1"}

RESULTS: dict[str, dict[str, Any]] = {
    "initialize": {"protocolVersion": NEWEST, "capabilities": SERVER, "serverInfo": INFO},
    "tools/call": {"content": [{"type": "text", "text": "done"}]},
    "tools/list": {"tools": []},
    "prompts/get": {"messages": []},
    "prompts/list": {"prompts": []},
    "resources/list": {"resources": []},
    "resources/read": {"contents": []},
    "completion/complete": {"completion": {"values": []}},
}
"""Valid results; any other method gets `{}`."""

ASKS: dict[str, dict[str, Any]] = {
    "roots/list": {},
    "sampling/createMessage": {
        "maxTokens": 5,
        "messages": [{"role": "user", "content": {"type": "text", "text": "?"}}],
    },
    "elicitation/create": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
}


class SessionDriver:
    """A session, and what came of it. `calls`: the client's requests that were dispatched, by id."""

    def __init__(
        self, version: str = NEWEST, *, rules: Rules | None = None, epoch: int = 36, check: bool = True
    ) -> None:
        self.version = version
        self.session = Session(epoch, rules or Rules())
        self.now = 0.0
        self.methods: dict[RequestId, str] = {}
        self.calls: dict[RequestId, int] = {}
        self.answers: dict[str, str] = {}
        self._check = check
        self._numbers = 0

    def step(self, event: ev.SessionEvent) -> list[Any]:
        self.session, effects = machine.step(self.session, event)
        for effect in effects:
            if isinstance(effect, fx.AnswerPost):
                body = plain(effect.body)
                for message in body if isinstance(body, list) else [body]:
                    self._valid(message)
            elif isinstance(effect, fx.Append) and effect.data:
                self._valid(plain(effect.data))
        return effects

    def _valid(self, message: dict[str, Any]) -> None:
        # Where an id could not be read the schemas before 2025-11-25 have no form for the error.
        if self._check and ("id" in message or "error" not in message):
            method = self.methods.get(message["id"]) if "id" in message and "method" not in message else None
            assert_valid(message, self.session.version or NEWEST, "server", method=method)

    def number(self) -> int:
        """Of a POST or a connection."""
        self._numbers += 1
        return self._numbers

    # The client

    def post(self, *messages: Message, batch: bool = False, refused: Any = ()) -> list[Any]:
        """A POST; its number is `self.last`."""
        self.last = self.number()
        for message in messages:
            if isinstance(message, Request) and message.id not in self.session.requests:
                self.methods[message.id] = message.method
        effects = self.step(ev.Posted(self.last, messages, batch, self.now, refused))
        for dispatched in all_of(fx.Dispatch, effects):
            if dispatched.call in self.session.calls:
                self.calls[self.session.calls[dispatched.call]] = dispatched.call
        return effects

    def initialize(self, client: Any = None, server: Any = None, *, version: Any = None) -> SessionDriver:
        """The whole handshake."""
        self.begin(client, version=version)
        self.welcome(server)
        self.post(notification("notifications/initialized"))
        return self

    def begin(self, client: Any = None, *, version: Any = None) -> list[Any]:
        """`initialize`, not yet answered."""
        declared = CLIENT if client is None else client
        asked = version or self.version
        return self.post(request("init", "initialize", protocolVersion=asked, capabilities=declared, clientInfo=INFO))

    def welcome(self, server: Any = None) -> list[Any]:
        """The answer to `initialize`."""
        declared = SERVER if server is None else server
        return self.end("init", {**RESULTS["initialize"], "protocolVersion": self.version, "capabilities": declared})

    def get(self, stream: str | None = None, epoch: int = 0, seq: int = 0) -> list[Any]:
        """A GET; its connection is `self.last`."""
        self.last = self.number()
        return self.step(ev.Attached(self.last, stream, epoch or (self.session.epoch if stream else 0), seq))

    def answer(self, ask: str, value: Any) -> list[Any]:
        """The client answers a question."""
        return self.post(Result(ask, raw(value)))

    # The backends

    def end(self, id: RequestId, result: Any = None) -> list[Any]:
        """A call succeeds."""
        value = RESULTS.get(self.methods[id], {}) if result is None else result
        return self.step(ev.CallEnded(self.calls[id], True, raw(value)))

    def fail(self, id: RequestId, error: errors.ProtocolError) -> list[Any]:
        return self.step(ev.CallEnded(self.calls[id], False, error.raw))

    def tell(self, id: RequestId | None, method: str, **params: Any) -> list[Any]:
        """A backend notifies, in the course of this request or of none."""
        call = self.calls[id] if id is not None else None
        return self.step(ev.CallProgressed("b", call, method, raw(params) if params else EMPTY, self.now))

    def progress(self, id: RequestId, value: float, **more: Any) -> list[Any]:
        return self.tell(id, "notifications/progress", progressToken="upstream", progress=value, **more)

    def ask(
        self, id: RequestId | None, method: str = "roots/list", own: RequestId = 1, backend: str = "b"
    ) -> list[Any]:
        """A backend asks, in the course of this request or of none; `own` is its id for it."""
        call = self.calls[id] if id is not None else None
        return self.step(ev.ServerRequested(backend, call, own, method, raw(ASKS[method])))


def said(effects: Iterable[Any]) -> list[tuple[str, Any]]:
    """What was appended to streams: (stream, message)."""
    return [(a.stream, plain(a.data)) for a in all_of(fx.Append, effects) if a.data]


def answers(effects: Iterable[Any]) -> dict[RequestId, dict[str, Any]]:
    """The responses that the client gets, by id, wherever they go."""
    found: dict[RequestId, dict[str, Any]] = {}
    bodies = [plain(a.body) for a in all_of(fx.AnswerPost, effects)]
    messages = [m for body in bodies for m in (body if isinstance(body, list) else [body])]
    for message in [*messages, *(m for _, m in said(effects))]:
        if "method" not in message and "id" in message:
            assert message["id"] not in found
            found[message["id"]] = message
    return found


# Links -------------------------------------------------------------------------------------------------------

PROFILE = Profile(raw(CLIENT), raw(INFO), serialized=True, prefix="e")
HELLO = {"protocolVersion": NEWEST, "capabilities": SERVER, "serverInfo": INFO}


class LinkDriver:
    """An upstream connection, and the requests that are on the wire: upstream id → (method, params)."""

    def __init__(self, *, related: bool = False, upstream: Upstream | None = None, profile: Profile = PROFILE) -> None:
        self.related = related
        self.upstream = upstream or Upstream(profile)
        self.wire: dict[RequestId, tuple[str, Any]] = {}
        self.sent: list[dict[str, Any]] = []
        self._asked: dict[RequestId, str] = {}

    def step(self, event: ue.UpstreamEvent) -> list[Any]:
        before = self.upstream.pending
        if isinstance(event, ue.Incoming) and isinstance(event.message, Request):
            self._asked[event.message.id] = event.message.method
        self.upstream, effects = legacy.step(self.upstream, event)
        for effect in all_of(ue.Send, effects):
            message = plain(effect.frame)
            self.sent.append(message)
            method = self._asked.get(message["id"]) if "method" not in message else None
            assert_valid(message, NEWEST, "client", method=method if method in ASKS else None)
            if "method" in message and "id" in message:
                assert message["id"] == effect.id
                assert message["id"] not in before
                assert message["id"] not in self.wire, "an upstream id twice"
                self.wire[message["id"]] = (message["method"], message.get("params"))
        return effects

    def connect(self, server_info: Any = None) -> list[Any]:
        """From nothing to READY; the effects of the last step."""
        self.step(ue.Wanted())
        self.step(ue.Started(self.related))
        return self.shake(server_info)

    def shake(self, server_info: Any = None) -> list[Any]:
        """INITIALIZING to READY."""
        self.result(self.latest("initialize"), HELLO if server_info is None else server_info)
        return self.step(FrameAccepted(self.upstream.tag))

    def latest(self, method: str) -> RequestId:
        """The upstream id of the newest request of this method."""
        return [id for id, (name, _) in self.wire.items() if name == method][-1]

    def call(self, key: Any, method: str = "tools/call", *, progress: bool = False, **params: Any) -> list[Any]:
        value = params or ({"name": "t"} if method == "tools/call" else {})
        return self.step(ue.Called(key, method, raw(value) if value else EMPTY, progress))

    def receive(self, message: Message, related: RequestId | None = None) -> list[Any]:
        return self.step(ue.Incoming(message, related))

    def result(self, id: RequestId, value: Any = None) -> list[Any]:
        return self.receive(Result(id, raw({} if value is None else value)))

    def error(self, id: RequestId | None, related: RequestId | None = None, code: int = -32000) -> list[Any]:
        return self.receive(Error(id, raw({"code": code, "message": "no"})), related)


def sent(effects: Iterable[Any]) -> list[dict[str, Any]]:
    return [plain(s.frame) for s in all_of(ue.Send, effects)]


def finishes(effects: Iterable[Any]) -> dict[Any, tuple[bool, Any]]:
    """Outcomes by call; each call at most once."""
    found: dict[Any, tuple[bool, Any]] = {}
    for finish in all_of(ue.Finish, effects):
        assert finish.call not in found
        found[finish.call] = (finish.ok, plain(finish.payload))
    return found


def decode(frame: bytes) -> Message:
    return codec.decode_message(frame)
