"""The writer: group commit.

Operations queue while a batch is under way and go out together as the next one. A batch whose connection broke is sent
again whole, in order (every function is idempotent, or not sent twice: `once`), until the time of an operation is up:
then it is AWAY, and may have been executed.

An operation that Redis did not execute (function not loaded, full, read-only, a missing right) holds back what follows
it for the same session, so that a session's operations are never reordered.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import trio
from redis.exceptions import AuthenticationError, BusyLoadingError, ReadOnlyError

from actors.ports import Failed, Refused
from gateway.store.redis.errors import LinkDown
from gateway.store.redis.links import Reply, is_denied, is_full, is_stuck, lacks_function
from gateway.store.redis.loop_links import LoopLink
from gateway.store.redis.operations import OVERHEAD, Operation

BATCH_OPERATIONS = 512
BATCH_BYTES = 1024 * 1024
"""Bounds of one batch; a single larger operation goes alone."""

PATIENCE = 1.0
"""Seconds for which what can't wait (create, claim, read), or need not (open), is tried while Redis is away."""

BACKOFF_FIRST, BACKOFF_LAST = 0.02, 0.5
"""Seconds between two attempts to reach Redis."""

FULL_PAUSE = 0.1
"""Seconds between two attempts of what Redis refuses for want of memory, unless more comes in."""

TELL_AFTER = 1.0
"""Seconds of trouble that somebody is told of; a connection that is made anew is none."""

MOVING_PAUSE = 0.05
"""Seconds between two attempts of what is in no place yet, since its slot is on the way to another primary."""

Settled: TypeAlias = list[tuple[Operation, Any]]
State: TypeAlias = Literal["ok", "away", "full", "read-only", "denied", "loading"]
"""How Redis is: it does not answer, has no memory, takes no writes, refuses the user, or reads its file."""

REFUSING = ("full", "denied")
"""States that don't pass by themselves within moments: what need not wait is refused at once."""


class Writer:
    """The queue, and the task that empties it.

    `probe` is a key by which it asks whether Redis is back. `on_batch(operations, seconds)` is told of each batch, and
    `on_error(text)` of error replies that nobody expects (such as a missing right), at most once a second.
    `on_state(state, why, seconds)` is told of trouble that lasts, and of its end (`ok`), with how long it has lasted.
    """

    def __init__(
        self,
        link: LoopLink,
        *,
        hold: float,
        queue_bytes: int,
        on_batch: Callable[[int, float], None],
        on_error: Callable[[str], None],
        on_state: Callable[[State, str, float], object] = lambda state, why, seconds: None,
        probe: str = "sd:probe",
    ) -> None:
        self._link = link
        self._probe_key = probe
        self._hold = hold
        self._capacity = queue_bytes
        self._on_batch = on_batch
        self._on_error = on_error
        self._on_state = on_state
        self._told_error = -1.0
        self._queue: list[Operation] = []
        self._news = trio.lowlevel.ParkingLot()
        """Where the task waits for operations, or to be closed."""
        self._closing: float | None = None
        self._asked = 0.0
        """When Redis was asked last."""
        self._troubled_since: float | None = None
        self._unanswered_since = 0.0
        """When it was asked what it answered with trouble, or not at all: of one that hangs a time-out before that is
        known."""
        self._told = False
        """Of the trouble that there is."""
        self._doubted = False
        """Somebody has not heard of Redis: it is asked, though there is nothing to write."""
        self._backoff = BACKOFF_FIRST
        self._lacked = False
        """In the last round something was not where it was sent, and all was made ready since."""
        self._why = ""
        self.queued = 0
        """Bytes that wait or are under way."""
        self.state: State = "ok"

    # Anybody

    def submit(self, operation: Operation) -> None:
        """Queues it, or fails it at once: the queue is full, Redis has been away for a while, the store is closed."""
        now = time.monotonic()
        if failed := self._refusal(operation, now):
            operation.done(failed)
            return
        operation.deadline = now + self._patience(operation)
        self.queued += operation.size
        self._queue.append(operation)
        self._news.unpark_all()

    def _refusal(self, operation: Operation, now: float) -> Failed | None:
        if self._closing is not None:
            return Failed(Refused.AWAY, "the store is closed")
        since = self._troubled_since
        works = operation.when_full and self.state == "full"
        spared = operation.optional or not operation.waits
        late = since is not None and (now - since > self._patience(operation) or self.state in REFUSING)
        if spared and not works and late:
            return self._unavailable()
        room = self._capacity // 2 if operation.hint else self._capacity
        if self.queued + operation.size > room and not (operation.when_full and operation.waits):
            return Failed(Refused.FULL, "store_full")
        return None

    def _patience(self, operation: Operation) -> float:
        """Seconds for which it is tried while Redis is away."""
        waits = operation.hint or (operation.waits and not operation.optional)
        return self._hold if waits else PATIENCE

    def _unavailable(self) -> Failed:
        return Failed(Refused.STORE_FULL if self.state == "full" else Refused.AWAY, self._why)

    def doubt(self) -> None:
        """Redis may be away: it is asked, so that this is known before the first operation has to wait for it."""
        self._doubted = True
        self._news.unpark_all()

    def renew(self) -> None:
        """See `LoopLink`."""
        self._link.renew()

    def close(self, within: float) -> None:
        """Takes nothing more; what is queued is written if that works within so many seconds."""
        if self._closing is None:
            self._closing = time.monotonic() + within
            self._news.unpark_all()

    # The task

    async def run(self) -> None:
        """Writes until it is closed and nothing is left. The body of the task."""
        pending: list[Operation] = []
        pause = 0.0
        try:
            while await self._gather(pending, pause):
                pause = await (self._round(pending) if pending else self._probe())
                self._expire(pending)
        finally:
            self._closing = self._closing or time.monotonic()
            self._take(pending)
            self._finish([(operation, Failed(Refused.AWAY, "the store is closed")) for operation in pending])
            self._link.close()

    async def _gather(self, pending: list[Operation], pause: float) -> bool:
        """Takes what is queued, after `pause`. If that is nothing, it waits for more, unless Redis is in trouble and
        must be asked whether it still is. False: closed, and nothing left."""
        until = time.monotonic() + pause
        while self._closing is None:
            if self._take(pending) and self.state == "full":
                until = 0.0
            idle = not pending and self.state == "ok" and not self._doubted
            left = until - time.monotonic()
            if idle:
                await self._news.park()
            elif left <= 0:
                self._doubted = False
                return True
            else:
                with trio.move_on_after(left):
                    await self._news.park()
        await trio.sleep(pause)
        self._take(pending)
        return bool(pending)

    def _take(self, pending: list[Operation]) -> bool:
        taken, self._queue = self._queue, []
        pending += taken
        return bool(taken)

    async def _probe(self) -> float:
        """Asks whether Redis is back when nothing else does; without it, what can't wait would be refused for ever. It
        asks by a write, for one that is full or read-only still reads."""
        self._asked = time.monotonic()
        try:
            replies = await self._link.exchange([("SET", self._probe_key, "1", "PX", 1000)])
        except LinkDown as error:
            return self._away(error)
        return await self._repair(reply for reply in replies if _state(reply) is not None)

    async def _round(self, pending: list[Operation]) -> float:
        """Sends all that is pending, batch by batch; leaves what must be sent again, and says how long to wait."""
        held: dict[str, Reply] = {}
        again: list[Operation] = []
        try:
            for batch in list(_batches(pending)):
                try:
                    await self._send(batch, held, again)
                except LinkDown as error:
                    return self._away(error)
                del pending[: len(batch)]
        finally:
            pending[:0] = again  # nothing is told twice, whatever ends the round
        return await self._repair(held.values())

    async def _send(self, batch: list[Operation], held: dict[str, Reply], again: list[Operation]) -> None:
        """One exchange. `held` are the sessions of which an operation must be sent again, and why."""
        began = self._asked = time.monotonic()
        replies: list[Reply] | None = None
        try:
            replies = await self._link.exchange([operation.command for operation in batch])
        finally:
            if replies is None:
                for operation in batch:
                    operation.tried = True
        settled: Settled = []
        for operation, reply in zip(batch, replies, strict=True):
            if not held and not isinstance(reply, Exception):
                operation.tried = True
                settled.append((operation, operation.outcome(reply)))
                continue
            blocked = held.get(operation.key)
            if blocked is None and (lacks_function(reply) or _state(reply) is not None):
                blocked = held[operation.key] = reply
                if is_denied(reply):
                    self._tell_error(str(reply))
            # One that is held back may have been executed all the same: Redis is not full for each command of a batch.
            operation.tried = operation.tried or not isinstance(reply, Exception)
            state = _state(blocked) if blocked is not None else None
            spared = state is not None and (not operation.waits or (operation.optional and state in REFUSING))
            if blocked is None or ((operation.when_full or spared) and not isinstance(reply, Exception)):
                if isinstance(reply, Exception):
                    self._tell_error(str(reply))
                settled.append((operation, operation.outcome(reply)))
            elif spared:
                reason = Refused.STORE_FULL if state == "full" else Refused.AWAY
                settled.append((operation, Failed(reason, str(blocked))))
            else:
                again.append(operation)
        self._finish(settled, len(batch), time.monotonic() - began)

    async def _repair(self, reasons: Iterable[Reply]) -> float:
        """After a round in which Redis answered: what stands against the rest of it, and how long to wait."""
        worst = list(reasons)
        lacking, lacked = any(lacks_function(reason) for reason in worst), self._lacked
        self._lacked = lacking
        if lacking:
            try:
                await self._link.prepare()
            except LinkDown as error:
                return self._away(error)
        if hard := [reason for reason in worst if not lacks_function(reason)]:
            self._trouble(_state(hard[0]) or "away", str(hard[0]))
            return FULL_PAUSE
        if self._told:
            self._told = False
            self._on_state("ok", "", time.monotonic() - self._unanswered_since)
        self.state, self._troubled_since, self._backoff = "ok", None, BACKOFF_FIRST
        return MOVING_PAUSE if lacking and lacked else 0.0

    def _away(self, error: LinkDown) -> float:
        cause = error.__cause__
        loading, denied = isinstance(cause, BusyLoadingError), isinstance(cause, AuthenticationError)
        self._trouble("loading" if loading else "denied" if denied else "away", str(error))
        pause, self._backoff = self._backoff, min(self._backoff * 2, BACKOFF_LAST)
        return pause

    def _trouble(self, state: State, why: str) -> None:
        self.state, self._why = state, why
        now = time.monotonic()
        if self._troubled_since is None:
            self._troubled_since, self._unanswered_since = now, self._asked
        if not self._told and now - self._unanswered_since >= TELL_AFTER:
            self._told = True
            self._on_state(state, why, now - self._unanswered_since)

    def _expire(self, pending: list[Operation]) -> None:
        """Fails what has waited long enough, or was tried and may be tried only once."""
        now = time.monotonic()
        if self._closing is not None and now >= self._closing:
            now = float("inf")
        late = [op for op in pending if op.deadline <= now or (op.once and op.tried)]
        if late:
            pending[:] = [op for op in pending if op.deadline > now and not (op.once and op.tried)]
            self._finish([(operation, self._unavailable()) for operation in late])

    def _tell_error(self, text: str) -> None:
        if time.monotonic() - self._told_error > 1.0:
            self._told_error = time.monotonic()
            self._on_error(text)

    def _finish(self, settled: Settled, operations: int = 0, seconds: float = 0.0) -> None:
        if operations:
            self._on_batch(operations, seconds)
        for operation, outcome in settled:
            self.queued -= operation.size
            operation.done(outcome)


def _state(reply: Reply) -> State | None:
    """What a reply says of Redis, if it was not executed for a reason that may pass."""
    if is_full(reply):
        return "full"
    if is_denied(reply):
        return "denied"
    if is_stuck(reply):
        return "read-only" if isinstance(reply, ReadOnlyError) else "away"
    return None


def _batches(pending: Sequence[Operation]) -> Iterator[list[Operation]]:
    """The operations in order, in batches within the bounds."""
    batch: list[Operation] = []
    size = 0
    for operation in pending:
        payload = operation.size - OVERHEAD
        if batch and (len(batch) >= BATCH_OPERATIONS or size + payload > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(operation)
        size += payload
    yield batch
