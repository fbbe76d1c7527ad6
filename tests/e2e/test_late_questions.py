"""A server of the TypeScript SDK over stdio, which answers a ping at once, never answers a call that was cancelled, and
asks for it while another one runs. That is what its SDK does, so only the SDK can show it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from mcp import Client
from mcp import types as t

from tests.support.patience import PATIENCE
from tests.support.processes import Programs

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.node,
    pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*as of 2026-07-28"),
]

SERVER = Path(__file__).with_name("late_asker.mjs")


async def test_what_is_asked_for_a_cancelled_call_is_asked_in_no_other_ones_name(
    programs: Programs, node: Path
) -> None:
    servers = {"late": {"command": str(node), "args": [str(SERVER)]}}
    # So the process stays, and asks.
    gateway = programs.gateway({"mcpServers": servers, "gateway": {"limits": {"overflowConnections": 0}}})
    asked: list[str] = []

    async def elicit(_context: Any, params: t.ElicitRequestParams) -> t.ElicitResult:
        asked.append(params.message)
        return t.ElicitResult(action="accept", content={"name": "Ada"})

    async def said(client: Client, tool: str) -> str:
        (content,) = (await client.call_tool(tool, {})).content
        assert isinstance(content, t.TextContent)
        return content.text

    with trio.fail_after(PATIENCE):
        async with Client(gateway.endpoint("late"), mode="2026-07-28", elicitation_callback=elicit) as client:
            with trio.CancelScope() as scope:

                async def begun(*_: Any) -> None:
                    scope.cancel()

                await client.call_tool("slow", {}, progress_callback=begun)
            assert "cancelled" in await said(client, "work")
            assert asked == []
            assert await said(client, "name") == "accept"
    assert asked == ["name"]
