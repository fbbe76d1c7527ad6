"""Hearing of changes: clients of this era by their own listens, those of the other era as if they had sessions."""

import pytest

from actors.machines.upstream import events as ev
from actors.machines.upstream import modern_events as mv
from actors.machines.upstream.modern_state import Phase
from tests.support.modern_upstream import EVERYTHING, Drive, client

UPDATED = "notifications/resources/updated"
TOOLS = "notifications/tools/list_changed"
MODERN = client(drives=False)


@pytest.fixture(params=[True, False], ids=["http", "stdio"])
def drive(request) -> Drive:
    return Drive(request.param).ready()


def join(drive: Drive, caller: str = "s1") -> None:
    drive.step(mv.Joined(caller))


def subscribe(drive: Drive, call: int, uri: str, caller: str = "s1", method: str = "resources/subscribe") -> None:
    drive.call(call, method, caller=caller, uri=uri)


def updates(drive: Drive) -> list[tuple[object, str]]:
    return [(who, params["uri"]) for who, method, params in drive.told if method == UPDATED]


# Clients of this era -----------------------------------------------------------------------------------------


def test_a_listen_is_a_call_that_goes_on_until_its_result(drive):
    drive.call(1, "subscriptions/listen", by=MODERN, notifications={"toolsListChanged": True})
    id = drive.acknowledge()
    drive.notify(TOOLS, subscription=id)
    assert [(who, method) for who, method, _ in drive.told] == [
        (1, "notifications/subscriptions/acknowledged"),
        (1, TOOLS),
    ]
    assert all("_meta" not in params or not params["_meta"] for _, _, params in drive.told)
    drive.result(id, {"resultType": "complete"})
    assert drive.outcomes[1][0]


def test_only_a_listen_that_has_lasted_is_opened_again_as_if_it_were_the_first_loss(drive):
    drive.call(1, "subscriptions/listen", by=MODERN, notifications={"toolsListChanged": True})
    attempts = []
    for lasts in (False, False, True, False):
        id = drive.acknowledge()
        if lasts:
            drive.due("lasted", id)
        drive.fail(id)
        [key] = [key for key in drive.timers if key[0] == "listen"]
        attempts.append(drive.timers[key])
        drive.due(*key)
    assert attempts == [1, 2, 1, 2]


def test_two_listens_get_each_their_own(drive):
    for call in (1, 2):
        drive.call(call, "subscriptions/listen", by=MODERN, notifications={"toolsListChanged": True})
    first, second = [sent.id for sent in drive.sent if sent.method == "subscriptions/listen"]
    drive.acknowledge(first)
    drive.acknowledge(second)
    drive.notify(TOOLS, subscription=second)
    assert [who for who, method, _ in drive.told if method == TOOLS] == [2]


def test_nothing_comes_before_the_acknowledgement(drive):
    drive.call(1, "subscriptions/listen", by=MODERN, notifications={"toolsListChanged": True})
    drive.notify(TOOLS, subscription=drive.last("subscriptions/listen").id)
    assert not drive.told


def test_a_listen_that_is_refused_fails(drive):
    drive.call(1, "subscriptions/listen", by=MODERN, notifications={})
    drive.error(drive.last("subscriptions/listen").id, -32601, 404)
    assert drive.outcomes[1][1]["code"] == -32601


def test_a_listen_that_is_never_acknowledged_fails(drive):
    drive.call(1, "subscriptions/listen", by=MODERN, notifications={})
    id = drive.last("subscriptions/listen").id
    drive.due("ack", id)
    assert drive.outcomes[1][1]["data"]["reason"] == "timeout"
    assert drive.cancelled == [id]


def test_a_listen_without_a_filter_is_no_request(drive):
    drive.call(1, "subscriptions/listen", by=MODERN)
    assert drive.outcomes[1][1]["code"] == -32602


def test_a_lost_listen_is_opened_again_and_says_what_may_have_been_missed():
    drive = Drive().ready()
    wanted = {"toolsListChanged": True, "resourceSubscriptions": ["test:///a"]}
    drive.call(1, "subscriptions/listen", by=MODERN, notifications=wanted)
    drive.fail(drive.acknowledge(), "no_response")
    [key] = [key for key in drive.timers if key[0] == "listen"]
    drive.due(*key)
    drive.acknowledge()
    told = [method for _, method, _ in drive.told]
    assert told == ["notifications/subscriptions/acknowledged", TOOLS, UPDATED]
    assert not drive.outcomes


def test_a_cancelled_listen_is_over_wherever_it_stands(drive):
    drive.call(1, "subscriptions/listen", by=MODERN, notifications={})
    id = drive.acknowledge()
    drive.step(ev.Abandoned(1, "closed"))
    assert drive.cancelled == [id]
    drive.call(2, "subscriptions/listen", by=MODERN, notifications={})
    drive.fail(drive.acknowledge(), "no_response")
    drive.step(ev.Abandoned(2, "closed"))
    assert not drive.upstream.lost
    assert not drive.timers


def test_the_end_of_the_process_is_not_the_end_of_a_listen():
    drive = Drive(related=False).ready()
    drive.call(1, "subscriptions/listen", by=MODERN, notifications={"toolsListChanged": True})
    drive.acknowledge()
    drive.step(ev.Closed("exited", "gone"))
    assert drive.upstream.phase is Phase.WAITING
    drive.step(ev.RetryDue())
    drive.discovered()
    drive.acknowledge()
    assert [method for _, method, _ in drive.told][-1] == TOOLS


def test_a_cancel_of_the_server_ends_a_listen_that_has_no_result_and_is_else_nothing():
    drive = Drive(related=False).ready()
    drive.call(1, "subscriptions/listen", by=MODERN, notifications={})
    drive.call(2, "subscriptions/listen", by=MODERN, notifications={})
    first, second = [sent.id for sent in drive.sent if sent.method == "subscriptions/listen"]
    drive.acknowledge(first)
    drive.result(first, {"resultType": "complete"})
    drive.notify("notifications/cancelled", requestId=first)
    drive.acknowledge(second)
    drive.notify("notifications/cancelled", requestId=second)
    assert list(drive.outcomes) == [1]
    assert len(drive.upstream.lost) == 1


# Sessions ----------------------------------------------------------------------------------------------------


def test_sessions_share_a_listen_for_changes_of_lists(drive):
    join(drive)
    join(drive, "s2")
    assert drive.count("subscriptions/listen") == 1
    drive.notify(TOOLS, subscription=drive.acknowledge())
    assert drive.told == [(None, TOOLS, {})]
    drive.step(mv.Left("s1"))
    assert not drive.cancelled
    drive.step(mv.Left("s2"))
    assert len(drive.cancelled) == 1
    assert not drive.upstream.pending


def test_a_session_that_joins_early_hears_as_soon_as_there_is_a_connection():
    drive = Drive()
    join(drive)
    drive.ready()
    wanted = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
    assert drive.last("subscriptions/listen").params["notifications"] == wanted


def test_a_server_whose_lists_never_change_is_not_listened_to():
    drive = Drive()
    join(drive)
    drive.step(ev.Wanted())
    drive.discovered(capabilities={"tools": {}})
    assert drive.count("subscriptions/listen") == 0


def test_a_subscription_is_answered_when_it_is_acknowledged(drive):
    subscribe(drive, 1, "test:///a")
    assert not drive.outcomes
    id = drive.acknowledge()
    assert drive.outcomes == {1: (True, {})}
    drive.notify(UPDATED, subscription=id, uri="test:///a/part")
    assert updates(drive) == [("s1", "test:///a/part")]


def test_a_uri_that_is_not_acknowledged_is_refused(drive):
    subscribe(drive, 1, "test:///a")
    drive.acknowledge(resourceSubscriptions=[])
    error = drive.outcomes[1][1]
    assert (error["code"], error["data"]) == (-32602, {"uri": "test:///a"})


def test_without_the_capability_there_is_no_such_method():
    drive = Drive()
    drive.step(ev.Wanted())
    drive.discovered(capabilities=EVERYTHING | {"resources": {}})
    subscribe(drive, 1, "test:///a")
    assert drive.outcomes[1][1]["code"] == -32601


def test_updates_reach_only_the_session_that_subscribed(drive):
    subscribe(drive, 1, "test:///a")
    a = drive.acknowledge()
    subscribe(drive, 2, "test:///a", "s2")
    b = drive.acknowledge()
    drive.notify(UPDATED, subscription=a, uri="test:///a")
    drive.notify(UPDATED, subscription=b, uri="test:///b")
    assert updates(drive) == [("s1", "test:///a")]


def test_a_change_is_made_before_the_old_listen_is_broken():
    drive = Drive().ready()
    subscribe(drive, 1, "test:///a")
    old = drive.acknowledge()
    subscribe(drive, 2, "test:///b")
    new = drive.last("subscriptions/listen")
    assert new.params["notifications"] == {"resourceSubscriptions": ["test:///a", "test:///b"]}
    drive.notify(UPDATED, subscription=old, uri="test:///a")
    drive.acknowledge(new.id)
    assert not drive.cancelled
    drive.notify(UPDATED, subscription=new.id, uri="test:///b")
    drive.notify(UPDATED, subscription=old, uri="test:///b")
    drive.notify(UPDATED, subscription=old, uri="test:///a")
    assert updates(drive) == [("s1", "test:///a"), ("s1", "test:///b"), ("s1", "test:///a")]
    drive.due("fade", old)
    assert drive.cancelled == [old]


def test_on_one_channel_the_old_listen_ends_with_the_acknowledgement():
    drive = Drive(related=False).ready()
    subscribe(drive, 1, "test:///a")
    old = drive.acknowledge()
    subscribe(drive, 2, "test:///b")
    drive.acknowledge()
    assert drive.cancelled == [old]


def test_changes_that_come_during_a_change_go_together(drive):
    subscribe(drive, 1, "test:///a")
    subscribe(drive, 2, "test:///b")
    subscribe(drive, 3, "test:///c")
    assert drive.count("subscriptions/listen") == 1
    drive.acknowledge()
    assert set(drive.outcomes) == {1}
    drive.acknowledge()
    assert set(drive.outcomes) == {1, 2, 3}
    assert drive.count("subscriptions/listen") == 2


def test_unsubscribing_the_last_one_closes_the_listen(drive):
    subscribe(drive, 1, "test:///a")
    id = drive.acknowledge()
    subscribe(drive, 2, "test:///a", method="resources/unsubscribe")
    subscribe(drive, 3, "test:///never", method="resources/unsubscribe")
    assert [drive.outcomes[n] for n in (2, 3)] == [(True, {}), (True, {})]
    assert drive.cancelled == [id]
    assert not drive.upstream.pending


def test_a_change_that_fails_leaves_what_was(drive):
    subscribe(drive, 1, "test:///a")
    old = drive.acknowledge()
    subscribe(drive, 2, "test:///b")
    drive.error(drive.last("subscriptions/listen").id, -32603)
    assert not drive.outcomes[2][0]
    drive.notify(UPDATED, subscription=old, uri="test:///a")
    assert updates(drive) == [("s1", "test:///a")]


def test_lost_subscriptions_come_back_and_say_so():
    drive = Drive().ready()
    subscribe(drive, 1, "test:///a")
    drive.fail(drive.acknowledge(), "no_response")
    [key] = [key for key in drive.timers if key[0] == "listen"]
    drive.due(*key)
    drive.acknowledge()
    assert updates(drive) == [("s1", "test:///a")]


def test_what_is_lost_during_a_change_is_said_after_it():
    drive = Drive().ready()
    subscribe(drive, 1, "test:///a")
    old = drive.acknowledge()
    subscribe(drive, 2, "test:///b")
    drive.fail(old, "no_response")
    drive.acknowledge()
    assert drive.outcomes[2][0]
    assert ("s1", "test:///a") in updates(drive)


def test_a_process_that_is_lost_comes_back_for_its_subscriptions():
    drive = Drive(related=False).ready()
    join(drive)
    drive.acknowledge()
    subscribe(drive, 1, "test:///a")
    drive.acknowledge()
    drive.step(ev.Closed("exited", "gone"))
    assert drive.upstream.phase is Phase.WAITING
    drive.step(ev.RetryDue())
    drive.discovered()
    for sent in [sent.id for sent in drive.sent if sent.method == "subscriptions/listen"][-2:]:
        drive.acknowledge(sent)
    assert updates(drive) == [("s1", "test:///a")]
    assert (None, TOOLS, {}) in drive.told


def test_a_process_that_nobody_is_subscribed_at_comes_back_when_it_is_needed():
    drive = Drive(related=False).ready()
    join(drive)
    drive.acknowledge()
    drive.step(ev.Closed("exited", "gone"))
    assert drive.upstream.phase is Phase.IDLE


def test_a_subscription_goes_to_the_other_era_with_the_calls():
    drive = Drive().ready()
    subscribe(drive, 1, "test:///a")
    drive.call(2)
    drive.error(drive.last("tools/call").id, -32000, 400)
    drive.error(drive.last("server/discover").id, -32601, 404)
    assert {called.call for called in drive.returned} == {1, 2}


def test_nothing_is_left_when_everybody_has_gone(drive):
    join(drive)
    drive.acknowledge()
    subscribe(drive, 1, "test:///a")
    drive.acknowledge()
    drive.step(mv.Left("s1"))
    assert not drive.upstream.pending
    assert not drive.upstream.wishes


def test_the_end_of_a_link_ends_listens_too(drive):
    drive.call(1, "subscriptions/listen", by=MODERN, notifications={})
    drive.acknowledge()
    drive.step(ev.Shut())
    assert drive.outcomes[1][1]["data"]["reason"] == "closed"
