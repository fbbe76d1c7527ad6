"""Servers for the client: one in this process, our gateway, and the official SDK's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from trio_websocket import ConnectionClosed, WebSocketRequest, serve_websocket

from gateway.client import Client
from stagedoor import open_client
from tests.gateway.client import shop
from tests.support.ports import free_port
from tests.support.processes import ROOT, Programs, accepts, need, node, programs, shared_programs

__all__ = ["node", "programs", "shared_programs"]

SDK = ROOT / ".venv-sdks" / "py-1.27" / "bin" / "python"
SDK_SHOP = Path(__file__).with_name("sdk_shop.py")
CONFIG = {"mcpServers": {"shop": {"native": "tests.gateway.client.shop:server"}}}


def in_memory(programs: Programs) -> Any:
    return shop.server


def by_gateway(programs: Programs) -> str:
    return programs.gateway(CONFIG).endpoint("shop")


def by_channel(kind: str) -> Callable[[Programs], str]:
    """The gateway, over one channel for everything."""

    def url(programs: Programs) -> str:
        gateway = programs.gateway(CONFIG).url
        return (gateway.replace("http:", "ws:") if kind == "ws" else gateway) + f"/{kind}/shop"

    return url


def by_sdk(programs: Programs) -> str:
    need(SDK.exists(), "the official SDK's older version is")
    port = free_port()
    programs.start("sdk", [SDK, SDK_SHOP, str(port)], ready=accepts(port))
    return f"http://127.0.0.1:{port}/mcp"


def by_command(programs: Programs) -> list[str]:
    need(SDK.exists(), "the official SDK's older version is")
    return programs.forks("sdk", [SDK, SDK_SHOP])


def by_sse(programs: Programs) -> str:
    need(SDK.exists(), "the official SDK's older version is")
    port = free_port()
    programs.start("sdk", [SDK, SDK_SHOP, str(port), "sse"], ready=accepts(port))
    return f"http://127.0.0.1:{port}/sse"


WEBSOCKET = "the fixture of this name"


async def over_a_websocket(socket: WebSocketRequest) -> None:
    """A session with the shop over one connection."""
    connection = await socket.accept(subprotocol="mcp")
    out, frames = trio.open_memory_channel[bytes](1000)
    session = shop.server.connect(lambda frame, related: out.send_nowait(frame), lambda method, error: None, 10**6)

    async def write() -> None:
        with suppress(ConnectionClosed):
            async for frame in frames:
                await connection.send_message(frame.decode())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.run)
        nursery.start_soon(write)
        try:
            while True:
                session.receive((await connection.get_message()).encode())
        except ConnectionClosed:
            nursery.cancel_scope.cancel()


@pytest.fixture
async def websocket(nursery: trio.Nursery) -> str:
    """The shop behind a WebSocket."""
    server = await nursery.start(serve_websocket, over_a_websocket, "127.0.0.1", 0, None)
    return f"ws://127.0.0.1:{server.port}/ws"


WAYS: dict[str, tuple[Callable[[Programs], Any], str | None, str]] = {
    "native": (in_memory, None, "2025-11-25"),
    "native without sessions": (in_memory, "2026-07-28", "2026-07-28"),
    "gateway": (by_gateway, None, "2026-07-28"),
    "gateway with sessions": (by_gateway, "2025-11-25", "2025-11-25"),
    "gateway of old": (by_gateway, "2025-06-18", "2025-06-18"),
    "gateway over a WebSocket": (by_channel("ws"), None, "2026-07-28"),
    "gateway over HTTP+SSE": (by_channel("sse"), "2026-07-28", "2026-07-28"),
    "sdk": (by_sdk, None, "2025-11-25"),
    "sdk over HTTP+SSE": (by_sse, None, "2025-11-25"),
    "websocket": (lambda programs: WEBSOCKET, None, "2025-11-25"),
    "sdk as a command": (by_command, None, "2025-11-25"),
}
"""By name: what to open a client of, the revision that is wanted, and the one that is spoken."""


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest, shared_programs: Programs) -> tuple[Any, str | None, str]:
    start, wanted, spoken = WAYS[request.param]
    return start(shared_programs), wanted, spoken


@pytest.fixture
def opening(way: tuple[Any, str | None, str], websocket: str) -> Callable[..., Any]:
    """Opens a client of a server."""
    target, wanted, spoken = way
    if target == WEBSOCKET:
        target = websocket

    @asynccontextmanager
    async def opened(**handlers: Any) -> AsyncIterator[Client]:
        async with open_client(target, wanted, **handlers) as client:
            assert client.protocol_version == spoken
            yield client

    return opened
