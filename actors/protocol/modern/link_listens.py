"""Subscriptions to what changes at a backend without sessions (2026-07-28, patterns/subscriptions).

A client of this era has a listen of its own: a call that goes on until its result. Callers of the other era share one
for changes of lists, which say nothing but that something has changed; for the resources that a caller is subscribed to
it has one of its own, so that an update is told to nobody else. A change of those resources is another listen, that
takes the place of the first one when it is acknowledged.

A lost listen is opened again; what may have been missed is said when it is acknowledged, for nothing is replayed.
"""

from collections.abc import Hashable
from typing import Final

from msgspec import Raw
from msgspec.structs import replace

from actors.protocol import errors, payload
from actors.protocol import link_events as ev
from actors.protocol.link_calls import failure, member
from actors.protocol.messages import RequestId
from actors.protocol.methods import ACKNOWLEDGED, LIST_CHANGED, SUBSCRIBE, UPDATED
from actors.protocol.modern import filter as filters
from actors.protocol.modern.filter import Filter
from actors.protocol.modern.link_events import (
    Called,
    Effects,
    Joined,
    Left,
    StartRetry,
    StartTimer,
    StopTimer,
    TellCaller,
)
from actors.protocol.modern.link_state import (
    NOBODY,
    Change,
    Link,
    Listen,
    Phase,
    Step,
    Wish,
    drop,
    numbered,
    put,
    request,
    taken,
)
from actors.protocol.persistent import PersistentMap

LISTEN: Final = "subscriptions/listen"
ACK_WITHIN: Final = 10.0
"""Seconds for the acknowledgement; what comes after it may take for ever."""
LASTS: Final = 30.0
"""Seconds for which a listen must have been there for its loss to be the first one."""
FADE: Final = 0.25
"""Seconds for which a listen that was replaced is still heard, where two streams may overtake each other."""


# Opening -----------------------------------------------------------------------------------------------------


def listened(link: Link, event: Called) -> Step:
    """READY: a client of this era listens."""
    try:
        wanted = filters.read(event.params)
    except errors.Refusal as refusal:
        return link, [ev.Finish(event.call, False, refusal.error.raw)]
    return _open(link, Listen(wanted, called=event))


def _open(link: Link, listen: Listen) -> Step:
    link, id = numbered(link)
    called = listen.called
    client = called.client if called is not None else NOBODY
    params = called.params if called is not None else payload.dumps({"notifications": listen.filter.raw})
    try:
        send = request(link, id, LISTEN, params, client)
    except errors.Malformed as malformed:
        return link, [] if called is None else [ev.Finish(called.call, False, malformed.error.raw)]
    if listen.owner is not None:
        link = _wished(link, listen.owner, replace(link.wishes[listen.owner], opening=id))
    return put(link, id, replace(listen, acked=False)), [send, StartTimer(("ack", id), ACK_WITHIN)]


def restore(link: Link) -> Step:
    """READY: opens what was lost, and what everybody of the other era hears of."""
    effects: Effects = []
    lost, link = link.lost, replace(link, lost=PersistentMap())
    for number, listen in lost.items():
        effects.append(StopTimer(("listen", number)))
        link, more = _open(link, listen)
        effects += more
    link, more = _open_common(link)
    return link, effects + more


def _open_common(link: Link) -> Step:
    wanted = frozenset(n for kind, n in LIST_CHANGED.items() if link.declared.has((kind, "listChanged")))
    there = any(_is_common(listen) for listen in (*link.pending.values(), *link.lost.values()))
    if link.phase is not Phase.READY or not link.wishes or not wanted or there:
        return link, []
    return _open(link, Listen(Filter(wanted)))


def _is_common(listen: object) -> bool:
    return isinstance(listen, Listen) and listen.called is None and listen.owner is None


# Callers of the other era ------------------------------------------------------------------------------------


def _wished(link: Link, caller: Hashable, wish: Wish) -> Link:
    return replace(link, wishes=link.wishes.having(caller, wish))


def joined(link: Link, event: Joined) -> Step:
    """They hear of changes from here on."""
    if event.caller in link.wishes:
        return link, []
    return _open_common(_wished(link, event.caller, Wish()))


def left(link: Link, event: Left) -> Step:
    """Nobody listens for them any more, and, after the last one, for any of them."""
    caller = event.caller
    if caller not in link.wishes:
        return link, []
    wishes = link.wishes.without(caller)
    link = replace(link, wishes=wishes, lost=_lost_by_others(link, caller))
    effects: Effects = []
    for id, pending in link.pending.items():
        if isinstance(pending, Listen) and (pending.owner is caller or (_is_common(pending) and not wishes)):
            link, more = _drop(link, id)
            effects += more
    return link, effects


def _lost_by_others(link: Link, caller: Hashable) -> PersistentMap[int, Listen]:
    return PersistentMap({n: listen for n, listen in link.lost.items() if listen.owner is not caller})


def subscribed(link: Link, event: Called) -> Step:
    """READY: `resources/subscribe` or `resources/unsubscribe` of a caller of the other era. It is answered when the
    backend has acknowledged what follows from it."""
    uri, wanted = member(event.params, "uri"), event.method == SUBSCRIBE
    if uri is None:
        return link, [ev.Finish(event.call, False, errors.invalid_params("uri must be a string").raw)]
    if not link.declared.has(("resources", "subscribe")):
        return link, [ev.Finish(event.call, False, errors.method_not_found(event.method).raw)]
    wish = link.wishes.get(event.caller) or Wish()
    change = Change(event, uri, wanted)
    if (uri in wish.uris) is wanted and not any(c.uri == uri for c in (*wish.taking, *wish.waiting)):
        return link, [_done(event)]
    wish = replace(wish, waiting=(*wish.waiting, change))
    return _take(_wished(link, event.caller, wish), event.caller)


def _done(called: Called) -> ev.Finish:
    return ev.Finish(called.call, True, Raw(b"{}"))


def _take(link: Link, caller: Hashable) -> Step:
    """Has the waiting changes take effect, unless others are about to."""
    wish = link.wishes[caller]
    if wish.opening is not None or not wish.waiting:
        return link, []
    wish = replace(wish, taking=wish.waiting, waiting=())
    lost = _lost_by_others(link, caller)
    missed = len(lost) < len(link.lost)
    link = _wished(replace(link, lost=lost), caller, wish)
    uris = _after(wish)
    if uris:
        return _open(link, Listen(Filter(uris=uris), owner=caller, again=missed))
    return _in_force(link, caller, None, ())


def _after(wish: Wish) -> tuple[str, ...]:
    uris = dict.fromkeys(wish.uris)
    for change in wish.taking:
        if change.wanted:
            uris[change.uri] = None
        else:
            uris.pop(change.uri, None)
    return tuple(uris)


def _in_force(link: Link, caller: Hashable, id: RequestId | None, honoured: tuple[str, ...]) -> Step:
    """This listen takes the place of the one before: whoever waited for it has an answer."""
    wish = link.wishes[caller]
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
    link = _wished(link, caller, replace(wish, uris=honoured, current=id, opening=None, taking=()))
    if before is not None:
        link, more = _fade(link, before) if link.related and id is not None else _drop(link, before)
        effects += more
    link, more = _take(link, caller)
    return link, effects + more


def _fade(link: Link, id: RequestId) -> Step:
    """Its last messages may come after the first ones of the listen that has replaced it."""
    pending = link.pending.get(id)
    if not isinstance(pending, Listen):
        return link, []
    return put(link, id, replace(pending, fading=True)), [StartTimer(("fade", id), FADE)]


def faded(link: Link, id: RequestId) -> Step:
    """It has had its time."""
    return _drop(link, id) if id in link.pending else (link, [])


def _drop(link: Link, id: RequestId) -> Step:
    link, effects = drop(link, id, "not needed any more")
    return link, [*effects, *clocks(id)]


def clocks(id: RequestId) -> Effects:
    """Stops those of a listen that is no more."""
    return [StopTimer((clock, id)) for clock in ("ack", "fade", "lasted")]


# What comes --------------------------------------------------------------------------------------------------


def heard(link: Link, id: RequestId, listen: Listen, method: str, params: Raw) -> Step:
    """A notification on a listen: the acknowledgement comes first."""
    if method == ACKNOWLEDGED:
        return _acknowledged(link, id, listen, params)
    if not listen.acked:
        return link, [ev.Tally("before_acknowledgement")]
    if listen.called is not None:
        return link, [ev.Tell(listen.called.call, method, params)]
    if not listen.filter.wants(method, params):
        return link, [ev.Tally("not_subscribed")]
    if listen.owner is None:
        return link, [ev.Tell(None, method, params)]
    return _updated(link, id, listen, method, params)


def _updated(link: Link, id: RequestId, listen: Listen, method: str, params: Raw) -> Step:
    """For one caller. What a fading listen says that the one in its place has said since is no news."""
    uri, wish = filters.located(params) or "", link.wishes.get(listen.owner)
    if wish is None or not Filter(uris=wish.uris).wants(method, params):
        return link, [ev.Tally("not_subscribed")]
    current = link.pending.get(wish.current) if wish.current is not None else None
    if listen.fading and isinstance(current, Listen) and uri in current.told:
        return link, []
    if not listen.fading and len(listen.told) < filters.URIS_MAX and _fades(link, listen.owner):
        link = put(link, id, replace(listen, told=listen.told | {uri}))
    return link, [TellCaller(listen.owner, method, params)]


def _fades(link: Link, owner: Hashable) -> bool:
    return any(isinstance(p, Listen) and p.fading and p.owner is owner for p in link.pending.values())


def _acknowledged(link: Link, id: RequestId, listen: Listen, params: Raw) -> Step:
    if listen.acked:
        return link, [ev.Tally("late_acknowledgement")]
    try:
        honoured = filters.read(params)
    except errors.Refusal:
        honoured = Filter()
    granted = listen.filter.within(honoured)
    effects: Effects = [StopTimer(("ack", id)), StartTimer(("lasted", id), LASTS)]
    if listen.called is not None and not listen.again:
        effects.append(ev.Tell(listen.called.call, ACKNOWLEDGED, params))
    acked = replace(listen, acked=True, again=True, filter=granted)
    link = put(link, id, acked)
    if listen.owner is not None:
        link, more = _in_force(link, listen.owner, id, granted.uris)
        effects += more
    return link, effects + (_missed(acked) if listen.again else [])


def _missed(listen: Listen) -> Effects:
    """Everything that may have changed while nobody listened."""
    missed = [(method, Raw(b"{}")) for method in filters.FLAGS if method in listen.filter.changes]
    missed += [(UPDATED, payload.dumps({"uri": uri})) for uri in listen.filter.uris]
    if listen.owner is not None:
        return [TellCaller(listen.owner, method, params) for method, params in missed]
    call = listen.called.call if listen.called is not None else None
    return [ev.Tell(call, method, params) for method, params in missed]


# The end -----------------------------------------------------------------------------------------------------


def ended(link: Link, id: RequestId, listen: Listen, result: Raw) -> Step:
    """The backend ends it in an orderly way."""
    if listen.called is not None:
        return taken(link, id), [*clocks(id), ev.Finish(listen.called.call, True, result)]
    return dismissed(link, id, listen)


def dismissed(link: Link, id: RequestId, listen: Listen) -> Step:
    """The backend ends it without a result."""
    return broken(link, id, listen, failure("ended", f"{link.named} ended the subscription", "no", link.server))


def refused(link: Link, id: RequestId, listen: Listen, error: Raw) -> Step:
    """The backend does not serve it, or no longer. What everybody hears of is done without."""
    if listen.called is not None:
        return taken(link, id), [*clocks(id), ev.Finish(listen.called.call, False, error)]
    if _is_common(listen) and not listen.again:
        return taken(link, id), [StopTimer(("ack", id))]
    return broken(link, id, listen, error)


def unacknowledged(link: Link, id: RequestId) -> Step:
    """The acknowledgement is overdue."""
    listen = link.pending.get(id)
    if not isinstance(listen, Listen) or listen.acked:
        return link, []
    error = failure("timeout", f"{link.named} did not acknowledge", "no", link.server)
    link, effects = drop(link, id, "no acknowledgement")
    link, more = broken(link, id, listen, error)
    return link, effects + more


def lasted(link: Link, id: RequestId) -> Step:
    """It was no flash in the pan."""
    listen = link.pending.get(id)
    return (put(link, id, replace(listen, attempt=0)) if isinstance(listen, Listen) else link), []


def broken(link: Link, id: RequestId, listen: Listen, error: Raw) -> Step:
    """It is lost. One that never was acknowledged fails; any other is opened again after a while."""
    effects = clocks(id)
    link = taken(link, id)
    if listen.fading:
        return link, effects
    if listen.called is not None and not listen.again:
        return link, [*effects, ev.Finish(listen.called.call, False, error)]
    if listen.owner is None:
        link, more = _later(link, listen)
        return link, effects + more
    wish = link.wishes[listen.owner]
    if wish.opening == id:
        # What was to change does not; what was in force before stays so, but for what nobody wants any more.
        effects += [ev.Finish(c.called.call, False, error) if c.wanted else _done(c.called) for c in wish.taking]
        unwanted = {change.uri for change in wish.taking if not change.wanted}
        uris = tuple(uri for uri in wish.uris if uri not in unwanted)
        wish = replace(wish, uris=uris, opening=None, taking=())
    else:
        wish = replace(wish, current=None)
        opening = link.pending.get(wish.opening) if wish.opening is not None else None
        if wish.opening is not None and isinstance(opening, Listen):
            link = put(link, wish.opening, replace(opening, again=True))
    link = _wished(link, listen.owner, wish)
    if wish.waiting and wish.opening is None:
        link, more = _take(link, listen.owner)
        return link, effects + more
    if wish.current is None and wish.opening is None and wish.uris:
        attempt = listen.attempt
        link, more = _later(link, Listen(Filter(uris=wish.uris), owner=listen.owner, again=True, attempt=attempt))
        effects += more
    return link, effects


def _later(link: Link, listen: Listen) -> Step:
    number, listen = link.next_id, replace(listen, acked=False, attempt=listen.attempt + 1, told=frozenset())
    link = replace(link, next_id=number + 1, lost=link.lost.having(number, listen))
    return link, [StartRetry(("listen", number), listen.attempt)]


def due(link: Link, number: int) -> Step:
    """A lost listen is opened again, if there is a connection; else with the next one."""
    listen = link.lost.get(number)
    if listen is None or link.phase is not Phase.READY:
        return link, []
    return _open(replace(link, lost=link.lost.without(number)), listen)


def abandoned(link: Link, call: ev.CallKey) -> Step | None:
    """A listen of this era is wanted no more; None if there is none of this call."""
    for id, pending in link.pending.items():
        if isinstance(pending, Listen) and pending.called is not None and pending.called.call == call:
            return _drop(link, id)
    for number, listen in link.lost.items():
        if listen.called is not None and listen.called.call == call:
            rest = link.lost.without(number)
            return replace(link, lost=rest), [StopTimer(("listen", number))]
    return None


# The end of the connection -----------------------------------------------------------------------------------


def take_changes(link: Link) -> tuple[Link, list[Called]]:
    """The changes of subscriptions that have not taken effect are nobody's any more."""
    changes = [c.called for wish in link.wishes.values() for c in (*wish.taking, *wish.waiting)]
    wishes = {c: replace(wish, taking=(), waiting=(), opening=None) for c, wish in link.wishes.items()}
    return replace(link, wishes=PersistentMap(wishes)), changes


def lose_all(link: Link, error: Raw) -> Step:
    """The connection is lost, and every listen with it: they are opened again on the next one."""
    effects: Effects = []
    kept = [listen for listen in link.lost.values() if listen.owner is None]
    for id, listen in link.pending.items():
        if not isinstance(listen, Listen):
            continue
        effects += clocks(id)
        if listen.called is not None and not listen.again:
            effects.append(ev.Finish(listen.called.call, False, error))
        elif listen.owner is None:
            kept.append(replace(listen, acked=False, told=frozenset()))
    wishes = {caller: replace(wish, current=None, opening=None) for caller, wish in link.wishes.items()}
    kept += [Listen(Filter(uris=wish.uris), owner=c, again=True) for c, wish in wishes.items() if wish.uris]
    lost = PersistentMap(dict(enumerate(kept, link.next_id)))
    return replace(link, next_id=link.next_id + len(kept), lost=lost, wishes=PersistentMap(wishes)), effects


def end_all(link: Link, error: Raw) -> Step:
    """The listens of clients of this era end for good."""
    effects: Effects = []
    for listen in (*link.pending.values(), *link.lost.values()):
        if isinstance(listen, Listen) and listen.called is not None:
            effects.append(ev.Finish(listen.called.call, False, error))
    pending = {i: p for i, p in link.pending.items() if not (isinstance(p, Listen) and p.called is not None)}
    lost = {n: listen for n, listen in link.lost.items() if listen.called is None}
    return replace(link, pending=PersistentMap(pending), lost=PersistentMap(lost)), effects
