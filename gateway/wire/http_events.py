"""Following an event stream of a backend over one connection after another."""

import random
import re
from collections.abc import Callable
from typing import Final, Protocol

import trio

from actors.machines.upstream import breaker
from actors.protocol.sse import SseDecoder, SseEvent, SseTooLargeError
from gateway.wire.errors import PeerError, SizeError
from gateway.wire.lines import FRAMES_PER_TURN

SHORTEST_WAIT: Final = 0.1
"""Seconds before a reconnect, whatever the backend allows: it may be one that closes every stream at once."""
STEADY: Final = 10.0
"""Seconds after which a connection was a good one, even if no event came."""

ID_MAX: Final = 1024
"""Characters of an event id that is sent back."""
_ID: Final = re.compile(r"[^\x00-\x20\x7f](?:[^\x00-\x1f\x7f]*[^\x00-\x20\x7f])?")
"""What arrives in a header as it was sent: no control characters, and no blank at either end."""


class EventTrail:
    """Where a stream stands: its last event id, the wait that the server asked for, and how often it broke in a row."""

    __slots__ = ("failures", "last_id", "retry")

    def __init__(self, last_id: str | None = None) -> None:
        self.last_id = last_id
        self.retry: float | None = None
        self.failures = 0

    def note(self, event: SseEvent) -> None:
        """An event came, with data or without."""
        self.failures = 0
        if event.id is not None:
            # An empty id takes the last one back (WHATWG HTML 9.2.6); one that no header can carry is as good as none.
            self.last_id = event.id if len(event.id) <= ID_MAX and _ID.fullmatch(event.id) else None
        if event.retry is not None:
            self.retry = event.retry / 1000

    def wait(self) -> float:
        """Seconds until the next attempt: what the server asked for, longer after failures. Counts one."""
        self.failures += 1
        if self.failures == 1 and self.retry is not None:
            return max(self.retry, SHORTEST_WAIT)
        return max(breaker.delay(self.failures, random.random()), self.retry or 0)  # noqa: S311, it only spreads load


class Readable(Protocol):
    """The body of an answer."""

    async def receive_some(self) -> bytes:
        """What is there, empty at the end. Raises PeerError."""


async def read_events(
    response: Readable,
    decoder: SseDecoder,
    trail: EventTrail,
    take: Callable[[bytes], bool],
    moved: Callable[[], object],
) -> bool:
    """Reads until `take` says True of the data of an event, or the connection ends; whether it was the former.

    A connection that breaks is one that ends. Events that came together with the one that ended it are taken too. As to
    the rest, see `take_events`.
    """
    began = trio.current_time()
    try:
        while chunk := await response.receive_some():
            if await take_events(chunk, decoder, trail, take, moved):
                return True
    except PeerError:
        pass
    if trio.current_time() - began >= STEADY:
        trail.failures = 0
    return False


async def take_events(
    chunk: bytes,
    decoder: SseDecoder,
    trail: EventTrail,
    take: Callable[[bytes], bool],
    moved: Callable[[], object],
) -> bool:
    """Takes the events that are whole with this chunk; whether `take` said True of the data of any.

    `moved` is called for an event that brings an id and no message. Raises SizeError for an event over the decoder's
    limit.
    """
    done = False
    try:
        for n, event in enumerate(decoder.feed(chunk), 1):
            trail.note(event)
            if event.data and event.event == "message":
                done = take(event.data) or done
            elif event.id is not None:
                moved()
            if n % FRAMES_PER_TURN == 0:
                await trio.lowlevel.checkpoint()
    except SseTooLargeError as error:
        raise SizeError(str(error), sent=True) from error
    return done
