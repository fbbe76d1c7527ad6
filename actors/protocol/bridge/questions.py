"""What a backend with sessions asks, as a question to a client without: or what the backend is answered at once."""

from msgspec import Raw

from actors.protocol import capabilities, translate
from actors.protocol.bridge import refusals
from actors.protocol.capabilities import ClientBits
from actors.protocol.errors import Malformed
from actors.protocol.methods import METHODS
from actors.protocol.versions import MODERN


def question(during: str, bits: ClientBits, method: str, params: Raw) -> Raw | refusals.Outcome:
    """The params of the question that a backend asks during a request of this method, of a client with these bits.

    The outcome for the backend instead, where nobody can be asked: during a request that may not be answered with
    questions, and for what this client did not declare (2026-07-28, patterns/mrtr, "Supported Requests").
    """
    row = METHODS.get(during)
    if row is None or not row.eligible:
        return refusals.unasked(method)
    try:
        refusal = capabilities.client_refusal(bits, method, params)
    except Malformed as malformed:
        refusal = malformed.error
    if refusal is not None or method == "ping":
        return refusals.unasked(method) if refusal is None else (False, refusal.raw)
    asked = translate.server_request(method, params, MODERN)
    if isinstance(asked, translate.Unbridgeable):
        return asked.ok, asked.payload
    # A copy: the params are kept while a human thinks, and the frame that they came in is not.
    return Raw(bytes(asked))
