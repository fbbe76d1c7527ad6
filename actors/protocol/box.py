"""The box: messages of a session that belong to no request and wait for a stream that somebody reads.

Bounded in number and bytes. What says that something has changed coalesces by its key and is in the record; chatter
(logs) is dropped first and is not.
"""

import msgspec
from msgspec import Raw

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


def fields(box: Box) -> dict[str, bytes | None]:
    """The field of the record that holds what must not be lost."""
    kept = [(b.key, Raw(b.data)) for b in box if b.key is not None]
    return {"box": msgspec.json.encode(kept) if kept else None}


def read(field: bytes | None) -> Box:
    """The box of a record."""
    if field is None:
        return ()
    return tuple(Boxed(key, bytes(data)) for key, data in msgspec.json.decode(field, type=list[tuple[str, Raw]]))
