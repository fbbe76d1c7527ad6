"""`stagedoor run` as a process: a server in a file, on standard streams and over HTTP, loaded anew as it changes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from stagedoor import open_client
from tests.support.forked import Piped
from tests.support.patience import PATIENCE
from tests.support.processes import ROOT, STAGEDOOR, Programs, accepts, environment, free_port, stagedoor

pytestmark = pytest.mark.e2e

SERVER = """
from stagedoor import Server

server = Server("weather")
seen = []

@server.tool
async def forecast(city: str) -> str:
    seen.append(city)
    return f"{city}: rain, asked {len(seen)} times"
"""
INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


@pytest.fixture
def server(tmp_path: Path) -> Path:
    file = tmp_path / "weather.py"
    file.write_text(SERVER)
    return file


@contextmanager
def started(*words: str | Path) -> Iterator[Piped]:
    process = Piped([str(word) for word in words], environment(), ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(id: int, method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\n"


def test_on_the_standard_streams_it_answers_what_it_was_asked_and_ends_with_its_input(server: Path) -> None:
    with started("run", server) as process:
        ready = b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n'
        call = line(2, "tools/call", name="forecast", arguments={"city": "Bergen"})
        process.stdin.write(line(1, "initialize", **INITIALIZE) + ready + call)
        out, _ = process.communicate(PATIENCE)
        first, second = map(json.loads, out.splitlines())
    assert first["result"]["serverInfo"]["name"] == "weather"
    assert second["result"]["content"][0]["text"] == "Bergen: rain, asked 1 times"
    assert process.returncode == 0


@pytest.mark.parametrize("end", ["a signal", "a closed output"])
def test_it_ends_in_order_when_it_is_told_to_or_nobody_reads(end: str, server: Path) -> None:
    with started("run", f"{server}:server") as process:
        process.stdin.write(line(1, "initialize", **INITIALIZE))
        process.stdin.flush()
        process.stdout.readline()
        if end == "a signal":
            process.send_signal(signal.SIGTERM)
        else:
            process.stdout.close()
            process.stdin.write(line(2, "ping"))
            process.stdin.flush()
        assert process.wait(PATIENCE) == 0


def test_a_server_whose_module_fails_ends_the_command_with_its_traceback(server: Path) -> None:
    server.write_text("raise RuntimeError('in the module')")
    done = stagedoor("run", server)
    assert (done.returncode, done.stdout) == (1, "")
    assert "RuntimeError: in the module" in done.stderr


async def test_over_http_sessions_of_both_eras_stay_while_it_is_loaded_anew(server: Path, programs: Programs) -> None:
    port = free_port()
    command = [str(STAGEDOOR), "run", str(server), "--http", f"127.0.0.1:{port}", "--reload"]
    program = await trio.to_thread.run_sync(lambda: programs.start("run", command, ready=accepts(port), fork=True))
    url = f"http://127.0.0.1:{port}/mcp"
    with trio.fail_after(PATIENCE):
        async with open_client(url, "2025-11-25") as legacy, open_client(url, "2026-07-28") as modern:
            for client in (legacy, modern):
                assert [tool.name async for tool in client.list_tools()] == ["forecast"]
            server.write_text("def (")
            await trio.to_thread.run_sync(program.wait_output, "not_reloaded")
            assert "invalid syntax" in program.output()
            assert (await legacy.call_tool("forecast", {"city": "Bergen"})).text == "Bergen: rain, asked 1 times"
            server.write_text(SERVER.replace("forecast", "tomorrow").replace("rain", "sun"))
            await trio.to_thread.run_sync(program.wait_output, '"reloaded"')
            for number, client in enumerate((legacy, modern), 1):
                assert [tool.name async for tool in client.list_tools()] == ["tomorrow"]
                answer = await client.call_tool("tomorrow", {"city": "Oslo"})
                assert answer.text == f"Oslo: sun, asked {number} times"
        status = await trio.to_thread.run_sync(program.stop)
    assert status == 0


def test_it_is_listed_and_called_without_a_gateway(server: Path) -> None:
    for words, said in (("ls", "tools"), "forecast"), (("call", "forecast", "--arg", "city=Rome"), "Rome: rain"):
        command = [sys.executable, "-m", "stagedoor", *words, "--native", str(server)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True, cwd=ROOT)
        assert done.stdout.startswith(said)
