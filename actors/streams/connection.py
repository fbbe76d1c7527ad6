"""One client connection that carries one SSE stream: a bounded outbox between the stream's owner and its writer.

The owner puts in what may be written; the one reader takes it: the writer of the client's connection, which waits for
it, or whoever mails it to the process where that is, which is called. An outbox that is full means a *slow consumer*:
the connection ends, and the client resumes from the log.
"""

from collections.abc import Callable
from typing import NamedTuple

import trio


class Taken(NamedTuple):
    """What was in an outbox: the events `first` to `last` by their numbers in the log, the last one of this epoch, and
    what has no number (`first` is 0: nothing has one, and `last` was the last one before). `ended`: nothing comes after
    it; `finished`: for the stream has its last event."""

    epoch: int
    first: int
    last: int
    data: bytes
    ended: bool = False
    finished: bool = False


class Connection:
    """An `EventSource`. The owner's methods never wait. `after`: the client comes back, with all up to this number."""

    __slots__ = (
        "_bytes", "_ended", "_epoch", "_finished", "_first", "_frames", "_handed", "_last", "_on_close", "_on_ready",
        "_waiter", "closed", "elsewhere", "id", "limits", "lost", "numbered", "opener", "reader", "recorded", "stream",
        "written",
    )  # fmt: skip

    def __init__(
        self,
        id: int,
        stream: str,
        limits: tuple[int, int],
        on_close: Callable[["Connection", bool], object],
        after: int | None = None,
    ) -> None:
        self.id = id
        self.stream = stream
        self.limits = limits
        self.closed = False
        self.numbered = after is not None
        """Its client has an event id, or gets one for sure: it can come back."""
        self.elsewhere = ""
        """The other process that has its reader, which goes on there without this one; none: it is here."""
        self.recorded = True
        """Its stream is in the log."""
        self.reader = 0
        """Which of its client's connections it serves, by a number that every owner is told; 0: that of the POST."""
        self.opener = 0
        """The epoch at which its stream was opened, if that was for this connection."""
        self.written = 0
        """The writer came back for more after everything up to this number."""
        self.lost = False
        """It has ended because its owner is no more, or no more the owner: the stream goes on elsewhere."""
        self._frames: list[bytes] = []
        self._bytes = 0
        self._first = 0
        self._last = after or 0
        self._epoch = 0
        self._handed = 0
        self._ended = False
        self._finished = False
        self._on_close = on_close
        self._on_ready: Callable[[], object] | None = None
        self._waiter: trio.lowlevel.Task | None = None

    def __repr__(self) -> str:
        state = "closed" if self.closed else "ended" if self._ended else "open"
        return f"<Connection {self.id} of {self.stream}: {state}, {len(self._frames)} frames>"

    # The owner's side

    def put(self, seq: int, frame: bytes, *, epoch: int = 0, urgent: bool = False, last: bool = False) -> bool:
        """Adds an event by its epoch and number in the log; 0: it has none. After the `last` one it ends. False: full,
        which only what is urgent overcomes."""
        if self.closed or self._ended:
            return True
        if 0 < seq <= self._last:
            if last:
                self.finish()
            return True
        events, size = self.limits
        if not urgent and self._frames and (len(self._frames) >= events or self._bytes + len(frame) > size):
            return False
        self._frames.append(frame)
        self._bytes += len(frame)
        if seq:
            self._first, self._last, self._epoch = self._first or seq, seq, epoch
            self.numbered = True
        self._ended = self._finished = last
        self._wake()
        return True

    def finish(self) -> None:
        """The stream has had its last event."""
        if not self._ended:
            self._finished = True
            self.end()

    def end(self, words: bytes = b"") -> None:
        """Nothing more comes but these words; what is in goes out first."""
        if not self._ended:
            if words:
                self._frames.append(words)
                self._bytes += len(words)
            self._ended = True
            self._wake()

    def cut(self, words: bytes = b"") -> None:
        """Ends now, with these words: what was not written is left to the log. A stream that has ended is not cut
        short."""
        if not self._ended:
            self._frames.clear()
            self._bytes = self._first = 0
            self.end(words)

    def lose(self) -> None:
        """Its owner is no more the owner: what is in goes out, and whoever holds it follows the next one."""
        if not self._ended:
            self.lost = True
            self.end()

    def _wake(self) -> None:
        if self._waiter is not None:
            task, self._waiter = self._waiter, None
            trio.lowlevel.reschedule(task)
        elif self._on_ready is not None:
            self._on_ready()

    # The reader's side

    @property
    def position(self) -> tuple[int, int] | None:
        """Epoch and number of the last event that was handed out; None if none was."""
        return (self._epoch, self._handed) if self._handed else None

    def listen(self, on_ready: Callable[[], object]) -> None:
        """For a reader that does not wait: called whenever something is added, or it ends; at once if that was. It may
        run inside anybody's turn."""
        self._on_ready = on_ready
        if self._frames or self._ended or self.closed:
            on_ready()

    def rests(self, on_ready: Callable[[], object]) -> bool:
        """For a reader that came back for more: whether nothing is there, and this is called when something is."""
        self.written = max(self.written, self._handed)
        if self._frames or self._ended or self.closed:
            return False
        self._on_ready = on_ready
        return True

    def take(self) -> Taken:
        """All that is there, at once. (What was written of it the reader says by `written`.)"""
        first = self._first
        return Taken(self._epoch, first, self._last, self._take(), self._ended, self._finished)

    async def receive(self) -> bytes | None:
        """All that is there, joined; None at the end."""
        self.written = max(self.written, self._handed)
        while True:
            if self._frames:
                return self._take()
            if self.closed or self._ended:
                return None
            self._waiter = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._waiter = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _take(self) -> bytes:
        ready = b"".join(self._frames)
        if self._first:
            self._handed = self._last
        self._frames.clear()
        self._bytes = self._first = 0
        return ready

    def close(self, *, whole: bool = True) -> None:
        """The reader is done with it; the owner is told whether everything was written. Not `whole`: what was taken may
        not have been."""
        if self.closed:
            return
        self.closed = True
        self._wake()
        self._on_close(self, whole and self._ended and not self._frames)
