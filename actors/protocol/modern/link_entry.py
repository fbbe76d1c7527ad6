"""How a call comes in, and how it is given up."""

from typing import Final

from msgspec import Raw
from msgspec.structs import replace

from actors.protocol import codec, errors, translate
from actors.protocol import link_events as ev
from actors.protocol.capabilities import LEVELS
from actors.protocol.link_calls import member
from actors.protocol.methods import METHODS, SET_LEVEL, SUBSCRIBE, UNSUBSCRIBE
from actors.protocol.modern import headers
from actors.protocol.modern import link_listens as listens
from actors.protocol.modern import link_loop as loop
from actors.protocol.modern.link_calls import connect, drop, send
from actors.protocol.modern.link_events import Called, Effects, Joined, Left
from actors.protocol.modern.link_state import Link, Running, Step
from actors.protocol.versions import MODERN


def called(link: Link, event: Called) -> Step:
    """READY: what the backend does not know is done here, the rest is sent."""
    if event.client.drives:
        own = FOR_SESSIONS.get(event.method)
        if own is not None:
            return own(link, event)
        if event.method not in METHODS:  # between the eras only what is known
            return link, [ev.Finish(event.call, False, errors.method_not_found(event.method).raw)]
        # Nobody but the link goes on with a call of such a caller.
        event = replace(event, params=translate.client_request(event.method, event.params, MODERN))
    elif event.method == listens.LISTEN:
        return listens.listened(link, event)
    return send(link, Running(event))


def called_early(link: Link, event: Called) -> Step:
    """On the way to READY: it waits."""
    return replace(link, waiting=(*link.waiting, event)), []


def called_away(link: Link, event: Called) -> Step:
    """No connection: it brings one."""
    link, _ = called_early(link, event)
    return connect(link)


def dispatch_waiting(link: Link) -> Step:
    """READY: sends every notification and every call that waited for the connection."""
    effects: Effects = []
    unsaid, link = link.unsaid, replace(link, unsaid=())
    for event in unsaid:
        link, sent = notified(link, event)
        effects += sent
    waiting, link = link.waiting, replace(link, waiting=())
    for held in waiting:
        link, sent = called(link, held) if isinstance(held, Called) else send(link, held)
        effects += sent
    return link, effects


# Notifications -----------------------------------------------------------------------------------------------

UNSAID_MAX: Final = 256
"""Notifications that wait for the connection; further ones are dropped."""
UNSAID_BYTES: Final = 16 * 1024 * 1024
"""The same, in bytes of their params; one alone may have more."""


def notified(link: Link, event: ev.Notified) -> Step:
    """READY: of a client of this era, as it is. One that no header carries no server over HTTP can mean."""
    try:
        own = headers.outbound(event.method, event.params) if link.related else ()
    except errors.Malformed:
        return link, [ev.Tally("unsendable_notification")]
    return link, [ev.Send(codec.encode_notification(event.method, event.params), headers=own)]


def notified_early(link: Link, event: ev.Notified) -> Step:
    """On the way to READY: it waits."""
    size = sum(len(held.params) for held in link.unsaid) + len(event.params)
    if len(link.unsaid) >= UNSAID_MAX or (link.unsaid and size > UNSAID_BYTES):
        return link, [ev.Tally("too_many_notifications")]
    return replace(link, unsaid=(*link.unsaid, event)), []


def notified_away(link: Link, event: ev.Notified) -> Step:
    """No connection: it brings one."""
    link, _ = notified_early(link, event)
    return connect(link)


# What only the era with sessions has -------------------------------------------------------------------------


def _done(link: Link, event: Called) -> Step:
    return link, [ev.Finish(event.call, True, Raw(b"{}"))]


def _leveled(link: Link, event: Called) -> Step:
    """The level comes with each call; there is nothing to be told."""
    if not link.declared.has(("logging",)):
        return link, [ev.Finish(event.call, False, errors.method_not_found(event.method).raw)]
    if member(event.params, "level") not in LEVELS:
        error = errors.invalid_params(f"level must be one of {', '.join(LEVELS)}")
        return link, [ev.Finish(event.call, False, error.raw)]
    return _done(link, event)


FOR_SESSIONS = {
    "ping": _done,
    SET_LEVEL: _leveled,
    SUBSCRIBE: listens.subscribed,
    UNSUBSCRIBE: listens.subscribed,
}
"""Requests of the other era that are answered here."""


# Coming and going --------------------------------------------------------------------------------------------


def joined(link: Link, event: Joined) -> Step:
    """A caller of the other era."""
    return listens.joined(link, event.caller)


def left(link: Link, event: Left) -> Step:
    """They are gone."""
    return listens.left(link, event.caller)


def abandoned(link: Link, event: ev.Abandoned) -> Step:
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
    return loop.abandoned(link, event.call)


def _call(held: Called | Running) -> ev.CallKey:
    return held.call if isinstance(held, Called) else held.called.call
