"""What becomes of subscriptions at a backend without sessions when the connection to it is lost, or given up."""

from msgspec import Raw
from msgspec.structs import replace

from actors.protocol import link_events as ev
from actors.protocol.modern.filter import Filter
from actors.protocol.modern.link_events import Called, Effects
from actors.protocol.modern.link_listens import clocks
from actors.protocol.modern.link_state import Link, Listen, Step
from actors.protocol.persistent import PersistentMap


def take_changes(link: Link) -> tuple[Link, list[Called]]:
    """The changes of subscriptions that have not taken effect are nobody's any more."""
    changes = [c.called for wish in link.wishes.values() for c in (*wish.taking, *wish.waiting)]
    wishes = {c: replace(wish, taking=(), waiting=(), opening=None) for c, wish in link.wishes.items()}
    return replace(link, wishes=wishes), changes


def lose_all(link: Link, error: Raw) -> Step:
    """The connection is lost, and every listen with it: they are opened again on the next one."""
    effects: Effects = []
    lost = list(link.lost.values())
    for id, listen in link.pending.items():
        if not isinstance(listen, Listen):
            continue
        effects += clocks(id)
        if listen.called is not None and not listen.again:
            effects.append(ev.Finish(listen.called.call, False, error))
        elif listen.owner is None:
            lost.append(replace(listen, acked=False, told=frozenset()))
    kept = [listen for listen in lost if listen.owner is None]
    wishes = {caller: replace(wish, current=None, opening=None) for caller, wish in link.wishes.items()}
    kept += [Listen(Filter(uris=wish.uris), owner=c, again=True) for c, wish in wishes.items() if wish.uris]
    numbers = range(link.next_id, link.next_id + len(kept))
    link = replace(link, next_id=numbers.stop, lost=dict(zip(numbers, kept, strict=True)), wishes=wishes)
    return link, effects


def end_all(link: Link, error: Raw) -> Step:
    """The listens of clients of this era end for good."""
    effects: Effects = []
    for listen in (*link.pending.values(), *link.lost.values()):
        if isinstance(listen, Listen) and listen.called is not None:
            effects.append(ev.Finish(listen.called.call, False, error))
    pending = {i: p for i, p in link.pending.items() if not (isinstance(p, Listen) and p.called is not None)}
    return replace(
        link, pending=PersistentMap(pending), lost={n: w for n, w in link.lost.items() if w.called is None}
    ), effects
