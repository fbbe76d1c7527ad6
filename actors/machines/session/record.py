"""What is kept of a session so that its actor can be built again, here or elsewhere (`session/rebuild`): the fields
of its record, and what is in flight: requests of the client (`q:`), and what a backend asked the client in the
course of one (`o:`). Small, and written on change only.

An entry of what is in flight names its stream. Where the backend gives its events ids it also says how the rest of
the answer can be had (2025-11-25 transports, "Resumability and Redelivery"); that goes into the record together
with the last event that came of what the backend said: then neither is ever there without the other, and nothing is
shown twice or left out. Of a request that waits to be sent it says that it was not. That is taken back, and the
store's acknowledgement waited for, before the request is sent: so it holds for whoever reads it after the end of
the process.
"""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Final, TypeAlias

from msgspec import DecodeError, Raw, Struct, json
from msgspec.structs import replace

from actors.machines.session import events as ev
from actors.machines.session.state import Boxed, Client, ClientRequest, ServerRequest, Session
from actors.protocol.capabilities import client_bits, parse
from actors.protocol.messages import RequestId
from actors.protocol.table import Table, filters

Fields: TypeAlias = dict[str, bytes | None]
"""Changes of a record; None deletes."""

READS: Final = (1, 1)
"""The oldest and the newest version of this layout (field `v`) that is read here."""


def written(others: Iterable[Any], mine: tuple[int, int] = READS) -> int:
    """The version in which records are written: the newest that everybody reads who lives, by what the `others` say
    that they read (`READS`). Who says nothing that makes sense reads what there was first."""
    return max(mine[0], min([mine[1], *(_range(told)[1] for told in others)]))


def reads(told: Any, version: int) -> bool:
    """Whether one that says this of what it reads can read a record of this version."""
    oldest, newest = _range(told)
    return oldest <= version <= newest


def _range(told: Any) -> tuple[int, int]:
    match told:
        case [int(oldest), int(newest)]:
            return oldest, newest
        case _:
            return 1, 1


# Fields ------------------------------------------------------------------------------------------------------


def birth(principal: str, endpoint: str, version: int = READS[0]) -> dict[str, bytes]:
    """The fields a session is created with."""
    return {"v": b"%d" % version, "principal": principal.encode(), "endpoint": endpoint.encode()}


def configuration(table: Table, endpoint: str) -> dict[str, bytes]:
    """The field that names the configuration under which the client was shown what it knows: of a single server that is
    the filters of its tools, of several anything about them."""
    served = table.endpoints.get(endpoint)
    if served is None or served.kind == "aggregate":
        return {"table": table.digest.encode()}
    shown = repr(filters(table, served.backends[0])).encode()
    return {"table": sha256(shown).hexdigest()[:16].encode()}


def handshake(session: Session) -> Fields:
    """The fields that the handshake settles."""
    client = session.client
    fields: Fields = {"state": session.phase.value.encode(), "version": session.version.encode()}
    if client is not None:
        told = bytes(client.capabilities.raw) or b"{}", bytes(client.info)
        fields["client"] = b'{"capabilities":%s,"info":%s}' % told
    if session.server is not None:
        fields["server"] = bytes(session.server.raw)
    if session.level is not None:
        fields |= level(session.level)
    return fields | box(session.box)


def is_complete(fields: Mapping[str, bytes]) -> bool:
    """Whether a session can be built from these fields: its handshake was over."""
    version = fields.get("v", b"")
    readable = version.isdigit() and READS[0] <= int(version) <= READS[1]
    return readable and {"version", "client", "state"} <= set(fields)


class _Client(Struct):
    capabilities: Raw
    info: Raw


def read_client(field: bytes, version: str) -> Client:
    """What the client said of itself in a session of this revision."""
    told = json.decode(field, type=_Client)
    declared = parse(Raw(bytes(told.capabilities)))
    return Client(declared, client_bits(declared.raw, version), Raw(bytes(told.info)))


def subscriptions(uris: tuple[str, ...]) -> Fields:
    """The field that holds the subscribed URIs."""
    return {"subscriptions": json.encode(uris) if uris else None}


def level(chosen: str) -> Fields:
    """The field that holds the log level."""
    return {"level": chosen.encode()}


class _Kept(Struct, frozen=True, array_like=True):
    key: str
    data: Raw
    stream: str = ""
    seq: int = 0


def box(content: tuple[Boxed, ...]) -> Fields:
    """The field that holds what must not be lost of the box."""
    kept = [_Kept(b.key, Raw(b.data), b.stream, b.seq) for b in content if b.key is not None]
    return {"box": json.encode(kept) if kept else None}


def read_box(field: bytes | None) -> tuple[Boxed, ...]:
    """The box of a record."""
    if field is None:
        return ()
    return tuple(Boxed(k.key, bytes(k.data), k.stream, k.seq) for k in json.decode(field, type=list[_Kept]))


# What is in flight -------------------------------------------------------------------------------------------


class Recorded(
    Struct,
    frozen=True,
    omit_defaults=True,
    rename={"stream": "s", "backend": "b", "upstream": "u", "unsent": "w", "trace": "t"},
):
    """A request of the client; `upstream` is its id there, and the answer goes on after the event `cursor`. `unsent`:
    it was never sent. `trace`: by what later work can point at it."""

    stream: str
    backend: str = ""
    upstream: str = ""
    cursor: str = ""
    method: str = ""
    token: int | str | None = None
    progress: float | None = None
    unsent: bool = False
    trace: str = ""

    @property
    def place(self) -> ev.Place | None:
        """Where it can be continued."""
        return ev.Place(self.upstream, self.cursor) if self.backend and self.cursor else None


NO_ANSWER = Raw(b"")


class RecordedServerRequest(Struct, frozen=True, omit_defaults=True, rename={"stream": "s", "backend": "b"}):
    """A server request; `request` is the key of the request that it came with, `id` and `token` are the backend's
    own. `answer`: the client's, an error if it `failed`."""

    stream: str
    backend: str = ""
    request: str = ""
    id: int | str = 0
    method: str = ""
    token: int | str | None = None
    answer: Raw = NO_ANSWER
    failed: bool = False


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
        return json.encode(Recorded(stream, unsent=True, trace=entry.trace))
    if entry is None or place is None or place.cursor is None:
        if entry is None or not entry.trace:
            return stream.encode()
        return json.encode(Recorded(stream, method=entry.method, trace=entry.trace))
    upstream = str(place.id)  # ours, so a text
    return json.encode(
        Recorded(
            stream, entry.backend, upstream, place.cursor, entry.method, entry.token, entry.progress, trace=entry.trace
        )
    )


def of_server_request(
    ask: ServerRequest, entry: ClientRequest | None, stream: str, answer: Raw = NO_ANSWER, *, failed: bool = False
) -> bytes:
    """The entry of a server request on this stream, that came with this request, with the client's answer."""
    if entry is None or entry.place is None or entry.place.cursor is None:
        return stream.encode()
    return json.encode(
        RecordedServerRequest(stream, ask.backend, request_key(entry.id), ask.id, ask.method, ask.token, answer, failed)
    )


def read_request(value: bytes) -> Recorded:
    """What `of_request` wrote."""
    try:
        return json.decode(value, type=Recorded)
    except DecodeError:
        return Recorded(value.decode())


def read_server_request(value: bytes) -> RecordedServerRequest:
    """What `of_server_request` wrote."""
    try:
        return json.decode(value, type=RecordedServerRequest)
    except DecodeError:
        return RecordedServerRequest(value.decode())


NOT_CONTINUED = frozenset(
    {"initialize", "tools/list", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"}
)
"""Requests whose answer is not all that they come to: the session has to do something of its own with it."""


def place(
    session: Session,
    entry: ClientRequest,
    stream: str | None,
    event: ev.CallProgressed | ev.ServerRequested | ev.CallPlaced,
) -> tuple[Session, Fields]:
    """Takes down where a request stands at its backend; the change of the record, if it is recorded."""
    if event.place is None or entry.method in NOT_CONTINUED:
        return session, {}
    entry = replace(entry, backend=event.backend, place=event.place)
    return session.having(entry), {request_key(entry.id): of_request(entry, stream)} if stream is not None else {}
