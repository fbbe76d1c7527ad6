"""A server on the official Python SDK of the handshake era, whose tool asks at once on the stream that belongs to no
call: `rooted.py PORT`."""

import sys
from typing import Any

from mcp.server.fastmcp import Context, FastMCP

server = FastMCP("rooted", port=int(sys.argv[1]))


@server.tool()
async def root(ctx: Context[Any, Any, Any]) -> str:
    """Where the client's files are."""
    return str((await ctx.session.list_roots()).roots[0].uri)


if __name__ == "__main__":
    server.run("streamable-http")
