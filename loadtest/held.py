"""What a session holds, by the lines that made it: `python -m loadtest.held`.

The gateway runs with `tracemalloc` beside it. Sessions are opened on `/mcp/<server>`, each with a connection to its
server; then half of them open a GET stream; then they rest. With `--over ws` each is an idle WebSocket on `/ws`, with
`--over sse` a stream on `/sse`. What is traced is exact, but for what C libraries take for
themselves; resident memory, which `loadtest.run` measures, has that in it too, and what allocators keep.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pathlib
import signal
import sys
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio

from gateway.client import open_client
from loadtest import client, proc
from loadtest.client import Session
from loadtest.profiled import where
from loadtest.shapes import steady
from loadtest.targets import Bench, Running, free_port, http_server
from loadtest.wire import Address

REST = 45.0  # seconds without a message after which sessions rest
SETTLE = 3.0


def serve(out: Path, rest: list[str]) -> None:
    """The gateway; at each SIGUSR1 it writes what is allocated."""

    def write(_number: int, _frame: object) -> None:
        gc.collect()
        lines = {}
        ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, pathlib.__file__)])
        for found in ours.statistics("lineno"):
            frame = found.traceback[0]
            lines[where(frame.filename, frame.lineno, "")] = (found.size, found.count)
        part = out.with_suffix(".part")
        part.write_text(json.dumps(lines))
        part.rename(out)

    import gateway.app
    from gateway.cli import main as gateway

    signal.signal(signal.SIGUSR1, write)
    tracemalloc.start()
    sys.argv = ["stagedoor", *rest]
    gateway()


class Look:
    """What the gateway holds at a moment."""

    def __init__(self, pid: int, out: Path) -> None:
        os.kill(pid, signal.SIGUSR1)
        while not out.exists():
            time.sleep(0.05)
        self.lines: dict[str, list[int]] = json.loads(out.read_text())
        out.unlink()

    def show(self, what: str, before: Look, sessions: int, top: int) -> None:
        grown = {
            line: (size - before.lines.get(line, [0, 0])[0], count - before.lines.get(line, [0, 0])[1])
            for line, (size, count) in self.lines.items()
        }
        traced = sum(size for size, _ in grown.values()) / sessions / 1024
        count = sum(count for _, count in grown.values()) / sessions
        print(f"\n{what}: {traced:.2f} KiB in {count:.0f} blocks")
        for line, (size, number) in sorted(grown.items(), key=lambda item: -item[1][0])[:top]:
            print(f"{size / sessions:9.0f} bytes {number / sessions:6.1f} blocks  {line}")


CHANNELS = {"ws": "ws://127.0.0.1:{}/ws", "sse": "http://127.0.0.1:{}/sse"}
CALLS = 20
AT_ONCE = 8


@asynccontextmanager
async def opened(url: str, count: int, calls: int = 0) -> AsyncIterator[None]:
    """So many clients with a session each, that have made some calls and go on being there."""
    places = trio.CapacityLimiter(AT_ONCE)

    async def hold(begun: trio.Event) -> None:
        async with open_client(url, client.Session.REVISION) as one:
            for _ in range(calls):
                await one.call_tool("bench__echo", client.ARGUMENTS)
            begun.set()
            await trio.sleep_forever()

    async def begin(nursery: trio.Nursery) -> None:
        async with places:
            begun = trio.Event()
            nursery.start_soon(hold, begun)
            await begun.wait()

    async with trio.open_nursery() as holding:
        async with trio.open_nursery() as beginning:
            for _ in range(count):
                beginning.start_soon(begin, holding)
        yield
        holding.cancel_scope.cancel()


async def measure_channels(url: str, pid: int, out: Path, count: int, top: int) -> None:
    async with opened(url, 50, CALLS):
        pass
    await trio.sleep(SETTLE)
    empty = Look(pid, out)
    async with opened(url, count):
        await trio.sleep(SETTLE)
        Look(pid, out).show("an idle connection", empty, count, top)


async def measure(running: Running, out: Path, count: int, top: int) -> None:
    warm = await client.open_clients(running.client, 50)
    await steady(warm, "echo", 0.5)
    await client.end_clients(warm)
    await trio.sleep(REST)  # until the connections that these have left idle are closed
    empty = Look(running.pid, out)
    began = trio.current_time()
    held = await client.open_clients(running.client, count, keep_connections=False)
    await trio.sleep(SETTLE)
    if trio.current_time() - began > REST:
        sys.exit(
            f"the first sessions rest already: so many can't be opened within {REST:g} s here, give fewer --sessions"
        )
    opened = Look(running.pid, out)
    opened.show("a session with a connection", empty, count, top)
    listening = [await session.listen() for session in held[: count // 2]]
    await trio.sleep(SETTLE)
    Look(running.pid, out).show("a GET stream", opened, count // 2, top)
    for connection in listening:
        connection.close()
    await trio.sleep(REST + SETTLE * 3)
    Look(running.pid, out).show("a session at rest", empty, count, top)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--sessions", type=int, default=400)
    parser.add_argument("--over", choices=CHANNELS, help="what is measured instead of sessions over Streamable HTTP")
    parser.add_argument("--top", type=int, default=25, help="lines of each table (%(default)s)")
    options, rest = parser.parse_known_args()
    if options.serve is not None:
        serve(options.serve, rest)
        return
    proc.raise_file_limit()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        try:
            port, admin, out = free_port(), free_port(), Path(folder) / "held"
            gateway: dict[str, Any] = {
                "listen": f"127.0.0.1:{port}",
                "admin": f"127.0.0.1:{admin}",
                "store": "memory://",
                "log": {"level": "warning", "format": "json"},
                "sessions": {"passivateAfter": REST},
            }
            config = Path(folder) / "config.json"
            config.write_text(json.dumps({"mcpServers": {"bench": http_server(bench)}, "gateway": gateway}))
            command = [sys.executable, "-m", "loadtest.held", "--serve", out, "serve", "--config", config]
            pid = bench.spawn("stagedoor", command, port)
            if options.over is None:
                running = Running(pid, partial(Session, Address(port, b"/mcp/bench")))
                trio.run(measure, running, out, options.sessions, options.top)
            else:
                url = CHANNELS[options.over].format(port)
                trio.run(measure_channels, url, pid, out, options.sessions, options.top)
        finally:
            bench.end()


if __name__ == "__main__":
    main()
