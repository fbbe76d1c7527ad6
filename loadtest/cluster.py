"""What several replicas on one Redis cost: `python -m loadtest.cluster mail|takeover|moves|workers|rest`.

`mail`: a call that is mailed to the owner against one at the owner, and letters there and back without a call
(`letters.py`), which is the least that mail can add. `takeover`: from the kill of the owner to the first answer of its
session elsewhere. `moves`: a drain of a replica, and its sessions being asked for elsewhere. `workers`: one worker
against two. `rest`: many sessions, few of them active. Each prints a JSON of what it found.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import trio

from loadtest import proc, shapes
from loadtest.client import BROKEN, Client, Session, WrongAnswerError, end_clients, open_clients
from loadtest.letters import exchanged
from loadtest.replicas import Found, Place, Replica, percentiles
from loadtest.targets import OTHER_CPU, SERVER_CPU, Bench

LEASE = 3.0
"""Seconds without a sign of life after which a replica counts as dead; and that one lives before it may take over."""
BOTH_CPUS = (SERVER_CPU, OTHER_CPU)
ANSWER_WITHIN = 60.0  # seconds


# A mailed call --------------------------------------------------------------------------------------------------


async def mail(options: argparse.Namespace) -> Found:
    """Rounds of the same calls at the owner and at the other replica, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        try:
            place = Place(bench)
            stays = {"sessions": {"followAfter": 0}}  # else the sessions went to where the calls come
            owner, other = place.replica(**stays).start(), place.replica(**stays).start()
            loads = {"1 caller": (1, "echo"), "16 callers": (16, "echo"), "16 callers, streamed": (16, "stream")}
            return {
                title: await _mailed(place, owner, other, callers, tool, options)
                for title, (callers, tool) in loads.items()
            }
        finally:
            bench.end()


async def _mailed(
    place: Place, owner: Replica, other: Replica, callers: int, tool: str, options: argparse.Namespace
) -> Found:
    clients = await open_clients(lambda: Session(owner.address), callers)
    await shapes.steady(clients, tool, options.seconds / 4)
    rounds: dict[str, list[Found]] = {"local": [], "mailed": [], "letters": []}
    for _ in range(options.rounds):
        for way, replica in (("local", owner), ("mailed", other)):
            for client in clients:
                await client.go_to(replica.address)
            await shapes.steady(clients, tool, options.seconds / 10)
            rounds[way].append(await _cost(place, (owner, other), clients, tool, options.seconds))
        rounds["letters"].append(await trio.to_thread.run_sync(exchanged, place.store, callers, options.seconds))
    await end_clients(clients)
    local, mailed, letters = (middle(rounds[way]) for way in rounds)
    return {
        "local": local,
        "mailed": mailed,
        "letters": letters,
        "cpu_ratio": mailed["gateways_us"] / local["gateways_us"],
        "least_ratio": 1 + letters["cpu_us"] / local["gateways_us"],
        "added_p50_ms": mailed["p50_ms"] - local["p50_ms"],
    }


async def _cost(place: Place, replicas: Sequence[Replica], clients: list[Client], tool: str, seconds: float) -> Found:
    """CPU of both gateways together, and of Redis, for each call."""
    before = sum(proc.cpu_seconds(replica.pid) for replica in replicas), proc.cpu_seconds(place.redis)
    commands = place.commands()
    count = await shapes.steady(clients, tool, seconds)
    if not count.calls:
        raise WrongAnswerError(str(count.errors))
    gateways = sum(proc.cpu_seconds(replica.pid) for replica in replicas) - before[0]
    redis = proc.cpu_seconds(place.redis) - before[1]
    return {
        "gateways_us": gateways / count.calls * 1e6,
        "redis_us": redis / count.calls * 1e6,
        "redis_commands": (place.commands() - commands) / count.calls,
        "calls_per_s": count.calls / seconds,
        "errors": sum(count.errors.values()),
        **percentiles(count.seconds),
    }


def middle(rounds: Sequence[Found]) -> Found:
    """The median of each figure."""
    return {name: sorted(found[name] for found in rounds)[len(rounds) // 2] for name in rounds[0]}


# Takeover -------------------------------------------------------------------------------------------------------


async def takeover(options: argparse.Namespace) -> Found:
    """Kills the owner again and again, in several clusters at once, since most of it is waiting."""
    took: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        try:
            server = None
            async with trio.open_nursery() as nursery:
                for _ in range(options.clusters):
                    place = Place(bench) if server is None else Place(bench, server=server)
                    server = place.server
                    nursery.start_soon(_killed, place, options.kills // options.clusters, took)
        finally:
            bench.end()
    return {"kills": len(took), **percentiles(took), "longest_s": max(took), "shortest_s": min(took)}


async def _killed(place: Place, kills: int, took: list[float]) -> None:
    owner, other = place.replica().start(), place.replica().start()
    [client] = await open_clients(lambda: Session(owner.address), 1)
    await client.call()
    for _ in range(kills):
        await trio.sleep(LEASE + random.uniform(1.0, 2.0))
        owner.signal(signal.SIGKILL)
        began = trio.current_time()
        await client.go_to(other.address)
        await _until_served(client)
        took.append(trio.current_time() - began)
        owner.wait()
        await trio.to_thread.run_sync(owner.start)
        owner, other = other, owner


async def _until_served(client: Client) -> None:
    """Calls until it has an answer; a refusal is no answer."""
    with trio.fail_after(ANSWER_WITHIN):
        while True:
            with suppress(WrongAnswerError):
                await client.call()
                return
            await trio.sleep(0.05)
            await client.reopen()


# Sessions that move ----------------------------------------------------------------------------------------------


async def moves(options: argparse.Namespace) -> Found:
    """A drain of a replica with many sessions, and each of them asked for elsewhere afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        try:
            place = Place(bench)
            drained, other = place.replica().start(), place.replica().start()
            clients = await open_clients(lambda: Session(drained.address), options.sessions, keep_connections=False)
            await trio.sleep(LEASE + 1)
            cpu, began = proc.cpu_seconds(drained.pid), trio.current_time()
            drained.signal(signal.SIGTERM)
            while listening_to(drained):
                cpu_now, gone = proc.cpu_seconds(drained.pid), trio.current_time()
                await trio.sleep(0.02)
            ended = trio.current_time() - began
            spent = proc.cpu_seconds(other.pid)
            asked = trio.current_time()
            lost = await _served_at(other, clients)
            return {
                "sessions": len(clients),
                "drain_s": ended,
                "released_per_s": len(clients) / ended,
                "release_cpu_us": (cpu_now - cpu) / len(clients) * 1e6,
                "last_look_s": gone - began,
                "activated_per_s": len(clients) / (trio.current_time() - asked),
                "activation_cpu_us": (proc.cpu_seconds(other.pid) - spent) / len(clients) * 1e6,
                "lost": lost,
            }
        finally:
            bench.end()


def listening_to(replica: Replica) -> bool:
    """Whether its process is there still; it is reaped if not."""
    with suppress(ChildProcessError):
        return os.waitpid(replica.pid, os.WNOHANG)[0] == 0
    return False


async def _served_at(replica: Replica, clients: list[Client], at_once: int = 16) -> int:
    """A call of each; how many had no result."""
    waiting, lost = iter(clients), 0

    async def worker() -> None:
        nonlocal lost
        for client in waiting:
            try:
                await client.go_to(replica.address)
                await client.call()
            except (WrongAnswerError, *BROKEN):
                lost += 1
            client.close()

    async with trio.open_nursery() as nursery:
        for _ in range(at_once):
            nursery.start_soon(worker)
    return lost


# Workers --------------------------------------------------------------------------------------------------------


async def workers(options: argparse.Namespace) -> Found:
    """Throughput of one process, and of a supervisor with one and two workers. (The load itself needs a CPU, too.)"""
    found: Found = {"cpus": os.cpu_count()}
    for title, flags in (("serve", ()), ("--workers 1", ("--workers", "1")), ("--workers 2", ("--workers", "2"))):
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(Path(folder))
            try:
                place = Place(bench)
                replica = place.replica("/mcp/bench", *flags)
                replica.cpus = BOTH_CPUS
                replica.start()
                clients = await open_clients(lambda place=replica: Session(place.address), 32)
                await shapes.steady(clients, "echo", options.seconds / 4)
                family = (replica.pid, *children(replica.pid))
                before = sum(map(proc.cpu_seconds, family))
                count = await shapes.steady(clients, "echo", options.seconds)
                used = sum(map(proc.cpu_seconds, family)) - before
                found[title] = {
                    "calls_per_s": count.calls / options.seconds,
                    "cpu_us": used / count.calls * 1e6,
                    "errors": sum(count.errors.values()),
                    **percentiles(count.seconds),
                }
                await end_clients(clients)
            finally:
                bench.end()
    return found


def children(pid: int) -> list[int]:
    """Processes that this one started."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


# Sessions at rest -----------------------------------------------------------------------------------------------


async def rest(options: argparse.Namespace) -> Found:
    """Opens sessions that leave memory soon, keeps some of them active, and asks for some that rest."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        try:
            place = Place(bench)
            settings = {"sessions": {"passivateAfter": options.rest_after, "max": 20_000}}
            replica = place.replica("/mcp", **settings).start()
            make: Callable[[], Client] = lambda: Session(replica.address, "bench__")  # noqa: E731
            warm = await open_clients(make, 200)
            await shapes.steady(warm, "echo", 1)
            await end_clients(warm)
            await trio.sleep(options.rest_after + 3)
            empty, stored = proc.proportional_bytes(replica.pid), place.memory()
            began, clients = trio.current_time(), []
            while len(clients) < options.sessions and trio.current_time() < began + options.within:
                clients += await open_clients(make, min(1000, options.sessions - len(clients)), keep_connections=False)
                print(len(clients), file=sys.stderr)
            opened = trio.current_time() - began
            await trio.sleep(options.rest_after + 5)
            resting = proc.proportional_bytes(replica.pid)
            redis = place.memory() - stored
            active = clients[:: max(1, int(1 / options.active))] if options.active else []
            cpu = proc.cpu_seconds(replica.pid)
            took = [await _timed_activation(client) for client in active]
            cpu = proc.cpu_seconds(replica.pid) - cpu
            await trio.sleep(1)
            with_active = proc.proportional_bytes(replica.pid)
            return {
                "sessions": len(clients),
                "opened_per_s": len(clients) / opened,
                "kib_at_rest": (resting - empty) / len(clients) / 1024,
                "redis_bytes_at_rest": redis / len(clients),
                "active": len(active),
                "kib_active": (with_active - resting) / max(1, len(active)) / 1024,
                "activation": percentiles(took),
                "activation_cpu_us": cpu / max(1, len(active)) * 1e6,
                "mib": {"empty": empty / 2**20, "at_rest": resting / 2**20, "active": with_active / 2**20},
            }
        finally:
            bench.end()


async def _timed_activation(client: Client) -> float:
    """The first call of a session at rest."""
    await client.reopen()
    began = time.perf_counter()
    await client.call()
    return time.perf_counter() - began


MEASUREMENTS: dict[str, Callable[[argparse.Namespace], Awaitable[Found]]] = {
    "mail": mail,
    "takeover": takeover,
    "moves": moves,
    "workers": workers,
    "rest": rest,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=MEASUREMENTS)
    parser.add_argument("--seconds", type=float, default=2.0, help="measured time of each load (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--kills", type=int, default=200, help="(%(default)s)")
    parser.add_argument("--clusters", type=int, default=4, help="at once, for the kills (%(default)s)")
    parser.add_argument("--sessions", type=int, default=10_000, help="that move, or rest (%(default)s)")
    parser.add_argument("--active", type=float, default=0.01, help="share of the sessions that rest (%(default)s)")
    parser.add_argument("--rest-after", type=float, default=10.0, help="seconds until a session rests (%(default)s)")
    parser.add_argument("--within", type=float, default=540.0, help="seconds for opening them (%(default)s)")
    options = parser.parse_args()
    proc.raise_file_limit()
    os.sched_setaffinity(0, {OTHER_CPU})
    found = trio.run(MEASUREMENTS[options.what], options)
    print(json.dumps({"what": options.what, "machine": proc.machine(), **found}, indent=1))


if __name__ == "__main__":
    main()
