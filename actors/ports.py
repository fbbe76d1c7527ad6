"""What the actors ask of the world, and what the edges ask of the actors.

Values and protocols only. Two habits hold throughout:

* A port that an actor uses never waits. What comes of a call is handed to a callback, which must not raise and
  must not wait either (it casts to a mailbox); it may run before the call returns.
* An owner writes with its *grant*, the incarnation and the epoch under which it owns the session; the store refuses
  every write whose grant is not the recorded one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from actors.protocol.codec import Frame
from actors.protocol.cursors import Sealer
from actors.protocol.errors import ProtocolError, encode_error_body
from actors.protocol.limiting import Bucket, Taken
from actors.protocol.messages import Request, RequestId
from actors.protocol.operations import Observer, Operation
from actors.protocol.rights import NO_RIGHTS, Rights
from actors.protocol.trail import RequestLine
from actors.protocol.transport import (
    Connector,
    EventsMissed,
    FrameAccepted,
    FrameReceived,
    Headers,
    Listening,
    Positioned,
    RequestFailed,
    Resumable,
    SessionLost,
    SpeaksSse,
    Spoke,
    Transport,
    TransportClosed,
    TransportEvent,
    TransportKind,
)

# --------------------------------------------------------------------------------------------------------------
# Identity


class Principal(Struct, frozen=True):
    """Who speaks. Two principals never see each other's sessions."""

    name: str
    anonymous: bool = False


ANONYMOUS = Principal("anonymous", anonymous=True)


class Asker(Struct, frozen=True, cache_hash=True):
    """Who sends a request, and with what rights. `issued`: when the token was, in seconds since 1970; None: it does not
    say. `digest`: of a configured token, by which it is found again while it is configured."""

    principal: Principal
    rights: Rights = NO_RIGHTS
    issued: float | None = None
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class Unproven:
    """Nobody in particular: the token is not good here. `expired`: it was. `away`: nobody can tell at the moment.
    `reason`: why, in a word for those who run the gateway."""

    expired: bool = False
    away: bool = False
    reason: str = field(default="", compare=False)


class Verifier(Protocol):
    """Tells whose a bearer token is."""

    def known(self, token: str, resources: Sequence[str]) -> Asker | None:
        """As `verify`, by what is remembered of a token alone; None: `verify` has to say."""

    async def verify(self, token: str, resources: Sequence[str]) -> Asker | Unproven:
        """`resources`: the addresses of what is asked for, one of which the token must be meant for."""


class Revocations(Protocol):
    """Whom an operator has taken the access from."""

    def revoked(self, asker: Asker) -> bool:
        """Whether this token is not good any more, because of whose it is."""


# --------------------------------------------------------------------------------------------------------------
# The door: edges → actors


class Post(Struct, frozen=True):
    """A POST to an MCP endpoint, whole; or a message of a channel, of which nothing is `mirrored` in headers. Header
    names are lower-case; the values of an `mcp-` header that came twice are joined by a line feed. The edge has checked
    method, Host, Origin, Accept, Content-Type, size and authentication, and nothing of the body. `rights`: of the token
    that came with it, here as in all that edges ask."""

    endpoint: str
    principal: Principal
    headers: Mapping[str, str]
    body: bytes
    mirrored: bool = True
    rights: Rights = NO_RIGHTS
    watch: "PostObserver | None" = None
    transport: str = "http"
    """How it came, as logs and traces name it."""
    peer: str = ""
    """The address at the other end of the connection that it came over; "": there is none."""
    begun: Callable[[], object] | None = None
    """Called as soon as nothing keeps requests back that what follows on their channel could overtake; not where they
    are refused before."""
    frame: Frame | None = None
    """The body, if it was read before."""


class PostObserver(Protocol):
    """Who observes what becomes of one POST."""

    operations: Mapping[RequestId, Operation]
    """Of its requests, as far as they are known."""

    def began(self, request: Request, *, session: str = "", era: str = "", version: str = "") -> Request:
        """One of its requests could be read; as it goes on from here. `session`: its handle."""

    def belongs(self, session: str) -> None:
        """It has opened this session."""

    def elsewhere(self) -> None:
        """Another replica has answered it, and observes it too."""


class Get(Struct, frozen=True):
    """A GET for an event stream."""

    endpoint: str
    principal: Principal
    headers: Mapping[str, str]
    rights: Rights = NO_RIGHTS


class Delete(Struct, frozen=True):
    """A DELETE of a session."""

    endpoint: str
    principal: Principal
    headers: Mapping[str, str]
    rights: Rights = NO_RIGHTS


class Answer(Struct, frozen=True):
    """A whole HTTP answer; an empty body has no content type, any other is JSON if no header says otherwise."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    reason: str = ""
    """Of a refusal of ours: the kind of its error, for whoever counts them."""

    @classmethod
    def refusing(cls, error: ProtocolError, id: RequestId | None = None) -> "Answer":
        """An error of ours as the whole answer, with its status; `id`: of the request that it answers."""
        return cls(error.status, encode_error_body(error, id), error.headers, error.kind)

    @property
    def passing(self) -> bool:
        """Whether it says that the same may work later."""
        return self.status >= 500


class EventSource(Protocol):
    """The events of one stream for one connection, as bytes of `text/event-stream`."""

    async def receive(self) -> bytes | None:
        """The next bytes to write (one or more whole events); None at the end of the stream."""

    def close(self) -> None:
        """The connection is gone, or nobody will read any more. Never raises; may be called twice."""


class Streaming(Struct, frozen=True):
    """A 200 answer of type `text/event-stream`. The edge writes keep-alive comments between events by itself."""

    source: EventSource
    headers: tuple[tuple[str, str], ...] = ()
    marks: tuple[str, ...] = ()
    """By what the requests can be pointed at whose stream goes on here (`Operation.mark`), as far as that is known."""


Reply: TypeAlias = Answer | Streaming


class HungUp(Exception):  # noqa: N818 - what happened, and nobody's fault
    """The other end of a channel is gone, or takes nothing any more."""


class TooLong(Struct, frozen=True):
    """A message that is larger than any may be; it was dropped. `request`: the id of the request that it was, where it
    was one and that is known."""

    size: int
    request: RequestId | None = None


class Channel(Protocol):
    """One client on a transport that carries messages both ways, one after the other: stdio, WebSocket, HTTP+SSE."""

    peer: str
    """The address at the other end; "": there is none."""

    @property
    def rights(self) -> Rights:
        """With what rights the message was said that was received last; before the first: of who opened it."""

    async def receive(self) -> bytes | TooLong | None:
        """The client's next message; None: it says no more, but may still read. One call at a time. Raises HungUp."""

    async def send(self, message: bytes) -> None:
        """One message, which has no line breaks; others may be under way. Raises HungUp, also when the client has taken
        nothing for too long."""

    @property
    def waiting(self) -> bool:
        """Whether there is something to receive, be it that the client is gone. Also where only who receives can tell:
        somebody has to."""

    def listen(self, ready: Callable[[], object]) -> None:
        """Has it called whenever there is something to receive, and nobody waits for that; it may be called inside
        anybody's turn. It never is where something is always `waiting`."""


class Converse(Protocol):
    """Serves a client until it is gone, or has said all and is answered, or the gateway ends."""

    async def __call__(self, channel: Channel, endpoint: str, principal: Principal) -> None: ...


class Door(Protocol):
    """What an HTTP edge asks of the actors. Cancelling a call means that its connection broke."""

    async def post(self, post: Post) -> Reply: ...

    async def get(self, get: Get) -> Reply: ...

    async def delete(self, delete: Delete) -> Answer: ...

    def client_gone(self, affinity: str) -> None:
        """Nobody has this word of a client's but one, who will not come again: what is kept for him may end."""


# --------------------------------------------------------------------------------------------------------------
# Store: session actors → records and replay logs

SessionKey: TypeAlias = str
"""32 hex digits: the first 128 bits of SHA-256 of the session id. The id itself is never stored."""
Where: TypeAlias = tuple[SessionKey, Principal, str]
"""One client's way to one session: key, principal, endpoint."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Under which ownership a write is made. `term`: of the process, when it was claimed (`Cluster.term`)."""

    owner: str
    epoch: int
    term: int = field(default=0, compare=False)


class Refused(Enum):
    """Why the store did not do it. The first six are final, AWAY may pass, and so may STORE_FULL: the store as a whole
    has no memory left (FULL is the bound of one session). DEAD and INBOX_FULL are said of mail: nobody reads there,
    or there is no room, and nothing was put in."""

    FENCED = "fenced"
    GONE = "gone"
    ENDED = "ended"
    EXISTS = "exists"
    FINISHED = "finished"
    TOO_NEW = "too_new"
    SEQ = "seq"
    FULL = "full"
    AWAY = "away"
    STORE_FULL = "store_full"
    DEAD = "dead"
    INBOX_FULL = "inbox_full"


UNAVAILABLE = (Refused.AWAY, Refused.STORE_FULL)
"""What may pass by itself."""


class Failed(Struct, frozen=True):
    """`head` is the recorded head for SEQ, for TOO_NEW the version of the record. `detail` is for logs."""

    reason: Refused
    detail: str = ""
    head: int = 0


@dataclass(frozen=True, slots=True)
class StreamHead:
    """The recorded state of one stream: its last sequence number, finished or not, written whole to its client or not.
    Up to `floor` events may be missing: they were trimmed, or lost. `opener`: the epoch at which it was opened, which
    tells it from another one that got its name after a loss; 0: that is not said."""

    seq: int
    finished: bool = False
    floor: int = 0
    written: bool = False
    opener: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Record:
    """A session as it is stored: who owns it, at which epoch, and all that is needed to rebuild its actor.

    `fields` are the session's own values, `requests` its recorded requests by key (`q:`), `asked` its outstanding
    server requests by id (`o:`), `streams` its streams that still have a log. `older`: the store may have lost what its
    last owner wrote, and which did more than is here.
    """

    owner: str | None
    epoch: int
    rev: int = 0
    tries: int = 0
    fields: Mapping[str, bytes] = field(default_factory=dict)
    requests: Mapping[str, bytes] = field(default_factory=dict)
    asked: Mapping[str, bytes] = field(default_factory=dict)
    streams: Mapping[str, StreamHead] = field(default_factory=dict)
    older: bool = False


@dataclass(frozen=True, slots=True)
class Deltas:
    """Changes that go into the record in the same step as an append or a save; None deletes."""

    fields: Mapping[str, bytes | None] = field(default_factory=dict)
    requests: Mapping[str, bytes | None] = field(default_factory=dict)
    asked: Mapping[str, bytes | None] = field(default_factory=dict)


NO_DELTAS = Deltas()

Done: TypeAlias = Callable[[Any], object]
"""Gets the outcome: the value named in the method's docstring, or Failed."""


def ignore(outcome: object) -> None:
    """A `Done` of what is a hint, or of no interest when it fails."""


class LogEntry(Struct, frozen=True):
    """One event of a replay log; `data` is the message as it goes into the SSE data (empty: a priming event)."""

    epoch: int
    seq: int
    data: bytes


class Replay(Struct, frozen=True):
    """Entries after a cursor, contiguous from cursor + 1. `lost` names a hole that begins the entries: (after,
    resumed). There may be no entry behind it yet; `resumed` is then the number that the next one will have."""

    entries: Sequence[LogEntry]
    head: int
    finished: bool
    lost: tuple[int, int] | None = None


class Head(Struct, frozen=True):
    """How far one stream is, and who owns its session: its last event, by epoch and number; up to `floor` events are
    lost."""

    owner: str | None
    epoch: int
    seq: int
    finished: bool = False
    floor: int = 0


class Store(Protocol):
    """Session records and replay logs. Every write is idempotent: the same call again has the same outcome."""

    durable: bool
    """Whether records outlive the process."""

    owner: str
    """The incarnation of this process."""

    def create(self, key: SessionKey, fields: Mapping[str, bytes], done: Done) -> None:
        """A new session owned by this incarnation → its Grant. EXISTS if the key is taken. It lives 60 s until the
        first `save`, then as long as `touch` or any write keeps it."""

    def read(self, key: SessionKey, done: Done) -> None:
        """→ Record; GONE or ENDED. Changes nothing."""

    def claim(
        self,
        key: SessionKey,
        expect_owner: str | None,
        expect_epoch: int,
        nonce: str,
        done: Done,
        *,
        lives: bool = False,
    ) -> None:
        """Compare-and-set of the ownership → (Grant, Record) with `tries` + 1; but what `lives` in this process, and is
        claimed again, was not tried anew. FENCED if owner or epoch have moved on, or while the expected owner is alive
        and is not this process; GONE, ENDED, TOO_NEW."""

    def open(
        self, key: SessionKey, grant: Grant, stream: str, requests: Mapping[str, bytes], first: bytes | None, done: Done
    ) -> None:
        """Makes the stream and its recorded requests, and appends event 1 if `first` is given → None. EXISTS if the
        stream was opened otherwise before."""

    def append(
        self,
        key: SessionKey,
        grant: Grant,
        stream: str,
        seq: int,
        data: Sequence[bytes],
        done: Done,
        *,
        finish: bool = False,
        deltas: Deltas = NO_DELTAS,
    ) -> None:
        """Appends events seq, seq + 1, … → None. SEQ, FINISHED, FULL: there is no room, and logs of finished streams
        can't make it: first those that were written whole go, then the others, the oldest first. (So `open`.)"""

    def save(self, key: SessionKey, grant: Grant, rev: int, deltas: Deltas, done: Done) -> None:
        """Changes the record; `rev` must be the recorded one + 1, or equal (a repeat) → None. Clears `tries`."""

    def touch(self, key: SessionKey, grant: Grant, done: Done) -> None:
        """Keeps the record and its unfinished logs from expiring → None."""

    def written(self, key: SessionKey, grant: Grant, stream: str) -> None:
        """A finished stream was written whole: its log may go after `replay_ttl_written`, and is the first to go for
        want of room. A hint."""

    def trim(self, key: SessionKey, grant: Grant, stream: str, seq: int, done: Done) -> None:
        """Deletes the events of an unfinished stream before number `seq`, which were written (caps) → None. A cursor
        at `seq` or later can still be followed. SEQ: there is no event `seq`."""

    def drop(self, key: SessionKey, grant: Grant, stream: str, done: Done) -> None:
        """Deletes the log of a finished stream (caps) → None."""

    def release(self, key: SessionKey, grant: Grant, done: Done, *, work: bool = False) -> None:
        """Gives the ownership up; the record stays → None. `work`: something is in flight that another replica can go
        on with, so it is found by those who look for work (`Cluster.owned` of this incarnation, once that is over)."""

    def end(self, key: SessionKey, grant: Grant, reason: str, done: Done) -> None:
        """Ends the session for good: logs deleted, a tombstone for 10 minutes → None."""

    def delete(self, key: SessionKey, grant: Grant, done: Done) -> None:
        """Deletes the record and its logs, for a key that may be created again (at a higher epoch) → None, also when it
        is gone."""

    def restore(self, key: SessionKey, grant: Grant, rev: int, record: Record, done: Done) -> None:
        """What its owner still knows of a session after the store lost acknowledged writes → None. Only with a lease
        that has not lapsed for minutes: a tombstone that has expired protects nobody.

        Where there is no record, or one of a lower epoch: `record` becomes the record, at this revision, under this
        grant. Each of its streams begins again behind its head, with everything up to there lost (`floor`). Where there
        is the record of this grant at a lower revision: its values are written again, and streams that it lacks made in
        the same way; those that it has stay as they are (`mend`), and so do requests that `record` does not name. Else
        nothing is to be done. FENCED: the record is of a higher epoch, or another's; ENDED: it is never raised from the
        dead."""

    def mend(self, key: SessionKey, grant: Grant, stream: str, head: int, done: Done, *, opener: int = 0) -> None:
        """After SEQ, or GONE, for an append to a stream of which more was acknowledged: the next event of it is
        `head` + 1 → None. Of events up to `head`, the last one acknowledged, those that are no longer there are lost,
        and replays say so; none is ever written again. Nothing is to be done where the recorded head is not below.
        FINISHED: it is finished there. One that is gone counts as opened at the epoch `opener` (0: not said)."""

    def heads(self, streams: Sequence[tuple[SessionKey, str]], done: Done) -> None:
        """How far these streams are → list[Head | None | Failed] in their order; None: there is no such stream, or
        session. Each may be AWAY: not all need be in one place."""

    async def replay(
        self, key: SessionKey, stream: str, after_epoch: int, after_seq: int, limit: int
    ) -> Replay | Failed:
        """Up to `limit` entries after the cursor, for whoever holds a connection, as far as there is no hole between
        them. A hole right after the cursor (of events that were trimmed or lost) is `lost`, and then they are those
        behind it. (E, 0) is the place before the first event of the stream that was opened at epoch E, (0, 0) of
        whichever has the name. GONE: no such stream, or the cursor is not one of its events; SEQ: a hole right after
        the cursor that no floor explains."""


# --------------------------------------------------------------------------------------------------------------
# Cluster: who runs, and mail between replicas

Incarnation: TypeAlias = str
"""One start of a replica, or what it is called after a lapse of its lease: never used again."""


@dataclass(frozen=True, slots=True)
class Replica:
    """An incarnation that was seen. `info`: what it says of itself (schema range, host, process, digest of its
    configuration); empty once it is dead."""

    incarnation: Incarnation
    alive: bool
    info: Mapping[str, Any] = field(default_factory=dict)


class ClusterListener(Protocol):
    """Is told, on the loop's thread, what a replica must know of the others and of its own lease. Never waits, never
    raises. Whom only some of it concerns leaves the rest as it is."""

    def on_mail(self, letters: Sequence[bytes]) -> None:
        """What came into the inbox, in the order of each sender. Taken: nobody else gets it any more, and it never
        comes again. A letter whose text was lost on the way is empty."""
        return

    def on_renamed(self, former: Incarnation, now: Incarnation) -> None:
        """The lease had lapsed: others may have claimed what this replica owned. Sessions are claimed again from the
        former incarnation before their next message."""
        return

    def on_loss(self) -> None:
        """The store is not the one that it was (a copy took over, or it began anew), and may lack what it had
        acknowledged, claims too. The incarnation is the same; sessions are claimed again before their next message."""
        return

    def on_certain(self) -> None:
        """A doubt about the lease is over: it is the same incarnation still (else `on_renamed` came before)."""
        return

    def on_down(self, incarnation: Incarnation) -> None:
        """Another replica was found dead (gone in two readings half a second apart), or has ended in order. Told once,
        also of those that were dead before this one started and left sessions."""
        return


DUE_PARTS = 16
"""Parts of all sessions that nobody has in memory, looked at one at a time."""


class Cluster(Protocol):
    """What one replica sees of the others. Nothing of it may be needed for correctness: leases say when to act, the
    fence of every write says whether."""

    incarnation: Incarnation
    """Of this process at present; the `owner` of what it claims."""

    @property
    def term(self) -> int:
        """What was claimed in an earlier term has to be claimed again: one begins with each further incarnation, and
        where the store may have lost writes."""

    @property
    def doubtful(self) -> bool:
        """Whether no sign of life of this replica was acknowledged for 2 s: others may believe it dead. Nothing is
        given to a backend meanwhile."""

    @property
    def schema(self) -> int:
        """The version in which records are written: the newest that all living replicas read."""

    def now(self) -> float:
        """Seconds by the clock of the store, which all replicas go by in what they tell each other of times."""

    def subscribe(self, listener: ClusterListener) -> None:
        """From now on; what came before is told at once."""

    def post(self, to: Incarnation, letter: bytes, done: Done) -> None:
        """Puts a letter into an inbox → the name of its entry (str). At most once, in order with this replica's other
        letters to it, and waits while the store is away for moments. DEAD, INBOX_FULL (also: it was never sent, for
        want of room or of a store): it is surely not there; AWAY: nobody knows. A letter of any size up to the bound of
        a message."""

    def withdraw(self, to: Incarnation, entry: str, done: Done) -> None:
        """→ True: nobody read it, and nobody will; False: it was taken, or nobody can tell any more. AWAY."""

    def alive(self, incarnation: Incarnation, done: Done) -> None:
        """→ bool; dead is what was gone in two readings half a second apart. AWAY."""

    def replicas(self, done: Done) -> None:
        """→ list[Replica], this one included. AWAY."""

    def owned(self, incarnation: Incarnation, cursor: int, done: Done) -> None:
        """A page of the sessions that an incarnation may own → (list[SessionKey], next cursor), 0 at the end; perhaps
        some twice. AWAY."""

    def disown(self, incarnation: Incarnation, keys: Sequence[SessionKey]) -> None:
        """These are no longer a dead incarnation's: claimed by another, or without work. A hint."""

    def due_at(self, key: SessionKey, time: float | None) -> None:
        """A session that nobody has in memory ends at this time (`now`) if nobody comes, and whoever is there then ends
        it; None: not any more. A hint."""

    def due(self, part: int, before: float, done: Done) -> None:
        """Some sessions of this part (of `DUE_PARTS`) whose end is before this time → list[SessionKey]. AWAY."""


# --------------------------------------------------------------------------------------------------------------
# Small ports


class ListStore(Protocol):
    """Keeps what is known of servers over restarts. All of it may be lost: then the servers are asked anew."""

    def load(self) -> Mapping[str, bytes]:
        """What was kept when the store was opened. Every value is a JSON text."""

    def put(self, key: str, value: bytes | None) -> None:
        """Keeps a value; None: no more. It is written some time later, and nobody hears if it can't be."""


@dataclass(frozen=True, slots=True)
class Shelved:
    """A value as it was read. `tag` tells it from every other that stood in its place, before or after."""

    value: bytes = field(repr=False)
    tag: str


class Shelf(Protocol):
    """Small values that all replicas share, each with its end. Values are sealed by whoever puts them there. Nothing
    here raises: what could not be done is a `Failed`."""

    async def read(self, key: str, *, keep: float = 0.0) -> Shelved | Failed | None:
        """What stands there. `keep`: whoever reads it uses it, so that it stays for about so many seconds from now on;
        a value that is empty ends as it would."""

    async def put(self, key: str, value: bytes, seconds: float, *, instead: str | None = None) -> str | Failed:
        """Puts a value there for so long → its tag. `instead`: only where this tag stands, "" where nothing does; else
        FENCED. So nobody overwrites what he has not seen, however long he was away."""

    async def take(self, key: str) -> Shelved | Failed | None:
        """What stands there, for the last time: of several who come at once one gets it."""

    async def lock(self, key: str, who: str, seconds: float) -> bool | Failed:
        """Whether `who` may go about changing this value. It keeps others from the same work, and no value from harm:
        that is what tags are for."""

    async def unlock(self, key: str, who: str) -> None:
        """The work is done. The lock of another stays."""

    async def names(self) -> Sequence[str] | Failed:
        """What `name` has kept."""

    async def name(self, name: str, *, there: bool) -> None:
        """Keeps a name so that it can be found, or no more."""


class Buckets(Protocol):
    """How often things were done, counted for all replicas by the clock of the store."""

    def take(self, buckets: Sequence[Bucket], cost: int, once: str, seconds: float, done: Done) -> Taken | None:
        """Takes so much from each of these, or nothing at all if one of them has not enough → Taken; None: `done` hears
        of it. `once`, if it is not empty, names what was paid for before: the first who brings it in so many seconds
        takes nothing. It is tried once: Failed where nobody can tell."""


class Invitation(Struct, frozen=True):
    """Where a user can connect an account: `url` is the page for this one, to which he may be sent, `id` names it, and
    `page` lists all his accounts. None of them proves anything."""

    url: str
    id: str
    page: str


class Accounts(Protocol):
    """The accounts of principals at servers that have one for each user."""

    def lacks(self, principal: str, backend: str) -> bool:
        """Whether the server has refused what this principal has there, and nothing better is known."""

    def invite(self, principal: str, backend: str, client: str, era: str, done: Done) -> None:
        """→ Invitation; Failed. `client`: who asks for it, as that client calls itself; `era`: of which it is."""

    def wait(self, principal: str, backend: str, seconds: float, done: Done) -> None:
        """Until the account is another one than was refused, in any process → whether it is."""


class Telemetry(Protocol):
    """Metrics by the names in `actors.protocol.instruments`; `labels` are values in the declared order, `trace` is the
    id of the trace that an observation belongs to, if it belongs to one."""

    def count(self, name: str, labels: tuple[str, ...] = (), amount: int = 1) -> None: ...

    def gauge(self, name: str, value: float, labels: tuple[str, ...] = ()) -> None: ...

    def observe(self, name: str, seconds: float, labels: tuple[str, ...] = (), trace: str = "") -> None: ...


class Audit(Protocol):
    """Who did what, and was he allowed to, for those who have to be able to tell later."""

    on: bool
    """Whether anybody listens; where not, nothing need be put together for it."""

    @property
    def full(self) -> bool:
        """Whether nothing may begin that would have to be written down."""

    async def room(self, within: float) -> bool:
        """Waits for room; whether there is."""

    def record(self, event: str, **values: Any) -> None:
        """One line, as `actors.protocol.trail` has it. Values are what JSON has; None is left out by whoever calls."""

    def record_late(self, event: str, values: Callable[[], RequestLine]) -> None:
        """The same of a request, put together when the line is, in another thread: of what does not change any more."""

    def record_often(self, event: str, **values: Any) -> None:
        """The same of what a stranger can cause at will: of lines that say the same within a few seconds the first one
        is written, and then how many there were more."""

    def arguments(self, raw: bytes) -> Any:
        """What may be written of the arguments of a call, a JSON object."""

    def digest(self, value: bytes) -> str:
        """The same for the same value in this deployment, and nothing by which others could try values out."""


class NoAudit:
    """Nobody listens."""

    on = False
    full = False

    async def room(self, within: float) -> bool:
        """There always is."""
        return True

    def record(self, event: str, **values: Any) -> None:
        """Nothing is written."""

    def record_late(self, event: str, values: Callable[[], RequestLine]) -> None:
        """Nothing is written."""

    def record_often(self, event: str, **values: Any) -> None:
        """Nothing is written."""

    def arguments(self, raw: bytes) -> Any:
        """Nothing is written."""

    def digest(self, value: bytes) -> str:
        """Nothing is written."""
        return ""


NO_AUDIT = NoAudit()


class Log(Protocol):
    """Structured logging: an event name and values. A structlog logger is one."""

    def debug(self, event: str, **values: Any) -> Any: ...

    def info(self, event: str, **values: Any) -> Any: ...

    def warning(self, event: str, **values: Any) -> Any: ...

    def error(self, event: str, **values: Any) -> Any: ...


__all__ = [
    "ANONYMOUS",
    "NO_AUDIT",
    "NO_DELTAS",
    "NO_RIGHTS",
    "Accounts",
    "Answer",
    "Asker",
    "Audit",
    "Buckets",
    "Channel",
    "Cluster",
    "ClusterListener",
    "Connector",
    "Converse",
    "Delete",
    "Deltas",
    "Done",
    "Door",
    "EventSource",
    "EventsMissed",
    "Failed",
    "FrameAccepted",
    "FrameReceived",
    "Get",
    "Grant",
    "Head",
    "Headers",
    "HungUp",
    "Incarnation",
    "Invitation",
    "ListStore",
    "Listening",
    "Log",
    "LogEntry",
    "NoAudit",
    "Observer",
    "Operation",
    "Positioned",
    "Post",
    "PostObserver",
    "Principal",
    "Record",
    "Refused",
    "Replay",
    "Replica",
    "Reply",
    "RequestFailed",
    "Resumable",
    "Revocations",
    "Rights",
    "Sealer",
    "SessionKey",
    "SessionLost",
    "Shelf",
    "Shelved",
    "SpeaksSse",
    "Spoke",
    "Store",
    "StreamHead",
    "Streaming",
    "Telemetry",
    "TooLong",
    "Transport",
    "TransportClosed",
    "TransportEvent",
    "TransportKind",
    "Unproven",
    "Verifier",
]
