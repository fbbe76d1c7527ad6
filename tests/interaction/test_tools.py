"""Tools, through `/mcp` and through an endpoint of their own."""

from __future__ import annotations

from tests.interaction.backend import Request, text
from tests.interaction.stage import Stage


async def test_a_tool_is_listed_and_called(stage: Stage) -> None:
    backend = await stage.backend("alpha")

    @backend.tool("echo", description="says it again")
    async def echo(request: Request) -> dict:
        return text(request.arguments["say"])

    client = await stage.connect()
    listed = await client.request("tools/list")
    assert [tool["name"] for tool in listed["tools"]] == ["alpha__echo"]
    assert await client.call("alpha__echo", say="hi") == text("hi")
