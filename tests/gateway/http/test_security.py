"""Which Host and Origin pass, by listen address and configuration."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.security import Security, SecurityChecks

LOCAL = Security("127.0.0.1")
WILD = Security("0.0.0.0")
NAMED = Security("10.1.2.3", hosts=("mcp.example.com", "ported.example.com:8443"), origins=("https://app.example.com",))


@pytest.mark.parametrize(
    ("security", "host", "allowed"),
    [
        (LOCAL, "127.0.0.1:8080", True),
        (LOCAL, "localhost", True),
        (LOCAL, "LocalHost:9999", True),
        (LOCAL, "localhost.:8080", True),
        (LOCAL, "[::1]:8080", True),
        (LOCAL, "evil.example", False),
        (LOCAL, "localhost.evil.example", False),
        (LOCAL, "127.0.0.1.nip.io", False),
        (LOCAL, "10.0.0.1", False),
        (LOCAL, "localhost@evil.example", False),
        (LOCAL, "evil.example:80@localhost", False),
        (LOCAL, "localhost, evil.example", False),
        (LOCAL, "localhost:abc", False),
        (LOCAL, "[::1", False),
        (LOCAL, "", False),
        (LOCAL, None, False),
        (WILD, "10.0.0.1:8080", True),
        (WILD, "[fd00::1]:8080", True),
        (WILD, "localhost", True),
        (WILD, "evil.example", False),
        (WILD, "10.0.0.1.evil.example", False),
        (Security("::"), "10.0.0.1", True),
        (Security(""), "10.0.0.1", True),
        (Security("127.0.0.1", any_ip=True), "10.0.0.1", True),
        (NAMED, "10.1.2.3:8080", True),
        (NAMED, "10.1.2.4:8080", False),
        (NAMED, "MCP.example.com", True),
        (NAMED, "ported.example.com:8443", True),
        (NAMED, "ported.example.com:8444", False),
        (NAMED, "app.example.com", False),
        (Security("[::1]"), "[::1]:1", True),
        (Security("box.lan"), "box.lan:1", True),
    ],
)
def test_hosts(security, host, allowed):
    gate = SecurityChecks(security)
    assert gate.host_allowed(host) is allowed
    assert gate.host_allowed(host) is allowed  # remembered or not


@pytest.mark.parametrize(
    ("security", "origin", "allowed"),
    [
        (LOCAL, "http://localhost:6274", True),
        (LOCAL, "https://127.0.0.1", True),
        (LOCAL, "http://[::1]:3000", True),
        (LOCAL, "HTTP://LOCALHOST", True),
        (LOCAL, "null", False),
        (LOCAL, "", False),
        (LOCAL, "http://evil.example", False),
        (LOCAL, "http://localhost.evil.example", False),
        (LOCAL, "http://localhost@evil.example", False),
        (LOCAL, "http://evil.example#localhost", False),
        (LOCAL, "file://localhost", False),
        (LOCAL, "localhost", False),
        (WILD, "http://10.0.0.1:8080", False),
        (NAMED, "https://app.example.com", True),
        (NAMED, "https://app.example.com:443", True),
        (NAMED, "https://app.example.com:8443", False),
        (NAMED, "http://app.example.com", False),
        (NAMED, "https://mcp.example.com", True),
        (Security("127.0.0.1", origins=("app.example.com",)), "http://app.example.com:99", True),
        (Security("127.0.0.1", origins=("vscode-webview://abc",)), "vscode-webview://abc", True),
        (Security("127.0.0.1", origins=("https://app.example.com/",)), "https://app.example.com", True),
    ],
)
def test_origins(security, origin, allowed):
    assert SecurityChecks(security).origin_allowed(origin) is allowed


@given(st.text(max_size=40))
def test_no_header_value_raises(value):
    gate = SecurityChecks(NAMED)
    gate.host_allowed(value)
    gate.origin_allowed(value)
    gate.asker(value)


def test_remembered_hosts_are_bounded():
    gate = SecurityChecks(WILD)
    for port in range(1000):
        assert gate.host_allowed(f"localhost:{port}")
    assert 0 < gate.remembered <= 64


def test_a_token_that_was_given_to_somebody_else_is_not_his_any_more():
    """A reload may say so: what was begun with it is not gone on with."""
    before = SecurityChecks(Security("127.0.0.1", tokens={"ann": "t" * 20, "bob": "u" * 20}))
    ann = before.asker("t" * 20)
    assert before.configured(ann)
    assert SecurityChecks(Security("127.0.0.1", tokens={"ann": "t" * 20})).configured(ann)
    assert not SecurityChecks(Security("127.0.0.1", tokens={"bob": "t" * 20})).configured(ann)
