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
from functools import partial
from pathlib import Path
from typing import Any

from loadtest.channels import OverEvents, OverPipe, OverWebSocket, Pipe
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


MakeClient = Callable[[Address, str], Client]


@dataclass(frozen=True)
class Running:
    """A started target: the process whose CPU and memory count, and how to make one more client of it."""

    pid: int
    client: Callable[[], Client]
    profile: Path | None = None
    """Where the process leaves its profile, if it can make one."""


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
        with log.open("wb") as output:
            process = self._start(command, cpus, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        end = time.monotonic() + START_WITHIN
        while not listening(port):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{name} did not start:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.05)
        return process.pid

    def piped(self, name: str, command: Sequence[str | Path]) -> subprocess.Popen[bytes]:
        """Starts a server of standard streams."""
        with (self.folder / f"{len(self._started)}-{name}.log").open("wb") as output:
            return self._start(command, (), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output)

    def _start(self, command: Sequence[str | Path], cpus: Sequence[int], **streams: Any) -> subprocess.Popen[bytes]:
        with on_cpu(*(cpus or (SERVER_CPU,))):
            process = subprocess.Popen(
                [str(part) for part in command],
                cwd=ROOT,
                # A state of its own: gateways keep keys and lists, and what is compared must start from the same.
                env={**os.environ, "PYTHONWARNINGS": "ignore", "XDG_STATE_HOME": str(self.folder)},
                start_new_session=True,
                **streams,
            )
        self._started.append(process)
        return process

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
        speaks: MakeClient = Session,
    ) -> Running:
        """Starts the gateway in front of one server."""
        port, config = self.configured(server, store)
        command, profile = self._command(config, "serve", "--config", config)
        return Running(
            self.spawn("stagedoor", command, port), partial(speaks, Address(port, path.encode()), prefix), profile
        )

    def stagedoor_stdio(self, server: dict[str, Any]) -> Running:
        """Starts the gateway on standard streams, in front of one server."""
        _, config = self.configured(server, "memory://")
        command, profile = self._command(config, "stdio", "--config", config)
        process = self.piped("stagedoor", command)
        return Running(process.pid, partial(OverPipe, Pipe(process), "bench__"), profile)

    def _command(self, config: Path, *arguments: str | Path) -> tuple[list[str | Path], Path | None]:
        """Our command line, with the profiler beside it if there is one, and where that leaves its profile."""
        if not self.profile_by:
            return [sys.executable, "-m", "stagedoor", *arguments], None
        profile = config.with_suffix(".profile")
        profiler = ["loadtest.profiled", "--out", profile, "--by", self.profile_by]
        return [sys.executable, "-m", *profiler, *arguments], profile

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
    return Running(bench.module("backend", port), partial(Session, Address(port)))


def direct_modern(bench: Bench) -> Running:
    port = free_port()
    return Running(bench.module(MODERN, port), partial(Stateless, Address(port)))


def floor(bench: Bench) -> Running:
    port = free_port()
    pid = bench.module("floor", port, "--backend", str(bench.backend()))
    return Running(pid, partial(Session, Address(port)))


def forwarder(bench: Bench) -> Running:
    port = free_port()
    pid = bench.module("floor", port, "--bytes", "--backend", str(bench.backend()))
    return Running(pid, partial(Session, Address(port)))


def floor_modern(bench: Bench) -> Running:
    port = free_port()
    pid = bench.module("floor", port, "--backend", str(bench.backend(MODERN)))
    return Running(pid, partial(Stateless, Address(port)))


def http_server(bench: Bench, module: str = "backend") -> dict[str, Any]:
    return {"type": "http", "url": f"http://127.0.0.1:{bench.backend(module)}/mcp"}


def stagedoor_between(speaks: MakeClient, module: str) -> Callable[[Bench], Running]:
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
    return Running(pid, partial(Session, Address(port)))


def fastmcp(bench: Bench) -> Running:
    port = free_port()
    python = PEERS / "fastmcp" / "bin" / "python"
    script = ROOT / "loadtest" / "peers" / "fastmcp_proxy.py"
    url = f"http://127.0.0.1:{bench.backend()}/mcp"
    pid = bench.spawn("fastmcp", [python, script, str(port), url], port)
    return Running(pid, partial(Session, Address(port)))


def over(speaks: MakeClient, path: str) -> Callable[[Bench], Running]:
    """The gateway in memory, with all its servers as one, over one of its transports."""

    def start(bench: Bench) -> Running:
        return bench.stagedoor(http_server(bench), "memory://", path, "bench__", speaks)

    return start


def over_stdio(bench: Bench) -> Running:
    return bench.stagedoor_stdio(http_server(bench))


def native_http(bench: Bench) -> Running:
    return bench.stagedoor({"native": "loadtest.echo:server"}, "memory://")


def native_stdio(bench: Bench) -> Running:
    command = [sys.executable, "-m", "stagedoor", "stdio", "--native", "loadtest.echo:server"]
    process = bench.piped("native", command)
    return Running(process.pid, partial(OverPipe, Pipe(process)))


def peer(python: str | Path, script: str) -> tuple[Callable[[Bench], Running], Callable[[Bench], Running]]:
    """A server written on another library, over HTTP and on standard streams."""
    command: list[str | Path] = [python, ROOT / "loadtest" / "peers" / script]

    def http(bench: Bench) -> Running:
        port = free_port()
        return Running(bench.spawn(script, [*command, str(port)], port), partial(Session, Address(port)))

    def stdio(bench: Bench) -> Running:
        process = bench.piped(script, command)
        return Running(process.pid, partial(OverPipe, Pipe(process)))

    return http, stdio


sdk_http, sdk_stdio = peer(sys.executable, "sdk_echo.py")
fastmcp_http, fastmcp_stdio = peer(PEERS / "fastmcp" / "bin" / "python", "fastmcp_echo.py")


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
    can: frozenset[str] = frozenset({"other tools"})
    """What not every target can: do more than `echo` (`other tools`), `resume` a cut stream, carry what a server
    `asks`."""


PASSIVE = 75.0  # seconds: passivation is after 60 without a call

ECHO = frozenset[str]()
ASKS = frozenset({"other tools", "asks"})
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
    "over-http": Target(over(Session, "/mcp"), "Stagedoor in memory, HTTP backend, over Streamable HTTP", can=ECHO),
    "over-ws": Target(over(OverWebSocket, "/ws"), "the same over WebSocket", 1_000, can=ECHO),
    "over-sse": Target(over(OverEvents, "/sse"), "the same over HTTP+SSE (2024-11-05)", 1_000, can=ECHO),
    "over-stdio": Target(over_stdio, "the same as `stagedoor stdio`, all callers on one session", can=ECHO),
    "native-http": Target(native_http, "a server on gateway.native, HTTP", can=ECHO),
    "sdk-http": Target(sdk_http, "one on the official SDK's low-level server, HTTP", can=ECHO),
    "fastmcp-http": Target(fastmcp_http, "one on FastMCP, HTTP", can=ECHO),
    "native-stdio": Target(native_stdio, "a server on gateway.native, stdio", can=ECHO),
    "sdk-stdio": Target(sdk_stdio, "one on the official SDK's low-level server, stdio", can=ECHO),
    "fastmcp-stdio": Target(fastmcp_stdio, "one on FastMCP, stdio", can=ECHO),
}
TRANSPORTS = ("over-http", "over-ws", "over-sse", "over-stdio")
"""What a call costs over each, as a multiple of the first."""
SIDE_BY_SIDE = (("native-http", "sdk-http", "fastmcp-http"), ("native-stdio", "sdk-stdio", "fastmcp-stdio"))
"""The same tool by ours, and by others: ours as a share of each."""
CELLS = ("stagedoor", "legacy-modern", "modern-legacy", "modern-modern")
"""Eras of clients and backend: the first is of sessions at both ends."""
