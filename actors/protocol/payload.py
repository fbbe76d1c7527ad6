"""What is read and changed inside raw JSON, one level at a time; everything else in it keeps its bytes.

Every reader raises Malformed for what it cannot read, nesting too deep for the decoder included: bytes that were
skipped as a raw part once may still be too deep for a second look from further down the stack.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from actors.protocol.errors import BROKEN, Malformed, invalid_params
from actors.protocol.messages import EMPTY, RequestId

ID_BYTES: Final = 1024
"""Of a request id or a progress token, in UTF-8 or digits: they are kept, and are part of keys."""
MEMBERS_MAX: Final = 16_384
"""Members of an object, or elements of an array, that are looked at one by one: 4 MiB may hold a million."""

_ID_END: Final = 10**ID_BYTES
_FEW: Final = 2 * MEMBERS_MAX
"""Bytes that hold no more than that: each takes two and more."""

_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_array = msgspec.json.Decoder(list[Raw]).decode
_decode_token: Callable[[Raw], RequestId] = msgspec.json.Decoder(int | str).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def refused(broken: Exception) -> Malformed:
    """The refusal (-32602) for a payload that cannot be read."""
    return Malformed(invalid_params("nested too deeply" if isinstance(broken, RecursionError) else str(broken)))


def id_fits(id: RequestId) -> bool:
    """Whether an id or a token is short enough to be kept. (Integers of any size are exact.)"""
    if isinstance(id, int):
        return -_ID_END < id < _ID_END
    return 4 * len(id) <= ID_BYTES or len(id.encode()) <= ID_BYTES


def is_object(raw: Raw) -> bool:
    """Whether valid JSON is an object."""
    return bool(raw) and memoryview(raw)[0] == 0x7B


def mentions(raw: Raw, *names: bytes) -> bool:
    """Whether any of these names may occur: the quick look before anything is decoded.

    A name can be spelled with escapes, so an escape that makes letters counts as any name, and one that makes a slash
    (the default of some encoders) as any name that has one.
    """
    data = bytes(raw)
    # `find`, since `in` tries the bytes as a number first, which takes longer than the search.
    for name in names:
        if data.find(name) >= 0:
            return True
    if 0x5C not in data:
        return False
    return data.find(b"\\u00") >= 0 or (data.find(b"\\/") >= 0 and any(name.find(b"/") >= 0 for name in names))


KEPT_BYTES: Final = 1024
"""Values up to this size that many sessions keep are kept once; so many of them are remembered."""
KEPT_MAX: Final = 512


def kept(raw: Raw) -> Raw:
    """A copy that outlives the message it came in, whose buffer it does not hold. Short ones that are equal are one:
    most sessions say the same of themselves."""
    data = bytes(raw)
    return _kept(data) if len(data) <= KEPT_BYTES else Raw(data)


@lru_cache(KEPT_MAX)
def _kept(data: bytes) -> Raw:
    return Raw(data)


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


class _Key(str):
    __slots__ = ()


def _check_members(raw: Raw) -> None:
    """Raises for an object of too many members, having looked at no more of them than are allowed."""
    if bytes(raw).count(b":") <= MEMBERS_MAX:
        return
    left = MEMBERS_MAX

    def count(wanted: type, name: Any) -> _Key:
        nonlocal left
        left -= 1
        if left < 0:
            raise _too_many()
        return _Key(name)

    msgspec.json.Decoder(dict[_Key, Raw], dec_hook=count).decode(raw)


def _check_elements(raw: Raw) -> None:
    """The same for an array."""
    if len(raw) <= _FEW or bytes(raw).count(b",") < MEMBERS_MAX or memoryview(raw)[0] != 0x5B:
        return
    try:
        _slots_decoder().decode(raw)
    except msgspec.ValidationError:
        raise _too_many() from None


def _too_many() -> Malformed:
    return Malformed(invalid_params(f"more than {MEMBERS_MAX} members in one object or array"))


@cache
def _slots_decoder() -> msgspec.json.Decoder[Any]:
    """An array read as a struct stops at the first element too many. (Made when it is needed: it takes 10 ms.)"""
    slots = [(f"at{n}", Raw, EMPTY) for n in range(MEMBERS_MAX)]
    return msgspec.json.Decoder(msgspec.defstruct("_Slots", slots, array_like=True, forbid_unknown_fields=True))


def elements(raw: Raw) -> list[Raw]:
    """The elements of an array. Raises Malformed for anything else, and for more than MEMBERS_MAX."""
    try:
        _check_elements(raw)
        return _decode_array(raw)
    except BROKEN as broken:
        raise refused(broken) from None


def members(raw: Raw) -> dict[str, Raw]:
    """The members of an object, in order, one level deep; of EMPTY: none. Raises Malformed for anything else, and for
    more than MEMBERS_MAX."""
    if not raw:
        return {}
    try:
        if len(raw) > _FEW:
            _check_members(raw)
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


@cache
def _text_decoder(name: str) -> Callable[[Raw], Any]:
    holder = msgspec.defstruct("_Holder", [("value", Raw, msgspec.field(name=name, default=EMPTY))])
    return msgspec.json.Decoder(holder).decode


def text_member(holder: Raw, name: str) -> str | None:
    """The text that this member of an object is; None if it is none, or not there. `name` must be one of ours, since
    each has a decoder that stays. Raises Malformed for what is no object."""
    if not holder:
        return None
    try:
        return text_or_none(_text_decoder(name)(holder).value)
    except BROKEN as broken:
        raise refused(broken) from None


class _WithMeta(Struct):
    meta: Raw = msgspec.field(name="_meta", default=EMPTY)


_decode_with_meta = msgspec.json.Decoder(_WithMeta).decode


def meta_of(holder: Raw) -> Raw:
    """The `_meta` object of params, a result or an item; EMPTY if there is none. Raises Malformed."""
    meta = _any_meta(holder)
    return meta if is_object(meta) else EMPTY


def _any_meta(holder: Raw) -> Raw:
    if not holder:
        return EMPTY
    try:
        return _decode_with_meta(holder).meta
    except BROKEN as broken:
        raise refused(broken) from None


def progress_token(params: Raw) -> RequestId | None:
    """The token by which the sender wants progress; one of another type than string or integer counts as none.

    Raises Malformed for a token that is too long, and for a `_meta` that is neither an object nor null.
    """
    meta = _any_meta(params)
    if not is_object(meta):
        if meta and bytes(meta) != b"null":
            raise Malformed(invalid_params("_meta must be an object"))
        return None
    return token_of(members(meta).get("progressToken", EMPTY))


def token_of(token: Raw) -> RequestId | None:
    """A progress token; None for what is none, EMPTY included. Raises Malformed for one that is too long."""
    if not token:
        return None
    try:
        value = _decode_token(token)
    except BROKEN:
        return None
    if not id_fits(value):
        raise Malformed(invalid_params(f"a progressToken may have {ID_BYTES} bytes"))
    return value


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


class _Reported(Struct):
    token: RequestId = msgspec.field(name="progressToken")


class _Progress(Struct):
    progress: float


class _Cancelled(Struct):
    id: RequestId | None = msgspec.field(name="requestId", default=None)


_decode_reported = msgspec.json.Decoder(_Reported).decode
_decode_progress = msgspec.json.Decoder(_Progress).decode
_decode_cancelled = msgspec.json.Decoder(_Cancelled).decode


def reported_token(params: Raw) -> RequestId:
    """The token of the request that a `notifications/progress` reports on. Raises Malformed."""
    try:
        return _decode_reported(params).token
    except BROKEN as broken:
        raise refused(broken) from None


def progress_value(params: Raw) -> float:
    """How far that request has come. Raises Malformed."""
    try:
        return _decode_progress(params).progress
    except BROKEN as broken:
        raise refused(broken) from None


def cancelled_id(params: Raw) -> RequestId | None:
    """The request that a `notifications/cancelled` names, if it names one. Raises Malformed."""
    try:
        return _decode_cancelled(params).id
    except BROKEN as broken:
        raise refused(broken) from None
