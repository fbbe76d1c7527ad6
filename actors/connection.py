"""One client connection that carries one SSE stream: a bounded outbox between the stream's owner and its writer.

The owner puts frames in and releases them when their append is acknowledged; the one writer takes what is released. An
outbox that is full means a *slow consumer*: the connection is cut, and the client resumes from the log.
"""

from collections import deque
from collections.abc import Callable

import trio


class Connection:
    """An `EventSource`. The owner's methods never wait."""

    __slots__ = ("_bytes", "_ended", "_frames", "_on_close", "_released", "_waiter", "closed", "id", "limits", "stream")

    def __init__(
        self, id: int, stream: str, limits: tuple[int, int], on_close: Callable[["Connection", bool], object]
    ) -> None:
        self.id = id
        self.stream = stream
        self.limits = limits
        self.closed = False
        self._frames: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._released = 0
        self._ended = False
        self._on_close = on_close
        self._waiter: trio.lowlevel.Task | None = None

    def __repr__(self) -> str:
        state = "closed" if self.closed else "ended" if self._ended else "open"
        return f"<Connection {self.id} of {self.stream}: {state}, {len(self._frames)} frames>"

    # The owner's side

    def put(self, seq: int, frame: bytes) -> bool:
        """Adds a frame, to be written once `release` reaches its number; number 0 may be written at once. False:
        full."""
        if self.closed or self._ended:
            return True
        events, size = self.limits
        if self._frames and (len(self._frames) >= events or self._bytes + len(frame) > size):
            return False
        self._frames.append((seq, frame))
        self._bytes += len(frame)
        if seq <= self._released:
            self._wake()
        return True

    def release(self, seq: int) -> None:
        """Everything up to this number is in the log."""
        if seq > self._released:
            self._released = seq
            self._wake()

    def end(self) -> None:
        """Nothing more comes; what is in goes out first."""
        self._ended = True
        self._wake()

    def cut(self, last_words: bytes = b"") -> None:
        """Ends now: what was not written is left to the log. A stream that has ended is not cut short."""
        if self._ended:
            return
        self._frames.clear()
        self._bytes = 0
        if last_words:
            self._frames.append((0, last_words))
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None:
            task, self._waiter = self._waiter, None
            trio.lowlevel.reschedule(task)

    # The writer's side

    async def receive(self) -> bytes | None:
        """All frames that may be written, joined; None at the end."""
        while True:
            ready = self._take()
            if ready:
                return ready
            if self.closed or (self._ended and not self._frames):
                return None
            self._waiter = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._waiter = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _take(self) -> bytes:
        frames = self._frames
        taken = []
        while frames and frames[0][0] <= self._released:
            taken.append(frames.popleft()[1])
        ready = b"".join(taken)
        self._bytes -= len(ready)
        return ready

    def close(self) -> None:
        """The writer is done with it; the owner is told whether everything was written."""
        if self.closed:
            return
        self.closed = True
        self._wake()
        whole = self._ended and not self._frames
        self._on_close(self, whole)
