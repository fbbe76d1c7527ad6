"""An upstream connection that goes on with the session of an earlier one, and what it keeps for a later one."""

from typing import Any

from actors.machines.session.events import Place
from actors.machines.upstream import events as ue
from actors.machines.upstream.legacy_state import Phase, Upstream
from actors.protocol.messages import Error, Notification, Request, Result
from actors.protocol.transport import EventsMissed, FrameAccepted, Positioned, SessionLost
from tests.protocol.machines.driving import (
    NEWEST,
    PROFILE,
    SERVER,
    LinkDriver,
    all_of,
    finishes,
    kinds,
    only,
    raw,
    sent,
)

HELLO = ue.ServerInfo(NEWEST, raw(SERVER), raw({}), None, raw({}))
REFUSED = ue.ConnectRefused(raw({"code": -32603, "message": "down"}))


def kept(**more: Any) -> LinkDriver:
    """Nothing was said over it yet."""
    upstream = Upstream(PROFILE, server_info=HELLO, kept=True, connected_before=True, **more)
    return LinkDriver(related=True, upstream=upstream)


def going_on(**more: Any) -> LinkDriver:
    driver = kept(**more)
    driver.step(ue.Wanted())
    driver.step(ue.Started(True))
    assert driver.upstream.phase is Phase.READY
    return driver


CONTINUED = ue.Continued("k", "tools/call", True, Place("d.1", "c4"), (7,))


def test_no_handshake_is_made_and_nothing_is_announced_where_nothing_was_missed() -> None:
    driver = kept(subscriptions=("x:1",))
    driver.call("a")
    effects = driver.step(ue.Started(True))
    assert kinds(effects) == ["StopClock", "Listen", "Ready", "Send"]
    assert sent(effects)[0]["method"] == "tools/call"


def test_what_was_missed_is_said_once_when_it_is_back() -> None:
    driver = kept(subscriptions=("x:1",), missed=True)
    driver.step(ue.Wanted())
    told = all_of(ue.Notify, driver.step(ue.Started(True)))
    assert [t.method.split("/")[-2:] for t in told] == [
        ["tools", "list_changed"],
        ["prompts", "list_changed"],
        ["resources", "list_changed"],
        ["resources", "updated"],
    ]
    assert not driver.upstream.missed


def test_calls_wait_for_the_stream_here_too_and_the_rest_of_answers_does_not() -> None:
    driver = kept(missed=True)
    driver.step(CONTINUED)
    driver.call("a")
    assert kinds(driver.step(ue.Started(True, listens=True))) == ["StopClock", "Listen", "PickUp"]
    assert kinds(driver.step(EventsMissed())) == ["Placed"]
    effects = driver.step(ue.Listening())
    assert kinds(effects) == ["Ready", "Notify", "Notify", "Notify", "Send"]
    assert not driver.upstream.missed


def test_a_404_to_its_stream_means_that_the_session_is_gone() -> None:
    driver = kept()
    driver.call("a")
    driver.step(ue.Started(True, listens=True))
    assert kinds(driver.step(SessionLost(None))) == ["StartClock", "Reset", "Send"]
    assert driver.upstream.phase is Phase.INITIALIZING
    assert [pending.call for pending in driver.upstream.waiting] == ["a"]


def test_a_hole_in_the_stream_is_said_too_and_it_has_no_place_any_more() -> None:
    effects = going_on(subscriptions=("x:1",)).step(EventsMissed())
    assert effects[0] == ue.Placed(None, Place("", None))
    assert len(all_of(ue.Notify, effects)) == 4


def test_a_session_that_the_backend_has_forgotten_begins_anew() -> None:
    driver = going_on(subscriptions=("x:1",), level="error")
    driver.call("a")
    effects = driver.step(SessionLost(driver.latest("tools/call")))
    assert kinds(effects) == ["StartClock", "Reset", "Send"]
    methods = [m["method"] for m in sent(driver.shake())]
    assert methods == ["logging/setLevel", "resources/subscribe", "tools/call"]
    assert not driver.upstream.kept


def test_a_transport_that_can_not_be_had_costs_the_calls_and_not_the_session() -> None:
    driver = kept()
    driver.call("a")
    assert finishes(driver.step(REFUSED))["a"][1]["message"] == "down"
    driver.step(ue.Wanted())
    assert only(ue.Ready, driver.step(ue.Started(True))).server_info is HELLO


def test_a_connection_that_was_up_and_is_lost_begins_with_a_handshake() -> None:
    driver = going_on()
    driver.step(ue.Closed("gone", "gone"))
    driver.step(ue.Wanted())
    assert sent(driver.step(ue.Started(True)))[0]["method"] == "initialize"


def test_the_rest_of_an_answer_is_fetched_and_is_the_outcome_of_the_call() -> None:
    driver = kept()
    assert kinds(driver.step(CONTINUED)) == ["StartClock", "Connect"]
    effects = driver.step(ue.Started(True))
    assert only(ue.PickUp, effects).place == CONTINUED.place
    assert not sent(effects)
    progress = Notification("notifications/progress", raw({"progressToken": "d.1", "progress": 2}))
    [tell] = driver.step(ue.Incoming(progress, "d.1", "c5"))
    assert (tell.call, tell.place) == ("k", Place("d.1", "c5"))
    effects = driver.step(ue.Incoming(Result("d.1", raw({"content": []})), "d.1", "c6"))
    assert finishes(effects) == {"k": (True, {"content": []})}


def test_on_a_link_that_is_up_it_is_fetched_at_once() -> None:
    driver = going_on()
    assert kinds(driver.step(CONTINUED)) == ["PickUp"]


def test_its_questions_are_open_again_and_end_with_it() -> None:
    driver = going_on()
    driver.step(CONTINUED)
    [answer] = sent(driver.step(ue.AnswerGiven(7, True, raw({"roots": []}))))
    assert answer["result"] == {"roots": []}
    driver = going_on()
    driver.step(CONTINUED)
    effects = driver.step(ue.Abandoned("k", "bored"))
    assert [m.get("method", m.get("id")) for m in sent(effects)] == ["notifications/cancelled", 7]


def test_in_another_session_it_may_have_been_executed() -> None:
    for driver in (LinkDriver(related=True), LinkDriver(related=True, upstream=Upstream(PROFILE, phase=Phase.CLOSED))):
        assert finishes(driver.step(CONTINUED))["k"][1]["data"]["executed"] == "unknown"


def test_if_the_transport_is_refused_it_may_have_been_executed() -> None:
    driver = kept()
    driver.step(CONTINUED)
    assert finishes(driver.step(REFUSED))["k"][1]["data"]["executed"] == "unknown"
    assert not driver.upstream.picking


def test_a_link_that_is_left_off_ends_without_ending_the_session() -> None:
    driver = going_on()
    driver.call("a")
    effects = driver.step(ue.LeftOff())
    assert kinds(effects) == ["StopClock", "LetGo", "Finish"]
    assert driver.upstream.phase is Phase.CLOSED


def test_a_session_that_its_owner_has_not_heard_of_ends_with_the_connection() -> None:
    driver = LinkDriver(related=True)
    welcome = {"protocolVersion": NEWEST, "capabilities": SERVER, "serverInfo": {}}
    for event in (
        ue.Wanted(),
        ue.Started(True, listens=True),
        ue.Incoming(Result("e.1", raw(welcome))),
        FrameAccepted(1),
    ):
        driver.step(event)
    assert driver.upstream.phase is Phase.LISTENING
    assert kinds(driver.step(ue.LeftOff())) == ["StopClock", "Hang"]


# Where the streams stand


def test_a_place_goes_with_what_was_said() -> None:
    driver = going_on()
    driver.call("a")
    id = driver.latest("tools/call")
    log = Notification("notifications/message", raw({"level": "info", "data": 1}))
    assert driver.step(ue.Incoming(log, id, "1"))[0].place == Place(id, "1")
    assert driver.step(ue.Incoming(Request(1, "roots/list"), id, "2"))[0].place == Place(id, "2")
    assert driver.step(Positioned(id, "3")) == [ue.Placed("a", Place(id, "3"))]
    assert driver.step(ue.Incoming(log, None, "g1"))[0].place == Place("", "g1")


def test_a_place_of_another_call_goes_after_what_was_said() -> None:
    driver = going_on()
    driver.call("a", progress=True)
    first = driver.latest("tools/call")
    driver.call("b")
    second = driver.latest("tools/call")
    progress = Notification("notifications/progress", raw({"progressToken": first, "progress": 2}))
    effects = driver.step(ue.Incoming(progress, second, "1"))
    assert [e.call for e in effects] == ["a", "b"]
    assert effects[1] == ue.Placed("b", Place(second, "1"))


def test_after_the_outcome_there_is_no_place() -> None:
    driver = going_on()
    driver.call("a")
    id = driver.latest("tools/call")
    assert kinds(driver.step(ue.Incoming(Error(id, raw({"code": 1, "message": ""})), id, "9"))) == ["Finish"]
    assert driver.step(Positioned(id, "10")) == []


# What is said before there is a transport


def test_what_the_client_says_before_there_is_a_transport_is_said_then() -> None:
    driver = kept()
    driver.step(CONTINUED)
    assert driver.step(ue.AnswerGiven(7, True, raw({"roots": []}))) == []
    assert driver.step(ue.Notified("notifications/roots/list_changed", raw({}))) == []
    effects = driver.step(ue.Started(True))
    assert [m.get("method", m.get("id")) for m in sent(effects)] == [7, "notifications/roots/list_changed"]
    assert not driver.upstream.unsent


def test_a_call_that_nobody_waits_for_any_more_is_not_picked_up_but_cancelled() -> None:
    driver = kept()
    driver.step(CONTINUED)
    assert sent(driver.step(ue.Abandoned("k", "bored"))) == []
    effects = driver.step(ue.Started(True))
    assert [m.get("method", m.get("id")) for m in sent(effects)] == ["notifications/cancelled", 7]
    assert not all_of(ue.PickUp, effects)


def test_what_waits_for_a_transport_is_not_sent_without_one() -> None:
    driver = kept()
    driver.step(CONTINUED)
    driver.call("b")
    assert sent(driver.step(ue.Abandoned("k", "bored"))) == []
    assert [p.call for p in driver.upstream.waiting] == ["b"]
    methods = [m["method"] for m in sent(driver.step(ue.Started(True))) if "method" in m]
    assert methods == ["notifications/cancelled", "tools/call"]


def test_what_was_not_said_is_not_said_in_another_session() -> None:
    driver = kept()
    driver.step(CONTINUED)
    driver.step(ue.AnswerGiven(7, True, raw({"roots": []})))
    assert [m["method"] for m in sent(driver.step(ue.Started(True, fresh=True)))] == ["initialize"]
    driver = kept()
    driver.step(CONTINUED)
    driver.step(ue.AnswerGiven(7, True, raw({"roots": []})))
    driver.step(REFUSED)
    driver.step(ue.Wanted())
    assert sent(driver.step(ue.Started(True))) == []


def test_what_waits_for_a_transport_is_bounded() -> None:
    driver = kept()
    driver.step(ue.Wanted())
    for _ in range(1000):
        driver.step(ue.Notified("notifications/roots/list_changed", raw({})))
    assert len(sent(driver.step(ue.Started(True)))) < 300
