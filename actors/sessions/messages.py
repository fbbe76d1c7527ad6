"""What a session's actor receives: from edges, and from itself, its store and its clocks.

What upstream connections, the catalogue and the record send is defined where they are; what only happens to the
session comes as the event of its machine that it is.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, final

from msgspec import Raw, Struct

from actors.ports import NO_RIGHTS, Answer, Incarnation, Rights
from actors.protocol import codec, errors
from actors.protocol.messages import Message, Request, RequestId
from actors.protocol.operations import Operation
from actors.runtime import Reply

NO_OPERATIONS: Mapping[RequestId, Operation] = {}

# From edges ---------------------------------------------------------------------------------------------------


@final
class PostMessages(Struct, frozen=True):
    """A POST, decoded: `refused` are the members of a batch that could not be read, `version` is the header's,
    `rights` are those of its token.

    The reply gets an Answer or Streaming.
    """

    messages: tuple[Message, ...]
    batch: bool
    version: str | None
    refused: tuple[tuple[RequestId | None, Raw], ...]
    reply: Reply
    rights: Rights = NO_RIGHTS
    operations: Mapping[RequestId, Operation] = NO_OPERATIONS
    """Of its requests, where somebody observes them."""
    via: Incarnation = ""
    """The replica that mailed it; none: the client's connection is here."""


def unanswered(messages: Sequence[Message], *, batch: bool) -> Answer:
    """The answer to a POST whose actor took it, and ended before it said anything of it."""
    ids = [m.id for m in messages if isinstance(m, Request)]
    if not ids:
        # A notification, or an answer of the client's, may be sent again.
        return Answer.refusing(errors.overloaded("the session is being restored"))
    frames = [codec.encode_error(id, errors.actor_ended()) for id in ids]
    return Answer(200, codec.encode_batch(frames) if batch else frames[0])


def refusing(message: "PostMessages | EdgeMessage", error: errors.ProtocolError) -> Answer:
    """The refusal of what an edge has brought, which was not begun; of several requests it names the first."""
    messages = message.messages if isinstance(message, PostMessages) else ()
    return Answer.refusing(error, next((m.id for m in messages if isinstance(m, Request)), None))


class GetEvents(Struct, frozen=True):
    """A GET; `stream` for a resumption after (epoch, seq); without, that is where its client has missed what came then.
    `reader`: the client's connection; 0: that of the POST. `again`: it had the stream before, and lost its owner. The
    reply gets an Answer, Streaming or a Follower."""

    stream: str | None
    epoch: int
    seq: int
    reply: Reply
    reader: int = 0
    again: bool = False
    rights: Rights = NO_RIGHTS


class Recover(Struct, frozen=True):
    """Asks for what an earlier life has recorded of requests that came on one connection, and were given to it by a
    process which doesn't know what became of them. The reply gets a Follower of their stream from its beginning, None
    if there is none, or an Answer that refuses."""

    ids: tuple[RequestId, ...]
    reply: Reply


class EndSession(Struct, frozen=True):
    """A DELETE; the reply gets an Answer when the session has ended."""

    reply: Reply
    reason: str = "delete"


class Move(Struct, frozen=True):
    """The session is to be given back, as it is, for another replica to go on with it. The reply gets True when that is
    done, False if there is nothing yet that could be gone on with, or an Answer that refuses."""

    reply: Reply


class Take(Struct, frozen=True):
    """The session is to be here; the reply gets True, for it is."""

    reply: Reply


# From operators -----------------------------------------------------------------------------------------------


class Description(Struct, frozen=True):
    """What operators see of a session in memory: the revision, for how long its client was not heard of (seconds), its
    requests without an outcome, the connections of its streams, and server requests that have no answer yet."""

    revision: str
    idle: float
    in_flight: int
    streams: int
    asked: int


class Describe(Struct, frozen=True):
    """Asks for its Description, whatever it is about."""

    reply: Reply


# From the store -----------------------------------------------------------------------------------------------


class StreamRecorded(Struct, frozen=True):
    """A stream is open in the log; these calls, whose answers it is to bring, may not have been sent yet."""

    stream: str
    calls: tuple[int, ...]


class Released(Struct, frozen=True):
    """The outcome of giving the ownership back."""

    outcome: Any


# Clocks -------------------------------------------------------------------------------------------------------


class IdleDue(Struct, frozen=True):
    """Time to look whether the session is idle."""


class DoubtDue(Struct, frozen=True):
    """Time to look whether it can be told whose the session is."""


class RecoverDue(Struct, frozen=True):
    """Nobody asks any more for what an earlier life has recorded."""


class NoteDue(Struct, frozen=True):
    """The store has not acknowledged what this POST brought."""

    post: int


class MoveDue(Struct, frozen=True):
    """Nothing in flight is waited for any more before the session is given back."""


class ClosingDue(Struct, frozen=True):
    """The drain is nearly over: what comes now can't be done here in time."""


class DrainDue(Struct, frozen=True):
    """The drain is over."""


class UnservedDue(Struct, frozen=True):
    """The endpoint was not configured any more a while ago."""


class DeadlineDue(Struct, frozen=True):
    """A call takes too long."""

    call: int


EdgeMessage: TypeAlias = GetEvents | EndSession | Recover | Move | Take | Describe
"""From edges, besides POSTs."""

OwnMessage: TypeAlias = (
    StreamRecorded
    | Released
    | IdleDue
    | DoubtDue
    | RecoverDue
    | NoteDue
    | MoveDue
    | ClosingDue
    | DrainDue
    | UnservedDue
    | DeadlineDue
)
"""From itself, its store and its clocks."""
