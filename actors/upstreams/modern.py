"""The connection to a modern backend, which all callers share, each under its own name.

A thin shell over `machines.upstream.modern`; what is of both eras is in `connection`. It keeps answers that may be
given again, and tells the others what it has found out of the backend's era.
"""

import secrets
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, assert_never

from msgspec import Raw, Struct
from msgspec.structs import replace

from actors import ports
from actors.machines.upstream import breaker
from actors.machines.upstream import events as ev
from actors.machines.upstream import modern_events as mv
from actors.machines.upstream.cache import Cache
from actors.machines.upstream.era import SILENCE
from actors.machines.upstream.events import CallKey
from actors.machines.upstream.legacy_calls import failure
from actors.machines.upstream.modern import step
from actors.machines.upstream.modern_calls import PROBE_CLOCK
from actors.machines.upstream.modern_events import Caller
from actors.machines.upstream.modern_state import SHOWN, Listen, Phase, Upstream
from actors.named import NamedRef
from actors.protocol import codec, errors, translate
from actors.protocol import payload as json
from actors.protocol.messages import EMPTY
from actors.protocol.outcomes import CACHEABLE, code_of
from actors.protocol.table import BackendSpec
from actors.protocol.transport import UNAUTHORIZED
from actors.protocol.versions import LATEST_HANDSHAKE, MODERN
from actors.runtime import Ref
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
    UpstreamNotification,
    UpstreamOutcome,
    UpstreamRequest,
    UpstreamWithdrew,
    UpstreamWrongEra,
)

LOOK_AGAIN = 1.0
"""Seconds after which a process that has said nothing is looked at again."""


class _MuteDue(Struct, frozen=True):
    """A process that has said nothing is to be looked at."""


Message: TypeAlias = ToUpstream | FromTransport | mv.TimerDue | _MuteDue | CommonMessage


class _Asked(NamedTuple):
    method: str
    params: Raw
    client: Caller


class Answers:
    """Answers of the backend that are kept: given again while they are fresh, and a while longer if it can't be
    reached."""

    def __init__(self) -> None:
        self._cache = Cache()
        self.asked: dict[CallKey, _Asked] = {}
        """The calls under way whose answers may be kept."""
        self._overtaken: set[CallKey] = set()
        """Those that may be of before a change that was announced since."""

    def fresh(self, call: Call, client: Caller, now: float) -> Raw | None:
        """The answer to this call, in the form that its client gets, if it is known."""
        return _formed(call.method, self._cache.get(call.method, call.params, client, now), client)

    def ask(self, key: CallKey, call: Call, client: Caller) -> None:
        """The call goes to the backend."""
        self.asked[key] = _Asked(call.method, call.params, client)

    def keep(self, keep: mv.Keep, now: float) -> None:
        """An answer that may be kept, if its backend allows it."""
        if keep.call not in self._overtaken:
            self._cache.put(keep.method, keep.params, keep.client, keep.payload, now)

    def outcome(self, finish: ev.Finish, now: float) -> tuple[bool, Raw]:
        """The outcome of a call, or what is known instead of an error that says that the backend can't be had."""
        asked = self.asked.pop(finish.call)
        self._overtaken.discard(finish.call)
        if finish.ok:
            return finish.ok, finish.payload
        code = code_of(finish.payload)
        if code == errors.INVALID_PARAMS and json.mentions(asked.params, b"cursor"):
            self._cache.bad_cursor(asked.method)
        if finish.theirs or code != errors.INTERNAL:
            return False, finish.payload
        stale = _formed(asked.method, self._cache.stale(*asked, now), asked.client)
        return (False, finish.payload) if stale is None else (True, stale)

    def forget(self, key: CallKey) -> None:
        """Nobody waits for the outcome."""
        self.asked.pop(key, None)
        self._overtaken.discard(key)

    def changed(self, method: str, params: Raw) -> None:
        """A notification of the backend."""
        if self._cache.changed(method, params):
            self._overtaken |= self.asked.keys()

    def clear(self) -> None:
        """It is another backend."""
        self._overtaken |= self.asked.keys()
        self._cache.clear()


def _formed(method: str, answer: Raw | None, client: Caller) -> Raw | None:
    if answer is None or not client.drives:
        return answer
    return translate.result(method, answer, LATEST_HANDSHAKE, MODERN)


class ModernUpstream(Connection):
    """The connection to one modern server. It ends with those who joined it, and nobody restarts it."""

    mailbox_size = 4096
    modern = True
    everybodys = True
    gone = "the client has gone"

    _upstream: Upstream

    def __init__(self, spec: BackendSpec, services: Services, backends: NamedRef, eras: Eras) -> None:
        super().__init__(spec, services, backends, shared=False)
        self._eras = eras
        self._upstream = self._renewed()
        self._sessions: set[Ref] = set()
        """Those of the other era, who hear of changes unasked."""
        self._answers = Answers()
        self._by_rights = spec.exchanged
        """Whether who asks with other rights is shown to the server as somebody else."""

    def _renewed(self) -> Upstream:
        # Ids of an earlier life must not come up again, nor be guessed: clients see some of them.
        return Upstream(secrets.token_hex(8), Raw(self._services.identity), server=self._backend)

    def receive(self, message: Message) -> None:
        match message:
            case FromTransport(generation, said):
                if generation == self._generation:
                    self._hear(said)
            case Call():
                self._call(message)
            case ev.AnswerGiven():
                self._step(message)
            case PeerNotified(method, params, principal):
                self._reconsider()
                self._step(mv.Notified(method, params, principal))
            case mv.TimerDue():
                self._step(message)
            case ev.Wanted():
                self._reconsider()
                self._step(message)
            case _MuteDue():
                self._still_mute()
            case ev.Continued(key):
                caller, call = key_of(key)
                text = f"server {self._backend!r} has no session to go on with"
                error = failure("link_ended", text, "unknown", self._backend)
                caller.reply(UpstreamOutcome(self._backend, call, False, error))
            case ev.Notified():
                self._drop("unknown_notification")  # of a session, for which it has no words
            case ev.Hold() | ev.Released() | PutDown():
                pass  # nothing waits for its turn here, and the connection is everybody's
            case _:
                self._common(message)
        if self._closing:
            self._end_if_done()

    # Callers

    @property
    def _engaged(self) -> bool:
        """That somebody wants to hear of changed lists keeps no server busy: what it lists is asked again when it is
        started."""
        upstream = self._upstream
        listens = [pending for pending in upstream.pending.values() if isinstance(pending, Listen)]
        return (
            len(listens) < len(upstream.pending)
            or bool(upstream.waiting or upstream.asking or upstream.pausing or upstream.rebuilding)
            or any(listen.filter.uris or listen.filter.tasks for listen in listens)
            or any(wish.uris for wish in upstream.wishes.values())
        )

    def _joined(self, join: Join) -> None:
        if join.changes:
            self._sessions.add(join.caller)
            self._step(mv.Joined(join.caller))

    def _without(self, ref: Ref, unwanted: list[str]) -> None:
        self._sessions.discard(ref)
        self._step(mv.Left(ref))

    def _call(self, call: Call) -> None:
        key = (call.caller, call.call)
        client = call.client or Caller("", Raw(b"{}"), Raw(self._services.identity), None, True)
        if self._by_rights:
            client = replace(client, principal=f"{client.principal} {call.rights.digest}")
        cacheable = call.method in CACHEABLE
        if cacheable:
            known = self._answers.fresh(call, client, self.ctx.now())
            if known is not None:
                call.caller.reply(UpstreamOutcome(self._backend, call.call, True, known))
                return
        self._reconsider()
        self._calls.began(key, call.method, call.params, self.ctx.now())
        if cacheable:
            self._answers.ask(key, call, client)
        params = call.params if self._services.observer is None else self._observe(key, call)
        wanted = (client, call.progress, call.mends, call.rights)
        self._step(mv.Called(key, call.caller, call.method, params or EMPTY, *wanted))

    def _reconsider(self) -> None:
        """What was found out of the era may have been contradicted since."""
        if self._upstream.phase is not Phase.WRONG_ERA:
            return
        spec = self._spec
        if spec is not None and self._eras.modern(spec) is not False:
            self._step(mv.Reconsidered())
            for caller in self._sessions:
                self._step(mv.Joined(caller))

    def _abandon(self, key: tuple[Ref, int], reason: str) -> None:
        self._calls.forget(key)
        self._answers.forget(key)
        self._step(ev.Abandoned(key, reason))

    # The machine

    def _step(self, event: mv.Event) -> None:
        before = self._upstream.phase
        self._upstream, effects = step(self._upstream, event)
        if self._upstream.phase is not before:
            self._show(SHOWN[self._upstream.phase])
        for effect in effects:
            EFFECTS[type(effect)](self, effect)

    def _hear(self, said: ports.TransportEvent) -> None:
        match said:
            case ports.FrameReceived(frame, related, _, status, message):
                try:
                    if message is None or isinstance(message, errors.Malformed | codec.Batch):
                        message = codec.decode_message(frame, self._services.limits.message_bytes)
                except errors.Malformed as malformed:
                    self._malformed(malformed, said)
                else:
                    self._step(mv.Incoming(message, related, status))
            case ports.RequestFailed(id, reason, message, executed, status, detail, stderr):
                self._refused(said)
                self._step(mv.Failed(id, reason, message, executed, status, diagnosed(status, stderr, detail)))
            case ports.Spoke():
                self._step(mv.Spoke())
            case ports.SpeaksSse():
                if (spec := self._spec) is not None:
                    self._eras.found_sse(spec, True)
            case ports.TransportClosed():
                self._closed(said)
            case (
                ports.Positioned()
                | ports.EventsMissed()
                | ports.Listening()
                | ports.FrameAccepted()
                | ports.SessionLost()
            ):
                pass  # only sessions have these
            case _:
                assert_never(said)

    def _malformed(self, malformed: errors.Malformed, said: ports.FrameReceived) -> None:
        id = self._unreadable(malformed, said.related)
        if id is not None:
            text = "the backend answered with something malformed"
            self._step(mv.Failed(id, "malformed", text, "unknown", said.status))

    # Effects

    def _opened(self, spec: BackendSpec, resumed: bool) -> None:
        transport = self._transport
        assert transport is not None
        started = ev.Started(
            transport.kind == "http",
            warm=transport.warm,
            starts=transport.kind == "stdio" and not transport.warm,
            settled=self._eras.legacy(spec) is False,
        )
        self._step(started)
        if started.starts:
            self.ctx.set_timer("mute", SILENCE, _MuteDue())

    def _still_mute(self) -> None:
        """A process of which nothing was heard may yet be starting; or it has sessions, and says nothing to a probe."""
        upstream, spec = self._upstream, self._spec
        if upstream.phase is not Phase.PROBING or not upstream.starts or upstream.settled or spec is None:
            return
        if self._eras.mute(spec, self.ctx.now() - self._begun):
            self._step(mv.TimerDue(PROBE_CLOCK))
        else:
            self.ctx.set_timer("mute", LOOK_AGAIN, _MuteDue())

    def _finish(self, effect: ev.Finish) -> None:
        assert isinstance(effect.call, tuple)
        caller, call = effect.call
        self._measure(effect.call, effect.ok, effect.payload)
        ok, payload = effect.ok, effect.payload
        if effect.call in self._answers.asked:
            ok, payload = self._answers.outcome(effect, self.ctx.now())
        if self._account and not effect.ok and not effect.theirs and errors.reason_of(effect.payload) in UNAUTHORIZED:
            # What the account has shown is nothing for who has it no more.
            ok, payload = False, effect.payload
            self._answers.clear()
        if self._account:
            payload = self._said(ok, payload, effect.theirs)
        caller.reply(UpstreamOutcome(self._backend, call, ok, payload, effect.theirs))

    def _return_unsent(self) -> None:
        waiting = self._upstream.waiting
        unsent = tuple(called for called in waiting if isinstance(called, mv.Called))
        self._upstream = replace(self._upstream, waiting=tuple(one for one in waiting if one not in unsent))
        self._wrong_era(mv.WrongEra(unsent, news=False))

    def _wrong_era(self, effect: mv.WrongEra) -> None:
        """Everybody looks for the other kind of upstream connection, and takes the calls there."""
        for ref in self._subscribers.members:
            mine = [called for called in effect.calls if called.caller is ref]
            if not mine and not effect.news:
                continue
            for called in mine:
                self._calls.forget(called.call)
                self._answers.forget(called.call)
            calls = (
                Call(ref, key_of(c.call)[1], c.method, c.params, c.progress, c.client, rights=c.rights) for c in mine
            )
            ref.reply(UpstreamWrongEra(self._me, self._backend, tuple(calls)))

    def _judged(self, effect: mv.Judged) -> None:
        if effect.modern is not True:
            self._answers.clear()
        if (spec := self._spec) is not None:
            self._eras.found_modern(spec, effect.modern, sure=effect.sure, said=effect.said)

    def _ask(self, effect: ev.ServerRequest) -> None:
        assert effect.call is not None
        caller, call = key_of(effect.call)
        caller.reply(UpstreamRequest(self._me, self._backend, call, effect.id, effect.method, effect.params))

    def _withdraw(self, effect: mv.Withdraw) -> None:
        assert isinstance(effect.caller, Ref)
        effect.caller.reply(UpstreamWithdrew(self._backend, effect.id))

    def _told(self, effect: ev.Notify) -> None:
        self._answers.changed(effect.method, effect.params)
        if effect.call is not None:
            self._tell(effect)
            return
        for caller in self._sessions:
            self._tell_caller(mv.NotifyCaller(caller, effect.method, effect.params))

    def _tell_caller(self, effect: mv.NotifyCaller) -> None:
        assert isinstance(effect.caller, Ref)
        self._answers.changed(effect.method, effect.params)
        told = UpstreamNotification(self._me, self._backend, None, effect.method, effect.params)
        self._subscribers.tell(told, effect.caller)

    def _ready(self, effect: ev.Ready) -> None:
        self._unreachable = False
        self._works(effect.server_info)
        self._announce(effect)

    def _left_out(self, effect: mv.LeftOut) -> None:
        self._services.log.warning("tool_left_out", backend=self._backend, tool=effect.tool, why=effect.why)

    def _retry(self, effect: mv.StartRetry) -> None:
        seconds = breaker.delay(effect.attempt, self._services.jitter())
        self.ctx.set_timer(effect.key, seconds, mv.TimerDue(effect.key))

    def _start_timer(self, effect: mv.StartTimer) -> None:
        self.ctx.set_timer(effect.key, effect.seconds, mv.TimerDue(effect.key))

    def _stop_timer(self, effect: mv.StopTimer) -> None:
        self.ctx.cancel_timer(effect.key)

    def _keep(self, effect: mv.Keep) -> None:
        self._answers.keep(effect, self.ctx.now())


EFFECTS: dict[type, Callable[[ModernUpstream, Any], None]] = {
    **connection.EFFECTS,
    ev.Finish: ModernUpstream._finish,
    ev.ServerRequest: ModernUpstream._ask,
    ev.Notify: ModernUpstream._told,
    ev.Ready: ModernUpstream._ready,
    mv.Withdraw: ModernUpstream._withdraw,
    mv.NotifyCaller: ModernUpstream._tell_caller,
    mv.Keep: ModernUpstream._keep,
    mv.Judged: ModernUpstream._judged,
    mv.WrongEra: ModernUpstream._wrong_era,
    mv.StartTimer: ModernUpstream._start_timer,
    mv.StartRetry: ModernUpstream._retry,
    mv.StopTimer: ModernUpstream._stop_timer,
    mv.LeftOut: ModernUpstream._left_out,
}
