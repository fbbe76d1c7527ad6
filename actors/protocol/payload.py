"""What is read and changed inside raw JSON, one level at a time; everything else in it keeps its bytes.

Every reader raises Malformed for what it cannot read, nesting too deep for the decoder included: bytes that were
skipped as a raw part once may still be too deep for a second look from further down the stack.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from actors.protocol.errors import Malformed, invalid_params
from actors.protocol.messages import EMPTY, RequestId

BROKEN: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What the decoder raises for bytes that it cannot read."""

_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_array = msgspec.json.Decoder(list[Raw]).decode
_decode_token: Callable[[Raw], RequestId] = msgspec.json.Decoder(int | str).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def refused(broken: Exception) -> Malformed:
    """The refusal (-32602) for a payload that cannot be read."""
    return Malformed(invalid_params("nested too deeply" if isinstance(broken, RecursionError) else str(broken)))


def is_object(raw: Raw) -> bool:
    """Whether valid JSON is an object."""
    return bool(raw) and memoryview(raw)[0] == 0x7B


def mentions(raw: Raw, *names: bytes) -> bool:
    """Whether any of these names may occur: the quick look before anything is decoded.

    A name can be spelled with escapes, so an escape that makes letters counts as any name.
    """
    data = bytes(raw)
    # `find`, since `in` tries the bytes as a number first, which takes longer than the search.
    for name in names:
        if data.find(name) >= 0:
            return True
    return 0x5C in data and data.find(b"\\u00") >= 0


def compact(raw: Raw) -> Raw:
    """The same value without whitespace between tokens; numbers and strings keep their spelling. Raises Malformed."""
    try:
        return Raw(msgspec.json.format(bytes(raw), indent=-1))
    except BROKEN as broken:
        raise refused(broken) from None


def dumps(value: Any) -> Raw:
    """JSON of plain values; `Raw` inside is kept as it is."""
    return Raw(_encode(value))


def loads(raw: Raw) -> Any:
    """Plain values of JSON. Raises Malformed."""
    try:
        return _decode_any(raw)
    except BROKEN as broken:
        raise refused(broken) from None


def text(raw: Raw) -> str:
    """The value of a JSON string. Raises Malformed for anything else."""
    try:
        return _decode_text(raw)
    except BROKEN as broken:
        raise refused(broken) from None


def text_or_none(raw: Raw | None) -> str | None:
    """The value of a JSON string; None for anything else."""
    if not raw:
        return None
    try:
        return _decode_text(raw)
    except BROKEN:
        return None


def elements(raw: Raw) -> list[Raw]:
    """The elements of an array. Raises Malformed for anything else."""
    try:
        return _decode_array(raw)
    except BROKEN as broken:
        raise refused(broken) from None


def members(raw: Raw) -> dict[str, Raw]:
    """The members of an object, in order, one level deep; of EMPTY: none. Raises Malformed for anything else."""
    if not raw:
        return {}
    try:
        return _decode_object(raw)
    except BROKEN as broken:
        raise refused(broken) from None


def replace_members(raw: Raw, changes: dict[str, Raw | None]) -> Raw:
    """An object with members set, or removed where the change is None; the others keep their bytes and place."""
    present = members(raw)
    for name, value in changes.items():
        if value is None:
            present.pop(name, None)
        else:
            present[name] = value
    return dumps(present)


class _WithMeta(Struct):
    meta: Raw = msgspec.field(name="_meta", default=EMPTY)


_decode_with_meta = msgspec.json.Decoder(_WithMeta).decode


def meta_of(holder: Raw) -> Raw:
    """The `_meta` object of params, a result or an item; EMPTY if there is none. Raises Malformed."""
    if not holder:
        return EMPTY
    try:
        meta = _decode_with_meta(holder).meta
    except BROKEN as broken:
        raise refused(broken) from None
    return meta if is_object(meta) else EMPTY


def progress_token(params: Raw) -> RequestId | None:
    """The token by which the sender wants progress; one of another type than string or integer counts as none."""
    token = members(meta_of(params)).get("progressToken")
    if token is None:
        return None
    try:
        return _decode_token(token)
    except BROKEN:
        return None


def with_progress_token(params: Raw, token: RequestId | None) -> Raw:
    """Params that ask for progress by this token, or by none; every other key of `_meta` is kept as it is.

    Without a token, and with none there before, the same object is given back.
    """
    keys = members(meta_of(params))
    if token is None:
        if keys.pop("progressToken", None) is None:
            return params
        return replace_members(params, {"_meta": dumps(keys) if keys else None})
    keys["progressToken"] = dumps(token)
    return replace_members(params, {"_meta": dumps(keys)})
