"""What the record holds of what is in flight: requests of the client (`q:`), and what a backend asked the client in the
course of one (`o:`).

An entry names its stream. Where the backend gives its events ids it also says how the rest of the answer can be had;
of a request that waits to be sent, that it was not. That is taken back, and the store's acknowledgement waited for,
before the request is sent: so it holds for whoever reads it after the end of the process.
"""

from msgspec import DecodeError, Struct, json

from actors.protocol.events import Place
from actors.protocol.messages import RequestId
from actors.protocol.session_state import Ask, ClientRequest

NAMES = {"stream": "s", "backend": "b", "upstream": "u", "unsent": "w"}


class Recorded(Struct, frozen=True, omit_defaults=True, rename=NAMES):
    """A request of the client; `upstream` is its id there, and the answer goes on after the event `cursor`. `unsent`:
    it was never sent."""

    stream: str
    backend: str = ""
    upstream: str = ""
    cursor: str = ""
    method: str = ""
    token: int | str | None = None
    progress: float | None = None
    unsent: bool = False

    @property
    def place(self) -> Place | None:
        """Where it can be continued."""
        return Place(self.upstream, self.cursor) if self.backend and self.cursor else None


class RecordedAsk(Struct, frozen=True, omit_defaults=True, rename={"stream": "s", "backend": "b"}):
    """A question; `request` is the key of the request that it came with, `id` and `token` are the backend's own."""

    stream: str
    backend: str = ""
    request: str = ""
    id: int | str = 0
    method: str = ""
    token: int | str | None = None


def request_key(id: RequestId) -> str:
    """The name of a request in the record: ids are told apart by type and value."""
    return f"i:{id}" if isinstance(id, int) else f"s:{id}"


def request_id(key: str) -> RequestId:
    """The id that a record's key stands for."""
    return int(key[2:]) if key.startswith("i:") else key[2:]


def of_request(entry: ClientRequest | None, stream: str) -> bytes:
    """The entry of a request on this stream."""
    place = entry.place if entry is not None else None
    if entry is not None and entry.unsent:
        return json.encode(Recorded(stream, unsent=True))
    if entry is None or place is None or place.cursor is None:
        return stream.encode()
    upstream = str(place.id)  # ours, so a text
    return json.encode(
        Recorded(stream, entry.backend, upstream, place.cursor, entry.method, entry.token, entry.progress)
    )


def of_ask(ask: Ask, entry: ClientRequest | None, stream: str) -> bytes:
    """The entry of a question on this stream, that came with this request."""
    if entry is None or entry.place is None or entry.place.cursor is None:
        return stream.encode()
    return json.encode(RecordedAsk(stream, ask.backend, request_key(entry.id), ask.id, ask.method, ask.token))


def read_request(value: bytes) -> Recorded:
    """What `of_request` wrote."""
    try:
        return json.decode(value, type=Recorded)
    except DecodeError:
        return Recorded(value.decode())


def read_ask(value: bytes) -> RecordedAsk:
    """What `of_ask` wrote."""
    try:
        return json.decode(value, type=RecordedAsk)
    except DecodeError:
        return RecordedAsk(value.decode())
