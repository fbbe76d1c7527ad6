"""The tool `echo` on `gateway.native`, for the side by side with servers written on other libraries."""

from __future__ import annotations

from gateway.native import Server
from loadtest.backend import TEXT

server = Server("echo")


@server.tool
async def echo(n: int, text: str) -> str:
    """Answers at once."""
    return f"{n}: {TEXT}"
