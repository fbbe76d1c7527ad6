"""Official clients over the transports that have one channel for everything, in front of a gateway as a process."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from tests.support.processes import NODE_PACKAGES, ROOT, Gateway, Programs, need
from tests.support.redis_server import RedisServer, installed

EVERYTHING = NODE_PACKAGES / "@modelcontextprotocol/server-everything/dist/index.js"
REMOTE = NODE_PACKAGES / "mcp-remote/dist/proxy.js"
SDKS = sorted((ROOT / ".venv-sdks").glob("py-*/bin/python"))
KINDS = pytest.mark.parametrize("kind", ["ws", "sse"])


def place(kind: str, url: str) -> str:
    return url.replace("http:", "ws:") + "/ws" if kind == "ws" else f"sse+{url}/sse"


@pytest.fixture(scope="module")
def everything(node: Path, shared_programs: Programs) -> Gateway:
    """The gateway in front of server-everything."""
    return shared_programs.gateway({"mcpServers": {"everything": {"command": str(node), "args": [str(EVERYTHING)]}}})


def require_all_is_used(node: Path, place: str, **around: str) -> None:
    """By the official TypeScript SDK's client, which finds the server there."""
    command = [node, ROOT / "tests/node/sdk_client.mjs", place, "everything__"]
    env = {**os.environ, **around}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=env)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["echo"] == "Echo: hello"
    assert seen["progress"] == [1, 2, 3]
    assert seen["asked"].count("sampling") == seen["asked"].count("elicitation") == 1
    assert seen["read"] == 1
    assert "everything__echo" in seen["tools"]


@KINDS
def test_the_typescript_client_uses_all_of_server_everything(kind: str, node: Path, everything: Gateway) -> None:
    require_all_is_used(node, place(kind, everything.url))


@pytest.mark.parametrize(("path", "transport"), [("/mcp", "http-only"), ("/sse", "sse-only"), ("/sse", "http-first")])
def test_mcp_remote_brings_a_client_of_standard_streams_to_the_gateway(
    path: str, transport: str, node: Path, everything: Gateway, tmp_path: Path
) -> None:
    need(REMOTE.exists(), "mcp-remote is")
    command = [str(node), str(REMOTE), f"{everything.url}{path}", "--transport", transport]
    require_all_is_used(node, "stdio:" + json.dumps(command), MCP_REMOTE_CONFIG_DIR=str(tmp_path))


@pytest.fixture(scope="module")
def clients(shared_programs: Programs) -> Callable[[Path], list[str]]:
    """The command of the client on the SDK of this Python, which starts at once."""
    return cache(lambda python: shared_programs.forks(python.parts[-3], [python, ROOT / "tests/sdks/duplex_client.py"]))


@pytest.fixture(scope="module", params=[1, 2], ids=["1-worker", "2-workers"])
def demo(
    request: pytest.FixtureRequest, shared_programs: Programs, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """The gateway in front of the demo server."""
    config = tmp_path_factory.mktemp("demo") / "config.json"
    config.write_text(json.dumps({"mcpServers": {"demo": {"native": "gateway.native.demo:server"}}}))
    if request.param == 1:
        yield shared_programs.gateway(config)
        return
    need(installed(), "redis-server is")
    with RedisServer() as store:
        yield shared_programs.gateway(config, "--store", store.url, "--workers", str(request.param))


@pytest.mark.parametrize("python", SDKS, ids=lambda path: path.parts[-3])
def test_released_python_clients_use_sse_whichever_worker_they_post_to(
    python: Path, demo: Gateway, clients: Callable[[Path], list[str]]
) -> None:
    for _ in range(3):
        command = [*clients(python), "sse", f"{demo.url}/sse"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=ROOT)
        seen = json.loads(done.stdout)
        assert "demo__add" in seen["tools"], done.stderr
        assert "5" in seen["text"]
