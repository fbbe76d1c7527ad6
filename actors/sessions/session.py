"""The session actor: owns one session's state, steps its machine, and runs the effects.

It never waits: answers go to the replies that edges wait on, events to the recorder, calls to the endpoint's
upstream connections. What it must not forget is in the session's record; a crash ends this life, and the next
message begins another from the record, at a higher epoch.

A session that nobody is heard of leaves memory after a while, and ends after a longer one. With connections that
live and die with this process it stays where it is, and lets go of what can be had again. Any other is given back
to the store, and what comes meanwhile waits for the outcome; the object goes when that is known and nothing has
come. Its backends' sessions stay, for its next life.

It does nothing while it can't be told whether the session is still this process's, and ends where it is another's: its
backends' sessions are that one's then, and so is what is recorded.
"""

from collections.abc import Callable, Container, Mapping
from functools import partial
from itertools import count
from typing import Any, TypeAlias, assert_never

import msgspec
from msgspec import Struct

from actors import audit_lines
from actors.audit_lines import who_asks
from actors.doubt import AGAIN, REMEMBERED, Allowed
from actors.durations import Durations
from actors.endpoints.catalogue import CatalogueChanged, Listed
from actors.endpoints.connecting import AboutAccounts, AccountChanged, Invited, Waited
from actors.endpoints.host import Tree
from actors.endpoints.limiting import Weighed
from actors.endpoints.listing import GatherDue
from actors.endpoints.merged import ChangeDue
from actors.endpoints.session_endpoint import SessionEndpoint
from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.machines.session import losses, rebuild, streams
from actors.machines.session import record as session_record
from actors.machines.session.machine import FENCED, TABLE, step
from actors.machines.session.record import Fields
from actors.machines.session.state import TRANSITIONS, UNRECORDED, Client, Rules, ServerRequest, Session, SessionPhase
from actors.ports import (
    NO_RIGHTS,
    UNAVAILABLE,
    Answer,
    Failed,
    Grant,
    Incarnation,
    Principal,
    Record,
    Refused,
    Rights,
    SessionKey,
    StreamHead,
    Streaming,
)
from actors.protocol import errors
from actors.protocol.messages import EMPTY, Error, Request, RequestId, Result
from actors.protocol.operations import Audited, Operation
from actors.protocol.table import Replaced, Table
from actors.protocol.trace_context import parse
from actors.protocol.trail import AUDITED
from actors.quotas import Quotas
from actors.record import LOSSES, NO_FIELDS, RETRY, OwnedRecord, Renamed, SaveDue, Stored
from actors.runtime import EMPTY_TABLE, NORMAL, SHUTDOWN, Actor, ActorDown, Down, Exit, Reply, put
from actors.services import DRAIN_MARGIN, Services
from actors.sessions import messages as sm
from actors.sessions.expiry import Ending, Returned, last_activity, record_end, rests
from actors.streams.connection import Connection
from actors.streams.follower import Follower
from actors.streams.recorder import (
    AnswerRecorded,
    EventsLost,
    EventsMissed,
    LogDue,
    Recorder,
    handle,
)
from actors.upstreams import messages as um
from actors.upstreams.own_calls import OwnDue
from actors.upstreams.resume import ResumableUpstreams, unconfigured
from actors.upstreams.subscribers import CHATTER

RESUMABLE_FIRST = ("resources/subscribe", "resources/unsubscribe", "logging/setLevel")
"""What the record must hold before the client is told that it is done."""


HANDSHAKE_TTL = 60.0
"""Seconds without a message after which a session whose handshake was not finished ends; its record has as long."""

NOTE_WITHIN = 5.0
"""Seconds that the store has to acknowledge an answer of the client; then it is to be said again."""

UNSERVED = 5.0
"""Seconds after which a session ends whose endpoint is configured no more: its requests get 404 at once. A slip in a
configuration may be mended so long."""

CLOSING = 2.0
"""Seconds before the end of a drain from which on new requests wait for the next owner."""

RECOVER_WITHIN = 60.0
"""Seconds after a rebuild in which somebody may ask for requests that an earlier life has recorded."""

SeldomMessage: TypeAlias = (
    sm.EdgeMessage
    | ev.PostBroken
    | ev.Detached
    | um.UpstreamPlaced
    | um.UpstreamHeld
    | um.UpstreamAwaited
    | um.UpstreamDue
    | um.UpstreamRequest
    | um.UpstreamWithdrew
    | um.UpstreamReady
    | um.UpstreamDown
    | um.UpstreamWrongEra
    | Listed
    | CatalogueChanged
    | AboutAccounts
    | Weighed
    | Replaced
    | Renamed
    | Down
)
"""What comes from outside besides POSTs, outcomes and what is told in the course of calls."""

OwnMessage: TypeAlias = (
    sm.OwnMessage
    | ev.StreamFailed
    | ev.StreamTurnDue
    | ev.CallCleared
    | ev.ServerRequestExpired
    | Stored
    | SaveDue
    | LogDue
    | EventsLost
    | EventsMissed
    | AnswerRecorded
    | ChangeDue
    | GatherDue
    | OwnDue
)
"""What a session caused itself."""

FROM_EDGES = (sm.PostMessages, sm.GetEvents, sm.EndSession, sm.Recover, sm.Move, sm.Take)
FROM_OUTSIDE = (*FROM_EDGES, um.UpstreamNotification)
"""What others may send any number of; what a session receives besides is bounded by what it has in hand."""

SessionMessage: TypeAlias = sm.PostMessages | um.UpstreamOutcome | um.UpstreamNotification | SeldomMessage | OwnMessage


class Identity(Struct, frozen=True):
    """What a session is, from its first moment to its last."""

    key: SessionKey
    principal: Principal
    endpoint: str


class SessionActor(Actor):
    """One life of one session: owns its state, and does what its machine wants."""

    __slots__ = (
        "_active",
        "_began",
        "_bounded",
        "_closing",
        "_draining",
        "_ending",
        "_gets",
        "_given_back",
        "_goes_on",
        "_grant",
        "_held_back",
        "_kept",
        "_late",
        "_mailed",
        "_moved",
        "_moving",
        "_numbers",
        "_opened_with",
        "_posts",
        "_quotas",
        "_record",
        "_recorded_on",
        "_recovering",
        "_releases",
        "_state",
        "_via",
        "_watching",
        "endpoint",
        "identity",
        "principal",
        "record",
        "recorder",
        "rights",
        "running",
        "services",
        "tree",
    )

    mailbox_size = 256
    disposable = True

    record: OwnedRecord
    recorder: Recorder

    def __init__(
        self,
        identity: Identity,
        grant: Grant,
        services: Services,
        tree: Tree,
        quotas: Quotas,
        record: Record | Mapping[str, bytes],
    ) -> None:
        self.identity = identity
        self.principal = identity.principal
        self.rights: Rights = NO_RIGHTS
        """Those of the client's last message; of a session that came back, none until there is one."""
        self._opened_with: dict[str, Rights] = EMPTY_TABLE
        """By stream: with what rights a GET has asked for it."""
        self.services = services
        self.tree = tree
        self._quotas = quotas
        self._bounded = bool(quotas.requests.most(identity.principal))
        self._record = record
        """What an earlier life has left, or the fields that a new session was created with."""
        self._posts: dict[int, sm.PostMessages] = EMPTY_TABLE
        """Those that have neither an answer nor a stream, by the number of the connection."""
        self._gets: dict[int, sm.GetEvents] = EMPTY_TABLE
        self._recorded_on: dict[RequestId, tuple[str, int]] = EMPTY_TABLE
        """The streams of requests that an earlier life has recorded, and the epoch at which each was opened, for a
        while."""
        self._recovering: tuple[RequestId, ...] = ()
        self._numbers = count(1)
        """Of POSTs and connections."""
        self._ending: list[Reply] = []
        """Who waits for the end of the session."""
        self._releases: dict[int, tuple[Callable[[], None], ...]] = EMPTY_TABLE
        """What is to be done with calls as soon as the record does not say that they were not sent."""
        self.running = Durations(services.telemetry, services.shown)
        self._began = self._active = 0.0
        """When the client was last heard of."""
        self._watching = False
        self._held_back: list[SessionMessage] | None = None
        """What has come since the record was given back, or since it can't be told whose it is, while that is so."""
        self._given_back = False
        self._moved = False
        """The session is another's."""
        self._draining = self._closing = False
        self._late: tuple[sm.PostMessages, ...] = ()
        """Of a session that is about to be given back: for its next owner."""
        self._moving: tuple[Reply, ...] | None = None
        """Who asked that it be given back, while it is."""
        self._via, self._mailed = "", 0
        """The replica to which its client's last POSTs came, and how many of them."""
        self._goes_on = False
        """This life is over, the session is not."""
        served = services.table.value.endpoints.get(identity.endpoint)
        transparent = served is not None and served.kind == "transparent"
        limits = services.limits
        rules = Rules(limits.requests_per_session, limits.get_streams_per_session, limits.box_events, not transparent)
        self._state = Session(grant.epoch, rules)
        self._grant = grant
        self.endpoint = SessionEndpoint(self, identity.endpoint, services, tree, merged=not transparent)
        self._kept = self.endpoint.kept = ResumableUpstreams(identity.key, services.sealer, self)

    def __repr__(self) -> str:
        state = self._state
        return f"<SessionActor {state.phase.value}: {len(state.requests)} requests, {len(state.streams)} streams>"

    def statistics(self) -> dict[str, int]:
        """How much is under way."""
        return {**self.endpoint.statistics(), "running": len(self.running), "asks": len(self._state.asks)}

    # What the endpoint sees of it

    @property
    def epoch(self) -> int:
        """The epoch of this life."""
        return self._state.epoch

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

    @property
    def listening(self) -> Rights | None:
        """As in `SessionHost`."""
        name = streams.reader(self._state)
        return self._opened_with.get(name) if name is not None else None

    @property
    def unread(self) -> bool:
        """As in `SessionHost`."""
        return streams.reader(self._state) is None

    def _shown_otherwise(self, stream: str | None, rights: Rights) -> bool:
        """Whether a stream of what belongs to no request was read by a token that sees other things than this one; of
        an earlier life that is known of the token that came last."""
        if self.services.table.value.policy is None or stream is None or not stream.startswith("g"):
            return False
        return self.endpoint.sees_otherwise(self._opened_with.get(stream), rights)

    def brought_with(self, call: int) -> Rights | None:
        """As in `SessionHost`."""
        entry = self._state.called(call)
        stream = self._state.posts[entry.post].stream if entry is not None else None
        return self._opened_with.get(stream) if stream is not None else None

    def _opened(self, stream: str, rights: Rights) -> None:
        """A stream goes out on a connection that was asked for with these rights."""
        opened = put(self._opened_with, stream, rights)
        self._opened_with = {name: found for name, found in opened.items() if name in self._state.streams}

    def save(self, fields: Fields) -> None:
        """Changes the record. Before the handshake is over there is nothing to come back to, and nothing is written."""
        (self.record.note if self._state.phase in UNRECORDED else self.record.change)(fields)

    def note(self, fields: Fields) -> None:
        """They are written with whatever is written next."""
        self.record.note(fields)

    def routed(self, call: int) -> None:
        """A call that had to wait has found its backend, whose deadline may be shorter than that which runs."""
        entry = self._state.called(call)
        if entry is not None and entry.timed:
            self._start_deadline(fx.StartDeadline(call, entry.accepted, entry.accepted))
        stream = self._state.posts[entry.post].stream if entry is not None else None
        if stream is not None:
            self._recorded(sm.StreamRecorded(stream, (call,)))

    def leave(self, call: int, act: Callable[[], None]) -> None:
        """Acts as soon as the record does not say of this call that it was not sent; never, if that can't be had or
        nobody waits for it any more."""
        self._releases = put(self._releases, call, (*self._releases.get(call, ()), act))
        self.event(ev.CallDue(call))
        if call not in self._state.calls:
            self._releases.pop(call, None)

    def event(self, event: ev.SessionEvent, *, recorded: bool = False) -> None:
        """Steps the machine and runs the effects. An outcome that must be in the record first waits until it is."""
        before = self._state
        if type(event) is ev.CallEnded:
            entry = before.called(event.call) if event.ok and not recorded else None
            if entry is not None and entry.method in RESUMABLE_FIRST:
                if entry.level is not None:
                    self.save(session_record.level(entry.level))
                self.record.then(lambda: self.event(event, recorded=True))
                return
            self.running.ended(event, self.ctx.now(), before.version)
        self._state, effects = step(before, event)
        more = len(self._state.requests) - len(before.requests)
        if more and self._bounded:
            self._quotas.requests.add(self.principal, more)
        else:
            self._quotas.requests.total += more
        if self._state.asks is not before.asks and self.services.audit.on:
            audit_lines.changed(self.services.audit, before.asks, self._state.asks, event, self._who_is_asked)
        self._run(effects)

    def _who_is_asked(self, ask: ServerRequest) -> dict[str, Any]:
        operation = self.operation(ask.call) if ask.call is not None else None
        identity = self.identity
        way = {"endpoint": identity.endpoint, "session": handle(identity.key), "era": "legacy"}
        return {**{k: v for k, v in way.items() if v}, **who_asks(self.principal, self.rights, operation)}

    # Life

    def started(self) -> None:
        """Begins a life: a new session's, or that of a record."""
        self.record = OwnedRecord(self.identity.key, self.services, self.ctx)
        left, self._record = self._record, NO_FIELDS
        if isinstance(left, Record):
            self.record.own(self._grant, left.rev, left.fields)
        else:
            self.record.own(self._grant, 0, left)
        self.record.life = self
        self.recorder = Recorder(self.record, self.services, self.ctx, self._quotas.streams, self)
        self._began = self._active = self.ctx.now()
        if isinstance(left, Record):
            self._rebuild(left)
        self._settle()

    def _rebuild(self, record: Record) -> None:
        self.tree.expiry.reply(Returned(self.identity.key))
        self._kept.load(record.fields, self.services.table.value)
        self.recorder.load(record)
        self._state, effects = rebuild.rebuild(record, self._state, self.ctx.now(), self._kept.reachable)
        self._quotas.requests.add(self.principal, len(self._state.requests))
        if record.requests:
            read, id_of = session_record.read_request, session_record.request_id
            streams = {id_of(key): read(value).stream for key, value in record.requests.items()}
            openers = {name: head.opener for name, head in record.streams.items()}
            self._recorded_on = {id: (name, openers.get(name, 0)) for id, name in streams.items()}
            self.ctx.set_timer("recover", RECOVER_WITHIN, sm.RecoverDue())
        # A first write of this life: it clears the count of rebuilds that never got so far.
        self.save(session_record.handshake(self._state) | last_activity(None))
        self.endpoint.recall(record.fields)
        self.endpoint.rebuilt(self._state.subscriptions)
        self._recorded_under(record.fields)
        if self.services.observer is not None:
            self._observe_lost(record)
            self._mark_again(record)
        self._run(effects)

    def receive(self, message: SessionMessage) -> None:
        """One message."""
        cluster = self.services.cluster
        if self._held_back is None and (cluster.doubtful or self.record.grant.term != cluster.term):
            allowed = self._hold_still()
            if allowed is Allowed.OVER and isinstance(message, FROM_EDGES):
                message.reply.answer(sm.refusing(message, errors.store_away()))
                return
        if self._closing and isinstance(message, sm.PostMessages) and self._comes_late(message):
            return
        if self._held_back is None or isinstance(message, sm.Released | sm.DoubtDue | sm.Describe | Stored):
            self._handle(message)
            if self.record.changed or self._draining or self._moving is not None or self._via or not self._watching:
                self._settle()
        else:
            self._park(message)

    @property
    def _held(self) -> bool:
        """Whether it holds still."""
        return self._held_back is not None

    def _park(self, message: SessionMessage) -> None:
        held = self._held_back
        assert held is not None
        if len(held) < self.mailbox_size or not isinstance(message, FROM_OUTSIDE):
            held.append(message)
        elif isinstance(message, um.UpstreamNotification):
            self.services.telemetry.count("stagedoor_messages_dropped_total", ("overflow",))
        else:
            message.reply.answer(sm.refusing(message, errors.overloaded()))

    def _settle(self) -> None:
        """What may follow a message: the record is written, the clock of its idle time runs, the drain is over."""
        if self._held_back is not None or self._state.phase is SessionPhase.CLOSED:
            return
        if self.record.changed:
            self.record.flush()
        if not self._watching:
            self._watch(self.services.limits.passivate_after)
        if self._state.requests or self._posts:
            return
        if self._moving is not None:
            self._give_back()
        elif self._draining:
            self._leave_process()
        elif self._via and self._follows:
            self._moving = ()
            self._give_back()

    def _handle(self, message: SessionMessage) -> None:
        """What calls come to. (A match that fails on a Struct costs as much as three comparisons of its type.)"""
        if type(message) is sm.PostMessages:
            self._post(message)
        elif type(message) is um.UpstreamOutcome:
            self.endpoint.outcome(message)
        elif type(message) is um.UpstreamNotification:
            self._told(message)
        else:
            self._handle_seldom(message)

    def _handle_seldom(self, message: SeldomMessage | OwnMessage) -> None:
        """What else comes from outside."""
        match message:
            case um.UpstreamRequest():
                self.endpoint.asked(message)
            case sm.GetEvents():
                self._get(message)
            case ev.Detached():
                self._heard()
                self._gets.pop(message.connection, None)
                self.event(message)
            case ev.PostBroken():
                self._broken(message)
            case sm.EndSession():
                self._ending.append(message.reply)
                self.event(ev.Ended(message.reason))
            case sm.Recover():
                self._recover(message)
            case sm.Move():
                self._move(message)
            case sm.Take():
                message.reply.answer(True)
            case sm.Describe():
                message.reply.answer(self._description())
            case um.UpstreamPlaced():
                self._placed(message)
            case um.UpstreamAwaited():
                self.event(ev.CallAwaited(message.call))
            case um.UpstreamHeld():
                self.event(ev.CallHeld(message.call))
            case um.UpstreamDue():
                self.leave(message.call, lambda: self.endpoint.release(message.call))
            case um.UpstreamWithdrew():
                self.endpoint.withdrew(message)
            case um.UpstreamReady():
                self.endpoint.ready(message)
            case um.UpstreamDown():
                self.endpoint.upstreams.down(message)
            case um.UpstreamWrongEra():
                self.endpoint.upstreams.wrong_era(message)
            case Listed() | CatalogueChanged() | Invited() | Waited() | AccountChanged() | Weighed():
                self.endpoint.about_lists(message)
            case Replaced():
                self._reconfigured(message.before)
            case Renamed():
                pass  # it is claimed again before any message
            case Down():
                self.endpoint.upstream_ended(message.ref)
            case _:
                self._handle_own(message)

    def _handle_own(self, message: OwnMessage) -> None:
        """What it caused itself: outcomes of the store, and its clocks."""
        match message:
            case Stored():
                self._stored(message)
            case SaveDue():
                self.record.write()
            case sm.UnservedDue():
                self._unserved_due()
            case sm.StreamRecorded():
                self._recorded(message)
            case ev.CallCleared():
                self.event(message)
                self._releases.pop(message.call, None)  # of a call that is over
            case ev.StreamFailed(reason="fenced"):
                self._lose(Refused.FENCED)
            case ev.StreamFailed():
                self._stream_failed(message)
            case ev.StreamTurnDue() | ev.ServerRequestExpired():
                self.event(message)
            case LogDue():
                self.recorder.retry(message.stream)
            case AnswerRecorded():
                self.ctx.cancel_timer(("note", message.post))
                self._answer_post(message.post, Answer(202))
            case sm.NoteDue():
                self._answer_post(message.post, Answer.refusing(errors.store_away()))
            case EventsLost() | EventsMissed():
                self._events_missing(message)
            case sm.Released():
                self._released(message.outcome)
            case sm.DoubtDue():
                self._doubt_due()
            case sm.IdleDue():
                self._idle_due()
            case sm.RecoverDue():
                self._recorded_on = EMPTY_TABLE
            case sm.ClosingDue():
                self._closing = True
            case sm.MoveDue():
                self._give_back()
            case sm.DrainDue():
                self._drain_due()
            case sm.DeadlineDue():
                self.event(ev.CallExpired(message.call, self.endpoint.calls.get(message.call)))
            case ChangeDue() | GatherDue():
                self.endpoint.about_lists(message)
            case OwnDue():
                self.endpoint.upstreams.overdue(message.call)
            case _:
                assert_never(message)

    def _stream_failed(self, message: ev.StreamFailed) -> None:
        """What was asked on it nobody saw, or can be expected to answer."""
        self.event(message)
        for asked in [id for id, ask in self._state.asks.items() if ask.stream == message.stream]:
            self.event(ev.ServerRequestExpired(asked))

    def stopped(self, reason: Exit) -> None:
        """Whoever still waits is told. What was held back was not begun: it is for the next life."""
        if self.running.operations:
            self._unobserved(crashed=reason.error is not None)
        for message in (*(self._held_back or ()), *self._late):
            if isinstance(message, FROM_EDGES):
                message.reply.fail(ActorDown(self.ctx.name, reason))
        self._quotas.requests.add(self.principal, -len(self._state.requests))
        for post in self._posts.values():
            post.reply.answer(sm.unanswered(post.messages, batch=post.batch))
        closed = self._state.phase is SessionPhase.CLOSED
        if self._moved:
            for reply in (*(get.reply for get in self._gets.values()), *self._ending):
                reply.fail(ActorDown(self.ctx.name, reason))
        elif reason.abnormal or closed:
            restored = errors.overloaded("the session is being restored")
            for get in self._gets.values():
                get.reply.answer(Answer.refusing(errors.session_not_found() if closed else restored))
        self.recorder.stop(crashed=reason.error is not None, goes_on=self._goes_on)
        if closed:
            seconds = self.ctx.now() - self._began
            labels = ("", "http", self._state.version)
            self.services.telemetry.observe("mcp_server_session_duration_seconds", seconds, labels)
        self.endpoint.let_go()

    # The client

    def _heard(self) -> None:
        """Something of the client's came, or went. The record of a busy session is kept from expiring."""
        self._active = self.ctx.now()
        if self._active - self.record.touched > self.services.limits.idle_ttl / 8:
            self.record.keep()

    def _post(self, message: sm.PostMessages) -> None:
        self._heard()
        if self._bounded:
            ids = [m.id for m in message.messages if isinstance(m, Request)]
            if ids and not self._quotas.requests.room(self.principal, len(ids)):
                message.reply.answer(Answer.refusing(errors.too_many_requests("of this principal"), ids[0]))
                return
        if message.version is not None and message.version != self._state.version and self._state.version:
            # Allowed, and without effect: the session goes on in the revision that it negotiated.
            self.services.telemetry.count("stagedoor_version_mismatches_total")
        post = next(self._numbers)
        self._posts = put(self._posts, post, message)
        message.reply.on_abandon = lambda: self.ctx.ref.reply(ev.PostBroken(post))
        self.rights = message.rights
        if message.via or self._via:
            self._came_by(message.via)
        if self.services.table.value.policy is not None:
            self.endpoint.heard()
        traces = self._received(message.operations) if message.operations else ev.NO_TRACES
        rights, refused = message.rights, message.refused
        self.event(ev.Posted(post, message.messages, message.batch, self._active, refused, rights, traces))

    def _broken(self, message: ev.PostBroken) -> None:
        post = self._posts.pop(message.post, None)
        if post is not None:
            for operation in post.operations.values():
                operation.without_client = True
            self.event(message)

    def _answer_post(self, post: int, answer: Answer) -> bool:
        """Settles a waiting POST; False if nobody waits any more."""
        waiting = self._posts.pop(post, None)
        self._posts = self._posts or EMPTY_TABLE
        return waiting is not None and waiting.reply.answer(answer)

    def _get(self, message: sm.GetEvents) -> None:
        self._heard()
        if message.again and self.recorder.read_by_newer(message.stream or "", message.reader):
            message.reply.answer(Answer.refusing(errors.superseded()))
            return
        if message.epoch > self.record.grant.epoch and self.services.cluster.doubtful:
            # Its client was served by a later life of the session, of which this process can't hear at present.
            message.reply.answer(Answer.refusing(errors.store_away()))
            return
        if not message.again:
            if self._shown_otherwise(message.stream, message.rights):
                # What was said there was for a token that sees other things: it begins anew, and is told of the gap.
                message = msgspec.structs.replace(message, stream=None, seq=max(1, message.seq))
            self.rights = message.rights
            if self.services.table.value.policy is not None:
                self.endpoint.heard()
        connection = next(self._numbers)
        self._gets = put(self._gets, connection, message)
        message.reply.on_abandon = lambda: self.ctx.ref.reply(ev.Detached(connection, message.stream or ""))
        sees = partial(self.endpoint.may_have, message.rights)
        self.event(ev.Attached(connection, message.stream, message.epoch, message.seq, sees))
        if message.stream is None and message.seq:
            self._events_missing(EventsMissed())

    def _recover(self, message: sm.Recover) -> None:
        """As a resumption by a client that was not given an id: a stream without its last event still owes these."""
        streams = {self._recorded_on[id] for id in message.ids if id in self._recorded_on}
        if len(streams) != 1:
            message.reply.answer(None)
            return
        self._recovering = message.ids
        stream, opener = streams.pop()
        self._get(sm.GetEvents(stream, opener, 0, message.reply, rights=self.rights))
        self._recovering = ()

    # Who observes its requests

    @staticmethod
    def _received(operations: Mapping[RequestId, Operation]) -> Mapping[RequestId, str]:
        """By what later work can point at them."""
        marks = {}
        for id, operation in operations.items():
            operation.received = True
            marks[id] = operation.mark
        return marks

    def _mark(self, stream: str, marks: tuple[str, ...]) -> None:
        """What comes back for this stream goes on with these requests."""
        observer = self.services.observer
        if observer is not None and observer.traces:
            self.recorder.mark(stream, marks)

    def _mark_again(self, record: Record) -> None:
        for recorded in map(session_record.read_request, record.requests.values()):
            self._mark(recorded.stream, (*self.recorder.marks.get(recorded.stream, ()), recorded.trace))

    def _observe(self, call: int) -> None:
        entry = self._state.called(call)
        post = self._posts.get(entry.post) if entry is not None else None
        operation = post.operations.get(entry.id) if entry is not None and post is not None else None
        if operation is not None:
            operation.version = self._state.version
            self.running.observe(call, operation)

    def sent(self, call: int, backend: str) -> None:
        """A call goes to this server."""
        if (operation := self.running.operations.get(call)) is not None:
            operation.backend = backend

    def operation(self, call: int) -> Operation | None:
        """As in `Host`."""
        return self.running.operations.get(call)

    def _observe_again(self, effect: fx.Continue) -> None:
        """A request that an earlier life began: its rest is a trace of its own, which points at the first."""
        entry = self._state.called(effect.call)
        if entry is not None:
            operation = self._later(entry.id, entry.method, entry.trace)
            operation.backend = effect.backend
            self.running.began(effect.call, effect.method, EMPTY, self.ctx.now())
            self.running.observe(effect.call, operation)

    def _observe_lost(self, record: Record) -> None:
        """What an earlier life had in hand and nobody can go on with is told here, once: that life could not."""
        for key, value in record.requests.items():
            id, recorded = session_record.request_id(key), session_record.read_request(value)
            if id not in self._state.requests:
                self._later(id, recorded.method, recorded.trace).ended("lost", "lost")

    def _later(self, id: RequestId, method: str, trace: str) -> Operation:
        assert self.services.observer is not None
        first = parse(trace)
        operation = Operation(
            self.services.observer,
            "server",
            method,
            request_id=id,
            endpoint=self.identity.endpoint,
            session=handle(self.identity.key),
            era="legacy",
            version=self._state.version,
            links=(first,) if first is not None else (),
        )
        if self.services.audit.on and method in AUDITED:
            operation.audited = partial(Audited, self.principal.name)
        return operation

    def _unobserved(self, *, crashed: bool) -> None:
        """This life ends: what is recorded the next one goes on with, or says that it is lost."""
        state, goes_on = self._state, self._goes_on or self._moved or crashed
        requests = [
            entry for entry in state.requests.values() if goes_on and state.posts[entry.post].stream is not None
        ]
        self.running.left("handed_over", [entry.call for entry in requests])
        self.running.left("handed_over" if self._moved else "lost")

    # The backends

    def _placed(self, message: um.UpstreamPlaced) -> None:
        if message.call is None:
            self._kept.moved(message.backend, message.place.cursor)
        else:
            self.event(ev.CallPlaced(message.backend, message.call, message.place))

    def _told(self, message: um.UpstreamNotification) -> None:
        if message.call is None and message.place is not None:
            # Before what comes of it, which takes it along into the store.
            self._kept.moved(message.backend, message.place.cursor)
        if message.method in CHATTER and self.recorder.pressed():
            self.services.telemetry.count("stagedoor_events_shed_total", (message.method.split("/")[-1],))
            return
        self.endpoint.told(message)

    def _recorded(self, message: sm.StreamRecorded) -> None:
        """From here on the record can say of them that they were not sent."""
        for call in message.calls:
            if call in self._state.calls and self.recorder.records(message.stream):
                self.endpoint.hold(call)

    # Effects

    def _run(self, effects: fx.Effects) -> None:
        """What calls come to; as in `_handle`."""
        for effect in effects:
            if type(effect) is fx.StartTurnClock:
                seconds = self.services.limits.stream_after
                self.ctx.set_timer(("turn", effect.post), seconds, ev.StreamTurnDue(effect.post))
            elif type(effect) is fx.Dispatch:
                self.running.began(effect.call, effect.method, effect.params, self._active)
                if self.services.observer is not None:
                    self._observe(effect.call)
                self.endpoint.dispatch(effect)
            elif type(effect) is fx.StopTurnClock:
                self.ctx.cancel_timer(("turn", effect.post))
            elif type(effect) is fx.AnswerPost:
                if not self._answer_post(effect.post, Answer(200, effect.body)):
                    self.services.telemetry.count("stagedoor_answers_dropped_total", ("connection_gone",))
            elif type(effect) is fx.Append:
                if effect.accepts is not None:
                    self.ctx.set_timer(("note", effect.accepts), NOTE_WITHIN, sm.NoteDue(effect.accepts))
                self.recorder.append(effect)
            elif type(effect) is fx.StartDeadline:
                self._start_deadline(effect)
            else:
                self._run_seldom(effect)

    def _run_seldom(self, effect: fx.SeldomEffect) -> None:
        """What else the machine wants: of the client's connections, of the backends, of the session as a whole."""
        match effect:
            case fx.StopDeadline():
                self.ctx.cancel_timer(("deadline", effect.call))
            case fx.Accept(post):
                # Whoever is told so may count on it: from `notifications/initialized` on there is a session.
                self.record.then(lambda: self._answer_post(post, Answer(202)))
            case fx.RefusePost():
                self._answer_post(effect.post, Answer.refusing(effect.error, effect.id))
            case fx.OpenStream():
                self._open_stream(effect)
            case fx.Follow():
                self._follow(effect)
            case fx.RefuseGet():
                get = self._gets.pop(effect.connection, None)
                if get is not None:
                    get.reply.answer(Answer.refusing(effect.error))
            case fx.CloseConnection():
                self._close_connection(effect)
            case fx.CancelCall():
                self.running.forget(effect.call, effect.error)
                self._releases.pop(effect.call, None)
                self.endpoint.cancel(effect.call, effect.reason)
            case fx.Continue():
                self._continue(effect)
            case fx.Release():
                for act in self._releases.pop(effect.call, ()):
                    act()
            case fx.Broadcast():
                self.endpoint.broadcast(effect.method, effect.params)
            case fx.NotifyBackend():
                self.endpoint.tell(effect.backend, effect.method, effect.params)
            case fx.AnswerBackend():
                self.endpoint.answer(effect.backend, effect.id, effect.ok, effect.payload, effect.unheard)
            case fx.UseLevel():
                self.endpoint.use_level(effect.level)
            case fx.StartServerRequestClock():
                limits = self.services.limits
                seconds = limits.request_deadline if effect.stream else limits.server_request_wait
                self.ctx.set_timer(("ask", effect.ask), seconds, ev.ServerRequestExpired(effect.ask))
            case fx.StopServerRequestClock():
                self.ctx.cancel_timer(("ask", effect.ask))
            case fx.Save():
                self.save(effect.fields)
            case fx.Count():
                self.services.telemetry.count("stagedoor_messages_dropped_total", (effect.what,))
            case fx.End():
                self._end(effect.reason)
            case _:
                assert_never(effect)

    def _continue(self, effect: fx.Continue) -> None:
        self.services.telemetry.count("stagedoor_requests_continued_total", (effect.backend,))
        if self.services.observer is not None:
            self._observe_again(effect)
        self.endpoint.go_on(effect)

    def _open_stream(self, effect: fx.OpenStream) -> None:
        number = effect.post if effect.post is not None else effect.connection
        assert number is not None
        posts, gets, recorder, endpoint, ref = self._posts, self._gets, self.recorder, self.endpoint, self.ctx.ref
        post = posts.get(number)
        if post is not None and post.operations:
            self._mark(effect.stream, tuple(operation.mark for operation in post.operations.values()))
        pending_replies = [m.id for m in post.messages if isinstance(m, Request)] if post is not None else []
        reader = gets[number].reader if number in gets else 0
        if number in gets and gets[number].rights is not NO_RIGHTS:
            self._opened(effect.stream, gets[number].rights)

        def opened(connection: Connection) -> None:
            # Perhaps after the end of the actor, which has dropped what it held.
            calls: tuple[int, ...] = ()
            if effect.calls and recorder.records(effect.stream):
                calls = tuple(call for call in effect.calls if endpoint.may_wait(call))
            if calls or (ref.alive and (self._draining or self._moving is not None)):
                ref.reply(sm.StreamRecorded(effect.stream, calls))
            asked = posts.pop(number, None) or gets.pop(number, None)
            if asked is None or not asked.reply.answer(Streaming(connection)):
                connection.close()

        recorder.open(effect, number, opened, pending_replies, reader)

    def _follow(self, effect: fx.Follow) -> None:
        get = self._gets.pop(effect.connection, None)
        if get is None:
            return
        if get.rights is not NO_RIGHTS:
            self._opened(effect.stream, get.rights)
        connection, head = None, 0
        ending = effect.stream not in self._state.streams and self.recorder.holds(effect.stream)
        if effect.live or ending:
            connection, head = self.recorder.follow(effect, effect.connection, self._recovering, get.reader)
        key = self.identity.key
        place = key, effect.stream, effect.epoch, effect.seq
        follower = Follower(self.services.store, *place, connection, head, self.recorder.marks.get(effect.stream, ()))
        if not get.reply.answer(follower):
            follower.close()

    def _close_connection(self, effect: fx.CloseConnection) -> None:
        retry = effect.retry
        jittered = None if retry is None else int(retry * (1 + self.services.jitter()))
        self.recorder.close(effect.connection, jittered)

    def _start_deadline(self, effect: fx.StartDeadline) -> None:
        latest = effect.accepted + self.services.limits.request_deadline_cap
        due = min(effect.since + self.endpoint.upstreams.deadline(effect.call), latest)
        self.ctx.set_timer(("deadline", effect.call), max(0.0, due - self.ctx.now()), sm.DeadlineDue(effect.call))

    def _end(self, reason: str) -> None:
        """The machine is closed: record, upstream connections and actor go. A session that is another's goes on
        there, and its backends' sessions with it."""
        self.services.telemetry.count("stagedoor_sessions_ended_total", (reason,))
        if reason == FENCED:
            self._moved, self._held_back = True, self._held_back or []  # nothing more is begun here
            self.services.log.info("session_moved", session=handle(self.identity.key))
            self.endpoint.upstreams.put_down()
            self.ctx.stop(NORMAL)
            return
        self.endpoint.delete_upstreams()
        ending, ref, identity = self._ending, self.ctx.ref, self.identity

        def done(outcome: Any) -> None:
            why = outcome.reason if isinstance(outcome, Failed) else None
            self._moved = why is Refused.FENCED  # then it is to end where it goes on
            for reply in () if self._moved else ending:
                reply.answer(Answer.refusing(errors.store_away()) if why in UNAVAILABLE else Answer(200))
            # Only now: whoever asked for the end must not hear of it before it is recorded.
            ref.stop(NORMAL)

        ended = Ending(identity.key, self.record.grant, identity.principal.name, identity.endpoint, reason)
        record_end(ended, self.services, self.tree.expiry, done)
        self.services.log.info("session_ended", session=handle(identity.key), reason=reason)

    # Whose it is

    def _hold_still(self) -> Allowed:
        """What may be done at present. Where that is nothing, what comes is held back, and looked at again: when the
        session was claimed under the present name of the process, or after a moment of doubt."""
        allowed = self.tree.doubt.allowed(self.record.grant, self.ctx.now())
        if allowed is Allowed.FORMER:
            self.ctx.cancel_timer("doubt")
            self.record.reclaim(self.record.grant.owner)
        elif allowed is Allowed.HOLD:
            self.ctx.set_timer("doubt", AGAIN, sm.DoubtDue())
        if allowed in (Allowed.FORMER, Allowed.HOLD) and self._held_back is None:
            self._held_back = []
        return allowed

    def _doubt_due(self) -> None:
        if self._hold_still() in (Allowed.FORMER, Allowed.HOLD):
            return
        if not self.record.owned:
            self.ctx.set_timer("doubt", RETRY, sm.DoubtDue())
        self._go_on()

    def _stored(self, message: Stored) -> None:
        self.record.heard(message)
        if self.record.lost is not None:
            self._lose(self.record.lost)
        elif isinstance(message.outcome, Failed):
            if message.outcome.reason in UNAVAILABLE and not self.record.owned:
                self._not_claimed()
            elif message.step == "restore" and self._given_back:
                self._stay()  # tried again with its next write
        elif message.step == "reclaim":
            self._claimed(message.outcome[1])
        elif message.step == "restore":
            self._restored()
            if self.record.owned:
                self.recorder.restored()
                if self._given_back:
                    self._stay()
                self._compare()

    def content(self, grant: Grant) -> Record:
        """What the store had acknowledged of what is in flight: what is on its way goes there again."""
        recorder = self.recorder
        heads = recorder.heads(self._heads())
        return Record(grant.owner, grant.epoch, requests=recorder.requests, asked=recorder.asked, streams=heads)

    def _heads(self) -> dict[str, StreamHead]:
        """Of the unfinished streams, with all that is on its way."""
        return {name: StreamHead(stream.seq, opener=stream.opener) for name, stream in self._state.streams.items()}

    def surely_lost(self) -> bool:
        """See `OwnedRecord`."""
        return self.tree.doubt.lapse < REMEMBERED

    @property
    def open_asks(self) -> Container[str]:
        """The server requests that wait for an answer of the client."""
        return self._state.asks

    def _events_missing(self, message: EventsLost | EventsMissed) -> None:
        if isinstance(message, EventsMissed) or message.stream.startswith("g"):
            self.endpoint.announce_all()
        if isinstance(message, EventsLost):
            self._compare()

    def _compare(self) -> None:
        """The store has lost something: what its record lacks, or says too much, is put right."""
        self.services.store.read(self.identity.key, self.ctx.guard(self._compared))

    def _compared(self, found: Record | Failed) -> None:
        grant = self.record.grant
        if isinstance(found, Record) and self.record.owned and (found.owner, found.epoch) == (grant.owner, grant.epoch):
            if losses.cut_off(self._state, found, self._on_their_way(found)):
                # Another end would be written under the ids of the one that was lost: it needs another epoch.
                self.record.distrust()
                self._hold_still()
            else:
                self._reconcile(found)

    def _reconcile(self, found: Record) -> None:
        if self._state.phase is not SessionPhase.CLOSED:
            self.recorder.compare(found.streams, self._heads())
            expected = self.recorder.expected()
            self._state, effects = losses.reconcile(self._state, found, *expected, self._on_their_way(found))
            self._run(effects)

    def _on_their_way(self, found: Record) -> list[str]:
        """The streams whose last event is on its way."""
        return [name for name in found.streams if self.recorder.holds(name)]

    def _restored(self) -> None:
        """The store had lost the record. What is missing of the streams of calls is told to whoever comes back for
        them; what was said of changes is said once more."""
        self.services.telemetry.count("stagedoor_records_restored_total")
        self.services.log.warning("session_restored", session=handle(self.identity.key))
        self.endpoint.announce_all()

    def _claimed(self, record: Record) -> None:
        """It is ours again, at another epoch."""
        self._state = msgspec.structs.replace(self._state, epoch=self.record.grant.epoch)
        self.recorder.regranted(record.streams)
        self._reconcile(record)
        self._stay()

    def _not_claimed(self) -> None:
        """The store is away. What was given back goes, for whoever comes next finds it there."""
        held, self._held_back = self._held_back or [], []
        for message in held:
            if isinstance(message, FROM_EDGES):
                # It was not begun, and may be sent again.
                message.reply.answer(sm.refusing(message, errors.store_away()))
            else:
                self._held_back.append(message)
        if self._given_back:
            self._go()
        else:
            self.ctx.set_timer("doubt", RETRY, sm.DoubtDue())

    def _lose(self, reason: Refused) -> None:
        """It is another's, or there is none any more."""
        if reason is Refused.FENCED:
            self.recorder.lose()
        self.event(ev.Ended(reason.value))

    def _stay(self) -> None:
        """It lives on, in the store too, which a first write says; unless it is in doubt again whose it is."""
        self._given_back = False
        self.save(last_activity(None))
        if self._hold_still() not in (Allowed.FORMER, Allowed.HOLD):
            self._go_on()

    def _go_on(self) -> None:
        """With what was held back. As in a mailbox: a request whose client is gone by now was never begun."""
        held, self._held_back = self._held_back or [], None
        for message in held:
            if isinstance(message, FROM_EDGES) and message.reply.abandoned:
                continue
            if self._held:
                self._park(message)
            else:
                self._handle(message)

    def _description(self) -> sm.Description:
        state = self._state
        idle = 0.0 if state.requests else self.ctx.now() - self._active
        held = sum(stream.connection is not None for stream in state.streams.values())
        return sm.Description(state.version, idle, len(state.requests), held, len(state.asks))

    # Out of memory

    @property
    def busy(self) -> bool:
        """Whether anything is under way."""
        state = self._state
        waits = state.requests or state.asks or self._posts or self._gets
        return bool(waits) or self.recorder.busy or not self.record.settled

    def _watch(self, seconds: float) -> None:
        """Looks again after a while."""
        self._watching = True
        self.ctx.set_timer("idle", max(seconds, 0.01), sm.IdleDue())

    def _idle_due(self) -> None:
        """Time to look."""
        self._watching = False
        if self.busy:
            self._heard()
            return
        limits, idle = self.services.limits, self.ctx.now() - self._active
        unfinished = self._state.phase is not SessionPhase.OPERATION
        end = HANDSHAKE_TTL if unfinished else limits.idle_ttl
        leave = limits.passivate_after
        if idle >= end:
            self.event(ev.Ended("idle"))
        elif idle < leave:
            self._watch(min(leave, end) - idle)
        elif unfinished or self.endpoint.bound:
            if self._active > self.record.touched:
                self.record.keep()  # it is not looked at again before the end, and the record must last as long
            self.endpoint.shrink()
            again = limits.reload_grace if self.endpoint.former else end  # what holds it here may be gone then
            self._watch(min(again, end - idle))
        else:
            self._held_back, self._given_back = [], True
            since = last_activity(self.services.cluster.now() - idle)
            self.record.release(since, lambda out: self.ctx.ref.reply(sm.Released(out)))

    def _released(self, outcome: Any) -> None:
        """Given back. If nothing came meanwhile the object goes; else the session is claimed again."""
        term = self.services.cluster.term
        if self._moving is not None:
            away = isinstance(outcome, Failed)
            rests(self.identity.key, self.services.limits.idle_ttl, self.services)
            for reply in self._moving:
                reply.answer(Answer.refusing(errors.store_away()) if away else True)
            self.ctx.stop(SHUTDOWN)
        elif isinstance(outcome, Failed) and outcome.reason in LOSSES and self.record.grant.term == term:
            # What is held back waits until it is known whether another has it, or the store has lost it.
            if not self.record.restore(outcome.reason):
                self._lose(outcome.reason)
        elif isinstance(outcome, Failed):
            self._stay()
        elif not self._held_back and self.ctx.idle and self.record.settled:
            self._go()
        else:
            self.record.reclaim(None)

    def _go(self) -> None:
        self.endpoint.upstreams.put_down()
        left = self.services.limits.idle_ttl - (self.ctx.now() - self._active)
        rests(self.identity.key, left, self.services)
        self.ctx.stop()

    # The end of the process: what is in flight has until the deadline, then the record is given back

    def drain(self, deadline: float) -> None:
        """What is in flight has until the deadline (trio's clock), and so has what comes before that is over."""
        self._draining = True
        left = max(0.0, deadline - self.ctx.now() - DRAIN_MARGIN)
        self.ctx.set_timer("closing", max(left - CLOSING, left / 2), sm.ClosingDue())
        self.ctx.set_timer("drain", left, sm.DrainDue())
        if (self._state.phase, "drain") in TRANSITIONS:
            self.event(ev.DrainStarted())
        self._settle()

    def _drain_due(self) -> None:
        """The deadline is near. Calls that somebody else can go on with are left as they are."""
        self.event(ev.DrainOverdue(self._kept.lasting if self._outlived else frozenset()))
        if self._draining and self._state.phase is not SessionPhase.CLOSED:
            self._leave_process()  # with what is left: the next process goes on where the record says

    def _leave_process(self) -> None:
        """The actor goes, the session stays: its record is given back for whoever claims it next."""
        self._held_back = []  # nothing more is begun here
        self._draining, self._goes_on = False, self._outlived
        self.record.release(last_activity(self.services.cluster.now()), work=bool(self._state.requests))
        if self._outlived:
            rests(self.identity.key, self.services.limits.idle_ttl, self.services)
            self.endpoint.upstreams.put_down()
        self.ctx.stop(SHUTDOWN)

    @property
    def _outlived(self) -> bool:
        """Whether anybody can go on with the session when this process has ended."""
        return self.services.store.durable or self.tree.doubt.others

    def _comes_late(self, message: sm.PostMessages) -> bool:
        """What may take long waits for the next owner, and what comes after it, so that nothing overtakes it; answers
        to what is asked here are taken."""
        if not self._late and all(not isinstance(m, Request) or m.method == "ping" for m in message.messages):
            return False
        if all(isinstance(m, Result | Error) for m in message.messages):
            return False
        if len(self._late) < self.mailbox_size:
            self._late += (message,)
        else:
            message.reply.answer(sm.refusing(message, errors.overloaded()))
        return True

    def _move(self, message: sm.Move) -> None:
        """To be given back as soon as nothing is in flight, which is not waited for long. What comes meanwhile waits
        for the next owner."""
        if (self._state.phase, ev.MoveAsked) not in TABLE:
            message.reply.answer(False)
            return
        self._moving = (*(self._moving or ()), message.reply)
        self._closing = True
        self.ctx.set_timer("move", CLOSING, sm.MoveDue())

    def _came_by(self, via: Incarnation) -> None:
        """A POST came by way of this replica; none: to this one."""
        self._mailed = self._mailed + 1 if via == self._via else 1
        self._via = via

    @property
    def _follows(self) -> bool:
        """Whether it is to go to where its client's messages come, now that nothing is in flight. What lives and dies
        with this process stays here, and so does what is read here or at a third replica, or would have a hole."""
        after = self.services.limits.follow_after
        if not after or self._mailed < after or self._state.phase is not SessionPhase.OPERATION:
            return False
        waits = self._state.asks or self._gets or not self.record.settled
        whole = not self.recorder.connections or self._kept.seamless
        return whole and not waits and not self.endpoint.bound and self.recorder.read_at(self._via)

    def _give_back(self) -> None:
        """As at the end of a drain, with what is in flight."""
        self.event(ev.MoveAsked(self._kept.lasting))
        self._held_back, self._goes_on = [], True
        self.endpoint.upstreams.put_down()
        work, since = bool(self._state.requests), last_activity(self.services.cluster.now())
        self.record.release(since, lambda out: self.ctx.ref.reply(sm.Released(out)), work=work)

    # Another configuration: what the client was shown may be no more, or not all, or under other names

    def _reconfigured(self, before: Table) -> None:
        """The table was replaced while the session lived."""
        self.endpoint.reconfigured(before)
        name, table = self.identity.endpoint, self.services.table.value
        if self._unserved:
            self.ctx.set_timer("unserved", UNSERVED, sm.UnservedDue())
        current = session_record.configuration(table, name)
        if current != session_record.configuration(before, name):
            self.save({**current})

    def _unserved_due(self) -> None:
        if self._unserved:
            self.event(ev.Ended("unconfigured"))

    @property
    def _unserved(self) -> bool:
        """Whether its endpoint is no more, or another one under this name."""
        served = self.services.table.value.endpoints.get(self.identity.endpoint)
        return served is None or (served.kind == "aggregate") != (self.endpoint.merged is not None)

    def _recorded_under(self, fields: Mapping[str, bytes]) -> None:
        """The session was rebuilt from a record with these fields, perhaps in a process with another configuration."""
        table, endpoint = self.services.table.value, self.identity.endpoint
        current = session_record.configuration(table, endpoint)
        if fields.get("table") != current["table"]:
            key, gone = self.identity.key, unconfigured(fields, table)
            self.services.log.info("session_reconfigured", session=handle(key), endpoint=endpoint, gone=gone)
            self.endpoint.recorded_under_another()
            self.save({**current})
