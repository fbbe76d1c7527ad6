"""The store in memory: no durability, the same fencing as Redis.

Nothing here waits and no session has a task: whoever composes the process calls `sweep` now and then, and what has
expired but was not swept yet is absent all the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import dropwhile, islice
from typing import Any

import trio

from actors.machines.session.record import READS
from actors.ports import (
    DUE_PARTS,
    NO_DELTAS,
    ClusterListener,
    Deltas,
    Done,
    Failed,
    Grant,
    Head,
    Incarnation,
    LogEntry,
    Record,
    Refused,
    Replay,
    SessionKey,
    StreamHead,
)
from actors.protocol.table import Limits
from gateway.store.buckets import MemoryBuckets
from gateway.store.memory_cluster import Directory, MemoryReplica
from gateway.store.rules import (
    FINISH_RESERVE,
    TOMBSTONE_TTL,
    YOUNG_TTL,
    Retention,
    fingerprint,
    next_epoch,
    replay_after,
)
from gateway.store.shelf import FENCED, MemoryShelf

TOMBSTONES = 10_000
"""Ended sessions remembered; the oldest are forgotten early, and then GONE instead of ENDED."""

_GONE = Failed(Refused.GONE)
_NO_STREAM = Failed(Refused.GONE, "no such stream")
_ENDED = Failed(Refused.ENDED)
_OWNED = Failed(Refused.FENCED, "the owner is alive")
_EXISTS = Failed(Refused.EXISTS)
_FULL = Failed(Refused.FULL, "the session's replay logs are full")
_FULL_OF_SESSIONS = Failed(Refused.FULL, "no room for another session")


class _Stream:
    """One log; `data` begins after the event `trimmed`, and has None for one that was lost. `epochs` says from which
    sequence number on which epoch wrote."""

    __slots__ = ("bytes", "data", "epochs", "floor", "opened", "trimmed", "until", "written")

    def __init__(self, opened: tuple[int, int], lost: int = 0) -> None:
        self.opened = opened
        self.data: list[bytes | None] = []
        self.epochs: tuple[tuple[int, int], ...] = ()
        self.bytes = 0
        self.trimmed = self.floor = lost
        self.until: float | None = None
        self.written = False

    @property
    def seq(self) -> int:
        """The number of its last event."""
        return self.trimmed + len(self.data)

    @property
    def events(self) -> int:
        """How many it counts; before some that were lost there may be others still."""
        return self.seq - self.floor

    @property
    def head(self) -> StreamHead:
        """What a record says of it."""
        return StreamHead(self.seq, self.until is not None, self.floor, self.written, self.opened[0])

    def entry(self, seq: int) -> LogEntry | None:
        """The event with this number, unless it is missing."""
        data = self.data[seq - self.trimmed - 1] if self.trimmed < seq <= self.seq else None
        if data is None:
            return None
        return LogEntry(next(epoch for first, epoch in reversed(self.epochs) if first <= seq), seq, data)

    def entries(self, epoch: int, seq: int) -> Iterator[LogEntry]:
        """Those that are there behind this one, in the order of epochs."""
        found = filter(None, map(self.entry, range(self.trimmed + 1, self.seq + 1)))
        return dropwhile(lambda entry: (entry.epoch, entry.seq) <= (epoch, seq), found) if seq else found

    def trim(self, floor: int) -> None:
        """Deletes the events up to this number."""
        gone = floor - self.trimmed
        self.bytes -= sum(len(data) for data in self.data[:gone] if data is not None)
        del self.data[:gone]
        self.trimmed = self.floor = floor


class _Session:
    """A record. Mappings that most sessions never need are made when they are."""

    __slots__ = (
        "asked", "bytes", "epoch", "events", "expires", "fields", "history", "live", "nonce", "older", "owner",
        "requests", "rev", "streams", "tries",
    )  # fmt: skip

    def __init__(self, owner: str, epoch: int, fields: Mapping[str, bytes], expires: float, history: int) -> None:
        self.owner: str | None = owner
        self.history = history
        self.older = False
        self.epoch = epoch
        self.expires = expires
        self.fields = dict(fields)
        self.nonce = ""
        self.rev = self.tries = self.events = self.bytes = 0
        self.live = False
        self.requests: dict[str, bytes] | None = None
        self.asked: dict[str, bytes] | None = None
        self.streams: dict[str, _Stream] | None = None

    def apply(self, deltas: Deltas) -> None:
        """Writes the changes; None deletes."""
        if deltas is NO_DELTAS:
            return
        _merge(self.fields, deltas.fields)
        if deltas.requests:
            self.requests = _merge(self.requests or {}, deltas.requests) or None
        if deltas.asked:
            self.asked = _merge(self.asked or {}, deltas.asked) or None

    def forget(self, name: str) -> None:
        """Removes a stream and what it counted."""
        if self.streams and (stream := self.streams.pop(name, None)):
            self.events -= stream.events
            self.bytes -= stream.bytes

    def record(self, now: float) -> Record:
        """What a reader sees."""
        heads = {
            name: stream.head
            for name, stream in (self.streams or {}).items()
            if stream.until is None or stream.until > now
        }
        requests, asked = dict(self.requests or {}), dict(self.asked or {})
        values = dict(self.fields), requests, asked, heads
        return Record(self.owner, self.epoch, self.rev, self.tries, *values, self.older)


def _merge(into: dict[str, bytes], changes: Mapping[str, bytes | None]) -> dict[str, bytes]:
    for name, value in changes.items():
        if value is None:
            into.pop(name, None)
        else:
            into[name] = value
    return into


def _order(item: tuple[str, _Stream], now: float) -> tuple[bool, bool, bool, float, str]:
    """Of streams, by what goes first for want of room: what has expired, was written whole, is finished."""
    name, log = item
    return log.until is None, log.until is not None and log.until > now, not log.written, log.until or 0.0, name


@dataclass(slots=True)
class _Memory:
    """What the stores of several replicas share."""

    directory: Directory
    wall: Callable[[], float]
    sessions: dict[SessionKey, _Session] = field(default_factory=dict)
    tombs: dict[SessionKey, tuple[Grant, float]] = field(default_factory=dict)
    due: list[tuple[float, SessionKey, str]] = field(default_factory=list)
    """(when, key, stream or "") of everything that may expire, earliest first; entries that are out of date are renewed
    or dropped when their time comes."""
    ends: dict[SessionKey, float] = field(default_factory=dict)
    """When sessions end that nobody has in memory."""
    deleted: int = 0
    """The highest epoch of a record that was deleted."""
    history: int = 0
    """How often something was lost."""
    shelf: MemoryShelf = field(init=False)
    buckets: MemoryBuckets = field(init=False)

    def __post_init__(self) -> None:
        self.shelf = MemoryShelf(self.directory.now)
        self.buckets = MemoryBuckets(self.wall)


class MemoryStore:
    """`Store` and `Cluster` in this process; every outcome is handed over before the call returns.

    `now` gives seconds of any clock that never goes back, `wall` those since 1970, as far as these matter. `beside`
    makes further replicas, which in earnest would be further processes; what can happen to one of these is among the
    methods of its `replica`.
    """

    durable = False

    def __init__(
        self,
        limits: Limits,
        now: Callable[[], float],
        *,
        info: Mapping[str, Any] | None = None,
        wall: Callable[[], float] | None = None,
        memory: _Memory | None = None,
    ) -> None:
        self._limits = limits
        self._keep = Retention.of(limits)
        self._most = limits.sessions
        self._now = now
        self._shared = memory or _Memory(Directory(now), wall or now)
        self._use(self._shared)
        told = {"schema": READS, **(info or {})}
        self.replica = MemoryReplica(self._memory.directory, self._owners, self._named, told)
        self._named(self.replica.incarnation)

    @property
    def shelf(self) -> MemoryShelf:
        """Small values that all replicas share."""
        return self._memory.shelf

    @property
    def buckets(self) -> MemoryBuckets:
        """How often things were done, over all replicas."""
        return self._memory.buckets

    def beside(self, info: Mapping[str, Any] | None = None) -> "MemoryStore":
        """The store of another replica: the same sessions."""
        return MemoryStore(self._limits, self._now, info=info, memory=self._shared)

    def snapshot(self) -> Mapping[SessionKey, Any]:
        """What it holds now, for `lose`."""
        return deepcopy(self._sessions)

    def lose(self, since: Mapping[SessionKey, Any] | None = None) -> None:
        """Everything is gone, or what came since, as after a failover; who is told, says `MemoryReplica.find_loss`."""
        self._memory.history += 1
        self._sessions.clear()
        self._sessions.update(since or {})

    def kill(self, *, at_once: bool = False) -> None:
        """The process is no more, whatever it still does: it reaches nothing here. See `MemoryReplica.kill`."""
        self.replica.kill(at_once=at_once)
        self._use(_Memory(Directory(self._now), self._now))

    def _use(self, memory: _Memory) -> None:
        self._memory = memory
        self._sessions, self._tombs, self._due = memory.sessions, memory.tombs, memory.due

    def _named(self, incarnation: Incarnation) -> None:
        self.owner = self.incarnation = incarnation

    def _owners(self) -> list[tuple[SessionKey, Incarnation | None]]:
        return [(key, session.owner) for key, session in self._sessions.items()]

    # The other replicas

    @property
    def term(self) -> int:
        return self.replica.term

    @property
    def doubtful(self) -> bool:
        return self.replica.doubtful

    @property
    def schema(self) -> int:
        return self.replica.schema

    def now(self) -> float:
        return self._now()

    def subscribe(self, listener: ClusterListener) -> None:
        self.replica.subscribe(listener)

    def post(self, to: Incarnation, letter: bytes, done: Done) -> None:
        self.replica.post(to, letter, done)

    def withdraw(self, to: Incarnation, entry: str, done: Done) -> None:
        self.replica.withdraw(to, entry, done)

    def alive(self, incarnation: Incarnation, done: Done) -> None:
        self.replica.alive(incarnation, done)

    def replicas(self, done: Done) -> None:
        self.replica.replicas(done)

    def owned(self, incarnation: Incarnation, cursor: int, done: Done) -> None:
        self.replica.owned(incarnation, cursor, done)

    def disown(self, incarnation: Incarnation, keys: Sequence[SessionKey]) -> None:
        self.replica.disown(incarnation, keys)

    def due_at(self, key: SessionKey, time: float | None) -> None:
        self._memory.ends.pop(key, None)
        if time is not None:
            self._memory.ends[key] = time

    def due(self, part: int, before: float, done: Done) -> None:
        ends = self._memory.ends.items()
        done([key for key, time in ends if time < before and int(key[0], 16) % DUE_PARTS == part])

    def __len__(self) -> int:
        """Sessions held, expired ones that were not swept yet included."""
        return len(self._sessions)

    def records(self) -> dict[SessionKey, Record]:
        """All that it holds, as a reader sees it, without a claim to any of it."""
        now = self._now()
        return {key: session.record(now) for key, session in self._sessions.items()}

    # Records

    def create(self, key: SessionKey, fields: Mapping[str, bytes], done: Done) -> None:
        done(self._create(key, fields))

    def read(self, key: SessionKey, done: Done) -> None:
        now = self._now()
        session = self._find(key, now)
        done(session if isinstance(session, Failed) else session.record(now))

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
        done(self._claim(key, expect_owner, expect_epoch, nonce, lives))

    def save(self, key: SessionKey, grant: Grant, rev: int, deltas: Deltas, done: Done) -> None:
        done(self._save(key, grant, rev, deltas))

    def touch(self, key: SessionKey, grant: Grant, done: Done) -> None:
        session = self._fenced(key, grant)
        done(session if isinstance(session, Failed) else None)

    def release(self, key: SessionKey, grant: Grant, done: Done, *, work: bool = False) -> None:
        outcome = self._release(key, grant)
        if work and outcome is None:
            self.replica.leave_work(key)
        done(outcome)

    def end(self, key: SessionKey, grant: Grant, reason: str, done: Done) -> None:
        done(self._end(key, grant))

    def delete(self, key: SessionKey, grant: Grant, done: Done) -> None:
        done(self._delete(key, grant))

    # Logs

    def open(
        self, key: SessionKey, grant: Grant, stream: str, requests: Mapping[str, bytes], first: bytes | None, done: Done
    ) -> None:
        done(self._open(key, grant, stream, requests, first))

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
        done(self._append(key, grant, stream, seq, data, finish, deltas))

    def written(self, key: SessionKey, grant: Grant, stream: str) -> None:
        session = self._fenced(key, grant)
        if isinstance(session, Failed) or not session.streams:
            return
        log = session.streams.get(stream)
        until = self._now() + self._keep.written
        if log is not None and log.until is not None:
            log.written = True
            if until < log.until:
                log.until = until
                heappush(self._due, (until, key, stream))

    def trim(self, key: SessionKey, grant: Grant, stream: str, seq: int, done: Done) -> None:
        done(self._trim(key, grant, stream, seq))

    def drop(self, key: SessionKey, grant: Grant, stream: str, done: Done) -> None:
        session = self._fenced(key, grant)
        log = None if isinstance(session, Failed) or not session.streams else session.streams.get(stream)
        if isinstance(session, Failed):
            done(session)
        elif log is not None and log.until is None:
            done(Failed(Refused.SEQ, "the stream is not finished", log.seq))
        else:
            session.forget(stream)
            done(None)

    # After a loss

    def restore(self, key: SessionKey, grant: Grant, rev: int, record: Record, done: Done) -> None:
        done(self._restore(key, grant, rev, record))

    def mend(self, key: SessionKey, grant: Grant, stream: str, head: int, done: Done, *, opener: int = 0) -> None:
        done(self._mend(key, grant, stream, head, opener))

    def heads(self, streams: Sequence[tuple[SessionKey, str]], done: Done) -> None:
        done([self._head(key, stream) for key, stream in streams])

    async def replay(
        self, key: SessionKey, stream: str, after_epoch: int, after_seq: int, limit: int
    ) -> Replay | Failed:
        await trio.lowlevel.checkpoint()
        now = self._now()
        session = self._find(key, now)
        if isinstance(session, Failed):
            return _GONE
        log = session.streams.get(stream) if session.streams else None
        if log is None or (log.until is not None and log.until <= now):
            return _NO_STREAM
        cursor = log.entry(after_seq)
        known = cursor is not None and cursor.epoch == after_epoch
        entries = list(islice(log.entries(after_epoch, after_seq), limit))
        return replay_after(log.head, (after_epoch, after_seq), known, entries)

    def _head(self, key: SessionKey, stream: str) -> Head | None:
        now = self._now()
        session = self._find(key, now)
        log = session.streams.get(stream) if not isinstance(session, Failed) and session.streams else None
        if isinstance(session, Failed) or log is None or (log.until is not None and log.until <= now):
            return None
        head, last = log.head, log.entry(log.seq)
        return Head(session.owner, last.epoch if last is not None else 0, head.seq, head.finished, head.floor)

    # Expiry

    def sweep(self, now: float) -> None:
        """Frees what has expired; costs next to nothing for what has not."""
        self._memory.shelf.sweep(now)
        self._memory.buckets.sweep()
        while self._due and self._due[0][0] <= now:
            _, key, stream = heappop(self._due)
            session = self._sessions.get(key)
            if session is None:
                continue
            if session.expires <= now:
                del self._sessions[key]
            elif not stream:
                heappush(self._due, (session.expires, key, ""))
            elif session.streams and (log := session.streams.get(stream)) and log.until and log.until <= now:
                session.forget(stream)
        self._forget_tombs(now)

    def _forget_tombs(self, now: float) -> None:
        while self._tombs and (len(self._tombs) > TOMBSTONES or next(iter(self._tombs.values()))[1] <= now):
            del self._tombs[next(iter(self._tombs))]

    # Steps

    def _find(self, key: SessionKey, now: float) -> _Session | Failed:
        session = self._sessions.get(key)
        if session is not None and session.expires > now:
            return session
        tomb = self._tombs.get(key)
        return _ENDED if tomb is not None and tomb[1] > now else _GONE

    def _fenced(self, key: SessionKey, grant: Grant) -> _Session | Failed:
        """The session that this grant may write; it lives on from here (but a young one)."""
        now = self._now()
        session = self._find(key, now)
        if isinstance(session, Failed):
            return session
        if session.epoch != grant.epoch or session.owner != grant.owner:
            return FENCED
        if session.live:
            session.expires = now + self._keep.session
        return session

    def _create(self, key: SessionKey, fields: Mapping[str, bytes]) -> Grant | Failed:
        now = self._now()
        if self._find(key, now) is not _GONE:
            return _EXISTS
        if len(self._sessions) >= self._most:
            return _FULL_OF_SESSIONS
        epoch = next_epoch(self._memory.deleted, now)
        session = _Session(self.owner, epoch, fields, now + YOUNG_TTL, self._memory.history)
        self._sessions[key] = session
        heappush(self._due, (session.expires, key, ""))
        return Grant(self.owner, session.epoch, self.term)

    def _claim(
        self, key: SessionKey, expect_owner: str | None, expect_epoch: int, nonce: str, lives: bool
    ) -> tuple[Grant, Record] | Failed:
        now = self._now()
        if expect_owner is not None and not self.replica.mine(expect_owner) and self.replica.lives(expect_owner):
            return _OWNED
        session = self._find(key, now)
        if isinstance(session, Failed):
            return session
        if not (session.nonce == nonce and session.owner == self.owner):
            if session.owner != expect_owner or session.epoch != expect_epoch:
                return FENCED
            session.owner, session.epoch, session.nonce = self.owner, next_epoch(session.epoch, now), nonce
            session.older = session.older or session.history != self._memory.history
            session.history = self._memory.history
            session.tries += not lives
            if session.live:
                session.expires = now + self._keep.session
        return Grant(self.owner, session.epoch, self.term), session.record(now)

    def _save(self, key: SessionKey, grant: Grant, rev: int, deltas: Deltas) -> Failed | None:
        session = self._fenced(key, grant)
        if isinstance(session, Failed):
            return session
        if rev not in (session.rev, session.rev + 1):
            return Failed(Refused.SEQ, "rev", session.rev)
        session.rev = rev
        session.tries = 0
        session.older = False
        session.live = True
        session.expires = self._now() + self._keep.session
        session.apply(deltas)
        return None

    def _release(self, key: SessionKey, grant: Grant) -> Failed | None:
        session = self._find(key, self._now())
        if isinstance(session, Failed):
            return session
        if session.epoch != grant.epoch or session.owner not in (grant.owner, None):
            return FENCED
        session.owner = None
        return None

    def _end(self, key: SessionKey, grant: Grant) -> Failed | None:
        now = self._now()
        tomb = self._tombs.get(key)
        if tomb is not None and tomb[0] == grant and tomb[1] > now:
            return None
        session = self._fenced(key, grant)
        if isinstance(session, Failed):
            return session
        del self._sessions[key]
        self._tombs.pop(key, None)
        self._tombs[key] = (grant, now + TOMBSTONE_TTL)
        self._forget_tombs(now)
        return None

    def _delete(self, key: SessionKey, grant: Grant) -> Failed | None:
        session = self._fenced(key, grant)
        if isinstance(session, Failed):
            return None if session is _GONE else session
        del self._sessions[key]
        self._memory.deleted = max(self._memory.deleted, session.epoch)
        return None

    def _open(
        self, key: SessionKey, grant: Grant, stream: str, requests: Mapping[str, bytes], first: bytes | None
    ) -> Failed | None:
        session = self._fenced(key, grant)
        if isinstance(session, Failed):
            return session
        opened = (grant.epoch, fingerprint(requests, first))
        log = session.streams.get(stream) if session.streams else None
        if log is not None and log.until is not None and log.until <= self._now():
            session.forget(stream)  # expired, and not swept yet: its name is free
            log = None
        if log is not None and log.opened != opened:
            return _EXISTS
        if log is None:
            size = len(first or b"")
            if not self._fits(session, 1, size):
                return _FULL
            log = _Stream(opened)
            if session.streams is None:
                session.streams = {}
            session.streams[stream] = log
            if first is not None:
                self._extend(session, log, grant.epoch, (first,), size)
        if requests:
            session.requests = _merge(session.requests or {}, requests)
        return None

    def _append(
        self, key: SessionKey, grant: Grant, stream: str, seq: int, data: Sequence[bytes], finish: bool, deltas: Deltas
    ) -> Failed | None:
        session = self._fenced(key, grant)
        if isinstance(session, Failed):
            return session
        log = session.streams.get(stream) if session.streams else None
        if log is None:
            return _NO_STREAM
        head, last = log.seq, seq + len(data) - 1
        if seq > head + 1 or (finish and log.until is None and last < head):
            return Failed(Refused.SEQ, "", head)
        if last > head:
            if log.until is not None:
                return Failed(Refused.FINISHED, "", head)
            fresh = data[head + 1 - seq :]
            size = sum(map(len, fresh))
            if not self._fits(session, len(fresh), size) and not (finish and size <= FINISH_RESERVE):
                return _FULL
            self._extend(session, log, grant.epoch, fresh, size)
        if finish and log.until is None:
            self._finish(key, stream, log)
        session.apply(deltas)
        return None

    def _trim(self, key: SessionKey, grant: Grant, stream: str, seq: int) -> Failed | None:
        session = self._fenced(key, grant)
        if isinstance(session, Failed):
            return session
        log = session.streams.get(stream) if session.streams else None
        if log is None or log.until is not None:
            return None
        if seq > log.seq:
            return Failed(Refused.SEQ, "", log.seq)
        if seq - 1 > log.floor:
            session.events, session.bytes = session.events - log.events, session.bytes - log.bytes
            log.trim(seq - 1)
            session.events, session.bytes = session.events + log.events, session.bytes + log.bytes
        return None

    def _restore(self, key: SessionKey, grant: Grant, rev: int, record: Record) -> Failed | None:
        now = self._now()
        session = self._find(key, now)
        if session is _ENDED:
            return _ENDED
        own = isinstance(session, _Session) and (session.owner, session.epoch) == (grant.owner, grant.epoch)
        if isinstance(session, _Session) and not own and session.epoch >= grant.epoch:
            return FENCED
        if own and isinstance(session, _Session) and session.rev >= rev:
            return None
        if not own or not isinstance(session, _Session):
            session = self._sessions[key] = _Session(grant.owner, grant.epoch, {}, now, 0)
            heappush(self._due, (now + self._keep.session, key, ""))
        session.rev, session.tries, session.live, session.expires = rev, 0, True, now + self._keep.session
        session.history, session.older = self._memory.history, False
        session.fields = dict(record.fields)
        session.requests = {**(session.requests or {}), **record.requests} or None
        session.asked = {**(session.asked or {}), **record.asked} or None
        streams = session.streams or {}
        for name, head in record.streams.items():
            if name not in streams:
                log = streams[name] = _Stream((head.opener, 0), lost=head.seq)
                if head.finished:
                    self._finish(key, name, log)
        session.streams = streams or None
        return None

    def _mend(self, key: SessionKey, grant: Grant, stream: str, head: int, opener: int) -> Failed | None:
        session = self._fenced(key, grant)
        if isinstance(session, Failed):
            return session
        log = session.streams.get(stream) if session.streams else None
        if log is None:
            session.streams = {**(session.streams or {}), stream: _Stream((opener, 0), lost=head)}
        elif log.seq < head and log.until is not None:
            return Failed(Refused.FINISHED, "", log.seq)
        elif log.seq < head:
            session.events -= log.events
            log.data += [None] * (head - log.seq)
            log.floor = head
        return None

    def _finish(self, key: SessionKey, stream: str, log: _Stream) -> None:
        log.until = self._now() + self._keep.finished
        heappush(self._due, (log.until, key, stream))

    def _extend(self, session: _Session, log: _Stream, epoch: int, fresh: Sequence[bytes], size: int) -> None:
        if not log.epochs or log.epochs[-1][1] != epoch:
            log.epochs += ((log.seq + 1, epoch),)
        log.data.extend(fresh)
        log.bytes += size
        session.bytes += size
        session.events += len(fresh)

    def _fits(self, session: _Session, events: int, size: int) -> bool:
        """Whether so much more has room; what is finished makes it, in the order of `Store.append`, but not in vain."""
        events, size = events + session.events, size + session.bytes
        if events <= self._keep.events and size <= self._keep.bytes:
            return True
        now, gone = self._now(), []
        for name, log in sorted((session.streams or {}).items(), key=lambda item: _order(item, now)):
            if log.until is None or (events <= self._keep.events and size <= self._keep.bytes and log.until > now):
                break
            events, size = events - log.events, size - log.bytes
            gone.append(name)
        fits = events <= self._keep.events and size <= self._keep.bytes
        for name in gone if fits else ():
            session.forget(name)
        return fits
