"""What becomes of a backend's question to a client without sessions: the question in a result, or, where nobody will
answer it, what the backend is told, always and at once (SEP-2260)."""

from typing import Final

from msgspec import Raw

from actors.protocol import capabilities, errors, translate
from actors.protocol.capabilities import ClientBits
from actors.protocol.errors import Malformed
from actors.protocol.methods import METHODS
from actors.protocol.versions import MODERN

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


def question(during: str, bits: ClientBits, method: str, params: Raw) -> Raw | Outcome:
    """The params of the question that a backend asks during a request of this method, of a client with these bits.

    The outcome for the backend instead, where nobody can be asked: during a request that may not be answered with
    questions, and for what this client did not declare (2026-07-28, patterns/mrtr, "Supported Requests").
    """
    row = METHODS.get(during)
    if row is None or not row.eligible:
        return unasked(method)
    try:
        refusal = capabilities.client_refusal(bits, method, params)
    except Malformed as malformed:
        refusal = malformed.error
    if refusal is not None or method == "ping":
        return unasked(method) if refusal is None else (False, refusal.raw)
    asked = translate.server_request(method, params, MODERN)
    if isinstance(asked, translate.Unbridgeable):
        return asked.ok, asked.payload
    # A copy: the params are kept while a human thinks, and the frame that they came in is not.
    return Raw(bytes(asked))
