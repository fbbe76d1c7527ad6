"""Commands as targets: how they start, end, and what they leave."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from gateway.client import ConnectionLostError, RequestFailedError
from stagedoor import open_client
from tests.support.patience import PATIENCE

ANSWERING = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "{refused}" == asked["method"]:
        sys.exit(1)
    if "id" not in asked or asked["method"] == "tools/call":
        continue
    info = {{"name": str(os.getpid()), "version": "1"}}
    result = {{"protocolVersion": "2025-11-25", "capabilities": {{}}, "serverInfo": info}}
    error = {{"code": -32601, "message": "no such method"}}
    answer = {{"result": result}} if asked["method"] in ("initialize", "ping") else {{"error": error}}
    print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], **answer}}), flush=True)
{last}
"""


def script(folder: Path, refused: str = "", last: str = "") -> list[str]:
    program = folder / "server.py"
    program.write_text(ANSWERING.format(refused=refused, last=last))
    return [sys.executable, str(program)]


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_process_that_ends_at_the_first_question_is_started_again(tmp_path: Path) -> None:
    async with open_client(script(tmp_path, refused="server/discover")) as client:
        assert client.protocol_version == "2025-11-25"
        await client.ping()


async def test_the_process_has_ended_when_the_block_has(tmp_path: Path) -> None:
    async with open_client(script(tmp_path)) as client:
        pid = int(client.server_info["name"])
        assert runs(pid)
    assert not runs(pid)


async def test_one_that_ignores_the_end_of_its_input_is_terminated(tmp_path: Path) -> None:
    last = "import time\nwhile True: time.sleep(1)"
    async with open_client(script(tmp_path, last=last)) as client:
        pid = int(client.server_info["name"])
    assert not runs(pid)


async def test_it_ends_with_a_block_that_is_cancelled(tmp_path: Path) -> None:
    with trio.move_on_after(PATIENCE) as scope:
        async with open_client(script(tmp_path)) as client:
            pid = int(client.server_info["name"])
            scope.cancel()
            await client.call_tool("never")
    assert not runs(pid)


async def test_every_wait_ends_when_the_process_is_gone(tmp_path: Path) -> None:
    async with open_client(script(tmp_path, refused="resources/read")) as client:
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:

                async def call() -> None:
                    with pytest.raises(ConnectionLostError) as lost:
                        await client.call_tool("never")
                    assert lost.value.code is None
                    assert lost.value.executed == "unknown"

                nursery.start_soon(call)
                nursery.start_soon(call)
                await trio.testing.wait_all_tasks_blocked()
                with pytest.raises(ConnectionLostError, match="exited with status 1"):
                    await client.read_resource("x://y")
        with pytest.raises(ConnectionLostError) as lost:
            await client.ping()
        assert lost.value.executed == "no"


async def test_what_it_wrote_to_its_standard_error_is_told() -> None:
    with pytest.raises(ConnectionLostError, match=r"(?s)exited with status 3.*no configuration"):
        async with open_client(["sh", "-c", "echo no configuration >&2; exit 3"]):
            pass
    with pytest.raises(ConnectionLostError, match="'no-such-command' not found"):
        async with open_client(["no-such-command"]):
            pass


LARGE = """
import json, sys
ANSWER = {"content": [{"type": "text", "text": "x" * 5_000_000}]}
for line in sys.stdin:
    asked = json.loads(line)
    name = asked.get("params", {}).get("name")
    if asked["method"] == "initialize":
        info = {"name": "large", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": info}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
    elif name == "first":
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": ANSWER}), flush=True)
    elif name == "last":
        print(json.dumps({"result": ANSWER, "jsonrpc": "2.0", "id": asked["id"]}), flush=True)
    elif name == "other":
        print("x" * 5_000_000, flush=True)
        for head in ({}, {"jsonrpc": "2.0"}):
            print(json.dumps({**head, "method": "notifications/message", "params": ANSWER}), flush=True)
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {"content": []}}), flush=True)
    elif name == "question":
        question = {"method": "sampling/createMessage", "params": ANSWER}
        print(json.dumps({"jsonrpc": "2.0", "id": "a", **question}), flush=True)
        heard = json.loads(sys.stdin.readline())
        text = [{"type": "text", "text": heard["id"] + ": " + heard["error"]["message"]}]
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {"content": text}}), flush=True)
    elif name == "nameless":
        print(json.dumps({"result": ANSWER, "id": asked["id"], "jsonrpc": "2.0", "more": ANSWER}), flush=True)
"""


async def test_an_answer_that_is_too_large_fails_its_call_and_harms_no_other(tmp_path: Path) -> None:
    program = tmp_path / "large.py"
    program.write_text(LARGE)
    with trio.fail_after(PATIENCE):
        async with open_client([sys.executable, str(program)], "2025-11-25") as client:
            for says_whose_it_is in ("first", "last"):
                with pytest.raises(RequestFailedError, match="bytes, and 4194304 are allowed") as failed:
                    await client.call_tool(says_whose_it_is)
                assert (failed.value.reason, failed.value.executed) == ("too_large", "unknown")
            assert (await client.call_tool("other")).content == [], "what is no answer is dropped"
            [heard] = (await client.call_tool("question")).content
            assert heard.text.startswith("a: ")
            assert "too large" in heard.text.lower()
            with pytest.raises(ConnectionLostError, match="bytes, and 4194304 are allowed"):
                await client.call_tool("nameless")  # whose it is was in the part that is not kept
