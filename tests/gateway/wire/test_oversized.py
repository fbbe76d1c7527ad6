"""Whose a message is that is too long to be read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.lines import LineSplitter, LongLine
from gateway.wire.oversized import Kind, Oversized, read

HUGE = {"text": "x" * 2000}


def of(message: object, **how: object) -> Oversized | None:
    lines = LineSplitter(1000)
    [line] = lines.feed(json.dumps(message, **how).encode() + b"\n")  # type: ignore[arg-type]
    assert isinstance(line, LongLine)
    return read(line)


@pytest.mark.parametrize("id", [7, "a-1.5", 'with "quotes" and \\', "ü"])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_an_id_is_read_where_programs_write_it(id, separators):
    version = {"jsonrpc": "2.0"}
    for name, kind in (("result", Kind.ANSWER), ("error", Kind.ANSWER), ("method", Kind.REQUEST)):
        body = {"method": "tools/call", "params": HUGE} if name == "method" else {name: HUGE}
        for message in (
            version | {"id": id} | body,
            {"id": id} | version | body,
            {"id": id} | body | version,
            body | version | {"id": id},
            body | {"id": id} | version,
            version | body | {"id": id},
        ):
            assert of(message, separators=separators) == Oversized(kind, id)


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "method": "notifications/message", "params": HUGE},
        {"method": "notifications/message", "params": HUGE, "jsonrpc": "2.0"},
        "no message: " + "x" * 2000,
    ],
)
def test_for_what_is_no_request_and_no_answer_nobody_waits(message):
    assert of(message) == Oversized(Kind.TOLD)


def test_where_the_id_is_at_neither_end_nobody_guesses():
    assert of({"result": HUGE, "id": 7, "more": HUGE}) == Oversized(Kind.ANSWER, None)
    assert of({"method": "tools/call", "id": 7, "params": HUGE}) == Oversized(Kind.REQUEST, None)
    assert of({"more": HUGE, "id": 7}) is None
    assert of([{"jsonrpc": "2.0", "id": 7, "result": HUGE}]) is None


@pytest.mark.parametrize("id", [b'"\\q"', b'"\xff"', b"007", b'"\x01"', b'"\\ud800"'])
def test_an_id_that_is_none_is_not_read(id):
    rest = b"x" * 2000
    for message in (b'{"id":%b,"result":"%b"}' % (id, rest), b'{"result":"%b","id":%b}' % (rest, id)):
        [line] = LineSplitter(1000).feed(message + b"\n")
        assert isinstance(line, LongLine)
        assert read(line) == Oversized(Kind.ANSWER, None)


@given(st.recursive(st.text() | st.integers(), lambda of: st.lists(of) | st.dictionaries(st.just("id"), of)))
def test_an_id_inside_of_a_message_is_not_taken_for_its_own(inner):
    for ending in ({"jsonrpc": "2.0", "id": 7}, inner, json.dumps({"jsonrpc": "2.0", "id": 7})):
        for message in (
            {"jsonrpc": "2.0", "result": HUGE, "more": [{"a": 1, "id": 7}, ending]},
            {"result": {**HUGE, "jsonrpc": "2.0", "id": ending}},
        ):
            assert of(message) == Oversized(Kind.ANSWER, None)
