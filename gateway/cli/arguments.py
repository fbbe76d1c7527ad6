"""The arguments of a tool, as somebody types them."""

import json
from collections.abc import Iterable, Mapping
from typing import Any


def from_json(text: str) -> dict[str, Any]:
    """The arguments as one JSON object; ValueError where it is none."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"the arguments are not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError("the arguments must be one JSON object")  # noqa: TRY004 - it is the text that is wrong
    return value


def from_pairs(pairs: Iterable[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments from `key=value` pairs, each as the type that the tool's schema gives it; ValueError names the
    pair that cannot be. A property whose type is not told, or may be text, is text."""
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator or not key:
            raise ValueError(f'"{pair}" is not of the form key=value')
        if key in arguments:
            raise ValueError(f'"{key}" is there twice')
        arguments[key] = _value(key, text, _types(schema, key))
    return arguments


def _types(schema: Mapping[str, Any], key: str) -> tuple[str, ...]:
    properties = schema.get("properties")
    declared = properties.get(key) if isinstance(properties, dict) else None
    kind = declared.get("type") if isinstance(declared, dict) else None
    return tuple(kind) if isinstance(kind, list) else (kind,) if isinstance(kind, str) else ()


def _value(key: str, text: str, types: tuple[str, ...]) -> Any:
    if not types or "string" in types:
        return text
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError(f'"{key}" must be {" or ".join(types)}, in JSON') from None
