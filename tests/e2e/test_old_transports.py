"""Servers of other people behind HTTP+SSE and WebSocket: through the gateway, for official clients of both eras, and
by our own client."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import trio
from mcp import Client, MCPError
from mcp import types as t

from stagedoor import open_client
from tests.support.patience import PATIENCE
from tests.support.processes import NODE_PACKAGES, ROOT, Gateway, Programs, accepts, free_port, need

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*as of 2026-07-28"),
]

PYTHON = ROOT / ".venv-sdks" / "py-1.27" / "bin" / "python"
PROGRAM = Path(__file__).with_name("old_transports.py")
EVERYTHING = NODE_PACKAGES / "@modelcontextprotocol/server-everything/dist/index.js"
MODES = ("legacy", "2026-07-28")

SERVERS: dict[str, dict[str, Any]] = {
    "sse": {"type": "sse", "url": "http://127.0.0.1:{}/sse"},
    "found": {"url": "http://127.0.0.1:{}/sse"},
    "ws": {"url": "ws://127.0.0.1:{}/ws"},
}
SDKS = {"1.27": PYTHON, "2": Path(sys.executable)}


@pytest.fixture(scope="module")
def forks(shared_programs: Programs) -> Callable[[Path], list[str]]:
    """The server on an SDK, by its Python: a program that starts at once."""
    return cache(lambda python: shared_programs.forks(python.parts[-3], [python, PROGRAM]))


def beside(
    programs: Programs, forks: Callable[[Path], list[str]], kind: str, python: Path = PYTHON
) -> tuple[Gateway, Any, str]:
    """The gateway in front of the server on the official Python SDK; how to start that again, and where it is."""
    need(python.exists(), f"{python} is")
    has_it = subprocess.run([python, "-c", "import websockets"], check=False, capture_output=True).returncode == 0
    need(kind != "ws" or has_it, "websockets for the SDK's WebSocket server is")
    port = free_port()
    command = [*forks(python), "ws" if kind == "ws" else "sse", str(port)]
    url = str(SERVERS[kind]["url"]).format(port)
    gateway = programs.gateway({"mcpServers": {"old": {**SERVERS[kind], "url": url}}})

    def start() -> None:
        programs.start(kind, command, ready=accepts(port))

    return gateway, start, url


def text_of(result: t.CallToolResult) -> str:
    return "\n".join(part.text for part in result.content if isinstance(part, t.TextContent))


async def elicit(_context: Any, params: t.ElicitRequestParams) -> t.ElicitResult:
    return t.ElicitResult(action="accept", content={"name": "Ada"})


def named(params: dict[str, Any]) -> dict[str, Any]:
    return {"action": "accept", "content": {"name": "Ada"}}


async def sample(_context: Any, params: t.CreateMessageRequestParams) -> t.CreateMessageResult:
    return t.CreateMessageResult(role="assistant", model="m", content=t.TextContent(text="hello"))


def client_of(gateway: Gateway, mode: str, server: str | None = None) -> Client:
    return Client(
        gateway.endpoint(server),
        mode=mode,  # type: ignore[arg-type]
        elicitation_callback=elicit,
        sampling_callback=sample,
    )


@pytest.mark.parametrize(("kind", "sdk"), [*((kind, "1.27") for kind in SERVERS), ("sse", "2")])
async def test_the_official_sdk_s_server_serves_clients_of_either_era_and_ours(
    programs: Programs, forks: Callable[[Path], list[str]], kind: str, sdk: str
) -> None:
    gateway, start, url = beside(programs, forks, kind, SDKS[sdk])
    start()
    progress: list[float] = []

    async def report(done: float, total: float | None, message: str | None) -> None:
        progress.append(done)

    for mode in MODES:
        with trio.fail_after(PATIENCE):
            async with client_of(gateway, mode) as client:
                assert "old__echo" in {tool.name for tool in (await client.list_tools()).tools}
                assert text_of(await client.call_tool("old__echo", {"text": "a\u2028ü"})) == "a\u2028ü"
                assert text_of(await client.call_tool("old__greet", {})) == "hello Ada"
                await client.call_tool("old__count", {}, progress_callback=report)
                assert progress == [0, 1, 2]
                progress.clear()
                resources = (await client.list_resources()).resources
                assert (await client.read_resource(str(resources[0].uri))).contents
    with trio.fail_after(PATIENCE):
        async with open_client(url, sampling=lambda params: "hello", elicitation=named) as own:
            assert (await own.call_tool("greet")).text == "hello Ada"
            await own.call_tool("count", progress=lambda *step: progress.append(step[0]))
            assert progress == [0, 1, 2]


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_call_whose_server_dies_may_have_been_executed_and_the_next_one_finds_another(
    programs: Programs, forks: Callable[[Path], list[str]], kind: str
) -> None:
    gateway, start, _ = beside(programs, forks, kind)
    start()
    with trio.fail_after(PATIENCE):
        async with client_of(gateway, "legacy", "old") as client:
            with pytest.raises(MCPError) as caught:
                await client.call_tool("die", {})
            assert caught.value.error.data["executed"] == "unknown"
            start()
            unreached: list[str] = []
            while True:
                try:
                    assert text_of(await client.call_tool("echo", {"text": "again"})) == "again"
                    break
                except MCPError as error:
                    unreached.append(error.error.data["executed"])
                    await trio.sleep(0.2)
            assert set(unreached) <= {"no"}


EVERYTHINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "sse": ("sse", {"type": "sse", "url": "http://127.0.0.1:{}/sse"}),
    "found": ("sse", {"url": "http://127.0.0.1:{}/sse"}),
    "http": ("streamableHttp", {"url": "http://127.0.0.1:{}/mcp"}),
}


@pytest.mark.parametrize(("mode", "config"), EVERYTHINGS.values(), ids=EVERYTHINGS)
async def test_server_everything_over_its_other_transports(
    programs: Programs, node: Path, mode: str, config: dict[str, Any]
) -> None:
    """It is on the official TypeScript SDK 1.x. Through the gateway, and by our own client."""
    port = free_port()
    programs.start("everything", [node, EVERYTHING, mode], env={"PORT": str(port)}, ready=accepts(port))
    url = str(config["url"]).format(port)
    gateway = programs.gateway({"mcpServers": {"everything": {**config, "url": url}}})
    for era in MODES:
        with trio.fail_after(PATIENCE):
            async with client_of(gateway, era, "everything") as client:
                assert text_of(await client.call_tool("echo", {"message": "hi"})) == "Echo: hi"
                assert (await client.list_prompts()).prompts
    with trio.fail_after(PATIENCE):
        async with open_client(url, sampling=lambda params: "a hat") as own:
            assert own.protocol_version == "2025-11-25"
            assert (await own.call_tool("echo", {"message": "hi"})).text == "Echo: hi"
            asked = await own.call_tool("trigger-sampling-request", {"prompt": "what?", "maxTokens": 9})
            assert "a hat" in asked.text
