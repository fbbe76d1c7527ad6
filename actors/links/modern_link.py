"""The link actor for a backend without sessions: one connection, which all callers share, each under its own name.

A thin shell over `protocol.modern.link_machine`. It keeps answers that may be given again, and tells the others what it
has found out of the backend's era.
"""

import secrets
from collections.abc import Callable
from enum import Enum
from typing import Any

from msgspec import Raw

from actors import ports
from actors.durations import BackendDurations
from actors.links.answers import Answers
from actors.links.carrier import Carrier, FromTransport
from actors.links.eras import Eras
from actors.links.heard import diagnosed
from actors.links.link_messages import (
    Call,
    Cancel,
    Census,
    Denied,
    GiveAnswer,
    Granted,
    Join,
    Leave,
    LinkAsked,
    LinkOutcome,
    LinkReady,
    LinkTold,
    LinkUnfit,
    LinkWithdrew,
    PeerNotified,
    Warm,
)
from actors.links.modern_heard import Garbled, heard
from actors.links.standing import Standing
from actors.links.subscribers import OWED_AGAIN, Subscribers
from actors.links.telling import Telling, key_of
from actors.named import Named
from actors.protocol import breaker, errors
from actors.protocol import link_events as ev
from actors.protocol.bridge.eras import SILENCE
from actors.protocol.messages import EMPTY
from actors.protocol.modern import link_events as mv
from actors.protocol.modern.caller import Caller
from actors.protocol.modern.link_calls import PROBE_CLOCK
from actors.protocol.modern.link_machine import step
from actors.protocol.modern.link_state import Link
from actors.protocol.modern.link_table import LIVE, SHOWN, Phase
from actors.protocol.table import BackendSpec, Table
from actors.protocol.table_change import Replaced, same_server
from actors.runtime import NORMAL, Actor, Down, Ref, TaskEnded
from actors.services import Services

CLOSE_WITHIN = 6.0
"""Seconds for a graceful close; then the transport's task is cancelled."""
STARTS = 3.0
"""Times the seconds that a process took to answer `initialize`, in which it would have answered a probe too."""
LOOK_AGAIN = 1.0
"""Seconds after which a process that has said nothing is looked at again."""


class _Due(Enum):
    CONNECT = "connect"
    RETRY = "retry"
    OWED = "owed"
    CLOSE = "close"
    MUTE = "mute"


class ModernLinkActor(Actor):
    """It ends with those who joined it, and nobody restarts it."""

    mailbox_size = 4096
    disposable = True

    _standing: Standing
    _telling: Telling

    def __init__(self, spec: BackendSpec, services: Services, backends: Named, eras: Eras) -> None:
        self._backend = spec.name  # and not the spec: each connection is made as it is configured then
        self._services = services
        self._backends = backends
        self._eras = eras
        self._link = self._new_link()
        self._carrier = Carrier(services.connector, spec.target)
        self._audience = Subscribers(False, self._drop, self._settle_later)
        self._sessions: set[Ref] = set()
        """Those of the other era, who hear of changes unasked."""
        self._calls = BackendDurations(services.telemetry, services.shown)
        self._answers = Answers()
        self._unreachable = False
        self._begun = 0.0
        self._closing = False

    def __repr__(self) -> str:
        return f"<ModernLinkActor {self._backend}: {self._link.phase.value}, {len(self._link.pending)} pending>"

    def _new_link(self) -> Link:
        # Ids of an earlier life must not come up again, nor be guessed: clients see some of them.
        return Link(secrets.token_hex(8), Raw(self._services.identity), server=self._backend)

    def started(self) -> None:
        self._standing = Standing(self.ctx.ref, self._backend, self._backends)
        self._telling = Telling(self.ctx.ref, self._backend, self._audience)
        self._standing.moved(SHOWN[self._link.phase])

    def receive(self, message: Any) -> None:
        match message:
            case FromTransport() as said if self._carrier.hears(said):
                self._from_transport(said.event)
            case Call():
                self._call(message)
            case GiveAnswer(id, ok, payload):
                self._step(mv.AnswerGiven(id, ok, payload))
            case Cancel(caller, call, reason):
                self._abandon((caller, call), reason)
            case PeerNotified(method, params):
                self._reconsider()
                self._step(ev.Notified(method, params))
            case Join():
                self._join(message)
            case mv.TimerDue():
                self._step(message)
            case Granted():
                self._connect()
            case Denied(payload):
                self._denied(payload)
            case _Due.CONNECT:
                self._step(ev.ConnectExpired(self._carrier.diagnostics))
            case _Due.RETRY:
                self._step(ev.RetryDue())
            case _Due.OWED:
                self._audience.settle()
            case TaskEnded():
                self._task_ended(message)
            case Down(ref=ref):
                self._left(ref)
            case Warm():
                self._reconsider()
                self._step(ev.Wanted())
            case Leave(caller):
                self.ctx.demonitor(caller)
                self._left(caller)
            case Replaced(before):
                self._replaced(before)
            case Census():
                asks = self._link.phase is Phase.CONNECTING and not self._carrier.up
                self._standing.counted(SHOWN[self._link.phase], holds=self._carrier.holds_process, asks=asks)
            case _Due.CLOSE:
                self.ctx.stop(NORMAL)
            case _Due.MUTE:
                self._still_mute()
        self._end_if_done()

    def drain(self, deadline: float) -> None:
        self._shut()  # whoever used it has ended

    # Callers

    def _join(self, join: Join) -> None:
        caller = join.caller
        self._audience.members[caller] = None
        self.ctx.monitor(caller)
        if self._closing:
            # It was about to end, since nobody had been left: it is needed again.
            self._closing = False
            self.ctx.cancel_timer("close")
            self._set(self._new_link())
        if join.changes:
            self._sessions.add(caller)
            self._step(mv.Joined(caller))
        if self._link.phase is Phase.READY and (hello := self._link.hello) is not None:
            caller.reply(LinkReady(self.ctx.ref, self._backend, hello, False))

    def _left(self, ref: Ref) -> None:
        self._audience.leave(ref)
        self._sessions.discard(ref)
        for key in [key for key in self._calls.running if key_of(key)[0] is ref]:
            self._abandon(key, "the client has gone")
        self._step(mv.Left(ref))
        if not self._audience.members:
            self._shut()

    def _call(self, call: Call) -> None:
        key = (call.caller, call.call)
        client = call.client or Caller("", Raw(b"{}"), Raw(self._services.identity), None, True)
        known = self._answers.fresh(call, client, self.ctx.now())
        if known is not None:
            call.caller.reply(LinkOutcome(self._backend, call.call, True, known))
            return
        self._reconsider()
        self._calls.call_began(key, call.method, call.params, self.ctx.now())
        self._answers.asked(key, call, client)
        self._step(mv.Called(key, call.caller, call.method, call.params or EMPTY, client, call.progress, call.mends))

    def _reconsider(self) -> None:
        """What was found out of the era may have been contradicted since."""
        spec = self._spec
        if self._link.phase is Phase.UNFIT and spec is not None and self._eras.modern(spec) is not False:
            self._step(mv.Reconsidered())
            for caller in self._sessions:
                self._step(mv.Joined(caller))

    def _abandon(self, key: ev.CallKey, reason: str) -> None:
        self._calls.forget(key)
        self._answers.forget(key)
        self._step(ev.Abandoned(key, reason))

    def _shut(self) -> None:
        if not self._closing:
            self._closing = True
            self._step(ev.Shut())
            self.ctx.set_timer("close", CLOSE_WITHIN, _Due.CLOSE)
            self._end_if_done()

    def _end_if_done(self) -> None:
        """Whoever waits in the mailbox may still want it."""
        if self._closing and not self._carrier.tasks and self.ctx.idle:
            self.ctx.stop(NORMAL)

    def _replaced(self, before: Table) -> None:
        """A connection ends that is not to the server which is configured, and with it what was found out of it."""
        was, spec = before.backends.get(self._backend), self._spec
        if same_server(was, spec):
            return
        self._answers.clear()
        if self._link.phase in LIVE:
            what = "is no longer configured" if spec is None else "has another configuration now"
            self._step(ev.Closed("unconfigured", f"server {self._backend!r} {what}", counts=False))
        if spec is None:
            self._shut()

    @property
    def _spec(self) -> BackendSpec | None:
        """As it is configured now."""
        return self._services.table.value.backends.get(self._backend)

    # The machine

    def _step(self, event: mv.Event) -> None:
        after, effects = step(self._link, event)
        self._set(after)
        for effect in effects:
            EFFECTS[type(effect)](self, effect)

    def _set(self, after: Link) -> None:
        before, self._link = self._link.phase, after
        if after.phase is not before:
            self._standing.moved(SHOWN[after.phase])

    def _from_transport(self, said: ports.TransportEvent) -> None:
        if isinstance(said, ports.RequestFailed) and said.reason == "connection_refused":
            self._refused(said)
        for event in heard(said, self._services.limits.message_bytes):
            if isinstance(event, Garbled):
                self._garbled(event)
            else:
                self._step(event)

    def _refused(self, said: ports.RequestFailed) -> None:
        if self._link.phase is Phase.READY:
            self._unreachable = True
            self._standing.failed(said.reason, said.message, diagnosed(said.status, (), said.detail), ran=True)

    def _garbled(self, garbled: Garbled) -> None:
        self._drop("malformed")
        self._services.log.warning("backend_malformed", backend=self._backend, error=str(garbled.malformed))
        failed = garbled.failed({**self._link.pending})
        if failed is not None:
            self._step(failed)

    def _task_ended(self, ended: TaskEnded) -> None:
        """The transport's task: it has said so itself, unless it crashed."""
        if self._carrier.task_ended(ended.name):
            self._step(ev.Closed("transport_crashed", f"the connection to {self._link.named} crashed"))
        if self._link.phase is not Phase.CONNECTING:  # a permit is on its way, and with it the place is kept
            self._give_back()

    def _give_back(self) -> None:
        """The place for a process is free, unless an earlier process is still ending."""
        if not self._carrier.tasks:
            self._standing.give_back()

    # Effects

    def _hand_over(self, effect: ev.HandOver) -> None:
        """Whoever takes the process has a place for it, and may have to wait for this one."""
        self._carrier.hand_over(effect)
        self._standing.give_back()

    def _connect(self) -> None:
        spec = self._spec
        if self._link.phase is not Phase.CONNECTING or self._carrier.up:
            self._give_back()  # it was given up meanwhile
        elif spec is None:
            text = f"{self._link.named} is no longer configured"
            error = errors.internal(text, reason="unconfigured", executed="no", backend=self._backend)
            self._denied(error.raw)
        else:
            self._carrier.connect(self.ctx, spec, modern=True)
            kind, warm = self._carrier.kind, self._carrier.warm
            settled = self._eras.legacy(spec) is False
            started = ev.Started(kind == "http", warm=warm, starts=kind == "stdio" and not warm, settled=settled)
            self._step(started)
            if started.starts:
                self._begun = self.ctx.now()
                self.ctx.set_timer("mute", SILENCE, _Due.MUTE)

    def _still_mute(self) -> None:
        """A process of which nothing was heard may yet be starting; or it has sessions, and says nothing to a probe. Of
        one that has answered `initialize` it is known how long it takes to start, and three times that is silence; of
        any other only the connect deadline tells."""
        link, spec = self._link, self._spec
        if link.phase is not Phase.PROBING or not link.starts or link.settled or spec is None:
            return
        took = self._eras.handshake(spec)
        if took is not None and self.ctx.now() - self._begun >= STARTS * took:
            self._step(mv.TimerDue(PROBE_CLOCK))
        else:
            self.ctx.set_timer("mute", LOOK_AGAIN, _Due.MUTE)

    def _denied(self, payload: Raw) -> None:
        self._step(ev.ConnectRefused(payload))
        self._give_back()

    def _finish(self, effect: ev.Finish) -> None:
        caller, call = key_of(effect.call)
        version = self._link.hello.version if self._link.hello is not None else ""
        self._calls.ended(
            effect.call,
            effect.ok,
            effect.payload,
            self.ctx.now(),
            backend=self._backend,
            transport=self._carrier.kind,
            version=version,
        )
        if effect.ok and self._unreachable:
            self._unreachable = False
            self._standing.connected()
        ok, payload = self._answers.outcome(effect, self.ctx.now())
        caller.reply(LinkOutcome(self._backend, call, ok, payload, effect.theirs))

    def _unfit(self, effect: mv.Unfit) -> None:
        """Everybody looks for the other kind of link, and takes the calls there."""
        me = self.ctx.ref
        for ref in self._audience.members:
            mine = [called for called in effect.calls if called.caller is ref]
            if not mine and not effect.news:
                continue
            for called in mine:
                self._calls.forget(called.call)
                self._answers.forget(called.call)
            calls = (Call(ref, key_of(c.call)[1], c.method, c.params, c.progress, c.client) for c in mine)
            ref.reply(LinkUnfit(me, self._backend, tuple(calls)))

    def _judged(self, effect: mv.Judged) -> None:
        if effect.modern is not True:
            self._answers.clear()
        if (spec := self._spec) is not None:
            self._eras.found_modern(spec, effect.modern, sure=effect.sure, said=effect.said)

    def _ask(self, effect: ev.Ask) -> None:
        assert effect.call is not None
        caller, call = key_of(effect.call)
        caller.reply(LinkAsked(self.ctx.ref, self._backend, call, effect.id, effect.method, effect.params))

    def _withdraw(self, effect: mv.Withdraw) -> None:
        assert isinstance(effect.caller, Ref)
        effect.caller.reply(LinkWithdrew(self._backend, effect.id))

    def _tell(self, effect: ev.Tell) -> None:
        self._answers.changed(effect.method, effect.params)
        if effect.call is not None:
            self._telling.tells(effect)
            return
        for caller in self._sessions:
            self._tell_caller(mv.TellCaller(caller, effect.method, effect.params))

    def _tell_caller(self, effect: mv.TellCaller) -> None:
        assert isinstance(effect.caller, Ref)
        self._answers.changed(effect.method, effect.params)
        told = LinkTold(self.ctx.ref, self._backend, None, effect.method, effect.params)
        self._telling.passes(told, effect.caller)

    def _ready(self, effect: ev.Ready) -> None:
        self._unreachable = False
        self._standing.connected(effect.hello)
        self._telling.ready(effect, None)

    def _down(self, effect: ev.Down) -> None:
        self._standing.down(self._services.log, effect, counts=effect.counts and not self._closing)
        self._telling.down(effect)

    def _left_out(self, effect: mv.LeftOut) -> None:
        self._services.log.warning("tool_left_out", backend=self._backend, tool=effect.tool, why=effect.why)

    def _back_off(self, effect: ev.BackOff) -> None:
        seconds = breaker.delay(effect.attempt, self._services.jitter())
        self.ctx.set_timer("back-off", seconds, _Due.RETRY)

    def _retry(self, effect: mv.StartRetry) -> None:
        seconds = breaker.delay(effect.attempt, self._services.jitter())
        self.ctx.set_timer(effect.key, seconds, mv.TimerDue(effect.key))

    def _start_clock(self, effect: ev.StartClock) -> None:
        self.ctx.set_timer("connect", self._services.limits.link_connect, _Due.CONNECT)

    def _keep(self, effect: mv.Keep) -> None:
        self._answers.keep(effect, self.ctx.now())

    def _settle_later(self) -> None:
        self.ctx.set_timer("owed", OWED_AGAIN, _Due.OWED)

    def _drop(self, what: str) -> None:
        self._services.telemetry.count("stagedoor_messages_dropped_total", (what,))


EFFECTS: dict[type, Callable[[ModernLinkActor, Any], None]] = {
    ev.Connect: lambda link, effect: link._standing.ask(),
    ev.Send: lambda link, effect: link._carrier.send(effect),
    ev.Forget: lambda link, effect: link._carrier.forget(effect),
    ev.Hang: lambda link, effect: link._carrier.hang(effect),
    ev.HandOver: ModernLinkActor._hand_over,
    ev.Finish: ModernLinkActor._finish,
    ev.Ask: ModernLinkActor._ask,
    ev.Tell: ModernLinkActor._tell,
    ev.Ready: ModernLinkActor._ready,
    ev.Down: ModernLinkActor._down,
    ev.BackOff: ModernLinkActor._back_off,
    ev.StartClock: ModernLinkActor._start_clock,
    ev.StopClock: lambda link, effect: link.ctx.cancel_timer("connect"),
    ev.Tally: lambda link, effect: link._drop(effect.what),
    mv.Withdraw: ModernLinkActor._withdraw,
    mv.TellCaller: ModernLinkActor._tell_caller,
    mv.Keep: ModernLinkActor._keep,
    mv.Judged: ModernLinkActor._judged,
    mv.Unfit: ModernLinkActor._unfit,
    mv.StartTimer: lambda link, effect: link.ctx.set_timer(effect.key, effect.seconds, mv.TimerDue(effect.key)),
    mv.StartRetry: ModernLinkActor._retry,
    mv.StopTimer: lambda link, effect: link.ctx.cancel_timer(effect.key),
    mv.LeftOut: ModernLinkActor._left_out,
}
