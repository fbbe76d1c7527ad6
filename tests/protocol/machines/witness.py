"""Watches a session from outside, event by event, and says when a promise is broken. It knows nothing of how the
machine does it: it has a few plain tables of what was promised to whom.

* A POST gets one of: accepted, answered, refused, a stream; nothing after its connection broke.
* A request has one outcome, with the very id, where its POST expects it.
* The events of a stream are contiguous, nothing comes after its last one, and it has its last one when its requests do.
* A response is never on a GET stream, and never on the stream of another POST.
* A question of a backend has one outcome, and what was withdrawn from the client was asked before.
* Clocks are stopped or have rung; what is in the record goes out of it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.machines.session import record as session_record
from actors.machines.session.record import request_key
from actors.machines.session.state import TRANSITIONS, Session, SessionPhase
from actors.protocol.messages import Request, RequestId
from tests.protocol.machines.driving import plain


class StreamPhase(Enum):
    """Where an SSE stream is in its life; a message goes on exactly one stream."""

    ATTACHED = "attached"
    """A connection carries it."""
    DETACHED = "detached"
    """It waits for its client; what is said on it goes into the log."""
    FINISHED = "finished"
    """Nothing follows; its log is kept for a while."""
    LOST = "lost"
    """Its log is gone, and so is whatever would have followed."""


STREAM_TRANSITIONS: dict[tuple[StreamPhase, str], StreamPhase] = {
    (StreamPhase.ATTACHED, "connection lost"): StreamPhase.DETACHED,
    (StreamPhase.ATTACHED, "let go by the drain"): StreamPhase.DETACHED,
    (StreamPhase.ATTACHED, "resumed elsewhere"): StreamPhase.ATTACHED,
    (StreamPhase.DETACHED, "resumed"): StreamPhase.ATTACHED,
    (StreamPhase.ATTACHED, "last response"): StreamPhase.FINISHED,
    (StreamPhase.DETACHED, "last response"): StreamPhase.FINISHED,
    (StreamPhase.DETACHED, "its place is needed"): StreamPhase.FINISHED,
    (StreamPhase.ATTACHED, "session ended"): StreamPhase.FINISHED,
    (StreamPhase.DETACHED, "session ended"): StreamPhase.FINISHED,
    (StreamPhase.ATTACHED, "log lost"): StreamPhase.LOST,
    (StreamPhase.DETACHED, "log lost"): StreamPhase.LOST,
}


class RequestPhase(Enum):
    """Where a request is, in either direction: it has exactly one outcome; what comes after it is dropped and
    counted."""

    PENDING = "pending"
    ANSWERED = "answered"
    CANCELLED = "cancelled"
    FAILED = "failed"


REQUEST_TRANSITIONS: dict[tuple[RequestPhase, str], RequestPhase] = {
    (RequestPhase.PENDING, "result or error"): RequestPhase.ANSWERED,
    (RequestPhase.PENDING, "notifications/cancelled"): RequestPhase.CANCELLED,
    (RequestPhase.PENDING, "deadline passed"): RequestPhase.FAILED,
    (RequestPhase.PENDING, "backend lost"): RequestPhase.FAILED,
    (RequestPhase.PENDING, "drain overdue"): RequestPhase.FAILED,
    (RequestPhase.PENDING, "session ended"): RequestPhase.FAILED,
}


CAUSES: dict[type, str] = {
    ev.CallEnded: "result or error",
    ev.Posted: "notifications/cancelled",
    ev.CallExpired: "deadline passed",
    ev.DrainOverdue: "drain overdue",
    ev.MoveAsked: "drain overdue",
    ev.Ended: "session ended",
    ev.StreamFailed: "session ended",
}
"""Why a request may be settled. (Of a lost backend the upstream connection tells as of any outcome.)"""


def _phase(session: Session, name: str) -> StreamPhase:
    stream = session.streams.get(name)
    if stream is None:
        return StreamPhase.FINISHED
    return StreamPhase.DETACHED if stream.connection is None else StreamPhase.ATTACHED


@dataclass
class Post:
    ids: list[RequestId]
    batch: bool
    nameless: int = 0
    refused: list[RequestId] = field(default_factory=list)
    """Those of the nameless whose id could be read; it may be the same twice."""
    stream: str | None = None
    broken: bool = False


@dataclass
class Stream:
    seq: int
    post: int | None
    connection: int | None


@dataclass
class Witness:
    version: str
    posts: dict[int, Post] = field(default_factory=dict)
    streams: dict[str, Stream] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    lost: dict[str, tuple[Stream, Post | None]] = field(default_factory=dict)
    calls: dict[int, tuple[int, RequestId]] = field(default_factory=dict)
    highest_call: int = 0
    questions: dict[tuple[str, RequestId], int | None] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)
    shown_ever: set[str] = field(default_factory=set)
    turns: set[int] = field(default_factory=set)
    deadlines: set[int] = field(default_factory=set)
    waits: set[str] = field(default_factory=set)
    requests: dict[str, bytes] = field(default_factory=dict)
    asked: dict[str, bytes] = field(default_factory=dict)
    fields: dict[str, bytes] = field(default_factory=dict)
    progress: dict[tuple[int, RequestId], float] = field(default_factory=dict)
    ended: bool = False
    tallies: list[str] = field(default_factory=list)
    _arriving: list[Request] = field(default_factory=list)
    _post: int = 0

    # What happens

    def saw(self, event: ev.SessionEvent, before: Session, after: Session, effects: list[Any]) -> None:
        reached = {to for (phase, _), to in TRANSITIONS.items() if phase is before.phase}
        assert after.phase in {before.phase, *reached}
        if before.phase is SessionPhase.CLOSED:
            assert after is before
            assert {type(e) for e in effects} <= {fx.RefusePost, fx.RefuseGet, fx.AnswerBackend, fx.Count}
            if isinstance(event, ev.ServerRequested):
                return
        self._take(event)
        for effect in effects:
            HANDLERS[type(effect)](self, effect)
        if before.level != after.level:
            assert [e.level for e in effects if isinstance(e, fx.UseLevel)] == [after.level]
            assert isinstance(event, ev.CallEnded), "no level is in force that nobody has accepted"
            assert event.ok
        self._compare(after)
        self._follow_tables(event, before, after)

    def _follow_tables(self, event: ev.SessionEvent, before: Session, after: Session) -> None:
        """Streams and requests move as their tables say."""
        moves = {(phase, to) for (phase, _), to in STREAM_TRANSITIONS.items()}
        for name in before.streams:
            was, became = _phase(before, name), _phase(after, name)
            if became is StreamPhase.FINISHED and event == ev.StreamFailed(name, getattr(event, "reason", "")):
                became = StreamPhase.LOST
            assert was is became or (was, became) in moves
        settled = [id for id, entry in before.requests.items() if entry.call not in after.calls]
        if settled:
            assert (RequestPhase.PENDING, CAUSES[type(event)]) in REQUEST_TRANSITIONS

    def _take(self, event: ev.SessionEvent) -> None:
        match event:
            case ev.Posted(post, messages, batch, _, refused):
                self._arriving = [m for m in messages if isinstance(m, Request)]
                self._post = post
                self.posts[post] = Post(
                    [m.id for m in self._arriving], batch, len(refused), [id for id, _ in refused if id is not None]
                )
            case ev.PostBroken(post):
                if post in self.posts and self.posts[post].stream is None:
                    self.posts[post].broken = True
            case ev.Detached(connection, stream):
                if stream in self.streams and self.streams[stream].connection == connection:
                    self.streams[stream].connection = None
            case ev.StreamFailed(stream, _):
                lost = self.streams.pop(stream, None)
                if lost is not None:
                    post = self.posts.get(lost.post) if lost.post is not None else None
                    self.lost[stream] = lost, replace(post) if post is not None else None
                    if post is not None:
                        post.stream, post.broken = None, True
            case ev.StreamTurnDue(post):
                self.turns.discard(post)
            case ev.CallExpired(call):
                self.deadlines.discard(call)
            case ev.ServerRequestExpired(ask):
                self.waits.discard(ask)
            case ev.ServerRequested(backend, call, id, _, _):
                self.questions[backend, id] = call
            case ev.ServerRequestWithdrawn(backend, id):
                self.questions.pop((backend, id), None)
            case ev.BackendLost(backend):
                self.questions = {q: c for q, c in self.questions.items() if q[0] != backend}

    def restarted(self, after: Session, effects: list[Any], recorded: Collection[str]) -> None:
        """The session was rebuilt from what was recorded: connections, calls and questions are gone. A log that could
        not be written may still be there, and so may its requests."""
        self.posts = {n: p for n, p in self.posts.items() if p.stream is not None}
        for name, (stream, post) in self.lost.items():
            if name in recorded:
                self.streams[name] = stream
                if post is not None and stream.post is not None:
                    self.posts[stream.post] = post
        self.lost = {}
        self.names = set(recorded)
        for post in self.posts.values():
            carrier = (post.stream or "").encode()
            post.ids = [id for id in post.ids if self.requests.get(request_key(id)) == carrier]
            post.nameless = 0
        for stream in self.streams.values():
            stream.connection = None
        self.calls, self.questions = {}, {}
        self.highest_call = 0
        self.turns, self.deadlines, self.waits = set(), set(), set()
        for effect in effects:
            HANDLERS[type(effect)](self, effect)
        self._compare(after)

    # Effects: POSTs

    def _accept(self, effect: fx.Accept) -> None:
        post = self.posts.pop(effect.post)
        assert not post.ids
        assert not post.nameless

    def _refuse_post(self, effect: fx.RefusePost) -> None:
        post = self.posts.pop(effect.post)
        assert post.stream is None
        assert effect.id is None or effect.id in post.ids
        assert effect.error.status >= 400

    def _answer_post(self, effect: fx.AnswerPost) -> None:
        post = self.posts.pop(effect.post)
        assert post.stream is None
        assert not post.broken
        body = plain(effect.body)
        assert isinstance(body, list) == post.batch
        messages = body if isinstance(body, list) else [body]
        assert all("method" not in m for m in messages)
        ids = [m["id"] for m in messages if "id" in m]
        assert sorted(map(request_key, ids)) == sorted([*map(request_key, post.ids), *self._named(messages, post)])
        self._forget_calls(effect.post, post.ids)

    def _named(self, messages: list[Any], post: Post) -> list[str]:
        """Keys of answers to members that could not be read but had an id."""
        extra = len(messages) - len(post.ids)
        assert extra == post.nameless
        keys = [request_key(m["id"]) for m in messages if "id" in m]
        for id in post.ids:
            keys.remove(request_key(id))
        return keys

    def _forget_calls(self, post: int, ids: list[RequestId]) -> None:
        over = {(post, request_key(id)) for id in ids}
        self.calls = {c: (p, id) for c, (p, id) in self.calls.items() if (p, request_key(id)) not in over}
        for call in set(self.deadlines) - set(self.calls):
            raise AssertionError(f"the deadline of call {call} still runs")

    # Effects: streams

    def _open(self, effect: fx.OpenStream) -> None:
        assert effect.stream not in self.names, "a stream name twice"
        self.names.add(effect.stream)
        assert (effect.first == b"") == (self.version >= "2025-11-25")
        if effect.post is not None:
            post = self.posts[effect.post]
            assert not post.broken
            assert post.stream is None
            post.stream = effect.stream
            # What waited for the others of a batch has its own event from here on, and is owed until that is there.
            pending_replies = [*post.ids, *post.refused]
            assert effect.requests == {request_key(id): effect.stream.encode() for id in pending_replies}
            self.requests |= effect.requests
        self.streams[effect.stream] = Stream(0 if effect.first is None else 1, effect.post, effect.connection)

    def _append(self, effect: fx.Append) -> None:
        stream = self.streams[effect.stream]
        assert effect.seq == stream.seq + 1, "not contiguous"
        stream.seq = effect.seq
        assert effect.data is not None or effect.finish
        for key, value in effect.requests.items():
            assert value is None
            if key in self.requests or all(key != request_key(id) for p in self.posts.values() for id in p.refused):
                del self.requests[key]
        for ask, carrier in effect.asked.items():
            if carrier is None:
                del self.asked[ask]
            else:
                assert carrier == effect.stream.encode()
                self.asked[ask] = carrier
        if effect.data:
            self._said(effect.stream, stream, plain(effect.data))
        if effect.finish:
            del self.streams[effect.stream]
            if stream.post is not None:
                post = self.posts.pop(stream.post)
                assert not post.ids
                assert not post.nameless

    def _said(self, name: str, stream: Stream, message: dict[str, Any]) -> None:
        if "method" in message and "id" in message:
            assert message["id"] not in self.shown_ever
            self.shown[message["id"]] = name
            self.shown_ever.add(message["id"])
        elif "method" in message:
            self._notified(name, message)
        else:
            assert stream.post is not None, "a response on a GET stream"
            post = self.posts[stream.post]
            if "id" not in message or message["id"] == "unreadable":
                post.nameless -= 1
                return
            keys = [request_key(id) for id in post.ids]
            del post.ids[keys.index(request_key(message["id"]))]
            self._forget_calls(stream.post, [message["id"]])

    def _notified(self, name: str, message: dict[str, Any]) -> None:
        if message["method"] == "notifications/cancelled":
            assert self.shown.pop(message["params"]["requestId"]) == name
        if message["method"] == "notifications/progress":
            token, value = message["params"]["progressToken"], message["params"]["progress"]
            post = self.streams[name].post
            assert post is not None, "progress on a GET stream"
            assert value > self.progress.get((post, token), -(10**9))
            self.progress[post, token] = value

    def _follow(self, effect: fx.Follow) -> None:
        if effect.live:
            assert self.streams[effect.stream].seq == effect.head
            self.streams[effect.stream].connection = effect.connection
        else:
            stream = self.streams.get(effect.stream)
            assert stream is None or stream.post is None, "what comes of a call's stream is live"

    def _refuse_get(self, effect: fx.RefuseGet) -> None:
        assert effect.error.status >= 400

    def _close(self, effect: fx.CloseConnection) -> None:
        if effect.reason == "draining":
            [stream] = [s for s in self.streams.values() if s.connection == effect.connection]
            assert stream.post is None
            assert effect.retry is not None
            stream.connection = None

    # Effects: backends

    def _dispatch(self, effect: fx.Dispatch) -> None:
        assert effect.call > self.highest_call
        self.highest_call = effect.call
        while True:
            request = self._arriving.pop(0)
            if (request.method, bytes(request.params)) == (effect.method, bytes(effect.params)):
                self.calls[effect.call] = self._post, request.id
                return

    def _cancel_call(self, effect: fx.CancelCall) -> None:
        assert effect.call in self.calls

    def _answer_backend(self, effect: fx.AnswerBackend) -> None:
        assert (effect.backend, effect.id) in self.questions, "an answer that nobody waits for"
        del self.questions[effect.backend, effect.id]

    def _count(self, effect: fx.Count) -> None:
        self.tallies.append(effect.what)

    # Effects: clocks, record, end

    def _start_deadline(self, effect: fx.StartDeadline) -> None:
        assert effect.since >= effect.accepted
        assert effect.call in self.calls
        self.deadlines.add(effect.call)

    def _save(self, effect: fx.Save) -> None:
        for name, value in effect.fields.items():
            if value is None:
                self.fields.pop(name, None)
            else:
                self.fields[name] = value

    def _end(self, effect: fx.End) -> None:
        assert not self.ended
        self.ended = True
        self.streams.clear()
        self.requests.clear()
        self.asked.clear()

    # The machine's tables against ours

    def _compare(self, after: Session) -> None:
        theirs = {entry.call: (entry.post, id) for id, entry in after.requests.items()}
        assert theirs.items() <= self.calls.items()
        self.calls = theirs
        for number, post in list(self.posts.items()):
            if post.broken:
                post.ids = [id for id in post.ids if (number, id) in theirs.values()]
                if not post.ids:
                    del self.posts[number]
        assert set(after.posts) == set(self.posts), "somebody waits for nothing, or is forgotten"
        assert {n: (s.seq, s.post, s.connection) for n, s in after.streams.items()} == {
            n: (s.seq, s.post, s.connection) for n, s in self.streams.items()
        }
        assert set(after.calls) == set(self.calls)
        assert self.deadlines == {r.call for r in after.requests.values() if r.timed}
        assert self.waits == set(after.asks)
        mine = {(a.backend, a.id) for a in after.asks.values()}
        ended = {q for q, call in self.questions.items() if call is not None and call not in self.calls}
        assert mine <= set(self.questions)
        assert set(self.questions) - mine <= ended, "a question without an outcome"
        self.questions = {q: c for q, c in self.questions.items() if q in mine}
        assert set(self.asked) == {i for i, a in after.asks.items() if a.stream is not None} | set(after.settled)
        if not after.requests:
            assert not after.posts
            assert not after.calls


HANDLERS: dict[type, Any] = {
    fx.Accept: Witness._accept,
    fx.AnswerPost: Witness._answer_post,
    fx.RefusePost: Witness._refuse_post,
    fx.OpenStream: Witness._open,
    fx.Append: Witness._append,
    fx.Follow: Witness._follow,
    fx.RefuseGet: Witness._refuse_get,
    fx.CloseConnection: Witness._close,
    fx.Dispatch: Witness._dispatch,
    fx.CancelCall: Witness._cancel_call,
    fx.Broadcast: lambda self, effect: None,
    fx.NotifyBackend: lambda self, effect: None,
    fx.AnswerBackend: Witness._answer_backend,
    fx.StartTurnClock: lambda self, effect: self.turns.add(effect.post),
    fx.StopTurnClock: lambda self, effect: self.turns.discard(effect.post),
    fx.StartDeadline: Witness._start_deadline,
    fx.StopDeadline: lambda self, effect: self.deadlines.discard(effect.call),
    fx.StartServerRequestClock: lambda self, effect: self.waits.add(effect.ask),
    fx.StopServerRequestClock: lambda self, effect: self.waits.discard(effect.ask),
    fx.Save: Witness._save,
    fx.UseLevel: lambda self, effect: self._save(fx.Save(session_record.level(effect.level))),
    fx.End: Witness._end,
    fx.Count: Witness._count,
}
