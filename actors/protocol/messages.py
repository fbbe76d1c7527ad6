"""JSON-RPC messages as frozen values.

Only the envelope is decoded; `params`, `result` and `error` stay raw JSON bytes, so that what merely passes
through is never parsed nor encoded again.

Ids are integers or strings and are compared by type and value: Python never finds `1` equal to `"1"`, so an id
is its own dictionary key (MCP 2025-11-25, basic, section "Requests").
"""

from typing import TypeAlias

from msgspec import Raw, Struct

RequestId: TypeAlias = int | str

EMPTY = Raw(b"")
"""Stands for a member that was not there."""


def base36(number: int) -> str:
    """A number in digits and lower-case letters, as it stands in ids."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    out = ""
    while number:
        number, rest = divmod(number, 36)
        out = digits[rest] + out
    return out or "0"


class Request(Struct, frozen=True):
    """A call that must be answered once. `params` is EMPTY when the member was absent."""

    id: RequestId
    method: str
    params: Raw = EMPTY


class Notification(Struct, frozen=True):
    """A message that is never answered."""

    method: str
    params: Raw = EMPTY


class Result(Struct, frozen=True):
    """The successful outcome of the request with this id."""

    id: RequestId
    result: Raw


class Error(Struct, frozen=True):
    """The failed outcome. `id` is None where the peer could not read the id of the request."""

    id: RequestId | None
    error: Raw


Outcome: TypeAlias = tuple[bool, Raw]
"""A result (True), or the JSON-RPC error object instead of it."""
Response: TypeAlias = Result | Error
Message: TypeAlias = Request | Notification | Result | Error
