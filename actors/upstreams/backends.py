"""The backends actor: one circuit breaker and status per backend, and the bound on child processes over all of
them.

An upstream connection asks here before it connects, and tells how it went. Asking costs a message per connection,
not per call. After a crash the upstream connections that live are counted anew; until all have answered, each of
them may hold a process.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias, assert_never

import msgspec
from msgspec import Struct

from actors.machines.upstream import breaker as br
from actors.machines.upstream.events import ServerInfo
from actors.machines.upstream.legacy_state import Phase
from actors.protocol import errors
from actors.protocol.errors import BROKEN
from actors.protocol.table import Replaced, StdioTarget, replaced
from actors.runtime import Actor, Down, Ref
from actors.services import Services
from actors.upstreams.messages import (
    Connected,
    Denied,
    Failure,
    Granted,
    Present,
    Recount,
    RequestPermit,
    Returned,
    Spare,
    ToBackends,
    UpstreamMoved,
)


class _WaitOver(Struct, frozen=True):
    upstream: Ref


class _ReportDue(Struct, frozen=True):
    backend: str
    account: str


Message: TypeAlias = ToBackends | Replaced | Down | _ReportDue | _WaitOver

SHOWN = 100
"""Characters of a server's own name and version that are kept for operators."""
REPORT_EVERY = 60.0
"""Seconds between two lines of the log about one backend that fails for one reason; each says how often it failed."""

ACCOUNTS = 4096
"""Users' accounts with which something is wrong that are remembered, over all backends."""
EVERYBODYS = frozenset({"connection_refused", "spawn_failed"})
"""Reasons that are the same with any account: nothing was sent yet by which it could be known."""


@dataclass(slots=True)
class Status:
    """What is known of one backend, for people."""

    breaker: br.Breaker = field(default_factory=br.Breaker)
    connections: int = 0
    revision: str = ""
    """The protocol revision that was settled on with it last."""
    server: tuple[str, str] = ("", "")
    """Its own name and version."""
    failure: Failure | None = None
    """Why the last attempt did not work; None after one that did."""
    failures: int = 0
    """Attempts in a row that did not work."""
    unlogged: int = 0
    """Failures since the last line of the log that told of one."""
    logged: dict[tuple[str, bool], float] = field(default_factory=dict)
    """When each reason was in the log, of a server that had run or of one that could not be started."""

    @property
    def last_error(self) -> str:
        """The sentence for operators: it may hold an address."""
        return "" if self.failure is None else self.failure.diagnostics.detail or self.failure.message

    @property
    def state(self) -> str:
        """In plain words."""
        if self.breaker.state is not br.BreakerState.CLOSED:
            return STATE_WORDS[self.breaker.state]
        return "failing" if self.failure is not None else "healthy" if self.connections else "unused"


STATE_WORDS = {
    br.BreakerState.CLOSED: "healthy",
    br.BreakerState.OPEN: "down",
    br.BreakerState.HALF_OPEN: "recovering",
}
"""What people are told of a breaker."""


UP = {br.BreakerState.CLOSED: 1.0, br.BreakerState.HALF_OPEN: 0.5, br.BreakerState.OPEN: 0.0}
"""What the gauge shows."""

STATES = {
    Phase.IDLE: "idle",
    Phase.CONNECTING: "connecting",
    Phase.INITIALIZING: "connecting",
    Phase.CONFIRMING: "connecting",
    Phase.LISTENING: "connecting",
    Phase.READY: "ready",
    Phase.WAITING: "waiting",
    Phase.CLOSED: "closing",
}
"""What people are told of an upstream connection's phase."""


LEFT: Final = 8
"""One of so many places for child processes is left to others by whoever has all the rest."""


class _Wanted(NamedTuple):
    """A place for a process of this backend. `principal`: whose it is, if it is somebody's alone."""

    backend: str
    principal: str


class Backends(Actor):
    """Grants connect permits: one breaker and status per backend, and a bound on child processes. Permanent. `status`
    outlives a crash, for it is nothing but values; `upstreams` gives those that live."""

    mailbox_size = 4096

    def __init__(self, services: Services, status: dict[str, Status], upstreams: Callable[[], Iterable[Ref]]) -> None:
        self._services = services
        self._living = upstreams
        self.status = status
        self._accounts: dict[tuple[str, str], Status] = {}
        """By backend and account: those with which something is wrong."""
        self._tries: dict[Ref, str] = {}
        """Upstream connections that try such an account."""
        self._places: dict[Ref, _Wanted] = {}
        """The upstream connections that hold a place for a child process."""
        self._waiting: dict[Ref, _Wanted] = {}
        """Those that wait for one, in order."""
        self._upstreams: dict[Ref, tuple[str, str]] = {}
        self._in_state: Counter[tuple[str, str]] = Counter()
        self._uncounted: set[Ref] = set()
        """Upstream connections that have not answered the recount."""

    def started(self) -> None:
        for backend in self.status:
            for state in STATES.values():
                self._services.telemetry.gauge("stagedoor_backend_links", 0.0, (backend, state))
            self._count_places(backend)
        for upstream in self._living():
            self._uncounted.add(upstream)
            self.ctx.monitor(upstream)
            upstream.reply(Recount())

    def receive(self, message: Message) -> None:
        match message:
            case RequestPermit(upstream, backend, account, principal):
                self._ask(upstream, _Wanted(backend, principal), account)
            case Connected(backend, server_info, account):
                self._connected(backend, server_info, account)
            case Failure():
                self._failed(message)
            case UpstreamMoved(upstream, backend, phase):
                self._moved(upstream, (backend, STATES[phase]))
            case Returned(upstream):
                self._returned(upstream)
            case Present():
                self._counted(message)
            case _ReportDue(backend, account):
                self._report_due(backend, account)
            case Replaced(before):
                self._forget(replaced(before, self._services.table.value))
            case Down(ref=upstream):
                self._moved(upstream, None)
                self._waiting.pop(upstream, None)
                self._tries.pop(upstream, None)
                self._uncounted.discard(upstream)
                self.ctx.cancel_timer(upstream)
                self._returned(upstream)
            case _WaitOver(upstream):
                self._wait_over(upstream)
            case _:
                assert_never(message)

    # How the backends are

    def _of(self, backend: str, account: str = "") -> Status:
        """What is known of a backend; or of one user's account there, which says nothing of those of others."""
        if not account:
            return self.status.setdefault(backend, Status())
        status = self._accounts.pop((backend, account), None) or Status()
        self._accounts[backend, account] = status
        if len(self._accounts) > ACCOUNTS:
            del self._accounts[next(iter(self._accounts))]
        return status

    def _connected(self, backend: str, server_info: ServerInfo | None, account: str) -> None:
        if account:
            self._accounts.pop((backend, account), None)
        status = self._of(backend)
        status.connections += 1
        if server_info is not None:
            status.revision = server_info.version
            status.server = _server(server_info)
        if status.failure is not None:
            self._services.log.info("backend_recovered", backend=backend, failures=status.failures)
        status.failure, status.failures = None, 0
        self._set(backend, br.succeeded(status.breaker))

    def _failed(self, failure: Failure) -> None:
        account = "" if failure.reason in EVERYBODYS else failure.account
        status = self._of(failure.backend, account)
        status.failure = failure
        status.failures += 1
        status.unlogged += 1
        self._services.telemetry.count("stagedoor_backend_failures_total", (failure.backend, failure.reason))
        now = self.ctx.now()
        breaker = br.failed(status.breaker, now, self._services.jitter())
        if account:
            status.breaker = breaker
        else:
            self._set(failure.backend, breaker)
        due = status.logged.get((failure.reason, failure.ran), -REPORT_EVERY) + REPORT_EVERY
        if now >= due:
            self._report(failure.backend, status, failure)
        elif status.unlogged == 1:
            again = _ReportDue(failure.backend, account)
            self.ctx.set_timer(("report", failure.backend, account), due - now, again)

    def _report_due(self, backend: str, account: str) -> None:
        """It went on failing, or failed again: how often, is told in one line."""
        status = self._accounts.get((backend, account)) if account else self.status.get(backend)
        if status is not None and status.unlogged and status.failure is not None:
            self._report(backend, status, status.failure)

    def _report(self, backend: str, status: Status, failure: Failure) -> None:
        diagnostics = failure.diagnostics
        more = {"status": diagnostics.status, "stderr": list(diagnostics.stderr) or None}
        self._services.log.warning(
            "backend_failed",
            backend=backend,
            reason=failure.reason,
            error=diagnostics.detail or failure.message,
            failures=status.unlogged,
            **{key: value for key, value in more.items() if value is not None},
        )
        status.unlogged = 0
        status.logged[failure.reason, failure.ran] = self.ctx.now()
        account = "" if failure.reason in EVERYBODYS else failure.account
        self.ctx.cancel_timer(("report", backend, account))

    def _forget(self, backends: Iterable[str]) -> None:
        """They are no more, or are others now: how they were says nothing."""
        for backend in backends:
            if self.status.pop(backend, None) is not None:
                self._services.telemetry.gauge("stagedoor_backend_up", UP[br.BreakerState.CLOSED], (backend,))
            for key in [key for key in self._accounts if key[0] == backend]:
                del self._accounts[key]

    def _set(self, backend: str, breaker: br.Breaker) -> None:
        status = self._of(backend)
        if breaker.state is not status.breaker.state:
            self._services.log.debug("backend_state", backend=backend, state=STATE_WORDS[breaker.state])
        status.breaker = breaker
        self._services.telemetry.gauge("stagedoor_backend_up", UP[breaker.state], (backend,))

    def _moved(self, upstream: Ref, state: tuple[str, str] | None) -> None:
        """Keeps the numbers of upstream connections by backend and state; None: this one has ended."""
        before = self._upstreams.pop(upstream, None)
        if before is None and state is not None:
            self.ctx.monitor(upstream)
        for key, change in ((before, -1), (state, 1)):
            if key is not None:
                self._in_state[key] += change
                self._services.telemetry.gauge("stagedoor_backend_links", float(self._in_state[key]), key)
        if state is not None:
            self._upstreams[upstream] = state
        if before is not None and (state is None or state[1] != "connecting"):
            self._tried(before[0], upstream)

    def _tried(self, backend: str, upstream: Ref) -> None:
        """This upstream connection tries no longer. It has said how the backend is, or says it next, or does not
        know it, as one that nobody needs any more, that speaks the wrong era, or that goes on in a session of
        before in silence."""
        status = self.status.get(backend)
        if status is not None and status.breaker.trial is upstream:
            self._set(backend, br.undecided(status.breaker, self.ctx.now(), upstream))
        account = self._tries.pop(upstream, None)
        own = self._accounts.get((backend, account)) if account is not None else None
        if own is not None:
            own.breaker = br.undecided(own.breaker, self.ctx.now(), upstream)

    # Permits

    def _ask(self, upstream: Ref, wanted: "_Wanted", account: str) -> None:
        backend = wanted.backend
        own = self._accounts.get((backend, account)) if account else None
        if own is not None:
            own.breaker, allowed = br.attempt(own.breaker, self.ctx.now(), upstream)
            if not allowed:
                upstream.reply(Denied(unreachable(backend, own).raw))
                return
            self._tries[upstream] = account
        status = self._of(backend)
        breaker, allowed = br.attempt(status.breaker, self.ctx.now(), upstream)
        self._set(backend, breaker)
        if not allowed:
            upstream.reply(Denied(unreachable(backend, status).raw))
            return
        spec = self._services.table.value.backends.get(backend)
        if spec is None or not isinstance(spec.target, StdioTarget) or upstream in self._places:
            upstream.reply(Granted())
        elif (in_the_way := self._in_the_way(wanted)) is None:
            self._give_place(upstream, wanted)
        else:
            self._waiting[upstream] = wanted
            for holder in in_the_way:
                holder.reply(Spare())
            self.ctx.monitor(upstream)
            self.ctx.set_timer(upstream, self._services.limits.process_wait, _WaitOver(upstream))

    @property
    def _has_place(self) -> bool:
        return len(self._places) + len(self._uncounted) < self._services.limits.child_processes

    def _in_the_way(self, wanted: "_Wanted") -> list[Ref] | None:
        """The upstream connections of which one has to end before there is a place; None: there is one. Bounds are that
        of one principal, who leaves some to others however many sessions he has, that of this backend, if it has one,
        and that of all."""
        held, places = self._places.items(), self._services.limits.child_processes
        if wanted.principal:
            own = [holder for holder, one in held if one.principal == wanted.principal]
            if len(own) >= places - places // LEFT:
                return own
        spec = self._services.table.value.backends.get(wanted.backend)
        if spec is not None and spec.most:
            same = [holder for holder, one in held if one.backend == wanted.backend]
            if len(same) >= spec.most:
                return same
        return None if self._has_place else [*self._places]

    def _give_place(self, upstream: Ref, wanted: "_Wanted") -> None:
        self._places[upstream] = wanted
        self.ctx.monitor(upstream)
        self._count_places(wanted.backend)
        upstream.reply(Granted())

    def _returned(self, upstream: Ref) -> None:
        held = self._places.pop(upstream, None)
        if held is not None:
            self._count_places(held.backend)
        self._let_in()

    def _let_in(self) -> None:
        for waiting, wanted in list(self._waiting.items()) if self._has_place else ():
            if self._in_the_way(wanted) is None:
                self.ctx.cancel_timer(waiting)
                del self._waiting[waiting]
                self._give_place(waiting, wanted)

    def _counted(self, present: Present) -> None:
        """An upstream connection that was there before us; what it asked may have been lost with the one it asked."""
        upstream, backend = present.upstream, present.backend
        wanted = _Wanted(backend, present.principal)
        self._uncounted.discard(upstream)
        self._moved(upstream, (backend, STATES[present.phase]))
        if present.holds and upstream not in self._places:
            self._places[upstream] = wanted
            self._count_places(backend)
        if present.asks and upstream not in self._waiting:
            self._ask(upstream, wanted, present.account)
        self._let_in()

    def _wait_over(self, upstream: Ref) -> None:
        wanted = self._waiting.pop(upstream, None)
        if wanted is not None:
            error = errors.internal(
                "too many server processes are running", reason="backend_full", executed="no", backend=wanted.backend
            )
            upstream.reply(Denied(error.raw))

    def _count_places(self, backend: str) -> None:
        held = sum(1 for holder in self._places.values() if holder.backend == backend)
        self._services.telemetry.gauge("stagedoor_child_processes", float(held), (backend,))


class _Implementation(msgspec.Struct):
    name: str = ""
    version: str = ""


def _server(server_info: ServerInfo) -> tuple[str, str]:
    try:
        info = msgspec.json.decode(server_info.implementation, type=_Implementation)
    except BROKEN:
        return "", ""
    return info.name[:SHOWN], info.version[:SHOWN]


def unreachable(backend: str, status: Status | None) -> errors.ProtocolError:
    """For those who can't even try."""
    failure = status.failure if status is not None else None
    why = failure.message if failure is not None else "it could not be reached"
    return errors.internal(
        f"server {backend!r} is down: {why}",
        reason="backend_down",
        executed="no",
        backend=backend,
        **(_shown(failure) if failure is not None else {}),
    )


def _shown(failure: Failure) -> dict[str, Any]:
    """The standard error of a process that ran belongs to those whom it served."""
    return (failure.diagnostics.unstarted if failure.ran else failure.diagnostics).shown


SERVERS_TOLD = 20
"""Servers that one error tells of; `more` says how many others there are."""
LINES_TOLD = 5
"""The last lines of the standard error of each."""
CHARACTERS_TOLD = 300
"""Of each line and sentence."""


def all_unreachable(backends: Sequence[str], status: Mapping[str, Status]) -> errors.ProtocolError:
    """For those who wanted something of several servers, none of which works: why each of them does not."""
    told = [_told(backend, status.get(backend)) for backend in backends[:SERVERS_TOLD]]
    more = len(backends) - len(told)
    return errors.internal(
        "no server could be asked", reason="backends_down", executed="no", servers=told, more=more or None
    )


def _told(backend: str, status: Status | None) -> dict[str, Any]:
    failure = status.failure if status is not None else None
    if failure is None:
        return {"backend": backend, "message": "it could not be asked"}
    shown = _shown(failure)
    told = {
        "backend": backend,
        "reason": failure.reason,
        "message": failure.message[:CHARACTERS_TOLD],
        "status": shown["status"],
        "stderr": [line[:CHARACTERS_TOLD] for line in (shown["stderr"] or ())[-LINES_TOLD:]],
    }
    return {key: value for key, value in told.items() if value}
