"""A server on the official SDK, over the transports that it has besides: `old_transports.py sse|ws PORT` (`ws` before
2.0)."""

import os
import sys

import uvicorn
from mcp.types import SamplingMessage, TextContent
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

try:
    from mcp.server.fastmcp import Context, FastMCP
except ImportError:  # it is called so since 2.0
    from mcp.server.mcpserver import Context
    from mcp.server.mcpserver import MCPServer as FastMCP


class Name(BaseModel):
    """What is asked for."""

    name: str


class Server(FastMCP):
    """Over a WebSocket too, which FastMCP leaves to the low-level server in it."""

    async def talk(self, socket: WebSocket) -> None:
        from mcp.server.websocket import websocket_server

        inner = self._mcp_server
        async with websocket_server(socket.scope, socket.receive, socket.send) as (incoming, outgoing):
            await inner.run(incoming, outgoing, inner.create_initialization_options())


server = Server("old")


@server.tool()
def echo(text: str) -> str:
    return text


@server.tool()
async def greet(ctx: Context) -> str:
    """Asks for a name, and a model for a greeting."""
    found = await ctx.elicit("who?", Name)
    said = await ctx.session.create_message(
        [SamplingMessage(role="user", content=TextContent(type="text", text="greet"))], max_tokens=10
    )
    return f"{said.content.text} {found.data.name}"


@server.tool()
async def count(ctx: Context) -> str:
    for n in range(3):
        await ctx.report_progress(n, 2)
    return "counted"


@server.tool()
def die() -> str:
    os._exit(1)


@server.resource("old://greeting")
def greeting() -> str:
    return "hello"


if __name__ == "__main__":
    app = server.sse_app() if sys.argv[1] == "sse" else Starlette(routes=[WebSocketRoute("/ws", server.talk)])
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
