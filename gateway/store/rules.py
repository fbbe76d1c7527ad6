"""What both stores have in common: lifetimes, the reserve, and what a replay may show."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b

from msgspec import Struct

from actors.ports import Failed, LogEntry, Refused, Replay, StreamHead
from actors.protocol.table import Limits

YOUNG_TTL = 60.0
"""Seconds that a session lives which was never saved."""

TOMBSTONE_TTL = 600.0
"""Seconds for which an ended session refuses late writers as ENDED."""

IDLE_GRACE = 600.0
"""Seconds that a record outlives its session's idle time, so that whoever sweeps finds it."""

TWICE = 0.5
"""Seconds between the two readings that find an incarnation dead."""

INBOX = 4096
"""The most letters that wait in an inbox."""

FINISH_RESERVE = 16 * 1024
"""Bytes up to which a finishing append is let through although the caps are reached (an answer always fits)."""


class Retention(Struct, frozen=True):
    """Lifetimes in seconds and caps per session, as the store applies them."""

    session: float
    finished: float
    written: float
    events: int
    bytes: int

    @classmethod
    def of(cls, limits: Limits) -> "Retention":
        """The retention that the configured limits ask for."""
        return cls(
            session=limits.idle_ttl + IDLE_GRACE,
            finished=limits.replay_ttl,
            written=limits.replay_ttl_written,
            events=limits.log_events,
            bytes=limits.log_bytes,
        )


def fingerprint(requests: Mapping[str, bytes], first: bytes | None) -> int:
    """Tells a repeated `open` from another one of the same name. Of long values it looks at length and beginning."""
    parts = [(b"", first)] if first is not None else []
    parts += [(key.encode(), requests[key]) for key in sorted(requests)]
    text = b"".join(b"%d %b%d %b" % (len(key), key, len(value), value[:256]) for key, value in parts)
    return int.from_bytes(blake2b(text, digest_size=6).digest())


def next_epoch(stored: int, now: float) -> int:
    """Above every epoch of the record, and above those of a record that was lost, by the clock."""
    return max(stored + 1, int(now * 1000))


def replay_after(head: StreamHead, after: tuple[int, int], known: bool, entries: Sequence[LogEntry]) -> Replay | Failed:
    """Checks that `entries` go on where the cursor (epoch, seq) stands, so that no hole is passed over in silence.

    `known` says whether the cursor is an entry of the log; 0 is the place before the first one, of the stream that was
    opened at that epoch: another one may have got the name after a loss, and what is older than that one is none of its
    events. Of an event that was trimmed or lost nobody can say more, so something may be lost after the last of them
    too.
    """
    after_epoch, after_seq = after
    named = head.opener and after_epoch
    if named and (after_epoch < head.opener or (after_seq == 0 and after_epoch != head.opener)):
        return Failed(Refused.GONE, "the stream is another one by the same name", head.seq)
    if after_seq > head.seq or not (known or after_seq == 0 or after_seq <= head.floor):
        return Failed(Refused.GONE, "the cursor is not an event of this stream", head.seq)
    resumed = entries[0].seq if entries else head.seq + 1
    lost = None
    if resumed != after_seq + 1 or (after_seq and not known):
        if resumed - 1 > head.floor:
            return Failed(Refused.SEQ, f"events {after_seq + 1} to {resumed - 1} are missing", head.seq)
        lost = (after_seq, resumed)
    return Replay(_contiguous(entries), max(head.seq, entries[-1].seq if entries else 0), head.finished, lost)


def _contiguous(entries: Sequence[LogEntry]) -> Sequence[LogEntry]:
    """The entries up to the first hole; the next replay begins there and reports it."""
    for index, entry in enumerate(entries):
        if entry.seq != entries[0].seq + index:
            return entries[:index]
    return entries
