"""Which era a server speaks, by its answer to the first request (2026-07-28 versioning, "Backward Compatibility").

Whoever asks in the modern era sends `server/discover`, whoever asks in the handshake era `initialize`; neither executes
anything. What came of it is one `Case`, and the two tables say what follows. No single error code decides: servers of
the handshake era answer an unknown method in many ways, or not at all.
"""

from collections.abc import Iterable
from enum import Enum
from typing import Final

import msgspec
from msgspec import Raw

from actors.protocol import errors
from actors.protocol.errors import BROKEN
from actors.protocol.versions import MODERN

MODERN_CODES: Final = frozenset({-32020, -32021, -32022})
"""Errors that no server of the handshake era has: header mismatch, missing client capability, unsupported version."""

SILENCE: Final = 5.0
"""Seconds without an answer to the probe after which a server counts as one that does not know it."""


class Verdict(Enum):
    """What an answer says."""

    MODERN = "modern"
    LEGACY = "legacy"
    NONE = "none"
    """Nothing: the server was not reached, or did not get to look at the request."""
    LOOK = "look"
    """It does not speak this era; whether it speaks the other one must be asked there."""


class Case(Enum):
    """What came of the first request."""

    MUTUAL = "a result that names a modern version of ours"
    FOREIGN = "a result that names none"
    MODERN_CODE = "an error that only modern servers have"
    OTHER_VERSION = "a refusal of the version, with no modern one of ours among those supported"
    ERROR = "any other JSON-RPC error"
    UNAUTHORIZED = "HTTP 401, 403, 407"
    BUSY = "HTTP 408, 425, 429"
    FAULT = "HTTP 5xx"
    MOVED = "HTTP 3xx"
    REFUSED = "any other HTTP 4xx, without a JSON-RPC error"
    UNREADABLE = "an answer that is none"
    SILENT = "no answer in time"
    EXITED = "the process ended, or closed its WebSocket"
    UNREACHED = "no connection, or a broken one"


PROBE: Final = {
    Case.MUTUAL: Verdict.MODERN,
    Case.FOREIGN: Verdict.LEGACY,
    Case.MODERN_CODE: Verdict.MODERN,
    Case.OTHER_VERSION: Verdict.LEGACY,
    Case.ERROR: Verdict.LEGACY,
    Case.UNAUTHORIZED: Verdict.NONE,
    Case.BUSY: Verdict.NONE,
    Case.FAULT: Verdict.NONE,
    Case.MOVED: Verdict.NONE,
    Case.REFUSED: Verdict.LEGACY,
    Case.UNREADABLE: Verdict.LEGACY,
    Case.SILENT: Verdict.LEGACY,
    # Some servers end when the first request is not `initialize`.
    Case.EXITED: Verdict.LEGACY,
    Case.UNREACHED: Verdict.NONE,
}
"""What follows from the answer to `server/discover`."""

INITIALIZE: Final = {
    **PROBE,
    Case.MUTUAL: Verdict.LEGACY,
    Case.FOREIGN: Verdict.LEGACY,
    Case.MODERN_CODE: Verdict.LOOK,
    Case.OTHER_VERSION: Verdict.LOOK,
    Case.ERROR: Verdict.LOOK,
    Case.REFUSED: Verdict.NONE,
    Case.UNREADABLE: Verdict.NONE,
    Case.SILENT: Verdict.NONE,
    Case.EXITED: Verdict.NONE,
}
"""What follows from the answer to `initialize`; any result is one of the handshake era."""

_STATUSES: Final = {
    **dict.fromkeys((401, 403, 407), Case.UNAUTHORIZED),
    **dict.fromkeys((408, 425, 429), Case.BUSY),
}
_ENDS: Final = {
    **dict.fromkeys(("exited", "stdin_closed", "stdout_closed", "socket_closed"), Case.EXITED),
    **dict.fromkeys(("protocol", "malformed", "no_response", "too_large"), Case.UNREADABLE),
}


def of_versions(supported: Iterable[str]) -> Case:
    """A DiscoverResult that names these."""
    return Case.MUTUAL if MODERN in supported else Case.FOREIGN


def of_error(error: Raw, status: int | None = None) -> Case:
    """A JSON-RPC error, with the HTTP status that it came with."""
    try:
        code = errors.parse_error_member(error).code
    except ValueError:
        return Case.UNREADABLE
    if code == errors.UNSUPPORTED_PROTOCOL_VERSION:
        return Case.MODERN_CODE if MODERN in supported_of(error) else Case.OTHER_VERSION
    if code in MODERN_CODES:
        return Case.MODERN_CODE
    return _of_status(status, Case.ERROR)


def of_failure(reason: str, status: int | None = None) -> Case:
    """No answer at all: why, in the words of transports, and the HTTP status if there was one."""
    if status is not None:
        return _of_status(status, Case.REFUSED if 400 <= status < 500 else Case.UNREADABLE)
    return _ENDS.get(reason, Case.UNREACHED)


def _of_status(status: int | None, otherwise: Case) -> Case:
    if status is None:
        return otherwise
    if status >= 500:
        return Case.FAULT
    if 300 <= status < 400:
        return Case.MOVED
    return _STATUSES.get(status, otherwise)


class _Data(msgspec.Struct, frozen=True):
    supported: tuple[str, ...] = ()


class _Refusal(msgspec.Struct, frozen=True):
    data: _Data = _Data()


def supported_of(error: Raw) -> tuple[str, ...]:
    """The versions that a refusal names."""
    try:
        return msgspec.json.decode(error, type=_Refusal).data.supported
    except BROKEN:
        return ()
