"""What comes from a peer with sessions, for a peer of the era without: what that era has not is taken out, what it
demands is put in. Its counterpart is `bridge.lowering`.

Everything that a backend or a client of the handshake era may say is valid content in 2026-07-28, so only the members
around it are touched. A payload of an unexpected shape passes as it is: its reader judges it.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from msgspec import Raw

from actors.protocol import errors
from actors.protocol.errors import Malformed, ProtocolError
from actors.protocol.messages import EMPTY
from actors.protocol.modern.meta import RELATED_TASK_KEY, RETRY_MEMBERS, SERVER_KEY, SUBSCRIPTION_KEY
from actors.protocol.modern.outcomes import CACHEABLE, COMPLETE
from actors.protocol.payload import dumps, elements, is_object, members, mentions, meta_of, replace_members
from actors.protocol.versions import LATEST_HANDSHAKE, Era, era_of

Changes = dict[str, Raw | None]


class _Row(NamedTuple):
    """For payloads of the method ("": of any) that mention one of the names: the members to set, or to remove."""

    method: str
    names: tuple[bytes, ...]
    change: Callable[[Raw], Changes]


# ------------------------------------------------------------------------------------------------- servers to clients


def to_modern(method: str, payload: Raw, *, backend_version: str = LATEST_HANDSHAKE, server_info: Raw = EMPTY) -> Raw:
    """A result of a backend with sessions; that of one without stays as it is.

    It is complete, stale at once and nobody else's, whatever it says itself: these members had no meaning where it
    comes from. `server_info` is who says so (EMPTY: nothing is said).
    """
    if era_of(backend_version) is Era.MODERN:
        return payload
    try:
        result: dict[str, Any] = {**members(payload), **_changes(_RESULTS, method, payload), "resultType": COMPLETE}
        if method in CACHEABLE:
            result |= {"ttlMs": 0, "cacheScope": "private"}
        if server_info:
            present = result.get("_meta")
            keys = members(present) if present and is_object(present) else {}
            result["_meta"] = {**keys, SERVER_KEY: server_info}
        return dumps({name: value for name, value in result.items() if value is not None})
    except Malformed:
        return payload


def tool_to_modern(tool: Raw) -> Raw:
    """An item of a list of tools. Raises Malformed."""
    return replace_members(tool, {"execution": None}) if mentions(tool, b"execution") and is_object(tool) else tool


def notification_to_modern(method: str, params: Raw) -> Raw | None:
    """The params of a backend's notification; None: that era has no such thing, nothing is to be sent."""
    return None if method in _GONE else _changed(_NOTIFICATIONS, method, params)


def question_to_modern(method: str, params: Raw) -> Raw:
    """The params of a backend's request, as the question of an InputRequiredResult: without an id of its own, without
    `_meta`, and never as a task."""
    return _changed(_QUESTIONS, method, params)


def error_to_modern(
    method: str, payload: Raw, backend_version: str = LATEST_HANDSHAKE, *, uri: str | None = None
) -> Raw:
    """A backend's JSON-RPC error for a `method`; `uri` is that of a `resources/read`.

    Codes that the era reserves, or has given up, mean something else there, or nothing: they become -32603, and the
    error is kept in `data` (basic, "Error Codes"). What a client did not declare, only a backend of the era can say;
    headers and revisions are between it and the gateway.
    """
    try:
        error = errors.parse_error_member(payload)
    except ValueError:
        return errors.internal("the server's error is malformed", reason="malformed", executed="unknown").raw
    if error.code == errors.RESOURCE_NOT_FOUND and method == "resources/read":
        return ProtocolError(errors.INVALID_PARAMS, error.message, _with_uri(error.data, uri)).raw
    if error.code == errors.MISSING_CLIENT_CAPABILITY and era_of(backend_version) is Era.MODERN:
        return payload
    if error.code in RESERVED:
        data = {"code": error.code, **({"data": error.data} if error.data else {})}
        return ProtocolError(errors.INTERNAL, error.message, dumps(data)).raw
    return payload


RESERVED: Final = range(-32099, -31999)
"""JSON-RPC's codes for servers: -32020 and below are the specification's, the others have no meaning."""


def _with_uri(data: Raw, uri: str | None) -> Raw:
    try:
        present = members(data) if is_object(data) else {}
    except Malformed:
        present = {}
    return dumps(present if uri is None or "uri" in present else {**present, "uri": uri})


# ------------------------------------------------------------------------------------------------- clients to servers


def request_to_modern(method: str, params: Raw) -> Raw:
    """The params of a client's request, before they are stamped (`modern.meta.stamp`): never as a task, and never as
    the retry that only the gateway knows how to make."""
    return _changed(_REQUESTS, method, params)


def answer_to_modern(method: str, payload: Raw) -> Raw:
    """A client's result, as the answer in `inputResponses`."""
    return _changed(_ANSWERS, method, payload)


# ----------------------------------------------------------------------------------------------------------- the table


def _changes(rows: tuple[_Row, ...], method: str, payload: Raw) -> Changes:
    changes: Changes = {}
    for row in rows:
        if row.method in ("", method) and mentions(payload, *row.names):
            with suppress(Malformed):
                changes |= row.change(payload)
    return changes


def _changed(rows: tuple[_Row, ...], method: str, payload: Raw) -> Raw:
    if not payload:
        return payload
    try:
        changes = _changes(rows, method, payload)
        return replace_members(payload, changes) if changes else payload
    except Malformed:
        return payload


def _without(*names: str) -> Callable[[Raw], Changes]:
    def change(payload: Raw) -> Changes:
        return dict.fromkeys(members(payload).keys() & set(names))

    return change


def _without_keys(*keys: str) -> Callable[[Raw], Changes]:
    def change(payload: Raw) -> Changes:
        meta = members(meta_of(payload))
        kept = {key: value for key, value in meta.items() if key not in keys}
        return {} if len(kept) == len(meta) else {"_meta": dumps(kept) if kept else None}

    return change


def _tools_without_execution(payload: Raw) -> Changes:
    tools = elements(members(payload)["tools"]) if "tools" in members(payload) else []
    return {"tools": dumps([tool_to_modern(tool) for tool in tools])}


def _names(*keys: str) -> tuple[bytes, ...]:
    return tuple(key.encode() for key in keys)


_OTHER_ERA: Final = (RELATED_TASK_KEY, SUBSCRIPTION_KEY)
"""Keys of `_meta` that mean something in one of the eras only, and are never a peer's to say in the other."""

_RESULTS: Final = (
    _Row("tools/list", (b"execution",), _tools_without_execution),
    _Row("", _names(*_OTHER_ERA), _without_keys(*_OTHER_ERA)),
)
_NOTIFICATIONS: Final = (_Row("", _names(*_OTHER_ERA), _without_keys(*_OTHER_ERA)),)
_GONE: Final = frozenset(
    {
        "notifications/cancelled",
        "notifications/elicitation/complete",
        "notifications/tasks/status",
    }
)
_QUESTIONS: Final = (
    _Row("", (b"_meta",), _without("_meta")),
    _Row("sampling/createMessage", (b"task",), _without("task")),
    _Row("elicitation/create", (b"task", b"elicitationId"), _without("task", "elicitationId")),
)
_REQUESTS: Final = (
    _Row("", _names(*RETRY_MEMBERS), _without(*RETRY_MEMBERS)),
    _Row("tools/call", (b"task",), _without("task")),
)
_ANSWERS: Final = (_Row("", _names("_meta"), _without("_meta")),)
