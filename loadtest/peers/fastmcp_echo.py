"""The tool `echo` on FastMCP, in .venv-peers/fastmcp: `fastmcp_echo.py PORT`, or standard streams without it.

Over HTTP with answers in JSON, which cost it less than the streams that are its default.
"""

import sys

from fastmcp import FastMCP

TEXT = "The quick brown fox jumps over the lazy dog. " * 5
server = FastMCP("echo")


@server.tool(output_schema=None)
async def echo(n: int, text: str) -> str:
    """Answers at once."""
    return f"{n}: {TEXT}"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        port = int(sys.argv[1])
        server.run(
            transport="http", host="127.0.0.1", port=port, json_response=True, show_banner=False, log_level="warning"
        )
    else:
        server.run(show_banner=False, log_level="warning")
