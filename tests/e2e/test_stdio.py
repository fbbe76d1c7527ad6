"""`stagedoor stdio` as a process: official clients that start it, bad input, and every way in which it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked import Piped
from tests.support.patience import PATIENCE
from tests.support.processes import NODE_PACKAGES, ROOT, STAGEDOOR, stagedoor

DEMO = {"mcpServers": {"demo": {"native": "gateway.native.demo:server"}}}
INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
}
SDKS = sorted((ROOT / ".venv-sdks").glob("py-*/bin/python"))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(DEMO))
    return path


class Child:
    """The process, and a client that speaks with it line by line."""

    def __init__(self, process: Piped | subprocess.Popen[bytes]) -> None:
        self.process = process

    def write(self, *lines: bytes | dict[str, Any]) -> None:
        assert self.process.stdin is not None
        for line in lines:
            self.process.stdin.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, id: int, method: str, **params: Any) -> None:
        self.write({"jsonrpc": "2.0", "id": id, "method": method, "params": params})

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))

    def begin(self) -> None:
        self.ask(0, "initialize", **INITIALIZE)
        assert "result" in self.read()
        self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def end(self) -> tuple[int, bytes]:
        """Its status, and what was still on its standard output, once its input has ended."""
        rest, _ = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode is not None
        return self.process.returncode, rest


@contextmanager
def started(*options: str | os.PathLike[str], code: str = "") -> Iterator[Child]:
    process: Piped | subprocess.Popen[bytes]
    if code:
        command = [sys.executable, "-c", f"{code}\nfrom gateway.cli import main\nmain()", "stdio", *options]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    else:
        process = Piped(["stdio", *map(os.fspath, options)], os.environ, ROOT)
    try:
        yield Child(process)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("python", SDKS, ids=lambda path: path.parts[-3])
def test_released_python_clients_use_it(python: Path, config: Path) -> None:
    command = [python, "tests/sdks/duplex_client.py", "stdio", STAGEDOOR, "stdio", "--config", config]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert "demo__add" in seen["tools"]
    assert "5" in seen["text"]
    assert seen["failed"]


def test_the_typescript_client_uses_all_of_server_everything(node: Path, tmp_path: Path) -> None:
    everything = NODE_PACKAGES / "@modelcontextprotocol/server-everything/dist/index.js"
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"mcpServers": {"everything": {"command": str(node), "args": [str(everything)]}}}))
    place = "stdio:" + json.dumps([str(STAGEDOOR), "stdio", "--config", str(config)])
    command = [node, ROOT / "tests/node/sdk_client.mjs", place, "everything__"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["echo"] == "Echo: hello"
    assert seen["progress"] == [1, 2, 3]
    assert seen["asked"].count("sampling") == seen["asked"].count("elicitation") == 1
    assert seen["read"] == 1


def test_both_eras_are_served_on_one_stream(config: Path) -> None:
    with started("--config", config) as child:
        child.ask(1, "server/discover", _meta=META)
        assert "2026-07-28" in child.read()["result"]["supportedVersions"]
        child.begin()
        child.ask(2, "tools/call", name="demo__add", arguments={"terms": [2, 3]}, _meta=META)
        assert child.read()["result"]["resultType"] == "complete"
        child.ask(3, "tools/call", name="demo__add", arguments={"terms": [2, 3]})
        assert "resultType" not in child.read()["result"]
        assert child.end() == (0, b"")


def test_one_server_alone_is_served_as_it_is() -> None:
    with started("--native", "gateway.native.demo") as child:
        child.begin()
        child.ask(1, "tools/call", name="add", arguments={"terms": [2, 3]})
        assert "result" in child.read()


def test_a_request_that_is_too_large_gets_its_error_by_its_own_id(config: Path) -> None:
    with started("--config", config) as child:
        child.begin()
        call = {"method": "tools/call", "params": {"name": "demo__echo", "arguments": {"text": "x" * 5_000_000}}}
        child.write({"jsonrpc": "2.0", "id": 1, **call}, {**call, "jsonrpc": "2.0", "id": "two"})
        refused = [child.read(), child.read()]
        assert [(told["id"], told["error"]["code"]) for told in refused] == [(1, -32600), ("two", -32600)]
        assert child.end() == (0, b"")


def test_bad_lines_get_an_error_and_the_process_goes_on(config: Path) -> None:
    with started("--config", config) as child:
        child.begin()
        bad = {
            b"no JSON\n": -32700,
            b'{"jsonrpc": "2.0", "id": 1\n': -32700,
            b"\xff\xfe\n": -32700,
            b"[" * 200_000 + b"\n": -32700,
            b'"' + b"x" * 5_000_000 + b'"\n': -32600,
            b'{"jsonrpc": "2.0", "id": {}, "method": "ping"}\n': -32600,
        }
        for line, code in bad.items():
            child.write(b"\n  \r\n", line)
            assert child.read()["error"]["code"] == code, line[:40]
        child.ask(2, "ping")
        assert child.read() == {"jsonrpc": "2.0", "id": 2, "result": {}}


def test_large_messages_pass_whole_both_ways(config: Path) -> None:
    with started("--config", config) as child:
        child.begin()
        text = "x" * 3_000_000
        child.ask(1, "tools/call", name="demo__echo", arguments={"text": text})
        answer = child.read()
        assert text in json.dumps(answer), str(answer)[:300]


def test_at_the_end_of_its_input_it_answers_and_ends(config: Path) -> None:
    with started("--config", config) as child:
        child.begin()
        child.ask(1, "tools/call", name="demo__add", arguments={"terms": [2, 3]})
        status, rest = child.end()
    assert status == 0
    assert json.loads(rest)["id"] == 1


def test_a_last_line_without_its_end_is_read(config: Path) -> None:
    with started("--config", config) as child:
        child.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}')
        status, rest = child.end()
    assert (status, json.loads(rest)["id"]) == (0, 1)


def test_it_reads_from_a_file_and_writes_to_one(config: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
    with (tmp_path / "in").open("rb") as lines, (tmp_path / "out").open("wb") as out:
        command = [STAGEDOOR, "stdio", "--config", config]
        done = subprocess.run(command, stdin=lines, stdout=out, timeout=PATIENCE, check=False)
    assert done.returncode == 0
    assert json.loads((tmp_path / "out").read_text())["result"] == {}


def test_when_nobody_reads_its_output_any_more_it_ends(config: Path) -> None:
    with started("--config", config) as child:
        child.begin()
        assert child.process.stdout is not None
        child.process.stdout.close()
        child.ask(1, "ping")
        assert child.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_it(config: Path, number: signal.Signals) -> None:
    with started("--config", config) as child:
        child.begin()
        child.process.send_signal(number)
        assert child.process.wait(PATIENCE) == 0


def test_a_signal_ends_subscriptions_with_their_results_at_once(config: Path) -> None:
    with started("--config", config) as child:
        child.ask(1, "subscriptions/listen", notifications={"toolsListChanged": True}, _meta=META)
        assert child.read()["method"] == "notifications/subscriptions/acknowledged"
        child.process.send_signal(signal.SIGTERM)
        assert child.process.wait(PATIENCE) == 0
        assert child.process.stdout is not None
        result, cancelled = map(json.loads, child.process.stdout.read().splitlines())
        assert "result" in result
        assert cancelled["params"] == {"requestId": 1}


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-"])
def test_streams_that_are_closed_from_the_start_are_an_end_like_any_other(config: Path, closed: str) -> None:
    command = ["sh", "-c", f'exec "$0" stdio --config "$1" {closed}', STAGEDOOR, config]
    ping = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n'
    done = subprocess.run(command, input=ping, stdout=subprocess.PIPE, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (0, b"")


def test_what_a_library_prints_does_not_reach_the_client(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(
        "import os, sys\nfrom stagedoor import Server\nserver = Server('noisy')\nprint('at import')\n"
        "@server.tool\nasync def shout() -> str:\n    print('loud', flush=True)\n    os.system('echo louder; cat')\n"
        "    return 'done'\n"
    )
    with started("--native", "noisy", code=f"import sys; sys.path.insert(0, {str(tmp_path)!r})") as child:
        child.begin()
        child.ask(1, "tools/call", name="shout", arguments={})
        assert child.read()["result"]["content"][0]["text"] == "done"
        assert child.end() == (0, b"")


def test_wrong_usage_is_said_on_standard_error(tmp_path: Path) -> None:
    for options in ([], ["--config", "/no/such/file"], ["--native", "no.such.module"]):
        done = stagedoor("stdio", *options)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr


LIBRARIES = {
    "gateway.stdio": {"asyncio", "h11", "hypercorn", "prometheus_client", "quart", "quart_trio", "redis", "wsproto"},
    "gateway.app": {"asyncio", "jinja2", "prometheus_client", "quart", "quart_trio", "redis", "structlog"},
}
"""What each must start without, besides what is for pages, tables on a terminal and YAML."""


@pytest.mark.parametrize("module", LIBRARIES)
def test_what_is_not_used_is_not_loaded(module: str) -> None:
    look = f"import sys, gateway.cli, gateway.native, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=PATIENCE, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & (LIBRARIES[module] | {"opentelemetry", "rich", "structlog", "trio_websocket", "yaml"})


IDLE = (
    "gateway.http",
    "gateway.oauth",
    "gateway.backends.http",
    "gateway.backends.streamable_http",
    "gateway.backends.websocket",
    "gateway.wire.http",
    "gateway.wire.pool",
    "gateway.cli.accounts",
    "gateway.cli.audit",
    "gateway.cli.pin",
    "gateway.cli.sessions",
    "gateway.cli.status",
    "difflib",
    "httptools",
)
"""What `stdio` has no use for while no server is reached over a network."""


def test_a_start_loads_nothing_that_its_configuration_does_not_use(config: Path) -> None:
    code = (
        "import atexit, sys\n"
        "from gateway.cli import main\n"
        "from gateway.config.models import File\n"
        "assert not File.__pydantic_complete__, 'the models are built when a file is read, and all at once'\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "main()\n"
    )
    command = [sys.executable, "-c", code, "stdio"]
    ask = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE})
    done = subprocess.run(
        [*command, "--config", str(config)], input=ask, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert json.loads(done.stdout)["result"]
    assert not [name for name in done.stderr.split() if name.startswith(IDLE)]
