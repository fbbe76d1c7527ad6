"""The box: messages of a session that belong to no request and wait for a stream that somebody reads.

Bounded in number and bytes. What says that something has changed coalesces by its key and is in the record; chatter
(logs) is dropped first and is not. A message comes back into the box when the stream on which it was said has lost its
reader before it was written.
"""

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from actors.protocol.session_state import Boxed, Rules

Box = tuple[Boxed, ...]


def added(rules: Rules, box: Box, boxed: Boxed) -> tuple[Box, int]:
    """The box with one more message, which replaces one with its key; and how many were dropped for want of room."""
    kept = tuple(b for b in box if boxed.key is None or b.key != boxed.key)
    dropped = 0
    while not _has_room(rules, kept, boxed):
        chatter = next((b for b in kept if b.key is None), None) if boxed.key is not None else None
        if chatter is None:
            return kept, dropped + 1
        kept = tuple(b for b in kept if b is not chatter)
        dropped += 1
    return (*kept, boxed), dropped


def _has_room(rules: Rules, box: Box, boxed: Boxed) -> bool:
    return len(box) < rules.box and sum(len(b.data) for b in box) + len(boxed.data) <= rules.box_bytes


def noted(rules: Rules, unread: Box, boxed: Boxed) -> Box:
    """What may not have been written, with one more; the oldest, which most likely was, goes first."""
    kept = tuple(b for b in unread if b.key != boxed.key)
    while kept and not _has_room(rules, kept, boxed):
        kept = kept[1:]
    return (*kept, boxed)


def returned(rules: Rules, box: Box, unread: Box, stream: str) -> tuple[Box, int]:
    """The box with what this stream's reader did not get, and how many were dropped for want of room. What has waited
    all the while under the same key says it better: it was never said."""
    dropped = 0
    waiting = {b.key for b in box}
    for boxed in unread:
        if boxed.key not in waiting:
            box, more = added(rules, box, replace(boxed, stream=stream))
            dropped += more
    return box, dropped


class _Kept(Struct, frozen=True, array_like=True):
    key: str
    data: Raw
    stream: str = ""
    seq: int = 0


def fields(box: Box) -> dict[str, bytes | None]:
    """The field of the record that holds what must not be lost."""
    kept = [_Kept(b.key, Raw(b.data), b.stream, b.seq) for b in box if b.key is not None]
    return {"box": msgspec.json.encode(kept) if kept else None}


def read(field: bytes | None) -> Box:
    """The box of a record."""
    if field is None:
        return ()
    return tuple(Boxed(k.key, bytes(k.data), k.stream, k.seq) for k in msgspec.json.decode(field, type=list[_Kept]))
