"""Anything that callers, a backend and a network may do to an upstream connection, in any order.

The model is naive: who called and what was told to whom. It checks that every call has one outcome, which says rightly
whether it may have been executed; that a request goes out once, or twice if the backend refused it unseen; that ids
never repeat; that every question of the backend is settled; that the lease holds; and that nothing is left in the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.machines.upstream import events as ue
from actors.machines.upstream.legacy_state import LIVE, Phase, Profile, Upstream
from actors.protocol import methods
from actors.protocol.messages import EMPTY, Error, Notification, Request, RequestId, Result
from actors.protocol.transport import FrameAccepted, SessionLost
from tests.protocol.machines.driving import CLIENT, HELLO, INFO, LinkDriver, finishes, plain, raw, sent

METHODS = {
    "tools/call": {"name": "t"},
    "resources/read": {"uri": "x:1"},
    "tools/list": {},
    "logging/setLevel": {"level": "info"},
    "resources/subscribe": {"uri": "x:1"},
    "resources/unsubscribe": {"uri": "x:1"},
}

own_ids = st.sampled_from([1, "1", 2, "r"])
questions = st.sampled_from(["roots/list", "elicitation/create", "ping", "odd"])
seldom = st.integers(0, 40).map(lambda n: n == 17)
tiny = st.integers(0, 9).map(lambda n: n == 7)


@dataclass
class Call:
    method: str
    sent: list[RequestId] = field(default_factory=list)
    refused: int = 0
    """How often the backend said that it knew no such session."""
    held: bool = False
    """It is written down that it was not sent."""

    @property
    def may_have_run(self) -> bool:
        return len(self.sent) > self.refused


class Links(RuleBasedStateMachine):
    """One upstream connection, its callers, and the other end."""

    @initialize(
        related=st.booleans(),
        special=st.booleans(),
        serialized=st.booleans(),
        subscribed=st.booleans(),
        far=st.booleans(),
        needs_call=st.booleans(),
    )
    def begin(
        self, related: bool, special: bool, serialized: bool, subscribed: bool, far: bool, needs_call: bool
    ) -> None:
        """`special`: there is a stream to listen to, or a process that an earlier connection had."""
        profile = Profile(raw(CLIENT), raw(INFO), serialized, "e", needs_call=needs_call)
        upstream = Upstream(
            profile, level="error" if serialized else None, subscriptions=("x:9",) if subscribed else ()
        )
        self.driver = LinkDriver(related=related, upstream=upstream)
        self.related, self.serialized, self.special = related, serialized, special
        self.calls: dict[int, Call] = {}
        self.asked: dict[RequestId, bool] = {}
        self.numbers = 0
        self.clock = self.transport = self.backing_off = self.grace = False
        self.asked_for = 0
        if far:
            self.step(ue.Wanted())
            self.comes_up()

    @property
    def upstream(self) -> Upstream:
        return self.driver.upstream

    def step(self, event: ue.UpstreamEvent) -> list[Any]:
        before = self.upstream
        effects = self.driver.step(event)
        if before.phase is Phase.CLOSED:
            assert self.upstream is before
            assert all(isinstance(e, ue.Finish | ue.Down | ue.Hang | ue.Count) for e in effects)
        # Outcomes settle questions in one go, so requests that go out are looked at before.
        for effect in effects:
            self.look(effect, before)
        for call, (ok, payload) in finishes(effects).items():
            self.outcome(call, ok, payload, event)
        assert set(self.asked) == set(self.upstream.asked), "a question without an outcome"
        return effects

    def look(self, effect: Any, before: Upstream) -> None:
        match effect:
            case ue.StartClock():
                self.clock = True
            case ue.StopClock():
                self.clock = False
            case ue.StartGrace():
                self.grace = True
            case ue.Connect():
                self.asked_for += 1
            case ue.Hang():
                self.transport = False
            case ue.BackOff():
                self.backing_off = True
            case ue.Finish(call):
                assert call in self.calls, "an outcome that nobody waits for"
            case ue.Held(call):
                assert isinstance(call, int)
                self.calls[call].held = True
            case ue.Due(call):
                assert isinstance(call, int)
                assert self.calls[call].held, "asked for what was not held"
                assert self.upstream.phase is Phase.READY
            case ue.ServerRequest(call, id):
                assert call is None or call in self.calls
                self.asked[id] = True
            case ue.Withdraw(id):
                del self.asked[id]
            case ue.Notify(call):
                assert call is None or call in self.calls
            case ue.Send():
                self.look_at_frame(effect, before)

    def look_at_frame(self, effect: ue.Send, before: Upstream) -> None:
        message = plain(effect.frame)
        if effect.id is None:
            assert "method" not in message or "id" not in message
            if message.get("method") == "notifications/cancelled":
                assert message["params"]["requestId"] in before.pending
            return
        assert message["method"] == "initialize" or self.upstream.phase is Phase.READY
        pending = self.upstream.pending.get(effect.id)
        if pending is not None and pending.call is not None:
            assert isinstance(pending.call, int)
            assert not self.calls[pending.call].held, "sent without leave"
            self.calls[pending.call].sent.append(effect.id)

    def outcome(self, key: int, ok: bool, payload: Any, event: ue.UpstreamEvent) -> None:
        call = self.calls.pop(key)
        said = payload.get("data", {}).get("executed") if not ok else None
        if isinstance(event, ue.Incoming | ue.SendFailed | ue.ConnectRefused):
            return
        assert said == ("unknown" if call.may_have_run else "no")

    # Callers

    @rule(method=st.sampled_from([*METHODS, "tools/call"]), progress=st.booleans())
    def calls_(self, method: str, progress: bool) -> None:
        self.numbers += 1
        self.calls[self.numbers] = Call(method)
        params = raw(METHODS[method]) if METHODS[method] else EMPTY
        self.step(ue.Called(self.numbers, method, params, progress))

    @rule()
    def wants(self) -> None:
        self.step(ue.Wanted())

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), asks=st.booleans())
    def abandons(self, data: st.DataObject, asks: bool) -> None:
        key = data.draw(st.sampled_from(list(self.calls)))
        call = self.calls.pop(key)
        effects = self.step(ue.Abandoned(key, "bored", asks))
        pending = [id for id in call.sent if id not in self.upstream.pending]
        cancelled = [m["params"]["requestId"] for m in sent(effects) if m.get("method") == "notifications/cancelled"]
        assert cancelled == (call.sent[-1:] if call.may_have_run else []), pending
        assert all(p.call != key for p in [*self.upstream.pending.values(), *self.upstream.waiting])

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def holds_back(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(list(self.calls)))
        before = self.calls[key].held
        self.step(ue.Hold(key))
        assert self.calls[key].held is (before or not self.calls[key].sent)

    @precondition(lambda self: any(call.held for call in self.calls.values()))
    @rule(data=st.data())
    def lets_go(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from([key for key, call in self.calls.items() if call.held]))
        self.calls[key].held = False
        self.step(ue.Released(key))

    @precondition(lambda self: self.upstream.phase is Phase.READY or self.asked)
    @rule(data=st.data(), ok=st.booleans(), unheard=st.booleans())
    def answers(self, data: st.DataObject, ok: bool, unheard: bool) -> None:
        id = data.draw(st.sampled_from([*self.asked] if self.asked and not data.draw(tiny) else [99, 1]))
        known = self.asked.pop(id, None)
        before = self.upstream
        payload = raw({"roots": [], "action": "cancel"} if ok else {"code": -1, "message": "no"})
        messages = sent(self.step(ue.AnswerGiven(id, ok, payload, unheard)))
        if known is None or before.phase not in (Phase.READY, Phase.CONFIRMING, Phase.LISTENING):
            assert self.upstream is before
        else:
            assert [m["id"] for m in messages] == [id]

    @precondition(lambda self: self.transport)
    @rule()
    def notifies(self) -> None:
        messages = sent(self.step(ue.Notified("notifications/roots/list_changed")))
        assert len(messages) == (self.upstream.phase in (Phase.READY, Phase.LISTENING))

    @precondition(lambda self: self.upstream.phase in (Phase.LISTENING, Phase.READY))
    @rule(heard=st.booleans())
    def listens(self, heard: bool) -> None:
        self.step(ue.Listening(heard))
        assert self.upstream.phase is Phase.READY

    # The transport

    @precondition(lambda self: self.asked_for or (self.transport and self.upstream.phase is Phase.INITIALIZING))
    @rule()
    def comes_up(self) -> None:
        """The usual way, at once."""
        if self.asked_for and not self.transport:
            self.is_connected(False)
        if self.upstream.phase is Phase.INITIALIZING:
            self.shakes("good")

    @precondition(lambda self: self.asked_for)
    @rule(refused=tiny)
    def connects(self, refused: bool) -> None:
        self.is_connected(refused)

    def is_connected(self, refused: bool) -> None:
        self.asked_for -= 1
        if refused:
            self.step(ue.ConnectRefused(raw({"code": -32603, "message": "down"})))
        elif not self.transport:
            self.transport = True
            listens, warm = self.special and self.related, self.special and not self.related
            self.step(ue.Started(self.related, listens=listens, warm=warm))

    @precondition(lambda self: self.upstream.phase is Phase.INITIALIZING and self.transport)
    @rule(how=st.sampled_from(["good", "good", "good", "good", "modern", "odd", "error", "nameless"]))
    def shakes_hands(self, how: str) -> None:
        self.shakes(how)

    def shakes(self, how: str) -> None:
        id = self.driver.latest("initialize")
        if how == "error":
            self.driver_receive(Error(id, raw({"code": -32600, "message": "no"})))
        elif how == "nameless":
            self.driver_receive(Error(None, raw({"code": -32700, "message": "no"})))
        else:
            server_info = {"good": HELLO, "modern": {**HELLO, "protocolVersion": "2026-07-28"}, "odd": {"x": 1}}[how]
            self.driver_receive(Result(id, raw(server_info)))
        if self.upstream.phase is Phase.CONFIRMING:
            self.step(FrameAccepted(self.upstream.tag))

    @precondition(lambda self: self.transport)
    @rule(tag=st.integers(0, 3))
    def accepts(self, tag: int) -> None:
        self.step(FrameAccepted(tag))

    @precondition(lambda self: self.upstream.pending and self.upstream.phase is Phase.READY)
    @rule(data=st.data(), related=st.booleans(), ok=st.booleans())
    def responds(self, data: st.DataObject, related: bool, ok: bool) -> None:
        id = data.draw(st.sampled_from(list(self.upstream.pending)))
        error = raw({"code": -32000, "message": "no"})
        message: Result | Error = Result(id, raw({})) if ok else Error(None if related else id, error)
        expected = self.upstream.pending[id].call
        effects = self.driver_receive(message, id if related else None)
        assert list(finishes(effects)) == ([expected] if expected is not None else [])

    @precondition(lambda self: self.upstream.unanswered and self.upstream.phase is Phase.READY)
    @rule(data=st.data(), ok=st.booleans())
    def responds_late(self, data: st.DataObject, ok: bool) -> None:
        id = data.draw(st.sampled_from(sorted(map(str, self.upstream.unanswered))))
        message = Result(id, raw({})) if ok else Error(id, raw({"code": 0, "message": "cancelled"}))
        assert finishes(self.driver_receive(message)) == {}
        assert id not in self.upstream.unanswered

    @precondition(lambda self: self.transport)
    @rule(data=st.data(), id=st.sampled_from(["e.1", "e.2", "nobody", 7, None]))
    def says_nonsense(self, data: st.DataObject, id: RequestId | None) -> None:
        related = data.draw(st.sampled_from([None, "nobody", "e.1"]))
        pending, unanswered = self.upstream.pending, self.upstream.unanswered
        if id in pending or related in pending or id in unanswered or self.upstream.phase is Phase.INITIALIZING:
            return
        before = self.upstream
        message = Result(id, raw({})) if id is not None else Error(None, raw({"code": 1, "message": ""}))
        self.driver_receive(message, related)
        assert self.upstream is before

    @precondition(lambda self: self.transport)
    @rule(data=st.data(), id=own_ids, method=questions, related=st.booleans())
    def asks(self, data: st.DataObject, id: RequestId, method: str, related: bool) -> None:
        stream = data.draw(st.sampled_from([*self.upstream.pending, "e.1"])) if related and self.related else None
        effects = self.driver_receive(Request(id, method, EMPTY), stream)
        answered = [m["id"] for m in sent(effects)]
        asked = [e for e in effects if isinstance(e, ue.ServerRequest)]
        if self.upstream.phase in LIVE[1:]:
            assert len(answered) + len(asked) == 1, "each request is answered or passed on"
        if asked and stream is not None:
            assert asked[0].call == self.upstream.pending[stream].call
        elif asked and self.upstream.unanswered and method != "roots/list":
            assert (asked[0].call, asked[0].doubtful) == (None, True), "it may be of a call that was cancelled"

    @precondition(lambda self: self.transport)
    @rule(
        data=st.data(),
        what=st.sampled_from(["message", "progress", "cancelled", "tools/list_changed"]),
        id=own_ids,
    )
    def tells(self, data: st.DataObject, what: str, id: RequestId) -> None:
        token = data.draw(st.sampled_from([*self.upstream.pending, "e.1", 5]))
        params = {"level": "info", "data": 1, "progressToken": token, "progress": 1, "requestId": id}
        stream = token if self.related and isinstance(token, str) else None
        effects = self.driver_receive(Notification(f"notifications/{what}", raw(params)), stream)
        for told in effects:
            if isinstance(told, ue.Notify) and what == "progress":
                assert told.call == self.upstream.pending[token].call

    def driver_receive(self, message: Any, related: RequestId | None = None) -> list[Any]:
        return self.step(ue.Incoming(message, related))

    @precondition(lambda self: self.upstream.pending)
    @rule(data=st.data(), executed=st.sampled_from(["no", "unknown"]))
    def fails_to_send(self, data: st.DataObject, executed: Any) -> None:
        self.step(ue.SendFailed(data.draw(st.sampled_from([*self.upstream.pending, "e.1"])), "x", "x", executed))

    @precondition(lambda self: self.transport)
    @rule(data=st.data(), named=st.booleans())
    def forgets_the_session(self, data: st.DataObject, named: bool) -> None:
        id = data.draw(st.sampled_from([*self.upstream.pending, "e.1"])) if named else None
        pending = self.upstream.pending.get(id) if id is not None else None
        if pending is not None and self.upstream.phase is Phase.READY and isinstance(pending.call, int):
            self.calls[pending.call].refused += 1
        self.step(SessionLost(id))

    @precondition(lambda self: self.transport)
    @rule(now=tiny)
    def closes(self, now: bool) -> None:
        if now:
            self.transport = False
            self.step(ue.Closed("gone", "gone"))
            assert self.upstream.phase not in LIVE[1:]

    @precondition(lambda self: self.clock)
    @rule(now=tiny)
    def takes_too_long(self, now: bool) -> None:
        if now:
            self.clock = False
            self.step(ue.ConnectExpired())

    @precondition(lambda self: self.grace)
    @rule()
    def grace_is_over(self) -> None:
        self.grace = False
        self.step(ue.GraceOver())

    @precondition(lambda self: self.backing_off)
    @rule()
    def backs_off(self) -> None:
        self.backing_off = False
        self.step(ue.RetryDue())

    @rule(now=seldom)
    def is_shut(self, now: bool) -> None:
        if now:
            self.step(ue.Shut())

    # What holds at any time

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "driver"):
            return
        upstream = self.upstream
        open_ = [p.call for p in [*upstream.pending.values(), *upstream.waiting] if p.call is not None]
        assert sorted(map(str, open_)) == sorted(map(str, self.calls)), "a call is forgotten, or there twice"
        assert self.clock == (upstream.phase in LIVE and upstream.phase not in (Phase.LISTENING, Phase.READY))
        if upstream.phase in (Phase.IDLE, Phase.WAITING, Phase.CLOSED):
            assert (upstream.pending, upstream.waiting, upstream.asked) == ({}, (), {})
            assert not self.transport
        if upstream.phase is Phase.WAITING:
            assert self.backing_off
            assert upstream.subscriptions
        if upstream.phase is Phase.READY and self.serialized and not self.related:
            assert sum(p.method in methods.ELIGIBLE for p in upstream.pending.values()) <= 1
        elif upstream.phase is Phase.READY:
            assert all(p.held for p in upstream.waiting)
        settles = upstream.settling is not None and not upstream.grace_over
        able = [p for p in upstream.pending.values() if p.method in methods.ELIGIBLE]
        assert not (settles and able), "a call has the turn before the one that was cancelled is done"
        assert not settles or self.grace, "it would be waited for without end"
        assert upstream.settling is None or upstream.settling[1] in upstream.pending
        if upstream.phase is Phase.READY and not able and not settles:
            runs = any(p.call is not None for p in upstream.pending.values())
            held_up = any(p.due for p in upstream.waiting) or (upstream.to_replace and runs)
            assert held_up or not upstream.waiting, "nobody asks for what could be sent"
        assert not (upstream.to_replace and upstream.rests), "nothing runs, and it is not replaced"
        assert not upstream.to_replace or upstream.unanswered
        assert upstream.doubtful <= upstream.asked.keys()
        assert all(len(c.sent) <= 1 + min(c.refused, 1) for c in self.calls.values())

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.step(ue.Shut())
            assert not self.calls
            assert not self.asked
            assert self.upstream.phase is Phase.CLOSED


TestLinks = Links.TestCase
