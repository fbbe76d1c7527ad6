"""Every refusal of the gateway as a value, and the one table that says which HTTP status it gets.

A backend's own error is not made here: it passes on as raw JSON, and on HTTP it is an answer like any other (200).
"""

from collections.abc import Collection, Iterable
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Raw, Struct

from actors.protocol.messages import EMPTY, RequestId
from actors.protocol.versions import VERSIONS

BROKEN: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What the decoder raises for bytes that it cannot read."""

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL: Final = -32603
OVERLOADED: Final = -32000
"""Free for implementations (JSON-RPC 2.0); peers must read no meaning into it, the HTTP status carries it."""
RESOURCE_NOT_FOUND: Final = -32002
URL_ELICITATION_REQUIRED: Final = -32042
HEADER_MISMATCH: Final = -32020
MISSING_CLIENT_CAPABILITY: Final = -32021
UNSUPPORTED_PROTOCOL_VERSION: Final = -32022
REQUEST_CANCELLED: Final = -32800
"""Ends a cancelled POST, which cannot end without a body; the official SDKs use this code on this wire."""
USER_REJECTED: Final = -1
REQUEST_TIMEOUT: Final = -32001
"""By which the official TypeScript SDK says that it waited for too long."""

_NEWEST_FIRST: Final = VERSIONS[::-1]

Executed = Literal["no", "unknown", "yes"]


class Rule(NamedTuple):
    """What a kind of error means on the wire. `retry_after` is in seconds. `executed`: what it says of the request that
    it answers, as the status says over HTTP."""

    code: int
    status: int
    message: str
    retry_after: int | None = None
    executed: Executed | None = None


KINDS: Final[dict[str, Rule]] = {
    # The body is not one JSON-RPC message (MCP 2025-11-25, transports, "Sending messages to the server").
    "parse": Rule(PARSE_ERROR, 400, "Parse error"),
    "invalid_request": Rule(INVALID_REQUEST, 400, "Invalid request"),
    "malformed_params": Rule(INVALID_PARAMS, 400, "Invalid params: expected an object"),
    "batch_refused": Rule(INVALID_REQUEST, 400, "Batches exist only in protocol version 2025-03-26"),
    "too_large": Rule(INVALID_REQUEST, 413, "Message too large"),
    # Sessions and versions ("Session Management", "Protocol Version Header").
    "missing_session": Rule(INVALID_REQUEST, 400, "Missing Mcp-Session-Id header"),
    "session_not_found": Rule(INVALID_REQUEST, 404, "Session not found", None, "no"),
    "unsupported_version_header": Rule(INVALID_REQUEST, 400, "Unsupported MCP-Protocol-Version"),
    "unsupported_protocol_version": Rule(UNSUPPORTED_PROTOCOL_VERSION, 400, "Unsupported protocol version"),
    "already_initialized": Rule(INVALID_REQUEST, 400, "The session is initialized already", None, "no"),
    "not_initialized": Rule(INVALID_REQUEST, 400, "The session is not initialized yet", None, "no"),
    # The era without sessions (2026-07-28, basic, "Error Codes").
    "header_mismatch": Rule(HEADER_MISMATCH, 400, "Header mismatch"),
    "missing_client_capability": Rule(MISSING_CLIENT_CAPABILITY, 400, "Missing required client capability"),
    "invalid_envelope": Rule(INVALID_PARAMS, 400, "Invalid params"),
    "no_such_method": Rule(METHOD_NOT_FOUND, 404, "Method not found"),
    "post_only": Rule(INVALID_REQUEST, 405, "Method not allowed: this protocol version has POST only"),
    # Event streams ("Resumability and Redelivery"): undefined by the spec, so explicit, never a replay of everything.
    "bad_event_id": Rule(INVALID_REQUEST, 400, "Malformed or unknown Last-Event-ID"),
    "gap": Rule(INVALID_REQUEST, 400, "Events after this Last-Event-ID are no longer kept"),
    "stream_conflict": Rule(INVALID_REQUEST, 409, "Too many event streams in this session"),
    "superseded": Rule(INVALID_REQUEST, 409, "A newer connection has this event stream"),
    # HTTP around the message.
    "unauthorized": Rule(INVALID_REQUEST, 401, "Missing or unknown bearer token"),
    "forbidden_host": Rule(INVALID_REQUEST, 403, "This Host is not allowed"),
    "forbidden_origin": Rule(INVALID_REQUEST, 403, "This Origin is not allowed"),
    "endpoint_not_found": Rule(INVALID_REQUEST, 404, "No such endpoint", None, "no"),
    "method_not_allowed": Rule(INVALID_REQUEST, 405, "Method not allowed"),
    "not_acceptable": Rule(INVALID_REQUEST, 406, "Not acceptable"),
    "unsupported_media_type": Rule(INVALID_REQUEST, 415, "Content-Type must be application/json"),
    # Rules of the operator (MCP 2026-07-28, authorization, "Runtime Insufficient Scope Errors").
    "insufficient_scope": Rule(INTERNAL, 403, "Insufficient scope"),
    # Their limits (RFC 6585, section 4): surely not executed.
    "limited": Rule(INTERNAL, 429, "Limit reached"),
    "quota_unknown": Rule(INTERNAL, 503, "Limit unknown"),
    "header_too_large": Rule(INVALID_REQUEST, 431, "Headers too large"),
    # No room, or not at the moment: surely not executed.
    "too_many_requests": Rule(OVERLOADED, 429, "Too many requests in flight", 1, "no"),
    "too_many_sessions": Rule(OVERLOADED, 429, "Too many sessions of this principal", 5, "no"),
    "server_full": Rule(OVERLOADED, 503, "No room for a new session", 5, "no"),
    "overloaded": Rule(OVERLOADED, 503, "The server is overloaded", 1, "no"),
    "audit_full": Rule(OVERLOADED, 503, "What is done can't be recorded", 2, "no"),
    "draining": Rule(OVERLOADED, 503, "The server is shutting down", 1, "no"),
    "store_away": Rule(OVERLOADED, 503, "The session store is away", 2, "no"),
    "too_new": Rule(OVERLOADED, 503, "The session is kept in a form that this replica can't read", 2, "no"),
    "store_full": Rule(OVERLOADED, 503, "The session store is full", 5, "no"),
    # Answers to a request that was accepted: in this era any JSON-RPC error is a 200 answer.
    "method_not_found": Rule(METHOD_NOT_FOUND, 200, "Method not found"),
    "invalid_params": Rule(INVALID_PARAMS, 200, "Invalid params"),
    "internal": Rule(INTERNAL, 200, "Internal error"),
    "resource_not_found": Rule(RESOURCE_NOT_FOUND, 200, "Resource not found"),
    "cancelled": Rule(REQUEST_CANCELLED, 200, "Request cancelled"),
    "rejected": Rule(USER_REJECTED, 200, "Rejected"),
    "peer": Rule(INTERNAL, 200, "Error"),
}


CODES: Final = frozenset({*(rule.code for rule in KINDS.values()), URL_ELICITATION_REQUIRED, REQUEST_TIMEOUT})
"""Codes that are known here; a peer may choose any other."""


class ProtocolError(Struct, frozen=True):
    """A JSON-RPC error. `kind` is a row of KINDS and never goes on the wire; nor does `wait` but in Retry-After: the
    seconds that are this error's own."""

    code: int
    message: str
    data: Raw = EMPTY
    kind: str = "peer"
    wait: int | None = None

    @property
    def status(self) -> int:
        """The HTTP status for an answer that carries only this error."""
        return KINDS[self.kind].status

    @property
    def retry_after(self) -> int | None:
        """Seconds for the Retry-After header, where it or its kind has one."""
        return self.wait if self.wait is not None else KINDS[self.kind].retry_after

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The HTTP headers that belong to the status."""
        if self.kind == "post_only":
            return (("allow", "POST"),)
        seconds = self.retry_after
        return () if seconds is None else (("retry-after", str(seconds)),)

    @property
    def raw(self) -> Raw:
        """The `error` member of the response to a request."""
        executed = KINDS[self.kind].executed
        return (self if executed is None or self.data else saying(executed, self)).bare

    @property
    def bare(self) -> Raw:
        """The same where it answers no request, of which it could tell anything."""
        return Raw(_encode(_Body(self.code, self.message, self.data or EMPTY)))


class Refusal(Exception):  # noqa: N818 - a value in flight, not a fault of the program
    """A ProtocolError on its way to whoever answers. `id` is the request's, where it could be read."""

    def __init__(self, error: ProtocolError, id: RequestId | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.id = id


class Malformed(Refusal):
    """What a peer sent is not a message, or a payload is not what its method needs.

    `id` is that of a request to answer, `outcome_of` that of our own request, which gets no better response than
    this. (The two number independently: an error that echoes `outcome_of` would answer a request of the peer's.)
    `session/server_requests`: it can be told to be a request or a notification, so it is no request's outcome.
    """

    def __init__(
        self,
        error: ProtocolError,
        id: RequestId | None = None,
        *,
        outcome_of: RequestId | None = None,
        asks: bool = False,
    ) -> None:
        super().__init__(error, id)
        self.code = error.code
        self.reason = error.message
        self.outcome_of = outcome_of
        self.asks = asks


class _Body(Struct, omit_defaults=True):
    code: int
    message: str
    data: Raw = EMPTY


class _Response(Struct, omit_defaults=True):
    jsonrpc: str
    id: RequestId
    error: Raw


class _ResponseWithoutId(Struct):
    jsonrpc: str
    error: Raw


_encode = msgspec.json.Encoder().encode
_decode_member = msgspec.json.Decoder(_Body).decode


def encode_error_body(error: ProtocolError, id: RequestId | None = None) -> bytes:
    """A whole error response. Without an id the member is left out: it is never null on our side."""
    if id is None:
        return _encode(_ResponseWithoutId("2.0", error.bare))
    return _encode(_Response("2.0", id, error.raw))


def parse_error_member(raw: Raw) -> ProtocolError:
    """The `error` member of a peer's response, of kind `peer`. Raises ValueError if it is not a JSON-RPC error."""
    try:
        member = _decode_member(raw)
    except BROKEN as broken:
        raise ValueError(f"not a JSON-RPC error object: {broken}") from None
    return ProtocolError(member.code, member.message, member.data)


def refusal(kind: str, detail: str | None = None, **data: Any) -> ProtocolError:
    """An error of this kind; `detail` is added to its message, `data` (None values left out) becomes its data."""
    rule = KINDS[kind]
    message = rule.message if detail is None else f"{rule.message}: {detail}"
    present = {key: value for key, value in data.items() if value is not None}
    return ProtocolError(rule.code, message, Raw(_encode(present)) if present else EMPTY, kind)


def saying(executed: Executed, error: ProtocolError) -> ProtocolError:
    """The error of ours, with this to say of whether the request may have been executed."""
    data = msgspec.json.decode(error.data) if error.data else {}
    return msgspec.structs.replace(error, data=Raw(_encode({**data, "executed": executed})))


def waits(kind: str, detail: str, seconds: int | None, *, reason: str) -> ProtocolError:
    """A refusal of something that may be asked for again after so many seconds (None: not as it is)."""
    error = refusal(kind, detail, reason=reason, executed="no", retryAfter=seconds)
    return msgspec.structs.replace(error, wait=seconds)


# One for each kind that needs but a detail.

invalid_request = partial(refusal, "invalid_request")
invalid_params = partial(refusal, "invalid_params")
batch_refused = partial(refusal, "batch_refused")
missing_session = partial(refusal, "missing_session")
session_not_found = partial(refusal, "session_not_found")
"""For an unknown, an ended and a foreign session alike, so that none can be told from the others."""
already_initialized = partial(refusal, "already_initialized")
not_initialized = partial(refusal, "not_initialized")
too_many_requests = partial(refusal, "too_many_requests")
too_many_sessions = partial(refusal, "too_many_sessions")
server_full = partial(refusal, "server_full")
audit_full = partial(refusal, "audit_full")
overloaded = partial(refusal, "overloaded")
parse_error = partial(refusal, "parse")
draining = partial(refusal, "draining")
too_new = partial(refusal, "too_new")
store_away = partial(refusal, "store_away")
store_full = partial(refusal, "store_full")
bad_event_id = partial(refusal, "bad_event_id")
stream_conflict = partial(refusal, "stream_conflict")
superseded = partial(refusal, "superseded")
cancelled = partial(refusal, "cancelled")
rejected = partial(refusal, "rejected")
"""Sampling that the user, or the gateway in the user's place, refused."""


def method_not_found(method: str) -> ProtocolError:
    """Also for a method whose capability was not declared (lifecycle, "Operation")."""
    return refusal("method_not_found", _shown(method))


def internal(
    detail: str | None = None,
    *,
    reason: str | None = None,
    executed: Executed | None = None,
    backend: str | None = None,
    **data: Any,
) -> ProtocolError:
    """A fault on the server's side. `executed` says whether the backend may have run the request."""
    return refusal("internal", detail, backend=backend, reason=reason, executed=executed, **data)


def unanswered(backend: str | None = None, executed: Executed = "unknown") -> ProtocolError:
    """The deadline of a request has passed; unless it was never sent, nobody knows how far the server got."""
    return internal("the server did not answer in time", backend=backend, reason="timeout", executed=executed)


def too_large(limit: int) -> ProtocolError:
    return refusal("too_large", f"more than {limit} bytes")


def unsupported_version_header(version: str) -> ProtocolError:
    return refusal(
        "unsupported_version_header", _shown(version), supported=list(VERSIONS[::-1]), requested=_shown(version)
    )


def unsupported_protocol_version(version: str, supported: Iterable[str] = _NEWEST_FIRST) -> ProtocolError:
    """A modern request names a revision that is not served (2026-07-28, versioning); `supported` are, newest first."""
    return refusal("unsupported_protocol_version", None, supported=list(supported), requested=_shown(version))


REQUIRED: Final = "requiredCapabilities"
"""What the client would have to declare: in the data of -32021, and of the -32600 in its place with sessions."""
LACKING: Final = f"stagedoor/{REQUIRED}"
"""The same in the `_meta` of a tool's result that says in words, to a client with a session, what it lacks."""


def missing_client_capability(required: Raw) -> ProtocolError:
    """The request needs what its client did not declare; `required` has the shape of ClientCapabilities."""
    return refusal("missing_client_capability", None, **{REQUIRED: required})


_MODERN_STATUS: Final = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    METHOD_NOT_FOUND: 404,
    HEADER_MISMATCH: 400,
    MISSING_CLIENT_CAPABILITY: 400,
    UNSUPPORTED_PROTOCOL_VERSION: 400,
}


def modern_status(code: int) -> int:
    """The HTTP status of an error that is the whole answer to a modern request, whoever made it."""
    return _MODERN_STATUS.get(code, 200)


_MODERN_KINDS: Final = {
    "method_not_found": "no_such_method",
    "invalid_params": "invalid_envelope",
    "resource_not_found": "invalid_envelope",
}


def for_modern(error: ProtocolError) -> ProtocolError:
    """An error of ours with the status, and the code, that it has in the modern era."""
    kind = _MODERN_KINDS.get(error.kind, error.kind)
    code = KINDS[kind].code if kind != error.kind else INTERNAL if error.code == OVERLOADED else error.code
    return msgspec.structs.replace(error, code=code, kind=kind)


class _Scopes(Struct, frozen=True):
    required_scopes: list[str] = []


class _StepUp(Struct, frozen=True):
    data: _Scopes = _Scopes()


class _StepUpBody(Struct):
    error: _StepUp = _StepUp()


def required_scopes(body: bytes) -> list[str]:
    """The scopes that a response with `insufficient_scope` names; none for any other."""
    try:
        return msgspec.json.decode(body, type=_StepUpBody).error.data.required_scopes
    except BROKEN:
        return []


def insufficient_scope(required: Iterable[str]) -> ProtocolError:
    """The token lacks a scope; `required` are all that this operation needs, for whoever has no HTTP header to read."""
    return refusal("insufficient_scope", None, required_scopes=list(required), executed="no")


def actor_ended() -> ProtocolError:
    """For a request whose actor ended before it said anything of it."""
    return internal("the session's actor ended", reason="actor_ended", executed="unknown")


def gap(reason: str) -> ProtocolError:
    """A resume past what is kept: explicit, and without any events."""
    return refusal("gap", None, reason=reason)


def resource_not_found(uri: str) -> ProtocolError:
    return refusal("resource_not_found", None, uri=uri)


def _shown(version: str) -> str:
    """A peer's own text in our message: short, and printable."""
    return "".join(c if c.isprintable() else "?" for c in version[:64])


def as_result(text: str) -> Raw:
    """A refusal in words: the result of a tool call that was not made, which its model can read."""
    return Raw(msgspec.json.encode({"content": [{"type": "text", "text": text}], "isError": True}))


KEPT: Final = 4096
"""Bytes of an error of ours that is remembered. They are short."""


class _Reason(Struct):
    data: dict[str, Raw] = {}


def reason_of(error: Raw) -> str | None:
    """The reason that an error gives in its `data`, if it gives one."""
    try:
        given = msgspec.json.decode(error, type=_Reason).data.get("reason")
        reason = msgspec.json.decode(given) if given is not None else None
        msgspec.json.decode(error, type=dict[str, Raw])
    except BROKEN:
        return None
    return reason if isinstance(reason, str) else None


def kept(error: Raw, reasons: Collection[str]) -> Raw:
    """An error that gives one of these reasons, without the message that it came in; else nothing, and also of one that
    is too long to be ours: a server that wants no account can say what it likes."""
    return Raw(bytes(error)) if len(error) <= KEPT and reason_of(error) in reasons else EMPTY


def disowned(error: Raw, reasons: Collection[str]) -> Raw:
    """A server's error, without a `data` that gives one of these reasons: they are ours to give."""
    if reason_of(error) not in reasons:
        return error
    members = msgspec.json.decode(error, type=dict[str, Raw])
    return Raw(msgspec.json.encode({name: value for name, value in members.items() if name != "data"}))
