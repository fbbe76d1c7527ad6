"""Something of everything that two replicas of a gateway can be asked, so that every panel has something to show."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.support.patience import PATIENCE
from tests.support.processes import Gateway
from tests.support.raw import RawSession

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
ANSWER = {"action": "accept", "content": {"name": "Ann"}}
MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"


def one_round(here: Gateway, there: Gateway, plain: str) -> None:
    """A few requests of each kind, in sessions that are over at the end but for one."""
    session = RawSession(here.endpoint(), capabilities={"elicitation": {}, "roots": {"listChanged": True}})
    exposed = session.tools()
    assert "demo__echo" in exposed
    traced = {"name": "demo__echo", "arguments": {"text": "hi"}, "_meta": {"traceparent": f"00-{TRACE}-{'b' * 16}-01"}}
    for number in range(5):
        assert session.ask(10 + number, "tools/call", traced)["result"]
    assert session.ask(20, "tools/call", {"name": "demo__fail", "arguments": {}})["result"]["isError"]
    assert session.ask(21, "tools/call", {"name": "demo__invented", "arguments": {}})["error"]
    assert session.ask(22, "tools/call", {"name": "gone__echo", "arguments": {}})["error"]
    assert session.ask(23, "prompts/list")["result"]
    assert session.ask(24, "resources/list")["result"]
    elicit(session, 30)
    resume(session, 40)
    session.go_to(there.endpoint())
    assert session.ask(50, "tools/call", {"name": f"{plain}__echo", "arguments": {}})["result"]
    assert session.ask(51, "tools/call", {"name": f"{plain}__echo", "arguments": {}})["result"]
    assert session.end() in (200, 204)
    modern(there.endpoint(), "tools/call", "demo__echo", {"text": "hi"})
    modern(there.endpoint(), "tools/call", f"{plain}__echo", {})
    refused(here)
    RawSession(there.endpoint("demo")).tools()


def elicit(session: RawSession, number: int) -> None:
    """A call whose server asks something, which is answered."""
    with session.call(number, "demo__ask_name") as stream:
        for event in stream.events():
            message = event.message or {}
            if message.get("method") == "elicitation/create":
                session.post({"jsonrpc": "2.0", "id": message["id"], "result": ANSWER})
            elif message.get("id") == number:
                assert "Ann" in json.dumps(message)
                return
    raise AssertionError("the call had no answer")


def resume(session: RawSession, number: int) -> None:
    """A call whose stream is cut, and goes on; and one more that asks for what is not there."""
    first = session.call(number, "demo__slow_count", {"to": 3, "pause": 0.3}).first_with_id()
    assert first.id is not None
    session.listen(first.id).until_answer(number)
    connection = session.send("GET", None, {"Accept": "text/event-stream", "Last-Event-ID": "p99:1-1"})
    assert connection.getresponse().status >= 400
    connection.close()


def modern(url: str, method: str, name: str, arguments: dict[str, Any]) -> None:
    """A request without a session."""
    meta = {META + "protocolVersion": MODERN, META + "clientCapabilities": {}}
    meta[META + "clientInfo"] = {"name": "raw", "version": "1"}
    params = {"name": name, "arguments": arguments, "_meta": meta}
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": MODERN,
        "Mcp-Method": method,
        "Mcp-Name": name,
    }
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=PATIENCE) as answer:
        assert b'"result"' in answer.read()


def refused(gateway: Gateway) -> None:
    """What is no message."""
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    with pytest.raises(urllib.error.HTTPError, match="400") as refusal:
        urllib.request.urlopen(urllib.request.Request(gateway.endpoint(), b"{", headers), timeout=PATIENCE)
    refusal.value.close()
