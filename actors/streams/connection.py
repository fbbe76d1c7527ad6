"""One client connection that carries one SSE stream: a bounded outbox between the stream's owner and its writer.

The owner puts frames in and releases them when their append is acknowledged; the one writer takes what is released. An
outbox that is full means a *slow consumer*: the connection is cut, and the client resumes from the log.
"""

from collections import deque
from collections.abc import Callable

import trio


class Connection:
    """An `EventSource`. The owner's methods never wait."""

    __slots__ = (
        "_bytes", "_ended", "_frames", "_handed", "_left", "_on_close", "_released", "_waiter", "closed", "id",
        "limits", "stream", "written",
    )  # fmt: skip

    def __init__(
        self, id: int, stream: str, limits: tuple[int, int], on_close: Callable[["Connection", bool], object]
    ) -> None:
        self.id = id
        self.stream = stream
        self.limits = limits
        self.closed = False
        self.written = 0
        """The writer came back for more after everything up to this number."""
        self._frames: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._released = 0
        self._handed = 0
        self._ended = False
        self._left = False
        self._on_close = on_close
        self._waiter: trio.lowlevel.Task | None = None

    def __repr__(self) -> str:
        state = "closed" if self.closed else "ended" if self._ended else "open"
        return f"<Connection {self.id} of {self.stream}: {state}, {len(self._frames)} frames>"

    # The owner's side

    def put(self, seq: int, frame: bytes, *, urgent: bool = False) -> bool:
        """Adds a frame, to be written once `release` reaches its number; number 0 may be written at once. False:
        full, which only what is urgent overcomes."""
        if self.closed or self._ended:
            return True
        events, size = self.limits
        if not urgent and self._frames and (len(self._frames) >= events or self._bytes + len(frame) > size):
            return False
        self._frames.append((seq, frame))
        self._bytes += len(frame)
        if seq <= self._released:
            self._wake()
        return True

    @property
    def numbered(self) -> bool:
        """Whether its client has an event id, or gets one for sure: it can come back."""
        return self._released > 0

    def release(self, seq: int) -> None:
        """Everything up to this number is in the log."""
        if seq > self._released:
            self._released = seq
            self._wake()

    def retract(self) -> None:
        """Takes back what was not released: it has not been seen, and comes again under another number, or none. Where
        nothing was, a connection that was left is as new."""
        self._keep(lambda seq: seq <= self._released)
        if self._left and not self._released:
            self._left = self._ended = False

    def end(self) -> None:
        """Nothing more comes; what is in goes out first."""
        self._ended = True
        self._wake()

    def leave(self, words: bytes = b"", hint: bytes = b"") -> None:
        """Ends, and the rest is left to the log. A client that has no id yet gets one, as soon as there is one, and is
        given the hint; if none is under way, it can't come back, and gets these last words."""
        if self._ended:
            return
        released = [frame for frame in self._frames if frame[0] <= self._released]
        kept = released or ([] if self._released else [*self._frames][:1])
        numbered = self._released or any(seq for seq, _ in kept)
        self._left = True
        last = hint if numbered else words
        self._finish([*kept, *([(0, last)] if last else [])])

    def fail(self, words: bytes) -> None:
        """The log is lost: nothing but what was released goes out, and to a client without an id these words."""
        if self._ended and not self._frames:
            return
        kept = [frame for frame in self._frames if frame[0] <= self._released]
        self._finish([*kept, *([] if self._released or not words else [(0, words)])])

    def cut(self, last_words: bytes = b"") -> None:
        """Ends now: what was not written is left to the log. A stream that has ended is not cut short."""
        if not self._ended:
            self._finish([(0, last_words)] if last_words else [])

    def _finish(self, frames: list[tuple[int, bytes]]) -> None:
        self._frames = deque(frames)
        self._bytes = sum(len(frame) for _, frame in frames)
        self._ended = True
        self._wake()

    def _keep(self, wanted: Callable[[int], bool]) -> None:
        self._frames = deque(frame for frame in self._frames if wanted(frame[0]))
        self._bytes = sum(len(frame) for _, frame in self._frames)

    def _wake(self) -> None:
        if self._waiter is not None:
            task, self._waiter = self._waiter, None
            trio.lowlevel.reschedule(task)

    # The writer's side

    async def receive(self) -> bytes | None:
        """All frames that may be written, joined; None at the end."""
        self.wrote(self._handed)
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

    def wrote(self, seq: int) -> None:
        """Everything up to this number has gone out."""
        self.written = max(self.written, seq)

    def _take(self) -> bytes:
        frames = self._frames
        taken = []
        while frames and frames[0][0] <= self._released:
            seq, frame = frames.popleft()
            self._handed = max(self._handed, seq)
            taken.append(frame)
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
