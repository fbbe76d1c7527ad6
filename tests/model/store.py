"""The store as the cluster's protocol has it: records, logs, inboxes and signs of life, and what their functions
refuse.

`Bug` names the deliberate faults that the model must find, here and elsewhere.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from actors.machines.cluster.lease import TTL
from actors.ports import Deltas, Failed, Grant, LogEntry, Record, Refused, Replay, StreamHead
from gateway.store.rules import replay_after


class Bug(Enum):
    """One deliberate fault each."""

    RESEND_TAKEN = auto()
    """A request that was taken is sent to the next owner (law 2)."""
    WITHDRAW_AFTER_LOSS = auto()
    """A store that may have lost the mark of what was taken is asked for it (law 2)."""
    DOUBLED_MAIL = auto()
    """A letter that came twice is taken twice (law 1)."""
    UNFENCED_APPEND = auto()
    """Appends are not held against the epoch (law 1)."""
    CLAIM_WITHOUT_COMPARE = auto()
    """Whoever finds the owner dead has the session (law 4)."""
    SAME_EPOCH = auto()
    """A claim keeps the epoch (ids)."""
    COUNTED_EPOCH = auto()
    """Epochs are counted, and no clock is asked (ids, after a loss)."""
    WRITE_OVER_HOLE = auto()
    """Event n + 1 is written after a lost n (law 3)."""
    WRITE_TWICE = auto()
    """Doubled frames are written (law 3)."""
    NO_HEAD = auto()
    """The head is never asked for (liveness)."""
    SAVE_RAISES_THE_DEAD = auto()
    """A save makes a record where there is none (law 5)."""
    NO_DOUBT = auto()
    """A replica in doubt goes on (law 4)."""
    DOUBT_BY_FLAG = auto()
    """A replica that wakes up is not in doubt before its next beat (law 4)."""
    NO_VERIFY = auto()
    """After a lapse, sessions are not claimed anew (law 4)."""
    OVERTAKING = auto()
    """Letters don't wait for those before them (one queue)."""
    TWO_HOMES = auto()
    """The answer of a recorded request goes on its connection, too (law 1)."""
    NOT_RECORDED = auto()
    """A stream is written before its `open` is acknowledged (law 1)."""
    LOST_NOTE = auto()
    """Notes that a dead owner took are not sent again (notes)."""
    LOSS_UNNOTICED = auto()
    """Nobody looks whether the store is another than it was (law 4, after a loss)."""
    NO_SWEEP = auto()
    """Nobody looks after what a dead owner had in flight (liveness)."""
    NO_REATTACH = auto()
    """A followed stream whose owner is lost is left alone (liveness)."""
    BY_NAME = auto()
    """A stream of which nothing was written is looked for by its name alone (sessions, after a loss)."""
    SILENT_GAP = auto()
    """A hole in the log is passed over (law 3)."""


@dataclass
class Log:
    entries: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    seq: int = 0
    floor: int = 0
    finished: bool = False
    opener: int = 0

    @property
    def head(self) -> StreamHead:
        return StreamHead(self.seq, self.finished, self.floor, opener=self.opener)

    @property
    def epoch(self) -> int:
        return self.entries[self.seq][0] if self.seq in self.entries else 0


@dataclass
class Session:
    fields: dict[str, bytes]
    owner: str | None = None
    epoch: int = 0
    rev: int = 0
    nonce: str = ""
    requests: dict[str, bytes] = field(default_factory=dict)
    asked: dict[str, bytes] = field(default_factory=dict)
    logs: dict[str, Log] = field(default_factory=dict)
    ended: bool = False

    def apply(self, deltas: Deltas) -> None:
        for mine, changes in (
            (self.fields, deltas.fields),
            (self.requests, deltas.requests),
            (self.asked, deltas.asked),
        ):
            for name, value in changes.items():
                mine.pop(name, None)
                if value is not None:
                    mine[name] = value

    def record(self) -> Record:
        heads = {name: log.head for name, log in self.logs.items()}
        return Record(
            self.owner, self.epoch, self.rev, 0, dict(self.fields), dict(self.requests), dict(self.asked), heads
        )


@dataclass
class Inbox:
    letters: dict[int, Any] = field(default_factory=dict)
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)
    taken: int = 0
    last: int = 0


@dataclass
class Data:
    """All that a loss takes back to an earlier state."""

    sessions: dict[str, Session] = field(default_factory=dict)
    inboxes: dict[str, Inbox] = field(default_factory=dict)
    alive: dict[str, float] = field(default_factory=dict)
    owned: dict[str, set[str]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)


class Store:
    """Every function is one step. `generation` tells one primary from the next."""

    def __init__(self, bug: Bug | None = None) -> None:
        self.data = Data()
        self.now = 0.0
        self.generation = 0
        self.lossy = False
        """Whether acknowledged writes were ever lost."""
        self.written: dict[tuple[str, str, int, int], bytes] = {}
        self.ended: set[str] = set()
        self.reused: list[tuple[str, str, int, int]] = []
        """Ids that were given to events with different contents."""
        self._bug = bug

    def snapshot(self) -> Data:
        return copy.deepcopy(self.data)

    def fail_over(self, to: Data) -> None:
        self.data = to
        self.generation += 1
        self.lossy = True

    # Sessions

    def _owned(self, key: str, grant: Grant) -> Session | Failed:
        session = self.data.sessions.get(key)
        if session is None:
            return Failed(Refused.GONE)
        if session.ended:
            return Failed(Refused.ENDED)
        if (session.owner, session.epoch) != (grant.owner, grant.epoch):
            return Failed(Refused.FENCED)
        return session

    def create(self, key: str, fields: Mapping[str, bytes]) -> None:
        assert key not in self.data.sessions
        self.data.sessions[key] = Session(dict(fields), epoch=1)

    def read(self, key: str) -> Record | Failed:
        session = self.data.sessions.get(key)
        return Failed(Refused.GONE) if session is None or session.ended else session.record()

    def claim(self, key: str, owner: str | None, epoch: int, me: str, nonce: str) -> tuple[Grant, Record] | Failed:
        session = self.data.sessions.get(key)
        if session is None or session.ended:
            return Failed(Refused.GONE)
        if (session.owner, session.nonce) != (me, nonce):
            moved = (session.owner, session.epoch) != (owner, epoch)
            if moved and self._bug is not Bug.CLAIM_WITHOUT_COMPARE:
                return Failed(Refused.FENCED)
            if self._bug is Bug.SAME_EPOCH:
                session.epoch += session.epoch == 1
            else:
                clock = 0 if self._bug is Bug.COUNTED_EPOCH else int(self.now * 1000)
                session.epoch = max(session.epoch + 1, clock)
            session.owner, session.nonce = me, nonce
        self.data.owned.setdefault(me, set()).add(key)
        return Grant(me, session.epoch), session.record()

    def open(
        self, key: str, grant: Grant, stream: str, requests: Mapping[str, bytes], first: bytes | None
    ) -> Failed | None:
        session = self._owned(key, grant)
        if isinstance(session, Failed):
            return session
        if stream not in session.logs:
            session.logs[stream] = Log(opener=grant.epoch)
            session.requests |= requests
            if first is not None:
                self._add(key, session.logs[stream], stream, grant.epoch, first)
        return None

    def append(
        self,
        key: str,
        grant: Grant,
        stream: str,
        seq: int,
        data: Sequence[bytes],
        finish: bool = False,
        deltas: Deltas | None = None,
    ) -> Failed | None:
        session = self._owned(key, grant)
        if isinstance(session, Failed) and self._bug is Bug.UNFENCED_APPEND:
            session = self.data.sessions.get(key) or session
        if isinstance(session, Failed):
            return session
        log = session.logs.get(stream)
        if log is None:
            return Failed(Refused.GONE)
        if seq > log.seq + 1 or (finish and seq + len(data) - 1 < log.seq and not log.finished):
            return Failed(Refused.SEQ, "", log.seq)
        fresh = data[log.seq + 1 - seq :]
        if fresh and log.finished:
            return Failed(Refused.FINISHED)
        for event in fresh:
            self._add(key, log, stream, grant.epoch, event)
        log.finished = log.finished or finish
        session.apply(deltas or Deltas())
        return None

    def _add(self, key: str, log: Log, stream: str, epoch: int, data: bytes) -> None:
        log.seq += 1
        log.entries[log.seq] = (epoch, data)
        if self.written.setdefault((key, stream, epoch, log.seq), data) != data:
            self.reused.append((key, stream, epoch, log.seq))

    def save(self, key: str, grant: Grant, rev: int, deltas: Deltas) -> Failed | None:
        session = self._owned(key, grant)
        if isinstance(session, Failed) and session.reason is not Refused.FENCED:
            if self._bug is not Bug.SAVE_RAISES_THE_DEAD:
                return session
            session = self.data.sessions[key] = Session({}, grant.owner, grant.epoch)
        if isinstance(session, Failed):
            return session
        session.rev = rev
        session.apply(deltas)
        return None

    def release(self, key: str, grant: Grant, work: bool) -> Failed | None:
        session = self._owned(key, grant)
        if isinstance(session, Failed):
            return session
        session.owner = None
        if not work:
            self.data.owned.get(grant.owner, set()).discard(key)
        return None

    def end(self, key: str, grant: Grant) -> Failed | None:
        session = self._owned(key, grant)
        if isinstance(session, Failed):
            return session
        self.ended.add(key)
        session.ended, session.logs, session.requests, session.asked = True, {}, {}, {}
        return None

    def mend(self, key: str, grant: Grant, stream: str, head: int, opener: int) -> Failed | None:
        session = self._owned(key, grant)
        if isinstance(session, Failed):
            return session
        log = session.logs.setdefault(stream, Log(opener=opener))
        if log.seq < head and log.finished:
            return Failed(Refused.FINISHED)
        if log.seq < head:
            log.seq = log.floor = head
        return None

    def restore(self, key: str, grant: Grant, rev: int, record: Record) -> Failed | None:
        session = self.data.sessions.get(key)
        if session is not None and session.ended:
            return Failed(Refused.ENDED)
        own = session is not None and (session.owner, session.epoch) == (grant.owner, grant.epoch)
        if session is not None and not own and session.epoch >= grant.epoch:
            return Failed(Refused.FENCED)
        if session is None or not own:
            session = self.data.sessions[key] = Session({}, grant.owner, grant.epoch)
        elif session.rev >= rev:
            return None
        session.rev = rev
        session.fields = dict(record.fields)
        session.requests, session.asked = session.requests | record.requests, session.asked | record.asked
        for name, head in record.streams.items():
            session.logs.setdefault(name, Log({}, head.seq, head.seq, head.finished, head.opener))
        self.data.owned.setdefault(grant.owner, set()).add(key)
        return None

    def replay(self, key: str, stream: str, epoch: int, seq: int, limit: int) -> Replay | Failed:
        session = self.data.sessions.get(key)
        log = session.logs.get(stream) if session is not None else None
        if log is None:
            return Failed(Refused.GONE)
        known = seq in log.entries and log.entries[seq][0] == epoch
        found = [LogEntry(e, s, data) for s, (e, data) in sorted(log.entries.items())]
        while seq and found and (found[0].epoch, found[0].seq) <= (epoch, seq):
            del found[0]
        return replay_after(log.head, (0 if self._bug is Bug.BY_NAME else epoch, seq), known, found[:limit])

    def head(self, key: str, stream: str) -> tuple[int, StreamHead] | Failed:
        session = self.data.sessions.get(key)
        log = session.logs.get(stream) if session is not None else None
        return Failed(Refused.GONE) if log is None else (log.epoch, log.head)

    # Replicas

    def beat(self, inc: str, take: bool) -> tuple[int, frozenset[str], frozenset[str]] | Failed:
        """Which primary it is, all that are alive, and all that were seen; GONE: the lease had lapsed."""
        if not take and not self.living(inc):
            return Failed(Refused.GONE)
        self.data.alive[inc] = self.now + TTL
        self.data.inboxes.setdefault(inc, Inbox())
        self.data.seen.add(inc)
        return self.generation, frozenset(filter(self.living, self.data.seen)), frozenset(self.data.seen)

    def living(self, inc: str) -> bool:
        return self.data.alive.get(inc, -1.0) > self.now

    def give_up(self, inc: str) -> None:
        self.data.alive.pop(inc, None)

    def owned(self, inc: str) -> tuple[str, ...]:
        return tuple(sorted(self.data.owned.get(inc, ())))

    def disown(self, inc: str, key: str) -> None:
        self.data.owned.get(inc, set()).discard(key)

    # Mail

    def post(self, to: str, sender: str, n: int, letter: Any, generation: int) -> str | Failed:
        """`generation`: the one at which it was first sent; if that is over, nobody knows whether it is there."""
        if generation != self.generation:
            return Failed(Refused.AWAY)
        inbox = self.data.inboxes.get(to)
        if not self.living(to) or inbox is None:
            return Failed(Refused.DEAD)
        last, entry = inbox.seen.get(sender, (0, 0))
        if n > last:
            inbox.last += 1
            entry = inbox.last
            inbox.letters[entry] = letter
            inbox.seen[sender] = (n, entry)
        elif n < last:
            return f"{self.generation}-0"  # seen before: counts as taken
        return f"{self.generation}-{entry}"

    def take(self, inc: str) -> list[Any]:
        """XREADGROUP: what was not taken yet, and the mark."""
        inbox = self.data.inboxes.get(inc)
        if inbox is None:
            return []
        letters = [letter for entry, letter in sorted(inbox.letters.items()) if entry > inbox.taken]
        inbox.taken = inbox.last
        inbox.letters = {}
        return letters

    def withdraw(self, to: str, entry: str) -> bool:
        """An entry that another primary had named may have been taken there."""
        generation, _, number = entry.partition("-")
        if int(generation) != self.generation and self._bug is not Bug.WITHDRAW_AFTER_LOSS:
            return False
        inbox = self.data.inboxes.get(to)
        if inbox is None or int(number) <= inbox.taken:
            return False
        inbox.letters.pop(int(number), None)
        return True
