"""Gateways on one Redis, between a load and a server: what measurements of several replicas start and look at."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.shapes import Count
from loadtest.targets import SERVER_CPU, Bench, http_server
from loadtest.wire import Address

Found = dict[str, Any]
LIVE = 'stagedoor_sessions{era="legacy",state="live"}'


@dataclass
class Replica:
    """A gateway on one Redis with others, which can be ended and started again on its port."""

    bench: Bench
    config: Path
    address: Address
    cpus: tuple[int, ...] = (SERVER_CPU,)
    options: tuple[str, ...] = ()
    pid: int = 0
    _life: int = 0

    def start(self) -> Replica:
        command = [sys.executable, "-m", "stagedoor", "serve", "--config", self.config, *self.options]
        self.pid = self.bench.spawn(f"replica-{self.address.port}", command, self.address.port, *self.cpus)
        return self

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit status, once its process has ended; negative for a signal."""
        with suppress(ChildProcessError):
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return 0

    def sessions(self) -> int:
        """How many are in its memory."""
        admin = json.loads(self.config.read_text())["gateway"]["admin"]
        with urllib.request.urlopen(f"http://{admin}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith(LIVE))


@dataclass
class Place:
    """A Redis, a backend, and the replicas between them and the load."""

    bench: Bench
    store: str = ""
    redis: int = 0
    server: Found = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = self.bench.redis()
        self.redis = redis_pid(self.store)
        self.server = self.server or http_server(self.bench)

    def replica(self, path: str = "/mcp/bench", *options: str, **settings: Any) -> Replica:
        port, config = self.bench.configured(self.server, self.store, **settings)
        return Replica(self.bench, config, Address(port, path.encode()), options=options)

    def memory(self) -> int:
        """Bytes that Redis uses."""
        lines = self._said("info", "memory").splitlines()
        return next(int(line.partition(":")[2]) for line in lines if line.startswith("used_memory:"))

    def commands(self) -> int:
        """How many commands Redis has processed."""
        lines = self._said("info", "stats").splitlines()
        return next(int(line.partition(":")[2]) for line in lines if line.startswith("total_commands_processed:"))

    def _said(self, *command: str) -> str:
        return subprocess.run(
            ["redis-cli", "-u", self.store, *command], capture_output=True, text=True, check=True
        ).stdout


def redis_pid(store: str) -> int:
    said = subprocess.run(
        ["redis-cli", "-u", store, "info", "server"], capture_output=True, text=True, check=True
    ).stdout
    return next(int(line.partition(":")[2]) for line in said.splitlines() if line.startswith("process_id:"))


def percentiles(seconds: Sequence[float]) -> Found:
    """In milliseconds."""
    count = Count(list(seconds))
    return {"n": count.calls, "p50_ms": count.percentile(0.5) * 1e3, "p99_ms": count.percentile(0.99) * 1e3}
