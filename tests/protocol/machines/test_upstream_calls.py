"""Calls on an upstream connection that is ready: ids, tokens, turns, server requests, cancellation, attribution."""

from typing import Any

import pytest
from msgspec.structs import replace

from actors.machines.upstream import events as ue
from actors.machines.upstream.events import UNSENT_BYTES, UNSENT_MAX
from actors.machines.upstream.legacy_calls import ASKED_MAX, UNANSWERED_MAX
from actors.machines.upstream.legacy_state import Phase
from actors.protocol.messages import Error, Notification, Request, Result
from actors.protocol.transport import SessionLost
from tests.protocol.machines.driving import (
    HELLO,
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


def log(text: str = "x") -> Notification:
    return Notification("notifications/message", raw({"level": "info", "data": text}))


# Ids and tokens


def test_ids_upstream_are_ours_and_never_repeat(http: LinkDriver) -> None:
    for key in range(5):
        http.call(key)
        http.result(http.latest("tools/call"))
    http.step(ue.Closed("gone", "gone"))
    http.connect()
    http.call("a")
    assert list(http.wire) == [f"e.{n}" for n in range(1, 9)], "the driver checks that none comes twice"


def test_a_result_is_the_outcome_of_its_call_whatever_the_order(pipe: LinkDriver) -> None:
    pipe.call("a", "tools/list")
    pipe.call("b", "prompts/list")
    assert finishes(pipe.result("e.3", {"prompts": []})) == {"b": (True, {"prompts": []})}
    assert finishes(pipe.result("e.2", {"tools": []})) == {"a": (True, {"tools": []})}
    assert kinds(pipe.result("e.2")) == ["Count"]


@pytest.mark.parametrize("id", [2, "2", "e.9", "E.2", ""])
def test_a_response_with_another_id_is_dropped(pipe: LinkDriver, id: Any) -> None:
    pipe.call("a")
    assert kinds(pipe.result(id)) == ["Count"]
    assert kinds(pipe.error(id)) == ["Count"]


@pytest.mark.parametrize("id", ["e.1", "e.9", "E.2", 2])
def test_an_answer_for_what_was_not_asked_is_dropped_and_counted_on_whatever_stream_it_came(
    http: LinkDriver, id: Any
) -> None:
    http.call("a")
    for related in ("e.2", None):
        assert http.receive(Result(id, raw({})), related) == [ue.Count("late_response")]
    assert finishes(http.result("e.2")) == {"a": (True, {})}


@pytest.mark.parametrize("id", [None, 5, "odd"])
def test_an_error_that_could_not_read_the_id_belongs_to_the_post_it_answers(http: LinkDriver, id: Any) -> None:
    http.call("a")
    http.call("b")
    assert list(finishes(http.error(id, related="e.3"))) == ["b"]


def test_progress_is_asked_for_with_a_token_of_ours_and_comes_to_its_call(http: LinkDriver) -> None:
    http.call("a", progress=True, name="t", _meta={"progressToken": "theirs", "x": 1})
    assert http.wire["e.2"][1]["_meta"] == {"progressToken": "e.2", "x": 1}
    told = only(
        ue.Notify, http.receive(Notification("notifications/progress", raw({"progressToken": "e.2", "progress": 1})))
    )
    assert told.call == "a"


def test_a_token_that_is_not_to_be_used_never_goes_upstream(http: LinkDriver) -> None:
    http.call("a", name="t", _meta={"progressToken": 1.5})
    assert http.wire["e.2"][1] == {"name": "t"}


@pytest.mark.parametrize("token", ["e.2", "e.9", 2, None, [1]])
def test_progress_that_nobody_asked_for_is_dropped(http: LinkDriver, token: Any) -> None:
    http.call("a")
    message = Notification("notifications/progress", raw({"progressToken": token, "progress": 1}))
    assert kinds(http.receive(message)) == ["Count"]


# Failures


@pytest.mark.parametrize("executed", ["no", "unknown"])
def test_a_request_that_gets_no_response_says_whether_it_was_executed(http: LinkDriver, executed: Any) -> None:
    http.call("a")
    outcome = finishes(http.step(ue.SendFailed("e.2", "connection_lost", "lost", executed)))
    assert outcome["a"][1]["data"] == {"reason": "connection_lost", "executed": executed}
    assert kinds(http.step(ue.SendFailed("e.2", "x", "x", "no"))) == ["Count"]
    assert kinds(http.result("e.2")) == ["Count"]


# Cancellation


def test_a_cancel_reaches_the_right_request_and_only_that(http: LinkDriver) -> None:
    http.call("a")
    http.call("b")
    effects = http.step(ue.Abandoned("a", "bored"))
    assert sent(effects) == [
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "e.2", "reason": "bored"}}
    ]
    assert only(ue.Forget, effects).id == "e.2"
    assert kinds(http.result("e.2")) == ["Count"]
    assert list(finishes(http.result("e.3"))) == ["b"]


def test_a_call_that_was_never_sent_is_cancelled_without_a_word() -> None:
    driver = LinkDriver()
    driver.call("a")
    driver.call("b")
    assert driver.step(ue.Abandoned("a", "bored")) == []
    driver.step(ue.Started(False))
    assert len(sent(driver.shake())) == 1


# The lease


def test_where_messages_are_not_related_eligible_calls_go_one_at_a_time(pipe: LinkDriver) -> None:
    pipe.call("a")
    assert pipe.call("b") == [ue.Awaited("a")]
    assert pipe.call("c", "prompts/get", name="p") == [ue.Awaited("a")]
    assert len(sent(pipe.call("d", "tools/list"))) == 1
    effects = pipe.result("e.2")
    assert list(finishes(effects)) == ["a"]
    assert [m["method"] for m in sent(effects)] == ["tools/call"]
    assert [m["method"] for m in sent(pipe.step(ue.Abandoned("b", "bored")))] == ["notifications/cancelled", "ping"]
    assert [m["method"] for m in sent(pipe.result(pipe.latest("ping")))] == ["prompts/get"]


def test_whoever_comes_to_the_turn_hears_that_others_wait_behind_it(pipe: LinkDriver) -> None:
    for key in ("a", "b", "c"):
        pipe.call(key)
    assert all_of(ue.Awaited, pipe.result("e.2")) == [ue.Awaited("b")]
    assert all_of(ue.Awaited, pipe.result("e.3")) == []


def test_so_does_the_first_of_those_that_waited_for_the_connection() -> None:
    driver = LinkDriver()
    driver.call("a")
    driver.call("b")
    driver.step(ue.Started(False))
    assert all_of(ue.Awaited, driver.shake()) == [ue.Awaited("a")]


@pytest.mark.parametrize("shown", ["ping", "the call itself"])
def test_after_a_cancel_the_next_call_waits_until_the_backend_is_done(pipe: LinkDriver, shown: str) -> None:
    pipe.call("a")
    pipe.call("b")
    pipe.call("c")
    effects = pipe.step(ue.Abandoned("a", "bored"))
    assert only(ue.StartGrace, effects)
    assert only(ue.ServerRequest, pipe.receive(ask())).call is None, "nobody waits for the call that raised it"
    effects = pipe.result(pipe.latest("ping") if shown == "ping" else "e.2")
    assert [m["method"] for m in sent(effects)] == ["tools/call"]
    assert only(ue.ServerRequest, pipe.receive(ask(8))).call == "b"
    assert pipe.step(ue.GraceOver()) == [], "it came in time"
    effects = pipe.result("e.2" if shown == "ping" else "e.3")
    assert sent(effects) == [], "the turn is with another call"


def test_one_that_does_not_show_it_holds_nobody_up_and_what_it_asks_is_no_calls(pipe: LinkDriver) -> None:
    pipe.call("a")
    pipe.call("b")
    pipe.step(ue.Abandoned("a", "bored"))
    ping = pipe.latest("ping")
    assert [m["method"] for m in sent(pipe.step(ue.GraceOver()))] == ["tools/call"]
    assert only(ue.ServerRequest, pipe.receive(ask())).call is None, "it may be the other's"
    assert [m["method"] for m in sent(pipe.step(ue.Abandoned("b", "bored")))] == ["notifications/cancelled"]
    assert len(sent(pipe.call("c"))) == 1
    pipe.result(ping)
    assert only(ue.ServerRequest, pipe.receive(ask(8))).call == "c"


def late(driver: LinkDriver, id: Any = 7, method: str = "elicitation/create") -> ue.ServerRequest:
    """What is asked after the ping behind a cancel was answered."""
    effects = driver.receive(ask(id, method))
    return only(ue.ServerRequest, effects)


@pytest.mark.parametrize("method", ["elicitation/create", "sampling/createMessage"])
def test_until_a_cancelled_call_is_answered_what_is_asked_is_no_calls(pipe: LinkDriver, method: str) -> None:
    pipe.call("a")
    pipe.call("b")
    pipe.step(ue.Abandoned("a", "bored"))
    pipe.result(pipe.latest("ping"))
    request = late(pipe, 8, method)
    assert (request.call, request.doubtful) == (None, True)
    assert kinds(pipe.error("e.2")) == ["Count"], "its late answer"
    assert late(pipe, 9, method).call == "b"


def test_the_roots_of_a_session_are_the_same_for_each_of_its_calls(pipe: LinkDriver) -> None:
    pipe.call("a")
    pipe.call("b")
    pipe.step(ue.Abandoned("a", "bored"))
    pipe.result(pipe.latest("ping"))
    request = late(pipe, 8, "roots/list")
    assert (request.call, request.doubtful) == ("b", False)


ALONE = replace(PROFILE, needs_call=True)
"""Of a client without a session."""


@pytest.mark.parametrize("related", [False, True])
def test_where_nobody_could_be_asked_the_connection_is_replaced_when_nothing_runs(related: bool) -> None:
    driver = LinkDriver(related=related, profile=ALONE)
    driver.connect()
    driver.call("a")
    driver.step(ue.Abandoned("a", "bored"))
    if not related:
        driver.result(driver.latest("ping"))
    driver.call("b")
    assert late(driver).doubtful
    assert kinds(driver.step(ue.AnswerGiven(7, False, raw({"code": 1, "message": "no"}), unheard=True))) == ["Send"]
    effects = driver.result(driver.latest("tools/call"))
    assert list(finishes(effects)) == ["b"]
    assert (only(ue.Down, effects).counts, kinds(effects).count("Connect")) == (False, 0), "the next call brings one"
    assert driver.upstream.phase is Phase.IDLE


def test_one_that_is_known_to_ask_is_replaced_before_the_next_call_and_loses_none() -> None:
    driver = LinkDriver(profile=ALONE)
    driver.connect()
    driver.call("list", "tools/list")
    driver.call("a")
    driver.call("b")
    driver.step(ue.Abandoned("a", "bored", asks=True))
    assert sent(driver.result(driver.latest("ping"))) == [], "a list is on its way"
    effects = driver.result(driver.latest("tools/list"))
    assert list(finishes(effects)) == ["list"]
    assert only(ue.Down, effects).counts is False
    assert only(ue.Hang, effects)
    assert only(ue.Connect, effects)
    driver.step(ue.Started(False))
    assert [m["method"] for m in sent(driver.shake())] == ["tools/call"]
    assert late(driver).call == "b", "another process, which has never heard of the other call"


def test_one_that_answers_it_after_all_is_not_replaced() -> None:
    driver = LinkDriver(profile=ALONE)
    driver.connect()
    driver.call("a")
    driver.call("b")
    driver.step(ue.Abandoned("a", "bored", asks=True))
    assert [m["method"] for m in sent(driver.error("e.2"))] == ["tools/call"]
    assert late(driver).call == "b"


def test_for_a_client_that_can_not_be_asked_none_is_replaced() -> None:
    driver = LinkDriver(profile=replace(ALONE, serialized=False))
    driver.connect()
    driver.call("a")
    effects = driver.step(ue.Abandoned("a", "bored", asks=True))
    assert "Hang" not in kinds(effects)
    assert (driver.upstream.phase, driver.upstream.to_replace) == (Phase.READY, False)


def test_of_too_many_that_were_never_answered_none_is_taken_for_the_last() -> None:
    driver = LinkDriver(profile=ALONE)
    driver.connect()
    for n in range(UNANSWERED_MAX + 1):
        driver.call(n)
        driver.step(ue.Abandoned(n, "bored"))
        driver.result(driver.latest("ping"))
    cancelled = [id for id, (method, _) in driver.wire.items() if method == "tools/call"]
    driver.call("b")
    for id in cancelled[:UNANSWERED_MAX]:
        driver.result(id)
    assert late(driver).doubtful
    assert len(driver.upstream.unanswered) == UNANSWERED_MAX


def test_what_never_had_the_turn_is_cancelled_without_further_ado(pipe: LinkDriver, http: LinkDriver) -> None:
    pipe.call("a", "tools/list")
    http.call("a")
    for driver in (pipe, http):
        assert [m["method"] for m in sent(driver.step(ue.Abandoned("a", "bored")))] == ["notifications/cancelled"]


def test_related_messages_or_a_client_that_can_not_be_asked_need_no_lease(http: LinkDriver) -> None:
    unasked = LinkDriver(profile=type(PROFILE)(raw({}), PROFILE.client_info, serialized=False, prefix="e"))
    unasked.connect()
    for driver in (http, unasked):
        assert all(len(sent(driver.call(key))) == 1 for key in "abc")


# Questions of the backend


def ask(id: Any = 7, method: str = "roots/list") -> Request:
    return Request(id, method)


def test_a_question_belongs_to_the_call_on_whose_stream_it_came(http: LinkDriver) -> None:
    http.call("a")
    http.call("b")
    assert only(ue.ServerRequest, http.receive(ask(), related="e.3")).call == "b"
    assert only(ue.ServerRequest, http.receive(ask(8))).call is None


def test_without_streams_it_belongs_to_the_call_that_has_the_lease(pipe: LinkDriver) -> None:
    pipe.call("l", "tools/list")
    assert only(ue.ServerRequest, pipe.receive(ask(6))).call is None
    pipe.call("a")
    assert only(ue.ServerRequest, pipe.receive(ask())).call == "a"


@pytest.mark.parametrize("id", [0, "0", -(2**70), "ü"])
def test_its_answer_goes_back_once_under_its_own_id(http: LinkDriver, id: Any) -> None:
    http.receive(ask(id))
    [answer] = sent(http.step(ue.AnswerGiven(id, True, raw({"roots": []}))))
    assert answer == {"jsonrpc": "2.0", "id": id, "result": {"roots": []}}
    assert type(answer["id"]) is type(id)
    assert kinds(http.step(ue.AnswerGiven(id, True, raw({"roots": []})))) == ["Count"]


def test_an_error_of_the_client_goes_back_as_it_is(http: LinkDriver) -> None:
    http.receive(ask())
    error = {"code": -1, "message": "rejected", "data": {"x": 1}}
    assert sent(http.step(ue.AnswerGiven(7, False, raw(error))))[0]["error"] == error


def test_an_id_in_use_is_refused_and_a_number_is_not_its_text(http: LinkDriver) -> None:
    http.receive(ask(7))
    assert kinds(http.receive(ask("7"))) == ["ServerRequest"]
    assert sent(http.receive(ask(7)))[0]["error"]["code"] == -32600
    assert len(http.upstream.asked) == 2


def test_open_questions_are_bounded(http: LinkDriver) -> None:
    for id in range(ASKED_MAX):
        http.receive(ask(id))
    assert sent(http.receive(ask("more")))[0]["error"]["data"] == {"reason": "too_many"}
    assert len(http.upstream.asked) == ASKED_MAX


def test_the_end_of_a_call_answers_the_questions_that_came_with_it(http: LinkDriver) -> None:
    http.call("a")
    http.call("b")
    http.receive(ask(1), related="e.2")
    http.receive(ask(2), related="e.3")
    http.receive(ask(3))
    for effects in (http.result("e.2"),):
        assert kinds(effects) == ["Finish", "Send", "Withdraw"]
        assert (sent(effects)[0]["id"], sent(effects)[0]["error"]["data"]) == (1, {"reason": "call_ended"})
        assert only(ue.Withdraw, effects).id == 1
    effects = http.step(ue.Abandoned("b", "bored"))
    assert [m.get("id") for m in sent(effects)] == [None, 2]
    assert list(http.upstream.asked) == [3]


def test_roots_that_no_stream_relates_to_a_call_are_asked_with_it_and_outlast_it(pipe: LinkDriver) -> None:
    pipe.call("a")
    asked = only(ue.ServerRequest, pipe.receive(ask(1)))
    assert (asked.call, asked.outlasts) == ("a", True)
    asked = only(ue.ServerRequest, pipe.receive(ask(2, "sampling/createMessage")))
    assert (asked.call, asked.outlasts) == ("a", False)
    assert only(ue.Withdraw, pipe.result("e.2")).id == 2
    assert sent(pipe.step(ue.AnswerGiven(1, True, raw({"roots": []}))))[0]["result"] == {"roots": []}


def test_roots_end_with_their_call_where_a_client_is_asked_with_calls_alone() -> None:
    pipe = LinkDriver(profile=replace(PROFILE, needs_call=True))
    pipe.connect()
    pipe.call("a")
    assert not only(ue.ServerRequest, pipe.receive(ask(1))).outlasts
    assert only(ue.Withdraw, pipe.result("e.2")).id == 1


def test_a_question_of_a_call_that_has_ended_is_asked_of_nobody(http: LinkDriver) -> None:
    http.call("a")
    http.step(ue.Abandoned("a", "bored"))
    assert sent(http.receive(ask(), related="e.2"))[0]["error"]["data"] == {"reason": "call_ended"}
    assert not http.upstream.asked


def test_a_backend_takes_its_question_back(http: LinkDriver) -> None:
    http.receive(ask(7))
    cancelled = Notification("notifications/cancelled", raw({"requestId": 7}))
    assert http.receive(cancelled) == [ue.Withdraw(7)]
    assert kinds(http.receive(cancelled)) == ["Count"]
    assert kinds(http.step(ue.AnswerGiven(7, True, raw({})))) == ["Count"]


@pytest.mark.parametrize("params", [{}, {"requestId": "7"}, {"requestId": None}, {"requestId": 7.5}])
def test_a_withdrawal_of_nothing_is_ignored(http: LinkDriver, params: Any) -> None:
    http.receive(ask(7))
    before = http.upstream
    assert kinds(http.receive(Notification("notifications/cancelled", raw(params)))) == ["Count"]
    assert http.upstream is before


def test_a_ping_is_answered_here_at_any_time(pipe: LinkDriver) -> None:
    pipe.call("a")
    assert sent(pipe.receive(Request("p", "ping"))) == [{"jsonrpc": "2.0", "id": "p", "result": {}}]


# Notifications of the backend


def test_a_log_belongs_to_its_stream_or_to_the_only_call_that_could_have_caused_it(
    http: LinkDriver, pipe: LinkDriver
) -> None:
    http.call("a")
    assert only(ue.Notify, http.receive(log(), related="e.2")).call == "a"
    assert only(ue.Notify, http.receive(log())).call is None
    assert only(ue.Notify, pipe.receive(log())).call is None
    pipe.call("a")
    assert only(ue.Notify, pipe.receive(log())).call == "a"


def test_changes_belong_to_no_call_unless_they_came_on_its_stream(http: LinkDriver, pipe: LinkDriver) -> None:
    changed = Notification("notifications/tools/list_changed")
    pipe.call("a")
    assert only(ue.Notify, pipe.receive(changed)).call is None
    http.call("a")
    assert only(ue.Notify, http.receive(changed, related="e.2")).call == "a"


def test_a_notification_of_the_client_goes_out_where_there_is_a_connection(http: LinkDriver) -> None:
    changed = ue.Notified("notifications/roots/list_changed")
    assert sent(http.step(changed)) == [{"jsonrpc": "2.0", "method": changed.method}]
    assert kinds(LinkDriver().step(changed)) == ["Count"]


def test_what_only_both_ends_know_brings_a_connection_or_is_counted() -> None:
    beat = ue.Notified("acme/beat", raw({}))
    lost = LinkDriver()
    assert kinds(lost.step(beat)) == ["StartClock", "Connect"]
    assert lost.step(beat) == []
    assert kinds(lost.step(ue.Closed("gone", "gone")))[-3:] == ["Count", "Count", "Down"]
    full = LinkDriver()
    tallied = [effect for _ in range(300) for effect in full.step(beat) if isinstance(effect, ue.Count)]
    assert len(tallied) == 300 - UNSENT_MAX
    large = ue.Notified("acme/beat", raw({"x": "x" * UNSENT_BYTES}))
    big = LinkDriver()
    assert [kinds(big.step(large)) for _ in "12"] == [["StartClock", "Connect"], ["Count"]]


# The outcome of the upstream connection's own requests


def test_what_the_link_asks_for_itself_is_told_to_nobody(http: LinkDriver) -> None:
    http.call("l", "logging/setLevel", level="info")
    http.result("e.2")
    http.step(ue.Closed("gone", "gone"))
    http.connect()
    own = http.latest("logging/setLevel")
    assert own != "e.2"
    assert http.receive(Error(own, raw({"code": -32601, "message": "no"}))) == []
    assert kinds(http.receive(Result(own, raw({})))) == ["Count"]


def test_a_payload_passes_untouched(http: LinkDriver) -> None:
    http.call("a")
    value = {"content": [], "odd": [1.0, {"ü": None}], "_meta": {"x/y": 1}}
    assert plain(only(ue.Finish, http.result("e.2", value)).payload) == value
    assert not all_of(ue.Count, http.call("b"))


@pytest.mark.parametrize(("version", "context"), [("2025-03-26", False), ("2025-11-25", True)])
def test_a_call_goes_out_in_the_words_of_the_backends_revision(version: str, context: bool) -> None:
    driver = LinkDriver()
    driver.connect({**HELLO, "protocolVersion": version})
    params = {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": ""}, "context": {}}
    driver.call("a", "completion/complete", **params)
    assert ("context" in driver.wire["e.2"][1]) == context


def test_a_call_that_waited_for_the_handshake_does_too() -> None:
    driver = LinkDriver()
    driver.call("a", name="t", arguments={}, task={"ttl": 5})
    driver.step(ue.Started(False))
    driver.shake()
    assert "task" not in driver.wire["e.2"][1]


# Calls that are held


def test_a_call_that_was_sent_can_not_be_held(pipe: LinkDriver) -> None:
    pipe.call("a")
    assert pipe.step(ue.Hold("a")) == []
    assert pipe.step(ue.Hold("nobody")) == []


def test_a_held_call_is_due_when_it_could_be_sent_and_is_sent_when_it_is_released(pipe: LinkDriver) -> None:
    pipe.call("a")
    pipe.call("b")
    assert pipe.step(ue.Hold("b")) == [ue.Held("b")]
    assert pipe.step(ue.Hold("b")) == [], "it is already"
    effects = pipe.result(pipe.latest("tools/call"))
    assert (all_of(ue.Due, effects), sent(effects)) == ([ue.Due("b")], [])
    assert [m["method"] for m in sent(pipe.step(ue.Released("b")))] == ["tools/call"]
    assert pipe.step(ue.Released("b")) == []


def test_a_call_that_waits_for_a_connection_can_be_held() -> None:
    upstream = LinkDriver()
    upstream.call("a")
    upstream.call("b", "tools/list")
    assert upstream.step(ue.Hold("a")) == [ue.Held("a")]
    upstream.step(ue.Started(False))
    effects = upstream.shake()
    assert all_of(ue.Due, effects) == [ue.Due("a")]
    assert [m["method"] for m in sent(effects)] == ["tools/list"]
    assert finishes(upstream.step(ue.Closed("gone", "gone")))["a"][1]["data"]["executed"] == "no"
    assert upstream.step(ue.Released("a")) == [], "its outcome was said"


def test_of_held_calls_that_wait_for_their_turn_the_first_is_due(pipe: LinkDriver) -> None:
    for key in "abc":
        pipe.call(key)
    pipe.step(ue.Hold("b"))
    pipe.step(ue.Hold("c"))
    assert all_of(ue.Due, pipe.result(pipe.latest("tools/call"))) == [ue.Due("b")]
    assert pipe.step(ue.Abandoned("b", "bored")) == [ue.Due("c")]
    assert len(sent(pipe.step(ue.Released("c")))) == 1


def test_nobody_waits_for_a_call_that_is_due(pipe: LinkDriver) -> None:
    pipe.call("a")
    pipe.call("b")
    pipe.step(ue.Hold("b"))
    pipe.result(pipe.latest("tools/call"))
    assert len(sent(pipe.call("c"))) == 1
    assert pipe.step(ue.Released("b")) == [], "now it is its turn that it waits for"
    assert len(sent(pipe.result(pipe.latest("tools/call")))) == 1


def test_what_was_refused_for_an_unknown_session_was_sent_and_is_not_held(http: LinkDriver) -> None:
    http.call("a")
    http.step(SessionLost(http.latest("tools/call")))
    assert http.step(ue.Hold("a")) == []
