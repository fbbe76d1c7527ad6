"""What of a call's arguments is written down."""

import hashlib
import hmac
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final, Literal

import msgspec

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

_decode_names: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

Redact = Callable[[Any, str, MutableMapping[str, Any]], dict[str, Any]]
"""As `gateway.observability.redaction.Redaction` is called."""
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
        "redacted": lambda given: _each_cut(redact(None, "", _each_cut(given, WHOLE_CHARACTERS)), VALUE_CHARACTERS),
        "full": lambda given: _each_cut(given, WHOLE_CHARACTERS),
    }
    tell = values[form]

    def told(raw: bytes) -> Any:
        try:
            given = msgspec.json.decode(raw) if raw else {}
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        return _fitting(tell(_bounded(given))) if isinstance(given, dict) else None

    return told


def _names(raw: bytes) -> Any:
    """The names alone: what is not told need not be read."""
    try:
        given = _decode_names(raw) if raw else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
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
