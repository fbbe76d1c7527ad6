"""Bytes to messages and back: what passes, what is refused, and that nothing else can happen."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from actors.protocol import codec, errors
from actors.protocol.codec import BATCH_MAX, Batch, Malformed, decode_frame, decode_message, encode
from actors.protocol.messages import EMPTY, Error, Notification, Request, Result

BIG = 2**200 + 1


def refused(body: bytes, *, limit: int | None = None, decode=decode_frame) -> Malformed:
    with pytest.raises(Malformed) as caught:
        decode(body, limit)
    return caught.value


def message(**members):
    return json.dumps({"jsonrpc": "2.0", **members}).encode()


# Decoding


def test_a_request_keeps_its_params_as_they_were_spelled():
    decoded = decode_message(b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"n": 1.50e3,"x":"\\u00e9"}}')
    assert decoded == Request(7, "tools/call", Raw(b'{"n": 1.50e3,"x":"\\u00e9"}'))


def test_each_kind_of_message_is_told_by_its_members():
    assert decode_frame(message(method="ping", id="a")) == Request("a", "ping")
    assert decode_frame(message(method="notifications/initialized")) == Notification("notifications/initialized")
    assert decode_frame(message(id=1, result={})) == Result(1, Raw(b"{}"))
    error = decode_frame(b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}')
    assert error == Error(1, Raw(b'{"code":-32601,"message":"no"}'))


def test_unknown_members_of_the_envelope_are_ignored():
    assert decode_frame(message(method="ping", id=1, extra={"a": 1})) == Request(1, "ping")


@pytest.mark.parametrize("id", [0, -1, BIG, -BIG, 2**63, 2**64, "", "1", "ü", "\u2028"])
def test_an_id_comes_back_exactly_as_it_was(id):
    decoded = decode_message(message(method="ping", id=id))
    assert decoded.id == id
    assert type(decoded.id) is type(id)
    assert json.loads(codec.encode_result(decoded.id, Raw(b"{}")))["id"] == id


@pytest.mark.parametrize("id", [None, True, False, 1.0, 1.5, [1], {"a": 1}, {}])
def test_an_id_of_another_type_is_an_invalid_request_without_an_id(id):
    fault = refused(message(method="ping", id=id))
    assert (fault.code, fault.id, fault.outcome_of) == (errors.INVALID_REQUEST, None, None)


def test_an_integer_id_too_long_to_read_is_an_invalid_request():
    assert refused(b'{"jsonrpc":"2.0","method":"ping","id":' + b"1" * 5000 + b"}").code == errors.INVALID_REQUEST


@pytest.mark.parametrize("id", ["x" * 1024, "é" * 512, 10**1024 - 1, 1 - 10**1024])
def test_a_long_id_is_exact(id):
    assert decode_message(message(method="ping", id=id)).id == id


@pytest.mark.parametrize("id", ["x" * 1025, "é" * 513, 10**1024, -(10**1024)])
def test_an_id_that_is_too_long_to_keep_is_an_invalid_request(id):
    fault = refused(message(method="ping", id=id))
    assert (fault.code, fault.id, fault.asks) == (errors.INVALID_REQUEST, id, True)


@pytest.mark.parametrize(
    ("frame", "asks"),
    [
        (message(method=5), True),
        (message(method="x", id=1.5), True),
        (message(method="x", params=[1]), True),
        (b'{"jsonrpc":"1.0","method":"x"}', True),
        (message(method="x", id=1, result={}), False),
        (message(result=5), False),
        (b"[" * 5000, False),
        (b"7", False),
    ],
)
def test_what_is_plainly_a_request_or_a_notification_is_no_outcome(frame, asks):
    assert refused(frame).asks is asks


def test_an_error_may_have_no_id_or_a_null_one():
    assert decode_frame(message(id=None, error={"code": 1, "message": ""})).id is None
    assert decode_frame(message(error={"code": 1, "message": ""})).id is None


def test_null_params_stand_for_none():
    assert decode_frame(message(method="ping", id=1, params=None)) == Request(1, "ping", EMPTY)


def test_params_by_position_are_invalid_params_and_a_scalar_is_an_invalid_request():
    fault = refused(message(method="ping", id=5, params=[1]))
    assert (fault.code, fault.id, fault.error.status) == (errors.INVALID_PARAMS, 5, 400)
    fault = refused(message(method="ping", id=5, params="x"))
    assert (fault.code, fault.id) == (errors.INVALID_REQUEST, 5)


@pytest.mark.parametrize(
    "members",
    [
        {"method": 5, "id": 3},
        {"method": None, "id": 3},
        {"id": 3},
        {"method": "x", "id": 3, "params": 1.5},
    ],
)
def test_a_request_that_is_wrong_elsewhere_is_answered_with_its_id(members):
    fault = refused(message(**members))
    assert (fault.code, fault.id) == (errors.INVALID_REQUEST, 3)


@pytest.mark.parametrize("version", [None, 2, 2.0, "1.0", "2", ""])
def test_another_jsonrpc_version_is_an_invalid_request(version):
    fault = refused(json.dumps({"jsonrpc": version, "id": 3, "method": "ping"}).encode())
    assert (fault.code, fault.id) == (errors.INVALID_REQUEST, 3)


def test_a_missing_jsonrpc_member_is_an_invalid_request():
    assert refused(b'{"id":1,"method":"ping"}').id == 1


@pytest.mark.parametrize(
    "members",
    [
        {"result": {}, "error": {"code": 1, "message": ""}},
        {"result": 5},
        {"result": None},
        {"result": []},
        {"error": None},
        {"error": "broken"},
        {"error": {"code": "1", "message": ""}},
        {"error": {"code": 1.5, "message": ""}},
        {"error": {"message": ""}},
        {"error": {"code": 1}},
    ],
)
def test_a_broken_response_names_the_request_that_it_ends_and_is_no_request_itself(members):
    fault = refused(message(id=9, **members))
    assert (fault.code, fault.id, fault.outcome_of) == (errors.INVALID_REQUEST, None, 9)


def test_a_result_without_an_id_is_invalid():
    assert refused(message(result={})).outcome_of is None
    assert refused(message(id=None, result={})).outcome_of is None


def test_a_method_with_an_outcome_is_invalid_and_answers_nothing():
    fault = refused(message(id=9, method="x", result={}))
    assert (fault.id, fault.outcome_of) == (None, None)


@pytest.mark.parametrize("body", [b'"x"', b"5", b"null", b"true"])
def test_json_that_is_no_object_is_an_invalid_request(body):
    assert refused(body).code == errors.INVALID_REQUEST


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b"{",
        b'{"jsonrpc":"2.0","id":1,"method":"ping"} x',
        b'{"jsonrpc":"2.0","id":1,"method":"ping"}{}',
        b"\xef\xbb\xbf" + message(id=1, method="ping"),
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":NaN}}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":01}}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\x00"}}',
        b'{"jsonrpc":"1.0",',
        b"\x00" * 10,
    ],
)
def test_what_is_not_json_is_a_parse_error(body):
    fault = refused(body)
    assert (fault.code, fault.id, fault.error.status) == (errors.PARSE_ERROR, None, 400)


@pytest.mark.parametrize("where", [b'"id":"%b","method":"a"', b'"id":1,"method":"%b"', b'"id":1,"params":{"x":"%b"}'])
def test_bytes_that_are_not_utf8_are_a_parse_error_wherever_they_are(where):
    for bad in (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xe2\x82"):
        assert refused(b'{"jsonrpc":"2.0",' + where % bad + b"}").code == errors.PARSE_ERROR


@pytest.mark.parametrize("depth", [2_000, 200_000])
@pytest.mark.parametrize("shape", [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_without_end_is_a_parse_error(depth, shape):
    deep = shape[0] * depth + b"1" + shape[1] * depth
    fault = refused(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":' + deep + b"}}")
    assert fault.code == errors.PARSE_ERROR
    assert refused(deep).code in (errors.PARSE_ERROR, errors.INVALID_REQUEST)


def test_a_body_beyond_the_limit_is_refused_before_it_is_read():
    fault = refused(b"x" * 11, limit=10)
    assert (fault.code, fault.error.status) == (errors.INVALID_REQUEST, 413)
    assert refused(b"x" * 10, limit=10, decode=decode_message).code == errors.PARSE_ERROR


def test_half_of_a_surrogate_pair_becomes_a_replacement_character():
    body = rb'{"jsonrpc":"2.0","id":1,"result":{"t":"cut \ud83d, low \ude00, pair \ud83d\ude00, text \\ud83d"}}'
    decoded = decode_message(body)
    assert json.loads(bytes(decoded.result)) == {"t": "cut \ufffd, low \ufffd, pair \U0001f600, text \\ud83d"}
    assert bytes(decoded.result).count(rb"\ud83d\ude00") == 1


@given(st.lists(st.sampled_from(["\\\\", "\\\\" * 40, r"\ud83d", r"\uDE00", r"\u0041", "ud83d", "x", "é"])))
def test_halves_are_replaced_and_nothing_else_is_changed(pieces):
    text = "".join(pieces)
    read = codec.loads(decode_frame(f'{{"jsonrpc":"2.0","method":"x","params":{{"a":"{text}"}}}}'.encode()).params)
    assert read["a"] == re.sub("[\ud800-\udfff]", "\ufffd", json.loads(f'"{text}"'))


def test_a_high_surrogate_before_a_whole_pair_is_replaced_alone():
    decoded = decode_message(rb'{"jsonrpc":"2.0","id":1,"result":{"t":"\ud83d\ud83d\ude00\\\ud83d"}}')
    assert json.loads(bytes(decoded.result)) == {"t": "\ufffd\U0001f600\\\ufffd"}


# Batches


def test_a_batch_holds_its_messages_in_order_and_the_broken_ones_as_values():
    frame = decode_frame(b' [{"jsonrpc":"2.0","id":1,"method":"a"}, 5, {"jsonrpc":"2.0","method":"b"},{"id":4}]')
    assert isinstance(frame, Batch)
    first, second, third, fourth = frame.messages
    assert (first, third) == (Request(1, "a"), Notification("b"))
    assert isinstance(second, Malformed)
    assert (second.code, second.id) == (errors.INVALID_REQUEST, None)
    assert isinstance(fourth, Malformed)
    assert fourth.id == 4


def test_an_empty_batch_and_a_batch_without_end_are_invalid():
    assert refused(b"[]").code == errors.INVALID_REQUEST
    assert refused(b"[" + b"1," * BATCH_MAX + b"1]").code == errors.INVALID_REQUEST
    assert len(decode_frame(b"[" + b"1," * (BATCH_MAX - 1) + b"1]").messages) == BATCH_MAX


@pytest.mark.parametrize("body", [b"[", b"[1", b"[1,]", b"[1]]", b"[}"])
def test_a_broken_batch_is_a_parse_error(body):
    assert refused(body).code == errors.PARSE_ERROR


def test_a_batch_with_half_a_surrogate_pair_is_mended():
    frame = decode_frame(rb'[{"jsonrpc":"2.0","method":"x","params":{"t":"\ud83d"}}]')
    assert frame.messages == (Notification("x", Raw(rb'{"t":"\ufffd"}')),)


def test_a_batch_is_no_single_message():
    assert refused(b'[{"jsonrpc":"2.0","id":1,"method":"a"}]', decode=decode_message).id is None


# Encoding


def test_a_request_without_params_is_written_with_empty_ones():
    for body in (
        b'{"jsonrpc":"2.0","id":"x","method":"a"}',
        b'{"jsonrpc":"2.0","id":"x","method":"a","params":null}',
    ):
        assert encode(decode_message(body)) == b'{"jsonrpc":"2.0","id":"x","method":"a","params":{}}'
    assert (
        codec.encode_request(1, "roots/list", Raw(b"")) == b'{"jsonrpc":"2.0","id":1,"method":"roots/list","params":{}}'
    )


def test_what_was_decoded_is_encoded_to_the_same_bytes():
    for body in (
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"b": 1.0}}',
        b'{"jsonrpc":"2.0","id":"x","method":"a","params":{}}',
        b'{"jsonrpc":"2.0","method":"a"}',
        b'{"jsonrpc":"2.0","id":1,"result":{"x":[1, 2]}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m","data":[ ]}}',
        b'{"jsonrpc":"2.0","error":{"code":1,"message":"m"}}',
    ):
        assert encode(decode_message(body)) == body


def test_line_breaks_between_tokens_go_and_everything_else_stays():
    pretty = b'{\r\n  "big": 123456789012345678901234567890,\n\t"f": 1.50E+3, "s": "a\\nb  c"\n}'
    assert codec.encode_result(1, Raw(pretty)) == (
        b'{"jsonrpc":"2.0","id":1,"result":{  "big": 123456789012345678901234567890,\t"f": 1.50E+3, "s": "a\\nb  c"}}'
    )
    deep = b'{"a":\n' * 5000 + b"1" + b"}" * 5000
    assert b"\n" not in codec.encode_result(1, Raw(deep)), "however deep it is"
    assert codec.compact(Raw(pretty)) == Raw(b'{"big":123456789012345678901234567890,"f":1.50E+3,"s":"a\\nb  c"}')


def test_absent_params_of_a_notification_are_not_written_however_they_were_made():
    assert codec.encode_notification("x", Raw(b"")) == b'{"jsonrpc":"2.0","method":"x"}'


def test_errors_of_ours_have_an_id_or_no_such_member():
    error = errors.internal("gone", reason="connection_lost", executed="unknown", backend="b")
    assert json.loads(codec.encode_error(4, error)) == {
        "jsonrpc": "2.0",
        "id": 4,
        "error": {
            "code": -32603,
            "message": "Internal error: gone",
            "data": {"backend": "b", "reason": "connection_lost", "executed": "unknown"},
        },
    }
    assert "id" not in json.loads(codec.encode_error(None, errors.parse_error()))


def test_a_batch_answer_is_an_array_of_the_responses():
    assert codec.encode_batch([b"{}"]) == b"[{}]"
    assert codec.encode_batch([b"1", b"2"]) == b"[1,2]"


# Properties

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
objects = st.dictionaries(st.text(), json_values, max_size=4)
ids = st.integers() | st.text()
# Lone surrogates are no Unicode: replaced, so not the same again.
spellings = st.sampled_from([{}, {"ensure_ascii": False}, {"indent": 2}, {"separators": (",", ":")}])


@given(id=ids, method=st.text(), params=st.none() | objects, spelling=spellings)
def test_a_request_survives_any_spelling(id, method, params, spelling):
    value = {"jsonrpc": "2.0", "id": id, "method": method}
    if params is not None:
        value["params"] = params
    decoded = decode_frame(json.dumps(value, **spelling).encode())
    encoded = encode(decoded)
    assert json.loads(encoded) == {"params": {}, **value}
    assert b"\n" not in encoded
    assert b"\r" not in encoded
    assert encode(decode_message(encoded)) == encoded


@given(id=ids, result=objects, spelling=spellings)
def test_a_result_survives_any_spelling(id, result, spelling):
    value = {"jsonrpc": "2.0", "id": id, "result": result}
    assert json.loads(encode(decode_frame(json.dumps(value, **spelling).encode()))) == value


def only_malformed(body: bytes) -> None:
    try:
        frame = decode_frame(body)
    except Malformed as caught:
        frame = Batch((caught,))
    for decoded in frame.messages if isinstance(frame, Batch) else (frame,):
        if isinstance(decoded, Malformed):
            assert decoded.error.status in (400, 413)
            json.loads(codec.encode_error(decoded.id, decoded.error))
        else:
            json.loads(encode(decoded))


@given(st.binary(max_size=200))
def test_garbage_is_malformed_and_nothing_worse(body):
    only_malformed(body)


@given(json_values, spellings)
def test_any_json_is_a_message_or_malformed(value, spelling):
    only_malformed(json.dumps(value, **spelling).encode())


envelopes = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.sampled_from(["2.0", "1.0", 2]) | json_values,
        "id": ids | json_values,
        "method": st.sampled_from(["ping", "initialize"]) | json_values,
        "params": objects | json_values,
        "result": objects | json_values,
        "error": st.just({"code": 1, "message": "m"}) | json_values,
    },
)


@given(envelopes | st.lists(envelopes, max_size=4))
def test_any_envelope_is_a_message_or_malformed(value):
    only_malformed(json.dumps(value).encode())


@given(envelopes, st.data())
def test_a_damaged_envelope_is_malformed_and_nothing_worse(value, data):
    body = bytearray(json.dumps(value).encode())
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] = data.draw(st.integers(0, 255))
    only_malformed(bytes(body[: data.draw(st.integers(place, len(body)))]))
