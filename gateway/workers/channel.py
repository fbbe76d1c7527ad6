"""What a supervisor and one of its workers say to each other, over a pair of sockets that nobody else has.

Its end is a message too: a worker whose supervisor is gone drains, a supervisor whose worker is gone starts another.
Frames are msgpack behind their length. The two may be of different versions (a rolling restart after an upgrade), so
members are only ever added, with defaults, and what can't be read is passed over.
"""

import socket
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
import trio
from msgspec import Struct

from gateway.observability.metrics import Example

FRAME_MAX = 64 * 1024 * 1024
"""Bytes of one message; all series of a worker at their bounds are a fraction of it."""

LENGTH = 4
"""Bytes that say how long a message is."""


class Hello(Struct, tag=True, kw_only=True):
    """To a worker, first: which it is, and what all of them share. `listeners` are descriptors that it inherited; what
    they are bound to stands in `listen` as host and port, as configured, or in `path`. `keys` are for one without its
    own."""

    place: int
    listeners: list[int]
    listen: tuple[str, int]
    store: str
    keys: list[bytes] = []
    path: str = ""
    config: bytes = b""
    """The configuration in force, in a form that is nobody's business here; empty: what the worker's arguments name."""


class Look(Struct, tag=True):
    """To a worker: say how you are at this moment."""

    number: int


class Drain(Struct, tag=True):
    """To a worker: end in order. Once more changes nothing."""

    reason: str


class Ask(Struct, tag=True):
    """To a worker: something about sessions, as its admin listener would be asked."""

    number: int
    what: str
    name: str = ""
    options: dict[str, str] = {}


class Reload(Struct, tag=True):
    """To a worker: look whether this configuration can be used, or (`commit`) put it in force; answered by `Told`."""

    number: int
    config: bytes
    commit: bool = False


class Told(Struct, tag=True):
    """From a worker: the answer to the `Ask` or `Reload` of this number, an HTTP status and a JSON object."""

    number: int
    status: int
    body: dict[str, Any] = {}


Row: TypeAlias = tuple[tuple[str, ...], float | list[float]]
"""Labels, and a number or a histogram's cell."""
Seen: TypeAlias = tuple[tuple[str, ...], dict[int, Example]]
"""Labels, and an example of each bucket that has one."""


class State(Struct, tag=True, kw_only=True):
    """From a worker: how it is. Comes by itself every half second, at each `Look` (`answers` is its number), when it
    gets ready, and last after its drain."""

    ready: bool
    degraded: bool = False
    incarnation: str = ""
    """Under which name the store knows it at present; empty: under none."""
    details: dict[str, Any] = {}
    servers: list[dict[str, Any]] = []
    numbers: dict[str, list[Row]] = {}
    """Its metrics."""
    examples: dict[str, list[Seen]] = {}
    """Traces to which its histograms' observations belong."""
    process: dict[str, float] = {}
    """What the operating system counts of it."""
    answers: int = 0
    ends_within: float = 0.0
    """Seconds from the word to drain after which it should be killed, by its own configuration."""


ToWorker: TypeAlias = Hello | Look | Drain | Ask | Reload
FromWorker: TypeAlias = State | Told

Heard = TypeVar("Heard")
_encode = msgspec.msgpack.Encoder().encode


class Channel(Generic[Heard]):
    """One end. `reads` is the union of what comes in."""

    def __init__(self, end: socket.socket, reads: Any) -> None:
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(end))
        self._decoder: msgspec.msgpack.Decoder[Heard] = msgspec.msgpack.Decoder(reads)
        self._sending = trio.Lock()
        self._buffer = bytearray()

    async def send(self, message: ToWorker | FromWorker) -> None:
        """Raises trio.BrokenResourceError when the other side is gone."""
        body = _encode(message)
        async with self._sending:
            await self._stream.send_all(len(body).to_bytes(LENGTH, "big") + body)

    async def receive(self) -> Heard | None:
        """The next message; None when the other side is gone."""
        while True:
            head = await self._take(LENGTH)
            length = int.from_bytes(head, "big") if head is not None else FRAME_MAX + 1
            body = await self._take(length) if length <= FRAME_MAX else None
            if body is None:
                return None
            try:
                return self._decoder.decode(body)
            except msgspec.DecodeError:
                continue

    async def _take(self, length: int) -> bytes | None:
        while len(self._buffer) < length:
            try:
                data = await self._stream.receive_some(65536)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return None
            if not data:
                return None
            self._buffer += data
        taken = bytes(self._buffer[:length])
        del self._buffer[:length]
        return taken

    async def aclose(self) -> None:
        """Closes this end; the other one notices."""
        await self._stream.aclose()
