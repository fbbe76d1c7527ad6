"""Drives a released Python SDK's client over one duplex transport, and prints what it saw as one JSON object.

Usage: python duplex_client.py stdio COMMAND…, or sse URL, or ws URL.
"""

import asyncio
import json
import sys
from typing import Any

from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client


def transport(kind: str, where: list[str]) -> Any:
    if kind == "stdio":
        return stdio_client(StdioServerParameters(command=where[0], args=where[1:], env=get_default_environment()))
    if kind == "sse":
        return sse_client(where[0])
    from mcp.client.websocket import websocket_client

    return websocket_client(where[0])


async def main() -> None:
    kind, *where = sys.argv[1:]
    async with transport(kind, where) as (read, write), ClientSession(read, write) as session:
        server = await session.initialize()
        tools = (await session.list_tools()).tools
        result = await session.call_tool("demo__add", {"terms": [2, 3]})
        await session.send_ping()
        failed = await session.call_tool("demo__add", {"terms": "x"})
        print(
            json.dumps(
                {
                    "protocol": server.protocolVersion,
                    "tools": [tool.name for tool in tools],
                    "text": getattr(result.content[0], "text", None),
                    "failed": failed.isError,
                }
            )
        )


if __name__ == "__main__":
    asyncio.run(main())
