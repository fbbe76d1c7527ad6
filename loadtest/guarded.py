"""What authorization costs a call: `python -m loadtest.guarded`.

Two gateways stand in front of one server: one that asks nobody who he is, and one with a verified JWT of an issuer, ten
rules, and the audit trail in a file. The same calls go to both in turn, round by round, and the ratio of the CPU of
their processes is taken of each round by itself, so that what else the machine does falls on both. With `--calls` no
time is measured: a profiler counts the functions that each enters for a call, which is the same on every machine, and
those are listed of which there are more.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

import jwt
import trio
from cryptography.hazmat.primitives.asymmetric import rsa

from loadtest import proc, shapes
from loadtest.client import Client, Session, Stateless, WrongAnswerError, end_clients, open_clients
from loadtest.targets import SERVER_CPU, Bench, http_server
from loadtest.wire import Address

Found = dict[str, Any]
KEY = "bench"
LIVES = 3600
"""Seconds that a token is good: longer than any run."""
LOADS = {"1 caller": 1, "16 callers": 16}
SETTLES = 0.5
"""Seconds for a profiler to begin, or to write what it has seen."""
SHOWN = 40


class Issuer:
    """An authorization server as far as the gateway needs one: its keys, on a port of this process."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key()))
        body = json.dumps({"keys": [{**public, "kid": KEY, "use": "sig", "alg": "RS256"}]}).encode()

        class Keys(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Nothing is said."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Keys)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def token(self, audience: str) -> str:
        now = int(time.time())
        claims = {"iss": self.url, "sub": "ann", "aud": audience, "iat": now, "exp": now + LIVES, "groups": ["dev"]}
        more = {"scope": "mcp tools", "client_id": "bench"}
        return jwt.encode({**claims, **more}, self._key, "RS256", headers={"kid": KEY, "typ": "at+jwt"})

    def end(self) -> None:
        self._server.shutdown()


def rules() -> list[dict[str, Any]]:
    """Ten, of which the last one lets the call through."""
    others = [{"who": {"groups": [f"team-{n}"]}, "allow": [f"bench:tool_{n}_*"]} for n in range(7)]
    denied = [{"who": {"groups": ["dev"]}, "deny": ["bench:delete_*", "*:drop_*"]}, {"deny": ["bench:secret_*"]}]
    return [*others, *denied, {"who": {"groups": ["dev"]}, "allow": ["bench:*"]}]


class Compared:
    """Both gateways."""

    def __init__(self, bench: Bench, issuer: Issuer, folder: Path, *, profiled: bool) -> None:
        server = http_server(bench)
        self._profiles: list[Path] = []
        self._pids: list[int] = []
        self._addresses: list[Address] = []
        port, config = bench.configured(server, "memory://")
        self._start(bench, port, config, profiled)
        guarded = {
            "auth": {"issuers": [{"issuer": issuer.url, "jwksUri": issuer.url, "groupsClaims": ["groups"]}]},
            "policy": rules(),
            "audit": {"file": str(folder / "audit.jsonl")},
        }
        port, config = bench.configured(server, "memory://", **guarded)
        self._start(bench, port, config, profiled)
        self.token = issuer.token(f"http://127.0.0.1:{port}/mcp")

    def _start(self, bench: Bench, port: int, config: Path, profiled: bool) -> None:
        profile = config.with_suffix(".profile")
        by = ["loadtest.profiled", "--out", str(profile), "--by", "calls"] if profiled else ["stagedoor"]
        self._profiles.append(profile)
        self._addresses.append(Address(port, b"/mcp/bench"))
        arguments = ("-m", *by, "serve", "--config", str(config))
        self._pids.append(bench.spawn(config.stem, (sys.executable, *arguments), port, SERVER_CPU))

    async def clients(self, era: str, count: int) -> list[list[Client]]:
        plain, guarded = self._addresses
        kind: type[Client] = Session if era == "legacy" else Stateless
        makes = (lambda: kind(plain), lambda: kind(guarded, token=self.token))
        return [await open_clients(make, count) for make in makes]

    async def cost(self, which: int, clients: list[Client], seconds: float) -> float:
        """Microseconds of CPU for one call."""
        before = proc.cpu_seconds(self._pids[which])
        count = await shapes.steady(clients, "echo", seconds)
        if count.errors or not count.calls:
            raise WrongAnswerError(str(count.errors))
        return (proc.cpu_seconds(self._pids[which]) - before) / count.calls * 1e6

    async def calls(self, which: int, clients: list[Client], number: int) -> dict[str, float]:
        """By function: how often it is entered for one call."""
        profile, pid = self._profiles[which], self._pids[which]
        profile.unlink(missing_ok=True)
        os.kill(pid, signal.SIGUSR1)
        await trio.sleep(SETTLES)
        for _ in range(number):
            await clients[0].call("echo")
        os.kill(pid, signal.SIGUSR2)
        while not profile.exists():  # noqa: ASYNC110 - it is another process that writes it
            await trio.sleep(SETTLES)
        rows = json.loads(profile.read_text())["rows"]
        return {row["function"]: row["calls"] / number for row in rows if row["calls"] >= number / 2}


async def ratios(compared: Compared, era: str, count: int, options: argparse.Namespace) -> Found:
    """Rounds of both in turn, and the median of the ratios of each."""
    both = await compared.clients(era, count)
    for which, clients in enumerate(both):
        await compared.cost(which, clients, options.seconds)
    rounds = []
    for number in range(options.rounds):
        costs = [0.0, 0.0]
        for which in (0, 1) if number % 2 else (1, 0):
            costs[which] = await compared.cost(which, both[which], options.seconds)
        rounds.append(costs)
    for clients in both:
        await end_clients(clients)
    return {
        "plain_us": median(plain for plain, _ in rounds),
        "guarded_us": median(guarded for _, guarded in rounds),
        "ratio": median(guarded / plain for plain, guarded in rounds),
    }


async def counts(compared: Compared, era: str, number: int) -> Found:
    """What is entered for one call, and where the difference lies."""
    both = await compared.clients(era, 1)
    for clients in both:
        for _ in range(20):
            await clients[0].call("echo")
    plain, guarded = [await compared.calls(which, clients, number) for which, clients in enumerate(both)]
    more = {name: calls - plain.get(name, 0.0) for name, calls in guarded.items()}
    dear = sorted(((round(n, 1), name) for name, n in more.items() if n >= 0.5), reverse=True)[:SHOWN]
    return {
        "plain": round(sum(plain.values())),
        "guarded": round(sum(guarded.values())),
        "ratio": sum(guarded.values()) / sum(plain.values()),
        "more": [f"{n} {name}" for n, name in dear],
    }


async def measured(options: argparse.Namespace) -> Found:
    with tempfile.TemporaryDirectory() as name:
        folder, issuer = Path(name), Issuer()
        bench = Bench(folder)
        try:
            compared = Compared(bench, issuer, folder, profiled=options.calls > 0)
            if options.calls:
                return {era: await counts(compared, era, options.calls) for era in options.eras}
            return {
                f"{era}, {title}": await ratios(compared, era, count, options)
                for era in options.eras
                for title, count in LOADS.items()
            }
        finally:
            bench.end()
            issuer.end()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each round at each gateway")
    parser.add_argument("--eras", nargs="+", choices=("legacy", "modern"), default=["legacy", "modern"])
    parser.add_argument("--calls", type=int, default=0, help="count functions over so many calls instead")
    options = parser.parse_args(arguments)
    print(json.dumps({"machine": proc.machine(), **trio.run(measured, options)}, indent=1))


if __name__ == "__main__":
    main()
