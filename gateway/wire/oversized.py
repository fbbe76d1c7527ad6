"""What a message was that is too long to be read, by the two ends of its line that were kept.

Whoever waits for its answer, at either end, is to be told at once. Most programs write the id of a message first (the
SDKs for Python, Go, Rust and Java) or last (the one for TypeScript), and the name of what it carries before that.
"""

import re
from enum import Enum
from typing import Final

from msgspec import Raw, Struct

from actors.protocol import codec
from actors.protocol.messages import RequestId
from gateway.wire.lines import LongLine


class Kind(Enum):
    """What was said."""

    ANSWER = "answer"
    REQUEST = "request"
    TOLD = "told"
    """A notification, or no message at all: nobody waits for it."""


class Oversized(Struct, frozen=True):
    """A message that was dropped for its size. `id`: of an answer or a request; None where neither end says it."""

    kind: Kind
    id: RequestId | None = None


_ID: Final = rb'"id"\s*:\s*(-?\d{1,18}|"(?:[^"\\]|\\.)*")'
_VERSION: Final = rb'"jsonrpc"\s*:\s*"2\.0"'
_HEAD: Final = re.compile(
    rb'\s*\{\s*(?:(?:%b|%b)\s*,\s*)*"(result|error|method)"\s*:\s*("notifications/)?' % (_VERSION, _ID)
)
_TAIL: Final = re.compile(rb",\s*(?:%b\s*,\s*)?%b\s*(?:,\s*%b\s*)?\}\s*$" % (_VERSION, _ID, _VERSION))
"""Nothing but the end of the message itself looks like this: in a text the quotes would be escaped, and a member that
lies deeper has a further brace behind it."""


def read(line: LongLine) -> Oversized | None:
    """None where the line may be a message, and does not say of what kind."""
    head = _HEAD.match(line.head)
    if head is None:
        return None if line.head.lstrip().startswith((b"{", b"[")) else Oversized(Kind.TOLD)
    tail = None if head[1] is not None else _TAIL.search(line.tail)
    text = head[1] or (tail[1] if tail is not None else None)
    id = _id(text) if text is not None else None
    if head[2] != b"method":
        return Oversized(Kind.ANSWER, id)
    return Oversized(Kind.TOLD) if head[3] is not None else Oversized(Kind.REQUEST, id)


def _id(text: bytes) -> RequestId | None:
    try:
        id: RequestId = codec.loads(Raw(text))
    except codec.Malformed:  # the message was none
        return None
    return id
