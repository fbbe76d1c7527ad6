"""Payloads from one era for a peer of the other, each held against the schema of its target."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from actors.protocol import translate
from actors.protocol.messages import EMPTY
from actors.protocol.meta import CAPABILITIES_KEY, RELATED_TASK_KEY, SERVER_KEY, SUBSCRIPTION_KEY, VERSION_KEY
from actors.protocol.translate import Unbridgeable
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
    made = translate.result(method, raw({**value, "_meta": meta}), MODERN, implementation=raw(SERVER))
    conforms(MODERN, definition, made)
    shown = plain(made)
    assert shown["resultType"] == "complete"
    assert shown["_meta"] == {"com.example/x": 1, SERVER_KEY: SERVER}
    hints = {name: shown[name] for name in ("ttlMs", "cacheScope") if name in shown}
    assert hints == ({"ttlMs": 0, "cacheScope": "private"} if method in CACHEABLE else {})


def test_a_tool_loses_what_only_tasks_of_before_need_and_nothing_else():
    (shown,) = plain(translate.result("tools/list", raw({"tools": [TOOL]}), MODERN))["tools"]
    assert shown == {name: value for name, value in TOOL.items() if name != "execution"}


def test_a_backend_with_sessions_cannot_ask_or_be_cached_by_members_that_mean_nothing_there():
    spoofed = {"resultType": "input_required", "requestState": "x", "ttlMs": 10**9, "cacheScope": "public"}
    made = plain(translate.result("resources/read", raw({"contents": [], **spoofed}), MODERN))
    assert (made["resultType"], made["ttlMs"], made["cacheScope"]) == ("complete", 0, "private")


def test_a_result_keeps_who_it_says_it_is_from_unless_told_otherwise():
    value = raw({"content": [], "_meta": {SERVER_KEY: SERVER}})
    assert plain(translate.result("tools/call", value, MODERN))["_meta"] == {SERVER_KEY: SERVER}
    other = {"name": "gateway", "version": "2"}
    assert plain(translate.result("tools/call", value, MODERN, implementation=raw(other)))["_meta"] == {
        SERVER_KEY: other
    }
    assert plain(translate.result("tools/call", raw({"_meta": 5}), MODERN, implementation=raw(other)))["_meta"] == {
        SERVER_KEY: other
    }


def test_an_empty_result_is_complete_too(conforms):
    conforms(MODERN, "EmptyResult", translate.result("ping", raw({}), MODERN))


# Results, without sessions → with


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("method", "definition", "value"), RESULTS)
def test_a_result_without_sessions_is_valid_in_every_revision_with(version, method, definition, value, conforms):
    era = {"resultType": "complete", "ttlMs": 5, "cacheScope": "public"}
    meta = {SERVER_KEY: SERVER, SUBSCRIPTION_KEY: 1, "com.example/x": 1}
    made = translate.result(method, raw({**value, **era, "_meta": meta}), version, MODERN)
    conforms(version, definition, made)
    shown = plain(made)
    assert not era.keys() & shown.keys()
    assert shown["_meta"] == {"com.example/x": 1}


@pytest.mark.parametrize(("method", "definition", "value"), RESULTS)
def test_there_and_back_a_result_of_the_newest_revision_is_the_same(method, definition, value):
    tools = [{name: member for name, member in TOOL.items() if name != "execution"}]
    value = {**value, "tools": tools} if "tools" in value else value
    made = translate.result(method, raw(value), MODERN, implementation=raw(SERVER))
    assert plain(translate.result(method, made, NEWEST, MODERN)) == value


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("structured", [[1, 2], "text", 5, True, None])
def test_structured_content_that_is_no_object_becomes_a_text_where_there_is_none(version, structured, conforms):
    bare = {"resultType": "complete", "content": [], "structuredContent": structured}
    made = translate.result("tools/call", raw(bare), version, MODERN)
    conforms(version, "CallToolResult", made)
    spelled = json.dumps(structured, separators=(",", ":"))
    assert plain(made) == {"content": [{"type": "text", "text": spelled}]}
    said = translate.result("tools/call", raw({**bare, "content": [TEXT]}), version, MODERN)
    assert plain(said) == {"content": [TEXT]}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "schema", [{"type": "array"}, {"anyOf": [{"type": "object"}]}, {}, {"type": ["object", "null"]}, True, False]
)
def test_an_output_that_is_no_object_has_no_schema_with_sessions(version, schema, conforms):
    tool = {"name": "t", "inputSchema": {"type": "object"}, "outputSchema": schema}
    made = translate.result("tools/list", raw({"resultType": "complete", "tools": [tool]}), version, MODERN)
    conforms(version, "ListToolsResult", made)
    assert "outputSchema" not in plain(made)["tools"][0]


@pytest.mark.parametrize("version", VERSIONS)
def test_schemas_of_the_newer_dialect_are_written_as_objects(version, conforms):
    schema = {"type": "object", "properties": {"a": True, "b": False, "c": {"type": "string", "x-mcp-header": "C"}}}
    tool = {"name": "t", "inputSchema": {**schema, "oneOf": [{"required": ["a"]}]}, "outputSchema": schema}
    made = translate.result("tools/list", raw({"tools": [tool]}), version, MODERN)
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
    made = translate.error(method, error(code, **data), MODERN, uri=URI)
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
    made = translate.error(method, error(code, **data), NEWEST, MODERN, uri=URI)
    shown = plain(made)
    assert (shown["code"], shown["message"], shown.get("data")) == (to_code, "m", to_data)
    message = {"jsonrpc": "2.0", "id": 1, "error": shown}
    conforms(version, "JSONRPCErrorResponse" if version == NEWEST else "JSONRPCError", message)


def test_what_a_client_lacks_has_a_code_of_its_own_without_sessions_alone(conforms):
    lacking = error(-32600, requiredCapabilities={"sampling": {}})
    made = translate.error("prompts/get", lacking, MODERN)
    conforms(MODERN, "MissingRequiredClientCapabilityError", {"jsonrpc": "2.0", "id": 1, "error": plain(made)})
    assert plain(made)["code"] == -32021
    assert plain(made)["data"] == {"requiredCapabilities": {"sampling": {}}}
    for other in (error(-32600), error(-32600, requiredCapabilities=["sampling"]), error(-32600, x=1)):
        assert translate.error("prompts/get", other, MODERN) is other


@pytest.mark.parametrize("broken", [{}, {"code": "x", "message": "m"}, [], 5])
def test_what_is_no_error_is_an_internal_one(broken):
    assert plain(translate.error("tools/call", raw(broken), MODERN))["code"] == -32603
    assert plain(translate.error("tools/call", raw(broken), NEWEST, MODERN))["code"] == -32603


def test_a_backend_of_the_era_says_itself_what_a_client_must_declare():
    missing = error(-32021, requiredCapabilities={"roots": {}})
    assert translate.error("tools/call", missing, MODERN, MODERN) is missing
    for code in (-32020, -32022, -32042, -32050):
        assert plain(translate.error("tools/call", error(code), MODERN, MODERN))["code"] == -32603
    result = raw({"resultType": "complete"})
    assert translate.result("tools/list", result, MODERN, MODERN) is result


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
def test_what_both_eras_tell_is_told_without_what_means_nothing_there(method, definition, params, conforms):
    up = translate.notification(method, raw({**params, "_meta": {RELATED_TASK_KEY: {"taskId": "1"}}}), MODERN)
    assert plain(up) == params
    conforms(MODERN, definition, {"jsonrpc": "2.0", "method": method, "params": plain(up)})


def test_what_only_sessions_have_is_not_told_without_them():
    for method in ("notifications/elicitation/complete", "notifications/tasks/status", "notifications/cancelled"):
        assert not translate.is_told(method, MODERN)
        assert translate.is_told(method, NEWEST)
    assert translate.is_told("notifications/progress", MODERN)


def test_a_notification_without_params_stays_without():
    assert translate.notification("notifications/tools/list_changed", EMPTY, MODERN) == EMPTY


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
    made = plain(translate.server_request(method, raw({**params, **extra}), MODERN))
    assert made == params
    conforms(MODERN, "InputRequest", {"method": method, "params": made})
    assert definition


@pytest.mark.parametrize("version", VERSIONS[2:])
@pytest.mark.parametrize(("method", "definition", "params"), QUESTIONS)
def test_a_question_becomes_a_request_of_a_revision_that_has_it(method, definition, params, version, conforms):
    made = translate.server_request(method, raw(params), version, MODERN, elicitation_id="e1")
    if params.get("mode") == "url" and version != NEWEST:
        assert isinstance(made, Unbridgeable)
        return
    envelope = {"jsonrpc": "2.0", "id": 1} if version == NEWEST else {}
    conforms(version, definition, {**envelope, "method": method, "params": plain(made)})
    assert plain(made).get("elicitationId") == ("e1" if params.get("mode") == "url" else None)


@pytest.mark.parametrize("one", [True, False])
def test_a_tools_result_in_sampling_is_structured_by_an_object_or_not_at_all(one, conforms):
    results = [
        {"type": "tool_result", "toolUseId": "1", "content": [TEXT], "structuredContent": structured}
        for structured in ([1], {"a": 1}, "x")
    ]
    content = results[0] if one else [*results, TEXT]
    params = raw({"messages": [{"role": "user", "content": content}], "maxTokens": 5})
    made = plain(translate.server_request("sampling/createMessage", params, NEWEST, MODERN, elicitation_id="e"))
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
    up = translate.answer(method, True, raw({**answer, "_meta": {RELATED_TASK_KEY: {}}}), MODERN)[1]
    conforms(MODERN, definition, up)
    assert plain(up) == answer
    meta = {VERSION_KEY: MODERN, CAPABILITIES_KEY: {}}
    for version in VERSIONS[2:]:
        said = raw({**answer, "resultType": "complete", "_meta": meta})
        _, down = translate.answer(method, True, said, version, MODERN)
        conforms(version, definition, down)
        assert plain(down) == answer


def test_a_models_answer_that_an_older_backend_cannot_hold_is_an_error_for_it():
    answer = {"role": "assistant", "model": "m", "content": [TEXT, {"type": "image", "data": "", "mimeType": "a/b"}]}
    ok, made = translate.answer("sampling/createMessage", True, raw(answer), "2025-06-18", MODERN)
    assert not ok
    assert plain(made)["code"] == -32603


# Requests of clients


def test_a_client_with_sessions_can_neither_make_a_task_nor_a_retry():
    value = {"name": "t", "arguments": {"task": 1, "requestState": 2}}
    sent = {**value, "task": {"ttl": 1}, "inputResponses": {}, "requestState": "x"}
    assert plain(translate.client_request("tools/call", raw(sent), MODERN)) == value
    untouched = raw(value)
    assert translate.client_request("prompts/get", untouched, MODERN) is not None
    assert plain(translate.client_request("prompts/get", untouched, MODERN)) == value


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_without_sessions_asks_as_one_with(version, conforms):
    meta = {VERSION_KEY: MODERN, CAPABILITIES_KEY: {}, "traceparent": "00-1-2-01"}
    sent = raw({"name": "t", "arguments": {}, "task": {}, "requestState": "x", "inputResponses": {}, "_meta": meta})
    made = plain(translate.client_request("tools/call", sent, version, MODERN))
    assert made == {"name": "t", "arguments": {}, "_meta": {"traceparent": "00-1-2-01"}}
    context = raw({"ref": {"type": "ref/prompt", "name": "p"}, "argument": {}, "context": {}, "_meta": meta})
    completed = plain(translate.client_request("completion/complete", context, version, MODERN))
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
    up = plain(translate.result(method, payload, MODERN, implementation=raw(SERVER)))
    assert up["resultType"] == "complete"
    down = plain(translate.result(method, payload, version, MODERN))
    assert "resultType" not in down
    assert "requestState" not in down
    for made in (
        translate.server_request(method, payload, MODERN),
        translate.answer(method, True, payload, MODERN)[1],
        translate.client_request(method, payload, MODERN),
        translate.notification(method, payload, MODERN),
        translate.error(method, payload, MODERN, uri=URI),
        translate.server_request(method, payload, version, MODERN, elicitation_id="e"),
        translate.answer(method, True, payload, version, MODERN)[1],
        translate.client_request(method, payload, version, MODERN),
        translate.error(method, payload, NEWEST, MODERN, uri=URI),
    ):
        plain(made.payload if isinstance(made, Unbridgeable) else made)


def test_nesting_too_deep_to_read_passes_as_it_is():
    payload = Raw(b'{"resultType":"complete","structuredContent":' + b"[" * 5000 + b"]" * 5000 + b"}")
    for made in (
        translate.result("tools/call", payload, MODERN),
        translate.result("tools/call", payload, NEWEST, MODERN),
        translate.answer("sampling/createMessage", True, payload, NEWEST, MODERN)[1],
        translate.client_request("tools/call", payload, NEWEST, MODERN),
        translate.server_request("sampling/createMessage", payload, MODERN),
    ):
        assert isinstance(made, Raw)
