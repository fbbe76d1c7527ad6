"""A rolling restart under traffic, again and again: `python -m loadtest.rolling`.

Many live sessions on three replicas and one Redis, each of which makes a call now and then, some with a GET stream.
Requests go to any replica that accepts connections. Each replica in turn is told to end, and started anew when it has.
All that comes back is checked, and what servers executed is counted. The exit status is 1 if anything was lost or
doubled.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import trio

from loadtest import proc
from loadtest.replicas import Found, Place, Replica, percentiles
from loadtest.roaming import Balancer, Ledger, Roamer
from loadtest.targets import Bench, free_port

BOTH_CPUS = (0, 1)
AT_ONCE = 16  # sessions that are being opened
RUNNING = 400
"""Calls at once; above that the next one waits, and it shows."""
KINDS = {("echo", 0, 0.0): 0.86, ("steps", 4, 0.5): 0.12, ("steps", 10, 2.5): 0.02}
"""Tool, steps and seconds between them, and its share. The last one takes longer than a drain."""
SETTLE = 8.0
"""Seconds after the end of the traffic in which every stream must have brought something."""


class Traffic:
    """The sessions, and what they do until it is over."""

    def __init__(self, sessions: list[Roamer], ledger: Ledger, rate: float) -> None:
        self.over = False
        self.late = 0
        """Calls that had to wait, since too many were running."""
        self._sessions = sessions
        self._ledger = ledger
        self._rate = rate

    async def run(self) -> None:
        """Calls at a steady rate, of one session after the other in an order by chance; returns when the last of them
        has its outcome."""
        limit = trio.CapacityLimiter(RUNNING)
        kinds, shares = list(KINDS), list(KINDS.values())
        began, made = trio.current_time(), 0
        async with trio.open_nursery() as nursery:
            while not self.over:
                for session in random.sample(self._sessions, len(self._sessions)):
                    if self.over:
                        break
                    if session.busy:
                        continue
                    self.late += limit.available_tokens == 0
                    made += 1
                    await trio.sleep_until(began + made / self._rate)
                    nursery.start_soon(self._call, limit, session, random.choices(kinds, shares)[0])

    async def _call(self, limit: trio.CapacityLimiter, session: Roamer, kind: tuple[str, int, float]) -> None:
        async with limit:
            await session.call(*kind)

    async def last(self) -> None:
        """One more call of every session."""
        waiting = iter(self._sessions)

        async def worker() -> None:
            for session in waiting:
                await session.call("echo")

        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(worker)


async def rolling(options: argparse.Namespace) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        try:
            return await _measured(bench, options)
        finally:
            if options.logs:
                options.logs.mkdir(parents=True, exist_ok=True)
                keep(Path(folder), options.logs)
            bench.end()


async def _measured(bench: Bench, options: argparse.Namespace) -> Found:
    ports = {"streams": server(bench), "calls": server(bench, "--calls-only")}
    place = Place(bench, server={"url": f"http://127.0.0.1:{ports['streams']}/mcp"})
    others = {"calls": {"url": f"http://127.0.0.1:{ports['calls']}/mcp"}}
    settings = {
        "drain": {"deadline": options.deadline, "grace": options.grace},
        "sessions": {"passivateAfter": 3600, "idleTtl": 7200},
    }
    replicas = [place.replica(others=others, **settings) for _ in range(3)]
    for replica in replicas:
        replica.cpus = BOTH_CPUS
        await trio.to_thread.run_sync(replica.start)
    ledger, balancer = Ledger(), Balancer([replica.address for replica in replicas])
    streaming = int(options.sessions * options.with_stream)
    paths = [b"/mcp/bench"] * streaming + [b"/mcp/calls"] * (options.sessions - streaming)
    sessions = [Roamer(balancer, path, ledger, keeps=n % 4 == 0) for n, path in enumerate(paths)]
    began = trio.current_time()
    await _opened(sessions)
    say(f"{len(sessions)} sessions opened in {trio.current_time() - began:.0f} s")
    listening = sessions[: options.listening]
    async with trio.open_nursery() as streams:
        for session in listening:
            streams.start_soon(session.listen)
        traffic = Traffic(sessions, ledger, options.rate)
        async with trio.open_nursery() as calls:
            calls.start_soon(traffic.run)
            await trio.sleep(options.pause)
            rounds = await _replaced(replicas, options, ledger)
            traffic.over = True
        say("the last calls")
        await traffic.last()
        last = time.monotonic()
        await trio.sleep(SETTLE)
        deaf = sum(session.heard < last for session in listening)
        streams.cancel_scope.cancel()
    for session in sessions:
        session.close()
    counts = [executed(port) for port in ports.values()]
    return {
        "sessions": len(sessions),
        "with_a_stream_of_the_server": streaming,
        "listening": len(listening),
        "replacements": rounds,
        "calls": {kind: percentiles(seconds) for kind, seconds in sorted(ledger.seconds.items())},
        "executed": sum(count["executed"] for count in counts),
        "executed_twice": sum(count["twice"] for count in counts),
        "failed": dict(ledger.failed),
        "events": ledger.events,
        "wrong_events": dict(ledger.wrong),
        "resumed": ledger.resumed,
        "said_while_nobody_read": ledger.unheard,
        "deaf_streams": deaf,
        "late": traffic.late,
        "notes": ledger.notes,
    }


def keep(folder: Path, target: Path) -> None:
    """Copies what the processes wrote."""
    for log in folder.glob("*.log"):
        (target / log.name).write_bytes(log.read_bytes())


def server(bench: Bench, *flags: str) -> int:
    """Starts a server; its port."""
    port = free_port()
    bench.spawn("server", [sys.executable, "-m", "loadtest.resumable", "--port", str(port), *flags], port, *BOTH_CPUS)
    return port


def executed(port: int) -> dict[str, int]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/counts", timeout=10) as page:
        counts: dict[str, int] = json.load(page)
        return counts


async def _opened(sessions: list[Roamer]) -> None:
    waiting = iter(sessions)

    async def worker() -> None:
        for session in waiting:
            await session.open()

    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(worker)


async def _replaced(replicas: list[Replica], options: argparse.Namespace, ledger: Ledger) -> list[Found]:
    """Every replica in turn, so many times."""
    found = []
    for _ in range(options.rounds):
        for replica in replicas:
            live = [await trio.to_thread.run_sync(other.sessions) for other in replicas]
            failed, began = ledger.failed.total(), trio.current_time()
            owned = live[replicas.index(replica)]
            host = b"127.0.0.1:%d" % replica.address.port
            ledger.drain(host)
            replica.signal(signal.SIGTERM)
            status = await trio.to_thread.run_sync(replica.wait)
            ended = trio.current_time() - began
            await trio.to_thread.run_sync(replica.start)
            ledger.draining.discard(host)
            await trio.sleep(options.pause)
            row = {
                "live": sum(live),
                "given_back": owned,
                "ended_after_s": round(ended, 2),
                "status": status,
                "failed": ledger.failed.total() - failed,
            }
            say(json.dumps(row))
            for text, many in ledger.failed.most_common(5):
                say(f"  {many} {text}")
            found.append(row)
    return found


def say(text: str) -> None:
    print(f"{time.monotonic():.1f} {text}", file=sys.stderr, flush=True)


def faults(found: Found) -> int:
    """What must not be."""
    wrong: dict[str, Any] = found["wrong_events"]
    statuses = sum(row["status"] != 0 for row in found["replacements"])
    failed = sum(found["failed"].values()) + sum(wrong.values())
    return failed + found["executed_twice"] + found["deaf_streams"] + statuses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=10_000, help="(%(default)s)")
    parser.add_argument("--with-stream", type=float, default=0.3, help="share whose server has a stream (%(default)s)")
    parser.add_argument("--listening", type=int, default=300, help="sessions with a GET stream (%(default)s)")
    parser.add_argument("--rate", type=float, default=200.0, help="calls a second (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--pause", type=float, default=20.0, help="seconds between two replacements (%(default)s)")
    parser.add_argument("--deadline", type=float, default=15.0, help="of a drain, in seconds (%(default)s)")
    parser.add_argument("--grace", type=float, default=0.0, help="before it, in seconds (%(default)s)")
    parser.add_argument("--logs", type=Path, help="a folder for what the processes wrote")
    options = parser.parse_args()
    proc.raise_file_limit()
    found = trio.run(partial(rolling, options))
    found["faults"] = faults(found)
    print(json.dumps({"what": "rolling", "machine": proc.machine(), **found}, indent=1))
    sys.exit(1 if found["faults"] else 0)


if __name__ == "__main__":
    main()
