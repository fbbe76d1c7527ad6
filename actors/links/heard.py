"""What a transport says, as events of the link's machine."""

from collections.abc import Iterator
from typing import NamedTuple

from actors import ports
from actors.protocol import codec
from actors.protocol import link_events as ev
from actors.protocol.diagnostics import NO_DIAGNOSTICS, Diagnostics
from actors.protocol.errors import Malformed
from actors.protocol.messages import RequestId


class Garbled(NamedTuple):
    """A message that can't be read; `related` as in `FrameReceived`."""

    malformed: Malformed
    related: RequestId | None


def diagnosed(status: int | None, stderr: tuple[str, ...], detail: str) -> Diagnostics:
    """What a transport knows of a failure."""
    return Diagnostics(status, stderr, detail) if status or stderr or detail else NO_DIAGNOSTICS


def heard(said: ports.TransportEvent, most: int) -> Iterator[ev.LinkEvent | Garbled]:
    """The events that this comes to, in order; messages may have `most` bytes."""
    match said:
        case ports.FrameReceived():
            yield from _messages(said, most)
        case ports.Positioned(related, cursor):
            yield ev.Moved(related, cursor)
        case ports.EventsMissed():
            yield ev.Missed()
        case ports.Listening():
            yield ev.Listening()
        case ports.FrameAccepted(tag):
            yield ev.Accepted(tag)
        case ports.RequestFailed(id, reason, message, executed, status, detail, stderr):
            yield ev.SendFailed(id, reason, message, executed, diagnosed(status, stderr, detail))
        case ports.SessionLost(id):
            yield ev.SessionForgotten(id)
        case ports.TransportClosed(reason, message, detail, stderr):
            yield ev.Closed(reason, message, diagnostics=diagnosed(None, stderr, detail))


def _messages(said: ports.FrameReceived, most: int) -> Iterator[ev.LinkEvent | Garbled]:
    try:
        decoded = codec.decode_frame(said.frame, most)
    except Malformed as malformed:
        yield Garbled(malformed, said.related)
        return
    messages = decoded.messages if isinstance(decoded, codec.Batch) else (decoded,)
    for n, message in enumerate(messages, 1):
        if isinstance(message, Malformed):
            yield Garbled(message, said.related)
        else:
            # The place is behind all of them, and none may be behind it.
            yield ev.Incoming(message, said.related, said.cursor if n == len(messages) else None, said.status)
