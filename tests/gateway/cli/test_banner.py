import json
import re
import shlex
from pathlib import Path

import pytest

from actors.protocol.issuers import Issuer
from actors.protocol.table import BackendSpec, Endpoint, StdioTarget, Table
from gateway.cli.banner import banner
from gateway.config import Address, Auth, Settings, Tls

SPECS = {name: BackendSpec(name, StdioTarget("x")) for name in ("files", "git")}
ENDPOINTS = {
    "": Endpoint("", "aggregate", ("files", "git")),
    "files": Endpoint("files", "transparent", ("files",)),
    "git": Endpoint("git", "transparent", ("git",)),
    "work": Endpoint("work", "aggregate", ("files", "git")),
}
TABLE = Table(SPECS, ENDPOINTS)


def line(text: str, label: str) -> str:
    [found] = re.findall(rf"^  {label}\s+(.+)$", text, re.MULTILINE)
    return str(found)


def test_it_says_where_everything_is() -> None:
    text = banner(Settings(TABLE))
    assert line(text, "endpoint") == "http://127.0.0.1:8080/mcp   2 servers in one"
    assert line(text, "alone") == "http://127.0.0.1:8080/mcp/{files,git}"
    assert line(text, "groups") == "http://127.0.0.1:8080/mcp/work"
    assert line(text, "admin") == "http://127.0.0.1:8081   /livez /readyz /metrics"
    assert line(text, "store") == "memory (sessions end with this process)"
    assert line(text, "identity") == "anonymous (no auth.tokens)"


def test_of_one_server_as_it_is_it_names_no_other_place() -> None:
    text = banner(Settings(Table({"native": SPECS["files"]}, {"": Endpoint("", "transparent", ("native",))})))
    assert line(text, "endpoint") == "http://127.0.0.1:8080/mcp   one server, as it is"
    assert "{" not in text.partition("Connect a client")[0], "there is nothing at /mcp/native"


def test_over_a_unix_socket_it_says_what_can_reach_that() -> None:
    text = banner(Settings(TABLE, listen=Address.unix("/run/s d.sock")))
    assert line(text, "endpoint") == "unix:/run/s d.sock   2 servers in one"
    assert line(text, "alone") == "http://localhost/mcp/{files,git}"
    assert shlex.split(line(text, "curl"))[:5] == [
        "curl",
        "-sS",
        "--unix-socket",
        "/run/s d.sock",
        "http://localhost/mcp",
    ]
    assert "Claude Code" not in text


def test_its_lines_can_be_pasted() -> None:
    text = banner(Settings(TABLE))
    assert line(text, "Claude Code") == "claude mcp add --transport http stagedoor http://127.0.0.1:8080/mcp"
    assert shlex.split(line(text, "Inspector"))[:4] == [
        *("npx", "@modelcontextprotocol/inspector", "--cli", "http://127.0.0.1:8080/mcp")
    ]
    assert json.loads(shlex.split(line(text, "VS Code"))[2]) == {
        "name": "stagedoor",
        "type": "http",
        "url": "http://127.0.0.1:8080/mcp",
    }
    body = json.loads(shlex.split(line(text, "curl"))[-1])
    assert (body["jsonrpc"], body["method"]) == ("2.0", "initialize")


def test_with_tokens_every_line_sends_one_and_none_is_shown() -> None:
    text = banner(Settings(TABLE, auth=Auth((("ann", "hush-hush"), ("bob", "hush-too")))))
    assert "hush" not in text
    assert line(text, "identity") == "bearer tokens of ann, bob"
    for label in ("Claude Code", "Inspector", "curl"):
        assert '"Authorization: Bearer $TOKEN"' in line(text, label)
    added = json.loads(shlex.split(line(text, "VS Code"))[2])
    assert added["headers"] == {"Authorization": "Bearer ${input:token}"}
    assert [(asked["id"], asked["password"]) for asked in added["inputs"]] == [("token", True)], "it asks for that"


def test_with_issuers_it_says_whose_tokens_are_taken_and_who_is_given_one() -> None:
    issuers = (Issuer("https://a.example"), Issuer("https://b.example"))
    text = banner(Settings(TABLE, auth=Auth(issuers=issuers)))
    assert line(text, "identity") == "tokens from https://a.example, https://b.example"
    sends = [one for one in ("Claude Code", "VS Code", "Inspector", "curl") if "Authorization" in line(text, one)]
    assert sends == ["Inspector", "curl"], "the others sign in by themselves"
    both = banner(Settings(TABLE, auth=Auth((("ann", "hush-hush"),), issuers=issuers[:1])))
    assert line(both, "identity") == "bearer tokens of ann; tokens from https://a.example"


@pytest.mark.parametrize(
    ("address", "url"),
    [
        (Address("0.0.0.0", 80), "http://127.0.0.1:80/mcp"),
        (Address("::", 80), "http://[::1]:80/mcp"),
        (Address("::1", 80), "http://[::1]:80/mcp"),
        (Address("example.com", 80), "http://example.com:80/mcp"),
    ],
)
def test_its_urls_can_be_reached_from_this_machine(address: Address, url: str) -> None:
    assert line(banner(Settings(TABLE, listen=address)), "Claude Code").endswith(" " + url)


def test_tls_makes_the_urls_https_and_a_store_is_named_without_its_password() -> None:
    text = banner(Settings(TABLE, tls=Tls(Path("c"), Path("k")), store="rediss://u:hush@h:1/0"))
    assert line(text, "endpoint").startswith("https://127.0.0.1:8080/mcp")
    assert line(text, "admin").startswith("http://")
    assert line(text, "store") == "rediss"
    assert "hush" not in text


def test_without_servers_or_groups_their_lines_are_left_out() -> None:
    text = banner(Settings(Table({}, {"": Endpoint("", "aggregate", ())})))
    assert "alone" not in text
    assert "groups" not in text
    assert "0 servers in one" in text
