"""The session actor: owns one session's state, steps its machine, and runs the effects.

It never waits: answers go to the replies that edges wait on, events to the recorder, calls to the front's links. What
it must not forget is in the session's record; a crash ends this life, and the next message begins another from the
record, at a higher epoch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from actors import ports
from actors.aggregate import Aggregate, ChangeDue
from actors.catalogue import CatalogueChanged, Listed
from actors.connection import Connection
from actors.follower import Follower
from actors.front import Front, Tree
from actors.ledger import Ledger
from actors.link import LinkAsked, LinkDown, LinkOutcome, LinkReady, LinkTold, LinkWithdrew
from actors.listing import GatherDue
from actors.ports import Answer, Deltas, Failed, Grant, Principal, Refused, SessionKey, Streaming
from actors.protocol import effects as fx
from actors.protocol import errors, session_record
from actors.protocol import events as ev
from actors.protocol.errors import ProtocolError, encode_error_body
from actors.protocol.messages import Message, Request, RequestId
from actors.protocol.session_machine import step
from actors.protocol.session_state import Client, Rules, Session
from actors.protocol.session_table import Phase
from actors.recorder import Recorder
from actors.runtime import SHUTDOWN, Actor, Down, Exit, Reply
from actors.services import Services
from actors.transparent import Transparent

# To a session ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PostMessages:
    """A POST, decoded. The reply gets an Answer or Streaming."""

    messages: tuple[Message, ...]
    batch: bool
    version: str | None
    refused: tuple[tuple[RequestId | None, msgspec.Raw], ...]
    reply: Reply


@dataclass(frozen=True, slots=True)
class GetEvents:
    """A GET; `stream` for a resumption after (epoch, seq)."""

    stream: str | None
    epoch: int
    seq: int
    reply: Reply


@dataclass(frozen=True, slots=True)
class EndSession:
    """A DELETE; the reply gets an Answer when the session has ended."""

    reply: Reply
    reason: str = "delete"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a session is, from its first moment to its last."""

    key: SessionKey
    principal: Principal
    endpoint: str


# Inside ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _PostGone:
    post: int


@dataclass(frozen=True, slots=True)
class _ConnectionGone:
    connection: int
    stream: str


@dataclass(frozen=True, slots=True)
class _StreamLost:
    stream: str
    reason: Refused


@dataclass(frozen=True, slots=True)
class _Stored:
    """A change of the record that did not work."""

    fields: dict[str, bytes | None]
    failed: Failed


@dataclass(frozen=True, slots=True)
class _Released:
    outcome: Any


@dataclass(frozen=True, slots=True)
class _Reclaimed:
    outcome: Any


class _Quiet:
    pass


class _DrainDue:
    pass


DRAIN_MARGIN = 1.0
"""Seconds before the drain's deadline at which what is still in flight gets its error, so that it can be written."""


@dataclass(frozen=True, slots=True)
class _Turn:
    post: int


@dataclass(frozen=True, slots=True)
class _Deadline:
    call: int


@dataclass(frozen=True, slots=True)
class _AskClock:
    ask: str


class SessionActor(Actor):
    """One life of one session."""

    mailbox_size = 256

    def __init__(
        self,
        identity: Identity,
        grant: Grant,
        services: Services,
        tree: Tree,
        ledger: Ledger,
        record: ports.Record | None = None,
    ) -> None:
        self.identity = identity
        self.principal = identity.principal
        self._services = services
        self._ledger = ledger
        self._grant = grant
        self._record = record
        transparent = self._is_transparent(services, identity.endpoint)
        limits = services.limits
        rules = Rules(limits.requests_per_session, limits.get_streams_per_session, limits.box_events, not transparent)
        self._state = Session(grant.epoch, rules)
        self._front: Front = (Transparent if transparent else Aggregate)(self, identity.endpoint, services, tree)
        self._posts: dict[int, Reply] = {}
        self._gets: dict[int, Reply] = {}
        self._next_connection = 1
        self._running: dict[int, tuple[float, str, str]] = {}
        self._dirty: dict[str, bytes | None] = {}
        self._rev = record.rev if record is not None else 0
        self._active = 0.0
        self._touched = 0.0
        self._began = 0.0
        self._quiet_timer = False
        self._draining = False
        self._parked: list[Any] | None = None
        self._ending: list[Reply] = []

    def __repr__(self) -> str:
        state = self._state
        return f"<SessionActor {state.phase.value}: {len(state.requests)} requests, {len(state.streams)} streams>"

    @staticmethod
    def _is_transparent(services: Services, endpoint: str) -> bool:
        served = services.table.value.endpoints.get(endpoint)
        return served is not None and served.kind == "transparent"

    # What the front sees of its host

    @property
    def epoch(self) -> int:
        return self._grant.epoch

    @property
    def client(self) -> Client | None:
        return self._state.client

    @property
    def version(self) -> str:
        return self._state.version

    @property
    def level(self) -> str | None:
        return self._state.level

    def save(self, fields: dict[str, bytes | None]) -> None:
        """Changes the record, with the next write."""
        self._dirty.update(fields)

    def event(self, event: ev.SessionEvent) -> None:
        """Steps the machine and runs the effects."""
        if isinstance(event, ev.CallEnded):
            self._observe(event)
        before = len(self._state.requests)
        self._state, effects = step(self._state, event)
        self._ledger.add(self.principal, len(self._state.requests) - before)
        for effect in effects:
            EFFECTS[type(effect)](self, effect)

    # Life

    def started(self) -> None:
        self._recorder = Recorder(
            self.identity.key,
            self._grant,
            self._services.store,
            self._services.limits,
            self._services.telemetry,
            self._services.log,
            failed=lambda stream, reason: self.ctx.ref.reply(_StreamLost(stream, reason)),
            closed=self._connection_closed,
        )
        self._active = self._touched = self._began = self.ctx.now()
        if self._record is not None:
            record, self._record = self._record, None
            self._state, effects = session_record.rebuild(record, self._state)
            for effect in effects:
                EFFECTS[type(effect)](self, effect)
            self._front.restored(self._state.subscriptions)
        self._after()

    def receive(self, message: Any) -> None:
        if self._parked is not None and not isinstance(message, _Released | _Reclaimed):
            self._parked.append(message)
            return
        handler = HANDLERS.get(type(message))
        if handler is not None:
            handler(self, message)
        self._after()

    def _after(self) -> None:
        """What follows every message: the record, the clock of quietness, the drain."""
        if self._dirty:
            self._save()
        now = self.ctx.now()
        if now - self._touched > self._services.limits.idle_ttl / 8:
            self._touched = now
            self._services.store.touch(self.identity.key, self._grant, _ignore)
        if not self._quiet_timer:
            self._quiet_timer = True
            self.ctx.set_timer("quiet", self._services.limits.passivate_after, _Quiet())
        if self._draining and not self._state.requests:
            self._leave(SHUTDOWN)

    def drain(self, deadline: float) -> None:
        self._draining = True
        self.ctx.set_timer("drain", max(0.0, deadline - self.ctx.now() - DRAIN_MARGIN), _DrainDue())
        if self._state.phase in (Phase.INITIALIZING, Phase.OPERATION):
            self.event(ev.DrainStarted())
        if not self._state.requests:
            self._leave(SHUTDOWN)

    def stopped(self, reason: Exit) -> None:
        self._ledger.add(self.principal, -len(self._state.requests))
        error = errors.internal("the session's actor ended", reason="actor_ended", executed="unknown")
        for post, reply in self._posts.items():
            id = next((r.id for r in self._state.requests.values() if r.post == post), None)
            reply.answer(Answer(200, encode_error_body(error, id)))
        for reply in [*self._gets.values(), *self._ending]:
            reply.answer(_refusal(errors.session_not_found(), None))
        self._recorder.stop()
        if self._state.phase is Phase.CLOSED:
            seconds = self.ctx.now() - self._began
            labels = ("", "http", self._state.version)
            self._services.telemetry.observe("mcp_server_session_duration_seconds", seconds, labels)

    def _leave(self, reason: Exit) -> None:
        """The actor goes, the session stays: its record is given back for whoever claims it next."""
        if self._dirty:
            self._save()
        if self._state.phase is Phase.CLOSED:
            return
        self._services.store.release(self.identity.key, self._grant, _ignore)
        self.ctx.stop(reason)

    # Messages

    def _number(self) -> int:
        number = self._next_connection
        self._next_connection += 1
        return number

    def _post(self, message: PostMessages) -> None:
        self._active = self.ctx.now()
        requests = sum(isinstance(m, Request) for m in message.messages)
        if requests and not self._ledger.allows(self.principal, requests):
            error = errors.too_many_requests("of this principal")
            message.reply.answer(_refusal(error, _first_id(message.messages)))
            return
        if message.version is not None and message.version != self._state.version and self._state.version:
            # Allowed, and without effect: the session goes on in the revision that it negotiated.
            self._services.telemetry.count("stagedoor_version_mismatches_total")
        post = self._number()
        self._posts[post] = message.reply
        message.reply.on_abandon = lambda: self.ctx.ref.reply(_PostGone(post))
        self.event(ev.Posted(post, message.messages, message.batch, self._active, message.refused))

    def _post_gone(self, message: _PostGone) -> None:
        if self._posts.pop(message.post, None) is not None:
            self.event(ev.PostBroken(message.post))

    def _get(self, message: GetEvents) -> None:
        self._active = self.ctx.now()
        connection = self._number()
        self._gets[connection] = message.reply
        message.reply.on_abandon = lambda: self.ctx.ref.reply(_ConnectionGone(connection, message.stream or ""))
        self.event(ev.Attached(connection, message.stream, message.epoch, message.seq))

    def _end_session(self, message: EndSession) -> None:
        self._ending.append(message.reply)
        self.event(ev.Ended(message.reason))

    def _connection_closed(self, connection: Connection) -> None:
        self.ctx.ref.reply(_ConnectionGone(connection.id, connection.stream))

    def _connection_gone(self, message: _ConnectionGone) -> None:
        self._active = self.ctx.now()
        self._gets.pop(message.connection, None)
        self.event(ev.Detached(message.connection, message.stream))

    def _stream_lost(self, message: _StreamLost) -> None:
        self.event(ev.StreamFailed(message.stream, message.reason.value))

    def _told(self, message: LinkTold) -> None:
        if message.method in SHEDDABLE and self._recorder.pressed:
            self._services.telemetry.count("stagedoor_events_shed_total", (message.method.split("/")[-1],))
            return
        self._front.told(message)

    # The record

    def _save(self) -> None:
        fields, self._dirty = self._dirty, {}
        self._rev += 1

        def done(outcome: Any) -> None:
            if isinstance(outcome, Failed):
                self.ctx.ref.reply(_Stored(fields, outcome))

        self._services.store.save(self.identity.key, self._grant, self._rev, Deltas(fields=fields), done)

    def _stored(self, message: _Stored) -> None:
        """The record could not be changed: away means later; anything else, that the session is another's, or lost."""
        if message.failed.reason is Refused.AWAY:
            self._dirty = {**message.fields, **self._dirty}
            self._rev -= 1
        elif message.failed.reason in (Refused.FENCED, Refused.GONE, Refused.ENDED):
            self.event(ev.Ended(message.failed.reason.value))

    # Quietness: passivation and the idle end

    def _quiet(self, message: _Quiet) -> None:
        self._quiet_timer = False
        limits = self._services.limits
        state = self._state
        if state.requests or state.asks or self._posts or self._gets or self._recorder.busy:
            self._active = self.ctx.now()
            return
        idle = self.ctx.now() - self._active
        if idle >= limits.idle_ttl:
            self.event(ev.Ended("idle"))
        elif idle >= limits.passivate_after and not self._front.links and state.phase is Phase.OPERATION:
            self._parked = []
            self._services.store.release(self.identity.key, self._grant, lambda out: self.ctx.ref.reply(_Released(out)))
        else:
            # Links are bound to this process, so the session stays; its connections are what it costs.
            wait = limits.passivate_after - idle if idle < limits.passivate_after else limits.idle_ttl - idle
            self._quiet_timer = True
            self.ctx.set_timer("quiet", max(wait, 0.01), _Quiet())

    def _released(self, message: _Released) -> None:
        """Given back. If nothing came meanwhile the object goes; else it claims itself back."""
        parked = self._parked or []
        if isinstance(message.outcome, Failed) and message.outcome.reason is not Refused.AWAY:
            self._parked = None
            self._replay_parked(parked)
        elif not parked and self.ctx.idle:
            self.ctx.stop()
        else:
            self._services.store.claim(
                self.identity.key,
                None,
                self._grant.epoch,
                f"{self._grant.owner}-{self._grant.epoch}",
                lambda out: self.ctx.ref.reply(_Reclaimed(out)),
            )

    def _reclaimed(self, message: _Reclaimed) -> None:
        parked, self._parked = self._parked or [], None
        if isinstance(message.outcome, Failed):
            self.event(ev.Ended(message.outcome.reason.value))
        else:
            self._grant = message.outcome[0]
            self._recorder.grant = self._grant
            self._state = msgspec.structs.replace(self._state, epoch=self._grant.epoch)
        self._replay_parked(parked)

    def _replay_parked(self, parked: list[Any]) -> None:
        for message in parked:
            handler = HANDLERS.get(type(message))
            if handler is not None:
                handler(self, message)

    # Effects: the client's side

    def _reply(self, post: int, answer: Any) -> bool:
        reply = self._posts.pop(post, None)
        return reply is not None and reply.answer(answer)

    def _accept(self, effect: fx.Accept) -> None:
        self._reply(effect.post, Answer(202))

    def _answer_post(self, effect: fx.AnswerPost) -> None:
        if not self._reply(effect.post, Answer(200, effect.body)):
            self._drop("answer_without_connection")

    def _refuse_post(self, effect: fx.RefusePost) -> None:
        self._reply(effect.post, _refusal(effect.error, effect.id))

    def _open_stream(self, effect: fx.OpenStream) -> None:
        waiting = self._posts if effect.post is not None else self._gets
        number = effect.post if effect.post is not None else effect.connection
        assert number is not None
        reply = waiting.get(number)

        def opened(connection: Connection) -> None:
            waiting.pop(number, None)
            if reply is None or not reply.answer(Streaming(connection)):
                connection.close()

        self._recorder.open(effect, number, opened)

    def _append(self, effect: fx.Append) -> None:
        self._recorder.append(effect)

    def _follow(self, effect: fx.Follow) -> None:
        reply = self._gets.pop(effect.connection, None)
        if reply is None:
            return
        connection, head = None, 0
        if effect.live:
            connection, head = self._recorder.follow(effect, effect.connection)
        follower = Follower(
            self._services.store, self.identity.key, effect.stream, effect.epoch, effect.seq, connection, head
        )
        if not reply.answer(follower) and connection is not None:
            connection.close()

    def _refuse_get(self, effect: fx.RefuseGet) -> None:
        reply = self._gets.pop(effect.connection, None)
        if reply is not None:
            reply.answer(_refusal(effect.error, None))

    def _close_connection(self, effect: fx.CloseConnection) -> None:
        retry = effect.retry
        if retry is not None:
            retry = int(retry * (1 + self._services.jitter()))
        self._recorder.close(effect.connection, retry)

    # Effects: the backends' side

    def _dispatch(self, effect: fx.Dispatch) -> None:
        tool = session_record.tool_name(effect.params) if effect.method == "tools/call" else ""
        self._running[effect.call] = (self.ctx.now(), effect.method, tool)
        self._front.dispatch(effect)

    def _observe(self, event: ev.CallEnded) -> None:
        started = self._running.pop(event.call, None)
        if started is None:
            return
        at, method, tool = started
        error = "" if event.ok else session_record.error_type(event.payload)
        if event.ok and method == "tools/call" and b'"isError":true' in bytes(event.payload):
            error = "tool_error"
        labels = (method, tool, error, "http", self._state.version)
        self._services.telemetry.observe("mcp_server_operation_duration_seconds", self.ctx.now() - at, labels)

    def _cancel_call(self, effect: fx.CancelCall) -> None:
        self._running.pop(effect.call, None)
        self._front.cancel(effect.call, effect.reason)

    def _broadcast(self, effect: fx.Broadcast) -> None:
        self._front.broadcast(effect.method, effect.params)

    def _tell_backend(self, effect: fx.TellBackend) -> None:
        self._front.tell(effect.backend, effect.method, effect.params)

    def _answer_backend(self, effect: fx.AnswerBackend) -> None:
        self._front.answer(effect.backend, effect.id, effect.ok, effect.payload)

    # Effects: clocks

    def _start_turn_clock(self, effect: fx.StartTurnClock) -> None:
        self.ctx.set_timer(("turn", effect.post), self._services.limits.stream_after, _Turn(effect.post))

    def _stop_turn_clock(self, effect: fx.StopTurnClock) -> None:
        self.ctx.cancel_timer(("turn", effect.post))

    def _start_deadline(self, effect: fx.StartDeadline) -> None:
        due = min(
            effect.since + self._front.deadline(effect.call),
            effect.accepted + self._services.limits.request_deadline_cap,
        )
        self.ctx.set_timer(("deadline", effect.call), max(0.0, due - self.ctx.now()), _Deadline(effect.call))

    def _stop_deadline(self, effect: fx.StopDeadline) -> None:
        self.ctx.cancel_timer(("deadline", effect.call))

    def _start_ask_clock(self, effect: fx.StartAskClock) -> None:
        limits = self._services.limits
        seconds = limits.request_deadline if effect.stream else limits.server_request_wait
        self.ctx.set_timer(("ask", effect.ask), seconds, _AskClock(effect.ask))

    def _stop_ask_clock(self, effect: fx.StopAskClock) -> None:
        self.ctx.cancel_timer(("ask", effect.ask))

    # Effects: the record and the end

    def _save_fields(self, effect: fx.Save) -> None:
        self.save(effect.fields)

    def _end(self, effect: fx.End) -> None:
        """The machine is closed: record and links go."""
        self._dirty.clear()
        endings, self._ending = self._ending, []

        def done(outcome: Any) -> None:
            away = isinstance(outcome, Failed) and outcome.reason is Refused.AWAY
            for reply in endings:
                reply.answer(_refusal(errors.store_away(), None) if away else Answer(200))

        self._services.store.end(self.identity.key, self._grant, effect.reason, done)
        self._services.log.info("session_ended", reason=effect.reason)
        self._services.telemetry.count("stagedoor_sessions_ended_total", (effect.reason,))
        self.ctx.stop()

    def _tally(self, effect: fx.Tally) -> None:
        self._drop(effect.what)

    def _drop(self, what: str) -> None:
        self._services.telemetry.count("stagedoor_messages_dropped_total", (what,))


def _ignore(outcome: Any) -> None:
    """For hints whose failure changes nothing."""


def _first_id(messages: tuple[Message, ...]) -> RequestId | None:
    return next((m.id for m in messages if isinstance(m, Request)), None)


def _refusal(error: ProtocolError, id: RequestId | None) -> Answer:
    return Answer(error.status, encode_error_body(error, id), error.headers)


SHEDDABLE = ("notifications/progress", "notifications/message")
"""What gets no id, and is dropped, when the logs of a session are half full: so chatter can't push out answers."""

HANDLERS: dict[type, Callable[[SessionActor, Any], None]] = {
    PostMessages: SessionActor._post,
    GetEvents: SessionActor._get,
    EndSession: SessionActor._end_session,
    LinkOutcome: lambda self, m: self._front.outcome(m),
    LinkTold: SessionActor._told,
    LinkAsked: lambda self, m: self._front.asked(m),
    LinkWithdrew: lambda self, m: self._front.withdrew(m),
    LinkReady: lambda self, m: self._front.ready(m),
    LinkDown: lambda self, m: self._front.down(m),
    Listed: lambda self, m: self._front.listed(m),
    ChangeDue: lambda self, m: self._front.change_due(m.notification),
    GatherDue: lambda self, m: self._front.gather_due(m.method),
    CatalogueChanged: lambda self, m: self._front.changed(m),
    Down: lambda self, m: self._front.link_ended(m.ref),
    _PostGone: SessionActor._post_gone,
    _ConnectionGone: SessionActor._connection_gone,
    _StreamLost: SessionActor._stream_lost,
    _Stored: SessionActor._stored,
    _Quiet: SessionActor._quiet,
    _DrainDue: lambda self, m: self.event(ev.DrainOverdue()),
    _Released: SessionActor._released,
    _Reclaimed: SessionActor._reclaimed,
    _Turn: lambda self, m: self.event(ev.StreamTurnDue(m.post)),
    _Deadline: lambda self, m: self.event(ev.CallExpired(m.call)),
    _AskClock: lambda self, m: self.event(ev.AskExpired(m.ask)),
}

EFFECTS: dict[type, Callable[[SessionActor, Any], None]] = {
    fx.Accept: SessionActor._accept,
    fx.AnswerPost: SessionActor._answer_post,
    fx.RefusePost: SessionActor._refuse_post,
    fx.OpenStream: SessionActor._open_stream,
    fx.Append: SessionActor._append,
    fx.Follow: SessionActor._follow,
    fx.RefuseGet: SessionActor._refuse_get,
    fx.CloseConnection: SessionActor._close_connection,
    fx.Dispatch: SessionActor._dispatch,
    fx.CancelCall: SessionActor._cancel_call,
    fx.Broadcast: SessionActor._broadcast,
    fx.TellBackend: SessionActor._tell_backend,
    fx.AnswerBackend: SessionActor._answer_backend,
    fx.StartTurnClock: SessionActor._start_turn_clock,
    fx.StopTurnClock: SessionActor._stop_turn_clock,
    fx.StartDeadline: SessionActor._start_deadline,
    fx.StopDeadline: SessionActor._stop_deadline,
    fx.StartAskClock: SessionActor._start_ask_clock,
    fx.StopAskClock: SessionActor._stop_ask_clock,
    fx.Save: SessionActor._save_fields,
    fx.End: SessionActor._end,
    fx.Tally: SessionActor._tally,
}
