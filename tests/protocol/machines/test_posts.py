"""What a POST may bring and what it gets: ids, gates, batches, caps."""

from typing import Any

import pytest
from msgspec import Raw

from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.machines.session.state import Rules
from actors.protocol import errors
from actors.protocol.messages import Error, Request, Result
from tests.protocol.machines.driving import (
    BATCHES,
    FORMS,
    INFO,
    NEWEST,
    OLD,
    RESULTS,
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
    said,
)

IDS: list[Any] = [0, -1, 2**63, 2**70, "", "1", "i:1", "ä\u2028", "x" * 1000]


@pytest.mark.parametrize("id", IDS)
def test_an_answer_has_the_very_id_of_its_request(session: SessionDriver, id: Any) -> None:
    session.post(request(id, "tools/list"))
    body = plain(only(fx.AnswerPost, session.end(id)).body)
    assert body["id"] == id
    assert type(body["id"]) is type(id)


def test_a_number_and_its_text_are_two_requests(session: SessionDriver) -> None:
    session.post(request(1, "tools/list"))
    session.post(request("1", "prompts/list"))
    assert answers(session.end("1"))["1"]["result"] == {"prompts": []}
    assert answers(session.end(1))[1]["result"] == {"tools": []}


def test_an_id_in_flight_is_refused_and_free_again_after_its_outcome(session: SessionDriver) -> None:
    session.post(call(1))
    before = session.session
    refused = only(fx.RefusePost, session.post(request(1, "tools/list")))
    assert (refused.error.code, refused.error.status, refused.id) == (-32600, 400, 1)
    assert session.session is before
    session.end(1)
    session.post(request(1, "tools/list"))
    assert 1 in answers(session.end(1))


def test_a_request_is_dispatched_once_and_answered_as_json(session: SessionDriver) -> None:
    assert kinds(session.post(call(7))) == ["StartTurnClock", "Dispatch"]
    effects = session.end(7)
    assert kinds(effects) == ["StopTurnClock", "AnswerPost"]
    assert answers(effects)[7]["result"] == RESULTS["tools/call"]


def test_the_error_of_a_backend_passes_as_it_is(session: SessionDriver) -> None:
    session.post(call(7))
    error = {"code": -32042, "message": "go there", "data": {"elicitations": [], "own": 1}}
    effects = session.step(ev.CallEnded(session.calls[7], False, raw(error)))
    assert plain(only(fx.AnswerPost, effects).body)["error"] == error


@pytest.mark.parametrize("message", [notification("notifications/roots/list_changed"), notification("odd/thing")])
def test_a_notification_is_accepted_without_a_body(session: SessionDriver, message: Any) -> None:
    assert kinds(session.post(message))[-1] == "Accept"


def test_a_ping_is_answered_here(session: SessionDriver) -> None:
    effects = session.post(request("p", "ping"))
    assert kinds(effects) == ["StartTurnClock", "StopTurnClock", "AnswerPost"]
    assert answers(effects)["p"]["result"] == {}


# Gates


@pytest.mark.parametrize(
    ("method", "capability"),
    [
        ("tools/call", "tools"),
        ("tools/list", "tools"),
        ("prompts/get", "prompts"),
        ("resources/read", "resources"),
        ("resources/templates/list", "resources"),
        ("completion/complete", "completions"),
        ("logging/setLevel", "logging"),
    ],
)
def test_methods_of_an_undeclared_capability_are_not_found(method: str, capability: str) -> None:
    without = {"tools": {}, "prompts": {}, "resources": {}, "completions": {}, "logging": {}}
    del without[capability]
    driver = SessionDriver().initialize(server=without)
    assert answers(driver.post(request(1, method, level="info")))[1]["error"]["code"] == -32601
    driver = SessionDriver().initialize(server={capability: {}})
    assert only(fx.Dispatch, driver.post(request(1, method, level="info"))).method == method


def test_subscribing_needs_its_own_flag() -> None:
    driver = SessionDriver().initialize(server={"resources": {"subscribe": False}})
    effects = driver.post(request(1, "resources/subscribe", uri="x:1"))
    assert answers(effects)[1]["error"]["code"] == -32601


@pytest.mark.parametrize("method", ["tasks/list", "odd/method", "sampling/createMessage", "notifications/initialized"])
def test_a_method_that_is_none_of_the_clients_is_not_found(session: SessionDriver, method: str) -> None:
    assert answers(session.post(request(1, method)))[1]["error"]["code"] == -32601


def test_a_transparent_endpoint_passes_what_only_its_ends_know_but_no_lists_of_tasks() -> None:
    driver = SessionDriver(rules=Rules(gates=False), check=False).initialize(server={})
    assert only(fx.Dispatch, driver.post(request(1, "odd/method"))).method == "odd/method"
    assert only(fx.Broadcast, driver.post(notification("odd/said"))).method == "odd/said"
    assert said(driver.tell(1, "odd/news", a=1))[0][1] == {"jsonrpc": "2.0", "method": "odd/news", "params": {"a": 1}}
    assert answers(driver.post(request(2, "tasks/list")))[2]["error"]["code"] == -32601
    assert kinds(driver.post(notification("notifications/tasks/status"))) == ["Broadcast", "Accept"]
    assert kinds(driver.post(notification("tools/call"))) == ["Count", "Accept"]


def test_completion_is_older_than_its_capability() -> None:
    driver = SessionDriver(OLD).initialize(server={"prompts": {}})
    assert only(fx.Dispatch, driver.post(request(1, "completion/complete")))


def test_a_change_of_roots_needs_its_capability() -> None:
    changed = notification("notifications/roots/list_changed")
    assert only(fx.Broadcast, SessionDriver().initialize().post(changed)).method == changed.method
    driver = SessionDriver().initialize(client={"roots": {}})
    assert kinds(driver.post(changed)) == ["Count", "Accept"]


@pytest.mark.parametrize(
    ("method", "server", "client"),
    [
        ("notifications/message", {"tools": {}}, {}),
        ("notifications/tools/list_changed", {"tools": {}}, {}),
        ("notifications/resources/updated", {"resources": {}}, {}),
        ("notifications/elicitation/complete", {}, {"elicitation": {}}),
        ("odd/news", {}, {}),
        ("notifications/initialized", {}, {}),
    ],
)
def test_notifications_of_an_undeclared_feature_reach_no_client(method: str, server: Any, client: Any) -> None:
    driver = SessionDriver().initialize(server=server, client=client)
    driver.get()
    assert kinds(driver.tell(None, method, uri="x:1", level="error", data=1, elicitationId="e")) == ["Count"]


@pytest.mark.parametrize("level", ["loud", 5, None, ["info"]])
def test_an_unknown_log_level_is_refused_here(session: SessionDriver, level: Any) -> None:
    effects = session.post(request(1, "logging/setLevel", level=level))
    assert answers(effects)[1]["error"]["code"] == -32602
    assert session.session.level is None


@pytest.mark.parametrize(("level", "kept"), [("loud", "loud"), (5, ""), (None, ""), ("x" * 129, "")])
def test_before_one_server_a_level_that_it_accepts_lets_everything_pass(level: Any, kept: str) -> None:
    session = SessionDriver(rules=Rules(gates=False)).initialize()
    session.get()
    session.post(request(1, "logging/setLevel", level="error"))
    session.end(1)
    assert kinds(session.tell(None, "notifications/message", level="info", data="x")) == ["Count"]
    session.post(request(2, "logging/setLevel", level=level))
    session.end(2)
    assert session.session.level == kept
    assert said(session.tell(None, "notifications/message", level="debug", data="x"))


def test_a_log_level_is_in_force_once_it_is_accepted(session: SessionDriver) -> None:
    session.get()
    effects = session.post(request(1, "logging/setLevel", level="warning"))
    assert said(session.tell(None, "notifications/message", level="notice", data="x"))
    effects = session.end(1)
    assert [type(e) for e in effects if not isinstance(e, fx.StopTurnClock)] == [fx.UseLevel, fx.AnswerPost]
    assert kinds(session.tell(None, "notifications/message", level="notice", data="x")) == ["Count"]
    assert said(session.tell(None, "notifications/message", level="warning", data="x"))


def test_a_log_level_that_is_refused_leaves_the_one_of_before(session: SessionDriver) -> None:
    session.get()
    session.post(request(1, "logging/setLevel", level="warning"))
    session.end(1)
    for level in ("debug", "emergency"):
        session.post(request(2, "logging/setLevel", level=level))
        assert not all_of(fx.UseLevel, session.fail(2, errors.method_not_found("logging/setLevel")))
    assert kinds(session.tell(None, "notifications/message", level="notice", data="x")) == ["Count"]
    assert said(session.tell(None, "notifications/message", level="warning", data="x"))


def test_params_that_cannot_be_read_are_refused_by_themselves(session: SessionDriver) -> None:
    deep = Raw(b'{"_meta":{"progressToken":' + b"[" * 2000 + b"]" * 2000 + b"}}")
    assert answers(session.post(Request(1, "tools/call", deep)))[1]["error"]["code"] == -32602


# Batches


def batch(version: str = BATCHES) -> SessionDriver:
    return SessionDriver(version).initialize()


@pytest.mark.parametrize("version", [OLD, FORMS, NEWEST])
def test_batches_exist_only_in_their_revision(version: str) -> None:
    driver = batch(version)
    before = driver.session
    refused = only(fx.RefusePost, driver.post(request(1, "ping"), batch=True))
    assert (refused.error.code, refused.error.status) == (-32600, 400)
    assert driver.session is before


def test_a_batch_before_there_is_a_revision_is_refused() -> None:
    driver = SessionDriver(BATCHES)
    init = request(1, "initialize", protocolVersion=BATCHES, capabilities={}, clientInfo=INFO)
    assert only(fx.RefusePost, driver.post(init, batch=True)).error.status == 400


def test_initialize_can_not_be_in_a_batch() -> None:
    init = request(1, "initialize", protocolVersion=BATCHES, capabilities={}, clientInfo=INFO)
    assert only(fx.RefusePost, batch().post(request(2, "ping"), init, batch=True)).error.code == -32600


def test_two_requests_and_a_notification_get_two_answers_in_one_array() -> None:
    driver = batch()
    message = notification("notifications/roots/list_changed")
    effects = driver.post(call(1), message, request(2, "tools/list"), batch=True)
    assert kinds(effects) == ["StartTurnClock", "Dispatch", "Broadcast", "Dispatch"]
    assert driver.end(2) == []
    effects = driver.end(1)
    body = plain(only(fx.AnswerPost, effects).body)
    assert {m["id"]: "result" in m for m in body} == {1: True, 2: True}


def test_a_batch_of_one_is_answered_by_an_array_of_one() -> None:
    driver = batch()
    driver.post(call(1), batch=True)
    assert [m["id"] for m in plain(only(fx.AnswerPost, driver.end(1)).body)] == [1]
    assert [m["id"] for m in plain(only(fx.AnswerPost, driver.post(request(2, "ping"), batch=True)).body)] == [2]


def test_a_batch_without_a_request_is_accepted() -> None:
    message = notification("notifications/roots/list_changed")
    assert kinds(batch().post(message, message, batch=True)) == ["Broadcast", "Broadcast", "Accept"]


def test_an_id_twice_in_one_batch_is_refused_as_a_whole() -> None:
    driver = batch()
    before = driver.session
    assert only(fx.RefusePost, driver.post(call(1), call(1), batch=True)).id == 1
    assert driver.session is before
    driver.post(call(1), call("1"), batch=True)
    assert len(driver.session.requests) == 2


def test_a_number_and_its_text_in_one_batch_get_an_answer_each() -> None:
    driver = batch()
    driver.post(call(1), call("1"), batch=True)
    assert driver.end("1") == []
    assert [m["id"] for m in plain(only(fx.AnswerPost, driver.end(1)).body)] == ["1", 1]
    driver.post(call(2), call("2"), batch=True)
    driver.step(ev.StreamTurnDue(driver.last))
    assert [only(fx.Append, driver.end(id)).finish for id in (2, "2")] == [False, True]


def test_a_batch_that_became_a_stream_has_an_event_for_each_answer() -> None:
    driver = batch()
    driver.post(call(1), call(2), request(3, "ping"), batch=True)
    driver.end(2)
    effects = driver.step(ev.StreamTurnDue(driver.last))
    opened = only(fx.OpenStream, effects)
    assert opened.requests == {"i:1": b"p1", "i:2": b"p1", "i:3": b"p1"}
    assert [m["id"] for _, m in said(effects)] == [3, 2]
    assert [a.requests for a in all_of(fx.Append, effects)] == [{"i:3": None}, {"i:2": None}]
    last = only(fx.Append, driver.end(1))
    assert (last.seq, last.finish, last.requests) == (3, True, {"i:1": None})


def test_one_of_a_batch_can_be_cancelled_and_the_others_go_on() -> None:
    driver = batch()
    driver.post(call(1), call(2), batch=True)
    effects = driver.post(notification("notifications/cancelled", requestId=1))
    assert kinds(effects) == ["CancelCall", "Accept"]
    body = plain(only(fx.AnswerPost, driver.end(2)).body)
    assert [(m["id"], m.get("error", {}).get("code")) for m in body] == [(1, -32800), (2, None)]


def test_a_request_can_be_cancelled_by_the_batch_it_is_in() -> None:
    effects = batch().post(call(1), notification("notifications/cancelled", requestId=1), batch=True)
    assert kinds(effects) == ["StartTurnClock", "Dispatch", "CancelCall", "StopTurnClock", "AnswerPost"]


UNREADABLE = ((5, errors.invalid_request("odd").raw), (None, errors.invalid_request("odd").raw))


def test_members_that_could_not_be_read_get_errors_beside_the_other_answers() -> None:
    driver = batch()
    driver.post(call(1), batch=True, refused=UNREADABLE)
    body = plain(only(fx.AnswerPost, driver.end(1)).body)
    assert [m.get("id") for m in body] == [5, None, 1]
    assert "id" not in body[1]


def test_a_batch_of_which_nothing_could_be_read_gets_its_errors() -> None:
    driver = batch()
    before = driver.session
    body = plain(only(fx.AnswerPost, driver.post(batch=True, refused=UNREADABLE)).body)
    assert [m["error"]["code"] for m in body] == [-32600, -32600]
    assert driver.session is before
    effects = driver.post(notification("notifications/roots/list_changed"), batch=True, refused=UNREADABLE)
    assert kinds(effects) == ["Broadcast", "AnswerPost"]


# Caps


def test_a_request_too_many_is_refused_with_429() -> None:
    driver = SessionDriver(BATCHES, rules=Rules(requests=2)).initialize()
    driver.post(call(1))
    before = driver.session
    refused = only(fx.RefusePost, driver.post(call(2), call(3), batch=True))
    assert (refused.error.status, refused.error.retry_after, refused.id) == (429, 1, 2)
    assert driver.session is before
    driver.post(call(2))
    assert only(fx.RefusePost, driver.post(call(3))).error.status == 429
    assert answers(driver.post(request("p", "ping"))), "a ping needs no place"
    driver.end(1)
    assert only(fx.Dispatch, driver.post(call(3)))


def test_a_batch_that_can_never_have_room_is_invalid() -> None:
    driver = SessionDriver(BATCHES, rules=Rules(requests=2)).initialize()
    refused = only(fx.RefusePost, driver.post(call(1), call(2), call(3), batch=True))
    assert (refused.error.code, refused.error.status) == (-32600, 400)


def test_a_call_whose_connection_broke_keeps_its_place() -> None:
    driver = SessionDriver(rules=Rules(requests=1)).initialize()
    driver.post(call(1))
    driver.step(ev.PostBroken(driver.last))
    assert only(fx.RefusePost, driver.post(call(2))).error.status == 429


# Responses of the client


@pytest.mark.parametrize("id", [1, "1", "10.", "10.1", "10.7", ".1", "10.x", "10." + "9" * 5000, "10.٣", None])
def test_a_response_to_nothing_is_refused(session: SessionDriver, id: Any) -> None:
    session.ask(None)
    before = session.session
    message = Error(id, raw({"code": -1, "message": "no"})) if id is None else Result(id, raw({}))
    effects = session.post(message if id != "10.1" else Result("10.2", raw({})))
    assert only(fx.RefusePost, effects).error.status == 400
    assert session.session is before


def test_a_response_of_an_earlier_life_or_to_a_settled_question_is_accepted_and_dropped(session: SessionDriver) -> None:
    session.ask(None)
    session.step(ev.ServerRequestExpired("10.1"))
    before = session.session
    for id in ("10.1", "zz.5"):
        assert kinds(session.post(Result(id, raw({})))) == ["Count", "Accept"]
    assert session.session is before


def test_nothing_of_a_post_is_done_when_one_message_of_it_is_refused() -> None:
    driver = batch()
    before = driver.session
    effects = driver.post(call(1), Result("10.9", raw({})), batch=True)
    assert kinds(effects) == ["RefusePost"]
    assert driver.session is before
    assert not all_of(fx.Dispatch, effects)
