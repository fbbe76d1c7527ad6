"""Upstream connections and pools that do what a test says, for what calls them.

They speak the messages of `actors.upstreams.messages`.

peers = FakePeers({"alpha": Peer("alpha"), "beta": Peer("beta", modern=False)})
call = await peers["alpha"].next("tools/call")
call.tell("notifications/progress", progress=1)
call.result(content=[])
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import trio
from msgspec import Raw

from actors.machines.modern.input_required import InputRequest
from actors.machines.upstream.events import AnswerGiven, ServerInfo, Wanted
from actors.pools.messages import Resume, UpstreamSuspended
from actors.protocol.table import BackendSpec
from actors.runtime import SHUTDOWN, Actor, Down, DynamicSupervisor, Ref
from actors.upstreams.messages import (
    Call,
    Cancel,
    Join,
    Leave,
    PeerNotified,
    UpstreamDown,
    UpstreamNotification,
    UpstreamOutcome,
    UpstreamReady,
    UpstreamWrongEra,
)
from tests.support.mcp_backend import EVERYTHING, LISTS, WAIT, tool

Message = dict[str, Any]


def raw(value: Any) -> Raw:
    """JSON."""
    return Raw(json.dumps(value).encode())


class Peer:
    """One backend, as far as its callers see it."""

    def __init__(
        self,
        name: str,
        *,
        modern: bool = True,
        known: bool = True,
        tools: tuple[str | Message, ...] = ("echo",),
        capabilities: Mapping[str, Any] = EVERYTHING,
        ttl: int = 0,
    ) -> None:
        self.name = name
        self.modern = modern
        self.known = known
        """Whether its era is known before anybody asks."""
        self.capabilities = dict(capabilities)
        self.ttl = ttl
        self.lists: dict[str, list[Message]] = {method: [] for method in LISTS}
        self.lists["tools/list"] = [tool(t) if isinstance(t, str) else t for t in tools]
        self.calls: list[ServerRequested] = []
        self.resumes: list[ServerRequested] = []
        self.upstreams: list[FakeUpstream] = []
        self.honours: Callable[[Message], Message] = lambda wanted: wanted
        """What it acknowledges of a subscription."""
        self.answers = True
        """Whether it answers by itself what it can."""
        self.lot = trio.lowlevel.ParkingLot()
        self._taken: Counter[str] = Counter()

    @property
    def server_info(self) -> ServerInfo:
        """What it says of itself."""
        version = "2026-07-28" if self.modern else "2025-11-25"
        info = {"name": self.name, "version": "1"}
        return ServerInfo(version, raw(self.capabilities), raw(info), None, raw({"capabilities": self.capabilities}))

    @property
    def upstream(self) -> FakeUpstream:
        """The newest upstream connection."""
        return self.upstreams[-1]

    async def next(self, method: str = "tools/call") -> ServerRequested:
        """The next call of this method, in order, each once."""
        with trio.fail_after(WAIT):
            while len(found := [c for c in self.calls if c.method == method]) <= self._taken[method]:
                await self.lot.park()
        self._taken[method] += 1
        return found[self._taken[method] - 1]

    def asked_for(self, method: str) -> list[ServerRequested]:
        """The calls of this method so far."""
        return [call for call in self.calls if call.method == method]

    def came(self, call: ServerRequested) -> None:
        """A call is here."""
        self.calls.append(call)
        self.lot.unpark_all()
        if not self.answers:
            return
        if call.method in LISTS:
            hints = {"resultType": "complete", "ttlMs": self.ttl, "cacheScope": "private"} if self.modern else {}
            call.result({LISTS[call.method]: self.lists[call.method], **hints})
        elif call.method in ("resources/subscribe", "resources/unsubscribe"):
            call.result({})
        elif call.method == "subscriptions/listen":
            acknowledged = self.honours(call.params["notifications"])
            call.tell("notifications/subscriptions/acknowledged", notifications=acknowledged)

    def changed(self, method: str, **params: Any) -> None:
        """Says something that belongs to no call, as a server with sessions does."""
        for upstream in self.upstreams:
            upstream.tell(None, method, params)


class Drained:
    """The drain has begun."""


class FakeUpstream(Actor):
    """An upstream connection, or a pool; it is up as soon as it is wanted."""

    mailbox_size = 256

    def __init__(self, peer: Peer, fit: bool) -> None:
        self.peer = peer
        self.fit = fit
        self.up = False
        self.members: list[Ref] = []
        self.notified: list[str] = []
        """The methods of what clients without sessions have notified."""
        self.key: object = None

    def started(self) -> None:
        self.peer.upstreams.append(self)

    def receive(self, message: Any) -> None:
        match message:
            case Join(caller):
                self.ctx.monitor(caller)
                self.members.append(caller)
                if self.up:
                    self._ready(caller)
            case Wanted():
                for caller in list(self.members):
                    self._connect(caller, ())
            case Call(caller=caller):
                if self._connect(caller, (message,)):
                    self.peer.came(ServerRequested(self, message))
            case PeerNotified(method):
                self.notified.append(method)
            case Resume():
                self.peer.resumes.append(ServerRequested(self, message))
                self.peer.lot.unpark_all()
            case Cancel(caller, call):
                for asked in (*self.peer.calls, *self.peer.resumes):
                    if asked.key == (caller, call):
                        asked.cancelled.set()
            case Leave(caller):
                self._left(caller)
            case Down(ref=ref):
                self._left(ref)
            case AnswerGiven():
                pass
            case Drained():
                self.ctx.stop(SHUTDOWN)

    def drain(self, deadline: float) -> None:
        """It ends after what it was told before."""
        self.ctx.ref.reply(Drained())

    def _left(self, caller: Ref) -> None:
        if caller in self.members:
            self.members.remove(caller)
        if not self.members:
            self.ctx.stop()

    def _connect(self, caller: Ref, calls: tuple[Call, ...]) -> bool:
        if not self.fit:
            self.peer.known = True
            caller.reply(UpstreamWrongEra(self.ctx.ref, self.peer.name, calls))
            return False
        if not self.up:
            self.up = True
            for member in self.members:
                self._ready(member)
        return True

    def _ready(self, caller: Ref) -> None:
        caller.reply(UpstreamReady(self.ctx.ref, self.peer.name, self.peer.server_info, False))

    def tell(self, call: int | None, method: str, params: Any, to: Ref | None = None) -> None:
        """Notifies one caller, or all."""
        for member in self.members if to is None else (to,):
            member.reply(UpstreamNotification(self.ctx.ref, self.peer.name, call, method, raw(params)))

    def lose(self) -> None:
        """The connection is lost."""
        self.up = False
        for member in self.members:
            member.reply(UpstreamDown(self.ctx.ref, self.peer.name, "lost", raw({"code": -32603, "message": "lost"})))

    def end(self) -> None:
        """The actor is gone."""
        self.ctx.ref.stop()


class ServerRequested:
    """A call, or the way back to a suspended one."""

    def __init__(self, upstream: FakeUpstream, message: Any) -> None:
        self.upstream = upstream
        self.message = message
        self.cancelled = trio.Event()

    @property
    def key(self) -> tuple[Ref, int]:
        return self.message.caller, self.message.call

    @property
    def method(self) -> str:
        return str(self.message.method)

    @property
    def params(self) -> Message:
        return dict(json.loads(bytes(self.message.params) or b"{}"))

    def result(self, result: Mapping[str, Any]) -> None:
        """Answers."""
        self._outcome(True, dict(result))

    def text(self, text: str) -> None:
        """Answers with a tool's result of one text."""
        self.result({"resultType": "complete", "content": [{"type": "text", "text": text}]})

    def error(self, code: int, message: str = "no", data: Any = None) -> None:
        """Answers with an error."""
        self._outcome(False, {"code": code, "message": message, **({} if data is None else {"data": data})})

    def _outcome(self, ok: bool, payload: Any) -> None:
        self.message.caller.reply(UpstreamOutcome(self.upstream.peer.name, self.message.call, ok, raw(payload)))

    def tell(self, method: str, **params: Any) -> None:
        """Notifies in the course of it."""
        self.upstream.tell(self.message.call, method, params, to=self.message.caller)

    def suspend(self, *questions: tuple[str, str, Any], suspend: str = "p", round: int = 1) -> None:
        """Asks: key, method, params of each question."""
        requests = tuple(InputRequest(key, method, raw(params)) for key, method, params in questions)
        peer = self.upstream.peer.name
        self.message.caller.reply(UpstreamSuspended(peer, self.message.call, "life", suspend, round, requests))


class FakePeers:
    """All backends."""

    def __init__(self, resolver: Mapping[str, Peer]) -> None:
        self.resolver = dict(resolver)
        self._supervisor = DynamicSupervisor(1000)
        self.shared: dict[str, Ref] = {}
        self.pools: dict[object, Ref] = {}

    def __getitem__(self, name: str) -> Peer:
        return self.resolver[name]

    @property
    def supervisor(self) -> DynamicSupervisor:
        """Of all its upstream connections; to be spawned."""
        return self._supervisor

    def of(self, key: object) -> KindPeers:
        """As the actors of one kind of client see them."""
        return KindPeers(self, key)


class KindPeers:
    """The port that endpoints have."""

    def __init__(self, resolver: FakePeers, key: object) -> None:
        self._peers = resolver
        self._key = key

    def modern(self, spec: BackendSpec) -> bool | None:
        peer = self._peers[spec.name]
        return peer.modern if peer.known else None

    def suspends(self, spec: BackendSpec) -> None:
        self._peers[spec.name].known = True

    def upstream(self, spec: BackendSpec) -> Ref:
        running = self._peers.shared.get(spec.name)
        if running is None or not running.alive:
            peer = self._peers[spec.name]
            running = self._peers.shared[spec.name] = self._peers.supervisor.start_child(
                FakeUpstream(peer, peer.modern)
            )
        return running

    def pool(self, spec: BackendSpec) -> Ref:
        key = (self._key, spec.name)
        running = self._peers.pools.get(key)
        if running is None or not running.alive:
            peer = self._peers[spec.name]
            running = self._peers.pools[key] = self._peers.supervisor.start_child(FakeUpstream(peer, not peer.modern))
        return running

    def connected(self, spec: BackendSpec) -> bool:
        running = self._peers.pools.get((self._key, spec.name))
        return (
            running is not None and running.alive and any(upstream.up for upstream in self._peers[spec.name].upstreams)
        )
