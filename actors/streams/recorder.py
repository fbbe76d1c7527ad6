"""Runs a session's stream effects: appends to the log, holds each event until its append is acknowledged, and passes it
to the connection that carries the stream.

When the store is away as a stream opens, the stream is *unrecorded*: its events have no ids and go out at once, and it
can't be resumed. A stream that gave an id never turns unrecorded: while the store is away its connection is closed, its
events are kept, and they are tried again until they are in the log.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import trio
from msgspec import Struct
from msgspec.structs import replace

from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.machines.session.record import read_request, read_server_request
from actors.ports import (
    NO_DELTAS,
    UNAVAILABLE,
    Deltas,
    Failed,
    Record,
    Refused,
    SessionKey,
    StreamHead,
    ignore,
)
from actors.protocol import codec, errors, sse
from actors.protocol.messages import Error, RequestId, Result
from actors.record import FINAL, LOSSES, RETRY, OwnedRecord, apply
from actors.runtime import EMPTY_TABLE, Context, put
from actors.services import Services
from actors.streams.connection import Connection
from actors.streams.usage import HALF, Usage

MARKED = 64
"""Streams whose requests are remembered for traces; of an older one a resumption points at nothing."""
MENDS = 3
"""Times that a stream is mended, and an event of it is refused again, before it is given up."""


class LogDue(Struct, frozen=True):
    """Time to try again what the store had no ear for."""

    stream: str


class AnswerRecorded(Struct, frozen=True):
    """What this POST brought is in the record, or need not be."""

    post: int


class EventsLost(Struct, frozen=True):
    """The store has lost events of this stream that it had acknowledged; it goes on behind them."""

    stream: str


class EventsMissed(Struct, frozen=True):
    """A client has come back too late for some events of a GET stream, which goes on behind them."""


StreamMessage: TypeAlias = (
    ev.StreamFailed
    | ev.Detached
    | ev.CallCleared
    | ev.ServerRequestExpired
    | LogDue
    | EventsLost
    | EventsMissed
    | AnswerRecorded
)
"""What the recorder tells its actor: what happens to the session, and LogDue, which goes back to `retry`."""


def handle(key: SessionKey) -> str:
    """What logs call a session: enough to find its lines, of no use to get in."""
    return key[:12]


def kind_of(stream: str) -> str:
    """By what it was opened."""
    return "post" if stream.startswith("p") else "get"


@dataclass(slots=True)
class Entry:
    """An event that is not in the log yet, and what else of the record is written with it. `seq` and `epoch` hold for
    the present attempt to bring it there."""

    effect: fx.Append
    seq: int = 0
    epoch: int = 0
    fields: dict[str, bytes | None] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of its data."""
        return len(self.effect.data or b"")

    @property
    def answers(self) -> bool:
        """It brings the outcome of a request, what a call waits for, or the end of the stream: it is never dropped."""
        data = self.effect.data
        if self.effect.clears is not None or self.effect.accepts is not None:
            return True
        return self.effect.finish or bool(data and isinstance(codec.decode_message(data), Result | Error))

    def shrink(self) -> bool:
        """Makes a large answer a small error that says so; False if it is none, or small already."""
        data = self.effect.data
        message = codec.decode_message(data) if data else None
        if data is None or not isinstance(message, Result | Error):
            return False
        executed: errors.Executed = "yes" if isinstance(message, Result) else "unknown"
        error = errors.internal("the answer is too large for the log", reason="answer_too_large", executed=executed)
        small = codec.encode_error(message.id, error)
        if len(small) >= len(data):
            return False
        self.effect = replace(self.effect, data=small)
        return True


@dataclass(slots=True)
class Track:
    """Up to `acked` is in the log; `pending` is on its way, in order.

    `recorded`: the stream is in the log; else its events go out at once, without ids. `stalled`: the store is away,
    and nothing is on its way until it is tried again. `attempt` tells late outcomes of an earlier try. `opened` is
    to be called when the stream is open. `written`: what went out on the last connection. `leaving`: the connection
    ends with these bytes as soon as its client has an id. `fence`: the first event that must stay as long as the
    stream of a POST is live, if there is one; it brings an answer. `mends`: how often it was mended in vain.
    `pending_replies`: the requests whose outcome is not on its way yet, of a client that may have no id to come back
    with. `opener`: the epoch at which it was opened.
    """

    acked: int = 0
    pending: list[Entry] = field(default_factory=list)  # an empty deque weighs 0.75 KiB
    connection: Connection | None = None
    recorded: bool = True
    stalled: bool = False
    finished: bool = False
    attempt: int = 0
    next: int = 1
    written: int = 0
    fence: int = 0
    mends: int = 0
    leaving: bytes | None = None
    pending_replies: dict[RequestId, None] = field(default_factory=dict)
    opener: int = 0
    opened: Callable[[], None] | None = None
    asked: dict[str, bytes | None] = field(default_factory=dict)
    """Changes of the record that came with events which were dropped: they go with the next one."""

    def drop(self, entry: Entry) -> None:
        """Nobody will see this event. (Identity, not equality: two events may be alike.)"""
        self.pending = [other for other in self.pending if other is not entry]
        self.asked |= entry.effect.asked

    def take_asked(self, entry: Entry) -> dict[str, bytes | None]:
        """The changes of the record that go with this event."""
        if self.asked:
            entry.effect = replace(entry.effect, asked={**self.asked, **entry.effect.asked})
            self.asked = {}
        return entry.effect.asked

    def answered(self, effect: fx.Append) -> None:
        """Takes down what is on its way. (The last of several requests, like an only one, has the last event.)"""
        if effect.finish:
            self.pending_replies.clear()
        elif len(self.pending_replies) > 1 and effect.data:
            message = codec.decode_message(effect.data)
            if isinstance(message, Result | Error) and message.id is not None:
                self.pending_replies.pop(message.id, None)

    def words(self) -> bytes:
        """The last events for a client that can't resume, because it never got an id."""
        return b"".join(
            sse.encode_event(codec.encode_error(id, errors.actor_ended()), None) for id in self.pending_replies
        )

    def held(self) -> int:
        """Bytes that wait."""
        return sum(entry.size for entry in self.pending)


class Asking(Protocol):
    """The session, as its streams see it."""

    @property
    def open_asks(self) -> Container[str]:
        """The server requests that wait for an answer of the client."""


class Recorder:
    """The streams of one session in one life. All methods are synchronous; what comes of them is a StreamMessage to
    the actor of `ctx`. `streams` counts the connections by kind; `session` knows the server requests that are
    open."""

    __slots__ = (
        "_asked",
        "_ctx",
        "_limits",
        "_live",
        "_log",
        "_lost",
        "_openers",
        "_record",
        "_session",
        "_store",
        "_streams",
        "_telemetry",
        "_tracks",
        "_usage",
        "asked",
        "connections",
        "key",
        "marks",
        "requests",
    )

    def __init__(
        self,
        record: OwnedRecord,
        services: Services,
        ctx: Context,
        streams: Counter[str],
        session: Asking,
    ) -> None:
        self.key = record.key
        self.connections: dict[int, Connection] = EMPTY_TABLE
        self._record = record
        self._store = services.store
        self._limits = services.limits
        self._telemetry = services.telemetry
        self._log = services.log
        self._ctx = ctx
        self._streams = streams
        self._session = session
        self._tracks: dict[str, Track] = EMPTY_TABLE
        self._usage = Usage(services.limits)
        # Of server requests whose end is not in the log: their stream, and the event.
        self._asked: dict[str, tuple[str, int]] = EMPTY_TABLE
        self._openers: dict[str, int] = EMPTY_TABLE
        """Of unfinished streams of earlier lives."""
        self.requests: dict[str, bytes] = EMPTY_TABLE
        self.asked: dict[str, bytes] = EMPTY_TABLE
        """What the record says of requests and server requests, as far as that is acknowledged."""
        self.marks: dict[str, tuple[str, ...]] = EMPTY_TABLE
        """By what the requests of the last streams of POSTs can be pointed at, where somebody traces them."""
        self._live = True
        self._lost = False
        """The session is another's."""

    # Effects

    def open(
        self,
        effect: fx.OpenStream,
        connection: int,
        opened: Callable[[Connection], None],
        pending_replies: Iterable[RequestId] = (),
        reader: int = 0,
    ) -> None:
        """Opens the stream in the log; `opened` runs when that is acknowledged, or the stream goes unrecorded.
        `pending_replies`: the requests of its POST. `reader`: see `GetEvents`."""
        slot = self._connect(connection, effect.stream, reader)
        track = Track(connection=slot, opened=lambda: opened(slot), pending_replies=dict.fromkeys(pending_replies))
        self._tracks = put(self._tracks, effect.stream, track)
        if effect.first is not None:
            track.next = 2
            self._usage.add(effect.stream, len(effect.first))
        if not self._record.owned:
            self._on_open(effect, track, 0, Failed(Refused.AWAY))
            return
        requests, grant = dict(effect.requests), self._record.grant
        track.opener = slot.opener = grant.epoch
        self._store.open(
            self.key,
            grant,
            effect.stream,
            requests,
            effect.first,
            self._ctx.guard(lambda out: self._on_open(effect, track, grant.epoch, out)),
        )

    def load(self, record: Record) -> None:
        """What earlier lives have left."""
        self._usage.load(record.streams, trio.current_time())
        openers = {name: head.opener for name, head in record.streams.items() if not head.finished}
        self._openers = openers or EMPTY_TABLE
        self.requests, self.asked = dict(record.requests) or EMPTY_TABLE, dict(record.asked) or EMPTY_TABLE

    def mark(self, stream: str, marks: tuple[str, ...]) -> None:
        """What comes back for this stream goes on with these requests."""
        self.marks = put(self.marks, stream, marks)
        if len(self.marks) > MARKED:
            del self.marks[next(iter(self.marks))]

    def pressed(self) -> bool:
        """Whether the logs are half full although all has gone that may: what may be shed gets no id then."""
        if not self._usage.over(HALF):
            return False
        self._make_room(HALF)
        return self._usage.over(HALF)

    def append(self, effect: fx.Append) -> None:
        """Appends one event (or only the finish), and shows it to the reader once it is in the log."""
        track = self._tracks.get(effect.stream)
        if track is None:  # opened in an earlier life
            track = self._found(effect.stream, effect.seq - 1)
            self._tracks = put(self._tracks, effect.stream, track)
        track.finished = track.finished or effect.finish
        entry = Entry(effect)
        if not track.recorded:
            self._pass(track, entry)
            track.answered(effect)
            self._settle(effect.stream, track)
            return
        if self._lost:
            return
        full = self._usage.add(effect.stream, entry.size)
        if track.stalled or not self._record.owned:
            self._keep(track, entry)
        else:
            track.pending.append(entry)
            if full:
                self._make_room(1.0)
            self._issue(track, entry)
        if effect.finish or len(track.pending_replies) > 1:
            track.answered(effect)

    def _found(self, stream: str, head: int) -> Track:
        """A stream of an earlier life, which goes on behind its last event."""
        return Track(acked=head, next=head + 1, fence=1, opener=self._openers.get(stream, 0))

    def records(self, stream: str) -> bool:
        """Whether this stream of the present life is open in the log, and no doubt of it."""
        track = self._tracks.get(stream)
        return self._live and track is not None and track.recorded and track.opened is None

    def holds(self, stream: str) -> bool:
        """Whether events of it may be on their way into the log."""
        return stream in self._tracks

    def read_by_newer(self, stream: str, reader: int) -> bool:
        """Whether its client has come for the stream on another connection since this one had it: the one that has it
        now, unless that is the very same to an earlier owner, or the POST that the stream began with."""
        track = self._tracks.get(stream)
        return track is not None and track.connection is not None and track.connection.reader not in (0, reader)

    def follow(
        self, effect: fx.Follow, connection: int, pending_replies: Iterable[RequestId] = (), reader: int = 0
    ) -> tuple[Connection, int]:
        """A live stream goes on over a new connection with what is still on its way into the log; what is there (up to
        the number returned) is for the reader to fetch. From its beginning: for a client that has no id to come back
        with, and waits for the answers to these."""
        track = self._tracks.get(effect.stream) or self._found(effect.stream, effect.head)
        self._tracks = put(self._tracks, effect.stream, track)
        if track.connection is not None:
            track.connection.cut()  # the newest attach wins, though the machine may have done with the stream
        # A client may claim more than was ever acknowledged, or than Redis still knows of: all that comes is new to it.
        slot = self._connect(connection, effect.stream, reader, min(effect.seq, track.acked) if effect.seq else None)
        track.connection, track.leaving = slot, None
        if kind_of(effect.stream) == "get" and self._usage.missed(effect.stream, effect.seq):
            self._telemetry.count("stagedoor_gaps_total", ("trimmed",))
            self._tell(EventsMissed())
        track.pending_replies = dict.fromkeys(pending_replies)  # of who comes back with an id, none
        return slot, track.acked

    def retry(self, stream: str) -> None:
        """The store may be back: everything once more, in order. What was done before all the same is not done
        twice."""
        track = self._tracks.get(stream)
        if track is not None and track.stalled and self._record.owned:
            track.stalled = False
            self._again(track)

    def regranted(self, heads: Mapping[str, StreamHead]) -> None:
        """The session was claimed again, and its log ends here: what is there stays under the epoch that it was
        written at, the rest is brought anew."""
        for stream, track in list(self._tracks.items()):
            if track.recorded and track.opened is None and track.pending:
                head = heads[stream].seq if stream in heads else 0
                there = [e for e in track.pending if e.effect.data is not None and 0 < e.seq <= head]
                if there:
                    self._acknowledged(track, there[-1])
                if self._tracks.get(stream) is track:
                    track.stalled = False
                    self._again(track)

    def lose(self) -> None:
        """The session is another's. What is in the log is its new owner's to tell, and connections that follow it go
        there; only those that are in no log are still ours."""
        self._live, self._lost = False, True
        for slot in list(self.connections.values()):
            track = self._tracks.get(slot.stream)
            if track is None or (track.recorded and track.opened is None):
                slot.lose()

    def close(self, connection: int, retry: int | None) -> None:
        """Closes a connection of ours; with a hint when to come back it is left, so that its client has an id to come
        back with. What is read elsewhere goes on there."""
        slot = self.connections.get(connection)
        if slot is not None and slot.elsewhere and retry is not None:
            slot.lose()
        elif slot is not None and retry is not None:
            self._leave(slot, sse.encode_retry(retry))
        elif slot is not None:
            slot.cut()

    def stop(self, *, crashed: bool = False, goes_on: bool = False) -> None:
        """The life is over: streams that have their last event still bring it to the reader, all others are left, or
        followed to where the session `goes_on`. After a crash nothing is trusted to come any more."""
        self._live = False
        for slot in list(self.connections.values()):
            track = self._tracks.get(slot.stream)
            if track is None or track.connection is not slot:
                slot.end()
            elif crashed or track.stalled:
                self._rescue(track, slot)
            elif goes_on and track.recorded and not track.finished:
                slot.lose()
            elif not track.finished:
                self._leave(slot)

    @property
    def busy(self) -> bool:
        """Whether anything is on its way into the log or to a reader."""
        return bool(self.connections) or any(t.pending or t.opened for t in self._tracks.values())

    def read_at(self, replica: str) -> bool:
        """Whether nothing is on its way into the log, and whatever is read is read there."""
        read = all(slot.elsewhere == replica for slot in self.connections.values())
        return read and not any(t.pending or t.opened for t in self._tracks.values())

    # On the way into the log

    def _issue(self, track: Track, entry: Entry) -> None:
        effect, grant = entry.effect, self._record.grant
        stream, attempt = effect.stream, track.attempt
        entry.seq, entry.epoch = track.next, grant.epoch
        if effect.data is not None:
            track.next += 1
        asked = track.take_asked(entry) if track.asked else effect.asked
        if effect.requests or asked:
            self._note(stream, track, entry)
        entry.fields |= self._record.take_noted()
        self._store.append(
            self.key,
            grant,
            stream,
            entry.seq,
            [effect.data] if effect.data is not None else [],
            self._ctx.guard(lambda out: self._on_append(track, entry, attempt, out)),
            finish=effect.finish,
            deltas=Deltas(entry.fields, effect.requests, asked)
            if effect.requests or asked or entry.fields
            else NO_DELTAS,
        )

    def _note(self, stream: str, track: Track, entry: Entry) -> None:
        """What must not be trimmed of the stream of a POST."""
        effect = entry.effect
        if effect.requests and effect.data is not None:
            track.fence = min(track.fence or entry.seq, entry.seq)
        for ask, value in effect.asked.items():
            if value is None:
                self._asked.pop(ask, None)
            else:
                self._asked = put(self._asked, ask, (stream, entry.seq))

    def _reached(self, stream: str) -> int:
        """Up to which event a live stream may be trimmed: what was written. Of a POST's, whose client could come
        back for nothing else, its answers and open server requests stay. (What an earlier life has written nobody
        knows.)"""
        track = self._tracks.get(stream)
        if track is None:
            return 0
        # What a client that came back gets once more was not written until then.
        reached = track.written if track.connection is None else track.connection.written
        if kind_of(stream) == "get":
            return reached
        asks = self._session.open_asks
        kept = [seq for ask, (where, seq) in self._asked.items() if where == stream and ask in asks]
        return min([reached, *(seq - 1 for seq in kept), *([track.fence - 1] if track.fence else [])])

    def _again(self, track: Track) -> None:
        """Brings everything on its way anew; outcomes of what was on its way before count no more."""
        track.attempt += 1
        track.next = track.acked + 1
        for entry in list(track.pending):
            if track.stalled:
                return
            self._issue(track, entry)

    def _pass(self, track: Track, entry: Entry) -> None:
        """Past the log: at once, and without an id."""
        effect, slot = entry.effect, track.connection
        if effect.accepts is not None:
            self._tell(AnswerRecorded(effect.accepts))
        if slot is None and effect.finish:
            self._telemetry.count("stagedoor_answers_dropped_total", ("unrecorded",))
        if slot is None or effect.data is None:
            return
        frame = sse.encode_event(effect.data, None)
        if slot.put(0, frame):
            return
        if entry.answers or effect.asked:
            slot.put(0, frame, urgent=True)  # its client can't come back for it
        else:
            self._telemetry.count("stagedoor_events_shed_total", ("unread",))

    def _keep(self, track: Track, entry: Entry) -> None:
        """The store is away: answers wait for it, all of them, the rest within the bounds of a connection."""
        limits = self._limits
        full = track.held() + entry.size > limits.outbox_bytes
        if not entry.answers and (full or len(track.pending) >= limits.outbox_events):
            self._drop(track, entry, "away")
            return
        if full:
            entry.shrink()
        track.pending.append(entry)

    def _make_room(self, share: float) -> None:
        """Above this share of the caps what was written goes, and finished streams; a resume that needs it is told."""
        self._give_way(self._usage.spare(share, trio.current_time(), self._reached))

    def _give_way(self, spare: Iterable[tuple[str, bool | int]]) -> None:
        for stream, kept in spare:
            if isinstance(kept, bool):
                if not kept:
                    self._telemetry.count("stagedoor_gaps_total", ("cap",))
                self._store.drop(self.key, self._record.grant, stream, ignore)
            else:
                self._store.trim(self.key, self._record.grant, stream, kept, ignore)

    # What comes back

    def _on_open(self, effect: fx.OpenStream, track: Track, epoch: int, outcome: object) -> None:
        opened, track.opened = track.opened, None
        if isinstance(outcome, Failed):
            restorable = outcome.reason in LOSSES and self._live and self._record.life is not None
            if outcome.reason in FINAL and not (restorable and self._record.restore(outcome.reason)):
                slot = track.connection
                self._give_up(effect.stream, track, outcome)
                if slot is not None:
                    slot.close()  # nobody was given it
                return
            self._go_unrecorded(effect.stream, track)
            if outcome.reason is Refused.AWAY and self._record.owned:
                self._take_back(effect)
        else:
            self.requests = apply(self.requests, effect.requests)
            if effect.first is not None:
                self._advance(effect.stream, track, (epoch, 1), effect.first)
        if opened is not None:
            opened()

    def _take_back(self, effect: fx.OpenStream) -> None:
        """It may be in the log all the same, where it would stay for as long as the session, with its requests."""
        seq = 1 if effect.first is None else 2
        deltas = Deltas(requests=dict.fromkeys(effect.requests))
        self._store.append(self.key, self._record.grant, effect.stream, seq, [], ignore, finish=True, deltas=deltas)

    def _go_unrecorded(self, stream: str, track: Track) -> None:
        self._telemetry.count("stagedoor_streams_unrecorded_total")
        self._usage.forget(stream)
        track.recorded, track.leaving = False, None
        if track.connection is not None:
            track.connection.recorded = False
        track.attempt += 1
        pending = list(track.pending)
        track.pending.clear()
        for entry in pending:
            self._pass(track, entry)
        self._settle(stream, track)

    def _on_append(self, track: Track, entry: Entry, attempt: int, outcome: object) -> None:
        if attempt != track.attempt or self._tracks.get(entry.effect.stream) is not track:
            return
        if not isinstance(outcome, Failed):
            self._acknowledged(track, entry)
            return
        if outcome.reason is Refused.FENCED and not self._record.owned:
            return  # it was late for the former grant; the next one is asked for
        self._telemetry.count("stagedoor_store_errors_total", ("append", outcome.reason.value))
        if outcome.reason in UNAVAILABLE and self._live:
            self._stall(entry.effect.stream, track)
        elif outcome.reason is Refused.FULL and self._live:
            self._shed(track, entry)
        elif outcome.reason in LOSSES and self._live and self._record.life is not None:
            self._mend(entry.effect.stream, track, outcome)
        else:
            self._give_up(entry.effect.stream, track, outcome)

    # The store has lost what it had acknowledged

    def heads(self, streams: Mapping[str, StreamHead]) -> dict[str, StreamHead]:
        """Of these unfinished streams, with the last number given in each, and of those whose last event is on its way,
        those that are in the log, as far as is known."""
        found = {name: head for name, head in streams.items() if name not in self._tracks}
        for name, track in self._tracks.items():
            if track.recorded and track.opened is None:
                found[name] = StreamHead(track.acked, opener=track.opener)
        return found

    def expected(self) -> tuple[dict[str, bytes], dict[str, bytes]]:
        """What the record is to say of requests and server requests, with all that is on its way."""
        requests, asked = dict(self.requests), dict(self.asked)
        for track in self._tracks.values():
            for entry in track.pending:
                apply(requests, entry.effect.requests)
                apply(asked, entry.effect.asked)
        return requests, asked

    def compare(self, found: Mapping[str, StreamHead], streams: Mapping[str, StreamHead]) -> None:
        """These unfinished streams are known there by these heads: those that have lost events go on behind them."""
        for name, head in streams.items():
            track = self._tracks.get(name) or self._found(name, head.seq)
            kept = found[name].seq if name in found else -1
            if kept < track.acked and track.recorded and track.opened is None and not track.stalled:
                self._tracks = put(self._tracks, name, track)
                self._mend(name, track, Failed(Refused.SEQ))

    def restored(self) -> None:
        """The record is as it was: streams go on."""
        for stream, track in list(self._tracks.items()):
            if track.stalled:
                self._mend(stream, track, Failed(Refused.SEQ))

    def _mend(self, stream: str, track: Track, refused: Failed) -> None:
        """It goes on behind what was acknowledged. Who reads it was shown that; who comes back for it is told what is
        missing."""
        track.mends += 1
        track.attempt += 1
        track.stalled = True
        if track.mends > MENDS:
            self._give_up(stream, track, refused)
            return
        self._store.mend(
            self.key,
            self._record.grant,
            stream,
            track.acked,
            self._ctx.guard(lambda out: self._on_mend(stream, track, out)),
            opener=track.opener,
        )

    def _on_mend(self, stream: str, track: Track, outcome: object) -> None:
        if self._tracks.get(stream) is not track or not self._live:
            return
        if not isinstance(outcome, Failed):
            self._telemetry.count("stagedoor_gaps_total", ("lost",))
            self._usage.lose(stream, track.acked)
            track.stalled = False
            self._tell(EventsLost(stream))
            self._again(track)
        elif outcome.reason in UNAVAILABLE or (outcome.reason in LOSSES and self._record.restore(outcome.reason)):
            self._ctx.set_timer(("log", stream), RETRY, LogDue(stream))
        else:
            self._give_up(stream, track, outcome)

    def _acknowledged(self, track: Track, entry: Entry) -> None:
        """It is in the log, and so is what is before it, whatever became of the word of that."""
        done, track.mends = None, 0
        while done is not entry:
            done = track.pending.pop(0)
            if done.effect.requests:
                self.requests = apply(self.requests, done.effect.requests)
            if done.effect.asked:
                self.asked = apply(self.asked, done.effect.asked)
            if done.effect.clears is not None and self._live:
                self._tell(ev.CallCleared(done.effect.clears))
            if done.effect.accepts is not None and self._live:
                self._tell(AnswerRecorded(done.effect.accepts))
            self._advance(done.effect.stream, track, (done.epoch, done.seq), done.effect.data)

    def _stall(self, stream: str, track: Track) -> None:
        """A client that has an id comes back for the rest; one that has none waits with us."""
        track.stalled = True
        track.attempt += 1
        if track.connection is not None and track.connection.numbered:
            track.connection.end()
        self._ctx.set_timer(("log", stream), RETRY, LogDue(stream))

    def _shed(self, track: Track, entry: Entry) -> None:
        """The log has no room for this: an event that nobody has seen is dropped, an answer made small, and if it is,
        room will come."""
        trimmed = self._usage.trim(0.0, self._reached)
        if trimmed:  # what earlier lives have left is larger than it was thought to be
            self._give_way(trimmed)
        elif not entry.answers:
            self._drop(track, entry, "full")
        elif entry.shrink():
            self._telemetry.count("stagedoor_events_shed_total", ("answer",))
        else:
            self._stall(entry.effect.stream, track)
            return
        self._again(track)

    def _drop(self, track: Track, entry: Entry, why: str) -> None:
        """Nobody will see this event; if it asks something, nobody will answer."""
        self._telemetry.count("stagedoor_events_shed_total", (why,))
        track.drop(entry)
        self._usage.take_back(entry.effect.stream, entry.size)
        for ask, stream in entry.effect.asked.items():
            if stream is not None:
                self._tell(ev.ServerRequestExpired(ask))

    def _give_up(self, stream: str, track: Track, outcome: Failed) -> None:
        self._log.warning(
            "stream_lost", session=handle(self.key), stream=stream, reason=outcome.reason.value, detail=outcome.detail
        )
        self._telemetry.count("stagedoor_events_lost_total", (), len(track.pending))
        if outcome.reason is Refused.FENCED:
            self._telemetry.count("stagedoor_fenced_writes_total")
        self._tracks.pop(stream, None)
        self._usage.forget(stream)
        self.requests = {key: value for key, value in self.requests.items() if read_request(value).stream != stream}
        self.asked = {id: value for id, value in self.asked.items() if read_server_request(value).stream != stream}
        if track.connection is not None and outcome.reason is Refused.FENCED:
            track.connection.lose()
        elif track.connection is not None:
            self._rescue(track, track.connection)
        if self._live:
            self._tell(ev.StreamFailed(stream, outcome.reason.value))

    def _rescue(self, track: Track, slot: Connection) -> None:
        """Nothing more can be had from the log. A client that has no id gets what is there and what is owed, for it
        can't come back."""
        there = b"".join(sse.encode_event(e.effect.data, None) for e in track.pending if e.effect.data is not None)
        slot.end(b"" if slot.numbered else there + track.words())

    def _leave(self, slot: Connection, hint: bytes = b"") -> None:
        """Ends a connection whose stream goes on. A client that has an id, or gets one from what is on its way, comes
        back for the rest, by this hint; any other can't, and is told so."""
        track = self._tracks.get(slot.stream)
        if slot.numbered or track is None or track.connection is not slot:
            slot.end(hint)
        elif track.recorded and not track.stalled and track.next > track.acked + 1:
            track.leaving = track.leaving or hint
        else:
            slot.end(track.words())

    def _tell(self, message: StreamMessage) -> None:
        self._ctx.ref.reply(message)

    def _advance(self, stream: str, track: Track, place: tuple[int, int], data: bytes | None) -> None:
        """This event is in the log, at this epoch under this number, and goes to who reads; without data only the
        record was changed."""
        over, slot = self._over(stream, track), track.connection
        epoch, seq = place
        if data is not None:
            track.acked = seq
        if slot is None:
            return
        if data is not None:
            event = sse.encode_event(data, f"{stream}:{epoch}-{seq}")
            if not slot.put(seq, event, epoch=epoch, last=over):
                self._slow(slot)
            elif track.leaving is not None:
                slot.end(track.leaving)
        elif over:
            slot.finish()

    def _slow(self, connection: Connection) -> None:
        """A reader that does not read: let go, counted, logged once; the log has what it missed."""
        self._telemetry.count("stagedoor_slow_consumers_total", (kind_of(connection.stream),))
        self._log.warning("slow_consumer", session=handle(self.key), stream=connection.stream)
        connection.end()

    def _over(self, stream: str, track: Track) -> bool:
        """Whether a stream has its last event; nothing is remembered of it then."""
        if not track.finished or track.pending:
            return False
        self._tracks.pop(stream, None)
        self._usage.finish(stream, trio.current_time())
        return True

    def _settle(self, stream: str, track: Track) -> None:
        """The end of an unrecorded stream that has its last event."""
        if self._over(stream, track) and track.connection is not None:
            track.connection.finish()

    def _connect(self, id: int, stream: str, reader: int, after: int | None = None) -> Connection:
        limits = (self._limits.outbox_events, self._limits.outbox_bytes)
        slot = Connection(id, stream, limits, self._on_close, after)
        slot.reader = reader
        self.connections = put(self.connections, id, slot)
        self._streams[kind_of(stream)] += 1
        return slot

    def _on_close(self, connection: Connection, whole: bool) -> None:
        if self.connections.pop(connection.id, None) is not None:
            self._streams[kind_of(connection.stream)] -= 1
        track = self._tracks.get(connection.stream)
        if track is not None and track.connection is connection:
            track.connection = None
            track.written = connection.written or track.written
        elif track is None and whole and self._live:
            self._usage.written(connection.stream, trio.current_time())
            self._store.written(self.key, self._record.grant, connection.stream)
        if self._live:
            self._tell(ev.Detached(connection.id, connection.stream, connection.written))
