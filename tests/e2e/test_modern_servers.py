"""Clients of the official SDK, of either era, in front of its server without sessions (or with both eras): over stdio
and over HTTP, through the gateway, which finds out by itself what it speaks to."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from mcp import Client, MCPError
from mcp import types as t

from tests.support.patience import PATIENCE
from tests.support.processes import ROOT, Gateway, Programs, accepts, free_port

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*as of 2026-07-28"),
]

FIXTURE = str(ROOT / "tests" / "conformance" / "fixture")
MODERN = "2026-07-28"


@pytest.fixture(scope="module")
def fixture(shared_programs: Programs) -> list[str]:
    """Starts the server at once."""
    return shared_programs.forks("fixture", [sys.executable, FIXTURE])


@pytest.fixture(scope="module", params=["stdio-modern", "http-modern", "stdio-dual", "http-dual"])
def gateway(request: pytest.FixtureRequest, fixture: list[str], shared_programs: Programs) -> Gateway:
    """The gateway in front of the server."""
    transport, era = request.param.split("-")
    server: dict[str, Any] = {"command": fixture[0], "args": [*fixture[1:], "--era", era]}
    if transport == "http":
        port = free_port()
        shared_programs.start("far", [*fixture, "--era", era, "--http", str(port)], ready=accepts(port))
        server = {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}
    return shared_programs.gateway({"mcpServers": {"far": server}})


class Person:
    """Answers everything, and remembers what was asked and told."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.told: list[str] = []
        self.logged: list[Any] = []

    async def elicit(self, _context: Any, params: t.ElicitRequestParams) -> t.ElicitResult:
        self.asked.append("elicitation")
        return t.ElicitResult(action="accept", content={"response": "yes", "name": "Ada"})

    async def sample(self, _context: Any, params: t.CreateMessageRequestParams) -> t.CreateMessageResult:
        self.asked.append("sampling")
        return t.CreateMessageResult(role="assistant", model="m", content=t.TextContent(text="hello"))

    async def log(self, params: t.LoggingMessageNotificationParams) -> None:
        self.logged.append(params.data)

    async def hear(self, message: Any) -> None:
        self.told.append(getattr(message, "method", ""))


@asynccontextmanager
async def connected(gateway: Gateway, endpoint: str, mode: str, person: Person) -> AsyncIterator[Client]:
    with trio.fail_after(PATIENCE):
        async with Client(
            gateway.endpoint("far" if endpoint == "own" else None),
            mode=mode,  # type: ignore[arg-type]
            elicitation_callback=person.elicit,
            sampling_callback=person.sample,
            logging_callback=person.log,
            log_level="info",
            message_handler=person.hear,
        ) as client:
            yield client


def text_of(result: t.CallToolResult) -> str:
    return "\n".join(part.text for part in result.content if isinstance(part, t.TextContent))


async def converse(client: Client, prefix: str, person: Person) -> None:
    names = {tool.name for tool in (await client.list_tools()).tools}
    assert f"{prefix}test_simple_text" in names
    said = text_of(await client.call_tool(f"{prefix}test_simple_text", {}))
    assert said == "This is a simple text response for testing."
    assert "yes" in text_of(await client.call_tool(f"{prefix}test_elicitation", {"message": "sure?"}))
    assert "hello" in text_of(await client.call_tool(f"{prefix}test_sampling", {"prompt": "hi"}))
    assert person.asked == ["elicitation", "sampling"]
    progress: list[float] = []

    async def report(done: float, total: float | None, message: str | None) -> None:
        progress.append(done)

    await client.call_tool(f"{prefix}test_tool_with_progress", {}, progress_callback=report)
    assert progress == [0, 50, 100]
    assert (await client.call_tool(f"{prefix}test_error_handling", {})).is_error
    resources = (await client.list_resources()).resources
    assert (await client.read_resource(str(resources[0].uri))).contents
    assert (await client.list_prompts()).prompts
    with pytest.raises(MCPError):
        await client.read_resource("nowhere://at/all")


async def test_a_server_without_sessions_serves_clients_of_either_era(gateway: Gateway) -> None:
    for mode in ("legacy", MODERN):
        for endpoint, prefix in (("own", ""), ("aggregate", "far__")):
            person = Person()
            async with connected(gateway, endpoint, mode, person) as client:
                await converse(client, prefix, person)


async def test_changes_are_heard_and_mirrored_arguments_arrive(gateway: Gateway) -> None:
    person = Person()
    async with connected(gateway, "own", "legacy", person) as client:
        [tool] = [tool for tool in (await client.list_tools()).tools if tool.name == "test_x_mcp_header"]
        arguments = dict.fromkeys(tool.input_schema["properties"], "r\u00e9gion")
        assert not (await client.call_tool("test_x_mcp_header", arguments)).is_error
        await client.call_tool("test_trigger_tool_change", {})
        while "notifications/tools/list_changed" not in person.told:
            await trio.sleep(0.05)
