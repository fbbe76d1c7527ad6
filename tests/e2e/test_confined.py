"""A gateway with servers in sandboxes, kept warm for whoever comes: what such a process may, and whose it is."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from gateway.client import open_client
from tests.support.patience import PATIENCE
from tests.support.processes import Gateway, Programs, need, stagedoor

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is for Linux"),
]

SERVER = """
import json, os, resource, socket, sys
calls = 0

def can(do):
    try:
        do()
    except OSError as error:
        return error.strerror
    return "yes"

def seen():
    status = open("/proc/self/status").read()
    return {
        "calls": calls,
        "processes": len([name for name in os.listdir("/proc") if name.isdigit()]),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "privileges": status.partition("NoNewPrivs:")[2].split()[0],
        "secrets": sorted(name for name in os.environ if "SECRET" in name or "TOKEN" in name),
        "shadow": can(lambda: open("/etc/shadow").read()),
        "home": can(lambda: os.listdir(os.environ["HOME"] + "/.ssh")),
        "own": can(lambda: open(sys.argv[1] + "/new", "w")),
        "network": can(lambda: socket.create_connection(("127.0.0.1", int(sys.argv[2])), 1)),
    }

for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    calls += asked["method"] == "tools/call"
    result = {
        "initialize": lambda: {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "boxed", "version": "1"},
        },
        "tools/list": lambda: {"tools": [{"name": "look", "inputSchema": {"type": "object"}}]},
        "tools/call": lambda: {"content": [{"type": "text", "text": json.dumps(seen())}]},
    }.get(asked["method"], dict)()
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""
TOKENS = {"ann": "anns-secret-token-0001", "bob": "bobs-secret-token-0001"}


def boxed() -> list[int]:
    """The processes of bubblewrap on this machine that are of this test."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"bwrap") and any(word.endswith(b"/boxed.py") for word in words):
            found.append(int(place.parent.name))
    return found


async def looks(gateway: Gateway, who: str, version: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {TOKENS[who]}"}
    async with open_client(gateway.endpoint("boxed"), version=version, headers=headers) as client:
        found: dict[str, Any] = json.loads((await client.call_tool("look")).text)
    return found


async def test_a_sandboxed_server_is_one_users_sees_what_is_declared_and_is_gone_with_the_gateway(
    programs: Programs, tmp_path: Path
) -> None:
    need(shutil.which("bwrap") is not None, "bubblewrap is")
    program, own = tmp_path / "boxed.py", tmp_path / "own"
    program.write_text(SERVER)
    own.mkdir()
    python = os.path.realpath(sys.executable)
    with trio.fail_after(PATIENCE):
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    server = {
        "command": python,
        "args": ["-S", str(program), str(own), str(port)],
        "sandbox": "bwrap",
        "folders": {"read": [str(program), sys.base_prefix], "write": [str(own)]},
        "resources": {"files": 64},
        "sharing": "pool",
        "min": 1,
        "idleStop": 600,
    }
    auth = {"tokens": {"ann": "${ANN_SECRET}", "bob": "${BOB_SECRET}"}}
    config = {"mcpServers": {"boxed": server}, "gateway": {"auth": auth}}
    file = tmp_path / "stagedoor.json"
    file.write_text(json.dumps(config))
    env = {f"{name.upper()}_SECRET": token for name, token in TOKENS.items()}
    told = json.loads(stagedoor("doctor", "--json", file, env=env, check=True).stdout)
    assert [(one["name"], one["tools"], one["sharing"]) for one in told] == [("boxed", 1, "pool")]
    assert told[0]["processes"] >= 2, "bubblewrap and the server in it"
    assert boxed() == []
    gateway = programs.gateway(file, env=env)
    with trio.fail_after(PATIENCE):
        first = await looks(gateway, "ann", "2025-11-25")
        again = await looks(gateway, "ann", "2026-07-28")
        other = await looks(gateway, "bob", "2026-07-28")
    assert [one.pop("calls") for one in (first, again, other)] == [1, 2, 1]
    assert first.pop("processes") <= 3
    assert first.pop("network") != "yes"
    assert first == {
        "files": 64,
        "privileges": "1",
        "secrets": [],
        "shadow": "No such file or directory",
        "home": "No such file or directory",
        "own": "yes",
    }
    assert len(boxed()) >= 3, "one for each user, and the next one's"
    gateway.program.stop()
    with trio.fail_after(PATIENCE):
        while boxed():
            await trio.sleep(0.05)
    await listeners[0].aclose()
