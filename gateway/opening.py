"""The client behind `stagedoor ls` and `stagedoor call`: `gateway.client`, of a URL or of the gateway's own actors.

Over a configuration it is the aggregate that `/mcp` would serve, by the connections that the gateway makes; over a URL,
the one server there, as it is.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import trio

from actors.duplex import Duplex
from actors.protocol.methods import LIST_KINDS, ListKind
from actors.protocol.table import Limits
from actors.protocol.versions import LATEST_HANDSHAKE
from actors.tree import GatewayActors
from gateway.calling import INFO, Asking, Entries, open_url
from gateway.cli.client import Client, ClientFailedError, Target, UrlTarget
from gateway.client import Client as Session
from gateway.client import open_client as open_session
from gateway.config import Settings
from gateway.embedding import open_actors
from gateway.inside import Inside
from gateway.servers import servers_of

AT_ONCE = 16
"""Servers that are connected to at one time."""
PAUSE = 0.5
"""Seconds before a list that lacks servers which are still starting is asked for again."""


class ConfiguredClient:
    """A client of the gateway's own actors: of one endpoint, all that is configured or one server."""

    def __init__(self, actors: GatewayActors, duplex: Duplex, nursery: trio.Nursery, asking: Asking) -> None:
        self._actors = actors
        self._duplex = duplex
        self._nursery = nursery
        self._asking = asking
        self.begun, self.items, self.call = asking.begun, asking.items, asking.call
        self.missing: dict[str, str] = {}

    async def servers(self) -> Entries:
        """Connects to each."""
        found: dict[str, dict[str, Any]] = {}
        places = trio.CapacityLimiter(AT_ONCE)
        async with trio.open_nursery() as nursery:
            for name in self._actors.services.table.value.backends:
                nursery.start_soon(self._visit, name, found, places)
        return [{**entry, **found[entry["name"]]} for entry in servers_of(self._actors)]

    @asynccontextmanager
    async def alone(self, name: str) -> "AsyncIterator[ConfiguredClient]":
        """Another one, of this one server."""
        endpoint = name if name in self._actors.services.table.value.endpoints else ""
        async with open_inside(self._actors, self._duplex, self._nursery, endpoint) as client:
            yield client

    async def _visit(self, name: str, found: dict[str, dict[str, Any]], places: trio.CapacityLimiter) -> None:
        async with places, self.alone(name) as client:
            try:
                declared = (await client.begun()).capabilities
                found[name] = {
                    "counts": {kind: len(await client.list(kind)) for kind in LIST_KINDS if kind in declared}
                }
            except ClientFailedError as error:
                first, *lines = str(error).splitlines()
                # What is known of the server's end says more, if it is the server that does not work.
                status = self._actors.backends.status.get(name)
                known = status is not None and status.failure is not None
                found[name] = {} if known else {"error": {"message": first, "stderr": [s.strip() for s in lines]}}

    async def list(self, kind: ListKind) -> Entries:
        """All pages. Servers that are still starting are waited for; those that don't start are `missing`."""
        until = trio.current_time() + self._actors.services.limits.link_connect
        while True:
            items = await self._asking.list(kind)
            self.missing = self._asking.missing | self._failed()
            starting = self.missing.keys() - self._failed().keys()
            if not starting or len(self._actors.services.table.value.backends) < 2 or trio.current_time() > until:
                return items
            await trio.sleep(PAUSE)

    def _failed(self) -> dict[str, str]:
        return {
            name: "\n".join([status.last_error, *(f"  {line}" for line in status.failure.diagnostics.stderr)])
            for name, status in self._actors.backends.status.items()
            if status.failure is not None
        }


@asynccontextmanager
async def open_inside(
    actors: GatewayActors, duplex: Duplex, nursery: trio.Nursery, endpoint: str = ""
) -> AsyncIterator[ConfiguredClient]:
    """A client of an endpoint, with a session there."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Session]:
        async with open_session(Inside(duplex, endpoint, nursery), LATEST_HANDSHAKE, info=INFO) as session:
            yield session

    async with AsyncExitStack() as stack:
        asking = Asking(opened(), stack, statuses=actors.backends.status)
        yield ConfiguredClient(actors, duplex, nursery, asking)


@asynccontextmanager
async def open_client(target: Target) -> AsyncIterator[Client]:
    """A client; its first request raises ClientFailedError if nobody answers there."""
    if isinstance(target, UrlTarget):
        async with open_url(target, Limits()) as client:
            yield client
        return
    async with open_configured(target) as client:
        yield client


@asynccontextmanager
async def open_configured(target: Settings) -> AsyncIterator[ConfiguredClient]:
    """A client of what a configuration names, without a gateway."""
    # Whoever asks once wants the whole list.
    whole = replace(target, limits=replace(target.limits, list_deadline=target.limits.link_connect))
    async with (
        open_actors(whole, "stagedoor.cli") as (actors, duplex),
        trio.open_nursery() as nursery,
        open_inside(actors, duplex, nursery) as client,
    ):
        yield client
