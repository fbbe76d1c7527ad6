"""The machine of a session-era session, as the client sees it (revisions 2024-11-05 to 2025-11-25).

`step(session, event)` gives the next session and the effects: no clock, no randomness, no IO. An event that the phase
does not serve is refused and leaves the state untouched. Here is the lifecycle and the way in; requests are in
`inflight`, questions of backends in `asks`, their notifications in `notices`, streams in `streams`.
"""

from collections.abc import Callable, Collection
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.protocol import (
    admission,
    asks,
    capabilities,
    codec,
    errors,
    inflight,
    notices,
    payload,
    places,
    session_record,
    streams,
)
from actors.protocol import effects as fx
from actors.protocol import events as ev
from actors.protocol.continuation import continuable
from actors.protocol.messages import Error, Message, Notification, Request, RequestId
from actors.protocol.methods import Sender
from actors.protocol.session_state import Client, Post, Session
from actors.protocol.session_table import SERVED, TRANSITIONS, Phase
from actors.protocol.versions import negotiate

Step = streams.Step

CLIENT_BYTES = 64 * 1024
"""What a client may say of itself: it is kept as long as the session, and is in its record."""

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
        id = next((m.id for m in event.messages if isinstance(m, Request)), None)
        return session, [fx.RefusePost(event.post, gone, id)]
    if isinstance(event, ev.Attached):
        return session, [fx.RefuseGet(event.connection, gone)]
    if isinstance(event, ev.Asked):
        error = errors.internal("the session has ended", reason="session_ended").raw
        return session, [fx.AnswerBackend(event.backend, event.id, False, error)]
    return session, [fx.Tally(f"{type(event).__name__} while {session.phase.value}")]


# The way in: a POST ------------------------------------------------------------------------------------------


def _posted(session: Session, event: ev.Posted) -> Step:
    refusal = admission.refusal_of_post(session, event)
    if refusal is not None:
        return session, [refusal]
    opened = tuple(m.id for m in event.messages if isinstance(m, Request))
    effects: fx.Effects = []
    if opened:
        post = Post(opened, event.batch, answers=_answers_to_refused(event))
        session = replace(session, posts={**session.posts, event.post: post})
        effects.append(fx.StartTurnClock(event.post))
    for message in event.messages:
        session, more = _message(session, event, message)
        effects += more
    if not opened:
        effects.append(_receipt(event))
    return session, effects


def _receipt(event: ev.Posted) -> fx.AnswerPost | fx.Accept:
    """For a POST without a request: accepted, or the errors of a batch that had nothing better."""
    if not event.refused:
        return fx.Accept(event.post)
    return fx.AnswerPost(event.post, codec.encode_batch(list(_answers_to_refused(event))))


def _answers_to_refused(event: ev.Posted) -> tuple[bytes, ...]:
    return tuple(codec.encode(Error(id, error)) for id, error in event.refused)


def _message(session: Session, event: ev.Posted, message: Message) -> Step:
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
    refusal = admission.refusal_of_request(session, request)
    level = notices.level(request.params) if request.method == "logging/setLevel" else None
    if refusal is None and request.method == "logging/setLevel" and level is None:
        refusal = errors.invalid_params("unknown log level")
    if refusal is not None:
        return _deny(session, event, request, refusal)
    try:
        return inflight.accept(session, event.post, request, event.now, level)
    except errors.Malformed as malformed:
        return _deny(session, event, request, malformed.error)


def _deny(session: Session, event: ev.Posted, request: Request, error: errors.ProtocolError) -> Step:
    return inflight.answer(session, event.post, request.id, codec.encode_error(request.id, error))


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
        session, effects = inflight.accept(session, event.post, request, event.now)
    except (msgspec.DecodeError, RecursionError, errors.Malformed) as broken:
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
    parsed = capabilities.parse(Raw(bytes(declared)))
    return Client(parsed, capabilities.client_bits(parsed.raw, version), Raw(bytes(info)))


def _call_ended(session: Session, event: ev.CallEnded) -> Step:
    if not admission.unborn(session) or event.call not in session.calls:
        return inflight.ended(session, event)
    if not event.ok:
        session, effects = inflight.ended(session, event)
        session, more = _end(session, ev.Ended("initialize_failed"))
        return session, effects + more
    declared = capabilities.of_initialize_result(event.payload)
    kept = capabilities.parse(Raw(bytes(declared.raw)))
    return inflight.ended(replace(session, server=kept), event)


def _call_expired(session: Session, event: ev.CallExpired) -> Step:
    if not admission.unborn(session) or event.call not in session.calls:
        return inflight.expired(session, event)
    session, effects = inflight.expired(session, event)
    session, more = _end(session, ev.Ended("initialize_failed"))
    return session, effects + more


def _notification(session: Session, message: Notification) -> Step:
    method = message.method
    if method == "notifications/initialized":
        return _initialized(session)
    if method == "notifications/cancelled":
        return inflight.cancelled(session, message.params)
    if method == "notifications/progress":
        return asks.progressed(session, message.params)
    why = admission.why_drop(session, method, Sender.CLIENT)
    return session, [fx.Tally(why)] if why is not None else [fx.Broadcast(method, message.params)]


def _initialized(session: Session) -> Step:
    """The handshake is over: from here on a session can be rebuilt, and the client be told what waited."""
    if session.server is None:
        return session, [fx.Tally("early_initialized")]
    following = TRANSITIONS.get((session.phase, "notifications/initialized"))
    if following is not None:
        session = replace(session, phase=following)
    elif session.phase is not Phase.DRAINING:
        return session, []
    # In a drain too: whoever has the session next needs to know.
    save = fx.Save(session_record.handshake(session))
    session, effects = streams.deliver(session)
    return session, [save, *effects]


def _drain(session: Session, event: ev.DrainStarted) -> Step:
    session = replace(session, phase=TRANSITIONS[session.phase, "drain"])
    return streams.let_go(session, RETRY_MS)


def _drain_overdue(session: Session, event: ev.DrainOverdue) -> Step:
    """What is in flight in either direction gets its error, or is left for the next life, with the questions that came
    with it. A session without an answer to `initialize` is none."""
    if admission.unborn(session):
        return _end(session, ev.Ended("shutdown"))
    left = continuable(session, event.lasting)
    session, effects = _fail_requests(session, "the gateway is shutting down", "shutdown", left)
    calls = {entry.call for entry in left.values()}
    session, more = asks.fail_all(session, "the gateway is shutting down", "shutdown", calls)
    effects += more
    for name in dict.fromkeys(session.posts[entry.post].stream or "" for entry in left.values()):
        session, more = streams.hand_over(session, name, RETRY_MS)
        effects += more
    return session, effects


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
    session, effects = _fail_requests(session, "the session has ended", event.reason)
    session, more = asks.fail_all(session, "the session has ended", "session_ended")
    effects += more
    for stream in session.streams.values():
        if stream.connection is not None:
            effects.append(fx.CloseConnection(stream.connection, event.reason))
    phase = TRANSITIONS[session.phase, "end"]
    return replace(session, phase=phase, streams={}, box=(), settled=()), [*effects, fx.End(event.reason)]


def _stream_failed(session: Session, event: ev.StreamFailed) -> Step:
    """One stream is lost; or, by the reason, the session is another's or gone."""
    session, effects = streams.failed(session, event)
    if event.reason in ("fenced", "gone", "ended"):
        session, more = _end(session, ev.Ended(event.reason))
        effects += more
    return session, effects


Handler = Callable[[Session, Any], Step]

HANDLERS: dict[type, Handler] = {
    ev.Posted: _posted,
    ev.PostBroken: inflight.post_broken,
    ev.Attached: streams.attached,
    ev.Detached: streams.detached,
    ev.StreamTurnDue: inflight.turn_due,
    ev.CallExpired: _call_expired,
    ev.AskExpired: asks.expired,
    ev.CallProgressed: notices.told,
    ev.CallPlaced: places.placed,
    ev.CallHeld: inflight.held,
    ev.CallDue: inflight.due,
    ev.CallCleared: inflight.cleared,
    ev.CallEnded: _call_ended,
    ev.Asked: asks.asked,
    ev.AskWithdrawn: asks.withdrawn,
    ev.BackendLost: lambda session, event: asks.withdraw_of_backend(session, event.backend),
    ev.StreamFailed: _stream_failed,
    ev.DrainStarted: _drain,
    ev.DrainOverdue: _drain_overdue,
    ev.Ended: _end,
}
