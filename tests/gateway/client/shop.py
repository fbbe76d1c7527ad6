"""The server of these tests, on the API for servers in this process."""

from __future__ import annotations

from dataclasses import dataclass

import trio

from stagedoor import Context, Server

server = Server("shop", version="1.0", instructions="Ask for the price.", page_size=3)
ENDED: list[str] = []


@server.tool
async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@server.tool
async def steps(ctx: Context, count: int) -> str:
    """Goes step by step."""
    for n in range(1, count + 1):
        await ctx.progress(n, count, f"step {n}")
    return "there"


@server.tool
async def stalls(ctx: Context) -> str:
    """Goes one step, and never ends."""
    await ctx.progress(1, 2, "step 1")
    return await slow()


@server.tool
async def sampled(ctx: Context) -> str:
    """Asks the model."""
    return (await ctx.sample("What is it?")).text


@dataclass
class Size:
    size: int


@server.tool
async def sized(ctx: Context) -> str:
    """Asks the user."""
    answer = await ctx.elicit("Which size?", Size)
    return f"{answer.action} {answer.content.size if answer.content else ''}".strip()


@server.tool
async def folders(ctx: Context) -> str:
    """Asks for the roots."""
    return " ".join(root.uri for root in await ctx.roots())


@server.tool
async def chat(ctx: Context, level: str) -> str:
    """Logs."""
    await ctx.log(level, "psst")
    return "said"


@server.tool
async def slow() -> str:
    """Never ends."""
    try:
        await trio.sleep_forever()
    finally:
        ENDED.append("slow")


@server.tool
async def ended() -> list[str]:
    """What was cancelled."""
    return ENDED


@server.tool
async def broken() -> str:
    """Fails."""
    raise ValueError("out of stock")


@server.resource("shop://price")
async def price() -> str:
    """The price."""
    return "7"


@server.template("shop://items/{name}")
async def item(name: str) -> str:
    """One item."""
    return f"a {name}"


@server.tool
async def sell() -> str:
    """Changes the price."""
    server.updated("shop://price")
    return "sold"


@server.prompt
async def greet(name: str) -> str:
    """Greets."""
    return f"Hello {name}"


@server.complete("greet", "name")
async def names(typed: str) -> list[str]:
    return [name for name in ("Ada", "Alan", "Bob") if name.startswith(typed)]


@server.tool
async def executed(ctx: Context) -> int:
    """How often `walk` was."""
    return len(WALKS)


WALKS: list[int] = []


@server.tool
async def walk(ctx: Context, count: int) -> str:
    """As `steps`, slowly."""
    WALKS.append(count)
    for n in range(1, count + 1):
        await ctx.progress(n, count, f"step {n}")
        await trio.sleep(0.2)
    return "there"
