import json
import os
import pwd
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from actors.protocol.table import (
    BackendSpec,
    Endpoint,
    HttpTarget,
    Limits,
    NativeTarget,
    SseTarget,
    StdioTarget,
    WebSocketTarget,
)
from gateway.config import Address, Auth, ConfigError, LogSettings, Problem, Settings, advice, import_object, load
from gateway.config.sections import PLACES
from gateway.native import Server
from gateway.native.demo import server as demo
from tests.support.certificates import Authority

EXAMPLE = """{
  "mcpServers": {
    "files": {"command": "npx", "args": ["-y", "server-filesystem", "."]},
    "api": {"url": "https://example.com/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}},
  },
  "gateway": {"listen": "127.0.0.1:9000", "store": "redis://127.0.0.1:6379/0"}
}"""


def test_the_example_of_the_design_loads(settings: Callable[..., Settings]) -> None:
    found = settings(EXAMPLE, TOKEN="t0ken")
    assert found.table.backends == {
        "files": BackendSpec("files", StdioTarget("npx", ("-y", "server-filesystem", "."))),
        "api": BackendSpec(
            "api", HttpTarget("https://example.com/mcp", (("Authorization", "Bearer t0ken"),), may_be_sse=True)
        ),
    }
    assert found.listen == Address("127.0.0.1", 9000)
    assert found.admin == Address("127.0.0.1", 8081)
    assert found.store == "redis://127.0.0.1:6379/0"


def test_an_empty_configuration_is_all_defaults(settings: Callable[..., Settings]) -> None:
    found = settings("{}")
    assert found.limits == Limits()
    assert (found.listen, found.admin) == (Address("127.0.0.1", 8080), Address("127.0.0.1", 8081))
    assert (found.store, found.auth, found.keys, found.tls) == ("memory://", Auth(), (), None)
    assert found.log == LogSettings("info", "auto")
    assert found.table.endpoints == {"": Endpoint("", "aggregate", ())}


def test_yaml_says_the_same_as_json(settings: Callable[..., Settings]) -> None:
    yaml = "mcpServers:\n  a: {command: x, env: {K: '${V}'}}\ngateway: {sessions: {idleTtl: 5}}\n"
    same = '{"mcpServers": {"a": {"command": "x", "env": {"K": "${V}"}}}, "gateway": {"sessions": {"idleTtl": 5}}}'
    assert settings(yaml, "c.yaml", V="v") == settings(same, V="v")
    assert settings(yaml, "c.yml", V="v") == settings(same, "c.json", V="v")


def test_the_key_of_vs_code_is_accepted(settings: Callable[..., Settings]) -> None:
    text = """{"inputs": [{"id": "x"}], "servers": {
      "a": {"type": "stdio", "command": "x"}, "b": {"type": "http", "url": "http://h/mcp"}}}"""
    assert list(settings(text).table.backends) == ["a", "b"]


def test_http_and_sse_is_named_or_found_out(settings: Callable[..., Settings]) -> None:
    server = {"url": "http://h/sse", "headers": {"A": "b"}}
    found = settings(json.dumps({"mcpServers": {"a": {**server, "type": "sse"}, "b": server}})).table.backends
    assert found["a"].target == SseTarget("http://h/sse", (("A", "b"),))
    assert found["b"].target == HttpTarget("http://h/sse", (("A", "b"),), may_be_sse=True)


@pytest.mark.parametrize(
    "server",
    [{"url": "ws://h/ws"}, {"url": "WSS://h"}, {"url": "wss://h", "type": "ws"}, {"url": "unix:/run/s", "type": "ws"}],
    ids=str,
)
def test_a_web_socket_is_known_by_its_scheme_or_named(
    settings: Callable[..., Settings], server: dict[str, str]
) -> None:
    found = settings(json.dumps({"mcpServers": {"a": {**server, "headers": {"A": "b"}}}})).table.backends
    assert found["a"].target == WebSocketTarget(server["url"], (("A", "b"),))


def test_the_headers_of_every_server_with_a_url_are_secrets(settings: Callable[..., Settings]) -> None:
    server = {"url": "http://h/sse", "type": "sse", "headers": {"Authorization": "Bearer hush"}}
    assert "hush" in settings(json.dumps({"mcpServers": {"a": server}})).secrets


@pytest.mark.parametrize("kind", ["http", "streamable-http", "streamableHttp"])
def test_every_spelling_of_streamable_http_is_accepted(settings: Callable[..., Settings], kind: str) -> None:
    found = settings(json.dumps({"mcpServers": {"a": {"type": kind, "url": "http://h/mcp"}}}))
    assert found.table.backends["a"].target == HttpTarget("http://h/mcp")


def test_extra_keys_of_a_server_reach_its_spec(settings: Callable[..., Settings]) -> None:
    text = """{"mcpServers": {"a": {"command": "x", "sharing": "shared", "timeout": 7, "enabledTools": ["r*"],
      "disabledTools": ["rm"], "groups": ["g"]}}, "gateway": {"groups": {"h": ["a"]}}}"""
    assert settings(text).table.backends["a"] == BackendSpec(
        "a", StdioTarget("x"), 7.0, "shared", ("r*",), ("rm",), groups=("h", "g")
    )


def test_a_server_without_a_timeout_has_that_of_all_requests(settings: Callable[..., Settings]) -> None:
    text = '{"mcpServers": {"a": {"command": "x"}}, "gateway": {"limits": {"requestDeadline": 11}}}'
    assert settings(text).table.backends["a"].timeout == 11.0


def test_no_enabled_tools_at_all_is_not_the_same_as_no_filter(settings: Callable[..., Settings]) -> None:
    text = '{"mcpServers": {"a": {"command": "x", "enabledTools": []}}}'
    assert settings(text).table.backends["a"].enabled_tools == ()


def test_a_disabled_server_is_left_out_everywhere_with_all_that_is_wrong_in_it(
    settings: Callable[..., Settings],
) -> None:
    text = """{"mcpServers": {"a": {"command": "x"}, "b": {"url": "${GONE}", "type": "sse", "disabled": true, "c": 1}},
      "gateway": {"groups": {"g": ["a", "b"]}}}"""
    table = settings(text).table
    assert list(table.backends) == ["a"]
    assert table.endpoints[""].backends == ("a",)
    assert table.endpoints["g"].backends == ("a",)
    assert "b" not in table.endpoints


def test_endpoints_are_all_servers_each_server_and_each_group(settings: Callable[..., Settings]) -> None:
    text = """{"mcpServers": {"a": {"command": "x"}, "b": {"command": "y", "groups": ["g"]}},
      "gateway": {"groups": {"g": ["a"]}, "naming": {"separator": "-"}}}"""
    table = settings(text).table
    assert table.endpoints == {
        "": Endpoint("", "aggregate", ("a", "b")),
        "a": Endpoint("a", "transparent", ("a",)),
        "b": Endpoint("b", "transparent", ("b",)),
        "g": Endpoint("g", "aggregate", ("a", "b")),
    }
    assert table.separator == "-"


def test_a_relative_cwd_is_relative_to_the_file(settings: Callable[..., Settings], tmp_path: Path) -> None:
    target = settings('{"mcpServers": {"a": {"command": "x", "cwd": "sub"}}}').table.backends["a"].target
    assert target == StdioTarget("x", cwd=str(tmp_path / "sub"))


def test_a_native_reference_becomes_the_object_that_composition_finds(write: Callable[..., Path]) -> None:
    server = Server("a")
    file = write('{"mcpServers": {"a": {"native": "module:attr"}}}')
    loaded = load(file, {}, resolve={"module:attr": server}.__getitem__)
    assert loaded.settings.table.backends["a"].target == NativeTarget(server)


def test_a_native_reference_is_imported_unless_told_otherwise(write: Callable[..., Path]) -> None:
    loaded = load(write('{"mcpServers": {"a": {"native": "gateway.native.demo:server"}}}'), {})
    assert loaded.settings.table.backends["a"].target == NativeTarget(demo)


def test_a_module_alone_means_its_server(write: Callable[..., Path]) -> None:
    loaded = load(write('{"mcpServers": {"a": {"native": "gateway.native.demo"}}}'), {})
    assert loaded.settings.table.backends["a"].target == NativeTarget(demo)


@dataclass
class Made:
    """A server that is made of options."""

    folder: Path
    schema: int = 3
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.schema > 9:
            raise ValueError("schema: no more than 9")

    def connect(self) -> None:
        """As servers have it."""


class Unknown:
    """What no option can be."""


def make(*, folder: Path, schema: int = 3) -> Made:
    return Made(folder, schema)


@pytest.mark.parametrize("factory", [Made, make])
def test_a_function_that_makes_a_server_gets_its_options(
    write: Callable[..., Path], tmp_path: Path, factory: Any
) -> None:
    servers = {
        "a": {"native": "m:a", "options": {"folder": "sub/x", "schema": "${N}"}},
        "b": {"native": "m:a", "options": {"folder": "/b"}},
    }
    file = write(json.dumps({"mcpServers": servers}))
    found = load(file, {"N": "5"}, resolve={"m:a": factory}.__getitem__).settings.table.backends
    assert found["a"].target == NativeTarget(Made(tmp_path / "sub/x", 5))
    assert found["b"].target == NativeTarget(Made(Path("/b"), 3))


@pytest.mark.parametrize(
    ("found", "options", "place", "said"),
    [
        (make, {}, ".folder", "is missing"),
        (make, {"folder": "/", "shema": 1}, ".shema", 'unknown option; did you mean "schema"?'),
        (make, {"folder": "/", "schema": "hush"}, ".schema", "must be a whole number"),
        (make, {"folder": "/", "schema": 1.5}, ".schema", "must be a whole number"),
        (make, {"folder": 7}, ".folder", "must be text (in quotes)"),
        (make, {"folder": "/", "schema": 10}, "", "schema: no more than 9"),
        (Made(Path()), {"folder": "/"}, "", "this server has no options"),
    ],
)
def test_options_that_a_server_does_not_take_are_told(
    write: Callable[..., Path], found: Any, options: dict[str, Any], place: str, said: str
) -> None:
    text = json.dumps({"mcpServers": {"a": {"native": "m:a", "options": options}}})
    with pytest.raises(ConfigError) as caught:
        load(write(text), {}, resolve=lambda _: found)
    [problem] = caught.value.problems
    hint = f'; did you mean "{problem.nearest}"?' if problem.nearest else ""
    assert (problem.field, problem.message + hint) == (f"mcpServers.a.options{place}", said)
    assert "hush" not in str(problem)


def test_what_is_neither_a_server_nor_makes_one_is_told(write: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match=r"mcpServers\.a\.native: is no server, nor a function that makes one"):
        load(write('{"mcpServers": {"a": {"native": "builtins:dict"}}}'), {})


async def _make_later() -> Made:
    return Made(Path())


def _make_of(what: Unknown) -> Made:
    return Made(Path())


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (lambda: 5, "it makes no server, but something of type int"),
        (lambda: sys.exit(4), r"it ends the process \(SystemExit: 4\)"),
        (_make_later, "a function that makes a server is not async"),
        (_make_of, "is no server, and a function with parameters that no option can be"),
    ],
)
def test_a_function_that_makes_no_server_is_told(write: Callable[..., Path], found: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"mcpServers\.a\.native: {said}"):
        load(write('{"mcpServers": {"a": {"native": "m:a"}}}'), {}, resolve=lambda _: found)


def test_cursors_depend_on_options(write: Callable[..., Path]) -> None:
    def digest(folder: str) -> str:
        text = json.dumps({"mcpServers": {"a": {"native": "m:a", "options": {"folder": folder}}}})
        return load(write(text), {}, resolve=lambda _: make).settings.table.digest

    assert digest("/a") == digest("/a") != digest("/b")


def test_every_limit_is_configurable(settings: Callable[..., Settings], subtests: pytest.Subtests) -> None:
    for place in PLACES:
        more = int(getattr(Limits(), place.limit)) + 1
        gateway, section, key = place.path
        for value in (more, "${N}"):
            with subtests.test(place.limit, value=value):
                found = settings(json.dumps({gateway: {section: {key: value}}}), N=str(more)).limits
                assert found == replace(Limits(), **{place.limit: more})


def test_auth_keys_and_log_reach_the_settings(settings: Callable[..., Settings]) -> None:
    text = """{"gateway": {"auth": {"tokens": {"ann": "${T}", "bob": "tok-b"}, "hosts": ["h"], "origins": ["https://o"]},
      "keys": ["%s", "%s"], "log": {"level": "debug", "format": "json"}}}"""
    found = settings(text % ("ab" * 32, "q6urq6urq6urq6urq6urq6urq6urq6urq6urq6urq6s="), T="tok-a")
    assert found.auth == Auth((("ann", "tok-a"), ("bob", "tok-b")), ("h",), ("https://o",))
    assert found.keys == (b"\xab" * 32, b"\xab" * 32)
    assert found.log == LogSettings("debug", "json")


def test_tls_files_are_found_beside_the_file(settings: Callable[..., Settings], tmp_path: Path) -> None:
    issued = Authority(tmp_path).issue("gateway")
    found = settings(json.dumps({"gateway": {"tls": {"cert": "gateway.crt", "key": str(issued.key)}}})).tls
    assert found is not None
    assert (found.cert, found.key) == (issued.certificate, issued.key)


def test_credentials_are_in_no_repr(settings: Callable[..., Settings]) -> None:
    text = """{"mcpServers": {"a": {"url": "http://h/mcp", "headers": {"A": "hush"}}},
      "gateway": {"auth": {"tokens": {"ann": "hush"}}, "store": "redis://u:hush@h:1/0", "keys": ["%s"]}}"""
    found = settings(text % ("hu" * 32).replace("hu", "ab"))
    assert "hush" not in repr(found)
    assert repr(b"\xab" * 32) not in repr(found)


def test_the_credentials_are_known_so_that_logs_can_leave_them_out(settings: Callable[..., Settings]) -> None:
    text = """{"mcpServers": {"a": {"url": "http://h/mcp", "headers": {"Authorization": "Bearer tok-1", "X": "tok-2"}},
      "b": {"command": "x", "env": {"API_KEY": "tok-3", "MODE": "fast", "EMPTY_TOKEN": ""}}},
      "gateway": {"auth": {"tokens": {"ann": "tok-4"}}, "store": "redis://u:tok%2D5@h:1/0"}}"""
    assert set(settings(text).secrets) == {"Bearer tok-1", "tok-1", "tok-2", "tok-3", "tok-4", "tok-5"}
    assert settings("{}").secrets == ()


def test_secrets_of_the_gateway_s_own_clients_are_among_them(settings: Callable[..., Settings]) -> None:
    text = """{"mcpServers": {"a": {"url": "https://h/mcp", "auth": {"mode": "user", "clientId": "g",
        "clientSecret": "tok-1", "catalog": "tok-2"}}},
      "gateway": {"publicUrl": "https://gw.test", "auth": {
        "issuers": [{"issuer": "https://i.test", "introspection": {"endpoint": "https://i.test/i", "clientId": "g",
          "clientSecret": "tok-3"}}],
        "browser": {"mode": "oidc", "clientId": "g", "clientSecret": "tok-4"}}}}"""
    assert set(settings(text).secrets) == {"tok-1", "tok-2", "tok-3", "tok-4"}


def test_equal_configurations_have_equal_digests_and_others_have_not(settings: Callable[..., Settings]) -> None:
    def digests(extra: str = "", **environ: str) -> tuple[str, str]:
        text = '{"mcpServers": {"a": {"url": "http://h/${P:-mcp}", "headers": {"A": "${T:-x}"}, EXTRA}}}'
        found = settings(text.replace(", EXTRA", extra), **environ)
        return found.table.digest, found.config_digest

    table, config = digests()
    assert digests() == (table, config)
    assert digests(T="another") == (table, config), "a credential may change while names and cursors stay"
    assert digests(', "timeout": 1')[0] == table
    assert digests(', "timeout": 1')[1] != config
    assert digests(P="other")[0] != table
    assert digests(', "disabledTools": ["x"]')[0] != table


# ---------------------------------------------------------------------------------------------------------------
# What is refused


@pytest.mark.parametrize(
    ("text", "field", "line", "meant"),
    [
        ('{\n"mcpServer": {}}', "mcpServer", 2, "mcpServers"),
        ('{"mcpServers": {"a": {\n"comand": "x"}}}', "mcpServers.a.comand", 2, "command"),
        (
            '{"mcpServers": {"a": {"command": "x",\n"enabled_tools": []}}}',
            "mcpServers.a.enabled_tools",
            2,
            "enabledTools",
        ),
        ('{"servers": {"a": {"command": "x",\n"Timeout": 1}}}', "servers.a.Timeout", 2, "timeout"),
        ('{"gateway": {\n"listn": ""}}', "gateway.listn", 2, "listen"),
        ('{"gateway": {"limits": {\n"requests": 1}}}', "gateway.limits.requests", 2, "requestsPerSession"),
        ('{"gateway": {"tls": {"cert": "a", "key": "b",\n"keyy": 1}}}', "gateway.tls.keyy", 2, "key"),
        ('{"gateway": {"auth": {\n"qqqqqq": 1}}}', "gateway.auth.qqqqqq", 2, None),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(
    problems: Callable[..., tuple[Problem, ...]], text: str, field: str, line: int, meant: str | None
) -> None:
    found = next(one for one in problems(text) if one.message == "unknown key")
    assert (found.field, found.line, found.nearest) == (field, line, meant)
    assert found.file.endswith("stagedoor.jsonc")


def test_a_problem_reads_as_one_line_with_file_line_field_and_hint(problem: Callable[..., Problem]) -> None:
    said = str(problem('{\n"gateway": {"listn": 1}}'))
    assert said.endswith('stagedoor.jsonc:2: gateway.listn: unknown key; did you mean "listen"?')


def test_all_problems_are_told_at_once_in_the_order_of_the_file(problems: Callable[..., tuple[Problem, ...]]) -> None:
    text = '{"mcpServers": {\n"a": {"url": "${GONE}"},\n"b": {"command": 1},\n"c": {"x": 1}}}'
    assert [(one.field, one.line) for one in problems(text)] == [
        ("mcpServers.a.url", 2),
        ("mcpServers.b.command", 3),
        ("mcpServers.c.x", 4),
    ]


def test_an_unset_variable_is_an_error_that_names_the_field(problem: Callable[..., Problem]) -> None:
    found = problem('{"mcpServers": {"a": {"command": "x", "env": {\n"KEY": "${GONE}"}}}}')
    assert (found.field, found.line) == ("mcpServers.a.env.KEY", 2)
    assert found.message == "the variable GONE is not set and there is no default"


@pytest.mark.parametrize(
    ("server", "field", "said"),
    [
        ("{}", "", "has none of `command`, `url` and `native`"),
        ('{"command": "x", "url": "http://h"}', ".url", "stands beside `command`"),
        ('{"native": "m:a", "args": ["x"]}', ".args", "goes with `command`"),
        ('{"command": "x", "options": {"a": "b"}}', ".options", "goes with `native`"),
        ('{"command": "x", "headers": {"A": "b"}}', ".headers", "goes with `url`"),
        ('{"command": "x", "type": "http"}', ".type", "does not fit a server with `command`"),
        ('{"url": "http://h", "type": "stdio"}', ".type", "does not fit a server with `url`"),
        ('{"url": "http://h", "type": "ws"}', ".url", "must be a ws:// or wss:// URL, or unix:/PATH"),
        ('{"url": "wss://h", "type": "http"}', ".type", "does not fit a ws:// URL"),
        ('{"url": "ws://u:p@h/"}', ".url", "holds a user name"),
        ('{"url": "http://a..b/"}', ".url", "has a host that no name server can be asked for"),
        ('{"url": "http://a b/"}', ".url", "has a host that no name server can be asked for"),
        ('{"url": "ws://h:99999/"}', ".url", "has a host that"),
        ('{"url": "ftp://h"}', ".url", "must be an http://, https://, ws:// or wss:// URL, or unix:/PATH"),
        ('{"url": "unix:run/mcp.sock"}', ".url", "the path of a Unix domain socket must be absolute"),
        ('{"url": "http://u:p@h/"}', ".url", "holds a user name"),
        ('{"url": "http://h/#x"}', ".url", "holds a #fragment"),
        ('{"url": "http://h", "headers": {"A b": "x"}}', ".headers.A b", "is not a header name"),
        ('{"url": "http://h", "headers": {"Mcp-Session-Id": "x"}}', ".headers.Mcp-Session-Id", "is set by the gateway"),
        (
            '{"url": "ws://h", "headers": {"Sec-WebSocket-Key": "x"}}',
            ".headers.Sec-WebSocket-Key",
            "is set by the gateway",
        ),
        ('{"url": "http://h", "headers": {"A": "b\\r\\nC: d"}}', ".headers.A", "holds a line break"),
        ('{"command": ""}', ".command", "is empty"),
        ('{"command": "x\\u0000"}', ".command", "holds a NUL character"),
        ('{"command": "x", "args": ["a", "\\u0000"]}', ".args[1]", "holds a NUL character"),
        ('{"command": "x", "env": {"A=B": "x"}}', ".env.A=B", "is not a name that a variable can have"),
        ('{"command": "x", "env": {"PORT": []}}', ".env.PORT", "must be text (in quotes)"),
        ('{"command": "x", "args": "y"}', ".args", "must be a list"),
        ('{"command": "x", "timeout": 0}', ".timeout", "must be greater than 0"),
        ('{"command": "x", "timeout": true}', ".timeout", "must be a number"),
        ('{"command": "x", "timeout": "soon"}', ".timeout", "must be a number"),
        ('{"command": "x", "timeout": 1e999}', ".timeout", "must be less than or equal to 31536000"),
        ('{"command": "x", "sharing": "all"}', ".sharing", "must be 'session', 'principal', 'pool' or 'shared'"),
        ('{"command": "x", "disabled": "perhaps"}', ".disabled", "must be true or false"),
        ('"npx"', "", "must be an object"),
    ],
)
def test_a_server_that_makes_no_sense_is_refused_at_the_field(
    problem: Callable[..., Problem], server: str, field: str, said: str
) -> None:
    found = problem('{"mcpServers": {\n"a": ' + server + "}}")
    assert found.field == "mcpServers.a" + field
    assert found.message.startswith(said)
    assert found.line == 2


@pytest.mark.parametrize(
    ("gateway", "field", "said"),
    [
        ('{"listen": "8080"}', "listen", "must be HOST:PORT"),
        ('{"listen": "h:99999"}', "listen", "must be HOST:PORT"),
        ('{"listen": "::1:80"}', "listen", "must be HOST:PORT"),
        ('{"listen": ":80"}', "listen", "must be HOST:PORT"),
        ('{"listen": "127.0.0.1:8081"}', "admin", "is the address of `listen`"),
        ('{"store": "mysql://h/db"}', "store", "must be memory://"),
        ('{"store": "redis://"}', "store", "must be memory://"),
        ('{"store": "redis://h/staging"}', "store", "names no database"),
        ('{"store": "rediss://u:p@h:1/-1"}', "store", "names no database"),
        ('{"store": "redis+sentinel://h/service/staging"}', "store", "names no database"),
        ('{"store": "redis+cluster://h/3"}', "store", "names no database"),
        ('{"store": "redis://a..b:6379"}', "store", "has a host that"),
        ('{"store": "redis+sentinel://h:1,i:99999/main"}', "store", "has a host that"),
        ('{"keys": ["short"]}', "keys[0]", "must be 32 bytes"),
        ('{"auth": {"tokens": {}}}', "auth.tokens", "names no principal"),
        ('{"auth": {"tokens": {"a": "x y"}}}', "auth.tokens.a", "a bearer token is made of"),
        ('{"auth": {"tokens": {"a": "x", "b": "x"}}}', "auth.tokens.b", 'has the token of "a"'),
        ('{"auth": {"tokens": {"a": {"token": "x y"}}}}', "auth.tokens.a.token", "a bearer token is made of"),
        ('{"auth": {"tokens": {"a": {"groups": ["g"]}}}}', "auth.tokens.a.token", "is missing"),
        ('{"auth": {"tokens": {"3:abc": "x"}}}', "auth.tokens.3:abc", "is not a name"),
        ('{"auth": {"tokens": {"anonymous": "x"}}}', "auth.tokens.anonymous", "is not a name"),
        ('{"publicUrl": "http://mcp.example.com"}', "publicUrl", "must be https"),
        ('{"publicUrl": "mcp.example.com"}', "publicUrl", "must be an address like"),
        ('{"publicUrl": "https://mcp..example.com"}', "publicUrl", "has a host that"),
        ('{"auth": {"issuers": [{}]}}', "auth.issuers[0].issuer", "is missing"),
        ('{"auth": {"issuers": [{"issuer": "http://idp.test"}]}}', "auth.issuers[0].issuer", "must be https"),
        (
            '{"auth": {"issuers": [{"issuer": "https://i"}, {"issuer": "https://i"}]}}',
            "auth.issuers[1].issuer",
            "is there already",
        ),
        (
            '{"auth": {"issuers": [{"issuer": "https://i", "algorithms": ["HS256"]}]}}',
            "auth.issuers[0].algorithms[0]",
            "must be one of RS256",
        ),
        (
            '{"auth": {"issuers": [{"issuer": "https://i", "algorithms": ["none"]}]}}',
            "auth.issuers[0].algorithms[0]",
            "must be one of RS256",
        ),
        (
            '{"auth": {"issuers": [{"issuer": "https://i", "groupsClaims": ["a..b"]}]}}',
            "auth.issuers[0].groupsClaims[0]",
            "must be the path of a claim",
        ),
        (
            '{"auth": {"issuers": [{"issuer": "https://i", "preset": "entra"}]}}',
            "auth.issuers[0].audiences",
            "is missing: Entra",
        ),
        (
            '{"auth": {"issuers": [{"issuer": "https://i", "audiences": ["any-from-this-as"]}]}}',
            "auth.issuers[0].audiences",
            "any-from-this-as is for issuers with",
        ),
        ('{"listen": "0.0.0.0:80", "auth": {"issuers": [{"issuer": "https://i"}]}}', "publicUrl", "is missing: with"),
        ('{"auth": {"hosts": ["https://h"]}}', "auth.hosts[0]", "must be a host name"),
        ('{"auth": {"hosts": ["*"]}}', "auth.hosts[0]", "must be a host name"),
        ('{"auth": {"origins": ["https://o/path"]}}', "auth.origins[0]", "must be an origin"),
        ('{"auth": {"origins": ["*"]}}', "auth.origins[0]", "must be an origin"),
        ('{"tls": {"cert": "x"}}', "tls.key", "is missing"),
        ('{"naming": {"separator": "."}}', "naming.separator", "must be 1 to 8 of"),
        ('{"naming": {"separator": ""}}', "naming.separator", "must be 1 to 8 of"),
        ('{"limits": {"sessions": 1}}', "limits.sessions", "unknown key"),
        ('{"sessions": {"max": 0}}', "sessions.max", "must be greater than or equal to 1"),
        ('{"sessions": {"max": 1.5}}', "sessions.max", "must be a whole number"),
        ('{"sessions": {"max": true}}', "sessions.max", "must be a number"),
        ('{"drain": {"grace": -1}}', "drain.grace", "must be greater than or equal to 0"),
        ('{"drain": {"deadline": 1e300}}', "drain.deadline", "must be less than or equal to 31536000"),
        ('{"sessions": {"idleTtl": 31536001}}', "sessions.idleTtl", "must be less than or equal to 31536000"),
        ('{"workers": 8080}', "workers", "must be less than or equal to 1024"),
        ('{"audit": {"file": ""}}', "audit.file", "is empty"),
        ('{"pins": {"file": ""}}', "pins.file", "is empty"),
        ('{"log": {"accessFile": ""}}', "log.accessFile", "is empty"),
        ('{"log": {"level": "loud"}}', "log.level", "must be 'debug', 'info', 'warning' or 'error'"),
        (
            '{"limits": {"requestDeadline": 4000}}',
            "limits.requestDeadline",
            "is more than `gateway.limits.requestDeadlineCap",
        ),
        ('{"replay": {"ttl": 30}}', "replay.ttlWritten", "is more than `gateway.replay.ttl`"),
        ('{"groups": {"g": ["nobody"]}}', "groups.g[0]", 'there is no server "nobody"'),
        ('{"groups": {"g h": []}}', "groups.g h", "a name is a part of a URL"),
    ],
)
def test_a_gateway_section_that_makes_no_sense_is_refused_at_the_field(
    problem: Callable[..., Problem], gateway: str, field: str, said: str
) -> None:
    found = problem('{\n"gateway": ' + gateway + "}")
    assert found.field == f"gateway.{field}"
    assert found.message.startswith(said)
    assert found.line == 2


def test_tls_files_must_be_there(problems: Callable[..., tuple[Problem, ...]]) -> None:
    found = problems('{"gateway": {"tls": {"cert": "c", "key": "k"}}}')
    assert [one.field for one in found] == ["gateway.tls.cert", "gateway.tls.key"]


@pytest.mark.parametrize(
    ("cert", "key", "field", "said"),
    [
        ("gateway.crt", "other.key", "key", "is not the key of this certificate"),
        ("gateway.crt", "locked.key", "key", "holds no private key in PEM without a password"),
        ("gateway.crt", "gateway.crt", "key", "holds no private key in PEM without a password"),
        ("gateway.key", "gateway.key", "cert", "holds no certificate in PEM"),
        ("empty", "gateway.key", "cert", "holds no certificate in PEM"),
        ("weak.crt", "weak.key", "cert", "can't be used for TLS: ee key too small"),
    ],
)
def test_tls_files_must_hold_what_they_are_named_for(
    problem: Callable[..., Problem], tmp_path: Path, cert: str, key: str, field: str, said: str
) -> None:
    authority = Authority(tmp_path)
    authority.issue("gateway")
    authority.issue("weak", rsa.generate_private_key(65537, 1024))
    plain = load_pem_private_key(authority.issue("other").key.read_bytes(), None)
    locked = plain.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    (tmp_path / "locked.key").write_bytes(locked)
    (tmp_path / "empty").touch()
    found = problem(json.dumps({"gateway": {"tls": {"cert": cert, "key": key}}}))
    assert (found.field, found.message) == (f"gateway.tls.{field}", said)


@contextmanager
def as_an_operator() -> Iterator[None]:
    """As somebody whom files of mode 0600 are closed to."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(pwd.getpwnam("nobody").pw_uid)
    try:
        yield
    finally:
        os.seteuid(was)


@pytest.mark.parametrize("closed", ["key", "folder"])
def test_who_may_not_read_the_key_is_told_so_and_may_look_at_the_rest(
    closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "is_file", os.path.isfile)  # as of Python 3.14 on
    with TemporaryDirectory() as place:  # its folder is open, which pytest's is not
        folder = Path(place)
        (folder / "tls").mkdir()
        issued = Authority(folder / "tls").issue("gateway")
        file = folder / "stagedoor.json"
        tls = {"cert": str(issued.certificate), "key": str(issued.key)}
        file.write_text(json.dumps({"mcpServers": {"a": {"command": "a"}}, "gateway": {"tls": tls}}))
        for path in (folder, folder / "tls", file, issued.certificate):
            path.chmod(0o755)
        issued.key.chmod(0)
        if closed == "folder":
            (folder / "tls").chmod(0)
        with as_an_operator():
            loaded = load(file)
            said = [str(problem) for problem in advice(loaded) if problem.path == ("gateway", "tls")]
            which = str(issued.key) if closed == "key" else f"{issued.certificate} and {issued.key}"
            assert loaded.settings.unreadable.endswith(f" can't read {which}: the user that serves must be able to")
            assert [loaded.settings.unreadable in one for one in said] == [True]
            assert loaded.settings.unreadable.startswith(f"the user {pwd.getpwuid(os.geteuid()).pw_name} can't")
        (folder / "tls").chmod(0o755)
        issued.certificate.write_text("no certificate")
        with as_an_operator(), pytest.raises(ConfigError, match=r"gateway\.tls\.cert: holds no certificate in PEM"):
            load(file)


@pytest.mark.parametrize("name", ["", ".", "..", "文件", "my файлы", "a" * 65])
def test_a_name_that_does_not_fit_a_url_is_refused(problem: Callable[..., Problem], name: str) -> None:
    assert "a name is a part of a URL" in problem(json.dumps({"mcpServers": {name: {"command": "x"}}})).message


@pytest.mark.parametrize(
    "names",
    [{"mcpServers": ["my server", "my-server"]}, {"mcpServers": ["my/server"], "servers": ["my server"]}],
    ids=["as another one is called", "by both"],
)
def test_of_servers_that_would_be_served_under_one_name_one_is_refused(
    problem: Callable[..., Problem], names: dict[str, list[str]]
) -> None:
    servers = {section: {name: {"command": "x"} for name in of} for section, of in names.items()}
    found = problem(json.dumps(servers, indent=1))
    assert "a name is a part of a URL" in found.message
    assert found.field.endswith(".my server")
    assert found.line is not None


@pytest.mark.parametrize(
    ("name", "separator"), [("a__b", "__"), ("a__", "__"), ("a-b", "-"), ("a_b", "_"), ("a.x.b", "x")]
)
@pytest.mark.parametrize("key", ["mcpServers", "servers"])
def test_a_name_that_holds_the_separator_is_refused(
    problem: Callable[..., Problem], settings: Callable[..., Settings], key: str, name: str, separator: str
) -> None:
    servers = {"b": {"command": "x"}, name: {"command": "x"}}
    naming = {"naming": {"separator": separator}}
    found = problem(json.dumps({key: {**servers, "fine": {"command": "x"}}, "gateway": naming}, indent=1))
    assert found.field == f"{key}.{name}"
    assert f'the separator "{separator}"' in found.message
    assert found.line is not None
    switched_off = {**servers, name: {"command": "x", "disabled": True}}
    assert list(settings(json.dumps({key: switched_off, "gateway": naming})).table.backends) == ["b"]


def test_a_refused_name_comes_with_a_usable_one(problem: Callable[..., Problem]) -> None:
    assert problem('{"gateway": {"groups": {"my group": []}}}').message.endswith('such as "my-group"')


def test_a_group_cannot_have_the_name_of_a_server(problem: Callable[..., Problem]) -> None:
    text = '{"mcpServers": {"a": {"command": "x"}, "b": {"command": "x", "groups": [\n"a"]}}}'
    found = problem(text)
    assert (found.field, found.line) == ("mcpServers.b.groups[0]", 2)
    assert found.message == 'the group "a" has the name of a server: both would be /mcp/a'
    assert (
        problem('{"mcpServers": {"a": {"command": "x"}}, "gateway": {"groups": {"a": []}}}').field == "gateway.groups.a"
    )


def test_a_group_of_an_unknown_server_names_the_nearest(problem: Callable[..., Problem]) -> None:
    text = '{"mcpServers": {"files": {"command": "x"}}, "gateway": {"groups": {"g": ["file"]}}}'
    assert problem(text).nearest == "files"


def test_one_name_under_both_keys_is_refused(problem: Callable[..., Problem]) -> None:
    text = '{"mcpServers": {"a": {"command": "x"}}, "servers": {"a": {"command": "x"}}}'
    assert problem(text).field == "servers.a"


def test_no_error_repeats_a_value_that_may_be_a_credential(problems: Callable[..., tuple[Problem, ...]]) -> None:
    text = """{"mcpServers": {"a": {"url": "http://h", "headers": {"A": "hush\\n"}}, "b": {"env": "hush"}},
      "gateway": {"auth": {"tokens": {"p": "hush hush"}}, "store": "hush://hush", "keys": ["hush"]}}"""
    found = problems(text)
    assert len(found) >= 5
    assert not any("hush" in str(one) for one in found)


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("os", 'there is no "server" in os'),
        ("os:", "must be written as module:attribute or path/to/file.py:attribute"),
        (":x", "must be written as module:attribute or path/to/file.py:attribute"),
        ("no_such_module:x", "cannot be imported: No module named 'no_such_module'"),
        ("os:no_such", 'there is no "no_such" in os'),
    ],
)
def test_a_native_server_that_is_not_there_is_told(write: Callable[..., Path], reference: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(json.dumps({"mcpServers": {"a": {"native": reference}}})), {})
    [found] = caught.value.problems
    assert (found.field, found.message) == ("mcpServers.a.native", said)


def test_modules_of_the_current_directory_can_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "servers_of_this_test.py").write_text("server = 'here'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])
    assert import_object("servers_of_this_test:server") == "here"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("c.toml", b"", "the name must end in one of .json, .jsonc, .yaml, .yml"),
        ("c.json", b"\xff{}", "not UTF-8 at byte 0"),
        ("c.json", b"[]", "the configuration must be an object with named members"),
        ("c.yaml", b"", "the configuration must be an object with named members"),
    ],
)
def test_a_file_that_cannot_be_a_configuration_is_refused(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(file, {})
    assert caught.value.problems[0].message == said


def test_a_file_that_is_not_there_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.json: No such file or directory"):
        load(tmp_path / "gone.json")


def test_a_byte_order_mark_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_bytes(b"\xef\xbb\xbf{}")
    load(tmp_path / "c.json", {})
