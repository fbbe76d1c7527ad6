"""One request of a client without sessions: where its outcome goes, and what may be said before it."""

import json
from typing import Any

import pytest
from msgspec import Raw

from actors.machines.modern import request as ev
from actors.machines.modern.request import TRANSITIONS, ModernRequest, Phase, step

COMPLETE = {"resultType": "complete", "content": []}
FORM = frozenset({"elicit.form"})


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


class Driver:
    """An exchange, and what it wanted."""

    def __init__(self, method: str = "tools/call", **members: Any) -> None:
        members.setdefault("id", 1)
        self.exchange = ModernRequest(method=method, params=raw({"name": "echo"}), **members)
        self.effects: list[Any] = []

    def on(self, event: Any) -> list[Any]:
        self.exchange, effects = step(self.exchange, event)
        self.effects += effects
        return list(effects)

    def begin(self) -> "Driver":
        self.on(ev.Begun(10.0))
        return self

    def stream(self) -> "Driver":
        self.begin().on(ev.HeadDue())
        return self

    def tell(self, method: str, params: Any) -> list[Any]:
        return self.on(ev.Notified(method, raw(params), 11.0))

    def end(self, result: Any = COMPLETE) -> list[Any]:
        return self.on(ev.Ended(True, raw(result)))

    def fail(self, code: int) -> list[Any]:
        return self.on(ev.Ended(False, raw({"code": code, "message": "no"})))


def answer(effects: list[Any]) -> tuple[int, Any]:
    found = [e for e in effects if isinstance(e, ev.Answer)]
    assert len(found) == 1
    return found[0].status, json.loads(found[0].body)


def written(effects: list[Any]) -> list[Any]:
    return [json.loads(e.frame) for e in effects if isinstance(e, ev.Write)]


def kinds(effects: list[Any]) -> list[type]:
    return [type(effect) for effect in effects]


# The answer


def test_the_clocks_run_before_the_request_goes_out_since_its_outcome_may_be_there_at_once() -> None:
    effects = Driver().on(ev.Begun(10.0))
    assert kinds(effects) == [ev.StartHeadClock, ev.StartDeadline, ev.Dispatch]


def test_a_result_that_comes_first_is_json() -> None:
    status, body = answer(Driver().begin().end())
    assert status == 200
    assert body == {"jsonrpc": "2.0", "id": 1, "result": COMPLETE}


@pytest.mark.parametrize("id", [1, "1", 0, "", -5])
def test_an_answer_has_the_id_of_its_request_in_value_and_type(id: int | str) -> None:
    body = answer(Driver(id=id).begin().end())[1]
    assert (body["id"], type(body["id"])) == (id, type(id))


@pytest.mark.parametrize(
    ("code", "status"),
    [(-32601, 404), (-32602, 400), (-32020, 400), (-32021, 400), (-32022, 400), (-32603, 200), (7, 200)],
)
def test_an_error_that_is_the_whole_answer_has_its_status(code: int, status: int) -> None:
    found, body = answer(Driver().begin().fail(code))
    assert (found, body["error"]["code"]) == (status, code)


def test_an_error_before_anything_was_asked_has_its_status_too() -> None:
    assert answer(Driver().fail(-32602))[0] == 400


def test_a_head_that_can_not_wait_makes_the_answer_a_stream_and_its_error_an_event() -> None:
    driver = Driver().begin()
    assert kinds(driver.on(ev.HeadDue())) == [ev.OpenStream]
    effects = driver.fail(-32602)
    assert written(effects)[0]["error"]["code"] == -32602
    assert effects[-1].last


def test_nothing_follows_the_answer() -> None:
    driver = Driver(token=1, level="debug").begin()
    driver.end()
    before = driver.exchange
    for event in (
        ev.Ended(True, raw(COMPLETE)),
        ev.Notified("notifications/progress", raw({"progress": 1}), 1.0),
        ev.HeadDue(),
        ev.DeadlineDue(),
        ev.DrainOverdue(),
        ev.Disconnected(),
        ev.Begun(1.0),
    ):
        assert kinds(driver.on(event)) == [ev.Count]
        assert driver.exchange is before


def test_a_deadline_cancels_and_is_an_error() -> None:
    effects = Driver().begin().on(ev.DeadlineDue())
    assert kinds(effects)[0] is ev.Cancel
    error = answer(effects)[1]["error"]
    assert (error["code"], error["data"]["reason"]) == (-32603, "timeout")


def test_a_drain_that_can_not_wait_cancels_and_is_an_error() -> None:
    driver = Driver().stream()
    effects = driver.on(ev.DrainOverdue())
    assert kinds(effects)[0] is ev.Cancel
    assert written(effects)[0]["error"]["data"]["reason"] == "draining"


@pytest.mark.parametrize("prepare", [Driver.begin, Driver.stream])
def test_a_client_that_disconnects_has_cancelled_also_where_the_answer_would_have_been_json(prepare: Any) -> None:
    driver = prepare(Driver())
    effects = driver.on(ev.Disconnected())
    assert ev.Cancel in kinds(effects)
    assert not {ev.Answer, ev.Write} & set(kinds(effects))
    assert driver.exchange.phase is Phase.ABANDONED


def test_one_that_goes_nowhere_cancels_nothing() -> None:
    assert Driver().on(ev.Disconnected()) == []


# Before the answer


def test_the_first_notification_opens_the_stream() -> None:
    driver = Driver(token="t").begin()
    effects = driver.tell("notifications/progress", {"progressToken": "ours", "progress": 1})
    assert kinds(effects) == [ev.StartDeadline, ev.StopHeadClock, ev.OpenStream, ev.Write]
    assert written(effects)[0]["params"] == {"progressToken": "t", "progress": 1}
    effects = driver.tell("notifications/progress", {"progressToken": "ours", "progress": 2})
    assert kinds(effects) == [ev.StartDeadline, ev.Write]


@pytest.mark.parametrize("token", ["1", 1])
def test_progress_bears_the_clients_own_token(token: int | str) -> None:
    params = written(Driver(token=token).begin().tell("notifications/progress", {"progress": 1}))[0]["params"]
    assert (params["progressToken"], type(params["progressToken"])) == (token, type(token))


def test_progress_that_does_not_rise_is_dropped() -> None:
    driver = Driver(token=1).begin()
    driver.tell("notifications/progress", {"progress": 2})
    for value in (2, 1.5, -1):
        assert kinds(driver.tell("notifications/progress", {"progress": value})) == [ev.Count]


def test_progress_that_nobody_wanted_is_dropped_and_the_head_still_waits() -> None:
    driver = Driver().begin()
    assert kinds(driver.tell("notifications/progress", {"progress": 2})) == [ev.Count]
    assert driver.exchange.phase is Phase.DISPATCHED


@pytest.mark.parametrize("params", [{}, {"progress": "much"}, [], None])
def test_progress_that_is_none_is_dropped(params: Any) -> None:
    assert kinds(Driver(token=1).begin().tell("notifications/progress", params)) == [ev.Count]


def test_log_messages_come_only_if_this_request_asked_for_them() -> None:
    assert kinds(Driver().begin().tell("notifications/message", {"level": "emergency", "data": 1})) == [ev.Count]


@pytest.mark.parametrize(("level", "heard"), [("debug", False), ("info", False), ("warning", True), ("alert", True)])
def test_log_messages_come_at_or_above_the_level_that_was_asked_for(level: str, heard: bool) -> None:
    effects = Driver(level="warning").begin().tell("notifications/message", {"level": level, "data": 1})
    assert bool(written(effects)) == heard


@pytest.mark.parametrize(
    "method",
    ["notifications/tools/list_changed", "notifications/resources/updated", "notifications/cancelled", "made/up"],
)
def test_what_belongs_on_a_subscription_never_comes_on_a_request(method: str) -> None:
    assert kinds(Driver(level="debug", token=1).begin().tell(method, {"uri": "a:b"})) == [ev.Count]


# Results


def test_a_result_of_an_older_server_is_complete() -> None:
    assert answer(Driver().begin().end({"content": []}))[1]["result"]["resultType"] == "complete"


@pytest.mark.parametrize(
    "method",
    [
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
    ],
)
@pytest.mark.parametrize("hints", [{}, {"ttlMs": -1, "cacheScope": "all"}, {"ttlMs": "1"}, {"ttlMs": True}])
def test_the_six_have_cache_hints(method: str, hints: Any) -> None:
    result = answer(Driver(method).begin().end({"resultType": "complete", **hints}))[1]["result"]
    assert (result["ttlMs"], result["cacheScope"]) == (0, "private")


def test_hints_that_are_there_stay() -> None:
    result = {"resultType": "complete", "ttlMs": 5, "cacheScope": "public", "tools": []}
    assert answer(Driver("tools/list").begin().end(result))[1]["result"] == result


def test_other_results_have_no_hints() -> None:
    assert "ttlMs" not in answer(Driver().begin().end())[1]["result"]


@pytest.mark.parametrize("kind", ["task", "", 3, None, "Complete"])
def test_a_result_of_a_type_that_nobody_negotiated_fails_the_request(kind: Any) -> None:
    status, body = answer(Driver().begin().end({"resultType": kind}))
    assert (status, body["error"]["code"]) == (200, -32603)


# Questions


def asking(method: str = "elicitation/create", **params: Any) -> Any:
    return {"resultType": "input_required", "inputRequests": {"a": {"method": method, "params": params}}}


@pytest.mark.parametrize("method", ["tools/call", "prompts/get", "resources/read"])
def test_questions_that_were_declared_pass_and_are_not_cacheable(method: str) -> None:
    result = answer(Driver(method, bits=FORM).begin().end(asking(message="?")))[1]["result"]
    assert result == asking(message="?")


def test_a_state_without_questions_passes() -> None:
    result = {"resultType": "input_required", "requestState": "s"}
    assert answer(Driver().begin().end(result))[1]["result"] == result


@pytest.mark.parametrize("method", ["tools/list", "completion/complete", "server/discover", "resources/list"])
def test_questions_on_other_methods_fail_the_request(method: str) -> None:
    assert answer(Driver(method, bits=FORM).begin().end(asking()))[1]["error"]["code"] == -32603


@pytest.mark.parametrize(
    ("question", "needed"),
    [
        (asking(mode="url"), {"elicitation": {"url": {}}}),
        (asking("sampling/createMessage"), {"sampling": {}}),
        (asking("sampling/createMessage", tools=[]), {"sampling": {"tools": {}}}),
        (asking("roots/list"), {"roots": {}}),
    ],
)
def test_a_question_that_was_not_declared_is_refused_with_what_it_needs(question: Any, needed: Any) -> None:
    status, body = answer(Driver(bits=FORM).begin().end(question))
    assert (status, body["error"]["code"]) == (400, -32021)
    assert body["error"]["data"] == {"requiredCapabilities": needed}


@pytest.mark.parametrize("requests", [{"a": {"method": "ping"}}, {"a": 1}, [], {"a": {"method": 1}}, 3])
def test_questions_that_are_none_fail_the_request(requests: Any) -> None:
    result = {"resultType": "input_required", "inputRequests": requests}
    assert answer(Driver(bits=FORM).begin().end(result))[1]["error"]["code"] == -32603


# The table


def test_every_event_in_every_phase_is_served_by_the_table_or_changes_nothing() -> None:
    samples = [
        ev.Begun(1.0),
        ev.Notified("notifications/message", raw({"level": "error", "data": 1}), 1.0),
        ev.Ended(True, raw(COMPLETE)),
        ev.HeadDue(),
        ev.DeadlineDue(),
        ev.DrainOverdue(),
        ev.Disconnected(),
    ]
    assert {type(event) for event in samples} == set(ev.CAUSES)
    for phase in Phase:
        for event in samples:
            before = ModernRequest(id=1, method="tools/call", params=raw({}), level="debug", phase=phase)
            after, effects = step(before, event)
            to = TRANSITIONS.get((phase, ev.CAUSES[type(event)]))
            if to is None:
                assert after is before
                assert kinds(effects) == [ev.Count]
            else:
                assert after.phase is to
