"""Reading bodies, each within the limit of a message and all together within what this process has room for."""

from collections.abc import Mapping
from types import TracebackType

from gateway.http.request import DisconnectedError, Receive

SMALL = 16 * 1024
"""Bytes of a body that are not counted: nearly every message is that small, and must not suffer from large ones."""


class NoRoomError(Exception):
    """The bodies of other requests take all that there is."""


class Room:
    """What all bodies together may take, in bytes. What is counted is what has come, not what was announced."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0


class Share:
    """The part of one body, or of one connection, until its context ends."""

    __slots__ = ("_room", "_size")

    def __init__(self, room: Room) -> None:
        self._room = room
        self._size = 0

    def __enter__(self) -> "Share":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.hold(0)

    def hold(self, size: int) -> None:
        """So many bytes are held by now. Raises NoRoomError if that is more than there is room for."""
        counted = size if size > SMALL else 0
        more = counted - self._size
        if more > 0 and self._room.held + more > self._room.limit:
            raise NoRoomError
        self._room.held += more
        self._size = counted


async def read_body(headers: Mapping[str, str], receive: Receive, limit: int, share: Share) -> bytes | None:
    """The body; None if it is longer than `limit` bytes, which is known at once where the length is declared.

    Raises DisconnectedError and NoRoomError.
    """
    declared = headers.get("content-length", "0")
    if len(declared) > 18 or int(declared) > limit:
        return None
    chunks: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        chunks.append(message["body"])
        size += len(message["body"])
        more = message["more_body"]
        if size > limit:
            return None
        share.hold(size)
    return b"".join(chunks)
