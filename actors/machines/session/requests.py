"""The client's requests in flight: each has one outcome, in one place.

*Unrecorded* it is the answer of its POST; *recorded*, from the moment the POST became a stream, it is that stream's
event. When the connection of an unrecorded request breaks, its call goes on (2025-11-25 transports: a disconnection is
no cancellation) and its outcome is dropped and counted.
"""

from msgspec import Raw
from msgspec.structs import replace

from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.machines.session import record as session_record
from actors.machines.session import server_requests, streams
from actors.machines.session.record import of_request, request_key
from actors.machines.session.state import NOTHING, ClientRequest, Session
from actors.protocol import capabilities, codec, errors, payload, tasks, translate
from actors.protocol.capabilities import LEVELS, level_of
from actors.protocol.filter import FLAGS, located
from actors.protocol.messages import Error, Request, RequestId
from actors.protocol.methods import METHODS, UPDATED, Kind, Sender, known

Step = streams.Step


def accept(session: Session, event: ev.Posted, request: Request, level: str | None = None) -> Step:
    """A request that passed the gates is on its way; its POST is already in the table. `level` is what it would have
    the log level be, which it is once the request has a result. Raises Malformed."""
    call = session.next_call
    token = payload.progress_token(request.params)
    trace = event.traces.get(request.id, "") if event.traces else ""
    as_task = (
        request.method in tasks.AUGMENTED
        and payload.mentions(request.params, tasks.MEMBER)
        and tasks.asks_for_task(session.server, session.version, request)
    )
    entry = ClientRequest(
        request.id, event.post, call, request.method, event.now, token, level=level, trace=trace, as_task=as_task
    )
    session = replace(
        session,
        next_call=call + 1,
        requests={**session.requests, request.id: entry},
        calls={**session.calls, call: request.id},
    )
    dispatched = fx.Dispatch(call, request.method, request.params, token is not None, event.rights, as_task=as_task)
    return session, [dispatched]


def turn_due(session: Session, event: ev.StreamTurnDue) -> Step:
    """The answer takes long: the POST becomes a stream, and deadlines run."""
    post = session.posts.get(event.post)
    if post is None:
        return session, []
    if post.broken:
        return streams.start_deadlines(session, post)
    calls = tuple(entry.call for id in post.open if (entry := session.requests.get(id)) is not None)
    _, session, effects = streams.stream_of(session, event.post, calls)
    return session, effects


def post_broken(session: Session, event: ev.PostBroken) -> Step:
    """The connection is gone before there was an answer or a stream. (That of a stream is `Detached`.)"""
    post = session.posts.get(event.post)
    if post is None or post.stream is not None or post.broken:
        return session, []
    return replace(session, posts={**session.posts, event.post: replace(post, broken=True)}), []


# Recorded before it is sent ----------------------------------------------------------------------------------


def held(session: Session, event: ev.CallHeld) -> Step:
    """It waits for a connection or its turn: the record says so, for the case that this life ends before it is sent."""
    entry = session.called(event.call)
    stream = session.posts[entry.post].stream if entry is not None else None
    if entry is None or stream is None or entry.unsent or entry.clearing:
        return session, []
    entry = replace(entry, unsent=True)
    session = session.having(entry)
    return streams.note(session, stream, {request_key(entry.id): of_request(entry, stream)})


def due(session: Session, event: ev.CallDue) -> Step:
    """It could be sent. What the record says of it is taken back first; where that can't be done any more, for the
    stream is lost, it is not sent: nobody could hear of its answer."""
    entry = session.called(event.call)
    if entry is None or entry.clearing:
        return session, []
    if not entry.unsent:
        return session, [fx.Release(event.call)]
    stream = session.posts[entry.post].stream
    if stream is None:
        error = errors.internal("the answer has nowhere to go", reason="stream_lost", executed="no")
        return give_up(session, entry, error, "nobody waits for it")
    entry = replace(entry, unsent=False, clearing=True)
    session = session.having(entry)
    return streams.note(session, stream, {request_key(entry.id): of_request(entry, stream)}, entry.call)


def cleared(session: Session, event: ev.CallCleared) -> Step:
    """The record holds nothing against it."""
    entry = session.called(event.call)
    if entry is None or not entry.clearing:
        return session, []
    return session.having(replace(entry, clearing=False)), [fx.Release(event.call)]


def placed(session: Session, event: ev.CallPlaced) -> Step:
    """Its backend has told where it stands, and nothing else."""
    entry = session.called(event.call)
    if entry is None:
        return session, []
    stream = session.posts[entry.post].stream
    session, moved = session_record.place(session, entry, stream, event)
    return streams.note(session, stream, moved) if stream is not None else (session, [])


# Outcomes ----------------------------------------------------------------------------------------------------


def ended(session: Session, event: ev.CallEnded) -> Step:
    """The outcome of a call."""
    entry = session.called(event.call)
    if entry is None:
        return session, [fx.Count("late_outcome")]
    effects: fx.Effects = []
    if event.ok and entry.level is not None:
        session, effects = replace(session, level=entry.level), [fx.UseLevel(entry.level)]
    ok, payload = event.ok, event.payload
    if not event.as_is:
        bits = session.client.bits if session.client is not None else None
        ok, payload = translate.outcome(entry.method, ok, payload, session.version, bits, as_task=entry.as_task)
    frame = codec.encode_result(entry.id, payload) if ok else codec.encode(Error(entry.id, payload))
    session, more = settle(session, entry, frame, event.refusal)
    return session, effects + more


def settle(session: Session, entry: ClientRequest, frame: bytes, refusal: errors.ProtocolError | None = None) -> Step:
    """Gives a request its one outcome, wherever it lives now. `refusal` as in `CallEnded`."""
    effects: fx.Effects = []
    if session.asks or session.given:
        session, effects = server_requests.withdraw_of_call(session, entry.call)
    if entry.timed:
        effects.append(fx.StopDeadline(entry.call))
    requests, calls = session.requests.copy(), session.calls.copy()
    del requests[entry.id], calls[entry.call]
    session = replace(session, requests=requests or NOTHING, calls=calls or NOTHING)  # an emptied dict keeps its table
    session, more = answer(session, entry.post, entry.id, frame, refusal)
    return session, effects + more


def answer(
    session: Session, post_id: ev.PostId, id: RequestId, frame: bytes, refusal: errors.ProtocolError | None = None
) -> Step:
    """Puts an answer where its POST expects it; the last one ends the POST. A refusal has its status where it is all
    that there is to answer: not in a batch, and not on a stream."""
    post = session.posts[post_id]
    rest = tuple([other for other in post.open if other != id]) if len(post.open) > 1 else ()
    posts = session.posts.copy()
    if rest:
        kept = (*post.answers, frame) if post.stream is None and not post.broken else post.answers
        posts[post_id] = replace(post, open=rest, answers=kept)
    else:
        del posts[post_id]
    session = replace(session, posts=posts or NOTHING)
    if post.stream is not None:
        return streams.put(session, post.stream, frame, finish=not rest, requests={request_key(id): None})
    if post.broken:
        count = fx.Count("answer_without_connection")
        return session, [count] if rest else [fx.StopTurnClock(post_id), count]
    if rest:
        return session, []
    if refusal is not None and not post.batch:
        return session, [fx.StopTurnClock(post_id), fx.RefusePost(post_id, refusal, id)]
    body = codec.encode_batch([*post.answers, frame]) if post.batch else frame
    return session, [fx.StopTurnClock(post_id), fx.AnswerPost(post_id, body)]


def cancelled(session: Session, params: Raw) -> Step:
    """`notifications/cancelled` of the client. The POST still has to end: with -32800, as SDK servers do on this
    wire."""
    try:
        id, why = payload.cancelled_id(params), payload.text_member(params, "reason")
    except errors.Malformed:
        return session, [fx.Count("bad_cancel")]
    entry = session.requests.get(id) if id is not None else None
    if entry is None or entry.method == "initialize":
        return session, [fx.Count("late_cancel")]
    return give_up(session, entry, errors.cancelled(), why or "cancelled by the client")


def expired(session: Session, event: ev.CallExpired) -> Step:
    """The deadline has passed: the backend is told, the client gets an error."""
    entry = session.called(event.call)
    if entry is None:
        return session, []
    return give_up(session, entry, errors.unanswered(event.backend, entry.executed), "deadline exceeded")


def give_up(session: Session, entry: ClientRequest, error: errors.ProtocolError, reason: str) -> Step:
    """Nobody waits any more: the backend is told why, the client gets this error."""
    session, effects = settle(session, entry, codec.encode_error(entry.id, error))
    return session, [fx.CancelCall(entry.call, reason, error), *effects]


# What is said in the course of a call ------------------------------------------------------------------------


def progressed(session: Session, event: ev.CallProgressed) -> Step:
    """Progress of a call under the client's own token, on the stream of its request: strictly increasing, unless its
    client would get it from the backend as it is."""
    if event.call is None:
        return _progress_of_task(session, event)
    entry = session.called(event.call)
    if entry is None or entry.token is None:
        return session, [fx.Count("late_progress")]
    try:
        value = None if event.as_is else payload.progress_value(event.params)
        own = payload.replace_members(event.params, {"progressToken": payload.dumps(entry.token)})
    except errors.Malformed:
        return session, [fx.Count("bad_progress")]
    if entry.progress is not None and value is not None and value <= entry.progress:
        return session, [fx.Count("progress_not_increasing")]
    session = session.having(replace(entry, progress=value, timed=True))
    params = own if event.as_is else translate.notification(event.method, own, session.version)
    session, effects = say(session, event, codec.encode_notification(event.method, params))
    return session, [fx.StartDeadline(entry.call, event.now, entry.accepted), *effects]


def _progress_of_task(session: Session, event: ev.CallProgressed) -> Step:
    """That of a call that has become a task, under the client's token already; it waits for nobody who reads it."""
    if streams.reader(session) is None:
        return session, [fx.Count("late_progress")]
    params = event.params if event.as_is else translate.notification(event.method, event.params, session.version)
    return say(session, event, codec.encode_notification(event.method, params))


def say(session: Session, event: ev.CallProgressed, frame: bytes, key: str | None = None) -> Step:
    """A message in the course of a call goes on the stream of its POST. Without a call it belongs to no request; when
    the connection of the call broke before there was a stream, to nobody."""
    entry = session.called(event.call)
    if entry is None:
        return streams.say_unrelated(session, frame, key)
    name, session, effects = streams.stream_of(session, entry.post)
    session, moved = session_record.place(session, session.requests[entry.id], name, event)
    if name is None:
        return session, [fx.Count("message_without_connection")]
    session, more = streams.put(session, name, frame, requests=moved)
    return session, effects + more


# What either end notifies, and whether it may pass -----------------------------------------------------------


def told(session: Session, event: ev.CallProgressed) -> Step:
    """A notification of a backend."""
    if event.method == "notifications/progress":
        return progressed(session, event)
    why = why_drop(session, event.method, Sender.SERVER)
    if why is not None:
        return session, [fx.Count(why)]
    if event.method == "notifications/message" and not _loud_enough(session, event.params):
        return session, [fx.Count("log_below_level")]
    params = event.params if event.as_is else translate.notification(event.method, event.params, session.version)
    frame = codec.encode_notification(event.method, params)
    return say(session, event, frame, _coalescing_key(event))


def why_drop(session: Session, method: str, sender: Sender) -> str | None:
    """Why a notification of this end goes nowhere: it is unknown, or of a feature that was not declared. None if it may
    pass. A transparent endpoint passes what only its two ends know."""
    row = known(method, sender, session.version)
    if row is None or row.kind is not Kind.NOTIFICATION:
        return "unknown_notification" if session.rules.gates or method in METHODS else None
    if not session.rules.gates or session.client is None or session.server is None:
        return None
    # The status of a task comes from the end that runs it, and that declared it.
    clients = METHODS[method].client_capability or (method == tasks.STATUS and sender is Sender.CLIENT)
    declared = session.client.capabilities if clients else session.server
    return None if capabilities.allows(declared, method, session.version) else "undeclared_notification"


def _coalescing_key(event: ev.CallProgressed) -> str | None:
    """`list_changed` of a kind and `updated` of a URI say the same however often they are said. (What else is called
    so, only its two ends know.)"""
    if event.method in FLAGS:
        return event.method
    if event.method == UPDATED:
        uri = located(event.params)
        return None if uri is None else f"{event.method} {uri}"
    return None


def _loud_enough(session: Session, params: Raw) -> bool:
    """A level that is not of the protocol passes, and lets all pass: those who agreed on it know what it means."""
    if session.level is None or session.level not in LEVELS:
        return True
    said = level_of(params)
    return said not in LEVELS or LEVELS.index(said) >= LEVELS.index(session.level)
