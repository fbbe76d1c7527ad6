"""The everyday example started cold: its servers do not begin before the test says so, as a first `npx -y` does not.

Nothing here is measured. Whatever is answered before a server has begun was answered without waiting for it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from gateway.config.jsonc import parse
from tests.e2e.conftest import EXAMPLE
from tests.support.patience import PATIENCE
from tests.support.processes import NODE_PACKAGES, Gateway, Programs, accepts, free_port
from tests.support.raw import RawSession

pytestmark = [pytest.mark.e2e, pytest.mark.node]

GATED = 'while [ ! -e "$0" ]; do sleep 0.1; done; exec "$@"'
PREFIXES = {"everything__", "files__", "time__", "git__", "everything-http__"}


def everyday(gate: Path, url: str) -> dict[str, Any]:
    """The example with servers that wait for a file to be there."""
    config: dict[str, Any] = parse(EXAMPLE.read_text(), str(EXAMPLE))[0]
    for server in config["mcpServers"].values():
        if "command" in server:
            server["args"] = ["-c", GATED, str(gate), server["command"], *server["args"]]
            server["command"] = "sh"
        else:
            server["url"] = url
    return config


def listed(session: RawSession) -> dict[str, Any]:
    result: dict[str, Any] = session.ask(1, "tools/list")["result"]
    return result


def until_complete(session: RawSession) -> list[Any]:
    """The tools, once no server is missing."""
    till = time.monotonic() + PATIENCE
    while True:
        result = listed(session)
        if "_meta" not in result:
            tools: list[Any] = result["tools"]
            return tools
        assert time.monotonic() < till, result["_meta"]
        time.sleep(0.2)


def restarted(programs: Programs, before: Gateway, config: dict[str, Any], *options: str) -> Gateway:
    before.program.stop()
    return programs.gateway(config, *options, in_place_of=before)


@pytest.mark.parametrize("store", ["memory", pytest.param("redis", marks=pytest.mark.redis)])
def test_the_first_list_waits_for_no_server_and_after_a_restart_it_is_complete(
    store: str,
    request: pytest.FixtureRequest,
    programs: Programs,
    node: Path,
    pypi_servers: Path,
    tmp_path: Path,
) -> None:
    kept = "memory://" if store == "memory" else request.getfixturevalue("redis_url")
    port, gate = free_port(), tmp_path / "gate"
    config = everyday(gate, f"http://127.0.0.1:{port}/mcp")

    first = programs.gateway(config, "--store", kept)
    session = RawSession(first.endpoint())
    result = listed(session)
    assert (result["tools"], result["_meta"]["stagedoor/missing"].keys()) == (
        [],
        {"everything", "files", "time", "git", "everything-http"},
    )

    everything = NODE_PACKAGES / "@modelcontextprotocol/server-everything/dist/index.js"
    programs.start("everything", [node, everything, "streamableHttp"], env={"PORT": str(port)}, ready=accepts(port))
    gate.touch()
    tools = until_complete(session)
    names = {tool["name"] for tool in tools}
    assert {prefix for prefix in PREFIXES if any(name.startswith(prefix) for name in names)} == PREFIXES

    gate.unlink()
    second = restarted(programs, first, config, "--store", kept)
    again = RawSession(second.endpoint())
    assert listed(again) == {"tools": tools}, "complete, in the same order, though no server has begun"
    assert "# everything\n" in again.server["result"]["instructions"]
    gate.touch()
    answer = again.ask(2, "tools/call", {"name": "time__get_current_time", "arguments": {"timezone": "Europe/Paris"}})
    assert "Europe/Paris" in str(answer["result"]["content"])
    assert listed(again) == {"tools": tools}
