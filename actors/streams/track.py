"""What the recorder knows of one stream: what is in the log, and what is on its way into it."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from actors.protocol import codec, errors, sse
from actors.protocol import effects as fx
from actors.protocol.messages import Error, RequestId, Result
from actors.streams.connection import Connection


@dataclass(slots=True)
class Entry:
    """An event that is not in the log yet, and what else of the record is written with it. `seq` and `frame` hold for
    the present attempt to bring it there."""

    effect: fx.Append
    seq: int = 0
    frame: bytes = b""
    fields: dict[str, bytes | None] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of its data."""
        return len(self.effect.data or b"")

    @property
    def answers(self) -> bool:
        """It brings the outcome of a request, what a call waits for, or the end of the stream: it is never dropped."""
        data = self.effect.data
        if self.effect.clears is not None:
            return True
        return self.effect.finish or bool(data and isinstance(codec.decode_message(data), Result | Error))

    def shrink(self) -> bool:
        """Makes a large answer a small error that says so; False if it is none, or small already."""
        data = self.effect.data
        message = codec.decode_message(data) if data else None
        if data is None or not isinstance(message, Result | Error):
            return False
        executed: errors.Executed = "yes" if isinstance(message, Result) else "unknown"
        error = errors.internal("the answer is too large for the log", reason="answer_too_large", executed=executed)
        small = codec.encode_error(message.id, error)
        if len(small) >= len(data):
            return False
        self.effect = replace(self.effect, data=small)
        return True


@dataclass(slots=True)
class Track:
    """Up to `acked` is in the log; `pending` is on its way, in order.

    `recorded`: the stream is in the log; else its events go out at once, without ids. `stalled`: the store is away, and
    nothing is on its way until it is tried again. `attempt` tells late outcomes of an earlier try. `opened` is to be
    called when the stream is open. `written`: what went out on the last connection.
    `fence`: the first event that must stay as long as the stream of a POST is live, if there is one; it brings an
    answer. `owed`: the requests whose outcome is not on its way yet, of a client that may have no id to come back with.
    """

    acked: int = 0
    pending: deque[Entry] = field(default_factory=deque)
    connection: Connection | None = None
    recorded: bool = True
    stalled: bool = False
    finished: bool = False
    attempt: int = 0
    next: int = 1
    written: int = 0
    fence: int = 0
    owed: dict[RequestId, None] = field(default_factory=dict)
    opened: Callable[[], None] | None = None
    asked: dict[str, bytes | None] = field(default_factory=dict)
    """Changes of the record that came with events which were dropped: they go with the next one."""

    def drop(self, entry: Entry) -> None:
        """Nobody will see this event. (Identity, not equality: two events may be alike.)"""
        self.pending = deque(other for other in self.pending if other is not entry)
        self.asked |= entry.effect.asked

    def take_asked(self, entry: Entry) -> dict[str, bytes | None]:
        """The changes of the record that go with this event."""
        if self.asked:
            entry.effect = replace(entry.effect, asked={**self.asked, **entry.effect.asked})
            self.asked = {}
        return entry.effect.asked

    def answered(self, effect: fx.Append) -> None:
        """Takes down what is on its way. (The last of several requests, like an only one, has the last event.)"""
        if effect.finish:
            self.owed.clear()
        elif len(self.owed) > 1 and effect.data:
            message = codec.decode_message(effect.data)
            if isinstance(message, Result | Error) and message.id is not None:
                self.owed.pop(message.id, None)

    def words(self) -> bytes:
        """The last events for a client that can't resume, because it never got an id."""
        return b"".join(sse.encode_event(codec.encode_error(id, errors.actor_ended()), None) for id in self.owed)

    def held(self) -> int:
        """Bytes that wait."""
        return sum(entry.size for entry in self.pending)
