"""Payloads for a peer of an older revision: what it lacks is replaced by what it has, by one table.

Only what a revision would misread is touched; unknown members stay, since every revision has readers that ignore
them (titles, icons, annotations). Where nothing needs doing, the same object comes back, after a search for a few
names in the bytes. A payload of an unexpected shape passes as it is: its reader judges it.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Raw, Struct

from actors.protocol.capabilities import ClientBits
from actors.protocol.errors import (
    URL_ELICITATION_REQUIRED,
    Malformed,
    internal,
    invalid_params,
    parse_error_member,
)
from actors.protocol.payload import (
    BROKEN,
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
from actors.protocol.versions import at_least, can_use


class Unbridgeable(Struct, frozen=True):
    """The peer can't be sent this; its asker gets the payload instead, a result if `ok`, else an error."""

    ok: bool
    payload: Raw


class _Row(NamedTuple):
    """For targets older than `before`: `lower` is applied to payloads of the method that mention one of the names."""

    method: str
    before: str
    names: tuple[bytes, ...]
    lower: Callable[[Raw, str], Raw]


ALL: Final = "9999"
"""Later than every revision: a row for all targets."""


def result(method: str, payload: Raw, version: str) -> Raw:
    """A backend's result for a client that speaks `version`."""
    return _apply(_RESULTS, method, payload, version)


def notification(method: str, params: Raw, version: str) -> Raw:
    """The params of a backend's notification for a client that speaks `version`."""
    return _apply(_NOTIFICATIONS, method, params, version)


def client_request(method: str, params: Raw, version: str, *, tasks: bool = False) -> Raw:
    """The params of a client's request for a backend that speaks `version`; `tasks`: it may be made as a task."""
    return _apply(_taskless(tasks, version) + _CLIENT_REQUESTS, method, params, version)


def server_request(method: str, params: Raw, version: str, *, tasks: bool = False) -> Raw | Unbridgeable:
    """The params of a backend's request for a client that speaks `version`; `tasks`: it may be made as a task."""
    try:
        return _apply(_taskless(tasks, version) + _SERVER_REQUESTS, method, params, version)
    except _UnbridgeableError as unbridgeable:
        return unbridgeable.outcome


def client_result(method: str, payload: Raw, version: str) -> Raw | Unbridgeable:
    """A client's result for a backend that speaks `version`."""
    try:
        return _apply(_CLIENT_RESULTS, method, payload, version)
    except _UnbridgeableError as unbridgeable:
        return unbridgeable.outcome


def outcome(method: str, ok: bool, payload: Raw, version: str, bits: ClientBits | None = None) -> tuple[bool, Raw]:
    """A backend's outcome for a client that speaks `version` and has these bits (None: not looked at): whether it is a
    result, and that or the error.

    -32042 means something only to a client that can be sent to a URL; any other is told the URL in words.
    """
    if ok:
        return True, result(method, payload, version)
    can_open = can_use(version, "url_elicitation") and (bits is None or "elicit.url" in bits)
    away = None if can_open else sent_away(payload)
    return (False, payload) if away is None else in_words(method, *away)


class Page(Struct, frozen=True):
    """An address that the user must open, and why."""

    url: str
    message: str = ""


class _Pages(Struct, frozen=True):
    elicitations: list[Page] = []


class _SentAway(Struct):
    code: int
    message: str = ""
    data: _Pages = _Pages()


def sent_away(error: Raw) -> tuple[str, list[Page]] | None:
    """What an error -32042 says, and the pages that it sends the user to; None for any other error."""
    if not mentions(error, b"%d" % URL_ELICITATION_REQUIRED):
        return None
    try:
        found = msgspec.json.decode(error, type=_SentAway)
    except BROKEN:
        try:
            plain = parse_error_member(error)
        except ValueError:
            return None
        found = _SentAway(plain.code, plain.message)
    return (found.message, found.data.elicitations) if found.code == URL_ELICITATION_REQUIRED else None


def in_words(method: str, why: str, pages: list[Page]) -> tuple[bool, Raw]:
    """For a client that can't be asked to open a page: the model that called a tool can tell its user, and anybody else
    finds the addresses in the error's data."""
    lines = [f"{page.message}\n{page.url}" if page.message else page.url for page in pages]
    if method == "tools/call" and lines:
        words = "\n\n".join([why or "The user must open this page in a browser first, then try again:", *lines])
        return True, dumps({"content": [{"type": "text", "text": words}], "isError": True})
    told = [{"url": page.url, "message": page.message} for page in pages]
    data = {"reason": "url_elicitation_required", **({"elicitations": told} if told else {})}
    return False, dumps({"code": internal().code, "message": why, "data": data})


class _UnbridgeableError(Exception):
    def __init__(self, ok: bool, payload: Raw) -> None:
        super().__init__("unbridgeable")
        self.outcome = Unbridgeable(ok, payload)


def _apply(rows: tuple[_Row, ...], method: str, payload: Raw, version: str) -> Raw:
    for row in rows:
        if row.method == method and not at_least(version, row.before) and mentions(payload, *row.names):
            try:
                payload = row.lower(payload, version)
            except Malformed:
                return payload
    return payload


# --------------------------------------------------------------------------------------------- tools and their results


def _without_output_schemas(payload: Raw, version: str) -> Raw:
    tools = elements(members(payload)["tools"]) if "tools" in members(payload) else []
    return replace_members(payload, {"tools": dumps([_without(tool, "outputSchema") for tool in tools])})


def _without(raw: Raw, name: str) -> Raw:
    return replace_members(raw, {name: None}) if is_object(raw) else raw


def _unstructured(payload: Raw, version: str) -> Raw:
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


_BLOCKS: Final[dict[str, tuple[str, Callable[[_Block], Raw]]]] = {
    "resource_link": ("2025-06-18", _link_as_text),
    "audio": ("2025-03-26", _audio_as_text),
}
"""Type of a block → the first revision that has it, and what stands for it before."""

_BLOCK_NAMES: Final = tuple(name.encode() for name in _BLOCKS)


def _block(raw: Raw, version: str) -> Raw:
    since, lower = _BLOCKS.get(_type(raw) or "", ("", None))
    return lower(members(raw)) if lower is not None and not at_least(version, since) else raw


def _content(payload: Raw, version: str) -> Raw:
    present = members(payload)
    if "content" not in present:
        return payload
    present["content"] = dumps([_block(block, version) for block in elements(present["content"])])
    return dumps(present)


def _prompt_messages(payload: Raw, version: str) -> Raw:
    present = members(payload)
    if "messages" not in present:
        return payload
    messages = [members(message) for message in elements(present["messages"])]
    for message in messages:
        if "content" in message:
            message["content"] = _block(message["content"], version)
    present["messages"] = dumps(messages)
    return dumps(present)


# ------------------------------------------------------------------------------------------------------------ sampling


def _sampling_messages(params: Raw, version: str) -> Raw:
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
        messages.extend({**message, "content": _sampling_block(block, version)} for block in blocks)
    present["messages"] = dumps(messages)
    return dumps(present)


def _sampling_block(block: Raw, version: str) -> Raw:
    if _type(block) in ("tool_use", "tool_result"):
        raise _UnbridgeableError(False, invalid_params("the client has no tools in sampling").raw)
    return _block(block, version)


def _sampled(payload: Raw, version: str) -> Raw:
    """A model's answer for a backend that knows a single block: texts are joined, one of another kind passes."""
    content = members(payload).get("content")
    if content is None or is_object(content):
        return payload
    blocks = elements(content)
    if len(blocks) == 1:
        return replace_members(payload, {"content": blocks[0]})
    if not blocks or any(_type(block) != "text" for block in blocks):
        detail = "the client's answer has more than this server's protocol version can carry"
        raise _UnbridgeableError(False, internal(detail, reason="content_not_expressible").raw)
    joined = "\n".join(text_or_none(members(block).get("text")) or "" for block in blocks)
    return replace_members(payload, {"content": _text(joined)})


# --------------------------------------------------------------------------------------------------------- elicitation

_CANCEL: Final = dumps({"action": "cancel"})


def _plain_form(params: Raw, version: str) -> Raw:
    """A form as 2025-06-18 has it: no `mode`, choices as `enum` with `enumNames`, no multiple choice."""
    present = members(params)
    if text_or_none(present.pop("mode", None)) == "url":
        raise _UnbridgeableError(False, invalid_params("the client has no url mode").raw)
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


def _without_task(params: Raw, version: str) -> Raw:
    """Without the member a receiver answers at once, as one does that has no tasks."""
    return _without(params, "task")


def _without_context(params: Raw, version: str) -> Raw:
    return _without(params, "context")


def _without_message(params: Raw, version: str) -> Raw:
    return _without(params, "message")


_RESULTS: Final = (
    _Row("tools/list", "2025-06-18", (b"outputSchema",), _without_output_schemas),
    _Row("tools/call", "2025-06-18", (b"structuredContent",), _unstructured),
    _Row("tools/call", "2025-06-18", _BLOCK_NAMES, _content),
    _Row("prompts/get", "2025-06-18", _BLOCK_NAMES, _prompt_messages),
)
_NOTIFICATIONS: Final = (_Row("notifications/progress", "2025-03-26", (b"message",), _without_message),)
_TASKLESS: Final = tuple(
    _Row(method, ALL, (b'"task"',), _without_task)
    for method in ("tools/call", "sampling/createMessage", "elicitation/create")
)


def _taskless(tasks: bool, version: str) -> tuple[_Row, ...]:
    return () if tasks and can_use(version, "tasks") else _TASKLESS


_CLIENT_REQUESTS: Final = (_Row("completion/complete", "2025-06-18", (b"context",), _without_context),)
_SERVER_REQUESTS: Final = (
    _Row("sampling/createMessage", "2025-11-25", (b"[", *_BLOCK_NAMES), _sampling_messages),
    _Row("elicitation/create", "2025-11-25", (b"mode", b"oneOf", b"array"), _plain_form),
)
_CLIENT_RESULTS: Final = (_Row("sampling/createMessage", "2025-11-25", (b"[",), _sampled),)
