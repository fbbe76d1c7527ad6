"""What is secret is nowhere but where it is to go: looked for in all that a gateway says, with everything that says
anything turned on."""

from __future__ import annotations

import json
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from gateway.client import Client, McpError, open_client
from tests.support.patience import PATIENCE
from tests.support.processes import Gateway, Programs, free_port, stagedoor

pytestmark = pytest.mark.e2e

SERVER = """
import json, os, sys
print("my key is", os.environ["API_KEY"], file=sys.stderr, flush=True)
if sys.argv[1:] == ["ends"]:
    raise SystemExit(f"no such key: {os.environ['API_KEY']}")
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    result = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "talks", "version": "1"},
        },
        "tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": os.environ["API_KEY"][-6:]}]},
    }.get(asked["method"], {})
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""

SECRETS = {
    "CHILD": "canary-child-4f1d88",
    "HEADER": "canary-header-90b3aa",
    "CLIENT": "canary-client-5c77e1",
    "ANN": "canary-ann-token-31d0f2",
    "COLLECTOR": "canary-collector-77aa10",
    "KEY": "ca9a51" + "0" * 52 + "ca9a52",
}
FILED, LATER = "canary-file-28e4c0", "canary-later-b15b92"
STRANGERS, ARGUMENT = "canary-strangers-token-e0e0e0", "canary-argument-6d6d6d"
"""What others bring: a token that is none, and an argument that is called a password."""


def configuration(folder: Path, dead: int) -> dict[str, Any]:
    program = folder / "server.py"
    program.write_text(SERVER)
    talks = {"command": sys.executable, "args": ["-S", str(program)], "env": {"API_KEY": "${CHILD}"}}
    url = f"http://127.0.0.1:{dead}"
    return {
        "mcpServers": {
            "talks": talks,
            "limited": {**talks, "resources": {"files": 64}},
            "ends": {**talks, "args": ["-S", str(program), "ends"]},
            "later": {**talks, "args": ["-S", str(program), "ends"], "env": {"API_KEY": "${file:secret}"}},
            "far": {"url": f"{url}/mcp", "headers": {"Authorization": "Bearer ${HEADER}"}},
            "filed": {"url": f"{url}/filed", "headers": {"X-Api-Key": "${file:secret}"}},
            "client": {
                "url": f"{url}/client",
                "auth": {"mode": "client_credentials", "clientId": "us", "clientSecret": "${CLIENT}"},
            },
        },
        "gateway": {
            "keys": ["${KEY}"],
            "auth": {"tokens": {"ann": "${ANN}"}},
            "policy": [{"allow": ["*:*"]}, {"deny": ["talks:secret_*"]}],
            "log": {"level": "debug", "format": "json", "requests": True},
            "traces": {"endpoint": f"{url}/v1/traces", "headers": {"Authorization": "${COLLECTOR}"}},
            "audit": {
                "file": str(folder / "audit.jsonl"),
                "arguments": "redacted",
                "otlp": f"{url}/v1/logs",
                "otlpHeaders": {"Authorization": "${COLLECTOR}"},
            },
        },
    }


def fetched(url: str, headers: Mapping[str, str] | None = None) -> str:
    """All of an answer, whatever its status."""
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=dict(headers or {})), timeout=PATIENCE
        ) as found:
            return f"{found.headers}{found.read().decode()}"
    except urllib.error.HTTPError as refused:
        return f"{refused.headers}{refused.read().decode()}"


def command_lines() -> str:
    """Those of all processes of this machine, as anybody may see them."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            found.append(place.read_bytes().decode(errors="replace"))
    return "\n".join(found)


async def called(client: Client, name: str, **arguments: str) -> str:
    """The answer, also one that is an error."""
    try:
        return str(await client.call_tool(name, arguments))
    except McpError as error:
        return f"{error} {error.data}"


async def used(gateway: Gateway, servers: Path) -> list[str]:
    """What a client is told: by servers that work, that do not, and of what is not allowed."""
    said = []
    headers = {"Authorization": f"Bearer {SECRETS['ANN']}"}
    for version in ("2025-11-25", "2026-07-28"):
        async with open_client(gateway.endpoint(), version=version, headers=headers) as client:
            said += [str([tool.name async for tool in client.list_tools()])]
            for name in ("talks", "limited", "ends", "later", "far", "filed", "client"):
                said.append(await called(client, f"{name}__t", password=ARGUMENT))
            said.append(await called(client, "talks__secret_t"))
            said.append(command_lines())
            assert str(servers) in said[-1]
    said.append(fetched(f"{gateway.url}/mcp", {"Authorization": f"Bearer {STRANGERS}"}))
    said.append(fetched(f"{gateway.url}/mcp?access_token={STRANGERS}"))
    return said


async def test_12_no_secret_is_in_anything_that_is_said(programs: Programs, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(FILED + "\n")
    file = tmp_path / "stagedoor.json"
    config = configuration(tmp_path, free_port())
    file.write_text(json.dumps(config))
    said: dict[str, str] = {}
    for words in (["check"], ["check", "--connect"], ["doctor"], ["explain", "--config", "ann", "talks:t"]):
        where = [words[0], *words[1:2], file, *words[2:]] if words[0] == "explain" else [*words, file]
        done = stagedoor(*where, env=SECRETS)
        said[" ".join(words)] = done.stdout + done.stderr
    gateway = programs.gateway(file, env=SECRETS)
    with trio.fail_after(PATIENCE):
        said["client"] = "\n".join(await used(gateway, tmp_path / "server.py"))
    (tmp_path / "secret").write_text(LATER + "\n")
    gateway.program.send(signal.SIGHUP)
    gateway.program.wait_output("configuration_reloaded")
    with trio.fail_after(PATIENCE):
        headers = {"Authorization": f"Bearer {SECRETS['ANN']}"}
        async with open_client(gateway.endpoint(), version="2026-07-28", headers=headers) as client:
            said["after a reload"] = await called(client, "later__t", text=f"is it {LATER}?")
    file.write_text(
        file.read_text().replace('"max"', '"').replace('"arguments": "redacted"', '"arguments": "${CHILD}"')
    )
    gateway.program.send(signal.SIGHUP)
    gateway.program.wait_output("configuration_refused")
    for path in (
        "/metrics",
        "/readyz",
        "/readyz?verbose",
        "/api/servers",
        "/api/sessions",
        "/api/config",
        "/api/accounts",
    ):
        said[path] = fetched(f"{gateway.admin}{path}")
    gateway.program.stop()
    said["log"] = gateway.program.output()
    said["audit"] = (tmp_path / "audit.jsonl").read_text()
    canaries = {**SECRETS, "FILED": FILED, "LATER": LATER, "STRANGERS": STRANGERS, "ARGUMENT": ARGUMENT}
    assert [(name, place) for place, text in said.items() for name, canary in canaries.items() if canary in text] == []
    assert '"event": "stderr"' in said["log"] or "my key is" in said["log"], "the log has what servers write"
    assert '"password"' in said["audit"], "the trail has arguments"
