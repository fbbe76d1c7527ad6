"""JSON that strangers have written. Pure."""

from codecs import BOM_UTF8
from typing import Any

import msgspec


def read(body: bytes) -> dict[str, Any] | None:
    """The object that this is; None: it is none. Numbers that are none, and halves of characters, which could not be
    sent on or kept, are no JSON here."""
    try:
        value = msgspec.json.decode(body.removeprefix(BOM_UTF8))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def number(value: Any) -> float | None:
    """A NumericDate, or so many seconds (RFC 7519, section 2); None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        return None
    return float(value)
