"""Why a server does not work is said by every command, and by the gateway's admin listener."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import processes
from tests.support.patience import PATIENCE
from tests.support.processes import Gateway, Programs, free_port

pytestmark = pytest.mark.e2e

Run = Callable[..., subprocess.CompletedProcess[str]]
COMPLAINT = "no database on this machine"
SERVERS = {
    "works": {"native": "gateway.native.demo:server"},
    "broken": {"command": sys.executable, "args": ["-c", f"import sys; sys.exit({COMPLAINT!r})"]},
    "missing": {"command": "no-such-command-here"},
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": {**SERVERS, "refused": {"url": f"http://127.0.0.1:{free_port()}/mcp"}}}))
    return file


@pytest.fixture
def stagedoor(tmp_path: Path) -> Run:
    def stagedoor(*words: object) -> subprocess.CompletedProcess[str]:
        # where the gateway of the test keeps its state
        return processes.stagedoor(*map(str, words), env={"XDG_STATE_HOME": str(tmp_path)})

    return stagedoor


def test_a_configuration_is_checked_by_connecting_to_each_server(config: Path, stagedoor: Run) -> None:
    done = stagedoor("check", "--connect", config)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert any(line.startswith("  works: works (stagedoor-demo") and "11 tools" in line for line in lines)
    assert "  broken: does not work: broken exited with status 1" in lines
    assert lines[lines.index("  broken: does not work: broken exited with status 1") + 1].strip() == COMPLAINT
    assert any(line.startswith("  missing: does not work") and "not found" in line for line in lines)
    assert any(line.startswith("  refused: does not work") and "Connection refused" in line for line in lines)


def test_rules_for_clients_do_not_count_for_whoever_has_the_file(tmp_path: Path, stagedoor: Run) -> None:
    rules = [{"who": {"principals": ["ann"]}, "allow": ["works:*"], "limits": {"works:*": "1/day"}}]
    gateway = {"auth": {"tokens": {"ann": "a" * 32}}, "policy": rules}
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": {"works": SERVERS["works"]}, "gateway": gateway}))
    done = stagedoor("check", "--connect", file)
    assert (done.returncode, "  works: works (stagedoor-demo" in done.stdout) == (0, True)
    assert "works__echo" in stagedoor("ls", "tools", "--config", file).stdout
    assert stagedoor("call", "works__echo", "--arg", "text=hi", "--config", file).stdout == "hi\n"


def test_what_is_listed_and_called_without_a_gateway_says_it_too(config: Path, stagedoor: Run) -> None:
    listed = stagedoor("ls", "tools", "--config", config)
    assert listed.returncode == 1
    assert "works__echo" in listed.stdout
    assert COMPLAINT in listed.stderr
    assert "server 'missing': command 'no-such-command-here' not found" in listed.stderr
    called = stagedoor("call", "broken__x", "--config", config)
    assert (called.returncode, called.stdout) == (1, "")
    assert "broken exited with status 1" in called.stderr
    assert COMPLAINT in called.stderr


@pytest.fixture
def dead(tmp_path: Path) -> Path:
    """A configuration of which nothing works."""
    file = tmp_path / "dead.json"
    file.write_text(json.dumps({"mcpServers": {name: SERVERS[name] for name in ("broken", "missing")}}))
    return file


def test_with_every_server_dead_a_list_says_the_reason_of_each(dead: Path, stagedoor: Run, programs: Programs) -> None:
    gateway: Gateway = programs.gateway(dead)
    for where in (("--url", gateway.endpoint()), ("--config", str(dead))):
        listed = stagedoor("ls", "tools", *where)
        assert (listed.returncode, listed.stdout) == (1, "")
        assert "broken exited with status 1" in listed.stderr
        assert COMPLAINT in listed.stderr
        assert "server 'missing': " in listed.stderr


def test_a_call_that_failed_says_whether_it_was_executed(dead: Path, stagedoor: Run, programs: Programs) -> None:
    gateway: Gateway = programs.gateway(dead)
    called = stagedoor("call", "x", "--url", gateway.endpoint("broken"))
    assert "the call was not executed" in called.stderr


def test_who_has_no_token_is_told_how_one_is_given(tmp_path: Path, stagedoor: Run, programs: Programs) -> None:
    file = tmp_path / "tokens.json"
    tokens = {"auth": {"tokens": {"ann": "a" * 32}}}
    file.write_text(json.dumps({"mcpServers": {"works": SERVERS["works"]}, "gateway": tokens}))
    where = ("--url", programs.gateway(file).endpoint())
    asked = stagedoor("ls", "tools", *where)
    assert asked.returncode == 1
    assert "401 Unauthorized (--token, or $STAGEDOOR_TOKEN)" in asked.stderr
    assert "it does not take this token" in stagedoor("ls", "tools", *where, "--token", "b" * 32).stderr
    assert stagedoor("ls", "tools", *where, "--token", "a" * 32).returncode == 0


def test_who_leaves_out_the_path_is_told_which_it_may_be(dead: Path, stagedoor: Run, programs: Programs) -> None:
    url = programs.gateway(dead).url
    assert f"no such endpoint (is it at {url}/mcp?)" in stagedoor("ls", "tools", "--url", url).stderr


def test_a_running_gateway_is_asked_by_the_address_that_clients_use(
    config: Path, stagedoor: Run, programs: Programs
) -> None:
    gateway: Gateway = programs.gateway(config)
    for name in ("broken", "missing", "refused", "works"):
        stagedoor("ls", "tools", "--url", gateway.endpoint(name))
    called = stagedoor("call", "x", "--url", gateway.endpoint("broken"))
    assert called.returncode == 1
    assert COMPLAINT in called.stderr
    listed = stagedoor("ls", "servers", "--url", gateway.endpoint(), "--json")
    assert listed.returncode == 1
    assert COMPLAINT in listed.stderr
    entries = {entry["name"]: entry for entry in json.loads(listed.stdout)}
    assert list(entries) == ["works", "broken", "missing", "refused"]
    assert (entries["works"]["status"], entries["works"]["era"]) == ("healthy", "legacy")
    assert entries["broken"]["error"]["stderr"] == [COMPLAINT]
    with urllib.request.urlopen(f"{gateway.admin}/readyz?verbose", timeout=PATIENCE) as response:
        assert json.loads(response.read())["servers"][1]["error"]["stderr"] == [COMPLAINT]


def test_a_port_in_use_is_one_sentence_without_a_stack(config: Path, stagedoor: Run, programs: Programs) -> None:
    gateway = programs.gateway(config)
    taken = gateway.url.removeprefix("http://")
    done = stagedoor("serve", config, "--listen", taken, "--admin", "127.0.0.1:0")
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if "configuration_warning" not in line]
    assert len(said) == 1
    assert f"the public listener can't listen on {taken}" in said[0]
