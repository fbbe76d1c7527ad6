"""The client's requests in flight: each has one outcome, in one place.

*Unrecorded* it is the answer of its POST; *recorded*, from the moment the POST became a stream, it is that stream's
event. When the connection of an unrecorded request breaks, its call goes on (2025-11-25 transports: a disconnection is
no cancellation) and its outcome is dropped and counted.
"""

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.protocol import asks, codec, errors, lowering, payload, streams
from actors.protocol import effects as fx
from actors.protocol import events as ev
from actors.protocol.messages import Error, Request, RequestId
from actors.protocol.session_state import ClientRequest, Post, Session

Step = streams.Step


def accept(session: Session, post: ev.PostId, request: Request, now: float) -> Step:
    """A request that passed the gates is on its way; its POST is already in the table."""
    call = session.next_call
    token = payload.progress_token(request.params)
    entry = ClientRequest(request.id, post, call, request.method, now, token)
    session = replace(
        session,
        next_call=call + 1,
        requests={**session.requests, request.id: entry},
        calls={**session.calls, call: request.id},
    )
    return session, [fx.Dispatch(call, request.method, request.params, token is not None)]


def turn_due(session: Session, event: ev.StreamTurnDue) -> Step:
    """The answer takes long: the POST becomes a stream, and deadlines run."""
    post = session.posts.get(event.post)
    if post is None:
        return session, []
    effects: fx.Effects = []
    if post.stream is None and not post.broken:
        session, effects = streams.open_for_post(session, event.post, post)
    session, more = start_deadlines(session, post)
    return session, effects + more


def start_deadlines(session: Session, post: Post) -> Step:
    """Starts the deadline of each open request of a POST that is no longer expected at once."""
    requests = dict(session.requests)
    effects: fx.Effects = []
    for id in post.open:
        entry = requests[id]
        if not entry.timed:
            requests[id] = replace(entry, timed=True)
            effects.append(fx.StartDeadline(entry.call, entry.accepted, entry.accepted))
    return (replace(session, requests=requests), effects) if effects else (session, effects)


def ended(session: Session, event: ev.CallEnded) -> Step:
    """The outcome of a call."""
    id = session.calls.get(event.call)
    if id is None:
        return session, [fx.Tally("late_outcome")]
    entry = session.requests[id]
    if event.ok:
        payload = lowering.result(entry.method, event.payload, session.version)
        frame = codec.encode_result(id, payload)
    else:
        bits = session.client.bits if session.client is not None else None
        frame = codec.encode(Error(id, lowering.error(entry.method, event.payload, session.version, bits)))
    return settle(session, entry, frame)


def settle(session: Session, entry: ClientRequest, frame: bytes) -> Step:
    """Gives a request its one outcome, wherever it lives now."""
    effects: fx.Effects = []
    if session.asks:
        session, effects = asks.withdraw_of_call(session, entry.call)
    if entry.timed:
        effects.append(fx.StopDeadline(entry.call))
    session = replace(
        session,
        requests={i: r for i, r in session.requests.items() if i != entry.id},
        calls={c: i for c, i in session.calls.items() if c != entry.call},
    )
    session, more = answer(session, entry.post, entry.id, frame)
    return session, effects + more


def answer(session: Session, post_id: ev.PostId, id: RequestId, frame: bytes) -> Step:
    """Puts an answer where its POST expects it; the last one ends the POST."""
    post = session.posts[post_id]
    rest = post.open - {id}
    posts = dict(session.posts)
    if rest:
        posts[post_id] = replace(post, open=rest)
    else:
        del posts[post_id]
    session = replace(session, posts=posts)
    if post.stream is not None:
        key = streams.request_key(id)
        return streams.put(session, post.stream, frame, finish=not rest, requests={key: None})
    if post.broken:
        return session, [fx.Tally("answer_without_connection")]
    if not post.batch:
        return session, [fx.StopTurnClock(post_id), fx.AnswerPost(post_id, frame)]
    answers = (*post.answers, frame)
    if not rest:
        return session, [fx.StopTurnClock(post_id), fx.AnswerPost(post_id, b"[" + b",".join(answers) + b"]")]
    return replace(session, posts={**posts, post_id: replace(post, open=rest, answers=answers)}), []


class _Cancelled(msgspec.Struct):
    requestId: int | str | None = None  # the wire's name  # noqa: N815
    reason: str = ""


def cancelled(session: Session, params: Raw) -> Step:
    """`notifications/cancelled` of the client. The POST still has to end: with -32800, as SDK servers do on this
    wire."""
    try:
        wanted = msgspec.json.decode(params, type=_Cancelled)
    except (msgspec.DecodeError, RecursionError):
        return session, [fx.Tally("bad_cancel")]
    entry = session.requests.get(wanted.requestId) if wanted.requestId is not None else None
    if entry is None or entry.method == "initialize":
        return session, [fx.Tally("late_cancel")]
    error = codec.encode_error(entry.id, errors.cancelled())
    session, effects = settle(session, entry, error)
    return session, [fx.CancelCall(entry.call, wanted.reason or "cancelled by the client"), *effects]


def expired(session: Session, event: ev.CallExpired) -> Step:
    """The deadline has passed: the backend is told, the client gets an error."""
    id = session.calls.get(event.call)
    if id is None:
        return session, []
    entry = session.requests[id]
    error = errors.internal("the server did not answer in time", reason="timeout", executed="unknown")
    session, effects = settle(session, entry, codec.encode_error(id, error))
    return session, [fx.CancelCall(entry.call, "deadline exceeded"), *effects]


class _Progress(msgspec.Struct):
    progress: float


def progressed(session: Session, event: ev.CallProgressed) -> Step:
    """Progress of a call: strictly increasing, under the client's own token, on the stream of its request."""
    id = session.calls.get(event.call) if event.call is not None else None
    entry = session.requests.get(id) if id is not None else None
    if entry is None or entry.token is None:
        return session, [fx.Tally("late_progress")]
    try:
        value = msgspec.json.decode(event.params, type=_Progress).progress
    except (msgspec.DecodeError, RecursionError):
        return session, [fx.Tally("bad_progress")]
    if entry.progress is not None and value <= entry.progress:
        return session, [fx.Tally("progress_not_increasing")]
    session = replace(session, requests={**session.requests, entry.id: replace(entry, progress=value, timed=True)})
    own = payload.replace_members(event.params, {"progressToken": payload.dumps(entry.token)})
    params = lowering.notification(event.method, own, session.version)
    frame = codec.encode_notification(event.method, params)
    session, effects = say(session, entry.call, frame)
    return session, [fx.StartDeadline(entry.call, event.now, entry.accepted), *effects]


def say(session: Session, call: ev.CallId | None, frame: bytes, key: str | None = None) -> Step:
    """A message in the course of a call goes on the stream of its POST; without a call, or when its connection broke
    before there was a stream, it belongs to no request."""
    id = session.calls.get(call) if call is not None else None
    if id is None:
        return streams.say_unrelated(session, frame, key)
    post_id = session.requests[id].post
    post = session.posts[post_id]
    if post.broken:
        return session, [fx.Tally("message_without_connection")]
    effects: fx.Effects = []
    if post.stream is None:
        session, effects = streams.open_for_post(session, post_id, post)
        session, more = start_deadlines(session, session.posts[post_id])
        effects += more
    session, more = streams.put(session, session.posts[post_id].stream or "", frame)
    return session, effects + more


def post_broken(session: Session, event: ev.PostBroken) -> Step:
    """The connection is gone before there was an answer or a stream."""
    post = session.posts.get(event.post)
    if post is None or post.stream is not None:
        return session, []
    return replace(session, posts={**session.posts, event.post: replace(post, broken=True)}), []
