"""A server on FastMCP: over stdio, or over HTTP on the port given; of both eras, or with `--legacy` of the older one.

    fastmcp_server.py [--legacy] [--http PORT]

It runs in FastMCP's own environment.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import mcp.types as t
import uvicorn
from fastmcp import Context, FastMCP
from fastmcp.tools import ToolResult
from pydantic import BaseModel

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "peers"))

import eras

MEMO = "memo:///one"
MODERN = "2026-07-28"

server: FastMCP[Any] = FastMCP("fastmcp-server", instructions="say what you want")


class Color(BaseModel):
    """What a person is asked for."""

    color: str


@server.tool
def echo(value: str) -> str:
    return f"you said {value}"


@server.tool
def fail() -> ToolResult:
    return ToolResult(content=[t.TextContent(text="it failed")], is_error=True)


@server.tool
async def steps(ctx: Context) -> str:
    for step in (1, 2, 3):
        await ctx.report_progress(step, 3)
    return "done"


def modern(ctx: Context) -> bool:
    assert ctx.request_context is not None
    return ctx.request_context.protocol_version >= MODERN


def answer(ctx: Context) -> Any:
    """What a modern client says to the one question; None as long as it was not asked."""
    return (ctx.input_responses or {}).get("it")


def ask(question: Any) -> t.InputRequiredResult:
    return t.InputRequiredResult(input_requests={"it": question})


@server.tool(output_schema=None)
async def elicit(ctx: Context) -> Any:
    if not modern(ctx):
        said = await ctx.elicit("Which color?", Color)
        return f"{said.action} {getattr(getattr(said, 'data', None), 'color', '')}".strip()
    if (given := answer(ctx)) is not None:
        return f"{given.action} {(given.content or {}).get('color', '')}".strip()
    schema = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
    return ask(t.ElicitRequest(params=t.ElicitRequestFormParams(message="Which color?", requested_schema=schema)))


@server.tool(output_schema=None)
async def sample(ctx: Context) -> Any:
    message = t.SamplingMessage(role="user", content=t.TextContent(text="Say something"))
    if modern(ctx):
        given = answer(ctx)
        if given is None:
            params = t.CreateMessageRequestParams(messages=[message], max_tokens=50)
            return ask(t.CreateMessageRequest(params=params))
    else:
        given = await ctx.session.create_message(messages=[message], max_tokens=50, related_request_id=ctx.request_id)
    return f"sampled {given.content.text}"


@server.tool(output_schema=None)
async def roots(ctx: Context) -> Any:
    if not modern(ctx):
        given: Any = await ctx.session.list_roots()
    elif (given := answer(ctx)) is None:
        return ask(t.ListRootsRequest())
    return " ".join(str(root.uri) for root in given.roots)


def extra() -> str:
    return "extra"


@server.tool
async def change(ctx: Context) -> str:
    if await server.get_tool("extra") is None:
        server.tool(extra)
    else:
        server.local_provider.remove_tool("extra")
    await ctx.send_notification(t.ToolListChangedNotification())
    return "changed"


@server.tool
def touch() -> str:
    """Does nothing: nobody can subscribe to a resource here."""
    return "touched"


@server.resource(MEMO, name="one", mime_type="text/plain")
def one() -> str:
    return "one"


@server.resource("memo:///by-id/{id}", name="by id", mime_type="text/plain")
def by_id(id: str) -> str:
    return f"id {id}"


@server.prompt
def greeting(topic: Annotated[str, "what to greet about"]) -> str:
    return f"About {topic}"


@server.completion
def complete(_ref: Any, argument: Any, _context: Any) -> list[str]:
    return [word for word in ("music", "museum", "moon") if word.startswith(argument.value)]


if __name__ == "__main__":
    era = "legacy" if "--legacy" in sys.argv else "dual"
    if "--http" not in sys.argv:
        server.run("stdio", show_banner=False)
    else:
        port = int(sys.argv[sys.argv.index("--http") + 1])
        uvicorn.run(eras.of_era(server.http_app(path="/mcp"), era), host="127.0.0.1", port=port, log_level="warning")
