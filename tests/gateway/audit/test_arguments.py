"""What is written of the arguments of a call."""

import json

import pytest

from gateway.audit.arguments import MORE, NAMES, VALUE_CHARACTERS, teller
from gateway.observability.redaction import HIDDEN, Redaction

CANARY = "hush-hush-hush"
REDACT = Redaction([CANARY]).arguments
GIVEN = {"path": "/a", "api_key": "abcdef", "note": f"it is {CANARY}", "deep": {"password": "x1y2", "n": 1}}
RAW = json.dumps(GIVEN).encode()


def told(form, raw=RAW, key=b"k"):
    return teller(form, key, REDACT)(raw)


def test_by_default_names_alone() -> None:
    assert told("keys") == ["path", "api_key", "note", "deep"]
    assert told("none") is None


def test_hashes_are_the_same_for_what_means_the_same_under_one_key() -> None:
    one = told("hash", b'{"a": {"x": 1, "y": 2}, "b": "s"}')
    assert one == told("hash", b'{"b": "s", "a": {"y": 2, "x": 1}}')
    assert one != told("hash", b'{"a": {"x": 1, "y": 2}, "b": "s"}', key=b"another")
    assert "s" not in one.values()


def test_redacted_hides_by_name_by_shape_and_by_value() -> None:
    assert told("redacted") == {
        "path": "/a",
        "api_key": HIDDEN,
        "note": f"it is {HIDDEN}",
        "deep": {"password": HIDDEN, "n": 1},
    }


def test_redacted_hides_what_a_command_line_has_and_numbers_that_are_credentials() -> None:
    given = {
        "command": "mysql --password hunter2 -u ann; export API_TOKEN=abc",
        "args": ["--api-key", "x", {"url": "https://ann:pw@db.test/?q=1"}],
        "password": 1234,
        "pin": 1234,
        "session_token": ["a", "b"],
        "has_token": True,
        "auth": {"Authorization": "Bearer abcdef"},
        "far": " " * 900 + "x" * 200,
    }
    found = told("redacted", json.dumps(given).encode())
    assert "hunter2" not in str(found)
    assert "abc" not in str(found)
    assert "pw@" not in str(found)
    assert (found["password"], found["session_token"]) == (HIDDEN, HIDDEN)
    assert (found["pin"], found["has_token"]) == (1234, True)
    assert found["far"] == " " * VALUE_CHARACTERS + MORE


def test_a_credential_is_found_wherever_it_ends() -> None:
    """A long one, whose shape says only at its end what it is."""
    token = f"eyJ{'a' * 40}.{'b' * 6000}.{'c' * 40}"
    found = told("redacted", json.dumps({"note": f"it is {token}", "body": f"x={token}"}).encode())
    assert found == {"note": f"it is {HIDDEN}", "body": f"x={HIDDEN}"}


@pytest.mark.parametrize("unread", ["1e400", "[" * 3000 + "]" * 3000])
def test_an_argument_that_can_not_be_read_hides_no_other_one(unread: str) -> None:
    raw = f'{{"path":"/etc/shadow","deep":{{"x":{unread}}}}}'.encode()
    if unread == "1e400":
        assert told("keys", raw) == ["path", "deep"]
        assert told("redacted", raw) == told("full", raw) == {"path": "/etc/shadow", "deep": MORE}
        hashed, other = told("hash", raw), told("hash", raw.replace(b"1e400", b"1e401"))
        assert hashed["path"] == told("hash", b'{"path":"/etc/shadow"}')["path"]
        assert hashed["deep"] != other["deep"]
    else:  # no message with such an argument comes so far
        assert told("full", raw) is None


def test_of_an_argument_that_stands_twice_the_last_one_is_told() -> None:
    raw = b'{"path":"/a","path":"/b"}'
    assert (told("keys", raw), told("full", raw)) == (["path"], {"path": "/b"})


def test_full_is_full_but_for_its_bounds() -> None:
    assert told("full") == GIVEN


@pytest.mark.parametrize("form", ["keys", "hash", "redacted", "full"])
def test_what_is_large_is_cut(form: str) -> None:
    deep: object = 1
    for _ in range(50):
        deep = {"d": deep}
    raw = json.dumps({**{f"n{number}": "x" * 100_000 for number in range(100)}, "deep": deep}).encode()
    found = told(form, raw)
    assert len(found) == NAMES + 1
    assert len(json.dumps(found)) < 2_000_000
    if form == "redacted":
        assert found["n0"] == "x" * VALUE_CHARACTERS + MORE


@pytest.mark.parametrize("form", ["keys", "hash", "redacted", "full"])
@pytest.mark.parametrize("ends", [b"[]", b"{}"])
def test_what_is_nested_deeply_ends_nothing(form: str, ends: bytes) -> None:
    opens, closes = (b"[", b"]") if ends == b"[]" else (b'{"a":', b"}")
    for depth in (500, 700, 900, 990, 5000):
        told(form, b'{"x":' + opens * depth + b"1" + closes * depth + b"}")


@pytest.mark.parametrize("raw", [b"", b"[1]", b"{", b"null", b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_told_as_nothing(raw: bytes) -> None:
    assert told("keys", raw) in (None, [])
