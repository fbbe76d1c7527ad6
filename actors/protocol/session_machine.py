"""The machine of a session-era session, as the client sees it (revisions 2024-11-05 to 2025-11-25).

`step(session, event)` gives the next session and the effects: no clock, no randomness, no IO. An event that the phase
does not serve is refused and leaves the state untouched. Requests are in `inflight`, questions of backends in `asks`,
streams in `streams`; here is the lifecycle and the way in.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.protocol import (
    asks,
    capabilities,
    codec,
    errors,
    inflight,
    lowering,
    payload,
    session_record,
    streams,
)
from actors.protocol import (
    effects as fx,
)
from actors.protocol import (
    events as ev,
)
from actors.protocol.messages import EMPTY, Error, Notification, Request, RequestId, Result
from actors.protocol.methods import METHODS, Kind, Sender, known
from actors.protocol.session_state import Client, Post, Session
from actors.protocol.session_table import SERVED, TRANSITIONS, Phase
from actors.protocol.versions import can_use, negotiate

Step = streams.Step

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Of log messages, rising (RFC 5424)."""

RETRY_MS = 1000
"""What the drain tells a client to wait before it comes back; the actor adds jitter."""


def step(session: Session, event: ev.SessionEvent) -> Step:
    """One event. Never raises for anything that a client or a backend can send."""
    if type(event) not in SERVED[session.phase]:
        return _refused(session, event)
    return HANDLERS[type(event)](session, event)


def _refused(session: Session, event: ev.SessionEvent) -> Step:
    """The phase does not serve this: whoever waits is told."""
    gone = errors.session_not_found()
    if isinstance(event, ev.Posted):
        return session, [fx.RefusePost(event.post, gone)]
    if isinstance(event, ev.Attached):
        return session, [fx.RefuseGet(event.connection, gone)]
    if isinstance(event, ev.Asked):
        error = errors.internal("the session has ended", reason="session_ended").raw
        return session, [fx.AnswerBackend(event.backend, event.id, False, error)]
    return session, [fx.Tally(f"{type(event).__name__} while {session.phase.value}")]


# The way in: a POST ------------------------------------------------------------------------------------------


def _posted(session: Session, event: ev.Posted) -> Step:
    refusal = _refusal_of_post(session, event)
    if refusal is not None:
        return session, [refusal]
    requests = [m for m in event.messages if isinstance(m, Request)]
    effects: fx.Effects = []
    if requests or event.refused:
        opened = frozenset(m.id for m in requests)
        post = Post(opened, event.batch, answers=_answers_to_refused(event))
        session = replace(session, posts={**session.posts, event.post: post})
        effects.append(fx.StartTurnClock(event.post))
    for message in event.messages:
        session, more = _message(session, event, message)
        effects += more
    if not requests and not event.refused:
        effects.append(fx.Accept(event.post))
    if event.refused and not requests:
        session, more = _only_refused(session, event)
        effects += more
    return session, effects


def _answers_to_refused(event: ev.Posted) -> tuple[bytes, ...]:
    return tuple(
        codec.encode(Error(id, error)) if id is not None else b'{"jsonrpc":"2.0","error":%s}' % bytes(error)
        for id, error in event.refused
    )


def _only_refused(session: Session, event: ev.Posted) -> Step:
    """A batch without one good request: its errors are the answer."""
    post = session.posts[event.post]
    posts = {p: v for p, v in session.posts.items() if p != event.post}
    body = b"[" + b",".join(post.answers) + b"]"
    return replace(session, posts=posts), [fx.StopTurnClock(event.post), fx.AnswerPost(event.post, body)]


def _refusal_of_post(session: Session, event: ev.Posted) -> fx.RefusePost | None:
    """What refuses a POST as a whole, before anything of it is done."""
    requests = [m for m in event.messages if isinstance(m, Request)]
    if event.batch:
        if not can_use(session.version, "batches"):
            return fx.RefusePost(event.post, errors.batch_refused())
        if any(m.method == "initialize" for m in requests):
            return fx.RefusePost(event.post, errors.invalid_request("initialize can't be part of a batch"))
    ids = [m.id for m in requests]
    for id in ids:
        if id in session.requests or ids.count(id) > 1:
            return fx.RefusePost(event.post, errors.invalid_request("a request with this id is in flight"), id)
    for message in event.messages:
        if isinstance(message, Result | Error) and not asks.was_issued(session, message.id):
            return fx.RefusePost(event.post, errors.invalid_request("a response to no request of this server"))
    if not requests:
        return None
    if session.phase is Phase.DRAINING:
        return fx.RefusePost(event.post, errors.draining(), ids[0])
    work = sum(m.method != "ping" for m in requests)
    if len(session.requests) + work > session.rules.requests:
        return fx.RefusePost(event.post, errors.too_many_requests(), ids[0])
    if session.phase is Phase.NEW:
        if requests[0].method != "initialize":
            return fx.RefusePost(event.post, errors.not_initialized(), ids[0])
    elif any(m.method == "initialize" for m in requests):
        return fx.RefusePost(event.post, errors.already_initialized(), ids[0])
    return None


def _message(session: Session, event: ev.Posted, message: Any) -> Step:
    if isinstance(message, Request):
        return _request(session, event, message)
    if isinstance(message, Notification):
        return _notification(session, message)
    return asks.answered(session, message)


def _request(session: Session, event: ev.Posted, request: Request) -> Step:
    if request.method == "ping":
        # Answered here: it says that the gateway is alive, and no backend may delay it.
        return inflight.answer(session, event.post, request.id, codec.encode_result(request.id, Raw(b"{}")))
    if request.method == "initialize":
        return _initialize(session, event, request)
    refusal = _gate(session, request)
    if refusal is not None:
        return inflight.answer(session, event.post, request.id, codec.encode_error(request.id, refusal))
    effects: fx.Effects = []
    if request.method == "logging/setLevel":
        level = _level(request.params)
        if level is None:
            error = codec.encode_error(request.id, errors.invalid_params("unknown log level"))
            return inflight.answer(session, event.post, request.id, error)
        session = replace(session, level=level)
        effects = [fx.Save({"level": level.encode()})]
    try:
        session, more = inflight.accept(session, event.post, request, event.now)
    except errors.Malformed as malformed:
        return inflight.answer(session, event.post, request.id, codec.encode_error(request.id, malformed.error))
    return session, effects + more


def _gate(session: Session, request: Request) -> errors.ProtocolError | None:
    """What revision and declared capabilities forbid (2025-11-25 lifecycle, "Operation")."""
    row = METHODS.get(request.method)
    if row is not None and (
        row.kind is not Kind.REQUEST or known(request.method, Sender.CLIENT, session.version) is None
    ):
        return errors.method_not_found(request.method)
    if not session.rules.gates:
        return None
    if (
        row is None
        or session.server is None
        or not capabilities.allows(session.server, request.method, session.version)
    ):
        return errors.method_not_found(request.method)
    return None


class _Level(msgspec.Struct):
    level: str


def _level(params: Raw) -> str | None:
    try:
        level = msgspec.json.decode(params, type=_Level).level
    except (msgspec.DecodeError, RecursionError):
        return None
    return level if level in LEVELS else None


# Lifecycle ---------------------------------------------------------------------------------------------------


class _InitializeParams(msgspec.Struct):
    protocolVersion: str  # the wire's name  # noqa: N815
    capabilities: Raw = Raw(b"{}")
    clientInfo: Raw = Raw(b"{}")  # noqa: N815


def _initialize(session: Session, event: ev.Posted, request: Request) -> Step:
    """Chooses the revision; what the server side says of itself comes as the outcome of the dispatched call."""
    try:
        params = msgspec.json.decode(request.params, type=_InitializeParams)
        version = negotiate(params.protocolVersion)
    except (msgspec.DecodeError, RecursionError):
        session = replace(session, phase=TRANSITIONS[session.phase, "end"])
        error = codec.encode_error(
            request.id, errors.invalid_params("initialize needs protocolVersion and capabilities")
        )
        session, effects = inflight.answer(session, event.post, request.id, error)
        return session, [*effects, fx.End("initialize_malformed")]
    client = client_of(params.capabilities, params.clientInfo, version)
    session = replace(session, phase=TRANSITIONS[session.phase, "initialize"], version=version, client=client)
    return inflight.accept(session, event.post, request, event.now)


def client_of(declared: Raw, info: Raw, version: str) -> Client:
    """What `initialize` said, copied: it outlives the message."""
    parsed = capabilities.parse(Raw(bytes(declared)))
    return Client(parsed, capabilities.client_bits(parsed.raw, version), Raw(bytes(info)))


def _call_ended(session: Session, event: ev.CallEnded) -> Step:
    id = session.calls.get(event.call)
    if id is None or session.requests[id].method != "initialize":
        return inflight.ended(session, event)
    if not event.ok:
        session, effects = inflight.ended(session, event)
        return replace(session, phase=Phase.CLOSED), [*effects, fx.End("initialize_failed")]
    try:
        declared = payload.members(event.payload).get("capabilities", EMPTY)
    except errors.Malformed:
        declared = EMPTY
    return inflight.ended(replace(session, server=capabilities.parse(Raw(bytes(declared)))), event)


def _notification(session: Session, message: Notification) -> Step:
    method = message.method
    if method == "notifications/initialized":
        following = TRANSITIONS.get((session.phase, method))
        if following is None:
            return session, []
        session = replace(session, phase=following)
        return session, [fx.Save(session_record.handshake(session))]
    if method == "notifications/cancelled":
        return inflight.cancelled(session, message.params)
    if method == "notifications/progress":
        return asks.progressed(session, message.params)
    row = known(method, Sender.CLIENT, session.version)
    # A server by itself may know more than the table; a request without an id is nothing that anybody knows.
    strange = row is None or row.kind is not Kind.NOTIFICATION
    if strange and (session.rules.gates or method in METHODS):
        return session, [fx.Tally("unknown_notification")]
    return session, [fx.Broadcast(method, message.params)]


def _drain(session: Session, event: ev.DrainStarted) -> Step:
    session = replace(session, phase=TRANSITIONS[session.phase, "drain"])
    return streams.let_go(session, RETRY_MS)


def _drain_overdue(session: Session, event: ev.DrainOverdue) -> Step:
    return _fail_requests(session, "the gateway is shutting down", "shutdown")


def _fail_requests(session: Session, message: str, reason: str) -> Step:
    """Every request in flight gets an error that says it may have been executed."""
    effects: fx.Effects = []
    for entry in list(session.requests.values()):
        error = errors.internal(message, reason=reason, executed="unknown")
        session, more = inflight.settle(session, entry, codec.encode_error(entry.id, error))
        effects += [fx.CancelCall(entry.call, message), *more]
    return session, effects


def _end(session: Session, event: ev.Ended) -> Step:
    """Requests in flight get their error first, then everything closes."""
    session, effects = _fail_requests(session, "the session has ended", event.reason)
    for stream in session.streams.values():
        if stream.connection is not None:
            effects.append(fx.CloseConnection(stream.connection, event.reason))
    ended = errors.internal("the session has ended", reason="session_ended").raw
    effects += [fx.AnswerBackend(ask.backend, ask.id, False, ended) for ask in session.asks.values()]
    session = replace(session, phase=TRANSITIONS[session.phase, "end"], streams={}, asks={}, box=())
    return session, [*effects, fx.End(event.reason)]


# What backends say -------------------------------------------------------------------------------------------


class _Uri(msgspec.Struct):
    uri: str


def _call_progressed(session: Session, event: ev.CallProgressed) -> Step:
    """A notification of a backend."""
    if event.method == "notifications/progress":
        return inflight.progressed(session, event)
    row = known(event.method, Sender.SERVER, session.version)
    if row is None and (session.rules.gates or event.method in METHODS):
        return session, [fx.Tally("unknown_notification")]
    if event.method == "notifications/message" and not _loud_enough(session, event.params):
        return session, [fx.Tally("log_below_level")]
    frame = codec.encode_notification(event.method, lowering.notification(event.method, event.params, session.version))
    return inflight.say(session, event.call, frame, _coalescing_key(event))


def _coalescing_key(event: ev.CallProgressed) -> str | None:
    """`list_changed` of a kind and `updated` of a URI say the same however often they are said."""
    if event.method.endswith("/list_changed"):
        return event.method
    if event.method == "notifications/resources/updated":
        try:
            return f"{event.method} {msgspec.json.decode(event.params, type=_Uri).uri}"
        except (msgspec.DecodeError, RecursionError):
            return None
    return None


def _loud_enough(session: Session, params: Raw) -> bool:
    if session.level is None:
        return True
    level = _level(params)
    return level is None or LEVELS.index(level) >= LEVELS.index(session.level)


def _backend_lost(session: Session, event: ev.BackendLost) -> Step:
    return asks.withdraw_of_backend(session, event.backend)


def _stream_failed(session: Session, event: ev.StreamFailed) -> Step:
    if event.reason in ("fenced", "gone", "ended"):
        session, effects = streams.failed(session, event)
        session, more = _end(session, ev.Ended(event.reason))
        return session, effects + more
    return streams.failed(session, event)


Handler = Callable[[Session, Any], Step]

HANDLERS: dict[type, Handler] = {
    ev.Posted: _posted,
    ev.PostBroken: inflight.post_broken,
    ev.Attached: streams.attached,
    ev.Detached: streams.detached,
    ev.StreamTurnDue: inflight.turn_due,
    ev.CallExpired: inflight.expired,
    ev.AskExpired: asks.expired,
    ev.CallProgressed: _call_progressed,
    ev.CallEnded: _call_ended,
    ev.Asked: asks.asked,
    ev.AskWithdrawn: asks.withdrawn,
    ev.BackendLost: _backend_lost,
    ev.StreamFailed: _stream_failed,
    ev.DrainStarted: _drain,
    ev.DrainOverdue: _drain_overdue,
    ev.Ended: _end,
}

__all__ = ["EMPTY", "HANDLERS", "RequestId", "Result", "step"]
