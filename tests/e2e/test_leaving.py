"""A replica that leaves the others: what comes on connections that clients have kept."""

from __future__ import annotations

import http.client
import json
import signal
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from actors.protocol.versions import MODERN
from tests.support.patience import PATIENCE
from tests.support.processes import Gateway, Programs, accepts

pytestmark = [pytest.mark.e2e, pytest.mark.redis]

DEMO = {"mcpServers": {"demo": {"native": "gateway.native.demo:server"}}}
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
}


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


class Kept:
    """A connection of a client without a session, of whom other replicas know nothing."""

    def __init__(self, gateway: Gateway) -> None:
        self._connection = http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=PATIENCE)
        self._connection.auto_open = False
        self._connection.connect()

    def call(self, tool: str, arguments: dict[str, Any]) -> tuple[int, str | None]:
        """The status, and what the answer says of the connection. It may have ended by then: so says 0."""
        params = {"name": tool, "arguments": arguments, "_meta": META}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": MODERN,
            "Mcp-Method": "tools/call",
            "Mcp-Name": tool,
        }
        try:
            self._connection.request("POST", "/mcp/demo", json.dumps(body), headers)
            answer = self._connection.getresponse()
        except (ConnectionError, http.client.RemoteDisconnected):
            return 0, None
        answer.read()
        return answer.status, answer.headers.get("Connection")

    def ended(self) -> bool:
        """Waits until the gateway says something, which is that it has closed."""
        return self._connection.sock.recv(1) == b""

    def close(self) -> None:
        self._connection.close()


def page(gateway: Gateway) -> str:
    text: str = urllib.request.urlopen(f"{gateway.admin}/metrics", timeout=PATIENCE).read().decode()
    return text


def test_beside_others_it_answers_what_comes_on_open_connections_and_closes_the_idle_ones(
    redis_url: str, programs: Programs
) -> None:
    leaving, _ = (programs.gateway(DEMO, "--store", redis_url) for _ in range(2))
    busy, kept, idle = (Kept(leaving) for _ in range(3))
    for connection in (busy, kept, idle):
        assert connection.call("add", {"terms": [1, 2]}) == (200, None)
    found: list[tuple[int, str | None]] = []
    counting = threading.Thread(target=lambda: found.append(busy.call("slow_count", {"to": 4})))
    counting.start()
    until(lambda: "stagedoor_requests_in_flight 1.0" in page(leaving))
    leaving.program.send(signal.SIGTERM)
    until(lambda: not accepts(int(leaving.url.rpartition(":")[2]))())
    assert kept.call("add", {"terms": [1, 2]}) in ((200, "close"), (0, None)), "it is in time, or finds another one"
    assert idle.ended()
    assert counting.is_alive(), "while something is being answered"
    counting.join()
    assert found[0][0] == 200
    until(lambda: leaving.program.status == 0)
    for connection in (busy, kept, idle):
        connection.close()
