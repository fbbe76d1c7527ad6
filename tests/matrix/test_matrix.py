"""Official SDKs of every revision's time, on both sides of the gateway: 5 revisions × 5 revisions × every feature."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.matrix import story
from tests.matrix.judging import faults
from tests.matrix.recording import GATEWAY, connections
from tests.matrix.table import REVISIONS, expected
from tests.support.processes import NODE_PACKAGES, ROOT, Gateway, Programs, accepts, environment, free_port

pytestmark = [pytest.mark.e2e, pytest.mark.node, pytest.mark.usefixtures("node")]

HERE = Path(__file__).parent
VISIT_SECONDS = 720


@dataclass(frozen=True)
class Party:
    """A program on an SDK: the revision it speaks, its command, and for a server whether it is reached by HTTP."""

    revision: str
    command: tuple[str | Path, ...]
    http: bool = False


def python(version: str, program: str) -> tuple[Path, Path]:
    """A program in the environment of this version of the Python SDK."""
    return ROOT / ".venv-sdks" / f"py-{version}" / "bin" / "python", HERE / program


def typescript(*program: str) -> tuple[str | Path, ...]:
    """A program, with the package of the TypeScript SDK that it is on, for node."""
    return NODE_PACKAGES / ".bin" / "node", HERE / program[0], *program[1:]


SERVERS = {
    "py-1.2": Party("2024-11-05", python("1.2", "servers/python_v1.py")),
    "py-1.9": Party("2025-03-26", python("1.9", "servers/python_v1.py"), http=True),
    "py-1.22": Party("2025-06-18", python("1.22", "servers/python_v1.py")),
    "py-1.27": Party("2025-11-25", python("1.27", "servers/python_v1.py")),
    "ts-1.6": Party("2024-11-05", typescript("servers/typescript_v1.mjs", "sdk-2024-11-05")),
    "ts-1.12": Party("2025-03-26", typescript("servers/typescript_v1.mjs", "sdk-2025-03-26")),
    "ts-1.22": Party("2025-06-18", typescript("servers/typescript_v1.mjs", "sdk-2025-06-18")),
    "ts-1.32": Party("2025-11-25", typescript("servers/typescript_v1.mjs", "@modelcontextprotocol/sdk")),
    "py-2-http": Party("2026-07-28", (sys.executable, HERE / "servers/python_modern.py"), http=True),
    "py-2-stdio": Party("2026-07-28", (sys.executable, HERE / "servers/python_modern.py")),
    "ts-2-http": Party("2026-07-28", typescript("servers/typescript_modern.mjs"), http=True),
    "ts-2-stdio": Party("2026-07-28", typescript("servers/typescript_modern.mjs")),
}
CLIENTS = {
    "raw": Party("2024-11-05", python("1.27", "clients/raw.py")),
    "py-1.9": Party("2025-03-26", python("1.9", "clients/python_v1.py")),
    "py-1.22": Party("2025-06-18", python("1.22", "clients/python_v1.py")),
    "py-1.27": Party("2025-11-25", python("1.27", "clients/python_v1.py")),
    "ts-1.12": Party("2025-03-26", typescript("clients/typescript_v1.mjs", "sdk-2025-03-26")),
    "ts-1.22": Party("2025-06-18", typescript("clients/typescript_v1.mjs", "sdk-2025-06-18")),
    "ts-1.32": Party("2025-11-25", typescript("clients/typescript_v1.mjs", "@modelcontextprotocol/sdk")),
    "py-2": Party("2026-07-28", (sys.executable, HERE / "clients/python_modern.py")),
    "ts-2": Party("2026-07-28", typescript("clients/typescript_modern.mjs")),
}


@pytest.fixture(scope="module")
def commands(shared_programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Server → what starts it, or for one on stdio what `tee.py` takes for that. They start at once, but for those on
    TypeScript over HTTP: there are many of them."""
    stories = tmp_path_factory.mktemp("stories")
    story.write(stories)

    def command(name: str, server: Party) -> list[str]:
        if "python" in Path(server.command[0]).name:
            return shared_programs.forks(name, server.command)
        node, *program = server.command
        if server.http:
            return [str(node), *map(str, program), str(stories)]
        path = stories / f"{name}.socket"
        hosting = [node, HERE / "servers/hosting.mjs", path, *program, stories]
        shared_programs.start(name, hosting, ready=path.exists)
        return ["--at", str(path)]

    return {name: command(name, server) for name, server in SERVERS.items()}


def start(programs: Programs, commands: dict[str, list[str]], folder: Path) -> tuple[Gateway, dict[str, str]]:
    """A gateway in front of every server of the matrix, and server → endpoint for clients that are recorded: what is
    said on both of its sides is in the folder."""
    backends: dict[str, Any] = {}
    taps: dict[str, tuple[int, int]] = {}
    for name, server in SERVERS.items():
        command = commands[name]
        if server.http:
            port, tap = free_port(), free_port()
            programs.start(name, [*command, "--http", str(port)], ready=accepts(port))
            taps[name] = tap, port
            backends[name] = {"type": "http", "url": f"http://127.0.0.1:{tap}/mcp"}
        else:
            tee = ["-IS", str(HERE / "tee.py"), str(folder), name]  # -IS: it starts at once
            backends[name] = {"command": sys.executable, "args": [*tee, *command]}
    record(programs, folder, taps)
    gateway = programs.gateway({"mcpServers": backends})
    port = free_port()
    record(programs, folder, {GATEWAY: (port, int(gateway.url.rpartition(":")[2]))})
    reached = replace(gateway, url=f"http://127.0.0.1:{port}")
    return gateway, {server: reached.endpoint(server) for server in SERVERS}


def record(programs: Programs, folder: Path, taps: Mapping[str, tuple[int, int]]) -> None:
    """Starts `tap.py`: name → its port, and the port it passes connections on to."""
    command = [sys.executable, str(HERE / "tap.py"), str(folder), *(f"{name}={a}:{b}" for name, (a, b) in taps.items())]
    programs.start("tap", command, ready=lambda: all(accepts(port)() for port, _ in taps.values()))


@pytest.mark.parametrize("name", CLIENTS)
def test_every_feature_works_or_fails_as_the_table_says_in_valid_messages(
    name: str, programs: Programs, commands: dict[str, list[str]], tmp_path: Path
) -> None:
    client = CLIENTS[name]
    folder = tmp_path / "said"
    folder.mkdir()
    gateway, endpoints = start(programs, commands, folder)
    done = subprocess.run(
        [*client.command, json.dumps(endpoints)],
        capture_output=True,
        text=True,
        timeout=VISIT_SECONDS,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen: dict[str, dict[str, str]] = json.loads(done.stdout)
    wrong = [f"{server} can't be visited: {seen[server]['broken']}" for server in SERVERS if "broken" in seen[server]]
    wrong += [
        f"{server}: {feature}: expected {wanted!r}, saw {seen[server].get(feature)!r}"
        for server, party in SERVERS.items()
        for feature, wanted in expected(client.revision, party.revision).items()
        if "broken" not in seen[server] and seen[server].get(feature) != wanted
    ]
    recorded = connections(folder)
    assert {connection.name for connection in recorded} == {GATEWAY, *SERVERS}
    wrong += faults(recorded)
    if wrong:
        pytest.fail("\n".join(wrong) + "\n" + gateway.program.story(), pytrace=False)


def test_every_revision_has_a_client_and_a_server() -> None:
    assert {party.revision for party in CLIENTS.values()} == set(REVISIONS)
    assert {party.revision for party in SERVERS.values()} == set(REVISIONS)
