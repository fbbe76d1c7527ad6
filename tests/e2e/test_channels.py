"""Official clients over the transports that have one channel for everything, in front of a gateway as a process."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from tests.support.processes import NODE_PACKAGES, ROOT, Gateway, Programs, need

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
    assert seen["progress"][:2] == [1, 2]  # the last one comes with the result, and that client forgets its handler
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


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("python", SDKS, ids=lambda path: path.parts[-3])
def test_released_python_clients_use_sse_whichever_worker_they_post_to(
    python: Path, workers: int, programs: Programs, redis_url: str, tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"mcpServers": {"demo": {"native": "gateway.native.demo:server"}}}))
    options = ("--store", redis_url, "--workers", str(workers)) if workers > 1 else ()
    gateway = programs.gateway(config, *options)
    for _ in range(3):
        command = [python, "tests/sdks/duplex_client.py", "sse", f"{gateway.url}/sse"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        seen = json.loads(done.stdout)
        assert "demo__add" in seen["tools"]
        assert "5" in seen["text"]
