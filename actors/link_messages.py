"""What links are told, and what they tell.

A link is an actor that holds one connection to one backend (`actors.link`); its callers are sessions and the catalogue.
"""

from msgspec import Raw, Struct

from actors.protocol.link_events import Hello
from actors.protocol.messages import EMPTY, RequestId
from actors.protocol.modern.caller import Caller
from actors.runtime import Ref

# To the link -------------------------------------------------------------------------------------------------


class Join(Struct, frozen=True):
    """The caller wants to hear what belongs to no call: LinkReady follows at once if the connection is up. The link
    ends when the last one that joined has ended."""

    caller: Ref


class Warm(Struct, frozen=True):
    """Connect without a call: LinkReady or LinkDown follows."""


class Call(Struct, frozen=True):
    """A request; the outcome comes to `caller` as LinkOutcome with the same `call`. `client` is on whose behalf, for
    backends without sessions."""

    caller: Ref
    call: int
    method: str
    params: Raw = EMPTY
    progress: bool = False
    client: Caller | None = None


class Cancel(Struct, frozen=True):
    """Nobody waits for it any more."""

    caller: Ref
    call: int
    reason: str


class GiveAnswer(Struct, frozen=True):
    """The outcome of a LinkAsked."""

    id: RequestId
    ok: bool
    payload: Raw


class Notify(Struct, frozen=True):
    """A notification for the backend."""

    method: str
    params: Raw = EMPTY


class Leave(Struct, frozen=True):
    """The caller needs it no more; the last one to leave closes it, gracefully."""

    caller: Ref


# From the link -----------------------------------------------------------------------------------------------


class LinkReady(Struct, frozen=True):
    """The handshake is over; `again`: after a loss."""

    link: Ref
    backend: str
    hello: Hello
    again: bool


class LinkDown(Struct, frozen=True):
    """The connection is lost or could not be made; `payload` is the JSON-RPC error object that says so."""

    link: Ref
    backend: str
    message: str
    payload: Raw


class LinkUnfit(Struct, frozen=True):
    """This connection speaks the other era only; these calls of the receiver's were not sent. The right link takes
    them, under the same numbers."""

    link: Ref
    backend: str
    calls: tuple[Call, ...]


class LinkOutcome(Struct, frozen=True):
    """The outcome of a call: its result, or the JSON-RPC error object."""

    backend: str
    call: int
    ok: bool
    payload: Raw


class LinkAsked(Struct, frozen=True):
    """The backend asks; `call` as far as known."""

    link: Ref
    backend: str
    call: int | None
    id: RequestId
    method: str
    params: Raw


class LinkWithdrew(Struct, frozen=True):
    """The backend no longer wants that answer."""

    backend: str
    id: RequestId


class LinkTold(Struct, frozen=True):
    """The backend notifies; `call` as far as known."""

    link: Ref
    backend: str
    call: int | None
    method: str
    params: Raw
