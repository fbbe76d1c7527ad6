"""What happens to a subscription (past tense), and what it wants done (imperative)."""

from typing import TypeAlias

from msgspec import Raw, Struct

from actors.protocol.errors import ProtocolError
from actors.protocol.messages import EMPTY
from actors.protocol.modern.filter import Filter

# Events ------------------------------------------------------------------------------------------------------


class Opened(Struct, frozen=True):
    """There is room for it."""


class Refused(Struct, frozen=True):
    """It can't be served at all: this error is the answer, instead of the acknowledgement."""

    error: ProtocolError


class Honoured(Struct, frozen=True):
    """What the backends can do of it is known."""

    filter: Filter


class Changed(Struct, frozen=True):
    """A notification of a backend, in the client's words."""

    method: str
    params: Raw


class Said(Struct, frozen=True):
    """A notification of the server that only its client and it know: it is said as often as it comes."""

    method: str
    params: Raw


class FlushDue(Struct, frozen=True):
    """What has gathered is to be said."""


class Ended(Struct, frozen=True):
    """The server ends it; `error`: with this JSON-RPC error (EMPTY: in an orderly way)."""

    error: Raw = EMPTY


class Overflowed(Struct, frozen=True):
    """The client does not read what is written to it."""


class Disconnected(Struct, frozen=True):
    """The client has closed its connection: it is unsubscribed."""


SubscriptionEvent: TypeAlias = (
    Opened | Refused | Honoured | Changed | Said | FlushDue | Ended | Overflowed | Disconnected
)

CAUSES: dict[type, str] = {
    Opened: "opened",
    Refused: "refused",
    Honoured: "honoured",
    Changed: "changed",
    Said: "said",
    FlushDue: "flush due",
    Ended: "ended",
    Overflowed: "outbox full",
    Disconnected: "disconnected",
}
"""What each event is called in the table."""

# Effects -----------------------------------------------------------------------------------------------------


class Watch(Struct, frozen=True):
    """See to it that changes of these kinds are heard of; `Honoured` or `Refused` follows, perhaps at once."""

    filter: Filter


class Unwatch(Struct, frozen=True):
    """Nobody wants to hear of them any more."""


class Answer(Struct, frozen=True):
    """The whole answer: an error, with its status."""

    status: int
    body: bytes


class OpenStream(Struct, frozen=True):
    """Send the head of the stream."""


class Write(Struct, frozen=True):
    """A message on the stream."""

    frame: bytes


class Close(Struct, frozen=True):
    """The last message; `cut`: what the client has not read yet is dropped for it."""

    frame: bytes
    cut: bool = False


class StartFlushClock(Struct, frozen=True):
    """`FlushDue` when changes have gathered long enough."""


class Tally(Struct, frozen=True):
    """Count a thing that was dropped."""

    what: str


SubscriptionEffect: TypeAlias = Watch | Unwatch | Answer | OpenStream | Write | Close | StartFlushClock | Tally

Effects: TypeAlias = list[SubscriptionEffect]
