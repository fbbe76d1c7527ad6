"""The session actor: owns one session's state, steps its machine, and has the effects run.

It never waits: answers go to the replies that edges wait on, events to the recorder, calls to the front's links. What
it must not forget is in the session's record; a crash ends this life, and the next message begins another from the
record, at a higher epoch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from actors.durations import Durations
from actors.fronts.aggregate import Aggregate, ChangeDue
from actors.fronts.catalogue_messages import CatalogueChanged, Listed
from actors.fronts.front import Front, OwnDue
from actors.fronts.host import Tree
from actors.fronts.listing import GatherDue
from actors.fronts.transparent import Transparent
from actors.ledger import Ledger
from actors.links import link_messages as lm
from actors.links.kept import KeptLinks
from actors.ports import Answer, Grant, Principal, Record, SessionKey
from actors.protocol import effects as fx
from actors.protocol import errors, session_record
from actors.protocol import events as ev
from actors.protocol.messages import Request
from actors.protocol.session_machine import step
from actors.protocol.session_state import Client, ClientRequest, Rules, Session
from actors.protocol.session_table import UNRECORDED, SessionPhase
from actors.protocol.table_change import Replaced
from actors.runtime import Actor, Down, Exit, Reply
from actors.services import Services
from actors.sessions import session_messages as sm
from actors.sessions.draining import Draining
from actors.sessions.effects import EFFECTS, refusal
from actors.sessions.expiry import Returned, last_activity
from actors.sessions.owed import Owed
from actors.sessions.quiet import Quiet
from actors.sessions.reconfigured import reconfigured, recorded_under
from actors.sessions.record_keeper import RETRY, RecordKeeper
from actors.streams.recorder import Recorder

KEPT_FIRST = ("resources/subscribe", "resources/unsubscribe", "logging/setLevel")
"""What the record must hold before the client is told that it is done."""

SHEDDABLE = ("notifications/progress", "notifications/message")
"""What gets no id, and is dropped, when the logs of a session are half full: so chatter can't push out answers."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a session is, from its first moment to its last."""

    key: SessionKey
    principal: Principal
    endpoint: str


class SessionActor(Actor):
    """One life of one session."""

    mailbox_size = 256
    disposable = True

    keeper: RecordKeeper
    recorder: Recorder

    def __init__(
        self,
        identity: Identity,
        grant: Grant,
        services: Services,
        tree: Tree,
        ledger: Ledger,
        record: Record | None = None,
    ) -> None:
        self.identity = identity
        self.principal = identity.principal
        self.services = services
        self.posts: dict[int, Reply] = {}
        self.owed = Owed()
        self.gets: dict[int, Reply] = {}
        self.ending: list[Reply] = []
        self.leaving: dict[int, list[Callable[[], None]]] = {}
        """What is to be done with calls as soon as the record does not say that they were not sent."""
        self.running = Durations(services.telemetry, services.shown)
        served = services.table.value.endpoints.get(identity.endpoint)
        transparent = served is not None and served.kind == "transparent"
        self.tree = tree
        self.quiet = Quiet(self)
        self.draining = Draining(self)
        self.front: Front = (Transparent if transparent else Aggregate)(self, identity.endpoint, services, tree)
        self.kept = self.front.kept = KeptLinks(identity.key, services.sealer, self.save, self._note)
        self._grant = grant
        self._ledger = ledger
        self._record = record
        limits = services.limits
        rules = Rules(limits.requests_per_session, limits.get_streams_per_session, limits.box_events, not transparent)
        self._state = Session(grant.epoch, rules)
        self._next_connection = 1
        self._began = 0.0

    def __repr__(self) -> str:
        state = self._state
        return f"<SessionActor {state.phase.value}: {len(state.requests)} requests, {len(state.streams)} streams>"

    # What the front and the effects see

    @property
    def grant(self) -> Grant:
        """The ownership under which this life writes."""
        return self._grant

    @property
    def state(self) -> Session:
        """What the machine knows."""
        return self._state

    @property
    def busy(self) -> bool:
        """Whether anything goes on."""
        state = self._state
        waits = state.requests or state.asks or self.posts or self.gets
        return bool(waits) or self.recorder.busy or not self.keeper.settled

    @property
    def epoch(self) -> int:
        """Of this life."""
        return self._grant.epoch

    @property
    def client(self) -> Client | None:
        """What the client said of itself."""
        return self._state.client

    @property
    def version(self) -> str:
        """The negotiated revision."""
        return self._state.version

    @property
    def level(self) -> str | None:
        """The log level that the client chose."""
        return self._state.level

    def save(self, fields: dict[str, bytes | None]) -> None:
        """Changes the record. Before the handshake is over there is nothing to come back to, and nothing is written."""
        young = self._state.phase in UNRECORDED
        (self.keeper.note if young else self.keeper.change)(fields)

    def _note(self, fields: dict[str, bytes | None]) -> None:
        self.keeper.note(fields)

    def renew(self, grant: Grant) -> None:
        """The session was given back, and taken again."""
        self._grant = self.recorder.grant = self.keeper.grant = grant
        self._state = msgspec.structs.replace(self._state, epoch=grant.epoch)

    def routed(self, call: int) -> None:
        """A call that had to wait has found its backend, whose deadline may be shorter than that which runs."""
        id = self._state.calls.get(call)
        entry = self._state.requests.get(id) if id is not None else None
        if entry is not None and entry.timed:
            EFFECTS[fx.StartDeadline](self, fx.StartDeadline(call, entry.accepted, entry.accepted))
        stream = self._state.posts[entry.post].stream if entry is not None else None
        if stream is not None:
            self._recorded(sm.StreamRecorded(stream, (call,)))

    def leave(self, call: int, act: Callable[[], None]) -> None:
        """Acts as soon as the record does not say of this call that it was not sent; never, if that can't be had or
        nobody waits for it any more."""
        self.leaving.setdefault(call, []).append(act)
        self.event(ev.CallDue(call))
        if call not in self._state.calls:
            self.leaving.pop(call, None)

    def event(self, event: ev.SessionEvent) -> None:
        """Steps the machine and runs the effects; an outcome that must be in the record first waits for that."""
        entry = self._entry(event.call) if isinstance(event, ev.CallEnded) and event.ok else None
        if entry is None or entry.method not in KEPT_FIRST:
            self._step(event)
            return
        if entry.level is not None:
            self.save(session_record.level(entry.level))
        self.keeper.then(lambda: self._step(event))

    def _entry(self, call: int) -> ClientRequest | None:
        return self._state.requests.get(self._state.calls.get(call, ""))

    def _step(self, event: ev.SessionEvent) -> None:
        if isinstance(event, ev.CallEnded):
            self.running.ended(event, self.ctx.now(), self._state.version)
        before = len(self._state.requests)
        self._state, effects = step(self._state, event)
        self._ledger.add(self.principal, len(self._state.requests) - before)
        for effect in effects:
            EFFECTS[type(effect)](self, effect)

    def answer_post(self, post: int, answer: Answer) -> bool:
        """Settles a waiting POST; False if nobody waits any more."""
        self.owed.answered(post)
        reply = self.posts.pop(post, None)
        return reply is not None and reply.answer(answer)

    # Life

    def started(self) -> None:
        """Begins a life: a new session's, or that of a record."""
        rev = self._record.rev if self._record is not None else 0
        self.keeper = RecordKeeper(self.identity.key, self._grant, rev, self.services, self.ctx)
        self.recorder = Recorder(
            self.identity.key,
            self._grant,
            self.services.store,
            self.services.limits,
            self.services.telemetry,
            self.services.log,
            self._ledger.streams,
            failed=lambda stream, reason: self.ctx.ref.reply(sm.StreamLost(stream, reason)),
            closed=lambda c: self.ctx.ref.reply(sm.ConnectionGone(c.id, c.stream, c.written)),
            later=lambda stream: self.ctx.set_timer(("log", stream), RETRY, sm.LogDue(stream)),
            words=self.owed.words,
            dropped=self._dropped,
            noted=self.keeper.take_noted,
            cleared=lambda call: self.ctx.ref.reply(sm.CallCleared(call)),
            open_asks=lambda: self._state.asks,
            guard=self.ctx.guard,
        )
        self.quiet.heard()
        self._began = self.ctx.now()
        if self._record is not None:
            record, self._record = self._record, None
            self._rebuild(record)
        self._after()

    def _rebuild(self, record: Record) -> None:
        self.tree.expiry.reply(Returned(self.identity.key))
        self.kept.load(record.fields, self.services.table.value)
        self.recorder.load(record.streams)
        self._state, effects = session_record.rebuild(record, self._state, self.ctx.now(), self.kept.reachable)
        self._ledger.add(self.principal, len(self._state.requests))
        # A first write of this life: it clears the count of rebuilds that never got so far.
        self.save(session_record.handshake(self._state) | last_activity(None))
        self.front.tasks.load(record.fields)
        self.front.recall(record.fields)
        self.front.restored(self._state.subscriptions)
        recorded_under(self, record.fields)
        for effect in effects:
            EFFECTS[type(effect)](self, effect)

    def receive(self, message: Any) -> None:
        """One message."""
        if not self.quiet.parks(message):
            self.handle(message)
            self._after()

    def handle(self, message: Any) -> None:
        """What a message is there for."""
        handler = HANDLERS.get(type(message))
        if handler is not None:
            handler(self, message)

    def _after(self) -> None:
        """What follows every message: the record, the clock of quietness, the drain."""
        if self.quiet.leaving or self._state.phase is SessionPhase.CLOSED:
            return
        self.keeper.flush()
        self.quiet.watch()
        self.draining.settle()

    def drain(self, deadline: float) -> None:
        """Nothing new; what is in flight has until the deadline."""
        self.draining.begin(deadline)
        self._after()

    def stopped(self, reason: Exit) -> None:
        """Whoever still waits is told."""
        self._ledger.add(self.principal, -len(self._state.requests))
        for post, reply in self.posts.items():
            reply.answer(self.owed.answer(post))
        restored = errors.overloaded("the session is being restored")
        error = errors.session_not_found() if self._state.phase is SessionPhase.CLOSED else restored
        if reason.abnormal or self._state.phase is SessionPhase.CLOSED:
            for reply in self.gets.values():
                reply.answer(refusal(error))
        self.recorder.stop(crashed=reason.error is not None)
        if self._state.phase is SessionPhase.CLOSED:
            seconds = self.ctx.now() - self._began
            labels = ("", "http", self._state.version)
            self.services.telemetry.observe("mcp_server_session_duration_seconds", seconds, labels)
        self.front.let_go()

    # Edges

    def _number(self) -> int:
        number = self._next_connection
        self._next_connection += 1
        return number

    def _post(self, message: sm.PostMessages) -> None:
        self.quiet.heard()
        ids = [m.id for m in message.messages if isinstance(m, Request)]
        if ids and not self._ledger.allows(self.principal, len(ids)):
            message.reply.answer(refusal(errors.too_many_requests("of this principal"), ids[0]))
            return
        if message.version is not None and message.version != self._state.version and self._state.version:
            # Allowed, and without effect: the session goes on in the revision that it negotiated.
            self.services.telemetry.count("stagedoor_version_mismatches_total")
        post = self._number()
        self.posts[post] = message.reply
        self.owed.took(post, message.messages, message.batch)
        message.reply.on_abandon = lambda: self.ctx.ref.reply(sm.PostGone(post))
        self.event(ev.Posted(post, message.messages, message.batch, self.quiet.active, message.refused))

    def _post_gone(self, message: sm.PostGone) -> None:
        if self.posts.pop(message.post, None) is not None:
            self.owed.answered(message.post)
            self.event(ev.PostBroken(message.post))

    def _get(self, message: sm.GetEvents) -> None:
        self.quiet.heard()
        connection = self._number()
        self.gets[connection] = message.reply
        message.reply.on_abandon = lambda: self.ctx.ref.reply(sm.ConnectionGone(connection, message.stream or ""))
        self.event(ev.Attached(connection, message.stream, message.epoch, message.seq))

    def _end_session(self, message: sm.EndSession) -> None:
        self.ending.append(message.reply)
        self.event(ev.Ended(message.reason))

    def _connection_gone(self, message: sm.ConnectionGone) -> None:
        self.quiet.heard()
        self.gets.pop(message.connection, None)
        self.event(ev.Detached(message.connection, message.stream, message.written))

    # Backends

    def _placed(self, message: lm.LinkPlaced) -> None:
        if message.call is None:
            self.kept.moved(message.backend, message.place.cursor)
        else:
            self.event(ev.CallPlaced(message.backend, message.call, message.place))

    def _recorded(self, message: sm.StreamRecorded) -> None:
        """From here on the record can say of them that they were not sent."""
        for call in message.calls:
            if call in self._state.calls and self.recorder.records(message.stream):
                self.front.hold(call)

    def _cleared(self, message: sm.CallCleared) -> None:
        self.event(ev.CallCleared(message.call))
        self.leaving.pop(message.call, None)  # of a call that is over

    def _told(self, message: lm.LinkTold) -> None:
        if message.call is None and message.place is not None:
            # Before what comes of it, which takes it along into the store.
            self.kept.moved(message.backend, message.place.cursor)
        if message.method in SHEDDABLE and self.recorder.pressed():
            self.services.telemetry.count("stagedoor_events_shed_total", (message.method.split("/")[-1],))
            return
        self.front.told(message)

    # The store

    def _stream_lost(self, message: sm.StreamLost) -> None:
        self.owed.ended(message.stream)
        self.event(ev.StreamFailed(message.stream, message.reason.value))
        for ask_id in [id for id, ask in self._state.asks.items() if ask.stream == message.stream]:
            self.event(ev.AskExpired(ask_id))  # nobody saw the question, or can be expected to answer it

    def _dropped(self, asked: tuple[str, ...]) -> None:
        """These questions were never seen."""
        for ask_id in asked:
            self.ctx.ref.reply(sm.AskDue(ask_id))

    def _saved(self, message: sm.Saved) -> None:
        lost = self.keeper.saved(message.outcome)
        if lost is not None:
            self.event(ev.Ended(lost.value))


HANDLERS: dict[type, Callable[[SessionActor, Any], None]] = {
    sm.PostMessages: SessionActor._post,
    sm.GetEvents: SessionActor._get,
    sm.EndSession: SessionActor._end_session,
    sm.PostGone: SessionActor._post_gone,
    sm.ConnectionGone: SessionActor._connection_gone,
    sm.StreamRecorded: SessionActor._recorded,
    sm.StreamLost: SessionActor._stream_lost,
    sm.CallCleared: SessionActor._cleared,
    sm.Saved: SessionActor._saved,
    sm.LogDue: lambda self, m: self.recorder.retry(m.stream),
    sm.SaveDue: lambda self, m: self.keeper.retry(),
    sm.Released: lambda self, m: self.quiet.released(m.outcome),
    sm.Reclaimed: lambda self, m: self.quiet.reclaimed(m.outcome),
    sm.QuietDue: lambda self, m: self.quiet.due(),
    sm.DrainDue: lambda self, m: self.draining.due(),
    sm.TurnDue: lambda self, m: self.event(ev.StreamTurnDue(m.post)),
    sm.DeadlineDue: lambda self, m: self.event(ev.CallExpired(m.call, self.front.calls.get(m.call))),
    sm.AskDue: lambda self, m: self.event(ev.AskExpired(m.ask)),
    lm.LinkOutcome: lambda self, m: self.front.outcome(m),
    lm.LinkTold: SessionActor._told,
    lm.LinkPlaced: SessionActor._placed,
    lm.LinkHeld: lambda self, m: self.event(ev.CallHeld(m.call)),
    lm.LinkDue: lambda self, m: self.leave(m.call, lambda: self.front.release(m.call)),
    lm.LinkAsked: lambda self, m: self.front.asked(m),
    lm.LinkWithdrew: lambda self, m: self.front.withdrew(m),
    lm.LinkReady: lambda self, m: self.front.ready(m),
    lm.LinkDown: lambda self, m: self.front.down(m),
    lm.LinkUnfit: lambda self, m: self.front.unfit(m),
    Listed: lambda self, m: self.front.listed(m),
    CatalogueChanged: lambda self, m: self.front.changed(m),
    ChangeDue: lambda self, m: self.front.change_due(m.notification),
    Replaced: lambda self, m: reconfigured(self, m.before),
    GatherDue: lambda self, m: self.front.gather_due(m.method, looks=m.looks),
    OwnDue: lambda self, m: self.front.own_due(m.call),
    Down: lambda self, m: self.front.link_ended(m.ref),
}
