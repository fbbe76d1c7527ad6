"""The link actor: one connection to one backend, for one session (or, where the operator says so, for many callers).

A thin shell over `link_machine`: it decodes frames, runs the effects on a transport, and passes outcomes to the
callers.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Raw, Struct

from actors import ports
from actors.backends import AskPermit, Connected, Denied, Failure, Granted, Returned
from actors.named import Named
from actors.protocol import breaker, codec, errors
from actors.protocol import link_events as ev
from actors.protocol.link_machine import step
from actors.protocol.link_state import Link, Profile
from actors.protocol.messages import EMPTY, RequestId
from actors.protocol.methods import METHODS
from actors.protocol.table import BackendSpec
from actors.runtime import NORMAL, Actor, Down, Ref, TaskEnded
from actors.services import Services

# To the link -------------------------------------------------------------------------------------------------


class Call(Struct, frozen=True):
    """A request; the outcome comes to `caller` as LinkOutcome with the same `call`."""

    caller: Ref
    call: int
    method: str
    params: Raw = EMPTY
    progress: bool = False


class Cancel(Struct, frozen=True):
    """Nobody waits for it any more."""

    caller: Ref
    call: int
    reason: str


class GiveAnswer(Struct, frozen=True):
    """The outcome of a LinkAsked."""

    id: RequestId
    ok: bool
    payload: Raw


class Notify(Struct, frozen=True):
    """A notification for the backend."""

    method: str
    params: Raw = EMPTY


class Join(Struct, frozen=True):
    """The caller wants to hear what belongs to no call; the link ends when the last one that joined has ended."""

    caller: Ref


class Warm(Struct, frozen=True):
    """Connect without a call: LinkReady or LinkDown follows."""


class CloseLink(Struct, frozen=True):
    """End the connection gracefully, and the actor with it."""


# From the link -----------------------------------------------------------------------------------------------


class LinkReady(Struct, frozen=True):
    """The handshake is over; `again`: after a loss."""

    link: Ref
    backend: str
    hello: ev.Hello
    again: bool


class LinkDown(Struct, frozen=True):
    """The connection is lost or could not be made; `payload` is the JSON-RPC error object that says so."""

    link: Ref
    backend: str
    message: str
    payload: Raw


class LinkOutcome(Struct, frozen=True):
    """The outcome of a call: its result, or the JSON-RPC error object."""

    backend: str
    call: int
    ok: bool
    payload: Raw


class LinkAsked(Struct, frozen=True):
    """The backend asks; `call` as far as known."""

    link: Ref
    backend: str
    call: int | None
    id: RequestId
    method: str
    params: Raw


class LinkWithdrew(Struct, frozen=True):
    """The backend no longer wants that answer."""

    backend: str
    id: RequestId


class LinkTold(Struct, frozen=True):
    """The backend notifies; `call` as far as known."""

    link: Ref
    backend: str
    call: int | None
    method: str
    params: Raw


# Inside ------------------------------------------------------------------------------------------------------


class _FromTransport(Struct, frozen=True):
    generation: int
    event: ports.TransportEvent


class _ConnectDeadline:
    pass


class _BackOffOver:
    pass


class _CloseDeadline:
    pass


CLOSE_WITHIN = 6.0
"""Seconds for a graceful close (DELETE, or stdin closed, TERM, KILL); then the transport's task is cancelled."""


class LinkActor(Actor):
    """Temporary: it ends with those who joined it, and nobody restarts it."""

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
    ) -> None:
        self._spec = spec
        self._services = services
        self._backends = backends
        self._link = Link(profile, level=level, subscriptions=subscriptions)
        self._transport: ports.Transport | None = None
        self._generation = 0
        self._joined: set[Ref] = set()
        self._started_at: dict[ev.CallKey, tuple[float, str]] = {}
        self._closing = False
        self._running = 0

    def __repr__(self) -> str:
        return f"<LinkActor {self._spec.name}: {self._link.phase.value}, {len(self._link.pending)} pending>"

    def receive(self, message: Any) -> None:
        match message:
            case _FromTransport(generation, event):
                if generation == self._generation:
                    self._from_transport(event)
            case Call(caller, call, method, params, progress):
                known = METHODS.get(method)
                eligible = known is not None and known.eligible
                self._started_at[caller, call] = (self.ctx.now(), method)
                self._step(ev.Called((caller, call), method, params, progress, eligible))
            case GiveAnswer(id, ok, payload):
                self._step(ev.AnswerGiven(id, ok, payload))
            case Cancel(caller, call, reason):
                self._started_at.pop((caller, call), None)
                self._step(ev.Abandoned((caller, call), reason))
            case Notify(method, params):
                self._step(ev.Notified(method, params))
            case Join(caller):
                self._join(caller)
            case Granted():
                self._connect()
            case Denied(payload):
                self._step(ev.ConnectRefused(payload))
            case _ConnectDeadline():
                self._step(ev.ConnectExpired())
            case _BackOffOver():
                self._step(ev.RetryDue())
            case TaskEnded() as ended:
                self._task_ended(ended)
            case Down(ref=ref):
                self._left(ref)
            case Warm():
                self._step(ev.Wanted())
            case CloseLink():
                self._shut()
            case _CloseDeadline():
                self.ctx.stop(NORMAL)

    # Callers

    def _join(self, caller: Ref) -> None:
        if caller not in self._joined:
            self._joined.add(caller)
            self.ctx.monitor(caller)

    def _left(self, ref: Ref) -> None:
        self._joined.discard(ref)
        for key in [k for k in self._started_at if _key(k)[0] is ref]:
            self._started_at.pop(key, None)
            self._step(ev.Abandoned(key, "the session has ended"))
        if not self._joined:
            self._shut()

    def _shut(self) -> None:
        if not self._closing:
            self._closing = True
            self._step(ev.Shut())
            self.ctx.set_timer("close", CLOSE_WITHIN, _CloseDeadline())
            if not self._running:
                self.ctx.stop(NORMAL)

    # The machine

    def _step(self, event: ev.LinkEvent) -> None:
        self._link, effects = step(self._link, event)
        for effect in effects:
            EFFECTS[type(effect)](self, effect)

    def _from_transport(self, event: ports.TransportEvent) -> None:
        match event:
            case ports.FrameReceived(frame, related):
                self._frame(frame, related)
            case ports.FrameAccepted(tag):
                self._step(ev.Accepted(tag))
            case ports.RequestFailed(id, reason, message, executed):
                if reason == "connection_refused":
                    self._backends.reply(Failure(self._spec.name, message))
                self._step(ev.SendFailed(id, reason, message, executed))
            case ports.SessionLost(id):
                self._step(ev.SessionForgotten(id))
            case ports.TransportClosed(reason, message):
                self._transport = None
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
        """Only the request that it belongs to fails; the connection stays."""
        self._drop("malformed")
        self._services.log.warning("backend_malformed", backend=self._spec.name, error=str(malformed))
        id = malformed.id if malformed.id in self._link.pending else related
        if id is not None:
            self._step(ev.SendFailed(id, "malformed", "the backend answered with something malformed", "unknown"))

    def _task_ended(self, ended: TaskEnded) -> None:
        """The transport's task: it has said so itself, unless it crashed."""
        if ended.name == f"transport-{self._generation}" and self._transport is not None:
            self._transport = None
            self._step(ev.Closed("transport_crashed", "the connection to the backend crashed"))
        self._running -= 1
        if not self._running:
            self._backends.reply(Returned(self.ctx.ref))
            if self._closing:
                self.ctx.stop(NORMAL)

    # Effects

    def _connect(self) -> None:
        if self._closing:
            self._backends.reply(Returned(self.ctx.ref))
            return
        self._generation += 1
        generation = self._generation
        ref = self.ctx.ref
        emit: Callable[[ports.TransportEvent], None] = lambda event: _emit(ref, generation, event)  # noqa: E731
        self._transport = self._services.connector.connect(self._spec, emit)
        self.ctx.start_task(f"transport-{generation}", self._transport.run)
        self._running += 1
        self._step(ev.Started(self._transport.kind == "http"))

    def _ask_permit(self, effect: ev.Connect) -> None:
        if not self._backends.reply(AskPermit(self.ctx.ref, self._spec.name)):
            error = errors.internal("the gateway is shutting down", reason="shutdown", executed="no")
            self.ctx.ref.reply(Denied(error.raw))

    def _send(self, effect: ev.Send) -> None:
        if self._transport is not None:
            self._transport.send(effect.frame, id=effect.id, tag=effect.tag)

    def _hang(self, effect: ev.Hang) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None
            self._generation += 1  # whatever it still says is of no interest

    def _finish(self, effect: ev.Finish) -> None:
        caller, call = _key(effect.call)
        started = self._started_at.pop(effect.call, None)
        if started is not None:
            kind = "http" if self._link.related else "pipe"
            version = self._link.hello.version if self._link.hello is not None else ""
            labels = (started[1], "", "" if effect.ok else "error", kind, version, self._spec.name)
            self._services.telemetry.observe(
                "mcp_client_operation_duration_seconds", self.ctx.now() - started[0], labels
            )
        caller.reply(LinkOutcome(self._spec.name, call, effect.ok, effect.payload))

    def _ask(self, effect: ev.Ask) -> None:
        target, call = self._target(effect.call)
        if target is None:
            error = errors.internal("no client can be asked", reason="no_client").raw
            self._step(ev.AnswerGiven(effect.id, False, error))
            return
        target.reply(LinkAsked(self.ctx.ref, self._spec.name, call, effect.id, effect.method, effect.params))

    def _target(self, key: ev.CallKey | None) -> tuple[Ref | None, int | None]:
        """Whom a question goes to: the caller, or else the only one who joined. Never a guess among several."""
        if key is not None:
            return _key(key)
        return (next(iter(self._joined)) if len(self._joined) == 1 else None), None

    def _withdraw(self, effect: ev.Withdraw) -> None:
        for ref in self._joined:
            ref.reply(LinkWithdrew(self._spec.name, effect.id))

    def _tell(self, effect: ev.Tell) -> None:
        if effect.call is not None:
            caller, call = _key(effect.call)
            self._offer(caller, LinkTold(self.ctx.ref, self._spec.name, call, effect.method, effect.params))
            return
        shared = self._spec.sharing == "shared"
        if shared and effect.method == "notifications/message":
            self._drop("shared_log")  # it may belong to anybody, so it goes to nobody
            return
        for ref in self._joined:
            self._offer(ref, LinkTold(self.ctx.ref, self._spec.name, None, effect.method, effect.params))

    def _offer(self, ref: Ref, told: LinkTold) -> None:
        """Unsolicited: a full mailbox drops progress and logs, never what says that something has changed."""
        if told.method in ("notifications/progress", "notifications/message"):
            if not ref.cast(told):
                self._drop("notification_refused")
        else:
            ref.reply(told)

    def _ready(self, effect: ev.Ready) -> None:
        self._backends.reply(Connected(self._spec.name))
        for ref in self._joined:
            ref.reply(LinkReady(self.ctx.ref, self._spec.name, effect.hello, effect.again))

    def _down(self, effect: ev.Down) -> None:
        self._services.log.warning("link_down", backend=self._spec.name, reason=effect.reason, detail=effect.message)
        if effect.counts and not self._closing:
            self._backends.reply(Failure(self._spec.name, effect.message))
        for ref in self._joined:
            ref.reply(LinkDown(self.ctx.ref, self._spec.name, effect.message, effect.payload))

    def _back_off(self, effect: ev.BackOff) -> None:
        seconds = breaker.delay(effect.attempt, self._services.jitter())
        self.ctx.set_timer("back-off", seconds, _BackOffOver())

    def _use_version(self, effect: ev.UseVersion) -> None:
        if self._transport is not None:
            self._transport.negotiated(effect.version)

    def _listen(self, effect: ev.Listen) -> None:
        if self._transport is not None:
            self._transport.listen()

    def _forget(self, effect: ev.Forget) -> None:
        if self._transport is not None:
            self._transport.forget(effect.id)

    def _reset(self, effect: ev.Reset) -> None:
        if self._transport is not None:
            self._transport.restart()

    def _start_clock(self, effect: ev.StartClock) -> None:
        self.ctx.set_timer("connect", self._services.limits.link_connect, _ConnectDeadline())

    def _stop_clock(self, effect: ev.StopClock) -> None:
        self.ctx.cancel_timer("connect")

    def _tally(self, effect: ev.Tally) -> None:
        self._drop(effect.what)

    def _drop(self, what: str) -> None:
        self._services.telemetry.count("stagedoor_messages_dropped_total", (what,))


def _key(call: ev.CallKey) -> tuple[Ref, int]:
    """What the machine carries as an opaque key."""
    assert isinstance(call, tuple)
    return call


def _emit(ref: Ref, generation: int, event: ports.TransportEvent) -> None:
    ref.reply(_FromTransport(generation, event))


EFFECTS: dict[type, Callable[[LinkActor, Any], None]] = {
    ev.Connect: LinkActor._ask_permit,
    ev.Send: LinkActor._send,
    ev.UseVersion: LinkActor._use_version,
    ev.Listen: LinkActor._listen,
    ev.Forget: LinkActor._forget,
    ev.Reset: LinkActor._reset,
    ev.Hang: LinkActor._hang,
    ev.Finish: LinkActor._finish,
    ev.Ask: LinkActor._ask,
    ev.Withdraw: LinkActor._withdraw,
    ev.Tell: LinkActor._tell,
    ev.Ready: LinkActor._ready,
    ev.Down: LinkActor._down,
    ev.BackOff: LinkActor._back_off,
    ev.StartClock: LinkActor._start_clock,
    ev.StopClock: LinkActor._stop_clock,
    ev.Tally: LinkActor._tally,
}
