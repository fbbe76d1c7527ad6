"""Requests to the backend: how a call is sent, waits for the lease, and gets its one outcome.

On a transport that does not relate messages to requests (stdio) a question of the backend can be told to belong to a
call only if there is one that could have raised it; so such *eligible* calls go one at a time where the client can be
asked. That is the lease.

A call that waits can be *held*: whoever made it has written down that it was not sent, and must take that back first.
When such a call could be sent it is *due*, and keeps its place until it is released. Others do not wait for that, since
nobody knows how long the store takes: one may be sent before it, once.
"""

from msgspec import Raw
from msgspec.structs import replace

from actors.protocol import capabilities, codec, errors, payload, tasks, translate
from actors.protocol import link_events as ev
from actors.protocol.diagnostics import NO_DIAGNOSTICS, Diagnostics
from actors.protocol.link_state import Link, Pending, Phase, Step, moved
from actors.protocol.messages import Error, RequestId
from actors.protocol.methods import SET_LEVEL, SUBSCRIBE, UNSUBSCRIBE, UPDATED
from actors.protocol.versions import can_use

REMEMBERED = frozenset({SUBSCRIBE, UNSUBSCRIBE, SET_LEVEL})
"""What a backend that forgets us must be told again."""


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


# The way out -------------------------------------------------------------------------------------------------


def called(link: Link, event: ev.Called) -> Step:
    """READY: send it, or let it wait for the lease."""
    pending = _pending(event)
    if event.eligible and link.profile.leased and _lease_taken(link):
        return replace(link, waiting=(*link.waiting, pending)), []
    return dispatch(link, pending)


def called_early(link: Link, event: ev.Called) -> Step:
    """On the way to READY: it waits."""
    return replace(link, waiting=(*link.waiting, _pending(event))), []


def called_away(link: Link, event: ev.Called) -> Step:
    """No connection: it brings one. A back-off does not hold it up; whether the backend may be tried is the breaker's
    decision."""
    link, _ = called_early(link, event)
    return connect(link)


def wanted_away(link: Link, event: ev.Wanted) -> Step:
    """A connection is wanted without a call."""
    return connect(link)


def connect(link: Link, cause: str = "call") -> Step:
    """Asks for a transport."""
    return moved(link, cause), [ev.StartClock(), ev.Connect()]


def called_closed(link: Link, event: ev.Called) -> Step:
    """Too late."""
    message = f"the connection to {link.named} was closed"
    return link, [ev.Finish(event.call, False, failure("closed", message, "no", link.server))]


def _pending(event: ev.Called) -> Pending:
    progress, eligible = event.progress, event.eligible
    return Pending(event.call, event.method, event.params, progress, eligible, final=event.final, version=event.version)


def _lease_taken(link: Link) -> bool:
    return link.profile.leased and not link.related and any(p.eligible for p in link.pending.values())


def upstream_id(link: Link) -> str:
    """The next id on this link: given once, never again (2025-11-25 basic, "Requests")."""
    return f"{link.profile.prefix}.{link.next_id}"


def dispatch(link: Link, pending: Pending) -> Step:
    """Sends a request under an id of ours, in the words of the backend's revision. A progress token of the client's
    never goes upstream: ours does, or none."""
    id = upstream_id(link)
    params = pending.params
    if link.hello is not None:
        augmented = (pending.final or link.profile.tasks) and _augmented(link.hello, pending)
        version = link.hello.version
        # Without tasks on this connection a `task` is not the backend's to act on, if its revision gives it a meaning.
        if version != pending.version or (can_use(version, "tasks") and not link.profile.tasks):
            params = translate.client_request(pending.method, params, version, tasks=augmented)
        known = augmented or pending.final or pending.method != "tools/call"
        if not known and payload.mentions(link.hello.capabilities, _TASKS) and _may_need_task(link, link.hello):
            return link, [ev.Entrust(pending.call, params, pending.progress)]
    if pending.progress or payload.mentions(params, b"progressToken"):
        try:
            params = payload.with_progress_token(params, id if pending.progress else None)
        except errors.Malformed as malformed:
            return link, [] if pending.call is None else [ev.Finish(pending.call, False, malformed.error.raw)]
    link = replace(link, next_id=link.next_id + 1, pending=link.pending.having(id, pending))
    return link, [ev.Send(codec.encode_request(id, pending.method, params), id=id)]


_TASK = b'"task"'
_TASKS = b'"tasks"'


def _augmented(hello: ev.Hello, pending: Pending) -> bool:
    """Whether it goes out as a task (2025-11-25, tasks)."""
    if not payload.mentions(pending.params, _TASK):
        return False
    try:
        asked = "task" in payload.members(pending.params)
    except errors.Malformed:
        return False
    return asked and tasks.may_augment(capabilities.parse(hello.capabilities), hello.version, pending.method)


def _may_need_task(link: Link, hello: ev.Hello) -> bool:
    """Whether a tool may run as a task only, and the client knows no tasks. (One that runs some itself knows what it
    does, and gets the server's own answer.)"""
    if payload.mentions(link.profile.capabilities, _TASKS) or not can_use(hello.version, "tasks"):
        return False
    return capabilities.parse(hello.capabilities).has(tasks.AUGMENTED["tools/call"])


def dispatch_waiting(link: Link) -> Step:
    """READY: sends every waiting call that may go; calls that wait for the lease keep their order. One that is held is
    due instead; of those that wait for the lease, only the first."""
    if link.phase is not Phase.READY:
        return link, []
    effects: ev.Effects = []
    still: list[Pending] = []
    first_due = False
    for pending in link.waiting:
        if pending.eligible and _lease_taken(link):
            still.append(pending)
            continue
        if pending.held:
            leased = pending.eligible and link.profile.leased and not link.related
            due = pending.due or not (leased and first_due)
            if due and not pending.due:
                effects.append(ev.Due(pending.call))
            first_due = first_due or leased
            still.append(replace(pending, due=due))
            continue
        link, sent = dispatch(link, pending)
        effects += sent
    return replace(link, waiting=tuple(still)), effects


def hold(link: Link, event: ev.Hold) -> Step:
    """What was not sent is not sent without leave. (What the backend refused once, unexecuted, was sent.)"""
    waiting = tuple(
        replace(p, held=True) if p.call == event.call and not p.retried and not p.held else p for p in link.waiting
    )
    if waiting == link.waiting:
        return link, []
    return replace(link, waiting=waiting), [ev.Held(event.call)]


def released(link: Link, event: ev.Released) -> Step:
    """Here is the leave; the call goes when its time has come."""
    waiting = tuple(replace(p, held=False, due=False) if p.call == event.call else p for p in link.waiting)
    link = replace(link, waiting=waiting)
    return dispatch_waiting(link)


# The way back ------------------------------------------------------------------------------------------------


def finished(link: Link, id: RequestId, ok: bool, payload: Raw) -> Step:
    """The outcome of the request with this id."""
    pending = link.pending[id]
    link = replace(link, pending=link.pending.without(id))
    if pending.call is None:
        return link, _restored(pending)
    if ok and pending.method in REMEMBERED:
        link = _remember(link, pending)
    effects: ev.Effects = [ev.Finish(pending.call, ok, payload)]
    if link.asked:
        link, more = settle_asked(link, pending.call)
        effects += more
    if link.waiting:
        link, more = dispatch_waiting(link)
        effects += more
    return link, effects


def _restored(pending: Pending) -> ev.Effects:
    """A subscription was asked for again after a loss: only from here on is nothing missed, so it is said here that
    something may have been."""
    uri = member(pending.params, "uri") if pending.method == SUBSCRIBE else None
    return [] if uri is None else [ev.Tell(None, UPDATED, payload.dumps({"uri": uri}))]


def _remember(link: Link, pending: Pending) -> Link:
    """Keeps what a backend that forgets us must be told again."""
    if pending.method == SET_LEVEL:
        return replace(link, level=capabilities.level_of(pending.params) or None)
    uri = member(pending.params, "uri")
    rest = tuple(u for u in link.subscriptions if u != uri)
    return replace(link, subscriptions=(*rest, uri) if uri is not None and pending.method == SUBSCRIBE else rest)


def member(params: Raw, name: str) -> str | None:
    """A text among the params."""
    try:
        return payload.text_member(params, name)
    except errors.Malformed:
        return None


def send_failed(link: Link, event: ev.SendFailed) -> Step:
    """READY: no response will come."""
    if event.id not in link.pending:
        return link, [ev.Tally("late_failure")]
    error = failure(event.reason, event.message, event.executed, link.server, event.diagnostics.unstarted)
    return finished(link, event.id, False, error)


def abandoned(link: Link, event: ev.Abandoned) -> Step:
    """Cancels a call that was sent, forgets one that was not."""
    for id, pending in link.pending.items():
        if pending.call == event.call:
            return _cancel(link, id, event.reason)
    waiting = tuple(p for p in link.waiting if p.call != event.call)
    return dispatch_waiting(replace(link, waiting=waiting)) if len(waiting) < len(link.waiting) else (link, [])


def _cancel(link: Link, id: RequestId, reason: str) -> Step:
    params = payload.dumps({"requestId": id, "reason": reason})
    effects: ev.Effects = [ev.Send(codec.encode_notification("notifications/cancelled", params)), ev.Forget(id)]
    call = link.pending[id].call
    picking = tuple(place for place in link.picking if place.id != id)
    link, more = settle_asked(replace(link, pending=link.pending.without(id), picking=picking), call)
    effects += more
    if link.phase is Phase.READY:
        link, more = dispatch_waiting(link)
        effects += more
    return link, effects


def settle_asked(link: Link, call: ev.CallKey | None) -> Step:
    """Questions that came with a call end with it; the backend gets an answer to each, for nothing may hang."""
    ended = [id for id, owner in link.asked.items() if owner is not None and owner == call]
    effects: ev.Effects = []
    for id in ended:
        error = errors.internal("the call that raised this request has ended", reason="call_ended").raw
        effects += [ev.Send(codec.encode(Error(id, error))), ev.Withdraw(id)]
    if not ended:
        return link, effects
    return replace(link, asked={i: c for i, c in link.asked.items() if i not in ended}), effects


def notified(link: Link, event: ev.Notified) -> Step:
    """READY: a notification of the client."""
    return link, [ev.Send(codec.encode_notification(event.method, event.params))]
