"""Replays, on a thread and a connection of their own: who waits for one may be cancelled, the command is not."""

import time

import trio
from redis.exceptions import TimeoutError

from actors.ports import Failed, LogEntry, Refused, Replay, SessionKey
from gateway.store.redis.errors import LinkDown
from gateway.store.redis.links import Command, Link, Reply, lacks_function
from gateway.store.redis.operations import decode_head, log_key, record_key
from gateway.store.rules import replay_after

AWAY_PAUSE = 0.5
"""Seconds after a broken connection in which replays fail at once: a crowd must not stand in line for timeouts."""


WITHIN = 10.0
"""Seconds for a replay, its place in the line included; then whoever waits comes again."""


class Reader:
    """One replay at a time; the others wait in line."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._line = trio.CapacityLimiter(1)
        self._away_until = 0.0

    async def replay(
        self, key: SessionKey, stream: str, after_epoch: int, after_seq: int, limit: int
    ) -> Replay | Failed:
        """See `Store.replay`. AWAY when Redis can't be asked, or is too slow for all who ask."""
        # An abandoned thread keeps its place in the line until its command is answered, so the connection has one user.
        with trio.move_on_after(WITHIN):
            return await trio.to_thread.run_sync(
                self._replay, key, stream, (after_epoch, after_seq), limit, abandon_on_cancel=True, limiter=self._line
            )
        return Failed(Refused.AWAY, "redis is slow")

    def renew(self) -> None:
        """See `Link`."""
        self._link.renew()

    def close(self) -> None:
        """Closes the connection, once no thread uses it."""
        if not self._line.borrowed_tokens:
            self._link.close()

    def _replay(self, key: SessionKey, stream: str, after: tuple[int, int], limit: int) -> Replay | Failed:
        outcome = self._asked(key, stream, after, limit)
        if isinstance(outcome, Failed) and outcome.head > 0:
            # What was trimmed since the head was read looks like a hole that nothing explains.
            outcome = self._asked(key, stream, after, limit)
        return outcome

    def _asked(self, key: SessionKey, stream: str, after: tuple[int, int], limit: int) -> Replay | Failed:
        if time.monotonic() < self._away_until:
            return Failed(Refused.AWAY, "redis is away")
        try:
            replies = self._exchange(_commands(key, stream, after, limit))
        except LinkDown as error:
            self._away_until = time.monotonic() + AWAY_PAUSE
            return Failed(Refused.AWAY, str(error))
        for reply in replies:
            if isinstance(reply, Exception):
                return Failed(Refused.AWAY, str(reply))
        return _replay_of(replies, after)

    def _exchange(self, commands: list[Command]) -> list[Reply]:
        """Once more where the connection broke at once: it may be one to a Redis that has been restarted since; and
        where the keys have moved."""
        try:
            replies = self._link.exchange(commands)
        except LinkDown as error:
            if isinstance(error.__cause__, TimeoutError):
                raise
            replies = self._link.exchange(commands)
        if any(lacks_function(reply) for reply in replies):
            self._link.prepare()
            replies = self._link.exchange(commands)
        return replies


def _commands(key: SessionKey, stream: str, after: tuple[int, int], limit: int) -> list[Command]:
    # The head is read first: events that come in between make the log longer than the head, never shorter.
    cursor = f"{after[0]}-{after[1]}"
    log = log_key(key, stream)
    return [
        ("HMGET", record_key(key), "state", f"h:{stream}"),
        ("XRANGE", log, cursor, cursor),
        ("XRANGE", log, f"({cursor}" if after[1] else "-", "+", "COUNT", limit),
        ("EXISTS", log),
    ]


def _replay_of(replies: list[Reply], after: tuple[int, int]) -> Replay | Failed:
    (state, text), cursor, rows, kept = replies
    if state is None or state == b"ended":
        return Failed(Refused.GONE)
    head = decode_head(text) if text is not None else None
    entries = [_entry(*row) for row in rows]
    if head is None or (head.finished and head.seq > head.floor and not kept):
        return Failed(Refused.GONE, "no such stream")
    return replay_after(head, after, bool(cursor), entries)


def _entry(id: bytes, fields: list[bytes]) -> LogEntry:
    epoch, _, seq = id.partition(b"-")
    return LogEntry(int(epoch), int(seq), fields[1])
