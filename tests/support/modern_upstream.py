"""Drives the machine of an upstream connection to a backend without sessions, and keeps what it wanted done.

drive = Drive(related=True)
drive.call(1, "tools/call", name="echo")     # connects, probes
drive.discovered()
request = drive.last("tools/call")
drive.result(request.id, {"content": []})
assert drive.outcomes[1] == (True, {...})
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Raw

from actors.machines.upstream import events as ev
from actors.machines.upstream import modern_events as mv
from actors.machines.upstream.modern import step
from actors.machines.upstream.modern_events import Caller
from actors.machines.upstream.modern_state import Upstream
from actors.protocol import codec
from actors.protocol import payload as json
from actors.protocol.messages import Error, Notification, Request, Result

EVERYTHING = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "logging": {},
}
DISCOVERED = {
    "resultType": "complete",
    "supportedVersions": ["2026-07-28"],
    "capabilities": EVERYTHING,
    "instructions": "be kind",
    "ttlMs": 0,
    "cacheScope": "public",
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "far", "version": "1"}},
}


def client(drives: bool = True, principal: str = "alice", level: str | None = None, **capabilities: Any) -> Caller:
    """A client of the other era unless told otherwise."""
    return Caller(principal, json.dumps(capabilities), json.dumps({"name": "c", "version": "1"}), level, drives)


@dataclass(frozen=True)
class Sent:
    """A request that was sent."""

    id: str
    method: str
    params: dict[str, Any]
    headers: dict[str, str]

    @property
    def meta(self) -> dict[str, Any]:
        meta: dict[str, Any] = self.params["_meta"]
        return meta


@dataclass
class Drive:
    """One upstream connection, and everything that came out of it."""

    related: bool = True
    started: ev.Started | None = None
    """Of the transports, if there is more to be said of them."""
    upstream: Upstream = field(default_factory=lambda: Upstream("x", Raw(b'{"name":"stagedoor","version":"1"}')))
    effects: list[Any] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    outcomes: dict[int, tuple[bool, Any]] = field(default_factory=dict)
    asks: list[ev.ServerRequest] = field(default_factory=list)
    told: list[tuple[Any, str, Any]] = field(default_factory=list)
    """Whom (a call, a caller, None for all), and what."""
    notified: list[tuple[str, Any, dict[str, str]]] = field(default_factory=list)
    """Notifications that were sent: method, params, headers."""
    tallied: list[str] = field(default_factory=list)
    timers: dict[Any, float] = field(default_factory=dict)
    returned: list[mv.Called] = field(default_factory=list)

    def step(self, event: mv.Event) -> list[Any]:
        """One event; its effects."""
        self.upstream, effects = step(self.upstream, event)
        self.effects += effects
        for effect in effects:
            self._take(effect)
        return effects

    def _take(self, effect: Any) -> None:
        match effect:
            case ev.Connect():
                self.step(self.started or ev.Started(self.related))
            case ev.Send(frame, id, _, headers):
                self._send(frame, id, headers)
            case ev.Forget(id):
                self.cancelled.append(str(id))
            case ev.Finish(call, ok, payload):
                assert isinstance(call, int)
                assert call not in self.outcomes, "a second outcome"
                self.outcomes[call] = (ok, json.loads(payload))
            case ev.ServerRequest():
                self.asks.append(effect)
            case ev.Notify(call, method, params):
                self.told.append((call, method, json.loads(params)))
            case mv.NotifyCaller(caller, method, params):
                self.told.append((caller, method, json.loads(params)))
            case ev.Count(what):
                self.tallied.append(what)
            case mv.StartTimer(key, seconds):
                self.timers[key] = seconds
            case mv.StartRetry(key, attempt):
                self.timers[key] = float(attempt)
            case mv.StopTimer(key):
                self.timers.pop(key, None)
            case mv.WrongEra(calls):
                self.returned += calls

    def _send(self, frame: bytes, id: Any, headers: Any) -> None:
        message = codec.decode_message(frame)
        if isinstance(message, Notification):
            assert id is None
            assert self.related is bool(headers), "over HTTP only what clients say is notified"
            self.notified.append((message.method, json.loads(message.params), dict(headers)))
            return
        assert isinstance(message, Request)
        assert isinstance(id, str)
        assert all(id != sent.id for sent in self.sent), "an id was given twice"
        params = json.loads(message.params)
        assert params["_meta"]["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
        assert bool(headers) is self.related
        self.sent.append(Sent(id, message.method, params, dict(headers)))

    # What callers do

    def call(
        self, call: int, method: str = "tools/call", *, by: Caller | None = None, caller: Any = "s1", **params: Any
    ) -> None:
        """A request; `progress=True` for one whose progress is wanted."""
        progress = bool(params.pop("progress", False))
        self.step(mv.Called(call, caller, method, json.dumps(params), by or client(), progress))

    def answer(self, ask: ev.ServerRequest, result: Mapping[str, Any] | None) -> None:
        """An answer to a question; None: an error."""
        payload = json.dumps(result if result is not None else {"code": -1, "message": "rejected"})
        self.step(ev.AnswerGiven(ask.id, result is not None, payload))

    def inform(self, method: str, principal: str = "", **params: Any) -> None:
        """A notification of a client."""
        self.step(mv.Notified(method, json.dumps(params), principal))

    # What the backend does

    def last(self, method: str) -> Sent:
        """The last request of this method."""
        return [sent for sent in self.sent if sent.method == method][-1]

    def count(self, method: str) -> int:
        return sum(sent.method == method for sent in self.sent)

    def discovered(self, **changes: Any) -> None:
        """The answer to the probe."""
        self.result(self.last("server/discover").id, DISCOVERED | changes)

    def ready(self) -> Drive:
        """Connects."""
        self.step(ev.Wanted())
        self.discovered()
        return self

    def result(self, id: str, result: Mapping[str, Any]) -> None:
        self.step(mv.Incoming(Result(id, json.dumps(dict(result))), id if self.related else None))

    def error(self, id: str, code: int, status: int | None = None, **data: Any) -> None:
        error = json.dumps({"code": code, "message": "no", **({"data": data} if data else {})})
        self.step(mv.Incoming(Error(id, error), id if self.related else None, status if self.related else None))

    def fail(self, id: str, reason: str = "connection_lost", executed: Any = "unknown", status: Any = None) -> None:
        self.step(mv.Failed(id, reason, "broken", executed, status))

    def notify(self, method: str, related: str | None = None, subscription: str | None = None, **params: Any) -> None:
        """A notification: on the stream of a request, or of a subscription."""
        if subscription is not None:
            params["_meta"] = {"io.modelcontextprotocol/subscriptionId": subscription}
            related = subscription if self.related else None
        self.step(mv.Incoming(Notification(method, json.dumps(params)), related))

    def acknowledge(self, id: str | None = None, **honoured: Any) -> str:
        """Acknowledges the last listen, with what it wants unless told otherwise."""
        listen = self.last("subscriptions/listen")
        id = id or listen.id
        [wanted] = [sent.params["notifications"] for sent in self.sent if sent.id == id]
        self.notify("notifications/subscriptions/acknowledged", subscription=id, notifications=honoured or wanted)
        return id

    def due(self, *key: Any) -> None:
        """A timer of the machine."""
        self.timers.pop(key, None)
        self.step(mv.TimerDue(key))
