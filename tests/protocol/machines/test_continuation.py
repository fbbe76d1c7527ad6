"""A request whose backend gives its events ids goes on after the loss of whoever waited for it.

The last test lets the process die at any write of the store, as often as it likes: each event of the backend reaches
the client's log once, in order, and the request has one outcome.
"""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.machines.session.record import read_request
from tests.protocol.machines.driving import (
    ASKS,
    BATCHES,
    NEWEST,
    all_of,
    call,
    kinds,
    notification,
    only,
    raw,
    request,
    said,
)
from tests.protocol.machines.recorded import Died, Recorded


class Lasting(Recorded):
    """One whose backend gives its events ids."""

    def place(self, id: Any, cursor: str | None) -> list[Any]:
        """An event with an id and without a message."""
        return self.step(ev.CallPlaced("b", self.calls[id], ev.Place(f"u{id}", cursor)))

    def log(self, id: Any, number: int, cursor: str) -> list[Any]:
        params = raw({"level": "error", "data": number})
        place = ev.Place(f"u{id}", cursor)
        return self.step(ev.CallProgressed("b", self.calls[id], "notifications/message", params, 0.0, place))

    def question(self, id: Any, own: int, cursor: str) -> list[Any]:
        params = raw(ASKS["roots/list"])
        return self.step(ev.ServerRequested("b", self.calls[id], own, "roots/list", params, ev.Place(f"u{id}", cursor)))


def running(version: str = NEWEST) -> Lasting:
    """A session with a call that has become a stream."""
    driver = Lasting(version)
    driver.initialize()
    driver.post(call(1, token="t"))
    return driver


def turned(driver: Lasting) -> Lasting:
    driver.step(ev.StreamTurnDue(driver.last))
    return driver


def test_what_is_known_when_the_stream_opens_is_recorded_with_it() -> None:
    driver = running()
    assert driver.place(1, "c0") == []
    effects = driver.step(ev.StreamTurnDue(driver.last))
    recorded = read_request(only(fx.OpenStream, effects).requests["i:1"])
    assert (recorded.stream, recorded.backend, recorded.place) == ("p1", "b", ev.Place("u1", "c0"))
    assert (recorded.method, recorded.token) == ("tools/call", "t")


def test_a_place_that_comes_alone_changes_the_record_and_no_event() -> None:
    driver = turned(running())
    assert driver.store.requests == {"i:1": b"p1"}
    append = only(fx.Append, driver.place(1, "c0"))
    assert (append.data, append.finish, append.seq) == (None, False, 2)
    assert read_request(driver.store.requests["i:1"]).cursor == "c0"
    assert only(fx.Append, driver.log(1, 1, "c1")).seq == 2


def test_a_place_is_recorded_in_the_step_that_shows_what_led_to_it() -> None:
    driver = turned(running())
    for effects in (driver.log(1, 1, "c1"), driver.question(1, 5, "c2")):
        append = only(fx.Append, effects)
        assert append.data is not None
        assert read_request(append.requests["i:1"] or b"").cursor in ("c1", "c2")


def test_a_place_that_is_taken_back_is_none() -> None:
    driver = turned(running())
    driver.place(1, "c0")
    driver.place(1, None)
    assert driver.store.requests == {"i:1": b"p1"}


def test_the_rest_of_the_answer_is_asked_for_and_the_deadline_runs_anew() -> None:
    driver = turned(running())
    driver.progress(1, 3)
    driver.log(1, 1, "c1")
    effects = driver.restart("b")
    assert kinds(effects) == ["Continue", "StartDeadline"]
    assert only(fx.Continue, effects) == fx.Continue(1, "b", "tools/call", True, ev.Place("u1", "c1"))
    assert only(fx.StartDeadline, effects) == fx.StartDeadline(1, 100.0, 100.0)
    driver.methods[1] = "tools/call"
    assert [t.what for t in all_of(fx.Count, driver.progress(1, 3))] == ["progress_not_increasing"]
    assert said(driver.progress(1, 4))[0][1]["params"]["progressToken"] == "t"
    assert only(fx.Append, driver.end(1)).finish
    assert not driver.store.requests
    assert not driver.session.posts


def test_a_question_on_a_get_stream_stays_open_with_its_call() -> None:
    """The connection of the POST was gone, and the call goes on: its backend waits for the answer."""
    driver = turned(running())
    driver.step(ev.Detached(driver.last, "p1"))
    driver.get()
    [append] = [effect for effect in all_of(fx.Append, driver.question(1, 5, "c2")) if effect.asked]
    assert append.stream == "g1"
    effects = driver.restart("b")
    assert only(fx.Continue, effects).asked == ((5, "roots/list"),)
    assert not all_of(fx.Append, effects), "nothing is withdrawn"
    answered = only(fx.AnswerBackend, driver.answer(next(iter(driver.session.asks)), {"roots": []}))
    assert (answered.id, answered.ok) == (5, True)


def test_its_client_comes_back_for_the_stream_and_may_cancel() -> None:
    driver = turned(running())
    driver.place(1, "c0")
    driver.restart("b")
    assert only(fx.Follow, driver.get("p1", epoch=36, seq=1)).live
    effects = driver.post(notification("notifications/cancelled", requestId=1))
    assert only(fx.CancelCall, effects).call == 1
    assert [m["error"]["code"] for _, m in said(effects)] == [-32800]


def test_a_question_that_came_with_it_can_still_be_answered() -> None:
    driver = turned(running())
    driver.question(1, 5, "c1")
    effects = driver.restart("b")
    assert kinds(effects) == ["Continue", "StartDeadline", "StartServerRequestClock"]
    assert only(fx.Continue, effects).asked == ((5, "roots/list"),)
    answered = only(fx.AnswerBackend, driver.answer("10.1", {"roots": []}))
    assert (answered.backend, answered.id, answered.ok, answered.method) == ("b", 5, True, "roots/list")


def test_a_backend_that_is_out_of_reach_means_an_error() -> None:
    driver = turned(running())
    driver.question(1, 5, "c1")
    effects = driver.restart()
    assert [m.get("method", m.get("id")) for _, m in said(effects)] == ["notifications/cancelled", 1]
    assert not driver.session.requests
    assert not driver.store.requests


def test_of_a_batch_some_go_on_and_the_rest_fails() -> None:
    driver = Lasting(BATCHES)
    driver.initialize()
    driver.post(call(1), call("1"), batch=True)
    turned(driver)
    driver.place("1", "c0")
    effects = driver.restart("b")
    assert [(m["id"], m["error"]["data"]["executed"]) for _, m in said(effects)] == [(1, "unknown")]
    assert not only(fx.Append, effects).finish
    assert set(driver.session.requests) == {"1"}
    driver.methods["1"] = "tools/call"
    assert only(fx.Append, driver.end("1")).finish


def test_what_the_session_has_to_do_something_with_is_not_continued() -> None:
    driver = Lasting()
    driver.initialize()
    driver.post(request(1, "resources/subscribe", uri="x:1"))
    turned(driver)
    assert driver.place(1, "c0")[0].requests == {}
    assert [m["error"]["data"]["executed"] for _, m in said(driver.restart("b"))] == ["unknown"]


def test_a_log_that_is_lost_leaves_the_answer_to_nobody() -> None:
    driver = turned(running())
    driver.place(1, "c0")
    driver.restart("b")
    driver.step(ev.StreamFailed("p1", "seq"))
    driver.methods[1] = "tools/call"
    assert [t.what for t in all_of(fx.Count, driver.end(1))] == ["answer_without_connection"]


SAID = st.lists(st.sampled_from(["log", "ask", "nothing"]), max_size=8)


@given(SAID, st.integers(0, 9), st.lists(st.integers(0, 9), max_size=5), st.sampled_from([NEWEST, BATCHES]))
def test_each_event_is_in_the_log_once_wherever_the_process_dies(
    says: list[str], turn: int, deaths: list[int], version: str
) -> None:
    driver = running(version)
    driver.methods[1] = "tools/call"
    position = 0  # of the next event of the backend; its id is the number before
    for left in [*deaths, 10**9]:
        driver.store.left = left
        try:
            while position < len(says):
                if position == turn and 1 in driver.session.requests:
                    turned(driver)
                tell(driver, says[position], position)
                position += 1
            driver.end(1)
            break
        except Died:
            driver.store.left = 10**9
            if "i:1" not in driver.store.requests:
                return  # its outcome was on the connection that broke, or is in the log
            again = all_of(fx.Continue, driver.restart("b"))
            if not again:
                break
            position = int(again[0].place.cursor) + 1  # the backend goes on after the event that it is named
    events = driver.store.events.get("p1")
    if events is not None:
        witness(says, events, continued=not any("error" in e for e in events))


def tell(driver: Lasting, what: str, number: int) -> None:
    """Event `number` of the backend."""
    if what == "log":
        driver.log(1, number, str(number))
    elif what == "ask":
        driver.question(1, number, str(number))
    else:
        driver.place(1, str(number))


def witness(says: list[str], events: list[dict[str, Any]], *, continued: bool) -> None:
    logged = [e["params"]["data"] for e in events if e.get("method") == "notifications/message"]
    asked = [e["id"] for e in events if e.get("method") == "roots/list"]
    outcomes = [e for e in events if "method" not in e]
    assert len(outcomes) == 1
    assert events[-1] is outcomes[0]
    expected = [n for n, what in enumerate(says) if what == "log"]
    assert logged == expected if continued else logged == expected[: len(logged)]
    assert len(set(asked)) == len(asked)
    assert not continued or len(asked) == says.count("ask")
