"""Which message goes on which stream: turn, priming, GET, box, resume, loss, drain (2025-11-25 transports)."""

import pytest
from msgspec import Raw

from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.machines.session.state import Rules, SessionPhase
from tests.protocol.machines.driving import (
    BATCHES,
    FORMS,
    NEWEST,
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

CHANGED = "notifications/tools/list_changed"
UPDATED = "notifications/resources/updated"

older = pytest.mark.parametrize("session", [OLD, BATCHES, FORMS], indirect=True)


def log(session: SessionDriver, id: object = None, text: str = "x") -> list:
    return session.tell(id, "notifications/message", level="error", data=text)


# From an answer to a stream


def test_an_answer_that_takes_long_becomes_a_primed_stream(session: SessionDriver) -> None:
    session.post(call(1))
    effects = session.step(ev.StreamTurnDue(session.last))
    assert kinds(effects) == ["StopTurnClock", "OpenStream", "StartDeadline"]
    opened = only(fx.OpenStream, effects)
    assert (opened.stream, opened.post, opened.first, opened.requests) == ("p1", session.last, b"", {"i:1": b"p1"})
    effects = session.end(1)
    assert kinds(effects) == ["StopDeadline", "Append"]
    last = only(fx.Append, effects)
    assert (last.stream, last.seq, last.finish, last.requests) == ("p1", 2, True, {"i:1": None})
    assert not session.session.streams


@older
def test_older_clients_get_no_priming_event(session: SessionDriver) -> None:
    session.post(call(1))
    opened = only(fx.OpenStream, session.step(ev.StreamTurnDue(session.last)))
    assert opened.first is None
    assert only(fx.Append, session.end(1)).seq == 1
    assert only(fx.OpenStream, session.get()).first is None


def test_a_turn_that_comes_after_the_answer_changes_nothing(session: SessionDriver) -> None:
    session.post(call(1))
    post = session.last
    session.end(1)
    before = session.session
    assert session.step(ev.StreamTurnDue(post)) == []
    assert session.session is before


def test_a_message_before_the_answer_opens_the_stream_and_goes_first(session: SessionDriver) -> None:
    session.post(call(1))
    effects = log(session, 1)
    assert kinds(effects) == ["StopTurnClock", "OpenStream", "StartDeadline", "Append"]
    assert only(fx.Append, effects).seq == 2
    assert session.step(ev.StreamTurnDue(session.last)) == []
    assert [s for s, _ in said([*log(session, 1), *session.end(1)])] == ["p1", "p1"]


def test_an_outcome_may_come_while_the_stream_is_still_being_opened(session: SessionDriver) -> None:
    session.post(call(1))
    effects = [*session.step(ev.StreamTurnDue(session.last)), *session.end(1)]
    assert kinds(effects) == ["StopTurnClock", "OpenStream", "StartDeadline", "StopDeadline", "Append"]


def test_each_request_has_its_own_stream(session: SessionDriver) -> None:
    session.post(call(1))
    session.post(call(2))
    assert [s for s, _ in said(log(session, 2))] == ["p1"]
    assert [s for s, _ in said(log(session, 1))] == ["p2"]
    assert [s for s, m in said([*session.end(1), *session.end(2)])] == ["p2", "p1"]


# Broken connections


def test_a_broken_connection_is_no_cancellation(session: SessionDriver) -> None:
    session.post(call(1))
    assert session.step(ev.PostBroken(session.last)) == []
    assert 1 in session.session.requests
    assert kinds(session.step(ev.StreamTurnDue(session.last))) == ["StartDeadline"]
    assert kinds(session.end(1)) == ["StopDeadline", "StopTurnClock", "Count"]
    assert not session.session.posts


def test_what_is_said_in_a_call_without_a_connection_is_nobodys(session: SessionDriver) -> None:
    session.get()
    session.post(call(1))
    session.step(ev.PostBroken(session.last))
    assert kinds(log(session, 1)) == ["Count"]


def test_a_stream_outlives_its_connection(session: SessionDriver) -> None:
    session.post(call(1))
    session.step(ev.StreamTurnDue(session.last))
    before = session.session
    session.step(ev.PostBroken(session.last))
    assert session.session is before, "the connection of a stream is lost by Detached"
    session.step(ev.Detached(session.last, "p1"))
    assert session.session.streams["p1"].connection is None
    assert [s for s, _ in said(session.end(1))] == ["p1"]


def test_an_answer_for_a_broken_post_never_shows_on_a_get_stream(session: SessionDriver) -> None:
    session.get()
    session.post(call(1))
    session.step(ev.PostBroken(session.last))
    assert not all_of(fx.Append, session.end(1))


# GET streams and the box


def test_what_belongs_to_no_request_goes_to_the_newest_get_stream_only(session: SessionDriver) -> None:
    session.get()
    session.get()
    newest = session.last
    session.post(call(1))
    session.step(ev.StreamTurnDue(session.last))
    assert [s for s, _ in said(session.tell(None, CHANGED))] == ["g2"]
    session.step(ev.Detached(newest, "g2"))
    assert [s for s, _ in said(session.tell(None, CHANGED))] == ["g1"]


def test_without_a_reader_it_waits_coalesced_and_goes_out_in_order(session: SessionDriver) -> None:
    for uri in ("x:1", "x:2", "x:1"):
        session.tell(None, UPDATED, uri=uri)
    log(session, text="a")
    session.tell(None, CHANGED)
    log(session, text="b")
    session.tell(None, CHANGED)
    effects = session.get()
    assert kinds(effects) == ["OpenStream", "Save", *["Append"] * 5]
    messages = [m for _, m in said(effects)]
    assert [m["params"].get("uri", m["params"].get("data")) for m in messages if "params" in m] == [
        "x:2",
        "x:1",
        "a",
        "b",
    ]
    assert messages[-1]["method"] == CHANGED
    assert [a.seq for a in all_of(fx.Append, effects)] == [2, 3, 4, 5, 6]
    assert not session.session.box


def test_what_says_that_something_changed_is_recorded_while_it_waits(session: SessionDriver) -> None:
    assert only(fx.Save, session.tell(None, CHANGED)).fields["box"]
    assert session.tell(None, CHANGED) == [], "the same again is no change"
    assert log(session) == [], "chatter is not kept"
    assert only(fx.Save, session.get()).fields == {"box": None}


def test_the_box_is_bounded_and_chatter_goes_first() -> None:
    driver = SessionDriver(rules=Rules(box=3)).initialize()
    for text in "ab":
        log(driver, text=text)
    driver.tell(None, CHANGED)
    assert kinds(log(driver, text="c")) == ["Count"]
    assert kinds(driver.tell(None, "notifications/prompts/list_changed")) == ["Save", "Count"]
    driver.tell(None, "notifications/resources/list_changed")
    assert all(b.key for b in driver.session.box)
    assert kinds(driver.tell(None, UPDATED, uri="x:1")) == ["Count"]


def test_the_box_is_bounded_in_bytes() -> None:
    driver = SessionDriver(rules=Rules(box_bytes=1000)).initialize()
    for _ in range(9):
        log(driver, text="x" * 300)
    assert sum(len(b.data) for b in driver.session.box) <= 1000
    assert kinds(log(driver, text="x" * 3000)) == ["Count"]
    assert driver.session.box


def test_nothing_is_said_unasked_before_the_client_is_initialized() -> None:
    driver = SessionDriver()
    driver.begin()
    driver.welcome()
    driver.get()
    assert driver.tell(None, CHANGED) == []
    assert kinds(driver.ask(None)) == ["StartServerRequestClock"]
    effects = driver.post(notification("notifications/initialized"))
    assert [m["method"] for _, m in said(effects)] == [CHANGED, "roots/list"]
    assert effects[0] == only(fx.Save, effects[:1]), "the handshake is recorded first"


def test_get_streams_are_capped_with_409() -> None:
    driver = SessionDriver(rules=Rules(get_streams=2)).initialize()
    driver.get()
    driver.get()
    before = driver.session
    assert only(fx.RefuseGet, driver.get()).error.status == 409
    assert driver.session is before


def test_a_new_get_stream_takes_the_place_of_one_that_nobody_came_back_for() -> None:
    driver = SessionDriver(rules=Rules(get_streams=2)).initialize()
    driver.get()
    driver.step(ev.Detached(driver.last, "g1"))
    driver.get()
    driver.step(ev.Detached(driver.last, "g2"))
    effects = driver.get()
    assert kinds(effects) == ["Append", "OpenStream"]
    gone = only(fx.Append, effects)
    assert (gone.stream, gone.data, gone.finish) == ("g1", None, True)
    assert list(driver.session.streams) == ["g2", "g3"]


# Resumption


def test_a_stream_is_resumed_by_a_get_and_gets_its_answer_there(session: SessionDriver) -> None:
    session.post(call(1))
    post = session.last
    log(session, 1)
    session.step(ev.Detached(post, "p1"))
    effects = session.get("p1", seq=1)
    assert only(fx.Follow, effects) == fx.Follow(session.last, "p1", 36, 1, 2, True)
    assert [s for s, _ in said(session.end(1))] == ["p1"]


def test_the_newest_connection_of_a_stream_wins(session: SessionDriver) -> None:
    session.post(call(1))
    post = session.last
    session.step(ev.StreamTurnDue(post))
    effects = session.get("p1", seq=1)
    assert kinds(effects) == ["CloseConnection", "Follow"]
    assert only(fx.CloseConnection, effects) == fx.CloseConnection(post, "superseded")
    before = session.session
    session.step(ev.Detached(post, "p1"))
    assert session.session is before, "the old connection has no say"


def test_a_resumed_get_stream_gets_what_waited(session: SessionDriver) -> None:
    session.get()
    session.step(ev.Detached(session.last, "g1"))
    session.tell(None, CHANGED)
    effects = session.get("g1", seq=1)
    assert kinds(effects) == ["Follow", "Save", "Append"]


def test_a_resumed_post_stream_gets_nothing_but_its_own(session: SessionDriver) -> None:
    session.post(call(1))
    session.step(ev.StreamTurnDue(session.last))
    session.tell(None, CHANGED)
    assert not said(session.get("p1", seq=1))
    assert session.session.box


@pytest.mark.parametrize(("epoch", "seq"), [(37, 1), (36, 2), (35, 2)])
def test_a_cursor_that_can_not_be_is_refused_and_harms_nobody(session: SessionDriver, epoch: int, seq: int) -> None:
    session.post(call(1))
    session.step(ev.StreamTurnDue(session.last))
    before = session.session
    refused = only(fx.RefuseGet, session.get("p1", epoch, seq))
    assert refused.error.status == 400
    assert session.session is before


@pytest.mark.parametrize(("epoch", "seq"), [(37, 1), (36, 2), (35, 2)])
def test_one_of_a_get_stream_is_left_to_the_log_and_harms_nobody(session: SessionDriver, epoch: int, seq: int) -> None:
    session.get()
    before = session.session
    follow = only(fx.Follow, session.get("g1", epoch, seq))
    assert follow == fx.Follow(session.last, "g1", epoch, seq, 0, False)
    assert session.session is before


def test_a_finished_or_unknown_stream_is_left_to_the_log(session: SessionDriver) -> None:
    assert only(fx.Follow, session.get("p9", seq=3)) == fx.Follow(session.last, "p9", 36, 3, 0, False)


# Loss


def test_a_lost_log_ends_the_stream_but_not_the_call(session: SessionDriver) -> None:
    session.post(call(1))
    post = session.last
    session.step(ev.StreamTurnDue(post))
    effects = session.step(ev.StreamFailed("p1", "away"))
    assert effects == [fx.CloseConnection(post, "away")]
    assert kinds(log(session, 1)) == ["Count"]
    assert kinds(session.end(1)) == ["StopDeadline", "StopTurnClock", "Count"]
    assert not session.session.posts


@pytest.mark.parametrize("reason", ["fenced", "gone", "ended"])
def test_a_session_that_is_anothers_or_gone_ends(session: SessionDriver, reason: str) -> None:
    session.get()
    session.post(call(1))
    effects = session.step(ev.StreamFailed("g1", reason))  # type: ignore[arg-type]
    assert effects[-1] == fx.End(reason)
    assert 1 in answers(effects)
    assert session.session.phase is SessionPhase.CLOSED


# Drain


def test_a_drain_lets_get_streams_go_and_keeps_calls(session: SessionDriver) -> None:
    session.get()
    reading = session.last
    session.post(call(1))
    session.step(ev.StreamTurnDue(session.last))
    effects = session.step(ev.DrainStarted())
    assert effects == [fx.CloseConnection(reading, "draining", 1000)]
    assert session.session.streams["g1"].connection is None
    assert [s for s, _ in said(session.end(1))] == ["p1"]


@older
def test_a_drain_never_closes_streams_of_older_clients(session: SessionDriver) -> None:
    session.get()
    assert session.step(ev.DrainStarted()) == []


def test_in_a_drain_calls_are_taken_as_long_as_the_session_is_here_but_no_new_get_streams(
    session: SessionDriver,
) -> None:
    session.post(call(1))
    session.ask(1)
    session.step(ev.DrainStarted())
    taken = only(fx.Dispatch, session.post(call(2)))
    session.step(ev.CallEnded(taken.call, True, Raw(b'{"content":[]}')))
    assert only(fx.RefuseGet, session.get()).error.status == 503
    assert answers(session.post(request("p", "ping")))
    assert kinds(session.answer("10.1", {"roots": []})) == ["StopServerRequestClock", "AnswerBackend", "Accept"]
    effects = session.post(notification("notifications/cancelled", requestId=1))
    assert answers(effects)[1]["error"]["code"] == -32800
    assert not session.session.requests


def test_a_stream_can_be_resumed_in_a_drain(session: SessionDriver) -> None:
    session.post(call(1))
    session.step(ev.StreamTurnDue(session.last))
    session.step(ev.DrainStarted())
    assert only(fx.Follow, session.get("p1", seq=1)).live


def test_a_drain_that_is_overdue_settles_what_is_in_flight(session: SessionDriver) -> None:
    session.post(call(1))
    session.step(ev.PostBroken(session.last))
    session.post(call(2))
    session.ask(None)
    session.step(ev.DrainStarted())
    effects = session.step(ev.DrainOverdue())
    assert [c.call for c in all_of(fx.CancelCall, effects)] == [session.calls[1], session.calls[2]]
    assert answers(effects)[2]["error"]["data"] == {"reason": "shutdown", "executed": "unknown"}
    assert not only(fx.AnswerBackend, effects).ok
    state = session.session
    assert (state.requests, state.posts, state.asks) == ({}, {}, {})


def test_a_drain_that_is_overdue_leaves_what_the_next_life_can_continue(session: SessionDriver) -> None:
    session.post(call(1), call(2))
    first, second = session.calls[1], session.calls[2]
    session.step(ev.StreamTurnDue(session.last))
    session.step(ev.CallPlaced("a", first, ev.Place("10.1", "c1")))
    session.step(ev.DrainStarted())
    effects = session.step(ev.DrainOverdue(frozenset({"a"})))
    assert [c.call for c in all_of(fx.CancelCall, effects)] == [second]
    assert set(answers(effects)) == {2}
    assert only(fx.CloseConnection, effects).retry is not None
    assert set(session.session.requests) == {1}
    assert not any(append.finish for append in all_of(fx.Append, effects))


def test_a_drain_leaves_nothing_with_a_backend_whose_session_does_not_last(session: SessionDriver) -> None:
    session.post(call(1))
    session.step(ev.StreamTurnDue(session.last))
    session.step(ev.CallPlaced("a", session.calls[1], ev.Place("10.1", "c1")))
    session.step(ev.DrainStarted())
    assert set(answers(session.step(ev.DrainOverdue(frozenset({"b"}))))) == {1}


def test_a_handshake_that_ends_in_a_drain_is_recorded() -> None:
    driver = SessionDriver()
    driver.begin()
    driver.welcome()
    driver.step(ev.DrainStarted())
    assert only(fx.Save, driver.post(notification("notifications/initialized"))).fields["version"] == NEWEST.encode()
    assert driver.session.phase is SessionPhase.DRAINING


def test_a_session_without_an_answer_to_initialize_does_not_survive_a_drain() -> None:
    driver = SessionDriver()
    driver.begin()
    driver.step(ev.DrainStarted())
    effects = driver.step(ev.DrainOverdue())
    assert "error" in answers(effects)["init"]
    assert effects[-1] == fx.End("shutdown")
