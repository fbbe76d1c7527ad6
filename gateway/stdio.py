"""Composition of the gateway as one stdio server, for a client that starts it: no listener, no store, one session.

It ends when its input does, or by SIGTERM or SIGINT; what is under way has the time of the drain. Nothing is imported
here that only a listener needs: a client waits for its servers to start.
"""

import signal
from collections.abc import Callable

import trio

from actors.duplex import Duplex
from actors.ports import ANONYMOUS
from actors.runtime import open_system
from actors.tree import GatewayActors
from gateway import lifecycle
from gateway.config import Settings
from gateway.observability.logging import configure, get_log
from gateway.observability.metrics import Metrics
from gateway.upstream_auth import open_authorizing
from gateway.wire.standard import StandardStreams, take_standard_streams


def serve_stdio(read: Callable[[], Settings]) -> int:
    """Serves the aggregate of a configuration on the standard streams; the exit status of the process. What is loaded
    by reading it may print."""
    taken = take_standard_streams()
    settings = read()
    configure(settings.log.level, settings.log.format, settings.secrets)
    limits = settings.limits
    channel = StandardStreams(*taken, limits.message_bytes, limits.write)
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    lifecycle.collect_again()
    trio.run(_serve, settings, channel)
    return 0


async def _serve(settings: Settings, channel: StandardStreams) -> None:
    log, metrics, limits = get_log("stagedoor"), Metrics(), settings.limits
    settings, reloader = lifecycle.with_reloader(settings, log)
    stopping, drained, patience = trio.Event(), trio.Event(), trio.CancelScope()

    def stop(reason: str) -> None:
        log.info("draining", reason=reason)
        patience.deadline = trio.current_time() + limits.drain_deadline
        stopping.set()

    sealer = lifecycle.ephemeral_sealer()
    async with (
        lifecycle.open_store("memory://", limits, log) as store,
        lifecycle.open_lists(store, log) as lists,
        lifecycle.open_audit(settings, log, metrics) as audit,
        lifecycle.open_observer(
            settings, lifecycle.request_log(settings, log), metrics, log, store.incarnation, audit
        ) as observer,
        open_authorizing(store.shelf, sealer, log, audit=audit, telemetry=metrics) as authorizing,
        lifecycle.open_connector(
            log,
            metrics,
            limits,
            settings.secrets,
            credentials=authorizing.credentials,
            key=authorizing.key,
            new_privileges=settings.new_privileges,
        ) as connector,
        open_system(lifecycle.crash_logger(log, metrics)) as system,
    ):
        services = lifecycle.services_for(
            settings.table, limits, store, connector, sealer, metrics, log, lists, audit, observer
        )
        actors = GatewayActors(system, services, prestart=settings.prestart)

        duplex = Duplex(actors.door, limits)

        async def drain() -> None:
            await stopping.wait()
            duplex.stop()
            lifecycle.start_watchdog(lifecycle.longest_drain(limits), log)
            actors.sessions.draining = True
            await system.drain(limits.drain_deadline)
            drained.set()

        with lifecycle.signals(stop) as listen:
            async with trio.open_nursery() as nursery:
                listen(nursery)
                if reloader is not None:
                    nursery.start_soon(reloader.run)
                nursery.start_soon(drain)  # meanwhile the client hears how what it has begun ends
                with patience:
                    await duplex(channel, "", ANONYMOUS)
                stopping.set()
                await drained.wait()
                nursery.cancel_scope.cancel()


__all__ = ["serve_stdio"]
