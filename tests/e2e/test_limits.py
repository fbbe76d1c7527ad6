"""Limits that several processes of the gateway count together, in one Redis."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from gateway.client import Client, open_client
from tests.support.patience import PATIENCE
from tests.support.processes import Programs

pytestmark = [pytest.mark.e2e, pytest.mark.redis]

VERSIONS = ("2025-11-25", "2026-07-28")
MOST = 5


async def said(client: Client) -> str:
    """What the tool answers, or that a limit is reached."""
    result = await client.call_tool("calculate__calculate", {"expression": "1 + 1"})
    return result.text


async def test_15_a_user_has_one_limit_at_all_processes_and_each_has_its_line(
    programs: Programs, redis_url: str, tmp_path: Path
) -> None:
    """Each is asked by clients of both eras, and by sessions of their own."""
    trail = tmp_path / "audit.jsonl"
    config: dict[str, Any] = {
        "mcpServers": {"calculate": {"native": "gateway.native.calculate"}},
        "gateway": {
            "store": redis_url,
            "keys": ["0" * 64],
            "auth": {"tokens": {"ann": "anns-token-0001", "bob": "bobs-token-0001"}},
            "policy": [{"allow": ["*:*"]}, {"limits": {"calculate:*": f"{MOST}/day"}}],
            "audit": {"file": str(trail)},
        },
    }
    found: list[str] = []
    gateways = [programs.gateway(config) for _ in range(2)]

    async def ask(url: str, token: str, version: str, times: int = 1) -> list[str]:
        headers = {"Authorization": f"Bearer {token}"}
        async with open_client(url, version=version, headers=headers) as client:
            return [await said(client) for _ in range(times)]

    with trio.fail_after(PATIENCE):
        for gateway in gateways:
            for version in VERSIONS:
                found += await ask(gateway.endpoint(), "anns-token-0001", version, 2)
        async with trio.open_nursery() as nursery:
            for gateway in gateways:
                nursery.start_soon(ask, gateway.endpoint(), "bobs-token-0001", VERSIONS[0], MOST)
    assert ["limit" in text for text in found] == [False] * MOST + [True] * (len(found) - MOST)
    for gateway in gateways:
        gateway.program.stop()
    lines = [json.loads(line) for line in trail.read_bytes().splitlines()]
    refused = {
        who: [one for one in lines if one["event"] == "deny" and one["principal"] == who] for who in ("ann", "bob")
    }
    counted = {who: sum(line.get("count", 1) for line in told) for who, told in refused.items()}
    assert counted == {"ann": len(found) - MOST, "bob": MOST}
