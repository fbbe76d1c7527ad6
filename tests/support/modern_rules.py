"""What 2026-07-28 demands of single messages beyond its JSON Schema; `assert_valid` comes first.

Written from the specification, apart from the gateway's own code.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

from tests.support.schemas import MODERN, assert_valid

Message = dict[str, Any]
Id = int | str

PREFIX = "io.modelcontextprotocol/"
VERSION, CAPABILITIES, CLIENT, LEVEL = (
    PREFIX + key for key in ("protocolVersion", "clientCapabilities", "clientInfo", "logLevel")
)
SERVER, SUBSCRIPTION = PREFIX + "serverInfo", PREFIX + "subscriptionId"
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""Method → the member that `Mcp-Name` repeats."""
CACHEABLE = (
    "server/discover",
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
)
STATUS = {-32700: 400, -32600: 400, -32602: 400, -32601: 404, -32020: 400, -32021: 400, -32022: 400, -32603: 200}
"""Of an error that is the whole answer of a request."""
ERRORS = {-32020: "HeaderMismatchError", -32021: "MissingRequiredClientCapabilityError"}
ERRORS[-32022] = "UnsupportedProtocolVersionError"
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
LISTENED = {
    "notifications/tools/list_changed": "toolsListChanged",
    "notifications/prompts/list_changed": "promptsListChanged",
    "notifications/resources/list_changed": "resourcesListChanged",
}
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
UPDATED = "notifications/resources/updated"


def typed(id: Id) -> tuple[type, Id]:
    """1 and "1" are two ids."""
    return type(id), id


def header_value(text: str) -> str:
    """A mirrored value ("Value Encoding")."""
    plain = all(" " <= c <= "~" for c in text) and text == text.strip()
    if plain and not (text.startswith("=?base64?") and text.endswith("?=")):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def mirrored(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, str]:
    """The `Mcp-Param-*` headers, in lower case, that belong to these arguments of a tool."""
    found: dict[str, str] = {}
    for name, property in schema.get("properties", {}).items():
        value = arguments.get(name)
        if value is None:
            continue
        if "x-mcp-header" in property:
            text = value if isinstance(value, str) else json.dumps(value)
            found["mcp-param-" + property["x-mcp-header"].lower()] = header_value(text)
        elif isinstance(value, dict):
            found |= mirrored(property, value)
    return found


def own_headers(message: Mapping[str, Any], schema: Mapping[str, Any] | None = None) -> dict[str, str]:
    """The headers, in lower case, that repeat what a request says."""
    params, method = message.get("params", {}), message["method"]
    version = params.get("_meta", {}).get(VERSION)
    headers = {"mcp-method": method} if "id" in message else {}
    if version is not None:
        headers["mcp-protocol-version"] = version
    name = params.get(NAMED.get(method, ""))
    if name is not None:
        headers["mcp-name"] = header_value(name)
    return headers | mirrored(schema or {}, params.get("arguments") or {})


def check_error(error: Mapping[str, Any], *, status: int | None) -> None:
    """An error of a server; `status` if it was the whole answer."""
    code = error["code"]
    assert code not in (-32002, -32042), f"a code of the other era: {error}"
    assert not -32099 <= code <= -32020 or code in ERRORS, f"a code that the specification does not define: {error}"
    if code in ERRORS:
        assert_valid({"jsonrpc": "2.0", "error": error}, MODERN, "server", error=ERRORS[code])
    if status is not None and status not in (406, 415, 429, 503):
        assert status == STATUS.get(code, 200), f"HTTP {status} with {error}"


def check_result(method: str, result: Mapping[str, Any], capabilities: Mapping[str, Any]) -> None:
    """A result of a server for a client that declared these capabilities."""
    assert "ttlMs" not in result or result["ttlMs"] >= 0
    if result["resultType"] == "input_required":
        assert not {"ttlMs", "cacheScope"} & result.keys(), f"not to be cached: {result}"
        for question in result.get("inputRequests", {}).values():
            assert not question.keys() - {"method", "params"}, f"no envelope in a question: {question}"
            allowed = what_it_needs(question["method"], question.get("params", {}))
            assert _covers(capabilities, allowed), f"the client did not declare {allowed}: {question}"
    elif method in CACHEABLE:
        assert {"ttlMs", "cacheScope"} <= result.keys(), f"{method} without cache hints: {result}"
    if method == "tools/list":
        assert not [tool for tool in result["tools"] if "execution" in tool]


def what_it_needs(method: str, params: Mapping[str, Any]) -> Message:
    """The client's capability for a question."""
    if method == "elicitation/create":
        return {"elicitation": {params.get("mode", "form"): {}}}
    if method == "roots/list":
        return {"roots": {}}
    return {"sampling": {"tools": {}} if params.keys() & {"tools", "toolChoice"} else {}}


def _covers(declared: Mapping[str, Any], needed: Mapping[str, Any]) -> bool:
    for key, inner in needed.items():
        if key not in declared:
            return False
        has = declared[key] or ({"form": {}} if key == "elicitation" else {})
        if not _covers(has, inner):
            return False
    return True


def loud_enough(level: str, wanted: str) -> bool:
    """Whether a message of this level is wanted by whoever asked for that one; by a strange one, all are."""
    return wanted not in LEVELS or LEVELS.index(level) >= LEVELS.index(wanted)


MODERN_ONLY = ("resultType", "ttlMs", "cacheScope", "requestState", "inputRequests")


def check_no_modern_fields(message: Mapping[str, Any]) -> None:
    """What a client of the handshake era gets holds nothing of the other era."""
    for part in (message.get("result", {}), message.get("params", {})):
        assert not set(MODERN_ONLY) & part.keys(), f"a field of the other era: {message}"
        meta: Iterable[str] = part.get("_meta") or {}
        assert not {SUBSCRIPTION, SERVER, VERSION, CAPABILITIES, CLIENT, LEVEL} & set(meta), f"a key: {message}"
    code = message.get("error", {}).get("code", 0)
    assert code not in (-32020, -32021, -32022), f"a code of the other era: {message}"
