"""What the upstream connections of both eras share: one transport at a time, those who use it, and what is
measured.

A connection is an actor over one of two pure machines (`legacy.py`, `modern.py`). What its transport says becomes
an event of the machine, what the machine wants is done here or there, and outcomes go to whoever called. It asks
the backends actor before it connects, and tells it how that went; what is told while that actor is being restarted
goes nowhere, and the one that comes then asks for a recount.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, assert_never

from msgspec import Raw

from actors import ports
from actors.durations import BackendDurations
from actors.machines.upstream import breaker
from actors.machines.upstream import events as ev
from actors.machines.upstream.legacy_state import LIVE, Phase
from actors.machines.upstream.legacy_state import Upstream as LegacyState
from actors.machines.upstream.modern_state import Upstream as ModernState
from actors.named import NamedRef
from actors.protocol import errors, trace_context
from actors.protocol.diagnostics import NO_DIAGNOSTICS, Diagnostics
from actors.protocol.messages import RequestId
from actors.protocol.operations import Operation
from actors.protocol.table import BackendSpec, Replaced, same_server
from actors.protocol.transport import UNAUTHORIZED
from actors.runtime import NORMAL, Actor, Down, Exit, Ref, TaskEnded
from actors.services import Services
from actors.upstreams.messages import (
    Call,
    Cancel,
    Connected,
    Denied,
    Failure,
    Granted,
    Join,
    Leave,
    Present,
    Recount,
    RequestPermit,
    Returned,
    Spare,
    UpstreamDown,
    UpstreamMoved,
    UpstreamNotification,
    UpstreamReady,
)
from actors.upstreams.subscribers import REPLIES_AGAIN, Subscribers

NO_HEADERS: Final[Mapping[str, str]] = {}

CLOSE_WITHIN = 6.0
"""Seconds for a graceful close (DELETE, or stdin closed, TERM, KILL); then the transport's task is cancelled."""


class FromTransport(NamedTuple):
    """What a transport said, and which one it was."""

    generation: int
    event: ports.TransportEvent


class Emit:
    """What a transport is given to say things by, to the actor `ref`."""

    __slots__ = ("_generation", "_ref")

    def __init__(self, ref: Ref, generation: int) -> None:
        self._ref = ref
        self._generation = generation

    def __call__(self, event: ports.TransportEvent) -> None:
        self._ref.reply(FromTransport(self._generation, event))


class Due(Enum):
    """A clock of a connection."""

    CONNECT = "connect"
    REPLIES = "replies"
    CLOSE = "close"
    DRAIN = "drain"
    GRACE = "grace"
    """Those who hold a connection to the server as it was configured before have had it for long enough."""
    UNUSED = "unused"
    """Nobody may have used it for long enough to stop the process."""
    MOVED_ON = "moved on"
    """Such a connection is lost, and was everybody's: there is another one for whoever comes."""


CommonMessage: TypeAlias = (
    Cancel | Join | Leave | Granted | Denied | Recount | Spare | Replaced | Down | TaskEnded | ev.RetryDue | Due
)
"""What connections of both eras do the same for."""
CommonEvent: TypeAlias = ev.Shut | ev.Closed | ev.ConnectRefused | ev.ConnectExpired | ev.RetryDue


def key_of(call: ev.CallKey) -> tuple[Ref, int]:
    """What the machine carries as an opaque key: the caller, and its number of the call."""
    assert isinstance(call, tuple)
    return call


def diagnosed(status: int | None, stderr: tuple[str, ...], detail: str) -> Diagnostics:
    """What a transport knows of a failure."""
    return Diagnostics(status, stderr, detail) if status or stderr or detail else NO_DIAGNOSTICS


class Connection(Actor):
    """The actor over one transport to one server. Temporary: it ends with those who joined it, and nobody restarts
    it."""

    __slots__ = (
        "_account",
        "_backend",
        "_backends",
        "_begun",
        "_calls",
        "_closing",
        "_former",
        "_generation",
        "_kept",
        "_kind",
        "_made_for",
        "_me",
        "_phase",
        "_services",
        "_subscribers",
        "_tasks",
        "_transport",
        "_unreachable",
        "_upstream",
        "_used",
        "principal",
    )

    mailbox_size = 1024
    disposable = True
    modern: ClassVar[bool]
    """Whether its transports speak the modern era."""
    gone: ClassVar[str]
    """Why the calls of a caller that has ended are cancelled, as the backend is told."""

    _me: Ref
    _upstream: LegacyState | ModernState
    """The state of the machine."""

    everybodys: bool
    """Whether it is the one connection of all who come to this server. It stays with the server that it was made for;
    any other one is made anew as it is configured then."""

    def __init__(
        self,
        spec: BackendSpec,
        services: Services,
        backends: NamedRef,
        *,
        shared: bool,
        kept: ports.Resumable | None = None,
    ) -> None:
        """`kept` is a session with the target of `spec`, which the first transport goes on with."""
        self._backend = spec.name
        self._account = spec.account
        self._services = services
        self._backends = backends
        self._subscribers = Subscribers(shared, self._drop, self._settle_later)
        self._calls = BackendDurations(services.telemetry, services.shown)
        self._phase = Phase.IDLE
        """As people are told of it."""
        self._made_for = spec
        """The server as it was configured when the present transport was made."""
        self._former = False
        """It is configured otherwise now."""
        self._kept = kept
        self._transport: ports.Transport | None = None
        self._generation = 0
        """Of the present transport: what an earlier one still says is not heard."""
        self._kind = ""
        """Of the present transport, or the last one: the metrics label."""
        self._tasks = 0
        """Transports that have not come to their end, which may take a while after they were closed."""
        self._begun = 0.0
        """When the present transport was."""
        self._unreachable = False
        self._used = 0.0
        """When it was last."""
        self.principal: str | None = None
        """Whose connection it is; None: of somebody without a name, or everybody's."""
        self._closing = False

    def __repr__(self) -> str:
        upstream = self._upstream
        return f"<{type(self).__name__} {self._backend}: {upstream.phase.value}, {len(upstream.pending)} pending>"

    def statistics(self) -> dict[str, int]:
        """How much is under way, or waits to be told."""
        return {
            "calls": len(self._calls),
            "pending": len(self._upstream.pending),
            "backlog": self._subscribers.backlog,
        }

    def started(self) -> None:
        self._me = self.ctx.ref
        self._show(self._phase)

    def stopped(self, reason: Exit) -> None:
        """After a crash: what was under way has no outcome."""
        if self._calls.operations:
            self._calls.left("lost")

    def drain(self, deadline: float) -> None:
        # Whoever used it has ended. A drain goes before what waits in the mailbox, where a session may have said that
        # the backend's session is to be left for its next life: that is read first.
        self._me.reply(Due.DRAIN)

    def _common(self, message: CommonMessage) -> None:
        match message:
            case TaskEnded():
                self._task_ended(message)
            case Cancel(caller, call, reason):
                self._abandon((caller, call), reason)
            case Join():
                self._join(message)
            case Leave(caller):
                self.ctx.demonitor(caller)
                self._left(caller)
            case Down(ref=ref):
                self._left(ref)
            case Granted():
                self._connect()
            case Denied(payload):
                self._denied(payload)
            case ev.RetryDue():
                self._step(message)
            case Replaced():
                self._replaced()
            case Recount():
                asks = self._phase is Phase.CONNECTING and self._transport is None
                holds = self._kind == "stdio" and self._tasks > 0
                whose = self._account, self.principal or ""
                self._backends.reply(Present(self._me, self._backend, self._phase, holds, asks, *whose))
            case Spare():
                if not self._subscribers.members:
                    self._shut()
            case Due():
                self._due(message)
            case _:
                assert_never(message)

    def _due(self, due: Due) -> None:
        match due:
            case Due.CONNECT:
                stderr = self._transport.stderr if self._transport is not None else ()
                self._step(ev.ConnectExpired(diagnosed(None, stderr, "")))
            case Due.REPLIES:
                self._subscribers.settle()
            case Due.CLOSE:
                self.ctx.stop(NORMAL)
            case Due.DRAIN:
                self._shut()
            case Due.GRACE:
                self._part()
            case Due.MOVED_ON:
                self._return_unsent()
                self._shut()
            case Due.UNUSED:
                self._rest()
            case _:
                assert_never(due)

    # The two eras

    @abstractmethod
    def _return_unsent(self) -> None:
        """Calls that came since nothing connects it any more go back to their callers, who make them over the
        connection to the server that is configured."""

    @property
    @abstractmethod
    def _engaged(self) -> bool:
        """Whether something is under way that is no call: somebody is subscribed, or was asked something."""

    @abstractmethod
    def _step(self, event: CommonEvent) -> None:
        """One event of the machine, and what it wants done."""

    @abstractmethod
    def _renewed(self) -> LegacyState | ModernState:
        """The state of a connection that was about to end and is needed again: as at first, with other ids."""

    @abstractmethod
    def _opened(self, spec: BackendSpec, resumed: bool) -> None:
        """There is a transport; `resumed`: it goes on with the session that was kept."""

    @abstractmethod
    def _abandon(self, key: tuple[Ref, int], reason: str) -> None:
        """Nobody waits for this call any more."""

    @abstractmethod
    def _joined(self, join: Join) -> None:
        """There is another member."""

    @abstractmethod
    def _without(self, ref: Ref, unwanted: list[str]) -> None:
        """A member is gone, and with it its calls; nobody is subscribed to these URIs any more."""

    # Callers

    def _join(self, join: Join) -> None:
        caller = join.caller
        self._subscribers.members[caller] = None
        self.ctx.monitor(caller)
        if self._closing:
            # One that several use was about to end, since nobody had been left: it is needed again.
            self._closing = False
            self.ctx.cancel_timer("close")
            self._upstream = self._renewed()
            self._show(Phase.IDLE)
        self._joined(join)
        if self._phase is Phase.READY and (server_info := self._upstream.server_info) is not None:
            caller.reply(UpstreamReady(self._me, self._backend, server_info, False))

    def _left(self, ref: Ref) -> None:
        unwanted = self._subscribers.leave(ref)
        for key in [key for key in self._calls.running if key_of(key)[0] is ref]:
            self._abandon(key_of(key), self.gone)
        self._without(ref, unwanted)
        if not self._subscribers.members:
            self._rest()

    def _rest(self) -> None:
        """Ends what nobody uses: at once what was one session's alone, and what several use as soon as nobody has used
        it for `idleStop`. Where a server has that, it is stopped then for sessions that go on too; their next call
        starts it again."""
        spec, left = self._spec, not self._subscribers.members
        seconds = spec.idle_stop if spec is not None else None
        if seconds is None or (left and not self._subscribers.shared):
            if left:
                self._shut()
            return
        busy = bool(self._calls.running) or self._engaged
        rest = seconds if busy else self._used + seconds - self.ctx.now()
        if rest > 0:
            self.ctx.set_timer("unused", rest, Due.UNUSED)
        elif left:
            self._shut()
        elif self._phase is Phase.READY:
            text = f"server {self._backend!r} was stopped, since nobody used it"
            self._step(ev.Closed("idle_stop", text, counts=False))

    def _shut(self) -> None:
        self._close(ev.Shut())

    def _close(self, event: Any) -> None:
        if not self._closing:
            self._closing = True
            self._step(event)
            self.ctx.set_timer("close", CLOSE_WITHIN, Due.CLOSE)
            self._end_if_done()

    def _end_if_done(self) -> None:
        """Whoever waits in the mailbox may still want a connection that several use."""
        if self._closing and not self._tasks and self.ctx.idle:
            self.ctx.stop(NORMAL)

    def _said(self, ok: bool, payload: Raw, theirs: bool) -> Raw:
        """An outcome as callers get it: that an account is missing, the gateway says and no server."""
        return errors.disowned(payload, UNAUTHORIZED) if self._account and theirs and not ok else payload

    def _measure(self, key: tuple[Ref, int], ok: bool, payload: Raw) -> None:
        """A caller's call has its outcome."""
        server_info = self._upstream.server_info
        self._used = self.ctx.now()
        self._calls.ended(
            key,
            ok,
            payload,
            self._used,
            backend=self._backend,
            transport=self._kind,
            version=server_info.version if server_info is not None else "",
        )
        if ok and self._unreachable:
            self._unreachable = False
            self._works()

    # What is configured

    def _works(self, server_info: ev.ServerInfo | None = None) -> None:
        """The server that is configured does, if it is this one."""
        if not self._former:
            self._backends.reply(Connected(self._backend, server_info, self._account))

    @property
    def _spec(self) -> BackendSpec | None:
        """As it is configured now; None for a connection to what was configured before: what shows there says nothing
        of the server that is."""
        return None if self._former else self._configured

    @property
    def _configured(self) -> BackendSpec | None:
        return self._services.table.value.backends.get(self._backend)

    def _replaced(self) -> None:
        """The table is another one. To a server that is gone the connection ends. One to a server that has another
        configuration stays with those who use it, and what they have in flight, until `reload.grace` is over."""
        spec = self._configured
        if spec is None:
            self._lose("is no longer configured")
            self._shut()
        elif same_server(self._made_for, spec):
            self._former = False  # perhaps it is again what it was before
            self.ctx.cancel_timer("reload")
        elif self._transport is None and not self.everybodys:
            self._fit(spec)
        elif not self._former and not self._closing:
            self._former = True
            self.ctx.set_timer("reload", self._services.limits.reload_grace, Due.GRACE)

    def _part(self) -> None:
        """The grace is over. Those who still use it go on with the server that is configured."""
        if self._former:
            self._lose("has another configuration now")
        if self._former:  # there was nothing to lose
            self._move_on()

    def _lose(self, what: str) -> None:
        if self._phase in LIVE:
            self._step(ev.Closed("unconfigured", f"server {self._backend!r} {what}", counts=False))

    def _move_on(self) -> None:
        """Nothing connects it to what was configured before any more."""
        self._former = False
        self.ctx.cancel_timer("reload")
        spec = self._configured
        if self.everybodys or spec is None:
            self._me.reply(Due.MOVED_ON)  # and not at once: the machine may be in the middle of a step
        else:
            self._fit(spec)

    def _fit(self, spec: BackendSpec) -> None:
        """A connection for one session becomes none for all, nor the other way round."""
        if spec.common != self._subscribers.shared:
            self._me.reply(Due.MOVED_ON)

    # The transport

    def _connect(self) -> None:
        spec = self._made_for if self.everybodys else self._configured
        if self._phase is not Phase.CONNECTING or self._transport is not None:
            self._give_back()  # it was given up meanwhile
        elif spec is None:
            text = f"{self._upstream.named} is no longer configured"
            error = errors.internal(text, reason="unconfigured", executed="no", backend=self._backend)
            self._denied(error.raw)
        else:
            resumed = self._open(spec)
            self._begun = self._used = self.ctx.now()
            if spec.idle_stop is not None and self._kind == "stdio":
                self.ctx.set_timer("unused", spec.idle_stop, Due.UNUSED)
            self._opened(spec, resumed)

    def _settled(self, spec: BackendSpec) -> BackendSpec:
        """With the target that the server was found to be."""
        return spec

    def _open(self, spec: BackendSpec) -> bool:
        """Makes a transport and runs it in a task; whether it goes on with the session that was kept."""
        self._generation += 1
        emit = Emit(self._me, self._generation)
        target = self._settled(spec).of(self._account) if self._account else self._settled(spec)
        transport = self._transport = self._services.connector.connect(target, emit, self.modern)
        self._kind = transport.kind
        if self.principal is not None:
            transport.belongs_to(self.principal)
        kept, self._kept = self._kept, None
        resumes = kept is not None and spec.target == self._made_for.target
        self._made_for = spec
        if self._former and not self.everybodys:
            self._former = False
            self.ctx.cancel_timer("reload")
        if kept is not None and resumes:
            transport.resume(kept)
        self.ctx.start_task(f"transport-{self._generation}", transport.run)
        self._tasks += 1
        return resumes

    def _denied(self, payload: Raw) -> None:
        self._step(ev.ConnectRefused(payload))
        self._give_back()

    def _closed(self, said: ports.TransportClosed) -> None:
        self._transport = None
        self._step(ev.Closed(said.reason, said.message, diagnostics=diagnosed(None, said.stderr, said.detail)))

    def _refused(self, said: ports.RequestFailed) -> None:
        """A request that did not get through; where nobody listens at all, the backend is not well."""
        if said.reason == "connection_refused" and self._phase is Phase.READY and not self._former:
            self._unreachable = True
            diagnostics = diagnosed(said.status, (), said.detail)
            self._backends.reply(Failure(self._backend, said.reason, said.message, diagnostics, True))

    def _unreadable(self, malformed: errors.Malformed, related: RequestId | None) -> RequestId | None:
        """Of what can't be read only the request fails that it belongs to, whichever side's it is, and the connection
        stays: the id of ours, if it is that of one."""
        self._drop("malformed")
        self._services.log.warning("backend_malformed", backend=self._backend, error=str(malformed))
        id = malformed.outcome_of if malformed.outcome_of in self._upstream.pending else related
        return None if malformed.asks else id

    def _task_ended(self, ended: TaskEnded) -> None:
        """The transport's task: it has said so itself, unless it crashed."""
        self._tasks -= 1
        if ended.name == f"transport-{self._generation}" and self._transport is not None:
            self._transport = None
            self._step(ev.Closed("transport_crashed", f"the connection to {self._upstream.named} crashed"))
        if self._phase is not Phase.CONNECTING:  # a permit is on its way, and with it the place is kept
            self._give_back()

    def _give_back(self) -> None:
        """The place for a process is free, unless an earlier process is still ending."""
        if not self._tasks:
            self._backends.reply(Returned(self._me))

    # Effects

    def _show(self, phase: Phase) -> None:
        self._phase = phase
        self._backends.reply(UpstreamMoved(self._me, self._backend, phase))

    def _request_permit(self, effect: ev.Connect) -> None:
        """Granted or Denied follows, also if the server request is lost with whom it was asked."""
        self._backends.reply(RequestPermit(self._me, self._backend, self._account, self.principal or ""))

    def _observe(self, key: tuple[Ref, int], call: Call) -> Raw:
        """A call begins, within the work that its params name; the params that name the call itself."""
        observer = self._services.observer
        if observer is None or not observer.traces:
            return call.params
        within = trace_context.carried(call.params, NO_HEADERS)
        operation = Operation(observer, "client", call.method, within, backend=self._backend)
        self._calls.observe(key, operation)
        if operation.context is None:
            return call.params
        return trace_context.carrying(call.params, operation.context, within.baggage)

    def _send(self, effect: ev.Send) -> None:
        if self._transport is not None:
            headers = effect.headers
            observer = self._services.observer
            if observer is not None and observer.traces and effect.id is not None:
                headers = (*headers, *trace_context.as_headers(effect.frame))
            self._transport.send(effect.frame, id=effect.id, tag=effect.tag, headers=headers, rights=effect.rights)

    def _on_transport(self, effect: Any) -> None:
        """Without a transport these have no object."""
        if self._transport is not None:
            ON_TRANSPORT[type(effect)](self._transport, effect)

    def _leave_transport(self, effect: Any) -> None:
        """Its task goes on until it is closed, unheard."""
        if self._transport is not None:
            ON_TRANSPORT[type(effect)](self._transport, effect)
            self._transport = None
            self._generation += 1

    def _hand_over(self, effect: ev.HandOver) -> None:
        """Whoever takes the process has a place for it, and may have to wait for this one."""
        self._leave_transport(effect)
        self._backends.reply(Returned(self._me))

    def _tell(self, effect: ev.Notify) -> None:
        to, call = key_of(effect.call) if effect.call is not None else (None, None)
        place = None if self._subscribers.shared else effect.place
        self._subscribers.tell(
            UpstreamNotification(self._me, self._backend, call, effect.method, effect.params, place), to
        )

    def _announce(self, effect: ev.Ready, kept: ports.Resumable | None = None) -> None:
        for ref in self._subscribers.members:
            ref.reply(UpstreamReady(self._me, self._backend, effect.server_info, effect.again, kept))

    def _down(self, effect: ev.Down) -> None:
        """What says something of the backend's health is logged by the backends actor, once for all who meet it; only
        what does not is logged here."""
        if effect.counts and not self._closing and not self._former:
            told = (effect.reason, effect.message, effect.diagnostics, effect.ran, self._account)
            self._backends.reply(Failure(self._backend, *told))
        else:
            log = self._services.log.info if effect.reason == ev.REPLACED else self._services.log.debug
            log("link_down", backend=self._backend, reason=effect.reason, detail=effect.message)
        for ref in self._subscribers.members:
            ref.reply(UpstreamDown(self._me, self._backend, effect.message, effect.payload))
        if self._former:
            self._move_on()

    def _back_off(self, effect: ev.BackOff) -> None:
        seconds = breaker.delay(effect.attempt, self._services.jitter())
        self.ctx.set_timer("back-off", seconds, ev.RetryDue())

    def _start_clock(self, effect: ev.StartClock) -> None:
        self.ctx.set_timer("connect", self._services.limits.link_connect, Due.CONNECT)

    def _stop_clock(self, effect: ev.StopClock) -> None:
        self.ctx.cancel_timer("connect")

    def _settle_later(self) -> None:
        self.ctx.set_timer("replies", REPLIES_AGAIN, Due.REPLIES)

    def _count(self, effect: ev.Count) -> None:
        self._drop(effect.what)

    def _drop(self, what: str) -> None:
        self._services.telemetry.count("stagedoor_messages_dropped_total", (what,))


def _pick_up(transport: ports.Transport, effect: ev.PickUp) -> None:
    if effect.place.cursor is not None:
        transport.pick_up(effect.place.id, effect.place.cursor)


ON_TRANSPORT: dict[type, Callable[[ports.Transport, Any], None]] = {
    ev.UseVersion: lambda transport, effect: transport.negotiated(effect.version),
    ev.Listen: lambda transport, effect: transport.listen(),
    ev.Forget: lambda transport, effect: transport.forget(effect.id),
    ev.Reset: lambda transport, effect: transport.restart(),
    ev.PickUp: _pick_up,
    ev.Hang: lambda transport, effect: transport.close(),
    ev.LetGo: lambda transport, effect: transport.let_go(),
    ev.HandOver: lambda transport, effect: transport.hand_over(),
}

EFFECTS: dict[type, Callable[[Any, Any], None]] = {
    ev.Connect: Connection._request_permit,
    ev.Send: Connection._send,
    **dict.fromkeys(ON_TRANSPORT, Connection._on_transport),
    **dict.fromkeys((ev.Hang, ev.LetGo), Connection._leave_transport),
    ev.HandOver: Connection._hand_over,
    ev.Down: Connection._down,
    ev.BackOff: Connection._back_off,
    ev.StartClock: Connection._start_clock,
    ev.StopClock: Connection._stop_clock,
    ev.Count: Connection._count,
}
"""What machines of either era want; each era adds its own."""
