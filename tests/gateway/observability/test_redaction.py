from typing import Any

import pytest

from gateway.observability import Redaction


def redacted(**event: Any) -> dict[str, Any]:
    return Redaction(["s3cret-value-of-mine", "short"])(None, "info", event)


@pytest.mark.parametrize(
    "key",
    [
        *("authorization", "Authorization", "cookie", "set_cookie", "token", "accessToken", "client_secret"),
        *("password", "api_key", "apiKey", "X-Api-Key", "session_id", "sessionId", "mcp-session-id", "credentials"),
    ],
)
def test_values_of_telling_keys_are_hidden_at_any_depth(key: str) -> None:
    assert redacted(**{key: "value"}) == {key: "[redacted]"}
    assert redacted(headers={key: "value", "a": 1}) == {"headers": {key: "[redacted]", "a": 1}}
    assert redacted(several=[{key: ["value"]}]) == {"several": [{key: "[redacted]"}]}


def test_numbers_flags_and_nothing_are_not_secrets() -> None:
    event = {"tokens": 5, "has_token": True, "session_id": None, "session": "handle", "event": "x"}
    assert redacted(**event) == event


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("sent Authorization: Bearer abc.DEF-123= to it", "sent Authorization: Bearer [redacted] to it"),
        ("basic dXNlcjpwYXNz", "basic [redacted]"),
        ("at redis://user:pass@host:1/0 now", "at redis://[redacted]@host:1/0 now"),
        ("at redis://:pass@host", "at redis://[redacted]@host"),
        ("at redis://user:pa:ss@host", "at redis://[redacted]@host"),
        ("at http://" + ":" * 4000, "at http://" + ":" * 4000),
        ("Mcp-Session-Id: abc123 was unknown", "Mcp-Session-Id: [redacted] was unknown"),
        ("the s3cret-value-of-mine in a text", "the [redacted] in a text"),
        ("a bearer of news and http://host/path", "a bearer [redacted] news and http://host/path"),
        ("a short word", "a short word"),
        ("at https://ghp_token@host/x", "at https://[redacted]@host/x"),
        ("GET https://host/mcp?api=abc&b=c#d failed", "GET https://host/mcp?api=[redacted]&b=[redacted]#d failed"),
        ("'/mcp?access%5Ftoken=abc'", "'/mcp?access%5Ftoken=[redacted]'"),
        ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln back", "got [redacted] back"),
        ("a.key-eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln.", "a.key-[redacted]."),
        ("eyJ-eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "[redacted]"),
        ("keyJhbGciOiJIUzI1NiJ9.x.y", "keyJhbGciOiJIUzI1NiJ9.x.y"),
        ("with sk-abcdefghijklmnopqrstuvwx", "with [redacted]"),
        ("what? a=b", "what? a=b"),
    ],
)
def test_credentials_inside_texts_are_hidden(text: str, written: str) -> None:
    assert redacted(event=text) == {"event": written}
    assert redacted(value=[text]) == {"value": [written]}
    assert redacted(value=text.encode()) == {"value": written}


def test_of_two_secrets_the_longer_is_hidden_whole() -> None:
    redaction = Redaction(["long-secret", "long-secret-and-more"])
    assert redaction.text("x long-secret-and-more y") == "x [redacted] y"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("GITHUB_TOKEN=abc", "GITHUB_TOKEN=[redacted]"),
        ('{"api_key": "abc", "a": 1}', '{"api_key": "[redacted]", "a": 1}'),
        ("usage: server --api-key abc --port 1", "usage: server --api-key [redacted] --port 1"),
        ("key sk-abcdefghijklmnopqrst is not valid", "key [redacted] is not valid"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln expired", "[redacted] expired"),
        ("Error: Cannot find module 'express'", "Error: Cannot find module 'express'"),
        ("s3cret-value-of-mine", "[redacted]"),
    ],
)
def test_of_what_servers_write_more_is_hidden_than_of_our_own_words(text: str, written: str) -> None:
    assert Redaction(["s3cret-value-of-mine"]).foreign(text) == written


@pytest.mark.parametrize("text", ["token" * 2000, "a-" * 4000, "--token " * 1000, "eyJ" * 3000, "api_key" + " " * 9000])
def test_no_text_of_a_server_takes_long_to_look_at(text: str) -> None:
    assert Redaction().foreign(text[:4096])


@pytest.mark.parametrize("part", ["eyJaaaaaaaa-", "eyJaaaaaaaa.", "Bearer ", "://a", "&a", "sk-", "mcp-session-id "])
def test_a_text_of_a_megabyte_is_looked_through_in_one_go(part: str) -> None:
    """What takes time with the square of the length never ends here."""
    text = part * (1_000_000 // len(part))
    assert Redaction().text(text)
