"""Configurations of other programs, in the shapes that they have there, are taken as they are."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.protocol.table import HttpTarget, StdioTarget
from gateway.config import ConfigError, Loaded, Problem, advice, load

SHAPES = Path(__file__).parent / "foreign"
ENVIRON = {"GITHUB_TOKEN": "gh-token", "API_KEY": "the-key", "DB_CONNECTION_STRING": "postgres://db"}


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[..., Loaded]:
    """Loads one of the shapes from a folder like the one it would be in."""

    def loaded(name: str, folder: str = ".") -> Loaded:
        (tmp_path / "project" / folder).mkdir(parents=True, exist_ok=True)
        file = tmp_path / "project" / folder / name
        shutil.copy(SHAPES / name, file)
        (tmp_path / "project" / ".env").write_text('# of the project\n\nexport FROM_FILE="a b"\nAPI_KEY=other # no\n')
        return load(file, ENVIRON)

    return loaded


def notes(loaded: Loaded) -> list[str]:
    return [f"{note.field}: {note.message}" for note in loaded.notes]


def test_claude_desktop(loaded: Callable[..., Loaded]) -> None:
    found = loaded("claude_desktop_config.json")
    github = found.settings.table.backends["github"].target
    assert isinstance(github, StdioTarget)
    assert github.env == (("GITHUB_PERSONAL_ACCESS_TOKEN", "gh-token"),)
    assert notes(found) == ["globalShortcut: `globalShortcut`: left to Claude Desktop, nothing here goes by it"]


def test_claude_code(loaded: Callable[..., Loaded]) -> None:
    found = loaded("claude_code.mcp.json")
    api = found.settings.table.backends["api"]
    assert api.target == HttpTarget("https://api.example.com/mcp", (("Authorization", "Bearer the-key"),))
    assert api.timeout == 600
    timeout, own = found.notes
    assert (timeout.field, timeout.line) == ("mcpServers.api.timeout", 7)
    assert "milliseconds" in timeout.message
    assert own.message.startswith("`headersHelper`, `alwaysLoad`, `oauth`: left to Claude Code")
    assert own.message.endswith("credentials for the server go into `headers`")
    assert own.line == 12


def test_what_claude_code_keeps_for_one_user_is_one_error_that_says_what_to_do(tmp_path: Path) -> None:
    state = {"numStartups": 3, "tipsHistory": {}, "mcpServers": {"a": {"command": "x"}}, "projects": {"/p": {}}}
    file = tmp_path / ".claude.json"
    file.write_text(json.dumps(state))
    with pytest.raises(ConfigError) as refused:
        load(file, {})
    (problem,) = refused.value.problems
    assert "copy `mcpServers`" in problem.message


@pytest.mark.parametrize("folder", [".cursor", "."])
def test_cursor(loaded: Callable[..., Loaded], tmp_path: Path, folder: str) -> None:
    found = loaded("cursor.mcp.json", folder)
    local = found.settings.table.backends["local"].target
    assert isinstance(local, StdioTarget)
    assert local.args == (f"{tmp_path}/project/tools/mcp_server.py",)
    assert dict(local.env) == {"API_KEY": "the-key", "ROOT": f"{Path.home()}/data", "FROM_FILE": "a b"}
    assert [note.message.partition(":")[0] for note in found.notes] == ["`auth`"]


def test_vs_code(loaded: Callable[..., Loaded], tmp_path: Path) -> None:
    found = loaded("vscode.mcp.json", ".vscode")
    mine = found.settings.table.backends["mine"].target
    assert isinstance(mine, StdioTarget)
    assert mine.args == (f"{tmp_path}/project/build/index.js", "project")
    assert mine.cwd == f"{tmp_path}/project"
    assert dict(mine.env) == {"PORT": "3000", "VERBOSE": "true", "FROM_FILE": "a b", "API_KEY": "other"}
    [note] = found.notes
    assert note.message.startswith("`dev`, `sandboxEnabled`, `sandbox`, `gallery`, `version`: left to VS Code")
    assert list(found.settings.table.backends) == ["playwright", "mine", "github"]


@pytest.mark.parametrize(
    ("name", "served"),
    [
        ("Framelink MCP for Figma", "Framelink-MCP-for-Figma"),
        ("microsoft/playwright-mcp", "microsoft-playwright-mcp"),
        ("@upstash/context7-mcp", "upstash-context7-mcp"),
        ("Müller & Söhne", "Muller-Sohne"),
        ("-a", "a"),
        ("a?b", "a-b"),
    ],
)
@pytest.mark.parametrize("section", ["mcpServers", "servers"])
def test_a_server_whose_name_does_not_fit_a_url_is_served_under_one_that_does(
    write: Callable[..., Path], section: str, name: str, served: str
) -> None:
    servers = {"first": {"command": "sh"}, name: {"command": "no-such-command"}, "last": {"command": "sh"}}
    found = load(write(json.dumps({section: servers}, indent=1)), {})
    assert list(found.settings.table.backends) == ["first", served, "last"]
    [note] = found.notes
    assert (note.field, note.line) == (f"{section}.{name}", 6)
    assert note.message == f'is served as "{served}": its name is a part of a URL'
    [missing] = advice(found)
    assert missing.field == f"{section}.{name}.command"
    assert missing.line is not None


def test_what_is_wrong_with_such_a_server_is_told_at_its_own_place(problem: Callable[..., Problem]) -> None:
    found = problem(json.dumps({"servers": {"a/b": {"command": "x", "timeout": "soon"}}}, indent=1))
    assert (found.field, found.line) == ("servers.a/b.timeout", 5)


def test_servers_among_the_settings_of_vs_code_are_not_left_out_in_silence(problem: Callable[..., Problem]) -> None:
    found = problem('{"mcp": {"inputs": [],\n"servers": {"a": {"command": "sh"}}}}')
    assert (found.field, found.line) == ("mcp.servers", 2)
    assert "move `servers` to the top" in found.message


def test_windsurf(loaded: Callable[..., Loaded]) -> None:
    found = loaded("windsurf.mcp_config.json")
    [figma] = found.settings.table.backends.values()
    assert figma.target == HttpTarget(
        "https://mcp.example.com/mcp", (("Authorization", "Bearer the-key"),), may_be_sse=True
    )
    assert figma.disabled_tools == ("delete_everything",)
    assert [note.message.partition(":")[0] for note in found.notes] == ["`alwaysAllow`"]


def test_gemini(loaded: Callable[..., Loaded]) -> None:
    found = loaded("gemini.settings.json", ".gemini")
    python, api = found.settings.table.backends.values()
    assert isinstance(python.target, StdioTarget)
    assert dict(python.target.env) == {"DATABASE_URL": "postgres://db", "API_KEY": "the-key", "LITERAL": "$NOT_SET"}
    assert (python.timeout, python.enabled_tools) == (15, ("safe_tool", "file_reader"))
    assert python.disabled_tools == ("safe_tool_2",)
    assert api.target == HttpTarget("https://api.example.com/mcp", (("X-Key", "the-key"),), may_be_sse=True)
    assert api.timeout == 5
    own = [note.message for note in found.notes if "left to Gemini CLI" in note.message]
    assert own == [
        "`theme`, `selectedAuthType`, `trust`, `description`, `authProviderType`: left to Gemini CLI, nothing here goes"
        " by it; credentials for the server go into `headers`"
    ]


def test_what_an_editor_would_ask_for_keeps_its_message(problem: Callable[..., Problem]) -> None:
    found = problem('{"servers": {"a": {"command": "x", "env": {"KEY": "${input:key}"}}}}')
    assert "${input:key} is asked for by an editor, which is not here" in found.message


def test_a_key_that_nobody_has_is_still_an_error_and_at_its_own_place(
    problems: Callable[..., tuple[Problem, ...]],
) -> None:
    found = problems('{"mcpServers": {\n"a": {"command": "x", "alwaysAlow": []},\n"b": {\n"httpUrl": "ftp://h"}}}')
    assert [(p.field, p.line) for p in found] == [("mcpServers.a.alwaysAlow", 2), ("mcpServers.b.httpUrl", 4)]


def test_all_problems_of_a_file_are_told_at_once(problems: Callable[..., tuple[Problem, ...]]) -> None:
    found = problems(
        """{"mcpServers": {
            "a": {"comand": "x", "timeout": "soon"},
            "b": {"command": "x", "url": "http://h/mcp", "headers": {"Host": "h"}},
            "c": {"url": "http://h/mcp", "headers": {"Host": "h"}, "env": {"A": "${UNSET}"}},
            "文件": {"command": "x", "envFile": "gone.env"},
            "f": {"type": "ws", "url": "http://h/ws"}
        }, "gateway": {"listen": "8080", "groups": {"g": ["nobody", "a"]}, "limits": {"sessionz": 1}}}"""
    )
    assert sorted(p.field for p in found) == [
        *("gateway.groups.g[0]", "gateway.limits.sessionz", "gateway.listen"),
        *("mcpServers.a.comand", "mcpServers.a.timeout"),
        *("mcpServers.b.headers", "mcpServers.b.url"),
        *("mcpServers.c.env", "mcpServers.c.env.A", "mcpServers.c.headers.Host"),
        *("mcpServers.f.url", "mcpServers.文件", "mcpServers.文件.envFile"),
    ]


@pytest.mark.parametrize(
    ("server", "field", "said"),
    [
        ('{"command": "x", "enabled": false}', "enabled", '"disabled": true'),
        ('{"command": "x", "envFile": 3}', "envFile", "must be text"),
        ('{"command": "x", "envFile": "gone.env"}', "envFile", "can't be read"),
    ],
)
def test_usual_mistakes_are_errors_that_say_what_to_write(
    problem: Callable[..., Problem], server: str, field: str, said: str
) -> None:
    found = problem('{"mcpServers": {"a": ' + server + "}}")
    assert found.field == f"mcpServers.a.{field}"
    assert said in found.message


@pytest.mark.parametrize(
    ("server", "field", "said"),
    [
        ('{"command": "npx -y some-server --token hush"}', "command", 'write "command": "npx"'),
        ('{"url": "http://h/sse", "type": "http"}', "url", "an SSE endpoint"),
    ],
)
def test_other_usual_mistakes_are_warnings_that_say_so(
    write: Callable[..., Path], server: str, field: str, said: str
) -> None:
    [found] = advice(load(write('{"mcpServers": {"a": ' + server + "}}"), {}))
    assert found.field == f"mcpServers.a.{field}"
    assert said in found.message
    assert "hush" not in found.message


def test_lines_of_an_env_file_that_say_nothing_are_named(write: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "x.env").write_text("A=1\nhush\nB='two words'\n")
    with pytest.raises(ConfigError) as caught:
        load(write('{"mcpServers": {"a": {"command": "x", "envFile": "x.env"}}}'), {})
    [found] = caught.value.problems
    assert found.message == "line 2 of the file is not NAME=value"
