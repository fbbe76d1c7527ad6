"""`requestState`: where a request stands that was answered with server requests, sealed, in the hands of its
client.

It comes back from an attacker: it opens for nobody but its principal, for no other method, for no other arguments,
and not after its time (2026-07-28 patterns/mrtr, "Server Requirements"). That it is used once is for whoever holds
what it names: a suspended call knows its round.
"""

import hashlib
from typing import Final, Literal

import msgspec
from msgspec import Raw, Struct

from actors.protocol.cursors import Sealer
from actors.protocol.errors import BROKEN, Malformed, ProtocolError, Refusal, invalid_params
from actors.protocol.headers import NAMED_BY
from actors.protocol.payload import loads, members, text_or_none

SKEW: Final = 60.0
"""Seconds by which the wall clocks of two replicas may differ: a state is good for so long after its time."""

VERSION: Final = 1
"""Of the fields below: a state of another version is expired."""

"""By the methods that may be answered with server requests: the member of params that says what is asked for."""


class State(Struct, frozen=True, array_like=True):
    """What the client holds. `expires` is in seconds of the wall clock; `digest` is that of the request.

    park: the call waits at its backend, in the affinity pool's life `incarnation`, as `suspend`, and its server
    requests are those of this `round`. wrap: the backend keeps nothing but its own `upstream` state. rerun: nothing
    is kept; the request runs again once the user has been to these `urls`. connect: so does it once he has connected
    his account there. `paid` tells what limits wanted of the request: whoever brings it has it free, once.
    """

    kind: Literal["park", "wrap", "rerun", "connect"]
    backend: str
    principal: str
    method: str
    digest: str
    expires: float
    incarnation: str = ""
    suspend: str = ""
    round: int = 0
    upstream: str | None = None
    urls: tuple[str, ...] = ()
    version: int = VERSION
    paid: str = ""


_encode = msgspec.msgpack.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.msgpack.Decoder(State).decode


def seal(state: State, sealer: Sealer) -> str:
    """The state as the client sees it."""
    return sealer.seal(_encode(state), _context(state.principal, state.method))


def unseal(token: str, sealer: Sealer, *, principal: str, method: str, params: Raw, now: float) -> State:
    """What `seal` was given. Refusal (-32602) for a state that is forged, foreign, expired, or of another request."""
    plain = sealer.unseal(token, _context(principal, method))
    if plain is None:
        raise Refusal(invalid())
    try:
        state = _decode(plain)
    except BROKEN:
        raise Refusal(invalid()) from None
    fits = (state.version, state.principal, state.method) == (VERSION, principal, method)
    if not fits or now >= state.expires + SKEW or state.digest != digest(method, params):
        raise Refusal(invalid())
    return state


def invalid() -> ProtocolError:
    """For every state that is of no use, whatever the cause, so that none can be told from another."""
    return invalid_params("Invalid or expired requestState")


def digest(method: str, params: Raw) -> str:
    """Of what is asked for, by name or URI, and of the arguments, however they are spelled. Params that can't be read
    have one of their own spelling."""
    hashed = hashlib.sha256(method.encode())
    for part in _salient(method, params):
        hashed.update(b"\0%d\0" % len(part))
        hashed.update(part)
    return hashed.hexdigest()[:32]


def _salient(method: str, params: Raw) -> tuple[bytes, ...]:
    try:
        present = members(params)
        name = text_or_none(present.get(NAMED_BY.get(method, ""))) or ""
        arguments = loads(present["arguments"]) if "arguments" in present else None
        return name.encode(), _encode_sorted(arguments)  # integers of any size are exact
    except (Malformed, *BROKEN, ValueError):
        return (bytes(params),)


def _context(principal: str, method: str) -> bytes:
    return _encode(("requestState", principal, method))
