"""Brings a stream to a connection from a cursor on: first what is in the log, then live.

The rule that makes it right whatever is lost or late on the way: event *n + 1* is written after event *n*, else the log
is read.
"""

from actors.ports import Failed, Refused, Replay, SessionKey, Store
from actors.protocol import sse
from actors.streams.connection import Connection

PAGE = 256
"""Events read at once; more would hold the reader's memory for a slow client."""


class Follower:
    """An `EventSource`. `begin` must be awaited first: it says whether the cursor is one that can be followed."""

    def __init__(
        self,
        store: Store,
        key: SessionKey,
        stream: str,
        epoch: int,
        seq: int,
        connection: Connection | None,
        head: int,
    ) -> None:
        self._store = store
        self._key = key
        self._stream = stream
        self._epoch = epoch
        self._seq = seq
        self._connection = connection
        self._head = head
        self._page: bytes = b""
        self._handed = 0
        self._more = True
        self.lost: tuple[int, int] | None = None
        self.replayed = 0
        """Events that came from the log so far."""

    async def begin(self) -> Failed | None:
        """Reads the first page; a failure means that nothing can be delivered."""
        return await self._read()

    async def receive(self) -> bytes | None:
        """The next events."""
        if self._connection is not None:
            self._connection.wrote(self._handed)
        while True:
            if self._page:
                page, self._page = self._page, b""
                self._handed = self._seq
                return page
            if not self._more:
                return await self._connection.receive() if self._connection is not None else None
            failed = await self._read()
            if failed is not None:
                return None

    async def _read(self) -> Failed | None:
        outcome = await self._store.replay(self._key, self._stream, self._epoch, self._seq, PAGE)
        if isinstance(outcome, Failed):
            self.close()
            return outcome
        self._take(outcome)
        if self._connection is None and not self._more and not outcome.finished:
            # Nobody will go on with it: its log was lost to the session while it ran.
            return Failed(Refused.SEQ, "the stream was lost before its end")
        return None

    def _take(self, replay: Replay) -> None:
        """Up to the head known at the attach; what is later comes live, and is not written twice."""
        self.lost = self.lost or replay.lost
        entries = replay.entries
        if self._connection is not None:
            entries = [e for e in entries if e.seq <= self._head]
        for entry in entries:
            self._page += sse.encode_event(entry.data, f"{self._stream}:{entry.epoch}-{entry.seq}")
            self._epoch, self._seq = entry.epoch, entry.seq
        self.replayed += len(entries)
        target = self._head if self._connection is not None else replay.head
        self._more = bool(entries) and self._seq < target

    def close(self) -> None:
        """The reader is gone."""
        if self._connection is not None:
            self._connection.close()
