"""A backend that is a child process speaking MCP on its standard streams (2025-11-25, basic/transports, "stdio").

One message a line, both ways. What looks like JSON goes up as it is; any other line is logged and dropped, and so is
a line over the limit: the connection survives both. If such a line was an answer, its request fails; if it was a
request, the child is answered with an error. stderr is read to its end whatever the child writes there, since
a child whose stderr is full stops. The child and all of its process group end with the connection.

There is no per-request channel, so a frame is never related to a request, and what was written may have been executed.

A child that has only refused to speak an era is handed over to the next transport, which speaks the other one: to start
it may have taken long (2026-07-28, stdio, "Backward Compatibility").
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import trio

from actors.ports import (
    FrameAccepted,
    FrameReceived,
    Log,
    RequestFailed,
    Spoke,
    TransportEvent,
    TransportKind,
)
from actors.protocol import codec, errors
from actors.protocol.table import StdioTarget
from actors.protocol.transport import UNAUTHORIZED
from gateway.backends.bound import DuplexTransport
from gateway.backends.credentials import ProcessKey, Refusal, unbound
from gateway.backends.guardian import Guardian
from gateway.backends.outbox import Outbox
from gateway.observability.redaction import HIDDEN
from gateway.wire import oversized
from gateway.wire.errors import SpawnError
from gateway.wire.lines import FRAMES_PER_TURN, Line, LineSplitter, LongLine
from gateway.wire.process import CHUNK, Child, Patience, describe_exit, end_group, read_pipe, spawn

SHOWN: Final = 200
"""Bytes of a dropped line that are logged."""
STDERR_CHARACTERS: Final = 300
"""Of one of the last lines of the standard error that are kept."""


class Throttle:
    """Keeps a talkative child from filling the log: `burst` at once, then `per_second`. Counts what it refuses."""

    __slots__ = ("_burst", "_clock", "_rate", "_refused", "_seen", "_tokens")

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float] = trio.current_time) -> None:
        self._rate = per_second
        self._burst = float(burst)
        self._clock = clock
        self._tokens = float(burst)
        self._seen: float | None = None
        self._refused = 0

    def admit(self) -> int | None:
        """None to stay silent; else how many were refused since the last one that was admitted."""
        now = self._clock()
        if self._seen is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._seen) * self._rate)
        self._seen = now
        if self._tokens < 1:
            self._refused += 1
            return None
        self._tokens -= 1
        refused, self._refused = self._refused, 0
        return refused


@dataclass(frozen=True, slots=True)
class StdioLimits:
    """The bounds of one child. Times in seconds, sizes in bytes."""

    message_bytes: int = 4 * 1024 * 1024
    """The longest line of its stdout that is a message."""
    outbox_messages: int = 256
    """Messages that wait to be written; a further request fails."""
    outbox_bytes: int = 16 * 1024 * 1024
    """The same in bytes."""
    stderr_line: int = 4096
    """The longest line of its stderr that is logged whole."""
    stderr_lines: int = 10
    """Its last lines that are kept, for whoever wants to know why it did not start."""
    log_rate: float = 20.0
    """Lines of stderr, and of garbage, that are logged per second after a burst of ten times as many."""
    slot_wait: float = 10.0
    """How long to wait while too many children run."""
    hand_over: float = 2.0
    """How long a child waits for the transport that takes it over."""
    exit_drain: float = 0.25
    """How long to read on after the child has exited, when a descendant still holds its output."""
    descriptors: tuple[int, int] | None = None
    """The soft and hard limit of its open files, where it is not to have ours."""
    patience: Patience = field(default=Patience())
    """The steps of a graceful end."""
    patience_cancelled: Patience = field(default=Patience(stdin_closed=0.5, term=1.0, kill=1.0))
    """The steps of the end when `run` is cancelled."""


class Running:
    """A child, and what of its output was read and is not whole yet. `place` is what its slot was acquired for."""

    def __init__(self, child: Child, place: object, limits: StdioLimits) -> None:
        self.child = child
        self.place = place
        self.messages = LineSplitter(limits.message_bytes, SHOWN)
        self.log = LineSplitter(limits.stderr_line, SHOWN)
        self.log_rate = Throttle(limits.log_rate, int(limits.log_rate * 10))
        self.last: deque[str] = deque(maxlen=limits.stderr_lines)
        self.spoke = False
        self.stdout_ended = trio.Event()
        self.stderr_ended = trio.Event()

    async def wait_for_output(self) -> None:
        """Until there is no more of it."""
        await self.stdout_ended.wait()
        await self.stderr_ended.wait()


class Offer:
    """A child that may be taken over. It is let go of (`free`) once nobody else reads from it. `fresh`: it has heard
    nothing yet."""

    def __init__(self, target: StdioTarget, running: Running, *, fresh: bool = False) -> None:
        self.target = target
        self.running = running
        self.fresh = fresh
        self.taken = False
        self.over = trio.Event()
        self.free = trio.Event()


class Offers:
    """The children that wait to be taken over, of all transports; and how many there are, by what they were started as:
    those that are being started, live, or are being ended."""

    def __init__(self) -> None:
        self._open: list[Offer] = []
        self.living: Counter[StdioTarget] = Counter()

    @property
    def open(self) -> tuple[Offer, ...]:
        """Those that nobody has taken."""
        return tuple(self._open)

    def began(self, target: StdioTarget) -> None:
        """One more; said before it is started, so that nobody starts another one in its place meanwhile."""
        self.living[target] += 1

    def ended(self, target: StdioTarget) -> None:
        """One less."""
        self.living[target] -= 1
        if not self.living[target]:
            del self.living[target]

    def put(self, offer: Offer) -> None:
        """Until it is withdrawn."""
        self._open.append(offer)

    def take(self, target: StdioTarget) -> Offer | None:
        """One with this target; nobody else gets it."""
        found = next((offer for offer in self._open if offer.target == target), None)
        if found is not None:
            found.taken = True
            self.withdraw(found)
        return found

    def withdraw(self, offer: Offer) -> None:
        """Too late for whoever comes now."""
        if offer in self._open:
            self._open.remove(offer)
        offer.over.set()


class StdioTransport(DuplexTransport):
    """See `actors.ports.Transport`. `slots` bounds the children of all backends together; `offers` are those that may
    be taken over, of which this transport takes one if there is any."""

    kind: TransportKind = "stdio"

    def __init__(
        self,
        name: str,
        target: StdioTarget,
        emit: Callable[[TransportEvent], None],
        *,
        guardian: Guardian,
        slots: trio.CapacityLimiter,
        log: Log,
        limits: StdioLimits,
        redact: Callable[[str], str] = str,
        offers: Offers | None = None,
        key: ProcessKey | None = None,
    ) -> None:
        """`redact` takes credentials out of what the child writes to its standard error. `key` is in the environment of
        this child alone, which nobody takes over."""
        super().__init__(name, emit, log, Outbox(limits.outbox_messages, limits.outbox_bytes))
        self._redact = redact
        self._key = key
        self._value = ""
        """Of the key: it stands in nothing that is told of the child."""
        self._unbind: Callable[[], object] = unbound
        self._target = target
        self._guardian = guardian
        self._slots = slots
        self._limits = limits
        self._garbage = Throttle(limits.log_rate, int(limits.log_rate * 10))
        self._closing = False
        self._waiting = trio.CancelScope()
        self._running: Running | None = None
        self._writing = False
        self._offers = offers or Offers()
        self._offer: Offer | None = None
        self._taken = self._offers.take(target) if key is None else None
        self.warm = self._taken is not None and not self._taken.fresh

    def __repr__(self) -> str:
        started = "open" if self._running is not None else "not started"
        state = "ending" if self._ending.is_set() else started
        return f"<StdioTransport {self._name} {state}, {len(self._outbox)} to write>"

    # The port's synchronous half

    @property
    def stderr(self) -> tuple[str, ...]:
        """The last lines, without credentials."""
        return tuple(self._redact(line) for line in self._running.last) if self._running is not None else ()

    def close(self) -> None:
        """Lets the outbox be written, then closes stdin, and so on as Patience says."""
        self._closing = True
        self._end_with("closed", f"{self._name} was closed")
        self._waiting.cancel()

    def hand_over(self) -> None:
        """Keeps the child for a moment, for whoever connects next."""
        if (
            self._key is not None
            or self._running is None
            or self._ending.is_set()
            or self._writing
            or len(self._outbox)
        ):
            self.close()
            return
        self._offer = Offer(self._target, self._running)
        self._offers.put(self._offer)
        self.close()

    # The IO

    async def run(self) -> None:
        """Runs the child until it has ended, or was handed over. See the port."""
        try:
            if self._taken is not None:
                await self._run_child(self._taken.running, self._taken.free)
            elif (target := await self._whole_target()) is not None and (running := await self._start(target)):
                await self._run_child(running)
        finally:
            self._unbind()
            self._end_with("aborted", f"the connection to {self._name} was aborted")
            self._tell_end()

    async def _whole_target(self) -> StdioTarget | None:
        """With the key of the user whose process it will be, if he has given one."""
        if self._key is None:
            return self._target
        given = await self._key.take()
        self._unbind = self._key.bound(self._lost)  # from here on: that it is another one is found by taking it, too
        if isinstance(given, Refusal):
            self._end_with(given.reason, f"{self._name}: {given.message}")
        if isinstance(given, Refusal) or self._ending.is_set():
            return None
        variable, self._value = given
        return replace(self._target, env=(*self._target.env, (variable, self._value)))

    def _lost(self) -> None:
        """Its user has taken the key back, or given another one."""
        self._end_with("not_connected", f"{self._name} was stopped: its user's key is another one")

    def _hide(self, text: str) -> str:
        return text.replace(self._value, HIDDEN) if self._value else text

    async def _start(self, target: StdioTarget) -> Running | None:
        """A child of its own, if it may have one and that can be started."""
        place, child = object(), None
        with self._waiting:
            self._waiting.deadline = trio.current_time() + self._limits.slot_wait
            await self._slots.acquire_on_behalf_of(place)
        if self._waiting.cancelled_caught:
            self._end_with("backend_full", f"{self._slots.total_tokens:g} child processes run already")
            return None
        self._offers.began(self._target)
        try:
            await self._guardian.ready()
            child = await spawn(target, self._limits.descriptors)
        except (SpawnError, OSError) as error:
            told = error.told if isinstance(error, SpawnError) else "the process could not be started"
            self._end_with("spawn_failed", f"{self._name}: {told}", f"{self._name}: {error}")
        finally:
            if child is None:
                self._slots.release_on_behalf_of(place)
                self._offers.ended(self._target)
        if child is None:
            return None
        self._guardian.watch(child.pid)
        self._log.info("backend_started", backend=self._name, pid=child.pid)
        return Running(child, place, self._limits)

    async def _run_child(self, running: Running, free: trio.Event | None = None) -> None:
        """Until it and all of its group have ended, or somebody takes it over. `free`: when whoever had it lets go."""
        try:
            if free is not None:
                await free.wait()
            await self._converse(running)
        finally:
            if self._offer is not None:
                self._offers.withdraw(self._offer)
            if self._offer is not None and self._offer.taken:
                self._offer.free.set()
            else:
                child, patience = running.child, self._limits.patience_cancelled
                child.close_pipes()
                with trio.move_on_after(patience.total, shield=True):
                    await end_group(child, patience)
                self._guardian.release(child.pid)
                self._slots.release_on_behalf_of(running.place)
                self._offers.ended(self._target)
                self._log.info("backend_ended", backend=self._name, pid=child.pid, status=child.process.returncode)

    async def _converse(self, running: Running) -> None:
        self._running = running
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, running)
            nursery.start_soon(self._read_messages, running)
            nursery.start_soon(self._read_log, running)
            nursery.start_soon(self._watch_exit, running)
            await self._ending.wait()
            if not self._closing:
                # Who waits for a dead child is told at once, not when the last of its group has ended.
                self._tell_end()
            if self._offer is None or not await self._is_taken(self._offer):
                # The readers go on: a child that is stuck writing would never notice the end of its stdin.
                self._outbox.close()
                await end_group(running.child, self._limits.patience, running.wait_for_output)
            nursery.cancel_scope.cancel()

    async def _is_taken(self, offer: Offer) -> bool:
        """Whether somebody takes the child over, within a while and before it ends."""
        with trio.move_on_after(self._limits.hand_over):
            await offer.over.wait()
        self._offers.withdraw(offer)
        return offer.taken

    def _end_with(self, reason: str, message: str, detail: str = "") -> None:
        if self._end is not None and self._offer is not None:
            self._offers.withdraw(self._offer)  # it has ended by itself
        super()._end_with(reason, message, detail)

    def _unsent(self, reason: str) -> str:
        return reason if reason in UNAUTHORIZED else "not_sent"

    async def _watch_exit(self, running: Running) -> None:
        """The end is told once the last output was read, or after a moment if a descendant holds the pipe."""
        status = await running.child.process.wait()
        with trio.move_on_after(self._limits.exit_drain):
            await running.wait_for_output()
        self._end_with("exited", f"{self._name} {describe_exit(status)}")

    def _end_by(self, running: Running, reason: str, message: str) -> None:
        """It has closed a pipe; if it is known to have exited, which nobody had the time to say, that is why."""
        status = running.child.process.returncode
        if status is None:
            self._end_with(reason, message)
        else:
            self._end_with("exited", f"{self._name} {describe_exit(status)}")

    async def _write(self, running: Running) -> None:
        """The one writer. Ends, closing stdin, when the outbox was closed or the child reads no more."""
        stdin = running.child.stdin
        try:
            while batch := await self._outbox.take(CHUNK):
                # JSON has raw newlines only between tokens, where a blank is as good; here they would end the message.
                lines = [item.frame.replace(b"\n", b" ") for item in batch]
                self._writing = True
                await stdin.send_all(b"\n".join(lines) + b"\n")
                self._writing = False
                for item in batch:
                    if item.tag is not None:
                        self._say(FrameAccepted(item.tag))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # It exits, or closed its stdin: what it still says is read for a moment.
            self._outbox.close()
            with trio.move_on_after(self._limits.exit_drain):
                await self._ending.wait()  # usually it exits, which names the reason better
            self._end_by(running, "stdin_closed", f"{self._name} closed its standard input")
        finally:
            if self._offer is None or not self._offer.taken:
                stdin.close()

    async def _read_messages(self, running: Running) -> None:
        lines = running.messages
        while chunk := await read_pipe(running.child.stdout):
            if not running.spoke:
                running.spoke = True
                self._say(Spoke())
            for n, line in enumerate(lines.feed(chunk), 1):
                self._take_line(line)
                if n % FRAMES_PER_TURN == 0:
                    await trio.lowlevel.checkpoint()
        if (rest := lines.finish()) is not None:
            self._drop_line(rest, "cut off by the end of the output")
        running.stdout_ended.set()
        # Usually the exit comes with it and names the reason better.
        await trio.sleep(self._limits.exit_drain)
        self._end_by(running, "stdout_closed", f"{self._name} closed its standard output")

    def _take_line(self, line: Line) -> None:
        if isinstance(line, LongLine):
            self._too_large(line)
            return
        frame = line.strip()
        if frame.startswith((b"{", b"[")):
            self._say(FrameReceived(frame))
        elif frame:
            self._drop_line(frame, "not JSON")

    def _too_large(self, line: LongLine) -> None:
        """Whoever waits for it, or for an answer to it, is told so, as far as the line says who that is."""
        limit = self._limits.message_bytes
        self._drop_line(line, f"longer than {limit} bytes")
        match oversized.read(line):
            case oversized.Oversized(oversized.Kind.ANSWER, int() | str() as id):
                what = f"{self._name} sent an answer of {line.size} bytes, and limits.messageBytes allows {limit}"
                self._say(RequestFailed(id, "too_large", what, "unknown"))
            case oversized.Oversized(oversized.Kind.REQUEST, int() | str() as id):
                self.send(codec.encode_error(id, errors.too_large(limit)))
            case _:
                pass  # nobody waits for it, or nobody knows who

    def _drop_line(self, line: Line, why: str) -> None:
        suppressed = self._garbage.admit()
        if suppressed is None:
            return
        text, size = _shown(line)
        self._log.warning(
            "backend_line_dropped",
            backend=self._name,
            why=why,
            line=self._hide(text),
            bytes=size,
            suppressed=suppressed,
        )

    async def _read_log(self, running: Running) -> None:
        lines = running.log
        while chunk := await read_pipe(running.child.stderr):
            for line in lines.feed(chunk):
                self._log_line(line, running)
        if (rest := lines.finish()) is not None:
            self._log_line(rest, running)
        running.stderr_ended.set()

    def _log_line(self, line: Line, running: Running) -> None:
        text = (line.head + b"[...]" if isinstance(line, LongLine) else line).decode(errors="replace").rstrip()
        text = self._hide(text)
        if text:
            running.last.append(text[:STDERR_CHARACTERS])
        if text and (suppressed := running.log_rate.admit()) is not None:
            self._log.info("backend_stderr", backend=self._name, line=text, suppressed=suppressed)


def _shown(line: Line) -> tuple[str, int]:
    head, size = (line.head, line.size) if isinstance(line, LongLine) else (line[:SHOWN], len(line))
    return head.decode(errors="replace"), size
