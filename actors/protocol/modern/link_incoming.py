"""Messages of a backend without sessions: the outcomes of our requests, and its notifications.

A notification is passed on only as far as it is known whom it concerns: by the stream it came on, by our own token or
our own subscription. A log message on a channel that all requests share names none of them.
"""

import msgspec
from msgspec import Raw

from actors.protocol import errors, payload
from actors.protocol import link_events as ev
from actors.protocol.link_calls import failure
from actors.protocol.messages import Error, Notification, Request, RequestId, Result
from actors.protocol.methods import Kind, Sender, Treatment, known
from actors.protocol.modern import link_calls as calls
from actors.protocol.modern import link_listens as listens
from actors.protocol.modern import link_loop as loop
from actors.protocol.modern import link_probe as probe
from actors.protocol.modern import meta, outcomes, tasks
from actors.protocol.modern.link_events import Failed, Heard, TellCaller, TimerDue
from actors.protocol.modern.link_state import Link, Listen, Probe, Refresh, Running, Step, taken
from actors.protocol.modern.link_table import Phase
from actors.protocol.versions import MODERN

LOG = "notifications/message"


def heard(link: Link, event: Heard) -> Step:
    """One message."""
    message = event.message
    if isinstance(message, Notification):
        return _notified(link, message, event.related)
    if isinstance(message, Request):
        # There are none in this era; to answer would be to take part in another one.
        return link, [ev.Tally("request_of_backend")]
    id = message.id
    if id not in link.pending and isinstance(message, Error):
        # An error whose id could not be read belongs to the request on whose stream it came.
        id = event.related
    if id is None or id not in link.pending:
        return link, [ev.Tally("late_response")]
    if isinstance(message, Result):
        return _result(link, id, message.result)
    return _error(link, id, message.error, event.status)


def _result(link: Link, id: RequestId, result: Raw) -> Step:
    pending = link.pending[id]
    match pending:
        case Running():
            return _outcome(taken(link, id), pending, result)
        case Listen():
            return listens.ended(link, id, pending, result)
        case Refresh():
            return calls.refreshed(taken(link, id), pending, result)
        case Probe():
            return probe.answered(link, id, result)


def _outcome(link: Link, running: Running, result: Raw) -> Step:
    kind = calls.result_type(result)
    if not calls.may_hold(link, running, kind):
        return calls.malformed(link, running)
    if kind == outcomes.COMPLETE:
        return calls.complete(link, running, result)
    if kind == outcomes.INPUT_REQUIRED and running.called.client.drives:
        return loop.required(link, running, result)
    return link, [ev.Finish(running.called.call, True, result)]


def _error(link: Link, id: RequestId, error: Raw, status: int | None) -> Step:
    pending = link.pending[id]
    match pending:
        case Running():
            return calls.refused(taken(link, id), pending, error, status)
        case Listen():
            return listens.refused(link, id, pending, error)
        case Refresh():
            return calls.resume(taken(link, id), [])
        case Probe():
            return probe.refused(link, id, error, status)


def failed(link: Link, event: Failed) -> Step:
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
            return probe.failed(link, event)
        case None:
            return link, [ev.Tally("late_failure")]


def due(link: Link, event: TimerDue) -> Step:
    """A timer of ours."""
    match event.key:
        case ("probe",) if link.phase is Phase.PROBING:
            return probe.silent(link)
        case ("pause", call):
            return loop.due(link, call)
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
        return link, [TellCaller(callers.pop(), LOG, params)]
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
    return listens.broken(link, id, listen, failure("ended", f"{link.named} ended the subscription", "no", link.server))


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
