"""Refusals: codes, statuses, bodies."""

import json
from itertools import product

import pytest
from msgspec import Raw

from actors.protocol import errors
from actors.protocol.errors import KINDS, encode_error_body, parse_error_member, refusal
from actors.protocol.versions import SERVED, VERSIONS


def test_every_refusal_is_a_valid_error_response(conforms, subtests):
    for kind, id in product(KINDS, (None, 0, 7, "x")):
        with subtests.test(kind=kind, id=id):
            body = encode_error_body(refusal(kind, "detail", a=1), id)
            value = json.loads(body)
            assert ("id" in value) == (id is not None)
            conforms("2025-11-25", "JSONRPCErrorResponse", body)
            if id is not None:  # The older schemas demand an id, which nobody has whose request could not be read.
                for version in ("2024-11-05", "2025-03-26", "2025-06-18"):
                    conforms(version, "JSONRPCError", body)


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (errors.parse_error(), -32700, 400),
        (errors.invalid_request(), -32600, 400),
        (errors.batch_refused(), -32600, 400),
        (errors.too_large(5), -32600, 413),
        (errors.missing_session(), -32600, 400),
        (errors.session_not_found(), -32600, 404),
        (errors.unsupported_version_header("x"), -32600, 400),
        (errors.unsupported_protocol_version("2026-07-28"), -32022, 400),
        (errors.already_initialized(), -32600, 400),
        (errors.not_initialized(), -32600, 400),
        (errors.bad_event_id(), -32600, 400),
        (errors.gap("evicted"), -32600, 400),
        (errors.stream_conflict(), -32600, 409),
        (errors.superseded(), -32600, 409),
        (errors.too_many_requests(), -32000, 429),
        (errors.server_full(), -32000, 503),
        (errors.overloaded(), -32000, 503),
        (errors.draining(), -32000, 503),
        (errors.store_away(), -32000, 503),
        (errors.method_not_found("x"), -32601, 200),
        (errors.invalid_params(), -32602, 200),
        (errors.internal(), -32603, 200),
        (errors.resource_not_found("x:y"), -32002, 200),
        (errors.cancelled(), -32800, 200),
        (errors.rejected(), -1, 200),
        (errors.refusal("header_mismatch"), -32020, 400),
        (errors.missing_client_capability(Raw(b"{}")), -32021, 400),
        (errors.refusal("invalid_envelope"), -32602, 400),
        (errors.refusal("no_such_method"), -32601, 404),
        (errors.refusal("post_only"), -32600, 405),
    ],
)
def test_each_refusal_has_its_code_and_status(error, code, status):
    assert (error.code, error.status) == (code, status)


def test_what_may_pass_says_when_to_come_again():
    by_itself = {"limited", "quota_unknown"}  # each error of these says its own
    for kind, rule in KINDS.items():
        error = errors.waits(kind, "", 7, reason="test") if kind in by_itself else refusal(kind)
        assert (rule.status in (429, 503)) == ("retry-after" in dict(error.headers))
    assert errors.waits("limited", "", None, reason="test").headers == ()
    assert errors.draining().headers == (("retry-after", "1"),)


def test_data_holds_what_was_given_and_nothing_else():
    assert json.loads(bytes(errors.internal("x", reason="lost", executed="no").raw)) == {
        "code": -32603,
        "message": "Internal error: x",
        "data": {"reason": "lost", "executed": "no"},
    }
    assert json.loads(bytes(errors.internal().raw)) == {"code": -32603, "message": "Internal error"}
    assert json.loads(bytes(errors.resource_not_found("a:b").raw))["data"] == {"uri": "a:b"}


def test_an_unsupported_revision_is_told_which_there_are():
    data = json.loads(bytes(errors.unsupported_protocol_version("2026-07-28").data))
    assert data == {"supported": list(reversed(VERSIONS)), "requested": "2026-07-28"}


def test_a_peers_text_comes_back_short_and_printable():
    error = errors.unsupported_version_header("a\r\nb" + "x" * 500)
    assert "\n" not in error.message
    assert len(error.message) < 120


def test_a_peers_error_is_read_and_written_without_change():
    raw = Raw(b'{"code":-5,"message":"m","data":{"big":123456789012345678901234567890}}')
    error = parse_error_member(raw)
    assert (error.code, error.message, error.kind, error.status) == (-5, "m", "peer", 200)
    assert error.raw == raw


@pytest.mark.parametrize("raw", [b"{}", b'{"code":"1","message":"m"}', b"5", b'{"code":1}', b"{", b'"\xff"'])
def test_what_is_no_error_object_is_a_value_error(raw):
    with pytest.raises(ValueError, match="not a JSON-RPC error"):
        parse_error_member(Raw(raw))


# The era without sessions


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (-32700, 400),
        (-32600, 400),
        (-32602, 400),
        (-32601, 404),
        (-32020, 400),
        (-32021, 400),
        (-32022, 400),
        (-32603, 200),
        (-32000, 200),
        (5, 200),
    ],
)
def test_the_code_decides_the_status_of_an_answer_of_the_era_without_sessions(code, status):
    assert errors.modern_status(code) == status


def test_an_error_of_ours_gets_the_status_and_code_of_that_era():
    for error in (errors.method_not_found("x"), errors.invalid_params("x"), errors.internal()):
        made = errors.for_modern(error)
        assert (made.code, made.message, made.data) == (error.code, error.message, error.data)
        assert made.status == errors.modern_status(error.code)
    full = errors.for_modern(errors.overloaded())
    assert (full.code, full.status, full.headers) == (-32603, 503, errors.overloaded().headers)
    missing = errors.for_modern(errors.resource_not_found("a:b"))
    assert (missing.code, missing.status, json.loads(bytes(missing.data))) == (-32602, 400, {"uri": "a:b"})


def test_the_errors_of_that_era_are_as_its_schema_says(conforms):
    for name, error in {
        "HeaderMismatchError": errors.refusal("header_mismatch", "Mcp-Name is missing"),
        "MissingRequiredClientCapabilityError": errors.missing_client_capability(Raw(b'{"elicitation":{"url":{}}}')),
        "UnsupportedProtocolVersionError": errors.unsupported_protocol_version("2099-01-01", SERVED),
    }.items():
        conforms("2026-07-28", name, encode_error_body(error, 1))


@pytest.mark.parametrize("kind", [kind for kind, rule in KINDS.items() if rule.status in (429, 503)])
def test_what_may_pass_says_to_a_request_that_nothing_was_executed(kind):
    error = errors.waits(kind, "", 7, reason="test") if kind in ("limited", "quota_unknown") else refusal(kind)
    answer = json.loads(errors.encode_error_body(error, 1))
    assert answer["error"]["data"]["executed"] == "no"
    modern = json.loads(errors.encode_error_body(errors.for_modern(error), 1))
    assert modern["error"]["data"]["executed"] == "no"


def test_what_answers_no_request_says_nothing_of_one():
    assert "data" not in json.loads(errors.encode_error_body(errors.overloaded()))["error"]


def test_a_refusal_says_what_is_known_of_its_own_request():
    error = errors.waits("limited", "", 7, reason="test")
    said = json.loads(bytes(errors.saying("unknown", error).raw))["data"]
    assert said == {"reason": "test", "executed": "unknown", "retryAfter": 7}
    assert json.loads(bytes(errors.saying("unknown", errors.overloaded()).raw))["data"] == {"executed": "unknown"}
