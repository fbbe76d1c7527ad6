"""W3C Trace Context and Baggage in `_meta` and in headers."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from actors.protocol import trace_context
from actors.protocol.trace_context import Carried, TraceContext, as_headers, carried, carrying, parse

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
HERE = TraceContext(TRACE, SPAN, True)


def params(**meta: Any) -> Raw:
    return Raw(json.dumps({"name": "echo", "_meta": meta}).encode())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        PARENT.upper(),
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"{PARENT}-more",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"{PARENT}\n",
        PARENT.replace("a", "\u0660"),
    ],
)
def test_what_is_no_traceparent_is_none(text: str) -> None:
    assert parse(text) is None


def test_a_later_version_may_say_more_behind_what_is_known() -> None:
    assert parse(f"cc-{TRACE}-{SPAN}-01-what") == HERE
    assert parse(f"cc-{TRACE}-{SPAN}-01what") is None


def test_only_the_flag_that_is_known_goes_on() -> None:
    assert parse(f"00-{TRACE}-{SPAN}-ff") == HERE
    context = parse(f"00-{TRACE}-{SPAN}-fe")
    assert context is not None
    assert context.parent.endswith("-00")


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        ("rojo=1,congo=t61", "rojo=1,congo=t61"),
        (" rojo=1 ,, \tcongo=t61 ", "rojo=1,congo=t61"),
        ("tenant@vendor=1", "tenant@vendor=1"),
        ("Rojo=1", ""),
        ("rojo=1,rojo=2", ""),
        ("rojo=a\r\nX-Evil: 1", ""),
        ("rojo=a=b", ""),
        (",".join(f"k{n}=1" for n in range(33)), ""),
        ("rojo=" + "x" * 600, ""),
    ],
)
def test_a_tracestate_passes_whole_or_not_at_all(state: str, kept: str) -> None:
    context = parse(PARENT, state)
    assert context is not None
    assert context.state == kept


def test_meta_goes_before_headers_and_the_two_are_never_mixed() -> None:
    other = f"00-{'9' * 32}-{'8' * 16}-00"
    found = carried(params(traceparent=PARENT), {"traceparent": other, "tracestate": "rojo=1"})
    assert found == Carried(HERE, "", TraceContext("9" * 32, "8" * 16, False, "rojo=1"))
    found = carried(params(tracestate="meta=1"), {"traceparent": PARENT, "tracestate": "head=1"})
    assert found == Carried(TraceContext(TRACE, SPAN, True, "head=1"))


def test_one_place_that_both_name_is_no_link() -> None:
    assert carried(params(traceparent=PARENT), {"traceparent": PARENT}) == Carried(HERE)


@pytest.mark.parametrize("baggage", ["", "novalue", "a=b\r\nX: 1", "a=é", "a=" + "x" * 9000, ",".join(["a=b"] * 65)])
def test_baggage_that_would_not_fit_a_header_is_left_out(baggage: str) -> None:
    assert carried(params(baggage=baggage), {}).baggage == ""
    assert carried(params(baggage=baggage), {"baggage": "user=1"}).baggage == "user=1"


def test_params_that_say_where_they_come_from_keep_all_else() -> None:
    before = Raw(b'{"name":"x","arguments":{"n":1.50},"_meta":{"traceparent":7,"mine":[1],"tracestate":"old=1"}}')
    after = carrying(before, HERE, "a=b")
    assert b'"arguments":{"n":1.50}' in bytes(after)
    assert json.loads(bytes(after))["_meta"] == {"mine": [1], "traceparent": PARENT, "baggage": "a=b"}
    assert carried(after, {}) == Carried(HERE, "a=b")


def test_params_that_are_no_object_are_left_to_whoever_refuses_them() -> None:
    assert bytes(carrying(Raw(b"[1]"), HERE)) == b"[1]"
    assert json.loads(bytes(carrying(Raw(b""), HERE))) == {"_meta": {"traceparent": PARENT}}


def test_the_headers_beside_a_request_say_what_its_meta_says() -> None:
    said = carrying(Raw(b"{}"), TraceContext(TRACE, SPAN, True, "rojo=1"), "a=b")
    frame = b'{"jsonrpc":"2.0","id":1,"method":"x","params":%s}' % bytes(said)
    assert as_headers(frame) == (("traceparent", PARENT), ("tracestate", "rojo=1"), ("baggage", "a=b"))
    assert as_headers(b'{"jsonrpc":"2.0","id":1,"method":"ping"}') == ()
    assert as_headers(b"not json") == ()


@given(st.text(), st.text(), st.text())
def test_nothing_that_anybody_says_breaks_out_of_a_header(parent: str, state: str, baggage: str) -> None:
    frame = json.dumps({"params": {"_meta": {"traceparent": parent, "tracestate": state, "baggage": baggage}}})
    for name, value in as_headers(frame.encode()):
        assert name in (trace_context.TRACEPARENT, trace_context.TRACESTATE, trace_context.BAGGAGE)
        assert value.isascii()
        assert value.isprintable()
