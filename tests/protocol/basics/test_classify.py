"""The ladder from headers and body to a route."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from actors.protocol import errors
from actors.protocol.capabilities import NOTHING
from actors.protocol.classify import (
    Initialize,
    LegacyBatch,
    LegacyNotification,
    LegacyRequest,
    LegacyResponse,
    ModernRequest,
    Rejection,
    check_headers,
    classify,
    classify_body,
)
from actors.protocol.codec import decode_frame
from actors.protocol.messages import Request
from actors.protocol.meta import VERSION_KEY, Envelope
from actors.protocol.versions import MODERN, VERSIONS


def body(**members):
    return json.dumps({"jsonrpc": "2.0", **members}).encode()


INITIALIZE = body(id=1, method="initialize", params={"protocolVersion": "2025-11-25"})
LIST = body(id=2, method="tools/list")
NOTE = body(method="notifications/initialized")
ANSWER = body(id="ask", result={})
MODERN_LIST = body(id=3, method="tools/list", params={"_meta": {VERSION_KEY: MODERN}})


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
    envelope = Envelope(MODERN, NOTHING, frozenset())
    route = classify_body(MODERN_LIST, None, MODERN, modern=lambda frame, _: ModernRequest(frame, envelope))
    assert route == ModernRequest(decode_frame(MODERN_LIST), envelope)


ILL_TYPED = body(id=3, method="tools/list", params={"_meta": {VERSION_KEY: 5}})
MODERN_INITIALIZE = body(id=1, method="initialize", params={"_meta": {VERSION_KEY: MODERN}})
MODERN_NOTE = body(method="notifications/cancelled", params={"_meta": {VERSION_KEY: MODERN}})
BATCH = b"[" + LIST + b"]"


@pytest.mark.parametrize(
    ("frame", "session", "version", "era"),
    [
        # `initialize` is of the old era, unless header and `_meta` both say otherwise.
        (INITIALIZE, None, None, "legacy"),
        (INITIALIZE, None, MODERN, "legacy"),
        (MODERN_INITIALIZE, None, None, "legacy"),
        (MODERN_INITIALIZE, None, MODERN, "modern"),
        (MODERN_INITIALIZE, "s", "2025-11-25", "legacy"),
        # The key in `_meta` makes a message modern, whatever the headers say.
        (MODERN_LIST, None, None, "modern"),
        (MODERN_LIST, "s", None, "modern"),
        (MODERN_LIST, "s", "2025-11-25", "modern"),
        (MODERN_LIST, None, "2099-01-01", "modern"),
        (MODERN_NOTE, "s", None, "modern"),
        (ILL_TYPED, "s", None, "modern"),
        # Without it the header decides.
        (LIST, None, MODERN, "modern"),
        (LIST, "s", MODERN, "modern"),
        (LIST, "s", "2099-01-01", "modern"),
        (NOTE, "s", MODERN, "modern"),
        (ANSWER, "s", MODERN, "modern"),
        (BATCH, "s", MODERN, "modern"),
        (BATCH, "s", "", "modern"),
        (LIST, "s", None, "legacy"),
        (NOTE, "s", "2025-03-26", "legacy"),
        (ANSWER, "s", None, "legacy"),
        (BATCH, "s", "2025-03-26", "legacy"),
    ],
)
def test_the_era_is_chosen_by_method_then_meta_then_header(frame, session, version, era):
    asked = []

    def rung(frame, version):
        asked.append(version)
        return Rejection(errors.invalid_request())

    classify_body(frame, session, version, modern=rung)
    assert bool(asked) == (era == "modern")


def test_an_initialize_under_a_modern_header_opens_a_session_of_the_old_era():
    assert isinstance(classify_body(INITIALIZE, None, MODERN), Initialize)


def test_a_meta_without_the_key_is_no_sign_of_an_era():
    for meta in ([VERSION_KEY], {}, {"protocolVersion": MODERN}):
        rejected(classify_body(body(id=2, method="x", params={"_meta": meta}), None, None), -32600, 400, id=2)


def test_a_get_under_a_modern_header_is_no_method_of_that_era():
    for session in ("s", None):
        refused = check_headers(session, MODERN)
        rejected(refused, -32600, 405)
        assert refused.error.headers == (("allow", "POST"),)


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
