import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

ROOT = Path(__file__).parents[3]


def test_a_file_that_can_be_served_is_fine(stagedoor: Callable[..., Result], file: Callable[[str], str]) -> None:
    result = stagedoor("check", file('{"mcpServers": {"fx": {"command": "sh", "groups": ["g"]}}}'))
    assert result.exit_code == 0
    assert result.stdout.endswith("can be served: /mcp /mcp/fx /mcp/g\n")
    assert result.stderr == ""


def test_every_problem_is_a_line_with_file_line_field_and_nearest_key(
    stagedoor: Callable[..., Result], file: Callable[[str], str]
) -> None:
    name = file('{\n"mcpServers": {"fx": {"comand": "sh"}},\n"gateway": {"listen": 1}}')
    result = stagedoor("check", name)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert f'error: {name}:2: mcpServers.fx.comand: unknown key; did you mean "command"?\n' in result.stderr
    assert f"error: {name}:3: gateway.listen: must be text (in quotes)\n" in result.stderr


@pytest.mark.parametrize("command", [["check"], ["serve", "--config"]])
def test_a_server_whose_name_holds_the_separator_is_neither_fine_nor_served(
    stagedoor: Callable[..., Result], file: Callable[[str], str], command: list[str]
) -> None:
    result = stagedoor(*command, file('{"mcpServers": {"a__b": {"command": "sh"}}}'))
    assert result.exit_code == 2
    assert 'mcpServers.a__b: the name holds the separator "__"' in result.stderr


@pytest.mark.parametrize("command", ["check", "doctor", "pin"])
def test_a_file_may_be_named_as_config_too(
    stagedoor: Callable[..., Result], file: Callable[[str], str], command: str
) -> None:
    name = file('{"mcpServers": {"fx": {"comand": "sh"}}}')
    plain, named = stagedoor(command, name), stagedoor(command, "--config", name)
    assert "comand: unknown key" in plain.stderr
    assert (named.exit_code, named.stderr) == (plain.exit_code, plain.stderr)
    nameless = stagedoor(command, "")
    assert (nameless.exit_code, nameless.stderr.startswith("error: ")) == (2, True)
    assert "says which servers" in stagedoor(command).stderr
    assert "says which servers" in stagedoor(command, name, "--config", name).stderr


def test_programs_get_the_same_as_json(stagedoor: Callable[..., Result], file: Callable[[str], str]) -> None:
    name = file('{\n"gatewey": {}}')
    result = stagedoor("check", "--json", name)
    assert result.exit_code == 2
    assert json.loads(result.stdout) == {
        "ok": False,
        "errors": [{"file": name, "line": 2, "field": "gatewey", "message": "unknown key", "nearest": "gateway"}],
        "warnings": [],
    }
    fine = json.loads(stagedoor("check", "--json", file('{"mcpServers": {"fx": {"command": "sh"}}}')).stdout)
    assert (fine["ok"], fine["errors"], fine["warnings"]) == (True, [], [])
    assert fine["endpoints"] == {"fx": "http://127.0.0.1:8080/mcp/fx"}


def test_the_example_can_be_served(stagedoor: Callable[..., Result]) -> None:
    assert stagedoor("check", str(ROOT / "examples/everyday.jsonc")).exit_code == 0


CLEAR = "a credential in clear"


@pytest.mark.parametrize(
    ("text", "field", "said"),
    [
        ('{"gateway": {"auth": {"tokens": {"a": "abcdefghijklmnopqrstuvwx"}}}}', "gateway.auth.tokens.a", CLEAR),
        ('{"gateway": {"keys": ["%s"]}}' % ("ab" * 32), "gateway.keys[0]", CLEAR),
        (
            '{"mcpServers": {"a": {"url": "http://h", "headers": {"Authorization": "Bearer x"}}}}',
            "mcpServers.a.headers.Authorization",
            CLEAR,
        ),
        ('{"servers": {"a": {"command": "sh", "env": {"API_KEY": "x"}}}}', "servers.a.env.API_KEY", CLEAR),
        ('{"gateway": {"listen": "0.0.0.0:80"}}', "gateway.listen", "anybody could use the servers"),
        ('{"gateway": {"listen": "192.0.2.1:80"}}', "gateway.listen", "anybody could use the servers"),
        (
            '{"gateway": {"listen": "[::]:80", "auth": {"tokens": {"a": "${T}"}}}}',
            "gateway.listen",
            "bearer tokens travel in clear",
        ),
        ('{"gateway": {"admin": "0.0.0.0:81"}}', "gateway.admin", "others can reach the admin listener"),
        ('{"gateway": {"auth": {"tokens": {"a": "${SHORT}"}}}}', "gateway.auth.tokens.a", "a token of fewer than 20"),
        ('{"mcpServers": {"a": {"command": "no-such-program"}}}', "mcpServers.a.command", "is not on PATH"),
        ('{"mcpServers": {"a": {"command": "sh", "env": {"PATH": "/nowhere"}}}}', "mcpServers.a.command", "PATH"),
        (
            '{"mcpServers": {"files": {"command": "sh"}, "fi1es": {"command": "sh"}}}',
            "mcpServers.fi1es",
            "like 'files'",
        ),
        ("{}", "mcpServers", "there is no server to serve"),
        ('{"gateway": {"groups": {"g": []}}}', "gateway.groups.g", "the group has no server"),
    ],
)
def test_what_is_unwise_is_a_warning_and_no_error(
    stagedoor: Callable[..., Result], file: Callable[[str], str], text: str, field: str, said: str
) -> None:
    result = stagedoor("check", file(text), T="t" * 30, SHORT="short")
    assert result.exit_code == 0
    lines = [line for line in result.stderr.splitlines() if f": {field}: " in line]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("warning: ")
    assert said in lines[0]


def test_what_is_wise_needs_no_warning(stagedoor: Callable[..., Result], file: Callable[[str], str]) -> None:
    text = """{"mcpServers": {"a": {"command": "sh", "env": {"API_KEY": "${T}", "MODE": "fast"}, "cwd": "/"},
      "b": {"url": "http://h/mcp", "headers": {"Authorization": "Bearer ${T}", "X-Color": "blue"}}},
      "gateway": {"auth": {"tokens": {"ann": "${T}"}}}}"""
    assert stagedoor("check", file(text), T="t" * 30).stderr == ""


@pytest.mark.parametrize("name", ["a\x07b", "ß\x07b"], ids=["a note", "an error"])
def test_a_name_writes_nothing_but_text_to_a_terminal(
    stagedoor: Callable[..., Result], file: Callable[[str], str], name: str
) -> None:
    said = stagedoor("check", file(json.dumps({"mcpServers": {name: {"command": "cat"}}}))).stderr
    assert "a name is a part of a URL" in said or "its name is a part of a URL" in said
    assert "\x07" not in said


def test_no_warning_repeats_a_credential(stagedoor: Callable[..., Result], file: Callable[[str], str]) -> None:
    text = """{"mcpServers": {"a": {"command": "sh", "env": {"TOKEN": "hush"}}},
      "gateway": {"auth": {"tokens": {"ann": "hush"}}}}"""
    result = stagedoor("check", file(text))
    assert result.stderr.count("warning: ") == 3
    assert "hush" not in result.output


WORKS = {
    "name": "fx",
    "status": "healthy",
    "era": "modern",
    "revision": "2026-07-28",
    "server": "fixture",
    "version": "1.0",
    "counts": {"tools": 3, "prompts": 1},
}
DEAD = {"name": "gone", "status": "failing", "error": {"message": "gone answered with HTTP 401", "stderr": ["x"]}}


def test_each_server_is_connected_to_when_that_is_asked_for(
    stagedoor: Callable[..., Result], composition: Any, file: Callable[[str], str]
) -> None:
    name = file('{"mcpServers": {"fx": {"command": "sh"}}}')
    composition.entries["servers"] = [WORKS]
    result = stagedoor("check", "--connect", name)
    line = "  fx: works (fixture 1.0): modern era, revision 2026-07-28, 3 tools, 1 prompt"
    assert (result.exit_code, result.stdout.splitlines()[1:]) == (0, [line])
    composition.entries["servers"] = [WORKS, DEAD]
    result = stagedoor("check", "--connect", name)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1:] == [line, "  gone: does not work: gone answered with HTTP 401", "    x"]
    told = stagedoor("check", "--connect", "--json", name)
    assert told.exit_code == 1
    assert json.loads(told.stdout)["servers"] == [WORKS, DEAD]


def test_nothing_is_connected_to_unasked(
    stagedoor: Callable[..., Result], composition: Any, file: Callable[[str], str]
) -> None:
    assert stagedoor("check", file('{"mcpServers": {"fx": {"command": "sh"}}}')).exit_code == 0
    assert stagedoor("check", "--connect", file('{"mcpServer": {}}')).exit_code == 2
    assert composition.targets == []


def test_keys_of_other_programs_are_notes_and_no_warnings(
    stagedoor: Callable[..., Result], file: Callable[[str], str]
) -> None:
    name = file('{"mcpServers": {"fx": {"command": "sh", "trust": true}}}')
    result = stagedoor("check", name)
    assert result.exit_code == 0
    assert result.stderr.startswith(f"note: {name}:1: mcpServers.fx.trust: `trust`: left to Gemini CLI")
    told = json.loads(stagedoor("check", "--json", name).stdout)
    assert (told["ok"], told["warnings"], len(told["notes"])) == (True, [], 1)
