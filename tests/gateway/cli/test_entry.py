import gc
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gateway import cli
from gateway.observability import logging
from tests.support.patience import PATIENCE


def test_the_package_can_be_run_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "stagedoor", "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: stagedoor ")


@pytest.mark.parametrize("closed", ["2>&-", "0<&- >&- 2>&-"])
def test_it_runs_with_standard_streams_that_are_closed(tmp_path: Path, closed: str) -> None:
    file = tmp_path / "c.json"
    file.write_text('{"mcpServers": {"fx": {"command": "sh"}}, "gateway": {"admin": "0.0.0.0:7001"}}')
    words = [sys.executable, "-m", "stagedoor", "check", str(file)]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert ("can be served" in done.stdout) is (">&- 2" not in closed)


def test_the_public_api_is_that_of_servers_in_the_process() -> None:
    import gateway.native
    import stagedoor

    assert all(getattr(stagedoor, name) is getattr(gateway.native, name) for name in gateway.native.__all__)


def test_composition_has_the_parts_that_the_commands_need(monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway import app, stdio
    from gateway.cli import composed

    names = {
        name: (app, name) for name in ("run", "run_alone", "open_client", "ask_gateway", "supervise", "work", "operate")
    }
    for part, (module, name) in (names | {"stdio": (stdio, "serve_stdio")}).items():
        assert callable(getattr(module, name))
        monkeypatch.setattr(module, name, lambda *given, part=part: (part, given))
        assert getattr(composed(), part)(1, 2) == (part, (1, 2))


@pytest.mark.e2e
def test_where_nobody_answers_one_line_says_so() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers, and nobody else can take the port
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/mcp"
        command = [sys.executable, "-m", "stagedoor", "ls", "tools", "--url", url]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert url.removesuffix("/mcp") in done.stderr


@pytest.mark.parametrize("words", [("serve",), ("run", "gateway.native.demo")], ids=lambda words: words[0])
def test_garbage_is_collected_while_it_serves(words: tuple[str, ...]) -> None:
    code = (
        "import gc, sys, trio\n"
        "from gateway.cli import main\n"
        "trio.run = lambda *given, **more: print(gc.isenabled(), file=sys.stderr) or 0\n"
        "main()\n"
    )
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "True\n")


def test_nothing_large_is_imported_before_garbage_is_left_alone() -> None:
    look = "import sys, gateway.cli, stagedoor; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert not {"trio", "pydantic", "msgspec", "gateway.native", "gateway.config"} & set(done.stdout.split())


@pytest.mark.parametrize(("pid", "ends"), [(1, [143]), (2, [])])
def test_the_first_process_of_a_container_ends_when_it_is_told_to_while_it_loads(
    monkeypatch: pytest.MonkeyPatch, pid: int, ends: list[int]
) -> None:
    ended: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    monkeypatch.setattr(os, "getpid", lambda: pid)
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(cli, "cli", lambda **_: signal.raise_signal(signal.SIGTERM))
    monkeypatch.setattr(gc, "disable", lambda: None)
    monkeypatch.setattr(logging, "configure", lambda *_: None)
    try:
        cli.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended == ends
