"""Every phase of a session × every event, and the lifecycle (2025-11-25 lifecycle)."""

from itertools import product
from typing import Any

import pytest

from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.machines.session.machine import CLIENT_BYTES, TABLE
from actors.machines.session.state import TRANSITIONS, SessionPhase
from actors.protocol import errors
from actors.protocol.messages import EMPTY
from tests.protocol.machines.driving import (
    BATCHES,
    FORMS,
    INFO,
    NEWEST,
    OLD,
    SessionDriver,
    all_of,
    answers,
    call,
    kinds,
    notification,
    only,
    plain,
    raw,
    request,
)
from tests.protocol.machines.witness import REQUEST_TRANSITIONS, STREAM_TRANSITIONS, RequestPhase, StreamPhase

EVENTS: dict[type, Any] = {
    ev.Posted: ev.Posted(99, (request(1, "tools/list"),), False, 0.0),
    ev.PostBroken: ev.PostBroken(99),
    ev.Attached: ev.Attached(99),
    ev.Detached: ev.Detached(99, "g9"),
    ev.StreamTurnDue: ev.StreamTurnDue(99),
    ev.CallExpired: ev.CallExpired(99),
    ev.ServerRequestExpired: ev.ServerRequestExpired("10.99"),
    ev.CallProgressed: ev.CallProgressed("b", None, "notifications/tools/list_changed", EMPTY, 0.0),
    ev.CallPlaced: ev.CallPlaced("b", 99, ev.Place("u", "1")),
    ev.CallAwaited: ev.CallAwaited(99),
    ev.CallHeld: ev.CallHeld(99),
    ev.CallDue: ev.CallDue(99),
    ev.CallCleared: ev.CallCleared(99),
    ev.CallEnded: ev.CallEnded(99, True, raw({})),
    ev.ServerRequested: ev.ServerRequested("b", None, 1, "roots/list", EMPTY),
    ev.ServerRequestWithdrawn: ev.ServerRequestWithdrawn("b", 99),
    ev.BackendLost: ev.BackendLost("b"),
    ev.StreamFailed: ev.StreamFailed("g9", "seq"),
    ev.DrainStarted: ev.DrainStarted(),
    ev.DrainOverdue: ev.DrainOverdue(),
    ev.MoveAsked: ev.MoveAsked(),
    ev.Ended: ev.Ended("idle"),
}
"""One of each, which refers to nothing there is."""

REFUSALS = {ev.Posted: fx.RefusePost, ev.Attached: fx.RefuseGet, ev.ServerRequested: fx.AnswerBackend}
"""Who waits is told; anything else is counted."""


def in_phase(phase: SessionPhase) -> SessionDriver:
    driver = SessionDriver()
    if phase is SessionPhase.CLOSED:
        driver.step(ev.Ended("idle"))
    elif phase is not SessionPhase.NEW:
        driver.begin()
        if phase not in (SessionPhase.INITIALIZING, SessionPhase.DRAINING_INITIALIZING):
            driver.welcome()
        if phase in (SessionPhase.OPERATION, SessionPhase.DRAINING):
            driver.post(notification("notifications/initialized"))
        if phase in (SessionPhase.DRAINING_INITIALIZING, SessionPhase.DRAINING):
            driver.step(ev.DrainStarted())
    assert driver.session.phase is phase
    return driver


def test_every_event_has_a_handler_and_an_example() -> None:
    assert {event for _, event in TABLE} == set(EVENTS) == set(ev.SessionEvent.__args__)
    assert {phase for phase, _ in TABLE} == set(SessionPhase) - {SessionPhase.CLOSED}


def test_an_event_is_served_or_refused_without_touching_the_session(subtests: pytest.Subtests) -> None:
    for phase, event in product(SessionPhase, EVENTS.values()):
        with subtests.test(phase=phase.value, event=type(event).__name__):
            driver = in_phase(phase)
            before = driver.session
            effects = driver.step(event)
            if (phase, type(event)) in TABLE:
                assert driver.session.phase in {phase, *(TRANSITIONS[p, c] for p, c in TRANSITIONS if p is phase)}
            else:
                assert driver.session is before
                assert [type(e) for e in effects] == [REFUSALS.get(type(event), fx.Count)]


def test_what_refers_to_nothing_changes_nothing(subtests: pytest.Subtests) -> None:
    fresh = {ev.Posted, ev.Attached, ev.ServerRequested, ev.CallProgressed, ev.DrainStarted, ev.DrainOverdue, ev.Ended}
    for kind in EVENTS.keys() - fresh:
        with subtests.test(event=kind.__name__):
            driver = in_phase(SessionPhase.OPERATION)
            before = driver.session
            assert kinds(driver.step(EVENTS[kind])) in ([], ["Count"])
            assert driver.session is before


def test_phases_never_go_backwards() -> None:
    order = list(SessionPhase)
    assert all(order.index(to) > order.index(phase) for (phase, _), to in TRANSITIONS.items())
    assert all(phase is not SessionPhase.CLOSED for phase, _ in TRANSITIONS)


def test_lives_of_streams_and_requests_end() -> None:
    assert {to for (_, _), to in REQUEST_TRANSITIONS.items()} == set(RequestPhase) - {RequestPhase.PENDING}
    assert {phase for phase, _ in REQUEST_TRANSITIONS} == {RequestPhase.PENDING}
    over = {StreamPhase.FINISHED, StreamPhase.LOST}
    assert not over & {phase for phase, _ in STREAM_TRANSITIONS}
    assert over < set(STREAM_TRANSITIONS.values())


# The handshake


@pytest.mark.parametrize("version", [OLD, BATCHES, FORMS, NEWEST])
def test_a_supported_revision_is_echoed(version: str) -> None:
    driver = SessionDriver(version)
    effects = driver.begin()
    assert kinds(effects) == ["StartTurnClock", "Dispatch"]
    assert driver.session.version == version
    assert driver.session.phase is SessionPhase.INITIALIZING
    only(fx.AnswerPost, driver.welcome())
    driver.post(notification("notifications/initialized"))
    assert driver.session.phase is SessionPhase.OPERATION


@pytest.mark.parametrize("asked", ["2026-07-28", "2020-01-01", "garbage", ""])
def test_any_other_revision_is_answered_with_the_newest_that_has_a_handshake(asked: str) -> None:
    driver = SessionDriver(NEWEST)
    driver.begin(version=asked)
    assert driver.session.version == NEWEST
    driver.welcome()
    driver.post(notification("notifications/initialized"))
    assert only(fx.AnswerPost, [*driver.post(request(1, "tools/list")), *driver.end(1)])


WHOLE = {"protocolVersion": NEWEST, "capabilities": {}, "clientInfo": {"name": "someone", "version": "1"}}
ODD = [None, [], 5, "x", True]


def test_an_initialize_of_what_is_required_is_taken() -> None:
    driver = SessionDriver()
    driver.post(request(1, "initialize", **WHOLE))
    assert driver.session.phase is SessionPhase.INITIALIZING


@pytest.mark.parametrize(
    "params",
    [
        {},
        *({name: value for name, value in WHOLE.items() if name != left_out} for left_out in WHOLE),
        *({**WHOLE, "capabilities": odd} for odd in ODD),
        *({**WHOLE, "clientInfo": odd} for odd in [*ODD, {}, {"name": "x"}, {"name": 1, "version": "1"}]),
        *({**WHOLE, "protocolVersion": odd} for odd in [None, [], 5, {}]),
    ],
    ids=str,
)
def test_a_malformed_initialize_is_refused_and_the_session_ends(params: Any) -> None:
    driver = SessionDriver()
    effects = driver.post(request(1, "initialize", **params))
    assert answers(effects)[1]["error"]["code"] == -32602
    assert only(fx.End, effects).reason == "initialize_malformed"
    assert driver.session.phase is SessionPhase.CLOSED


def test_a_client_that_says_too_much_of_itself_is_refused() -> None:
    driver = SessionDriver()
    effects = driver.begin({"experimental": {"x": "y" * CLIENT_BYTES}})
    assert answers(effects)["init"]["error"]["code"] == -32602
    assert only(fx.End, effects)


def test_odd_capabilities_are_read_leniently() -> None:
    driver = SessionDriver()
    driver.begin({"roots": 3, "sampling": [], "odd": {"x": 1}})
    assert driver.session.phase is SessionPhase.INITIALIZING


def test_what_comes_before_initialize_is_refused_but_a_ping() -> None:
    driver = SessionDriver()
    refused = only(fx.RefusePost, driver.post(request(1, "tools/list")))
    assert (refused.id, refused.error.status) == (1, 400)
    assert driver.session == SessionDriver().session
    assert answers(driver.post(request(2, "ping")))[2]["result"] == {}
    assert driver.session.phase is SessionPhase.NEW


def test_until_initialize_is_answered_only_pings_are() -> None:
    driver = SessionDriver()
    driver.begin()
    before = driver.session
    assert only(fx.RefusePost, driver.post(request(1, "tools/list"))).error.status == 400
    assert driver.session is before
    assert answers(driver.post(request(2, "ping")))[2]["result"] == {}
    assert kinds(driver.post(notification("notifications/initialized"))) == ["Count", "Accept"]
    assert driver.session.phase is SessionPhase.INITIALIZING


def test_requests_between_the_answer_and_initialized_are_served() -> None:
    driver = SessionDriver()
    driver.begin()
    driver.welcome()
    assert only(fx.Dispatch, driver.post(request(1, "tools/list"))).method == "tools/list"
    assert answers(driver.end(1))[1]["result"] == {"tools": []}


def test_a_second_initialize_is_refused(session: SessionDriver) -> None:
    before = session.session
    effects = session.post(request(9, "initialize", protocolVersion=NEWEST, capabilities={}, clientInfo=INFO))
    refused = only(fx.RefusePost, effects)
    assert (refused.error.code, refused.error.status, refused.id) == (-32600, 400, 9)
    assert session.session is before


def test_initialized_said_twice_changes_nothing(session: SessionDriver) -> None:
    before = session.session
    assert kinds(session.post(notification("notifications/initialized"))) == ["Accept"]
    assert session.session is before


def test_the_handshake_is_recorded_when_it_is_over() -> None:
    driver = SessionDriver()
    assert not all_of(fx.Save, driver.begin() + driver.welcome() + driver.post(request(1, "ping")))
    fields = only(fx.Save, driver.post(notification("notifications/initialized"))).fields
    assert fields["version"] == NEWEST.encode()
    assert plain(fields["client"] or b"")["info"] == {"name": "someone", "version": "1"}


def test_a_request_ends_the_handshake_as_well() -> None:
    """`notifications/initialized` may be lost with its connection, and clients have no answer to it that they miss."""
    driver = SessionDriver()
    driver.begin()
    driver.welcome()
    effects = driver.post(request(1, "logging/setLevel", level="error"))
    assert only(fx.Save, effects).fields["version"] == NEWEST.encode()
    assert kinds(effects).index("Save") < kinds(effects).index("Dispatch"), "recorded before anything is done"
    assert driver.session.phase is SessionPhase.OPERATION
    driver.end(1)
    assert kinds(driver.post(notification("notifications/initialized"))) == ["Accept"]


def test_a_failed_initialize_ends_the_session_after_its_answer() -> None:
    driver = SessionDriver()
    driver.begin()
    effects = driver.fail("init", errors.internal("the backend is down"))
    assert kinds(effects) == ["StopTurnClock", "AnswerPost", "End"]
    assert driver.session.phase is SessionPhase.CLOSED


def test_an_initialize_that_takes_too_long_ends_the_session() -> None:
    driver = SessionDriver()
    driver.begin()
    driver.step(ev.StreamTurnDue(driver.last))
    effects = driver.step(ev.CallExpired(driver.calls["init"]))
    assert "error" in answers(effects)["init"]
    assert only(fx.End, effects).reason == "initialize_failed"


def test_a_drain_waits_for_the_answer_to_initialize() -> None:
    driver = SessionDriver()
    driver.begin()
    driver.step(ev.DrainStarted())
    assert only(fx.RefusePost, driver.post(request(1, "tools/list"))).error.status == 503
    assert only(fx.RefuseGet, driver.get()).error.status == 503
    assert only(fx.AnswerPost, driver.welcome())
    assert driver.session.phase is SessionPhase.DRAINING
    assert only(fx.Save, driver.post(notification("notifications/initialized"))).fields["version"] == NEWEST.encode()


def test_a_drain_that_is_overdue_before_initialize_is_answered_ends_the_session() -> None:
    driver = SessionDriver()
    driver.begin()
    driver.step(ev.DrainStarted())
    effects = driver.step(ev.DrainOverdue())
    assert "error" in answers(effects)["init"]
    assert only(fx.End, effects).reason == "shutdown"


def test_initialize_can_not_be_cancelled() -> None:
    driver = SessionDriver()
    driver.begin()
    effects = driver.post(notification("notifications/cancelled", requestId="init"))
    assert kinds(effects) == ["Count", "Accept"]
    assert driver.welcome()


# The end


def test_the_end_answers_everything_and_closes_everything(session: SessionDriver) -> None:
    session.get()
    reading = session.last
    session.post(call(1))
    session.post(call(2))
    session.step(ev.StreamTurnDue(session.last))
    session.ask(2)
    session.ask(None, own=2)
    effects = session.step(ev.Ended("delete"))
    assert {id: a["error"]["data"]["executed"] for id, a in answers(effects).items()} == {1: "unknown", 2: "unknown"}
    assert [c.call for c in all_of(fx.CancelCall, effects)] == [session.calls[1], session.calls[2]]
    assert [c.connection for c in all_of(fx.CloseConnection, effects)] == [reading]
    assert only(fx.AnswerBackend, effects).id == 2
    assert effects[-1] == fx.End("delete")
    state = session.session
    assert not any((state.requests, state.calls, state.posts, state.streams, state.asks, state.box))


def test_after_the_end_everything_is_refused_as_unknown(session: SessionDriver) -> None:
    session.step(ev.Ended("delete"))
    closed = session.session
    refused = only(fx.RefusePost, session.post(request(1, "ping")))
    assert (refused.error.status, refused.id) == (404, 1)
    assert only(fx.RefuseGet, session.get()).error.status == 404
    assert not only(fx.AnswerBackend, session.step(ev.ServerRequested("b", None, 1, "roots/list", EMPTY))).ok
    assert session.session is closed
