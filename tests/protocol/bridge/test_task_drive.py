"""Tools that run only as tasks, for clients that have none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from actors.machines.upstream import task_drive
from actors.machines.upstream.task_drive import (
    FAILURES_MAX,
    POLL_DEFAULT,
    POLL_MAX,
    POLL_MIN,
    TRANSITIONS,
    Answered,
    Cancelled,
    Drive,
    Drop,
    Finish,
    Phase,
    PollDue,
    Send,
    StartPoll,
    StatusNotified,
    StopPoll,
    step,
)
from actors.protocol import capabilities, tasks
from actors.protocol.meta import RELATED_TASK_KEY

SCHEMA = "2025-11-25"


def raw(value):
    return Raw(json.dumps(value).encode())


SERVER = capabilities.parse(raw({"tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}}))
CALL = raw({"name": "t", "arguments": {"a": 1}, "_meta": {"progressToken": 1}})
RESULT = {"content": [{"type": "text", "text": "done"}], "isError": True}
GONE = raw({"code": -32602, "message": "Task not found"})
LOST = raw({"code": -32603, "message": "lost"})


def task(status="working", id="T", **more):
    return {
        "taskId": id,
        "status": status,
        "createdAt": "2025-11-25T10:30:00Z",
        "lastUpdatedAt": "2025-11-25T10:30:00Z",
        "ttl": None,
        **more,
    }


def ran(*events, server=SERVER):
    """The state and the last effects after these events; outcomes go to the newest request."""
    drive, effects = task_drive.start(CALL, server, ttl=60)
    for event in events:
        event = Answered(drive.request, *event) if isinstance(event, tuple) else event
        drive, effects = step(drive, event)
    return drive, effects


def created(status="working", **more):
    return True, raw({"task": task(status, **more)})


def looked(status="working", **more):
    return True, raw(task(status, **more))


def asked(effects, method):
    (send,) = [effect for effect in effects if isinstance(effect, Send)]
    assert (send.method, json.loads(bytes(send.params))) == (method, {"taskId": "T"})
    return send


def test_the_call_is_made_as_a_task(conforms):
    drive, (send,) = task_drive.start(CALL, SERVER, ttl=60)
    assert send.method == "tools/call"
    assert json.loads(bytes(send.params)) == {**json.loads(bytes(CALL)), "task": {"ttl": 60_000}}
    conforms(SCHEMA, "CallToolRequestParams", send.params)
    assert drive.phase is Phase.CREATING
    _, (send,) = task_drive.start(CALL, SERVER)
    assert json.loads(bytes(send.params))["task"] == {}


def test_a_working_task_is_polled_until_it_is_over_and_its_result_is_the_calls(conforms):
    drive, effects = ran(created(pollInterval=5000))
    assert (drive.phase, effects) == (Phase.WAITING, [StartPoll(5.0)])
    drive, effects = ran(created(), PollDue())
    conforms(SCHEMA, "GetTaskRequest", message(asked(effects, "tasks/get")))
    drive, effects = ran(created(), PollDue(), looked(pollInterval=2000), PollDue(), looked("completed"))
    conforms(SCHEMA, "GetTaskPayloadRequest", message(asked(effects, "tasks/result")))
    final = {**RESULT, "_meta": {RELATED_TASK_KEY: {"taskId": "T"}, "x": 1}}
    drive, effects = step(drive, Answered(drive.request, True, raw(final)))
    assert drive.phase is Phase.OVER
    (finish,) = effects
    assert finish.ok
    assert json.loads(bytes(finish.payload)) == {**RESULT, "_meta": {"x": 1}}


def message(send):
    return {"jsonrpc": "2.0", "id": 1, "method": send.method, "params": json.loads(bytes(send.params))}


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled", "input_required"])
def test_a_task_that_is_over_or_needs_input_is_fetched_at_once(status):
    for events in ((created(status),), (created(), PollDue(), looked(status))):
        drive, effects = ran(*events)
        assert drive.phase is Phase.FETCHING
        asked(effects, "tasks/result")


def test_a_status_that_is_told_saves_a_poll():
    drive, effects = ran(created(), StatusNotified(raw(task("completed"))))
    assert effects[0] == StopPoll()
    asked(effects, "tasks/result")
    for other in (task("completed", id="U"), task("working"), {}, 5):
        drive, effects = ran(created(), StatusNotified(raw(other)))
        assert (drive.phase, effects) == (Phase.WAITING, [])
    drive, effects = ran(created(), PollDue(), StatusNotified(raw(task("completed"))))
    assert (drive.phase, effects) == (Phase.POLLING, [])


def test_a_result_that_comes_at_once_is_the_calls_and_so_is_an_error():
    (finish,) = ran((True, raw(RESULT)))[1]
    assert (finish.ok, json.loads(bytes(finish.payload))) == (True, RESULT)
    (finish,) = ran((False, LOST, True))[1]
    assert (finish.ok, finish.payload) == (False, LOST)


def test_the_tools_own_error_is_the_calls():
    own = raw({"code": 42, "message": "m"})
    drive, (finish,) = ran(created("failed"), (False, own))
    assert (drive.phase, finish.ok, finish.payload) == (Phase.OVER, False, own)


def test_a_task_that_is_gone_ends_the_call():
    drive, (finish,) = ran(created(), PollDue(), (False, GONE))
    assert drive.phase is Phase.OVER
    assert json.loads(bytes(finish.payload))["data"]["reason"] == "task_gone"


@pytest.mark.parametrize("failure", [(False, LOST, True), (False, LOST), (True, raw({})), looked(id="U")])
def test_polls_may_fail_but_not_for_ever(failure):
    events = [created()]
    for _ in range(FAILURES_MAX - 1):
        events += [PollDue(), failure]
        drive, effects = ran(*events)
        assert (drive.phase, effects) == (Phase.WAITING, [StartPoll(POLL_DEFAULT)])
    drive, (finish,) = ran(*events, PollDue(), failure)
    assert (drive.phase, finish.ok) == (Phase.OVER, False)
    drive, effects = ran(*events, PollDue(), looked(), PollDue(), failure)
    assert drive.phase is Phase.WAITING


def test_a_result_that_was_lost_is_fetched_again_and_the_call_is_never_made_again():
    lost = (False, LOST, True)
    drive, effects = ran(created("input_required"), lost)
    assert (drive.phase, effects) == (Phase.WAITING, [StartPoll(POLL_DEFAULT)])
    drive, effects = ran(created("input_required"), lost, PollDue(), looked("completed"))
    asked(effects, "tasks/result")


@pytest.mark.parametrize(
    ("interval", "seconds"),
    [
        (0, POLL_MIN),
        (1, POLL_MIN),
        (-5, POLL_MIN),
        (3000, 3),
        (1500.5, 1.5005),
        (10**12, POLL_MAX),
        (10**400, POLL_MAX),
    ],
)
def test_the_servers_interval_is_kept_within_reason(interval, seconds):
    assert ran(created(pollInterval=interval))[1] == [StartPoll(seconds)]


@pytest.mark.parametrize("interval", ["5", None, True, []])
def test_an_interval_that_is_no_number_is_none(interval):
    assert ran(created(pollInterval=interval))[1] == [StartPoll(POLL_DEFAULT)]


# Cancelling


def test_a_call_that_became_a_task_is_cancelled_as_one():
    for events, stopped in (
        ((created(),), StopPoll()),
        ((created(), PollDue()), Drop(1, "r")),
        ((created("input_required"),), Drop(1, "r")),
    ):
        drive, effects = ran(*events, Cancelled("r"))
        assert drive.phase is Phase.OVER
        assert effects[0] == stopped
        asked(effects, "tasks/cancel")
        assert step(drive, Answered(drive.request, True, raw(task("cancelled")))) == (drive, [])


def test_a_task_that_is_not_known_yet_is_cancelled_once_it_is():
    drive, effects = ran(Cancelled("r"))
    assert (drive.phase, effects) == (Phase.ABANDONED, [])
    drive, effects = ran(Cancelled("r"), created())
    assert drive.phase is Phase.OVER
    asked(effects, "tasks/cancel")
    for outcome in ((True, raw(RESULT)), (False, LOST, True)):
        drive, effects = ran(Cancelled("r"), outcome)
        assert (drive.phase, effects) == (Phase.OVER, [])


def test_a_server_that_cannot_cancel_tasks_is_not_asked_to():
    server = capabilities.parse(raw({"tasks": {"requests": {"tools": {"call": {}}}}}))
    assert ran(created(), Cancelled("r"), server=server)[1] == [StopPoll()]
    assert ran(Cancelled("r"), created(), server=server)[1] == []


def test_what_comes_late_changes_nothing():
    drive, _ = ran(created(), PollDue(), looked())
    for late in (Answered(0, *created()), Answered(1, *looked("completed")), Answered(99, *looked())):
        assert step(drive, late) == (drive, [])
    over, _ = ran((True, raw(RESULT)))
    for late in (Answered(0, *created()), PollDue(), StatusNotified(raw(task())), Cancelled("r")):
        assert step(over, late) == (over, [])


# Which calls


@pytest.mark.parametrize("support", ["required", "optional", "forbidden", None, 5])
def test_only_a_tool_that_insists_is_driven(support):
    tool = raw({"name": "t", "execution": {"taskSupport": support}})
    assert task_drive.needs_task(tool, SERVER) == (support == "required")
    assert not task_drive.needs_task(tool, capabilities.NOTHING)
    assert not task_drive.needs_task(raw({"name": "t", "description": "taskSupport"}), SERVER)


def test_what_belongs_to_a_task_names_it():
    assert tasks.related_task(raw({"_meta": {RELATED_TASK_KEY: {"taskId": "T"}}})) == "T"
    for other in ({}, {"_meta": 5}, {"_meta": {RELATED_TASK_KEY: "T"}}, {"_meta": {RELATED_TASK_KEY: {"taskId": 5}}}):
        assert tasks.related_task(raw(other)) is None


# Anything


PAYLOADS = st.sampled_from(
    [
        *(
            raw(made)
            for status in ("working", "input_required", "completed", "odd")
            for made in ({"task": task(status)}, task(status))
        ),
        *(raw(RESULT), raw({}), raw({"task": 5}), raw({"task": {"taskId": 5}}), GONE, LOST, Raw(b"5")),
    ]
)
EVENTS = st.one_of(
    st.builds(Answered, st.integers(0, 4), st.booleans(), PAYLOADS, st.booleans()),
    st.just(PollDue()),
    st.builds(StatusNotified, PAYLOADS),
    st.just(Cancelled("r")),
)


@given(st.lists(EVENTS, max_size=25))
def test_any_story_has_one_call_at_most_one_request_and_one_outcome(events):
    drive, effects = task_drive.start(CALL, SERVER)
    said = list(effects)
    for event in events:
        before = drive.phase
        drive, effects = step(drive, event)
        said += effects
        if drive.phase is not before:
            assert drive.phase in {after for (phase, _), after in TRANSITIONS.items() if phase is before}
        if before is Phase.OVER:
            assert effects == []
    sends = [effect for effect in said if isinstance(effect, Send)]
    assert [send.request for send in sends] == list(range(len(sends)))
    assert [send.method for send in sends].count("tools/call") == 1
    finished = [effect for effect in said if isinstance(effect, Finish)]
    cancelled = any(isinstance(event, Cancelled) for event in events)
    assert len(finished) <= 1
    if drive.phase is Phase.OVER:
        assert finished or cancelled
    assert isinstance(drive, Drive)
