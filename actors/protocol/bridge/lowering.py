"""What comes from a peer of the era without sessions, for a peer with: the counterpart of `bridge.raising`.

Each payload is first brought into the form of the newest revision with sessions, which is only a matter of a few
members; `actors.protocol.lowering` does the rest for older ones. So a `version` need not be given where that follows
anyhow. A payload of an unexpected shape passes as it is.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from msgspec import Raw

from actors.protocol import errors, lowering
from actors.protocol.bridge.raising import RESERVED
from actors.protocol.errors import Malformed, ProtocolError
from actors.protocol.lowering import Unbridgeable
from actors.protocol.messages import EMPTY
from actors.protocol.modern import meta
from actors.protocol.payload import (
    compact,
    dumps,
    elements,
    is_object,
    members,
    mentions,
    meta_of,
    replace_members,
    text_or_none,
)
from actors.protocol.versions import LATEST_HANDSHAKE


class _Row(NamedTuple):
    """For payloads of the method ("": of any) that mention one of the names: the payload in the older form."""

    method: str
    names: tuple[bytes, ...]
    lower: Callable[[Raw], Raw]


# ------------------------------------------------------------------------------------------------- servers to clients


def from_modern(method: str, payload: Raw, version: str = LATEST_HANDSHAKE) -> Raw:
    """A complete result of a modern backend, for a client that speaks `version`."""
    return lowering.result(method, _apply(_RESULTS, method, payload), version)


def notification_from_modern(method: str, params: Raw, version: str = LATEST_HANDSHAKE) -> Raw | None:
    """The params of a modern backend's notification; None: there is no such thing with sessions."""
    if method in _UNHEARD:
        return None
    return lowering.notification(method, _apply(_NOTIFICATIONS, method, params), version)


def question_from_modern(
    method: str, params: Raw, elicitation_id: str, version: str = LATEST_HANDSHAKE
) -> Raw | Unbridgeable:
    """The params of a question of an InputRequiredResult, as a request to a client. One that sends the user to a URL
    gets this id, by which its end is announced."""
    if method == "elicitation/create" and _is_url(params):
        params = replace_members(params, {"elicitationId": dumps(elicitation_id)})
    return lowering.server_request(method, _apply(_QUESTIONS, method, params), version)


def error_from_modern(
    method: str,
    payload: Raw,
    uri: str | None = None,
) -> Raw:
    """A modern backend's JSON-RPC error for a client with a session; `uri` is that of a `resources/read`.

    A resource that is not found has its own code with sessions. What the client did not declare is its own fault
    (-32600, same data); any other code of that era is between the gateway and the backend, and becomes -32603.
    """
    try:
        error = errors.parse_error_member(payload)
    except ValueError:
        return errors.internal("the server's error is malformed", reason="malformed", executed="unknown").raw
    if error.code == errors.INVALID_PARAMS and method == "resources/read" and _names_uri(error.data, uri):
        return ProtocolError(errors.RESOURCE_NOT_FOUND, error.message, error.data).raw
    if error.code == errors.MISSING_CLIENT_CAPABILITY:
        return ProtocolError(errors.INVALID_REQUEST, error.message, error.data).raw
    if error.code in RESERVED and error.code != errors.RESOURCE_NOT_FOUND:
        data: dict[str, Any] = {"code": error.code, **({"data": error.data} if error.data else {})}
        return ProtocolError(errors.INTERNAL, error.message, dumps(data)).raw
    return payload


def _names_uri(data: Raw, uri: str | None) -> bool:
    """Whether an error says that this resource is the one it means; None: that any is."""
    if not is_object(data):
        return False
    try:
        named = text_or_none(members(data).get("uri"))
    except Malformed:
        return False
    return named is not None and uri in (None, named)


def _is_url(params: Raw) -> bool:
    try:
        return text_or_none(members(params).get("mode")) == "url"
    except Malformed:
        return False


# ------------------------------------------------------------------------------------------------- clients to servers


def request_from_modern(method: str, params: Raw, version: str = LATEST_HANDSHAKE) -> Raw:
    """The params of a modern client's request for a backend that speaks `version`: without the envelope, and without
    what belongs to a retry."""
    try:
        params = meta.bare(params)
    except Malformed:
        return params
    return lowering.client_request(method, params, version)


def answer_from_modern(method: str, payload: Raw, version: str = LATEST_HANDSHAKE) -> Raw | Unbridgeable:
    """A modern client's answer, as the result that a backend is waiting for."""
    return lowering.client_result(method, _apply(_ANSWERS, method, payload), version)


# ----------------------------------------------------------------------------------------------------------- the table


def _apply(rows: tuple[_Row, ...], method: str, payload: Raw) -> Raw:
    for row in rows:
        if payload and row.method in ("", method) and mentions(payload, *row.names):
            with suppress(Malformed):
                payload = row.lower(payload)
    return payload


def _without(*names: str) -> _Row:
    def lower(payload: Raw) -> Raw:
        gone = members(payload).keys() & set(names)
        return replace_members(payload, dict.fromkeys(gone)) if gone else payload

    return _Row("", tuple(name.encode() for name in names), lower)


def _without_keys(*keys: str) -> _Row:
    def lower(payload: Raw) -> Raw:
        present = members(meta_of(payload))
        kept = {key: value for key, value in present.items() if key not in keys}
        if len(kept) == len(present):
            return payload
        return replace_members(payload, {"_meta": dumps(kept) if kept else None})

    return _Row("", tuple(key.encode() for key in keys), lower)


def _object_schemas(payload: Raw) -> Raw:
    """Tools whose schemas have the narrower form of before: an output is an object, and a property's schema is one."""
    if "tools" not in members(payload):
        return payload
    return replace_members(
        payload, {"tools": dumps([_object_tool(tool) for tool in elements(members(payload)["tools"])])}
    )


def _object_tool(tool: Raw) -> Raw:
    changes: dict[str, Raw | None] = {}
    for name, schema in members(tool).items() if is_object(tool) else ():
        if name == "outputSchema" and (not is_object(schema) or text_or_none(members(schema).get("type")) != "object"):
            changes[name] = None
        elif name in ("inputSchema", "outputSchema") and is_object(schema):
            changes[name] = _object_properties(schema)
    return replace_members(tool, changes) if changes else tool


def _object_properties(schema: Raw) -> Raw:
    """A schema that is just `true` or `false` is written as the object that means the same."""
    properties = members(schema).get("properties")
    if properties is None or not is_object(properties):
        return schema
    fields = members(properties)
    if all(is_object(field) for field in fields.values()):
        return schema
    return replace_members(schema, {"properties": dumps({k: _BOOLEANS.get(bytes(v), v) for k, v in fields.items()})})


_BOOLEANS: Final = {b"true": Raw(b"{}"), b"false": Raw(b'{"not":{}}')}


def _object_structured(payload: Raw) -> Raw:
    """Structured content that is no object goes; its JSON is a text, if there is none."""
    present = members(payload)
    structured = present.get("structuredContent")
    if structured is None or is_object(structured):
        return payload
    del present["structuredContent"]
    content = elements(present.get("content", Raw(b"[]")))
    if not any(is_object(block) and text_or_none(members(block).get("type")) == "text" for block in content):
        content.append(dumps({"type": "text", "text": bytes(compact(structured)).decode()}))
    present["content"] = dumps(content)
    return dumps(present)


def _object_tool_results(params: Raw) -> Raw:
    """Sampling shows a model what tools gave: structured content that is no object goes, the rest says it too."""
    present = members(params)
    messages = [members(message) for message in elements(present.get("messages", Raw(b"[]")))]
    for message in messages:
        content = message.get("content", EMPTY)
        if is_object(content):
            message["content"] = _object_tool_result(content)
        elif content:
            message["content"] = dumps([_object_tool_result(block) for block in elements(content)])
    present["messages"] = dumps(messages)
    return dumps(present)


def _object_tool_result(block: Raw) -> Raw:
    structured = members(block).get("structuredContent") if is_object(block) else None
    return block if structured is None or is_object(structured) else replace_members(block, {"structuredContent": None})


_RESULTS: Final = (
    _Row("tools/list", (b"outputSchema", b"true", b"false"), _object_schemas),
    _Row("tools/call", (b"structuredContent",), _object_structured),
    _without("resultType", "ttlMs", "cacheScope", "inputRequests", "requestState"),
    _without_keys(meta.SERVER_KEY, meta.SUBSCRIPTION_KEY),
)
_NOTIFICATIONS: Final = (_without_keys(meta.SUBSCRIPTION_KEY, meta.SERVER_KEY),)
_UNHEARD: Final = frozenset(
    {"notifications/cancelled", "notifications/subscriptions/acknowledged", "notifications/tasks"}
)
_QUESTIONS: Final = (_Row("sampling/createMessage", (b"structuredContent",), _object_tool_results),)
_ANSWERS: Final = (_without("resultType"), _without_keys(*meta.ENVELOPE_KEYS))
