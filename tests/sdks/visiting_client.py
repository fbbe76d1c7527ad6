"""Drives an official Python SDK's client (1.x) to all places at once where the demo server is, and prints what it saw
there as one JSON array.

Usage: python visiting_client.py PLACES, an array of {kind, where}: kind is http, sse, ws or stdio, where a URL, or a
command as an array.
"""

import asyncio
import json
import sys
from typing import Any

from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.websocket import websocket_client

TRANSPORTS = {
    "http": streamable_http_client,
    "sse": sse_client,
    "ws": websocket_client,
    "stdio": lambda command: stdio_client(
        StdioServerParameters(command=command[0], args=command[1:], env=get_default_environment())
    ),
}


async def visit(kind: str, where: Any) -> dict[str, Any]:
    steps: list[float] = []

    async def progress(done: float, total: Any, message: Any) -> None:
        steps.append(done)

    async with TRANSPORTS[kind](where) as (read, write, *_), ClientSession(read, write) as session:
        await session.initialize()
        tools = [tool.name for tool in (await session.list_tools()).tools]
        named = {tool.rpartition("__")[2]: tool for tool in tools}
        added = await session.call_tool(named["add"], {"terms": [2, 3]})
        failed = await session.call_tool(named["add"], {"terms": "x"})
        await session.call_tool(named["slow_count"], {"to": 3, "pause": 0.1}, progress_callback=progress)
        resources = (await session.list_resources()).resources
    return {
        "tools": len(tools),
        "sum": added.structuredContent,
        "failed": failed.isError,
        "steps": steps[:2],
        "resources": len(resources),
    }


async def main() -> None:
    visits = [visit(place["kind"], place["where"]) for place in json.loads(sys.argv[1])]
    print(json.dumps(await asyncio.gather(*visits)))


asyncio.run(main())
