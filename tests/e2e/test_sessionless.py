"""Clients without sessions of the official SDK, in front of a server of the official SDK that has them: every kind of
question through the gateway, over stdio and over HTTP, and one execution however often the client has to come back."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from mcp import Client
from mcp import types as t

from tests.support.patience import PATIENCE
from tests.support.processes import Gateway, Programs, accepts, free_port

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.node,  # the SDK of the handshake era is installed with the other SDKs
    pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*as of 2026-07-28"),
]

VERSION = "2026-07-28"


@pytest.fixture(params=["stdio", "http"])
def config(request: pytest.FixtureRequest, programs: Programs, interviewer: list[str]) -> dict[str, Any]:
    """The interviewer, over either transport."""
    if request.param == "stdio":
        return {"mcpServers": {"interviewer": {"command": interviewer[0], "args": interviewer[1:]}}}
    port = free_port()
    programs.start("interviewer", [*interviewer, "--http", str(port)], ready=accepts(port))
    return {"mcpServers": {"interviewer": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}}}


@pytest.fixture
def gateway(config: dict[str, Any], programs: Programs) -> Gateway:
    """The gateway in front of the interviewer."""
    return programs.gateway(config)


class Person:
    """Answers everything, and remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def elicit(self, _context: Any, params: t.ElicitRequestParams) -> t.ElicitResult:
        self.asked.append(params.message)
        return t.ElicitResult(action="accept", content={"name": "Ada"} if "name" in params.message else {"sure": True})

    async def sample(self, _context: Any, params: t.CreateMessageRequestParams) -> t.CreateMessageResult:
        self.asked.append("sampling")
        return t.CreateMessageResult(role="assistant", model="m", content=t.TextContent(text="hello"))

    async def roots(self, _context: Any) -> t.ListRootsResult:
        self.asked.append("roots")
        return t.ListRootsResult(roots=[t.Root(uri="file:///home/ada")])


@asynccontextmanager
async def connected(url: str, person: Person) -> AsyncIterator[Client]:
    with trio.fail_after(PATIENCE):
        async with Client(
            url,
            mode=VERSION,
            elicitation_callback=person.elicit,
            sampling_callback=person.sample,
            list_roots_callback=person.roots,
        ) as client:
            yield client


def text_of(result: t.CallToolResult) -> str:
    return "\n".join(part.text for part in result.content if isinstance(part, t.TextContent))


@pytest.mark.parametrize("endpoint", ["own", "aggregate"])
async def test_an_interview_of_several_rounds(gateway: Gateway, endpoint: str) -> None:
    person = Person()
    url = gateway.endpoint("interviewer" if endpoint == "own" else None)
    prefix = "" if endpoint == "own" else "interviewer__"
    async with connected(url, person) as client:
        assert client.protocol_version == VERSION
        while not (tools := (await client.list_tools()).tools):  # a server that starts slowly is there when it is there
            await trio.sleep(0.2)
        assert {f"{prefix}{name}" for name in ("interview", "late", "count")} == {tool.name for tool in tools}
        said = text_of(await client.call_tool(f"{prefix}interview", {"topic": "tea"}))
        assert said == "Ada says hello at file:///home/ada: True (1)"
        assert text_of(await client.call_tool(f"{prefix}count", {})) == "1"
    assert "sampling" in person.asked
    assert sum("name" in asked for asked in person.asked) == 1
    labelled = ["interviewer" in asked for asked in person.asked if "?" in asked]
    assert all(labelled) if endpoint == "aggregate" else not any(labelled)


def post(url: str, name: str, **more: Any) -> dict[str, Any]:
    """A request of a client that has nothing but HTTP."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    }
    params = {"name": name, "arguments": {"topic": "tea"} if name == "interview" else {}, "_meta": meta, **more}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": VERSION,
        "mcp-method": "tools/call",
        "mcp-name": name,
    }
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=PATIENCE) as answer:
            found = answer.read()
    except urllib.error.HTTPError as refused:
        found = refused.read()
    lines = [line[5:] for line in found.splitlines() if line.startswith(b"data:")]
    message: dict[str, Any] = json.loads(lines[-1] if lines else found)
    return message


def test_a_state_that_was_used_or_changed_executes_nothing(gateway: Gateway) -> None:
    url = gateway.endpoint("interviewer")
    asked = post(url, "interview")["result"]
    assert asked["resultType"] == "input_required"
    (key,) = asked["inputRequests"]
    state = asked["requestState"]
    answer = {key: {"action": "decline"}}
    broken = state[:-2] + ("AA" if state[-2:] != "AA" else "BB")
    assert post(url, "interview", requestState=broken, inputResponses=answer)["error"]["code"] == -32602
    other = {"arguments": {"topic": "coffee"}, "requestState": state, "inputResponses": answer}
    assert post(url, "interview", **other)["error"]["code"] == -32602
    assert post(url, "count", requestState=state, inputResponses=answer)["error"]["code"] == -32602
    done = post(url, "interview", requestState=state, inputResponses=answer)
    assert done["result"]["content"][0]["text"] == "nobody (1)"
    assert post(url, "interview", requestState=state, inputResponses=answer)["error"]["code"] == -32602
    assert post(url, "count")["result"]["content"][0]["text"] == "1"


@pytest.mark.redis
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_after_a_restart_nothing_is_there_to_come_back_to_and_nothing_runs_again(
    number: signal.Signals, redis_url: str, programs: Programs, config: dict[str, Any]
) -> None:
    first = programs.gateway(config, "--store", redis_url)
    asked = post(first.endpoint("interviewer"), "interview")["result"]
    (key,) = asked["inputRequests"]
    first.program.stop(number)
    second = programs.gateway(config, "--store", redis_url, in_place_of=first)
    answers = {"requestState": asked["requestState"], "inputResponses": {key: {"action": "decline"}}}
    assert post(second.endpoint("interviewer"), "interview", **answers)["error"]["code"] == -32602
    over_http = "url" in config["mcpServers"]["interviewer"]
    assert post(second.endpoint("interviewer"), "count")["result"]["content"][0]["text"] == ("1" if over_http else "0")
    again = post(second.endpoint("interviewer"), "interview")["result"]
    assert again["resultType"] == "input_required"


@pytest.mark.redis
def test_a_retry_may_come_to_any_replica(redis_url: str, programs: Programs, config: dict[str, Any]) -> None:
    """Both reach one connection to the server, over stdio one process; what waits there is gone with its replica."""
    shared = {**config, "gateway": {"keys": ["a" * 43]}}
    first, second = (programs.gateway(shared, "--store", redis_url) for _ in range(2))
    here, there = (gateway.endpoint("interviewer") for gateway in (first, second))
    asked = post(here, "interview")["result"]
    (key,) = asked["inputRequests"]
    decline = {"requestState": asked["requestState"], "inputResponses": {key: {"action": "decline"}}}
    assert post(there, "interview", **decline)["result"]["content"][0]["text"] == "nobody (1)"
    assert post(here, "interview", **decline)["error"]["code"] == -32602
    assert [post(url, "count")["result"]["content"][0]["text"] for url in (there, here)] == ["1", "1"]
    asked = post(there, "interview")["result"]
    (key,) = asked["inputRequests"]
    first.program.stop(signal.SIGKILL)
    answers = {"requestState": asked["requestState"], "inputResponses": {key: {"action": "decline"}}}
    assert post(there, "interview", **answers)["error"]["code"] == -32602
    over_http = "url" in config["mcpServers"]["interviewer"]
    assert post(there, "count")["result"]["content"][0]["text"] == ("2" if over_http else "0")
