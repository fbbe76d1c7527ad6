"""Messages against the published JSON Schemas of the revisions (tests/schema).

`assert_valid` picks the definition by the message's method, for a response by the method of its request, and asks
whether that end of a session may say such a thing at all; `check` asks one definition. Validators are made once, each
for the draft that its revision is written in; formats (`uri`, `uri-template`) are checked, too, but that letters beyond
ASCII may stand in a URI, which a gateway passes on as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from jsonschema_rs import Registry, ValidationError, ValidationErrorKind, validator_cls_for

FOLDER = Path(__file__).resolve().parents[1] / "schema"
REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
NEWEST = REVISIONS[-1]
MODERN = "2026-07-28"
"""The revision without sessions."""
INPUT_METHODS = ("tools/call", "prompts/get", "resources/read")
"""Requests of it whose answer may be that input is required."""

Sender = Literal["client", "server"]

_ERRORS = {
    -32020: "HeaderMismatchError",
    -32021: "MissingRequiredClientCapabilityError",
    -32022: "UnsupportedProtocolVersionError",
    -32042: "URLElicitationRequiredError",
}
"""Codes with a definition of their own, in the revisions that have them."""

_ENVELOPES = {
    "request": ("JSONRPCRequest",),
    "notification": ("JSONRPCNotification",),
    "result": ("JSONRPCResultResponse", "JSONRPCResponse"),
    "error": ("JSONRPCErrorResponse", "JSONRPCError"),
}
"""The definition of an envelope, under its present and its former name."""

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s<>\"{}|\\^`]*")


@cache
def _schema(revision: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((FOLDER / f"{revision}.json").read_text())
    return document


@cache
def definitions(revision: str) -> dict[str, Any]:
    """All that the revision defines, by name."""
    schema = _schema(revision)
    found: dict[str, Any] = schema.get("$defs") or schema["definitions"]
    return found


@cache
def _registry(revision: str) -> Registry:
    return Registry([(f"mcp:{revision}", _schema(revision))])


@cache
def validator(revision: str, name: str) -> Any:
    """Of one definition."""
    place = "$defs" if "$defs" in _schema(revision) else "definitions"
    assert name in definitions(revision), f"{revision} has no {name}"
    kind = validator_cls_for(_schema(revision))
    reference = {"$ref": f"mcp:{revision}#/{place}/{name}"}
    formats = {"uri": lambda text: _URI.fullmatch(text) is not None}
    return kind(reference, registry=_registry(revision), formats=formats, validate_formats=True, offline=True)


@cache
def _methods(revision: str, sender: Sender, kind: Literal["Request", "Notification"]) -> Mapping[str, str]:
    """Method → definition, of what this end may send."""
    union = f"{sender.capitalize()}{kind}"
    definition = definitions(revision).get(union, {"anyOf": []})
    names = [member["$ref"].rpartition("/")[2] for member in definition.get("anyOf", [{"$ref": union}])]
    return {definitions(revision)[name]["properties"]["method"]["const"]: name for name in names}


def _kind(message: Mapping[str, Any]) -> Literal["request", "notification", "result", "error"]:
    if "method" in message:
        return "request" if "id" in message else "notification"
    assert ("result" in message) != ("error" in message), f"neither a message nor a response: {message}"
    return "result" if "result" in message else "error"


def check(revision: str, name: str, value: Any) -> None:
    """Raises AssertionError, with where and why, unless this is what the revision's definition of that name says."""
    judge = validator(revision, name)
    if not judge.is_valid(value):
        where, why = _fault(next(judge.iter_errors(value)))
        raise AssertionError(f"no {name} of {revision}: {where}: {why[:300]}\n{json.dumps(value)[:2000]}")


def _fault(error: ValidationError) -> tuple[str, str]:
    """Its place and reason; of a union, those in a member whose constants (`type`, `method`) are right."""
    while context := getattr(error.kind, "context", None):
        meant = [
            errors for errors in context if not any(isinstance(e.kind, ValidationErrorKind.Constant) for e in errors)
        ]
        if not meant:
            break
        error = min(meant, key=len)[0]
    return "/".join(map(str, error.instance_path)) or "the message", error.message


def assert_valid(
    message: Mapping[str, Any], revision: str, sender: Sender, *, method: str | None = None, error: str | None = None
) -> None:
    """Raises AssertionError unless `sender` may send this message in this revision. `method`: of the request that a
    response answers; without it only the envelope of a response is looked at. `error`: the definition of an error."""
    kind = _kind(message)
    envelope = next(name for name in _ENVELOPES[kind] if name in definitions(revision))
    check(revision, envelope, message)
    if kind in ("request", "notification"):
        known = _methods(revision, sender, "Request" if kind == "request" else "Notification")
        assert message["method"] in known, f"a {sender} has no {kind} {message['method']!r} in {revision}: {message}"
        check(revision, known[message["method"]], message)
    elif error is not None:
        check(revision, error, message)
    elif kind == "result" and method is not None:
        check(revision, _result_of(message["result"], method, revision, sender), message["result"])


def definition_of_error(message: Mapping[str, Any], revision: str) -> str | None:
    """The definition of the error with this message's code, where there is one; raises AssertionError where this
    revision lacks the code."""
    error = message.get("error")
    name = _ERRORS.get(error["code"]) if isinstance(error, dict) and "code" in error else None
    assert name is None or name in definitions(revision), f"{revision} has no error {error}"
    return name


AUGMENTED = ("tools/call", "sampling/createMessage", "elicitation/create")
"""The requests that may be made as tasks (2025-11-25)."""


def _result_of(result: Mapping[str, Any], method: str, revision: str, sender: Sender) -> str:
    if revision == MODERN and result.get("resultType") == "task":
        assert method == "tools/call", f"{method} went on as a task"
        return "Result"  # of the extension, whose schema is its own
    if revision == "2025-11-25" and "task" in result and method in AUGMENTED:
        return "CreateTaskResult"
    if revision == MODERN and result.get("resultType") != "complete":
        assert result.get("resultType") == "input_required", f"no result type for {method}: {result}"
        assert method in INPUT_METHODS, f"input is required on {method}"
        assert "inputRequests" in result or "requestState" in result, f"nothing is required: {result}"
        return "InputRequiredResult"
    return result_of(method, revision, sender)


def result_of(method: str, revision: str, sender: Sender) -> str:
    """The definition of the result of this method, which `sender` gives."""
    asker: Sender = "client" if sender == "server" else "server"
    request = _methods(revision, asker, "Request").get(method)
    assert request is not None, f"{method!r} is no request of a {asker} in {revision}"
    result = request.removesuffix("Request") + "Result"
    return result if result in definitions(revision) else "EmptyResult"
