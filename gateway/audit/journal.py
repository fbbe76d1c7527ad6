"""Writes the audit trail: a bounded queue, a thread that makes lines and appends them to the file, and one for each
copy, so that no collector can hold up the file, nor the file the loop.

Where the file can't be written the queue fills up. Then the choice of the configuration holds: `block` lets nobody do
what would not be written down (the edge waits for room, and refuses), `drop` goes on and counts. What was dropped is
said in the trail itself, as soon as that is possible: `audit.lost`.
"""

import hashlib
import hmac
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import trio

from actors.protocol.trail import RequestLine
from actors.runtime.boundary import Boundary, thread_boundary
from actors.runtime.exits import Exit
from gateway.audit.arguments import Told
from gateway.audit.chain import END, HEAD, LOST, START, Chain, Values
from gateway.audit.sinks import BusyError, Line, Sink

QUEUE: Final = 8192
"""Lines that wait; from here on nobody begins anything that would be written down."""
SPARE: Final = 8 * QUEUE
"""Lines of what had begun before. Beyond, they are lost, and counted."""
GATHER: Final = 0.2
"""Seconds between two batches; the first line after a pause is written at once. A batch costs as much as ten lines or
more: the thread is woken, takes the interpreter from the loop and gives it back, finds nothing of what it needs in the
CPU's caches, and has the file looked for and written to."""
BATCH: Final = 512
"""Lines of a batch; where so many wait there is no more to gather."""
BATCH_BYTES: Final = 1 << 20
"""Bytes that a copy gets at once."""
COPY_BYTES: Final = 32 << 20
"""Bytes that wait for a copy."""
OFTEN: Final = 10.0
"""Seconds in which lines that say the same are counted."""
OFTEN_KINDS: Final = 256
"""Such lines that are told apart by what any client can choose; then all further ones are one without it."""
CHOSEN: Final = frozenset({"ip", "item", "session", "endpoint"})
"""That."""
HEAD_EVERY: Final = 60.0
"""Seconds between two signatures."""
AGAIN: Final = 1.0
"""Seconds until a sink that failed is tried again."""
AGAIN_MAX: Final = 300.0
"""Seconds for which a collector that wants it is left alone at the longest."""
LOOK: Final = 0.02
"""Seconds between two looks for room."""

_Waiting: TypeAlias = tuple[str, float, Values | Callable[[], Values]]
"""A line: its event, when that was, and what it says, or what puts that together."""
Counted = Callable[[str, int], None]
"""How many lines a sink did not get."""


class _Copy:
    """A sink that gets what the file got, by a thread of its own; what it can't take in time it does not get."""

    def __init__(self, sink: Sink, dropped: Counted) -> None:
        self._sink = sink
        self._dropped = dropped
        self._lines: deque[Line] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._ending = False
        self._thread = threading.Thread(
            target=thread_boundary, args=(self._run,), name=f"audit-{sink.name}", daemon=True
        )
        self._thread.start()

    def put(self, lines: Sequence[Line]) -> None:
        dropped = 0
        with self._changed:
            for line in lines:
                if len(self._lines) >= QUEUE or self._bytes >= COPY_BYTES:
                    dropped += 1
                else:
                    self._lines.append(line)
                    self._bytes += len(line.raw)
            self._changed.notify()
        if dropped:
            self._dropped(self._sink.name, dropped)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._lines and not self._ending:
                    self._changed.wait()
                batch = self._batch()
                ending = self._ending
            if not batch:
                break
            try:
                refused = self._sink.write(batch)
            except OSError as error:
                if ending:
                    self._dropped(self._sink.name, len(self._lines))
                    break
                after = error.after if isinstance(error, BusyError) else 0.0
                with self._changed:  # whatever comes meanwhile waits as long
                    self._changed.wait_for(lambda: self._ending, max(AGAIN, min(after, AGAIN_MAX)))
                continue
            if refused:
                self._dropped(self._sink.name, refused)
            with self._changed:
                for _ in batch:
                    self._bytes -= len(self._lines.popleft().raw)
        self._sink.close()

    def _batch(self) -> list[Line]:
        batch: list[Line] = []
        size = 0
        for line in self._lines:
            size += len(line.raw)
            if len(batch) == BATCH or (batch and size > BATCH_BYTES):
                break
            batch.append(line)
        return batch

    def end(self, within: float) -> None:
        with self._changed:
            self._ending = True
            self._changed.notify()
        self._thread.join(within)


@dataclass(slots=True)
class _Often:
    """A line that was written, and how many more there were since that say the same."""

    since: float
    values: Mapping[str, Any]
    more: int = 0


class Journal:
    """See `actors.ports.Audit`. `waiting` hears how many lines are not written yet. `failed` hears once each time that
    the file begins to fail (with the reason), and that it works again (with None). Both in another thread."""

    on = True

    def __init__(
        self,
        file: Sink | None,
        copies: Sequence[Sink] = (),
        *,
        key: bytes,
        block: bool = True,
        about: Mapping[str, Any] | None = None,
        dropped: Counted = lambda sink, lines: None,
        failed: Callable[[str | None], None] = lambda why: None,
        waiting: Callable[[int], None] = lambda lines: None,
        arguments: Told = lambda raw: None,
        clock: Callable[[], float] = time.time,
        chain: str | None = None,
    ) -> None:
        self.arguments = arguments
        self._file = file
        self._block = block
        self._dropped = dropped
        self._failed = failed
        self._tell_waiting = waiting
        self._clock = clock
        self._chain = Chain(chain or secrets.token_urlsafe(9), key)
        self._copies = [_Copy(sink, dropped) for sink in copies]
        self._waiting: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._ending: float | None = None
        self._idle = False
        """The thread waits for the next line."""
        self._lost = 0
        self._often: dict[tuple[Any, ...], _Often] = {}
        self._key = key
        self._signed = clock()
        self.record(START, **(about or {}))
        self._thread = threading.Thread(
            target=partial(thread_boundary, self._run, on_exit=self._over), name="audit", daemon=True
        )
        self._thread.start()

    @property
    def full(self) -> bool:
        """Whether nothing should begin that would be written down."""
        return self._block and len(self._waiting) >= QUEUE

    def record(self, event: str, **values: Any) -> None:
        """Puts a line into the queue; never waits."""
        self.record_late(event, values)

    def record_late(self, event: str, values: Values | Callable[[], Values]) -> None:
        """As in the port."""
        if len(self._waiting) >= (QUEUE + SPARE if self._block else QUEUE):
            with self._changed:
                self._lost += 1
            self._dropped("file", 1)
            return
        self._waiting.append((event, self._clock(), values))
        if self._idle or len(self._waiting) == BATCH:
            with self._changed:
                self._changed.notify()

    def record_often(self, event: str, **values: Any) -> None:
        """As in the port: the first line at once, and how many more there were when its time is over."""
        with self._changed:
            key = (event, *values.items())
            found = self._often.get(key)
            if found is None and len(self._often) >= OFTEN_KINDS:
                values = {name: value for name, value in values.items() if name not in CHOSEN}
                key = (event, *values.items())
                found = self._often.get(key)
            if found is not None:
                found.more += 1
                return
            self._often[key] = _Often(self._clock(), values)
        self.record(event, **values)

    def digest(self, value: bytes) -> str:
        """As in the port."""
        return hmac.new(self._key, b"digest\0" + value, hashlib.sha256).hexdigest()[:32]

    async def room(self, within: float) -> bool:
        """Waits until there is room; whether there is."""
        with trio.move_on_after(within):
            while self.full:  # noqa: ASYNC110 - it is a thread that makes room
                await trio.sleep(LOOK)
        return not self.full

    async def aclose(self, within: float) -> None:
        """Writes what waits, signs it, and ends the threads; after so many seconds what is left is lost."""
        with self._changed:
            self._ending = time.monotonic() + within
            self._changed.notify()
        with trio.move_on_after(within + AGAIN, shield=True):
            await trio.to_thread.run_sync(self._join, within, abandon_on_cancel=True)

    def _join(self, within: float) -> None:
        self._thread.join(within + AGAIN / 2)
        for copy in self._copies:
            copy.end(within)

    # The thread

    def _over(self, exit: Exit) -> None:
        if exit.abnormal:
            self._failed(str(exit))

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            if batch and not self._write(batch):
                break
            with self._changed:
                if self._ending is None and len(self._waiting) < BATCH:
                    self._changed.wait(GATHER)
        if self._file is not None:
            self._file.close()

    def _next(self) -> list[Line] | None:
        """The lines that come next, maybe none; None after the last."""
        with self._changed:
            self._idle = True  # before the look: a line that comes after it notifies
            if not self._waiting and self._ending is None:
                left = max(0.0, self._signed + HEAD_EVERY - self._clock()) or AGAIN
                self._changed.wait(min(left, OFTEN) if self._often else left)
            self._idle = False
        taken = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        copied = bool(self._copies)
        lines = [
            Line(event, at, self._chain.line(event, at, values), _trace_of(values) if copied else None)
            for event, at, values in _put_together(taken)
        ]
        now = self._clock()
        lines += self._more(now)
        if self._lost and len(self._waiting) < QUEUE:
            with self._changed:
                lost, self._lost = self._lost, 0
            lines.append(Line(LOST, now, self._chain.line(LOST, now, {"count": lost})))
        if self._ending is not None and not self._waiting:
            if self._signed == float("inf"):
                return None
            self._signed = float("inf")
            lines.append(Line(END, now, self._chain.head(now, END)))
        elif now >= self._signed + HEAD_EVERY:
            self._signed = now
            lines.append(Line(HEAD, now, self._chain.head(now)))
        return lines

    def _more(self, now: float) -> list[Line]:
        """What came more often than it was told, where its time is over."""
        lines = []
        with self._changed:
            for key, found in list(self._often.items()):
                if now - found.since < OFTEN and self._ending is None:
                    continue
                del self._often[key]
                if found.more:
                    values = {**found.values, "count": found.more}
                    lines.append(Line(key[0], now, self._chain.line(key[0], now, values)))
        return lines

    def _write(self, lines: list[Line]) -> bool:
        """Until the file has them; False if that did not come about before the end."""
        told = False
        while self._file is not None:
            self._tell_waiting(len(lines) + len(self._waiting))
            try:
                self._file.write(lines)
                break
            except OSError as error:
                if not told:
                    self._failed(error.strerror or str(error))
                    told = True
                if self._ending is not None and time.monotonic() > self._ending:
                    self._dropped("file", len(lines) + len(self._waiting))
                    return False
                with self._changed:
                    self._changed.wait(AGAIN)
        if told:
            self._failed(None)
        self._tell_waiting(len(self._waiting))
        for copy in self._copies:
            copy.put(lines)
        return True


def _trace_of(values: Values) -> tuple[str, str] | None:
    """As in `Line`."""
    if isinstance(values, RequestLine):
        return (values.trace_id, values.span_id) if values.trace_id else None
    trace = values.get("trace_id")
    return (trace, values.get("span_id", "")) if trace else None


def _put_together(waiting: Sequence[_Waiting]) -> list[tuple[str, float, Values]]:
    """What these lines say. A bug in one is no other's loss."""
    together: list[tuple[str, float, Values]] = []
    with Boundary() as inside:
        together = [(event, at, values() if callable(values) else values) for event, at, values in waiting]
    if not inside.exit.abnormal:
        return together
    if len(waiting) > 1:
        return [line for one in waiting for line in _put_together([one])]
    event, at, _ = waiting[0]
    return [(event, at, {"unwritable": type(inside.exit.error).__name__})]
