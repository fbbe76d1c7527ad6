"""Payloads for older peers, validated against their schemas."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from actors.protocol import translate
from actors.protocol.translate import Unbridgeable
from actors.protocol.versions import VERSIONS

OLD, SSE_ERA, FORMS, NEWEST = VERSIONS

TEXT = {"type": "text", "text": "hello"}
IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
AUDIO = {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}
LINK = {"type": "resource_link", "uri": "file:///a", "name": "a", "annotations": {"priority": 0.5}}
EMBEDDED = {"type": "resource", "resource": {"uri": "file:///a", "text": "audio resource_link structuredContent"}}
RESULT = {"content": [TEXT, IMAGE, AUDIO, LINK, EMBEDDED], "structuredContent": {"n": 1}, "isError": False, "x": 1}


def raw(value):
    return Raw(json.dumps(value).encode())


def plain(made):
    assert isinstance(made, Raw), made
    return json.loads(bytes(made))


def call_result(value, version):
    return plain(translate.result("tools/call", raw(value), version))


# Results


@pytest.mark.parametrize("version", VERSIONS)
def test_a_result_with_everything_is_valid_in_every_revision(version, conforms):
    conforms(version, "CallToolResult", translate.result("tools/call", raw(RESULT), version))


def test_the_newest_revision_gets_the_same_object():
    for method in ("tools/call", "tools/list", "prompts/get", "resources/read"):
        payload = raw(RESULT)
        assert translate.result(method, payload, NEWEST) is payload
        assert translate.result(method, payload, FORMS) is payload


@pytest.mark.parametrize("version", VERSIONS)
def test_a_result_with_nothing_to_lower_is_the_same_object(version):
    payload = Raw(b'{"content":[{"type":"text","text":"hi"}] , "n": 1.0}')
    assert translate.result("tools/call", payload, version) is payload


@pytest.mark.parametrize("version", [OLD, SSE_ERA])
def test_structured_content_becomes_text_only_where_there_is_none(version):
    assert call_result({"content": [TEXT], "structuredContent": {"n": 1}}, version) == {"content": [TEXT]}
    made = Raw(b'{"content":[],"structuredContent":{"big": 123456789012345678901234567890}}')
    assert plain(translate.result("tools/call", made, version)) == {
        "content": [{"type": "text", "text": '{"big":123456789012345678901234567890}'}]
    }
    assert call_result({"structuredContent": {}}, version) == {"content": [{"type": "text", "text": "{}"}]}


@pytest.mark.parametrize("version", [OLD, SSE_ERA])
def test_a_link_becomes_a_text_that_names_it(version):
    assert call_result({"content": [LINK]}, version)["content"] == [
        {"type": "text", "text": "a: file:///a", "annotations": {"priority": 0.5}}
    ]
    nameless = {"type": "resource_link", "uri": "file:///a"}
    assert call_result({"content": [nameless]}, version)["content"] == [{"type": "text", "text": "file:///a"}]


def test_audio_becomes_a_placeholder_only_for_the_oldest():
    (block,) = call_result({"content": [AUDIO]}, OLD)["content"]
    assert block["type"] == "text"
    assert "audio/wav" in block["text"]
    assert "aGk=" not in block["text"]
    assert call_result({"content": [AUDIO]}, SSE_ERA) == {"content": [AUDIO]}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_prompt_with_links_and_audio_is_valid_in_every_revision(version, conforms):
    messages = [{"role": "user", "content": block} for block in (TEXT, AUDIO, LINK, EMBEDDED)]
    made = translate.result("prompts/get", raw({"messages": messages}), version)
    conforms(version, "GetPromptResult", made)
    assert len(plain(made)["messages"]) == 4


@pytest.mark.parametrize("version", VERSIONS)
def test_output_schemas_go_and_titles_and_icons_stay(version, conforms):
    tool = {"name": "t", "title": "T", "inputSchema": {"type": "object"}, "outputSchema": {"type": "object"}}
    tool["icons"] = [{"src": "https://x/y.png"}]
    made = translate.result("tools/list", raw({"tools": [tool], "nextCursor": "c"}), version)
    conforms(version, "ListToolsResult", made)
    (shown,) = plain(made)["tools"]
    assert ("outputSchema" in shown) == (version >= FORMS)
    assert shown["title"] == "T"
    assert shown["icons"] == tool["icons"]
    assert plain(made)["nextCursor"] == "c"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
odd = st.fixed_dictionaries(
    {},
    optional={
        "content": json_values | st.lists(st.sampled_from([TEXT, AUDIO, LINK, {"type": "audio"}, 5, None])),
        "structuredContent": json_values,
        "messages": json_values | st.lists(st.fixed_dictionaries({"content": json_values}) | json_values, max_size=3),
        "tools": json_values | st.lists(json_values | st.just({"outputSchema": 1}), max_size=3),
        "requestedSchema": json_values | st.fixed_dictionaries({"properties": json_values}),
        "mode": json_values,
        "task": json_values,
        "x": st.sampled_from(["audio", "resource_link", "outputSchema", "oneOf", "array"]),
    },
)


@given(odd, st.sampled_from(VERSIONS), st.booleans())
def test_no_shape_of_a_payload_is_a_fault(value, version, ascii_only):
    payload = Raw(json.dumps(value, ensure_ascii=ascii_only).encode())
    for method in ("tools/call", "tools/list", "prompts/get", "resources/read"):
        plain(translate.result(method, payload, version))
    for method in ("sampling/createMessage", "elicitation/create", "roots/list"):
        made = translate.server_request(method, payload, version)
        plain(made.payload if isinstance(made, Unbridgeable) else made)
        plain(translate.answer(method, True, payload, version)[1])
    plain(translate.client_request("tools/call", payload, version))
    plain(translate.outcome("tools/call", False, payload, version)[1])


def test_nesting_too_deep_to_read_passes_as_it_is():
    payload = Raw(b'{"structuredContent":' + b"[" * 5000 + b"]" * 5000 + b"}")
    assert translate.result("tools/call", payload, OLD) is payload


# Errors and notifications

URL_ERROR = {
    "code": -32042,
    "message": "go there",
    "data": {"elicitations": [{"mode": "url", "elicitationId": "1", "url": "https://x", "message": "m"}]},
}


def test_a_url_error_reaches_a_client_that_can_open_it_and_any_other_is_told_in_words():
    payload = raw(URL_ERROR)
    assert translate.outcome("tools/call", False, payload, NEWEST, frozenset({"elicit.url"}))[1] is payload
    assert translate.outcome("tools/call", False, payload, NEWEST)[1] is payload
    for version, bits in ((NEWEST, frozenset({"elicit.form"})), (FORMS, frozenset({"elicit.url"}))):
        ok, made = translate.outcome("tools/call", False, payload, version, bits)
        assert ok
        assert plain(made) == {"content": [{"type": "text", "text": "go there\n\nm\nhttps://x"}], "isError": True}
        asked = [("resources/read", False), ("tools/call", True)]  # what was to become a task has no result to hold it
        for method, as_task in asked:
            ok, made = translate.outcome(method, False, payload, version, bits, as_task=as_task)
            assert not ok
        data = {"reason": "url_elicitation_required", "elicitations": [{"url": "https://x", "message": "m"}]}
        assert plain(made) == {"code": -32603, "message": "go there", "data": data}


@pytest.mark.parametrize("data", [None, 5, {}, {"elicitations": []}, {"elicitations": [{"message": "no url"}]}])
def test_a_url_error_without_a_url_is_an_error_for_a_client_that_knows_none(data):
    ok, made = translate.outcome("tools/call", False, raw({**URL_ERROR, "data": data}), NEWEST, frozenset())
    assert not ok
    data = {"reason": "url_elicitation_required"}
    assert plain(made) == {"code": -32603, "message": "go there", "data": data}


def test_any_other_error_is_the_same_object():
    for value in ({"code": -32602, "message": "-32042"}, {"code": 1, "message": "x"}, {"message": "-32042"}):
        payload = raw(value)
        assert translate.outcome("tools/call", False, payload, OLD) == (False, payload)


def test_progress_has_no_message_for_the_oldest():
    params = raw({"progressToken": 1, "progress": 2, "message": "m"})
    assert plain(translate.notification("notifications/progress", params, OLD)) == {"progressToken": 1, "progress": 2}
    assert translate.notification("notifications/progress", params, SSE_ERA) is params
    assert translate.notification("notifications/message", params, OLD) is params


# Requests


def test_a_task_is_asked_of_nobody():
    value = {"name": "t", "arguments": {"task": 1}, "task": {"ttl": 1}}
    for version in VERSIONS:
        made = plain(translate.client_request("tools/call", raw(value), version))
        assert made == {"name": "t", "arguments": {"task": 1}}
        for method in ("sampling/createMessage", "elicitation/create"):
            assert "task" not in plain(translate.server_request(method, raw({"task": {}, "message": "m"}), version))


def test_a_backend_before_contexts_gets_none():
    params = raw({"ref": {}, "context": {"arguments": {}}})
    assert "context" not in plain(translate.client_request("completion/complete", params, SSE_ERA))
    assert translate.client_request("completion/complete", params, FORMS) is params


def sampling(*messages, **more):
    return raw({"messages": list(messages), "maxTokens": 5, **more})


@pytest.mark.parametrize("version", VERSIONS)
def test_sampling_of_arrays_is_valid_in_every_revision(version, conforms):
    params = sampling({"role": "user", "content": [TEXT, AUDIO, IMAGE]}, {"role": "assistant", "content": TEXT})
    made = translate.server_request("sampling/createMessage", params, version)
    message = {"method": "sampling/createMessage", "params": plain(made)}
    if version == NEWEST:
        message |= {"jsonrpc": "2.0", "id": 1}
        assert made is params
    conforms(version, "CreateMessageRequest", message)


def test_several_blocks_become_several_messages_of_the_same_role():
    made = plain(
        translate.server_request("sampling/createMessage", sampling({"role": "user", "content": [TEXT, IMAGE]}), FORMS)
    )
    assert made["messages"] == [{"role": "user", "content": TEXT}, {"role": "user", "content": IMAGE}]


@pytest.mark.parametrize("kind", ["tool_use", "tool_result"])
def test_tools_in_sampling_cannot_be_said_to_an_older_client(kind):
    params = sampling({"role": "user", "content": [{"type": kind}]})
    made = translate.server_request("sampling/createMessage", params, FORMS)
    assert isinstance(made, Unbridgeable)
    assert not made.ok
    assert plain(made.payload)["code"] == -32602
    assert translate.server_request("sampling/createMessage", params, NEWEST) is params


def form(**properties):
    return {"message": "m", "mode": "form", "requestedSchema": {"type": "object", "properties": properties}}


def test_a_form_of_the_newest_revision_is_valid_for_the_one_before(conforms):
    params = form(
        choice={"type": "string", "title": "C", "oneOf": [{"const": "a", "title": "A"}, {"const": "b"}]},
        old={"type": "string", "enum": ["x"], "enumNames": ["X"]},
        text={"type": "string", "default": "d", "minLength": 1},
        flag={"type": "boolean", "default": True},
    )
    made = plain(translate.server_request("elicitation/create", raw(params), FORMS))
    conforms(FORMS, "ElicitRequest", {"method": "elicitation/create", "params": made})
    assert "mode" not in made
    fields = made["requestedSchema"]["properties"]
    assert fields["choice"] == {"type": "string", "title": "C", "enum": ["a", "b"], "enumNames": ["A", "b"]}
    assert {name: fields[name] for name in ("old", "text", "flag")} == {
        name: params["requestedSchema"]["properties"][name] for name in ("old", "text", "flag")
    }


def test_a_multiple_choice_is_cancelled_and_a_url_refused():
    many = form(many={"type": "array", "items": {"type": "string", "enum": ["a"]}})
    made = translate.server_request("elicitation/create", raw(many), FORMS)
    assert isinstance(made, Unbridgeable)
    assert (made.ok, plain(made.payload)) == (True, {"action": "cancel"})
    made = translate.server_request("elicitation/create", raw({"mode": "url", "url": "https://x"}), FORMS)
    assert isinstance(made, Unbridgeable)
    assert (made.ok, plain(made.payload)["code"]) == (False, -32602)


def test_a_plain_form_is_the_same_object():
    params = raw({"message": "m", "requestedSchema": {"type": "object", "properties": {"a": {"type": "string"}}}})
    assert translate.server_request("elicitation/create", params, FORMS) is params
    assert translate.server_request("elicitation/create", raw(form()), NEWEST) == raw(form())


def sampled(content, version=FORMS):
    value = {"role": "assistant", "model": "m", "content": content}
    return translate.answer("sampling/createMessage", True, raw(value), version)


def test_a_models_answer_is_one_block_for_an_older_backend(conforms):
    for content, block in (
        (TEXT, TEXT),
        ([IMAGE], IMAGE),
        ([TEXT, {"type": "text", "text": "2"}], {"type": "text", "text": "hello\n2"}),
    ):
        ok, made = sampled(content)
        assert ok
        conforms(FORMS, "CreateMessageResult", made)
        assert plain(made)["content"] == block
    assert plain(sampled([TEXT, IMAGE], NEWEST)[1])["content"] == [TEXT, IMAGE]


def test_what_one_block_cannot_hold_is_an_error_for_the_backend():
    for content in ([TEXT, IMAGE], []):
        ok, made = sampled(content)
        assert (ok, plain(made)["code"]) == (False, -32603)
