"""What a start costs, from nothing to the answer to `initialize`: `python -m loadtest.starts`.

The CPU of all threads of a process (`/proc/<pid>/task/*/schedstat`) at the moment when its answer is there; of an
import, when it is done. Targets take turns; what is reported is the median of the rounds, and the lowest, for whatever
else the machine does adds to it. The servers have one tool, `echo`,
and speak on their standard streams, but for those of Stagedoor with the demo servers.
`--tree` measures `serve` of another checkout too, in the same turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from gateway.config.demo import SERVERS
from loadtest.proc import cpu_seconds, on_cpu
from loadtest.targets import OTHER_CPU, PEERS, ROOT, SERVER_CPU, free_port, listening

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}},
}
HERE = ROOT / "loadtest"
STAGEDOOR = ("-m", "stagedoor")
NATIVE = HERE / "echo.py"
UNIT = 'python -c "import mcp"'


@dataclass(frozen=True)
class Start:
    """A program to start: `arguments` of a Python, which gets `written` and is done with its first line; the one that
    listens on `port` instead is done with its answer there."""

    arguments: Sequence[str | Path]
    python: str | Path = sys.executable
    tree: Path = ROOT
    written: bytes = json.dumps(INITIALIZE).encode() + b"\n"
    port: int = 0


def imported(module: str, python: str | Path = sys.executable) -> Start:
    return Start(["-c", f"import {module}; print(flush=True); input()"], python, written=b"")


def serving(tree: Path = ROOT) -> Start:
    port = free_port()
    listen = [*STAGEDOOR, "serve", "--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{free_port()}"]
    return Start(listen, tree=tree, port=port)


def starts(tree: Path | None, folder: Path) -> dict[str, Start]:
    config = folder / "config.json"
    config.write_text(json.dumps({"mcpServers": SERVERS}))
    fastmcp = PEERS / "fastmcp" / "bin" / "python"
    found = {
        'python -c "pass"': imported("sys"),
        UNIT: imported("mcp"),
        "the official SDK's low-level server": Start([HERE / "peers" / "sdk_echo.py"]),
        "FastMCP's server": Start([HERE / "peers" / "fastmcp_echo.py"], fastmcp),
        "stagedoor serve, demo servers": serving(),
        "stagedoor stdio, demo servers": Start([*STAGEDOOR, "stdio", "--config", config]),
        "stagedoor run": Start([*STAGEDOOR, "run", NATIVE]),
    }
    if tree is not None:
        found["stagedoor serve, the other tree"] = serving(tree)
    return found


def cost(start: Start, folder: str) -> float:
    """Seconds of CPU."""
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(start.tree), "PYTHONWARNINGS": "ignore", "HOME": folder}
    command = [str(part) for part in (start.python, *start.arguments)]
    with (
        on_cpu(SERVER_CPU),
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder, env=environment
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(start.written)
            process.stdin.flush()
            line = posted(start.port) if start.port else process.stdout.readline()
            used = cpu_seconds(process.pid)
            if not line:
                raise RuntimeError(f"{' '.join(command)} says nothing")
            return used
        finally:
            process.kill()


def posted(port: int) -> bytes:
    """The answer over HTTP, once somebody listens."""
    while not listening(port):
        time.sleep(0.02)
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/mcp",
        json.dumps(INITIALIZE).encode(),
        {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return bytes(response.read())


def measured(found: dict[str, Start], rounds: int, folder: str) -> dict[str, list[float]]:
    for start in found.values():
        cost(start, folder)  # compiles what has not been
    seen: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(rounds):
        for name, start in found.items():
            seen[name].append(cost(start, folder))
    return seen


def table(seen: dict[str, list[float]]) -> str:
    rows = ["| | CPU, ms | lowest | of `import mcp` |", "| --- | ---: | ---: | ---: |"]
    unit = seen[UNIT]
    for name, costs in seen.items():
        ratio = median(mine / theirs for mine, theirs in zip(costs, unit, strict=True))
        rows.append(f"| {name} | {median(costs) * 1000:.0f} | {min(costs) * 1000:.0f} | {ratio:.2f} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="(%(default)s)")
    parser.add_argument("--tree", type=Path, help="another checkout whose `serve` is measured beside")
    options = parser.parse_args()
    with on_cpu(OTHER_CPU), tempfile.TemporaryDirectory() as folder:
        print(table(measured(starts(options.tree, Path(folder)), options.rounds, folder)))


if __name__ == "__main__":
    main()
