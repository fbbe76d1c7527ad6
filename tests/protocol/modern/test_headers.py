"""Mirrored headers: the encoding of values, and headers against bodies in both directions."""

import base64
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from actors.protocol.errors import Malformed
from actors.protocol.headers import (
    NAMED_BY,
    Mirrored,
    check_arguments,
    check_routing,
    decode_value,
    encode_value,
    outbound,
    repeated,
)
from actors.protocol.messages import EMPTY
from actors.protocol.versions import MODERN

REGION = Mirrored("Mcp-Param-Region", ("region",))
LIMIT = Mirrored("Mcp-Param-Limit", ("options", "limit"))


def lower(headers):
    return {name.lower(): value for name, value in headers}


# Values


@pytest.mark.parametrize(
    ("value", "header"),
    [
        ("us-west1", "us-west1"),
        ("", ""),
        ("a b", "a b"),
        ("a\tb", "=?base64?YQli?="),
        ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ("=?BASE64?eA==?=", "=?BASE64?eA==?="),
        ("=?base64?x", "=?base64?x"),
        ("\x7f", "=?base64?fw==?="),
    ],
)
def test_a_value_is_literal_or_in_base64(value, header):
    assert encode_value(value) == header
    assert decode_value(header) == value


@pytest.mark.parametrize(
    "header",
    [
        "=?base64?!?=",
        "=?base64?eA?=",
        "=?base64?eA===?=",
        "=?base64?eB==?=",
        "=?base64?e A==?=",
        "=?base64?_-8=?=",
        "=?base64?/w==?=",
        " a",
        "a\t",
        "a\nb",
        "é",
        "\x00",
        "a\x7f",
    ],
)
def test_bad_base64_and_illegal_characters_are_no_value(header):
    assert decode_value(header) is None


def test_a_tab_inside_is_legal_as_it_is():
    assert decode_value("a \tb") == "a \tb"


@given(st.text())
@example("=?base64??=")
@example("=?base64?=")
def test_every_text_survives_the_way_through_a_header(value):
    header = encode_value(value)
    assert header == header.strip(" \t")
    assert all(" " <= character <= "~" for character in header)
    assert decode_value(header) == value


@given(st.text() | st.text(st.characters(codec="ascii")).map(lambda text: f"=?base64?{text}?="))
def test_a_value_has_one_spelling_in_base64_and_at_most_one_as_it_is(header):
    value = decode_value(header)
    if value is not None:
        encoded = f"=?base64?{base64.b64encode(value.encode()).decode()}?="
        assert header in (encoded, value)


# Routing

NAMED = [
    ("tools/call", "name", "tool"),
    ("prompts/get", "name", "übung"),
    ("resources/read", "uri", "file:///a b"),
    ("tasks/get", "taskId", "t"),
    ("tasks/update", "taskId", "t"),
    ("tasks/cancel", "taskId", "t"),
]


@pytest.mark.parametrize(("method", "member", "value"), [*NAMED, ("tools/list", None, None)])
def test_what_we_send_agrees_with_what_we_send(raw, method, member, value):
    params = raw({member: value} if member else {})
    headers = outbound(method, params)
    assert dict(headers).get("Mcp-Name") == (None if value is None else encode_value(value))
    assert check_routing(lower(headers), method, params, MODERN) is None


@pytest.mark.parametrize("method", ["x\x01y", "x\ny", "\x7f", "\x00", " x", "x\t", "z\u00fcrich", "=?\u20ac"])
def test_a_method_that_no_header_carries_is_one_that_no_server_has(raw, method):
    with pytest.raises(Malformed) as refused:
        outbound(method, raw({}))
    assert refused.value.code == -32601


@given(
    st.text() | st.sampled_from(sorted(NAMED_BY)),
    st.text(),
    st.text() | st.integers() | st.booleans() | st.floats(allow_nan=False),
)
def test_whatever_a_peer_says_is_refused_or_comes_out_as_headers_that_can_be_written(method, name, value):
    named = dict.fromkeys(NAMED_BY.values(), name)
    params = Raw(json.dumps({**named, "arguments": {"region": value}}).encode())
    try:
        headers = outbound(method, params, (REGION,))
    except Malformed:
        return
    for _, text in headers:
        assert text == text.strip(" \t")
        assert all(character == "\t" or " " <= character <= "~" for character in text)


@pytest.mark.parametrize("header", ["mcp-protocol-version", "mcp-method", "mcp-name"])
def test_a_header_for_routing_must_be_there_and_agree(raw, header):
    params = raw({"name": "tool"})
    headers = lower(outbound("tools/call", params))
    for wrong in ("x", "", "TOOLS/CALL", "Tool", "=?base64?!?=", encode_value("tool") + " "):
        assert "does not match" in check_routing({**headers, header: wrong}, "tools/call", params, MODERN)
    del headers[header]
    assert "is missing" in check_routing(headers, "tools/call", params, MODERN)


def test_a_name_is_decoded_before_it_is_compared_but_version_and_method_are_not(raw):
    params = raw({"name": "tool"})
    headers = lower(outbound("tools/call", params))
    wrapped = "=?base64?dG9vbA==?="
    assert check_routing({**headers, "mcp-name": wrapped}, "tools/call", params, MODERN) is None
    in_base64 = f"=?base64?{base64.b64encode(b'tools/call').decode()}?="
    assert check_routing({**headers, "mcp-method": in_base64}, "tools/call", params, MODERN)


def test_the_name_of_a_task_may_be_missing_but_not_wrong(raw):
    params = raw({"taskId": "t"})
    headers = lower(outbound("tasks/get", params))
    assert check_routing({**headers, "mcp-name": "u"}, "tasks/get", params, MODERN)
    del headers["mcp-name"]
    assert check_routing(headers, "tasks/get", params, MODERN) is None


def test_a_name_that_the_body_has_not_is_a_mismatch_and_none_at_all_is_for_the_method_to_judge(raw):
    for params in (raw({}), raw({"name": 5}), EMPTY):
        headers = lower(outbound("tools/call", params))
        assert "mcp-name" not in headers
        assert check_routing(headers, "tools/call", params, MODERN) is None
        assert check_routing({**headers, "mcp-name": "5"}, "tools/call", params, MODERN)


def test_an_empty_name_is_a_name(raw):
    params = raw({"name": ""})
    headers = lower(outbound("tools/call", params))
    assert headers["mcp-name"] == ""
    assert check_routing(headers, "tools/call", params, MODERN) is None
    assert check_routing({**headers, "mcp-name": "x"}, "tools/call", params, MODERN)


def test_a_name_where_none_belongs_is_nobodys_business():
    headers = {**lower(outbound("tools/list", EMPTY)), "mcp-name": "x"}
    assert check_routing(headers, "tools/list", EMPTY, MODERN) is None


@pytest.mark.parametrize("header", ["mcp-protocol-version", "mcp-method", "mcp-name"])
def test_a_header_for_routing_that_came_twice_is_found(header):
    headers = lower(outbound("tools/call", Raw(b'{"name":"t"}')))
    assert repeated(headers) is None
    assert repeated({**headers, header: f"{headers[header]}\n{headers[header]}"})


@given(st.sampled_from(sorted(NAMED_BY)), st.text(), st.text())
def test_headers_agree_with_a_body_exactly_if_they_say_the_same(method, value, other):
    params = Raw(json.dumps({NAMED_BY[method]: value}).encode())
    headers = lower(outbound(method, params))
    assert check_routing(headers, method, params, MODERN) is None
    mismatch = check_routing({**headers, "mcp-name": encode_value(other)}, method, params, MODERN)
    assert (mismatch is None) == (other == value)


# Arguments


def arguments(value):
    return Raw(json.dumps({"name": "t", "arguments": value}).encode())


@pytest.mark.parametrize(
    ("value", "header"),
    [
        ("us", "us"),
        ("", ""),
        (" x", "=?base64?IHg=?="),
        (42, "42"),
        (42, "42.0"),
        (42, "042"),
        (-7, "-7"),
        (0, "-0"),
        (42.0, "42"),
        (1.5, "1.5"),
        (2**53 - 1, str(2**53 - 1)),
        (True, "true"),
        (False, "false"),
    ],
)
def test_a_header_that_says_what_its_argument_says_is_accepted(value, header):
    assert check_arguments({"mcp-param-region": header}, [REGION], arguments({"region": value})) is None


@pytest.mark.parametrize(
    ("value", "header"),
    [
        ("us", "US"),
        ("us", "us "),
        ("us", "=?base64?eB==?="),
        ("us", "us\nus"),
        ("42", "42.0"),
        (42, "43"),
        (42, "4.2e1"),
        (42, "42.5"),
        (42, "+42"),
        (42, ""),
        (42, "=?base64?!?="),
        (2**53, str(2**53)),
        (-(2**53), str(-(2**53))),
        (10**70, str(10**70)),
        (True, "True"),
        (True, "1"),
        (1, "true"),
        (False, ""),
    ],
)
def test_a_header_that_says_something_else_is_a_mismatch(value, header):
    mismatch = check_arguments({"mcp-param-region": header}, [REGION], arguments({"region": value}))
    assert mismatch == "Mcp-Param-Region does not match its argument"


@pytest.mark.parametrize("spelled", [b"1e999999999", b"1" + b"0" * 5000, b"-0.1e-99999999", b"1e99999999999999999999"])
def test_enormous_numbers_are_a_mismatch_at_once(spelled):
    params = Raw(b'{"arguments":{"region":' + spelled + b"}}")
    assert check_arguments({"mcp-param-region": "1"}, [REGION], params)
    ((_, value),) = outbound("tools/call", params, [REGION])[2:]
    assert value == spelled.decode()


@pytest.mark.parametrize("value", [{}, {"region": None}, {"region": {"a": 1}}, {"region": [1]}, None, "x"])
def test_a_header_without_an_argument_is_a_mismatch_and_none_is_expected(value):
    assert check_arguments({}, [REGION], arguments(value)) is None
    assert check_arguments({"mcp-param-region": "x"}, [REGION], arguments(value))
    assert len(outbound("tools/call", arguments(value), [REGION])) == 3


def test_an_argument_without_its_header_is_a_mismatch():
    assert check_arguments({}, [REGION], arguments({"region": ""})) == "Mcp-Param-Region is missing"


def test_a_header_that_the_tool_does_not_define_is_nobodys_business():
    assert check_arguments({"mcp-param-other": "\n"}, [REGION], arguments({})) is None
    assert check_arguments({"mcp-param-region": "x"}, [], arguments({})) is None


def test_an_argument_is_found_by_its_path():
    body = arguments({"options": {"limit": 5}, "limit": 6})
    assert dict(outbound("tools/call", body, [REGION, LIMIT]))["Mcp-Param-Limit"] == "5"
    assert check_arguments({"mcp-param-limit": "5"}, [LIMIT], body) is None
    assert check_arguments({"mcp-param-limit": "6"}, [LIMIT], body)
    assert check_arguments({}, [LIMIT], arguments({"options": 5})) is None


SCALARS = st.text() | st.integers(-(2**53) + 1, 2**53 - 1) | st.booleans()


@given(SCALARS | st.none(), SCALARS | st.none())
def test_what_we_mirror_is_accepted_for_the_same_arguments_and_no_others(value, other):
    headers = lower(outbound("tools/call", arguments({"region": value}), [REGION]))
    assert check_arguments(headers, [REGION], arguments({"region": value})) is None
    agrees = check_arguments(headers, [REGION], arguments({"region": other})) is None
    if type(value) is type(other):
        assert agrees == (value == other)
    elif None in (value, other):
        assert not agrees


@given(st.dictionaries(st.sampled_from(["mcp-param-region", "mcp-param-limit", "x"]), st.text()), SCALARS)
def test_no_header_and_no_argument_raises(headers, value):
    body = arguments({"region": value, "options": value})
    mismatch = check_arguments(headers, [REGION, LIMIT], body)
    assert mismatch is None or mismatch.startswith("Mcp-Param-")
