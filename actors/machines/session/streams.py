"""The SSE streams of a session: which message goes where, exactly once.

A message that belongs to a request goes on the stream of its POST, which is opened by the first such message; one that
belongs to none goes to the newest GET stream that somebody reads, or waits in the box (2025-11-25 transports,
"Multiple Connections": never on two streams).

The box is bounded in number and bytes. What says that something has changed coalesces by its key and is in the record;
chatter (logs) is dropped first and is not. A message comes back into the box when the stream on which it was said has
lost its reader before it was written.
"""

from msgspec.structs import replace

from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.machines.session import record as session_record
from actors.machines.session.record import Fields, of_request, request_key
from actors.machines.session.state import UNRECORDED, Boxed, Post, Rules, Session, Stream
from actors.protocol import codec, errors
from actors.protocol.messages import Error, Result
from actors.protocol.versions import can_use

Step = tuple[Session, fx.Effects]
Box = tuple[Boxed, ...]

PRIMING = b""
"""An event with an id and empty data: the client can resume from the very beginning. Only since 2025-11-25, for older
clients try to parse the data (SEP-1699)."""


def put(
    session: Session,
    name: str,
    data: bytes | None,
    *,
    finish: bool = False,
    requests: Fields | None = None,
    asked: Fields | None = None,
    key: str | None = None,
) -> Step:
    """Appends one message to an unfinished stream; `finish` makes it the last (without data: ends it at once). One with
    a `key` is kept until it is known to be written."""
    stream = session.streams[name]
    if session.settled:
        asked = {**dict.fromkeys(session.settled), **(asked or {})}
        session = replace(session, settled=())
    effect = fx.Append(name, stream.seq + 1, data, finish, requests or {}, asked or {})
    streams = dict(session.streams)
    if finish:
        del streams[name]
    else:
        seq, unread = stream.seq + 1, stream.unread
        if key is not None and data is not None:
            unread = _noted(session.rules, unread, Boxed(key, data, seq=seq))
        streams[name] = replace(stream, seq=seq, unread=unread)
    return replace(session, streams=streams), [effect]


def note(
    session: Session,
    name: str,
    requests: Fields,
    clears: ev.CallId | None = None,
    *,
    asked: Fields | None = None,
    accepts: ev.PostId | None = None,
) -> Step:
    """Changes the record in the order of the stream's events, without an event."""
    seq = session.streams[name].seq + 1
    return session, [fx.Append(name, seq, None, requests=requests, asked=asked or {}, clears=clears, accepts=accepts)]


# Streams of POSTs --------------------------------------------------------------------------------------------


def stream_of(
    session: Session, post_id: ev.PostId, calls: tuple[ev.CallId, ...] = ()
) -> tuple[str | None, Session, fx.Effects]:
    """The stream of a POST, opened if there is none yet; None if its connection broke before there was one. `calls` as
    in `OpenStream`."""
    post = session.posts[post_id]
    if post.stream is not None or post.broken:
        return post.stream, session, []
    session, effects = _open_for_post(session, post_id, post, calls)
    return session.posts[post_id].stream, session, effects


def _open_for_post(session: Session, post_id: ev.PostId, post: Post, calls: tuple[ev.CallId, ...]) -> Step:
    """Turns the answer of a POST into a stream: its requests are recorded from here on, and answers that waited for the
    others of a batch go first. (Those requests too, until the answers are in the log.)"""
    name = f"p{session.next_post_stream}"
    stream, first = _opened(session, post_id, post_id)
    session = replace(
        session,
        next_post_stream=session.next_post_stream + 1,
        posts={**session.posts, post_id: replace(post, stream=name, answers=())},
        streams={**session.streams, name: stream},
    )
    waited = [(_answered(post, answer), answer) for answer in post.answers]
    recorded = {request_key(id): of_request(session.requests.get(id), name) for id in post.open}
    recorded |= {key: of_request(None, name) for key, _ in waited if key is not None}
    session, deadlines = start_deadlines(session, post)
    effects = [fx.StopTurnClock(post_id), fx.OpenStream(name, post_id, post_id, recorded, first, calls), *deadlines]
    for key, answer in waited:
        session, more = put(session, name, answer, requests={key: None} if key is not None else None)
        effects += more
    return session, effects


def _answered(post: Post, answer: bytes) -> str | None:
    """The key of the request that this answers; None for one whose id was not read, or is another one's."""
    message = codec.decode_message(answer)
    id = message.id if isinstance(message, Result | Error) else None
    return request_key(id) if id is not None and id not in post.open else None


def _opened(session: Session, connection: ev.ConnectionId, post: ev.PostId | None) -> tuple[Stream, bytes | None]:
    """A stream with its first event: the priming one, where the client knows such."""
    if can_use(session.version, "priming"):
        return Stream(1, connection, post, unheard=True, opener=session.epoch), PRIMING
    return Stream(0, connection, post, unheard=True, opener=session.epoch), None


def start_deadlines(session: Session, post: Post) -> Step:
    """Starts the deadline of each open request of a POST that is no longer expected to be answered at once."""
    requests = dict(session.requests)
    effects: fx.Effects = []
    for id in post.open:
        entry = requests.get(id)
        if entry is not None and not entry.timed:
            requests[id] = replace(entry, timed=True)
            effects.append(fx.StartDeadline(entry.call, entry.accepted, entry.accepted))
    return (replace(session, requests=requests), effects) if effects else (session, effects)


# What belongs to no request ----------------------------------------------------------------------------------


def reader(session: Session) -> str | None:
    """The newest GET stream that somebody reads. Nothing is said there before the client is initialized (2025-11-25
    lifecycle, "Initialization")."""
    if session.phase in UNRECORDED:
        return None
    read = [n for n, s in session.streams.items() if s.post is None and s.connection is not None]
    return read[-1] if read else None


def say_unrelated(session: Session, data: bytes, key: str | None = None) -> Step:
    """A message that belongs to no request. One with a `key` says the same however often it is said."""
    name = reader(session)
    if name is not None:
        return put(session, name, data, key=key)
    kept, dropped = _added(session.rules, session.box, Boxed(key, data))
    session, effects = _rebox(session, kept)
    return session, [*effects, *[fx.Count("box_full")] * dropped]


def _rebox(session: Session, content: Box) -> Step:
    """Another content of the box. The record follows once there is one that a session can be rebuilt from."""
    fields = session_record.box(content)
    changed = fields != session_record.box(session.box) and session.phase not in UNRECORDED
    return replace(session, box=content), [fx.Save(fields)] if changed else []


def deliver(session: Session) -> Step:
    """What waits for a reader goes to the one there is: the box, and server requests."""
    name = reader(session)
    if name is None:
        return session, []
    effects: fx.Effects = []
    waiting = session.box
    if waiting:
        session, effects = _rebox(session, ())
    sees = session.streams[name].sees
    for boxed in waiting:
        # It waited for a reader, and whether this one may have it nobody could ask before.
        if sees is None or sees(boxed.data):
            session, more = put(session, name, boxed.data, key=boxed.key)
            effects += more
    session, more = _ask(session, name, [id for id, ask in session.asks.items() if ask.stream is None])
    return session, effects + more


def _ask(session: Session, name: str, waiting: list[str]) -> Step:
    """Server requests that waited for a stream go out on this one."""
    effects: fx.Effects = []
    for server_request_id in waiting:
        ask = session.asks[server_request_id]
        recorded = session_record.of_server_request(ask, session.called(ask.call), name)
        session, more = put(session, name, ask.frame, asked={server_request_id: recorded})
        effects += [*more, fx.StartServerRequestClock(server_request_id, not session.holds_up(ask.call))]
        session = replace(session, asks={**session.asks, server_request_id: replace(ask, stream=name)})
    return session, effects


# The box: what waits for a reader, and what may not have been written -----------------------------------------


def _added(rules: Rules, box: Box, boxed: Boxed) -> tuple[Box, int]:
    """The box with one more message, which replaces one with its key; and how many were dropped for want of room."""
    kept = tuple(b for b in box if boxed.key is None or b.key != boxed.key)
    dropped = 0
    while not _has_room(rules, kept, boxed):
        chatter = next((b for b in kept if b.key is None), None) if boxed.key is not None else None
        if chatter is None:
            return kept, dropped + 1
        kept = tuple(b for b in kept if b is not chatter)
        dropped += 1
    return (*kept, boxed), dropped


def _has_room(rules: Rules, box: Box, boxed: Boxed) -> bool:
    return len(box) < rules.box and sum(len(b.data) for b in box) + len(boxed.data) <= rules.box_bytes


def _noted(rules: Rules, unread: Box, boxed: Boxed) -> Box:
    """What may not have been written, with one more; the oldest, which most likely was, goes first."""
    kept = tuple(b for b in unread if b.key != boxed.key)
    while kept and not _has_room(rules, kept, boxed):
        kept = kept[1:]
    return (*kept, boxed)


def _returned(rules: Rules, box: Box, unread: Box, stream: str) -> tuple[Box, int]:
    """The box with what this stream's reader did not get, and how many were dropped for want of room. What has waited
    all the while under the same key says it better: it was never said."""
    dropped = 0
    waiting = {b.key for b in box}
    for boxed in unread:
        if boxed.key not in waiting:
            box, more = _added(rules, box, replace(boxed, stream=stream))
            dropped += more
    return box, dropped


# Connections -------------------------------------------------------------------------------------------------


def attached(session: Session, event: ev.Attached) -> Step:
    """A GET, new or resumed."""
    session, effects = _open_get(session, event) if event.stream is None else _resume(session, event)
    session, more = deliver(session)
    return session, effects + more


def attached_in_drain(session: Session, event: ev.Attached) -> Step:
    """Streams that there are may be resumed; a new one belongs to the next process."""
    if event.stream is not None:
        return attached(session, event)
    return session, [fx.RefuseGet(event.connection, errors.draining())]


def _open_get(session: Session, event: ev.Attached) -> Step:
    gets = {n: s for n, s in session.streams.items() if s.post is None}
    if sum(s.connection is not None for s in gets.values()) >= session.rules.get_streams:
        return session, [fx.RefuseGet(event.connection, errors.stream_conflict())]
    effects: fx.Effects = []
    detached = [n for n, s in gets.items() if s.connection is None]
    for name in detached[: max(0, len(gets) + 1 - session.rules.get_streams)]:
        # Nobody came back for it, and the client has begun anew: its place is needed.
        session, more = put(session, name, None, finish=True)
        effects += more
    name = f"g{session.next_get_stream}"
    stream, first = _opened(session, event.connection, None)
    stream = replace(stream, sees=event.sees)
    session = replace(session, next_get_stream=session.next_get_stream + 1, streams={**session.streams, name: stream})
    return session, [*effects, fx.OpenStream(name, None, event.connection, {}, first)]


def _resume(session: Session, event: ev.Attached) -> Step:
    name = event.stream or ""
    stream = session.streams.get(name)
    if stream is None:
        # Finished, or never there: the log knows, and says so.
        return session, [fx.Follow(event.connection, name, event.epoch, event.seq, 0, False)]
    epoch = event.epoch or stream.opener
    # One that had the name before the store lost it has older events.
    another = epoch < stream.opener or (event.seq == 0 and epoch != stream.opener and stream.opener > 0)
    if epoch > session.epoch or event.seq > stream.seq or another:
        # No place of ours; whoever reads the stream must not suffer from it.
        if stream.post is None:
            # Events that the store has lost: the log knows how far it goes.
            return session, [fx.Follow(event.connection, name, epoch, event.seq, 0, False)]
        return session, [fx.RefuseGet(event.connection, errors.bad_event_id())]
    waiting = session.box
    # What it held when its reader went comes once more from its log, after the client's cursor.
    session, effects = _rebox(session, tuple(b for b in waiting if b.stream != name))
    if stream.connection is not None:
        effects.append(fx.CloseConnection(stream.connection, "superseded"))
    unread = tuple(b for b in (*stream.unread, *(b for b in waiting if b.stream == name)) if b.seq > event.seq)
    lost = stream.lost
    stream = replace(stream, connection=event.connection, unread=unread, unheard=False, sees=event.sees)
    session = replace(session, streams={**session.streams, name: stream})
    effects.append(fx.Follow(event.connection, name, epoch, event.seq, stream.seq, True))
    session, more = _found(session, name, stream) if lost else (session, [])
    return session, effects + more


def _found(session: Session, name: str, stream: Stream) -> Step:
    """The client has come back for a stream that was given up: it can be asked here again."""
    effects: fx.Effects = [
        fx.StartServerRequestClock(id, True) for id, ask in session.asks.items() if ask.stream == name
    ]
    waiting = []
    for server_request_id, ask in session.asks.items():
        entry = session.called(ask.call)
        if ask.stream is None and entry is not None and entry.post == stream.post:
            waiting.append(server_request_id)
    session, more = _ask(session, name, waiting)
    return session, effects + more


def detached(session: Session, event: ev.Detached) -> Step:
    """A connection is gone; the stream waits for its client. What was not written of changes is said once more on the
    next stream that somebody reads: the client may begin anew instead of resuming. What was asked there waits for the
    client no longer than for a stream, if it may have no id to come back with."""
    stream = session.streams.get(event.stream)
    if stream is None or stream.connection != event.connection:
        return session, []
    stream = replace(stream, unheard=stream.unheard and event.written == 0)
    session, effects = _leave(session, event.stream, stream, event.written)
    if session.streams[event.stream].lost:
        asked = [id for id, ask in session.asks.items() if ask.stream == event.stream]
        effects += [fx.StartServerRequestClock(id, False) for id in asked]
    session, more = deliver(session) if session.box else (session, [])
    return session, effects + more


def _leave(session: Session, name: str, stream: Stream, written: int) -> Step:
    """Nobody reads it: what was not written goes back into the box."""
    unread = tuple(b for b in stream.unread if b.seq > written)
    session = replace(session, streams={**session.streams, name: replace(stream, connection=None, unread=())})
    return _take_back(session, unread, name)


def _take_back(session: Session, unread: Box, name: str) -> Step:
    kept, dropped = _returned(session.rules, session.box, unread, name)
    session, effects = _rebox(session, kept)
    return session, [*effects, *[fx.Count("box_full")] * dropped]


def failed(session: Session, event: ev.StreamFailed) -> Step:
    """The log of a stream is lost: it ends here. Its calls go on; their outcomes have nowhere to go."""
    stream = session.streams.get(event.stream)
    if stream is None:
        return session, []
    effects: fx.Effects = []
    if stream.connection is not None:
        effects.append(fx.CloseConnection(stream.connection, event.reason))
    session = replace(session, streams={n: s for n, s in session.streams.items() if n != event.stream})
    if stream.post is not None:
        broken = replace(session.posts[stream.post], stream=None, broken=True)
        return replace(session, posts={**session.posts, stream.post: broken}), effects
    session, more = _take_back(session, stream.unread, "")  # nobody can come back for it
    effects += more
    session, more = deliver(session) if session.box else (session, [])
    return session, effects + more


def let_go(session: Session, retry: int) -> Step:
    """The drain closes GET streams whose client holds an event id and may come back elsewhere (since 2025-11-25)."""
    if not can_use(session.version, "priming"):
        return session, []
    effects: fx.Effects = []
    for name, stream in session.streams.items():
        if stream.connection is not None and stream.post is None:
            effects.append(fx.CloseConnection(stream.connection, "draining", retry))
            session, more = _leave(session, name, replace(stream, unheard=False), 0)
            effects += more
    return session, effects


def hand_over(session: Session, name: str, retry: int) -> Step:
    """The next life goes on with this stream of a POST; its client is asked to come back for it."""
    stream = session.streams[name]
    if stream.connection is None:
        return session, []
    session = replace(session, streams={**session.streams, name: replace(stream, connection=None, unheard=False)})
    return session, [fx.CloseConnection(stream.connection, "draining", retry)]
