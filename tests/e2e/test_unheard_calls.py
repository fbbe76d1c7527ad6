"""Calls whose connection broke before their client had an event id, and which then ask: a server of the official SDK,
over stdio and over HTTP, and a client that counts on nothing but the next call."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.processes import Gateway, Programs, accepts, free_port
from tests.support.raw import RawSession

pytestmark = [pytest.mark.e2e, pytest.mark.node]  # the SDK of the handshake era is installed with the other SDKs

ENOUGH = 60.0
"""Seconds, of which a question without a stream has 5; a call may take 300."""


@pytest.fixture(params=["stdio", "http"])
def gateway(request: pytest.FixtureRequest, programs: Programs, interviewer: list[str]) -> Gateway:
    """In front of the interviewer, over either transport."""
    if request.param == "stdio":
        return programs.gateway({"mcpServers": {"interviewer": {"command": interviewer[0], "args": interviewer[1:]}}})
    port = free_port()
    programs.start("interviewer", [*interviewer, "--http", str(port)], ready=accepts(port))
    return programs.gateway({"mcpServers": {"interviewer": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}}})


@pytest.mark.parametrize("broken", ["before its answer is a stream", "before its stream has an event"])
def test_what_it_asks_holds_back_no_later_call(gateway: Gateway, broken: str) -> None:
    session = RawSession(gateway.endpoint("interviewer"), revision="2025-06-18", capabilities={"elicitation": {}})
    session.ask(1, "tools/call", {"name": "count", "arguments": {}})
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": 2, "method": "tools/call"}
    message["params"] = {"name": "late", "arguments": {"seconds": 1.5}}
    connection = session.post_and_leave(message)
    if broken == "before its answer is a stream":
        time.sleep(0.1)
    else:
        connection.getresponse()  # its head
    connection.close()
    begun = time.monotonic()
    answer = session.ask(3, "tools/call", {"name": "count", "arguments": {}})
    assert "result" in answer, answer
    assert time.monotonic() - begun < ENOUGH


def test_with_a_get_stream_its_user_is_asked_there(gateway: Gateway) -> None:
    session = RawSession(gateway.endpoint("interviewer"), revision="2025-06-18", capabilities={"elicitation": {}})
    with session.listen() as events:
        message = {"name": "late", "arguments": {"seconds": 1.5}}
        connection = session.post_and_leave({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": message})
        connection.getresponse()  # the head of its stream, before it asks
        connection.close()
        question = next(event.message for event in events.events() if event.message is not None)
        assert question["method"] == "elicitation/create"
        session.post({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}})
        assert "result" in session.ask(3, "tools/call", {"name": "count", "arguments": {}})
