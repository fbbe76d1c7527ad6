"""What a call by `open_client` costs the process that makes it: `python -m loadtest.opened`.

One client of each kind calls the tool `echo` of one and the same gateway (or, in memory, of a server in this process),
by one task and by sixteen, round by round; the clients written by hand, which make the load elsewhere, do so beside
them. Measured is the CPU of this process alone, so that of a server in memory is in it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import trio

from gateway.client import Client
from loadtest import echo, proc
from loadtest.client import ARGUMENT, ARGUMENTS, Session, Stateless, WrongAnswerError, end_clients, open_clients
from loadtest.targets import Bench, http_server
from loadtest.wire import Address
from stagedoor import open_client

LEGACY, MODERN = Session.REVISION, Stateless.REVISION
LOADS = {"1 caller": 1, "16 callers": 16}
BY_HAND = "by hand, Streamable HTTP"
PREFIX = "bench__"

Call = Callable[[], Awaitable[None]]


async def call(client: Client, tool: str) -> None:
    """One call, and its checked answer."""
    result = await client.call_tool(tool, ARGUMENTS)
    if result.is_error or not result.text.startswith(f"{ARGUMENT}: "):
        raise WrongAnswerError(str(result.raw)[:300])


async def cost(calls: list[Call], seconds: float) -> dict[str, float]:
    """Each task calls again as soon as it has its answer."""
    made, end = 0, time.perf_counter() + seconds

    async def caller(one: Call) -> None:
        nonlocal made
        while True:
            await one()
            made += 1
            if time.perf_counter() >= end:
                return

    began, used = time.perf_counter(), proc.cpu_seconds(os.getpid())
    async with trio.open_nursery() as nursery:
        for one in calls:
            nursery.start_soon(caller, one)
    used, took = proc.cpu_seconds(os.getpid()) - used, time.perf_counter() - began
    return {"client_us": used / made * 1e6, "calls_per_s": made / took}


def ways(port: int, config: Path) -> dict[str, tuple[Any, str, str]]:
    """By name: what a client is opened of, the revision, and the tool."""
    gateway, tool = f"127.0.0.1:{port}", f"{PREFIX}echo"
    command = [sys.executable, "-m", "stagedoor", "stdio", "--config", str(config)]
    return {
        "Streamable HTTP": (f"http://{gateway}/mcp", LEGACY, tool),
        "Streamable HTTP, no sessions": (f"http://{gateway}/mcp", MODERN, tool),
        "HTTP+SSE": (f"http://{gateway}/sse", LEGACY, tool),
        "WebSocket": (f"ws://{gateway}/ws", LEGACY, tool),
        "WebSocket, no sessions": (f"ws://{gateway}/ws", MODERN, tool),
        "standard streams": (command, LEGACY, tool),
        "in memory": (echo.server, LEGACY, "echo"),
    }


async def measure(port: int, config: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """By load and way: medians of the rounds."""
    found: dict[str, Any] = {}
    by_hand = await open_clients(partial(Session, Address(port, b"/mcp"), PREFIX), max(LOADS.values()))
    async with AsyncExitStack() as stack:
        calls: dict[str, list[Call]] = {BY_HAND: [one.call for one in by_hand]}
        for name, (target, version, tool) in ways(port, config).items():
            client = await stack.enter_async_context(open_client(target, version, env={"PYTHONPATH": os.getcwd()}))
            calls[name] = [partial(call, client, tool)] * len(by_hand)
        for each in calls.values():
            await each[0]()  # what comes with the first call is not measured
        for load, count in LOADS.items():
            seen: dict[str, list[dict[str, float]]] = {name: [] for name in calls}
            for _ in range(rounds):
                for name, each in calls.items():
                    seen[name].append(await cost(each[:count], seconds))
            found[load] = {
                name: {figure: round(median(one[figure] for one in costs), 1) for figure in costs[0]}
                for name, costs in seen.items()
            }
    await end_clients(by_hand)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each round of each way")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        try:
            server = http_server(bench)
            port, config = bench.configured(server, "memory://")
            bench.spawn("stagedoor", [sys.executable, "-m", "stagedoor", "serve", "--config", config], port)
            found = trio.run(measure, port, config, options.rounds, options.seconds)
        finally:
            bench.end()
    print(json.dumps({"machine": proc.machine(), **found}, indent=1))


if __name__ == "__main__":
    main()
