"""The same server on the official SDK 1.x: `sdk_shop.py PORT`, or over stdio without one."""

from __future__ import annotations

import sys

import anyio
from mcp.server.fastmcp import Context, FastMCP
from mcp.types import SamplingMessage, TextContent
from pydantic import BaseModel

PORT = int(sys.argv[1]) if len(sys.argv) > 1 else 0
server = FastMCP("shop", instructions="Ask for the price.", port=PORT)
ENDED: list[str] = []


@server.tool()
async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@server.tool()
async def steps(ctx: Context, count: int) -> str:
    """Goes step by step."""
    for n in range(1, count + 1):
        # `report_progress` sends it over the GET stream, where it may come too late.
        token, related = ctx.request_context.meta.progressToken, ctx.request_id
        await ctx.session.send_progress_notification(token, n, count, f"step {n}", related)
    return "there"


@server.tool()
async def stalls(ctx: Context) -> str:
    """Goes one step, and never ends."""
    await ctx.session.send_progress_notification(ctx.request_context.meta.progressToken, 1, 2, "step 1", ctx.request_id)
    return await slow()


@server.tool()
async def sampled(ctx: Context) -> str:
    """Asks the model."""
    asked = SamplingMessage(role="user", content=TextContent(type="text", text="What is it?"))
    said = await ctx.session.create_message([asked], max_tokens=9, related_request_id=ctx.request_id)
    return said.content.text


class Size(BaseModel):
    size: int


@server.tool()
async def sized(ctx: Context) -> str:
    """Asks the user."""
    answer = await ctx.elicit("Which size?", Size)
    return f"{answer.action} {answer.data.size if answer.action == 'accept' else ''}".strip()


@server.tool()
async def folders(ctx: Context) -> str:
    """Asks for the roots."""
    return " ".join(str(root.uri) for root in (await ctx.session.list_roots()).roots)


@server.tool()
async def chat(ctx: Context, level: str) -> str:
    """Logs."""
    await ctx.log(level, "psst")
    return "said"


@server.tool()
async def slow() -> str:
    """Never ends."""
    try:
        await anyio.sleep_forever()
    finally:
        ENDED.append("slow")


@server.tool()
async def ended() -> list[str]:
    """What was cancelled."""
    return ENDED


@server.tool()
async def broken() -> str:
    """Fails."""
    raise ValueError("out of stock")


@server.resource("shop://price")
async def price() -> str:
    """The price."""
    return "7"


@server.resource("shop://items/{name}")
async def item(name: str) -> str:
    """One item."""
    return f"a {name}"


@server.prompt()
async def greet(name: str) -> str:
    """Greets."""
    return f"Hello {name}"


@server.completion()
async def complete(ref: object, argument: object, context: object) -> object:
    from mcp.types import Completion

    values = [name for name in ("Ada", "Alan", "Bob") if name.startswith(argument.value)]
    return Completion(values=values, hasMore=False)


if __name__ == "__main__":
    if PORT:
        server.run("sse" if sys.argv[2:] == ["sse"] else "streamable-http")
    else:
        server.run()
