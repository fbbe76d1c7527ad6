"""Official clients over the transports that have one channel for everything, in front of a gateway as a process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from tests.support.processes import NODE_PACKAGES, ROOT, Programs

SDKS = sorted((ROOT / ".venv-sdks").glob("py-*/bin/python"))
KINDS = pytest.mark.parametrize("kind", ["ws", "sse"])


def place(kind: str, url: str) -> str:
    return url.replace("http:", "ws:") + "/ws" if kind == "ws" else f"sse+{url}/sse"


@KINDS
def test_the_typescript_client_uses_all_of_server_everything(
    kind: str, node: Path, programs: Programs, tmp_path: Path
) -> None:
    everything = NODE_PACKAGES / "@modelcontextprotocol/server-everything/dist/index.js"
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"mcpServers": {"everything": {"command": str(node), "args": [str(everything)]}}}))
    gateway = programs.gateway(config)
    command = [node, ROOT / "tests/node/sdk_client.mjs", place(kind, gateway.url), "everything__"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["echo"] == "Echo: hello"
    assert seen["progress"][:2] == [1, 2]  # the last one comes with the result, and that client forgets its handler
    assert seen["asked"].count("sampling") == seen["asked"].count("elicitation") == 1
    assert seen["read"] == 1


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
