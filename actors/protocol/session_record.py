"""The session record: what is kept of a session so that its actor can be built again, here or elsewhere.

Fields are small and written on change only. A rebuilt session knows its client, its level, its subscriptions and its
unfinished streams; requests that were in flight can't be continued, so each gets one error on its stream, which says
that it may have been executed.
"""

from collections.abc import Mapping
from typing import Protocol

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.protocol import capabilities, codec, errors
from actors.protocol import effects as fx
from actors.protocol.messages import RequestId
from actors.protocol.session_state import Client, Session, Stream
from actors.protocol.session_table import Phase

SCHEMA = b"1"
"""The version of this layout, field `v`."""


def birth(principal: str, endpoint: str) -> dict[str, bytes]:
    """The fields a session is created with."""
    return {"v": SCHEMA, "principal": principal.encode(), "endpoint": endpoint.encode()}


def handshake(session: Session) -> dict[str, bytes | None]:
    """The fields that the handshake settles."""
    client = session.client
    fields: dict[str, bytes | None] = {"state": session.phase.value.encode(), "version": session.version.encode()}
    if client is not None:
        fields["client"] = b'{"capabilities":%s,"info":%s}' % (
            bytes(client.capabilities.raw) or b"{}",
            bytes(client.info),
        )
    if session.server is not None:
        fields["server"] = bytes(session.server.raw)
    return fields


def subscriptions(uris: tuple[str, ...]) -> dict[str, bytes | None]:
    """The field that holds the subscribed URIs."""
    return {"subscriptions": msgspec.json.encode(uris) if uris else None}


class HeadLike(Protocol):
    """What is needed here of a recorded stream head."""

    @property
    def seq(self) -> int: ...

    @property
    def finished(self) -> bool: ...


class RecordLike(Protocol):
    """What is needed here of a record; the ports, which layer 0 does not know, have one."""

    @property
    def fields(self) -> Mapping[str, bytes]: ...

    @property
    def requests(self) -> Mapping[str, bytes]: ...

    @property
    def streams(self) -> Mapping[str, HeadLike]: ...


class _Client(msgspec.Struct):
    capabilities: Raw
    info: Raw


def is_complete(fields: Mapping[str, bytes]) -> bool:
    """Whether a session can be built from these fields: its handshake was over."""
    return fields.get("v") == SCHEMA and {"version", "client", "state"} <= set(fields)


def rebuild(record: RecordLike, fresh: Session) -> tuple[Session, fx.Effects]:
    """The session as recorded, in a new life with the epoch of `fresh`; the effects settle what can't be continued."""
    fields = record.fields
    version = fields["version"].decode()
    told = msgspec.json.decode(fields["client"], type=_Client)
    declared = capabilities.parse(Raw(bytes(told.capabilities)))
    client = Client(declared, capabilities.client_bits(declared.raw, version), Raw(bytes(told.info)))
    uris = tuple(msgspec.json.decode(fields["subscriptions"], type=list[str])) if "subscriptions" in fields else ()
    session = replace(
        fresh,
        phase=Phase.OPERATION,
        version=version,
        client=client,
        server=capabilities.parse(Raw(fields["server"])) if "server" in fields else None,
        level=fields["level"].decode() if "level" in fields else None,
        subscriptions=uris,
    )
    numbers = {name: int(name[1:]) for name in record.streams if name[1:].isdigit()}
    session = replace(
        session,
        next_post_stream=1 + max((n for s, n in numbers.items() if s[0] == "p"), default=_count(fields, "p")),
        next_get_stream=1 + max((n for s, n in numbers.items() if s[0] == "g"), default=_count(fields, "g")),
    )
    return _settle(session, record)


def _count(fields: Mapping[str, bytes], kind: str) -> int:
    return int(fields.get(f"next_{kind}", b"0"))


def _settle(session: Session, record: RecordLike) -> tuple[Session, fx.Effects]:
    """Unfinished POST streams get the errors of their requests and end; GET streams stay open for their client."""
    effects: fx.Effects = []
    streams: dict[str, Stream] = {}
    by_stream: dict[str, list[str]] = {}
    for key, carrier in record.requests.items():
        by_stream.setdefault(carrier.decode(), []).append(key)
    for name, head in record.streams.items():
        if head.finished:
            continue
        if name.startswith("g"):
            streams[name] = Stream(head.seq)
            continue
        keys = by_stream.get(name, [])
        seq = head.seq
        for at, key in enumerate(keys, 1):
            seq += 1
            effects.append(fx.Append(name, seq, _lost(key), at == len(keys), {key: None}))
        if not keys:
            effects.append(fx.Append(name, seq + 1, None, True))
    return replace(session, streams=streams), effects


def _lost(key: str) -> bytes:
    error = errors.internal("the gateway process that ran this request ended", reason="owner_lost", executed="unknown")
    return codec.encode_error(request_id(key), error)


def request_id(key: str) -> RequestId:
    """The id that a record's key stands for."""
    return int(key[2:]) if key.startswith("i:") else key[2:]


class _Name(msgspec.Struct):
    name: str


def tool_name(params: Raw) -> str:
    """The tool that a call names, for metrics."""
    try:
        return msgspec.json.decode(params, type=_Name).name
    except (msgspec.DecodeError, RecursionError):
        return ""


class _Code(msgspec.Struct):
    code: int


def error_type(error: Raw) -> str:
    """The code of a JSON-RPC error as a metrics label."""
    try:
        return str(msgspec.json.decode(error, type=_Code).code)
    except (msgspec.DecodeError, RecursionError):
        return "malformed"
