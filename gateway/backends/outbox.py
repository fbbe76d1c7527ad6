"""What waits to be written to one backend, bounded in messages and bytes."""

import trio
from msgspec import Struct

from actors.ports import NO_RIGHTS, Headers, Rights
from actors.protocol.messages import RequestId


class Outgoing(Struct, frozen=True):
    """One message on its way out. `id` for requests, `tag` where the acceptance is waited for; with `after` a request
    was sent before, and what is wanted is the rest of its answer, after this event."""

    frame: bytes
    id: RequestId | None = None
    tag: int | None = None
    after: str | None = None
    headers: Headers = ()
    """Those of this message alone."""
    rights: Rights = NO_RIGHTS
    """With which it is asked."""


class Outbox:
    """A queue that refuses what does not fit; for one writer."""

    __slots__ = ("_bytes", "_closed", "_limit_bytes", "_limit_messages", "_lot", "_queue")

    def __init__(self, messages: int, size: int) -> None:
        self._limit_messages = messages
        self._limit_bytes = size
        self._queue: list[Outgoing] = []  # which weighs nothing while it is empty, unlike a deque
        self._bytes = 0
        self._closed = False
        self._lot: trio.lowlevel.ParkingLot | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, item: Outgoing) -> bool:
        """False if it was refused. A single message larger than the bound is let through an empty outbox."""
        size = self._bytes + len(item.frame)
        if self._closed or len(self._queue) >= self._limit_messages or (self._queue and size > self._limit_bytes):
            return False
        self._queue.append(item)
        self._bytes = size
        if self._lot is not None:
            self._lot.unpark()
        return True

    def withdraw(self, id: RequestId) -> bool:
        """Takes a request back that is not being written yet."""
        for item in self._queue:
            if item.id == id and type(item.id) is type(id):
                self._queue.remove(item)
                self._bytes -= len(item.frame)
                return True
        return False

    def close(self) -> None:
        """Nothing more is put in; `take` ends once the rest was taken."""
        self._closed = True
        if self._lot is not None:
            self._lot.unpark_all()

    def drop(self) -> list[Outgoing]:
        """Empties it and hands back what was not taken."""
        left, self._queue = self._queue, []
        self._bytes = 0
        return left

    def clear(self) -> list[Outgoing]:
        """Closes it and hands back what was not taken."""
        self.close()
        return self.drop()

    async def take(self, at_most: int) -> list[Outgoing]:
        """The next messages in order, of some `at_most` bytes together; empty when closed and emptied."""
        while not self._queue and not self._closed:
            self._lot = self._lot or trio.lowlevel.ParkingLot()
            await self._lot.park()
        batch: list[Outgoing] = []
        while self._queue and at_most > 0:
            item = self._queue.pop(0)
            self._bytes -= len(item.frame)
            at_most -= len(item.frame)
            batch.append(item)
        return batch
