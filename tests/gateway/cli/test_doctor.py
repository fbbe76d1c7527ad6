"""`stagedoor doctor`, with real servers."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from actors.protocol.definitions import written
from gateway.cli import cli, composed

SERVER = """
import json, subprocess, sys
words = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
helper = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=sys.argv[3:] == ["apart"])
kept = bytearray(int(sys.argv[1]))
reads = {"readOnlyHint": sys.argv[2] == "r"}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "heavy", "version": "1"}}
    modern = sys.argv[3:] == ["modern"]
    result = {
        "server/discover": {"resultType": "complete", "ttlMs": 0, "cacheScope": "private",
            "supportedVersions": ["2026-07-28"], **about} if modern else None,
        "initialize": None if modern else {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "heavy", "version": "1"},
        },
        "tools/list": {
            "resultType": "complete", "ttlMs": 0, "cacheScope": "private",
            "tools": [{"name": "t", "inputSchema": {"type": "object"}, "annotations": reads}]
        },
    }.get(asked["method"])
    error = {"error": {"code": -32601, "message": "no"}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **({"result": result} if result else error)}), flush=True)
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    program = tmp_path / "server.py"
    program.write_text(SERVER)
    heavy = {"command": sys.executable, "args": ["-S", str(program), str(80 * 1024 * 1024), "w"]}
    servers = {
        "heavy": heavy,
        "reader": {"command": sys.executable, "args": ["-S", str(program), "1", "r", "apart"]},
        "shared": {"command": sys.executable, "args": ["-S", str(program), "1", "w"], "sharing": "shared"},
        "far": {"url": "http://127.0.0.1:1/mcp"},
    }
    file = tmp_path / "stagedoor.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    return file


def run(*words: object):
    return CliRunner().invoke(cli, ["doctor", *map(str, words)], obj=composed)


def test_each_process_is_measured_with_what_it_has_started_and_advised_on(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what has left its group, as the browsers of servers do; and where there is no `ps`, as in small images."""
    if sys.platform == "linux":
        monkeypatch.setenv("PATH", "")
    done = run("--json", config)
    assert done.exit_code == 0, done.output
    found = {entry["name"]: entry for entry in json.loads(done.stdout)}
    assert list(found) == ["heavy", "reader", "shared"]
    assert [entry["processes"] for entry in found.values()] == [2, 2, 2]
    assert found["heavy"]["memory"] > 80 * 1024 * 1024 > found["reader"]["memory"] > 0
    assert '"principal"' in found["heavy"]["advice"]
    assert '"shared"' in found["reader"]["advice"]
    assert found["shared"]["advice"] == ""


def test_one_without_sessions_is_one_process_for_everybody_already_whatever_was_accepted(config: Path) -> None:
    file = json.loads(config.read_text())
    args = [*file["mcpServers"]["heavy"]["args"], "modern"]
    modern = {**file["mcpServers"]["heavy"], "args": args, "pins": "block"}
    config.write_text(json.dumps({"mcpServers": {"modern": modern}}))
    (config.parent / "stagedoor.lock").write_bytes(written({}))
    done = run("--json", config)
    assert done.exit_code == 0, done.output
    [found] = json.loads(done.stdout)
    assert (found["tools"], found["processes"], found["advice"]) == (1, 2, "")


def test_one_that_is_started_with_a_users_key_is_started_without(config: Path) -> None:
    file = json.loads(config.read_text())
    keyed = {**file["mcpServers"]["reader"], "auth": {"mode": "key", "variable": "SERVICE_KEY"}}
    auth = {"tokens": {"ann": "anns-token-of-some-length"}, "browser": {"mode": "token"}}
    config.write_text(json.dumps({"mcpServers": {"keyed": keyed}, "gateway": {"auth": auth}}))
    done = run("--json", config)
    assert done.exit_code == 0, done.output
    [found] = json.loads(done.stdout)
    assert (found["name"], found["processes"], found["tools"]) == ("keyed", 2, 1)
    assert "shared" not in found["advice"]


def test_one_that_does_not_start_is_named_and_the_others_are_examined(config: Path) -> None:
    file = json.loads(config.read_text())
    servers = {
        "broken": {
            "command": sys.executable,
            "args": ["-c", "import sys; print('no key', file=sys.stderr); sys.exit(3)"],
        }
    }
    servers["reader"] = file["mcpServers"]["reader"]
    config.write_text(json.dumps({"mcpServers": servers}))
    done = run(config)
    assert done.exit_code == 1
    assert "broken" in done.output
    assert "exited with status 3\n  no key\n" in done.output, "as other commands say why"
    assert done.stdout.splitlines()[0].startswith("reader\t2\t")


def test_without_a_process_it_says_so(tmp_path: Path) -> None:
    file = tmp_path / "stagedoor.json"
    file.write_text(json.dumps({"mcpServers": {"far": {"url": "http://127.0.0.1:1/mcp"}}}))
    done = run(file)
    assert done.exit_code == 0
    assert "no server of this configuration is a process" in done.output
