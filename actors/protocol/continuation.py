"""Requests of an earlier life whose answer can still be had: their backend keeps the events of its answer, and the
record says from which one on.

They are in flight again, on their streams, and so are the questions that came with them. Their deadlines begin anew,
for no clock says how long nobody was there.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

from msgspec.structs import replace

from actors.protocol import effects as fx
from actors.protocol.messages import RequestId
from actors.protocol.request_record import Recorded, RecordedAsk, read_ask, read_request, request_id
from actors.protocol.session_state import Ask, ClientRequest, Post, Session


class InFlight(Protocol):
    """What is needed here of a record."""

    @property
    def requests(self) -> Mapping[str, bytes]: ...

    @property
    def asked(self) -> Mapping[str, bytes]: ...


def continuable(session: Session, lasting: Collection[str]) -> dict[RequestId, ClientRequest]:
    """The requests that another life could take up from the record, and whose client can come back for the answer: it
    was given an event id."""

    def can_be(entry: ClientRequest) -> bool:
        known = entry.place is not None and entry.place.cursor is not None and entry.backend in lasting
        stream = session.streams.get(session.posts[entry.post].stream or "") if known else None
        return stream is not None and stream.seq > 0

    return {id: entry for id, entry in session.requests.items() if can_be(entry)}


def continued(session: Session, record: InFlight, now: float, reachable: Collection[str]) -> tuple[Session, fx.Effects]:
    """Takes up what can be continued with these backends, whose sessions are kept."""
    effects: fx.Effects = []
    entries = {key: read_request(value) for key, value in record.requests.items()}
    for name in [n for n in session.streams if n.startswith("p")]:
        mine = {k: e for k, e in entries.items() if e.stream == name and e.place is not None and e.backend in reachable}
        if mine:
            session, more = _take_up(session, name, mine, record, now)
            effects += more
    return session, effects


def _take_up(
    session: Session, name: str, entries: Mapping[str, Recorded], record: InFlight, now: float
) -> tuple[Session, fx.Effects]:
    """The requests of one stream, under a POST that no connection ever had: its number is below all others."""
    post = -1 - len(session.posts)
    ids = tuple(request_id(key) for key in entries)
    session = replace(
        session,
        posts={**session.posts, post: Post(ids, stream=name)},
        streams={**session.streams, name: replace(session.streams[name], post=post)},
    )
    effects: fx.Effects = []
    for key, entry in entries.items():
        session, more = _request(session, post, request_id(key), entry, now)
        asks = {i: a for i, v in record.asked.items() if (a := read_ask(v)).request == key and a.stream == name}
        session, clocks = _questions(session, session.next_call - 1, asks)
        effects += [*(replace(e, asked=_names(asks)) if isinstance(e, fx.Continue) else e for e in more), *clocks]
    return session, effects


def _request(session: Session, post: int, id: RequestId, entry: Recorded, now: float) -> tuple[Session, fx.Effects]:
    call, place = session.next_call, entry.place
    assert place is not None
    request = ClientRequest(id, post, call, entry.method, now, entry.token, entry.progress, True, entry.backend, place)
    session = replace(
        session,
        next_call=call + 1,
        requests={**session.requests, id: request},
        calls={**session.calls, call: id},
    )
    again = fx.Continue(call, entry.backend, entry.method, entry.token is not None, place)
    return session, [again, fx.StartDeadline(call, now, now)]


def _questions(session: Session, call: int, asks: Mapping[str, RecordedAsk]) -> tuple[Session, fx.Effects]:
    """The client has them, and may answer."""
    open = {i: Ask(a.backend, a.id, call, a.method, b"", a.stream, a.token) for i, a in asks.items()}
    return replace(session, asks={**session.asks, **open}), [fx.StartAskClock(ask_id, True) for ask_id in open]


def _names(asks: Mapping[str, RecordedAsk]) -> tuple[tuple[RequestId, str], ...]:
    return tuple((ask.id, ask.method) for ask in asks.values())
