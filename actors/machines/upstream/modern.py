"""The machine of an upstream connection to a modern backend, which all its callers share (2026-07-28).

`step(upstream, event)` gives the next upstream connection and the effects, without a clock, randomness or IO. The
table says which function serves which event in which phase; an event that has no row there is dropped and counted,
and leaves the upstream connection untouched. Changes of phase are looked up in `upstream/legacy_state`.

Guarantees: before it is known what speaks there, only `server/discover` is sent; a call gets exactly one `Finish`,
or is given back unsent; no id is given twice; what may have been executed is never sent again, but for what changes
nothing, once; a message goes to those whose own request it belongs to, and to nobody else: it is known by the
stream it came on, by our own token or our own subscription. A log message on a channel that all requests share
names none.
"""

from collections.abc import Callable
from typing import Any, Final

from msgspec import Raw
from msgspec.structs import replace

from actors.machines.upstream import events as ev
from actors.machines.upstream import modern_calls as calls
from actors.machines.upstream import modern_connection as connection
from actors.machines.upstream import modern_events as mv
from actors.machines.upstream import modern_listens as listens
from actors.machines.upstream.legacy_calls import failure
from actors.machines.upstream.modern_state import (
    LIVE,
    Listen,
    Pending,
    Phase,
    Probe,
    Refresh,
    Running,
    Step,
    Upstream,
    drop,
    taken,
)
from actors.protocol import errors, meta, modern_tasks, payload
from actors.protocol.messages import Error, Notification, Request, RequestId, Result
from actors.protocol.methods import Kind, Sender, Treatment, known
from actors.protocol.versions import MODERN

LOG: Final = "notifications/message"


def step(upstream: Upstream, event: mv.Event) -> Step:
    """One event. Never raises for anything a backend can send."""
    handler = TABLE.get((upstream.phase, type(event)))
    if handler is None:
        return upstream, [ev.Count(f"{type(event).__name__} while {upstream.phase.value}")]
    return handler(upstream, event)


# What the backend says ---------------------------------------------------------------------------------------


def _heard(upstream: Upstream, event: mv.Incoming) -> Step:
    """One message."""
    message = event.message
    if isinstance(message, Notification):
        return _notified(upstream, message, event.related)
    if isinstance(message, Request):
        # There are none in this era; to answer would be to take part in another one.
        return upstream, [ev.Count("request_of_backend")]
    id = message.id
    pending = upstream.pending.get(id) if id is not None else None
    if pending is None and isinstance(message, Error) and event.related is not None:
        # An error whose id could not be read belongs to the request on whose stream it came.
        id, pending = event.related, upstream.pending.get(event.related)
    if id is None or pending is None:
        return upstream, [ev.Count("late_response")]
    if isinstance(message, Result):
        return _result(upstream, id, pending, message.result)
    return _error(upstream, id, pending, message.error, event.status)


def _result(upstream: Upstream, id: RequestId, pending: Pending, result: Raw) -> Step:
    match pending:
        case Running():
            return calls.result(taken(upstream, id), pending, result)
        case Listen():
            return listens.ended(upstream, id, pending, result)
        case Refresh():
            return calls.refreshed(taken(upstream, id), pending, result)
        case Probe():
            return connection.discovered(upstream, id, result)


def _error(upstream: Upstream, id: RequestId, pending: Pending, error: Raw, status: int | None) -> Step:
    match pending:
        case Running():
            return calls.refused(taken(upstream, id), pending, error, status)
        case Listen():
            return listens.refused(upstream, id, pending, error)
        case Refresh():
            return calls.resume(taken(upstream, id), [])
        case Probe():
            return connection.probe_refused(upstream, id, error, status)


def _failed(upstream: Upstream, event: mv.Failed) -> Step:
    """No response will come."""
    pending = upstream.pending.get(event.id)
    match pending:
        case Running():
            return calls.failed(taken(upstream, event.id), pending, event)
        case Listen():
            error = failure(event.reason, event.message, event.executed, upstream.server, event.diagnostics.unstarted)
            return listens.broken(upstream, event.id, pending, error)
        case Refresh():
            return calls.resume(taken(upstream, event.id), [])
        case Probe():
            return connection.probe_failed(upstream, event)
        case None:
            return upstream, [ev.Count("late_failure")]


def _due(upstream: Upstream, event: mv.TimerDue) -> Step:
    """A timer of ours."""
    match event.key:
        case ("probe",) if upstream.phase is Phase.PROBING:
            return connection.silent(upstream)
        case ("pause", call):
            return calls.due(upstream, call)
        case ("ack", str(id)):
            return listens.unacknowledged(upstream, id)
        case ("refresh", str(id)):
            return calls.unrefreshed(upstream, id)
        case ("lasted", str(id)):
            return listens.lasted(upstream, id)
        case ("fade", str(id)):
            return listens.faded(upstream, id)
        case ("listen", int(number)):
            return listens.due(upstream, number)
        case _:
            return upstream, []  # the probe is over


# Notifications -----------------------------------------------------------------------------------------------


def _notified(upstream: Upstream, message: Notification, related: RequestId | None) -> Step:
    method, params = message.method, message.params
    if method == "notifications/progress":
        return _progress(upstream, params)
    if method == LOG:
        return _logged(upstream, params, related)
    if method == "notifications/cancelled":
        return _cancelled(upstream, params)
    id, stripped = _subscription(params)
    id = related if id is None else id
    pending = upstream.pending.get(id) if id is not None else None
    if isinstance(pending, Running) and pending.called.client.as_is and id == related:
        if not _between_peers(method):
            return upstream, [ev.Count("unknown_notification")]
        return upstream, [ev.Notify(pending.called.call, method, params)]
    if id is None or not isinstance(pending, Listen):
        return upstream, [ev.Count("unattributed")]
    return listens.heard(upstream, id, pending, method, stripped)


def _between_peers(method: str) -> bool:
    """Whether a server may notify the client of this in the course of its call: what no table knows, and what servers
    of this era do notify. Whose a task is, only the gateway can tell."""
    row = known(method, Sender.SERVER, MODERN)
    if row is None:
        return modern_tasks.is_strange(method)
    return row.kind is Kind.NOTIFICATION and row.treatment is not Treatment.LOCAL


def _progress(upstream: Upstream, params: Raw) -> Step:
    try:
        token = payload.reported_token(params)
    except errors.Malformed:
        return upstream, [ev.Count("bad_progress")]
    pending = upstream.pending.get(token)
    if not isinstance(pending, Running) or not pending.called.progress:
        return upstream, [ev.Count("late_progress")]
    return upstream, [ev.Notify(pending.called.call, "notifications/progress", params)]


def _logged(upstream: Upstream, params: Raw, related: RequestId | None) -> Step:
    """To the request that asked for it; where nothing relates them, to the only one, or to the only caller of the other
    era, to whom logs belong to the session."""
    if related is not None:
        pending = upstream.pending.get(related)
        wanted = isinstance(pending, Running) and (pending.level is not None or pending.called.client.as_is)
        asked = [pending] if isinstance(pending, Running) and wanted else []
    else:
        asked = [p for p in upstream.pending.values() if isinstance(p, Running) and p.level is not None]
    if len(asked) == 1:
        return upstream, [ev.Notify(asked[0].called.call, LOG, params)]
    callers = {running.called.caller for running in asked}
    if len(callers) == 1 and all(running.called.client.drives for running in asked):
        return upstream, [mv.NotifyCaller(callers.pop(), LOG, params)]
    return upstream, [ev.Count("unattributed")]


def _cancelled(upstream: Upstream, params: Raw) -> Step:
    """Ends a listen, if its result has not done that before."""
    try:
        id = payload.cancelled_id(params)
    except errors.Malformed:
        return upstream, [ev.Count("bad_cancel")]
    listen = upstream.pending.get(id) if id is not None else None
    if id is None or not isinstance(listen, Listen):
        return upstream, [ev.Count("late_cancel")]
    return listens.dismissed(upstream, id, listen)


def _subscription(params: Raw) -> tuple[RequestId | None, Raw]:
    """Which subscription a notification belongs to, and its params without that: the id is ours, and nobody else's."""
    try:
        keys = payload.members(payload.meta_of(params))
        tagged = keys.pop(meta.SUBSCRIPTION_KEY, None)
        if tagged is None:
            return None, params
        stripped = payload.replace_members(params, {"_meta": payload.dumps(keys) if keys else None})
        return payload.text_or_none(tagged) or "", stripped
    except errors.Malformed:
        return "", params


# The end of interest -----------------------------------------------------------------------------------------


def _abandoned(upstream: Upstream, event: ev.Abandoned) -> Step:
    """Nobody waits for this call any more, wherever it stands."""
    for id, pending in upstream.pending.items():
        if isinstance(pending, Running) and pending.called.call == event.call:
            return drop(upstream, id, event.reason)
    listening = listens.abandoned(upstream, event.call)
    if listening is not None:
        return listening
    upstream = replace(
        upstream,
        waiting=tuple(w for w in upstream.waiting if _call(w) != event.call),
        rebuilding=tuple(w for w in upstream.rebuilding if _call(w) != event.call),
    )
    return calls.withdrawn(upstream, event.call)


def _call(held: mv.Called | Running) -> ev.CallKey:
    return held.call if isinstance(held, mv.Called) else held.called.call


# Who serves what ---------------------------------------------------------------------------------------------


Handler = Callable[[Upstream, Any], Step]

_OPEN = tuple(phase for phase in Phase if phase is not Phase.CLOSED)
_CONNECTED = (Phase.PROBING, Phase.READY)

TABLE: dict[tuple[Phase, type], Handler] = {
    # Callers.
    (Phase.IDLE, mv.Called): calls.called_away,
    (Phase.WAITING, mv.Called): calls.called_away,
    (Phase.CONNECTING, mv.Called): calls.called_early,
    (Phase.PROBING, mv.Called): calls.called_early,
    (Phase.READY, mv.Called): calls.called,
    (Phase.WRONG_ERA, mv.Called): connection.called_wrong_era,
    (Phase.CLOSED, mv.Called): connection.called_closed,
    (Phase.IDLE, mv.Notified): calls.notified_away,
    (Phase.WAITING, mv.Notified): calls.notified_away,
    (Phase.CONNECTING, mv.Notified): calls.notified_early,
    (Phase.PROBING, mv.Notified): calls.notified_early,
    (Phase.READY, mv.Notified): calls.notified,
    **{(phase, ev.Abandoned): _abandoned for phase in _OPEN},
    **{(phase, ev.AnswerGiven): calls.answered for phase in _OPEN},
    **{(phase, mv.Joined): listens.joined for phase in _OPEN if phase is not Phase.WRONG_ERA},
    **{(phase, mv.Left): listens.left for phase in _OPEN},
    # The connection.
    (Phase.IDLE, ev.Wanted): connection.wanted_away,
    (Phase.WAITING, ev.Wanted): connection.wanted_away,
    **{(phase, ev.Wanted): connection.wanted_already for phase in LIVE},
    (Phase.WRONG_ERA, ev.Wanted): connection.wanted_wrong_era,
    (Phase.CLOSED, ev.Wanted): connection.wanted_closed,
    (Phase.CONNECTING, ev.Started): connection.started,
    **{(phase, ev.Started): connection.started_in_vain for phase in Phase if phase not in LIVE},
    (Phase.CONNECTING, ev.ConnectRefused): connection.connect_refused,
    (Phase.WRONG_ERA, mv.Reconsidered): connection.reconsidered,
    # The backend.
    **{(phase, mv.Incoming): _heard for phase in _CONNECTED},
    **{(phase, mv.Failed): _failed for phase in _CONNECTED},
    **{(phase, mv.TimerDue): _due for phase in _OPEN},
    (Phase.PROBING, mv.Spoke): connection.spoke,
    # The end.
    (Phase.CONNECTING, ev.Closed): connection.lost,
    (Phase.PROBING, ev.Closed): connection.probe_closed,
    (Phase.READY, ev.Closed): connection.lost,
    (Phase.CONNECTING, ev.ConnectExpired): connection.overdue,
    (Phase.PROBING, ev.ConnectExpired): connection.probe_expired,
    (Phase.WAITING, ev.RetryDue): connection.retry,
    **{(phase, ev.Shut): connection.shut for phase in _OPEN},
}
"""Who serves what. Not here, by intent: late timers, what a transport says after its end, and notifications where there
will be no connection of this era."""
