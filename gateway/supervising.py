"""Composition of several workers on one port: the supervisor's process, which holds their sockets and is what operators
look at, as they would at a single gateway."""

import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from socket import socket

import trio

from actors.ports import Audit, Log
from actors.protocol.instruments import INSTRUMENTS
from actors.runtime.boundary import boundary
from gateway import descriptors, lifecycle
from gateway.admin.app import Compare, Readiness, admin_app
from gateway.config import Settings
from gateway.http.config import ServeConfig
from gateway.http.serve import Connections, serve
from gateway.http.sockets import close_listeners, names, remove_names
from gateway.observability.exposition import process_figures
from gateway.observability.logging import configure
from gateway.observability.metrics import Metrics
from gateway.observability.scraping import Scraping
from gateway.reconfiguring import Reloads
from gateway.roles import bound, listeners_of
from gateway.running import recorded
from gateway.store.redis.reaper import end_lease
from gateway.workers import overview
from gateway.workers.channel import Hello
from gateway.workers.supervisor import Supervisor
from gateway.workers.worker import Plan, Worker
from gateway.working import ends_within

REAP_WITHIN = 5.0
"""Seconds in which the store is told that a worker has died."""
STATES = ("starting", "ready", "draining", "silent")
OWN = (
    "stagedoor_workers",
    "stagedoor_worker_deaths_total",
    "stagedoor_connections_open",
    "stagedoor_connection_crashes_total",
    "stagedoor_reloads_total",
    "stagedoor_reload_success_timestamp_seconds",
    "stagedoor_last_reload_successful",
    "stagedoor_audit_lines_lost_total",
    "stagedoor_audit_lines_waiting",
)
"""What this process counts itself. Of all else its workers tell."""


async def supervise(settings: Settings, source: tuple[str, ...], log: Log, announce: Callable[[Settings], None]) -> int:
    """Serves by several workers until SIGTERM or SIGINT; the exit status. Raises CannotListenError."""
    public, admin = listeners_of(settings)
    made = names(public)
    metrics = Metrics(INSTRUMENTS[name] for name in OWN)

    async def fresh() -> Callable[[], object] | None:
        return await renewed(reloads, supervisor)

    async def apply(found: Settings) -> str:
        before = reloads.settings
        why = await reload(supervisor, found)
        if not why:
            tell(audit, "reloaded", reloads.by, before, found)
        return why

    def refused(why: str) -> None:
        tell(audit, "refused", reloads.by, None, reloads.settings, why)

    def told(**values: str | int) -> None:
        audit.record("process", **values)

    plan_of = plan(settings, source, public, log)
    supervisor = Supervisor(plan_of, log, partial(reap, settings.store, log), fresh, told)
    reloads = Reloads(settings, log, metrics, apply, refused)
    listen, watched = bound(settings.listen, public), bound(settings.admin, admin)
    with signals(supervisor, reloads) as listen_to_signals:
        async with lifecycle.open_audit(settings, log, metrics) as audit, trio.open_nursery() as nursery:
            nursery.start_soon(listen_to_signals)
            nursery.start_soon(_attend, supervisor, metrics, reloads.compare, settings, admin, str(listen), log)
            nursery.start_soon(reloads.run)
            if settings.watch:
                nursery.start_soon(reloads.watch)
            nursery.start_soon(_announce, supervisor, replace(settings, listen=listen, admin=watched), announce, log)
            with recorded(listen.path or listen.port, f"http://{watched.url_host}:{watched.port}", log):
                status = await supervisor.run()
            nursery.cancel_scope.cancel()
    remove_names(made)
    close_listeners(public)
    return status


def plan(settings: Settings, source: tuple[str, ...], public: list[socket], log: Log) -> Plan:
    """What every worker is started with."""
    return Plan(
        settings.workers,
        # -P: what lies in the current directory is no part of the program.
        (sys.executable, "-P", "-m", "stagedoor", "serve", *source, "--worker"),
        Hello(
            place=0,
            listeners=[listener.fileno() for listener in public],
            listen=(settings.listen.host, settings.listen.port),
            path=settings.listen.path,
            store=settings.store,
            keys=[] if settings.keys else [lifecycle.machine_key(log)],
            config=settings.source.encoded() if settings.source is not None else b"",
        ),
        end_within=ends_within(settings.limits),
    )


async def reload(supervisor: Supervisor, settings: Settings) -> str:
    """Every worker puts these in force, or none; why none does."""
    if supervisor.stopping.is_set():
        return "the workers are draining"
    assert settings.source is not None
    why = await supervisor.reload(settings.source.encoded())
    if not why:
        configure(settings.log.level, settings.log.format, settings.secrets)
    return why


def tell(audit: Audit, outcome: str, by: str, before: Settings | None, settings: Settings, problem: str = "") -> None:
    """In the audit trail: what this process has had all workers put in force, or what none did, and who wanted that."""
    if audit.on:
        from gateway.auditing import tell_configuration  # which is loaded then

        tell_configuration(audit, outcome, by, before, settings, problem)


async def renewed(reloads: Reloads, supervisor: Supervisor) -> Callable[[], object] | None:
    """The workers of a rolling restart begin with what stands in the file now; what takes that back. None: that can't
    be used."""
    from gateway.config.changes import SUPERVISED, in_force

    async with reloads.turn:
        before = reloads.settings
        if before.source is None:
            return str
        found = await reloads.read()
        if found is None or found.source is None:
            return None
        former, fresh, began = before.source.encoded(), found, reloads.began
        supervisor.use(found.source.encoded())
        reloads.restarted(fresh, in_force(fresh.values, began, SUPERVISED))

    def take_back() -> None:
        reloads.began = began
        if reloads.settings is fresh:
            reloads.settings = before
            supervisor.use(former)
            reloads.tell(good=False)

    return take_back


async def reap(store: str, log: Log, incarnation: str) -> None:
    """Ends the lease of a worker that is dead. Whatever goes wrong with that (no thread to be had, say) is nothing that
    the other workers should end for."""
    done, exit = False, None

    async def end() -> None:
        nonlocal done
        done = await trio.to_thread.run_sync(end_lease, store, incarnation, abandon_on_cancel=True)

    with trio.move_on_after(REAP_WITHIN):
        exit = await boundary(end)
    if not done:
        log.warning("lease_not_ended", hint="it runs out by itself", exc_info=exit and exit.error)


@contextmanager
def signals(supervisor: Supervisor, reloads: Reloads) -> Iterator[Callable[[], Awaitable[None]]]:
    """SIGTERM and SIGINT drain, a second one ends at once; SIGUSR2 replaces the workers one by one, SIGHUP has the
    configuration read anew."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGHUP) as received:

        async def listen() -> None:
            async for number in received:
                if number == signal.SIGUSR2:
                    supervisor.roll()
                elif number == signal.SIGHUP:
                    reloads.request()
                elif supervisor.stopping.is_set():
                    supervisor.kill()
                else:
                    supervisor.stop(signal.Signals(number).name)

        yield listen


async def _announce(supervisor: Supervisor, serving: Settings, announce: Callable[[Settings], None], log: Log) -> None:
    await supervisor.served.wait()
    announce(serving)
    log.info("serving", listen=str(serving.listen), admin=str(serving.admin), workers=serving.workers)


async def _attend(
    supervisor: Supervisor,
    metrics: Metrics,
    compare: Compare,
    settings: Settings,
    admin: list[socket],
    listen: str,
    log: Log,
) -> None:
    """The admin listener, until it is cancelled."""
    connections = Connections(log, lambda: metrics.count("stagedoor_connection_crashes_total", ("admin",)))
    scraping = Scraping(supervisor.totals, lambda: supervisor.totals.process(process_figures()))
    supervisor.totals.own = metrics.numbers

    async def page(accept: str) -> tuple[bytes, str]:
        states = [_state(worker) for worker in supervisor.workers]
        for state in STATES:
            metrics.gauge("stagedoor_workers", float(states.count(state)), (state,))
        metrics.count("stagedoor_worker_deaths_total", amount=supervisor.deaths - counted[0])
        counted[0] = supervisor.deaths
        metrics.gauge("stagedoor_connections_open", float(len(connections.open)), ("admin",))
        return await scraping.page(accept)

    counted = [0]

    def readiness() -> Readiness:
        workers = [(_known(worker), None if worker.silent else worker.state) for worker in supervisor.workers]
        ready, degraded, details = overview.readiness(workers, settings.workers)
        return Readiness(ready and not supervisor.stopping.is_set(), degraded, details)

    app = admin_app(
        readiness,
        page,
        settings.auth.hosts,
        servers=lambda: {"listen": listen, "servers": overview.servers(supervisor.states())},
        before=supervisor.look,
        sessions=supervisor.ask,
        config=compare,
    )
    config = ServeConfig(stop=1.0, connections=descriptors.ADMIN_CONNECTIONS)
    await serve(app, admin, config, stop=trio.Event(), log=log, connections=connections)


def _known(worker: Worker) -> dict[str, str | int]:
    """What is known of it without its word; it is in the log by the same number."""
    return {"worker": worker.place, "pid": worker.pid, "state": _state(worker)}


def _state(worker: Worker) -> str:
    if worker.silent:
        return "silent"
    return "draining" if worker.draining else "ready" if worker.is_ready else "starting"
