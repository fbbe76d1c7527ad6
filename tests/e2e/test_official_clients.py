"""The official SDKs' clients over every transport that they have: to the gateway, and to a server that runs alone.

Streamable HTTP to servers on every SDK is what `tests/matrix` is about. Here the server is one of our own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
from mcp import Client, StdioServerParameters
from mcp.client.sse import sse_client

from tests.support.patience import PATIENCE
from tests.support.processes import NODE_PACKAGES, ROOT, Programs, accepts, environment, free_port, need

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.node,
    pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning"),
]

DEMO = "gateway.native.demo"
COMMAND = ROOT / "tests" / "support" / "command.py"
"""`stagedoor`; that clients start it itself is what `test_stdio` is about."""
PYTHON_1 = ROOT / ".venv-sdks" / "py-1.27" / "bin" / "python"
LEGACY, MODERN = "2025-11-25", "2026-07-28"
SEEN = {"tools": 11, "sum": {"total": 5, "terms": [2, 3]}, "failed": True, "steps": [1, 2], "resources": 3}
"""What each client sees at each place; of the progress, what can't come after the result."""


@dataclass(frozen=True)
class Place:
    """Where a client finds the demo server: a URL, or a command."""

    kind: str
    where: str | list[str]
    revision: str = LEGACY


@pytest.fixture(scope="module")
def places(shared_programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> list[Place]:
    """Behind the gateway by each of its transports, and alone by each of those of `stagedoor run`."""
    config = tmp_path_factory.mktemp("config") / "config.json"
    config.write_text(json.dumps({"mcpServers": {"demo": {"native": DEMO}}}))
    gateway, port = shared_programs.gateway(config), free_port()
    stagedoor = shared_programs.forks("stagedoor", [sys.executable, COMMAND])
    alone = [*stagedoor, "run", DEMO]
    shared_programs.start("run", [*alone, "--http", f"127.0.0.1:{port}"], ready=accepts(port))
    return [
        Place("http", gateway.endpoint()),
        Place("sse", f"{gateway.url}/sse"),
        Place("ws", f"{gateway.url.replace('http:', 'ws:')}/ws"),
        Place("stdio", [*stagedoor, "stdio", "--config", str(config)]),
        Place("http", f"http://127.0.0.1:{port}/mcp"),
        Place("stdio", alone),
    ]


def of(places: list[Place], *kinds: str) -> list[Place]:
    """Those of these kinds, in either era where the transport is of both."""
    legacy = [place for place in places if place.kind in kinds]
    return legacy + [Place(p.kind, p.where, MODERN) for p in legacy if p.kind in ("http", "stdio")]


def require_all_seen(command: list[Any], places: list[Place]) -> None:
    """By a program that visits them."""
    done = subprocess.run(
        [*command, json.dumps([asdict(place) for place in places])],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        env=environment(),
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = dict(zip(map(str, places), json.loads(done.stdout), strict=True))
    assert seen == dict.fromkeys(map(str, places), SEEN)


def test_the_python_sdk_of_the_era_with_sessions(places: list[Place]) -> None:
    need(PYTHON_1.exists(), f"{PYTHON_1} is")
    require_all_seen([PYTHON_1, "tests/sdks/visiting_client.py"], places)


@pytest.mark.parametrize("major", [1, 2])
def test_the_typescript_sdks(major: int, places: list[Place], node: Path) -> None:
    need(NODE_PACKAGES.exists(), f"{NODE_PACKAGES} is")
    visited = places if major == 1 else of(places, "http", "sse", "stdio")
    require_all_seen([node, "tests/node/visiting_client.mjs", str(major)], visited)


async def visit(place: Place) -> dict[str, Any]:
    """By the Python SDK of both eras."""
    steps: list[float] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        steps.append(done)

    server: Any = place.where
    if place.kind == "stdio":
        server = StdioServerParameters(command=place.where[0], args=list(place.where[1:]), env=environment())
    elif place.kind == "sse":
        server = sse_client(str(place.where))
    mode: Any = "legacy" if place.revision == LEGACY else place.revision
    async with Client(server, mode=mode) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        named = {tool.rpartition("__")[2]: tool for tool in tools}
        added = await client.call_tool(named["add"], {"terms": [2, 3]})
        failed = await client.call_tool(named["add"], {"terms": "x"})
        await client.call_tool(named["slow_count"], {"to": 3, "pause": 0.1}, progress_callback=progress)
        resources = (await client.list_resources()).resources
    return {
        "tools": len(tools),
        "sum": added.structured_content,
        "failed": failed.is_error,
        "steps": steps[:2],
        "resources": len(resources),
    }


async def test_the_python_sdk_of_both_eras(places: list[Place]) -> None:
    for place in of(places, "http", "sse", "stdio"):
        with trio.fail_after(PATIENCE):
            assert await visit(place) == SEEN, place
