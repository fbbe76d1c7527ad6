"""The link actor: one connection to one backend, for one session (or, where the operator says so, for many callers).

A thin shell over `link_machine`: it decodes frames, runs the effects on a transport, and passes outcomes to the
callers.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from actors import ports
from actors.audience import Audience, located
from actors.backends import AskPermit, Connected, Denied, Failure, Granted, LinkMoved, Returned
from actors.carrier import Carrier, FromTransport
from actors.link_messages import (
    Call,
    Cancel,
    GiveAnswer,
    Join,
    Leave,
    LinkAsked,
    LinkDown,
    LinkOutcome,
    LinkReady,
    LinkTold,
    LinkWithdrew,
    Notify,
    Warm,
)
from actors.named import Named
from actors.protocol import breaker, codec, errors
from actors.protocol import link_events as ev
from actors.protocol import payload as json
from actors.protocol.link_machine import step
from actors.protocol.link_state import Link, Phase, Profile
from actors.protocol.messages import Error, RequestId
from actors.protocol.methods import METHODS
from actors.protocol.session_record import error_type, tool_name
from actors.protocol.table import BackendSpec
from actors.runtime import NORMAL, Actor, Down, DynamicSupervisor, Ref, Registry, TaskEnded
from actors.services import Services
from actors.subscriptions import SUBSCRIBE, UNSUBSCRIBE

CLOSE_WITHIN = 6.0
"""Seconds for a graceful close (DELETE, or stdin closed, TERM, KILL); then the transport's task is cancelled."""
OWED_AGAIN = 0.1
"""Seconds after which what found no room in a mailbox is offered again."""


class _Due(Enum):
    CONNECT = "connect"
    RETRY = "retry"
    OWED = "owed"
    CLOSE = "close"


class _Running(NamedTuple):
    """A call in hand: when it came, and what it is called in the metrics. `uri`: it subscribes to this."""

    at: float
    method: str
    tool: str
    uri: str | None


class LinkActor(Actor):
    """Temporary: it ends with those who joined it, and nobody restarts it.

    One that is given `subscriptions` stands in for one that was lost: after the back-off for this `attempt` it connects
    by itself, asks for them again, and announces what may have been missed.
    """

    mailbox_size = 1024

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
    ) -> None:
        self._spec = spec
        self._services = services
        self._backends = backends
        lost = bool(subscriptions)
        self._link = Link(
            profile,
            phase=Phase.WAITING if lost else Phase.IDLE,
            connected_before=lost,
            attempt=attempt,
            level=level,
            subscriptions=subscriptions,
        )
        self._carrier = Carrier(spec, services.connector)
        self._audience = Audience(spec.sharing == "shared", self._drop)
        self._calls: dict[ev.CallKey, _Running] = {}
        self._own = 0
        self._unreachable = False
        self._owing = False
        self._closing = False

    def __repr__(self) -> str:
        return f"<LinkActor {self._spec.name}: {self._link.phase.value}, {len(self._link.pending)} pending>"

    def started(self) -> None:
        if self._link.phase is Phase.WAITING:
            self._back_off(ev.BackOff(self._link.attempt))

    def receive(self, message: Any) -> None:
        match message:
            case FromTransport() as said:
                if self._carrier.hears(said):
                    self._from_transport(said.event)
            case Call():
                self._call(message)
            case GiveAnswer(id, ok, payload):
                self._step(ev.AnswerGiven(id, ok, payload))
            case Cancel(caller, call, reason):
                self._calls.pop((caller, call), None)
                self._step(ev.Abandoned((caller, call), reason))
            case Notify(method, params):
                self._step(ev.Notified(method, params))
            case Join(caller):
                self._join(caller)
            case Granted():
                self._connect()
            case Denied(payload):
                self._step(ev.ConnectRefused(payload))
            case _Due.CONNECT:
                self._step(ev.ConnectExpired())
            case _Due.RETRY:
                self._step(ev.RetryDue())
            case _Due.OWED:
                self._settle_owed()
            case TaskEnded() as ended:
                self._task_ended(ended)
            case Down(ref=ref):
                self._left(ref)
            case Warm():
                self._step(ev.Wanted())
            case Leave(caller):
                self.ctx.demonitor(caller)
                self._left(caller)
            case _Due.CLOSE:
                self.ctx.stop(NORMAL)

    def drain(self, deadline: float) -> None:
        """Whoever used it has ended: what is left is to close gracefully."""
        self._shut()

    # Callers

    def _join(self, caller: Ref) -> None:
        self._audience.members[caller] = None
        self.ctx.monitor(caller)
        if self._closing:
            # A shared one that was about to end, since nobody had been left: it is needed again.
            self._closing = False
            self.ctx.cancel_timer("close")
            self._set(Link(self._link.profile))
        hello = self._link.hello
        if self._link.phase is Phase.READY and hello is not None:
            caller.reply(LinkReady(self.ctx.ref, self._spec.name, hello, False))

    def _left(self, ref: Ref) -> None:
        unwanted = self._audience.leave(ref)
        for key in [k for k in self._calls if _key(k)[0] is ref]:
            del self._calls[key]
            self._step(ev.Abandoned(key, "the session has ended"))
        if not self._audience.members:
            self._shut()
        elif self._link.phase is not Phase.IDLE:
            for uri in unwanted:
                self._own += 1
                self._step(ev.Called((self.ctx.ref, self._own), UNSUBSCRIBE, json.dumps({"uri": uri})))

    def _call(self, call: Call) -> None:
        uri = located(call.params) if call.method in (SUBSCRIBE, UNSUBSCRIBE) and self._audience.shared else None
        if uri is not None and self._interest_settles(call, uri):
            call.caller.reply(LinkOutcome(self._spec.name, call.call, True, json.dumps({})))
            return
        row = METHODS.get(call.method)
        tool = tool_name(call.params) if call.method == "tools/call" else ""
        wanted = uri if call.method == SUBSCRIBE else None
        key = (call.caller, call.call)
        self._calls[key] = _Running(self.ctx.now(), call.method if row is not None else "", tool, wanted)
        eligible = row is not None and row.eligible
        self._step(ev.Called(key, call.method, call.params, call.progress, eligible))

    def _interest_settles(self, call: Call, uri: str) -> bool:
        """On a shared connection the first one to subscribe and the last one to unsubscribe speak for all."""
        if call.method == SUBSCRIBE:
            self._audience.take_interest(call.caller, uri)
            return False
        others = self._audience.wanted_by_others(call.caller, uri)
        self._audience.lose_interest(call.caller, uri)
        return others

    def _shut(self) -> None:
        if not self._closing:
            self._closing = True
            self._step(ev.Shut())
            self.ctx.set_timer("close", CLOSE_WITHIN, _Due.CLOSE)
            if not self._carrier.tasks:
                self.ctx.stop(NORMAL)

    # The machine

    def _step(self, event: ev.LinkEvent) -> None:
        after, effects = step(self._link, event)
        self._set(after)
        for effect in effects:
            EFFECTS[type(effect)](self, effect)

    def _set(self, after: Link) -> None:
        before, self._link = self._link.phase, after
        if after.phase is not before:
            self._backends.reply(LinkMoved(self.ctx.ref, self._spec.name, after.phase))

    def _from_transport(self, event: ports.TransportEvent) -> None:
        match event:
            case ports.FrameReceived(frame, related):
                self._frame(frame, related)
            case ports.FrameAccepted(tag):
                self._step(ev.Accepted(tag))
            case ports.RequestFailed(id, reason, message, executed):
                if reason == "connection_refused" and self._link.phase is Phase.READY:
                    self._unreachable = True
                    self._backends.reply(Failure(self._spec.name, reason, message))
                self._step(ev.SendFailed(id, reason, message, executed))
            case ports.SessionLost(id):
                self._services.telemetry.count("stagedoor_backend_sessions_lost_total", (self._spec.name,))
                self._step(ev.SessionForgotten(id))
            case ports.TransportClosed(reason, message):
                self._step(ev.Closed(reason, message))

    def _frame(self, frame: bytes, related: RequestId | None) -> None:
        try:
            decoded = codec.decode_frame(frame, self._services.limits.message_bytes)
        except errors.Malformed as malformed:
            self._malformed(malformed, related)
            return
        messages = decoded.messages if isinstance(decoded, codec.Batch) else (decoded,)
        for message in messages:
            if isinstance(message, errors.Malformed):
                self._malformed(message, related)
            else:
                self._step(ev.Incoming(message, related))

    def _malformed(self, malformed: errors.Malformed, related: RequestId | None) -> None:
        """Only the request that it belongs to fails, whichever side's it is; the connection stays."""
        self._drop("malformed")
        self._services.log.warning("backend_malformed", backend=self._spec.name, error=str(malformed))
        if malformed.id is not None:
            self._carrier.send(ev.Send(codec.encode(Error(malformed.id, malformed.error.raw))))
            return
        id = malformed.outcome_of if malformed.outcome_of in self._link.pending else related
        if id is not None:
            self._step(ev.SendFailed(id, "malformed", "the backend answered with something malformed", "unknown"))

    def _task_ended(self, ended: TaskEnded) -> None:
        """The transport's task: it has said so itself, unless it crashed."""
        if self._carrier.task_ended(ended.name):
            self._step(ev.Closed("transport_crashed", "the connection to the backend crashed"))
        if not self._carrier.tasks:
            self._backends.reply(Returned(self.ctx.ref))
            if self._closing:
                self.ctx.stop(NORMAL)

    # Effects

    def _connect(self) -> None:
        if self._link.phase is not Phase.CONNECTING or self._carrier.up:
            # It was given up meanwhile. The place that was granted goes back, unless an older process still holds it.
            if not self._carrier.tasks:
                self._backends.reply(Returned(self.ctx.ref))
            return
        self._carrier.connect(self.ctx)
        self._step(ev.Started(self._carrier.kind == "http"))

    def _ask_permit(self, effect: ev.Connect) -> None:
        if not self._backends.reply(AskPermit(self.ctx.ref, self._spec.name)):
            error = errors.internal("the gateway is shutting down", reason="shutdown", executed="no")
            self.ctx.ref.reply(Denied(error.raw))

    def _finish(self, effect: ev.Finish) -> None:
        caller, call = _key(effect.call)
        running = self._calls.pop(effect.call, None)
        if running is not None:
            self._observe(running, effect)
            if running.uri is not None and not effect.ok:
                self._audience.lose_interest(caller, running.uri)
        if effect.ok and self._unreachable:
            self._unreachable = False
            self._backends.reply(Connected(self._spec.name))
        caller.reply(LinkOutcome(self._spec.name, call, effect.ok, effect.payload))

    def _observe(self, running: _Running, effect: ev.Finish) -> None:
        version = self._link.hello.version if self._link.hello is not None else ""
        error = "" if effect.ok else error_type(effect.payload)
        labels = (running.method, running.tool, error, self._carrier.kind, version, self._spec.name)
        seconds = self.ctx.now() - running.at
        self._services.telemetry.observe("mcp_client_operation_duration_seconds", seconds, labels)

    def _ask(self, effect: ev.Ask) -> None:
        """A question goes to the caller, or else to the only one who joined: never to a guess among several."""
        target, call = _key(effect.call) if effect.call is not None else (self._audience.only(), None)
        if target is None or self._audience.shared:
            # A shared connection declared no client at all: whoever asks over it may not.
            self._step(ev.AnswerGiven(effect.id, False, errors.method_not_found(effect.method).raw))
        else:
            target.reply(LinkAsked(self.ctx.ref, self._spec.name, call, effect.id, effect.method, effect.params))

    def _withdraw(self, effect: ev.Withdraw) -> None:
        for ref in self._audience.members:
            ref.reply(LinkWithdrew(self._spec.name, effect.id))

    def _tell(self, effect: ev.Tell) -> None:
        to, call = _key(effect.call) if effect.call is not None else (None, None)
        self._audience.tell(LinkTold(self.ctx.ref, self._spec.name, call, effect.method, effect.params), to)
        self._watch_owed()

    def _settle_owed(self) -> None:
        self._owing = False
        self._audience.settle()
        self._watch_owed()

    def _watch_owed(self) -> None:
        if self._audience.owes and not self._owing:
            self._owing = True
            self.ctx.set_timer("owed", OWED_AGAIN, _Due.OWED)

    def _ready(self, effect: ev.Ready) -> None:
        self._unreachable = False
        self._backends.reply(Connected(self._spec.name))
        for ref in self._audience.members:
            ref.reply(LinkReady(self.ctx.ref, self._spec.name, effect.hello, effect.again))

    def _down(self, effect: ev.Down) -> None:
        self._services.log.warning("link_down", backend=self._spec.name, reason=effect.reason, detail=effect.message)
        if effect.counts and not self._closing:
            self._backends.reply(Failure(self._spec.name, effect.reason, effect.message))
        for ref in self._audience.members:
            ref.reply(LinkDown(self.ctx.ref, self._spec.name, effect.message, effect.payload))

    def _back_off(self, effect: ev.BackOff) -> None:
        seconds = breaker.delay(effect.attempt, self._services.jitter())
        self.ctx.set_timer("back-off", seconds, _Due.RETRY)

    def _start_clock(self, effect: ev.StartClock) -> None:
        self.ctx.set_timer("connect", self._services.limits.link_connect, _Due.CONNECT)

    def _stop_clock(self, effect: ev.StopClock) -> None:
        self.ctx.cancel_timer("connect")

    def _drop(self, what: str) -> None:
        self._services.telemetry.count("stagedoor_messages_dropped_total", (what,))


def start_link(spec: BackendSpec, registry: Registry, links: DynamicSupervisor, make: Callable[[], LinkActor]) -> Ref:
    """A new link, or for a shared backend the one that everybody uses. Raises AtCapacity, SystemClosed."""
    if spec.sharing != "shared":
        return links.start_child(make())
    name = f"link-{spec.name}-shared"
    running = registry.whereis(name)
    return running if running is not None else links.start_child(make(), name)


def _key(call: ev.CallKey) -> tuple[Ref, int]:
    """What the machine carries as an opaque key."""
    assert isinstance(call, tuple)
    return call


EFFECTS: dict[type, Callable[[LinkActor, Any], None]] = {
    ev.Connect: LinkActor._ask_permit,
    ev.Send: lambda link, effect: link._carrier.send(effect),
    ev.UseVersion: lambda link, effect: link._carrier.use_version(effect),
    ev.Listen: lambda link, effect: link._carrier.listen(effect),
    ev.Forget: lambda link, effect: link._carrier.forget(effect),
    ev.Reset: lambda link, effect: link._carrier.reset(effect),
    ev.Hang: lambda link, effect: link._carrier.hang(effect),
    ev.Finish: LinkActor._finish,
    ev.Ask: LinkActor._ask,
    ev.Withdraw: LinkActor._withdraw,
    ev.Tell: LinkActor._tell,
    ev.Ready: LinkActor._ready,
    ev.Down: LinkActor._down,
    ev.BackOff: LinkActor._back_off,
    ev.StartClock: LinkActor._start_clock,
    ev.StopClock: LinkActor._stop_clock,
    ev.Tally: lambda link, effect: link._drop(effect.what),
}
