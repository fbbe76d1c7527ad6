"""Anything that clients, backends, clocks and the store may do to a session, in any order: a witness sees that every
promise is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import Raw

from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.machines.session import rebuild
from actors.machines.session import record as session_record
from actors.machines.session.machine import TABLE
from actors.machines.session.state import Rules, Session, SessionPhase
from actors.protocol import errors
from actors.protocol.messages import EMPTY, Error, Message, Request, RequestId, Result
from tests.protocol.machines.driving import (
    ASKS,
    BATCHES,
    CLIENT,
    FORMS,
    INFO,
    NEWEST,
    OLD,
    RESULTS,
    SessionDriver,
    call,
    notification,
    raw,
    request,
)
from tests.protocol.machines.witness import Witness

RULES = Rules(requests=5, get_streams=2, box=3, asks=4, box_bytes=4000)

ids = st.sampled_from([1, "1", 2, "2", -7, "", "a b", 2**70])
reasons = st.sampled_from(["exists", "finished", "too_new", "seq", "full", "away"])
few = st.integers(0, 7)
seldom = st.integers(0, 40).map(lambda n: n == 17)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    id = draw(ids)
    kind = draw(st.sampled_from(["call", "call", "progress", "list", "ping", "odd", "level", "initialize", "deep"]))
    match kind:
        case "call":
            return call(id)
        case "progress":
            return call(id, token=f"token of {type(id).__name__} {id}")
        case "level":
            return request(id, "logging/setLevel", level=draw(st.sampled_from(["info", "error", "odd"])))
        case "initialize":
            return request(id, "initialize", protocolVersion=NEWEST, capabilities={}, clientInfo=INFO)
        case "deep":
            return Request(id, "tools/call", Raw(b'{"_meta":' + b"[" * 3000 + b"]" * 3000 + b"}"))
    return request(id, {"list": "tools/list", "ping": "ping", "odd": "odd/method"}[kind])


@dataclass
class Head:
    seq: int
    finished: bool
    opener: int = 1


@dataclass
class Stored:
    fields: dict[str, bytes]
    requests: dict[str, bytes]
    asked: dict[str, bytes]
    streams: dict[str, Head]
    older: bool = False


class Sessions(RuleBasedStateMachine):
    """One session, and all who deal with it."""

    @initialize(
        version=st.sampled_from([OLD, BATCHES, BATCHES, FORMS, NEWEST, NEWEST]),
        client=st.sampled_from([CLIENT, CLIENT, {}]),
        far=st.sampled_from([2, 2, 2, 2, 2, 1, 0]),
    )
    def begin(self, version: str, client: Any, far: int) -> None:
        self.driver = SessionDriver(version, rules=RULES)
        self.witness = Witness(version)
        self.heads: dict[str, Head] = {}
        self.connections: dict[int, str] = {}
        self.own = 0
        init = request("init", "initialize", protocolVersion=version, capabilities=client, clientInfo=INFO)
        self.post(init)
        if far > 0:
            self.step(ev.CallEnded(1, True, raw({**RESULTS["initialize"], "protocolVersion": version})))
        if far > 1:
            self.post(notification("notifications/initialized"))

    # Everything goes through here

    def step(self, event: ev.SessionEvent) -> list[Any]:
        before = self.driver.session
        effects = self.driver.step(event)
        self.witness.saw(event, before, self.driver.session, effects)
        self.note(effects)
        return effects

    def note(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case fx.OpenStream(stream, _, connection, _, first):
                    self.heads[stream] = Head(0 if first is None else 1, False)
                    self.connections[connection or effect.post] = stream
                case fx.Follow(connection, stream):
                    self.connections[connection] = stream
                case fx.Append(stream, seq, data, finish):
                    self.heads[stream] = Head(seq if data is not None else seq - 1, finish)
                case fx.CloseConnection(connection):
                    self.connections.pop(connection, None)

    def post(self, *messages: Message, batch: bool = False, refused: Any = ()) -> list[Any]:
        """One POST. What has its outcome and waits for the others of its batch is not asked anew before it is told."""
        untold = {(type(i), i) for p in self.witness.posts.values() for i in p.ids if i not in self.state.requests}
        if any(isinstance(m, Request) and (type(m.id), m.id) in untold for m in messages):
            return []
        for message in messages:
            if isinstance(message, Request) and message.id not in self.driver.session.requests:
                self.driver.methods[message.id] = message.method
        number = self.driver.number()
        effects = self.step(ev.Posted(number, messages, batch, self.driver.now, refused))
        assert any(isinstance(e, fx.Accept | fx.RefusePost | fx.AnswerPost | fx.StartTurnClock) for e in effects)
        return effects

    def pick(self, data: st.DataObject, options: Any) -> Any:
        """One of those there are, or now and then one that never was."""
        if not options or data.draw(seldom):
            return 999
        return data.draw(st.sampled_from(list(options)))

    @property
    def state(self) -> Session:
        return self.driver.session

    # The client

    @rule(data=st.data(), number=st.integers(1, 3), long=st.booleans())
    def calls(self, data: st.DataObject, number: int, long: bool) -> None:
        """Good calls, in a batch where there are such; often they take long."""
        free = [id for id in (1, "1", 2, "2", -7, "") if id not in self.state.requests]
        batch = self.state.version == BATCHES and data.draw(st.booleans())
        self.post(*[call(id, token=f"{type(id)} {id}") for id in free[: number if batch else 1]], batch=batch)
        if long and self.witness.turns:
            self.step(ev.StreamTurnDue(max(self.witness.turns)))

    @rule(message=requests())
    def posts_a_request(self, message: Request) -> None:
        self.post(message)

    @rule(
        messages=st.lists(requests() | st.just(notification("notifications/roots/list_changed")), max_size=4),
        refused=st.lists(st.sampled_from(["unreadable", None]), max_size=2),
        cancel=st.none() | ids,
    )
    def posts_a_batch(self, messages: list[Message], refused: list[RequestId | None], cancel: RequestId | None) -> None:
        if cancel is not None:
            messages = [*messages, notification("notifications/cancelled", requestId=cancel)]
        if messages or refused:
            error = errors.invalid_request("odd").raw
            self.post(*messages, batch=True, refused=tuple((id, error) for id in refused))

    @rule(method=st.sampled_from(["initialized", "roots/list_changed", "odd", "progress", "cancelled", "message"]))
    def notifies(self, method: str) -> None:
        self.post(notification(f"notifications/{method}"))

    @rule(id=ids)
    def cancels(self, id: RequestId) -> None:
        self.post(notification("notifications/cancelled", requestId=id, reason="bored"))

    @rule(data=st.data(), ok=st.booleans())
    def answers(self, data: st.DataObject, ok: bool) -> None:
        ask = data.draw(st.sampled_from([*self.state.asks, "10.1", "10.2", "10.99", "zz.1", 5]))
        self.post(Result(ask, raw({"roots": []})) if ok else Error(ask, raw({"code": -1, "message": "no"})))

    @rule(data=st.data())
    def reports_progress(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from([*self.state.asks, "10.1", 5]))
        self.post(notification("notifications/progress", progressToken=token, progress=1))

    @rule()
    def gets(self) -> None:
        self.step(ev.Attached(self.driver.number()))

    @rule(data=st.data(), seq=st.integers(0, 4), back=st.integers(-1, 1))
    def resumes(self, data: st.DataObject, seq: int, back: int) -> None:
        stream = data.draw(st.sampled_from([*self.heads, "p77"]))
        self.step(ev.Attached(self.driver.number(), stream, self.state.epoch - back, seq))

    @precondition(lambda self: self.connections)
    @rule(data=st.data())
    def loses_a_connection(self, data: st.DataObject) -> None:
        number = self.pick(data, self.connections)
        self.step(ev.Detached(number, self.connections.pop(number, "g1")))

    @precondition(lambda self: self.state.posts)
    @rule(data=st.data())
    def breaks_a_post(self, data: st.DataObject) -> None:
        self.step(ev.PostBroken(self.pick(data, self.state.posts)))

    # Clocks

    @precondition(lambda self: self.witness.turns)
    @rule(data=st.data())
    def turns_are_due(self, data: st.DataObject) -> None:
        self.step(ev.StreamTurnDue(self.pick(data, self.witness.turns)))

    @precondition(lambda self: self.witness.deadlines)
    @rule(data=st.data())
    def deadlines_pass(self, data: st.DataObject) -> None:
        self.step(ev.CallExpired(self.pick(data, self.witness.deadlines)))

    @precondition(lambda self: self.witness.waits)
    @rule(data=st.data())
    def questions_expire(self, data: st.DataObject) -> None:
        self.step(ev.ServerRequestExpired(str(self.pick(data, self.witness.waits))))

    # Backends

    @precondition(lambda self: self.state.calls)
    @rule(data=st.data(), ok=st.booleans())
    def calls_end(self, data: st.DataObject, ok: bool) -> None:
        number = self.pick(data, self.state.calls)
        id = self.state.calls.get(number)
        result = RESULTS.get(self.state.requests[id].method, {}) if id is not None else {}
        self.step(ev.CallEnded(number, ok, raw(result if ok else {"code": -32000, "message": "no"})))

    @precondition(lambda self: self.state.calls)
    @rule(data=st.data(), value=few)
    def calls_progress(self, data: st.DataObject, value: int) -> None:
        self.driver.now += 1
        params = raw({"progressToken": "upstream", "progress": value})
        number = self.pick(data, self.state.calls)
        self.step(ev.CallProgressed("a", number, "notifications/progress", params, self.driver.now))

    @rule(data=st.data(), related=st.booleans(), text=st.sampled_from(["", "x" * 1500]))
    def logs(self, data: st.DataObject, related: bool, text: str) -> None:
        number = self.pick(data, self.state.calls) if related else None
        params = raw({"level": data.draw(st.sampled_from(["debug", "error"])), "data": text})
        self.step(ev.CallProgressed("a", number, "notifications/message", params, 0.0))

    @rule(kind=st.sampled_from(["tools", "prompts"]))
    def lists_change(self, kind: str) -> None:
        self.step(ev.CallProgressed("a", None, f"notifications/{kind}/list_changed", EMPTY, 0.0))

    @rule(data=st.data(), backend=st.sampled_from("ab"), method=st.sampled_from([*ASKS, "odd"]), related=st.booleans())
    def asks(self, data: st.DataObject, backend: str, method: str, related: bool) -> None:
        self.own += 1
        number = self.pick(data, self.state.calls) if related else None
        self.step(ev.ServerRequested(backend, number, self.own, method, raw(ASKS.get(method, {}))))

    @precondition(lambda self: self.witness.questions)
    @rule(data=st.data())
    def withdraws(self, data: st.DataObject) -> None:
        backend, id = data.draw(st.sampled_from([*self.witness.questions, ("a", "nothing")]))
        self.step(ev.ServerRequestWithdrawn(backend, id))

    @rule(backend=st.sampled_from("ab"))
    def is_lost(self, backend: str) -> None:
        self.step(ev.BackendLost(backend))

    # The store, the drain, the end

    @precondition(lambda self: self.state.streams)
    @rule(data=st.data(), reason=reasons, gone=st.booleans())
    def a_log_is_lost(self, data: st.DataObject, reason: Any, gone: bool) -> None:
        stream = str(self.pick(data, self.state.streams))
        keys = {key for key, carrier in self.witness.requests.items() if carrier.decode() == stream}
        self.step(ev.StreamFailed(stream, reason))
        if gone:
            self.heads.pop(stream, None)
            for key in keys:
                del self.witness.requests[key]

    @precondition(
        lambda self: session_record.is_complete({"v": b"1", **self.witness.fields}) and not self.witness.ended
    )
    @rule(now=st.integers(0, 4).map(lambda n: n == 3))
    def the_process_dies(self, now: bool) -> None:
        if not now:
            return
        stored = Stored(
            dict(self.witness.fields), dict(self.witness.requests), dict(self.witness.asked), dict(self.heads)
        )
        rebuilt, effects = rebuild.rebuild(stored, Session(self.state.epoch + 1, RULES))
        self.driver.session = rebuilt
        self.connections.clear()
        self.witness.restarted(rebuilt, effects, self.heads)
        self.note(effects)
        assert not rebuilt.requests
        assert all(name.startswith("g") for name in rebuilt.streams)

    @precondition(lambda self: self.state.phase is not SessionPhase.CLOSED)
    @rule(now=seldom)
    def is_drained(self, now: bool) -> None:
        if now:
            self.step(ev.DrainStarted())

    @rule(now=seldom)
    def is_overdue(self, now: bool) -> None:
        if now:
            self.step(ev.DrainOverdue())

    @rule(now=seldom)
    def is_to_move(self, now: bool) -> None:
        if now:
            self.step(ev.MoveAsked())

    @rule(now=seldom, reason=st.sampled_from(["delete", "fenced"]))
    def ends(self, now: bool, reason: str) -> None:
        if now:
            self.step(ev.Ended(reason))

    # What holds at any time

    @invariant()
    def bounds_hold(self) -> None:
        if not hasattr(self, "driver"):
            return
        state = self.state
        assert len(state.requests) <= RULES.requests
        assert len(state.asks) <= RULES.asks
        assert len(state.box) <= RULES.box
        assert sum(len(b.data) for b in state.box) <= RULES.box_bytes
        read = [s for s in state.streams.values() if s.post is None and s.connection is not None]
        assert len(read) <= RULES.get_streams
        assert len(state.posts) <= len(state.requests)

    def teardown(self) -> None:
        """However it went on, a drain comes to an end, and nothing is left."""
        if not hasattr(self, "driver"):
            return
        for event in (ev.DrainStarted(), ev.DrainOverdue()):
            if (self.state.phase, type(event)) in TABLE:
                self.step(event)
        state = self.state
        assert (state.requests, state.calls, state.posts, state.asks) == ({}, {}, {}, {})
        assert not self.witness.questions
        self.step(ev.Ended("shutdown"))
        assert self.witness.ended
        assert (self.state.phase, self.state.streams, self.state.box) == (SessionPhase.CLOSED, {}, ())
        self.step(ev.Ended("again"))


TestSessions = Sessions.TestCase
