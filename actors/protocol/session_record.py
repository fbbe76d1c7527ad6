"""The session record: what is kept of a session so that its actor can be built again, here or elsewhere.

Fields are small and written on change only. A rebuilt session knows its client, its level, its subscriptions and its
unfinished streams, and what waited in its box. What was in flight is continued where the backend can bring the rest of
its answer; else the request gets one error on its stream, which says that it may have been executed unless the record
says that it was never sent, and questions of backends are withdrawn.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.protocol import asks, box, capabilities, codec, errors, streams
from actors.protocol import effects as fx
from actors.protocol.continuation import continued
from actors.protocol.request_record import read_ask, read_request, request_id
from actors.protocol.session_state import Client, Session, Stream
from actors.protocol.session_table import SessionPhase
from actors.protocol.table import Table

SCHEMA = b"1"
"""The version of this layout, field `v`."""


def birth(principal: str, endpoint: str) -> dict[str, bytes]:
    """The fields a session is created with."""
    return {"v": SCHEMA, "principal": principal.encode(), "endpoint": endpoint.encode()}


def configuration(table: Table) -> dict[str, bytes]:
    """The field that names the configuration under which the client was shown what it knows."""
    return {"table": table.digest.encode()}


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
    if session.level is not None:
        fields |= level(session.level)
    return fields | box.fields(session.box)


def subscriptions(uris: tuple[str, ...]) -> dict[str, bytes | None]:
    """The field that holds the subscribed URIs."""
    return {"subscriptions": msgspec.json.encode(uris) if uris else None}


def level(chosen: str) -> dict[str, bytes | None]:
    """The field that holds the log level."""
    return {"level": chosen.encode()}


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
    def asked(self) -> Mapping[str, bytes]: ...

    @property
    def streams(self) -> Mapping[str, HeadLike]: ...


class _Client(msgspec.Struct):
    capabilities: Raw
    info: Raw


def is_complete(fields: Mapping[str, bytes]) -> bool:
    """Whether a session can be built from these fields: its handshake was over."""
    return fields.get("v") == SCHEMA and {"version", "client", "state"} <= set(fields)


def rebuild(
    record: RecordLike, fresh: Session, now: float = 0.0, reachable: Collection[str] = ()
) -> tuple[Session, fx.Effects]:
    """The session as recorded, in a new life with the epoch of `fresh`. The effects settle what can't be continued, and
    take up what can: with `reachable` backends, whose sessions are kept."""
    fields = record.fields
    version = fields["version"].decode()
    told = msgspec.json.decode(fields["client"], type=_Client)
    declared = capabilities.parse(Raw(bytes(told.capabilities)))
    client = Client(declared, capabilities.client_bits(declared.raw, version), Raw(bytes(told.info)))
    uris = tuple(msgspec.json.decode(fields["subscriptions"], type=list[str])) if "subscriptions" in fields else ()
    session = replace(
        fresh,
        phase=SessionPhase.OPERATION,
        version=version,
        client=client,
        server=capabilities.parse(Raw(fields["server"])) if "server" in fields else None,
        level=fields["level"].decode() if "level" in fields else None,
        subscriptions=uris,
        streams={name: Stream(head.seq) for name, head in record.streams.items() if not head.finished},
        box=box.read(fields.get("box")),
        next_post_stream=_next_number(record, "p"),
        next_get_stream=_next_number(record, "g"),
    )
    session, taken_up = continued(session, record, now, reachable)
    session, effects = _withdraw_questions(session, record)
    session, more = _settle_requests(session, record)
    return session, effects + more + taken_up


def _next_number(record: RecordLike, kind: str) -> int:
    """No stream gets the name of one that still has a log. (A log that is gone may lend its name once more: an event id
    holds the epoch too, so none is ever the same.)"""
    return 1 + max((int(name[1:]) for name in record.streams if name[0] == kind), default=0)


def _withdraw_questions(session: Session, record: RecordLike) -> tuple[Session, fx.Effects]:
    """Whoever asked is gone: the client need not answer. What was asked on a stream that is over is only forgotten."""
    asked = {ask_id: value for ask_id, value in record.asked.items() if ask_id not in session.asks}
    carriers = {ask_id: read_ask(value).stream for ask_id, value in asked.items()}
    session = replace(session, settled=tuple(i for i, name in carriers.items() if name not in session.streams))
    effects: fx.Effects = []
    for ask_id, name in carriers.items():
        if name in session.streams:
            frame = asks.withdrawal(ask_id, "the server is gone")
            session, more = streams.put(session, name, frame, asked={ask_id: None})
            effects += more
    return session, effects


def _settle_requests(session: Session, record: RecordLike) -> tuple[Session, fx.Effects]:
    """Unfinished streams of POSTs get the errors of their requests and end; GET streams stay open for their client."""
    effects: fx.Effects = []
    entries = {key: read_request(value) for key, value in record.requests.items()}
    carriers = {key: entry.stream for key, entry in entries.items()}
    for name in [n for n in session.streams if n.startswith("p")]:
        keys = [k for k, carrier in carriers.items() if carrier == name and request_id(k) not in session.requests]
        last = keys[-1:] if session.streams[name].post is None else []
        for key in keys[: len(keys) - len(last)]:
            data = _lost(key, unsent=entries[key].unsent)
            session, more = streams.put(session, name, data, requests={key: None})
            effects += more
        if session.streams[name].post is not None:
            continue  # others on it go on
        final = _lost(last[0], unsent=entries[last[0]].unsent) if last else None
        session, more = streams.put(session, name, final, finish=True, requests=dict.fromkeys(last))
        effects += more
    return session, effects


def _lost(key: str, *, unsent: bool) -> bytes:
    executed: errors.Executed = "no" if unsent else "unknown"
    error = errors.internal("the gateway process that ran this request ended", reason="owner_lost", executed=executed)
    return codec.encode_error(request_id(key), error)


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
    """The code of a JSON-RPC error as a metrics label, if it is one that somebody has given a meaning."""
    try:
        code = msgspec.json.decode(error, type=_Code).code
        return str(code) if code in errors.CODES else "other"
    except (msgspec.DecodeError, RecursionError):
        return "malformed"
