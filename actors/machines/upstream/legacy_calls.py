"""What passes over a connection that is there: calls to the backend, and what the backend says.

On a transport that does not relate messages to requests (stdio) a server request of the backend can be told to
belong to a call only if there is one that could have raised it; so such calls go one at a time where the
client can be asked. That is the lease. After a cancel nothing says when the backend is done with the call; the lease
goes on when it has answered the call all the same, or a ping that was sent behind the cancel. A backend may answer that
at once and ask for the cancelled call later. So until it has answered the call, what it asks is no call's. A client
with a session can still be asked, beside its calls; where nobody can be, the connection is replaced as soon as nothing
runs on it.

A call that waits can be *held*: whoever made it has written down that it was not sent, and must take that back
first. When such a call could be sent it is *due*, and keeps its place until it is released. Others do not wait for
that, since nobody knows how long the store takes: one may be sent before it, once.

A message of the backend is passed on only as far as it is known whom it concerns: by the stream it came on, by our
own id or token, or because only one call could have caused it. What concerns nobody is dropped and counted, never
handed round.
"""

from typing import Final

from msgspec import Raw
from msgspec.structs import replace

from actors.machines.session.events import Place
from actors.machines.session.state import NOTHING
from actors.machines.upstream import events as ev
from actors.machines.upstream.legacy_state import Phase, Step, Upstream
from actors.protocol import capabilities, codec, errors, payload, tasks, translate
from actors.protocol.diagnostics import NO_DIAGNOSTICS, Diagnostics
from actors.protocol.messages import Error, Notification, Request, RequestId, Result
from actors.protocol.methods import ELIGIBLE, SET_LEVEL, SUBSCRIBE, UNSUBSCRIBE, UPDATED
from actors.protocol.transport import Positioned
from actors.protocol.versions import can_use

REMEMBERED: Final = frozenset({SUBSCRIBE, UNSUBSCRIBE, SET_LEVEL})
"""What a backend that forgets us must be told again."""
ASKED_MAX: Final = 64
"""Requests of one backend that wait for an answer; a further one is refused, for each holds its params in memory."""
UNANSWERED_MAX: Final = 256
"""Cancelled calls without an answer that are told apart. With more of them an answer clears nothing any more."""
ROOTS: Final = "roots/list"
_TASK: Final = b'"task"'
MADE_MAX: Final = 256
"""Calls that became tasks whose progress is passed on."""
_TASKS: Final = b'"tasks"'


def failure(
    reason: str,
    message: str,
    executed: errors.Executed,
    server: str = "",
    diagnostics: Diagnostics = NO_DIAGNOSTICS,
) -> Raw:
    """The error object of a call that came to nothing here; no address is in it."""
    shown = diagnostics.shown if diagnostics is not NO_DIAGNOSTICS else {}
    return errors.internal(message, reason=reason, executed=executed, backend=server or None, **shown).raw


def member(params: Raw, name: str) -> str | None:
    """A text among the params."""
    try:
        return payload.text_member(params, name)
    except errors.Malformed:
        return None


# The way out -------------------------------------------------------------------------------------------------


def called(upstream: Upstream, event: ev.Called) -> Step:
    """READY: send it, or let it wait for the lease."""
    if not upstream.related and event.method in ELIGIBLE and _lease_taken(upstream):
        return replace(upstream, waiting=(*upstream.waiting, event)), _awaited(upstream)
    return dispatch(upstream, event)


def _awaited(upstream: Upstream) -> ev.Effects:
    """Whoever has the lease keeps others waiting."""
    return [ev.Awaited(pending.call) for pending in upstream.pending.values() if pending.method in ELIGIBLE]


def called_early(upstream: Upstream, event: ev.Called) -> Step:
    """On the way to READY: it waits."""
    return replace(upstream, waiting=(*upstream.waiting, event)), []


def called_closed(upstream: Upstream, event: ev.Called) -> Step:
    """Too late."""
    message = f"the connection to {upstream.named} was closed"
    return upstream, [ev.Finish(event.call, False, failure("closed", message, "no", upstream.server))]


def _lease_taken(upstream: Upstream) -> bool:
    return (
        upstream.profile.serialized
        and not upstream.related
        and (
            _settles(upstream)
            or (upstream.to_replace and not upstream.asked)
            or any(p.method in ELIGIBLE for p in upstream.pending.values())
        )
    )


def _settles(upstream: Upstream) -> bool:
    return upstream.settling is not None and not upstream.grace_over


def upstream_id(upstream: Upstream) -> str:
    """The next id on this upstream connection: given once, never again (2025-11-25 basic, "Requests")."""
    return f"{upstream.profile.prefix}.{upstream.next_id}"


def dispatch(upstream: Upstream, call: ev.Called) -> Step:
    """Sends a request under an id of ours, in the words of the backend's revision. A progress token of the client's
    never goes upstream: ours does, or none."""
    id = upstream_id(upstream)
    params = call.params
    if upstream.server_info is not None:
        version = upstream.server_info.version
        tool = upstream.runs_tasks and call.method == "tools/call"
        augmented = tool and (call.final or upstream.profile.tasks) and _has_task(params)
        # Without tasks on this connection a `task` is not the backend's to act on, if its revision gives it a meaning.
        if version != call.version or (not upstream.profile.tasks and can_use(version, "tasks")):
            params = translate.client_request(call.method, params, version, tasks=augmented)
        # A tool may run as a task only. (A client that runs some itself knows what it does, and gets the server's own
        # answer.)
        if tool and not (augmented or call.final or payload.mentions(upstream.profile.capabilities, _TASKS)):
            return upstream, [ev.Entrust(call.call, params, call.progress, call.rights)]
    if call.progress or payload.mentions(params, b"progressToken"):
        try:
            params = payload.with_progress_token(params, id if call.progress else None)
        except errors.Malformed as malformed:
            return upstream, [] if call.call is None else [ev.Finish(call.call, False, malformed.error.raw)]
    upstream = replace(upstream, next_id=upstream.next_id + 1, pending=upstream.pending.having(id, call))
    return upstream, [ev.Send(codec.encode_request(id, call.method, params), id=id, rights=call.rights)]


def _has_task(params: Raw) -> bool:
    try:
        return payload.mentions(params, _TASK) and "task" in payload.members(params)
    except errors.Malformed:
        return False


def dispatch_waiting(upstream: Upstream) -> Step:
    """READY: sends every waiting call that may go; calls that wait for the lease keep their order. One that is held is
    due instead; of those that wait for the lease, only the first."""
    if upstream.phase is not Phase.READY or not upstream.waiting:
        return upstream, []
    effects: ev.Effects = []
    still: list[ev.Called] = []
    first_due = kept = False
    for call in upstream.waiting:
        if call.method in ELIGIBLE and _lease_taken(upstream):
            kept = True
            still.append(call)
        elif call.held:
            serialized = call.method in ELIGIBLE and upstream.profile.serialized and not upstream.related
            due = call.due or not (serialized and first_due)
            if due and not call.due:
                effects.append(ev.Due(call.call))
            first_due = first_due or serialized
            still.append(replace(call, due=due))
        else:
            upstream, sent = dispatch(upstream, call)
            effects += sent
    sent_some = len(still) < len(upstream.waiting)
    return replace(upstream, waiting=tuple(still)), [*effects, *(_awaited(upstream) if kept and sent_some else ())]


def hold(upstream: Upstream, event: ev.Hold) -> Step:
    """What was not sent is not sent without leave. (What the backend refused once, unexecuted, was sent.)"""
    waiting = tuple(
        replace(p, held=True) if p.call == event.call and not p.retried and not p.held else p for p in upstream.waiting
    )
    return (
        (upstream, []) if waiting == upstream.waiting else (replace(upstream, waiting=waiting), [ev.Held(event.call)])
    )


def released(upstream: Upstream, event: ev.Released) -> Step:
    """Here is the leave; the call goes when its time has come."""
    waiting = tuple(replace(p, held=False, due=False) if p.call == event.call else p for p in upstream.waiting)
    return dispatch_waiting(replace(upstream, waiting=waiting))


def abandoned(upstream: Upstream, event: ev.Abandoned) -> Step:
    """Cancels a call that was sent, forgets one that was not."""
    for id, pending in upstream.pending.items():
        if pending.call == event.call:
            return _cancel(upstream, id, event)
    waiting = tuple(p for p in upstream.waiting if p.call != event.call)
    return (
        dispatch_waiting(replace(upstream, waiting=waiting)) if len(waiting) < len(upstream.waiting) else (upstream, [])
    )


def _cancel(upstream: Upstream, id: RequestId, event: ev.Abandoned) -> Step:
    picking = tuple(place for place in upstream.picking if place.id != id)
    ready, method = upstream.phase is Phase.READY, upstream.pending[id].method
    had_turn = ready and upstream.profile.serialized and not upstream.related and method in ELIGIBLE
    upstream, settled = _settle_asked(
        replace(upstream, pending=upstream.pending.without(id), picking=picking), event.call
    )
    asked = upstream.profile.serialized and (upstream.profile.needs_call or not upstream.related)
    if asked and method in ELIGIBLE:  # else nobody is asked in the name of another
        upstream = _doubted(upstream, id, event.asks)
    upstream, grace = _start_grace(upstream, id) if had_turn else (upstream, [])
    upstream, more = dispatch_waiting(upstream)
    frame = codec.encode_cancelled(id, event.reason)
    return upstream, [ev.Send(frame), ev.Forget(id), *settled, *grace, *more]


def _doubted(upstream: Upstream, cancelled: RequestId, asks: bool) -> Upstream:
    """From here on the backend may ask for a call that is over."""
    if len(upstream.unanswered) < UNANSWERED_MAX:
        upstream = replace(upstream, unanswered=upstream.unanswered | {cancelled})
    return replace(upstream, to_replace=True) if asks else upstream


def _cleared(upstream: Upstream, id: RequestId) -> Upstream:
    """The backend has answered a call that was cancelled: it is over for both."""
    if id not in upstream.unanswered or len(upstream.unanswered) >= UNANSWERED_MAX:
        return upstream
    unanswered = upstream.unanswered - {id}
    return replace(upstream, unanswered=unanswered, to_replace=upstream.to_replace and bool(unanswered))


def _start_grace(upstream: Upstream, cancelled: RequestId) -> Step:
    """A backend that does one thing after the other answers a ping when it is done with what came before. (One that
    has left a ping without an answer is not asked again.)"""
    if upstream.settling is not None:
        return upstream, []
    ping = upstream_id(upstream)
    upstream, effects = dispatch(replace(upstream, settling=(cancelled, ping)), ev.Called(None, "ping"))
    return upstream, [*effects, ev.StartGrace()]


def grace_over(upstream: Upstream, event: ev.GraceOver) -> Step:
    """READY: it does not, and others don't wait for it any longer."""
    if not _settles(upstream):
        return upstream, []
    return dispatch_waiting(replace(upstream, grace_over=True))


def _settled(upstream: Upstream, id: RequestId) -> Step:
    """The backend is done with the call that was cancelled, if this answers it, or the ping behind it."""
    if upstream.settling is None or id not in upstream.settling:
        return upstream, []
    return dispatch_waiting(replace(upstream, settling=None, grace_over=False))


def notified(upstream: Upstream, event: ev.Notified) -> Step:
    """READY: a notification of the client."""
    return upstream, [ev.Send(codec.encode_notification(event.method, event.params))]


def answer_given(upstream: Upstream, event: ev.AnswerGiven) -> Step:
    """The client's answer to a request of the backend."""
    if event.id not in upstream.asked:
        return upstream, [ev.Count("late_answer")]
    frame = codec.encode_result(event.id, event.payload) if event.ok else codec.encode(Error(event.id, event.payload))
    if event.unheard and event.id in upstream.doubtful and upstream.unanswered:
        upstream = replace(upstream, to_replace=True)
    return _unasked(upstream, [event.id]), [ev.Send(frame)]


# The way back ------------------------------------------------------------------------------------------------


def incoming(upstream: Upstream, event: ev.Incoming) -> Step:
    """One message of the backend, and where its stream stands after it."""
    message = event.message
    if isinstance(message, Notification):
        upstream, effects = _notification(upstream, message, event.related)
    elif isinstance(message, Request):
        upstream, effects = _request(upstream, message, event.related)
    else:
        upstream, effects = _response(upstream, message, event.related)
    return (upstream, effects) if event.cursor is None else (upstream, _with_place(upstream, effects, event))


def _response(upstream: Upstream, message: Result | Error, related: RequestId | None) -> Step:
    id = message.id
    call = upstream.pending.get(id) if id is not None else None
    if call is None and related is not None and isinstance(message, Error):
        # An error whose id could not be read belongs to the request on whose stream it came (2025-11-25 basic).
        id, call = related, upstream.pending.get(related)
    if id is None or call is None:
        upstream, effects = _settled(_cleared(upstream, id), id) if id is not None else (upstream, [])
        return upstream, [ev.Count("late_response"), *effects]
    if upstream.lost_once and call.call is not None:
        upstream = replace(upstream, lost_once=False)
    if isinstance(message, Result):
        return _finished(upstream, id, call, True, message.result)
    return _finished(upstream, id, call, False, message.error, theirs=True)


def send_failed(upstream: Upstream, event: ev.SendFailed) -> Step:
    """READY: no response will come."""
    call = upstream.pending.get(event.id)
    if call is None:
        return upstream, [ev.Count("late_failure")]
    error = failure(event.reason, event.message, event.executed, upstream.server, event.diagnostics.unstarted)
    return _finished(upstream, event.id, call, False, error)


def _finished(
    upstream: Upstream, id: RequestId, call: ev.Called, ok: bool, outcome: Raw, *, theirs: bool = False
) -> Step:
    """The outcome of the request with this id."""
    upstream = replace(upstream, pending=upstream.pending.without(id))
    if call.call is None:
        upstream, more = _settled(upstream, id)
        return upstream, [*_restored(call), *more]
    if ok and call.method in REMEMBERED:
        upstream = _remember(upstream, call)
    if ok and call.progress and call.method in tasks.AUGMENTED and payload.mentions(outcome, tasks.MEMBER):
        upstream = _became_task(upstream, id, outcome)
    effects: ev.Effects = [ev.Finish(call.call, ok, outcome, theirs)]
    if upstream.asked:
        upstream, more = _settle_asked(upstream, call.call)
        effects += more
    if upstream.waiting:
        upstream, more = dispatch_waiting(upstream)
        effects += more
    return upstream, effects


def _became_task(upstream: Upstream, id: RequestId, outcome: Raw) -> Upstream:
    """Its progress goes on under the same token, as long as it runs; the oldest is forgotten first."""
    task = tasks.created(outcome)
    if task is None:
        return upstream
    made = {**upstream.made, id: task}
    if len(made) > MADE_MAX:
        del made[next(iter(made))]
    return replace(upstream, made=made)


def _restored(call: ev.Called) -> ev.Effects:
    """A subscription was asked for again after a loss: only from here on is nothing missed, so it is said here that
    something may have been."""
    uri = member(call.params, "uri") if call.method == SUBSCRIBE else None
    return [] if uri is None else [ev.Notify(None, UPDATED, payload.dumps({"uri": uri}))]


def _remember(upstream: Upstream, call: ev.Called) -> Upstream:
    """Keeps what a backend that forgets us must be told again."""
    if call.method == SET_LEVEL:
        return replace(upstream, level=capabilities.level_of(call.params) or None)
    uri = member(call.params, "uri")
    rest = tuple(u for u in upstream.subscriptions if u != uri)
    return replace(upstream, subscriptions=(*rest, uri) if uri is not None and call.method == SUBSCRIBE else rest)


def _settle_asked(upstream: Upstream, call: ev.CallKey) -> Step:
    """Server requests that came with a call end with it; the backend gets an answer to each, for nothing may hang."""
    ended = [id for id, owner in upstream.asked.items() if owner is not None and owner == call]
    if not ended:
        return upstream, []
    error = errors.internal("the call that raised this request has ended", reason="call_ended").raw
    effects: ev.Effects = []
    for id in ended:
        effects += [ev.Send(codec.encode(Error(id, error))), ev.Withdraw(id)]
    return _unasked(upstream, ended), effects


def _unasked(upstream: Upstream, ids: list[RequestId]) -> Upstream:
    """These server requests have an answer, or want none any more."""
    asked = {id: call for id, call in upstream.asked.items() if id not in ids}
    if upstream.doubtful:
        upstream = replace(upstream, doubtful=upstream.doubtful.difference(ids))
    return replace(upstream, asked=asked or NOTHING)


def refuse(request: Request, error: errors.ProtocolError) -> ev.Send:
    """An error for a request of the backend."""
    return ev.Send(codec.encode_error(request.id, error))


def pong(request: Request) -> ev.Send:
    """Answered here, at any time (2025-11-25 utilities/ping)."""
    return ev.Send(codec.encode_result(request.id, Raw(b"{}")))


def _request(upstream: Upstream, request: Request, related: RequestId | None) -> Step:
    if request.method == "ping":
        return upstream, [pong(request)]
    if request.id in upstream.asked:
        return upstream, [refuse(request, errors.invalid_request("this id is in use"))]
    if len(upstream.asked) >= ASKED_MAX:
        return upstream, [refuse(request, errors.internal("too many requests wait for an answer", reason="too_many"))]
    call, of_task = _owner(upstream, related, request.params)
    if related is not None and related not in upstream.pending and not of_task:
        # Its call has ended: nobody may be asked for it any more.
        ended = errors.internal("the call that raised this request has ended", reason="call_ended")
        return upstream, [refuse(request, ended)]
    doubtful = outlasts = False
    if related is None and not of_task:
        whichever = _whichever(upstream, request.method)
        outlasts = whichever and call is not None and not upstream.profile.needs_call
        if upstream.unanswered and not whichever:
            call, doubtful = None, True
            upstream = replace(upstream, doubtful=upstream.doubtful | {request.id})
    upstream = replace(upstream, asked={**upstream.asked, request.id: None if outlasts else call})
    asked = ev.ServerRequest(call, request.id, request.method, request.params, doubtful=doubtful, outlasts=outlasts)
    return upstream, [asked]


def _whichever(upstream: Upstream, method: str) -> bool:
    """Whether the answer is the same whichever call wanted it: the client's roots. (A client without a session is
    asked with a call, which another one's question over a pipe would hold up.) A backend asks for them when they have
    changed, whatever runs just then, and does not ask again: where a client can be asked beside its calls, that does
    not end with one."""
    return method == ROOTS and (upstream.related or not upstream.profile.needs_call)


def _owner(upstream: Upstream, related: RequestId | None, params: Raw) -> tuple[ev.CallKey | None, bool]:
    """The call a message belongs to: that of its stream, else the only one that could have caused it. What belongs to a
    task may come on any stream, and is of the call that waits for its result; True for such a message."""
    task = tasks.related_task(params)
    if (
        task is not None
        and upstream.server_info is not None
        and payload.mentions(upstream.server_info.capabilities, _TASKS)
    ):
        waits = (p.call for p in upstream.pending.values() if p.method == tasks.RESULT and _of_task(p, task))
        return next(waits, None), True
    if related is not None:
        pending = upstream.pending.get(related)
        return (pending.call if pending else None), False
    if upstream.related:
        return None, False
    may_ask_back = [p.call for p in upstream.pending.values() if p.method in ELIGIBLE]
    return (may_ask_back[0] if len(may_ask_back) == 1 and upstream.settling is None else None), False


def _of_task(call: ev.Called, task: str) -> bool:
    return member(call.params, "taskId") == task


def _notification(upstream: Upstream, message: Notification, related: RequestId | None) -> Step:
    if message.method == "notifications/progress":
        return _progress(upstream, message)
    if message.method == "notifications/cancelled":
        return _withdrawn(upstream, message.params)
    unattributed = related is None and message.method != "notifications/message"
    call = None if unattributed else _owner(upstream, related, message.params)[0]
    return upstream, [ev.Notify(call, message.method, message.params)]


def _progress(upstream: Upstream, message: Notification) -> Step:
    try:
        token = payload.reported_token(message.params)
    except errors.Malformed:
        return upstream, [ev.Count("bad_progress")]
    pending = upstream.pending.get(token)
    if pending is None:
        return _progress_of_task(upstream, message, token)
    if not pending.progress or pending.call is None:
        return upstream, [ev.Count("late_progress")]
    return upstream, [ev.Notify(pending.call, message.method, message.params)]


def _progress_of_task(upstream: Upstream, message: Notification, token: RequestId) -> Step:
    """That of a call which has become a task: of one that an earlier connection made, the backend has to say so."""
    task = upstream.made.get(token) or tasks.related_task(message.params)
    if task is None:
        return upstream, [ev.Count("late_progress")]
    try:
        return upstream, [ev.Notify(None, message.method, tasks.relating(message.params, task))]
    except errors.Malformed:
        return upstream, [ev.Count("bad_progress")]


def _withdrawn(upstream: Upstream, params: Raw) -> Step:
    try:
        id = payload.cancelled_id(params)
    except errors.Malformed:
        return upstream, [ev.Count("bad_cancel")]
    if id is None or id not in upstream.asked:
        return upstream, [ev.Count("late_cancel")]
    return _unasked(upstream, [id]), [ev.Withdraw(id)]


# Where the streams stand -------------------------------------------------------------------------------------


def positioned(upstream: Upstream, event: Positioned) -> Step:
    """A stream stands elsewhere."""
    return upstream, [*_placed(upstream, event)]


def _with_place(upstream: Upstream, effects: ev.Effects, event: ev.Incoming) -> ev.Effects:
    """With what was said, if that is one thing."""
    placed = _placed(upstream, event)
    if (
        placed
        and len(effects) == 1
        and isinstance(effects[0], ev.Notify | ev.ServerRequest)
        and effects[0].call == placed[0].call
    ):
        return [replace(effects[0], place=placed[0].place)]
    return effects + placed


def _placed(upstream: Upstream, event: Positioned | ev.Incoming) -> list[ev.Placed]:
    if event.related is None:
        return [ev.Placed(None, Place("", event.cursor))]
    call = upstream.pending.get(event.related)
    return [] if call is None or call.call is None else [ev.Placed(call.call, Place(event.related, event.cursor))]
