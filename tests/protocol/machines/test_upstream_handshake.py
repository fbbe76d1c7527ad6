"""The phases and handshakes of an upstream connection: the first, those after a loss, those that fail (2025-11-25)."""

from itertools import product
from typing import Any

import pytest

from actors.machines.session.events import Place
from actors.machines.upstream import events as ue
from actors.machines.upstream.legacy import TABLE
from actors.machines.upstream.legacy_state import LIVE, TRANSITIONS, Phase, Upstream
from actors.protocol.messages import EMPTY, Error, Notification, Request, Result
from actors.protocol.methods import LIST_CHANGED
from actors.protocol.transport import EventsMissed, FrameAccepted, Positioned, SessionLost
from tests.protocol.machines.driving import (
    CLIENT,
    FORMS,
    HELLO,
    INFO,
    NEWEST,
    OLD,
    PROFILE,
    LinkDriver,
    all_of,
    finishes,
    kinds,
    only,
    plain,
    raw,
    sent,
)

EVENTS: dict[type, Any] = {
    ue.Called: ue.Called("k", "tools/list"),
    ue.Wanted: ue.Wanted(),
    ue.Abandoned: ue.Abandoned("nobody", "bored"),
    ue.Hold: ue.Hold("nobody"),
    ue.Released: ue.Released("nobody"),
    ue.AnswerGiven: ue.AnswerGiven(99, True, raw({})),
    ue.Notified: ue.Notified("notifications/roots/list_changed"),
    ue.Started: ue.Started(False),
    ue.ConnectRefused: ue.ConnectRefused(raw({"code": -32603, "message": "down"})),
    ue.Continued: ue.Continued("k", "tools/call", False, Place("d.1", "c")),
    ue.Incoming: ue.Incoming(Result("nobody", raw({}))),
    Positioned: Positioned("nobody", "c"),
    EventsMissed: EventsMissed(),
    ue.Listening: ue.Listening(),
    FrameAccepted: FrameAccepted(99),
    ue.GraceOver: ue.GraceOver(),
    ue.SendFailed: ue.SendFailed("nobody", "x", "x", "unknown"),
    SessionLost: SessionLost("nobody"),
    ue.Closed: ue.Closed("gone", "gone"),
    ue.ConnectExpired: ue.ConnectExpired(),
    ue.RetryDue: ue.RetryDue(),
    ue.Shut: ue.Shut(),
    ue.LeftOff: ue.LeftOff(),
    ue.OtherEra: ue.OtherEra(),
}


def listening(**upstream: Any) -> LinkDriver:
    """The stream was asked for, and a call waits."""
    driver = LinkDriver(related=True, upstream=Upstream(PROFILE, **upstream))
    driver.step(ue.Called("k", "tools/list"))
    driver.step(ue.Started(True, listens=True))
    driver.step(ue.Incoming(Result("e.1", raw(HELLO))))
    effects = driver.step(FrameAccepted(1))
    assert kinds(effects) == ["StopClock", "Listen"]
    assert driver.upstream.phase is Phase.LISTENING
    return driver


def test_nothing_is_asked_before_the_stream_is_there_on_which_the_server_may_ask() -> None:
    driver = listening(level="debug", subscriptions=("x:1",))
    assert driver.step(ue.Called("l", "tools/list")) == []
    effects = driver.step(ue.Listening())
    assert driver.upstream.phase is Phase.READY
    assert kinds(effects) == ["Ready", "Send", "Send", "Send", "Send"]
    methods = [plain(send.frame)["method"] for send in all_of(ue.Send, effects)]
    assert methods == ["logging/setLevel", "resources/subscribe", "tools/list", "tools/list"]


def test_a_stream_that_comes_after_all_changes_nothing() -> None:
    driver = listening()
    driver.step(ue.Listening())
    before = driver.upstream
    assert driver.step(ue.Listening()) == []
    assert driver.upstream is before


def test_what_may_have_been_said_before_a_late_stream_is_announced_once() -> None:
    driver = listening(subscriptions=("x:1",))
    driver.step(ue.Listening(heard=False))
    told = all_of(ue.Notify, driver.step(ue.Listening()))
    assert [one.method for one in told] == [*LIST_CHANGED.values(), "notifications/resources/updated"]
    assert driver.step(ue.Listening()) == []


def test_a_server_that_has_no_such_stream_and_says_404_keeps_its_session() -> None:
    driver = listening()
    effects = driver.step(SessionLost(None))
    assert driver.upstream.phase is Phase.READY
    assert "Send" in kinds(effects)
    assert not driver.upstream.lost_once


def test_so_does_one_that_says_so_after_calls_have_gone() -> None:
    driver = listening()
    driver.step(ue.Listening(heard=False))
    assert driver.step(SessionLost(None)) == []
    assert driver.upstream.phase is Phase.READY
    driver.step(SessionLost(None))
    assert driver.upstream.phase is Phase.INITIALIZING


def test_a_404_after_the_stream_was_there_is_a_lost_session() -> None:
    driver = listening()
    driver.step(ue.Listening(heard=False))
    driver.step(ue.Listening())
    driver.step(SessionLost(None))
    assert driver.upstream.phase is Phase.INITIALIZING


def test_a_call_that_is_sent_again_after_a_lost_session_waits_for_the_new_stream() -> None:
    driver = listening()
    [send] = all_of(ue.Send, driver.step(ue.Listening()))
    driver.step(SessionLost(send.id))
    assert driver.upstream.phase is Phase.INITIALIZING
    driver.step(ue.Incoming(Result("e.3", raw(HELLO))))
    assert kinds(driver.step(FrameAccepted(2))) == ["StopClock", "Listen"]
    effects = driver.step(ue.Listening())
    assert [plain(again.frame)["method"] for again in all_of(ue.Send, effects)] == ["tools/list"]


def test_questions_that_come_with_the_stream_are_passed_on() -> None:
    driver = listening()
    effects = driver.step(ue.Incoming(Request(1, "roots/list")))
    assert [ask.method for ask in all_of(ue.ServerRequest, effects)] == ["roots/list"]
    answered = driver.step(ue.AnswerGiven(1, True, raw({"roots": []})))
    assert kinds(answered) == ["Send"]


def test_a_connection_that_is_lost_meanwhile_fails_what_waits_unexecuted() -> None:
    effects = listening().step(ue.Closed("gone", "gone"))
    ok, error = finishes(effects)["k"]
    assert (ok, error["data"]["executed"]) == (False, "no")


def test_a_process_that_refuses_this_era_may_serve_the_other() -> None:
    effects = in_phase(Phase.INITIALIZING).step(ue.OtherEra())
    assert any(isinstance(effect, ue.HandOver) for effect in effects)
    assert not any(isinstance(effect, ue.Hang) for effect in effects)


def test_one_that_has_served_keeps_to_its_era() -> None:
    driver = in_phase(Phase.READY)
    driver.step(SessionLost(None))
    effects = driver.step(ue.OtherEra())
    assert any(isinstance(effect, ue.Hang) for effect in effects)
    assert not any(isinstance(effect, ue.HandOver) for effect in effects)


def test_a_process_that_was_handed_over_and_ends_is_started_anew_once() -> None:
    driver = in_phase(Phase.CONNECTING)
    driver.step(ue.Called("k", "tools/list"))
    driver.step(ue.Started(False, warm=True))
    effects = driver.step(ue.Closed("exited", "it exits for what it does not know"))
    assert kinds(effects) == ["Connect"]
    assert driver.upstream.phase is Phase.CONNECTING
    assert "initialize" in str(driver.step(ue.Started(False)))
    effects = driver.step(ue.Closed("exited", "and again"))
    assert driver.upstream.phase is Phase.IDLE
    assert set(finishes(effects)) == {"k"}


def test_a_server_that_is_no_longer_configured_is_not_started_anew() -> None:
    driver = in_phase(Phase.CONNECTING)
    driver.step(ue.Started(False, warm=True))
    driver.step(ue.Closed("unconfigured", "gone", counts=False))
    assert driver.upstream.phase is Phase.IDLE


def test_a_server_of_the_other_era_gives_back_what_was_not_sent() -> None:
    driver = in_phase(Phase.INITIALIZING)
    driver.step(ue.Called("k", "tools/list"))
    effects = driver.step(ue.OtherEra())
    assert driver.upstream.phase is Phase.IDLE
    [wrong_era] = [effect for effect in effects if isinstance(effect, ue.WrongEra)]
    assert [called.call for called in wrong_era.calls] == ["k"]
    assert not any(isinstance(effect, ue.Finish | ue.Down) for effect in effects)


def in_phase(phase: Phase) -> LinkDriver:
    driver = LinkDriver(
        related=True, upstream=Upstream(PROFILE, subscriptions=("x:1",)) if phase is Phase.WAITING else None
    )
    steps: dict[Phase, list[Any]] = {
        Phase.IDLE: [],
        Phase.CONNECTING: [ue.Wanted()],
        Phase.INITIALIZING: [ue.Wanted(), ue.Started(True)],
        Phase.CONFIRMING: [ue.Wanted(), ue.Started(True), ue.Incoming(Result("e.1", raw(HELLO)))],
        Phase.LISTENING: [
            ue.Wanted(),
            ue.Started(True, listens=True),
            ue.Incoming(Result("e.1", raw(HELLO))),
            FrameAccepted(1),
        ],
        Phase.READY: [ue.Wanted(), ue.Started(True), ue.Incoming(Result("e.1", raw(HELLO))), FrameAccepted(1)],
        Phase.WAITING: [ue.Wanted(), EVENTS[ue.Closed]],
        Phase.CLOSED: [ue.Shut()],
    }
    for event in steps[phase]:
        driver.step(event)
    assert driver.upstream.phase is phase
    return driver


def test_every_event_has_an_example() -> None:
    assert set(EVENTS) == set(ue.UpstreamEvent.__args__)
    assert {event for _, event in TABLE} == set(EVENTS)


def test_an_event_is_served_or_dropped_without_touching_the_upstream(subtests: pytest.Subtests) -> None:
    for phase, event in product(Phase, EVENTS.values()):
        with subtests.test(phase=phase.value, event=type(event).__name__):
            driver = in_phase(phase)
            before = driver.upstream
            effects = driver.step(event)
            if (phase, type(event)) in TABLE:
                reached = {to for (origin, _), to in TRANSITIONS.items() if origin is phase}
                assert driver.upstream.phase in {phase, *reached}
            else:
                assert driver.upstream is before
                assert kinds(effects) == ["Count"]


def test_what_is_about_nothing_there_is_changes_nothing(subtests: pytest.Subtests) -> None:
    about = (ue.Abandoned, ue.AnswerGiven, ue.Incoming, ue.SendFailed, SessionLost)
    for phase, kind in product(Phase, about):
        with subtests.test(phase=phase.value, event=kind.__name__):
            driver = in_phase(phase)
            before = driver.upstream
            assert kinds(driver.step(EVENTS[kind])) in ([], ["Count"])
            assert driver.upstream is before


def test_every_phase_but_the_last_can_be_left_and_reached() -> None:
    assert {phase for phase, _ in TRANSITIONS} == set(Phase) - {Phase.CLOSED}
    assert set(TRANSITIONS.values()) == set(Phase)
    assert all((phase, "lost") in TRANSITIONS for phase in LIVE)


# The first handshake


def test_nothing_is_opened_before_it_is_needed() -> None:
    driver = LinkDriver()
    assert kinds(driver.call("a")) == ["StartClock", "Connect"]
    assert driver.call("b") == []
    assert kinds(driver.step(ue.Started(False))) == ["Send"]
    method, params = driver.wire["e.1"]
    assert method == "initialize"
    assert params == {"protocolVersion": NEWEST, "capabilities": CLIENT, "clientInfo": INFO}


def test_no_request_goes_out_before_initialized_is_accepted() -> None:
    driver = LinkDriver(related=True)
    driver.call("a")
    driver.step(ue.Started(True))
    effects = driver.result("e.1", {**HELLO, "protocolVersion": FORMS})
    assert kinds(effects) == ["UseVersion", "Send"]
    assert only(ue.UseVersion, effects).version == FORMS
    assert (sent(effects)[0]["method"], only(ue.Send, effects).tag) == ("notifications/initialized", 1)
    assert kinds(driver.step(FrameAccepted(0))) == ["Count"]
    effects = driver.step(FrameAccepted(1))
    assert kinds(effects) == ["StopClock", "Listen", "Ready", "Send"]
    assert not only(ue.Ready, effects).again
    assert sent(effects)[0]["method"] == "tools/call"


@pytest.mark.parametrize("version", [OLD, "2025-03-26", FORMS, NEWEST])
def test_any_revision_with_a_handshake_is_taken(version: str) -> None:
    driver = LinkDriver()
    ready = only(ue.Ready, driver.connect({**HELLO, "protocolVersion": version, "instructions": "do"}))
    assert (ready.server_info.version, ready.server_info.instructions) == (version, "do")
    assert plain(ready.server_info.result)["serverInfo"] == INFO


@pytest.mark.parametrize(
    "answer",
    [{**HELLO, "protocolVersion": "2026-07-28"}, {**HELLO, "protocolVersion": 5}, {}, {"protocolVersion": None}],
    ids=["modern", "number", "empty", "null"],
)
def test_a_backend_that_speaks_no_such_revision_is_given_up(answer: Any) -> None:
    driver = LinkDriver()
    driver.call("a")
    driver.step(ue.Started(False))
    effects = driver.result("e.1", answer)
    assert kinds(effects) == ["StopClock", "Hang", "Finish", "Down"]
    assert finishes(effects)["a"][1]["data"]["executed"] == "no"
    assert driver.upstream.phase is Phase.IDLE


@pytest.mark.parametrize(("id", "related"), [("e.1", None), (None, "e.1"), ("odd", "e.1"), (None, None)])
def test_an_error_to_initialize_is_told_at_once(id: Any, related: Any) -> None:
    driver = LinkDriver()
    driver.call("a")
    driver.step(ue.Started(False))
    effects = driver.error(id, related)
    assert not finishes(effects)["a"][0]
    assert only(ue.Down, effects).reason == "initialize_refused"


def test_before_the_handshake_a_backend_may_ping_and_log_and_no_more() -> None:
    driver = LinkDriver()
    driver.step(ue.Wanted())
    driver.step(ue.Started(False))
    assert sent(driver.receive(Request(5, "ping"))) == [{"jsonrpc": "2.0", "id": 5, "result": {}}]
    assert sent(driver.receive(Request(6, "roots/list")))[0]["error"]["code"] == -32600
    log = Notification("notifications/message", raw({"level": "info", "data": 1}))
    assert driver.receive(log) == [ue.Notify(None, log.method, log.params)]
    assert kinds(driver.receive(Notification("notifications/tools/list_changed"))) == ["Count"]
    assert kinds(driver.receive(Result("odd", raw({})))) == ["Count"]
    assert driver.upstream.phase is Phase.INITIALIZING


def test_a_backend_may_ask_while_initialized_is_on_its_way() -> None:
    driver = in_phase(Phase.CONFIRMING)
    assert driver.receive(Request("r", "roots/list")) == [ue.ServerRequest(None, "r", "roots/list", EMPTY)]
    assert sent(driver.step(ue.AnswerGiven("r", True, raw({"roots": []}))))[0]["result"] == {"roots": []}


def test_a_connection_that_takes_too_long_is_given_up() -> None:
    for phase in LIVE[:-1]:
        driver = in_phase(phase)
        driver.call("a")
        effects = driver.step(ue.ConnectExpired())
        assert kinds(effects) == ["StopClock", "Hang", "Finish", "Down"]
        assert finishes(effects)["a"][1]["data"] == {"reason": "connect_timeout", "executed": "no"}


def test_a_connection_that_is_refused_fails_those_who_wait_and_says_nothing_of_health() -> None:
    driver = LinkDriver()
    driver.call("a")
    driver.call("b")
    payload = raw({"code": -32603, "message": "down", "data": {"reason": "backend_down"}})
    effects = driver.step(ue.ConnectRefused(payload))
    assert kinds(effects) == ["StopClock", "Finish", "Finish", "Down"]
    assert finishes(effects) == {"a": (False, plain(payload)), "b": (False, plain(payload))}
    assert not only(ue.Down, effects).counts


def test_a_transport_that_comes_too_late_is_closed() -> None:
    for phase in (Phase.IDLE, Phase.WAITING, Phase.CLOSED):
        driver = in_phase(phase)
        before = driver.upstream
        assert driver.step(ue.Started(True)) == [ue.Hang()]
        assert driver.upstream is before


def test_a_wish_for_a_connection_is_never_left_without_an_answer() -> None:
    for phase in Phase:
        effects = in_phase(phase).step(ue.Wanted())
        expected = {
            Phase.IDLE: ["StartClock", "Connect"],
            Phase.WAITING: ["StartClock", "Connect"],
            Phase.CLOSED: ["Down"],
        }
        assert kinds(effects) == expected.get(phase, [])


@pytest.mark.parametrize("phase", [Phase.INITIALIZING, Phase.CONFIRMING])
def test_a_404_in_the_handshake_is_a_wrong_endpoint(phase: Phase) -> None:
    driver = in_phase(phase)
    id = "e.1" if phase is Phase.INITIALIZING else None
    assert only(ue.Down, driver.step(SessionLost(id))).reason == "not_found"


# Handshakes after a loss


def subscribed() -> LinkDriver:
    driver = LinkDriver(related=True)
    driver.connect()
    driver.call("s", "resources/subscribe", uri="x:1")
    driver.result(driver.latest("resources/subscribe"))
    driver.call("l", "logging/setLevel", level="error")
    driver.result(driver.latest("logging/setLevel"))
    return driver


def test_level_and_subscriptions_are_said_again_then_what_may_have_been_missed() -> None:
    driver = subscribed()
    assert kinds(driver.step(ue.Closed("gone", "gone"))) == ["StopClock", "Hang", "Down", "BackOff"]
    driver.step(ue.RetryDue())
    driver.call("a")
    driver.step(ue.Started(True))
    effects = driver.shake()
    assert kinds(effects) == ["StopClock", "Listen", "Ready", "Send", "Send", "Notify", "Notify", "Notify", "Send"]
    assert only(ue.Ready, effects).again
    assert [m["method"] for m in sent(effects)] == ["logging/setLevel", "resources/subscribe", "tools/call"]
    assert {t.method for t in all_of(ue.Notify, effects)} == {
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
        "notifications/resources/list_changed",
    }
    told = only(ue.Notify, driver.result(driver.latest("resources/subscribe")))
    assert (told.method, plain(told.params)) == ("notifications/resources/updated", {"uri": "x:1"})
    assert driver.result(driver.latest("logging/setLevel")) == []


def test_only_what_the_backend_declared_is_said_again_or_announced() -> None:
    driver = subscribed()
    driver.step(ue.Closed("gone", "gone"))
    driver.step(ue.RetryDue())
    driver.step(ue.Started(True))
    effects = driver.shake({**HELLO, "capabilities": {"resources": {"subscribe": True}}})
    assert [m["method"] for m in sent(effects)] == ["resources/subscribe"]
    assert [t.method for t in all_of(ue.Notify, effects)] == ["notifications/resources/list_changed"]


def test_a_level_or_subscription_that_was_refused_is_not_said_again() -> None:
    driver = LinkDriver(related=True)
    driver.connect()
    driver.call("s", "resources/subscribe", uri="x:1")
    driver.error(driver.latest("resources/subscribe"))
    driver.call("l", "logging/setLevel", level="error")
    driver.error(driver.latest("logging/setLevel"))
    assert kinds(driver.step(ue.Closed("gone", "gone"))) == ["StopClock", "Hang", "Down"]


def test_an_unsubscription_ends_the_coming_back_by_itself() -> None:
    driver = subscribed()
    driver.call("u", "resources/unsubscribe", uri="x:1")
    driver.result(driver.latest("resources/unsubscribe"))
    driver.step(ue.Closed("gone", "gone"))
    assert driver.upstream.phase is Phase.IDLE


def test_a_subscription_that_a_waiting_call_is_about_to_change_is_not_said_again() -> None:
    driver = subscribed()
    driver.step(ue.Closed("gone", "gone"))
    driver.call("u", "resources/unsubscribe", uri="x:1")
    driver.step(ue.Started(True))
    assert [m["method"] for m in sent(driver.shake())] == ["logging/setLevel", "resources/unsubscribe"]


def test_the_level_of_before_is_said_first_for_the_one_that_waits_may_be_refused() -> None:
    driver = subscribed()
    driver.step(ue.Closed("gone", "gone"))
    driver.call("m", "logging/setLevel", level="debug")
    driver.step(ue.Started(True))
    levels = [m["params"]["level"] for m in sent(driver.shake()) if m["method"] == "logging/setLevel"]
    assert levels == ["error", "debug"]


def test_the_first_connection_of_a_later_link_sets_the_level_and_announces_nothing() -> None:
    driver = LinkDriver(upstream=Upstream(PROFILE, level="error"))
    effects = driver.connect()
    assert [m["method"] for m in sent(effects)] == ["logging/setLevel"]
    assert not all_of(ue.Notify, effects)


def test_a_call_does_not_wait_for_the_back_off() -> None:
    driver = subscribed()
    driver.step(ue.Closed("gone", "gone"))
    assert kinds(driver.call("a")) == ["StartClock", "Connect"]
    assert kinds(driver.step(ue.RetryDue())) == ["Count"]


def test_back_offs_grow_until_the_connection_is_ready() -> None:
    driver = subscribed()
    attempts = [only(ue.BackOff, driver.step(ue.Closed("gone", "gone"))).attempt]
    for _ in range(3):
        driver.step(ue.RetryDue())
        attempts.append(only(ue.BackOff, driver.step(EVENTS[ue.ConnectRefused])).attempt)
    driver.step(ue.RetryDue())
    driver.step(ue.Started(True))
    driver.shake()
    attempts.append(only(ue.BackOff, driver.step(ue.Closed("gone", "gone"))).attempt)
    assert attempts == [1, 2, 3, 4, 1]


def test_an_error_without_an_id_after_the_handshake_is_nobodys() -> None:
    driver = LinkDriver()
    driver.connect()
    driver.call("a")
    assert kinds(driver.receive(Error(None, raw({"code": -32700, "message": "?"})))) == ["Count"]
