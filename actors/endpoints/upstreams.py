"""The connections of one endpoint to its servers, for one client, and the calls that are under way on them.

Which connection carries a request is the `Dialer`'s choice; it is made when it is first needed, and made again when it
is lost. Calls of the client have positive numbers, those that the gateway makes for itself negative ones.
"""

from collections.abc import Callable, Collection
from typing import Protocol

from msgspec import Raw

from actors.endpoints.host import Host, Tree
from actors.machines.upstream.events import ServerInfo, Wanted
from actors.machines.upstream.modern_events import Caller
from actors.ports import NO_RIGHTS, Rights
from actors.protocol import errors
from actors.protocol.table import BackendSpec, Endpoint, Table
from actors.runtime import EMPTY_TABLE, AtCapacity, Ref, SystemClosed, put
from actors.services import Services
from actors.upstreams.eras import ERA_ATTEMPTS
from actors.upstreams.messages import (
    Call,
    Cancel,
    Join,
    Leave,
    PutDown,
    UpstreamDown,
    UpstreamOutcome,
    UpstreamReady,
    UpstreamWrongEra,
)
from actors.upstreams.own_calls import OwnCalls
from actors.upstreams.resume import movable

Waiter = Callable[[UpstreamOutcome], None]
"""Gets the outcome of a call instead of the client."""
Ready = Callable[[ServerInfo | None, Raw], None]
"""Gets what a server said of itself, or None and the JSON-RPC error object that says why it can't be had."""


class Dialer(Protocol):
    """Chooses and makes the connections of one client."""

    changes: bool
    """Whether the client wants to hear of changes that nobody subscribed to."""

    @property
    def told(self) -> Collection[str] | None:
        """The servers that have to be told on whose behalf they are called; None: all of them."""

    def dial(self, spec: BackendSpec, attempt: int) -> Ref:
        """A connection; `attempt`: as many in a row have ended. Raises AtCapacity, SystemClosed."""

    def caller(self, backend: str, call: int) -> Caller:
        """On whose behalf such a server is called."""

    def shares(self, spec: BackendSpec) -> bool:
        """Whether the connection is not this client's alone."""


class Owner(Protocol):
    """Hears what becomes of connections and calls."""

    @property
    def words(self) -> str:
        """The revision of the client, if what it asks passes as it is to a server of the same one; else ""."""

    def outcome(self, message: UpstreamOutcome) -> None:
        """A call is over."""

    def redirect(self, backend: str, upstream: Ref, calls: list[Call]) -> None:
        """The server is of the other era than it was taken for: these calls, which were not sent, go over this
        connection."""

    def disconnected(self, backend: str, was_up: bool) -> None:
        """Nothing is heard from this server any more."""


class Upstreams:
    """`calls` maps each call to the server that runs it, `connections` and `server_infos` are what is connected."""

    __slots__ = (
        "_dialer",
        "_endpoint",
        "_ends",
        "_former",
        "_host",
        "_own",
        "_owner",
        "_services",
        "_tree",
        "_waiting",
        "_wrong_era",
        "calls",
        "connections",
        "rights",
        "server_infos",
        "waiters",
    )

    def __init__(self, host: Host, endpoint: str, services: Services, tree: Tree, dialer: Dialer, owner: Owner) -> None:
        self.connections: dict[str, Ref] = EMPTY_TABLE
        self.server_infos: dict[str, ServerInfo] = EMPTY_TABLE
        self.calls: dict[int, str] = EMPTY_TABLE
        self.rights: dict[int, Rights] = EMPTY_TABLE
        """With what rights each was asked for that somebody asked for who has any."""
        self.waiters: dict[int, Waiter] = EMPTY_TABLE
        self._host = host
        self._endpoint = endpoint
        self._services = services
        self._tree = tree
        self._dialer = dialer
        self._owner = owner
        self._ends: dict[str, int] = EMPTY_TABLE
        """Connections in a row that have ended, and (`_wrong_era`) that were of the other era than the server."""
        self._wrong_era: dict[str, int] = EMPTY_TABLE
        self._waiting: dict[str, tuple[Ready, ...]] = EMPTY_TABLE
        self._former: dict[int, Ref] = EMPTY_TABLE
        """Calls that stay on a connection over which nothing else goes any more, and that connection."""
        self._own: OwnCalls | None = None

    @property
    def table(self) -> Table:
        """The present table; never kept past a message."""
        return self._services.table.value

    @property
    def served(self) -> Endpoint | None:
        """The endpoint as it is configured now."""
        return self._services.table.value.endpoints.get(self._endpoint)

    def shares(self, backend: str) -> bool:
        """Whether the connection to a server is not this client's alone."""
        spec = self.table.backends.get(backend)
        return spec is not None and self._dialer.shares(spec)

    # Connections

    def connection(self, backend: str) -> Ref | None:
        """The connection to a server, which is made if there is none; None if none can be had."""
        upstream = self.connections.get(backend)
        if upstream is not None:
            if upstream.alive:
                return upstream
            self._lose(backend)  # its Down is on the way, and will find another upstream connection here
        spec = self.table.backends.get(backend)
        try:
            upstream = self._dialer.dial(spec, self._ends.get(backend, 0)) if spec is not None else None
        except (AtCapacity, SystemClosed):
            upstream = None
        if upstream is None:
            self.tell_waiting(backend, None, no_upstream(backend).raw)  # they waited for the one before
            return None
        self.connections = put(self.connections, backend, upstream)
        self._host.ctx.monitor(upstream)
        upstream.reply(Join(self._host.ctx.ref, self._dialer.changes or _watched(spec)))
        return upstream

    def when_ready(self, backend: str, then: Ready) -> None:
        """Connects, and tells how that went."""
        server_info = self.server_infos.get(backend)
        if server_info is not None:
            then(server_info, Raw(b""))
            return
        upstream = self.connection(backend)
        if upstream is None:
            then(None, no_upstream(backend).raw)
            return
        self._waiting = put(self._waiting, backend, (*self._waiting.get(backend, ()), then))
        upstream.reply(Wanted())

    def tell_waiting(self, backend: str, server_info: ServerInfo | None, error: Raw = Raw(b"")) -> None:
        """Those who wait for this server's connection hear how that went."""
        waiting = self._waiting.pop(backend, ())
        self._waiting = self._waiting or EMPTY_TABLE
        for then in waiting:
            then(server_info, error)

    def ready(self, message: UpstreamReady) -> None:
        """A connection is up."""
        self.server_infos = put(self.server_infos, message.backend, message.server_info)
        self._ends.pop(message.backend, None)
        self._wrong_era.pop(message.backend, None)

    def down(self, message: UpstreamDown) -> None:
        """A connection is lost, or could not be made; its actor stays, and makes it again for the next call."""
        if self.connections.get(message.backend) is not message.upstream:
            return  # nothing goes over it any more, and its calls have had their outcomes
        self._disconnected(message.backend)
        self.tell_waiting(message.backend, None, message.payload)

    def ended(self, ref: Ref) -> list[str]:
        """The actor of a connection is gone: its calls are lost. Whose connection it was."""
        for call in [call for call, upstream in self._former.items() if upstream is ref]:
            backend = self.calls.get(call, "")
            self._owner.outcome(UpstreamOutcome(backend, call, False, _link_ended(backend, "unknown")))
        lost = [backend for backend, upstream in self.connections.items() if upstream is ref]
        for backend in lost:
            self._lose(backend)
            self.tell_waiting(backend, None, _link_ended(backend, "no"))
        return lost

    def wrong_era(self, message: UpstreamWrongEra) -> None:
        """A server speaks the other era: the calls that were not sent go to the other kind of connection, under the
        same numbers."""
        backend = message.backend
        if self.connections.get(backend) is message.upstream:
            self.server_infos.pop(backend, None)
            self._leave(backend)
            self._wrong_era = put(self._wrong_era, backend, self._wrong_era.get(backend, 0) + 1)
        upstream = self.connection(backend) if self._wrong_era.get(backend, 0) <= ERA_ATTEMPTS else None
        if upstream is not None:
            calls = [call for call in message.calls if self.calls.get(call.call) == backend]
            self._owner.redirect(backend, upstream, calls)
            return
        self._wrong_era.pop(backend, None)
        failure = self._tree.eras.neither(backend, self.table.backends.get(backend))
        self._tree.backends.reply(failure)
        error = errors.internal(failure.message, reason=failure.reason, executed="no", backend=backend).raw
        for call in message.calls:
            if self.calls.get(call.call) == backend:
                self._owner.outcome(UpstreamOutcome(backend, call.call, False, error))
        self._disconnected(backend)
        self.tell_waiting(backend, None, error)

    def renew(self, backend: str) -> None:
        """The server has another configuration, or the client another account there: what comes next goes over another
        connection. What is under way stays on this one."""
        upstream = self.connections.pop(backend, None)
        if upstream is None:
            return
        self.server_infos.pop(backend, None)
        running = [call for call, runs_at in self.calls.items() if runs_at == backend and call not in self._former]
        for call in running:
            self._former = put(self._former, call, upstream)
        if not running:
            self._part(upstream)
        if backend in self._waiting and (fresh := self.connection(backend)) is not None:
            fresh.reply(Wanted())
        for call in running:
            if call < 0:  # what the gateway asked for itself was about the server that is configured
                upstream.reply(Cancel(self._host.ctx.ref, call, "the server has another configuration now"))
                self._owner.outcome(UpstreamOutcome(backend, call, False, _link_ended(backend, "unknown")))

    def drop(self, backend: str) -> None:
        """The endpoint has this server no more: its connection would wait for nothing."""
        message = f"server {backend!r} is no longer part of this endpoint"
        error = errors.internal(message, reason="unconfigured", executed="unknown", backend=backend).raw
        self._leave(backend)
        self._fail_calls(backend, error)
        self._disconnected(backend)
        self.tell_waiting(backend, None, error)

    def shrink(self) -> None:
        """What can be had again is let go of."""
        self.server_infos = {backend: server_info.lasting for backend, server_info in self.server_infos.items()}

    def put_down(self) -> None:
        """The client's session goes on in another life: the sessions of its servers wait for it."""
        for upstream in self.connections.values():
            upstream.reply(PutDown(self._host.ctx.ref))

    @property
    def bound(self) -> bool:
        """Whether a connection lives and dies with this process."""
        backends = self.table.backends
        settled = self._tree.eras.settled
        return any((spec := backends.get(name)) is None or not movable(settled(spec)) for name in self.connections)

    def _leave(self, backend: str) -> None:
        self._part(self.connections.pop(backend))

    def _part(self, upstream: Ref) -> None:
        ctx = self._host.ctx
        ctx.demonitor(upstream)
        upstream.reply(Leave(ctx.ref))

    def _lose(self, backend: str) -> None:
        del self.connections[backend]
        self._ends = put(self._ends, backend, self._ends.get(backend, 0) + 1)
        self._fail_calls(backend, _link_ended(backend, "unknown"))
        self._disconnected(backend)

    def _fail_calls(self, backend: str, error: Raw) -> None:
        lost = [call for call, runs_at in self.calls.items() if runs_at == backend and call not in self._former]
        for call in lost:
            self._owner.outcome(UpstreamOutcome(backend, call, False, error))

    def _disconnected(self, backend: str) -> None:
        self._owner.disconnected(backend, self.server_infos.pop(backend, None) is not None)

    def let_go(self) -> None:
        """Its actor has ended: who waits points back at it, and its memory is to be free at once."""
        self.waiters = self._waiting = EMPTY_TABLE
        self._own = None

    # Calls

    def runs(self, call: int, backend: str) -> None:
        """A call is under way at this server."""
        self.calls = put(self.calls, call, backend)

    def over(self, call: int) -> str | None:
        """It is not, or no more; where it was, if it was anywhere."""
        backend = self.calls.pop(call, None)
        self.calls = self.calls or EMPTY_TABLE
        if self.rights:
            self.rights.pop(call, None)
            self.rights = self.rights or EMPTY_TABLE
        if self._former and (former := self._former.pop(call, None)) is not None:
            if former not in self._former.values() and former not in self.connections.values():
                self._part(former)
            self._former = self._former or EMPTY_TABLE
        return backend

    def wait(self, call: int, waiter: Waiter) -> None:
        """The outcome of a call goes there, and not to the client."""
        self.waiters = put(self.waiters, call, waiter)

    def call(
        self,
        call: int,
        backend: str,
        method: str,
        params: Raw,
        progress: bool,
        *,
        mends: bool = True,
        version: str = "",
        rights: Rights = NO_RIGHTS,
    ) -> bool:
        """Passes a call to a server's connection; False if none can be had. `mends`, `version`, `rights`: as in
        `Call`."""
        upstream = self.connections.get(backend)
        if upstream is None or not upstream.alive:
            upstream = self.connection(backend)
            if upstream is None:
                return False
        self.runs(call, backend)
        if rights is not NO_RIGHTS:
            self.rights = put(self.rights, call, rights)
        told = self._dialer.told
        caller = self._dialer.caller(backend, call) if told is None or backend in told else None
        upstream.reply(Call(self._host.ctx.ref, call, method, params, progress, caller, mends, version, rights))
        return True

    def own_call(self, backend: str, method: str, params: Raw, waiter: Waiter, seconds: float | None = None) -> int:
        """A call that the gateway makes for itself: its number, 0 if there is no connection to make it on. It has as
        many `seconds` as a client's, if nothing else is said. It is made with the rights of its client."""
        if self.connection(backend) is None:
            return 0
        rights = self.own_rights(backend)
        if self._own is None:
            self._own = OwnCalls(self._host.ctx, self._services.limits.request_deadline)
        return self._own.make(
            lambda call: self.call(call, backend, method, params, False, version=self._owner.words, rights=rights),
            self._take_back,
            lambda ok, payload: waiter(UpstreamOutcome(backend, 0, ok, payload)),
            self._deadline_of(backend) if seconds is None else seconds,
            backend,
        )

    def own_rights(self, backend: str) -> Rights:
        """With which rights a server is asked for what the client has not asked for itself, where it matters to it."""
        spec = self._services.table.value.backends.get(backend)
        return self._host.rights if spec is not None and spec.exchanged else NO_RIGHTS

    def overdue(self, call: int) -> None:
        """A server that never answers must not be waited for."""
        if self._own is not None:
            self._own.overdue(call)

    def cancel(self, call: int, reason: str) -> None:
        """Nobody waits for this call any more."""
        if call < 0 and self._own is not None:
            self._own.drop(call, reason)
            return
        self.waiters.pop(call, None)
        self._take_back(call, reason)

    def _take_back(self, call: int, reason: str) -> None:
        upstream = self._former.get(call) or self.connections.get(self.calls.get(call, ""))
        if upstream is not None:
            upstream.reply(Cancel(self._host.ctx.ref, call, reason))
        self.over(call)

    def settle(self, message: UpstreamOutcome) -> None:
        """A call is over whose outcome is not simply the client's."""
        call = message.call
        if call < 0:
            if self._own is not None:
                self._own.outcome(call, message.ok, message.payload)
            return
        waiter = self.waiters.pop(call, None)
        self.waiters = self.waiters or EMPTY_TABLE
        if waiter is not None:
            waiter(message)

    def deadline(self, call: int) -> float:
        """Seconds that a call may take."""
        return self._deadline_of(self.calls.get(call, ""))

    def _deadline_of(self, backend: str) -> float:
        spec, limit = self._services.table.value.backends.get(backend), self._services.limits.request_deadline
        return min(limit, spec.timeout) if spec is not None else limit


def _watched(spec: BackendSpec | None) -> bool:
    """Whether it matters for calls what a server lists."""
    return spec is not None and spec.pins is not None and spec.pins.blocks


def no_upstream(backend: str, executed: errors.Executed = "no") -> errors.ProtocolError:
    """No connection can be had: at a bound, or while the gateway ends."""
    text = f"no connection to server {backend!r} can be made"
    return errors.internal(text, reason="no_link", executed=executed, backend=backend)


def _link_ended(backend: str, executed: errors.Executed) -> Raw:
    text = f"the connection to server {backend!r} ended"
    return errors.internal(text, reason="link_ended", executed=executed, backend=backend).raw
