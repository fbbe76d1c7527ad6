"""Tasks of 2025-11-25 between a client and servers with sessions."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from actors.protocol import capabilities, tasks, translate
from actors.protocol.errors import Refusal
from actors.protocol.meta import RELATED_TASK_KEY
from actors.protocol.tasks import CLIENT_TASKS_MAX, ClientTasks
from actors.protocol.versions import MODERN, VERSIONS

NEWEST = VERSIONS[-1]
TIMES = {"createdAt": "2025-11-25T10:30:00Z", "lastUpdatedAt": "2025-11-25T10:30:00Z", "ttl": None}
TASK = {"taskId": "T", "status": "working", **TIMES}
SERVER = {"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}, "tools": {}}
CLIENT = {"tasks": {"requests": {"sampling": {"createMessage": {}}, "elicitation": {"create": {}}}}}


def raw(value):
    return Raw(json.dumps(value).encode())


def plain(made):
    return json.loads(bytes(made))


def declared(value):
    return capabilities.parse(raw(value))


def refused(call, *arguments):
    with pytest.raises(Refusal) as caught:
        call(*arguments)
    return caught.value.error


# Capabilities


def test_a_list_of_tasks_is_never_offered():
    assert plain(tasks.offered(raw(SERVER))) == {
        "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}},
        "tools": {},
    }
    for value in (CLIENT, {"tools": {}}):
        same = raw(value)
        assert tasks.offered(same) is same


@pytest.mark.parametrize("empty", [{}, {"list": {}}, {"requests": {}}, {"requests": {"tools": {}}}, 5, []])
def test_tasks_that_nobody_can_make_are_not_offered(empty):
    assert plain(tasks.offered(raw({"tasks": empty, "tools": {}}))) == {"tools": {}}


@pytest.mark.parametrize(
    ("receiver", "method", "may"),
    [
        (SERVER, "tools/call", True),
        (SERVER, "prompts/get", False),
        (SERVER, "sampling/createMessage", False),
        (CLIENT, "sampling/createMessage", True),
        (CLIENT, "elicitation/create", True),
        ({}, "tools/call", False),
    ],
)
def test_what_may_be_made_as_a_task_its_receiver_says(receiver, method, may):
    for version in (*VERSIONS, MODERN):
        assert tasks.may_augment(declared(receiver), version, method) == (may and version == NEWEST)


@pytest.mark.parametrize(
    ("receiver", "method", "may"),
    [
        (SERVER, "tasks/get", True),
        (SERVER, "tasks/result", True),
        (SERVER, "tasks/cancel", True),
        (SERVER, "tasks/list", False),
        (CLIENT, "tasks/get", True),
        (CLIENT, "tasks/cancel", False),
        ({}, "tasks/get", False),
        (SERVER, "tasks/update", False),
    ],
)
def test_what_may_be_asked_about_a_task_too(receiver, method, may):
    for version in (*VERSIONS, MODERN):
        refusal = tasks.refusal(declared(receiver), version, method)
        assert (refusal is None) == (may and version == NEWEST)
        assert refusal is None or refusal.code == -32601


# Names


@given(st.sampled_from(["a", "b.c", "x-y"]), st.text())
def test_an_exposed_task_leads_back_to_its_backend(backend, task):
    assert tasks.resolve(tasks.expose(backend, task), {"a", "b.c", "x-y"}) == (backend, task)


@pytest.mark.parametrize("id", ["", "T", ":T", "gone:T", "A:T"])
def test_a_task_of_no_backend_is_unknown(id):
    assert refused(tasks.resolve, id, {"a"}).code == -32602


def test_the_task_of_a_request_is_in_its_params():
    assert tasks.target(raw({"taskId": "T", "_meta": {RELATED_TASK_KEY: {"taskId": "other"}}})) == "T"
    for params in ({}, {"taskId": 5}):
        assert refused(tasks.target, raw(params)).code == -32602


# Tasks of clients


def test_a_clients_task_is_that_backends_alone_for_which_it_was_made():
    mine = ClientTasks().made("a", raw({"task": TASK}))
    mine.check("a", raw({"taskId": "T"}))
    assert refused(mine.check, "b", raw({"taskId": "T"})).code == -32602
    assert refused(mine.check, "a", raw({"taskId": "U"})).code == -32602
    assert mine.owner(raw(TASK)) == "a"
    assert mine.owner(raw({"taskId": "U"})) is None
    assert mine.owner(raw({})) is None
    assert mine.made("b", raw({"task": TASK})) is mine


def test_a_result_that_is_no_task_leaves_no_trace():
    for result in ({"action": "accept"}, {"task": 5}, {"task": {}}, {"task": {"taskId": 5}}):
        assert ClientTasks().made("a", raw(result)) == ClientTasks()


def test_a_client_cannot_make_the_gateway_remember_without_end():
    mine = ClientTasks()
    for number in range(CLIENT_TASKS_MAX + 5):
        mine = mine.made("a", raw({"task": {**TASK, "taskId": str(number)}}))
    assert len(mine.owners) == CLIENT_TASKS_MAX
    assert mine.owner(raw({"taskId": "4"})) is None
    assert mine.owner(raw({"taskId": "5"})) == "a"


# Ids in payloads

RELATED = {"_meta": {RELATED_TASK_KEY: {"taskId": "T"}, "x": 1}}
RENAMED = {"_meta": {RELATED_TASK_KEY: {"taskId": "a:T"}, "x": 1}}


def named(task):
    return tasks.expose("a", task)


@pytest.mark.parametrize(
    ("method", "definition", "params", "renamed"),
    [
        ("tasks/get", "GetTaskRequest", {"taskId": "T"}, {"taskId": "a:T"}),
        ("tasks/get", "GetTaskRequest", {"taskId": "T", **RELATED}, {"taskId": "a:T", "_meta": {"x": 1}}),
        ("tasks/result", "GetTaskPayloadRequest", {"taskId": "T"}, {"taskId": "a:T"}),
        ("tasks/cancel", "CancelTaskRequest", {"taskId": "T"}, {"taskId": "a:T"}),
        (tasks.STATUS, "TaskStatusNotification", TASK, {**TASK, "taskId": "a:T"}),
        (
            "elicitation/create",
            "ElicitRequest",
            {"message": "m", "mode": "url", "url": "https://x/", "elicitationId": "1", **RELATED},
            {"message": "m", "mode": "url", "url": "https://x/", "elicitationId": "1", **RENAMED},
        ),
        (
            "notifications/message",
            "LoggingMessageNotification",
            {"level": "info", "data": {"taskId": "T"}, **RELATED},
            {"level": "info", "data": {"taskId": "T"}, **RENAMED},
        ),
    ],
)
def test_every_id_in_params_is_renamed_and_nothing_else(method, definition, params, renamed, conforms):
    made = tasks.params_renamed(method, raw(params), named)
    assert plain(made) == renamed
    conforms(NEWEST, definition, {"jsonrpc": "2.0", "id": 1, "method": method, "params": plain(made)})


@pytest.mark.parametrize(
    ("method", "definition", "result", "renamed"),
    [
        ("tools/call", "CreateTaskResult", {"task": TASK}, {"task": {**TASK, "taskId": "a:T"}}),
        ("tasks/get", "GetTaskResult", TASK, {**TASK, "taskId": "a:T"}),
        ("tasks/cancel", "CancelTaskResult", TASK, {**TASK, "taskId": "a:T"}),
        ("tasks/result", "CallToolResult", {"content": [], **RELATED}, {"content": [], **RENAMED}),
        (
            "tools/call",
            "CallToolResult",
            {"content": [], "structuredContent": {"taskId": "T", "task": {"taskId": "T"}}},
            {"content": [], "structuredContent": {"taskId": "T", "task": {"taskId": "T"}}},
        ),
        (
            "tasks/result",
            "CallToolResult",
            {"content": [], "taskId": "T", "task": {"taskId": "T"}},
            {"content": [], "taskId": "T", "task": {"taskId": "T"}},
        ),
    ],
)
def test_every_id_in_a_result_is_renamed_and_nothing_else(method, definition, result, renamed, conforms):
    made = tasks.result_renamed(method, raw(result), named)
    assert plain(made) == renamed
    conforms(NEWEST, definition, made)


def test_a_payload_without_ids_is_the_same_object():
    for value in ({}, {"content": [{"type": "text", "text": "taskId"}]}, {"taskId": "T"}):
        payload = raw(value)
        assert tasks.result_renamed("tools/call", payload, named) is payload
        assert tasks.params_renamed("tools/call", payload, named) is payload


def test_an_id_that_may_not_be_said_refuses_the_whole():
    def rename(task):
        return tasks.resolve(task, {"a"}).name

    assert plain(tasks.params_renamed("tasks/get", raw({"taskId": "a:T"}), rename)) == {"taskId": "T"}
    assert refused(tasks.params_renamed, "tasks/get", raw({"taskId": "b:T"}), rename).code == -32602


def test_where_tasks_are_carried_a_request_may_be_made_as_one():
    params = raw({"name": "t", "task": {"ttl": 1}})
    for version in VERSIONS:
        made = translate.client_request("tools/call", params, version, tasks=True)
        assert ("task" in plain(made)) == (version == NEWEST)
        for method in ("sampling/createMessage", "elicitation/create"):
            made = translate.server_request(method, raw({"message": "m", "task": {}}), version, tasks=True)
            assert ("task" in plain(made)) == (version == NEWEST)
