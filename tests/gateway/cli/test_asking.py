import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from gateway.cli.client import UrlTarget
from gateway.config import Settings

TOOLS = [
    {"name": "fx__add", "description": "adds\ntwo", "inputSchema": {"properties": {"a": {"type": "integer"}}}},
    {"name": "fx__say"},
]


@pytest.mark.parametrize(
    ("what", "entry", "line"),
    [
        ([], {"name": "fx", "transport": "stdio", "status": "ready"}, "fx\tstdio\tready\t"),
        (["servers"], {"name": "fx"}, "fx\t\t\t"),
        (["tools"], {"name": "t", "description": "adds\n  two\tnumbers"}, "t\tadds two numbers"),
        (["resources"], {"uri": "fx+a://b", "name": "b", "mimeType": "text/plain"}, "fx+a://b\tb\ttext/plain\t"),
        (
            ["prompts"],
            {"name": "p", "arguments": [{"name": "x", "required": True}, {"name": "y"}], "description": "d"},
            "p\tx [y]\td",
        ),
    ],
)
def test_ls_prints_a_line_for_each_entry(
    stagedoor: Callable[..., Result], composition: Any, what: list[str], entry: dict[str, Any], line: str
) -> None:
    composition.entries[what[0] if what else "servers"] = [entry]
    result = stagedoor("ls", *what)
    assert (result.exit_code, result.stdout) == (0, line + "\n")


def test_ls_prints_entries_whole_as_json(stagedoor: Callable[..., Result], composition: Any) -> None:
    composition.entries["tools"] = TOOLS
    assert json.loads(stagedoor("ls", "tools", "--json").stdout) == TOOLS


def test_what_servers_say_cannot_steer_the_terminal(stagedoor: Callable[..., Result], composition: Any) -> None:
    composition.entries["tools"] = [{"name": "t\x1b]0;x\x07", "description": "\x9b2J[bold]"}]
    composition.result = {"content": [{"type": "text", "text": "\x1b[2J\rgone\nkept\ttoo"}]}
    assert stagedoor("ls", "tools").stdout == "t�]0;x�\t�2J[bold]\n"
    assert stagedoor("call", "t").stdout == "�[2J�gone\nkept\ttoo\n"


@pytest.mark.parametrize("command", [["ls", "tools"], ["call", "t"]])
def test_a_running_gateway_is_asked_by_its_url(
    stagedoor: Callable[..., Result], composition: Any, command: list[str]
) -> None:
    stagedoor(*command)
    stagedoor(*command, "--url", "http://h:1/mcp/fx", "--token", "abc")
    stagedoor(*command, STAGEDOOR_TOKEN="def")
    assert composition.targets == [
        UrlTarget("http://127.0.0.1:8080/mcp"),
        UrlTarget("http://h:1/mcp/fx", "abc"),
        UrlTarget("http://127.0.0.1:8080/mcp", "def"),
    ]
    assert "abc" not in repr(composition.targets)


@pytest.mark.parametrize("command", [["ls", "tools"], ["call", "t"]])
def test_the_servers_of_a_configuration_are_asked_without_a_gateway(
    stagedoor: Callable[..., Result], composition: Any, file: Callable[[str], str], command: list[str]
) -> None:
    assert stagedoor(*command, "--config", file('{"mcpServers": {"fx": {"command": "sh"}}}')).exit_code == 0
    [target] = composition.targets
    assert isinstance(target, Settings)
    assert list(target.table.backends) == ["fx"]


def test_arguments_get_the_types_of_the_schema(stagedoor: Callable[..., Result], composition: Any) -> None:
    composition.entries["tools"] = TOOLS
    assert stagedoor("call", "fx__add", "--arg", "a=3", "--arg", "b=4=5").exit_code == 0
    assert composition.calls == [("fx__add", {"a": 3, "b": "4=5"})]


def test_arguments_can_be_given_as_json_and_the_result_is_json_too(
    stagedoor: Callable[..., Result], composition: Any
) -> None:
    composition.result = {"content": [], "structuredContent": {"sum": 3}, "_meta": {"x": 1}}
    result = stagedoor("call", "fx__add", "--json", '{"a": [1, null]}')
    assert composition.calls == [("fx__add", {"a": [1, None]})]
    assert json.loads(result.stdout) == composition.result


def test_json_alone_prints_the_result_as_json(stagedoor: Callable[..., Result], composition: Any) -> None:
    result = stagedoor("call", "fx__say", "--arg", "x=1", "--json")
    assert composition.calls == [("fx__say", {"x": "1"})]
    assert json.loads(result.stdout) == composition.result


@pytest.mark.parametrize(
    ("result", "printed"),
    [
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb\n"),
        ({"content": [], "structuredContent": {"sum": 3}}, '{\n  "sum": 3\n}\n'),
        ({"content": [{"type": "text", "text": "3"}], "structuredContent": {"sum": 3}}, "3\n"),
        ({"content": [{"type": "image", "mimeType": "image/png", "data": "AAAA"}]}, "[image image/png, 4 characters"),
        ({"content": [{"type": "resource_link", "uri": "a://b"}]}, "[link a://b]\n"),
        ({"content": [{"type": "resource", "resource": {"uri": "a://b", "text": "t"}}]}, "t\n"),
        ({"content": [{"type": "resource", "resource": {"uri": "a://b", "blob": "AA"}}]}, "[resource a://b]\n"),
        ({}, ""),
    ],
)
def test_call_prints_what_the_tool_says(
    stagedoor: Callable[..., Result], composition: Any, result: dict[str, Any], printed: str
) -> None:
    composition.result = result
    answer = stagedoor("call", "t")
    assert answer.exit_code == 0
    assert answer.stdout.startswith(printed)


def test_an_error_of_the_tool_is_status_one_on_standard_error(
    stagedoor: Callable[..., Result], composition: Any
) -> None:
    composition.result = {"isError": True, "content": [{"type": "text", "text": "no such file"}]}
    result = stagedoor("call", "t")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "no such file\n")
    assert stagedoor("call", "t", "--json").exit_code == 1


@pytest.mark.parametrize("command", [["ls", "tools"], ["call", "t"]])
def test_what_cannot_be_done_is_status_one_with_its_reason(
    stagedoor: Callable[..., Result], composition: Any, command: list[str]
) -> None:
    composition.failure = "nobody answers at http://127.0.0.1:8080/mcp\x1b[2J"
    result = stagedoor(*command)
    assert result.exit_code == 1
    assert result.stderr == "Error: nobody answers at http://127.0.0.1:8080/mcp�[2J\n"


@pytest.mark.parametrize(
    "words",
    [
        ["ls", "nonsense"],
        ["ls", "--url", "http://h", "--config", "c.json"],
        ["ls", "--config", "gone.json"],
        ["call"],
        ["call", "t", "--json", "[1]"],
        ["call", "t", "--json", "{"],
        ["call", "t", "--arg", "a"],
        ["call", "t", "--arg", "=1"],
        ["call", "t", "--arg", "a=1", "--arg", "a=2"],
        ["call", "t", "--arg", "a=1", "--json", "{}"],
        ["call", "fx__add", "--arg", "a=many"],
        [],
        ["nonsense"],
    ],
)
def test_wrong_usage_ends_with_status_two_and_calls_nothing(
    stagedoor: Callable[..., Result], composition: Any, words: list[str]
) -> None:
    composition.entries["tools"] = TOOLS
    assert stagedoor(*words).exit_code == 2
    assert composition.calls == []


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["serve", "--help"], ["call", "--help"], ["--version"]])
def test_help_and_version_are_no_failures(stagedoor: Callable[..., Result], words: list[str]) -> None:
    result = stagedoor(*words)
    assert result.exit_code == 0
    assert result.stdout


DEAD = {
    "name": "fx",
    "transport": "stdio",
    "status": "down",
    "error": {"reason": "exited", "message": "fx exited with status 3", "stderr": ["no database", "\x1b[2Jgiving up"]},
}
TOLD = "server 'fx': fx exited with status 3\n  no database\n  \ufffd[2Jgiving up\n"


def test_ls_says_on_standard_error_which_servers_do_not_work_and_exits_with_one(
    stagedoor: Callable[..., Result], composition: Any, file: Callable[[str], str]
) -> None:
    composition.entries["servers"] = [DEAD, {"name": "ok", "transport": "http", "status": "healthy", "version": "2"}]
    result = stagedoor("ls", "--config", file('{"mcpServers": {"fx": {"command": "sh"}}}'))
    assert result.stdout == "fx\tstdio\tdown\t\nok\thttp\thealthy\t2\n"
    assert (result.exit_code, result.stderr) == (1, TOLD)


def test_ls_of_things_says_which_servers_are_missing_and_exits_with_one(
    stagedoor: Callable[..., Result], composition: Any
) -> None:
    composition.entries["tools"] = TOOLS
    composition.missing = {"fx": "fx exited with status 3\n  no database\n  \x1b[2Jgiving up"}
    result = stagedoor("ls", "tools", "--json")
    assert json.loads(result.stdout) == TOOLS
    assert (result.exit_code, result.stderr) == (1, TOLD)


def test_what_a_running_gateway_s_list_lacks_is_explained_by_its_admin_listener(
    stagedoor: Callable[..., Result], composition: Any
) -> None:
    composition.entries["tools"] = TOOLS
    composition.missing = {"fx": "failed", "late": "pending"}
    composition.gateway = [DEAD, {"name": "late", "transport": "stdio", "status": "unused"}]
    result = stagedoor("ls", "tools", "--url", "http://h:1/mcp", "--admin", "http://h:9")
    assert composition.asked == [("http://h:1/mcp", "http://h:9")]
    late = "server 'late': it has not answered yet\n"
    assert (result.exit_code, result.stderr) == (1, TOLD + late)
    composition.gateway = None
    failed = "server 'fx': its list can't be had\n"
    assert stagedoor("ls", "tools").stderr == failed + late


def test_the_servers_of_a_running_gateway_are_those_that_its_admin_listener_names(
    stagedoor: Callable[..., Result], composition: Any
) -> None:
    composition.gateway = [DEAD]
    result = stagedoor("ls", "servers", "--url", "http://h:1/mcp")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "fx\tstdio\tdown\t\n", TOLD)
    stagedoor("ls", "servers", "--url", "http://h:1/mcp", "--admin", "http://h:9")
    assert composition.asked == [("http://h:1/mcp", None), ("http://h:1/mcp", "http://h:9")]
    assert composition.targets == []


def test_without_an_admin_listener_the_url_is_one_server_and_that_is_said(
    stagedoor: Callable[..., Result], composition: Any
) -> None:
    composition.entries["servers"] = [{"name": "http://h:1/mcp", "transport": "http", "status": "healthy"}]
    result = stagedoor("ls", "servers", "--url", "http://h:1/mcp")
    assert (result.exit_code, result.stdout) == (0, "http://h:1/mcp\thttp\thealthy\t\n")
    assert "--admin" in result.stderr
    assert stagedoor("ls", "servers", "--url", "http://h:1/mcp", "--admin", "http://h:9").exit_code == 1
