"""What judges the messages of other tests: it refuses what a revision does not have, and says where and why."""

from typing import Any

import pytest
from jsonschema_rs import Draft7Validator, Draft202012Validator

from tests.support.schemas import MODERN, REVISIONS, assert_valid, check, definitions, validator

ALL = (*REVISIONS, MODERN)
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}


def call(revision: str, **params: Any) -> dict[str, Any]:
    meta = {"_meta": META} if revision == MODERN else {}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo", **meta, **params}}


def answer(revision: str, *content: Any, **more: Any) -> dict[str, Any]:
    kind = {"resultType": "complete"} if revision == MODERN else {}
    return {"jsonrpc": "2.0", "id": 1, "result": {"content": list(content), **kind, **more}}


@pytest.mark.parametrize("revision", ALL)
def test_a_right_message_is_let_through(revision: str) -> None:
    text = {"type": "text", "text": "hi", "annotations": {"audience": ["user"], "priority": 0.5}}
    assert_valid(call(revision, arguments={"a": 1}), revision, "client")
    assert_valid(answer(revision, text), revision, "server", method="tools/call")
    moved = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 0.5}}
    assert_valid(moved, revision, "server")


@pytest.mark.parametrize("revision", ALL)
def test_a_wrong_message_is_refused_with_its_place_and_the_reason(revision: str) -> None:
    wrong: list[tuple[dict[str, Any], str, str, str]] = [
        (call(revision, name=7), "client", "params/name", "string"),
        (call(revision, arguments=[]), "client", "params/arguments", "object"),
        ({**call(revision), "jsonrpc": "1.0"}, "client", "jsonrpc", "2.0"),
        ({**call(revision), "id": None}, "client", "id", "null"),
        (answer(revision, {"type": "text"}), "server", "content/0", "text"),
        (answer(revision, {"type": "text", "text": 7}), "server", "content/0/text", "string"),
        (answer(revision, {"type": "image", "data": "", "mimeType": 1}), "server", "content/0/mimeType", "string"),
        (answer(revision, {"type": "smell"}), "server", "content/0", "smell"),
        (answer(revision, isError="no"), "server", "isError", "boolean"),
        (answer(revision, {"type": "text", "text": "", "annotations": {"priority": 2}}), "server", "priority", "2"),
        (answer(revision, {"type": "text", "text": "", "annotations": {"audience": ["x"]}}), "server", "audience", "x"),
    ]
    for message, sender, where, why in wrong:
        with pytest.raises(AssertionError) as refused:
            assert_valid(message, revision, sender, method="tools/call")  # type: ignore[arg-type]
        told = str(refused.value).split("\n")[0]
        assert f"of {revision}: " in told
        assert where in told
        assert why in told


@pytest.mark.parametrize("revision", ALL)
def test_a_format_is_checked(revision: str) -> None:
    resource = {"uri": "test:///a", "text": ""}
    check(revision, "EmbeddedResource", {"type": "resource", "resource": resource})
    with pytest.raises(AssertionError, match='resource/uri: "no uri" is not a "uri"'):
        check(revision, "EmbeddedResource", {"type": "resource", "resource": {**resource, "uri": "no uri"}})
    check(revision, "ResourceTemplate", {"name": "a", "uriTemplate": "test:///{a}"})
    with pytest.raises(AssertionError, match=r'uriTemplate: "test:///\{a" is not a "uri-template"'):
        check(revision, "ResourceTemplate", {"name": "a", "uriTemplate": "test:///{a"})


@pytest.mark.parametrize("revision", ALL)
def test_each_end_says_only_what_it_may(revision: str) -> None:
    with pytest.raises(AssertionError, match=f"a server has no request 'tools/call' in {revision}"):
        assert_valid(call(revision), revision, "server")
    with pytest.raises(AssertionError, match="no request 'tools/cull'"):
        assert_valid({**call(revision), "method": "tools/cull"}, revision, "client")


@pytest.mark.parametrize("revision", ALL)
def test_every_definition_is_read_by_the_draft_of_its_revision(revision: str) -> None:
    draft = Draft202012Validator if revision in ("2025-11-25", MODERN) else Draft7Validator
    for name in definitions(revision):
        assert isinstance(validator(revision, name), draft), name
    with pytest.raises(AssertionError, match=f"{revision} has no Nonsense"):
        check(revision, "Nonsense", {})
