"""Reading and changing one level of raw JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from actors.protocol import payload
from actors.protocol.errors import INVALID_PARAMS, Malformed
from actors.protocol.messages import EMPTY

DEEP = Raw(b'{"_meta":{"progressToken":1,"x":' + b"[" * 5000 + b"]" * 5000 + b"}}")


def test_members_keep_their_spelling_and_order():
    assert payload.members(Raw(b'{"b": 1.0,"a":{ "c":2}}')) == {"b": Raw(b"1.0"), "a": Raw(b'{ "c":2}')}
    assert payload.members(EMPTY) == {}


@pytest.mark.parametrize("raw", [b"[]", b"1", b'"x"', b"null", b"{", b'{"a":\xff}'])
def test_members_of_anything_else_are_malformed(raw):
    with pytest.raises(Malformed) as caught:
        payload.members(Raw(raw))
    assert caught.value.code == INVALID_PARAMS


def test_members_are_set_in_place_added_at_the_end_and_removed():
    raw = Raw(b'{"a":1.0,"b":2,"c":3}')
    assert payload.replace_members(raw, {"b": Raw(b"9"), "c": None, "d": Raw(b"4"), "e": None}) == Raw(
        b'{"a":1.0,"b":9,"d":4}'
    )


@pytest.mark.parametrize(
    "read",
    [
        payload.members,
        payload.loads,
        payload.meta_of,
        payload.progress_token,
        payload.elements,
        payload.text,
        payload.compact,
        lambda raw: payload.with_progress_token(raw, 1),
        lambda raw: payload.replace_members(raw, {}),
    ],
)
def test_nesting_too_deep_for_a_second_look_is_malformed(read):
    with pytest.raises(Malformed) as caught:
        read(DEEP)
    assert caught.value.code == INVALID_PARAMS


def test_texts_are_read_and_nothing_else():
    assert payload.text(Raw(b'"\\u00e9"')) == "é"
    assert payload.text_or_none(Raw(b"5")) is None
    assert payload.text_or_none(None) is None
    assert payload.text_or_none(EMPTY) is None
    with pytest.raises(Malformed):
        payload.text(Raw(b"5"))
    with pytest.raises(Malformed):
        payload.elements(Raw(b"{}"))
    with pytest.raises(Malformed):
        payload.loads(Raw(b"{"))


@pytest.mark.parametrize(
    ("params", "token"),
    [
        (b'{"_meta":{"progressToken":4}}', 4),
        (b'{"_meta":{"progressToken":"4"}}', "4"),
        (b'{"_meta":{"progress\\u0054oken":"4"}}', "4"),
        (b'{"_meta":{"progressToken":0}}', 0),
        (b'{"_meta":{"progressToken":123456789012345678901234567890}}', 123456789012345678901234567890),
        (b'{"_meta":{"progressToken":null}}', None),
        (b'{"_meta":{"progressToken":1.5}}', None),
        (b'{"_meta":{"progressToken":true}}', None),
        (b'{"_meta":{"progressToken":{}}}', None),
        (b'{"_meta":{}}', None),
        (b'{"_meta":null}', None),
        (b'{"a":{"_meta":{"progressToken":1}}}', None),
        (b"{}", None),
        (b"", None),
    ],
)
def test_the_progress_token_is_a_string_or_an_integer_in_meta(params, token):
    found = payload.progress_token(Raw(params))
    assert found == token
    assert type(found) is type(token)


@pytest.mark.parametrize("meta", [b"[1]", b"1", b'"x"', b"true"])
def test_a_meta_that_is_no_object_is_malformed(meta):
    with pytest.raises(Malformed) as caught:
        payload.progress_token(Raw(b'{"_meta":%b}' % meta))
    assert caught.value.code == INVALID_PARAMS


@pytest.mark.parametrize(
    ("token", "fits"),
    [
        (b'"%b"' % (b"x" * payload.ID_BYTES), True),
        (b'"%b"' % (b"x" * (payload.ID_BYTES + 1)), False),
        (b'"%b"' % ("é".encode() * (payload.ID_BYTES // 2)), True),
        (b'"%b"' % ("é".encode() * (payload.ID_BYTES // 2 + 1)), False),
        (b"-" + b"9" * payload.ID_BYTES, True),
        (b"1" + b"0" * payload.ID_BYTES, False),
    ],
)
def test_a_token_is_exact_or_refused_for_its_length(token, fits):
    params = Raw(b'{"_meta":{"progressToken":%b}}' % token)
    if fits:
        assert payload.dumps(payload.progress_token(params)) == Raw(token)
        return
    with pytest.raises(Malformed) as caught:
        payload.progress_token(params)
    assert caught.value.code == INVALID_PARAMS
    assert len(caught.value.reason) < 100


MANY = payload.MEMBERS_MAX
PAIRS = [b'"%d":%d' % (n, n) for n in range(MANY)]
ONES = [b"1"] * MANY


def test_as_many_members_are_looked_at_as_are_allowed():
    assert len(payload.members(Raw(b"{%b}" % b",".join(PAIRS)))) == MANY
    assert len(payload.elements(Raw(b"[%b]" % b",".join(ONES)))) == MANY


@pytest.mark.parametrize("more", [b'"one":1', b'"0":0'], ids=["another one", "one of them again"])
def test_an_object_of_more_members_is_malformed(more):
    with pytest.raises(Malformed, match="more than 16384") as caught:
        payload.members(Raw(b"{%b}" % b",".join([*PAIRS, more])))
    assert caught.value.code == INVALID_PARAMS


def test_an_array_of_more_elements_is_malformed():
    with pytest.raises(Malformed, match="more than 16384") as caught:
        payload.elements(Raw(b"[%b]" % b",".join([*ONES, b"1"])))
    assert caught.value.code == INVALID_PARAMS


def test_what_lies_deeper_may_be_as_many_as_it_likes():
    deeper = Raw(b"{%b}" % b",".join([*PAIRS, b'"one":1']))
    assert payload.members(Raw(b'{"arguments":%b}' % bytes(deeper))) == {"arguments": deeper}
    assert payload.elements(Raw(b"[%b]" % bytes(deeper))) == [deeper]


def test_another_token_leaves_every_other_key_of_meta_alone():
    params = Raw(b'{"name":"x","_meta":{"a/b":{"c": 1.0},"progressToken":4,"traceparent":"00-1"},"z":[ 1]}')
    assert payload.with_progress_token(params, "t7") == Raw(
        b'{"name":"x","_meta":{"a/b":{"c": 1.0},"progressToken":"t7","traceparent":"00-1"},"z":[ 1]}'
    )
    assert payload.with_progress_token(params, None) == Raw(
        b'{"name":"x","_meta":{"a/b":{"c": 1.0},"traceparent":"00-1"},"z":[ 1]}'
    )


def test_a_token_can_be_given_where_there_was_no_meta():
    assert payload.with_progress_token(EMPTY, 1) == Raw(b'{"_meta":{"progressToken":1}}')
    assert payload.with_progress_token(Raw(b'{"a":1}'), 0) == Raw(b'{"a":1,"_meta":{"progressToken":0}}')


def test_taking_the_only_key_takes_meta_too():
    assert payload.with_progress_token(Raw(b'{"a":1,"_meta":{"progressToken":1}}'), None) == Raw(b'{"a":1}')


def test_taking_no_token_gives_back_the_same_object():
    for raw in (EMPTY, Raw(b'{"a": 1}'), Raw(b'{"_meta":{"x":1}}')):
        assert payload.with_progress_token(raw, None) is raw


@given(
    st.dictionaries(st.text(), st.integers() | st.text(), max_size=4),
    st.dictionaries(st.text(), st.integers() | st.text(), max_size=4),
    st.integers() | st.text() | st.none(),
)
def test_only_the_token_changes(params, meta, token):
    value = {**params, "_meta": meta}
    changed = json.loads(bytes(payload.with_progress_token(payload.dumps(value), token)))
    expected = {name: entry for name, entry in meta.items() if name != "progressToken"}
    if token is not None:
        expected["progressToken"] = token
    assert changed == {**params, **({"_meta": expected} if expected or changed.get("_meta") == {} else {})}


def test_a_name_is_mentioned_also_when_it_may_be_spelled_with_escapes():
    assert payload.mentions(Raw(b'{"uri":1}'), b'"uri"')
    assert payload.mentions(Raw(b'{"\\u0075ri":1}'), b'"uri"')
    assert payload.mentions(Raw(b'{"a\\/b":1}'), b"a/b")
    assert not payload.mentions(Raw(b'{"a\\/b":1}'), b'"uri"')
    assert not payload.mentions(Raw(b'{"url":1}'), b'"uri"')
    assert not payload.mentions(EMPTY, b'"uri"')
