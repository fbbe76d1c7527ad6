"""Measures the gateway beside its floor and its peers: `python -m loadtest.run`, or `make bench`.

All targets run at once, idle but for the one under load; loads are interleaved target by target, round by round, and
the medians of the rounds are reported. What counts is CPU per call: calls per second and latency move with whatever
else the machine does. Results go to loadtest/results as one JSON and one table.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import trio

from loadtest import client, proc, profiled, shapes, table
from loadtest.client import Client
from loadtest.shapes import Count
from loadtest.targets import OTHER_CPU, ROOT, TARGETS, Bench, Running

Shape = Callable[[list[Client], str, float], Awaitable[Count]]
RESULTS = ROOT / "loadtest" / "results"
WARM_UP = 0.2  # of the measured time, before it
SETTLE = 1.0  # seconds between the last change and a look at memory
LONGEST = 30.0  # seconds: a target that was looked at so seldom in so long is not looked at for longer


@dataclass(frozen=True)
class Load:
    """One kind of load: a shape, how many clients, which tool."""

    shape: Shape
    clients: int
    tool: str = "echo"
    needs: frozenset[str] = frozenset({"other tools"})
    """It is only for targets that can do this."""


LOADS = {
    "1 caller": Load(shapes.steady, 1, needs=frozenset()),
    "16 callers": Load(shapes.steady, 16, needs=frozenset()),
    "16 callers, streamed": Load(shapes.steady, 16, "stream"),
    "16 callers, asked": Load(shapes.steady, 16, "ask", frozenset({"asks"})),
    "16 callers, 100 events": Load(shapes.steady, 16, "events"),
    "4 callers, 1 MiB": Load(shapes.steady, 4, "large"),
    "8 opening sessions": Load(shapes.opening, 8),
    "64 in bursts": Load(shapes.bursty, 64),
    "16 beside 8 stalled": Load(shapes.stalled, 24),
    "16 reconnecting": Load(shapes.reconnecting, 16, needs=frozenset({"resume"})),
}


async def measure(running: Running, load: Load, seconds: float) -> dict[str, Any]:
    """One load on one target, with CPU read at both ends of the measured time."""
    clients = await client.open_clients(running.client, load.clients)
    await shapes.steady(clients, load.tool, seconds * WARM_UP)
    with profiling(running):
        before = proc.cpu_seconds(running.pid)
        began = trio.current_time()
        tally = await load.shape(clients, load.tool, seconds)
        took = trio.current_time() - began
        used = proc.cpu_seconds(running.pid) - before
    await client.end_clients(clients)
    return {
        "calls": tally.calls,
        "errors": tally.errors,
        "calls_per_s": tally.calls / took,
        "cpu_us": used / tally.calls * 1e6 if tally.calls else None,
        "p50_ms": tally.percentile(0.5) * 1e3,
        "p99_ms": tally.percentile(0.99) * 1e3,
    }


@contextmanager
def profiling(running: Running) -> Iterator[None]:
    """Has the profiler of the target look on, if it has one."""
    if running.profile is not None:
        os.kill(running.pid, signal.SIGUSR1)
    yield
    if running.profile is not None:
        os.kill(running.pid, signal.SIGQUIT)


async def hold(running: Running, sessions: int, streams: int, rest: float) -> dict[str, Any]:
    """Memory per idle session and per open GET stream, and whether sessions still answer with all of them held.

    With a `rest`, as many sessions are opened once more after so many seconds without a call: by how much memory grows
    then is what a resting session keeps, since what it gave back is used again.
    """
    warm = await client.open_clients(running.client, 50)
    await shapes.steady(warm, "echo", 0.5)
    await client.end_clients(warm)
    await trio.sleep(SETTLE)
    empty = proc.resident_bytes(running.pid)
    held = await client.open_clients(running.client, sessions, keep_connections=False)
    await trio.sleep(SETTLE)
    idle = proc.resident_bytes(running.pid)
    if rest:
        await trio.sleep(rest)
        held = await client.open_clients(running.client, sessions, keep_connections=False)
    twice = proc.resident_bytes(running.pid)
    listening = [await session.listen() for session in held[:streams]]
    await trio.sleep(SETTLE)
    streaming = proc.resident_bytes(running.pid)
    sample = held[:: max(1, len(held) // 20)]
    for session in sample:
        await session.wake()
        await session.call()
        session.close()
    for connection in listening:
        connection.close()
    return {
        "sessions": sessions,
        "streams": streams,
        "resident_mib": streaming / 2**20,
        "kib_per_session": (idle - empty) / sessions / 1024,
        "kib_per_resting_session": (twice - idle) / sessions / 1024 if rest else None,
        "kib_per_stream": (streaming - twice) / streams / 1024 if streams else None,
        "answered": len(sample),
    }


def compare(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs every load on every target, interleaved."""
    rows = []
    with started(options) as running:
        for number in range(options.rounds):
            for title, load in options.loads.items():
                for name in options.targets:
                    if not load.needs <= TARGETS[name].can:
                        continue
                    say(f"round {number + 1} of {options.rounds}: {title}: {name}")
                    found = attempt(measure, running[name], load, options.seconds)
                    rows.append({"round": number, "target": name, "load": title, **found})
    return rows


@contextmanager
def started(options: argparse.Namespace) -> Iterator[dict[str, Running]]:
    """All targets, until the block is left."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), options.profile)
        try:
            yield {name: TARGETS[name].start(bench) for name in options.targets}
        finally:
            bench.end()


def show_profiles(options: argparse.Namespace) -> None:
    """Prints what each gateway spends its CPU on, load by load."""
    with started(options) as targets:
        for title, load in options.loads.items():
            for name, running in targets.items():
                if running.profile is None or not load.needs <= TARGETS[name].can:
                    continue
                print(table.profile(f"{name}, {title}", *looked_at(running, running.profile, load, options.seconds)))


def looked_at(running: Running, profile: Path, load: Load, seconds: float) -> tuple[dict[str, Any], profiled.Rows]:
    """One load on one target, and its profile: again and for twice as long, if the profiler looked too seldom. (The
    clock of used CPU ticks a hundred times a second on some systems, and a busy machine gives a target little CPU.)"""
    while True:
        found = attempt(measure, running, load, seconds)
        end = time.monotonic() + SETTLE * 10
        while not profile.exists() and time.monotonic() < end:
            time.sleep(0.05)
        seen = json.loads(profile.read_text())
        profile.unlink()
        if seen["looks"] >= profiled.ENOUGH or "failed" in found or seconds > LONGEST:
            return found, seen["rows"]
        seconds *= 2


def held_by(name: str, scale: float) -> dict[str, Any]:
    """Measures the memory of one target, in a process of its own."""
    target = TARGETS[name]
    sessions, streams = (math.ceil(count * scale) for count in (target.sessions, target.streams))
    say(f"memory: {sessions} sessions, {streams} streams: {name}")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        try:
            rest = target.rests_after if scale >= 1 else 0.0
            return {"target": name, **attempt(hold, target.start(bench), sessions, streams, rest)}
        finally:
            bench.end()


def attempt(function: Callable[..., Awaitable[dict[str, Any]]], *arguments: Any) -> dict[str, Any]:
    """Runs one measurement; a target that breaks under it is a result too."""
    try:
        return trio.run(function, *arguments)
    except BaseExceptionGroup as group:
        if group.split((client.WrongAnswerError, *client.BROKEN))[1] is not None:
            raise
        return {"failed": repr(group.exceptions[0])[:300]}
    except (client.WrongAnswerError, *client.BROKEN) as error:
        return {"failed": repr(error)[:300]}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def commit() -> str:
    """The commit of this tree, with a mark when files differ from it."""
    git = ["git", "-C", str(ROOT)]
    name = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=False)
    return (name.stdout.strip() or "unknown") + ("+" if changed.stdout.strip() else "")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="measured time of each load (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--targets", default=",".join(TARGETS), help="comma-separated (%(default)s)")
    parser.add_argument("--loads", default=";".join(LOADS), help="by title, ';' between them (default: all)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the idle sessions and streams; 0: no memory")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON and the table")
    parser.add_argument(
        "--profile",
        nargs="?",
        const="samples",
        default="",
        choices=("samples", "calls"),
        help="no comparison: print the dearest functions of each gateway under each load (calls: by cProfile)",
    )
    options = parser.parse_args()
    options.targets, loads = options.targets.split(","), options.loads.split(";")
    for asked, there in ((options.targets, TARGETS), (loads, LOADS)):
        unknown = set(asked) - set(there)
        if unknown:
            parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(there)}")
    options.loads = {title: LOADS[title] for title in loads}
    return options


def main() -> None:
    options = arguments()
    if not sys.platform.startswith("linux") or (os.cpu_count() or 1) < 2:
        sys.exit("the benchmark reads /proc and pins servers and load to different CPUs: it needs Linux and two CPUs")
    proc.raise_file_limit()
    os.sched_setaffinity(0, {OTHER_CPU})
    gc.set_threshold(200_000, 50, 1000)
    if options.profile:
        show_profiles(options)
        return
    began, machine = datetime.now(UTC), proc.machine()
    rows = compare(options)
    memory = [held_by(name, options.scale) for name in options.targets if options.scale and TARGETS[name].sessions]
    report = {
        "at": began.isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine,
        "seconds": options.seconds,
        "rounds": options.rounds,
        "targets": {name: TARGETS[name].what for name in options.targets},
        "loads": table.medians(rows),
        "memory": memory,
        "rows": rows,
    }
    options.results.mkdir(parents=True, exist_ok=True)
    stem = options.results / f"{began:%Y-%m-%d-%H%M}-{report['commit'].rstrip('+')}"
    text = table.render(report)
    stem.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    stem.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
