"""Calls of a legacy client that are under way, and their requests at the server, which answers when the test says."""

from __future__ import annotations

from typing import Any

from tests.support.door_client import Client, Pending
from tests.support.mcp_backend import Backend, Request


async def reached(client: Client, backend: Backend, *, progress: Any = None) -> tuple[Pending, Request]:
    """One that has come to the server."""
    call = client.begin("tools/call", {"name": "slow"}, progress=progress)
    return call, await backend.next()


async def streaming(client: Client, backend: Backend, first: int = 1) -> tuple[Pending, Request]:
    """One whose client has heard of its first progress: its stream is open."""
    call, request = await reached(client, backend, progress="t")
    request.progress(first)
    await call.next()
    return call, request
