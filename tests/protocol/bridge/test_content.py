"""Payloads from one era for a peer of the other, each held against the schema of its target."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from actors.protocol.bridge import lowering, raising
from actors.protocol.lowering import Unbridgeable
from actors.protocol.messages import EMPTY
from actors.protocol.modern.meta import (
    CAPABILITIES_KEY,
    RELATED_TASK_KEY,
    SERVER_KEY,
    SUBSCRIPTION_KEY,
    VERSION_KEY,
)
from actors.protocol.versions import MODERN, VERSIONS

NEWEST = VERSIONS[-1]
SERVER = {"name": "s", "version": "1"}
TEXT = {"type": "text", "text": "hi"}
LINK = {"type": "resource_link", "uri": "file:///a", "name": "a"}
URI = "file:///a"


def raw(value):
    return Raw(json.dumps(value).encode())


def plain(made):
    assert isinstance(made, Raw), made
    return json.loads(bytes(made))


# Results, with sessions → without

TOOL = {
    "name": "t",
    "title": "T",
    "inputSchema": {"type": "object"},
    "outputSchema": {"type": "object"},
    "execution": {"taskSupport": "optional"},
    "icons": [{"src": "https://x/y.png"}],
}
RESULTS = [
    ("tools/list", "ListToolsResult", {"tools": [TOOL], "nextCursor": ""}),
    ("prompts/list", "ListPromptsResult", {"prompts": [{"name": "p"}]}),
    ("resources/list", "ListResourcesResult", {"resources": [{"uri": URI, "name": "a"}]}),
    ("resources/templates/list", "ListResourceTemplatesResult", {"resourceTemplates": []}),
    ("resources/read", "ReadResourceResult", {"contents": [{"uri": URI, "text": "x"}]}),
    ("tools/call", "CallToolResult", {"content": [TEXT, LINK], "structuredContent": {"n": 1}, "isError": True}),
    ("prompts/get", "GetPromptResult", {"messages": [{"role": "user", "content": TEXT}]}),
    ("completion/complete", "CompleteResult", {"completion": {"values": ["a"], "hasMore": False}}),
]
CACHEABLE = {"tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read"}


@pytest.mark.parametrize(("method", "definition", "value"), RESULTS)
def test_a_result_with_sessions_is_a_complete_one_without(method, definition, value, conforms):
    meta = {RELATED_TASK_KEY: {"taskId": "1"}, SUBSCRIPTION_KEY: 5, "com.example/x": 1}
    made = raising.to_modern(method, raw({**value, "_meta": meta}), server_info=raw(SERVER))
    conforms(MODERN, definition, made)
    shown = plain(made)
    assert shown["resultType"] == "complete"
    assert shown["_meta"] == {"com.example/x": 1, SERVER_KEY: SERVER}
    hints = {name: shown[name] for name in ("ttlMs", "cacheScope") if name in shown}
    assert hints == ({"ttlMs": 0, "cacheScope": "private"} if method in CACHEABLE else {})


def test_a_tool_loses_what_only_tasks_of_before_need_and_nothing_else():
    (shown,) = plain(raising.to_modern("tools/list", raw({"tools": [TOOL]})))["tools"]
    assert shown == {name: value for name, value in TOOL.items() if name != "execution"}


def test_a_backend_with_sessions_cannot_ask_or_be_cached_by_members_that_mean_nothing_there():
    spoofed = {"resultType": "input_required", "requestState": "x", "ttlMs": 10**9, "cacheScope": "public"}
    made = plain(raising.to_modern("resources/read", raw({"contents": [], **spoofed})))
    assert (made["resultType"], made["ttlMs"], made["cacheScope"]) == ("complete", 0, "private")


def test_a_result_keeps_who_it_says_it_is_from_unless_told_otherwise():
    value = raw({"content": [], "_meta": {SERVER_KEY: SERVER}})
    assert plain(raising.to_modern("tools/call", value))["_meta"] == {SERVER_KEY: SERVER}
    other = {"name": "gateway", "version": "2"}
    assert plain(raising.to_modern("tools/call", value, server_info=raw(other)))["_meta"] == {SERVER_KEY: other}
    assert plain(raising.to_modern("tools/call", raw({"_meta": 5}), server_info=raw(other)))["_meta"] == {
        SERVER_KEY: other
    }


def test_an_empty_result_is_complete_too(conforms):
    conforms(MODERN, "EmptyResult", raising.to_modern("ping", raw({})))


# Results, without sessions → with


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("method", "definition", "value"), RESULTS)
def test_a_result_without_sessions_is_valid_in_every_revision_with(version, method, definition, value, conforms):
    era = {"resultType": "complete", "ttlMs": 5, "cacheScope": "public"}
    meta = {SERVER_KEY: SERVER, SUBSCRIPTION_KEY: 1, "com.example/x": 1}
    made = lowering.from_modern(method, raw({**value, **era, "_meta": meta}), version)
    conforms(version, definition, made)
    shown = plain(made)
    assert not era.keys() & shown.keys()
    assert shown["_meta"] == {"com.example/x": 1}


@pytest.mark.parametrize(("method", "definition", "value"), RESULTS)
def test_there_and_back_a_result_of_the_newest_revision_is_the_same(method, definition, value):
    tools = [{name: member for name, member in TOOL.items() if name != "execution"}]
    value = {**value, "tools": tools} if "tools" in value else value
    made = raising.to_modern(method, raw(value), server_info=raw(SERVER))
    assert plain(lowering.from_modern(method, made)) == value


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("structured", [[1, 2], "text", 5, True, None])
def test_structured_content_that_is_no_object_becomes_a_text_where_there_is_none(version, structured, conforms):
    bare = {"resultType": "complete", "content": [], "structuredContent": structured}
    made = lowering.from_modern("tools/call", raw(bare), version)
    conforms(version, "CallToolResult", made)
    spelled = json.dumps(structured, separators=(",", ":"))
    assert plain(made) == {"content": [{"type": "text", "text": spelled}]}
    said = lowering.from_modern("tools/call", raw({**bare, "content": [TEXT]}), version)
    assert plain(said) == {"content": [TEXT]}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "schema", [{"type": "array"}, {"anyOf": [{"type": "object"}]}, {}, {"type": ["object", "null"]}, True, False]
)
def test_an_output_that_is_no_object_has_no_schema_with_sessions(version, schema, conforms):
    tool = {"name": "t", "inputSchema": {"type": "object"}, "outputSchema": schema}
    made = lowering.from_modern("tools/list", raw({"resultType": "complete", "tools": [tool]}), version)
    conforms(version, "ListToolsResult", made)
    assert "outputSchema" not in plain(made)["tools"][0]


@pytest.mark.parametrize("version", VERSIONS)
def test_schemas_of_the_newer_dialect_are_written_as_objects(version, conforms):
    schema = {"type": "object", "properties": {"a": True, "b": False, "c": {"type": "string", "x-mcp-header": "C"}}}
    tool = {"name": "t", "inputSchema": {**schema, "oneOf": [{"required": ["a"]}]}, "outputSchema": schema}
    made = lowering.from_modern("tools/list", raw({"tools": [tool]}), version)
    conforms(version, "ListToolsResult", made)
    shown = plain(made)["tools"][0]["inputSchema"]
    assert shown["properties"] == {"a": {}, "b": {"not": {}}, "c": {"type": "string", "x-mcp-header": "C"}}
    assert shown["oneOf"] == [{"required": ["a"]}]


# Errors


def error(code, **data):
    return raw({"code": code, "message": "m", **({"data": data} if data else {})})


@pytest.mark.parametrize(
    ("method", "code", "data", "to_code", "to_data"),
    [
        ("resources/read", -32002, {"uri": URI}, -32602, {"uri": URI}),
        ("resources/read", -32002, {"uri": "b:c"}, -32602, {"uri": "b:c"}),
        ("resources/read", -32002, {"x": 1}, -32602, {"x": 1, "uri": URI}),
        ("resources/read", -32002, {}, -32602, {"uri": URI}),
        ("tools/call", -32002, {"x": 1}, -32603, {"code": -32002, "data": {"x": 1}}),
        ("tools/call", -32042, {"elicitations": []}, -32603, {"code": -32042, "data": {"elicitations": []}}),
        ("tools/call", -32020, {}, -32603, {"code": -32020}),
        ("tools/call", -32021, {"requiredCapabilities": {}}, -32603, None),
        ("tools/call", -32022, {}, -32603, {"code": -32022}),
        ("tools/call", -32099, {}, -32603, {"code": -32099}),
        ("tools/call", -32000, {}, -32603, {"code": -32000}),
        ("tools/call", -32019, {}, -32603, {"code": -32019}),
        ("tools/call", -32602, {"x": 1}, -32602, {"x": 1}),
        ("tools/call", -32603, {}, -32603, None),
        ("tools/call", -32601, {}, -32601, None),
        ("tools/call", -32100, {}, -32100, None),
        ("tools/call", -1, {}, -1, None),
        ("tools/call", 42, {}, 42, None),
    ],
)
def test_codes_that_mean_something_else_without_sessions_are_not_said_there(
    method, code, data, to_code, to_data, conforms
):
    made = raising.error_to_modern(method, error(code, **data), uri=URI)
    conforms(MODERN, "Error", made)
    shown = plain(made)
    assert (shown["code"], shown["message"]) == (to_code, "m")
    if to_data is not None:
        assert shown["data"] == to_data


@pytest.mark.parametrize(
    ("method", "code", "data", "to_code", "to_data"),
    [
        ("resources/read", -32602, {"uri": URI}, -32002, {"uri": URI}),
        ("resources/read", -32602, {"uri": "other:x"}, -32602, {"uri": "other:x"}),
        ("resources/read", -32602, {}, -32602, None),
        ("tools/call", -32602, {"uri": URI}, -32602, {"uri": URI}),
        (
            "tools/call",
            -32021,
            {"requiredCapabilities": {"roots": {}}},
            -32600,
            {"requiredCapabilities": {"roots": {}}},
        ),
        ("tools/call", -32020, {}, -32603, {"code": -32020}),
        ("tools/call", -32022, {"supported": []}, -32603, {"code": -32022, "data": {"supported": []}}),
        ("tools/call", -32042, {"elicitations": []}, -32603, {"code": -32042, "data": {"elicitations": []}}),
        ("resources/read", -32002, {"uri": URI}, -32002, {"uri": URI}),
        ("tools/call", -32601, {}, -32601, None),
        ("tools/call", 42, {"x": 1}, 42, {"x": 1}),
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_codes_of_the_era_without_sessions_are_not_said_with_them(
    version, method, code, data, to_code, to_data, conforms
):
    made = lowering.error_from_modern(method, error(code, **data), URI)
    shown = plain(made)
    assert (shown["code"], shown["message"], shown.get("data")) == (to_code, "m", to_data)
    message = {"jsonrpc": "2.0", "id": 1, "error": shown}
    conforms(version, "JSONRPCErrorResponse" if version == NEWEST else "JSONRPCError", message)


@pytest.mark.parametrize("broken", [{}, {"code": "x", "message": "m"}, [], 5])
def test_what_is_no_error_is_an_internal_one(broken):
    assert plain(raising.error_to_modern("tools/call", raw(broken)))["code"] == -32603
    assert plain(lowering.error_from_modern("tools/call", raw(broken)))["code"] == -32603


def test_a_backend_of_the_era_says_itself_what_a_client_must_declare():
    missing = error(-32021, requiredCapabilities={"roots": {}})
    assert raising.error_to_modern("tools/call", missing, MODERN) is missing
    for code in (-32020, -32022, -32042, -32050):
        assert plain(raising.error_to_modern("tools/call", error(code), MODERN))["code"] == -32603
    result = raw({"resultType": "complete"})
    assert raising.to_modern("tools/list", result, backend_version=MODERN) is result


# Notifications


@pytest.mark.parametrize(
    ("method", "definition", "params"),
    [
        ("notifications/progress", "ProgressNotification", {"progressToken": 1, "progress": 2, "message": "m"}),
        ("notifications/message", "LoggingMessageNotification", {"level": "info", "data": 1}),
        ("notifications/tools/list_changed", "ToolListChangedNotification", {}),
        ("notifications/resources/updated", "ResourceUpdatedNotification", {"uri": URI}),
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_what_both_eras_tell_goes_both_ways(method, definition, params, version, conforms):
    up = raising.notification_to_modern(method, raw({**params, "_meta": {RELATED_TASK_KEY: {"taskId": "1"}}}))
    assert plain(up) == params
    conforms(MODERN, definition, {"jsonrpc": "2.0", "method": method, "params": plain(up)})
    down = lowering.notification_from_modern(method, raw({**params, "_meta": {SUBSCRIPTION_KEY: 1}}), version)
    assert plain(down).items() <= params.items()
    envelope = {"jsonrpc": "2.0"} if version == NEWEST else {}
    conforms(version, definition, {**envelope, "method": method, "params": plain(down)})


def test_what_one_era_alone_tells_is_not_told_in_the_other():
    for method in ("notifications/elicitation/complete", "notifications/tasks/status", "notifications/cancelled"):
        assert raising.notification_to_modern(method, raw({})) is None
    for method in ("notifications/subscriptions/acknowledged", "notifications/tasks", "notifications/cancelled"):
        assert lowering.notification_from_modern(method, raw({})) is None


def test_a_notification_without_params_stays_without():
    assert raising.notification_to_modern("notifications/tools/list_changed", EMPTY) == EMPTY
    assert lowering.notification_from_modern("notifications/tools/list_changed", EMPTY) == EMPTY


# Questions and answers

FORM = {"type": "object", "properties": {"a": {"type": "string", "enum": ["x"], "enumNames": ["X"]}}}
QUESTIONS = [
    ("elicitation/create", "ElicitRequest", {"message": "m", "requestedSchema": FORM}),
    ("elicitation/create", "ElicitRequest", {"message": "m", "mode": "form", "requestedSchema": FORM}),
    ("elicitation/create", "ElicitRequest", {"message": "m", "mode": "url", "url": "https://x/"}),
    (
        "sampling/createMessage",
        "CreateMessageRequest",
        {"messages": [{"role": "user", "content": TEXT}], "maxTokens": 5},
    ),
    ("roots/list", "ListRootsRequest", {}),
]


@pytest.mark.parametrize(("method", "definition", "params"), QUESTIONS)
def test_a_request_of_a_backend_becomes_a_question(method, definition, params, conforms):
    extra = {"task": {"ttl": 1}, "_meta": {"progressToken": 1}} if method != "roots/list" else {"_meta": {}}
    if params.get("mode") == "url":
        extra["elicitationId"] = "e"
    made = plain(raising.question_to_modern(method, raw({**params, **extra})))
    assert made == params
    conforms(MODERN, "InputRequest", {"method": method, "params": made})
    assert definition


@pytest.mark.parametrize("version", VERSIONS[2:])
@pytest.mark.parametrize(("method", "definition", "params"), QUESTIONS)
def test_a_question_becomes_a_request_of_a_revision_that_has_it(method, definition, params, version, conforms):
    made = lowering.question_from_modern(method, raw(params), "e1", version)
    if params.get("mode") == "url" and version != NEWEST:
        assert isinstance(made, Unbridgeable)
        return
    envelope = {"jsonrpc": "2.0", "id": 1} if version == NEWEST else {}
    conforms(version, definition, {**envelope, "method": method, "params": plain(made)})
    assert plain(made).get("elicitationId") == ("e1" if params.get("mode") == "url" else None)


def test_a_question_without_params_stays_without():
    assert lowering.question_from_modern("roots/list", EMPTY, "e") == EMPTY
    assert raising.question_to_modern("roots/list", EMPTY) == EMPTY


@pytest.mark.parametrize("one", [True, False])
def test_a_tools_result_in_sampling_is_structured_by_an_object_or_not_at_all(one, conforms):
    results = [
        {"type": "tool_result", "toolUseId": "1", "content": [TEXT], "structuredContent": structured}
        for structured in ([1], {"a": 1}, "x")
    ]
    content = results[0] if one else [*results, TEXT]
    params = raw({"messages": [{"role": "user", "content": content}], "maxTokens": 5})
    made = plain(lowering.question_from_modern("sampling/createMessage", params, "e"))
    conforms(NEWEST, "CreateMessageRequestParams", made)
    (message,) = made["messages"]
    blocks = [message["content"]] if one else message["content"][:3]
    assert [block.get("structuredContent") for block in blocks] == [None, {"a": 1}, None][: len(blocks)]


ANSWERS = [
    ("elicitation/create", "ElicitResult", {"action": "accept", "content": {"a": "x"}}),
    ("sampling/createMessage", "CreateMessageResult", {"role": "assistant", "model": "m", "content": TEXT}),
    ("roots/list", "ListRootsResult", {"roots": [{"uri": "file:///r"}]}),
]


@pytest.mark.parametrize(("method", "definition", "answer"), ANSWERS)
def test_an_answer_goes_both_ways_without_what_belongs_to_its_envelope(method, definition, answer, conforms):
    up = raising.answer_to_modern(method, raw({**answer, "_meta": {RELATED_TASK_KEY: {}}}))
    conforms(MODERN, definition, up)
    assert plain(up) == answer
    meta = {VERSION_KEY: MODERN, CAPABILITIES_KEY: {}}
    for version in VERSIONS[2:]:
        down = lowering.answer_from_modern(method, raw({**answer, "resultType": "complete", "_meta": meta}), version)
        conforms(version, definition, down)
        assert plain(down) == answer


def test_a_models_answer_that_an_older_backend_cannot_hold_is_an_error_for_it():
    answer = {"role": "assistant", "model": "m", "content": [TEXT, {"type": "image", "data": "", "mimeType": "a/b"}]}
    made = lowering.answer_from_modern("sampling/createMessage", raw(answer), "2025-06-18")
    assert isinstance(made, Unbridgeable)
    assert not made.ok


# Requests of clients


def test_a_client_with_sessions_can_neither_make_a_task_nor_a_retry():
    value = {"name": "t", "arguments": {"task": 1, "requestState": 2}}
    sent = {**value, "task": {"ttl": 1}, "inputResponses": {}, "requestState": "x"}
    assert plain(raising.request_to_modern("tools/call", raw(sent))) == value
    untouched = raw(value)
    assert raising.request_to_modern("prompts/get", untouched) is not None
    assert plain(raising.request_to_modern("prompts/get", untouched)) == value


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_without_sessions_asks_as_one_with(version, conforms):
    meta = {VERSION_KEY: MODERN, CAPABILITIES_KEY: {}, "traceparent": "00-1-2-01"}
    sent = raw({"name": "t", "arguments": {}, "task": {}, "requestState": "x", "inputResponses": {}, "_meta": meta})
    made = plain(lowering.request_from_modern("tools/call", sent, version))
    assert made == {"name": "t", "arguments": {}, "_meta": {"traceparent": "00-1-2-01"}}
    context = raw({"ref": {"type": "ref/prompt", "name": "p"}, "argument": {}, "context": {}, "_meta": meta})
    completed = plain(lowering.request_from_modern("completion/complete", context, version))
    assert ("context" in completed) == (version >= "2025-06-18")


# Any shape

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
ODD = st.fixed_dictionaries(
    {},
    optional={
        name: JSON | st.lists(st.fixed_dictionaries({"content": JSON, "outputSchema": JSON}), max_size=2)
        for name in (
            *("_meta", "tools", "content", "structuredContent", "messages", "mode", "resultType", "task"),
            *("requestState", "execution", "outputSchema", "elicitationId"),
        )
    },
)
METHODS = st.sampled_from([*(row[0] for row in RESULTS), "sampling/createMessage", "elicitation/create", "roots/list"])


@given(ODD, METHODS, st.sampled_from(VERSIONS))
def test_no_shape_of_a_payload_is_a_fault(value, method, version):
    payload = raw(value)
    up = plain(raising.to_modern(method, payload, server_info=raw(SERVER)))
    assert up["resultType"] == "complete"
    down = plain(lowering.from_modern(method, payload, version))
    assert "resultType" not in down
    assert "requestState" not in down
    for made in (
        raising.question_to_modern(method, payload),
        raising.answer_to_modern(method, payload),
        raising.request_to_modern(method, payload),
        raising.notification_to_modern(method, payload),
        raising.error_to_modern(method, payload, uri=URI),
        lowering.question_from_modern(method, payload, "e", version),
        lowering.answer_from_modern(method, payload, version),
        lowering.request_from_modern(method, payload, version),
        lowering.notification_from_modern(method, payload, version),
        lowering.error_from_modern(method, payload, URI),
    ):
        plain(made.payload if isinstance(made, Unbridgeable) else made)


def test_nesting_too_deep_to_read_passes_as_it_is():
    payload = Raw(b'{"resultType":"complete","structuredContent":' + b"[" * 5000 + b"]" * 5000 + b"}")
    for made in (
        raising.to_modern("tools/call", payload),
        lowering.from_modern("tools/call", payload),
        lowering.answer_from_modern("sampling/createMessage", payload),
        lowering.request_from_modern("tools/call", payload),
        raising.question_to_modern("sampling/createMessage", payload),
    ):
        assert isinstance(made, Raw)
