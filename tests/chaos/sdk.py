"""Clients on an official SDK, whichever this Python has, until SIGTERM:
`sdk.py MODE URL TOKEN LOG SEED SLOWNESS NAME...`.

MODE `session`: sessions of the handshake; `modern`: revision 2026-07-28, whose calls may end in a question that a retry
answers. Each NAME is a client; it writes a line when it calls, and one when it knows what came of it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
import mcp.types as t
from mcp.client import streamable_http
from mcp.client.session import ClientSession
from mcp.shared import exceptions

warnings.filterwarnings("ignore", message=".*deprecated as of 2026-07-28")
MODE, URL, TOKEN, LOG, SEED, SLOWNESS, *NAMES = sys.argv[1:]
FILE = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
WAITS = 40.0 * float(SLOWNESS)
"""Seconds for an answer. (An SDK says no form again that was refused with 503, or whose connection broke: its server
waits for that longer than this.)"""
THINKS = 0.1
"""Seconds that its user takes for a form."""
GONE = ("Session not found", "Session terminated")
"""What is said of a 404, by the gateway or by an SDK that does not repeat it: there is to be a new session."""
TOOLS = {"quick": 4, "work": 2, "ask": 1}
SdkError: Any = getattr(exceptions, "MCPError", None) or exceptions.McpError
timeout: Any = WAITS if hasattr(exceptions, "MCPError") else timedelta(seconds=WAITS)
"""As this SDK wants it."""


def write(**line: Any) -> None:
    os.write(FILE, json.dumps(line).encode() + b"\n")


async def elicit(_context: Any, params: Any) -> t.ElicitResult:
    await anyio.sleep(THINKS)
    return t.ElicitResult(action="accept", content={"key": params.message.split()[-1]})


@asynccontextmanager
async def connected() -> AsyncIterator[Any]:
    """A session, or a client without one: both can `call_tool`."""
    library: Any = getattr(streamable_http, "httpx2", None) or streamable_http.httpx
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with library.AsyncClient(headers=headers, timeout=library.Timeout(WAITS, read=None)) as http:
        transport = streamable_http.streamable_http_client(URL, http_client=http)
        if MODE == "modern":
            from mcp import Client

            async with Client(transport, mode="2026-07-28", elicitation_callback=elicit) as client:
                yield client
        else:
            async with transport as (read, send, *_), ClientSession(read, send, elicitation_callback=elicit) as session:
                with anyio.fail_after(WAITS):
                    await session.initialize()
                yield session


async def live(who: str, over: anyio.Event) -> None:
    """Calls, one after the other, and connects anew when the SDK gives its session up."""
    chance, count = random.Random(f"{SEED} {who}"), 0
    while not over.is_set():
        try:
            async with connected() as session:
                good, first = True, count + 1
                listed: set[str] = set()
                while good and not over.is_set():
                    tool = pick(chance)
                    if tool not in listed:
                        listed = await tools_of(session)
                    if tool in listed:
                        count += 1
                        good = await call(session, tool, f"{who}.{count}", first, chance)
                    await anyio.sleep(chance.uniform(0.1, 1.0) * min(float(SLOWNESS), 3.0))
        except Exception as error:  # whatever an SDK makes of a lost connection
            write(who=who, gave_up=repr(error)[:300])
        await anyio.sleep(0.5)


def pick(chance: random.Random) -> str:
    """The name of a tool."""
    return f"{chance.choice(('ids', 'plain'))}__{chance.choices(tuple(TOOLS), tuple(TOOLS.values()))[0]}"


async def tools_of(session: Any) -> set[str]:
    """The names of all tools. An SDK that has not listed a tool does so when its first call has been answered, and
    shows an error of that as the outcome of the call."""
    with anyio.fail_after(WAITS):
        return {tool.name for tool in (await session.list_tools()).tools}


async def call(session: Any, name: str, key: str, first: int, chance: random.Random) -> bool:
    """One call of the session whose first one has that number; whether it can go on."""
    tool = name.partition("__")[2]
    steps = 0 if tool == "quick" else chance.randint(1, 4)
    pause = chance.choice((0.02, 0.2))
    told: list[tuple[str, int]] = []

    async def progressed(value: float, _total: Any, message: str | None) -> None:
        told.append((message or "", int(value)))

    began = {"key": key, "who": key.partition(".")[0], "steps": steps, "tool": tool, "began": time.monotonic()}
    began["session"] = first
    began["takes"] = steps * pause + (THINKS if tool == "ask" else 0.0)
    write(**began)
    end: dict[str, Any] = {"outcome": "timeout"}
    with anyio.move_on_after(WAITS):
        try:
            arguments = {"key": key, "steps": steps, "pause": pause}
            result = await session.call_tool(name, arguments, timeout, progress_callback=progressed)
            text = " ".join(block.text for block in result.content)
            end = {"outcome": "error" if "error" in text.lower() else "result", "text": text}
        except SdkError as error:
            silent = error.error.code == 408 or "timed out" in error.error.message.lower()
            data = error.error.data if isinstance(error.error.data, dict) else {}
            end = {"outcome": "timeout" if silent else "error", "text": f"{error.error.code} {error.error.message}"}
            end["executed"] = str(data.get("executed", ""))
            end["lost"] = error.error.message in GONE
    write(**began, **end, progress=told, ended=time.monotonic())
    return end["outcome"] != "timeout" and not end.get("lost")


async def main() -> None:
    over = anyio.Event()
    async with anyio.create_task_group() as tasks:
        for who in NAMES:
            tasks.start_soon(live, who, over)
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                over.set()
                break


anyio.run(main)
