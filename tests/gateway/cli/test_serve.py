import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

from gateway.cli.client import ServeFailedError
from gateway.config import Address
from tests.support.certificates import Authority

ONE = '{"mcpServers": {"fx": {"command": "sh"}}, "gateway": {"listen": "127.0.0.1:7000"}}'


def test_it_serves_what_the_file_says_and_exits_with_the_status_of_the_run(
    stagedoor: Callable[..., Result], composition: Any, file: Callable[[str], str]
) -> None:
    composition.status = 3
    result = stagedoor("serve", "--config", file(ONE))
    assert result.exit_code == 3
    [settings] = composition.ran
    assert list(settings.table.backends) == ["fx"]
    assert settings.listen == Address("127.0.0.1", 7000)


def test_options_go_before_the_file(
    stagedoor: Callable[..., Result], composition: Any, file: Callable[[str], str]
) -> None:
    options = ["--listen", "[::1]:1", "--admin", "localhost:2", "--store", "redis://h:3/0"]
    result = stagedoor("serve", "--config", file(ONE), *options)
    assert result.exit_code == 0
    [settings] = composition.ran
    assert (settings.listen, settings.admin) == (Address("::1", 1), Address("localhost", 2))
    assert settings.store == "redis://h:3/0"
    assert "http://[::1]:1/mcp" in result.stdout


def test_without_a_file_it_serves_the_demo_servers(stagedoor: Callable[..., Result], composition: Any) -> None:
    assert stagedoor("serve").exit_code == 0
    [settings] = composition.ran
    assert list(settings.table.backends) == ["demo", "notes"]
    assert settings.store == "memory://"
    assert settings.listen == Address("127.0.0.1", 8080)


def test_it_says_where_everything_is_before_it_serves(
    stagedoor: Callable[..., Result], file: Callable[[str], str]
) -> None:
    result = stagedoor("serve", "--config", file(ONE))
    assert "http://127.0.0.1:7000/mcp" in result.stdout
    assert "claude mcp add --transport http stagedoor http://127.0.0.1:7000/mcp" in result.stdout


def test_it_says_the_same_to_programs(stagedoor: Callable[..., Result], file: Callable[[str], str]) -> None:
    said = json.loads(stagedoor("serve", "--json", "--config", file(ONE)).stdout)
    digest = said.pop("config_digest")
    assert len(digest) == 16
    assert said == {
        "endpoint": "http://127.0.0.1:7000/mcp",
        "admin": "http://127.0.0.1:8081",
        "endpoints": {"fx": "http://127.0.0.1:7000/mcp/fx"},
        "store": "memory",
    }


def test_it_warns_of_what_is_unwise_and_serves_all_the_same(
    stagedoor: Callable[..., Result], composition: Any, file: Callable[[str], str]
) -> None:
    text = '{"gateway": {"admin": "0.0.0.0:7001", "log": {"format": "console"}}}'
    result = stagedoor("serve", "--config", file(text))
    assert result.exit_code == 0
    assert len(composition.ran) == 1
    assert "warning: " in result.stderr
    assert "others can reach the admin listener" in result.stderr


def test_where_the_log_is_json_it_warns_in_lines_of_it(
    stagedoor: Callable[..., Result], file: Callable[[str], str]
) -> None:
    server = '{"mcpServers": {"fx": {"command": "sh", "trust": true}}, "gateway": {"admin": "0.0.0.0:7001"}}'
    result = stagedoor("serve", "--config", file(server))
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    told = [(line["event"], line["level"]) for line in lines]
    assert told == [("configuration_note", "info"), ("configuration_warning", "warning")]
    assert "trust" in lines[0]["message"]
    assert "others can reach the admin listener" in lines[1]["message"]


def test_of_many_warnings_none_is_left_out_where_the_log_is_json(
    stagedoor: Callable[..., Result], file: Callable[[str], str]
) -> None:
    tokens = {f"user-{number}": f"{number:040d}" for number in range(300)}
    given = {"gateway": {"admin": "0.0.0.0:7001", "auth": {"tokens": tokens}}}
    said = stagedoor("serve", "--config", file(json.dumps(given))).stderr
    assert all(f"auth.tokens.{name}:" in said for name in tokens)
    assert "others can reach the admin listener" in said


def test_that_nobody_reads_what_it_says_keeps_it_from_nothing(
    stagedoor: Callable[..., Result], file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **options: Any) -> None:
        if not options.get("err"):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(click, "echo", full)
    assert stagedoor("serve", "--config", file(ONE)).exit_code == 0
    assert stagedoor("serve", "--json", "--config", file(ONE)).exit_code == 0


OPEN = '{"gateway": {"listen": "0.0.0.0:7000", "auth": %s}}'
PROXIED = '{"gateway": {"listen": "127.0.0.1:7000", "publicUrl": "https://mcp.example.com", "auth": %s}}'


@pytest.mark.parametrize(
    ("text", "options", "served"),
    [
        (OPEN % "{}", [], False),
        (OPEN % '{"anonymous": false}', [], False),
        (OPEN % "{}", ["--listen", "127.0.0.1:7000"], True),
        (ONE, ["--listen", "192.0.2.1:7000"], False),
        (ONE, ["--listen", "unix:/tmp/stagedoor.sock"], True),
        (OPEN % '{"anonymous": true}', [], True),
        (OPEN % "{}", ["--anonymous"], True),
        (OPEN % '{"tokens": {"ann": "0123456789012345678901"}}', [], True),
        (PROXIED % "{}", [], False),
        (PROXIED % "{}", ["--listen", "unix:/tmp/stagedoor.sock"], False),
        (PROXIED % '{"anonymous": true}', [], True),
        (PROXIED % '{"tokens": {"ann": "0123456789012345678901"}}', [], True),
        (PROXIED.replace("https://mcp.example.com", "http://127.0.0.1:7000") % "{}", [], True),
    ],
)
def test_it_serves_anybody_from_elsewhere_only_where_that_is_said(
    stagedoor: Callable[..., Result],
    composition: Any,
    file: Callable[[str], str],
    text: str,
    options: list[str],
    served: bool,
) -> None:
    result = stagedoor("serve", file(text), *options)
    assert bool(composition.ran) is served
    assert result.exit_code == (0 if served else 2)
    assert served or "anybody could use the servers" in result.stderr


def test_who_can_not_read_the_key_of_the_certificate_may_check_and_can_not_serve(
    stagedoor: Callable[..., Result],
    composition: Any,
    file: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    issued = Authority(tmp_path).issue("gateway")
    tls = {"cert": str(issued.certificate), "key": str(issued.key)}
    text = json.dumps({"mcpServers": {"a": {"command": "true"}}, "gateway": {"tls": tls}})
    monkeypatch.setattr("gateway.config.settings._readable", lambda file: file != issued.key)
    checked, served = stagedoor("check", file(text)), stagedoor("serve", file(text))
    said = f"can't read {issued.key}: the user that serves must be able to"
    assert (checked.exit_code, "warning: " in checked.stderr, said in checked.stderr) == (0, True, True)
    assert (served.exit_code, said in served.stderr, composition.ran) == (2, True, [])


PROXY = '{"gateway": {"listen": "unix:/run/x", "auth": {"browser": {"mode": "proxy", "header": "X", "from": ["::1"]}}}}'


@pytest.mark.parametrize(
    ("options", "served"),
    [([], False), (["--listen", "127.0.0.1:7000"], True), (["--listen", "unix:/tmp/stagedoor.sock"], False)],
)
def test_a_login_proxy_is_served_where_it_has_an_address_whatever_the_file_says_of_that(
    stagedoor: Callable[..., Result],
    composition: Any,
    file: Callable[[str], str],
    options: list[str],
    served: bool,
) -> None:
    path = file(PROXY)
    result = stagedoor("serve", path, *options)
    assert bool(composition.ran) is served
    assert result.exit_code == (0 if served else 2)
    assert served or "no login proxy has an address" in result.stderr
    checked = stagedoor("check", path)
    assert (checked.exit_code, "no login proxy has an address" in checked.stderr) == (0, True)


def test_the_demo_servers_are_for_everybody(stagedoor: Callable[..., Result], composition: Any) -> None:
    assert stagedoor("serve", "--listen", "0.0.0.0:7000").exit_code == 0
    assert len(composition.ran) == 1


def test_a_configuration_with_problems_is_not_served(
    stagedoor: Callable[..., Result], composition: Any, file: Callable[[str], str]
) -> None:
    result = stagedoor("serve", "--config", file('{"gateway": {"listn": 1}}'))
    assert result.exit_code == 2
    assert composition.ran == []
    assert 'c.jsonc:1: gateway.listn: unknown key; did you mean "listen"?' in result.stderr


def test_a_file_is_served_as_it_is_checked(
    stagedoor: Callable[..., Result], composition: Any, file: Callable[[str], str]
) -> None:
    assert stagedoor("serve", file(ONE), "--admin", "localhost:2").exit_code == 0
    [settings] = composition.ran
    assert (settings.listen, settings.admin) == (Address("127.0.0.1", 7000), Address("localhost", 2))
    assert stagedoor("serve", file(ONE), "--config", file(ONE)).exit_code == 2


def test_an_address_that_cannot_be_had_is_said_in_a_sentence(
    stagedoor: Callable[..., Result], composition: Any, file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise ServeFailedError("the public listener can't listen on h:1: …")

    monkeypatch.setattr(composition, "run", refused)
    result = stagedoor("serve", file(ONE))
    assert (result.exit_code, result.stderr) == (1, "Error: the public listener can't listen on h:1: …\n")


@pytest.mark.parametrize(
    "options",
    [
        ["--listen", "8080"],
        ["--admin", "nowhere"],
        ["--store", "mysql://h"],
        ["--listen", "127.0.0.1:1", "--admin", "127.0.0.1:1"],
        ["--config"],
        ["--nonsense"],
        ["left over"],
    ],
)
def test_wrong_usage_ends_with_status_two(
    stagedoor: Callable[..., Result], composition: Any, file: Callable[[str], str], options: list[str]
) -> None:
    assert stagedoor("serve", "--config", file(ONE), *options).exit_code == 2
    assert composition.ran == []


def test_a_wrong_store_is_refused_without_its_password(stagedoor: Callable[..., Result]) -> None:
    result = stagedoor("serve", "--store", "redis+tls://u:hush@h")
    assert result.exit_code == 2
    assert "hush" not in result.output


def test_several_workers_are_supervised_and_each_reads_the_file_itself(
    stagedoor: Callable[..., Result], composition: Any, file: Callable[[str], str]
) -> None:
    name = file(ONE)
    composition.status = 3
    result = stagedoor("serve", name, "--workers", "4", "--store", "redis://h:3/0")
    assert result.exit_code == 3
    assert "http://127.0.0.1:7000/mcp" in result.stdout
    [(settings, told)] = composition.supervised
    assert (settings.workers, told) == (4, (name,))
    assert not composition.ran
    configured = file(ONE.replace('"gateway": {', '"gateway": {"workers": 2, "store": "redis://h", '))
    assert stagedoor("serve", configured).exit_code == 3
    assert composition.supervised[1][0].workers == 2
    assert stagedoor("serve", configured, "--workers", "1").exit_code == 3
    assert [settings.workers for settings in composition.ran] == [1]


def test_a_worker_says_nothing_of_its_own(
    stagedoor: Callable[..., Result], composition: Any, file: Callable[[str], str]
) -> None:
    unwise = file(ONE.replace('"gateway": {', '"gateway": {"workers": 2, '))
    result = stagedoor("serve", unwise, "--worker", "7")
    assert result.output == ""
    [(settings, descriptor)] = composition.worked
    assert (list(settings.table.backends), descriptor) == (["fx"], 7)
    assert "--worker " not in stagedoor("serve", "--help").stdout


def test_several_workers_without_a_store_that_they_share_are_refused(
    stagedoor: Callable[..., Result], composition: Any, file: Callable[[str], str]
) -> None:
    for words in (("--workers", "2"), (file(ONE.replace('"gateway": {', '"gateway": {"workers": 2, ')),)):
        result = stagedoor("serve", *words)
        assert result.exit_code == 2
        assert "several workers need a store that they share" in result.stderr
    assert not composition.supervised
    assert not composition.ran
    assert stagedoor("serve", "--workers", "0").exit_code == 2


def test_systems_that_hand_no_sockets_on_are_told_so(
    stagedoor: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("signal.SIGUSR2")
    result = stagedoor("serve", "--workers", "2", "--store", "redis://h")
    assert result.exit_code == 2
    assert "this one does not" in result.stderr


# One in-process server ---------------------------------------------------------------------------------------


def test_one_server_is_served_as_it_is_and_by_workers_too(stagedoor: Callable[..., Result], composition: Any) -> None:
    assert stagedoor("serve", "--native", "gateway.native.demo").exit_code == 0
    [settings] = composition.ran
    assert [(one.kind, one.backends) for one in settings.table.endpoints.values()] == [("transparent", ("native",))]
    words = ("serve", "--native", "gateway.native.demo:server", "--workers", "2", "--store", "redis://h")
    assert stagedoor(*words).exit_code == 0
    assert composition.supervised[0][1] == ("--native", "gateway.native.demo:server")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("serve", "x.json", "--native", "m"), "exclude each other"),
        (("serve", "--reload"), "--reload is for --native"),
        (("ls", "tools", "--native", "m", "--url", "http://h/mcp"), "--url and --native exclude each other"),
        (("run",), "Missing argument 'TARGET'"),
        (("run", "m", "--http", "8000"), "must be HOST:PORT"),
        (("run", "gateway.native.demo:server", "--http", "0.0.0.0:80"), "say --anonymous if it is meant"),
        (("run", "no_such_module"), "error: no_such_module: cannot be imported: No module named 'no_such_module'"),
        (("run", "no/such.py:server"), "error: no/such.py:server: there is no file no/such.py"),
        (("serve", "--native", "gateway.native.demo:nobody"), 'there is no "nobody" in gateway.native.demo'),
        (("ls", "tools", "--native", "gateway.native.demo:GREETINGS"), "is no server, nor a function that makes one"),
        (("call", "add", "--native", "json:nobody"), 'there is no "nobody" in json'),
    ],
)
def test_what_can_not_be_run_is_wrong_usage(
    words: tuple[str, ...], said: str, stagedoor: Callable[..., Result], composition: Any
) -> None:
    result = stagedoor(*words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not composition.ran


def test_a_file_for_the_standard_streams_is_named_as_for_serve(
    stagedoor: Callable[..., Result], composition: Any, file: Callable[[str], str]
) -> None:
    path = file('{"mcpServers": {"a": {"command": "sh"}}}')
    assert stagedoor("stdio", path).exit_code == 0
    assert stagedoor("stdio", "--config", path).exit_code == 0
    assert [list(settings.table.backends) for settings in composition.ran] == [["a"], ["a"]]
    for words in ([], [path, "--config", path], [path, "--native", "gateway.native.demo"]):
        refused = stagedoor("stdio", *words)
        assert refused.exit_code == 2
        assert "one of FILE, --config and --native" in refused.stderr
    nameless = stagedoor("stdio", "")
    assert (nameless.exit_code, nameless.stderr) == (2, stagedoor("check", "").stderr)


@pytest.mark.parametrize("words", [[""], ["--config", ""]])
def test_a_file_without_a_name_is_not_no_file(
    stagedoor: Callable[..., Result], composition: Any, words: list[str]
) -> None:
    """Of a variable that is not set, say: whoever means his own servers gets no demo."""
    refused = stagedoor("serve", *words)
    assert (refused.exit_code, refused.stderr) == (2, stagedoor("check", "").stderr)
    assert not composition.ran


def test_on_standard_streams_only_warnings_are_logged_unless_the_file_says_otherwise(
    stagedoor: Callable[..., Result], composition: Any, file: Callable[[str], str]
) -> None:
    assert stagedoor("stdio", "--config", file('{"mcpServers": {}}')).exit_code == 0
    assert stagedoor("stdio", "--config", file('{"gateway": {"log": {"level": "info"}}}')).exit_code == 0
    assert stagedoor("run", "gateway.native.demo").exit_code == 0
    assert stagedoor("run", "gateway.native.demo", "--reload").exit_code == 0
    assert [settings.log.level for settings in composition.ran] == ["warning", "info", "warning", "info"]
