"""`open_client`: the client of `gateway.client`, for a server in this process in both eras."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

from actors.protocol.versions import MODERN
from gateway import client
from gateway.client import Client


@asynccontextmanager
@wraps(client.open_client)
async def open_client(target: Any, version: str | None = None, **more: Any) -> AsyncIterator[Client]:
    """A server speaks with sessions. Who wants the other era of it gets the gateway's actors between."""
    if version != MODERN or not hasattr(target, "connect"):
        async with client.open_client(target, version, **more) as opened:
            yield opened
        return
    from gateway.embedding import open_embedded  # nearly all of the gateway, which others do without

    async with open_embedded(target) as inside, client.open_client(inside, version, **more) as opened:
        yield opened
