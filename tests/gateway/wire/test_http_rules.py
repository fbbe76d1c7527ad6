"""What HTTP answers mean, for every status and body."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.protocol.sse import SseEvent
from gateway.wire.http_events import SHORTEST_WAIT, EventTrail
from gateway.wire.http_rules import Answered, Failed, Kind, Lost, answers, error_code, judge, kind_of, read

ERROR = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"no"}}'
OVERLOADED = ERROR.replace(b"-32602", b"-32000")


@pytest.mark.parametrize(
    ("status", "content_type", "kind"),
    [
        (200, b"application/json", Kind.JSON),
        (200, b"Application/JSON; charset=utf-8", Kind.JSON),
        (200, b"text/event-stream;charset=utf-8", Kind.EVENTS),
        (201, b"application/json", Kind.JSON),
        (202, b"application/json", Kind.REFUSED),
        (200, b"application/json-seq", Kind.REFUSED),
        (200, b"", Kind.REFUSED),
        (404, b"application/json", Kind.REFUSED),
    ],
)
def test_the_head_decides_how_a_request_goes_on(status, content_type, kind):
    assert kind_of(status, content_type) is kind


@pytest.mark.parametrize(
    ("status", "body", "has_session", "may_guess", "verdict"),
    [
        (404, ERROR, True, False, Lost()),
        (404, ERROR, False, False, Answered()),
        (404, b"", False, False, Failed),
        (400, b"", True, True, Lost(guessed=True)),
        (400, OVERLOADED, True, True, Lost(guessed=True)),
        (400, OVERLOADED, True, False, Answered()),
        (400, OVERLOADED, False, True, Answered()),
        (400, ERROR, True, True, Answered()),
        (400, b"", True, False, Failed),
        (401, ERROR, True, True, Failed),
        (403, ERROR, True, True, Answered()),
        (500, ERROR, True, True, Answered()),
        (202, ERROR, True, True, Failed),
    ],
)
def test_a_refusal_is_judged_by_status_session_and_body(status, body, has_session, may_guess, verdict):
    judged = judge(status, body, has_session=has_session, may_guess=may_guess)
    assert judged == verdict or type(judged) is verdict


@given(st.integers(100, 599), st.binary() | st.just(ERROR), st.booleans(), st.booleans())
def test_every_refusal_has_a_verdict(status, body, has_session, may_guess):
    verdict = judge(status, body, has_session=has_session, may_guess=may_guess)
    if isinstance(verdict, Answered):
        assert error_code(body) is not None
    if isinstance(verdict, Lost):
        assert has_session


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', True),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""}}', True),
        (b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}', True),
        (b'{"jsonrpc":"2.0","id":1,"result":"malformed"}', True),
        (b'[{"jsonrpc":"2.0","method":"x"},{"jsonrpc":"2.0","id":1,"result":{}}]', True),
        (b'{"jsonrpc":"2.0","id":"1","result":{}}', False),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', False),
        (b'{"jsonrpc":"2.0","method":"x"}', False),
        (b'{"jsonrpc":"2.0","method":5}', False),
        (b'{"jsonrpc":"2.0","id":2,"result":"malformed"}', False),
        (b"{", True),
        (b"[]", True),
        (b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 5000 + b"]" * 5000 + b"}", True),
    ],
)
def test_a_frame_answers_its_request_or_does_not(frame, expected):
    assert answers(read(frame), 1) is expected


def test_a_trail_waits_as_the_server_asked_and_longer_after_failures():
    trail = EventTrail()
    trail.note(SseEvent(b"", id="a", retry=2000))
    assert (trail.last_id, trail.wait()) == ("a", 2.0)
    assert all(trail.wait() >= 2.0 for _ in range(5))
    trail.note(SseEvent(b"", retry=0))
    assert (trail.last_id, trail.wait()) == ("a", SHORTEST_WAIT)
    trail.note(SseEvent(b"x", id=""))
    assert trail.last_id is None
