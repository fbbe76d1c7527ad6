"""Composition: the one place that knows every part. `run` serves a configuration until it is told to stop."""

import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from hmac import compare_digest
from socket import socket
from typing import Any

import trio

from actors.duplex import Duplex
from actors.machines.upstream.breaker import BreakerState
from actors.ports import ANONYMOUS, Accounts, Asker, Log, Principal, Rights, Store
from actors.protocol.rights import STATIC
from actors.protocol.table import BackendSpec, Table
from actors.runtime import System, SystemFailed, open_system
from actors.sessions.router import session_key
from actors.streams.recorder import handle
from actors.tree import GatewayActors
from actors.watched import ROOM_WITHIN
from gateway import descriptors, lifecycle
from gateway.admin.app import FROM, Readiness
from gateway.admin_client import ask_gateway, operate
from gateway.authorizing import Admission
from gateway.calling import open_client
from gateway.cli.client import ServeFailedError
from gateway.config import Settings
from gateway.http.access import App, Recorded
from gateway.http.app import McpApp, ServePage
from gateway.http.authorization import Authorization
from gateway.http.config import ServeConfig
from gateway.http.response import kind_of
from gateway.http.security import SecurityChecks
from gateway.http.serve import Connections, serve
from gateway.http.sockets import CannotListenError, tls_context
from gateway.observability.access import Access, formatter
from gateway.observability.lag import Lag, report_lag
from gateway.observability.logging import configure, get_log
from gateway.observability.metrics import Metrics
from gateway.observability.writer import Writer
from gateway.operating import Operator
from gateway.reconfiguring import Reloads, put_in_force
from gateway.revoking import Revoked, operate_principal
from gateway.roles import Alone, Role, Single, beginning, bound, reload_on_demand
from gateway.servers import servers_of
from gateway.store.errors import StoreError
from gateway.upstream_auth import open_authorizing

LOOKS = frozenset({"list", "where", "accounts"})
"""What operators only look at, which is not told."""
TARGET = 512
"""Characters of the name of a principal in the audit trail."""
ASK_WITHIN = 0.5
"""Seconds for the store to say who else is there before the drain begins."""
CLOSE_WITHIN = 3.0
"""Seconds for the listeners to end after the drain."""


class Gateway:
    """One running gateway."""

    def __init__(self, settings: Settings, log: Log, lag: Lag, role: Role) -> None:
        self.role = role
        self.settings, self._reloader = lifecycle.with_reloader(settings, log)
        self.log = log
        self.metrics = Metrics()
        self.lag = lag
        self.stopping = trio.Event()
        self.closing = trio.Event()
        """The grace is over: the drain takes its first step."""
        self.opening = trio.CancelScope()
        self.idle_grace = 0.0
        """Seconds from then on in which what comes on open connections is answered as before."""
        self.drained = trio.Event()
        self.listen = ""
        self.app: McpApp | None = None
        self.duplex: Duplex | None = None
        self.secrets = lifecycle.KnownSecrets(self.settings.secrets)
        self.authorize: Callable[[Settings], Callable[[SecurityChecks], Authorization]] = lambda settings: Authorization
        """Makes what checks tokens."""
        self.serves = trio.Event()
        """All that another configuration changes is there."""
        self.reloads = Reloads(self.settings, log, self.metrics, self.reconfigure, self._tell_refused)
        self.reason = ""
        self.failed = False
        self.actors: GatewayActors | None = None
        self.store: Store | None = None
        self.pages: ServePage | None = None
        self.accounts: Callable[[str, Mapping[str, str]], Awaitable[tuple[int, dict[str, Any]]]] | None = None
        """What operators ask of users' accounts."""
        self.invitations: Callable[[], Accounts | None] = lambda: None
        """What actors are told of these."""
        self.note: Callable[[Asker, str], Awaitable[None] | None] | None = None
        """Hears of the tokens of issuers."""
        self.requests = lifecycle.request_log(settings, log)
        self.access: Writer | None = None
        self._line = formatter(settings.log.access) if settings.log.access != "off" else None
        self.revoked: Revoked | None = None
        self.public = Connections(log, partial(self._crashed, "public"), self._refused)
        self.admin = Connections(log, partial(self._crashed, "admin"))

    async def reconfigure(self, settings: Settings) -> str:
        """Puts these in force, as soon as there is something to be changed; why that can't be, if it can't."""
        await self.serves.wait()
        if self.stopping.is_set():
            return "the gateway is draining"
        before = self.settings
        put_in_force(self, settings)
        self._tell_configuration("reloaded", self.reloads.by, before)
        return ""

    def _tell_configuration(self, outcome: str, by: str, before: Settings | None = None, problem: str = "") -> None:
        """In the audit trail: what is in force, since when, and who has wanted that."""
        if self.actors is not None and self.actors.services.audit.on:
            from gateway.auditing import tell_configuration  # which is loaded then

            tell_configuration(self.actors.services.audit, outcome, by, before, self.settings, problem)

    def _tell_refused(self, why: str) -> None:
        self._tell_configuration("refused", self.reloads.by, problem=why)

    def _crashed(self, listener: str) -> None:
        self.metrics.count("stagedoor_connection_crashes_total", (listener,))

    def _count_refused(self, kind: str) -> None:
        self.metrics.count("stagedoor_messages_rejected_total", (kind,))

    def _refused(self, status: int, client: str, begun: bool) -> None:
        """The connection has answered what never became a whole request."""
        self.metrics.count("stagedoor_http_responses_total", ("other", str(status)))
        self._count_refused(kind_of(status))
        if not begun:
            self.record(Access(time.time(), "-", "-", "-", status, client=client))

    def record(self, access: Access) -> None:
        """An HTTP request is over."""
        if self.access is not None and self._line is not None:
            self.access.put(self._line(access))
        if self.requests is not None and not access.asked and access.status >= 400 and access.method in ("POST", "-"):
            self.requests.refused(access.status, access.ms, access.trace)

    def stop(self, reason: str) -> None:
        """Begins the drain."""
        if not self.stopping.is_set():
            self.reason = reason
            self.stopping.set()
            if self.duplex is not None:
                self.duplex.stop()
            self.role.leave()
            if self.actors is None:
                # Nothing is served that could be drained, and what is waited for may never answer.
                self.opening.cancel()

    def not_rolled(self) -> None:
        """A rolling restart is asked for, by whoever believes that there are workers. By default the signal would end
        the process, and all that it has in hand."""
        self.log.warning("rolling_restart_ignored", hint="there is one process alone: gateway.workers says how many")

    def lost(self, reason: str) -> None:
        """The store is another's: this process must not go on."""
        self.failed = True
        self.log.error("store_lost", reason=reason)
        self.stop("store lost")

    @property
    def store_state(self) -> str:
        """`memory`, or how Redis is."""
        return str(getattr(self.store, "state", "memory"))

    @property
    def store_degraded(self) -> bool:
        """Redis does not do its work."""
        return self.store_state not in ("memory", "ok")

    def readiness(self) -> Readiness:
        """What `/readyz` says. An outage of the store, or an audit trail without room, degrades; it does not take the
        process out of rotation."""
        degraded = self.store_degraded
        details: dict[str, object] = {"store": self.store_state}
        if self.actors is not None:
            details["sessions"] = len(self.actors.sessions.table)
            details["backends"] = {
                name: {"state": status.state, "error": status.last_error}
                for name, status in self.actors.backends.status.items()
            }
            if self.actors.services.audit.full:
                details["audit"], degraded = "full", True
            degraded = degraded or any(
                s.breaker.state is not BreakerState.CLOSED for s in self.actors.backends.status.values()
            )
        return Readiness(self.actors is not None and not self.stopping.is_set(), degraded, details)

    def servers(self) -> dict[str, object]:
        """What `/api/servers` says, and `/readyz?verbose` besides the rest."""
        return {"listen": self.listen, "servers": self.server_list()}

    def server_list(self) -> list[dict[str, Any]]:
        """Every server, and how it is."""
        return servers_of(self.actors) if self.actors is not None else []

    async def operate(self, what: str, name: str, options: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        """Lists sessions, or acts on one (`gateway.operating`); takes the access from a principal, or gives it back;
        sees to users' accounts (`gateway.operating_accounts`)."""
        if self.actors is None or self.revoked is None:
            return 503, {"error": "the gateway is starting"}
        audit = self.actors.services.audit
        if what in LOOKS or not audit.on:
            return await self._operate(self.actors, self.revoked, what, name, options)
        if audit.full and not await audit.room(ROOM_WITHIN):
            return 503, {"error": "what is done can't be recorded in the audit trail"}
        status, told = await self._operate(self.actors, self.revoked, what, name, options)
        target = told.get("handle") or name or options.get("principal") or options.get("server") or ""
        acted = {"target": str(target)[:TARGET], "to": options.get("to"), "ip": options.get(FROM)}
        outcome = "done" if status < 400 else "refused"
        about = {member: value for member, value in acted.items() if value}
        audit.record("admin", action=what, outcome=outcome, status=status, **about)
        return status, told

    async def _operate(
        self, actors: GatewayActors, revoked: Revoked, what: str, name: str, options: Mapping[str, str]
    ) -> tuple[int, dict[str, Any]]:
        if what in ("revoke", "restore"):
            return await operate_principal(revoked, what, name, self.settings.auth)
        if what in ("accounts", "accounts-disconnect", "rewrap") and self.accounts is not None:
            return await self.accounts(what, options)
        return await Operator(actors).ask(what, name, options)

    async def run(self) -> int:
        """Serves until `stop`; the exit status."""
        with self.opening:
            await self._run()
        return 1 if self.failed else 0

    async def _run(self) -> None:
        settings = self.settings
        public = self.role.listeners()
        limit, before = descriptors.raise_limit()
        places = descriptors.budget(limit, settings.limits.child_processes)
        if places.falls_short(settings.limits.child_processes):
            self._tell_budget(places)
        limits = replace(settings.limits, child_processes=places.processes)
        sealer = lifecycle.sealer(settings, self.log)
        async with (
            beginning(self) as begun,
            lifecycle.open_store(
                settings.store,
                limits,
                self.log,
                on_lost=self.lost,
                on_batch=self._on_batch,
                info=lifecycle.replica_info(settings.table),
                seals=sealer.fingerprints,
            ) as store,
            lifecycle.open_lists(store, self.log) as lists,
            lifecycle.open_audit(settings, self.log, self.metrics, self.secrets) as audit,
            lifecycle.open_observer(
                settings, self.requests, self.metrics, self.log, store.incarnation, audit
            ) as observer,
            lifecycle.open_access(settings, self.metrics, self.log) as self.access,
            open_authorizing(store.shelf, sealer, self.log, audit=audit, telemetry=self.metrics) as authorizing,
            lifecycle.open_connector(
                self.log,
                self.metrics,
                limits,
                self.secrets,
                connections=places.servers,
                credentials=authorizing.credentials,
                key=authorizing.key,
                descriptors=before,
                new_privileges=settings.new_privileges,
                pools=self._pools,
            ) as connector,
            open_system(lifecycle.crash_logger(self.log, self.metrics)) as system,
        ):
            self.store = store
            address = bound(settings.listen, public)
            in_force = lambda: self.settings  # noqa: E731
            self.invitations = lambda: authorizing.accounts(in_force, address, self._table, self._account_changed)
            services = lifecycle.services_for(
                settings.table,
                limits,
                store,
                connector,
                sealer,
                self.metrics,
                self.log,
                lists,
                audit,
                observer,
                self.invitations(),
            )
            self.actors = GatewayActors(system, services, self.lag.overloaded, prestart=settings.prestart)
            self._tell_configuration("started", "start")
            self.pages = authorizing.pages(in_force, address, self._table, self.who, self._gone)
            self.note = authorizing.noting(self._table)
            self.accounts = lambda what, options: authorizing.operate(
                self.settings, address, self._table(), what, options
            )
            lifecycle.tune_gc()
            async with trio.open_nursery() as background:
                background.start_soon(report_lag, self.lag, self.metrics)
                background.start_soon(lifecycle.collect_garbage, self.metrics)
                if self.role.reloadable:
                    background.start_soon(reload_on_demand, self)
                self.revoked = Revoked(store.shelf, self.actors, self.log, time.time)
                background.start_soon(self.revoked.run, lambda: self.reloads.settings.auth.asked)
                if self._reloader is not None:
                    background.start_soon(self._reloader.run)
                begun.set()
                async with trio.open_nursery() as listening:
                    listening.start_soon(self._serve_public, public, self.actors, places.clients)
                    self.listen = str(bound(settings.listen, public))
                    listening.start_soon(self.role.attend, self, system)
                    await self.stopping.wait()
                    await self._drain(system)
                    listening.cancel_scope.deadline = trio.current_time() + CLOSE_WITHIN
                background.cancel_scope.cancel()

    def _pools(self) -> Iterator[BackendSpec]:
        """The servers whose processes are started ahead."""
        table = self.actors.services.table.value if self.actors is not None else self.settings.table
        return (spec for spec in table.backends.values() if spec.sharing == "pool" and not self.closing.is_set())

    def _account_changed(self, principal: str, backend: str) -> None:
        assert self.actors is not None
        self.actors.account_changed(principal, backend)

    def _table(self) -> Table:
        assert self.actors is not None
        return self.actors.services.table.value

    async def who(self, token: str) -> Asker | None:
        """Whose a configured token is, as long as his access was not taken away."""
        auth = self.settings.auth
        name = next((name for name, known in auth.tokens if compare_digest(known.encode(), token.encode())), None)
        if name is None:
            return None
        asker = Asker(Principal(name), auth.rights.get(name, Rights(STATIC, name)), digest=_digest(token))
        return None if self._gone(asker) else asker

    def _gone(self, asker: Asker) -> bool:
        """Whether somebody who was known to our pages has no access any more: by an operator, or since his token or its
        issuer is not in the configuration in force. By a name that a login proxy says, and no token, nobody comes."""
        if self.revoked is not None and self.revoked.revoked(asker):
            return True
        auth, name, issuer = self.settings.auth, asker.principal.name, asker.rights.issuer
        if issuer == STATIC:
            token = dict(auth.tokens).get(name)
            return token is None or asker.digest not in (b"", _digest(token))
        if issuer == "":
            return auth.asked or name != ANONYMOUS.name
        return issuer not in {known.issuer for known in auth.issuers}

    def _on_batch(self, operations: int, seconds: float) -> None:
        self.metrics.observe("stagedoor_store_batch_size", float(operations))
        self.metrics.observe("stagedoor_store_latency_seconds", seconds, ("batch",))

    async def _drain(self, system: System) -> None:
        limits = self.settings.limits
        self.log.info("draining", reason=self.reason)
        if self.actors is not None:
            self.actors.services.audit.record("process", action="drain", reason=self.reason)
        lifecycle.start_watchdog(lifecycle.longest_drain(limits), self.log)
        await trio.sleep(limits.drain_grace if not self.failed else 0.0)
        self.idle_grace = lifecycle.IDLE_GRACE if await self._beside_others() else 0.0
        self.closing.set()
        await trio.sleep(self.idle_grace)
        if self.actors is not None:
            self.actors.sessions.draining = True
        await system.drain(limits.drain_deadline)
        self.drained.set()

    async def _beside_others(self) -> bool:
        """Whether other replicas accept what this one will not any more."""
        if self.actors is None or self.failed:
            return False
        doubt, told = self.actors.doubt, trio.Event()
        doubt.look(trio.current_time(), told.set)
        with trio.move_on_after(ASK_WITHIN):
            await told.wait()
        return doubt.others

    def _tell_budget(self, places: descriptors.Budget) -> None:
        self.log.warning(
            "descriptors_low",
            limit=places.limit,
            connections=places.clients,
            server_connections=places.servers,
            processes=places.processes,
            hint=f"raise the limit of open files (ulimit -n, LimitNOFILE) to {descriptors.WANTED}",
        )

    async def _serve_public(self, listeners: list[socket], actors: GatewayActors, connections: int) -> None:
        settings = self.settings
        self.duplex = Duplex(actors.door, settings.limits)
        if self.stopping.is_set():
            self.duplex.stop()
        async with trio.open_nursery() as nursery:
            listen = bound(settings.listen, listeners)
            self.authorize = Admission(
                listen, nursery, self.log, self.metrics, self.revoked, actors.services.audit, self.note
            )
            app = self.app = McpApp(
                actors.door,
                lifecycle.security(settings),
                settings.limits,
                authorize=self.authorize(settings),
                converse=self.duplex,
                post=actors.channels,
                known=lambda endpoint: endpoint in actors.services.table.value.endpoints,
                sees=lambda endpoint, asker: actors.gate.serves(endpoint, asker.principal, asker.rights),
                answered=lambda method, status: self.metrics.count(
                    "stagedoor_http_responses_total", (method, str(status))
                ),
                refused=self._count_refused,
                pages=self.pages,
            )
            self.serves.set()
            tls = tls_context(settings.tls.cert, settings.tls.key) if settings.tls is not None else None
            within = ServeConfig.within(settings.limits, tls, connections)
            config = replace(within, idle_grace=lambda: self.idle_grace)
            served: App = app
            if self.access is not None or self.requests is not None:
                served = Recorded(app, self.record, lambda session: handle(session_key(session)))
            await serve(
                served,
                listeners,
                config,
                stop=self.closing,
                log=self.log,
                connections=self.public,
                at_once=served.at_once,
            )
            nursery.cancel_scope.cancel()


def _digest(token: str) -> bytes:
    """By which a browser that has shown a configured token is known, on all replicas."""
    return sha256(token.encode()).digest()


def run(settings: Settings, announce: Callable[[Settings], None] = lambda settings: None) -> int:
    """Serves until SIGTERM or SIGINT; the exit status of the process. `announce` gets the settings with the addresses
    that are really listened on, as soon as they are. Raises ServeFailedError."""
    return _run(settings, Single(settings, announce))


def run_alone(settings: Settings, announce: Callable[[Settings], None]) -> int:
    """The same without an admin listener."""
    return _run(settings, Alone(settings, announce))


def _run(settings: Settings, role: Role) -> int:
    lag = Lag()

    async def main() -> int:
        gateway = Gateway(settings, get_log("stagedoor"), lag, role)
        others = {signal.SIGHUP: gateway.reloads.request, signal.SIGUSR2: gateway.not_rolled} if role.reloadable else {}
        with lifecycle.signals(gateway.stop, others) as listen:
            async with trio.open_nursery() as nursery:
                listen(nursery)
                status = await gateway.run()
                nursery.cancel_scope.cancel()
        return status

    return started(settings, main, lag)


def work(settings: Callable[[], Settings], descriptor: int) -> int:
    """The same as one of several workers, whose supervisor is at the other end of this descriptor. `settings` are made
    if that has no configuration for it. Raises ConfigError."""
    from gateway import working  # and with it what few processes need

    hello = working.hear_hello(descriptor)
    if hello is None:
        return 1
    ours = working.shared(working.settings_of(hello.config, settings), hello)
    lag = Lag()

    async def main() -> int:
        role = working.Working(working.open_channel(descriptor), hello)
        working.end_with_supervisor(descriptor, working.ends_within(ours.limits))
        gateway = Gateway(ours, get_log("stagedoor").bind(worker=hello.place), lag, role)
        working.ignore_supervisors_signals()
        with lifecycle.signals(gateway.stop) as listen:
            async with trio.open_nursery() as nursery:
                listen(nursery)
                nursery.start_soon(role.hear, gateway)
                status = await gateway.run()
                nursery.cancel_scope.cancel()
        return status

    return started(ours, main, lag)


def supervise(settings: Settings, source: tuple[str, ...], announce: Callable[[Settings], None]) -> int:
    """The same by several workers, each of which is given these arguments and reads its servers anew."""
    from gateway import supervising

    async def main() -> int:
        return await supervising.supervise(settings, source, get_log("stagedoor"), announce)

    return started(settings, main)


def started(settings: Settings, main: Callable[[], Awaitable[int]], *instruments: Lag) -> int:
    """Runs a process of the gateway, and says why it could not be; its exit status. Raises ServeFailedError."""
    configure(settings.log.level, settings.log.format, settings.secrets)
    log = get_log("stagedoor")
    lifecycle.keep_free_memory()
    lifecycle.load_libraries(settings)
    lifecycle.collect_again()
    try:
        return trio.run(main, instruments=instruments)
    except* SystemFailed as failed:
        failure: tuple[str, ExceptionGroup[Exception]] = ("core_failed", failed)
    except* StoreError as unusable:
        failure = ("store_unusable", unusable)
    except* CannotListenError as refused:
        failure = ("cannot_listen", refused)
    except* OSError as broken:
        failure = ("cannot_start", broken)
    event, group = failure
    for error in _single(group):
        if isinstance(error, CannotListenError):
            raise ServeFailedError(error.strerror) from error
        log.critical(event, error=str(error), listen=str(settings.listen), admin=str(settings.admin))
    return 1


def _single(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """The exceptions in a group, and in the groups in it: each nursery on the way makes one."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _single(error)
        else:
            yield error


__all__ = ["Gateway", "ask_gateway", "open_client", "operate", "run", "run_alone", "supervise", "work"]
