"""What backends ask of the client: gates, streams, answers, withdrawal (2025-11-25 client features, SEP-2260)."""

from typing import Any

import pytest

from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.machines.session.state import Rules
from actors.protocol.messages import EMPTY, Error
from tests.protocol.machines.driving import (
    BATCHES,
    FORMS,
    SessionDriver,
    all_of,
    answers,
    call,
    kinds,
    notification,
    only,
    plain,
    raw,
    said,
)

CANCELLED = "notifications/cancelled"


def refused(driver: SessionDriver, method: str, **params: Any) -> Any:
    effects = driver.step(ev.ServerRequested("b", None, 7, method, raw(params)))
    answer = only(fx.AnswerBackend, effects)
    assert (answer.backend, answer.id, answer.ok) == ("b", 7, False)
    return plain(answer.payload)["code"]


# Gates


@pytest.mark.parametrize("method", ["roots/list", "sampling/createMessage", "elicitation/create"])
def test_what_the_client_did_not_declare_is_not_asked(method: str) -> None:
    driver = SessionDriver().initialize(client={})
    driver.get()
    before = driver.session
    assert refused(driver, method, messages=[], message="", maxTokens=1) == -32601
    assert driver.session is before


def test_parts_of_a_capability_are_gates_of_their_own() -> None:
    driver = SessionDriver().initialize(client={"sampling": {}, "elicitation": {}})
    assert refused(driver, "sampling/createMessage", messages=[], maxTokens=1, tools=[]) == -32602
    assert refused(driver, "elicitation/create", mode="url", message="", url="x", elicitationId="e") == -32602
    assert kinds(driver.ask(None, "elicitation/create")) == ["StartServerRequestClock"]


@pytest.mark.parametrize("version", [BATCHES, FORMS])
def test_a_revision_has_what_it_has(version: str) -> None:
    driver = SessionDriver(version).initialize()
    expected = ["StartServerRequestClock"] if version == FORMS else ["AnswerBackend"]
    assert kinds(driver.ask(None, "elicitation/create")) == expected


@pytest.mark.parametrize("method", ["odd/question", "tools/call", "tasks/get"])
def test_what_no_client_can_be_asked_is_refused(session: SessionDriver, method: str) -> None:
    assert refused(session, method) == -32601


def test_a_question_that_can_not_be_lowered_is_answered_for_the_client() -> None:
    driver = SessionDriver(FORMS).initialize()
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"enum": ["x"]}}}}
    effects = driver.step(
        ev.ServerRequested("b", None, 7, "elicitation/create", raw({"message": "", "requestedSchema": schema}))
    )
    answer = only(fx.AnswerBackend, effects)
    assert (answer.ok, plain(answer.payload)) == (True, {"action": "cancel"})


def test_questions_are_capped() -> None:
    driver = SessionDriver(rules=Rules(asks=2)).initialize()
    driver.ask(None, own=1)
    driver.ask(None, own=2)
    before = driver.session
    assert not only(fx.AnswerBackend, driver.ask(None, own=3)).ok
    assert driver.session is before


# Ways


def test_a_question_goes_on_the_stream_of_its_call_and_back_once(session: SessionDriver) -> None:
    session.get()
    session.post(call(1))
    effects = session.ask(1, own="own")
    assert kinds(effects) == ["StopTurnClock", "OpenStream", "StartDeadline", "Append", "StartServerRequestClock"]
    [(stream, message)] = said(effects)
    assert (stream, message["id"], message["method"]) == ("p1", "10.1", "roots/list")
    assert only(fx.Append, effects).asked == {"10.1": b"p1"}
    effects = session.answer("10.1", {"roots": []})
    assert kinds(effects) == ["StopServerRequestClock", "AnswerBackend", "Accept"]
    assert only(fx.AnswerBackend, effects) == fx.AnswerBackend("b", "own", True, raw({"roots": []}), "roots/list")
    assert kinds(session.answer("10.1", {"roots": []})) == ["Count", "Accept"]


def test_an_error_of_the_client_reaches_the_backend_as_it_is(session: SessionDriver) -> None:
    session.ask(None)
    error = {"code": -1, "message": "User rejected sampling request", "data": [1]}
    effects = session.post(Error("10.1", raw(error)))
    answer = only(fx.AnswerBackend, effects)
    assert (answer.ok, plain(answer.payload)) == (False, error)


def test_a_settled_question_leaves_the_record_with_the_next_append(session: SessionDriver) -> None:
    session.post(call(1))
    session.ask(1, own=1)
    session.ask(1, own=2)
    session.answer("10.1", {"roots": []})
    session.answer("10.2", {"roots": []})
    assert only(fx.Append, session.end(1)).asked == {"10.1": None, "10.2": None}
    assert not session.session.settled


def test_a_question_of_no_call_goes_to_the_newest_get_stream(session: SessionDriver) -> None:
    session.get()
    session.get()
    assert [s for s, _ in said(session.ask(None))] == ["g2"]


def test_a_question_of_a_call_without_a_connection_goes_to_a_get_stream(session: SessionDriver) -> None:
    session.post(call(1))
    session.step(ev.PostBroken(session.last))
    assert kinds(session.ask(1, own=1)) == ["StartServerRequestClock"]
    session.get()
    assert [s for s, _ in said(session.ask(1, own=2))] == ["g1"]


def test_without_any_stream_a_question_waits_for_one_and_then_for_its_answer(session: SessionDriver) -> None:
    assert session.ask(None) == [fx.StartServerRequestClock("10.1", False)]
    effects = session.get()
    assert kinds(effects) == ["OpenStream", "Append", "StartServerRequestClock"]
    assert only(fx.StartServerRequestClock, effects) == fx.StartServerRequestClock("10.1", True)
    assert only(fx.AnswerBackend, session.answer("10.1", {"roots": []})).ok


def test_a_question_that_finds_no_stream_in_time_is_answered_with_an_error(session: SessionDriver) -> None:
    session.ask(None)
    effects = session.step(ev.ServerRequestExpired("10.1"))
    assert kinds(effects) == ["StopServerRequestClock", "AnswerBackend"]
    assert plain(only(fx.AnswerBackend, effects).payload)["data"] == {"reason": "no_stream"}
    assert not said(session.get())


def test_a_question_without_an_answer_is_withdrawn_from_the_client(session: SessionDriver) -> None:
    session.get()
    session.ask(None)
    effects = session.step(ev.ServerRequestExpired("10.1"))
    [(stream, message)] = said(effects)
    assert (stream, message["method"], message["params"]["requestId"]) == ("g1", CANCELLED, "10.1")
    assert only(fx.Append, effects).asked == {"10.1": None}
    assert plain(only(fx.AnswerBackend, effects).payload)["data"] == {"reason": "timeout"}


def test_questions_wait_through_a_drain_until_their_time_is_over(session: SessionDriver) -> None:
    session.ask(None)
    session.step(ev.DrainStarted())
    session.get()
    assert not only(fx.AnswerBackend, session.step(ev.ServerRequestExpired("10.1"))).ok


# Withdrawal


def test_the_end_of_a_call_withdraws_its_questions_before_the_answer(session: SessionDriver) -> None:
    session.get()
    session.post(call(1))
    session.post(call(2))
    session.ask(1, own=1)
    session.ask(2, own=2)
    session.ask(None, own=3)
    effects = session.end(1)
    assert [(s, m.get("method", m.get("id"))) for s, m in said(effects)] == [("p1", CANCELLED), ("p1", 1)]
    assert not all_of(fx.AnswerBackend, effects), "the link answers its backend"
    assert list(session.session.asks) == ["10.2", "10.3"]


@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_a_call_that_is_given_up_withdraws_its_question(session: SessionDriver, how: str) -> None:
    session.post(call(1))
    session.ask(1)
    if how == "cancel":
        effects = session.post(notification(CANCELLED, requestId=1))
    else:
        effects = session.step(ev.CallExpired(session.calls[1]))
    assert [m.get("method", m.get("id")) for _, m in said(effects)] == [CANCELLED, 1]
    assert not session.session.asks


def test_a_backend_withdraws_its_own_question_only(session: SessionDriver) -> None:
    session.get()
    session.ask(None, own=1, backend="a")
    session.ask(None, own=1, backend="b")
    session.ask(None, own="1", backend="b")
    effects = session.step(ev.ServerRequestWithdrawn("b", 1))
    assert said(effects)[0][1]["params"]["requestId"] == "10.2"
    assert list(session.session.asks) == ["10.1", "10.3"]
    assert only(fx.AnswerBackend, session.answer("10.1", {"roots": []})).backend == "a"


def test_a_lost_backend_voids_its_questions_and_no_others(session: SessionDriver) -> None:
    session.get()
    for backend in ("a", "b", "a"):
        session.ask(None, own=len(session.session.asks), backend=backend)
    effects = session.step(ev.BackendLost("a"))
    assert [m["params"]["requestId"] for _, m in said(effects)] == ["10.1", "10.3"]
    assert not all_of(fx.AnswerBackend, effects), "nobody is there to hear it"
    assert list(session.session.asks) == ["10.2"]


def test_a_question_whose_stream_is_gone_is_withdrawn_without_a_word(session: SessionDriver) -> None:
    session.post(call(1))
    session.ask(1)
    session.step(ev.StreamFailed("p1", "full"))
    assert kinds(session.end(1)) == ["StopServerRequestClock", "StopDeadline", "StopTurnClock", "Count"]
    assert not session.session.asks


# Progress of the client


def test_progress_of_the_client_goes_back_under_the_backends_token(session: SessionDriver) -> None:
    session.get()
    params = raw({"_meta": {"progressToken": 5, "x": 1}, "messages": [], "maxTokens": 1})
    effects = session.step(ev.ServerRequested("b", None, 7, "sampling/createMessage", params))
    assert said(effects)[0][1]["params"]["_meta"] == {"progressToken": "10.1", "x": 1}
    told = session.post(notification("notifications/progress", progressToken="10.1", progress=1))
    tell = only(fx.NotifyBackend, told)
    assert (tell.backend, plain(tell.params)) == ("b", {"progressToken": 5, "progress": 1})


@pytest.mark.parametrize("token", ["10.9", "10.1", 5, None])
def test_progress_of_the_client_on_nothing_is_dropped(session: SessionDriver, token: Any) -> None:
    session.ask(None)
    effects = session.post(notification("notifications/progress", progressToken=token, progress=1))
    assert kinds(effects) == ["Count", "Accept"]


def test_a_question_before_initialize_is_refused() -> None:
    driver = SessionDriver()
    assert not only(fx.AnswerBackend, driver.step(ev.ServerRequested("b", None, 1, "roots/list", EMPTY))).ok


def test_an_answer_never_shows_up_as_an_answer_to_the_client(session: SessionDriver) -> None:
    session.post(call(1))
    session.ask(1)
    assert not answers(session.answer("10.1", {"roots": []}))
