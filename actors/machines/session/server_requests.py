"""Requests that backends make of the client: sampling, elicitation, roots.

Each gets an id of ours that is unique in the session, goes out on the stream of the call that raised it, and comes
back to the backend that asked, once. A server request that cannot reach a client is answered with an error, never
left hanging (SEP-2260; 2025-11-25 utilities/cancellation).
"""

from collections.abc import Collection

from msgspec import Raw
from msgspec.structs import replace

from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.machines.session import record as session_record
from actors.machines.session import streams
from actors.machines.session.record import Fields, of_server_request
from actors.machines.session.state import ClientRequest, ServerRequest, Session
from actors.protocol import capabilities, codec, errors, payload, tasks, translate
from actors.protocol.messages import Error, Result, base36
from actors.protocol.methods import Sender, carried

Step = streams.Step

AS_TASKS = 64
"""Server requests that the client runs as tasks, and whose progress is passed on."""
GIVEN = 8
"""Answers of a session that are kept in the record: of so many the first has long come where it was to go."""

ID_DIGITS = 20
"""Of the number in an id: more than ever get used, and few enough to be read as a number."""


def asked(session: Session, event: ev.ServerRequested) -> Step:
    """A backend asks. What the client did not declare is refused at once, unless it is the client's own to refuse."""
    refusal = _refusal(session, event)
    if refusal is not None:
        return session, [fx.AnswerBackend(event.backend, event.id, False, refusal.raw)]
    lowered = event.params if event.as_is else _lowered(session, event)
    if isinstance(lowered, translate.Unbridgeable):
        return session, [fx.AnswerBackend(event.backend, event.id, lowered.ok, lowered.payload)]
    server_request_id = f"{base36(session.epoch)}.{session.next_server_request}"
    token = payload.progress_token(lowered)
    params = payload.with_progress_token(lowered, server_request_id) if token is not None else lowered
    frame = codec.encode_request(server_request_id, event.method, params)
    ask = ServerRequest(event.backend, event.id, event.call, event.method, frame, None, token)
    session = replace(session, next_server_request=session.next_server_request + 1)
    return _send(session, server_request_id, ask, event)


def _lowered(session: Session, event: ev.ServerRequested) -> Raw | translate.Unbridgeable:
    """The params in the words of the client's revision."""
    client = session.client.capabilities if session.client is not None else capabilities.NOTHING
    augmented = tasks.may_augment(client, session.version, event.method)
    return translate.server_request(event.method, event.params, session.version, tasks=augmented)


def _refusal(session: Session, event: ev.ServerRequested) -> errors.ProtocolError | None:
    if session.client is None:
        return errors.internal("the session is not initialized", reason="no_client")
    if len(session.asks) >= session.rules.asks:
        return errors.internal("too many requests wait for an answer of the client", reason="too_many")
    try:
        payload.progress_token(event.params)
        if event.method in tasks.ASKING:
            return tasks.refusal(session.client.capabilities, session.version, event.method)
        if event.as_is:
            return None if carried(event.method, Sender.SERVER) else errors.method_not_found(event.method)
        return capabilities.client_refusal(session.client.bits, event.method, event.params)
    except errors.Malformed as malformed:
        return malformed.error


def _send(session: Session, server_request_id: str, ask: ServerRequest, event: ev.ServerRequested) -> Step:
    name, session, effects = _stream_for(session, ask)
    kept = replace(ask, stream=name, call=None if event.outlasts else ask.call)
    if name is None:
        session = replace(session, asks={**session.asks, server_request_id: kept})
        return session, [*effects, fx.StartServerRequestClock(server_request_id, False)]
    entry, moved = session.called(ask.call), Fields()
    if entry is not None:
        own = session.posts[entry.post].stream
        session, moved = session_record.place(session, entry, own, event)
        entry = session.called(ask.call)
    session, more = streams.put(
        session, name, ask.frame, requests=moved, asked={server_request_id: of_server_request(ask, entry, name)}
    )
    session = replace(session, asks={**session.asks, server_request_id: kept})
    return session, [*effects, *more, fx.StartServerRequestClock(server_request_id, not session.holds_up(ask.call))]


def _stream_for(session: Session, ask: ServerRequest) -> tuple[str | None, Session, fx.Effects]:
    """The stream of its call (opened now if need be) unless nobody can read it, else the newest GET stream, else
    none."""
    entry = session.called(ask.call)
    if entry is not None:
        name, session, effects = streams.stream_of(session, entry.post)
        if name is not None and not session.streams[name].lost:
            return name, session, effects
    return streams.reader(session), session, []


def awaited(session: Session, event: ev.CallAwaited) -> Step:
    """Others wait for a call. If nobody can hear of it any more, whoever was asked in its course has no longer for an
    answer than a stream is waited for."""
    entry = session.called(event.call)
    if entry is None or entry.awaited:
        return session, []
    session = session.having(replace(entry, awaited=True))
    asked = [id for id, ask in session.asks.items() if ask.call == event.call and ask.stream is not None]
    return session, [fx.StartServerRequestClock(id, False) for id in asked] if session.holds_up(event.call) else []


# Answers -----------------------------------------------------------------------------------------------------


def answered(session: Session, message: Result | Error, post: ev.PostId | None = None) -> Step:
    """The client answers. A late answer is nobody's. Where another life could go on with the call, the answer is put
    into the record, for that one to give it again, before its POST is accepted: the client says it only once."""
    ask = session.asks.get(message.id) if isinstance(message.id, str) else None
    if ask is None:
        return session, [fx.Count("late_answer")]
    ok = isinstance(message, Result)
    payload = message.result if isinstance(message, Result) else message.error
    id, stream, entry = str(message.id), ask.stream, session.called(ask.call)
    session, effects = _forget(session, id, ask)
    if ok and ask.token is not None and tasks.created(payload) is not None:
        kept = [*session.as_tasks.items()][1 - AS_TASKS :]  # the oldest is forgotten first
        session = replace(session, as_tasks={**dict(kept), id: (ask.backend, ask.token)})
    effects.append(fx.AnswerBackend(ask.backend, ask.id, ok, payload, ask.method))
    if entry is None or stream is None or session.posts[entry.post].stream != stream or not _goes_on(entry):
        return session, effects
    given = {**session.given, id: entry.call}
    outdated = tuple(given)[:-GIVEN]
    session = replace(
        session,
        given={i: call for i, call in given.items() if i not in outdated},
        settled=(*(i for i in session.settled if i != id), *outdated),
    )
    value = of_server_request(ask, entry, stream, payload, failed=not ok)
    session, more = streams.note(session, stream, {}, asked={id: value}, accepts=post)
    return session, effects + more


def _goes_on(entry: ClientRequest) -> bool:
    """Whether the record says how another life could go on with this call."""
    return entry.place is not None and entry.place.cursor is not None


def was_issued(session: Session, id: int | str | None) -> bool:
    """Whether this looks like an id that the session gave to one of its requests, in this life or an earlier one. (One
    that was never given is the client's fault.)"""
    if not isinstance(id, str):
        return False
    epoch, dot, number = id.partition(".")
    if not dot or not epoch.isalnum() or not (number.isascii() and number.isdigit() and len(number) <= ID_DIGITS):
        return False
    return epoch != base36(session.epoch) or int(number) < session.next_server_request


def _forget(session: Session, server_request_id: str, ask: ServerRequest) -> Step:
    """It has its outcome. If it was sent it is in the record, which the next append changes."""
    asks = {i: a for i, a in session.asks.items() if i != server_request_id}
    settled = session.settled if ask.stream is None else (*session.settled, server_request_id)
    return replace(session, asks=asks, settled=settled), [fx.StopServerRequestClock(server_request_id)]


# Outcomes without an answer ----------------------------------------------------------------------------------


def expired(session: Session, event: ev.ServerRequestExpired) -> Step:
    """No stream to carry it, or no answer in time."""
    ask = session.asks.get(event.ask)
    if ask is None:
        return session, []
    reason = "no_stream" if ask.stream is None else "timeout"
    return _fail(session, event.ask, ask, "timeout", "the client did not answer in time", reason)


def fail_all(session: Session, message: str, reason: str, but: Collection[ev.CallId] = ()) -> Step:
    """Nobody will answer any more, but for server requests in the course of these calls."""
    effects: fx.Effects = []
    for server_request_id, ask in session.asks.items():
        if ask.call in but:
            continue
        session, more = _fail(session, server_request_id, ask, message, message, reason)
        effects += more
    return session, effects


def _fail(session: Session, server_request_id: str, ask: ServerRequest, told: str, message: str, reason: str) -> Step:
    """The client is told that it need not answer, the backend that nobody will."""
    error = errors.internal(message, reason=reason).raw
    session, effects = _withdraw(session, server_request_id, ask, told)
    unheard = ask.stream is None
    return session, [*effects, fx.AnswerBackend(ask.backend, ask.id, False, error, ask.method, unheard)]


def withdrawn(session: Session, event: ev.ServerRequestWithdrawn) -> Step:
    """The backend no longer wants to know."""
    for server_request_id, ask in session.asks.items():
        # Python takes 1 and True for equal, but no id is a truth value; a number and its text stay two ids.
        if ask.backend == event.backend and ask.id == event.id:
            return _withdraw(session, server_request_id, ask, "withdrawn by the server")
    return session, []


def withdraw_of_call(session: Session, call: ev.CallId) -> Step:
    """A call has ended: its open server requests are withdrawn from the client. (The upstream connection answers
    the backend.)"""
    over = tuple(i for i, of in session.given.items() if of == call)
    if over:
        given = {i: of for i, of in session.given.items() if i not in over}
        session = replace(session, given=given, settled=(*session.settled, *over))
    return _withdraw_where(session, {i: a for i, a in session.asks.items() if a.call == call}, "the call has ended")


def backend_lost(session: Session, event: ev.BackendLost) -> Step:
    """An upstream connection is down: whatever its backend asked is void."""
    mine = {i: a for i, a in session.asks.items() if a.backend == event.backend}
    return _withdraw_where(session, mine, "the server is gone")


def _withdraw_where(session: Session, asks: dict[str, ServerRequest], reason: str) -> Step:
    effects: fx.Effects = []
    for server_request_id, ask in asks.items():
        session, more = _withdraw(session, server_request_id, ask, reason)
        effects += more
    return session, effects


def _withdraw(session: Session, server_request_id: str, ask: ServerRequest, reason: str) -> Step:
    session, effects = _forget(session, server_request_id, ask)
    if ask.stream is None or ask.stream not in session.streams:
        return session, effects
    session, more = streams.put(session, ask.stream, codec.encode_cancelled(server_request_id, reason))
    return session, effects + more


def progressed(session: Session, params: Raw) -> Step:
    """The client reports progress on a backend's request: the token goes back to the backend's own."""
    try:
        token = payload.reported_token(params)
    except errors.Malformed:
        return session, [fx.Count("bad_progress")]
    ask = session.asks.get(token) if isinstance(token, str) else None
    if ask is None and not session.rules.gates and not was_issued(session, token):
        return session, [fx.Broadcast("notifications/progress", params)]  # what it means, both ends know
    backend, own = (ask.backend, ask.token) if ask is not None else session.as_tasks.get(str(token), ("", None))
    if own is None:
        return session, [fx.Count("late_progress")]
    try:
        translated = payload.replace_members(params, {"progressToken": payload.dumps(own)})
    except errors.Malformed:
        return session, [fx.Count("bad_progress")]
    return session, [fx.NotifyBackend(backend, "notifications/progress", translated)]
