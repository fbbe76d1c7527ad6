"""A session in its next life, built from its record.

It knows its client, its level, its subscriptions and its unfinished streams, and what waited in its box. A request
that was in flight is continued where its backend can bring the rest of the answer: it is in flight again, on its
stream, and so are the server requests that came with it. (Their deadlines begin anew, for no clock says how long
nobody was there.) Any other gets one error on its stream, which says that it may have been executed unless the
record says that it was never sent, and its server requests are withdrawn.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

from msgspec import Raw, json
from msgspec.structs import replace

from actors.machines.session import effects as fx
from actors.machines.session import streams
from actors.machines.session.record import (
    Recorded,
    RecordedServerRequest,
    read_box,
    read_client,
    read_request,
    read_server_request,
    request_id,
    request_key,
)
from actors.machines.session.state import ClientRequest, Post, ServerRequest, Session, SessionPhase, Stream
from actors.protocol import capabilities, codec, errors
from actors.protocol.messages import RequestId

Requests = Mapping[RequestId, Recorded]
ServerRequested = Mapping[str, RecordedServerRequest]


class HeadLike(Protocol):
    """What is needed here of a recorded stream head."""

    @property
    def seq(self) -> int: ...

    @property
    def finished(self) -> bool: ...

    @property
    def opener(self) -> int: ...


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

    @property
    def older(self) -> bool: ...


def continuable(session: Session, lasting: Collection[str]) -> dict[RequestId, ClientRequest]:
    """The requests that another life could take up from the record, and whose client can come back for the answer: it
    was given an event id."""

    def can_be(entry: ClientRequest) -> bool:
        known = entry.place is not None and entry.place.cursor is not None and entry.backend in lasting
        stream = session.streams.get(session.posts[entry.post].stream or "") if known else None
        return stream is not None and stream.seq > 0

    return {id: entry for id, entry in session.requests.items() if can_be(entry)}


def rebuild(record: RecordLike, fresh: Session, now: float = 0.0, reachable: Collection[str] = ()) -> streams.Step:
    """The session as recorded, in a new life with the epoch of `fresh`. The effects settle what can't be continued, and
    take up what can: with `reachable` backends, whose sessions are kept."""
    requests = {request_id(key): read_request(value) for key, value in record.requests.items()}
    asked = {server_request_id: read_server_request(value) for server_request_id, value in record.asked.items()}
    session = _read(record, fresh)
    taken_up: fx.Effects = []
    for name in _posts(session):
        mine = {i: e for i, e in requests.items() if e.stream == name and e.place and e.backend in reachable}
        if mine:
            session, more = _take_up(session, name, mine, asked, now)
            taken_up += more
    session, effects = _withdraw_questions(session, asked)
    session, more = _settle_requests(session, requests, older=record.older)
    return session, effects + more + taken_up


def _read(record: RecordLike, fresh: Session) -> Session:
    fields = record.fields
    version = fields["version"].decode()
    return replace(
        fresh,
        phase=SessionPhase.OPERATION,
        version=version,
        client=read_client(fields["client"], version),
        server=capabilities.parse(Raw(fields["server"])) if "server" in fields else None,
        level=fields["level"].decode() if "level" in fields else None,
        subscriptions=tuple(json.decode(fields.get("subscriptions", b"[]"), type=list[str])),
        streams={
            name: Stream(head.seq, opener=head.opener) for name, head in record.streams.items() if not head.finished
        },
        box=read_box(fields.get("box")),
        next_post_stream=_next_number(record, "p"),
        next_get_stream=_next_number(record, "g"),
    )


def _next_number(record: RecordLike, kind: str) -> int:
    """No stream gets the name of one that still has a log. (A log that is gone may lend its name once more: an event id
    holds the epoch too, so none is ever the same.)"""
    return 1 + max((int(name[1:]) for name in record.streams if name[0] == kind), default=0)


def _posts(session: Session) -> list[str]:
    """The unfinished streams of POSTs."""
    return [name for name in session.streams if name.startswith("p")]


def _take_up(session: Session, name: str, entries: Requests, asked: ServerRequested, now: float) -> streams.Step:
    """The requests of one stream, under a POST that no connection ever had: its number is below all others."""
    post = -1 - len(session.posts)
    requests, calls, open = session.requests.copy(), session.calls.copy(), session.asks.copy()
    given = session.given.copy()
    effects: fx.Effects = []
    for call, (id, entry) in enumerate(entries.items(), session.next_call):
        place, token = entry.place, entry.token
        assert place is not None
        requests[id] = ClientRequest(
            id,
            post,
            call,
            entry.method,
            now,
            token,
            entry.progress,
            timed=True,
            backend=entry.backend,
            place=place,
            trace=entry.trace,
        )
        calls[call] = id
        # The client has them, on this stream or on that of a GET, and may answer.
        mine = {i: a for i, a in asked.items() if a.request == request_key(id) and a.stream in session.streams}
        given |= {i: call for i, a in mine.items() if a.answer}
        open |= {
            i: ServerRequest(a.backend, a.id, call, a.method, b"", a.stream, a.token)
            for i, a in mine.items()
            if not a.answer
        }
        questions = tuple((a.id, a.method) for a in mine.values())
        effects.append(fx.Continue(call, entry.backend, entry.method, token is not None, place, questions))
        effects.append(fx.StartDeadline(call, now, now))
        for server_request_id, ask in mine.items():
            if not ask.answer:
                effects.append(fx.StartServerRequestClock(server_request_id, True))
            else:  # the client has said so, and may not have been heard
                answer = Raw(bytes(ask.answer))
                effects.append(fx.AnswerBackend(ask.backend, ask.id, not ask.failed, answer, ask.method))
    session = replace(
        session,
        next_call=session.next_call + len(entries),
        requests=requests,
        calls=calls,
        asks=open,
        given=given,
        posts={**session.posts, post: Post(tuple(entries), stream=name)},
        streams={**session.streams, name: replace(session.streams[name], post=post)},
    )
    return session, effects


def _withdraw_questions(session: Session, asked: ServerRequested) -> streams.Step:
    """Whoever asked is gone: the client need not answer. What was asked on a stream that is over is only forgotten."""
    lost = {
        server_request_id: ask.stream if not ask.answer else ""  # what was answered is asked no more
        for server_request_id, ask in asked.items()
        if server_request_id not in session.asks and server_request_id not in session.given
    }
    session = replace(session, settled=tuple(i for i, name in lost.items() if name not in session.streams))
    effects: fx.Effects = []
    for server_request_id, name in lost.items():
        if name in session.streams:
            frame = codec.encode_cancelled(server_request_id, "the server is gone")
            session, more = streams.put(session, name, frame, asked={server_request_id: None})
            effects += more
    return session, effects


def _settle_requests(session: Session, requests: Requests, *, older: bool) -> streams.Step:
    """Unfinished streams of POSTs get the errors of their requests, and end unless others on them go on; GET streams
    stay open for their client. What was not sent by an `older` record may have been since."""
    effects: fx.Effects = []
    for name in _posts(session):
        lost = [id for id, entry in requests.items() if entry.stream == name and id not in session.requests]
        over = session.streams[name].post is None
        for id in lost:
            frame, last = _lost(id, unsent=requests[id].unsent and not older), over and id is lost[-1]
            session, more = streams.put(session, name, frame, finish=last, requests={request_key(id): None})
            effects += more
        if over and not lost:
            session, more = streams.put(session, name, None, finish=True)
            effects += more
    return session, effects


def _lost(id: RequestId, *, unsent: bool) -> bytes:
    executed: errors.Executed = "no" if unsent else "unknown"
    error = errors.internal("the gateway process that ran this request ended", reason="owner_lost", executed=executed)
    return codec.encode_error(id, error)
