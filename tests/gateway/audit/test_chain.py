"""The chain of an audit trail, and what its check finds."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.audit.chain import END, LOST, START, Chain, signing_keys, timestamp, verify

KEYS = signing_keys([b"k" * 32, b"o" * 32])


def chain(*events: str, name: str = "c", key: bytes = KEYS[0]) -> list[bytes]:
    made = Chain(name, key)
    lines = [made.line(START, 0.0, {})]
    lines += [made.line(event, 1.5, {"item": "tool"}) for event in events]
    return [*lines, made.head(2.0), made.head(3.0, END)]


def placed(lines: list[bytes]) -> list[tuple[str, bytes]]:
    return [(f"f:{number}", line) for number, line in enumerate(lines, 1)]


def problems(lines: list[bytes], keys: tuple[bytes, ...] = KEYS) -> list[str]:
    return [problem for found in verify(placed(lines), keys).chains.values() for problem in found.problems]


def test_a_line_says_when_which_and_what() -> None:
    line = Chain("c", KEYS[0]).line("call", 1_700_000_000.25, {"principal": "ann", "args": ["a"]})
    assert json.loads(line) == {
        "ts": "2023-11-14T22:13:20.250Z",
        "id": "c.1",
        "prev": "0" * 64,
        "event": "call",
        "principal": "ann",
        "args": ["a"],
    }


@given(st.text())
def test_15_a_name_never_makes_a_second_line(name: str) -> None:
    line = Chain("c", KEYS[0]).line("call", 0, {"item": name}).decode()
    assert len(line.splitlines()) == 1 or not set(line) & set("\n\r\u2028\u2029")
    assert json.loads(line)["item"] == name


def test_what_can_t_be_written_is_a_line_all_the_same() -> None:
    lines = Chain("c", KEYS[0])
    first = lines.line(START, 0, {})
    second = lines.line("call", 0, {"item": "\ud800"})
    assert json.loads(second)["unwritable"] == "UnicodeEncodeError"
    assert problems([first, second]) == []


def test_an_untouched_trail_is_good_signed_to_its_end() -> None:
    verdict = verify(placed(chain("call", "deny")), KEYS)
    assert verdict.good
    [found] = verdict.chains.values()
    assert (found.lines, found.signed, found.ended) == (5, 5, True)


def test_chains_of_several_processes_may_stand_in_one_file() -> None:
    one, two = chain("call", name="a"), chain("deny", "call", name="b")
    mixed = [line for pair in zip(one, two, strict=False) for line in pair] + two[len(one) :]
    verdict = verify(placed(mixed), KEYS)
    assert verdict.good
    assert {name: found.lines for name, found in verdict.chains.items()} == {"a": 4, "b": 5}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [*lines[:2], *lines[3:]], "is line 4 of its chain, behind line 2"),
        (lambda lines: [lines[0], lines[1].replace(b"tool", b"fool"), *lines[2:]], "or that one was changed"),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "behind line"),
        (lambda lines: [*lines, lines[1]], "behind the end of its chain"),
        (lambda lines: chain("call", key=b"x" * 32), "is not signed by a key"),
        (lambda lines: [lines[0].replace(b'"c.1"', b'"c.2"'), *lines[1:]], "can't be the first of its chain"),
    ],
)
def test_what_was_changed_left_out_or_put_in_is_found(change, said: str) -> None:
    assert said in problems(change(chain("call", "deny")))[0]


@given(st.data())
def test_no_byte_of_a_trail_can_change_unseen(data: st.DataObject) -> None:
    lines = chain("call", "deny")
    at = data.draw(st.integers(0, len(lines) - 2))  # of the last line, only the signature is checked
    where = data.draw(st.integers(0, len(lines[at]) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != lines[at][where]))
    lines[at] = lines[at][:where] + bytes([other]) + lines[at][where + 1 :]
    assert not verify(placed(lines), KEYS).good


def test_an_old_key_still_verifies() -> None:
    assert problems(chain("call", key=KEYS[1])) == []


def test_a_trail_that_goes_on_in_a_further_file_is_followed() -> None:
    lines = chain("call", "deny", "call")
    verdict = verify(placed(lines[2:]), KEYS, partial=True)
    assert verdict.good
    assert verdict.chains["c"].first == 3
    assert not verify(placed(lines[2:]), KEYS).good


@pytest.mark.parametrize("torn", [b"{", b'{"ts":"1970-', b'{"ts":"1970-01-01T00:00:00.000Z","id":"c.2","prev'])
def test_lines_that_were_lost_are_counted_and_torn_ones_named(torn: bytes) -> None:
    made = Chain("c", KEYS[0])
    lines = [made.line(START, 0, {}), torn, made.line(LOST, 0, {"count": 7})]
    verdict = verify(placed(lines), KEYS)
    assert verdict.good
    assert (verdict.chains["c"].lost, verdict.torn, verdict.foreign) == (7, ["f:2"], [])


@pytest.mark.parametrize(
    "line",
    [
        b'{"event":"call","principal":"bob"}',
        b'{"ts":"1970-01-01T00:00:00.000Z","event":"deny"}',
        b'{"ts":"1970-01-01T00:00:00.000Z","event":"deny"',
        b'{"ts":"1970-01-01T00:00:00.000Z","id":"c.3","prev":"%b","event":"deny"' % (b"0" * 64),
        b'{"ts":"1970-01-01T00:00:00.000Z","id":"c.2","prev":"%b","event":"deny"' % (b"0" * 64),
        b'{"ts":"1970-01-01T00:00:00.000Z","id":"d.7","prev":"%b","event":"deny"' % (b"0" * 64),
        b'{"ts":"1970-01-01T00:00:00.000Z","id":"d.%b","prev":"","event":"deny"}' % (b"9" * 5000),
        b'{"ts":"bob was here',
        b"rubbish",
        b"7",
    ],
)
def test_a_line_of_nobodys_was_put_in(line: bytes) -> None:
    lines = chain("call", "deny")
    verdict = verify(placed([*lines[:2], line, *lines[2:]]), KEYS)
    assert not verdict.good
    assert (verdict.foreign, verdict.chains["c"].problems) == (["f:3"], [])


@given(st.data())
def test_what_a_full_disk_has_left_of_a_line_is_told_apart(data: st.DataObject) -> None:
    lines = chain("call", "deny")
    at = data.draw(st.integers(0, len(lines) - 1))
    torn = lines[at][: data.draw(st.integers(1, len(lines[at]) - 1))]
    verdict = verify(placed([*lines[:at], torn, *lines[at:]]), KEYS)
    assert (verdict.good, verdict.torn) == (True, [f"f:{at + 1}"])
    ended = verify(placed([*lines[:at], torn, *chain("call", name="d")]), KEYS)
    assert (ended.good, ended.torn) == (True, [f"f:{at + 1}"]), "its process could not write it any more"


def test_no_signature_is_anything_but_wrong() -> None:
    lines = chain("call")
    at = lines[2].index(b'"mac":"') + 7
    lines[2] = lines[2][:at] + "é".encode() + lines[2][at + 2 :]
    assert "is not signed by a key" in problems(lines)[0]


def test_times_are_utc_to_the_millisecond() -> None:
    assert timestamp(0.0) == "1970-01-01T00:00:00.000Z"
