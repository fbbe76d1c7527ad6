"""Servers and clients that nobody here wrote, through the gateway: examples/everyday.jsonc and the official SDKs.

The Python SDK and the TypeScript SDK drive every feature through `/mcp`, where names have the server's name before
them, and through `/mcp/<server>`, which must look exactly like the server itself. The Inspector does what a person
would do with it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from mcp import Client, MCPError, StdioServerParameters
from mcp import types as t

from tests.support.patience import PATIENCE
from tests.support.processes import NODE_PACKAGES, ROOT, environment

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.node,
    # The SDK leaves iterators of its HTTP library to the garbage collector, and deprecates sampling and logging.
    pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*as of 2026-07-28"),
]


CALLS: dict[str, tuple[str, dict[str, Any], str]] = {
    "everything": ("echo", {"message": "hello"}, "Echo: hello"),
    "files": ("list_allowed_directories", {}, str(ROOT)),
    "time": ("get_current_time", {"timezone": "Europe/Paris"}, "Europe/Paris"),
    "git": ("git_status", {"repo_path": str(ROOT)}, "Repository status"),
    "everything-http": ("get-sum", {"a": 2, "b": 3}, "5"),
}
COMMANDS = {
    "everything": ["npx", "-y", "@modelcontextprotocol/server-everything", "stdio"],
    "files": ["npx", "-y", "@modelcontextprotocol/server-filesystem", "."],
    "time": ["uvx", "mcp-server-time"],
    "git": ["uvx", "mcp-server-git"],
}
ROUTES = {  # endpoint and what stands before server-everything's names there
    "aggregate-stdio": (None, "everything__"),
    "aggregate-http": (None, "everything-http__"),
    "own-stdio": ("everything", ""),
    "own-http": ("everything-http", ""),
}


@dataclass
class Person:
    """The person and the model behind a client: answers what servers ask, and remembers that they did."""

    asked: list[str] = field(default_factory=list)

    async def sample(self, _context: Any, params: t.CreateMessageRequestParams) -> t.CreateMessageResult:
        self.asked.append("sampling")
        return t.CreateMessageResult(role="assistant", model="test-model", content=t.TextContent(text="sampled answer"))

    async def elicit(self, _context: Any, params: t.ElicitRequestParams) -> t.ElicitResult:
        self.asked.append("elicitation")
        return t.ElicitResult(action="decline")

    async def roots(self, _context: Any) -> t.ListRootsResult:
        self.asked.append("roots")
        return t.ListRootsResult(roots=[t.Root(uri="file:///test/root", name="test root")])


@asynccontextmanager
async def connected(server: Any, person: Person | None = None, mode: str = "legacy") -> AsyncIterator[Client]:
    callbacks: dict[str, Any] = {}
    if person is not None:
        callbacks = {
            "sampling_callback": person.sample,
            "elicitation_callback": person.elicit,
            "list_roots_callback": person.roots,
        }
    with trio.fail_after(PATIENCE):
        async with Client(server, mode=mode, **callbacks) as client:
            yield client


def text_of(result: t.CallToolResult) -> str:
    return "\n".join(part.text for part in result.content if isinstance(part, t.TextContent))


async def every(lister: Callable[..., Any], key: str) -> list[Any]:
    """All pages of a list."""
    page = await lister()
    found = list(getattr(page, key))
    while page.next_cursor is not None:
        page = await lister(cursor=page.next_cursor)
        found += getattr(page, key)
    return found


async def tool_names(client: Client) -> set[str]:
    return {tool.name for tool in await every(client.list_tools, "tools")}


async def wait_for_tools(client: Client, wanted: set[str]) -> set[str]:
    """The names listed once all of `wanted` are: a server that starts slowly joins the list when it is there."""
    while True:
        names = await tool_names(client)
        if wanted <= names:
            return names
        await trio.sleep(0.2)


def direct(server: str, everything_url: str) -> Any:
    """How to reach a server without the gateway."""
    if server == "everything-http":
        return everything_url
    command, *arguments = COMMANDS[server]
    return StdioServerParameters(command=command, args=arguments, env=environment(), cwd=ROOT)


async def portrait(client: Client) -> dict[str, Any]:
    """Everything that a server says of itself, but for tasks, of which the gateway offers no lists."""
    capabilities = client.server_capabilities.model_copy(update={"tasks": None})
    seen: dict[str, Any] = {
        "info": client.server_info,
        "version": client.protocol_version,
        "instructions": client.instructions,
        "capabilities": capabilities,
        "tools": await every(client.list_tools, "tools"),
    }
    if capabilities.resources is not None:
        seen["resources"] = await every(client.list_resources, "resources")
        seen["templates"] = await every(client.list_resource_templates, "resource_templates")
    if capabilities.prompts is not None:
        seen["prompts"] = await every(client.list_prompts, "prompts")
    return seen


async def test_one_endpoint_serves_the_tools_of_all_servers(everyday: Any) -> None:
    async with connected(everyday.gateway.endpoint()) as client:
        await wait_for_tools(client, {f"{server}__{tool}" for server, (tool, _, _) in CALLS.items()})
        for server, (tool, arguments, expected) in CALLS.items():
            result = await client.call_tool(f"{server}__{tool}", arguments)
            assert not result.is_error, (server, result)
            assert expected in text_of(result), (server, result)


@pytest.mark.parametrize("server", CALLS)
async def test_a_server_behind_its_own_endpoint_looks_as_it_does_directly(server: str, everyday: Any) -> None:
    async with connected(direct(server, everyday.everything_url)) as client:
        expected = await portrait(client)
    async with connected(everyday.gateway.endpoint(server)) as client:
        assert await portrait(client) == expected
        tool, arguments, answer = CALLS[server]
        assert answer in text_of(await client.call_tool(tool, arguments))


@pytest.mark.parametrize(("backend", "prefix"), ROUTES.values(), ids=ROUTES)
async def test_what_a_server_asks_reaches_the_client_that_called(
    backend: str | None, prefix: str, everyday: Any
) -> None:
    person, progress = Person(), []

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        progress.append((done, total))

    async with connected(everyday.gateway.endpoint(backend), person) as client:
        await wait_for_tools(client, {f"{prefix}trigger-sampling-request", f"{prefix}trigger-elicitation-request"})
        sampled = await client.call_tool(f"{prefix}trigger-sampling-request", {"prompt": "question", "maxTokens": 10})
        assert "sampled answer" in text_of(sampled)
        declined = await client.call_tool(f"{prefix}trigger-elicitation-request", {})
        assert "declined" in text_of(declined)
        duration = {"duration": 0.6, "steps": 3}
        await client.call_tool(f"{prefix}trigger-long-running-operation", duration, progress_callback=on_progress)
        roots = await client.call_tool(f"{prefix}get-roots-list", {})
        assert "file:///test/root" in text_of(roots)
    assert {"sampling", "elicitation", "roots"} <= set(person.asked)
    assert progress == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(("backend", "prefix"), ROUTES.values(), ids=ROUTES)
async def test_resources_prompts_and_completion_pass(backend: str | None, prefix: str, everyday: Any) -> None:
    async with connected(everyday.gateway.endpoint(backend)) as client:
        await wait_for_tools(client, {f"{prefix}echo"})
        resources = await every(client.list_resources, "resources")
        mine = [resource for resource in resources if not prefix or resource.uri.startswith(prefix.removesuffix("__"))]
        assert mine
        read = await client.read_resource(mine[0].uri)
        assert [contents.uri for contents in read.contents] == [mine[0].uri]
        assert await every(client.list_resource_templates, "resource_templates")
        await client.subscribe_resource(mine[0].uri)
        await client.unsubscribe_resource(mine[0].uri)
        prompt = await client.get_prompt(f"{prefix}args-prompt", {"city": "Paris", "state": "Texas"})
        assert "Paris" in prompt.messages[0].content.text  # type: ignore[union-attr]
        completed = await client.complete(
            t.PromptReference(name=f"{prefix}completable-prompt"), {"name": "department", "value": "E"}
        )
        assert completed.completion.values == ["Engineering"]


async def test_a_client_without_sessions_uses_servers_that_have_them(everyday: Any) -> None:
    async with connected(everyday.gateway.endpoint("everything"), mode="auto") as client:
        assert client.protocol_version == "2026-07-28"
        assert "Echo: hello" in text_of(await client.call_tool("echo", {"message": "hello"}))


async def test_an_unknown_tool_is_an_error_and_the_session_goes_on(everyday: Any) -> None:
    async with connected(everyday.gateway.endpoint()) as client:
        with pytest.raises(MCPError):
            await client.call_tool("everything-no-such-tool", {})
        await wait_for_tools(client, {"time__get_current_time"})
        await client.send_ping()


def run_node(node: Path, *command: Any, within: float = PATIENCE) -> str:
    done = subprocess.run(
        [node, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=within,
        env=environment(),
        cwd=ROOT / "tests" / "node",
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.mark.parametrize(("backend", "prefix"), ROUTES.values(), ids=ROUTES)
def test_the_typescript_sdk_uses_every_feature(backend: str | None, prefix: str, everyday: Any, node: Path) -> None:
    output = run_node(node, "sdk_client.mjs", everyday.gateway.endpoint(backend), prefix)
    seen = json.loads(output)
    assert seen["session"]
    assert seen["protocol"] == "2025-11-25"
    assert seen["echo"] == "Echo: hello"
    assert f"{prefix}echo" in seen["tools"]
    assert seen["progress"] == [1, 2, 3]
    assert "sampled answer" in seen["sampling"]
    assert "declined" in seen["elicitation"]
    assert {"sampling", "elicitation"} <= set(seen["asked"])
    assert (seen["prompt"], seen["read"]) == (1, 1)
    assert seen["templates"] >= 2
    if backend is not None:
        assert seen["server"]["name"] == "mcp-servers/everything"


@pytest.mark.parametrize(("backend", "prefix"), ROUTES.values(), ids=ROUTES)
def test_the_inspector_lists_and_calls(backend: str | None, prefix: str, everyday: Any, node: Path) -> None:
    inspector = NODE_PACKAGES / "@modelcontextprotocol" / "inspector" / "clients" / "launcher" / "build" / "index.js"

    def inspect(*arguments: str) -> Any:
        target = ["--cli", everyday.gateway.endpoint(backend), "--transport", "http", "--format", "json"]
        return json.loads(run_node(node, inspector, *target, *arguments))

    called = inspect(
        "--method", "tools/call", "--tool-name", f"{prefix}echo", "--tool-arg", "message=hello from the Inspector"
    )
    assert "Echo: hello from the Inspector" in json.dumps(called)
    assert f"{prefix}echo" in json.dumps(inspect("--method", "tools/list"))
    assert f"{prefix}simple-prompt" in json.dumps(inspect("--method", "prompts/list"))
