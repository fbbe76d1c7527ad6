"""What waits for one actor. A plain data structure: it knows no tasks and no clock.

One FIFO holds ordinary and reserved messages alike, so that order per sender is a guarantee. New work takes ordinary
places and is refused when they are gone; what the actor itself caused takes reserved places, which are as many as it
has things outstanding. The urgent lane is read first; it is for ending and draining, nothing else.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

from actors.runtime.exits import Exit

URGENT_PLACES = 8
"""One terminate and one drain are expected; the rest is slack for repeats."""


class Place:
    """A place in the FIFO whose holder wants to know what becomes of it, and may revoke it. This one does not care."""

    __slots__ = ()
    reserved = True

    def taken(self) -> None:
        """The message is about to be received."""

    def closed(self, name: str, reason: Exit) -> None:
        """The actor `name` ended with the message still in the mailbox."""


_RESERVED = Place()


@dataclass(frozen=True, slots=True)
class MailboxStatistics:
    """What is in a mailbox; `refused` counts since the actor was started."""

    ordinary: int
    reserved: int
    urgent: int
    size: int
    refused: int


class Mailbox:
    """Bounded, FIFO, with reserved places and an urgent lane."""

    # An empty deque weighs 0.75 KiB, most actors are idle: both lanes exist only while something is in them.
    __slots__ = ("_fifo", "_ordinary", "_refused", "_urgent", "closed", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.closed = False
        self._fifo: deque[tuple[Any, Place | None]] | None = None
        self._urgent: deque[Any] | None = None
        self._ordinary = 0
        self._refused = 0

    def offer(self, message: Any, place: Place | None = None) -> bool:
        """New work, in an ordinary place; False when full or closed."""
        if self.closed or self._ordinary >= self.size:
            self._refused += 1
            return False
        self._ordinary += 1
        if self._fifo is None:
            self._fifo = deque()
        self._fifo.append((message, place))
        return True

    def put(self, message: Any, place: Place = _RESERVED) -> bool:
        """What the actor caused itself, in a reserved place; False only when closed."""
        if self.closed:
            return False
        if self._fifo is None:
            self._fifo = deque()
        self._fifo.append((message, place))
        return True

    def urge(self, message: Any) -> bool:
        """Into the urgent lane; False when that is full, or when closed."""
        if self._urgent is None:
            self._urgent = deque()
        if self.closed or len(self._urgent) >= URGENT_PLACES:
            return False
        self._urgent.append(message)
        return True

    @property
    def crowded(self) -> bool:
        """Whether half of the ordinary places are taken."""
        return self._ordinary * 2 >= self.size

    @property
    def urgent(self) -> bool:
        """Whether the urgent lane has a message."""
        return bool(self._urgent)

    def take_urgent(self) -> Any:
        """The next message of the urgent lane, which must have one."""
        assert self._urgent
        return self._urgent.popleft()

    def take(self) -> Any:
        """The next message of the FIFO, which must have one."""
        assert self._fifo
        message, place = self._fifo.popleft()
        if place is None:
            self._ordinary -= 1
        else:
            self._ordinary -= not place.reserved
            place.taken()
        return message

    def revoke(self, place: Place) -> bool:
        """Takes the message of this place out again; False if it is not queued."""
        for index, (_, queued) in enumerate(self._fifo or ()):
            if queued is place:
                assert self._fifo
                del self._fifo[index]
                self._ordinary -= not place.reserved
                return True
        return False

    def close(self) -> list[Place]:
        """Refuses everything from here on and revokes what is queued; returns the places that want to know."""
        queued = [place for _, place in self._fifo or () if place is not None]
        self.closed = True
        self._fifo = self._urgent = None
        self._ordinary = 0
        return queued

    def __bool__(self) -> bool:
        return bool(self._fifo or self._urgent)

    def rest(self) -> None:
        """The actor goes idle: gives the memory of the empty lanes back."""
        self._fifo = self._urgent = None

    def statistics(self) -> MailboxStatistics:
        """A snapshot."""
        queued = len(self._fifo or ())
        return MailboxStatistics(
            self._ordinary, queued - self._ordinary, len(self._urgent or ()), self.size, self._refused
        )
