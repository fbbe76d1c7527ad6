"""The connection to a legacy backend: for one session or, where the operator says so, for many callers.

A thin shell over `machines.upstream.legacy`; what is not of this era is in `connection`.
"""

import secrets
from collections.abc import Callable
from typing import Any, TypeAlias, assert_never

from msgspec import Raw
from msgspec.structs import replace

from actors import ports
from actors.machines.upstream import events as ev
from actors.machines.upstream.legacy import step
from actors.machines.upstream.legacy_state import Phase, Profile, Upstream
from actors.named import NamedRef
from actors.protocol import codec, errors
from actors.protocol import payload as json
from actors.protocol.messages import Error, RequestId
from actors.protocol.methods import UNSUBSCRIBE
from actors.protocol.table import BackendSpec
from actors.protocol.transport import RELATING
from actors.runtime import Down, Ref
from actors.services import Services
from actors.upstreams import connection
from actors.upstreams.connection import CommonMessage, Connection, FromTransport, diagnosed, key_of
from actors.upstreams.eras import Eras
from actors.upstreams.messages import (
    Call,
    Join,
    PeerNotified,
    PutDown,
    ToUpstream,
    UpstreamAwaited,
    UpstreamDue,
    UpstreamHeld,
    UpstreamOutcome,
    UpstreamPlaced,
    UpstreamRequest,
    UpstreamWithdrew,
    UpstreamWrongEra,
)
from actors.upstreams.own_calls import OwnCalls, OwnDue
from actors.upstreams.resume import Resume
from actors.upstreams.task_driver import PollDue, TaskDriver

LISTEN_WITHIN = 1.0
"""Seconds that calls wait for the stream on which the backend may ask something in their course: some server may send
the head of that answer only with its first event."""
PREFIX_BYTES = 8
"""Of what nobody can guess in the ids of a connection."""
EMPTY_RESULT = json.dumps({})

GRACE = 5.0
"""Seconds within which a backend must show that it is done with a call that was cancelled."""

Message: TypeAlias = ToUpstream | FromTransport | OwnDue | PollDue | ev.Listening | ev.GraceOver | CommonMessage


class LegacyUpstream(Connection):
    """One that is given `subscriptions` stands in for one that was lost: after the back-off for this `attempt` it
    connects by itself, asks for them again, and announces what may have been missed. With `resume` it goes on where
    another one left off.
    """

    __slots__ = ("_driver", "_eras", "_own", "_profile")

    modern = False
    gone = "the session has ended"

    _upstream: Upstream

    def __init__(
        self,
        spec: BackendSpec,
        profile: Profile,
        services: Services,
        backends: NamedRef,
        *,
        level: str | None = None,
        subscriptions: tuple[str, ...] = (),
        attempt: int = 1,
        resume: Resume | None = None,
        eras: Eras | None = None,
    ) -> None:
        """Without `eras` every server is taken for one with sessions."""
        kept = resume.kept if resume is not None else None
        super().__init__(spec, services, backends, shared=spec.common, kept=kept)
        self.everybodys = self._subscribers.shared
        self._profile = profile
        self.principal = profile.principal
        self._upstream = replace(
            self._renewed(),
            phase=Phase.WAITING if subscriptions else Phase.IDLE,
            server_info=resume.server_info if resume is not None else None,
            connected_before=bool(subscriptions) or resume is not None,
            attempt=attempt,
            level=level,
            subscriptions=subscriptions,
            kept=kept is not None,
            missed=kept is not None and kept.cursor is None,
        )
        self._phase = self._upstream.phase
        self._eras = eras
        self._driver: TaskDriver | None = None
        """As soon as a call may need one."""

    def statistics(self) -> dict[str, int]:
        return {**super().statistics(), "waiting": len(self._upstream.waiting), "asked": len(self._upstream.asked)}

    def started(self) -> None:
        super().started()
        self._own = OwnCalls(self.ctx, self._services.limits.request_deadline, self._backend)
        if self._phase is Phase.WAITING:
            self._back_off(ev.BackOff(self._upstream.attempt))

    def receive(self, message: Message) -> None:
        match message:
            case FromTransport(generation, said):
                if generation == self._generation:
                    self._hear(said)
            case Call():
                self._call(message)
            case PeerNotified():
                self._drop("unknown_notification")  # of a modern client, for which it has no words
            case (
                ev.AnswerGiven()
                | ev.Continued()
                | ev.GraceOver()
                | ev.Hold()
                | ev.Listening()
                | ev.Notified()
                | ev.Released()
                | ev.Wanted()
            ):
                self._step(message)
            case OwnDue(call):
                self._own.overdue(call)
            case PollDue(key):
                if self._driver is not None:
                    self._driver.poll(key)
            case PutDown():
                self._put_down()
            case Down(reason=reason):
                if reason.abnormal:
                    self._put_down()  # its next life goes on with the backend's session
                self._common(message)
            case _:
                self._common(message)
        if self._closing:
            self._end_if_done()

    @property
    def _engaged(self) -> bool:
        upstream = self._upstream
        return bool(upstream.subscriptions or upstream.asked or upstream.pending or self._subscribers.interested)

    # Callers

    def _call(self, call: Call) -> None:
        key = (call.caller, call.call)
        if self._subscribers.shared and self._subscribers.settles(key, call):
            call.caller.reply(UpstreamOutcome(self._backend, call.call, True, EMPTY_RESULT))
            return
        self._calls.began(key, call.method, call.params, self.ctx.now())
        params = call.params if self._services.observer is None else self._observe(key, call)
        called = ev.Called(key, call.method, params, call.progress, version=call.version, rights=call.rights)
        self._step(called)

    def _abandon(self, key: tuple[Ref, int], reason: str) -> None:
        self._calls.forget(key)
        self._subscribers.subscribed(key, False)
        if self._driver is None or not self._driver.cancel(key, reason):
            self._step(ev.Abandoned(key, reason, self._profile.needs_call and self._may_ask()))

    def _may_ask(self) -> bool:
        """Whether what it asks later would have to be refused, which its next call must not suffer from. Where a server
        is to have no second process, one that never asked keeps the first, and what that remembers."""
        spec = self._configured
        known = spec is not None and self._eras is not None and self._eras.asks(spec)
        return known or (self._services.limits.overflow_connections > 0 and not self._upstream.related)

    def _joined(self, join: Join) -> None:
        """What changes at the backend is told to all."""

    def _without(self, ref: Ref, unwanted: list[str]) -> None:
        for uri in unwanted if self._subscribers.members and self._phase is not Phase.IDLE else ():
            self._unsubscribe(json.dumps({"uri": uri}))

    def _unsubscribe(self, params: Raw) -> None:
        """For nobody in particular: whether it worked is of no interest, but it must not be waited for without end."""
        me = self._me
        self._own.make(
            lambda call: self._step(ev.Called((me, call), UNSUBSCRIBE, params, final=True)),
            lambda call, reason: self._step(ev.Abandoned((me, call), reason)),
            lambda ok, payload: None,
        )

    def _put_down(self) -> None:
        """The backend's session is left for another connection; one that is shared stays with the others."""
        if not self._subscribers.shared:
            self._close(ev.LeftOff())

    def _renewed(self) -> Upstream:
        # With ids that only the server at the other end of this connection ever sees: whoever else finds a way to say
        # something over it can't name a request, and answers none. The epoch stays in endpoint: no id comes up again.
        prefix = f"{self._profile.prefix}-{secrets.token_hex(PREFIX_BYTES)}"
        return Upstream(replace(self._profile, prefix=prefix), server=self._backend)

    # The machine

    def _step(self, event: ev.UpstreamEvent) -> None:
        before = self._upstream.phase
        self._upstream, effects = step(self._upstream, event)
        if self._upstream.phase is not before:
            self._show(self._upstream.phase)
            if before is Phase.LISTENING:
                self.ctx.cancel_timer("listen")
        for effect in effects:
            EFFECTS[type(effect)](self, effect)

    def _hear(self, said: ports.TransportEvent) -> None:
        match said:
            case ports.FrameReceived():
                self._frame(said)
            case ports.Positioned() | ports.EventsMissed() | ports.FrameAccepted():
                self._step(said)
            case ports.Listening():
                self._step(ev.Listening())
            case ports.RequestFailed(id, reason, message, executed, status, detail, stderr):
                self._refused(said)
                self._doubt_sse()
                self._step(ev.SendFailed(id, reason, message, executed, diagnosed(status, stderr, detail)))
            case ports.SessionLost():
                self._services.telemetry.count("stagedoor_backend_sessions_lost_total", (self._backend,))
                self._step(said)
            case ports.TransportClosed():
                self._doubt_sse()
                self._closed(said)
            case ports.Spoke():
                pass  # its answer to `initialize` says more
            case ports.SpeaksSse():
                self._speaks_sse()
            case _:
                assert_never(said)

    def _frame(self, said: ports.FrameReceived) -> None:
        decoded = said.read
        try:
            if decoded is None:
                decoded = codec.decode_frame(said.frame, self._services.limits.message_bytes)
        except errors.Malformed as malformed:
            decoded = malformed
        if isinstance(decoded, errors.Malformed):
            self._malformed(decoded, said.related)
            return
        if self._phase is Phase.INITIALIZING and isinstance(decoded, Error) and self._refuses(decoded, said):
            self._step(ev.OtherEra())
        elif not isinstance(decoded, codec.Batch):
            self._step(ev.Incoming(decoded, said.related, said.cursor, said.status))
        else:
            self._batch(decoded, said)

    def _refuses(self, error: Error, said: ports.FrameReceived) -> bool:
        spec = self._spec
        if self._eras is None or spec is None:
            return False
        return self._eras.refused(spec, self._upstream, error, said.related, said.status)

    def _batch(self, batch: codec.Batch, said: ports.FrameReceived) -> None:
        for n, message in enumerate(batch.messages, 1):
            if isinstance(message, errors.Malformed):
                self._malformed(message, said.related)
            else:
                # The place is behind all of them, and none may be behind it.
                cursor = said.cursor if n == len(batch.messages) else None
                self._step(ev.Incoming(message, said.related, cursor, said.status))

    def _malformed(self, malformed: errors.Malformed, related: RequestId | None) -> None:
        id = self._unreadable(malformed, related)
        if malformed.id is not None:
            self._send(ev.Send(codec.encode(Error(malformed.id, malformed.error.raw))))
        elif id is not None:
            text = f"{self._upstream.named} answered with something malformed"
            self._step(ev.SendFailed(id, "malformed", text, "unknown"))

    # Effects

    def _opened(self, spec: BackendSpec, resumed: bool) -> None:
        transport = self._transport
        assert transport is not None
        related, listens = transport.kind in RELATING, transport.kind == "http"
        self._step(ev.Started(related, fresh=not resumed, warm=transport.warm, listens=listens))

    def _settled(self, spec: BackendSpec) -> BackendSpec:
        return self._eras.settled(spec) if self._eras is not None else spec

    def _speaks_sse(self) -> None:
        """The server has another transport than the one that was tried."""
        spec, transport = self._spec, self._transport
        if self._eras is None or spec is None or transport is None or self._phase is not Phase.INITIALIZING:
            return
        self._eras.found_sse(spec, True)
        transport.close()
        self._opened(spec, self._open(spec))

    def _doubt_sse(self) -> None:
        """Where the handshake fails, whoever comes next finds out anew."""
        if self._phase is Phase.INITIALIZING and self._eras is not None and (spec := self._spec) is not None:
            self._eras.found_sse(spec, False)

    def _finish(self, effect: ev.Finish) -> None:
        assert isinstance(effect.call, tuple)
        caller, call = effect.call
        if caller is self._me:
            self._own.outcome(call, effect.ok, effect.payload)
            return
        self._measure(effect.call, effect.ok, effect.payload)
        if self._subscribers.shared:
            self._subscribers.subscribed(effect.call, effect.ok)
        payload = self._said(effect.ok, effect.payload, effect.theirs) if self._account else effect.payload
        caller.reply(UpstreamOutcome(self._backend, call, effect.ok, payload))

    def _held(self, effect: ev.Held) -> None:
        caller, call = key_of(effect.call)
        caller.reply(UpstreamHeld(call))

    def _due_call(self, effect: ev.Due) -> None:
        caller, call = key_of(effect.call)
        caller.reply(UpstreamDue(call))

    def _awaited(self, effect: ev.Awaited) -> None:
        caller, call = key_of(effect.call)
        if caller is not self._me:
            caller.reply(UpstreamAwaited(call))

    def _entrust(self, effect: ev.Entrust) -> None:
        if self._driver is None:
            assert self._upstream.server_info is not None
            self._driver = TaskDriver(self._backend, self.ctx, self._services, self._own, self._step, self._finish)
            self._driver.ready(self._upstream.server_info)
        self._driver.entrusted(effect)

    def _ask(self, effect: ev.ServerRequest) -> None:
        """A server request goes to the caller, or else to the only member: never to a guess among several. On a
        shared connection nobody is asked: it declared no client, and the answer would be anybody's."""
        if self._driver is not None:
            effect = self._driver.asked(effect)
        target, call = key_of(effect.call) if effect.call is not None else (self._subscribers.only(), None)
        if target is None or self._subscribers.shared:
            self._step(ev.AnswerGiven(effect.id, False, errors.method_not_found(effect.method).raw))
        else:
            asked = (call, effect.id, effect.method, effect.params, effect.place, effect.doubtful, effect.outlasts)
            target.reply(UpstreamRequest(self._me, self._backend, *asked))

    def _withdraw(self, effect: ev.Withdraw) -> None:
        for ref in self._subscribers.members:
            ref.reply(UpstreamWithdrew(self._backend, effect.id, self._me))

    def _told(self, effect: ev.Notify) -> None:
        self._tell(self._driver.told(effect) if self._driver is not None else effect)

    def _placed(self, effect: ev.Placed) -> None:
        """Of a shared connection nothing can be continued: it is nobody's."""
        to, call = key_of(effect.call) if effect.call is not None else (self._subscribers.only(), None)
        if to is not None and to is not self._me and not self._subscribers.shared:
            to.reply(UpstreamPlaced(self._me, self._backend, call, effect.place))

    def _return_unsent(self) -> None:
        waiting = self._upstream.waiting
        self._upstream = replace(self._upstream, waiting=())
        for ref, calls in self._unsent(waiting).items():
            if calls:
                ref.reply(UpstreamWrongEra(self._me, self._backend, tuple(calls)))

    def _wrong_era(self, effect: ev.WrongEra) -> None:
        """It is of the other era: each gets back what was not sent for them."""
        for ref, calls in self._unsent(effect.calls).items():
            ref.reply(UpstreamWrongEra(self._me, self._backend, tuple(calls)))

    def _unsent(self, waiting: tuple[ev.Called, ...]) -> dict[Ref, list[Call]]:
        """By member, what each gets back to make it over another connection."""
        mine: dict[Ref, list[Call]] = {ref: [] for ref in self._subscribers.members}
        for called in waiting:
            caller, call = key_of(called.call)
            self._calls.forget(called.call)
            if caller is self._me:
                self._own.overdue(call)
            elif caller in mine:
                again = Call(caller, call, called.method, called.params, called.progress, rights=called.rights)
                mine[caller].append(again)
        return mine

    def _listen(self, effect: ev.Listen) -> None:
        self._on_transport(effect)
        if self._phase is Phase.LISTENING:
            self.ctx.set_timer("listen", LISTEN_WITHIN, ev.Listening(heard=False))

    def _start_grace(self, effect: ev.StartGrace) -> None:
        self.ctx.set_timer("grace", GRACE, ev.GraceOver())

    def _ready(self, effect: ev.Ready) -> None:
        if self._eras is not None and (spec := self._spec) is not None:
            self._eras.found_legacy(spec, self.ctx.now() - self._begun)
        if self._driver is not None:
            self._driver.ready(effect.server_info)
        self._unreachable = self._upstream.kept  # nothing was said to the backend yet
        if not self._unreachable:
            self._works(effect.server_info)
        self._announce(effect, self._transport.kept if self._transport is not None else None)
        if not self._subscribers.shared:  # on a shared one whoever joins later has to hear it too
            self._upstream = replace(self._upstream, server_info=effect.server_info.lasting)


EFFECTS: dict[type, Callable[[LegacyUpstream, Any], None]] = {
    **connection.EFFECTS,
    ev.Listen: LegacyUpstream._listen,
    ev.Finish: LegacyUpstream._finish,
    ev.Held: LegacyUpstream._held,
    ev.Due: LegacyUpstream._due_call,
    ev.Awaited: LegacyUpstream._awaited,
    ev.Entrust: LegacyUpstream._entrust,
    ev.ServerRequest: LegacyUpstream._ask,
    ev.Withdraw: LegacyUpstream._withdraw,
    ev.Notify: LegacyUpstream._told,
    ev.Placed: LegacyUpstream._placed,
    ev.Ready: LegacyUpstream._ready,
    ev.WrongEra: LegacyUpstream._wrong_era,
    ev.StartGrace: LegacyUpstream._start_grace,
}
