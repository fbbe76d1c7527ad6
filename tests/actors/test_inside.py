"""The client with the gateway of its own process as the other end."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from actors.duplex import Duplex
from gateway.client import ConnectionLostError, open_client
from gateway.inside import Inside
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend


def duplex_of(gateway: Gateway) -> Duplex:
    return Duplex(gateway.door, gateway.services.limits)


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_the_client_speaks_with_the_gateway_of_its_own_process_and_takes_its_session_along(
    autojump_clock, version
):
    async with open_gateway(Backend("alpha", tools=("work",))) as gateway, trio.open_nursery() as nursery:
        duplex = duplex_of(gateway)
        async with open_client(Inside(duplex, "", nursery), version) as client:
            assert [tool.name async for tool in client.list_tools()] == ["alpha__work"]
            assert not (await client.call_tool("alpha__work", {"text": "x"})).is_error
            assert duplex.open == 1
        await trio.testing.wait_all_tasks_blocked()
        assert duplex.open == 0
        assert not gateway.actors.sessions.table


async def test_a_gateway_that_ends_is_a_connection_that_is_lost(autojump_clock):
    async with open_gateway(Backend("alpha", tools=("work",))) as gateway, trio.open_nursery() as nursery:
        duplex = duplex_of(gateway)
        async with open_client(Inside(duplex, "", nursery), "2025-11-25") as client:
            duplex.stop()
            await trio.sleep(1)
            with pytest.raises(ConnectionLostError):
                await client.call_tool("alpha__work", {"text": "x"})


async def test_a_client_that_is_never_opened_leaves_nothing(autojump_clock):
    async with open_gateway(Backend("alpha")) as gateway, trio.open_nursery() as nursery:
        inside = Inside(duplex_of(gateway), "", nursery)
        await inside.close()
        await inside.close()
