"""The envelope of a request: read, replaced, taken out."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from actors.protocol import meta
from actors.protocol.errors import Refusal
from actors.protocol.messages import EMPTY
from actors.protocol.meta import CAPABILITIES_KEY, INFO_KEY, LEVEL_KEY, RELATED_TASK_KEY, VERSION_KEY
from actors.protocol.translate import client_request
from actors.protocol.versions import LATEST_HANDSHAKE, MODERN

INFO = {"name": "c", "version": "1"}
TRACE = {"traceparent": "00-1-2-01", "com.example/x": [1]}


def bare(came):
    return client_request("tools/call", came, LATEST_HANDSHAKE, MODERN)


def refused(params):
    with pytest.raises(Refusal) as caught:
        meta.read(params)
    assert (caught.value.error.code, caught.value.error.status) == (-32602, 400)
    return caught.value.error.message


def test_an_envelope_is_read_whole(raw, params):
    declared = {"elicitation": {"url": {}}, "extensions": {"a/b": {"k": 1}, "c/d": {}}}
    keys = {CAPABILITIES_KEY: declared, INFO_KEY: INFO, LEVEL_KEY: "info", "progressToken": 7}
    envelope = meta.read(raw(params(keys)), extensions=["a/b"])
    assert (envelope.version, envelope.level, envelope.progress) == (MODERN, "info", 7)
    assert envelope.bits == {"elicit.url", 'ext:a/b={"k":1}'}
    assert json.loads(bytes(envelope.info)) == INFO
    assert envelope.capabilities.tree == declared


def test_the_required_keys_are_enough(raw, params):
    envelope = meta.read(raw(params()))
    assert (envelope.bits, envelope.info, envelope.level, envelope.progress) == (frozenset(), EMPTY, None, None)


@pytest.mark.parametrize("key", [VERSION_KEY, CAPABILITIES_KEY])
@pytest.mark.parametrize("value", [None, 5, [], True])
def test_a_required_key_that_is_missing_or_ill_typed_is_refused_by_name(raw, params, key, value):
    assert key in refused(raw(params({key: value})))


@pytest.mark.parametrize("params", [b"", b"{}", b'{"_meta":null}', b'{"_meta":[]}', b'{"_meta":5}', b'{"_meta":{}}'])
def test_a_request_without_an_envelope_is_refused(params):
    refused(Raw(params))


@pytest.mark.parametrize("level", [5, True, [], {}])
def test_a_level_that_is_no_text_is_refused(raw, params, level):
    refused(raw(params({LEVEL_KEY: level})))


@pytest.mark.parametrize("level", ["loud", "", "INFO"])
def test_what_an_unknown_level_means_one_server_may_know(raw, params, level):
    assert meta.read(raw(params({LEVEL_KEY: level}))).level == level
    assert meta.unknown_level(level).code == -32602
    assert meta.unknown_level("info") is meta.unknown_level(None) is None


def test_a_progress_token_that_cannot_be_kept_is_refused(raw, params):
    refused(raw(params({"progressToken": "x" * 2000})))


def test_what_is_only_for_display_is_left_out_where_it_is_ill_typed(raw, params):
    assert meta.read(raw(params({INFO_KEY: "me"}))).info == EMPTY


def test_elicitation_without_a_mode_is_form(raw, params):
    assert meta.read(raw(params({CAPABILITIES_KEY: {"elicitation": {}}}))).bits == {"elicit.form"}


def test_the_version_is_looked_for_before_all_else(raw, params):
    assert meta.names_version(raw(params())) == MODERN
    assert meta.names_version(raw(params({VERSION_KEY: 5}))) == ""
    assert meta.names_version(raw({"_meta": {}})) is None
    assert meta.names_version(raw({"_meta": [VERSION_KEY]})) is None
    assert meta.names_version(EMPTY) is None


def test_our_envelope_takes_the_place_of_the_clients(raw, params, conforms):
    keys = {
        INFO_KEY: {"name": "x"},
        LEVEL_KEY: "debug",
        "progressToken": "t",
        RELATED_TASK_KEY: {"taskId": "1"},
        **TRACE,
    }
    came = raw(params(keys, name="tool", arguments={"a": 1}, requestState="s"))
    sent = meta.stamp(came, capabilities=raw({"roots": {}}), info=raw(INFO), level="error", token=9)
    value = json.loads(bytes(sent))
    assert value == {
        "name": "tool",
        "arguments": {"a": 1},
        "requestState": "s",
        "_meta": {
            **TRACE,
            VERSION_KEY: MODERN,
            CAPABILITIES_KEY: {"roots": {}},
            INFO_KEY: INFO,
            LEVEL_KEY: "error",
            "progressToken": 9,
        },
    }
    conforms(MODERN, "CallToolRequestParams", sent)
    assert meta.read(sent).version == MODERN


def test_what_our_envelope_does_not_name_is_taken_out(raw, params):
    came = raw(params({INFO_KEY: INFO, LEVEL_KEY: "debug", "progressToken": 1}))
    sent = meta.stamp(came, capabilities=EMPTY, info=EMPTY, level=None, token=None)
    assert json.loads(bytes(sent)) == {"_meta": {VERSION_KEY: MODERN, CAPABILITIES_KEY: {}}}


def test_params_that_were_not_there_get_an_envelope(conforms):
    sent = meta.stamp(EMPTY, capabilities=EMPTY, info=EMPTY, level=None, token=None)
    conforms(MODERN, "RequestParams", sent)


def test_a_backend_with_sessions_gets_no_envelope_and_no_retry(raw, params):
    keys = {INFO_KEY: INFO, LEVEL_KEY: "debug", "progressToken": 1, **TRACE}
    came = raw(params(keys, name="tool", inputResponses={}, requestState="s"))
    assert json.loads(bytes(bare(came))) == {"name": "tool", "_meta": {"progressToken": 1, **TRACE}}
    assert json.loads(bytes(bare(raw(params(name="tool"))))) == {"name": "tool"}


def test_params_without_any_of_it_stay_the_same_object(raw):
    for value in ({"name": "x", "_meta": TRACE}, {"arguments": {"requestState": 1}}, {}):
        came = raw(value)
        assert bare(came) is came
    assert bare(EMPTY) is EMPTY


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*meta.ENVELOPE_KEYS, "progressToken", "traceparent"]), JSON) | JSON)
def test_whatever_is_in_meta_is_an_envelope_or_a_refusal(keys):
    params = Raw(json.dumps({"_meta": keys}).encode())
    with contextlib.suppress(Refusal):
        envelope = meta.read(params)
        assert envelope.version == keys[VERSION_KEY] == meta.names_version(params) == meta.look(params)[0]


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=4), st.dictionaries(st.text(max_size=8), JSON, max_size=4))
def test_what_is_not_the_gateways_goes_through_both_ways_unchanged(members, keys):
    members.pop("_meta", None)
    for name in meta.RETRY_MEMBERS:
        members.pop(name, None)
    keys.pop("progressToken", None)
    came = Raw(json.dumps({**members, "_meta": keys}).encode())
    stamped = meta.stamp(came, capabilities=EMPTY, info=EMPTY, level="info", token=None)
    back = json.loads(bytes(bare(stamped)))
    assert back == ({**members, "_meta": keys} if keys else members)
