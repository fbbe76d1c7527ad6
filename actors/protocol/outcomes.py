"""What a modern client may be answered: the members that each result must have, and the server requests that a
result may hold (2026-07-28, basic, "ResultType"; caching; patterns/mrtr).
"""

import re
from contextlib import suppress
from typing import Any, Final

from msgspec import Raw

from actors.protocol import capabilities, errors, pages
from actors.protocol import payload as json
from actors.protocol.capabilities import ClientBits, tasks_declared
from actors.protocol.messages import EMPTY, Outcome
from actors.protocol.meta import SERVER_KEY
from actors.protocol.tasks import for_model

COMPLETE: Final = "complete"
INPUT_REQUIRED: Final = "input_required"
KEY: Final = "stagedoor/key"
"""In the `_meta` of a legacy server's request: the key that it would have without sessions."""
KEY_FORM: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
"""It never looks like a number, as those keys do that nobody has chosen."""
UNANSWERED: Final = Raw(b'{"action":"cancel"}')
"""The answer to an elicitation that nobody will give."""
TASK: Final = "task"
"""Of the extension `io.modelcontextprotocol/tasks`."""
CACHEABLE: Final = frozenset(
    {
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
    }
)
"""The methods whose complete results carry cache hints."""
MAY_ASK: Final = frozenset({"tools/call", "prompts/get", "resources/read"})
"""The methods that may be answered with server requests."""
QUESTIONS: Final = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})
"""What may be asked."""


def untaken(error: errors.ProtocolError, request: Raw) -> errors.ProtocolError:
    """What refuses a request before anybody looks at its params. Of one that brings a state it does not say that it was
    not executed: what it goes on with was begun."""
    return errors.saying("unknown", error) if json.mentions(request, b"requestState") else error


def result(method: str, payload: Raw, bits: ClientBits, server: Raw = EMPTY, *, as_is: bool = False) -> Outcome:
    """A result as a client with these bits may get it. `server` is who says so, in place of whoever the result names
    (EMPTY: that stays). The same object if it has all it needs. `as_is`: what it asks, and of which type it is, is
    between the two ends."""
    try:
        if method not in CACHEABLE and not server and json.text_member(payload, "resultType") == COMPLETE:
            return True, payload  # as most are
        present = json.members(payload)
    except errors.Malformed:
        return _broken("the server's result is no object")
    kind = json.text_or_none(present["resultType"]) if "resultType" in present else COMPLETE
    if as_is:
        pass
    elif kind == INPUT_REQUIRED:
        refusal = _refused(method, present, bits)
        if refusal is not None:
            ok, told = _in_words(method, present) or (False, refusal.raw)
            return result(method, told, bits, server) if ok else (False, told)
    elif kind == TASK and method == "tools/call" and tasks_declared(bits):
        pass  # it goes on as a task, for a client that knows such
    elif kind != COMPLETE and (kind is None or not any(bit.startswith("ext:") for bit in bits)):
        # Of no extension that was declared (whether both ends did, the upstream connection knows), or no type at all:
        # an invalid response.
        return _broken("the server's result has a type that the client does not know")
    changes: dict[str, Raw | None] = {} if "resultType" in present else {"resultType": json.dumps(COMPLETE)}
    if method in CACHEABLE and kind == COMPLETE:
        changes |= _hints(present)
    if server:
        meta = present.get("_meta", EMPTY)
        keys = json.members(meta) if json.is_object(meta) else {}
        changes["_meta"] = json.dumps({**keys, SERVER_KEY: server})
    return True, json.replace_members(payload, changes) if changes else payload


def _hints(present: dict[str, Raw]) -> dict[str, Raw | None]:
    """Without a hint, or with one that means nothing, a result is stale at once and nobody else's."""
    changes: dict[str, Raw | None] = {}
    if ttl(present) is None:
        changes["ttlMs"] = Raw(b"0")
    if json.text_or_none(present.get("cacheScope")) not in ("public", "private"):
        changes["cacheScope"] = json.dumps("private")
    return changes


def ttl(present: dict[str, Raw]) -> int | None:
    """How long a result is fresh, in ms; None if it says nothing sensible."""
    try:
        value = json.loads(present["ttlMs"]) if "ttlMs" in present else None
    except errors.Malformed:
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _in_words(method: str, present: dict[str, Raw]) -> Outcome | None:
    """For server requests that send a user to a page, whose client can't be asked that: the pages, in words."""
    found = []
    with suppress(errors.Malformed):
        for question in json.members(present.get("inputRequests", Raw(b"{}"))).values():
            asked = json.members(json.members(question).get("params", Raw(b"{}")))
            url = json.text_or_none(asked.get("url"))
            if url is not None and json.text_or_none(asked.get("mode")) == "url":
                found.append(pages.Page(url, json.text_or_none(asked.get("message")) or ""))
    return pages.in_words(for_model(method), "", found) if found and method in MAY_ASK else None


def _broken(detail: str) -> Outcome:
    return False, errors.internal(detail, reason="malformed", executed="yes").raw


def _refused(method: str, present: dict[str, Raw], bits: ClientBits) -> errors.ProtocolError | None:
    """Why this client can't be asked this."""
    if method not in MAY_ASK:
        return errors.internal("the server asks where it may not", reason="malformed", executed="unknown")
    if "inputRequests" not in present:
        if "requestState" in present:
            return None
        return errors.internal("the server asks for nothing", reason="malformed", executed="unknown")
    try:
        asked = [json.members(question) for question in json.members(present["inputRequests"]).values()]
    except errors.Malformed:
        return errors.internal("the server's questions are malformed", reason="malformed", executed="unknown")
    for question in asked:
        kind = json.text_or_none(question.get("method")) or ""
        if kind not in QUESTIONS:
            return errors.internal("the server asks what can't be asked", reason="malformed", executed="unknown")
        refusal = missing(bits, kind, question.get("params", EMPTY))
        if refusal is not None:
            return refusal
    return None


def missing(bits: ClientBits, method: str, params: Raw) -> errors.ProtocolError | None:
    """The error (-32021) for a server request that this client did not declare; None if it did."""
    try:
        if capabilities.client_refusal(bits, method, params) is None:
            return None
        needed = _needed(method, json.members(params))
    except errors.Malformed:
        return errors.internal("the server's questions are malformed", reason="malformed", executed="unknown")
    return errors.missing_client_capability(json.dumps(needed))


def lacked(data: Raw, key: str) -> errors.ProtocolError | None:
    """The error (-32021) for a request that a server refused a client with a session, since that did not declare what
    the data says under this key; None if they say nothing of that."""
    if not json.mentions(data, key.encode()) or not json.is_object(data):
        return None
    try:
        required = json.members(data).get(key, EMPTY)
    except errors.Malformed:
        return None
    return errors.missing_client_capability(required) if json.is_object(required) else None


def _needed(method: str, params: dict[str, Raw]) -> dict[str, Any]:
    """What a client must declare to be asked this, in the shape of its declaration."""
    if method == "elicitation/create":
        return {"elicitation": {json.text_or_none(params.get("mode")) or "form": {}}}
    if method == "sampling/createMessage":
        return {"sampling": {"tools": {}} if {"tools", "toolChoice"} & params.keys() else {}}
    return {"roots": {}}


def code_of(error: Raw) -> int:
    """The code of a JSON-RPC error object; -32603 if it has none."""
    try:
        return errors.parse_error_member(error).code
    except ValueError:
        return errors.INTERNAL
