"""The machine of a legacy session, as the client sees it (revisions 2024-11-05 to 2025-11-25).

`step(session, event)` gives the next session and the effects: no clock, no randomness, no IO. TABLE says which
function serves which event in which phase; an event that has no row there is refused and leaves the state
untouched. Changes of phase are looked up in `session/state`. Here are the lifecycle and the way in; requests and
notifications are in `session/requests`, server requests in `session/server_requests`, streams in `streams`.
"""

import functools
from collections.abc import Callable, Collection
from operator import attrgetter
from typing import Any, assert_never

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.machines.session import record as session_record
from actors.machines.session import requests as inflight
from actors.machines.session import server_requests, streams
from actors.machines.session.rebuild import continuable
from actors.machines.session.state import REFUSALS, TRANSITIONS, Client, Post, Session, SessionPhase
from actors.protocol import capabilities, codec, errors, payload
from actors.protocol.errors import BROKEN
from actors.protocol.messages import Error, Notification, Request, RequestId, Result
from actors.protocol.methods import METHODS, Kind, Sender, known
from actors.protocol.versions import can_use, negotiate

Step = streams.Step

CLIENT_BYTES = 64 * 1024
"""What a client may say of itself: it is kept as long as the session, and is in its record."""

_id, _method = attrgetter("id"), attrgetter("method")

FENCED = "fenced"
"""The reason of an end that is none: the session is another's now."""

RETRY_MS = 1000
"""What the drain tells a client to wait before it comes back; the actor adds jitter."""


def step(session: Session, event: ev.SessionEvent) -> Step:
    """One event. Never raises for anything that a client or a backend can send."""
    handler = TABLE.get((session.phase, type(event)))
    return handler(session, event) if handler is not None else _refused(session, event)


def _refused(session: Session, event: ev.SessionEvent) -> Step:
    """The phase does not serve this: whoever waits is told."""
    gone = errors.session_not_found()
    if isinstance(event, ev.Posted):
        id = next((m.id for m in event.messages if isinstance(m, Request)), None)
        return session, [fx.RefusePost(event.post, gone, id)]
    if isinstance(event, ev.Attached):
        return session, [fx.RefuseGet(event.connection, gone)]
    if isinstance(event, ev.ServerRequested):
        error = errors.internal("the session has ended", reason="session_ended").raw
        return session, [fx.AnswerBackend(event.backend, event.id, False, error)]
    return session, [fx.Count(f"{type(event).__name__} while {session.phase.value}")]


# The way in: a POST ------------------------------------------------------------------------------------------


def _posted(session: Session, event: ev.Posted) -> Step:
    requests = [message for message in event.messages if isinstance(message, Request)]
    refusal = _refusal_of_post(session, event, requests)
    if refusal is not None:
        return session, [refusal]
    effects: fx.Effects = []
    if requests:
        refused = _answers_to_refused(event) if event.refused else ()
        post = Post(tuple(map(_id, requests)), event.batch, answers=refused)
        session = replace(session, posts={**session.posts, event.post: post})
        effects.append(fx.StartTurnClock(event.post))
    for message in event.messages:
        match message:
            case Request():
                session, more = _request(session, event, message)
            case Notification():
                session, more = _notification(session, message)
            case Result() | Error():
                session, more = server_requests.answered(session, message, None if event.batch else event.post)
            case _:
                assert_never(message)
        effects += more
    if not requests and not any(type(effect) is fx.Append and effect.accepts is not None for effect in effects):
        effects.append(_receipt(event))
    return session, effects


def _receipt(event: ev.Posted) -> fx.AnswerPost | fx.Accept:
    """For a POST without a request: accepted, or the errors of a batch that had nothing better."""
    if not event.refused:
        return fx.Accept(event.post)
    return fx.AnswerPost(event.post, codec.encode_batch(list(_answers_to_refused(event))))


def _answers_to_refused(event: ev.Posted) -> tuple[bytes, ...]:
    return tuple(codec.encode(Error(id, error)) for id, error in event.refused)


def _request(session: Session, event: ev.Posted, request: Request) -> Step:
    if request.method == "ping":
        # Answered here: it says that the gateway is alive, and no backend may delay it.
        return inflight.answer(session, event.post, request.id, codec.encode_result(request.id, Raw(b"{}")))
    if request.method == "initialize":
        return _initialize(session, event, request)
    refusal = _refusal_of_request(session, request)
    level = capabilities.level_of(request.params) if request.method == "logging/setLevel" else None
    if refusal is None and level is not None and level not in capabilities.LEVELS and session.rules.gates:
        refusal = errors.invalid_params("unknown log level")
    if refusal is not None:
        return _deny(session, event, request, refusal)
    effects: fx.Effects = []
    if session.phase is SessionPhase.CONFIRMING:
        # Whoever asks has read the answer to `initialize`. What says so else may be lost on its way, or never come.
        session, effects = _initialized(session, "request")
    try:
        session, more = inflight.accept(session, event, request, level)
    except errors.Malformed as malformed:
        session, more = _deny(session, event, request, malformed.error)
    return session, effects + more


def _deny(session: Session, event: ev.Posted, request: Request, error: errors.ProtocolError) -> Step:
    return inflight.answer(session, event.post, request.id, codec.encode_error(request.id, error))


def _refusal_of_post(session: Session, event: ev.Posted, requests: list[Request]) -> fx.RefusePost | None:
    """What refuses a POST, with these requests in it, as a whole: its HTTP status says so, and nothing was executed."""
    if event.batch:
        if not can_use(session.version, "batches"):
            return fx.RefusePost(event.post, errors.batch_refused())
        if any(m.method == "initialize" for m in requests):
            return fx.RefusePost(event.post, errors.invalid_request("initialize can't be part of a batch"))
    ids = [*map(_id, requests)]
    for id in ids:
        if id in session.requests or ids.count(id) > 1:
            return fx.RefusePost(event.post, errors.invalid_request("a request with this id is in flight"), id)
    for message in event.messages if len(requests) < len(event.messages) else ():
        if isinstance(message, Result | Error) and not server_requests.was_issued(session, message.id):
            return fx.RefusePost(event.post, errors.invalid_request("a response to no request of this server"))
    # Requests need a phase that takes them, and room. (A ping needs neither: 2025-11-25 utilities/ping.)
    methods = [*map(_method, requests)]
    number = len(methods) - methods.count("ping")
    refusal = REFUSALS.get((session.phase, "initialize" if "initialize" in methods else "request")) if number else None
    if refusal is not None:
        return fx.RefusePost(event.post, refusal(), ids[0])
    if number > session.rules.requests:
        error = errors.invalid_request(f"a batch may hold {session.rules.requests} requests")
        return fx.RefusePost(event.post, error, ids[0])
    if number and len(session.requests) + number > session.rules.requests:
        return fx.RefusePost(event.post, errors.too_many_requests(), ids[0])
    return None


def _refusal_of_request(session: Session, request: Request) -> errors.ProtocolError | None:
    """What refuses a request by itself, with a JSON-RPC error: what revision and declared capabilities forbid
    (2025-11-25 lifecycle, "Operation")."""
    row = METHODS.get(request.method)
    if row is not None and not _asked_by_clients(request.method, session.version):
        return errors.method_not_found(request.method)
    if not session.rules.gates:
        return None
    declared = session.server
    if row is None or declared is None or not capabilities.allows(declared, request.method, session.version):
        return errors.method_not_found(request.method)
    return None


@functools.cache
def _asked_by_clients(method: str, version: str) -> bool:
    """Whether clients may send this request, one of METHODS, in this revision."""
    row = known(method, Sender.CLIENT, version)
    return row is not None and row.kind is Kind.REQUEST


# Lifecycle ---------------------------------------------------------------------------------------------------


class _InitializeParams(msgspec.Struct):
    """What every revision requires (schema, InitializeRequest)."""

    protocolVersion: str  # the wire's name  # noqa: N815
    capabilities: Raw
    clientInfo: Raw  # noqa: N815


class _Implementation(msgspec.Struct):
    name: str
    version: str


def _initialize(session: Session, event: ev.Posted, request: Request) -> Step:
    """Chooses the revision; what the server side says of itself comes as the outcome of the dispatched call."""
    try:
        params = msgspec.json.decode(request.params, type=_InitializeParams)
        msgspec.json.decode(params.clientInfo, type=_Implementation)
        version = negotiate(params.protocolVersion)
        client = client_of(params.capabilities, params.clientInfo, version)
        session, effects = inflight.accept(session, event, request)
    except (*BROKEN, errors.Malformed) as broken:
        error = errors.invalid_params("initialize needs protocolVersion, capabilities and clientInfo")
        if isinstance(broken, errors.Malformed):
            error = broken.error
        session, effects = _deny(session, event, request, error)
        session, more = _end(session, ev.Ended("initialize_malformed"))
        return session, effects + more
    return replace(session, phase=TRANSITIONS[session.phase, "initialize"], version=version, client=client), effects


def client_of(declared: Raw, info: Raw, version: str) -> Client:
    """What `initialize` said, copied: it outlives the message. Raises Malformed if it says too much."""
    if not payload.is_object(declared):
        raise errors.Malformed(errors.invalid_params("capabilities must be an object"))
    if len(declared) + len(info) > CLIENT_BYTES:
        raise errors.Malformed(errors.invalid_params("capabilities and clientInfo are too large"))
    parsed, bits = capabilities.declared(bytes(declared), version)
    return Client(parsed, bits, payload.kept(info))


def _initialize_ended(session: Session, event: ev.CallEnded) -> Step:
    """No other call is in flight before `initialize` has its answer."""
    if event.call not in session.calls:
        return inflight.ended(session, event)
    if not event.ok:
        return _not_initialized(*inflight.ended(session, event))
    declared = capabilities.of_initialize_result(event.payload)
    kept = capabilities.kept(declared.raw)
    phase = TRANSITIONS[session.phase, "initialize answered"]
    return inflight.ended(replace(session, phase=phase, server=kept), event)


def _initialize_expired(session: Session, event: ev.CallExpired) -> Step:
    if event.call not in session.calls:
        return inflight.expired(session, event)
    return _not_initialized(*inflight.expired(session, event))


def _not_initialized(session: Session, effects: fx.Effects) -> Step:
    """The client has its error; a session without an answer to `initialize` is none."""
    session, more = _end(session, ev.Ended("initialize_failed"))
    return session, effects + more


def _notification(session: Session, message: Notification) -> Step:
    method = message.method
    if method == "notifications/initialized":
        return _initialized(session, method)
    if method == "notifications/cancelled":
        return inflight.cancelled(session, message.params)
    if method == "notifications/progress":
        return server_requests.progressed(session, message.params)
    why = inflight.why_drop(session, method, Sender.CLIENT)
    return session, [fx.Count(why)] if why is not None else [fx.Broadcast(method, message.params)]


def _initialized(session: Session, cause: str) -> Step:
    """The handshake is over: from here on a session can be rebuilt, and the client be told what waited."""
    following = TRANSITIONS.get((session.phase, cause))
    if following is not None:
        session = replace(session, phase=following)
    elif session.phase is SessionPhase.OPERATION:
        return session, []  # said twice, or after a request
    elif session.phase is not SessionPhase.DRAINING:
        return session, [fx.Count("early_initialized")]
    # In a drain too: whoever has the session next needs to know.
    save = fx.Save(session_record.handshake(session))
    session, effects = streams.deliver(session)
    return session, [save, *effects]


def _drain(session: Session, event: ev.DrainStarted) -> Step:
    session = replace(session, phase=TRANSITIONS[session.phase, "drain"])
    return streams.let_go(session, RETRY_MS)


def _drain_overdue(session: Session, event: ev.DrainOverdue) -> Step:
    """What is left for the next life has a client that is asked to come back for it, if it can."""
    session, effects = _leave_work(session, event.lasting, "the gateway is shutting down", "shutdown")
    posts = session.posts.values() if can_use(session.version, "priming") else ()
    for name in [post.stream for post in posts if post.stream is not None]:
        session, more = streams.hand_over(session, name, RETRY_MS)
        effects += more
    return session, effects


def _move(session: Session, event: ev.MoveAsked) -> Step:
    return _leave_work(session, event.lasting, "the session was moved to another replica", "moved")


def _leave_work(session: Session, lasting: Collection[str], message: str, reason: str) -> Step:
    """What is in flight in either direction gets its error, or is left for the next life, with the server requests
    that came with it."""
    left = continuable(session, lasting)
    session, effects = _fail_requests(session, message, reason, left)
    calls = {entry.call for entry in left.values()}
    session, more = server_requests.fail_all(session, message, reason, calls)
    return session, effects + more


def _fail_requests(session: Session, message: str, reason: str, but: Collection[RequestId] = ()) -> Step:
    """Every other request in flight gets an error that says whether it may have been executed."""
    effects: fx.Effects = []
    for entry in session.requests.values():
        if entry.id in but:
            continue
        error = errors.internal(message, reason=reason, executed=entry.executed)
        session, more = inflight.give_up(session, entry, error, message)
        effects += more
    return session, effects


def _end(session: Session, event: ev.Ended) -> Step:
    """Requests in flight get their error first, then everything closes."""
    if event.reason == FENCED:
        return _moved(session)
    session, effects = _fail_requests(session, "the session has ended", event.reason)
    session, more = server_requests.fail_all(session, "the session has ended", "session_ended")
    effects += more
    for stream in session.streams.values():
        if stream.connection is not None:
            effects.append(fx.CloseConnection(stream.connection, event.reason))
    phase = TRANSITIONS[session.phase, "end"]
    return replace(session, phase=phase, streams={}, box=(), settled=()), [*effects, fx.End(event.reason)]


def _moved(session: Session) -> Step:
    """The session goes on elsewhere. Its backends are told nothing, for what they run and ask is the next owner's; and
    what is recorded is that one's to answer, so that these errors only reach whoever waits on a connection of ours."""
    effects: fx.Effects = []
    for entry in session.requests.values():
        error = errors.internal("the session has moved to another replica", reason="moved", executed=entry.executed)
        session, more = inflight.settle(session, entry, codec.encode_error(entry.id, error))
        effects += more
    effects += [fx.CloseConnection(s.connection, FENCED) for s in session.streams.values() if s.connection is not None]
    phase = TRANSITIONS[session.phase, "end"]
    return replace(session, phase=phase, streams={}, asks={}, given={}, box=(), settled=()), [
        *effects,
        fx.End(FENCED),
    ]


def _stream_failed(session: Session, event: ev.StreamFailed) -> Step:
    """One stream is lost; or, by the reason, the session is another's or gone."""
    session, effects = streams.failed(session, event)
    if event.reason in ("fenced", "gone", "ended"):
        session, more = _end(session, ev.Ended(event.reason))
        effects += more
    return session, effects


Handler = Callable[[Session, Any], Step]

INITIALIZING = (SessionPhase.INITIALIZING, SessionPhase.DRAINING_INITIALIZING)
SERVING = (SessionPhase.CONFIRMING, SessionPhase.OPERATION, SessionPhase.DRAINING)
BEGUN = (*INITIALIZING, *SERVING)

TABLE: dict[tuple[SessionPhase, type], Handler] = {
    # The client.
    **{(phase, ev.Posted): _posted for phase in (SessionPhase.NEW, *BEGUN)},
    **{(phase, ev.PostBroken): inflight.post_broken for phase in BEGUN},
    **{(phase, ev.StreamTurnDue): inflight.turn_due for phase in BEGUN},
    (SessionPhase.INITIALIZING, ev.Attached): streams.attached,
    (SessionPhase.CONFIRMING, ev.Attached): streams.attached,
    (SessionPhase.OPERATION, ev.Attached): streams.attached,
    (SessionPhase.DRAINING_INITIALIZING, ev.Attached): streams.attached_in_drain,
    (SessionPhase.DRAINING, ev.Attached): streams.attached_in_drain,
    **{(phase, ev.Detached): streams.detached for phase in BEGUN},
    # Its requests. Until `initialize` is answered there is no other, and that one is sent to nobody.
    **{(phase, ev.CallEnded): _initialize_ended for phase in INITIALIZING},
    **{(phase, ev.CallEnded): inflight.ended for phase in SERVING},
    **{(phase, ev.CallExpired): _initialize_expired for phase in INITIALIZING},
    **{(phase, ev.CallExpired): inflight.expired for phase in SERVING},
    **{(phase, ev.CallPlaced): inflight.placed for phase in SERVING},
    **{(phase, ev.CallHeld): inflight.held for phase in SERVING},
    **{(phase, ev.CallAwaited): server_requests.awaited for phase in SERVING},
    **{(phase, ev.CallDue): inflight.due for phase in SERVING},
    **{(phase, ev.CallCleared): inflight.cleared for phase in SERVING},
    # What backends say, and ask.
    **{(phase, ev.CallProgressed): inflight.told for phase in BEGUN},
    **{(phase, ev.ServerRequested): server_requests.asked for phase in BEGUN},
    **{(phase, ev.ServerRequestWithdrawn): server_requests.withdrawn for phase in BEGUN},
    **{(phase, ev.ServerRequestExpired): server_requests.expired for phase in BEGUN},
    **{(phase, ev.BackendLost): server_requests.backend_lost for phase in BEGUN},
    # The end.
    **{(phase, ev.StreamFailed): _stream_failed for phase in BEGUN},
    (SessionPhase.INITIALIZING, ev.DrainStarted): _drain,
    (SessionPhase.CONFIRMING, ev.DrainStarted): _drain,
    (SessionPhase.OPERATION, ev.DrainStarted): _drain,
    (SessionPhase.DRAINING_INITIALIZING, ev.DrainOverdue): lambda session, event: _end(session, ev.Ended("shutdown")),
    (SessionPhase.DRAINING, ev.DrainOverdue): _drain_overdue,
    (SessionPhase.OPERATION, ev.MoveAsked): _move,
    (SessionPhase.DRAINING, ev.MoveAsked): _move,
    **{(phase, ev.Ended): _end for phase in (SessionPhase.NEW, *BEGUN)},
}
"""Who serves what. A session that is over serves nothing, a new one only its first message and its end."""
