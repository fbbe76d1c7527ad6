"""The SSE streams of a session: which message goes where, exactly once.

A message that belongs to a request goes on the stream of its POST, which is opened by the first such message; one that
belongs to none goes to the newest GET stream that somebody reads, or waits in the box (2025-11-25 transports,
"Multiple Connections": never on two streams).
"""

from msgspec.structs import replace

from actors.protocol import effects as fx
from actors.protocol import errors
from actors.protocol import events as ev
from actors.protocol.session_state import Boxed, Post, Session, Stream
from actors.protocol.versions import can_use

Step = tuple[Session, fx.Effects]

PRIMING = b""
"""An event with an id and empty data: the client can resume from the very beginning. Only since 2025-11-25, for older
clients try to parse the data (SEP-1699)."""


def request_key(id: int | str) -> str:
    """The name of a request in the record: ids are told apart by type and value."""
    return f"i:{id}" if isinstance(id, int) else f"s:{id}"


def put(
    session: Session,
    name: str,
    data: bytes,
    *,
    finish: bool = False,
    requests: dict[str, bytes | None] | None = None,
    asked: dict[str, bytes | None] | None = None,
) -> Step:
    """Appends one message to an unfinished stream; `finish` makes it the last."""
    stream = session.streams[name]
    effect = fx.Append(name, stream.seq + 1, data, finish, requests or {}, asked or {})
    streams = dict(session.streams)
    if finish:
        del streams[name]
    else:
        streams[name] = replace(stream, seq=stream.seq + 1)
    return replace(session, streams=streams), [effect]


def open_for_post(session: Session, post_id: ev.PostId, post: Post) -> Step:
    """Turns the answer of a POST into a stream; its open requests are recorded from here on."""
    name = f"p{session.next_post_stream}"
    primed = can_use(session.version, "priming")
    session = replace(
        session,
        next_post_stream=session.next_post_stream + 1,
        posts={**session.posts, post_id: replace(post, stream=name, answers=())},
        streams={**session.streams, name: Stream(1 if primed else 0, post_id, post_id)},
    )
    recorded = {request_key(id): name.encode() for id in post.open}
    effects: fx.Effects = [
        fx.StopTurnClock(post_id),
        fx.OpenStream(name, post_id, post_id, recorded, PRIMING if primed else None),
    ]
    for answer in post.answers:
        session, more = put(session, name, answer)
        effects += more
    return session, effects


def say_unrelated(session: Session, data: bytes, key: str | None = None) -> Step:
    """A message that belongs to no request."""
    name = _newest_read(session)
    if name is not None:
        return put(session, name, data)
    kept = tuple(b for b in session.box if key is None or b.key != key)
    if len(kept) >= session.rules.box:
        return session, [fx.Tally("box_full")]
    return replace(session, box=(*kept, Boxed(key, data))), []


def _newest_read(session: Session) -> str | None:
    attached = [n for n, s in session.streams.items() if s.post is None and s.connection is not None]
    return attached[-1] if attached else None


def attached(session: Session, event: ev.Attached) -> Step:
    """A GET, new or resumed."""
    return _open_get(session, event) if event.stream is None else _resume(session, event)


def _open_get(session: Session, event: ev.Attached) -> Step:
    gets = {n: s for n, s in session.streams.items() if s.post is None}
    if sum(s.connection is not None for s in gets.values()) >= session.rules.get_streams:
        return session, [fx.RefuseGet(event.connection, errors.stream_conflict())]
    effects: fx.Effects = []
    detached = [n for n, s in gets.items() if s.connection is None]
    for name in detached[: max(0, len(gets) + 1 - session.rules.get_streams)]:
        # Nobody came back for it, and the client has begun anew: its place is needed.
        session, more = _finish_silently(session, name)
        effects += more
    name = f"g{session.next_get_stream}"
    primed = can_use(session.version, "priming")
    session = replace(
        session,
        next_get_stream=session.next_get_stream + 1,
        streams={**session.streams, name: Stream(1 if primed else 0, event.connection, None)},
    )
    effects.append(fx.OpenStream(name, None, event.connection, {}, PRIMING if primed else None))
    session, more = _empty_box(session, name)
    return session, effects + more


def _finish_silently(session: Session, name: str) -> Step:
    stream = session.streams[name]
    streams = {n: s for n, s in session.streams.items() if n != name}
    return replace(session, streams=streams), [fx.Append(name, stream.seq + 1, None, True)]


def _empty_box(session: Session, name: str) -> Step:
    effects: fx.Effects = []
    for boxed in session.box:
        session, more = put(session, name, boxed.data)
        effects += more
    session = replace(session, box=())
    for ask_id, ask in session.asks.items():
        if ask.stream is None:
            session, more = put(session, name, ask.frame, asked={ask_id: name.encode()})
            effects += [*more, fx.StartAskClock(ask_id, True)]
            session = replace(session, asks={**session.asks, ask_id: replace(ask, stream=name)})
    return session, effects


def _resume(session: Session, event: ev.Attached) -> Step:
    name = event.stream or ""
    stream = session.streams.get(name)
    if stream is None:
        # Finished, or never there: the log knows, and says so.
        return session, [fx.Follow(event.connection, name, event.epoch, event.seq, 0, False)]
    effects: fx.Effects = []
    if stream.connection is not None:
        effects.append(fx.CloseConnection(stream.connection, "superseded"))
    session = replace(session, streams={**session.streams, name: replace(stream, connection=event.connection)})
    effects.append(fx.Follow(event.connection, name, event.epoch, event.seq, stream.seq, True))
    if stream.post is None:
        session, more = _empty_box(session, name)
        effects += more
    return session, effects


def detached(session: Session, event: ev.Detached) -> Step:
    """A connection is gone; the stream waits for its client."""
    stream = session.streams.get(event.stream)
    if stream is None or stream.connection != event.connection:
        return session, []
    return replace(session, streams={**session.streams, event.stream: replace(stream, connection=None)}), []


def failed(session: Session, event: ev.StreamFailed) -> Step:
    """The log of a stream is lost: it ends here, and so do its requests."""
    stream = session.streams.get(event.stream)
    if stream is None:
        return session, []
    effects: fx.Effects = []
    if stream.connection is not None:
        effects.append(fx.CloseConnection(stream.connection, event.reason))
    post = session.posts.get(stream.post) if stream.post is not None else None
    session = replace(session, streams={n: s for n, s in session.streams.items() if n != event.stream})
    if post is not None and stream.post is not None:
        broken = replace(post, stream=None, broken=True)
        session = replace(session, posts={**session.posts, stream.post: broken})
    return session, effects


def let_go(session: Session, retry: int) -> Step:
    """The drain closes streams whose client holds an event id and may come back elsewhere (since 2025-11-25)."""
    if not can_use(session.version, "priming"):
        return session, []
    effects: fx.Effects = []
    for name, stream in session.streams.items():
        if stream.connection is not None and stream.post is None:
            effects.append(fx.CloseConnection(stream.connection, "draining", retry))
            session = replace(session, streams={**session.streams, name: replace(stream, connection=None)})
    return session, effects
