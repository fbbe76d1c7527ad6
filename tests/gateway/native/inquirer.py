"""A server whose handlers do all that a context can, and what they should not."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import trio

from stagedoor import (
    ClientRefusedError,
    ClientUnableError,
    Context,
    NotFoundError,
    Request,
    Response,
    RpcError,
    Server,
    UrlElicitation,
)

server = Server("inquirer", version="1.0")
DONE: Counter[str] = Counter()


@dataclass
class Trip:
    city: str
    days: int = 3


@server.tool
async def plan(ctx: Context) -> dict[str, Any]:
    """Does something, asks, does more, asks again."""
    DONE["before"] += 1
    trip = await ctx.elicit("Where to?", Trip)
    DONE["between"] += 1
    said = await ctx.sample(f"What is {trip.content.city if trip.content else 'home'} like?")
    roots = await ctx.roots()
    DONE["after"] += 1
    return {"action": trip.action, "trip": trip.content, "said": said.text, "roots": [root.uri for root in roots]}


@server.tool
async def visit(ctx: Context) -> str:
    """Sends the user to a page."""
    return await ctx.elicit_url(UrlElicitation("Please pay", "https://example.com/pay", "pay-1"))


@server.tool
async def counts() -> dict[str, int]:
    """How often what was done."""
    return dict(DONE)


@server.tool
async def talks(ctx: Context) -> str:
    """Reports and logs."""
    for n in range(1, 4):
        await ctx.progress(n, 3, f"step {n}")
    await ctx.log("debug", "a detail")
    await ctx.log("warning", {"what": "a warning"})
    return "done"


@server.tool
async def asks_anyway(ctx: Context) -> str:
    """Asks a client that may not be able to answer."""
    try:
        return (await ctx.sample("Anybody?")).text
    except (ClientUnableError, ClientRefusedError) as error:
        return type(error).__name__


@server.tool
@server.prompt
async def needs(ctx: Context) -> str:
    """Needs a client with a model, and that can be sent to pages."""
    ctx.require("sampling")
    DONE["needed"] += 1
    return await ctx.elicit_url(UrlElicitation("Please pay", "https://example.com/pay", "pay-2"))


@server.tool
async def remembers(ctx: Context) -> int:
    """How often it was called with this state."""
    ctx.state["calls"] = ctx.state.get("calls", 0) + 1
    calls: int = ctx.state["calls"]
    return calls


@server.tool
async def endless() -> str:
    """Never ends by itself."""
    try:
        await trio.sleep_forever()
    finally:
        DONE["cancelled"] += 1


@server.tool
async def fails(code: int) -> str:
    """Fails with this code."""
    raise RpcError(code, "as told", {"why": "told"})


@server.resource("inquirer://gone")
async def gone() -> str:
    """Is not there."""
    raise NotFoundError("inquirer://gone")


@server.tool
async def who(req: Request, res: Response) -> Response:
    """Who asks."""
    return res.text(str(req.caller.principal))


@server.tool
async def may(req: Request) -> list[str]:
    """What the caller's token says."""
    return [*sorted(req.caller.groups), *sorted(req.caller.scopes), req.caller.rights.subject]


@server.tool
async def quick() -> str:
    """Answers at once."""
    return "quick"


@server.tool
async def blocks() -> str:
    """Keeps the loop to itself."""
    time.sleep(0.5)
    return "blocked"


@server.tool
async def floods(ctx: Context, times: int) -> str:
    """Reports without end."""
    for n in range(times):
        await ctx.progress(n, message="x" * 100)
    return "flooded"


@server.tool(output_schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
async def lies() -> Any:
    """Returns what its schema forbids."""
    return {"n": "none"}
