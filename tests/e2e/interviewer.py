"""A server on the official Python SDK of the handshake era, which asks a lot: over stdio, or with `--http PORT`."""

import sys
from typing import Any

import anyio
from mcp.server.fastmcp import Context, FastMCP
from mcp.types import SamplingMessage, TextContent
from pydantic import BaseModel

PORT = int(sys.argv[2]) if "--http" in sys.argv else 0
server = FastMCP("interviewer", port=PORT)
executed = 0


class Name(BaseModel):
    name: str


class Sure(BaseModel):
    sure: bool


@server.tool()
async def interview(topic: str, ctx: Context[Any, Any, Any]) -> str:
    """Four questions of three kinds, and progress and logs in between."""
    global executed
    executed += 1
    named: Any = await ctx.elicit("What is your name?", Name)
    if named.action != "accept":
        return f"nobody ({executed})"
    await ctx.report_progress(1, 2)
    await ctx.info("half way")
    said = await ctx.session.create_message(
        [SamplingMessage(role="user", content=TextContent(type="text", text=topic))],
        max_tokens=10,
        related_request_id=ctx.request_id,
    )
    roots = await ctx.session.list_roots()
    sure: Any = await ctx.elicit("Are you sure?", Sure)
    words = getattr(said.content, "text", "?")
    return f"{named.data.name} says {words} at {roots.roots[0].uri}: {sure.data.sure} ({executed})"


@server.tool()
async def late(seconds: float, ctx: Context[Any, Any, Any]) -> str:
    """One question, after a while."""
    await anyio.sleep(seconds)
    named: Any = await ctx.elicit("What is your name?", Name)
    return str(named.action)


@server.tool()
async def count() -> str:
    """How often the interview was begun."""
    return str(executed)


if __name__ == "__main__":
    server.run("streamable-http" if PORT else "stdio")
