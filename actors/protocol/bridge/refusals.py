"""What a backend is answered when its question will not be answered: always something, at once (SEP-2260)."""

from typing import Final

from msgspec import Raw

from actors.protocol import errors

Outcome = tuple[bool, Raw]
"""A result, or the JSON-RPC error object instead of it."""

DISMISSED: Final = Raw(b'{"action":"cancel"}')
"""Of an elicitation: nobody chose anything (client/elicitation, "Response Actions")."""


def abandoned(method: str) -> Outcome:
    """Of a call that was given up, or whose client did not come back."""
    if method == "elicitation/create":
        return True, DISMISSED
    if method == "sampling/createMessage":
        return False, errors.rejected("the client is gone").raw
    return False, errors.internal("the call that raised this request was given up", reason="call_ended").raw


def unasked(method: str) -> Outcome:
    """Of no call, or of one during which nobody can be asked: there is no way to a client without sessions. (An empty
    list of roots would be a statement.)"""
    if method == "elicitation/create":
        return True, DISMISSED
    if method == "sampling/createMessage":
        return False, errors.rejected("no call is there to carry this request").raw
    return False, errors.method_not_found(method).raw
