"""The link actor: one connection to one backend, for one session (or, where the operator says so, for many callers).

A thin shell over `link_machine`: it decodes frames, runs the effects on a transport, and passes outcomes to the
callers.
"""

import secrets
from collections.abc import Callable
from enum import Enum
from typing import Any, assert_never

from msgspec import Raw
from msgspec.structs import replace

from actors import ports
from actors.durations import BackendDurations
from actors.links.carrier import Carrier, FromTransport
from actors.links.eras import Eras, Fitness
from actors.links.heard import Garbled, diagnosed, heard
from actors.links.link_messages import (
    Call,
    Cancel,
    Census,
    Continue,
    Denied,
    GiveAnswer,
    Granted,
    Hold,
    Join,
    Leave,
    LinkDue,
    LinkHeld,
    LinkOutcome,
    LinkReady,
    Notify,
    PutDown,
    Release,
    Warm,
)
from actors.links.own_calls import OwnCalls, OwnDue
from actors.links.resume import Resume, first_link
from actors.links.standing import Standing
from actors.links.subscribers import OWED_AGAIN, Subscribers
from actors.links.task_driver import PollDue, TaskDriver
from actors.links.telling import Telling, key_of
from actors.named import Named
from actors.protocol import breaker, codec, errors
from actors.protocol import link_events as ev
from actors.protocol import payload as json
from actors.protocol.link_calls import UNSUBSCRIBE
from actors.protocol.link_machine import step
from actors.protocol.link_state import Link, Phase, Profile
from actors.protocol.link_table import LIVE
from actors.protocol.messages import Error, RequestId
from actors.protocol.methods import METHODS
from actors.protocol.table import BackendSpec, Table
from actors.protocol.table_change import Replaced, same_server
from actors.runtime import NORMAL, Actor, Down, Ref, TaskEnded
from actors.services import Services

CLOSE_WITHIN = 6.0
"""Seconds for a graceful close (DELETE, or stdin closed, TERM, KILL); then the transport's task is cancelled."""
LISTEN_WITHIN = 1.0
"""Seconds that calls wait for the stream on which the backend may ask something in their course: some server may send
the head of that answer only with its first event."""


class _Due(Enum):
    CONNECT = "connect"
    OWED = "owed"
    CLOSE = "close"
    DRAIN = "drain"


PREFIX_BYTES = 8
"""Of what nobody can guess in the ids of a connection."""


def unguessable(profile: Profile) -> Profile:
    """With ids that only the server at the other end of this connection ever sees: whoever else finds a way to say
    something over it can't name a request, and answers none. The epoch stays in front, so that no id comes up again."""
    return replace(profile, prefix=f"{profile.prefix}-{secrets.token_hex(PREFIX_BYTES)}")


class LinkActor(Actor):
    """Temporary: it ends with those who joined it, and nobody restarts it.

    One that is given `subscriptions` stands in for one that was lost: after the back-off for this `attempt` it connects
    by itself, asks for them again, and announces what may have been missed. With `resume` it goes on where another one
    left off.
    """

    mailbox_size = 1024
    disposable = True

    _standing: Standing
    _telling: Telling
    _own: OwnCalls
    _driver: TaskDriver

    def __init__(
        self,
        spec: BackendSpec,
        profile: Profile,
        services: Services,
        backends: Named,
        *,
        level: str | None = None,
        subscriptions: tuple[str, ...] = (),
        attempt: int = 1,
        resume: Resume | None = None,
        eras: Eras | None = None,
    ) -> None:
        self._backend = spec.name  # and not the spec: each connection is made as it is configured then
        self._services = services
        self._backends = backends
        self._profile = profile
        first = unguessable(profile)
        self._link = first_link(
            first, resume, server=spec.name, level=level, subscriptions=subscriptions, attempt=attempt
        )
        self._carrier = Carrier(services.connector, spec.target, resume.kept if resume is not None else None)
        self._audience = Subscribers(spec.sharing == "shared", self._drop, self._settle_later)
        self._calls = BackendDurations(services.telemetry, services.shown)
        self._fitness = Fitness(spec.name, services, eras)
        self._begun = 0.0
        self._unreachable = False
        self._closing = False

    def __repr__(self) -> str:
        return f"<LinkActor {self._backend}: {self._link.phase.value}, {len(self._link.pending)} pending>"

    def started(self) -> None:
        self._standing = Standing(self.ctx.ref, self._backend, self._backends)
        self._telling = Telling(self.ctx.ref, self._backend, self._audience)
        self._own = OwnCalls(self.ctx, self._services.limits.request_deadline, self._backend)
        self._driver = TaskDriver(self._backend, self.ctx, self._services, self._own, self._step, self._finish)
        self._standing.moved(self._link.phase)
        if self._link.phase is Phase.WAITING:
            self._back_off(ev.BackOff(self._link.attempt))

    def receive(self, message: Any) -> None:
        match message:
            case FromTransport() as said if self._carrier.hears(said):
                self._from_transport(said.event)
            case Call():
                self._call(message)
            case Cancel(caller, call, reason):
                self._abandon((caller, call), reason)
            case GiveAnswer() | Notify() | Hold() | Release() | Warm():
                self._step(AS_EVENT[type(message)](message))
            case Join(caller):
                self._join(caller)
            case Granted():
                self._connect()
            case Denied(payload):
                self._denied(payload)
            case ev.RetryDue() | ev.Listening():
                self._step(message)
            case TaskEnded():
                self._task_ended(message)
            case Continue():
                self._continue(message)
            case Down(ref=ref, reason=reason):
                if reason.abnormal and not self._audience.shared:
                    self._put_down()  # its next life goes on with the backend's session
                self._left(ref)
            case Leave(caller):
                self.ctx.demonitor(caller)
                self._left(caller)
            case PutDown() if not self._audience.shared:
                self._put_down()
            case Replaced(before):
                self._replaced(before)
            case Census():
                link, carrier = self._link, self._carrier
                asks = link.phase is Phase.CONNECTING and not carrier.up
                self._standing.counted(link.phase, holds=carrier.holds_process, asks=asks)
            case OwnDue(call):
                self._own.overdue(call)
            case PollDue():
                self._driver.poll(message)
            case _Due():
                self._timer(message)
        self._end_if_done()

    def _timer(self, due: _Due) -> None:
        match due:
            case _Due.CONNECT:
                self._step(ev.ConnectExpired(self._carrier.diagnostics))
            case _Due.OWED:
                self._audience.settle()
            case _Due.CLOSE:
                self.ctx.stop(NORMAL)
            case _Due.DRAIN:
                self._shut()
            case _:
                assert_never(due)

    def drain(self, deadline: float) -> None:
        # Whoever used it has ended. A drain goes before what waits in the mailbox, where a session may have said that
        # the backend's session is to be left for its next life: that is read first.
        self.ctx.ref.reply(_Due.DRAIN)

    # Callers

    def _join(self, caller: Ref) -> None:
        self._audience.members[caller] = None
        self.ctx.monitor(caller)
        if self._closing:
            # A shared one that was about to end, since nobody had been left: it is needed again.
            self._closing = False
            self.ctx.cancel_timer("close")
            self._set(Link(unguessable(self._profile), server=self._backend))
        if self._link.phase is Phase.READY and (hello := self._link.hello) is not None:
            caller.reply(LinkReady(self.ctx.ref, self._backend, hello, False))

    def _left(self, ref: Ref) -> None:
        unwanted = self._audience.leave(ref)
        for key in [key for key in self._calls.running if key_of(key)[0] is ref]:
            self._abandon(key_of(key), "the session has ended")
        if not self._audience.members:
            self._shut()
        elif self._link.phase is not Phase.IDLE:
            for uri in unwanted:
                self._unsubscribe(uri)

    def _unsubscribe(self, uri: str) -> None:
        """For nobody in particular: whether it worked is of no interest, but it must not be waited for without end."""
        self._driver.request(UNSUBSCRIBE, json.dumps({"uri": uri}), lambda ok, payload: None)

    def _call(self, call: Call) -> None:
        key = (call.caller, call.call)
        if self._audience.settles(key, call):
            call.caller.reply(LinkOutcome(self._backend, call.call, True, json.dumps({})))
            return
        self._calls.call_began(key, call.method, call.params, self.ctx.now())
        row = METHODS.get(call.method)
        self._step(ev.Called(key, call.method, call.params, call.progress, row is not None and row.eligible))

    def _abandon(self, key: tuple[Ref, int], reason: str) -> None:
        self._calls.forget(key)
        self._audience.subscribed(key, False)
        if not self._driver.cancel(key, reason):
            self._step(ev.Abandoned(key, reason))

    def _continue(self, message: Continue) -> None:
        row = METHODS.get(message.method)
        eligible = row is not None and row.eligible
        key = (message.caller, message.call)
        event = ev.Continued(key, message.method, message.progress, eligible, message.place, message.asked)
        self._step(event)

    def _put_down(self) -> None:
        self._close(ev.LeftOff())

    def _shut(self) -> None:
        self._close(ev.Shut())

    def _close(self, event: ev.Shut | ev.LeftOff) -> None:
        if not self._closing:
            self._closing = True
            self._step(event)
            self.ctx.set_timer("close", CLOSE_WITHIN, _Due.CLOSE)
            self._end_if_done()

    def _end_if_done(self) -> None:
        """Whoever waits in the mailbox may still want a shared connection."""
        if self._closing and not self._carrier.tasks and self.ctx.idle:
            self.ctx.stop(NORMAL)

    def _replaced(self, before: Table) -> None:
        """A connection ends that is not to the server which is configured."""
        was, spec = (table.backends.get(self._backend) for table in (before, self._services.table.value))
        if same_server(was, spec):
            return
        if self._link.phase in LIVE:
            what = "is no longer configured" if spec is None else "has another configuration now"
            self._step(ev.Closed("unconfigured", f"server {self._backend!r} {what}", counts=False))
        if spec is None or (spec.sharing == "shared") != self._audience.shared:
            self._shut()

    # The machine

    def _step(self, event: ev.LinkEvent) -> None:
        after, effects = step(self._link, event)
        self._set(after)
        for effect in effects:
            EFFECTS[type(effect)](self, effect)

    def _set(self, after: Link) -> None:
        before, self._link = self._link.phase, after
        if after.phase is not before:
            self._standing.moved(after.phase)
            if before is Phase.LISTENING:
                self.ctx.cancel_timer("listen")

    def _from_transport(self, said: ports.TransportEvent) -> None:
        if isinstance(said, ports.SessionLost):
            self._services.telemetry.count("stagedoor_backend_sessions_lost_total", (self._backend,))
        elif isinstance(said, ports.RequestFailed) and said.reason == "connection_refused":
            self._refused(said)
        elif self._link.phase is Phase.INITIALIZING and self._fitness.refused(self._link, said):
            self._step(ev.OtherEra())
            return
        for event in heard(said, self._services.limits.message_bytes):
            if isinstance(event, Garbled):
                self._malformed(*event)
            else:
                self._step(event)

    def _refused(self, said: ports.RequestFailed) -> None:
        if self._link.phase is Phase.READY:
            self._unreachable = True
            self._standing.failed(said.reason, said.message, diagnosed(said.status, (), said.detail), ran=True)

    def _malformed(self, malformed: errors.Malformed, related: RequestId | None) -> None:
        """Only the request that it belongs to fails, whichever side's it is; the connection stays."""
        self._drop("malformed")
        self._services.log.warning("backend_malformed", backend=self._backend, error=str(malformed))
        if malformed.id is not None:
            self._carrier.send(ev.Send(codec.encode(Error(malformed.id, malformed.error.raw))))
            return
        id = malformed.outcome_of if malformed.outcome_of in self._link.pending else related
        if id is not None and not malformed.asks:
            self._step(
                ev.SendFailed(id, "malformed", f"{self._link.named} answered with something malformed", "unknown")
            )

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
        spec = self._services.table.value.backends.get(self._backend)
        if self._link.phase is not Phase.CONNECTING or self._carrier.up:
            self._give_back()  # it was given up meanwhile
        elif spec is None:
            text = f"{self._link.named} is no longer configured"
            error = errors.internal(text, reason="unconfigured", executed="no", backend=self._backend)
            self._denied(error.raw)
        else:
            resumed = self._carrier.connect(self.ctx, spec)
            self._begun = self.ctx.now()
            relates, listens, warm = self._carrier.relates, self._carrier.kind == "http", self._carrier.warm
            self._step(ev.Started(relates, fresh=not resumed, warm=warm, listens=listens))

    def _denied(self, payload: Raw) -> None:
        self._step(ev.ConnectRefused(payload))
        self._give_back()

    def _finish(self, effect: ev.Finish) -> None:
        caller, call = key_of(effect.call)
        if caller is self.ctx.ref:
            self._own.outcome(call, effect.ok, effect.payload)
            return
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
        self._audience.subscribed((caller, call), effect.ok)
        if effect.ok and self._unreachable:
            self._unreachable = False
            self._standing.connected()
        caller.reply(LinkOutcome(self._backend, call, effect.ok, effect.payload))

    def _held(self, effect: ev.Held) -> None:
        caller, call = key_of(effect.call)
        caller.reply(LinkHeld(call))

    def _due(self, effect: ev.Due) -> None:
        caller, call = key_of(effect.call)
        caller.reply(LinkDue(call))

    def _ask(self, effect: ev.Ask) -> None:
        effect = self._driver.asked(effect)
        if not self._telling.asks(effect):
            self._step(ev.AnswerGiven(effect.id, False, errors.method_not_found(effect.method).raw))

    def _unfit(self, effect: ev.Unfit) -> None:
        for called in effect.calls:
            self._calls.forget(called.call)
            if key_of(called.call)[0] is self.ctx.ref:
                self._own.overdue(key_of(called.call)[1])
        self._telling.unfit(effect)

    def _listen(self, effect: ev.Listen) -> None:
        self._carrier.listen(effect)
        if self._link.phase is Phase.LISTENING:
            self.ctx.set_timer("listen", LISTEN_WITHIN, ev.Listening(heard=False))

    def _ready(self, effect: ev.Ready) -> None:
        self._fitness.ready(self.ctx.now() - self._begun)
        self._driver.ready(effect.hello)
        self._unreachable = self._link.kept  # nothing was said to the backend yet
        if not self._unreachable:
            self._standing.connected(effect.hello)
        self._telling.ready(effect, self._carrier.kept)
        if not self._audience.shared:  # on a shared one whoever joins later has to hear it too
            self._link = replace(self._link, hello=effect.hello.lasting)

    def _down(self, effect: ev.Down) -> None:
        self._standing.down(self._services.log, effect, counts=effect.counts and not self._closing)
        self._telling.down(effect)

    def _back_off(self, effect: ev.BackOff) -> None:
        seconds = breaker.delay(effect.attempt, self._services.jitter())
        self.ctx.set_timer("back-off", seconds, ev.RetryDue())

    def _placed(self, effect: ev.Placed) -> None:
        if effect.call is None or key_of(effect.call)[0] is not self.ctx.ref:
            self._telling.placed(effect)

    def _settle_later(self) -> None:
        self.ctx.set_timer("owed", OWED_AGAIN, _Due.OWED)

    def _drop(self, what: str) -> None:
        self._services.telemetry.count("stagedoor_messages_dropped_total", (what,))


AS_EVENT: dict[type, Callable[[Any], ev.LinkEvent]] = {
    GiveAnswer: lambda message: ev.AnswerGiven(message.id, message.ok, message.payload),
    Notify: lambda message: ev.Notified(message.method, message.params),
    Hold: lambda message: ev.Hold((message.caller, message.call)),
    Release: lambda message: ev.Released((message.caller, message.call)),
    Warm: lambda message: ev.Wanted(),
}
"""What the machine hears of messages that are for it alone."""

EFFECTS: dict[type, Callable[[LinkActor, Any], None]] = {
    ev.Connect: lambda link, effect: link._standing.ask(),
    ev.Send: lambda link, effect: link._carrier.send(effect),
    ev.UseVersion: lambda link, effect: link._carrier.use_version(effect),
    ev.Listen: LinkActor._listen,
    ev.Forget: lambda link, effect: link._carrier.forget(effect),
    ev.Reset: lambda link, effect: link._carrier.reset(effect),
    ev.PickUp: lambda link, effect: link._carrier.pick_up(effect),
    ev.Hang: lambda link, effect: link._carrier.hang(effect),
    ev.LetGo: lambda link, effect: link._carrier.let_go(effect),
    ev.HandOver: LinkActor._hand_over,
    ev.Finish: LinkActor._finish,
    ev.Held: LinkActor._held,
    ev.Due: LinkActor._due,
    ev.Entrust: lambda link, effect: link._driver.entrusted(effect),
    ev.Ask: LinkActor._ask,
    ev.Withdraw: lambda link, effect: link._telling.withdraws(effect),
    ev.Tell: lambda link, effect: link._telling.tells(link._driver.told(effect)),
    ev.Placed: LinkActor._placed,
    ev.Ready: LinkActor._ready,
    ev.Down: LinkActor._down,
    ev.BackOff: LinkActor._back_off,
    ev.Unfit: LinkActor._unfit,
    ev.StartClock: lambda link, _: link.ctx.set_timer("connect", link._services.limits.link_connect, _Due.CONNECT),
    ev.StopClock: lambda link, effect: link.ctx.cancel_timer("connect"),
    ev.Tally: lambda link, effect: link._drop(effect.what),
}
