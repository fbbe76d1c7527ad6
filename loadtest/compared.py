"""Gateways that differ in one thing, in front of one server: what that costs a call.

The same calls go to all of them in turn, round by round, and the ratio of the CPU of their processes is taken of each
round by itself, so that what else the machine does falls on all. Or no time is measured: a profiler counts the
functions that each enters for a call, which is the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import trio

from gateway.client import open_client
from loadtest import opened, proc, shapes
from loadtest.client import Client, Session, Stateless, WrongAnswerError, end_clients, open_clients
from loadtest.targets import SERVER_CPU, Bench, http_server
from loadtest.wire import Address

Found = dict[str, Any]
LOADS = {"1 caller": 1, "16 callers": 16}
SETTLES = 0.5
"""Seconds for a profiler to begin, or to write what it has seen; and for a gateway to do what it does later."""
SHOWN = 40


class Compared:
    """One gateway for each of these sections of the configuration, by name; the first is what the others are compared
    with. `tokens`: what clients of one show there."""

    def __init__(self, bench: Bench, sections: Mapping[str, Mapping[str, Any]], *, profiled: bool) -> None:
        server = http_server(bench)
        self.names = [*sections]
        self.tokens: dict[str, str] = {}
        self.addresses: list[Address] = []
        self._profiles: list[Path] = []
        self._pids: list[int] = []
        for section in sections.values():
            port, config = bench.configured(server, "memory://", **section)
            profile = config.with_suffix(".profile")
            by = ["loadtest.profiled", "--out", str(profile), "--by", "calls"] if profiled else ["stagedoor"]
            self._profiles.append(profile)
            self.addresses.append(Address(port, b"/mcp/bench"))
            arguments = ("-m", *by, "serve", "--config", str(config))
            self._pids.append(bench.spawn(config.stem, (sys.executable, *arguments), port, SERVER_CPU))

    async def clients(self, era: str, count: int) -> list[list[Client]]:
        kind: type[Client] = Session if era == "legacy" else Stateless
        opened = []
        for name, address in zip(self.names, self.addresses, strict=True):
            more = {"token": self.tokens[name]} if name in self.tokens else {}
            opened.append(await open_clients(lambda to=address, more=more: kind(to, **more), count))
        return opened

    async def cost(self, which: int, clients: list[Client], seconds: float) -> float:
        """Microseconds of CPU for one call."""
        before = proc.cpu_seconds(self._pids[which])
        count = await shapes.steady(clients, "echo", seconds)
        if count.errors or not count.calls:
            raise WrongAnswerError(str(count.errors))
        await trio.sleep(SETTLES)  # what is done a moment later, as lines that are written together, is of these calls
        return (proc.cpu_seconds(self._pids[which]) - before) / count.calls * 1e6

    async def calls(self, which: int, call: Callable[[], Awaitable[object]], number: int) -> dict[str, float]:
        """By function: how often it is entered for one call."""
        profile, pid = self._profiles[which], self._pids[which]
        profile.unlink(missing_ok=True)
        os.kill(pid, signal.SIGUSR1)
        await trio.sleep(SETTLES)
        for _ in range(number):
            await call()
        os.kill(pid, signal.SIGQUIT)
        while not profile.exists():  # noqa: ASYNC110 - it is another process that writes it
            await trio.sleep(SETTLES)
        rows = json.loads(profile.read_text())["rows"]
        return {row["function"]: row["calls"] / number for row in rows if row["calls"] >= number / 2}

    async def ratios(self, era: str, count: int, rounds: int, seconds: float) -> Found:
        """Rounds of all in turn, and the median of the ratios of each to the first."""
        all_clients = await self.clients(era, count)
        for which, clients in enumerate(all_clients):
            await self.cost(which, clients, seconds)
        found: list[list[float]] = []
        for number in range(rounds):
            order = [*range(len(all_clients))]
            costs = dict.fromkeys(order, 0.0)
            for which in order if number % 2 else reversed(order):
                costs[which] = await self.cost(which, all_clients[which], seconds)
            found.append([costs[which] for which in order])
        for clients in all_clients:
            await end_clients(clients)
        each = {f"{name}_us": median(costs[n] for costs in found) for n, name in enumerate(self.names)}
        ratios = {name: median(costs[n] / costs[0] for costs in found) for n, name in enumerate(self.names) if n}
        return {**each, "ratio": ratios if len(ratios) > 1 else next(iter(ratios.values()))}

    async def counts(self, era: str, number: int) -> Found:
        """What is entered for one call, and where the difference to the first lies."""
        version = {"legacy": opened.LEGACY, "modern": opened.MODERN}[era]
        entered = []
        async with AsyncExitStack() as stack:
            for which, name in enumerate(self.names):
                url, token = self.addresses[which].url, self.tokens.get(name)
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                one = await stack.enter_async_context(open_client(url, version, headers=headers))
                call = partial(opened.call, one, "echo")
                for _ in range(20):
                    await call()
                entered.append(await self.calls(which, call, number))
        found: Found = {name: round(sum(calls.values())) for name, calls in zip(self.names, entered, strict=True)}
        for name, calls in zip(self.names[1:], entered[1:], strict=True):
            more = {function: n - entered[0].get(function, 0.0) for function, n in calls.items()}
            dear = sorted(((round(n, 1), function) for function, n in more.items() if n >= 0.5), reverse=True)[:SHOWN]
            found[f"more of {name}"] = [f"{n} {function}" for n, function in dear]
        return found


async def measured(compared: Compared, options: argparse.Namespace) -> Found:
    """By era and load, as `program` was asked for it."""
    if options.calls:
        return {era: await compared.counts(era, options.calls) for era in options.eras}
    return {
        f"{era}, {title}": await compared.ratios(era, count, options.rounds, options.seconds)
        for era in options.eras
        for title, count in LOADS.items()
    }


def together(found: Sequence[Found]) -> Found:
    """One run of several: of each number the median, and of a ratio what it was in each."""
    whole: Found = {}
    for name, value in found[0].items():
        values = [one[name] for one in found]
        whole[name] = together(values) if isinstance(value, dict) else median(values)
        if name == "ratio" and len(values) > 1:
            whole["each ratio"] = sorted(values) if not isinstance(value, dict) else values
    return whole


def program(about: str | None, measure: Callable[[argparse.Namespace], Awaitable[Found]]) -> None:
    """A command line for one such comparison; prints what `measure` finds."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each round at each gateway")
    parser.add_argument("--eras", nargs="+", choices=("legacy", "modern"), default=["legacy", "modern"])
    parser.add_argument("--starts", type=int, default=1, help="of all processes, one after the other")
    parser.add_argument("--calls", type=int, default=0, help="count functions over so many calls instead")
    options = parser.parse_args()
    found = [trio.run(measure, options) for _ in range(1 if options.calls else options.starts)]
    print(json.dumps({"machine": proc.machine(), **(together(found) if len(found) > 1 else found[0])}, indent=1))
