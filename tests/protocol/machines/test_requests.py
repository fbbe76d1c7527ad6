"""The client's requests in flight: one outcome each, cancellation, deadlines, progress."""

from typing import Any

import pytest

from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.protocol import errors
from tests.protocol.machines.driving import (
    OLD,
    SessionDriver,
    all_of,
    answers,
    call,
    kinds,
    notification,
    only,
    request,
    said,
)


def test_a_late_outcome_is_dropped_and_counted(session: SessionDriver) -> None:
    session.post(call(1))
    session.end(1)
    before = session.session
    assert session.end(1) == [fx.Count("late_outcome")]
    assert session.session is before


# Cancellation


def cancel(id: Any, **more: Any) -> Any:
    return notification("notifications/cancelled", requestId=id, **more)


def test_a_cancelled_request_ends_its_post_with_32800(session: SessionDriver) -> None:
    session.post(call(1))
    effects = session.post(cancel(1, reason="bored"))
    assert kinds(effects) == ["CancelCall", "StopTurnClock", "AnswerPost", "Accept"]
    assert answers(effects)[1]["error"]["code"] == -32800
    assert only(fx.CancelCall, effects) == fx.CancelCall(session.calls[1], "bored", errors.cancelled())
    assert session.end(1) == [fx.Count("late_outcome")]


def test_a_cancelled_request_ends_its_stream_with_32800(session: SessionDriver) -> None:
    session.post(call(1))
    session.step(ev.StreamTurnDue(session.last))
    last = only(fx.Append, session.post(cancel(1)))
    assert last.finish
    assert b"-32800" in (last.data or b"")


def test_a_cancel_reaches_the_request_of_its_type_only(session: SessionDriver) -> None:
    session.post(call(1))
    session.post(call("1"))
    effects = session.post(cancel("1"))
    assert list(answers(effects)) == ["1"]
    assert only(fx.CancelCall, effects).call == session.calls["1"]
    assert 1 in session.session.requests


@pytest.mark.parametrize("params", [{"requestId": 9}, {}, {"requestId": None}, {"requestId": 1.5}, {"requestId": [1]}])
def test_a_cancel_of_nothing_is_ignored(session: SessionDriver, params: Any) -> None:
    session.post(call(1))
    before = session.session
    assert kinds(session.post(notification("notifications/cancelled", **params))) == ["Count", "Accept"]
    assert session.session is before


def test_an_odd_reason_does_not_save_a_request_from_its_cancel(session: SessionDriver) -> None:
    session.post(call(1))
    assert only(fx.CancelCall, session.post(cancel(1, reason=["odd"]))).reason == "cancelled by the client"


# Deadlines


def test_a_deadline_runs_from_acceptance_once_the_answer_is_no_longer_expected_at_once(session: SessionDriver) -> None:
    session.now = 5.0
    assert not all_of(fx.StartDeadline, session.post(call(1)))
    session.now = 6.0
    effects = session.step(ev.StreamTurnDue(session.last))
    assert only(fx.StartDeadline, effects) == fx.StartDeadline(session.calls[1], 5.0, 5.0)


@pytest.mark.parametrize("opener", ["message", "question"])
def test_a_stream_that_opens_early_starts_the_deadline_too(session: SessionDriver, opener: str) -> None:
    session.post(call(1))
    effects = session.ask(1) if opener == "question" else session.tell(1, "notifications/message", level="info", data=1)
    assert "StopTurnClock" in kinds(effects), "so nothing else will start it"
    assert only(fx.StartDeadline, effects).call == session.calls[1]
    assert "StopDeadline" in kinds(session.end(1))


def test_a_call_that_takes_too_long_fails_and_its_backend_is_told(session: SessionDriver) -> None:
    session.post(call(1))
    session.step(ev.StreamTurnDue(session.last))
    effects = session.step(ev.CallExpired(session.calls[1]))
    assert answers(effects)[1]["error"]["data"] == {"reason": "timeout", "executed": "unknown"}
    assert only(fx.CancelCall, effects) == fx.CancelCall(session.calls[1], "deadline exceeded", errors.unanswered())
    before = session.session
    assert session.step(ev.CallExpired(session.calls[1])) == []
    assert session.session is before


# Progress


def test_progress_restarts_the_deadline_up_to_the_cap(session: SessionDriver) -> None:
    session.post(call(1, token="t"))
    session.now = 9.0
    first, *rest = all_of(fx.StartDeadline, session.progress(1, 1))
    assert first == fx.StartDeadline(session.calls[1], 9.0, 0.0)
    assert rest == []


@pytest.mark.parametrize("token", [0, 7, "", "ü", -(2**70)])
def test_progress_comes_under_the_clients_own_token(session: SessionDriver, token: Any) -> None:
    assert only(fx.Dispatch, session.post(call(1, token=token))).progress
    (stream, message), *_ = said(session.progress(1, 0.5, total=2, message="half", extra={"a": [1]}))
    assert stream == "p1"
    assert message["params"] == {
        "progressToken": token,
        "progress": 0.5,
        "total": 2,
        "message": "half",
        "extra": {"a": [1]},
    }
    assert type(message["params"]["progressToken"]) is type(token)


def test_progress_strictly_increases(session: SessionDriver) -> None:
    session.post(call(1, token=1))
    values = [1, 1, 0.5, 1.5, 1.5, -3, 2, 1.99]
    told = [m["params"]["progress"] for v in values for _, m in said(session.progress(1, v))]
    assert told == [1, 1.5, 2]


def test_progress_nobody_asked_for_or_after_the_outcome_is_dropped(session: SessionDriver) -> None:
    session.post(call(1))
    assert session.progress(1, 1) == [fx.Count("late_progress")]
    session.post(call(2, token=1))
    session.end(2)
    assert session.progress(2, 1) == [fx.Count("late_progress")]


def test_progress_without_a_number_is_dropped(session: SessionDriver) -> None:
    session.post(call(1, token=1))
    before = session.session
    assert session.tell(1, "notifications/progress", progress="1") == [fx.Count("bad_progress")]
    assert session.tell(1, "notifications/progress") == [fx.Count("bad_progress")]
    assert session.session is before


@pytest.mark.parametrize("session", [OLD], indirect=True)
def test_progress_has_no_message_in_the_oldest_revision(session: SessionDriver) -> None:
    session.post(call(1, token=1))
    assert said(session.progress(1, 1, message="half"))[0][1]["params"] == {"progressToken": 1, "progress": 1}


def test_two_requests_with_one_token_keep_their_progress_apart(session: SessionDriver) -> None:
    session.post(call(1, token=5))
    session.post(call(2, token=5))
    session.progress(1, 10)
    assert [s for s, _ in said(session.progress(2, 1))] == ["p2"]


@pytest.mark.parametrize("token", [1.5, None, True, [], {}])
def test_a_token_of_another_type_is_none(session: SessionDriver, token: Any) -> None:
    session.post(request(1, "tools/call", name="t", _meta={"progressToken": token}))
    assert session.session.requests[1].token is None


def test_the_error_of_a_front_is_the_outcome(session: SessionDriver) -> None:
    session.post(call(1))
    effects = session.fail(1, errors.invalid_params("Unknown tool"))
    assert answers(effects)[1]["error"] == {"code": -32602, "message": "Invalid params: Unknown tool"}
