"""What of a call's arguments is written down."""

import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from actors.protocol.errors import BROKEN

Form = Literal["none", "keys", "hash", "redacted", "full"]

NAMES: Final = 64
"""Arguments that are named; what is more is counted."""
NAME_CHARACTERS: Final = 128
VALUE_CHARACTERS: Final = 256
"""Of a text in an argument that is `redacted`."""
WHOLE_CHARACTERS: Final = 16_384
"""Of a text in an argument that is written in `full`."""
BYTES: Final = 48 * 1024
"""Of all arguments of a call together; what is more is cut as in `redacted`, and then only named."""
DEPTH: Final = 6
MEMBERS: Final = 64
"""Of one list or object in an argument."""
MORE: Final = "…"

_decode: Final = msgspec.json.Decoder().decode
_decode_names: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

Redact = Callable[[Mapping[str, Any]], dict[str, Any]]
"""As `gateway.observability.redaction.Redaction.arguments`."""
Told = Callable[[bytes], Any]
"""The raw arguments, a JSON object → what is written of them."""


def teller(form: Form, key: bytes, redact: Redact) -> Told:
    """How arguments are told. `key` is for hashes: the same value has the same hash within one deployment, and nobody
    without the key can try values out."""
    if form == "none":
        return lambda raw: None
    if form == "keys":
        return _names
    values: dict[str, Callable[[Mapping[str, Any]], Any]] = {
        "hash": lambda given: {name: _hash(key, value) for name, value in given.items()},
        # Cut to what can be told at all before it is looked through, which is deep and wide, and takes its time.
        "redacted": lambda given: _each_cut(redact(_each_cut(given, WHOLE_CHARACTERS)), VALUE_CHARACTERS),
        "full": lambda given: _each_cut(given, WHOLE_CHARACTERS),
    }
    tell, unread = values[form], _as_it_is if form == "hash" else _not_told

    def told(raw: bytes) -> Any:
        given = _given(raw, unread)
        return _fitting(tell(_bounded(given))) if given is not None else None

    return told


def _as_it_is(raw: msgspec.Raw) -> str:
    return bytes(raw).decode("latin-1")


def _not_told(raw: msgspec.Raw) -> str:
    return MORE


def _given(raw: bytes, unread: Callable[[msgspec.Raw], str]) -> dict[str, Any] | None:
    """The arguments. One that can't be read, such as a number beyond all numbers, hides no other one."""
    try:
        given = _decode(raw) if raw else {}
        return given if isinstance(given, dict) else None
    except BROKEN:
        pass
    try:
        return {name: _value(value, unread) for name, value in _decode_names(raw).items()}
    except BROKEN:
        return None


def _value(raw: msgspec.Raw, unread: Callable[[msgspec.Raw], str]) -> Any:
    try:
        return _decode(raw)
    except BROKEN:
        return unread(raw)


def _names(raw: bytes) -> Any:
    """The names alone: what is not told need not be read."""
    try:
        given = _decode_names(raw) if raw else {}
    except BROKEN:
        return None
    return [*given] if len(raw) <= NAME_CHARACTERS else [*_bounded(given)]


def _fitting(told: Any) -> Any:
    """Many texts, each of which may be there, can be too much together."""
    if isinstance(told, dict) and len(msgspec.json.encode(told)) > BYTES:
        told = _each_cut(told, VALUE_CHARACTERS)
        return told if len(msgspec.json.encode(told)) <= BYTES else list(told)
    return told


def _bounded(given: dict[str, Any]) -> dict[str, Any]:
    named = {name[:NAME_CHARACTERS]: value for name, value in list(given.items())[:NAMES]}
    return named if len(given) <= NAMES else {**named, MORE: len(given) - NAMES}


def _hash(key: bytes, value: Any) -> str:
    # Sorted keys: what means the same has the same hash.
    raw = msgspec.json.encode(value, order="deterministic")
    return hmac.new(key, raw, hashlib.sha256).hexdigest()[:32]


def _each_cut(given: Mapping[str, Any], characters: int) -> dict[str, Any]:
    return {name: _cut(value, characters) for name, value in given.items()}


def _cut(value: Any, characters: int, depth: int = 0) -> Any:
    if isinstance(value, str):
        return value if len(value) <= characters else value[:characters] + MORE
    if isinstance(value, dict | list) and depth == DEPTH:
        return MORE
    if isinstance(value, dict):
        return {name[:NAME_CHARACTERS]: _cut(one, characters, depth + 1) for name, one in list(value.items())[:MEMBERS]}
    if isinstance(value, list):
        return [_cut(one, characters, depth + 1) for one in value[:MEMBERS]]
    return value
