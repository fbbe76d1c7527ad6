"""What one peer says, in the words of another's revision.

One table for the five revisions, 2026-07-28 among them. A row belongs to a feature (`versions.FEATURES`), and
counts where the sender's revision has that feature and the reader's has not: then it takes the feature out of the
payload, or puts in its place what the reader's revision has. So a feature that came in with a revision is lowered
for older readers, and one that went with the sessions is left out for newer ones.

Only what a revision would misread is touched; unknown members stay, since every revision has readers that ignore
them (titles, icons, annotations). Where nothing needs doing, the same object comes back, after a search for a few
names in the bytes. A payload of an unexpected shape passes as it is: its reader judges it.

Where a sender is not named, it speaks the newest revision with sessions. Upstream connections bring what servers of
2026-07-28 say into that form, and sessions do the rest for their clients: each end knows its own peer's revision.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from msgspec import Raw, Struct

from actors.protocol import errors, outcomes
from actors.protocol.capabilities import ClientBits
from actors.protocol.errors import Malformed, ProtocolError
from actors.protocol.messages import EMPTY, Outcome
from actors.protocol.meta import ENVELOPE_KEYS, PREFIX, RELATED_TASK_KEY, RETRY_MEMBERS, SERVER_KEY, SUBSCRIPTION_KEY
from actors.protocol.outcomes import CACHEABLE, COMPLETE
from actors.protocol.pages import in_words, sent_away
from actors.protocol.payload import (
    compact,
    dumps,
    elements,
    is_object,
    loads,
    members,
    mentions,
    replace_members,
    text_or_none,
)
from actors.protocol.tasks import for_model
from actors.protocol.versions import LATEST_HANDSHAKE, MODERN, Era, at_least, can_use, era_of

MessageKind: TypeAlias = Literal["result", "notification", "client_request", "server_request", "answer"]
"""Results and notifications come from servers, answers are clients' results."""


class Unbridgeable(Struct, frozen=True):
    """The peer can't be sent this; its asker gets the payload instead, a result if `ok`, else an error."""

    ok: bool
    payload: Raw


class _UnbridgeableError(Exception):
    def __init__(self, ok: bool, payload: Raw) -> None:
        super().__init__("unbridgeable")
        self.instead = ok, payload


# ------------------------------------------------------------------------------------------------- servers to clients


def result(
    method: str, payload: Raw, reader: str, sender: str = LATEST_HANDSHAKE, *, implementation: Raw = EMPTY
) -> Raw:
    """A server's result. `implementation` is who says so, for readers of 2026-07-28 (EMPTY: nothing is said)."""
    if reader == sender:
        return payload
    payload = _translated("result", method, payload, reader, sender)
    if at_least(reader, MODERN) and not at_least(sender, MODERN):
        return _completed(method, payload, implementation)
    return payload


def notification(method: str, params: Raw, reader: str, sender: str = LATEST_HANDSHAKE) -> Raw:
    """The params of a server's notification that `is_told`."""
    return params if reader == sender else _translated("notification", method, params, reader, sender)


def is_told(method: str, reader: str) -> bool:
    """Whether the reader's revision has a notification that a legacy server sends."""
    return method not in _GONE or not at_least(reader, MODERN)


def server_request(
    method: str,
    params: Raw,
    reader: str,
    sender: str = LATEST_HANDSHAKE,
    *,
    tasks: bool = False,
    elicitation_id: str = "",
) -> Raw | Unbridgeable:
    """The params of a server's request. `tasks`: it may be made as a task. A server request that sends the user to
    a URL gets `elicitation_id`, by which its end is announced, from a server whose revision has none."""
    if elicitation_id and method == "elicitation/create" and _is_url(params):
        params = replace_members(params, {"elicitationId": dumps(elicitation_id)})
    try:
        return _translated("server_request", method, params, reader, sender, tasks)
    except _UnbridgeableError as unbridgeable:
        return Unbridgeable(*unbridgeable.instead)


def outcome(
    method: str, ok: bool, payload: Raw, reader: str, bits: ClientBits | None = None, *, as_task: bool = False
) -> Outcome:
    """The outcome of a legacy server for a client with a session, which has these bits (None: not looked at).
    `as_task`: it asked for a task.

    -32042 means something only to a client that can be sent to a URL; any other is told the URL in words.
    """
    if ok:
        return True, result(method, payload, reader)
    can_open = can_use(reader, "url_elicitation") and (bits is None or "elicit.url" in bits)
    away = None if can_open else sent_away(payload)
    return (False, payload) if away is None else in_words(for_model(method, as_task=as_task), *away)


# ------------------------------------------------------------------------------------------------- clients to servers


def client_request(
    method: str, params: Raw, reader: str, sender: str = LATEST_HANDSHAKE, *, tasks: bool = False
) -> Raw:
    """The params of a client's request; `tasks`: it may be made as a task. For readers of 2026-07-28 they are not
    stamped yet (`modern.meta.stamp`)."""
    if reader == sender and not mentions(params, *_TASK):
        return params
    return _translated("client_request", method, params, reader, sender, tasks)


def answer(method: str, ok: bool, payload: Raw, reader: str, sender: str = LATEST_HANDSHAKE) -> Outcome:
    """A client's outcome of a server's request of this method. It may turn into an error for a server that can't hold
    it."""
    if not ok:
        return False, payload
    try:
        return True, _translated("answer", method, payload, reader, sender)
    except _UnbridgeableError as unbridgeable:
        return unbridgeable.instead


# ------------------------------------------------------------------------------------------------------------- errors

_SERVER_CODES: Final = range(-32099, -31999)
"""JSON-RPC's codes for servers: to 2026-07-28 -32020 and below are the specification's, the others have no meaning."""


def error(method: str, payload: Raw, reader: str, sender: str = LATEST_HANDSHAKE, *, uri: str | None = None) -> Raw:
    """A server's JSON-RPC error for a client of the other era; `uri` is that of a `resources/read`.

    A resource that is not found has its own code with sessions only. What a client did not declare it can be told by
    its own era alone; with a session it is the client's fault (-32600, same data). All other codes that an era
    reserves, or has given up, mean something else in the other, or nothing: they become -32603, and the error is kept
    in `data` (2026-07-28, basic, "Error Codes").
    """
    try:
        found = errors.parse_error_member(payload)
    except ValueError:
        return errors.internal("the server's error is malformed", reason="malformed", executed="unknown").raw
    modern = era_of(reader) is Era.MODERN
    if method == "resources/read":
        if modern and found.code == errors.RESOURCE_NOT_FOUND:
            return ProtocolError(errors.INVALID_PARAMS, found.message, _with_uri(found.data, uri)).raw
        if not modern and found.code == errors.INVALID_PARAMS and _names_uri(found.data, uri):
            return ProtocolError(errors.RESOURCE_NOT_FOUND, found.message, found.data).raw
    if found.code == errors.MISSING_CLIENT_CAPABILITY and modern and era_of(sender) is Era.MODERN:
        return payload
    if found.code == errors.MISSING_CLIENT_CAPABILITY and not modern:
        return ProtocolError(errors.INVALID_REQUEST, found.message, found.data).raw
    if found.code == errors.INVALID_REQUEST and modern and era_of(sender) is not Era.MODERN:
        refused = outcomes.lacked(found.data, errors.REQUIRED)
        return payload if refused is None else refused.raw
    if found.code in _SERVER_CODES and (modern or found.code != errors.RESOURCE_NOT_FOUND):
        data = {"code": found.code, **({"data": found.data} if found.data else {})}
        return ProtocolError(errors.INTERNAL, found.message, dumps(data)).raw
    return payload


def _with_uri(data: Raw, uri: str | None) -> Raw:
    try:
        present = members(data) if is_object(data) else {}
    except Malformed:
        present = {}
    return dumps(present if uri is None or "uri" in present else {**present, "uri": uri})


def _names_uri(data: Raw, uri: str | None) -> bool:
    """Whether an error says that this resource is the one it means; None: that any is."""
    if not is_object(data):
        return False
    try:
        named = text_or_none(members(data).get("uri"))
    except Malformed:
        return False
    return named is not None and uri in (None, named)


# -------------------------------------------------------------------------------------------------- reading the table


class _Row(NamedTuple):
    """`change` is applied to payloads of the method ("": of any) that mention one of the names; it gets the payload and
    the reader's revision, and may raise Malformed."""

    feature: str
    method: str
    names: tuple[bytes, ...]
    change: Callable[[Raw, str], Raw]

    def counts(self, reader: str, sender: str, tasks: bool) -> bool:
        """Whether it counts between these two. Tasks are declared one by one: to a reader without them nothing is sent
        as a task, whatever its revision, and it answers at once."""
        if self.feature == "tasks":
            return not (tasks and can_use(reader, "tasks"))
        return can_use(sender, self.feature) and not can_use(reader, self.feature)


def _translated(said: MessageKind, method: str, payload: Raw, reader: str, sender: str, tasks: bool = False) -> Raw:
    by_method, rows = _rows(said, reader, sender, tasks)
    for row in by_method.get(method, rows):
        if mentions(payload, *row.names):
            try:
                payload = row.change(payload, reader)
            except Malformed:
                continue
    return payload


@lru_cache(maxsize=256)
def _rows(said: MessageKind, reader: str, sender: str, tasks: bool) -> tuple[dict[str, list[_Row]], list[_Row]]:
    """The rows that count between two revisions: by method, and for methods that have none of their own."""
    counting = [row for row in _TABLE[said] if row.counts(reader, sender, tasks)]
    methods = {row.method for row in counting} - {""}
    by_method = {method: [row for row in counting if row.method in ("", method)] for method in methods}
    return by_method, [row for row in counting if not row.method]


# ------------------------------------------------------------------------------------------------------- small changes


def _without(*names: str) -> Callable[[Raw, str], Raw]:
    """Takes out members."""

    def change(payload: Raw, reader: str) -> Raw:
        present = members(payload) if is_object(payload) else {}
        gone = present.keys() & set(names)
        return dumps({name: value for name, value in present.items() if name not in gone}) if gone else payload

    return change


def _without_keys(*keys: str) -> Callable[[Raw, str], Raw]:
    """Takes out keys of `_meta`, and `_meta` with the last of them."""

    def change(payload: Raw, reader: str) -> Raw:
        present: dict[str, Any] = {**members(payload)}
        meta = present.get("_meta", EMPTY)
        if not is_object(meta):
            return payload
        found = members(meta)
        kept = {key: value for key, value in found.items() if key not in keys}
        if len(kept) == len(found):
            return payload
        if kept:
            present["_meta"] = kept
        else:
            del present["_meta"]
        return dumps(present)

    return change


def _each(change: Callable[[Raw], Raw]) -> Callable[[Raw, str], Raw]:
    """Changes the items of a list of tools."""

    def change_all(payload: Raw, reader: str) -> Raw:
        present = members(payload)
        if "tools" not in present:
            return payload
        return replace_members(payload, {"tools": dumps([change(tool) for tool in elements(present["tools"])])})

    return change_all


def _names(*names: str) -> tuple[bytes, ...]:
    return tuple(name.encode() for name in names)


# --------------------------------------------------------------------------------------------- tools and their results


def _without_output_schema(tool: Raw) -> Raw:
    return replace_members(tool, {"outputSchema": None}) if is_object(tool) else tool


def without_execution(tool: Raw) -> Raw:
    """An item of a list of tools without what only tasks of 2025-11-25 need. Raises Malformed."""
    return replace_members(tool, {"execution": None}) if mentions(tool, b"execution") and is_object(tool) else tool


def _object_schemas(tool: Raw) -> Raw:
    """Before 2026-07-28 an output is an object, and so is the schema of a property."""
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


def _unstructured(payload: Raw, reader: str) -> Raw:
    """`structuredContent` goes; a result that has no text at all gets its JSON as one (tools, "Structured Content")."""
    present = members(payload)
    structured = present.pop("structuredContent", None)
    if structured is None:
        return payload
    content = elements(present.get("content", Raw(b"[]")))
    if not any(_type(block) == "text" for block in content):
        content.append(_text(bytes(compact(structured)).decode()))
    present["content"] = dumps(content)
    return dumps(present)


def _object_structured(payload: Raw, reader: str) -> Raw:
    """The same for structured content that is no object, which only 2026-07-28 has."""
    structured = members(payload).get("structuredContent")
    return payload if structured is None or is_object(structured) else _unstructured(payload, reader)


def _completed(method: str, payload: Raw, implementation: Raw) -> Raw:
    """A result of a legacy server as 2026-07-28 has them: complete, stale at once and nobody else's, whatever it
    says itself, for these members mean nothing where it comes from (basic, "ResultType"; caching)."""
    try:
        present: dict[str, Any] = {**members(payload), "resultType": COMPLETE}
        if method in CACHEABLE:
            present |= {"ttlMs": 0, "cacheScope": "private"}
        if implementation:
            meta = present.get("_meta", EMPTY)
            present["_meta"] = {**(members(meta) if is_object(meta) else {}), SERVER_KEY: implementation}
        return dumps(present)
    except Malformed:
        return payload


# ------------------------------------------------------------------------------------------------------ content blocks

_Block: TypeAlias = dict[str, Raw]


def _text(text: str, like: _Block | None = None) -> Raw:
    kept = {name: (like or {})[name] for name in ("annotations", "_meta") if name in (like or {})}
    return dumps({"type": "text", "text": text, **kept})


def _type(block: Raw) -> str | None:
    return text_or_none(members(block).get("type")) if is_object(block) else None


def _link_as_text(block: _Block) -> Raw:
    uri, name = text_or_none(block.get("uri")) or "", text_or_none(block.get("name"))
    return _text(f"{name}: {uri}" if name else uri, block)


def _audio_as_text(block: _Block) -> Raw:
    kind = text_or_none(block.get("mimeType")) or "unknown type"
    return _text(f"[audio ({kind}) left out: this client's protocol version has no audio]", block)


_BLOCKS: Final[dict[str, Callable[[_Block], Raw]]] = {"resource_link": _link_as_text, "audio": _audio_as_text}
"""Types of blocks that not every revision has (the features are called as they are), and what stands for them."""

_BLOCK_NAMES: Final = _names(*_BLOCKS)


def _block(raw: Raw, reader: str) -> Raw:
    kind = _type(raw) or ""
    return _BLOCKS[kind](members(raw)) if kind in _BLOCKS and not can_use(reader, kind) else raw


def _content(payload: Raw, reader: str) -> Raw:
    present = members(payload)
    if "content" not in present:
        return payload
    present["content"] = dumps([_block(block, reader) for block in elements(present["content"])])
    return dumps(present)


def _prompt_messages(payload: Raw, reader: str) -> Raw:
    present = members(payload)
    if "messages" not in present:
        return payload
    messages = [members(message) for message in elements(present["messages"])]
    for message in messages:
        if "content" in message:
            message["content"] = _block(message["content"], reader)
    present["messages"] = dumps(messages)
    return dumps(present)


# ------------------------------------------------------------------------------------------------------------ sampling


def _single_blocks(params: Raw, reader: str) -> Raw:
    """One block a message before 2025-11-25: an array becomes several messages of the same role."""
    present = members(params)
    messages: list[_Block] = []
    for raw in elements(present.get("messages", Raw(b"[]"))):
        message = members(raw)
        content = message.get("content")
        if content is None:
            messages.append(message)
            continue
        blocks = [content] if is_object(content) else elements(content)
        messages.extend({**message, "content": _sampling_block(block, reader)} for block in blocks)
    present["messages"] = dumps(messages)
    return dumps(present)


def _sampling_block(block: Raw, reader: str) -> Raw:
    if _type(block) in ("tool_use", "tool_result"):
        raise _UnbridgeableError(False, errors.invalid_params("the client has no tools in sampling").raw)
    return _block(block, reader)


def _object_tool_results(params: Raw, reader: str) -> Raw:
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


def _sampled(payload: Raw, reader: str) -> Raw:
    """A model's answer for a server that knows a single block: texts are joined, one of another kind passes."""
    content = members(payload).get("content")
    if content is None or is_object(content):
        return payload
    blocks = elements(content)
    if len(blocks) == 1:
        return replace_members(payload, {"content": blocks[0]})
    if not blocks or any(_type(block) != "text" for block in blocks):
        detail = "the client's answer has more than this server's protocol version can carry"
        raise _UnbridgeableError(False, errors.internal(detail, reason="content_not_expressible").raw)
    joined = "\n".join(text_or_none(members(block).get("text")) or "" for block in blocks)
    return replace_members(payload, {"content": _text(joined)})


# --------------------------------------------------------------------------------------------------------- elicitation

_CANCEL: Final = dumps({"action": "cancel"})


def _is_url(params: Raw) -> bool:
    try:
        return text_or_none(members(params).get("mode")) == "url"
    except Malformed:
        return False


def _plain_form(params: Raw, reader: str) -> Raw:
    """A form as 2025-06-18 has it: no `mode`, choices as `enum` with `enumNames`, no multiple choice."""
    present = members(params)
    if text_or_none(present.pop("mode", None)) == "url":
        raise _UnbridgeableError(False, errors.invalid_params("the client has no url mode").raw)
    if "requestedSchema" in present:
        schema = members(present["requestedSchema"])
        fields = members(schema.get("properties", Raw(b"{}")))
        schema["properties"] = dumps({name: _plain_field(field) for name, field in fields.items()})
        present["requestedSchema"] = dumps(schema)
    return dumps(present)


def _plain_field(field: Raw) -> Raw:
    present = members(field)
    if text_or_none(present.get("type")) == "array":
        raise _UnbridgeableError(True, _CANCEL)
    choices = present.pop("oneOf", None)
    if choices is None:
        return field
    titled = [loads(choice) for choice in elements(choices) if "const" in members(choice)]
    present["enum"] = dumps([choice["const"] for choice in titled])
    present["enumNames"] = dumps([choice.get("title", choice["const"]) for choice in titled])
    return dumps(present)


# ----------------------------------------------------------------------------------------------------------- the table

_OTHER_ERA: Final = (RELATED_TASK_KEY, SUBSCRIPTION_KEY)
"""Keys of `_meta` that mean something in one of the eras only, and are never a server's to say in the other."""
_OF_RESULTS: Final = ("resultType", "ttlMs", "cacheScope", "inputRequests", "requestState")
"""What 2026-07-28 added to results."""

_TASK: Final = (b'"task"',)
_META: Final = (PREFIX.encode(),)

_TABLE: Final[dict[MessageKind, tuple[_Row, ...]]] = {
    "result": (
        _Row("any_structured_content", "tools/list", _names("outputSchema", "true", "false"), _each(_object_schemas)),
        _Row("any_structured_content", "tools/call", _names("structuredContent"), _object_structured),
        _Row("result_type", "", _names(*_OF_RESULTS), _without(*_OF_RESULTS)),
        _Row("envelope", "", _META, _without_keys(SERVER_KEY, SUBSCRIPTION_KEY)),
        _Row("structured_content", "tools/list", _names("outputSchema"), _each(_without_output_schema)),
        _Row("structured_content", "tools/call", _names("structuredContent"), _unstructured),
        _Row("resource_link", "tools/call", _BLOCK_NAMES, _content),
        _Row("resource_link", "prompts/get", _BLOCK_NAMES, _prompt_messages),
        _Row("sessions", "tools/list", _names("execution"), _each(without_execution)),
        _Row("sessions", "", _names(*_OTHER_ERA), _without_keys(*_OTHER_ERA)),
    ),
    "notification": (
        _Row("progress_message", "notifications/progress", _names("message"), _without("message")),
        _Row("sessions", "", _names(*_OTHER_ERA), _without_keys(*_OTHER_ERA)),
    ),
    "client_request": (
        _Row("tasks", "tools/call", _TASK, _without("task")),
        _Row("envelope", "", _META, _without_keys(*ENVELOPE_KEYS)),
        # Only the gateway makes a retry: to a client with sessions these members mean nothing.
        _Row("questions_in_results", "", _names(*RETRY_MEMBERS), _without(*RETRY_MEMBERS)),
        _Row("sessions", "", _names(*RETRY_MEMBERS), _without(*RETRY_MEMBERS)),
        _Row("completion_context", "completion/complete", _names("context"), _without("context")),
    ),
    "server_request": (
        _Row("tasks", "sampling/createMessage", _TASK, _without("task")),
        _Row("tasks", "elicitation/create", _TASK, _without("task")),
        _Row("any_structured_content", "sampling/createMessage", _names("structuredContent"), _object_tool_results),
        _Row("sampling_arrays", "sampling/createMessage", (b"[", *_BLOCK_NAMES), _single_blocks),
        _Row("elicitation_modes", "elicitation/create", _names("mode", "oneOf", "array"), _plain_form),
        _Row("elicitation_id", "elicitation/create", _names("elicitationId"), _without("elicitationId")),
        _Row("sessions", "", _names("_meta"), _without("_meta")),
    ),
    "answer": (
        _Row("result_type", "", _names("resultType"), _without("resultType")),
        _Row("envelope", "", _META, _without_keys(*ENVELOPE_KEYS)),
        _Row("sampling_arrays", "sampling/createMessage", (b"[",), _sampled),
        _Row("sessions", "", _names("_meta"), _without("_meta")),
    ),
}

_GONE: Final = frozenset(
    {
        "notifications/cancelled",
        "notifications/elicitation/complete",
        "notifications/tasks/status",
    }
)
"""What servers tell in sessions only."""
