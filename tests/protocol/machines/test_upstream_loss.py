"""What is left when a connection or a session with a backend is gone: each call has its one outcome, which says whether
it may have been executed (2025-11-25 transports, "Session Management")."""

from typing import Any

import pytest

from actors.machines.upstream import events as ue
from actors.machines.upstream.legacy_state import Phase
from actors.protocol.messages import Request
from actors.protocol.transport import SessionLost
from tests.protocol.machines.driving import (
    LinkDriver,
    all_of,
    finishes,
    kinds,
    only,
    sent,
)

LOST = ue.Closed("gone", "it has ended")


def executed(effects: list[Any]) -> dict[Any, str]:
    return {call: payload["data"]["executed"] for call, (ok, payload) in finishes(effects).items() if not ok}


def test_a_lost_connection_ends_every_call_and_voids_every_question(pipe: LinkDriver) -> None:
    pipe.call("sent")
    pipe.call("waiting")
    pipe.receive(Request(7, "roots/list"))
    effects = pipe.step(LOST)
    assert kinds(effects) == ["StopClock", "Hang", "Finish", "Finish", "Withdraw", "Down"]
    assert executed(effects) == {"sent": "unknown", "waiting": "no"}
    assert only(ue.Down, effects).counts
    upstream = pipe.upstream
    assert (upstream.phase, upstream.pending, upstream.waiting, upstream.asked) == (Phase.IDLE, {}, (), {})


def test_a_link_that_is_shut_ends_every_call_and_takes_none(pipe: LinkDriver) -> None:
    pipe.call("sent")
    pipe.call("waiting")
    effects = pipe.step(ue.Shut())
    assert kinds(effects) == ["StopClock", "Hang", "Finish", "Finish"]
    assert executed(effects) == {"sent": "unknown", "waiting": "no"}
    assert executed(pipe.call("late")) == {"late": "no"}
    assert kinds(pipe.step(LOST)) == ["Count"]


def test_the_next_call_brings_the_connection_back(pipe: LinkDriver) -> None:
    pipe.step(LOST)
    assert kinds(pipe.call("a")) == ["StartClock", "Connect"]
    pipe.step(ue.Started(False))
    effects = pipe.shake()
    assert only(ue.Ready, effects).again
    assert sent(effects)[-1]["method"] == "tools/call"


# 404: the backend does not know our session any more


def test_the_refused_request_is_sent_once_more_after_a_handshake_without_the_old_session(http: LinkDriver) -> None:
    http.call("refused")
    http.call("running")
    http.receive(Request(7, "roots/list"), related="e.3")
    effects = http.step(SessionLost("e.2"))
    assert kinds(effects) == ["StartClock", "Reset", "Finish", "Withdraw", "Send"]
    assert executed(effects) == {"running": "unknown"}
    assert sent(effects)[0]["method"] == "initialize"
    effects = http.shake()
    assert only(ue.Ready, effects).again
    assert sent(effects)[-1]["method"] == "tools/call"
    assert finishes(http.result(http.latest("tools/call"))) == {"refused": (True, {})}


def test_two_requests_that_are_refused_at_once_cause_one_handshake(http: LinkDriver) -> None:
    http.call("a")
    http.call("b")
    effects = http.step(SessionLost("e.2"))
    assert executed(effects) == {"b": "unknown"}
    assert kinds(http.step(SessionLost("e.3"))) == ["Count"]
    assert kinds(http.step(SessionLost(None))) == ["Count"]
    assert [m["method"] for m in sent(http.shake())][-1:] == ["tools/call"]


def test_a_session_lost_outside_of_a_request_is_made_anew(http: LinkDriver) -> None:
    http.call("running")
    effects = http.step(SessionLost(None))
    assert executed(effects) == {"running": "unknown"}
    assert not [m for m in sent(http.shake()) if m["method"] == "tools/call"]


def test_calls_that_waited_for_the_lease_are_sent_after_it() -> None:
    driver = LinkDriver(related=False)
    driver.connect()
    driver.call("a")
    driver.call("b")
    assert not finishes(driver.step(SessionLost("e.2")))
    assert [m["method"] for m in sent(driver.shake())] == ["tools/call"]
    assert list(finishes(driver.result(driver.latest("tools/call")))) == ["a"]


def test_a_request_is_never_sent_a_third_time(http: LinkDriver) -> None:
    http.call("a")
    http.step(SessionLost("e.2"))
    http.shake()
    effects = http.step(SessionLost(http.latest("tools/call")))
    assert executed(effects) == {"a": "no"}
    assert only(ue.Down, effects).reason == "session_lost"
    assert http.upstream.phase is Phase.IDLE


def test_a_backend_that_forgets_again_before_it_answered_a_call_is_down(http: LinkDriver) -> None:
    http.step(SessionLost(None))
    http.shake()
    http.call("running")
    assert executed(http.step(SessionLost(None))) == {"running": "unknown"}
    assert http.upstream.phase is Phase.IDLE


def test_a_backend_that_answers_in_between_may_forget_any_number_of_times(http: LinkDriver) -> None:
    for n in range(4):
        http.call(n)
        http.step(SessionLost(http.latest("tools/call")))
        http.shake()
        assert list(finishes(http.result(http.latest("tools/call")))) == [n]


def test_what_is_no_answer_of_the_backend_does_not_count_as_one(http: LinkDriver) -> None:
    http.call("a")
    http.step(SessionLost("e.2"))
    http.shake()
    http.call("b")
    http.step(ue.SendFailed(http.latest("tools/call"), "connection_lost", "lost", "unknown"))
    effects = http.step(SessionLost(None))
    assert only(ue.Down, effects).reason == "session_lost"


def test_a_late_404_for_a_request_that_has_ended_changes_nothing(http: LinkDriver) -> None:
    http.call("a")
    http.step(ue.Abandoned("a", "bored"))
    before = http.upstream
    assert kinds(http.step(SessionLost("e.2"))) == ["Count"]
    assert http.upstream is before


@pytest.mark.parametrize("phase", [Phase.INITIALIZING, Phase.CONFIRMING])
def test_a_refused_request_that_can_not_be_sent_again_was_not_executed(http: LinkDriver, phase: Phase) -> None:
    http.call("a")
    http.step(SessionLost("e.2"))
    if phase is Phase.CONFIRMING:
        http.result(http.latest("initialize"), {"protocolVersion": "2025-11-25"})
    assert http.upstream.phase is phase
    assert executed(http.step(LOST)) == {"a": "no"}


def test_a_retried_request_can_be_cancelled(http: LinkDriver) -> None:
    http.call("a")
    http.step(SessionLost("e.2"))
    assert http.step(ue.Abandoned("a", "bored")) == []
    assert not all_of(ue.Send, [e for e in http.shake() if isinstance(e, ue.Send) and e.id])


def test_a_request_that_was_refused_twice_is_not_sent_again_though_others_were_answered(http: LinkDriver) -> None:
    http.call("a")
    http.step(SessionLost("e.2"))
    http.shake()
    again = http.latest("tools/call")
    http.call("b")
    http.result(http.latest("tools/call"))
    effects = http.step(SessionLost(again))
    assert executed(effects) == {"a": "no"}
    assert only(ue.Down, effects).reason == "session_lost"


def test_a_new_connection_may_lose_its_session_like_the_first(http: LinkDriver) -> None:
    http.step(SessionLost(None))
    http.shake()
    http.step(SessionLost(None))
    assert http.upstream.phase is Phase.IDLE
    http.connect()
    assert kinds(http.step(SessionLost(None))) == ["StartClock", "Reset", "Send"]
