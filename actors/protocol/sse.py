"""Server-sent events: messages as events, and events out of bytes that arrive in any pieces.

After the WHATWG HTML standard, section 9.2 "Server-sent events". One difference is meant: an event without data is
reported (with empty data) instead of dropped, since its id or retry time counts ("priming", MCP 2025-11-25,
transports); whoever reads it dispatches nothing.
"""

import re
from codecs import BOM_UTF8
from typing import Final

from msgspec import Struct

RETRY_MAX: Final = 3_600_000
"""A longer time to wait before a reconnect, in milliseconds, is cut to this."""

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


class SseEvent(Struct, frozen=True):
    """One event. `id` and `retry` (milliseconds) are None where the event had no such field."""

    data: bytes = b""
    id: str | None = None
    event: str = "message"
    retry: int | None = None


class SseTooLargeError(Exception):
    """An event, or a line, is larger than the limit. The decoder is of no use after it."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"an event of more than {limit} bytes")
        self.limit = limit


# ------------------------------------------------------------------------------------------------------ encoding


def encode_event(data: bytes, id: str | None = None, retry: int | None = None, event: str | None = None) -> bytes:
    """One event. Data of several lines is joined again by every reader with a line feed between.

    ValueError for an id or event name that would break the framing.
    """
    fields = []
    if event is not None:
        fields.append(b"event: %b\n" % _field(event))
    if id is not None:
        fields.append(b"id: %b\n" % _field(id))
    if retry is not None:
        fields.append(b"retry: %d\n" % retry)
    if 0x0A in data or 0x0D in data:
        fields.extend(b"data: %b\n" % line for line in _LINE_END.split(data))
    else:
        fields.append(b"data: %b\n" % data)
    fields.append(b"\n")
    return b"".join(fields)


def encode_retry(milliseconds: int) -> bytes:
    """How long to wait before a reconnect: written before the connection is closed on purpose."""
    return b"retry: %d\n\n" % milliseconds


def _field(value: str) -> bytes:
    if "\n" in value or "\r" in value or "\0" in value:
        raise ValueError(f"a line break or NUL in an SSE field: {value!r}")
    return value.encode()


# ------------------------------------------------------------------------------------------------------ decoding


class SseDecoder:
    """Takes bytes in any pieces, gives the events they complete. An unfinished event at the end is dropped.

    `limit` bounds, in bytes, one event and one line; it is checked on what was seen, also before a line is complete.
    """

    __slots__ = (
        "_after_cr",
        "_data",
        "_event",
        "_head",
        "_id",
        "_overflow",
        "_partial",
        "_partial_size",
        "_retry",
        "_size",
        "limit",
    )

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._head: bytes | None = b""  # the first bytes, until they can't be the beginning of a BOM
        self._after_cr = False
        self._partial: list[bytes] = []
        self._partial_size = 0
        self._overflow: SseTooLargeError | None = None
        self._reset()

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that this chunk completes. Raises SseTooLargeError; after events of the same chunk, next time."""
        if self._overflow is not None:
            raise self._overflow
        if self._head is not None:
            chunk = self._past_bom(chunk)
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if not chunk:
            return []
        lines = chunk.splitlines()
        ended = chunk.endswith((b"\n", b"\r"))
        self._after_cr = chunk.endswith(b"\r")
        rest = b"" if ended else lines.pop()
        events: list[SseEvent] = []
        try:
            for line in lines:
                self._line(self._whole(line), events)
            self._hold(rest)
        except SseTooLargeError as overflow:
            self._overflow = overflow
            if not events:
                raise
        return events

    def _past_bom(self, chunk: bytes) -> bytes:
        head = (self._head or b"") + chunk
        if len(head) < len(BOM_UTF8) and BOM_UTF8.startswith(head):
            self._head = head
            return b""
        self._head = None
        return head.removeprefix(BOM_UTF8)

    def _whole(self, line: bytes) -> bytes:
        if self._partial:
            self._partial.append(line)
            line = b"".join(self._partial)
            self._partial.clear()
            self._partial_size = 0
        return line

    def _hold(self, rest: bytes) -> None:
        if rest:
            self._partial.append(rest)
            self._partial_size += len(rest)
            self._bound(self._partial_size)

    def _bound(self, length: int) -> None:
        if self._size + length > self.limit:
            raise SseTooLargeError(self.limit)

    def _reset(self) -> None:
        self._data: list[bytes] = []
        self._id: str | None = None
        self._event = ""
        self._retry: int | None = None
        self._size = 0

    def _line(self, line: bytes, events: list[SseEvent]) -> None:
        if not line:
            self._dispatch(events)
            return
        self._bound(len(line))
        name, _, value = line.partition(b":")
        if name:  # else a comment
            self._field(name, value.removeprefix(b" "))
            self._size += len(line)

    def _field(self, name: bytes, value: bytes) -> None:
        if name == b"data":
            self._data.append(value)
        elif name == b"id":
            if b"\0" not in value:
                self._id = value.decode(errors="replace")
        elif name == b"event":
            self._event = value.decode(errors="replace")
        elif name == b"retry" and value.isdigit():
            self._retry = min(int(value[:9]), RETRY_MAX)

    def _dispatch(self, events: list[SseEvent]) -> None:
        if self._data or self._id is not None or self._retry is not None:
            events.append(SseEvent(b"\n".join(self._data), self._id, self._event or "message", self._retry))
        self._reset()
