"""Splitting a byte stream into lines of bounded length.

Guarantee: memory stays below the limit plus one chunk, whatever is fed, and a line that is too long harms no other.
"""

from codecs import BOM_UTF8
from typing import Final, TypeAlias

from msgspec import Struct

FRAMES_PER_TURN: Final = 16
"""Frames that a reader hands up before every other task has had its turn: one read may hold thousands, and whoever
takes them must keep up with a backend that sends without end."""


class LongLine(Struct, frozen=True):
    """A line over the limit: how it began, how long it was in bytes, and how it ended. The rest was dropped."""

    head: bytes
    size: int
    tail: bytes = b""


Line: TypeAlias = bytes | LongLine


class LineSplitter:
    """Turns chunks into lines without their `\\n`; a `\\r` before it is kept.

    `limit` is the longest line that is passed whole, in bytes; of a longer one the first and the last `keep` bytes are
    kept. A byte order mark before the first line, which some systems write of themselves, is ignored (RFC 8259, section
    8.1).
    """

    __slots__ = ("_begun", "_held", "_keep", "_limit", "_size", "_tail")

    def __init__(self, limit: int, keep: int = 200) -> None:
        self._limit = limit
        self._keep = keep
        self._held = bytearray()
        """The line that has not ended; of one that is too long, its beginning."""
        self._tail = b""
        """How one that is too long ends, so far."""
        self._size = 0
        self._begun = False

    def __len__(self) -> int:
        """Bytes that are kept of the line that has not ended."""
        return len(self._held) + len(self._tail)

    def feed(self, chunk: bytes) -> list[Line]:
        """The lines that this chunk completes, in order."""
        *whole, rest = chunk.split(b"\n")
        lines: list[Line] = []
        for piece in whole:
            if self._size or len(piece) > self._limit:
                self._extend(piece)
                lines.append(self._cut())
            else:
                lines.append(piece)
        if rest:
            self._extend(rest)
        if lines and not self._begun:
            lines[0] = self._first(lines[0])
        return lines

    def finish(self) -> Line | None:
        """What came after the last newline, if anything."""
        return self._first(self._cut()) if self._size else None

    def _first(self, line: Line) -> Line:
        begun, self._begun = self._begun, True
        return line if begun or isinstance(line, LongLine) else line.removeprefix(BOM_UTF8)

    def _extend(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._limit:
            # Only its ends are worth keeping.
            kept = self._tail or bytes(self._held[-self._keep :])
            self._tail = (kept + piece[-self._keep :])[-self._keep :]
            self._held += piece[: max(0, self._keep - len(self._held))]
            del self._held[self._keep :]
        else:
            self._held += piece

    def _cut(self) -> Line:
        held = bytes(self._held)
        line: Line = held if self._size <= self._limit else LongLine(held, self._size, self._tail)
        self._held.clear()
        self._tail = b""
        self._size = 0
        return line
