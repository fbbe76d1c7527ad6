"""The subscription machine: one `subscriptions/listen` of a client, from its acceptance to its end.

Its first message is the acknowledgement, with the part of the filter that is honoured; every message bears the id of
the listen request, in value and type; what was not asked for never shows, but for what only client and server know.
Changes that come together become one.
"""

from collections.abc import Callable
from enum import Enum
from typing import TypeAlias

from msgspec import Raw, Struct
from msgspec.structs import replace

from actors.protocol import codec, errors
from actors.protocol import payload as json
from actors.protocol.errors import ProtocolError
from actors.protocol.filter import TASK, Filter, located, task_of
from actors.protocol.messages import EMPTY, Error, RequestId
from actors.protocol.meta import SUBSCRIPTION_KEY
from actors.protocol.methods import ACKNOWLEDGED, UPDATED

# What happens to it (past tense) ----------------------------------------------------------------------------


class Opened(Struct, frozen=True):
    """There is room for it."""


class Refused(Struct, frozen=True):
    """It can't be served at all: this error is the answer, instead of the acknowledgement."""

    error: ProtocolError


class Honoured(Struct, frozen=True):
    """What the backends can do of it is known."""

    filter: Filter


class Changed(Struct, frozen=True):
    """A notification of a backend, in the client's words."""

    method: str
    params: Raw


class Notified(Struct, frozen=True):
    """A notification of the server that only its client and it know: it is said as often as it comes."""

    method: str
    params: Raw


class FlushDue(Struct, frozen=True):
    """What has gathered is to be said."""


class Ended(Struct, frozen=True):
    """The server ends it; `error`: with this JSON-RPC error (EMPTY: in an orderly way)."""

    error: Raw = EMPTY


class Overflowed(Struct, frozen=True):
    """The client does not read what is written to it."""


class Disconnected(Struct, frozen=True):
    """The client has closed its connection: it is unsubscribed."""


SubscriptionEvent: TypeAlias = (
    Opened | Refused | Honoured | Changed | Notified | FlushDue | Ended | Overflowed | Disconnected
)

CAUSES: dict[type, str] = {
    Opened: "opened",
    Refused: "refused",
    Honoured: "honoured",
    Changed: "changed",
    Notified: "notification",
    FlushDue: "flush due",
    Ended: "ended",
    Overflowed: "outbox full",
    Disconnected: "disconnected",
}
"""What each event is called in the table."""

# What it wants done (imperative) --------------------------------------------------------------------------


class Watch(Struct, frozen=True):
    """See to it that changes of these kinds are heard of; `Honoured` or `Refused` follows, perhaps at once."""

    filter: Filter


class Unwatch(Struct, frozen=True):
    """Nobody wants to hear of them any more."""


class Answer(Struct, frozen=True):
    """The whole answer: an error, with its status."""

    status: int
    body: bytes


class OpenStream(Struct, frozen=True):
    """Send the head of the stream."""


class Write(Struct, frozen=True):
    """A message on the stream."""

    frame: bytes


class Close(Struct, frozen=True):
    """The last message; `cut`: what the client has not read yet is dropped for it."""

    frame: bytes
    cut: bool = False


class StartFlushClock(Struct, frozen=True):
    """`FlushDue` when changes have gathered long enough."""


class Count(Struct, frozen=True):
    """Count a thing that was dropped."""

    what: str


SubscriptionEffect: TypeAlias = Watch | Unwatch | Answer | OpenStream | Write | Close | StartFlushClock | Count

Effects: TypeAlias = list[SubscriptionEffect]

# The machine ------------------------------------------------------------------------------------------------


class Phase(Enum):
    """How far one subscription is; never backwards."""

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
    (Phase.ACTIVE, "notification"): Phase.ACTIVE,
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


Step = tuple[Subscription, Effects]


def step(subscription: Subscription, event: SubscriptionEvent) -> Step:
    """Total: an event that the phase does not serve is counted, and changes nothing."""
    cause = CAUSES[type(event)]
    to = TRANSITIONS.get((subscription.phase, cause))
    if to is None:
        return subscription, [Count(f"late_{cause.replace(' ', '_')}")]
    return HANDLERS[type(event)](subscription, event, to)


def _opened(subscription: Subscription, event: Opened, to: Phase) -> Step:
    return replace(subscription, phase=to), [Watch(subscription.filter)]


def _refused(subscription: Subscription, event: Refused, to: Phase) -> Step:
    status = errors.modern_status(event.error.code)
    answer = Answer(status, codec.encode(Error(subscription.id, event.error.raw)))
    unwatch: Effects = [Unwatch()] if subscription.phase is Phase.OPENING else []
    return replace(subscription, phase=to), [*unwatch, answer]


def _honoured(subscription: Subscription, event: Honoured, to: Phase) -> Step:
    """The acknowledgement, then what has changed meanwhile."""
    honoured = subscription.filter.within(event.filter)
    said = {k: c for k, c in subscription.gathered.items() if honoured.wants(*c)}
    subscription = replace(subscription, phase=to, filter=honoured, gathered={})
    acknowledged = _frame(subscription, ACKNOWLEDGED, json.dumps({"notifications": honoured.raw}))
    frames = [_frame(subscription, method, params) for method, params in said.values()]
    return subscription, [OpenStream(), *(Write(frame) for frame in (acknowledged, *frames))]


def _changed(subscription: Subscription, event: Changed, to: Phase) -> Step:
    if not subscription.filter.wants(event.method, event.params):
        return subscription, [Count("change_unwanted")]
    key = event.method
    if event.method in (UPDATED, TASK):
        key = f"{key} {located(event.params) if event.method == UPDATED else task_of(event.params)}"
    first = not subscription.gathered
    if key not in subscription.gathered and len(subscription.gathered) >= GATHERED_MAX:
        return _overflowed(subscription, Overflowed(), Phase.DONE)
    gathered = {**subscription.gathered, key: (event.method, event.params)}
    clock: Effects = [StartFlushClock()] if first and to is Phase.ACTIVE else []
    return replace(subscription, phase=to, gathered=gathered), clock


def _notified(subscription: Subscription, event: Notified, to: Phase) -> Step:
    """After what has gathered before it."""
    subscription, writes = _flush(subscription, FlushDue(), to)
    return subscription, [*writes, Write(_frame(subscription, event.method, event.params))]


def _flush(subscription: Subscription, event: FlushDue, to: Phase) -> Step:
    frames = [_frame(subscription, method, params) for method, params in subscription.gathered.values()]
    return replace(subscription, phase=to, gathered={}), [Write(frame) for frame in frames]


def _ended(subscription: Subscription, event: Ended, to: Phase) -> Step:
    """What has gathered, then the result, or the error. Before the acknowledgement there is no stream to end: an
    error."""
    if subscription.phase is Phase.OPENING:
        error = errors.internal("the gateway is shutting down", reason="draining", executed="no")
        return _refused(subscription, Refused(error), to)
    subscription, frames = _flush(subscription, FlushDue(), to)
    last = codec.encode(Error(subscription.id, event.error)) if event.error else _result(subscription)
    return subscription, [Unwatch(), *frames, Close(last)]


def _overflowed(subscription: Subscription, event: Overflowed, to: Phase) -> Step:
    """The client comes back, and takes it that everything has changed."""
    if subscription.phase is Phase.OPENING:
        return _refused(
            subscription, Refused(errors.internal("too many changes", reason="overflow", executed="no")), to
        )
    return replace(subscription, phase=to, gathered={}), [Unwatch(), Close(_result(subscription), cut=True)]


def _disconnected(subscription: Subscription, event: Disconnected, to: Phase) -> Step:
    unwatch: Effects = [Unwatch()] if subscription.phase is not Phase.RECEIVED else []
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
    Opened: _opened,
    Refused: _refused,
    Honoured: _honoured,
    Changed: _changed,
    Notified: _notified,
    FlushDue: _flush,
    Ended: _ended,
    Overflowed: _overflowed,
    Disconnected: _disconnected,
}
