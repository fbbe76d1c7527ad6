"""Going on with a backend's session that an earlier link began, and knowing where its streams stand so that a later one
can (2025-11-25 transports, "Session Management", "Resumability and Redelivery").
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from actors.protocol import capabilities, payload
from actors.protocol import link_events as ev
from actors.protocol.events import Place
from actors.protocol.link_calls import connect, dispatch_waiting, failure, notified
from actors.protocol.link_loss import end_calls
from actors.protocol.link_state import Link, Pending, Phase, Step, moved
from actors.protocol.messages import EMPTY, RequestId
from actors.protocol.methods import LIST_CHANGED, METHODS, UPDATED

UNSAID_MAX = 256
"""Messages that wait for a transport: answers, cancels and notifications of the client. Further ones are dropped."""
UNSAID_BYTES = 16 * 1024 * 1024
"""The same, in bytes; one alone may have more."""


# Going on ----------------------------------------------------------------------------------------------------


def resumed(link: Link, event: ev.Started) -> Step:
    """There is a transport, and the handshake was made over another one. Whether the backend still knows us will show
    with the first request."""
    picking, unsaid = link.picking, link.unsaid
    link = moved(link, "session kept, stream asked for" if event.listens else "session kept")
    link = replace(link, related=event.related, listens=event.listens, attempt=0, picking=(), unsaid=())
    effects: ev.Effects = [ev.StopClock(), ev.Listen(), *(ev.PickUp(place) for place in picking), *unsaid]
    if event.listens:
        return link, effects
    link, more = goes_on(link)
    return link, effects + more


def goes_on(link: Link) -> Step:
    """READY, in a session of an earlier link."""
    assert link.hello is not None  # it is kept with the session
    effects: ev.Effects = [ev.Ready(link.hello, True), *(announced(link) if link.missed else [])]
    link, more = dispatch_waiting(replace(link, missed=False))
    return link, effects + more


def dropped(link: Link) -> Step:
    """The session that was kept is of no use, and the answers that were to be had in it are lost."""
    waiting = link.waiting
    link, effects = end_calls(replace(link, waiting=()), "unconfigured", "the server has another configuration now")
    return replace(link, waiting=waiting, kept=False, missed=False, hello=None, picking=()), effects


def announced(link: Link) -> ev.Effects:
    """What may have been missed is said once: of each kind of list, and of each subscription."""
    if link.hello is None:
        return []
    changed = [ev.Tell(None, method, EMPTY) for method in changes(link.hello)]
    return [*changed, *(ev.Tell(None, UPDATED, payload.dumps({"uri": uri})) for uri in link.subscriptions)]


def changes(hello: ev.Hello) -> list[str]:
    """The notifications of change that the backend may send."""
    declared = capabilities.parse(hello.capabilities)
    return [method for kind, method in LIST_CHANGED.items() if declared.has((kind,))]


def missed(link: Link, event: ev.Missed) -> Step:
    """READY: the stream has a hole."""
    return link, [ev.Placed(None, Place("", None)), *announced(link)]


def missed_early(link: Link, event: ev.Missed) -> Step:
    """LISTENING: it is announced as soon as there is somebody to hear it."""
    return replace(link, missed=True), [ev.Placed(None, Place("", None))]


def continued(link: Link, event: ev.Continued) -> Step:
    """On the way to READY, in a session that was kept: its answer is fetched as soon as there is a transport."""
    if not link.kept:
        return refused(link, event)
    link = replace(_taken(link, event), picking=(*link.picking, event.place))
    return (link, []) if link.phase is Phase.CONNECTING else connect(link)


def continued_now(link: Link, event: ev.Continued) -> Step:
    """READY."""
    return (_taken(link, event), [ev.PickUp(event.place)]) if link.kept else refused(link, event)


def held(serve: Callable[[Link, Any], Step]) -> Callable[[Link, Any], Step]:
    """On the way to READY: what is to be sent in a session that was kept is sent as soon as there is a transport."""

    def early(link: Link, event: Any) -> Step:
        link, effects = serve(link, event)
        sends = [effect for effect in effects if isinstance(effect, ev.Send)]
        if not sends:
            return link, effects
        rest: ev.Effects = [effect for effect in effects if not isinstance(effect, ev.Send)]
        size = sum(len(send.frame) for send in (*link.unsaid, *sends))
        if len(link.unsaid) + len(sends) > UNSAID_MAX or (link.unsaid and size > UNSAID_BYTES):
            return link, [*rest, ev.Tally("unsaid")]
        return replace(link, unsaid=(*link.unsaid, *sends)), rest

    return early


def notified_early(link: Link, event: ev.Notified) -> Step:
    """On the way to READY: it waits for a session to say it in. What the protocol has is for a backend that has heard
    of what it changes; it means nothing to one that is greeted after it."""
    if not link.kept and event.method in METHODS:
        return link, [ev.Tally(f"Notified while {link.phase.value}")]
    return held(notified)(link, event)


def notified_away(link: Link, event: ev.Notified) -> Step:
    """No connection: what only its two ends know brings one."""
    if event.method in METHODS:
        return link, [ev.Tally(f"Notified while {link.phase.value}")]
    link, _ = notified_early(link, event)
    return connect(link)


def refused(link: Link, event: ev.Continued) -> Step:
    """The session in which it was asked is not the present one."""
    message = "the rest of the answer can't be had"
    return link, [ev.Finish(event.call, False, failure("not_resumable", message, "unknown", link.server))]


def _taken(link: Link, event: ev.Continued) -> Link:
    pending = Pending(event.call, event.method, progress=event.progress, eligible=event.eligible)
    asked: dict[RequestId, ev.CallKey | None] = dict.fromkeys(event.asked, event.call)
    return replace(link, pending=link.pending.having(event.place.id, pending), asked={**link.asked, **asked})


# Leaving off -------------------------------------------------------------------------------------------------


def left_off(link: Link, event: ev.LeftOff) -> Step:
    """The owner goes, and will come back to this session, if it has heard of it."""
    leave = ev.LetGo() if link.kept or link.phase is Phase.READY else ev.Hang()
    link, effects = end_calls(link, "closed", f"the connection to {link.named} was closed")
    return replace(moved(link, "shut"), subscriptions=()), [ev.StopClock(), leave, *effects]


# Where the streams stand -------------------------------------------------------------------------------------


def moved_on(link: Link, event: ev.Moved) -> Step:
    """A stream stands elsewhere."""
    return link, [*_placed(link, event.related, event.cursor)]


def with_place(link: Link, effects: ev.Effects, event: ev.Incoming) -> ev.Effects:
    """The effects of a message, and where its stream stands after it: with what was said, if that is one thing."""
    placed = _placed(link, event.related, event.cursor) if event.cursor is not None else []
    if placed and len(effects) == 1 and isinstance(effects[0], ev.Tell | ev.Ask) and effects[0].call == placed[0].call:
        return [replace(effects[0], place=placed[0].place)]
    return effects + placed


def _placed(link: Link, related: RequestId | None, cursor: str | None) -> list[ev.Placed]:
    if related is None:
        return [ev.Placed(None, Place("", cursor))]
    pending = link.pending.get(related)
    return [ev.Placed(pending.call, Place(related, cursor))] if pending is not None and pending.call is not None else []
