"""What waits for functions of a user that are slow, within bounds that a server can't exceed."""

from typing import Final

ROOM: Final = 16 * 1024 * 1024
"""Bytes of messages that wait for the same function."""


class Room:
    """Counts messages and their bytes. The first has its place whatever its size."""

    __slots__ = ("_bytes", "_messages", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._messages = 0
        self._bytes = 0

    def fits(self, size: int) -> bool:
        """Whether a message of so many bytes has a place."""
        return self._messages == 0 or (self._messages < self._most and self._bytes + size <= ROOM)

    def take(self, size: int) -> None:
        """Counts a message that has come."""
        self._messages += 1
        self._bytes += size

    def give(self, size: int) -> None:
        """Counts a message off that waits no more."""
        self._messages -= 1
        self._bytes -= size
