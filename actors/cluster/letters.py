"""What mail between replicas says: letters as values, and as bytes.

A letter is an envelope in MessagePack and a body of its kind. Old and new replicas mix: a kind that is not known here
is `UNSUPPORTED`, and what can't be read is `BAD`; neither is a fault of this process. JSON-RPC messages travel as the
bytes of their lines, and are read again by the ordinary codec.
"""

from collections.abc import Callable
from typing import Final, TypeAlias, assert_never

import msgspec
from msgspec import Raw, Struct

from actors.ports import NO_RIGHTS, Incarnation, Principal, Rights, SessionKey
from actors.protocol import codec
from actors.protocol.errors import BROKEN, Malformed
from actors.protocol.messages import Error, Message, Request, RequestId
from actors.runtime import Reply
from actors.sessions import messages as sm

VERSION: Final = 1
"""Of the envelope. A later one may mean something else by the same names, and is not read."""

# Why a letter is refused.
BAD: Final = "bad"
UNSUPPORTED: Final = "unsupported"
FULL: Final = "full"
DRAINING: Final = "draining"
NOT_TAKEN: Final = "not_taken"

UNKNOWN: Final = "unknown"
"""What metrics call a kind that is not known here."""


# From the holder of a client's connection to the owner of its session ----------------------------------------


class Deliver(Struct, frozen=True, omit_defaults=True):
    """A POST with requests: it runs at most once. `messages` and `refused` (errors, with the ids of batch members that
    could not be read) are JSON."""

    messages: tuple[bytes, ...]
    batch: bool = False
    version: str | None = None
    refused: tuple[bytes, ...] = ()


class Note(Deliver, frozen=True, omit_defaults=True):
    """A POST without requests: it means the same when it comes twice."""


class Attach(Struct, frozen=True, omit_defaults=True):
    """A GET; `stream` for a resumption after (epoch, seq). `reader` and `again` as in `GetEvents`."""

    stream: str | None = None
    epoch: int = 0
    seq: int = 0
    reader: int = 0
    again: bool = False


class Recover(Struct, frozen=True, omit_defaults=True):
    """Asks for the stream of requests that were delivered to an owner that is no more. `ids`: a JSON array."""

    ids: bytes


class End(Struct, frozen=True, omit_defaults=True):
    """A DELETE."""


class Move(Struct, frozen=True, omit_defaults=True):
    """The session is to be given back, for the sender to take it over. Answered by 200, or 409 if it can't be."""


class Take(Struct, frozen=True, omit_defaults=True):
    """The session was given back, for the receiver to take it over. Answered by 200 when that is done."""


class Detach(Struct, frozen=True, omit_defaults=True):
    """The connection is gone, with everything up to number `written` written, or nobody waits any more. It names the
    letter by which the connection came."""

    written: int = 0


class Written(Struct, frozen=True, omit_defaults=True):
    """The connection has written its stream up to number `seq`."""

    seq: int


class Held(Struct, frozen=True, omit_defaults=True):
    """The streams of the receiver that the sender holds, by the numbers of the letters that they came of: of one that
    the receiver does not send it is told, for the letter that said so was lost."""

    mids: tuple[int, ...]


# Between the processes that use and that own a pool: each names their link --------------------------------------


class ToPool(Struct, frozen=True, omit_defaults=True):
    """Letter `number` of a link, from its holder to the owner, who has said `seen` letters that were read. `said` is
    what rooms beyond this one write and read (`actors.pools.letters`)."""

    number: int
    seen: int
    said: bytes


class FromPool(ToPool, frozen=True, omit_defaults=True):
    """What the owner of a pool tells a holder, over a link. Number 0 is in no order: there is no such link."""


# Between the process to which a client posts and the one that holds its only stream --------------------------------


class Said(Struct, frozen=True, omit_defaults=True):
    """A client's message for the channel of this name."""

    channel: str
    body: bytes


class Heard(Struct, frozen=True, omit_defaults=True):
    """What became of it, as an HTTP status. It names the letter."""

    status: int


class Came(Struct, frozen=True, omit_defaults=True):
    """To all others: the letter's principal has come with its rights, with which he was not known there before."""


# From the owner to the holder: each names the letter that it is about -----------------------------------------


class Whole(Struct, frozen=True, omit_defaults=True):
    """The whole HTTP answer."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


class Opened(Struct, frozen=True, omit_defaults=True):
    """The answer is a stream, from its beginning on. One that is not `recorded` comes by mail only. `epoch`: at which
    it was opened; after a loss another stream may have its name."""

    stream: str
    recorded: bool = True
    epoch: int = 0


class Attached(Struct, frozen=True, omit_defaults=True):
    """The answer is a stream from the cursor (epoch, seq) on. Up to `head` it is in the log; what is later comes by
    mail if it is `live`, and does not come otherwise. `marks`: as in `Streaming`; a replica of an earlier version says
    none, and does not look at them."""

    stream: str
    epoch: int
    seq: int
    head: int
    live: bool
    marks: tuple[str, ...] = ()


class Unrecorded(Struct, frozen=True, omit_defaults=True):
    """Nothing is recorded of these requests."""


class Events(Struct, frozen=True, omit_defaults=True):
    """Events `first` to `last` of the stream, the last one of this epoch, as bytes of `text/event-stream`; `first` is 0
    if they have no numbers, and `last` that of the last one that had. `index` counts the letters of one connection
    from 1. `ended`: nothing comes after it; `finished`: for that was the last event of the stream."""

    index: int
    epoch: int
    first: int
    last: int
    data: bytes
    ended: bool = False
    finished: bool = False


class Head(Struct, frozen=True, omit_defaults=True):
    """In place of events: they are in the log, up to this number."""

    index: int
    last: int
    finished: bool = False


class Released(Struct, frozen=True, omit_defaults=True):
    """The sender owns the session no more; its stream goes on elsewhere."""


class Refused(Struct, frozen=True, omit_defaults=True):
    """The letter was not taken, and will not be."""

    reason: str


class Moved(Struct, frozen=True, omit_defaults=True):
    """It was not taken, for the session is not here; `owner`: where it is, as far as is known. `rests`: it is nobody's,
    and whoever sent the letter is to have it."""

    owner: Incarnation | None = None
    rests: bool = False


Ask: TypeAlias = Deliver | Note | Attach | Recover | End | Move | Take
"""What is answered."""
ToOwner: TypeAlias = Ask | Detach | Written | Held
ToHolder: TypeAlias = Whole | Opened | Attached | Unrecorded | Events | Head | Released | Refused | Moved
OfPool: TypeAlias = ToPool | FromPool
OfChannel: TypeAlias = Said | Heard
Body: TypeAlias = ToOwner | ToHolder | OfPool | OfChannel | Came

BODIES: Final[dict[str, type[Body]]] = {
    "deliver": Deliver,
    "note": Note,
    "attach": Attach,
    "recover": Recover,
    "end": End,
    "move": Move,
    "take": Take,
    "detach": Detach,
    "written": Written,
    "held": Held,
    "answer": Whole,
    "opened": Opened,
    "attached": Attached,
    "unrecorded": Unrecorded,
    "events": Events,
    "head": Head,
    "released": Released,
    "refused": Refused,
    "moved": Moved,
    "to_pool": ToPool,
    "from_pool": FromPool,
    "said": Said,
    "heard": Heard,
    "came": Came,
}
"""By kind."""
KINDS: Final = {body: kind for kind, body in BODIES.items()}


class Letter(Struct, frozen=True):
    """One letter. `reply`: the process to which an answer goes, and the number by which it knows the letter; in an
    answer the number of the letter that it answers, and who says so. `epoch`: of the session where it was sent.
    `rights`: with which the client asks for what is in it; `peer`: the address that it does so from. `able`: who sends
    it can have the session too, if nobody has it."""

    key: SessionKey
    reply: tuple[Incarnation, int]
    body: Body
    principal: Principal
    endpoint: str
    epoch: int = 0
    rights: Rights = NO_RIGHTS
    peer: str = ""
    able: bool = False

    @property
    def kind(self) -> str:
        """What it is, as its envelope and metrics say."""
        return KINDS[type(self.body)]


class UnreadableError(Exception):
    """Not a letter that is understood here: BAD or UNSUPPORTED. `reply`: to whom that may be said."""

    def __init__(self, reason: str, reply: tuple[Incarnation, int] | None = None, kind: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.reply = reply
        self.kind = kind


class _Envelope(Struct):
    """What stands behind `principal` a replica of an earlier version may leave out, and does not look at."""

    v: int
    kind: str
    sk: str
    reply: tuple[str, int]
    body: Raw
    principal: str = ""
    anonymous: bool = False
    endpoint: str = ""
    epoch: int = 0
    rights: Rights = NO_RIGHTS
    peer: str = ""
    able: bool = False


_encode = msgspec.msgpack.Encoder().encode
_decode_envelope = msgspec.msgpack.Decoder(_Envelope).decode
_decoders: Final = {kind: msgspec.msgpack.Decoder(body).decode for kind, body in BODIES.items()}
_decode_ids = msgspec.json.Decoder(tuple[int | str, ...]).decode


def encode(letter: Letter) -> bytes:
    """A letter as it is mailed."""
    principal = letter.principal
    return _encode(
        _Envelope(
            VERSION,
            letter.kind,
            letter.key,
            letter.reply,
            Raw(_encode(letter.body)),
            principal.name,
            principal.anonymous,
            letter.endpoint,
            letter.epoch,
            letter.rights,
            letter.peer,
            letter.able,
        )
    )


def decode(data: bytes) -> Letter:
    """Raises UnreadableError, and nothing else."""
    try:
        envelope = _decode_envelope(data)
    except BROKEN:
        raise UnreadableError(BAD) from None
    kind, reply = envelope.kind, envelope.reply
    decoder = _decoders.get(kind)
    if envelope.v != VERSION or decoder is None:
        raise UnreadableError(UNSUPPORTED, reply)
    try:
        body = decoder(envelope.body)
    except BROKEN:
        raise UnreadableError(BAD, reply, kind) from None
    principal = Principal(envelope.principal, envelope.anonymous)
    head = envelope.sk, reply, body, principal, envelope.endpoint, envelope.epoch
    return Letter(*head, envelope.rights, envelope.peer, envelope.able)


# What sessions are told, and answer, as letters ---------------------------------------------------------------

SessionAsk: TypeAlias = sm.PostMessages | sm.GetEvents | sm.Recover | sm.EndSession | sm.Move | sm.Take


def ask_of(message: SessionAsk) -> Ask:
    """The letter that asks the same."""
    match message:
        case sm.PostMessages(messages, batch, version, refused):
            kind = Deliver if any(isinstance(m, Request) for m in messages) else Note
            bad = tuple([codec.encode(Error(id, error)) for id, error in refused])
            return kind(tuple(map(codec.encode, messages)), batch, version, bad)
        case sm.GetEvents(stream, epoch, seq):
            return Attach(stream, epoch, seq, message.reader, message.again)
        case sm.Recover(ids):
            return Recover(bytes(codec.dumps(ids)))
        case sm.EndSession():
            return End()
        case sm.Move():
            return Move()
        case sm.Take():
            return Take()
        case _:
            assert_never(message)


def rights_of(message: SessionAsk) -> Rights:
    """With what rights the client asks so."""
    return message.rights if isinstance(message, sm.PostMessages | sm.GetEvents) else NO_RIGHTS


def peer_of(message: SessionAsk) -> str:
    """The address that the client asks so from, where somebody observes it."""
    for operation in message.operations.values() if isinstance(message, sm.PostMessages) else ():
        return operation.peer
    return ""


def asked(ask: Ask, rights: Rights = NO_RIGHTS, via: Incarnation = "") -> Callable[[Reply], SessionAsk]:
    """What the session is told, but for the reply, by a letter with these rights, which came from there. Raises
    UnreadableError."""
    match ask:
        case Deliver() | Note():
            messages = tuple(map(_message, ask.messages))
            refused = tuple([(e.id, e.error) for e in map(_message, ask.refused) if isinstance(e, Error)])
            return lambda reply: sm.PostMessages(messages, ask.batch, ask.version, refused, reply, rights, via=via)
        case Attach(stream, epoch, seq):
            return lambda reply: sm.GetEvents(stream, epoch, seq, reply, ask.reader, ask.again, rights)
        case Recover(spelled):
            ids = _ids(spelled)
            return lambda reply: sm.Recover(ids, reply)
        case End():
            return sm.EndSession
        case Move():
            return sm.Move
        case Take():
            return sm.Take
        case _:
            assert_never(ask)


def _message(line: bytes) -> Message:
    try:
        return codec.decode_message(line)
    except Malformed:
        raise UnreadableError(BAD) from None


def _ids(spelled: bytes) -> tuple[RequestId, ...]:
    try:
        return _decode_ids(spelled)
    except BROKEN:
        raise UnreadableError(BAD) from None
