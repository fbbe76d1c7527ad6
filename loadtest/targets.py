"""The servers that are measured side by side, and how to start each of them.

What is measured runs on CPU 0; everything else (backends, Redis, the load itself) on CPU 1.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.client import Client, Session, Stateless
from loadtest.proc import on_cpu
from loadtest.wire import Address

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / ".venv-peers"
SERVER_CPU, OTHER_CPU = 0, 1
START_WITHIN = 30.0  # seconds
MODERN = "modern_backend"
STDIO_BACKEND = [sys.executable, "-m", "loadtest.backend", "--stdio", "--cpu", str(OTHER_CPU)]


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def listening(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@dataclass(frozen=True)
class Running:
    """A started target: where it answers, and the process whose CPU and memory count."""

    address: Address
    pid: int
    prefix: str = ""
    """What stands before the names of the backend's tools there."""
    speaks: type[Client] = Session
    """The clients that make its load."""
    profile: Path | None = None
    """Where the process leaves its profile, if it can make one."""

    def client(self) -> Client:
        """One more client of it."""
        return self.speaks(self.address, self.prefix)


@dataclass
class Bench:
    """Everything that was started for one comparison; `end` ends it all."""

    folder: Path
    profile_by: str = ""
    """The profiler beside gateways; none if empty."""
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def spawn(self, name: str, command: Sequence[str | Path], port: int, *cpus: int) -> int:
        """Starts a process on these CPUs (else on that of the servers); returns its id once it listens. Raises
        RuntimeError when it does not."""
        log = self.folder / f"{len(self._started)}-{name}.log"
        with on_cpu(*(cpus or (SERVER_CPU,))), log.open("wb") as output:
            process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                # A state of its own: gateways keep keys and lists, and what is compared must start from the same.
                env={**os.environ, "PYTHONWARNINGS": "ignore", "XDG_STATE_HOME": str(self.folder)},
                start_new_session=True,
            )
        self._started.append(process)
        end = time.monotonic() + START_WITHIN
        while not listening(port):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{name} did not start:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.05)
        return process.pid

    def module(self, name: str, port: int, *arguments: str, cpu: int = SERVER_CPU) -> int:
        """Starts a module of this folder."""
        command = [sys.executable, "-m", f"loadtest.{name}", "--port", str(port), *arguments]
        return self.spawn(name, command, port, cpu)

    def backend(self, module: str = "backend") -> int:
        """Starts a backend beside the load; returns its port."""
        port = free_port()
        self.module(module, port, cpu=OTHER_CPU)
        return port

    def redis(self) -> str:
        """Starts a Redis beside the load, in memory only; returns its URL."""
        program = shutil.which("redis-server")
        if program is None:
            raise RuntimeError("redis-server is missing: `make bench` installs it")
        port = free_port()
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.spawn("redis", [program, *options], port, OTHER_CPU)
        return f"redis://127.0.0.1:{port}/0"

    def configured(
        self, server: dict[str, Any], store: str, others: dict[str, Any] | None = None, **settings: Any
    ) -> tuple[int, Path]:
        """Writes a configuration of the gateway in front of one server, and of others by name; the port that it names,
        and its file."""
        port, admin = free_port(), free_port()
        gateway = {
            "listen": f"127.0.0.1:{port}",
            "admin": f"127.0.0.1:{admin}",
            "store": store,
            "log": {"level": "warning", "format": "json"},
            **settings,
        }
        config = self.folder / f"{port}.json"
        config.write_text(json.dumps({"mcpServers": {"bench": server, **(others or {})}, "gateway": gateway}))
        return port, config

    def stagedoor(
        self,
        server: dict[str, Any],
        store: str,
        path: str = "/mcp/bench",
        prefix: str = "",
        speaks: type[Client] = Session,
    ) -> Running:
        """Starts the gateway in front of one server."""
        port, config = self.configured(server, store)
        command: list[str | Path] = [sys.executable, "-m", "stagedoor", "serve", "--config", config]
        profile = None
        if self.profile_by:
            profile = config.with_suffix(".profile")
            command[2:3] = ["loadtest.profiled", "--out", profile, "--by", self.profile_by]
        return Running(Address(port, path.encode()), self.spawn("stagedoor", command, port), prefix, speaks, profile)

    def end(self) -> None:
        """Ends everything: a moment to do so in order, then by force."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._started:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            end = time.monotonic() + 3
            for process in self._started:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, end - time.monotonic()))
        self._started.clear()


def direct(bench: Bench) -> Running:
    port = free_port()
    return Running(Address(port), bench.module("backend", port))


def direct_modern(bench: Bench) -> Running:
    port = free_port()
    return Running(Address(port), bench.module(MODERN, port), speaks=Stateless)


def floor(bench: Bench) -> Running:
    port = free_port()
    return Running(Address(port), bench.module("floor", port, "--backend", str(bench.backend())))


def forwarder(bench: Bench) -> Running:
    port = free_port()
    return Running(Address(port), bench.module("floor", port, "--bytes", "--backend", str(bench.backend())))


def floor_modern(bench: Bench) -> Running:
    port = free_port()
    pid = bench.module("floor", port, "--backend", str(bench.backend(MODERN)))
    return Running(Address(port), pid, speaks=Stateless)


def http_server(bench: Bench, module: str = "backend") -> dict[str, Any]:
    return {"type": "http", "url": f"http://127.0.0.1:{bench.backend(module)}/mcp"}


def stagedoor_between(speaks: type[Client], module: str) -> Callable[[Bench], Running]:
    """The gateway in memory between clients of one era and a backend of one."""

    def start(bench: Bench) -> Running:
        return bench.stagedoor(http_server(bench, module), "memory://", speaks=speaks)

    return start


def stagedoor_redis(bench: Bench) -> Running:
    return bench.stagedoor(http_server(bench), bench.redis())


def stagedoor_aggregate(bench: Bench) -> Running:
    return bench.stagedoor(http_server(bench), "memory://", "/mcp", "bench__")


def stagedoor_stdio(bench: Bench) -> Running:
    # One process for all sessions, as mcp-proxy has it.
    server = {"command": STDIO_BACKEND[0], "args": STDIO_BACKEND[1:], "cwd": str(ROOT), "sharing": "shared"}
    return bench.stagedoor(server, "memory://")


def mcp_proxy(bench: Bench) -> Running:
    port = free_port()
    program = PEERS / "mcp-proxy" / "bin" / "mcp-proxy"
    options = ["--port", str(port), "--pass-environment", "--log-level", "ERROR", "--"]
    pid = bench.spawn("mcp-proxy", [program, *options, *STDIO_BACKEND], port)
    return Running(Address(port, b"/mcp"), pid)


def fastmcp(bench: Bench) -> Running:
    port = free_port()
    python = PEERS / "fastmcp" / "bin" / "python"
    script = ROOT / "loadtest" / "peers" / "fastmcp_proxy.py"
    url = f"http://127.0.0.1:{bench.backend()}/mcp"
    return Running(Address(port), bench.spawn("fastmcp", [python, script, str(port), url], port))


@dataclass(frozen=True)
class Target:
    """Something to measure."""

    start: Callable[[Bench], Running]
    what: str
    sessions: int = 0
    """How many idle sessions to hold when memory is measured; 0 for what has no sessions of its own."""
    streams: int = 0
    """How many of them with an open GET stream."""
    rests_after: float = 0.0
    """Seconds without a call after which an idle session takes less memory; 0 where it never does."""
    can: frozenset[str] = frozenset()
    """What not every target can: `resume` a cut stream, carry what a server `asks`."""


PASSIVE = 75.0  # seconds: passivation is after 60 without a call

ASKS = frozenset({"asks"})
ALL = ASKS | {"resume"}

TARGETS = {
    "direct": Target(direct, "the backend itself", can=ASKS),
    "direct-modern": Target(direct_modern, "the backend itself, without sessions (2026-07-28)", can=ASKS),
    "floor": Target(floor, "the barest trio + httptools proxy, HTTP backend", can=ASKS),
    "forwarder": Target(forwarder, "a forwarder of bytes, HTTP backend", can=ASKS),
    "floor-modern": Target(floor_modern, "the same between ends without sessions", can=ASKS),
    "stagedoor": Target(
        stagedoor_between(Session, "backend"), "Stagedoor in memory, HTTP backend", 10_000, 2_000, can=ALL
    ),
    "legacy-modern": Target(
        stagedoor_between(Session, MODERN), "the same, clients with sessions, backend without", can=ALL
    ),
    "modern-legacy": Target(
        stagedoor_between(Stateless, "backend"), "the same, clients without sessions, backend with", can=ASKS
    ),
    "modern-modern": Target(stagedoor_between(Stateless, MODERN), "the same, no sessions anywhere", can=ASKS),
    "stagedoor-redis": Target(stagedoor_redis, "Stagedoor, Redis, HTTP backend", 10_000, 2_000, can=ALL),
    "stagedoor-aggregate": Target(
        stagedoor_aggregate, "Stagedoor in memory, HTTP backend, on /mcp", 9_000, 2_000, PASSIVE, ALL
    ),
    "stagedoor-stdio": Target(stagedoor_stdio, "Stagedoor in memory, one shared stdio backend"),
    "mcp-proxy": Target(mcp_proxy, "mcp-proxy (PyPI), one stdio backend", 1_000, 200),
    "fastmcp": Target(fastmcp, "FastMCP's proxy, HTTP backend", 1_000, 200),
}
CELLS = ("stagedoor", "legacy-modern", "modern-legacy", "modern-modern")
"""Eras of clients and backend: the first is of sessions at both ends."""
