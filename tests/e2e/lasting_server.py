"""A server on the official SDK that keeps the events of its answers: `python -m tests.e2e.lasting_server PORT FILE`.

Its tool `work` says `steps` times how far it is, `pause` seconds apart, waits for the file `until` if it is given one,
and answers; each execution is a line in FILE, and so is each session that begins or is ended.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore", message=".*deprecated as of 2026-07-28")
sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("peers", "conformance/fixture")]

import anyio  # noqa: E402
import mcp.types as t  # noqa: E402
import uvicorn  # noqa: E402
from eras import of_era  # noqa: E402
from events import KeptEvents  # noqa: E402
from mcp.server.lowlevel import Server  # noqa: E402

FILE = Path(sys.argv[2])


def note(line: str) -> None:
    with FILE.open("a") as file:
        file.write(f"{line}\n")


async def list_tools(_ctx: Any, _params: Any) -> t.ListToolsResult:
    return t.ListToolsResult(tools=[t.Tool(name="work", input_schema={"type": "object"})])


async def call_tool(ctx: Any, params: t.CallToolRequestParams) -> t.CallToolResult:
    arguments = params.arguments or {}
    note("executed")
    for step in range(arguments.get("steps", 0)):
        await ctx.session.send_log_message("info", f"step {step}", related_request_id=ctx.request_id)
        await anyio.sleep(arguments.get("pause", 0))
    while "until" in arguments and not Path(arguments["until"]).exists():
        await anyio.sleep(0.05)
    return t.CallToolResult(content=[t.TextContent(type="text", text="the real answer")])


def main() -> None:
    server: Any = Server("lasting", on_list_tools=list_tools, on_call_tool=call_tool)
    app = of_era(server.streamable_http_app(event_store=KeptEvents(), retry_interval=100), "legacy")

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            known = any(name == b"mcp-session-id" for name, _ in scope["headers"])
            if scope["method"] == "DELETE" or (scope["method"] == "POST" and not known):
                note("ended" if known else "begun")
        await app(scope, receive, send)

    uvicorn.run(watched, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")


if __name__ == "__main__":
    main()
