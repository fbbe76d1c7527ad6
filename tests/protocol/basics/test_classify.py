"""The ladder from headers and body to a route."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from actors.protocol.classify import (
    PROTOCOL_VERSION_KEY,
    Initialize,
    LegacyBatch,
    LegacyNotification,
    LegacyRequest,
    LegacyResponse,
    Modern,
    Rejection,
    check_headers,
    classify,
    classify_body,
)
from actors.protocol.codec import decode_frame
from actors.protocol.messages import Request
from actors.protocol.versions import MODERN, VERSIONS


def body(**members):
    return json.dumps({"jsonrpc": "2.0", **members}).encode()


INITIALIZE = body(id=1, method="initialize", params={"protocolVersion": "2025-11-25"})
LIST = body(id=2, method="tools/list")
NOTE = body(method="notifications/initialized")
ANSWER = body(id="ask", result={})
MODERN_LIST = body(id=3, method="tools/list", params={"_meta": {PROTOCOL_VERSION_KEY: MODERN}})


def rejected(route, code, status, id=None):
    assert isinstance(route, Rejection), route
    assert (route.error.code, route.status, route.id) == (code, status, id)
    value = json.loads(route.body)
    assert value.get("id") == id
    return value["error"]


def test_initialize_without_a_session_opens_one():
    for version in (None, *VERSIONS):
        assert isinstance(classify_body(INITIALIZE, None, version), Initialize)
    assert isinstance(classify_body(INITIALIZE, "", None), Initialize)


def test_initialize_with_a_session_goes_to_that_session():
    assert classify_body(INITIALIZE, "s", None) == LegacyRequest("s", decode_frame(INITIALIZE))


def test_messages_of_a_session_are_routed_by_kind():
    assert classify_body(LIST, "s", "2025-11-25") == LegacyRequest("s", Request(2, "tools/list"))
    assert isinstance(classify_body(NOTE, "s", None), LegacyNotification)
    assert isinstance(classify_body(ANSWER, "s", None), LegacyResponse)
    assert isinstance(classify_body(body(error={"code": 1, "message": ""}), "s", None), LegacyResponse)


@pytest.mark.parametrize("version", VERSIONS)
def test_any_handshake_version_in_the_header_is_accepted(version):
    assert isinstance(classify_body(LIST, "s", version), LegacyRequest)
    assert check_headers("s", version) is None


def test_a_message_without_a_session_is_rejected_with_its_id():
    rejected(classify_body(LIST, None, None), -32600, 400, id=2)
    rejected(classify_body(LIST, "", None), -32600, 400, id=2)
    rejected(classify_body(NOTE, None, None), -32600, 400)
    rejected(classify_body(ANSWER, None, None), -32600, 400)
    rejected(check_headers(None, None), -32600, 400)


@pytest.mark.parametrize("version", ["", "1.0", "2025-11-26", "2099-01-01", "x" * 1000, "\x00"])
def test_an_unsupported_version_header_is_rejected_whatever_else_is_right(version):
    rejected(classify_body(LIST, "s", version), -32600, 400, id=2)
    rejected(classify_body(INITIALIZE, None, version), -32600, 400, id=1)
    rejected(check_headers("s", version), -32600, 400)


@pytest.mark.parametrize(
    ("frame", "version"), [(LIST, MODERN), (MODERN_LIST, MODERN), (MODERN_LIST, None), (MODERN_LIST, "2099-01-01")]
)
def test_a_modern_request_is_told_which_revisions_there_are(frame, version):
    error = rejected(classify_body(frame, None, version), -32022, 400, id=json.loads(frame)["id"])
    assert error["data"] == {"supported": list(reversed(VERSIONS)), "requested": version or MODERN}


def test_the_modern_rung_can_be_replaced():
    route = classify_body(MODERN_LIST, None, MODERN, modern=lambda frame, version: Modern(version, frame))
    assert route == Modern(MODERN, decode_frame(MODERN_LIST))


def test_a_session_is_never_modern_by_its_body_alone():
    assert isinstance(classify_body(MODERN_LIST, "s", "2025-11-25"), LegacyRequest)


def test_a_broken_meta_is_no_sign_of_an_era():
    for meta in ({PROTOCOL_VERSION_KEY: 5}, [PROTOCOL_VERSION_KEY], {}):
        rejected(classify_body(body(id=2, method="x", params={"_meta": meta}), None, None), -32600, 400, id=2)


def test_a_meta_that_is_nested_too_deeply_to_read_is_no_sign_of_an_era():
    params = Raw(b'{"_meta":{"protocolVersion":' + b"[" * 5000 + b"]" * 5000 + b"}}")
    rejected(classify(Request(2, "x", params), None, None), -32600, 400, id=2)


def test_a_batch_goes_to_its_session():
    for members in ([LIST, NOTE], [ANSWER], [LIST, b"5"], [ANSWER, b"{}"]):
        route = classify_body(b"[" + b",".join(members) + b"]", "s", None)
        assert isinstance(route, LegacyBatch)
        assert len(route.batch.messages) == len(members)


def test_initialize_in_a_batch_is_refused_with_and_without_a_session():
    for session in ("s", None):
        rejected(classify_body(b"[" + INITIALIZE + b"]", session, None), -32600, 400)


def test_a_batch_of_requests_and_responses_is_refused():
    rejected(classify_body(b"[" + LIST + b"," + ANSWER + b"]", "s", None), -32600, 400)


def test_a_batch_without_a_session_is_refused():
    rejected(classify_body(b"[" + LIST + b"]", None, None), -32600, 400)
    rejected(classify_body(b"[" + LIST + b"]", None, MODERN), -32022, 400)


def test_what_cannot_be_decoded_is_a_rejection():
    rejected(classify_body(b"{", "s", None), -32700, 400)
    rejected(classify_body(b"[]", "s", None), -32600, 400)
    rejected(classify_body(body(id=5, method=1), "s", None), -32600, 400, id=5)
    rejected(classify_body(LIST, "s", None, limit=5), -32600, 413)


@pytest.mark.parametrize("rest", ['"method":"ping"', '"method":5', '"method":"ping","params":[]'])
def test_an_id_that_is_too_long_is_not_repeated(rest):
    for length, echoed in ((1024, True), (1025, False)):
        id = "x" * length
        rejection = classify_body(b'{"jsonrpc":"2.0","id":"%b",%b}' % (id.encode(), rest.encode()), "s", None)
        if isinstance(rejection, Rejection):
            assert rejection.id == (id if echoed else None)
            assert rejection.status == 400
        else:
            assert echoed


def test_a_broken_answer_of_the_client_is_not_answered_under_its_id():
    rejected(classify_body(body(id=5, result=1), "s", None), -32600, 400)


def test_classify_takes_a_decoded_frame():
    assert classify(decode_frame(LIST), "s", None) == classify_body(LIST, "s", None)


@given(
    st.binary(max_size=60) | st.sampled_from([INITIALIZE, LIST, NOTE, ANSWER, MODERN_LIST, b"[" + LIST + b"]"]),
    st.none() | st.text(max_size=5),
    st.none() | st.text(max_size=12) | st.sampled_from([*VERSIONS, MODERN]),
)
def test_every_message_has_a_route_or_a_rejection_with_a_4xx_status(frame, session, version):
    route = classify_body(frame, session, version)
    if isinstance(route, Rejection):
        assert 400 <= route.status < 500
        json.loads(route.body)
