"""The machine of a link to a session-era backend: handshake, calls, requests of the backend, loss and recovery.

`step(link, event)` gives the next link and the effects, without a clock, randomness or IO. The table at the end says
which function serves which event in which phase; an event that has no row there is dropped and tallied.

Guarantees: a call gets exactly one `Finish`; what may have been sent is never sent again, but for a request that the
backend refused before execution because it did not know our session (2025-11-25 transports, "Session Management"),
once; after a loss, log level and subscriptions are in force again before anything else is said, and what may have been
missed is announced.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.protocol import codec, errors, payload
from actors.protocol import link_events as ev
from actors.protocol.link_state import Link, Pending, Phase
from actors.protocol.messages import EMPTY, Error, Notification, Request, RequestId, Result
from actors.protocol.versions import LATEST_HANDSHAKE, VERSIONS

Step = tuple[Link, ev.Effects]
K = TypeVar("K")
V = TypeVar("V")

LIST_CHANGED = {
    "tools": "notifications/tools/list_changed",
    "prompts": "notifications/prompts/list_changed",
    "resources": "notifications/resources/list_changed",
}
"""By the server capability that goes with it."""


def without(table: dict[K, V], key: K) -> dict[K, V]:
    """The table less one key."""
    return {k: v for k, v in table.items() if k != key}


def step(link: Link, event: ev.LinkEvent) -> Step:
    """One event. Never raises for anything a backend can send."""
    handler = TABLE.get((link.phase, type(event)))
    if handler is None:
        return link, [ev.Tally(f"{type(event).__name__} while {link.phase.value}")]
    return handler(link, event)


# Calls -------------------------------------------------------------------------------------------------------


def _called(link: Link, event: ev.Called) -> Step:
    """READY: send it, or let it wait for the lease."""
    pending = Pending(event.call, event.method, event.params, event.progress, event.eligible)
    if event.eligible and _lease_taken(link):
        return replace(link, waiting=(*link.waiting, pending)), []
    return _dispatch(link, pending)


def _called_early(link: Link, event: ev.Called) -> Step:
    """Not READY yet: it waits."""
    pending = Pending(event.call, event.method, event.params, event.progress, event.eligible)
    return replace(link, waiting=(*link.waiting, pending)), []


def _called_idle(link: Link, event: ev.Called) -> Step:
    link, _ = _called_early(link, event)
    return replace(link, phase=Phase.CONNECTING), [ev.StartClock(), ev.Connect()]


def _wanted(link: Link, event: ev.Wanted) -> Step:
    return replace(link, phase=Phase.CONNECTING), [ev.StartClock(), ev.Connect()]


def _called_closed(link: Link, event: ev.Called) -> Step:
    return link, [ev.Finish(event.call, False, _lost("closed", "the connection to the backend was closed", "no"))]


def _lease_taken(link: Link) -> bool:
    """Without streams per request, a question of the backend can be told to belong to a call only if there is one."""
    return link.profile.leased and not link.related and any(p.eligible for p in link.pending.values())


def _dispatch(link: Link, pending: Pending) -> Step:
    id = f"{link.profile.prefix}.{link.next_id}"
    params = pending.params
    if pending.progress:
        try:
            params = payload.with_progress_token(params, id)
        except errors.Malformed as malformed:
            return link, [ev.Finish(pending.call, False, malformed.error.raw)]
    link = _remember(link, pending)
    link = replace(link, next_id=link.next_id + 1, pending={**link.pending, id: pending})
    return link, [ev.Send(codec.encode_request(id, pending.method, params), id=id)]


def _remember(link: Link, pending: Pending) -> Link:
    """Keeps what must be said again to a backend that forgot us."""
    if pending.method == "logging/setLevel":
        return replace(link, level=_member(pending.params, "level"))
    if pending.method in ("resources/subscribe", "resources/unsubscribe"):
        uri = _member(pending.params, "uri")
        rest = tuple(u for u in link.subscriptions if u != uri)
        wanted = uri is not None and pending.method == "resources/subscribe"
        return replace(link, subscriptions=(*rest, uri) if wanted and uri is not None else rest)
    return link


def _member(params: Raw, name: str) -> str | None:
    try:
        return payload.text_or_none(payload.members(params).get(name))
    except errors.Malformed:
        return None


def _drain_waiting(link: Link) -> Step:
    """Sends every waiting call that may go; calls that wait for the lease keep their order."""
    effects: ev.Effects = []
    still: list[Pending] = []
    for pending in link.waiting:
        if pending.eligible and _lease_taken(link):
            still.append(pending)
            continue
        link, sent = _dispatch(link, pending)
        effects += sent
    return replace(link, waiting=tuple(still)), effects


def _abandoned(link: Link, event: ev.Abandoned) -> Step:
    for id, pending in link.pending.items():
        if pending.call == event.call:
            return _cancel(link, id, event.reason)
    return replace(link, waiting=tuple(p for p in link.waiting if p.call != event.call)), []


def _cancel(link: Link, id: RequestId, reason: str) -> Step:
    params = payload.dumps({"requestId": id, "reason": reason})
    effects: ev.Effects = [ev.Send(codec.encode_notification("notifications/cancelled", params)), ev.Forget(id)]
    call = link.pending[id].call
    link = replace(link, pending=without(link.pending, id))
    link, more = _settle_asked(link, call)
    effects += more
    link, more = _drain_waiting(link)
    return link, effects + more


def _settle_asked(link: Link, call: ev.CallKey | None) -> Step:
    """Questions that came with a call end with it; the backend gets an answer to each, for nothing may hang."""
    if call is None:
        return link, []
    effects: ev.Effects = []
    for id, owner in link.asked.items():
        if owner == call:
            error = errors.internal("the call that raised this request has ended", reason="call_ended").raw
            effects += [ev.Send(codec.encode(Error(id, error))), ev.Withdraw(id)]
    if not effects:
        return link, []
    return replace(link, asked={i: c for i, c in link.asked.items() if c != call}), effects


def _finish(link: Link, id: RequestId, ok: bool, payload: Raw) -> Step:
    pending = link.pending[id]
    link = replace(link, pending=without(link.pending, id), lost_once=False)
    if pending.call is None:
        return link, []
    effects: ev.Effects = [ev.Finish(pending.call, ok, payload)]
    if link.asked:
        link, more = _settle_asked(link, pending.call)
        effects += more
    if link.waiting:
        link, more = _drain_waiting(link)
        effects += more
    return link, effects


# Messages of the backend ------------------------------------------------------------------------------------


def _incoming(link: Link, event: ev.Incoming) -> Step:
    message = event.message
    if isinstance(message, Result):
        if message.id in link.pending:
            return _finish(link, message.id, True, message.result)
        return link, [ev.Tally("late_response")]
    if isinstance(message, Error):
        id = message.id if message.id in link.pending else event.related
        if id is not None and id in link.pending:
            return _finish(link, id, False, message.error)
        return link, [ev.Tally("late_response")]
    if isinstance(message, Notification):
        return _notification(link, message, event.related)
    return _request(link, message, event.related)


def _request(link: Link, message: Request, related: RequestId | None) -> Step:
    if message.method == "ping":
        return link, [ev.Send(codec.encode_result(message.id, Raw(b"{}")))]
    if message.id in link.asked:
        error = errors.invalid_request("this id is in use").raw
        return link, [ev.Send(codec.encode(Error(message.id, error)))]
    call = _owner(link, related)
    link = replace(link, asked={**link.asked, message.id: call})
    return link, [ev.Ask(call, message.id, message.method, message.params)]


def _owner(link: Link, related: RequestId | None) -> ev.CallKey | None:
    """The call a message belongs to: that of its stream, else the only one that could have caused it."""
    if related is not None:
        pending = link.pending.get(related)
        return pending.call if pending else None
    if link.related:
        return None
    eligible = [p.call for p in link.pending.values() if p.eligible]
    return eligible[0] if len(eligible) == 1 else None


def _notification(link: Link, message: Notification, related: RequestId | None) -> Step:
    if message.method == "notifications/progress":
        return _progress(link, message)
    if message.method == "notifications/cancelled":
        id = _cancelled_id(message.params)
        if id is None or id not in link.asked:
            return link, []
        return replace(link, asked=without(link.asked, id)), [ev.Withdraw(id)]
    call = _owner(link, related) if message.method == "notifications/message" or related is not None else None
    return link, [ev.Tell(call, message.method, message.params)]


class _Token(msgspec.Struct):
    progressToken: int | str  # the wire's name  # noqa: N815


class _Cancelled(msgspec.Struct):
    requestId: int | str | None = None  # noqa: N815


def _progress(link: Link, message: Notification) -> Step:
    try:
        token = msgspec.json.decode(message.params, type=_Token).progressToken
    except (msgspec.DecodeError, RecursionError):
        return link, [ev.Tally("bad_progress")]
    pending = link.pending.get(token)
    if pending is None or not pending.progress or pending.call is None:
        return link, [ev.Tally("late_progress")]
    return link, [ev.Tell(pending.call, message.method, message.params)]


def _cancelled_id(params: Raw) -> RequestId | None:
    try:
        return msgspec.json.decode(params, type=_Cancelled).requestId
    except (msgspec.DecodeError, RecursionError):
        return None


def _answer_given(link: Link, event: ev.AnswerGiven) -> Step:
    if event.id not in link.asked:
        return link, [ev.Tally("late_answer")]
    frame = codec.encode_result(event.id, event.payload) if event.ok else codec.encode(Error(event.id, event.payload))
    return replace(link, asked=without(link.asked, event.id)), [ev.Send(frame)]


def _notified(link: Link, event: ev.Notified) -> Step:
    return link, [ev.Send(codec.encode_notification(event.method, event.params))]


# Handshake (2025-11-25 lifecycle) ---------------------------------------------------------------------------


class _InitializeResult(msgspec.Struct):
    protocolVersion: str  # noqa: N815
    capabilities: Raw = Raw(b"{}")
    serverInfo: Raw = Raw(b"{}")  # noqa: N815
    instructions: str | None = None


def _started(link: Link, event: ev.Started) -> Step:
    return _initialize(replace(link, related=event.related))


def _initialize(link: Link) -> Step:
    id = f"{link.profile.prefix}.{link.next_id}"
    params = Raw(
        b'{"protocolVersion":"%s","capabilities":%s,"clientInfo":%s}'
        % (LATEST_HANDSHAKE.encode(), bytes(link.profile.capabilities), bytes(link.profile.client_info))
    )
    pending = {id: Pending(None, "initialize")}
    link = replace(link, phase=Phase.INITIALIZING, next_id=link.next_id + 1, pending=pending, asked={})
    return link, [ev.Send(codec.encode_request(id, "initialize", params), id=id)]


def _handshake_message(link: Link, event: ev.Incoming) -> Step:
    """INITIALIZING: the answer to `initialize`, or what a server may say before it."""
    message = event.message
    if isinstance(message, Result) and message.id in link.pending:
        return _initialized(link, message.result)
    if isinstance(message, Error) and (message.id in link.pending or event.related in link.pending):
        return _fail(link, "initialize_refused", f"the backend refused to initialize: {_reason(message.error)}")
    if isinstance(message, Request):
        if message.method == "ping":
            return link, [ev.Send(codec.encode_result(message.id, Raw(b"{}")))]
        error = errors.invalid_request("no request may come before the handshake is over").raw
        return link, [ev.Send(codec.encode(Error(message.id, error)))]
    if isinstance(message, Notification) and message.method == "notifications/message":
        return link, [ev.Tell(None, message.method, message.params)]
    return link, [ev.Tally("message_before_handshake")]


class _ErrorObject(msgspec.Struct):
    message: str = ""


def _reason(error: Raw) -> str:
    try:
        return msgspec.json.decode(error, type=_ErrorObject).message[:500]
    except (msgspec.DecodeError, RecursionError):
        return "malformed error"


def _initialized(link: Link, raw: Raw) -> Step:
    try:
        answer = msgspec.json.decode(raw, type=_InitializeResult)
    except (msgspec.DecodeError, RecursionError):
        return _fail(link, "initialize_malformed", "the backend answered initialize with something malformed")
    if answer.protocolVersion not in VERSIONS:
        return _fail(link, "version", f"the backend speaks only revision {answer.protocolVersion[:40]!r}")
    hello = ev.Hello(
        answer.protocolVersion, _copy(answer.capabilities), _copy(answer.serverInfo), answer.instructions, _copy(raw)
    )
    link = replace(link, phase=Phase.CONFIRMING, pending={}, hello=hello, tag=link.tag + 1)
    frame = codec.encode_notification("notifications/initialized", EMPTY)
    return link, [ev.UseVersion(hello.version), ev.Send(frame, tag=link.tag)]


def _copy(raw: Raw) -> Raw:
    """Raw values of one message share its buffer; what is kept must not keep that alive."""
    return Raw(bytes(raw))


def _confirmed(link: Link, event: ev.Accepted) -> Step:
    """The first request waits for this: some servers refuse requests until they have seen `initialized`."""
    if event.tag != link.tag or link.hello is None:
        return link, []
    again, hello = link.connected_before, link.hello
    link = replace(link, phase=Phase.READY, connected_before=True, attempt=0)
    effects: ev.Effects = [ev.StopClock(), ev.Listen(), ev.Ready(hello, again)]
    link, more = _restore(link)
    effects += more
    if again:
        effects += _announce(link)
    link, more = _drain_waiting(link)
    return link, effects + more


def _restore(link: Link) -> Step:
    """Log level and subscriptions, once more."""
    effects: ev.Effects = []
    wanted: list[tuple[str, dict[str, str]]] = []
    queued = {(p.method, bytes(p.params)) for p in link.waiting}
    if link.level is not None and "logging" in _capability_names(link):
        wanted.append(("logging/setLevel", {"level": link.level}))
    wanted += [("resources/subscribe", {"uri": uri}) for uri in link.subscriptions]
    for method, params in wanted:
        raw = payload.dumps(params)
        if (method, bytes(raw)) not in queued:
            link, sent = _dispatch(link, Pending(None, method, raw))
            effects += sent
    return link, effects


def _capability_names(link: Link) -> dict[str, Raw]:
    if link.hello is None:
        return {}
    try:
        return msgspec.json.decode(link.hello.capabilities, type=dict[str, Raw])
    except (msgspec.DecodeError, RecursionError):
        return {}


def _announce(link: Link) -> ev.Effects:
    """What may have changed while nobody listened (bridging: a lost connection is never a silent hole)."""
    declared = _capability_names(link)
    effects: ev.Effects = [ev.Tell(None, method, EMPTY) for kind, method in LIST_CHANGED.items() if kind in declared]
    for uri in link.subscriptions:
        effects.append(ev.Tell(None, "notifications/resources/updated", payload.dumps({"uri": uri})))
    return effects


# Loss --------------------------------------------------------------------------------------------------------


def _lost(reason: str, message: str, executed: errors.Executed) -> Raw:
    return errors.internal(message, reason=reason, executed=executed).raw


def _fail(link: Link, reason: str, message: str) -> Step:
    """The connection could not be made: everybody who waits is told, and nothing was executed."""
    link, effects = _end_calls(link, reason, message)
    link = replace(link, phase=Phase.IDLE, hello=None, attempt=link.attempt + 1)
    effects = [ev.StopClock(), ev.Hang(), *effects, ev.Down(reason, message, _lost(reason, message, "unknown"))]
    return _maybe_back_off(link, effects)


def _end_calls(link: Link, reason: str, message: str) -> Step:
    effects: ev.Effects = []
    for pending in link.pending.values():
        if pending.call is not None:
            effects.append(ev.Finish(pending.call, False, _lost(reason, message, "unknown")))
    for pending in link.waiting:
        if pending.call is not None:
            effects.append(ev.Finish(pending.call, False, _lost(reason, message, "no")))
    effects += [ev.Withdraw(id) for id in link.asked]
    return replace(link, pending={}, waiting=(), asked={}), effects


def _maybe_back_off(link: Link, effects: ev.Effects) -> Step:
    """With subscriptions the link comes back by itself; without any, the next call brings it back."""
    if not link.subscriptions:
        return link, effects
    return replace(link, phase=Phase.WAITING), [*effects, ev.BackOff(link.attempt)]


def _closed(link: Link, event: ev.Closed) -> Step:
    return _fail(link, event.reason, event.message)


def _connect_refused(link: Link, event: ev.ConnectRefused) -> Step:
    effects: ev.Effects = [ev.StopClock()]
    effects += [ev.Finish(p.call, False, event.payload) for p in link.waiting if p.call is not None]
    effects.append(ev.Down("refused", _reason(event.payload), event.payload, counts=False))
    link = replace(link, phase=Phase.IDLE, waiting=(), attempt=link.attempt + 1)
    return _maybe_back_off(link, effects)


def _expired(link: Link, event: ev.ConnectExpired) -> Step:
    return _fail(link, "connect_timeout", "the backend was not ready in time")


def _retry(link: Link, event: ev.RetryDue) -> Step:
    return replace(link, phase=Phase.CONNECTING), [ev.StartClock(), ev.Connect()]


def _called_waiting(link: Link, event: ev.Called) -> Step:
    """A call does not wait for the back-off; whether the backend may be tried is the breaker's decision."""
    link, effects = _called_early(link, event)
    link, more = _retry(link, ev.RetryDue())
    return link, effects + more


def _send_failed(link: Link, event: ev.SendFailed) -> Step:
    if event.id not in link.pending:
        return link, [ev.Tally("late_failure")]
    return _finish(link, event.id, False, _lost(event.reason, event.message, event.executed))


def _handshake_failed(link: Link, event: ev.SendFailed) -> Step:
    if event.id not in link.pending:
        return link, []
    return _fail(link, event.reason, event.message)


def _session_forgotten(link: Link, event: ev.SessionForgotten) -> Step:
    """404: initialize anew without the old id; the refused request is sent once more, all others end."""
    refused = link.pending.get(event.id) if event.id is not None else None
    if link.lost_once or (refused is not None and refused.retried):
        return _fail(link, "session_lost", "the backend keeps losing our session")
    if event.id is not None and refused is None and link.pending:
        return link, []  # an old answer: its request has ended
    rest = replace(link, pending={i: p for i, p in link.pending.items() if i != event.id}, waiting=())
    ended, effects = _end_calls(rest, "session_lost", "the backend lost our session")
    again = (replace(refused, retried=True),) if refused is not None and refused.call is not None else ()
    link = replace(ended, waiting=again + link.waiting, lost_once=True)  # what waits was never sent
    link, more = _initialize(link)
    return link, [ev.StartClock(), ev.Reset(), *effects, *more]


def _forgotten_early(link: Link, event: ev.SessionForgotten) -> Step:
    return _fail(link, "not_found", "the backend's endpoint answered 404")


def _shut(link: Link, event: ev.Shut) -> Step:
    link, effects = _end_calls(link, "closed", "the connection to the backend was closed")
    return replace(link, phase=Phase.CLOSED, subscriptions=()), [ev.StopClock(), ev.Hang(), *effects]


# The table ---------------------------------------------------------------------------------------------------

Handler = Callable[[Link, ev.LinkEvent], Step]

_LIVE = (Phase.CONNECTING, Phase.INITIALIZING, Phase.CONFIRMING, Phase.READY)


def _rows() -> dict[tuple[Phase, type], Handler]:
    table: dict[tuple[Phase, type], object] = {
        (Phase.IDLE, ev.Called): _called_idle,
        (Phase.IDLE, ev.Wanted): _wanted,
        (Phase.CONNECTING, ev.Called): _called_early,
        (Phase.INITIALIZING, ev.Called): _called_early,
        (Phase.CONFIRMING, ev.Called): _called_early,
        (Phase.READY, ev.Called): _called,
        (Phase.WAITING, ev.Called): _called_waiting,
        (Phase.CLOSED, ev.Called): _called_closed,
        (Phase.CONNECTING, ev.Started): _started,
        (Phase.CONNECTING, ev.ConnectRefused): _connect_refused,
        (Phase.INITIALIZING, ev.Incoming): _handshake_message,
        (Phase.CONFIRMING, ev.Incoming): _incoming,
        (Phase.READY, ev.Incoming): _incoming,
        (Phase.CONFIRMING, ev.Accepted): _confirmed,
        (Phase.INITIALIZING, ev.SendFailed): _handshake_failed,
        (Phase.CONFIRMING, ev.SendFailed): _handshake_failed,
        (Phase.READY, ev.SendFailed): _send_failed,
        (Phase.INITIALIZING, ev.SessionForgotten): _forgotten_early,
        (Phase.CONFIRMING, ev.SessionForgotten): _forgotten_early,
        (Phase.READY, ev.SessionForgotten): _session_forgotten,
        (Phase.CONFIRMING, ev.AnswerGiven): _answer_given,
        (Phase.READY, ev.AnswerGiven): _answer_given,
        (Phase.READY, ev.Notified): _notified,
        (Phase.WAITING, ev.RetryDue): _retry,
    }
    for phase in Phase:
        if phase is not Phase.CLOSED:
            table[phase, ev.Abandoned] = _abandoned
            table[phase, ev.Shut] = _shut
    for phase in _LIVE:
        table[phase, ev.Closed] = _closed
        if phase is not Phase.READY:
            table[phase, ev.ConnectExpired] = _expired
    return table  # type: ignore[return-value]


TABLE: dict[tuple[Phase, type], Handler] = _rows()
