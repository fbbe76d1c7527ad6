"""The official SDKs' servers of 2026-07-28, which speak that revision alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from gateway.client import ClientError, InputError, VersionError
from stagedoor import open_client
from tests.matrix import story
from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.support.processes import ROOT, Programs, accepts

pytestmark = [pytest.mark.e2e, pytest.mark.node]

SERVERS = ROOT / "tests" / "matrix" / "servers"


def python(node: Path, folder: Path, programs: Programs) -> list[str]:
    return programs.forks("python", [sys.executable, SERVERS / "python_modern.py"])


def typescript(node: Path, folder: Path, programs: Programs) -> list[str]:
    story.write(folder)
    return [str(node), str(SERVERS / "typescript_modern.mjs"), str(folder)]


@pytest.fixture(scope="module", params=[python, typescript], ids=["python", "typescript"])
def command(
    request: pytest.FixtureRequest, node: Path, tmp_path_factory: pytest.TempPathFactory, shared_programs: Programs
) -> list[str]:
    made: Callable[[Path, Path, Programs], list[str]] = request.param
    return made(node, tmp_path_factory.mktemp("story"), shared_programs)


@pytest.fixture(scope="module", params=["command", "http"])
def target(request: pytest.FixtureRequest, command: list[str], shared_programs: Programs) -> Any:
    if request.param == "command":
        return command
    port = free_port()
    shared_programs.start("modern", [*command, "--http", str(port)], ready=accepts(port))
    return f"http://127.0.0.1:{port}/mcp"


async def test_a_conversation_without_sessions(target: Any) -> None:
    told: list[Any] = []
    seen: list[Any] = []
    handlers: Any = {
        "sampling": lambda params: "a hat",
        "elicitation": lambda params: {"action": "accept", "content": {"word": "seven"}},
        "roots": ["file:///home"],
        "log": told.append,
    }
    with trio.fail_after(PATIENCE):
        async with open_client(target, **handlers) as client:
            assert (client.protocol_version, client.server_info["name"]) == ("2026-07-28", "matrix")
            assert len(await client.list_tools()) > 10
            assert "a hat" in (await client.call_tool("sample")).text
            assert "file:///home" in (await client.call_tool("roots")).text
            assert "accept" in (await client.call_tool("elicit")).text
            await client.call_tool("progress", progress=lambda *step: seen.append(step))
            await client.call_tool("logs")
            async with client.subscribe("memo:///one") as updates:
                await client.call_tool("touch")
                assert (await anext(updates)).uri == "memo:///one"
            while '"cancelled":0' in (await client.call_tool("counted")).text.replace(" ", ""):
                with trio.move_on_after(0.3):  # again where the server had not begun by then
                    await client.call_tool("slow")
    assert len(seen) >= 2
    assert told[0]["data"] == "a warning"


async def test_what_nobody_can_answer_ends_the_call(command: list[str]) -> None:
    async with open_client(command) as client:
        with pytest.raises(ClientError) as failed:
            await client.call_tool("sample")
        assert isinstance(failed.value, InputError) or failed.value.code == -32021
        assert (await client.call_tool("counted")).text


async def test_what_a_handler_raises_ends_the_call(command: list[str]) -> None:
    def refuse(params: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("no")

    async with open_client(command, sampling=refuse) as client:
        with pytest.raises(KeyError):
            await client.call_tool("sample")
        assert (await client.call_tool("counted")).text


async def test_another_revision_is_not_to_be_had(command: list[str]) -> None:
    with pytest.raises(VersionError):
        async with open_client(command, "2025-11-25"):
            pass
