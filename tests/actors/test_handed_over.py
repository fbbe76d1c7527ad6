"""A process that refused one era serves the other: where all places for processes are taken, it brings its own."""

from __future__ import annotations

from typing import Any

import trio
from trio.testing import MockClock

from tests.support.harness import open_gateway
from tests.support.mcp_backend import Backend
from tests.support.modern_backend import ModernBackend
from tests.support.modern_client import ModernClient


class Offering(Backend):
    """Its transports end when they are taken over, as those of processes do."""

    def connect(self, *args: Any, **more: Any) -> Any:
        before = self.upstreams[-1].transport if self.upstreams else None
        transport = super().connect(*args, **more)

        def hand_over() -> None:
            transport.handed_over = True

        transport.hand_over = hand_over  # type: ignore[method-assign]
        if before is not None and before.handed_over:
            before.close()
        return transport


class ModernOffering(Offering, ModernBackend):
    """The same without sessions."""


async def test_the_process_of_a_server_with_sessions_serves_a_client_without(autojump_clock: MockClock) -> None:
    alpha = Offering("alpha")
    async with open_gateway(alpha, child_processes=1) as gateway:
        began = trio.current_time()
        client = ModernClient(gateway.actors.door, gateway.nursery, "alpha")
        result = await client.call("tools/call", {"name": "echo"})
        assert result["content"][0]["text"] == "alpha: echo"
        assert trio.current_time() - began < 0.5
        assert [upstream.transport.warm for upstream in alpha.upstreams] == [False, True]


async def test_the_process_of_a_server_without_sessions_serves_a_client_with_one(autojump_clock: MockClock) -> None:
    alpha = ModernOffering("alpha")
    async with open_gateway(alpha, child_processes=1) as gateway:
        began = trio.current_time()
        client = await gateway.connect("alpha")
        assert await client.tool("echo") == "alpha: echo"
        assert trio.current_time() - began < 0.5
        assert [upstream.transport.warm for upstream in alpha.upstreams] == [False, True]
        assert gateway.telemetry.gauges["stagedoor_child_processes", ("alpha",)] == 1
