"""A session is rebuilt from its record: what was in flight is settled, the rest goes on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.machines.session import machine, rebuild
from actors.machines.session import record as session_record
from actors.machines.session.state import Rules, Session, SessionPhase
from tests.protocol.machines.driving import (
    FORMS,
    all_of,
    answers,
    call,
    kinds,
    notification,
    only,
    plain,
    request,
    said,
)
from tests.protocol.machines.recorded import Head, Log, Recorded, change


@pytest.fixture
def recorded() -> Recorded:
    driver = Recorded()
    driver.initialize()
    return driver


def test_a_record_is_complete_once_the_handshake_is_over() -> None:
    driver = Recorded()
    assert not session_record.is_complete(driver.store.fields)
    driver.begin()
    driver.welcome()
    assert not session_record.is_complete(driver.store.fields)
    driver.post(notification("notifications/initialized"))
    assert session_record.is_complete(driver.store.fields)


def test_a_rebuilt_session_is_what_it_was(recorded: Recorded) -> None:
    recorded.post(request(1, "logging/setLevel", level="error"))
    recorded.end(1)
    change(recorded.store.fields, session_record.level("error"))
    before = recorded.session
    assert recorded.restart() == []
    after = recorded.session
    assert (after.phase, after.epoch) == (SessionPhase.OPERATION, before.epoch + 1)
    assert (after.version, after.client, after.level) == (before.version, before.client, "error")
    assert after.server is not None
    assert before.server is not None
    assert after.server.tree == before.server.tree


def test_subscriptions_are_kept(recorded: Recorded) -> None:
    change(recorded.store.fields, session_record.subscriptions(("x:1", "x:2")))
    recorded.restart()
    assert recorded.session.subscriptions == ("x:1", "x:2")
    assert session_record.subscriptions(()) == {"subscriptions": None}


def test_recorded_requests_get_one_error_each_and_their_streams_end() -> None:
    driver = Recorded("2025-03-26")
    driver.initialize()
    driver.post(call(1), call("1"), call(3), batch=True)
    driver.step(ev.StreamTurnDue(driver.last))
    driver.end(3)
    driver.post(call(4))
    driver.step(ev.StreamTurnDue(driver.last))
    effects = driver.restart()
    assert [(s, m["id"], m["error"]["data"]) for s, m in said(effects)] == [
        ("p1", 1, {"reason": "owner_lost", "executed": "unknown"}),
        ("p1", "1", {"reason": "owner_lost", "executed": "unknown"}),
        ("p2", 4, {"reason": "owner_lost", "executed": "unknown"}),
    ]
    assert [a.finish for a in all_of(fx.Append, effects)] == [False, True, True]
    assert not driver.store.requests
    assert all(head.finished for head in driver.store.streams.values())
    assert not driver.session.streams


def test_an_answer_of_a_batch_that_did_not_come_into_the_log_is_an_error() -> None:
    """It waited for the others; then its stream was opened, and the process ended."""
    driver = Recorded("2025-03-26")
    driver.initialize()
    driver.post(call(1), request(2, "ping"), batch=True)
    session, effects = machine.step(driver.session, ev.StreamTurnDue(driver.last))
    driver.session = session
    driver.store.take([effect for effect in effects if isinstance(effect, fx.OpenStream)])
    assert [m["id"] for _, m in said(driver.restart())] == [1, 2]


def test_what_was_not_recorded_is_not_answered(recorded: Recorded) -> None:
    recorded.post(call(1))
    assert recorded.restart() == []


def test_get_streams_survive_and_go_on_with_their_numbers(recorded: Recorded) -> None:
    recorded.get()
    recorded.tell(None, "notifications/tools/list_changed")
    assert recorded.restart() == []
    effects = recorded.get("g1", epoch=36, seq=1)
    assert only(fx.Follow, effects).live
    assert only(fx.Append, recorded.tell(None, "notifications/tools/list_changed")).seq == 3


def test_no_stream_takes_the_name_of_one_that_has_a_log(recorded: Recorded) -> None:
    for id in (1, 2):
        recorded.post(call(id))
        recorded.step(ev.StreamTurnDue(recorded.last))
        recorded.end(id)
    recorded.get()
    recorded.restart()
    recorded.post(call(3))
    assert only(fx.OpenStream, recorded.step(ev.StreamTurnDue(recorded.last))).stream == "p3"
    assert only(fx.OpenStream, recorded.get()).stream == "g2"


def test_open_questions_are_withdrawn_and_answers_to_them_accepted(recorded: Recorded) -> None:
    recorded.get()
    recorded.ask(None)
    recorded.post(call(1))
    recorded.ask(1, own=2)
    effects = recorded.restart()
    assert [(s, m.get("method", m.get("id"))) for s, m in said(effects)] == [
        ("g1", "notifications/cancelled"),
        ("p1", "notifications/cancelled"),
        ("p1", 1),
    ]
    assert not recorded.store.asked
    assert kinds(recorded.answer("10.1", {"roots": []})) == ["Count", "Accept"]


def test_a_question_on_a_stream_that_is_over_leaves_the_record_later(recorded: Recorded) -> None:
    recorded.store.asked["10.9"] = b"p7"
    assert recorded.restart() == []
    recorded.get()
    assert only(fx.Append, recorded.tell(None, "notifications/tools/list_changed")).asked == {"10.9": None}
    assert not recorded.store.asked


def test_questions_of_two_lives_have_different_ids(recorded: Recorded) -> None:
    recorded.get()
    recorded.ask(None)
    recorded.restart()
    recorded.get()
    [(_, message)] = said(recorded.ask(None))
    assert message["id"] == "11.1"


def test_the_box_outlives_the_process_but_for_chatter(recorded: Recorded) -> None:
    recorded.tell(None, "notifications/resources/updated", uri="x:1")
    recorded.tell(None, "notifications/message", level="error", data=1)
    recorded.tell(None, "notifications/tools/list_changed")
    recorded.restart()
    effects = recorded.get()
    assert [m["method"].split("/")[-1] for _, m in said(effects)] == ["updated", "list_changed"]
    recorded.restart()
    assert not recorded.session.box


def test_what_waits_before_the_handshake_is_over_is_recorded_with_it() -> None:
    driver = Recorded(FORMS)
    driver.begin()
    driver.welcome()
    driver.tell(None, "notifications/tools/list_changed")
    assert "box" not in driver.store.fields
    driver.post(notification("notifications/initialized"))
    assert plain(driver.store.fields["box"])[0][0] == "notifications/tools/list_changed"


@given(st.integers() | st.text())
def test_the_key_of_a_request_names_its_id(id: int | str) -> None:
    back = session_record.request_id(session_record.request_key(id))
    assert (type(back), back) == (type(id), id)


# Recorded before it is sent


def streamed(driver: Recorded, id: int = 1) -> int:
    """A call that became a stream; its number."""
    driver.post(call(id))
    opened = only(fx.OpenStream, driver.step(ev.StreamTurnDue(driver.last)))
    assert opened.calls == (driver.calls[id],)
    return driver.calls[id]


def test_a_call_that_was_not_sent_is_told_from_one_that_may_have_been(recorded: Recorded) -> None:
    recorded.step(ev.CallHeld(streamed(recorded)))
    streamed(recorded, 2)
    effects = recorded.restart()
    assert [m["error"]["data"]["executed"] for _, m in said(effects)] == ["no", "unknown"]


def test_a_held_call_is_released_when_the_store_has_acknowledged_that_it_may_have_been_sent(recorded: Recorded) -> None:
    number = streamed(recorded)
    recorded.step(ev.CallHeld(number))
    append = only(fx.Append, recorded.step(ev.CallDue(number)))
    assert (append.clears, append.data) == (number, None)
    assert recorded.step(ev.CallDue(number)) == [], "it is on its way"
    assert recorded.step(ev.CallHeld(number)) == []
    assert recorded.step(ev.CallCleared(number)) == [fx.Release(number)]
    assert recorded.step(ev.CallCleared(number)) == []
    effects = recorded.restart()
    assert said(effects)[0][1]["error"]["data"]["executed"] == "unknown"


def test_a_call_of_which_the_record_says_nothing_is_released_at_once(recorded: Recorded) -> None:
    recorded.post(call(1))
    number = recorded.calls[1]
    assert recorded.step(ev.CallHeld(number)) == [], "there is no entry of it yet"
    assert recorded.step(ev.CallDue(number)) == [fx.Release(number)]


def test_a_held_call_whose_stream_is_lost_is_given_up_unsent(recorded: Recorded) -> None:
    number = streamed(recorded)
    recorded.step(ev.CallHeld(number))
    recorded.step(ev.StreamFailed("p1", "seq"))
    assert kinds(recorded.step(ev.CallDue(number))) == ["CancelCall", "StopDeadline", "StopTurnClock", "Count"]
    assert not recorded.session.requests


def test_a_deadline_that_passes_while_a_call_is_held_says_that_it_was_not_executed(recorded: Recorded) -> None:
    number = streamed(recorded)
    recorded.step(ev.CallHeld(number))
    [(_, answer)] = said(recorded.step(ev.CallExpired(number)))
    assert answer["error"]["data"] == {"reason": "timeout", "executed": "no"}


@pytest.mark.parametrize("reason", ["fenced", "gone", "ended"])
def test_a_held_call_of_a_session_that_is_anothers_was_not_executed(recorded: Recorded, reason: str) -> None:
    """Nor is it there: the next owner gives up what was never sent."""
    recorded.step(ev.CallHeld(streamed(recorded)))
    streamed(recorded, 2)
    told = answers(recorded.step(ev.Ended(reason)))
    assert {id: told[id]["error"]["data"]["executed"] for id in told} == {1: "no", 2: "unknown"}


def test_a_reader_that_knows_nothing_of_the_mark_reads_the_entry_all_the_same(recorded: Recorded) -> None:
    recorded.step(ev.CallHeld(streamed(recorded)))
    assert recorded.store.requests == {"i:1": b'{"s":"p1","w":true}'}
    recorded.store.requests = {"i:1": b'{"s":"p1","later":1}'}
    assert said(recorded.restart())[0][1]["error"]["data"]["executed"] == "unknown"


# What a process of an earlier version has written


def test_a_record_that_was_written_before_is_read() -> None:
    """Byte for byte as version 0.1 wrote it: a layout that changes must read this one too."""
    store = Log(
        fields={
            "v": b"1",
            "principal": b"p",
            "endpoint": b"e",
            "table": b"0123456789abcdef",
            "state": b"operation",
            "version": b"2025-11-25",
            "client": b'{"capabilities":{"roots":{"listChanged":true}},"info":{"name":"someone","version":"1"}}',
            "server": b'{"tools":{},"logging":{}}',
            "level": b"error",
            "subscriptions": b'["test:///a"]',
            "box": b'[["notifications/tools/list_changed",{"jsonrpc":"2.0","method":"n"},"g1",2]]',
        },
        requests={
            "i:1": b"p1",
            "s:1": b'{"s":"p2","w":true}',
            "i:2": b'{"s":"p3","b":"b","u":"e.1","cursor":"7","method":"tools/call","token":5,"progress":0.5}',
        },
        asked={
            "10.1": b"p1",
            "10.2": b'{"s":"p3","b":"b","request":"i:2","id":9,"method":"roots/list","token":3}',
        },
        streams={"p1": Head(2), "p2": Head(1), "p3": Head(4), "g1": Head(2), "p4": Head(3, finished=True)},
    )
    session, effects = rebuild.rebuild(store, Session(37, Rules()), 100.0, {"b"})
    store.take(effects)
    assert session_record.is_complete(store.fields)
    assert (session.phase, session.version, session.level) == (SessionPhase.OPERATION, "2025-11-25", "error")
    assert session.subscriptions == ("test:///a",)
    assert [boxed.key for boxed in session.box] == ["notifications/tools/list_changed"]
    assert {id: a["error"]["data"]["executed"] for id, a in answers(effects).items()} == {1: "unknown", "1": "no"}
    again = only(fx.Continue, effects)
    assert (again.backend, again.method, again.place) == ("b", "tools/call", ev.Place("e.1", "7"))
    assert again.asked == ((9, "roots/list"),)
    assert (set(session.requests), set(session.asks)) == ({2}, {"10.2"})
    assert set(store.requests) == {"i:2"}


@pytest.mark.parametrize(
    ("others", "version"),
    [
        ([], 4),
        ([(1, 5)], 4),
        ([(3, 3), (2, 4)], 3),
        ([[1, 3], [1, 1]], 2),
        ([None], 2),
        ([["x", 9]], 2),
        ([(1, 2, 3)], 2),
    ],
)
def test_records_are_written_in_the_newest_version_that_all_read(others: list, version: int) -> None:
    assert session_record.written(others, (2, 4)) == version


def test_who_reads_a_version_says_so() -> None:
    assert session_record.reads([1, 2], 2)
    assert not session_record.reads([1, 2], 3)
    assert not session_record.reads([3, 4], 2)
    assert session_record.reads(None, 1)
    assert not session_record.reads("nonsense", 2)


@pytest.mark.parametrize("version", [b"0", b"2", b"", b"x"])
def test_a_record_of_another_version_is_not_read(version: bytes) -> None:
    fields = {"v": b"1", "version": b"", "client": b"", "state": b""}
    assert session_record.is_complete(fields)
    assert not session_record.is_complete(fields | {"v": version})
