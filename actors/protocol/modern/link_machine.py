"""The machine of a link to a backend without sessions, which all its callers share (2026-07-28).

`step(link, event)` gives the next link and the effects, without a clock, randomness or IO. The table says which
function serves which event in which phase; an event that has no row there is dropped and tallied, and leaves the link
untouched. Changes of phase are looked up in `link_state`.

Guarantees: before it is known what speaks there, only `server/discover` is sent; a call gets exactly one `Finish`, or
is given back unsent; no id is given twice; what may have been executed is never sent again, but for what changes
nothing, once; a message goes to those whose own request it belongs to, and to nobody else: it is known by the stream it
came on, by our own token or our own subscription. A log message on a channel that all requests share names none.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.protocol import errors, payload
from actors.protocol import link_events as ev
from actors.protocol.link_calls import failure
from actors.protocol.messages import Error, Notification, Request, RequestId, Result
from actors.protocol.methods import Kind, Sender, Treatment, known
from actors.protocol.modern import link_calls as calls
from actors.protocol.modern import link_connection as connection
from actors.protocol.modern import link_events as mv
from actors.protocol.modern import link_listens as listens
from actors.protocol.modern import meta, tasks
from actors.protocol.modern.link_state import (
    LIVE,
    Link,
    Listen,
    Pending,
    Phase,
    Probe,
    Refresh,
    Running,
    Step,
    drop,
    taken,
)
from actors.protocol.versions import MODERN

LOG: Final = "notifications/message"


def step(link: Link, event: mv.Event) -> Step:
    """One event. Never raises for anything a backend can send."""
    handler = TABLE.get((link.phase, type(event)))
    if handler is None:
        return link, [ev.Tally(f"{type(event).__name__} while {link.phase.value}")]
    return handler(link, event)


# What the backend says ---------------------------------------------------------------------------------------


def _heard(link: Link, event: mv.Heard) -> Step:
    """One message."""
    message = event.message
    if isinstance(message, Notification):
        return _notified(link, message, event.related)
    if isinstance(message, Request):
        # There are none in this era; to answer would be to take part in another one.
        return link, [ev.Tally("request_of_backend")]
    id = message.id
    pending = link.pending.get(id) if id is not None else None
    if pending is None and isinstance(message, Error) and event.related is not None:
        # An error whose id could not be read belongs to the request on whose stream it came.
        id, pending = event.related, link.pending.get(event.related)
    if id is None or pending is None:
        return link, [ev.Tally("late_response")]
    if isinstance(message, Result):
        return _result(link, id, pending, message.result)
    return _error(link, id, pending, message.error, event.status)


def _result(link: Link, id: RequestId, pending: Pending, result: Raw) -> Step:
    match pending:
        case Running():
            return calls.result(taken(link, id), pending, result)
        case Listen():
            return listens.ended(link, id, pending, result)
        case Refresh():
            return calls.refreshed(taken(link, id), pending, result)
        case Probe():
            return connection.discovered(link, id, result)


def _error(link: Link, id: RequestId, pending: Pending, error: Raw, status: int | None) -> Step:
    match pending:
        case Running():
            return calls.refused(taken(link, id), pending, error, status)
        case Listen():
            return listens.refused(link, id, pending, error)
        case Refresh():
            return calls.resume(taken(link, id), [])
        case Probe():
            return connection.probe_refused(link, id, error, status)


def _failed(link: Link, event: mv.Failed) -> Step:
    """No response will come."""
    pending = link.pending.get(event.id)
    match pending:
        case Running():
            return calls.failed(taken(link, event.id), pending, event)
        case Listen():
            error = failure(event.reason, event.message, event.executed, link.server, event.diagnostics.unstarted)
            return listens.broken(link, event.id, pending, error)
        case Refresh():
            return calls.resume(taken(link, event.id), [])
        case Probe():
            return connection.probe_failed(link, event)
        case None:
            return link, [ev.Tally("late_failure")]


def _due(link: Link, event: mv.TimerDue) -> Step:
    """A timer of ours."""
    match event.key:
        case ("probe",) if link.phase is Phase.PROBING:
            return connection.silent(link)
        case ("pause", call):
            return calls.due(link, call)
        case ("ack", str(id)):
            return listens.unacknowledged(link, id)
        case ("refresh", str(id)):
            return calls.unrefreshed(link, id)
        case ("lasted", str(id)):
            return listens.lasted(link, id)
        case ("fade", str(id)):
            return listens.faded(link, id)
        case ("listen", int(number)):
            return listens.due(link, number)
    return link, []


# Notifications -----------------------------------------------------------------------------------------------


def _notified(link: Link, message: Notification, related: RequestId | None) -> Step:
    method, params = message.method, message.params
    if method == "notifications/progress":
        return _progress(link, params)
    if method == LOG:
        return _logged(link, params, related)
    if method == "notifications/cancelled":
        return _cancelled(link, params)
    id, stripped = _subscription(params)
    id = related if id is None else id
    pending = link.pending.get(id) if id is not None else None
    if isinstance(pending, Running) and pending.called.client.as_is and id == related:
        if not _between_peers(method):
            return link, [ev.Tally("unknown_notification")]
        return link, [ev.Tell(pending.called.call, method, params)]
    if id is None or not isinstance(pending, Listen):
        return link, [ev.Tally("unattributed")]
    return listens.heard(link, id, pending, method, stripped)


def _between_peers(method: str) -> bool:
    """Whether a server may notify the client of this in the course of its call: what no table knows, and what servers
    of this era do notify. Whose a task is, only the gateway can tell."""
    row = known(method, Sender.SERVER, MODERN)
    if row is None:
        return tasks.is_strange(method)
    return row.kind is Kind.NOTIFICATION and row.treatment is not Treatment.LOCAL


class _Token(msgspec.Struct):
    progressToken: int | str  # the wire's name  # noqa: N815


def _progress(link: Link, params: Raw) -> Step:
    try:
        token = msgspec.json.decode(params, type=_Token).progressToken
    except payload.BROKEN:
        return link, [ev.Tally("bad_progress")]
    pending = link.pending.get(token)
    if not isinstance(pending, Running) or not pending.called.progress:
        return link, [ev.Tally("late_progress")]
    return link, [ev.Tell(pending.called.call, "notifications/progress", params)]


def _logged(link: Link, params: Raw, related: RequestId | None) -> Step:
    """To the request that asked for it; where nothing relates them, to the only one, or to the only caller of the other
    era, to whom logs belong to the session."""
    if related is not None:
        pending = link.pending.get(related)
        wanted = isinstance(pending, Running) and (pending.level is not None or pending.called.client.as_is)
        asked = [pending] if isinstance(pending, Running) and wanted else []
    else:
        asked = [p for p in link.pending.values() if isinstance(p, Running) and p.level is not None]
    if len(asked) == 1:
        return link, [ev.Tell(asked[0].called.call, LOG, params)]
    callers = {running.called.caller for running in asked}
    if len(callers) == 1 and all(running.called.client.drives for running in asked):
        return link, [mv.TellCaller(callers.pop(), LOG, params)]
    return link, [ev.Tally("unattributed")]


class _Cancelled(msgspec.Struct):
    requestId: int | str | None = None  # noqa: N815


def _cancelled(link: Link, params: Raw) -> Step:
    """Ends a listen, if its result has not done that before."""
    try:
        id = msgspec.json.decode(params, type=_Cancelled).requestId
    except payload.BROKEN:
        return link, [ev.Tally("bad_cancel")]
    listen = link.pending.get(id) if id is not None else None
    if id is None or not isinstance(listen, Listen):
        return link, [ev.Tally("late_cancel")]
    return listens.dismissed(link, id, listen)


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


def _abandoned(link: Link, event: ev.Abandoned) -> Step:
    """Nobody waits for this call any more, wherever it stands."""
    for id, pending in link.pending.items():
        if isinstance(pending, Running) and pending.called.call == event.call:
            return drop(link, id, event.reason)
    listening = listens.abandoned(link, event.call)
    if listening is not None:
        return listening
    link = replace(
        link,
        waiting=tuple(w for w in link.waiting if _call(w) != event.call),
        rebuilding=tuple(w for w in link.rebuilding if _call(w) != event.call),
    )
    return calls.withdrawn(link, event.call)


def _call(held: mv.Called | Running) -> ev.CallKey:
    return held.call if isinstance(held, mv.Called) else held.called.call


# Who serves what ---------------------------------------------------------------------------------------------


Handler = Callable[[Link, Any], Step]

_OPEN = tuple(phase for phase in Phase if phase is not Phase.CLOSED)
_CONNECTED = (Phase.PROBING, Phase.READY)

TABLE: dict[tuple[Phase, type], Handler] = {
    # Callers.
    (Phase.IDLE, mv.Called): calls.called_away,
    (Phase.WAITING, mv.Called): calls.called_away,
    (Phase.CONNECTING, mv.Called): calls.called_early,
    (Phase.PROBING, mv.Called): calls.called_early,
    (Phase.READY, mv.Called): calls.called,
    (Phase.UNFIT, mv.Called): connection.called_unfit,
    (Phase.CLOSED, mv.Called): connection.called_closed,
    (Phase.IDLE, mv.Notified): calls.notified_away,
    (Phase.WAITING, mv.Notified): calls.notified_away,
    (Phase.CONNECTING, mv.Notified): calls.notified_early,
    (Phase.PROBING, mv.Notified): calls.notified_early,
    (Phase.READY, mv.Notified): calls.notified,
    **{(phase, ev.Abandoned): _abandoned for phase in _OPEN},
    **{(phase, ev.AnswerGiven): calls.answered for phase in _OPEN},
    **{(phase, mv.Joined): listens.joined for phase in _OPEN if phase is not Phase.UNFIT},
    **{(phase, mv.Left): listens.left for phase in _OPEN},
    # The connection.
    (Phase.IDLE, ev.Wanted): connection.wanted_away,
    (Phase.WAITING, ev.Wanted): connection.wanted_away,
    **{(phase, ev.Wanted): connection.wanted_already for phase in LIVE},
    (Phase.UNFIT, ev.Wanted): connection.wanted_unfit,
    (Phase.CLOSED, ev.Wanted): connection.wanted_closed,
    (Phase.CONNECTING, ev.Started): connection.started,
    **{(phase, ev.Started): connection.started_in_vain for phase in Phase if phase not in LIVE},
    (Phase.CONNECTING, ev.ConnectRefused): connection.connect_refused,
    (Phase.UNFIT, mv.Reconsidered): connection.reconsidered,
    # The backend.
    **{(phase, mv.Heard): _heard for phase in _CONNECTED},
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
