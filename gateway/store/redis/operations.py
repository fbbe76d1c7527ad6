"""The port's calls as commands, and Redis' replies as outcomes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from actors.machines.session.record import READS
from actors.ports import NO_DELTAS, Deltas, Done, Failed, Grant, Head, Record, Refused, SessionKey, StreamHead, ignore
from actors.protocol.table import Limits
from gateway.store.redis.clock import boottime
from gateway.store.redis.links import Command, Reply
from gateway.store.redis.scripts import SHA
from gateway.store.rules import FINISH_RESERVE, TOMBSTONE_TTL, YOUNG_TTL, Retention, fingerprint

Decode: TypeAlias = Callable[[list[Any]], Any]

DUE_PAGE = 100
"""Sessions whose end is due that are given at once."""

OVERHEAD = 512
"""Bytes that an operation counts in the queue beside its payload."""


@dataclass(slots=True)
class Operation:
    """One command on its way.

    `waits`: it is sent again while Redis is away, until its time is up. `optional`: but when Redis is known to be away
    it is refused at once, since there is a way to go on without. `hint`: not so while it may still be back in time; and
    half of the queue is not for it. `when_full`: it works when Redis is full, and does not wait behind what doesn't.
    `once`: it is not sent again if Redis may have executed it.
    `deadline` is set when it is queued, `tried` when Redis may have executed it.
    """

    key: SessionKey
    command: Command
    done: Done
    decode: Decode = field(default=lambda _: None)
    size: int = OVERHEAD
    waits: bool = True
    optional: bool = False
    when_full: bool = False
    hint: bool = False
    once: bool = False
    deadline: float = 0.0
    tried: bool = False

    def outcome(self, reply: Reply) -> Any:
        """What `done` gets for this reply."""
        self.tried = True
        if not isinstance(reply, list):
            return self.decode([]) if not isinstance(reply, Exception) else Failed(Refused.AWAY, str(reply))
        if reply[0] != b"OK":
            return refusal(reply)
        try:
            return self.decode(reply)
        except (KeyError, ValueError) as error:
            return Failed(Refused.GONE, f"unreadable record: {error!r}")


class Submits(Protocol):
    """Who executes operations, each of which ends with its outcome."""

    def submit(self, operation: Operation) -> None:
        """Those that are given to one primary are executed in their order."""


@dataclass(slots=True)
class Query(Operation):
    """A plain command whose whole reply is decoded."""

    def outcome(self, reply: Reply) -> Any:
        """See `Operation`."""
        return self.decode(reply) if isinstance(reply, list) else Failed(Refused.AWAY, str(reply))


def refusal(reply: list[Any]) -> Failed:
    """The reply of a function that did not do it: the reason, then a head or a detail."""
    more = reply[1] if len(reply) > 1 else b""
    reason = Refused[reply[0].decode()]
    return Failed(reason, head=more) if isinstance(more, int) else Failed(reason, more.decode())


def record_key(key: SessionKey) -> str:
    """The hash of a session's record."""
    return f"sd:{{{key}}}:s"


def log_key(key: SessionKey, stream: str) -> str:
    """The Redis Stream of one log."""
    return f"sd:{{{key}}}:l:{stream}"


def decode_record(now: bytes, flat: list[bytes]) -> Record:
    """A record from its hash; streams that have expired by `now` (ms) are left out."""
    own: dict[str, bytes] = {}
    parts: dict[str, dict[str, bytes]] = {"f": {}, "q": {}, "o": {}, "h": {}}
    for name, value in zip(flat[::2], flat[1::2], strict=True):
        prefix, colon, rest = name.decode().partition(":")
        if colon:
            parts.setdefault(prefix, {})[rest] = value
        else:
            own[prefix] = value
    heads = {name: head for name, text in parts["h"].items() if (head := decode_head(text, int(now))) is not None}
    owner = own["owner"].decode() or None
    rev, tries = int(own["rev"]), int(own["tries"])
    return Record(owner, int(own["epoch"]), rev, tries, parts["f"], parts["q"], parts["o"], heads, "older" in own)


def decode_head(text: bytes, now: int = 0) -> StreamHead | None:
    """A head (see `lua/prelude.lua`), or None if its stream has expired."""
    numbers, written, _ = text.partition(b" w")
    seq, _, _, till, floor, opener, _ = map(int, numbers.split())
    return None if till and till <= now else StreamHead(seq, till > 0, floor, bool(written), opener)


def _read_head(reply: list[Any]) -> Head | None:
    state, owner, text = reply
    head = decode_head(text) if text is not None and state != b"ended" else None
    if head is None:
        return None
    epoch = int(text.split(b" ", 3)[2])
    return Head(owner.decode() or None, epoch, head.seq, head.finished, head.floor)


class Operations:
    """Makes operations under the configured limits. `schema` is asked for the version in which records are written."""

    def __init__(self, limits: Limits, schema: Callable[[], int] = lambda: READS[0]) -> None:
        self._schema = schema
        keep = Retention.of(limits)
        self._ttl = ms(keep.session)
        self._step = limits.idle_ttl / 8
        self._finished = ms(keep.finished)
        self._written = ms(keep.written)
        self._caps = (keep.events, keep.bytes)

    def _eighth(self) -> int:
        # Compared, never ordered: another process' clock makes a write more, no write less.
        return int(boottime() / self._step)

    def create(self, key: SessionKey, owner: str, nonce: str, fields: Mapping[str, bytes], done: Done) -> Operation:
        """A new session → Grant."""
        pairs = _pairs("f:", fields)
        command = ("EVALSHA", SHA["create"], 1, record_key(key), owner, nonce, self._schema(), ms(YOUNG_TTL), *pairs)
        return Operation(key, command, done, lambda reply: Grant(owner, int(reply[1])), _size(fields), waits=False)

    def read(self, key: SessionKey, done: Done) -> Operation:
        """→ Record."""
        command = ("EVALSHA", SHA["read"], 1, record_key(key), READS[1])
        return Operation(key, command, done, _read, waits=False, when_full=True)

    def head(self, key: SessionKey, stream: str, done: Done) -> Operation:
        """→ Head or None."""
        command = ("HMGET", record_key(key), "state", "owner", f"h:{stream}")
        return Query(key, command, done, _read_head, waits=False, when_full=True)

    def claim(
        self, key: SessionKey, owner: str, expect: tuple[str | None, int], nonce: str, done: Done, *, lives: bool
    ) -> Operation:
        """→ (Grant, Record)."""

        def claimed(reply: list[Any]) -> tuple[Grant, Record]:
            return Grant(owner, int(reply[1])), decode_record(reply[2], reply[3])

        args = (owner, nonce, expect[0] or "", expect[1], READS[1], self._ttl, self._eighth(), int(not lives))
        return Operation(key, ("EVALSHA", SHA["claim"], 1, record_key(key), *args), done, claimed, waits=False)

    def open(
        self, key: SessionKey, grant: Grant, stream: str, requests: Mapping[str, bytes], first: bytes | None, done: Done
    ) -> Operation:
        """→ None."""
        purge = self._finished // 4
        check = fingerprint(requests, first)
        args = (self._ttl, self._eighth(), purge, *self._caps, check, int(first is not None), first or b"")
        command = ("EVALSHA", SHA["open"], 2, record_key(key), log_key(key, stream), *_by(grant), stream, *args)
        size = _size(requests) + len(first or b"")
        return Operation(key, (*command, *_pairs("q:", requests)), done, size=size, optional=True)

    def append(
        self,
        key: SessionKey,
        grant: Grant,
        stream: str,
        seq: int,
        data: Sequence[bytes],
        done: Done,
        *,
        finish: bool,
        deltas: Deltas,
    ) -> Operation:
        """→ None."""
        changes, size = _changes(deltas)
        keys = (2, record_key(key), log_key(key, stream), *_by(grant))
        range_ = (seq, seq + len(data) - 1, self._finished if finish else "")
        args = (stream, self._ttl, self._eighth(), *range_, *self._caps, FINISH_RESERVE, *data, *changes)
        command = ("EVALSHA", SHA["append"], *keys, *args)
        return Operation(key, command, done, size=OVERHEAD + size + sum(map(len, data)))

    def save(self, key: SessionKey, grant: Grant, rev: int, deltas: Deltas, done: Done) -> Operation:
        """→ None."""
        changes, size = _changes(deltas)
        args = (rev, self._ttl, self._eighth(), *changes)
        command = ("EVALSHA", SHA["save"], 1, record_key(key), *_by(grant), *args)
        return Operation(key, command, done, size=OVERHEAD + size)

    def touch(self, key: SessionKey, grant: Grant, done: Done) -> Operation:
        """→ None."""
        command = ("EVALSHA", SHA["touch"], 1, record_key(key), *_by(grant), self._ttl, self._eighth())
        return Operation(key, command, done)

    def written(self, key: SessionKey, grant: Grant, stream: str, done: Done) -> Operation:
        """→ None."""
        keys = (record_key(key), log_key(key, stream))
        return Operation(key, ("EVALSHA", SHA["written"], 2, *keys, *_by(grant), stream, self._written), done)

    def trim(self, key: SessionKey, grant: Grant, stream: str, seq: int, done: Done) -> Operation:
        """→ None."""
        keys = (record_key(key), log_key(key, stream))
        return Operation(key, ("EVALSHA", SHA["trim"], 2, *keys, *_by(grant), stream, seq), done, when_full=True)

    def drop(self, key: SessionKey, grant: Grant, stream: str, done: Done) -> Operation:
        """→ None."""
        keys = (record_key(key), log_key(key, stream))
        return Operation(key, ("EVALSHA", SHA["drop"], 2, *keys, *_by(grant), stream), done, when_full=True)

    def restore(self, key: SessionKey, grant: Grant, rev: int, record: Record, done: Done) -> Operation:
        """→ None."""
        values = Deltas(record.fields, record.requests, record.asked)
        (_, *pairs), size = _changes(values)
        heads = [
            part for name, head in record.streams.items() for part in (name, head.seq, int(head.finished), head.opener)
        ]
        args = (rev, self._schema(), self._ttl, self._eighth(), self._finished, len(record.streams), *heads, *pairs)
        command = ("EVALSHA", SHA["restore"], 1, record_key(key), *_by(grant), *args)
        return Operation(key, command, done, size=OVERHEAD + size)

    def mend(self, key: SessionKey, grant: Grant, stream: str, head: int, opener: int, done: Done) -> Operation:
        """→ None."""
        keys = (record_key(key), log_key(key, stream))
        return Operation(key, ("EVALSHA", SHA["mend"], 2, *keys, *_by(grant), stream, head, opener), done)

    def release(self, key: SessionKey, grant: Grant, done: Done) -> Operation:
        """→ None."""
        command = ("EVALSHA", SHA["release"], 1, record_key(key), *_by(grant), self._ttl, self._eighth())
        return Operation(key, command, done, when_full=True)

    def end(self, key: SessionKey, grant: Grant, reason: str, done: Done) -> Operation:
        """→ None."""
        command = ("EVALSHA", SHA["end"], 1, record_key(key), *_by(grant), reason, ms(TOMBSTONE_TTL))
        return Operation(key, command, done, when_full=True)

    def delete(self, key: SessionKey, grant: Grant, done: Done) -> Operation:
        """→ None."""
        command = ("EVALSHA", SHA["delete"], 1, record_key(key), *_by(grant))
        return Operation(key, command, done, when_full=True)


def due_at(key: SessionKey, time: float | None) -> Operation:
    """When a session ends that nobody has in memory → None."""
    part = due_key(int(key[0], 16))
    command: Command = ("ZADD", part, time, key) if time is not None else ("ZREM", part, key)
    return Operation(key, command, ignore, when_full=time is None)


def due(part: int, before: float, done: Done) -> Operation:
    """Whose end is before → list[SessionKey]."""
    command = ("EVALSHA", SHA["due"], 1, due_key(part), before, DUE_PAGE)
    return Operation(due_key(part), command, done, _keys, waits=False, when_full=True)


def due_key(part: int) -> str:
    """The sorted set of one part of the sessions that nobody has in memory, by their end (s, by the clock of Redis)."""
    return f"sd:c:{{c}}:due:{part}"


def _keys(reply: list[Any]) -> list[SessionKey]:
    return [key.decode() for key in reply[1]]


def _read(reply: list[Any]) -> Record:
    return decode_record(reply[1], reply[2])


def _by(grant: Grant) -> tuple[str, int]:
    return grant.owner, grant.epoch


def ms(seconds: float) -> int:
    """Milliseconds, as Redis counts; 0 would have no meaning there."""
    return max(1, round(seconds * 1000))


def _pairs(prefix: str, values: Mapping[str, bytes]) -> Iterable[str | bytes]:
    for name, value in values.items():
        yield prefix + name
        yield value


def _size(values: Mapping[str, bytes]) -> int:
    return OVERHEAD + sum(map(len, values)) + sum(map(len, values.values()))


def _changes(deltas: Deltas) -> tuple[tuple[int | str | bytes, ...], int]:
    """The arguments of a change: how many pairs, the pairs, names to delete; and the bytes they hold."""
    if deltas is NO_DELTAS:
        return (0,), 0
    pairs: list[str | bytes] = []
    gone: list[str] = []
    size = 0
    for prefix, changes in (("f:", deltas.fields), ("q:", deltas.requests), ("o:", deltas.asked)):
        for name, value in changes.items():
            if value is None:
                gone.append(prefix + name)
            else:
                pairs += (prefix + name, value)
                size += len(value)
    return (len(pairs) // 2, *pairs, *gone), size
