"""What replicas mail each other about pools: what is said to connections and to pools, as values that can travel.

A *link* joins one process that uses a pool (its holder) to the one that owns it. Its letters are numbered from 1 in
either direction; each carries the numbers of what was read of the other's, and any number of the messages here.
JSON-RPC travels as the bytes that it is.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec import Raw, Struct

from actors.machines.modern.input_required import InputRequest
from actors.machines.upstream.events import ServerInfo
from actors.machines.upstream.modern_events import Caller
from actors.pools import messages as pm
from actors.ports import NO_RIGHTS, Rights
from actors.protocol.errors import BROKEN
from actors.runtime import Ref
from actors.upstreams import messages as um


class _Said(Struct, frozen=True, array_like=True, omit_defaults=True, tag_field="is", tag=True):
    """One message."""


# From the holder to the owner --------------------------------------------------------------------------------


class Enter(_Said, frozen=True):
    """The first of every link: whose pool it is (the principal is in the envelope)."""

    backend: str
    bits: tuple[str, ...]
    affinity: str


class Leave(_Said, frozen=True):
    """The last one: nobody there needs the pool any more."""


class Want(_Said, frozen=True):
    """As `Wanted`."""


class Call(_Said, frozen=True):
    """As `um.Call`, under the link's own number. `client`: capabilities, info, level and whether it passes as it is.
    (A replica that knows nothing of rights reads the rest.)"""

    call: int
    method: str
    params: bytes
    progress: bool
    client: tuple[bytes, bytes, str | None, bool] | None
    mends: bool
    version: str
    rights: Rights = NO_RIGHTS


class Resume(_Said, frozen=True):
    """As `pm.Resume`, under the link's own number."""

    call: int
    incarnation: str
    suspend: str
    round: int
    answers: dict[str, bytes]
    progress: bool
    level: str | None


class Cancel(_Said, frozen=True):
    """As `um.Cancel`."""

    call: int
    reason: str


class Check(_Said, frozen=True):
    """Asks for a word."""


# From the owner to the holder --------------------------------------------------------------------------------


class Entered(_Said, frozen=True):
    """The pool is here; what is said on this link from now on reaches it."""


class Ready(_Said, frozen=True):
    """As `um.UpstreamReady`."""

    version: str
    capabilities: bytes
    implementation: bytes
    instructions: str | None
    result: bytes
    again: bool


class Down(_Said, frozen=True):
    """As `um.UpstreamDown`."""

    message: str
    payload: bytes


class WrongEra(_Said, frozen=True):
    """As `um.UpstreamWrongEra`, by the numbers of the calls."""

    calls: tuple[int, ...]


class Outcome(_Said, frozen=True):
    """As `um.UpstreamOutcome`."""

    call: int
    ok: bool
    payload: bytes


class Suspended(_Said, frozen=True):
    """As `pm.UpstreamSuspended`; of each input request key, method and params."""

    call: int
    incarnation: str
    suspend: str
    round: int
    requests: tuple[tuple[str, str, bytes], ...]


class Told(_Said, frozen=True):
    """As `um.UpstreamNotification`."""

    call: int | None
    method: str
    params: bytes


class Here(_Said, frozen=True):
    """The word that was asked for."""


class Closing(_Said, frozen=True):
    """The link ends as soon as the calls on it are over; new ones are to wait for that."""


class Ended(_Said, frozen=True):
    """The last one: of what was said on this link, and not answered, nothing more will be heard. GONE: the pool is not
    here, and may be had elsewhere, perhaps of `owner`. `unbegun`: calls that were read, and not begun."""

    reason: str
    owner: str | None = None
    unbegun: tuple[int, ...] = ()


GONE: Final = "gone"
"""The pool is not here, or not any more."""
REFUSED: Final = "refused"
"""It can't be had here by whoever asks so."""

ToOwner: TypeAlias = Enter | Leave | Want | Call | Resume | Cancel | Check
ToHolder: TypeAlias = Entered | Ready | Down | WrongEra | Outcome | Suspended | Told | Here | Closing | Ended
Said: TypeAlias = ToOwner | ToHolder

_encode = msgspec.msgpack.Encoder().encode
_to_owner = msgspec.msgpack.Decoder(tuple[ToOwner, ...]).decode
_to_holder = msgspec.msgpack.Decoder(tuple[ToHolder, ...]).decode


class UnreadableError(Exception):
    """Not what a replica of this schema says."""


def encode(said: Sequence[Said]) -> bytes:
    """As it is in a letter."""
    return _encode(said)


def to_owner(data: bytes) -> tuple[ToOwner, ...]:
    """What a holder says. Raises UnreadableError."""
    try:
        return _to_owner(data)
    except BROKEN:
        raise UnreadableError from None


def to_holder(data: bytes) -> tuple[ToHolder, ...]:
    """What an owner says. Raises UnreadableError."""
    try:
        return _to_holder(data)
    except BROKEN:
        raise UnreadableError from None


# The same in the words of this process -------------------------------------------------------------------------


def call_of(number: int, call: um.Call) -> Call:
    """What the holder says for a call."""
    who = call.client
    client = (bytes(who.capabilities), bytes(who.info), who.level, who.as_is) if who is not None else None
    return Call(number, call.method, bytes(call.params), call.progress, client, call.mends, call.version, call.rights)


def call_for(caller: Ref, principal: str, said: Call) -> um.Call:
    """What the owner's pool is told."""
    client = None
    if said.client is not None:
        capabilities, info, level, as_is = said.client
        client = Caller(principal, Raw(capabilities), Raw(info), level, drives=False, as_is=as_is)
    params, version = Raw(said.params), said.version
    return um.Call(caller, said.call, said.method, params, said.progress, client, said.mends, version, said.rights)


def resume_of(number: int, resume: pm.Resume) -> Resume:
    """What the holder says for a retry."""
    answers = {key: bytes(answer) for key, answer in resume.answers.items()}
    place = (resume.incarnation, resume.suspend, resume.round)
    return Resume(number, *place, answers, resume.progress, resume.level)


def resume_for(caller: Ref, said: Resume) -> pm.Resume:
    """What the owner's pool is told."""
    answers = {key: Raw(answer) for key, answer in said.answers.items()}
    place = (said.incarnation, said.suspend, said.round)
    return pm.Resume(caller, said.call, *place, answers, said.progress, said.level)


def ready_of(ready: um.UpstreamReady) -> Ready:
    """What the owner says of the server."""
    info = ready.server_info
    raws = (bytes(info.capabilities), bytes(info.implementation), info.instructions, bytes(info.result))
    return Ready(info.version, *raws, ready.again)


def server_info(said: Ready) -> ServerInfo:
    """What the server said of itself."""
    raws = (Raw(said.capabilities), Raw(said.implementation), said.instructions, Raw(said.result))
    return ServerInfo(said.version, *raws)


def suspended_of(suspended: pm.UpstreamSuspended) -> Suspended:
    """What the owner says of a call that waits for answers."""
    requests = tuple((q.key, q.method, bytes(q.params)) for q in suspended.requests)
    place = (suspended.incarnation, suspended.suspend, suspended.round)
    return Suspended(suspended.call, *place, requests)


def suspended_for(backend: str, call: int, said: Suspended) -> pm.UpstreamSuspended:
    """What the holder's caller is told, for its own number of the call."""
    requests = tuple(InputRequest(key, method, Raw(params)) for key, method, params in said.requests)
    return pm.UpstreamSuspended(backend, call, said.incarnation, said.suspend, said.round, requests)
