"""A rolling upgrade: sessions of the previous version, as it left them in Redis, go on in this one.

`record_v1.json` is what commit c8c5f07 wrote for a session that was killed during a call: its record and its logs.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.processes import Programs
from tests.support.raw import RawSession

pytestmark = [pytest.mark.e2e, pytest.mark.redis]

LEFT: dict[str, Any] = json.loads(Path(__file__).with_name("record_v1.json").read_text())


def leave(url: str, key: str = LEFT["key"]) -> None:
    """Puts into Redis what the other process left there just now, as the session with this key."""
    with redis.Redis.from_url(url) as client:
        forgotten = int(time.time() * 1000) + 300_000
        for name, value in LEFT["record"].items():
            if name.startswith("h:") and (head := value.split())[3] != "0":
                head[3] = str(forgotten)
                value = " ".join(head)
            client.hset(f"sd:{{{key}}}:s", name, str(forgotten) if name == "due" else value)
        for stream, entries in LEFT["logs"].items():
            for entry, data in entries:
                client.xadd(f"sd:{{{key}}}:l:{stream}", {"d": data}, id=entry)


def comes_back(session: RawSession) -> None:
    """Its client gets the rest of both streams."""
    finished = session.listen(after=LEFT["finished"][0]).until_answer(8)
    assert [event.id for event in finished] == LEFT["finished"][1:]
    [lost] = session.listen(after=LEFT["in_flight"][-1]).until_answer(9)
    assert lost.message is not None
    assert (lost.message["error"]["code"], lost.message["error"]["data"]["executed"]) == (-32603, "unknown")


def test_a_session_of_the_previous_version_goes_on(redis_url: str, programs: Programs) -> None:
    leave(redis_url)
    config = {"mcpServers": {"slow": {"command": sys.executable, "args": ["-m", "loadtest.backend", "--stdio"]}}}
    gateway = programs.gateway(config, "--store", redis_url)
    session = RawSession(gateway.endpoint("slow"))
    session.headers["Mcp-Session-Id"] = LEFT["session"]
    comes_back(session)
    assert session.ask(10, "tools/call", {"name": "echo"})["result"]["content"]
    assert session.end() == 200
