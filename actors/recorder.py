"""Runs a session's stream effects: appends to the log, holds each event until its append is acknowledged, and passes it
to the connection that carries the stream.

When the store is away as a stream opens, the stream is *unrecorded*: its events have no ids and go out at once, and it
can't be resumed. A stream that gave an id never turns unrecorded.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from actors.connection import Connection
from actors.ports import NO_DELTAS, Deltas, Failed, Grant, Log, Refused, SessionKey, Store, Telemetry
from actors.protocol import codec, errors, sse
from actors.protocol import effects as fx
from actors.protocol.messages import Error, RequestId, Result
from actors.protocol.table import Limits
from actors.usage import Usage

LOST = (Refused.FENCED, Refused.GONE, Refused.ENDED)
"""The session is not ours any more; anything else is only the log's trouble, and the stream can go on without it."""


@dataclass(slots=True)
class _Track:
    """What the recorder knows of one stream: up to `acked` is in the log; `held` are events on their way into it."""

    acked: int = 0
    held: deque[tuple[int, bytes]] = field(default_factory=deque)
    connection: Connection | None = None
    recorded: bool = True
    opened: Callable[[], None] | None = None
    finished: bool = False


def handle(key: SessionKey) -> str:
    """What logs call a session: enough to find its lines, of no use to get in."""
    return key[:12]


def kind_of(stream: str) -> str:
    """By what it was opened."""
    return "post" if stream.startswith("p") else "get"


def _id_of(frame: bytes) -> RequestId | None:
    """The id of a response of ours."""
    message = codec.decode_message(frame)
    return message.id if isinstance(message, Result | Error) else None


def _ignore(outcome: object) -> None:
    """For a request whose failure changes nothing."""


class Recorder:
    """The streams of one session in one life. All methods are synchronous."""

    def __init__(
        self,
        key: SessionKey,
        grant: Grant,
        store: Store,
        limits: Limits,
        telemetry: Telemetry,
        log: Log,
        streams: Counter[str],
        failed: Callable[[str, Refused], object],
        closed: Callable[[Connection], object],
    ) -> None:
        self.key = key
        self.grant = grant
        self.connections: dict[int, Connection] = {}
        self._store = store
        self._limits = limits
        self._telemetry = telemetry
        self._log = log
        self._streams = streams
        self._failed = failed
        self._closed = closed
        self._tracks: dict[str, _Track] = {}
        self._usage = Usage(limits)
        self._live = True

    # Effects

    def open(self, effect: fx.OpenStream, connection: int, opened: Callable[[Connection], None]) -> None:
        """Opens the stream in the log; `opened` runs when that is acknowledged, or the stream goes unrecorded."""
        carrier = self._connect(connection, effect.stream)
        track = _Track(connection=carrier, opened=lambda: opened(carrier))
        self._tracks[effect.stream] = track
        if effect.first is not None:
            self._hold(track, effect.stream, 1, effect.first)
        requests = dict(effect.requests)
        self._store.open(
            self.key, self.grant, effect.stream, requests, effect.first, lambda out: self._on_open(effect, track, out)
        )

    @property
    def pressed(self) -> bool:
        """The logs are half full: what may be shed gets no id any more."""
        return self._usage.pressed

    def append(self, effect: fx.Append) -> None:
        """Appends one event (or only the finish), and shows it to the reader once it is in the log."""
        track = self._tracks.get(effect.stream)
        if track is None:  # opened in an earlier life
            track = self._tracks[effect.stream] = _Track(acked=effect.seq - 1)
        track.finished = track.finished or effect.finish
        if effect.data is not None:
            self._hold(track, effect.stream, effect.seq, effect.data)
        if not track.recorded:
            if track.connection is None and effect.finish:
                self._telemetry.count("stagedoor_answers_dropped_total", ("unrecorded",))
            self._acked(effect.stream, track, effect.seq)
            return
        self._make_room(effect)
        deltas = Deltas(requests=effect.requests, asked=effect.asked) if effect.requests or effect.asked else NO_DELTAS
        data = [effect.data] if effect.data is not None else []
        self._store.append(
            self.key,
            self.grant,
            effect.stream,
            effect.seq,
            data,
            lambda out: self._on_append(effect, track, out),
            finish=effect.finish,
            deltas=deltas,
        )

    def holds(self, stream: str) -> bool:
        """Whether events of it may be on their way into the log."""
        return stream in self._tracks

    def follow(self, effect: fx.Follow, connection: int) -> tuple[Connection, int]:
        """A live stream goes on over a new connection: the events still on their way into the log are its first; what
        is before them (up to the number returned) is for the reader to fetch from the log."""
        track = self._tracks.setdefault(effect.stream, _Track(acked=effect.head))
        carrier = self._connect(connection, effect.stream)
        track.connection = carrier
        carrier.release(track.acked)
        for seq, frame in track.held:
            if seq > effect.seq:
                carrier.put(seq, frame)
        return carrier, track.acked

    def close(self, connection: int, retry: int | None) -> None:
        """Closes a connection of ours, with a hint when to come back."""
        carrier = self.connections.get(connection)
        if carrier is not None:
            carrier.cut(sse.encode_retry(retry) if retry is not None else b"")

    def stop(self) -> None:
        """The life is over: streams that have their last event still bring it to the reader, all others are cut."""
        self._live = False
        finished = {t.connection for t in self._tracks.values() if t.finished}
        for carrier in list(self.connections.values()):
            if carrier not in finished:
                carrier.cut()

    @property
    def busy(self) -> bool:
        """Whether anything is on its way into the log or to a reader."""
        return bool(self.connections) or any(t.held or t.opened for t in self._tracks.values())

    def _make_room(self, effect: fx.Append) -> None:
        """At the cap finished streams go, oldest first; a resume of one of them gets the gap error."""
        now = trio.current_time()
        for stream in self._usage.add(effect.stream, len(effect.data or b""), effect.finish, now):
            self._telemetry.count("stagedoor_gaps_total", ("cap",))
            self._store.drop(self.key, self.grant, stream, _ignore)

    # What comes back

    def _on_open(self, effect: fx.OpenStream, track: _Track, outcome: object) -> None:
        if isinstance(outcome, Failed):
            if outcome.reason in LOST:
                self._give_up(effect.stream, track, outcome)
                return
            track.recorded = False
            track.held.clear()
            self._telemetry.count("stagedoor_streams_unrecorded_total")
        opened, track.opened = track.opened, None
        if effect.first is not None:
            self._acked(effect.stream, track, 1)
        if opened is not None:
            opened()

    def _on_append(self, effect: fx.Append, track: _Track, outcome: object) -> None:
        if isinstance(outcome, Failed):
            if outcome.reason is Refused.FULL and effect.finish and effect.data is not None:
                self._answer_small(effect, track, effect.data)
            else:
                self._give_up(effect.stream, track, outcome)
            return
        self._acked(effect.stream, track, effect.seq)

    def _answer_small(self, effect: fx.Append, track: _Track, data: bytes) -> None:
        """The log has no room for this answer, but always for a small one that says so."""
        error = errors.internal("the answer is too large for the log", reason="answer_too_large", executed="yes")
        small = codec.encode_error(_id_of(data), error)
        if len(small) >= len(data):
            self._give_up(effect.stream, track, Failed(Refused.FULL))
            return
        if track.connection is not None:
            # The large one is held there, and must never be released.
            track.connection.cut()
        track.held.clear()
        self._telemetry.count("stagedoor_events_shed_total", ("answer",))
        track.finished = False
        self.append(fx.Append(effect.stream, effect.seq, small, True, effect.requests, effect.asked))

    def _give_up(self, stream: str, track: _Track, outcome: Failed) -> None:
        self._log.warning(
            "stream_lost", session=handle(self.key), stream=stream, reason=outcome.reason.value, detail=outcome.detail
        )
        self._telemetry.count("stagedoor_events_lost_total", (), len(track.held))
        self._telemetry.count("stagedoor_store_errors_total", ("append", outcome.reason.value))
        if outcome.reason is Refused.FENCED:
            self._telemetry.count("stagedoor_fenced_writes_total")
        self._tracks.pop(stream, None)
        if track.connection is not None:
            track.connection.cut()
        if self._live:
            self._failed(stream, outcome.reason)

    def _hold(self, track: _Track, stream: str, seq: int, data: bytes) -> None:
        id = f"{stream}:{self.grant.epoch}-{seq}" if track.recorded else None
        frame = sse.encode_event(data, id)
        if track.recorded:
            track.held.append((seq, frame))
        if track.connection is not None and not track.connection.put(seq, frame):
            self._slow(track.connection)

    def _slow(self, connection: Connection) -> None:
        """A reader that does not read: cut, counted, logged once; the log has what it missed."""
        self._telemetry.count("stagedoor_slow_consumers_total", (kind_of(connection.stream),))
        self._log.warning("slow_consumer", session=handle(self.key), stream=connection.stream)
        connection.cut()

    def _acked(self, stream: str, track: _Track, seq: int) -> None:
        track.acked = max(track.acked, seq)
        while track.held and track.held[0][0] <= seq:
            track.held.popleft()
        if track.connection is not None:
            track.connection.release(track.acked)
            if track.finished and not track.held:
                track.connection.end()
        if track.finished and not track.held:
            self._tracks.pop(stream, None)

    def _connect(self, id: int, stream: str) -> Connection:
        limits = (self._limits.outbox_events, self._limits.outbox_bytes)
        carrier = Connection(id, stream, limits, self._on_close)
        self.connections[id] = carrier
        self._streams[kind_of(stream)] += 1
        return carrier

    def _on_close(self, connection: Connection, whole: bool) -> None:
        if self.connections.pop(connection.id, None) is not None:
            self._streams[kind_of(connection.stream)] -= 1
        track = self._tracks.get(connection.stream)
        if track is not None and track.connection is connection:
            track.connection = None
        elif track is None and whole and self._live:
            self._store.written(self.key, self.grant, connection.stream)
        if self._live:
            self._closed(connection)
