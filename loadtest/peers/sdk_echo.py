"""The tool `echo` on the low-level server of the official SDK: `sdk_echo.py PORT`, or standard streams without it.

Over HTTP with answers in JSON, which cost it less than the streams that are its default, on uvicorn as it recommends.
"""

import sys

import anyio
import mcp.server.stdio
import uvicorn
from mcp.server.lowlevel import Server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

TEXT = "The quick brown fox jumps over the lazy dog. " * 5
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "text": {"type": "string"}},
    "required": ["n", "text"],
}


async def list_tools(_context, _params):
    return ListToolsResult(tools=[Tool(name="echo", description="Answers at once", input_schema=SCHEMA)])


async def call_tool(_context, params):
    return CallToolResult(content=[TextContent(type="text", text=f"{params.arguments['n']}: {TEXT}")])


server = Server("echo", on_list_tools=list_tools, on_call_tool=call_tool)


async def serve_stdio():
    async with mcp.server.stdio.stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        app = server.streamable_http_app(json_response=True)
        uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
    else:
        anyio.run(serve_stdio)
