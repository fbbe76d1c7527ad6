"""The subscription machine: one `subscriptions/listen` of a client, from its acceptance to its end.

Its first message is the acknowledgement, with the part of the filter that is honoured; every message bears the id of
the listen request, in value and type; what was not asked for never shows, but for what only client and server know.
Changes that come together become one.
"""

from collections.abc import Callable
from enum import Enum

from msgspec import Raw, Struct
from msgspec.structs import replace

from actors.protocol import codec, errors
from actors.protocol import payload as json
from actors.protocol.messages import EMPTY, Error, RequestId
from actors.protocol.methods import ACKNOWLEDGED, UPDATED
from actors.protocol.modern import subscription_events as ev
from actors.protocol.modern.filter import TASK, Filter, located, task_of
from actors.protocol.modern.meta import SUBSCRIPTION_KEY


class Phase(Enum):
    """Never backwards."""

    RECEIVED = "received"
    """It has passed the ladder; nobody was asked for anything."""
    OPENING = "opening"
    """The backends are asked what of it they can honour; the response head is not out."""
    ACTIVE = "active"
    """Acknowledged."""
    DONE = "done"
    """It was ended, and told so."""
    ABANDONED = "abandoned"
    """Its client is gone."""


TRANSITIONS: dict[tuple[Phase, str], Phase] = {
    (Phase.RECEIVED, "opened"): Phase.OPENING,
    (Phase.RECEIVED, "refused"): Phase.DONE,
    (Phase.RECEIVED, "disconnected"): Phase.ABANDONED,
    (Phase.OPENING, "changed"): Phase.OPENING,
    (Phase.OPENING, "honoured"): Phase.ACTIVE,
    (Phase.OPENING, "refused"): Phase.DONE,
    (Phase.OPENING, "ended"): Phase.DONE,
    (Phase.OPENING, "disconnected"): Phase.ABANDONED,
    (Phase.ACTIVE, "changed"): Phase.ACTIVE,
    (Phase.ACTIVE, "said"): Phase.ACTIVE,
    (Phase.ACTIVE, "flush due"): Phase.ACTIVE,
    (Phase.ACTIVE, "ended"): Phase.DONE,
    (Phase.ACTIVE, "outbox full"): Phase.DONE,
    (Phase.ACTIVE, "disconnected"): Phase.ABANDONED,
}
"""What moves a subscription on. Whatever is not here changes nothing."""


GATHERED_MAX = 1024
"""Different changes that wait to be said; one more ends the subscription."""


class Subscription(Struct, frozen=True):
    """One subscription. `gathered` are changes that are still to be said, by what they are about."""

    id: RequestId
    filter: Filter
    phase: Phase = Phase.RECEIVED
    gathered: dict[str, tuple[str, Raw]] = {}


Step = tuple[Subscription, ev.Effects]


def step(subscription: Subscription, event: ev.SubscriptionEvent) -> Step:
    """Total: an event that the phase does not serve is counted, and changes nothing."""
    cause = ev.CAUSES[type(event)]
    to = TRANSITIONS.get((subscription.phase, cause))
    if to is None:
        return subscription, [ev.Tally(f"late_{cause.replace(' ', '_')}")]
    return HANDLERS[type(event)](subscription, event, to)


def _opened(subscription: Subscription, event: ev.Opened, to: Phase) -> Step:
    return replace(subscription, phase=to), [ev.Watch(subscription.filter)]


def _refused(subscription: Subscription, event: ev.Refused, to: Phase) -> Step:
    status = errors.modern_status(event.error.code)
    answer = ev.Answer(status, codec.encode(Error(subscription.id, event.error.raw)))
    unwatch: ev.Effects = [ev.Unwatch()] if subscription.phase is Phase.OPENING else []
    return replace(subscription, phase=to), [*unwatch, answer]


def _honoured(subscription: Subscription, event: ev.Honoured, to: Phase) -> Step:
    """The acknowledgement, then what has changed meanwhile."""
    honoured = subscription.filter.within(event.filter)
    said = {k: c for k, c in subscription.gathered.items() if honoured.wants(*c)}
    subscription = replace(subscription, phase=to, filter=honoured, gathered={})
    acknowledged = _frame(subscription, ACKNOWLEDGED, json.dumps({"notifications": honoured.raw}))
    frames = [_frame(subscription, method, params) for method, params in said.values()]
    return subscription, [ev.OpenStream(), *(ev.Write(frame) for frame in (acknowledged, *frames))]


def _changed(subscription: Subscription, event: ev.Changed, to: Phase) -> Step:
    if not subscription.filter.wants(event.method, event.params):
        return subscription, [ev.Tally("change_unwanted")]
    key = event.method
    if event.method in (UPDATED, TASK):
        key = f"{key} {located(event.params) if event.method == UPDATED else task_of(event.params)}"
    first = not subscription.gathered
    if key not in subscription.gathered and len(subscription.gathered) >= GATHERED_MAX:
        return _overflowed(subscription, ev.Overflowed(), Phase.DONE)
    gathered = {**subscription.gathered, key: (event.method, event.params)}
    clock: ev.Effects = [ev.StartFlushClock()] if first and to is Phase.ACTIVE else []
    return replace(subscription, phase=to, gathered=gathered), clock


def _said(subscription: Subscription, event: ev.Said, to: Phase) -> Step:
    """After what has gathered before it."""
    subscription, writes = _flush(subscription, ev.FlushDue(), to)
    return subscription, [*writes, ev.Write(_frame(subscription, event.method, event.params))]


def _flush(subscription: Subscription, event: ev.FlushDue, to: Phase) -> Step:
    frames = [_frame(subscription, method, params) for method, params in subscription.gathered.values()]
    return replace(subscription, phase=to, gathered={}), [ev.Write(frame) for frame in frames]


def _ended(subscription: Subscription, event: ev.Ended, to: Phase) -> Step:
    """What has gathered, then the result, or the error. Before the acknowledgement there is no stream to end: an
    error."""
    if subscription.phase is Phase.OPENING:
        error = errors.internal("the gateway is shutting down", reason="draining", executed="no")
        return _refused(subscription, ev.Refused(error), to)
    subscription, frames = _flush(subscription, ev.FlushDue(), to)
    last = codec.encode(Error(subscription.id, event.error)) if event.error else _result(subscription)
    return subscription, [ev.Unwatch(), *frames, ev.Close(last)]


def _overflowed(subscription: Subscription, event: ev.Overflowed, to: Phase) -> Step:
    """The client comes back, and takes it that everything has changed."""
    if subscription.phase is Phase.OPENING:
        return _refused(
            subscription, ev.Refused(errors.internal("too many changes", reason="overflow", executed="no")), to
        )
    return replace(subscription, phase=to, gathered={}), [ev.Unwatch(), ev.Close(_result(subscription), cut=True)]


def _disconnected(subscription: Subscription, event: ev.Disconnected, to: Phase) -> Step:
    unwatch: ev.Effects = [ev.Unwatch()] if subscription.phase is not Phase.RECEIVED else []
    return replace(subscription, phase=to, gathered={}), unwatch


def _frame(subscription: Subscription, method: str, params: Raw) -> bytes:
    """A notification with this subscription's tag, whatever tag it had."""
    try:
        meta = json.members(json.meta_of(params))
    except errors.Malformed:
        params, meta = EMPTY, {}
    meta[SUBSCRIPTION_KEY] = json.dumps(subscription.id)
    return codec.encode_notification(method, json.replace_members(params, {"_meta": json.dumps(meta)}))


def _result(subscription: Subscription) -> bytes:
    result = {"resultType": "complete", "_meta": {SUBSCRIPTION_KEY: subscription.id}}
    return codec.encode_result(subscription.id, json.dumps(result))


HANDLERS: dict[type, Callable[..., Step]] = {
    ev.Opened: _opened,
    ev.Refused: _refused,
    ev.Honoured: _honoured,
    ev.Changed: _changed,
    ev.Said: _said,
    ev.FlushDue: _flush,
    ev.Ended: _ended,
    ev.Overflowed: _overflowed,
    ev.Disconnected: _disconnected,
}
