"""A session machine and the upstream machines of two backends, joined as the actors join them, with mailboxes and wires
that deliver when it pleases them, and a client and servers at the ends.

Each call carries a number that the server sends back. Whatever the interleaving and whatever is lost: a client gets
one answer to each request, its own; a result means that the server ran it once, "no" that it never did, and nothing
runs twice; an answer to a question reaches the server that asked, under the id that it gave.
"""

from __future__ import annotations

import json
from collections import deque
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.machines.upstream import events as ue
from actors.machines.upstream.legacy_state import Phase, Profile, Upstream
from actors.protocol.messages import Message, Notification, Request, RequestId, Result
from actors.protocol.transport import FrameAccepted, SessionLost
from tests.protocol.machines.driving import (
    BATCHES,
    CLIENT,
    FORMS,
    INFO,
    NEWEST,
    RESULTS,
    LinkDriver,
    SessionDriver,
    answers,
    notification,
    raw,
    request,
    said,
)
from tests.protocol.machines.far_end import Running, Server
from tests.protocol.machines.witness import Witness

NAMES = ("http", "pipe")
seldom = st.integers(0, 6).map(lambda n: n == 5)


class World(RuleBasedStateMachine):
    """All of it."""

    @initialize(version=st.sampled_from([BATCHES, FORMS, NEWEST]), listening=st.booleans())
    def begin(self, version: str, listening: bool) -> None:
        self.session = SessionDriver(version)
        self.witness = Witness(version)
        profile = Profile(raw(CLIENT), raw(INFO), True, "e")
        self.servers = {n: Server(n, n == "http", LinkDriver(upstream=Upstream(profile))) for n in NAMES}
        self.mail: deque[ev.SessionEvent] = deque()
        self.numbers = 0
        self.sent: dict[RequestId, tuple[str, int]] = {}
        self.outcomes: dict[RequestId, Any] = {}
        self.shown: dict[str, str] = {}
        self.answers_given: dict[str, str] = {}
        init = request("init", "initialize", protocolVersion=version, capabilities=CLIENT, clientInfo=INFO)
        self.post(init)
        self.session.end("init", {**RESULTS["initialize"], "protocolVersion": version})
        self.witness = Witness(version)
        self.witness.highest_call = 1
        self.post(notification("notifications/initialized"))
        if listening:
            self.step(ev.Attached(self.session.number()))

    # The session and what it says

    def step(self, event: ev.SessionEvent) -> list[Any]:
        before = self.session.session
        effects = self.session.step(event)
        self.witness.saw(event, before, self.session.session, effects)
        for effect in effects:
            self.obey(effect)
        self.read(effects)
        return effects

    def obey(self, effect: Any) -> None:
        match effect:
            case fx.Dispatch(call, method, params, progress):
                if method != "initialize":
                    target = json.loads(bytes(params))["name"]
                    self.tell_upstream(target, ue.Called(call, method, params, progress, method == "tools/call"))
            case fx.CancelCall(call, reason):
                for name in NAMES:
                    self.tell_upstream(name, ue.Abandoned(call, reason))
            case fx.AnswerBackend(backend, id, ok, payload):
                self.tell_upstream(backend, ue.AnswerGiven(id, ok, payload))
            case fx.Broadcast(method, params):
                for name in NAMES:
                    self.tell_upstream(name, ue.Notified(method, params))

    def tell_upstream(self, name: str, event: ue.UpstreamEvent) -> None:
        self.servers[name].events.append(event)

    def read(self, effects: list[Any]) -> None:
        """What the client reads."""
        for id, message in answers(effects).items():
            if id in self.sent:
                assert id not in self.outcomes, "two answers"
                self.outcomes[id] = message
                self.judge(id, message)
        for _, message in said(effects):
            if "method" in message and "id" in message:
                self.shown[message["id"]] = message["params"]["_meta"]["whose"]
            if message.get("method") == "notifications/cancelled":
                del self.shown[message["params"]["requestId"]]
            if message.get("method") == "notifications/progress":
                token = message["params"]["progressToken"]
                assert message["params"]["message"] == f"of {self.sent[int(token)][1]}"
                assert int(token) not in self.outcomes, "progress after the answer"

    def judge(self, id: RequestId, message: Any) -> None:
        name, number = self.sent[id]
        times = self.servers[name].executed.get(number, 0)
        if "result" in message:
            assert message["result"]["content"][0]["text"] == str(number)
            assert times == 1
        elif message["error"].get("data", {}).get("executed") == "no":
            assert times == 0

    def post(self, *messages: Message, batch: bool = False) -> None:
        for message in messages:
            if isinstance(message, Request):
                self.session.methods[message.id] = message.method
        event = ev.Posted(self.session.number(), messages, batch, self.session.now)
        self.session.calls["init"] = 1
        if not self.sent and self.session.session.server is None:
            self.session.step(event)
        else:
            self.step(event)

    # The client

    @rule(name=st.sampled_from(NAMES), token=st.booleans(), more=st.booleans())
    def calls(self, name: str, token: bool, more: bool) -> None:
        batch = more and self.session.version == BATCHES
        messages: list[Message] = []
        for _ in range(2 if batch else 1):
            self.numbers += 1
            meta: dict[str, Any] = {"_meta": {"progressToken": self.numbers}} if token else {}
            messages.append(request(self.numbers, "tools/call", name=name, arguments={"number": self.numbers}, **meta))
            self.sent[self.numbers] = (name, self.numbers)
        self.post(*messages, batch=batch)

    @property
    def waiting(self) -> list[RequestId]:
        return [id for id in self.sent if id in self.session.session.requests]

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), now=seldom)
    def cancels(self, data: st.DataObject, now: bool) -> None:
        if now:
            self.post(notification("notifications/cancelled", requestId=data.draw(st.sampled_from(self.waiting))))

    @precondition(lambda self: self.shown)
    @rule(data=st.data())
    def answers_a_question(self, data: st.DataObject) -> None:
        ask = data.draw(st.sampled_from(list(self.shown)))
        whose = self.shown.pop(ask)
        self.post(Result(ask, raw({"roots": [], "_meta": {"whose": whose}})))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def waits_long(self, data: st.DataObject) -> None:
        turns = sorted(self.witness.turns)
        if turns:
            self.step(ev.StreamTurnDue(data.draw(st.sampled_from(turns))))

    @precondition(lambda self: self.witness.turns)
    @rule(data=st.data(), now=seldom)
    def breaks_a_connection(self, data: st.DataObject, now: bool) -> None:
        posts = [p for p, post in self.session.session.posts.items() if post.stream is None]
        if now and posts:
            self.step(ev.PostBroken(data.draw(st.sampled_from(posts))))

    @rule(now=seldom)
    def listens(self, now: bool) -> None:
        if now:
            self.step(ev.Attached(self.session.number()))

    @precondition(lambda self: self.witness.deadlines)
    @rule(data=st.data(), now=seldom)
    def gives_up(self, data: st.DataObject, now: bool) -> None:
        if now:
            self.step(ev.CallExpired(data.draw(st.sampled_from(sorted(self.witness.deadlines)))))

    @precondition(lambda self: self.witness.waits)
    @rule(data=st.data(), now=seldom)
    def does_not_answer(self, data: st.DataObject, now: bool) -> None:
        if now:
            self.step(ev.ServerRequestExpired(data.draw(st.sampled_from(sorted(self.witness.waits)))))

    # Mailboxes and wires deliver in order, each when it pleases

    @rule(choices=st.lists(st.integers(0, 4), min_size=4, max_size=24))
    def time_passes(self, choices: list[int]) -> None:
        for choice in choices:
            server = self.servers[NAMES[choice % 2]]
            if choice == 4 and self.mail:
                self.step(self.mail.popleft())
            elif choice < 2 and server.events:
                self.deliver(server)
            elif choice >= 2 and server.frames:
                server.receive()

    @precondition(lambda self: self.mail)
    @rule()
    def session_gets_mail(self) -> None:
        self.step(self.mail.popleft())

    @precondition(lambda self: any(s.events for s in self.servers.values()))
    @rule(data=st.data())
    def link_gets_mail(self, data: st.DataObject) -> None:
        self.deliver(data.draw(st.sampled_from([s for s in self.servers.values() if s.events])))

    @precondition(lambda self: any(s.frames for s in self.servers.values()))
    @rule(data=st.data())
    def server_gets_a_frame(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from([s for s in self.servers.values() if s.frames])).receive()

    def deliver(self, server: Server) -> None:
        """One event to an upstream connection; what it says goes where the actors carry it."""
        for effect in server.upstream.step(server.events.popleft()):
            match effect:
                case ue.Connect():
                    # What an older transport said is of no interest to the one that asks.
                    server.restart()
                    server.up, server.knows_us = True, False
                    server.events.append(ue.Started(server.related, listens=server.related))
                case ue.Listen() if server.related:
                    server.events.append(ue.Listening())
                case ue.Hang():
                    server.up = False
                    server.restart()
                    server.events = deque(e for e in server.events if not isinstance(e, FROM_TRANSPORT))
                case ue.Reset():
                    server.restart()
                    server.knows_us = False
                case ue.Send(frame, id, tag):
                    server.frames.append((id, frame))
                    if tag is not None:
                        server.events.append(FrameAccepted(tag))
                case ue.BackOff():
                    server.retry = True
                case ue.Finish(call, ok, payload):
                    assert isinstance(call, int)
                    self.mail.append(ev.CallEnded(call, ok, payload))
                case ue.ServerRequest(call, id, method, params, outlasts=outlasts):
                    assert call is None or isinstance(call, int)
                    self.mail.append(ev.ServerRequested(server.name, call, id, method, params, outlasts=outlasts))
                case ue.Withdraw(id):
                    self.mail.append(ev.ServerRequestWithdrawn(server.name, id))
                case ue.Notify(call, method, params):
                    assert call is None or isinstance(call, int)
                    self.mail.append(ev.CallProgressed(server.name, call, method, params, self.session.now))
                case ue.Down():
                    self.mail.append(ev.BackendLost(server.name))

    # The servers

    @property
    def busy(self) -> list[Server]:
        return [s for s in self.servers.values() if s.running]

    def choose(self, data: st.DataObject) -> tuple[Server, Running]:
        server = data.draw(st.sampled_from(self.busy))
        return server, server.running[data.draw(st.sampled_from(list(server.running)))]

    @precondition(lambda self: self.busy)
    @rule(data=st.data())
    def server_answers(self, data: st.DataObject) -> None:
        self.finish(*self.choose(data))

    def finish(self, server: Server, work: Running) -> None:
        del server.running[work.id]
        text = {"type": "text", "text": str(work.number)}
        server.say(Result(work.id, raw({"content": [text]})), work.id)

    @precondition(lambda self: self.busy)
    @rule(data=st.data())
    def server_progresses(self, data: st.DataObject) -> None:
        server, work = self.choose(data)
        work.steps += 1
        token = work.progress or "nobody's"
        params = {"progressToken": token, "progress": work.steps, "message": f"of {work.number}"}
        server.say(Notification("notifications/progress", raw(params)), work.id)

    @precondition(lambda self: self.busy)
    @rule(data=st.data(), unrelated=seldom)
    def server_asks(self, data: st.DataObject, unrelated: bool) -> None:
        server, work = self.choose(data)
        number = len(server.questions) + 1
        whose = f"{server.name} {number}"
        server.questions.append(whose)
        server.unanswered.add(number)
        server.say(Request(number, "roots/list", raw({"_meta": {"whose": whose}})), None if unrelated else work.id)

    @precondition(lambda self: any(s.unanswered for s in self.servers.values()))
    @rule(data=st.data(), now=seldom)
    def server_withdraws(self, data: st.DataObject, now: bool) -> None:
        server = data.draw(st.sampled_from([s for s in self.servers.values() if s.unanswered]))
        if now:
            id = data.draw(st.sampled_from(sorted(server.unanswered)))
            server.unanswered.remove(id)  # its answer may be on the way already
            server.say(Notification("notifications/cancelled", raw({"requestId": id})))

    @precondition(lambda self: self.busy)
    @rule(name=st.sampled_from(NAMES), now=seldom)
    def server_dies(self, name: str, now: bool) -> None:
        server = self.servers[name]
        if now and server.up:
            server.up = False
            server.restart()
            server.events.append(ue.Closed("gone", "it has ended"))

    @precondition(lambda self: self.servers["http"].knows_us)
    @rule(now=seldom)
    def server_forgets_us(self, now: bool) -> None:
        server = self.servers["http"]
        if now and server.knows_us:
            server.knows_us = False
            server.forget()

    # In the end

    @invariant()
    def each_call_is_somewhere(self) -> None:
        if not hasattr(self, "servers"):
            return
        for server in self.servers.values():
            assert server.cancelled <= set(server.executed)
            if server.upstream.upstream.phase is Phase.IDLE:
                assert not server.upstream.upstream.pending

    def teardown(self) -> None:
        """Everything flows until it is quiet: servers answer all they have, the client what it was asked."""
        if not hasattr(self, "servers"):
            return
        for _ in range(10_000):
            if not self.flow():
                break
        else:
            raise AssertionError("it never comes to rest")
        state = self.session.session
        for ask in list(state.asks):
            self.step(ev.ServerRequestExpired(ask))
        stuck = [id for id in state.requests if self.session.session.requests[id].call in self.witness.calls]
        for id in stuck:
            # Its server forgot it with its session and nobody noticed: that is what deadlines are for.
            assert self.sent[id][0] == "http"
            self.step(ev.StreamTurnDue(self.session.session.requests[id].post))
            self.step(ev.CallExpired(self.session.session.requests[id].call))
        while self.flow():
            pass
        state = self.session.session
        assert (state.requests, state.posts, state.asks) == ({}, {}, {})
        for server in self.servers.values():
            upstream = server.upstream.upstream
            assert (upstream.pending, upstream.waiting, upstream.asked) == ({}, (), {})
            assert not server.unanswered

    def flow(self) -> bool:
        for server in self.servers.values():
            if server.events:
                self.deliver(server)
                return True
            if server.frames:
                server.receive()
                return True
            if server.running:
                self.finish(server, next(iter(server.running.values())))
                return True
            if server.retry:
                server.retry = False
                server.events.append(ue.RetryDue())
                return True
        if self.mail:
            self.step(self.mail.popleft())
            return True
        if self.shown:
            ask, whose = self.shown.popitem()
            self.post(Result(ask, raw({"roots": [], "_meta": {"whose": whose}})))
            return True
        return False


FROM_TRANSPORT = (ue.Incoming, FrameAccepted, ue.Listening, ue.SendFailed, SessionLost, ue.Closed, ue.Started)

TestWorld = World.TestCase
