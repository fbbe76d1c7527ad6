"""The gateway's actors in the process of whoever asks, without a gateway: for the command line, and for a client that
speaks with a server in this process in the era without sessions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType

import trio

from actors.duplex import Duplex
from actors.runtime import open_system
from actors.tree import GatewayActors
from gateway import lifecycle
from gateway.config import Settings
from gateway.config.single import settings_of
from gateway.inside import Inside
from gateway.observability.logging import get_log
from gateway.observability.metrics import Metrics
from gateway.upstream_auth import open_authorizing
from gateway.wire.inproc import NativeServer


@asynccontextmanager
async def open_actors(settings: Settings, logger: str) -> AsyncIterator[tuple[GatewayActors, Duplex]]:
    """The actors of what a configuration names, and the way to them by channels; they drain in the end. `logger` is
    what their lines in the log are of."""
    table, limits, log, metrics = settings.table, settings.limits, get_log(logger), Metrics()
    key = lifecycle.ephemeral_sealer()
    async with (
        lifecycle.open_store("memory://", limits, log) as store,
        open_authorizing(store.shelf, key, log) as authorizing,
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
        actors = GatewayActors(system, lifecycle.services_for(table, limits, store, connector, key, metrics, log))
        yield actors, Duplex(actors.door, limits)
        with trio.move_on_after(limits.drain_deadline):
            await system.drain(limits.drain_deadline)


@asynccontextmanager
async def open_embedded(server: NativeServer) -> AsyncIterator[Inside]:
    """A transport to this server as it is, by way of the actors. What the block raises comes out as it is."""
    block = _Block()
    try:
        settings = settings_of(server, digest="embedded")
        async with open_actors(settings, "stagedoor.client") as (_, duplex), trio.open_nursery() as nursery:
            transport = Inside(duplex, "", nursery)
            with block:
                yield transport
            await transport.close()
    except BaseExceptionGroup as group:
        error = block.error
        if error is None or group.split(lambda each: each is error)[1] is not None:
            raise
        raise error from error.__cause__


class _Block:
    """Runs a block, and knows how it ended."""

    error: BaseException | None = None

    def __enter__(self) -> None:
        """Nothing is done."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.error = error
