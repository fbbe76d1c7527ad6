"""A gateway with servers in sandboxes, kept warm for whoever comes: what such a process may, and whose it is."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import urllib.error
import urllib.request
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
calls, users = 0, []

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
        "users": sorted(set(users)),
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
    if asked["method"] == "tools/call":
        calls += 1
        users.append(asked["params"].get("arguments", {}).get("who"))
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


async def looks(gateway: Gateway, who: str, version: str, name: str = "boxed") -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {TOKENS[who]}"}
    async with open_client(gateway.endpoint(name), version=version, headers=headers) as client:
        found: dict[str, Any] = json.loads((await client.call_tool("look", {"who": who})).text)
    assert found.pop("users") == [who], "nobody else has ever used its process"
    return found


def server(folder: Path, port: int, **more: Any) -> dict[str, Any]:
    program, own = folder / "boxed.py", folder / "own"
    program.write_text(SERVER)
    own.mkdir(exist_ok=True)
    return {
        "command": os.path.realpath(sys.executable),
        "args": ["-S", str(program), str(own), str(port)],
        "sandbox": "bwrap",
        "folders": {"read": [str(program), sys.base_prefix], "write": [str(own)]},
        "resources": {"files": 64},
        **more,
    }


def configured(folder: Path, servers: dict[str, Any], **more: Any) -> Path:
    auth = {"tokens": {name: f"${{{name.upper()}_SECRET}}" for name in TOKENS}}
    file = folder / "stagedoor.json"
    file.write_text(json.dumps({"mcpServers": servers, "gateway": {"auth": auth, **more}}))
    return file


ENVIRONMENT = {f"{name.upper()}_SECRET": token for name, token in TOKENS.items()}


async def test_a_sandboxed_server_is_one_users_sees_what_is_declared_and_is_gone_with_the_gateway(
    programs: Programs, tmp_path: Path
) -> None:
    need(shutil.which("bwrap") is not None, "bubblewrap is")
    with trio.fail_after(PATIENCE):
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    pool = {"sharing": "pool", "min": 1, "idleStop": 600}
    one = server(tmp_path, listeners[0].socket.getsockname()[1], **pool)
    file, env = configured(tmp_path, {"boxed": one}), ENVIRONMENT
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


@pytest.mark.redis
async def test_among_workers_on_one_store_a_sandboxed_process_stays_one_users_and_dies_with_its_worker(
    programs: Programs, redis_url: str, tmp_path: Path
) -> None:
    need(shutil.which("bwrap") is not None, "bubblewrap is")
    pool, own = ({"sharing": "pool", "min": 1, "idleStop": 600}, {"sharing": "principal"})
    servers = {"boxed": server(tmp_path, 9, **pool), "own": server(tmp_path, 9, **own)}
    file = configured(tmp_path, servers, store=redis_url, workers=2, keys=["0" * 64])
    gateway = programs.gateway(file, env=ENVIRONMENT)

    async def all_look() -> None:
        async with trio.open_nursery() as nursery:
            for who in TOKENS:
                for version in ("2025-11-25", "2026-07-28"):
                    for name in (*servers, *servers):
                        nursery.start_soon(looks, gateway, who, version, name)

    def ready() -> list[int]:
        try:
            with urllib.request.urlopen(f"{gateway.admin}/readyz", timeout=PATIENCE) as answer:
                state = json.loads(answer.read())
        except urllib.error.HTTPError as error:
            state = json.loads(error.read())
        return [worker["pid"] for worker in state["workers"] if worker["ready"]]

    with trio.fail_after(PATIENCE):
        await all_look()
        before = ready()
        os.kill(before[0], signal.SIGKILL)
        while len(now := ready()) < 2 or before[0] in now:
            await trio.sleep(0.05)
        await all_look()
        gateway.program.stop()
        while boxed():
            await trio.sleep(0.05)
