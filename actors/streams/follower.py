"""Brings a stream to a connection from a cursor on: first what is in the log, then live.

The rule that makes it right whatever is lost or late on the way: event *n + 1* is written after event *n*, else the log
is read.
"""

import re
from typing import Any

from msgspec import Raw

from actors.ports import Failed, Refused, Replay, SessionKey, Store
from actors.protocol import codec, payload, sse
from actors.protocol.errors import Malformed
from actors.protocol.messages import Error, RequestId, Result
from actors.streams.connection import Connection

PAGE = 256
"""Events read at once; more would hold the reader's memory for a slow client."""

_MESSAGE = re.compile(rb"^data: (\{.*)$", re.MULTILINE)
"""A message in an event of ours, which is one line."""


class Follower:
    """An `EventSource`. `begin` must be awaited first: it says whether the cursor is one that can be followed.

    A stream is also followed from a cursor that was trimmed, from what is left. On that of a POST, for no other
    connection could bring its answers, they say what is missing; on a live GET stream the session says what may have
    changed.
    """

    def __init__(
        self,
        store: Store,
        key: SessionKey,
        stream: str,
        epoch: int,
        seq: int,
        connection: Connection | None,
        head: int,
        marks: tuple[str, ...] = (),
    ) -> None:
        self._store = store
        self._key = key
        self.stream = stream
        self.connection = connection
        """What comes after `head`; None: nothing does."""
        self.head = head
        """The last event that is to be read from the log, where it goes on live."""
        self.marks = marks
        """As in `Streaming`."""
        self._epoch = epoch
        self._seq = seq
        self._page: bytes = b""
        self._handed = 0
        self._more = True
        self.gap: dict[str, Any] | None = None
        """What answers say is missing."""
        self.replayed = 0
        """Events that came from the log so far."""

    @property
    def lost(self) -> bool:
        """See `Connection`."""
        return self.connection is not None and self.connection.lost

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and number of the last event that was handed out, or is not to be."""
        live = self.connection.position if self.connection is not None else None
        return live or (self._epoch, self._seq)

    async def begin(self) -> Failed | None:
        """Reads the first page; a failure means that nothing can be delivered."""
        cursor = self._seq
        failed = await self._read()
        if failed is not None:
            self.close()
        elif self.connection is not None:
            self.connection.written = cursor  # its client has it
        return failed

    async def receive(self) -> bytes | None:
        """The next events of the stream."""
        chunk = await self._next()
        gap = self.gap
        return chunk if chunk is None or gap is None else with_gap(chunk, gap)

    async def _next(self) -> bytes | None:
        if self.connection is not None and self._handed > self.connection.written:
            self.connection.written = self._handed
        while True:
            if self._page:
                page, self._page = self._page, b""
                self._handed = self._seq
                return page
            if not self._more:
                return await self.connection.receive() if self.connection is not None else None
            failed = await self._read()
            if failed is not None:
                self.close()
                return None

    async def _read(self) -> Failed | None:
        outcome = await self._store.replay(self._key, self.stream, self._epoch, self._seq, PAGE)
        if isinstance(outcome, Failed):
            return outcome
        if self.connection is None and outcome.lost is not None and not self._answers:
            return Failed(Refused.GONE, "events were lost, and nobody is left to say so", outcome.head)
        self._take(outcome)
        if self.connection is None and not self._more and not outcome.finished:
            # Nobody will go on with it: its log was lost to the session while it ran.
            return Failed(Refused.SEQ, "the stream was lost before its end", outcome.head)
        return None

    def _take(self, replay: Replay) -> None:
        """Up to the head known at the attach; what is later comes live, and is not written twice."""
        self._missing(replay.lost, "trimmed")
        entries = replay.entries
        if self.connection is not None:
            entries = [e for e in entries if e.seq <= self.head]
        for entry in entries:
            self._page += sse.encode_event(entry.data, f"{self.stream}:{entry.epoch}-{entry.seq}")
            self._epoch, self._seq = entry.epoch, entry.seq
        self.replayed += len(entries)
        target = self.head if self.connection is not None else replay.head
        self._more = bool(entries) and self._seq < target
        if self.connection is not None and not entries and self._seq < target:
            # The store has lost what it had acknowledged to the stream's owner, who has not found that out yet.
            self._missing((self._seq, target + 1), "lost")
            self._seq = target

    def _missing(self, hole: tuple[int, int] | None, reason: str) -> None:
        if hole is not None and self._answers:
            self.gap = self.gap or {"after": hole[0], "resumed": hole[1], "reason": reason}

    @property
    def _answers(self) -> bool:
        """Whether it brings answers, which can say what is missing."""
        return self.stream.startswith("p")

    def close(self) -> None:
        """Stops: the reader is gone."""
        if self.connection is not None:
            self.connection.close()


def with_gap(chunk: bytes, gap: dict[str, Any]) -> bytes:
    """Events of ours, in which answers say what is missing before them."""
    return _MESSAGE.sub(lambda found: b"data: " + _with_gap(found[1], gap), chunk)


def answered_in(chunk: bytes) -> list[RequestId]:
    """The requests to which events of ours bring the outcome."""
    answered = []
    for found in _MESSAGE.finditer(chunk):
        try:
            message = codec.decode_message(found[1])
        except Malformed:
            continue
        if isinstance(message, Result | Error) and message.id is not None:
            answered.append(message.id)
    return answered


def _with_gap(data: bytes, gap: dict[str, Any]) -> bytes:
    """An answer that says which events are missing before it; anything else as it is."""
    try:
        message = codec.decode_message(data)
        if isinstance(message, Result):
            meta = payload.meta_of(message.result)
            told = payload.dumps({**(payload.members(meta) if meta else {}), "stagedoor/gap": gap})
            return codec.encode(Result(message.id, payload.replace_members(message.result, {"_meta": told})))
        if isinstance(message, Error):
            more = payload.members(message.error).get("data", Raw(b"{}"))
            if payload.is_object(more):
                told = payload.replace_members(more, {"gap": payload.dumps(gap)})
                return codec.encode(Error(message.id, payload.replace_members(message.error, {"data": told})))
    except Malformed:
        pass  # too many members to look into: the answer is worth more than the note
    return data
