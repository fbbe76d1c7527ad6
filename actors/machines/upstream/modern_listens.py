"""Subscriptions to what changes at a modern backend (2026-07-28, patterns/subscriptions).

A client of this era has a listen of its own: a call that goes on until its result. Callers of the other era share
one for changes of lists, which say nothing but that something has changed; for the resources that a caller is
subscribed to it has one of its own, so that an update is told to nobody else. A change of those resources is
another listen, that takes the place of the first one when it is acknowledged.

A lost listen is opened again; what may have been missed is said when it is acknowledged, for nothing is replayed.
"""

from collections.abc import Hashable
from typing import Final

from msgspec import Raw
from msgspec.structs import replace

from actors.machines.upstream import events as ev
from actors.machines.upstream.legacy_calls import failure, member
from actors.machines.upstream.modern_events import (
    Called,
    Effects,
    Joined,
    Left,
    NotifyCaller,
    StartRetry,
    StartTimer,
    StopTimer,
)
from actors.machines.upstream.modern_state import (
    NOBODY,
    Change,
    Listen,
    Phase,
    Step,
    Upstream,
    Wish,
    drop,
    numbered,
    put,
    request,
    taken,
)
from actors.protocol import errors, payload
from actors.protocol import filter as filters
from actors.protocol.filter import Filter
from actors.protocol.messages import RequestId
from actors.protocol.methods import ACKNOWLEDGED, LIST_CHANGED, LISTEN, SUBSCRIBE, UPDATED
from actors.protocol.persistent import EMPTY_MAP, PersistentMap
from actors.protocol.rights import NO_RIGHTS

ACK_WITHIN: Final = 10.0
"""Seconds for the acknowledgement; what comes after it may take for ever."""
LASTS: Final = 30.0
"""Seconds for which a listen must have been there for its loss to be the first one."""
FADE: Final = 0.25
"""Seconds for which a listen that was replaced is still heard, where two streams may overtake each other."""


# Opening -----------------------------------------------------------------------------------------------------


def listened(upstream: Upstream, event: Called) -> Step:
    """READY: a client of this era listens."""
    try:
        wanted = filters.read(event.params)
    except errors.Refusal as refusal:
        return upstream, [ev.Finish(event.call, False, refusal.error.raw)]
    return _open(upstream, Listen(wanted, called=event))


def _open(upstream: Upstream, listen: Listen) -> Step:
    upstream, id = numbered(upstream)
    called = listen.called
    client, rights = (called.client, called.rights) if called is not None else (NOBODY, NO_RIGHTS)
    params = called.params if called is not None else payload.dumps({"notifications": listen.filter.raw})
    try:
        send = request(upstream, id, LISTEN, params, client, rights=rights)
    except errors.Malformed as malformed:
        return upstream, [] if called is None else [ev.Finish(called.call, False, malformed.error.raw)]
    if listen.owner is not None:
        upstream = _wished(upstream, listen.owner, replace(upstream.wishes[listen.owner], opening=id))
    return put(upstream, id, replace(listen, acked=False)), [send, StartTimer(("ack", id), ACK_WITHIN)]


def restore(upstream: Upstream) -> Step:
    """READY: opens what was lost, and what everybody of the other era hears of."""
    effects: Effects = []
    lost, upstream = upstream.lost, replace(upstream, lost=EMPTY_MAP)
    for number, listen in lost.items():
        effects.append(StopTimer(("listen", number)))
        upstream, more = _open(upstream, listen)
        effects += more
    upstream, more = _open_common(upstream)
    return upstream, effects + more


def _open_common(upstream: Upstream) -> Step:
    wanted = frozenset(n for kind, n in LIST_CHANGED.items() if upstream.declared.has((kind, "listChanged")))
    there = any(_is_common(listen) for listen in (*upstream.pending.values(), *upstream.lost.values()))
    if upstream.phase is not Phase.READY or not upstream.wishes or not wanted or there:
        return upstream, []
    return _open(upstream, Listen(Filter(wanted)))


def _is_common(listen: object) -> bool:
    return isinstance(listen, Listen) and listen.called is None and listen.owner is None


# Callers of the other era ------------------------------------------------------------------------------------


def _wished(upstream: Upstream, caller: Hashable, wish: Wish) -> Upstream:
    return replace(upstream, wishes=upstream.wishes.having(caller, wish))


def joined(upstream: Upstream, event: Joined) -> Step:
    """They hear of changes from here on."""
    if event.caller in upstream.wishes:
        return upstream, []
    return _open_common(_wished(upstream, event.caller, Wish()))


def left(upstream: Upstream, event: Left) -> Step:
    """Nobody listens for them any more, and, after the last one, for any of them."""
    caller = event.caller
    if caller not in upstream.wishes:
        return upstream, []
    wishes = upstream.wishes.without(caller)
    upstream = replace(upstream, wishes=wishes, lost=_lost_by_others(upstream, caller))
    effects: Effects = []
    for id, pending in upstream.pending.items():
        if isinstance(pending, Listen) and (pending.owner is caller or (_is_common(pending) and not wishes)):
            upstream, more = _drop(upstream, id)
            effects += more
    return upstream, effects


def _lost_by_others(upstream: Upstream, caller: Hashable) -> PersistentMap[int, Listen]:
    return PersistentMap({n: listen for n, listen in upstream.lost.items() if listen.owner is not caller})


def subscribed(upstream: Upstream, event: Called) -> Step:
    """READY: `resources/subscribe` or `resources/unsubscribe` of a caller of the other era. It is answered when the
    backend has acknowledged what follows from it."""
    uri, wanted = member(event.params, "uri"), event.method == SUBSCRIBE
    if uri is None:
        return upstream, [ev.Finish(event.call, False, errors.invalid_params("uri must be a string").raw)]
    if not upstream.declared.has(("resources", "subscribe")):
        return upstream, [ev.Finish(event.call, False, errors.method_not_found(event.method).raw)]
    wish = upstream.wishes.get(event.caller) or Wish()
    change = Change(event, uri, wanted)
    if (uri in wish.uris) is wanted and not any(c.uri == uri for c in (*wish.taking, *wish.waiting)):
        return upstream, [_done(event)]
    wish = replace(wish, waiting=(*wish.waiting, change))
    return _take(_wished(upstream, event.caller, wish), event.caller)


def _done(called: Called) -> ev.Finish:
    return ev.Finish(called.call, True, Raw(b"{}"))


def _take(upstream: Upstream, caller: Hashable) -> Step:
    """Has the waiting changes take effect, unless others are about to."""
    wish = upstream.wishes[caller]
    if wish.opening is not None or not wish.waiting:
        return upstream, []
    wish = replace(wish, taking=wish.waiting, waiting=())
    lost = _lost_by_others(upstream, caller)
    missed = len(lost) < len(upstream.lost)
    upstream = _wished(replace(upstream, lost=lost), caller, wish)
    uris = _after(wish)
    if uris:
        return _open(upstream, Listen(Filter(uris=uris), owner=caller, again=missed))
    return _in_force(upstream, caller, None, ())


def _after(wish: Wish) -> tuple[str, ...]:
    uris = dict.fromkeys(wish.uris)
    for change in wish.taking:
        if change.wanted:
            uris[change.uri] = None
        else:
            uris.pop(change.uri, None)
    return tuple(uris)


def _in_force(upstream: Upstream, caller: Hashable, id: RequestId | None, honoured: tuple[str, ...]) -> Step:
    """This listen takes the place of the one before: whoever waited for it has an answer."""
    wish = upstream.wishes[caller]
    effects: Effects = []
    for change in wish.taking:
        if not change.wanted or change.uri in honoured:
            effects.append(_done(change.called))
        else:
            error = errors.ProtocolError(
                errors.INVALID_PARAMS, "The server does not watch this resource", payload.dumps({"uri": change.uri})
            )
            effects.append(ev.Finish(change.called.call, False, error.raw))
    before = wish.current
    upstream = _wished(upstream, caller, replace(wish, uris=honoured, current=id, opening=None, taking=()))
    if before is not None:
        upstream, more = _fade(upstream, before) if upstream.related and id is not None else _drop(upstream, before)
        effects += more
    upstream, more = _take(upstream, caller)
    return upstream, effects + more


def _fade(upstream: Upstream, id: RequestId) -> Step:
    """Its last messages may come after the first ones of the listen that has replaced it."""
    pending = upstream.pending.get(id)
    if not isinstance(pending, Listen):
        return upstream, []
    return put(upstream, id, replace(pending, fading=True)), [StartTimer(("fade", id), FADE)]


def faded(upstream: Upstream, id: RequestId) -> Step:
    """It has had its time."""
    return _drop(upstream, id) if id in upstream.pending else (upstream, [])


def _drop(upstream: Upstream, id: RequestId) -> Step:
    upstream, effects = drop(upstream, id, "not needed any more")
    return upstream, [*effects, *clocks(id)]


def clocks(id: RequestId) -> Effects:
    """Stops those of a listen that is no more."""
    return [StopTimer((clock, id)) for clock in ("ack", "fade", "lasted")]


# What comes --------------------------------------------------------------------------------------------------


def heard(upstream: Upstream, id: RequestId, listen: Listen, method: str, params: Raw) -> Step:
    """A notification on a listen: the acknowledgement comes first."""
    if method == ACKNOWLEDGED:
        return _acknowledged(upstream, id, listen, params)
    if not listen.acked:
        return upstream, [ev.Count("before_acknowledgement")]
    if listen.called is not None:
        return upstream, [ev.Notify(listen.called.call, method, params)]
    if not listen.filter.wants(method, params):
        return upstream, [ev.Count("not_subscribed")]
    if listen.owner is None:
        return upstream, [ev.Notify(None, method, params)]
    return _updated(upstream, id, listen, method, params)


def _updated(upstream: Upstream, id: RequestId, listen: Listen, method: str, params: Raw) -> Step:
    """For one caller. What a fading listen says that the one in its place has said since is no news."""
    uri, wish = filters.located(params) or "", upstream.wishes.get(listen.owner)
    if wish is None or not Filter(uris=wish.uris).wants(method, params):
        return upstream, [ev.Count("not_subscribed")]
    current = upstream.pending.get(wish.current) if wish.current is not None else None
    if listen.fading and isinstance(current, Listen) and uri in current.told:
        return upstream, []
    if not listen.fading and len(listen.told) < filters.URIS_MAX and _fades(upstream, listen.owner):
        upstream = put(upstream, id, replace(listen, told=listen.told | {uri}))
    return upstream, [NotifyCaller(listen.owner, method, params)]


def _fades(upstream: Upstream, owner: Hashable) -> bool:
    return any(isinstance(p, Listen) and p.fading and p.owner is owner for p in upstream.pending.values())


def _acknowledged(upstream: Upstream, id: RequestId, listen: Listen, params: Raw) -> Step:
    if listen.acked:
        return upstream, [ev.Count("late_acknowledgement")]
    try:
        honoured = filters.read(params)
    except errors.Refusal:
        honoured = Filter()
    granted = listen.filter.within(honoured)
    effects: Effects = [StopTimer(("ack", id)), StartTimer(("lasted", id), LASTS)]
    if listen.called is not None and not listen.again:
        effects.append(ev.Notify(listen.called.call, ACKNOWLEDGED, params))
    acked = replace(listen, acked=True, again=True, filter=granted)
    upstream = put(upstream, id, acked)
    if listen.owner is not None:
        upstream, more = _in_force(upstream, listen.owner, id, granted.uris)
        effects += more
    return upstream, effects + (_missed(acked) if listen.again else [])


def _missed(listen: Listen) -> Effects:
    """Everything that may have changed while nobody listened."""
    missed = [(method, Raw(b"{}")) for method in filters.FLAGS if method in listen.filter.changes]
    missed += [(UPDATED, payload.dumps({"uri": uri})) for uri in listen.filter.uris]
    if listen.owner is not None:
        return [NotifyCaller(listen.owner, method, params) for method, params in missed]
    call = listen.called.call if listen.called is not None else None
    return [ev.Notify(call, method, params) for method, params in missed]


# The end -----------------------------------------------------------------------------------------------------


def ended(upstream: Upstream, id: RequestId, listen: Listen, result: Raw) -> Step:
    """The backend ends it in an orderly way."""
    if listen.called is not None:
        return taken(upstream, id), [*clocks(id), ev.Finish(listen.called.call, True, result)]
    return dismissed(upstream, id, listen)


def dismissed(upstream: Upstream, id: RequestId, listen: Listen) -> Step:
    """The backend ends it without a result."""
    return broken(
        upstream, id, listen, failure("ended", f"{upstream.named} ended the subscription", "no", upstream.server)
    )


def refused(upstream: Upstream, id: RequestId, listen: Listen, error: Raw) -> Step:
    """The backend does not serve it, or no longer. What everybody hears of is done without."""
    if listen.called is not None:
        return taken(upstream, id), [*clocks(id), ev.Finish(listen.called.call, False, error)]
    if _is_common(listen) and not listen.again:
        return taken(upstream, id), [StopTimer(("ack", id))]
    return broken(upstream, id, listen, error)


def unacknowledged(upstream: Upstream, id: RequestId) -> Step:
    """The acknowledgement is overdue."""
    listen = upstream.pending.get(id)
    if not isinstance(listen, Listen) or listen.acked:
        return upstream, []
    error = failure("timeout", f"{upstream.named} did not acknowledge", "no", upstream.server)
    upstream, effects = drop(upstream, id, "no acknowledgement")
    upstream, more = broken(upstream, id, listen, error)
    return upstream, effects + more


def lasted(upstream: Upstream, id: RequestId) -> Step:
    """It was no flash in the pan."""
    listen = upstream.pending.get(id)
    return (put(upstream, id, replace(listen, attempt=0)) if isinstance(listen, Listen) else upstream), []


def broken(upstream: Upstream, id: RequestId, listen: Listen, error: Raw) -> Step:
    """It is lost. One that never was acknowledged fails; any other is opened again after a while."""
    effects = clocks(id)
    upstream = taken(upstream, id)
    if listen.fading:
        return upstream, effects
    if listen.called is not None and not listen.again:
        return upstream, [*effects, ev.Finish(listen.called.call, False, error)]
    if listen.owner is None:
        upstream, more = _later(upstream, listen)
        return upstream, effects + more
    wish = upstream.wishes[listen.owner]
    if wish.opening == id:
        # What was to change does not; what was in force before stays so, but for what nobody wants any more.
        effects += [ev.Finish(c.called.call, False, error) if c.wanted else _done(c.called) for c in wish.taking]
        unwanted = {change.uri for change in wish.taking if not change.wanted}
        uris = tuple(uri for uri in wish.uris if uri not in unwanted)
        wish = replace(wish, uris=uris, opening=None, taking=())
    else:
        wish = replace(wish, current=None)
        opening = upstream.pending.get(wish.opening) if wish.opening is not None else None
        if wish.opening is not None and isinstance(opening, Listen):
            upstream = put(upstream, wish.opening, replace(opening, again=True))
    upstream = _wished(upstream, listen.owner, wish)
    if wish.waiting and wish.opening is None:
        upstream, more = _take(upstream, listen.owner)
        return upstream, effects + more
    if wish.current is None and wish.opening is None and wish.uris:
        attempt = listen.attempt
        upstream, more = _later(
            upstream, Listen(Filter(uris=wish.uris), owner=listen.owner, again=True, attempt=attempt)
        )
        effects += more
    return upstream, effects


def _later(upstream: Upstream, listen: Listen) -> Step:
    number, listen = upstream.next_id, replace(listen, acked=False, attempt=listen.attempt + 1, told=frozenset())
    upstream = replace(upstream, next_id=number + 1, lost=upstream.lost.having(number, listen))
    return upstream, [StartRetry(("listen", number), listen.attempt)]


def due(upstream: Upstream, number: int) -> Step:
    """A lost listen is opened again, if there is a connection; else with the next one."""
    listen = upstream.lost.get(number)
    if listen is None or upstream.phase is not Phase.READY:
        return upstream, []
    return _open(replace(upstream, lost=upstream.lost.without(number)), listen)


def abandoned(upstream: Upstream, call: ev.CallKey) -> Step | None:
    """A listen of this era is wanted no more; None if there is none of this call."""
    for id, pending in upstream.pending.items():
        if isinstance(pending, Listen) and pending.called is not None and pending.called.call == call:
            return _drop(upstream, id)
    for number, listen in upstream.lost.items():
        if listen.called is not None and listen.called.call == call:
            rest = upstream.lost.without(number)
            return replace(upstream, lost=rest), [StopTimer(("listen", number))]
    return None


# The end of the connection -----------------------------------------------------------------------------------


def take_changes(upstream: Upstream) -> tuple[Upstream, list[Called]]:
    """The changes of subscriptions that have not taken effect are nobody's any more."""
    changes = [c.called for wish in upstream.wishes.values() for c in (*wish.taking, *wish.waiting)]
    wishes = {c: replace(wish, taking=(), waiting=(), opening=None) for c, wish in upstream.wishes.items()}
    return replace(upstream, wishes=PersistentMap(wishes)), changes


def lose_all(upstream: Upstream, error: Raw) -> Step:
    """The connection is lost, and every listen with it: they are opened again on the next one."""
    effects: Effects = []
    kept = [listen for listen in upstream.lost.values() if listen.owner is None]
    for id, listen in upstream.pending.items():
        if not isinstance(listen, Listen):
            continue
        effects += clocks(id)
        if listen.called is not None and not listen.again:
            effects.append(ev.Finish(listen.called.call, False, error))
        elif listen.owner is None:
            kept.append(replace(listen, acked=False, told=frozenset()))
    wishes = {caller: replace(wish, current=None, opening=None) for caller, wish in upstream.wishes.items()}
    kept += [Listen(Filter(uris=wish.uris), owner=c, again=True) for c, wish in wishes.items() if wish.uris]
    lost = PersistentMap(dict(enumerate(kept, upstream.next_id)))
    return replace(upstream, next_id=upstream.next_id + len(kept), lost=lost, wishes=PersistentMap(wishes)), effects


def end_all(upstream: Upstream, error: Raw) -> Step:
    """The listens of clients of this era end for good."""
    effects: Effects = []
    for listen in (*upstream.pending.values(), *upstream.lost.values()):
        if isinstance(listen, Listen) and listen.called is not None:
            effects.append(ev.Finish(listen.called.call, False, error))
    pending = {i: p for i, p in upstream.pending.items() if not (isinstance(p, Listen) and p.called is not None)}
    lost = {n: listen for n, listen in upstream.lost.items() if listen.called is None}
    return replace(upstream, pending=PersistentMap(pending), lost=PersistentMap(lost)), effects
