"""Bytes ↔ messages: the envelope is read, payloads stay raw.

Whatever a peer sends, decoding gives messages or raises Malformed, which carries the error to answer. `Raw` parts of
a decoded message are views on the whole body; copy what outlives the message (`Raw.copy`).

Not here: the meaning of a method, and the size of a body on a connection (its reader stops at the limit).
"""

import re
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from actors.protocol import errors
from actors.protocol.errors import BROKEN, Malformed, ProtocolError, encode_error_body
from actors.protocol.messages import EMPTY, Error, Message, Notification, Request, RequestId, Result
from actors.protocol.methods import CANCELLED
from actors.protocol.payload import (
    ID_BYTES,
    compact,
    dumps,
    id_fits,
    is_object,
    loads,
    members,
    meta_of,
    progress_token,
    replace_members,
    text,
    text_or_none,
    with_progress_token,
)

__all__ = [
    "BATCH_MAX",
    "Batch",
    "Frame",
    "Malformed",
    "compact",
    "decode_frame",
    "decode_message",
    "dumps",
    "encode",
    "encode_batch",
    "encode_error",
    "encode_notification",
    "encode_request",
    "encode_result",
    "loads",
    "members",
    "meta_of",
    "progress_token",
    "replace_members",
    "text",
    "with_progress_token",
]

BATCH_MAX: Final = 256
"""Messages in one batch; a body of 4 MiB could else hold two million."""


class Batch(Struct, frozen=True):
    """Several messages in one frame, in order; an entry that is no message is a value here, the others count."""

    messages: tuple[Message | Malformed, ...]


Frame: TypeAlias = Request | Notification | Result | Error | Batch


class _Envelope(Struct):
    jsonrpc: Literal["2.0"]
    id: int | str | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw = EMPTY
    result: Raw = EMPTY
    error: Raw = EMPTY


class _Parts(Struct):
    """The members of an envelope in JSON that may be no message."""

    jsonrpc: Raw = EMPTY
    id: Raw = EMPTY
    method: Raw = EMPTY
    result: Raw = EMPTY
    error: Raw = EMPTY


# An array read as a struct stops at the first entry too many, before it has made an object of each.
_Slots = msgspec.defstruct(
    "_Slots", [(f"at{n}", Raw, EMPTY) for n in range(BATCH_MAX)], array_like=True, forbid_unknown_fields=True
)

_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_slots = msgspec.json.Decoder(_Slots).decode
_decode_parts = msgspec.json.Decoder(_Parts).decode
_decode_id = msgspec.json.Decoder(int | str | None).decode


# ------------------------------------------------------------------------------------------------------ decoding


def decode_frame(body: bytes, limit: int | None = None) -> Frame:
    """One message or a batch. Raises Malformed; `limit` is the most bytes it may have."""
    _check(body, limit)
    if body.lstrip(b" \t\r\n")[:1] == b"[":
        return Batch(tuple(_entry(raw) for raw in _entries(body)))
    return _message(body)


def decode_message(body: bytes, limit: int | None = None) -> Message:
    """One message. Raises Malformed, also for a batch."""
    _check(body, limit)
    return _message(body)


def _check(body: bytes, limit: int | None) -> None:
    if limit is not None and len(body) > limit:
        raise Malformed(errors.too_large(limit))
    # The decoder skips the insides of raw parts without looking at their encoding.
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as broken:
            raise Malformed(errors.parse_error(f"not UTF-8 at byte {broken.start}")) from None


def _entries(body: bytes) -> list[Raw]:
    try:
        slots = _decode_slots(body)
    except msgspec.ValidationError:
        raise Malformed(errors.invalid_request(f"more than {BATCH_MAX} messages in one batch")) from None
    except BROKEN as broken:
        return _entries(_mended(body, broken))
    entries = [raw for raw in msgspec.structs.astuple(slots) if raw]
    if not entries:
        raise Malformed(errors.invalid_request("an empty batch"))
    return entries


def _entry(raw: Raw) -> Message | Malformed:
    try:
        return _message(raw)
    except Malformed as malformed:
        return malformed.with_traceback(None)


def _message(body: bytes | Raw) -> Message:
    try:
        envelope = _decode_envelope(body)
    except msgspec.ValidationError:
        raise _diagnosis(body) from None
    except BROKEN as broken:
        return _message(_mended(bytes(body), broken))
    id, method = envelope.id, envelope.method
    if method is UNSET:
        return _response(envelope, body)
    if id is None or envelope.result or envelope.error:
        raise _diagnosis(body)
    if id is not UNSET and not id_fits(id):
        raise Malformed(errors.invalid_request(f"an id may have {ID_BYTES} bytes"), id, asks=True)
    params = envelope.params
    if params and not is_object(params):
        params = _unusual_params(params, id)
    return Notification(method, params) if id is UNSET else Request(id, method, params)


def _response(envelope: _Envelope, body: bytes | Raw) -> Message:
    # Official SDKs send `"id": null` in an error whose request they could not read.
    id = None if envelope.id is UNSET else envelope.id
    result, error = envelope.result, envelope.error
    if not error:
        if result and id is not None and is_object(result):
            return Result(id, result)
    elif not result:
        try:
            errors.parse_error_member(error)
        except ValueError as broken:
            raise Malformed(errors.invalid_request(str(broken)), outcome_of=id) from None
        return Error(id, error)
    raise _diagnosis(body)


def _unusual_params(params: Raw, id: RequestId | UnsetType) -> Raw:
    """Null stands for absent, as clients in several languages write it; a JSON-RPC array by position is not MCP."""
    spelled = bytes(params)
    if spelled == b"null":
        return EMPTY
    by_position = spelled[:1] == b"["
    error = errors.refusal("malformed_params") if by_position else errors.invalid_request("params must be an object")
    raise Malformed(error, None if id is UNSET else id, asks=True)


def _diagnosis(body: bytes | Raw) -> Malformed:
    """What is wrong with JSON that is no JSON-RPC message: asked only once it is known not to be one."""
    try:
        present = _decode_parts(body)
    except msgspec.ValidationError:
        return Malformed(errors.invalid_request("a message must be an object"))
    except BROKEN as broken:
        return Malformed(_unreadable(broken))
    outcome = bool(present.result or present.error)
    asks = bool(present.method) and not outcome
    try:
        id = _decode_id(present.id) if present.id else None
    except BROKEN:
        return Malformed(errors.invalid_request("id must be a string or an integer"), asks=asks)
    return Malformed(
        errors.invalid_request(_complaint(present)),
        None if outcome else id,
        outcome_of=None if present.method else id,
        asks=asks,
    )


def _complaint(present: _Parts) -> str:
    if text_or_none(present.jsonrpc) != "2.0":
        return 'jsonrpc must be "2.0"'
    if present.method:
        if text_or_none(present.method) is None:
            return "method must be a string"
        if present.result or present.error:
            return "a message has either a method or an outcome"
        return "id must be a string or an integer"
    if present.result and present.error:
        return "a response has either a result or an error"
    if present.result:
        return "a response has an id, and its result is an object"
    return "neither a method nor a result nor an error"


def _unreadable(broken: Exception) -> ProtocolError:
    return errors.parse_error("nested too deeply" if isinstance(broken, RecursionError) else str(broken))


# A pair stays. Half a pair can't be Unicode, which the decoder refuses, but texts cut in the middle of an emoji do
# occur. The pattern begins with plain text, which is searched for quickly.
_SURROGATES: Final = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?P<second>\\u[dD][c-fC-F][0-9a-fA-F]{2})?|[c-fC-F][0-9a-fA-F]{2})"
)
_REPLACEMENT: Final = rb"\ufffd"
_MENDED_MAX: Final = 20_000
"""Escapes looked at; a body that holds more is refused as it is: mending takes one pass over it, and no more."""


def _mended(body: bytes, broken: Exception) -> bytes:
    """The body with U+FFFD for lone surrogates, as tolerant readers do. Raises Malformed if that was not the fault."""
    if not 0 < body.count(b"\\u") <= _MENDED_MAX:
        raise Malformed(_unreadable(broken)) from None
    mended = _SURROGATES.sub(_mend, body)
    if mended == body:
        raise Malformed(_unreadable(broken)) from None
    return mended


def _mend(found: re.Match[bytes]) -> bytes:
    second = found["second"]
    if _backslashes_before(found.string, found.start()) % 2:
        # The backslash is escaped itself, so these are letters; what follows them may be half a pair.
        return found[0] if second is None else found[0][: -len(second)] + _REPLACEMENT
    return _REPLACEMENT if second is None else found[0]


def _backslashes_before(text: bytes, at: int) -> int:
    width = 16
    while True:
        tail = text[max(0, at - width) : at]
        run = len(tail) - len(tail.rstrip(b"\\"))
        if run < len(tail) or run == at:
            return run
        width *= 16


# ------------------------------------------------------------------------------------------------------ encoding


class _Request(Struct):
    jsonrpc: str
    id: RequestId
    method: str
    params: Raw


class _Notification(Struct, omit_defaults=True):
    jsonrpc: str
    method: str
    params: Raw = EMPTY


class _Result(Struct):
    jsonrpc: str
    id: RequestId
    result: Raw


class _Error(Struct):
    jsonrpc: str
    id: RequestId | UnsetType
    error: Raw


_encode = msgspec.json.Encoder().encode


def encode(message: Message) -> bytes:
    """One message as one line. Payloads are kept as they came, but for line breaks between their tokens."""
    if isinstance(message, Request):
        return encode_request(message.id, message.method, message.params)
    if isinstance(message, Result):
        return encode_result(message.id, message.result)
    if isinstance(message, Notification):
        return encode_notification(message.method, message.params)
    return _line(_encode(_Error("2.0", UNSET if message.id is None else message.id, message.error)))


NO_PARAMS: Final = Raw(b"{}")
"""What a request without params is written with: some peers refuse one that lacks the member, none one that has it."""


def encode_request(id: RequestId, method: str, params: Raw = EMPTY) -> bytes:
    return _line(_encode(_Request("2.0", id, method, params or NO_PARAMS)))


def encode_notification(method: str, params: Raw = EMPTY) -> bytes:
    return _line(_encode(_Notification("2.0", method, params or EMPTY)))


def encode_cancelled(id: RequestId, reason: str | None = None) -> bytes:
    """Tells the other end that a request need not be answered any more."""
    why = {} if reason is None else {"reason": reason}
    return encode_notification(CANCELLED, dumps({"requestId": id, **why}))


def encode_result(id: RequestId, result: Raw) -> bytes:
    return _line(_encode(_Result("2.0", id, result)))


def encode_error(id: RequestId | None, error: ProtocolError) -> bytes:
    """An error of ours; without an id the member is left out."""
    return _line(encode_error_body(error, id))


def encode_batch(responses: list[bytes]) -> bytes:
    """The answer to a batch: an array, also of a single response (2025-03-26, basic, "Batching")."""
    return b"[%b]" % b",".join(responses)


def _line(encoded: bytes) -> bytes:
    # stdio ends a message at a line feed, SSE a field at either; inside JSON strings neither occurs unescaped, and
    # between tokens they mean nothing.
    return encoded.translate(None, b"\r\n") if 0x0A in encoded or 0x0D in encoded else encoded
